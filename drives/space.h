/* SPDX-License-Identifier: MIT */
/* drives/space.h - files that promise more than the file system below them has */
#ifndef SPW_DRIVES_SPACE_H
#define SPW_DRIVES_SPACE_H

#include "drives/candidates.h"

/* Of files, and loop devices over files: say so, for each file system once, with the numbers. */
void spw_drives__space_warn(const struct spw_candidate targets[], unsigned count,
			    const struct spw_log *log);

#endif
