/* SPDX-License-Identifier: MIT */
/*
 * drives/relatives.h - everything else that has the same blocks as a drive
 *
 * Of a block device: its whole drive, or its partitions, and other paths to the same blocks
 * (drives/identity.h); of a loop device what it shows, and that one's relatives in turn. A loop
 * device over any of them is found by spw_drives__loop_over().
 */
#ifndef SPW_DRIVES_RELATIVES_H
#define SPW_DRIVES_RELATIVES_H

#include <stdbool.h>
#include <sys/stat.h>

struct spw_loops;

struct spw_relative {
	const char *words; /* "/dev/loop3: its partition loop3p1": begins a message */
	/* in sysfs for a block device; the path when read for a loop file; or NULL */
	const char *name;
	struct stat st; /* type and numbers; of the drive itself all */
	/* a loop device that shows it and led here, so it is ours; or 0 */
	dev_t via;
	bool is_self;                  /* the drive that was named */
	const struct spw_loops *loops; /* as given to spw_drives__relatives_each() */
};

/*
 * Call @visit for the drive itself and each of its relatives, until it returns non-zero. A drive
 * behind vfio has none: no other process can reach it. Return: what @visit did; -errno.
 */
int spw_drives__relatives_each(const char *path, const struct spw_loops *loops,
			       int (*visit)(const struct spw_relative *relative, void *context),
			       void *context);

#endif
