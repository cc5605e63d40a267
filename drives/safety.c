/* SPDX-License-Identifier: MIT */
/* drives/safety.c - spw_drives_distinct(); open drives by name; check zoned, read-only etc. */
#include "drives/safety.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <spillway/format.h>
#include <spillway/status.h>

#include "engine/device.h"
#include "engine/vfio/system.h"
#include "engine/vfio/vfio.h"
#include "drives/identity.h"
#include "drives/opener.h"
#include "drives/sysfs.h"
#include "util/util.h"

int spw_drives__safety_open_node(const char *path)
{
	char node[PATH_MAX];
	int rc = spw_device_block_node(path, node, sizeof(node));
	int fd = rc == 0 ? open(node, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : rc;

	if (rc == 0 && fd < 0)
		return -errno;
	return fd;
}

/* stat(2) of the block node of @path. */
static int stat_node(const char *path, struct stat *st)
{
	char node[PATH_MAX];
	int rc = spw_device_block_node(path, node, sizeof(node));

	return rc != 0 ? rc : stat(node, st) != 0 ? -errno : 0;
}

struct name_list {
	char *text;
	size_t len, used;
	unsigned count;
};

static int add_name(const char *name, dev_t number, void *context)
{
	struct name_list *list = context;
	int written = snprintf(list->text + list->used, list->len - list->used,
			       list->count > 0 ? ", %s" : "%s", name);

	(void)number;
	list->count++;
	if (written > 0 && list->used + (size_t)written < list->len)
		list->used += (size_t)written;
	return 0;
}

unsigned spw_drives__safety_partitions(const char *path, char *names, size_t len)
{
	struct name_list list = {.text = names, .len = len};
	struct stat st;

	SPW_ASSERT(len > 0);
	names[0] = '\0';
	if (stat_node(path, &st) == 0 && S_ISBLK(st.st_mode))
		(void)spw_drives__sysfs_partitions(st.st_rdev, add_name, &list);
	return list.count;
}

/* ---- Names, opening ---- */

static bool are_same(const char *a, const char *b)
{
	struct spw_vfio_name names[2];
	struct stat stats[2];

	if (spw_vfio__is_name(a) || spw_vfio__is_name(b))
		return spw_vfio__is_name(a) && spw_vfio__is_name(b) &&
		       spw_vfio__parse(a, &names[0]) == 0 && spw_vfio__parse(b, &names[1]) == 0 &&
		       strcmp(names[0].address, names[1].address) == 0 &&
		       names[0].namespace_id == names[1].namespace_id;
	return stat_node(a, &stats[0]) == 0 && stat_node(b, &stats[1]) == 0 &&
	       spw_drives__same_file(&stats[0], &stats[1]);
}

static bool are_paths(const char *a, const char *b)
{
	char folders[2][PATH_MAX];
	struct stat stats[2];

	return stat_node(a, &stats[0]) == 0 && stat_node(b, &stats[1]) == 0 &&
	       S_ISBLK(stats[0].st_mode) && S_ISBLK(stats[1].st_mode) &&
	       spw_drives__sysfs_folder(stats[0].st_rdev, folders[0]) &&
	       spw_drives__sysfs_folder(stats[1].st_rdev, folders[1]) &&
	       spw_drives__identity_same("/sys", spw_drives__sysfs_name(folders[0]),
					 spw_drives__sysfs_name(folders[1]));
}

static int verify_pair(const char *a, const char *b)
{
	if (are_same(a, b))
		return spw_error(-ENOTUNIQ, "%s and %s are the same device; name each drive once",
				 a, b);
	if (are_paths(a, b))
		return spw_error(-ENOTUNIQ,
				 "%s and %s are two paths to the same drive; name each drive once",
				 a, b);
	return 0;
}

int spw_drives_distinct(const char *const paths[], unsigned count)
{
	int rc = 0;

	for (unsigned i = 0; rc == 0 && i < count; i++)
		for (unsigned j = 0; rc == 0 && j < i; j++)
			rc = verify_pair(paths[j], paths[i]);
	return rc;
}

static int read_only_error(const char *path)
{
	return spw_error(-EROFS,
			 "%s: is read-only; remove the write protection, or name another device",
			 path);
}

int spw_drives__safety_still(const struct spw_device *device)
{
	const char *path = spw_device_path(device);
	struct stat named, opened;

	if (spw_vfio__is_name(path))
		return 0;
	SPW_ASSERT(device->fd >= 0);
	if (fstat(device->fd, &opened) != 0)
		return spw_engine__device_stat_error(path, -errno);
	if (stat_node(path, &named) != 0 || !spw_drives__same_file(&named, &opened))
		return spw_error(-ESTALE,
				 "%s: names another device than a moment ago; look what it is, and "
				 "try again",
				 path);
	return 0;
}

int spw_drives__safety_writable(const char *path)
{
	int protected = 0;
	struct stat st;
	int fd, rc = 0;

	/* Behind vfio: a write to a protected namespace fails with a status. */
	if (spw_vfio__is_name(path))
		return 0;
	fd = spw_drives__safety_open_node(path);
	if (fd < 0)
		rc = fd;
	else if (fstat(fd, &st) != 0 ||
		 (S_ISBLK(st.st_mode) && ioctl(fd, BLKROGET, &protected) != 0))
		rc = -errno;
	if (fd >= 0)
		(void)close(fd);
	if (rc != 0)
		return spw_error_errno(rc, "%s: cannot be asked whether it is write-protected",
				       path);
	return protected ? read_only_error(path) : 0;
}

int spw_drives__safety_conventional(const char *path)
{
	char folder[PATH_MAX], zoned[32];
	struct stat st;
	dev_t whole;
	int rc;

	if (spw_vfio__is_name(path))
		return 0;
	rc = stat_node(path, &st);
	if (rc != 0)
		return spw_engine__device_stat_error(path, rc);
	if (!S_ISBLK(st.st_mode))
		return 0;
	/* Kernels without support for zones have no such file. */
	if (!spw_drives__sysfs_whole(st.st_rdev, folder, &whole) ||
	    !spw_drives__sysfs_line(SPW_PATH("%s/queue/zoned", folder), zoned, sizeof(zoned)) ||
	    strcmp(zoned, "none") == 0)
		return 0;
	return spw_error(-ESPIPE,
			 "%s: is a zoned drive (%s), which has to be written in order, zone by "
			 "zone; name a conventional drive",
			 path, zoned);
}

int spw_drives__safety_changeable(const char *path)
{
	struct statx st;

	/* If statx(2) fails, there are no such attributes. */
	if (statx(AT_FDCWD, path, 0, STATX_TYPE, &st) != 0)
		return 0;
	if (st.stx_attributes & STATX_ATTR_IMMUTABLE)
		return spw_error(-EPERM,
				 "%s: is immutable, also for root; run chattr -i on it, or name "
				 "another file",
				 path);
	if (st.stx_attributes & STATX_ATTR_APPEND)
		return spw_error(-EPERM,
				 "%s: can only be appended to, also by root; run chattr -a on it, "
				 "or name another file",
				 path);
	return 0;
}

/* Find the open store on the controller, by its status page. Return: false: no readable page. */
static bool find_open_store(const char *address, char *text, size_t len)
{
	struct spw_status_name names[64];
	struct spw_status *status = malloc(sizeof(*status));
	int count = status ? spw_status_list(names, SPW_ARRAY_LEN(names)) : 0;
	struct spw_vfio_name name;
	bool found = false;

	count = SPW_MIN(count, (int)SPW_ARRAY_LEN(names));
	for (int i = 0; i < count && !found; i++) {
		if (spw_status_read(names[i].store_uuid, names[i].partition, status,
				    sizeof(*status)))
			continue;
		for (uint32_t drive = 0; drive < status->drives && !found; drive++)
			found = spw_vfio__is_name(status->drive[drive].path) &&
				spw_vfio__parse(status->drive[drive].path, &name) == 0 &&
				strcmp(name.address, address) == 0;
		if (!found)
			continue;
		(void)snprintf(
			text, len, "process %d (%.16s), which has partition %u of store %.36s open",
			(int)status->pid, status->command, names[i].partition, names[i].store_uuid);
	}
	free(status);
	return found;
}

bool spw_drives__safety_controller_opener(const struct spw_vfio_system *system, const char *address,
					  char *words, size_t len)
{
	struct stat st;
	char name[64];

	if (spw_vfio__read_link(system, address, "iommu_group", name, sizeof(name)) &&
	    stat(SPW_PATH("%s/vfio/%s", system->dev, name), &st) == 0 &&
	    spw_drives__opener_find(&st, -1, words, len))
		return true;
	return spw_vfio__find_name(system, address, name) &&
	       stat(SPW_PATH("%s/vfio/devices/%s", system->dev, name), &st) == 0 &&
	       spw_drives__opener_find(&st, -1, words, len);
}

static int vfio_busy_error(const char *path)
{
	char words[512], own[32], holder[160] = "another process";
	struct spw_vfio_name name;

	(void)snprintf(words, sizeof(words), "%s", spw_last_error());
	if (spw_vfio__parse(path, &name))
		return spw_error(-EBUSY, "%s", words);
	if (!find_open_store(name.address, holder, sizeof(holder)))
		(void)spw_drives__safety_controller_opener(&spw_vfio__here, name.address, holder,
							   sizeof(holder));
	(void)snprintf(own, sizeof(own), "process %d ", (int)getpid());
	if (strncmp(holder, own, strlen(own)) == 0)
		return spw_error(-EBUSY, "%s", words);
	return spw_error(-EBUSY,
			 "%s: its controller is driven by %s; only one process can: end that one, "
			 "or use its partitions from there, or give the controller back to the "
			 "kernel (spillway unbind), whose drives processes share",
			 path, holder);
}

int spw_drives__safety_open(const char *path, bool read_only, bool exclusive,
			    const struct spw_log *log, struct spw_device **device)
{
	struct spw_device_opts opts;
	int rc;

	spw_device_opts_init(&opts, sizeof(opts));
	opts.read_only = read_only;
	opts.exclusive = exclusive;
	if (log)
		opts.log = *log;
	rc = spw_device_open(path, &opts, device);
	if (spw_vfio__is_name(path))
		return rc == -EBUSY ? vfio_busy_error(path) : rc;
	if (rc == -EPERM && !read_only && spw_drives__safety_changeable(path) != 0)
		return rc;
	if (rc == -EROFS)
		return read_only_error(path);
	if (rc == -EBUSY)
		return spw_error(rc,
				 "%s: is in use by another program (see fuser %s); end that first",
				 path, path);
	return rc;
}
