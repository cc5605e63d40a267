/* SPDX-License-Identifier: MIT */
/* drives/sysfs.c - find block devices in sysfs */
#include "drives/sysfs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

bool spw_drives__sysfs_line(const char *path, char *line, size_t len)
{
	return spw_read_line(path, line, len) && line[0] != '\0';
}

bool spw_drives__sysfs_has(const char *folder, const char *name, const char *file)
{
	return access(SPW_PATH("%s/%s/%s", folder, name, file), F_OK) == 0;
}

bool spw_drives__sysfs_folder(dev_t number, char folder[PATH_MAX])
{
	return realpath(SPW_PATH("/sys/dev/block/%u:%u", major(number), minor(number)), folder);
}

const char *spw_drives__sysfs_name(const char *folder)
{
	return strrchr(folder, '/') + 1;
}

bool spw_drives__sysfs_number(const char *name, dev_t *number)
{
	return spw_read_device(SPW_PATH("/sys/class/block/%s/dev", name), number);
}

bool spw_drives__sysfs_whole(dev_t number, char folder[PATH_MAX], dev_t *whole)
{
	if (!spw_drives__sysfs_folder(number, folder))
		return false;
	if (spw_drives__sysfs_has(folder, ".", "partition"))
		*strrchr(folder, '/') = '\0';
	return spw_drives__sysfs_number(spw_drives__sysfs_name(folder), whole);
}

struct walk {
	int (*visit)(const char *name, dev_t number, void *context);
	void *context;
};

/* A partition's folder begins with the drive's name: "nvme0n1p2" in the folder of nvme0n1. */
static int visit_partition(void *context, const char *folder, const char *name)
{
	const struct walk *walk = context;
	const char *whole = spw_drives__sysfs_name(folder);
	dev_t partition;

	if (strncmp(name, whole, strlen(whole)) != 0 ||
	    !spw_drives__sysfs_has(folder, name, "partition") ||
	    !spw_drives__sysfs_number(name, &partition))
		return 0;
	return walk->visit(name, partition, walk->context);
}

int spw_drives__sysfs_partitions(dev_t number,
				 int (*visit)(const char *name, dev_t number, void *context),
				 void *context)
{
	struct walk walk = {visit, context};
	char folder[PATH_MAX];

	return spw_drives__sysfs_folder(number, folder)
		       ? spw_each_name(folder, visit_partition, &walk)
		       : 0;
}

bool spw_drives__sysfs_node(const char *name, dev_t number, char *node, size_t len)
{
	struct stat st;

	if (snprintf(node, len, "/dev/%s", name) >= (int)len)
		return false;
	for (char *at = strchr(node, '!'); at; at = strchr(at, '!'))
		*at = '/';
	return stat(node, &st) == 0 && S_ISBLK(st.st_mode) && st.st_rdev == number;
}

bool spw_drives__same_file(const struct stat *a, const struct stat *b)
{
	if (S_ISBLK(a->st_mode) || S_ISCHR(a->st_mode))
		return (a->st_mode & S_IFMT) == (b->st_mode & S_IFMT) && a->st_rdev == b->st_rdev;
	return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}
