/* SPDX-License-Identifier: MIT */
/* drives/sysfs.h - block devices in sysfs: drives, partitions, names */
#ifndef SPW_DRIVES_SYSFS_H
#define SPW_DRIVES_SYSFS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "util/util.h"

/* The first line of a file. Return: false: there is no file, or the line is empty. */
bool spw_drives__sysfs_line(const char *path, char *line, size_t len);

bool spw_drives__sysfs_has(const char *folder, const char *name, const char *file);

/*
 * A device's folder; the last part of a folder; a device's number. Return: false: no such device.
 */
bool spw_drives__sysfs_folder(dev_t number, char folder[PATH_MAX]);
const char *spw_drives__sysfs_name(const char *folder);
bool spw_drives__sysfs_number(const char *name, dev_t *number);

/* Folder and number of the whole drive; for a partition, of its parent. */
bool spw_drives__sysfs_whole(dev_t number, char folder[PATH_MAX], dev_t *whole);

/* Call @visit for each partition of a drive until it returns non-zero. Return: that; 0; -errno. */
int spw_drives__sysfs_partitions(dev_t number,
				 int (*visit)(const char *name, dev_t number, void *context),
				 void *context);

/* The node of a block device. Return: false: it has no node in /dev. */
bool spw_drives__sysfs_node(const char *name, dev_t number, char *node, size_t len);

/* The @wanted names in @folder, sorted, with prefix @before; for spw_probe_list_free(). */
int spw_drives__list_devices(const char *folder, bool (*wanted)(const char *name),
			     const char *before, char ***names);

/* Are these two nodes of one device, or two names of one file? */
bool spw_drives__same_file(const struct stat *a, const struct stat *b);

#endif
