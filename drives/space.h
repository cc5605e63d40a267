/* SPDX-License-Identifier: MIT */
/* drives/space.h - warn about sparse files that may outgrow their file system */
#ifndef SPW_DRIVES_SPACE_H
#define SPW_DRIVES_SPACE_H

#include "drives/candidates.h"

/* Check files, and loop devices over files; warn once for each file system, with the numbers. */
void spw_drives__space_warn(const struct spw_candidate targets[], unsigned count,
			    const struct spw_log *log);

#endif
