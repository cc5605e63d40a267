/* SPDX-License-Identifier: MIT */
/*
 * drives/relatives.h - everything else that has the same blocks as a drive
 *
 * Whoever uses one of these uses the drive. Of a block device they are the whole drive that it is a
 * partition of, or its partitions, and the block devices that lead to the same blocks by another
 * path (drives/identity.h); of a loop device what it shows, and that one's relatives in turn. A
 * loop device over any of them is found by spw_loop_over().
 */
#ifndef SPW_DRIVES_RELATIVES_H
#define SPW_DRIVES_RELATIVES_H

#include <stdbool.h>
#include <sys/stat.h>

struct spw_loops;

struct spw_relative {
	const char *words; /* "/dev/loop3: its partition loop3p1": begins a message */
	const char *
		/*
		 * of a block device, in sysfs; of a file that a loop device shows, its path when
		 * that was read; or NULL
		 */
		name;
	struct stat st; /* type and numbers; of the drive itself all */
	/*
	 * a loop device that shows it and led here, so that it does not count as a stranger; or 0
	 */
	dev_t via;
	bool is_self;                  /* the drive that was named */
	const struct spw_loops *loops; /* as given to spw_relatives_each() */
};

/**
 * spw_relatives_each - call @visit for the drive itself and for each of its relatives, until it
 * returns something else than 0
 * @path:  a drive behind vfio has none: nobody else can reach it
 * @loops: all loop devices, as they are now
 *
 * Return: what @visit did; 0; or a negative errno: they cannot all be told, in words.
 */
int spw_relatives_each(const char *path, const struct spw_loops *loops,
		       int (*visit)(const struct spw_relative *relative, void *context),
		       void *context);

#endif
