/* SPDX-License-Identifier: MIT */
/* drives/probe.c - what a device is, what it holds, and whether it could be formatted */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <spillway/format.h>

#include "drives/contents.h"
#include "drives/safety.h"
#include "util/util.h"

/* ---- One device ---- */

/* Who has it exclusively without a mount or a lock can be found only by trying, for a moment. */
static int find_claim(const char *path)
{
	struct spw_device *device;
	int rc = spw_safety_open(path, true, true, NULL, &device);

	spw_device_close(device);
	return rc;
}

/*
 * Return: 0, or why format would refuse it, in spw_last_error(). What does not change by itself
 * comes first.
 */
static int find_obstacle(const char *path, const struct spw_device *device,
			 const struct spw_contents *contents)
{
	const struct spw_geometry *geometry = spw_device_geometry(device);
	int rc = spw_safety_in_use(path, NULL);

	if (rc == 0)
		rc = spw_safety_changeable(path);
	if (rc == 0 && geometry->kind != SPW_DEVICE_VFIO && access(path, W_OK) != 0)
		rc = spw_error_errno(-errno,
				     "%s: cannot be written by this user; run as root, or as a "
				     "user in the group that owns it",
				     path);
	if (rc == 0)
		rc = spw_safety_writable(path);
	if (rc == 0)
		rc = spw_safety_conventional(path);
	if (rc != 0)
		return rc;
	rc = spw_safety_locked(path, 0, SPW_LOCK_ALL_BYTES);
	if (rc > 0)
		return spw_error(-EBUSY,
				 "%s: a process has a store on it open, or writes to it; end that "
				 "first (see fuser %s)",
				 path, path);
	if (rc == 0)
		rc = spw_safety_relatives_locked(path, NULL);
	if (rc == 0)
		rc = find_claim(path);
	if (rc == 0 && geometry->size_bytes < SPW_DRIVE_BYTES_MIN)
		return spw_too_small_error(path, geometry->size_bytes);
	if (rc == 0 && (contents->store || contents->foreign))
		return spw_carries_error(path, contents);
	if (rc == 0 && contents->residue.found)
		return spw_residue_error(path, &contents->residue);
	return rc;
}

static void examine(const char *path, struct spw_probe_info *info)
{
	struct spw_device *device = NULL;
	struct spw_contents contents;
	int rc = spw_safety_open(path, true, false, NULL, &device);

	if (rc == 0) {
		info->geometry = *spw_device_geometry(device);
		rc = spw_contents_read(device, &contents);
	}
	if (rc == 0) {
		(void)snprintf(info->holds, sizeof(info->holds), "%s", contents.text);
		info->has_store = contents.store;
		info->unknown_data = contents.residue.found;
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
	/* 0: as this library knows it */
	spw_opts_merge(info, info->size == 0 ? sizeof(*info) : info->size, &own, sizeof(own));
	return 0;
}

int spw_drives_distinct(const char *const paths[], unsigned count)
{
	return spw_safety_distinct(paths, count);
}

/* ---- All devices ---- */

/* Empty card readers, loop devices without a file and the like have no size. */
static bool has_size(const char *name)
{
	char path[PATH_MAX], line[32];

	return snprintf(path, sizeof(path), "/sys/class/block/%s/size", name) < (int)sizeof(path) &&
	       spw_read_line(path, line, sizeof(line)) && strtoull(line, NULL, 10) > 0;
}

/* "cciss!c0d0" -> "/dev/cciss/c0d0" */
static char *device_path(const char *name)
{
	char *path;

	if (asprintf(&path, "/dev/%s", name) < 0)
		return NULL;
	for (char *at = strchr(path, '!'); at; at = strchr(at, '!'))
		*at = '/';
	return path;
}

static int by_version(const void *a, const void *b)
{
	return strverscmp(*(const char *const *)a, *(const char *const *)b);
}

static int add_path(char ***paths, size_t *count, const char *name)
{
	/* One more than needed: NULL ends the array. */
	char **larger = reallocarray(*paths, *count + 2, sizeof(**paths));

	if (!larger)
		return -ENOMEM;
	*paths = larger;
	larger[*count] = device_path(name);
	larger[*count + 1] = NULL;
	if (!larger[*count])
		return -ENOMEM;
	(*count)++;
	return 0;
}

int spw_probe_list(char ***paths)
{
	struct dirent *entry;
	char **found = calloc(1, sizeof(*found));
	size_t count = 0;
	int rc = found ? 0 : -ENOMEM;
	DIR *dir;

	*paths = NULL;
	dir = opendir("/sys/class/block");
	if (!dir) {
		rc = spw_error_errno(-errno, "/sys/class/block: the list of block devices cannot "
					     "be read; is sysfs mounted?");
		goto fail;
	}
	while (rc == 0 && (entry = readdir(dir)) != NULL)
		if (entry->d_name[0] != '.' && has_size(entry->d_name))
			rc = add_path(&found, &count, entry->d_name);
	(void)closedir(dir);
	if (rc != 0) {
		(void)spw_error(rc, "no memory for the list of block devices");
		goto fail;
	}
	qsort(found, count, sizeof(*found), by_version);
	*paths = found;
	return (int)count;
fail:
	spw_probe_list_free(found);
	return rc;
}

void spw_probe_list_free(char **paths)
{
	for (char **path = paths; path && *path; path++)
		free(*path);
	free(paths);
}
