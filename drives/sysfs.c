/* SPDX-License-Identifier: MIT */
/* drives/sysfs.c - find block devices in sysfs */
#include "drives/sysfs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "util/util.h"

bool spw_sysfs_join(char *out, size_t len, const char *folder, const char *name)
{
	return snprintf(out, len, "%s/%s", folder, name) < (int)len;
}

int spw_sysfs_open(const char *folder, DIR **dir)
{
	*dir = opendir(folder);
	if (*dir)
		return 1;
	return errno == ENOENT ? 0 : spw_error_errno(-errno, "%s cannot be read", folder);
}

bool spw_sysfs_folder(dev_t number, char folder[PATH_MAX])
{
	static const char links[] = "/sys/dev/block/";
	char link[64];
	ssize_t len;

	(void)snprintf(link, sizeof(link), "%s%u:%u", links, major(number), minor(number));
	/* "../../devices/virtual/block/loop0" */
	len = readlink(link, folder + strlen(links), PATH_MAX - sizeof(links));
	if (len < 0)
		return false;
	memcpy(folder, links, strlen(links));
	folder[strlen(links) + (size_t)len] = '\0';
	return true;
}

const char *spw_sysfs_name(const char *folder)
{
	return strrchr(folder, '/') + 1;
}

bool spw_sysfs_number(const char *folder, dev_t *number)
{
	char path[PATH_MAX], line[32];
	unsigned major_number, minor_number;

	if (!spw_sysfs_join(path, sizeof(path), folder, "dev") ||
	    !spw_read_line(path, line, sizeof(line)) ||
	    sscanf(line, "%u:%u", &major_number, &minor_number) != 2)
		return false;
	*number = makedev(major_number, minor_number);
	return true;
}

bool spw_sysfs_whole(dev_t number, char folder[PATH_MAX], dev_t *whole)
{
	char mark[PATH_MAX];

	if (!spw_sysfs_folder(number, folder) ||
	    !spw_sysfs_join(mark, sizeof(mark), folder, "partition"))
		return false;
	if (access(mark, F_OK) == 0)
		*strrchr(folder, '/') = '\0';
	return spw_sysfs_number(folder, whole);
}

int spw_sysfs_partitions(dev_t number, int (*visit)(const char *name, dev_t number, void *context),
			 void *context)
{
	char folder[PATH_MAX], child[PATH_MAX], mark[PATH_MAX];
	struct dirent *entry;
	dev_t partition;
	size_t name_len;
	DIR *dir;
	int rc;

	if (!spw_sysfs_folder(number, folder))
		return 0;
	name_len = strlen(spw_sysfs_name(folder));
	rc = spw_sysfs_open(folder, &dir);
	if (rc <= 0)
		return rc;
	rc = 0;
	while (rc == 0 && (entry = readdir(dir)) != NULL) {
		/* "nvme0n1p2" in the folder of nvme0n1; all else there has other names. */
		if (strncmp(entry->d_name, spw_sysfs_name(folder), name_len) != 0 ||
		    !spw_sysfs_join(child, sizeof(child), folder, entry->d_name) ||
		    !spw_sysfs_join(mark, sizeof(mark), child, "partition"))
			continue;
		if (access(mark, F_OK) == 0 && spw_sysfs_number(child, &partition))
			rc = visit(entry->d_name, partition, context);
	}
	(void)closedir(dir);
	return rc;
}

bool spw_sysfs_node(const char *name, dev_t number, char *node, size_t len)
{
	struct stat st;

	if (snprintf(node, len, "/dev/%s", name) >= (int)len)
		return false;
	for (char *at = strchr(node, '!'); at; at = strchr(at, '!'))
		*at = '/';
	return stat(node, &st) == 0 && S_ISBLK(st.st_mode) && st.st_rdev == number;
}

bool spw_same_file(const struct stat *a, const struct stat *b)
{
	if (S_ISBLK(a->st_mode) || S_ISBLK(b->st_mode))
		return S_ISBLK(a->st_mode) && S_ISBLK(b->st_mode) && a->st_rdev == b->st_rdev;
	return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}
