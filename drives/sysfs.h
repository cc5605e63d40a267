/* SPDX-License-Identifier: MIT */
/* drives/sysfs.h - block devices as sysfs shows them: drives, partitions, names, loops */
#ifndef SPW_DRIVES_SYSFS_H
#define SPW_DRIVES_SYSFS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "util/util.h"

/* The first line of a file. Return: false: there is none, or it is empty. */
bool spw_drives__sysfs_line(const char *path, char *line, size_t len);

bool spw_drives__sysfs_has(const char *folder, const char *name, const char *file);

/* The folder of a block device, its last part, and its number. Return: false: there is none. */
bool spw_drives__sysfs_folder(dev_t number, char folder[PATH_MAX]);
const char *spw_drives__sysfs_name(const char *folder);
bool spw_drives__sysfs_number(const char *name, dev_t *number);

/* The folder of the whole drive, and its number: of a partition, the folder above. */
bool spw_drives__sysfs_whole(dev_t number, char folder[PATH_MAX], dev_t *whole);

/* Call @visit for each partition of a drive until it returns non-zero. Return: that; -errno. */
int spw_drives__sysfs_partitions(dev_t number,
				 int (*visit)(const char *name, dev_t number, void *context),
				 void *context);

/* The node of the block device of that name. Return: false: /dev has none. */
bool spw_drives__sysfs_node(const char *name, dev_t number, char *node, size_t len);

/* What each shows, by the kernel's numbers; of one that this user may not ask only the name. */
struct spw_loops;

/* Return: 0; a negative errno, in words. */
int spw_drives__loops_read(struct spw_loops **loops);
void spw_drives__loops_free(struct spw_loops *loops); /* NULL is fine */

/*
 * @shown: only type and numbers are set. @backing: the name it has now, if any; as long as @loops.
 * Return: 1; 0: it is not a loop device, or shows nothing; -errno: it cannot be told.
 */
int spw_drives__loop_shows(const struct spw_loops *loops, dev_t number, struct stat *shown,
			   const char **backing);

/* Name of a loop device over @shown, but not number @but (0: any). Return: 1; 0; -errno. */
int spw_drives__loop_over(const struct spw_loops *loops, const struct stat *shown, dev_t but,
			  const char **name);

/* @before and the names in @folder that are @wanted, sorted; for spw_probe_list_free(). */
int spw_drives__list_devices(const char *folder, bool (*wanted)(const char *name),
			     const char *before, char ***names);

/* Two nodes of one device, or two names of one file. */
bool spw_drives__same_file(const struct stat *a, const struct stat *b);

#endif
