/* SPDX-License-Identifier: MIT */
/* drives/probe.c - what a device is, what it holds, and whether it could be formatted */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "drives/assemble.h"
#include "drives/safety.h"
#include "util/util.h"

/* ---- What a drive holds ---- */

/* Bytes that a store has written for its users may look like anything. */
static bool is_data(const struct spw_superblock *sb, const struct spw_signature *signature)
{
	return signature->len_bytes > 0 && signature->offset_bytes >= sb->data_offset_bytes &&
	       signature->offset_bytes < sb->data_offset_bytes + sb->partition_count * sb->partition_bytes;
}

static void add_text(struct spw_contents *contents, const char *text)
{
	size_t used = strlen(contents->text);

	(void)snprintf(contents->text + used, sizeof(contents->text) - used, used > 0 ? ", %s" : "%s", text);
}

static void describe_store(struct spw_contents *contents)
{
	const struct spw_superblocks *superblocks = &contents->superblocks;
	const struct spw_superblock *sb;
	char uuid[SPW_UUID_TEXT_BYTES], text[128];

	contents->store = true;
	if (superblocks->chosen == -EPROTONOSUPPORT) {
		add_text(contents, "spillway store of a newer format");
	} else if (superblocks->chosen == -EUCLEAN) {
		add_text(contents, "damaged spillway store");
	} else if (superblocks->chosen < 0) {
		contents->store = false;
	} else {
		sb = &superblocks->places[superblocks->chosen].superblock;
		(void)snprintf(text, sizeof(text), "%sspillway store %s, drive %u of %u",
			       sb->complete ? "" : "unfinished ", spw_layout_uuid_text(sb->store_uuid, uuid),
			       sb->drive_index + 1, sb->drive_count);
		add_text(contents, text);
	}
	if (superblocks->foreign[0]) {
		contents->foreign = true;
		add_text(contents, superblocks->foreign);
	}
}

static int describe_foreign(const char *path, struct spw_contents *contents)
{
	const struct spw_superblocks *superblocks = &contents->superblocks;
	struct spw_signatures signatures;
	char names[96], text[160];
	int rc = spw_safety_signatures(path, &signatures);

	if (rc != 0)
		return rc;
	for (unsigned i = 0; i < signatures.count; i++) {
		const struct spw_signature *signature = &signatures.found[i];

		if (superblocks->chosen >= 0 &&
		    is_data(&superblocks->places[superblocks->chosen].superblock, signature))
			continue;
		contents->foreign = true;
		if (!strstr(contents->text, signature->what))
			add_text(contents, signature->what);
	}
	/* A store over the whole device has taken the place of what the kernel read there before. */
	if (superblocks->chosen < 0 && spw_safety_partitions(path, names, sizeof(names)) > 0) {
		contents->foreign = true;
		(void)snprintf(text, sizeof(text), "table of partitions %s", names);
		add_text(contents, text);
	}
	return 0;
}

/* A store whose superblocks cannot be read may still be one: in doubt nothing is overwritten. */
int spw_contents_read(const struct spw_device *device, struct spw_contents *contents)
{
	const char *path = spw_device_path(device);
	int rc;

	contents->store = contents->foreign = false;
	contents->text[0] = '\0';
	rc = spw_superblocks_read(device, &contents->superblocks);
	if (rc < 0 && rc != -EMEDIUMTYPE && rc != -EUCLEAN && rc != -EPROTONOSUPPORT)
		return rc;
	describe_store(contents);
	rc = describe_foreign(path, contents);
	memset(&contents->residue, 0, sizeof(contents->residue));
	if (rc == 0 && !contents->store && !contents->foreign)
		rc = spw_residue_read(device, &contents->residue);
	if (rc == 0)
		rc = spw_safety_still(device);
	if (rc == 0 && contents->text[0] == '\0')
		add_text(contents, contents->residue.found ? "unknown data" : "nothing known");
	return rc;
}

int spw_carries_error(const char *path, const struct spw_contents *contents)
{
	const char *article = strchr("aeioux", contents->text[0]) ? "an" : "a";

	return spw_error(-EEXIST, "%s: carries %s %s; use --force to overwrite it, or name another device", path,
			 article, contents->text);
}

int spw_too_small_error(const char *path, uint64_t size_bytes)
{
	char size[32], least[32];

	/* Rounded, both would look the same. */
	if (size_bytes > SPW_DRIVE_BYTES_MIN / 100 * 99)
		return spw_error(-ENOSPC, "%s: is too small: %llu bytes; a drive needs at least 16 MiB (%u bytes)",
				 path, (unsigned long long)size_bytes, SPW_DRIVE_BYTES_MIN);
	return spw_error(-ENOSPC, "%s: is too small: %s; a drive needs at least %s", path,
			 spw_size_format(size_bytes, size, sizeof(size)),
			 spw_size_format(SPW_DRIVE_BYTES_MIN, least, sizeof(least)));
}

/* ---- One device ---- */

/* Who has it exclusively without a mount or a lock can be found only by trying, for a moment. */
static int find_claim(const char *path)
{
	struct spw_device *device;
	int rc = spw_safety_open(path, true, true, NULL, &device);

	spw_device_close(device);
	return rc;
}

/* Return: 0, or why format would refuse it, in spw_last_error(). What does not change by itself comes first. */
static int find_obstacle(const char *path, const struct spw_device *device, const struct spw_contents *contents)
{
	const struct spw_geometry *geometry = spw_device_geometry(device);
	int rc = spw_safety_in_use(path, NULL);

	if (rc == 0)
		rc = spw_safety_changeable(path);
	if (rc == 0 && geometry->kind != SPW_DEVICE_VFIO && access(path, W_OK) != 0)
		rc = spw_error_errno(
			-errno,
			"%s: cannot be written by this user; run as root, or as a user in the group that owns it",
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
				 "%s: a process has a store on it open, or writes to it; end that first (see fuser %s)",
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
		rc = spw_error_errno(-errno,
				     "/sys/class/block: the list of block devices cannot be read; is sysfs mounted?");
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
