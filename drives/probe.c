/* SPDX-License-Identifier: MIT */
/* drives/probe.c - spw_probe(): a device's geometry, contents, and whether it can be formatted */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <spillway/format.h>

#include "drives/contents.h"
#include "drives/safety.h"
#include "drives/sysfs.h"
#include "engine/device.h"
#include "util/util.h"

/* ---- One device ---- */

/* An exclusive open without a mount or lock can be detected only by briefly trying one. */
static int find_claim(const char *path)
{
	struct spw_device *device;
	int rc = spw_drives__safety_open(path, true, true, NULL, &device);

	spw_device_close(device);
	return rc;
}

static int find_obstacle(const char *path, const struct spw_device *device,
			 const struct spw_contents *contents)
{
	const struct spw_geometry *geometry = spw_device_geometry(device);
	int rc = spw_drives__safety_in_use(path, NULL);

	if (rc == 0)
		rc = spw_drives__safety_changeable(path);
	if (rc == 0 && geometry->kind != SPW_DEVICE_VFIO && access(path, W_OK) != 0 &&
	    errno != EROFS)
		rc = spw_error(-errno, "%s: no permission to write it; %s", path,
			       spw_permission_advice(errno));
	if (rc == 0)
		rc = spw_drives__safety_writable(path);
	if (rc == 0)
		rc = spw_drives__safety_conventional(path);
	if (rc == 0)
		rc = spw_drives__safety_unlocked(path);
	if (rc == 0)
		rc = find_claim(path);
	if (rc == 0 && geometry->size_bytes < SPW_DRIVE_BYTES_MIN)
		return spw_drives__too_small_error(path, geometry->size_bytes);
	if (rc == 0 && (contents->store || contents->foreign))
		return spw_drives__carries_error(path, contents);
	if (rc == 0 && contents->unknown.found)
		return spw_drives__unknown_data_error(path, &contents->unknown);
	return rc;
}

static void examine(const char *path, struct spw_probe_info *info)
{
	struct spw_device *device = NULL;
	struct spw_contents contents;
	int rc = spw_drives__safety_open(path, true, false, NULL, &device);

	/* If it is in use, which needs no open to find out, that is the better reason. */
	if ((rc == -EACCES || rc == -EPERM) && spw_drives__safety_in_use(path, NULL) == -EBUSY)
		rc = -EBUSY;
	if (rc == 0) {
		info->geometry = *spw_device_geometry(device);
		(void)snprintf(info->address, sizeof(info->address), "%s",
			       device->transport.address);
		rc = spw_drives__contents_read(device, &contents);
	}
	if (rc == 0) {
		(void)snprintf(info->holds, sizeof(info->holds), "%s", contents.text);
		info->has_store = contents.store;
		info->unknown_data = contents.unknown.found;
		rc = find_obstacle(path, device, &contents);
	}
	info->error = rc;
	info->usable = rc == 0;
	if (rc != 0)
		(void)snprintf(info->reason, sizeof(info->reason), "%s", spw_last_error());
	spw_device_close(device);
}

int spw_probe(const char *path, struct spw_probe_info *info)
{
	struct spw_probe_info own = {.size = sizeof(own)};

	(void)snprintf(own.path, sizeof(own.path), "%s", path);
	examine(path, &own);
	/* 0: this library's size */
	spw_opts_merge(info, info->size == 0 ? sizeof(*info) : info->size, &own, sizeof(own));
	return 0;
}

/* ---- All devices ---- */

/* Not so for empty card readers, loop devices without a file, etc. */
static bool has_size(const char *name)
{
	char line[32];

	return spw_drives__sysfs_line(SPW_PATH("/sys/class/block/%s/size", name), line,
				      sizeof(line)) &&
	       strtoull(line, NULL, 10) > 0;
}

static int by_version(const void *a, const void *b)
{
	return strverscmp(*(const char *const *)a, *(const char *const *)b);
}

struct list {
	bool (*wanted)(const char *name);
	const char *before;
	char **names; /* terminated by NULL */
	size_t count;
};

static int add_name(void *context, const char *folder, const char *name)
{
	struct list *list = context;
	char **larger;

	(void)folder;
	if (!list->wanted(name))
		return 0;
	larger = reallocarray(list->names, list->count + 2, sizeof(*larger));
	if (!larger)
		return -ENOMEM;
	list->names = larger;
	if (asprintf(&larger[list->count], "%s%s", list->before, name) < 0) {
		larger[list->count] = NULL;
		return -ENOMEM;
	}
	/* sysfs has '!' instead of '/': "cciss!c0d0" is /dev/cciss/c0d0 */
	for (char *at = strchr(larger[list->count], '!'); at; at = strchr(at, '!'))
		*at = '/';
	larger[++list->count] = NULL;
	return 0;
}

int spw_drives__list_devices(const char *folder, bool (*wanted)(const char *name),
			     const char *before, char ***names)
{
	struct list list = {
		.wanted = wanted, .before = before, .names = calloc(1, sizeof(*list.names))};
	int rc = list.names ? spw_each_name(folder, add_name, &list) : -ENOMEM;

	*names = NULL;
	if (rc) {
		spw_probe_list_free(list.names);
		return rc == -ENOMEM ? spw_error(rc, "no memory for the list of devices") : rc;
	}
	qsort(list.names, list.count, sizeof(*list.names), by_version);
	*names = list.names;
	return (int)list.count;
}

int spw_probe_list(char ***paths)
{
	if (access("/sys/class/block", F_OK) == 0)
		return spw_drives__list_devices("/sys/class/block", has_size, "/dev/", paths);
	*paths = NULL;
	return spw_error_errno(-errno, "/sys/class/block: the list of block devices cannot be "
				       "read; is sysfs mounted?");
}

void spw_probe_list_free(char **paths)
{
	for (char **path = paths; path && *path; path++)
		free(*path);
	free(paths);
}
