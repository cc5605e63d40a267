/* SPDX-License-Identifier: MIT */
/*
 * drives/aliases.h - aliases of a drive: all other devices with the same blocks
 *
 * Aliases of a block device are the whole drive or its partitions, and other paths to the same
 * blocks (drives/identity.h); of a loop device also its backing device or file, and the aliases of
 * that. Loop devices on top are found by spw_drives__loop_over().
 */
#ifndef SPW_DRIVES_ALIASES_H
#define SPW_DRIVES_ALIASES_H

#include <stdbool.h>
#include <sys/stat.h>

struct spw_loops;

struct spw_alias {
	const char *words; /* "/dev/loop3: its partition loop3p1": begins a message */
	/* name in sysfs of a block device; path of a loop device's file when read; or NULL */
	const char *name;
	struct stat st; /* only type and device numbers; all fields if is_self */
	/* the loop device through which the walk came here, which does not count as a user; or 0 */
	dev_t via;
	bool is_self;                  /* the drive that was named */
	const struct spw_loops *loops; /* as given to spw_drives__aliases_each() */
};

/*
 * Call @visit for the drive itself and each of its aliases, until it returns non-zero. A drive
 * behind vfio has no aliases: no other process can use it. Return: what @visit returned; 0; -errno.
 */
int spw_drives__aliases_each(const char *path, const struct spw_loops *loops,
			     int (*visit)(const struct spw_alias *alias, void *context),
			     void *context);

#endif
