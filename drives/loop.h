/* SPDX-License-Identifier: MIT */
/*
 * drives/loop.h - loop devices and their backing files, by device and inode number, else by name if
 * not permitted
 */
#ifndef SPW_DRIVES_LOOP_H
#define SPW_DRIVES_LOOP_H

#include <sys/stat.h>
#include <sys/types.h>

struct spw_loops;

/* List the loop devices now. Return: 0; a negative errno, with a message. */
int spw_drives__loops_read(struct spw_loops **loops);
void spw_drives__loops_free(struct spw_loops *loops); /* or NULL */

/*
 * The backing file of a loop device. @shown: only type and numbers are set. *backing: its present
 * name, if any, valid as long as @loops. Return: 1; 0: not a loop device, or unused; -errno:
 * unknown.
 */
int spw_drives__loop_shows(const struct spw_loops *loops, dev_t number, struct stat *shown,
			   const char **backing);

/* Name of a loop device over @shown, except for device number @but (or 0). Return: 1; 0; -errno. */
int spw_drives__loop_over(const struct spw_loops *loops, const struct stat *shown, dev_t but,
			  const char **name);

#endif
