/* SPDX-License-Identifier: MIT */
/*
 * drives/sysfs.h - block devices as sysfs shows them: whole drives, partitions, names, what loop
 * devices show
 */
#ifndef SPW_DRIVES_SYSFS_H
#define SPW_DRIVES_SYSFS_H

#include <dirent.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/types.h>

/* "FOLDER/NAME". Return: false: too long. */
bool spw_sysfs_join(char *out, size_t len, const char *folder, const char *name);

/*
 * A folder's entries. Return: 1; 0: there is no such folder; a negative errno: what is in it cannot
 * be told.
 */
int spw_sysfs_open(const char *folder, DIR **dir);

/* The folder of a block device. Return: false when there is none. */
bool spw_sysfs_folder(dev_t number, char folder[PATH_MAX]);

/* The last part of a folder's path. */
const char *spw_sysfs_name(const char *folder);

/* "MAJOR:MINOR" in the file dev of a folder. */
bool spw_sysfs_number(const char *folder, dev_t *number);

/* The folder of the whole drive, and its number: of a partition, the folder above. */
bool spw_sysfs_whole(dev_t number, char folder[PATH_MAX], dev_t *whole);

/*
 * Call @visit for every partition that the kernel has of a whole device, until it returns something
 * else than 0. Return: that, or 0; or a negative errno: nobody can tell.
 */
int spw_sysfs_partitions(dev_t number, int (*visit)(const char *name, dev_t number, void *context),
			 void *context);

/*
 * The node of the block device of that name. Return: false: /dev has none, so nobody has it open by
 * that.
 */
bool spw_sysfs_node(const char *name, dev_t number, char *node, size_t len);

/* ---- Loop devices ---- */

/*
 * What each loop device of this machine shows, as it was when it was read: a file or a block
 * device, by the numbers that the kernel keeps, since a name may have become another's. Of a device
 * that this user may not ask, there is only the name.
 */
struct spw_loops;

/* Return: 0; a negative errno, in words. */
int spw_loops_read(struct spw_loops **loops);
void spw_loops_free(struct spw_loops *loops); /* NULL is fine */

/*
 * What one shows. Only the type and the numbers of @shown are set. @backing: the name that it has
 * now, as far as it has one; valid as long as @loops Return: 1; 0: it is no loop device, or shows
 * nothing; a negative errno: it cannot be told, in words.
 */
int spw_loop_shows(const struct spw_loops *loops, dev_t number, struct stat *shown,
		   const char **backing);

/*
 * The name of a loop device over @shown, other than the one with number @but (0: any). Return: 1;
 * 0; a negative errno, in words.
 */
int spw_loop_over(const struct spw_loops *loops, const struct stat *shown, dev_t but,
		  const char **name);

/* Two nodes of one block device, or two names of one file. */
bool spw_same_file(const struct stat *a, const struct stat *b);

#endif
