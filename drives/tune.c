/* SPDX-License-Identifier: MIT */
/* drives/tune.c - spw_tune_read(): reads the settings that `spillway tune` found best for drives */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <jansson.h>

#include <spillway/format.h>

#include "util/util.h"

#define FILE_BYTES_MAX (16 << 20)

static int load(const char *path, json_t **document)
{
	FILE *file = fopen(path, "re");
	json_error_t error;
	struct stat st;

	if (!file)
		return spw_error_errno(
			-errno, "%s: the settings cannot be read; 'spillway tune' writes them",
			path);
	if (fstat(fileno(file), &st) != 0 || !S_ISREG(st.st_mode) || st.st_size > FILE_BYTES_MAX) {
		(void)fclose(file);
		return spw_error(-EINVAL, "%s: not a settings file; 'spillway tune' writes one",
				 path);
	}
	*document = json_loadf(file, JSON_REJECT_DUPLICATES, &error);
	(void)fclose(file);
	if (!*document)
		return spw_error(-EINVAL, "%s:%d:%d: %s; 'spillway tune' writes this file", path,
				 error.line, error.column, error.text);
	if (json_integer_value(json_object_get(*document, "format")) == SPW_TUNE_FORMAT)
		return 0;
	json_decref(*document);
	return spw_error(-EINVAL, "%s: not settings of this version: run 'spillway tune' again",
			 path);
}

static int parse_backend(const char *path, const char *name, enum spw_backend *backend)
{
	static const struct {
		const char *name;
		enum spw_backend backend;
	} names[] = {
		{"io_uring", SPW_BACKEND_IO_URING},
		{"libaio", SPW_BACKEND_LIBAIO},
		{"nvme", SPW_BACKEND_NVME},
		{"vfio", SPW_BACKEND_VFIO},
	};

	for (size_t i = 0; i < SPW_ARRAY_LEN(names); i++)
		if (strcmp(name, names[i].name) == 0) {
			*backend = names[i].backend;
			return 0;
		}
	return spw_error(-EINVAL, "%s: there is no backend %s", path, name);
}

static int parse_settings(const char *path, json_t *best, const char *direction,
			  struct spw_tune_settings *settings)
{
	json_t *object = json_object_get(best, direction);
	json_int_t block_bytes, depth;
	const char *wait, *backend;

	if (!object)
		return 0;
	if (json_unpack(object, "{s:I, s:I, s:s, s:s}", "block_bytes", &block_bytes, "iodepth",
			&depth, "wait", &wait, "backend", &backend) != 0)
		return spw_error(
			-EINVAL,
			"%s: the settings for %s are incomplete: run 'spillway tune' again", path,
			direction);
	if (block_bytes <= 0 || block_bytes > SPW_IO_BYTES_MAX || depth <= 0 ||
	    depth > SPW_QUEUE_DEPTH_MAX)
		return spw_error(-EINVAL, "%s: %s: blocks of %jd bytes at depth %jd make no sense",
				 path, direction, (intmax_t)block_bytes, (intmax_t)depth);
	if (strcmp(wait, "poll") != 0 && strcmp(wait, "interrupt") != 0)
		return spw_error(-EINVAL, "%s: %s: wait is poll or interrupt, not %s", path,
				 direction, wait);
	settings->block_bytes = (uint64_t)block_bytes;
	settings->wait = strcmp(wait, "poll") == 0 ? SPW_WAIT_POLL : SPW_WAIT_INTERRUPT;
	settings->depth = (uint32_t)depth;
	return parse_backend(path, backend, &settings->backend);
}

static bool same_file(const char *one, const char *other)
{
	char *first = realpath(one, NULL), *second = realpath(other, NULL);
	bool same = first && second && strcmp(first, second) == 0;

	free(first);
	free(second);
	return same;
}

/* Compare the serial number, since paths change between boots; without one, path and size. */
static bool is_drive(json_t *entry, const struct spw_device *device)
{
	const struct spw_geometry *geometry = spw_device_geometry(device);
	const char *path, *model, *serial;
	json_int_t size_bytes;

	if (json_unpack(entry, "{s:s, s:s, s:s, s:I}", "path", &path, "model", &model, "serial",
			&serial, "size_bytes", &size_bytes) != 0)
		return false;
	if ((uint64_t)size_bytes != geometry->size_bytes || strcmp(model, geometry->model) != 0)
		return false;
	return geometry->serial[0] != '\0' ? strcmp(serial, geometry->serial) == 0
					   : same_file(path, spw_device_path(device));
}

static bool is_among(json_t *drives, const struct spw_device *device)
{
	for (size_t i = 0; i < json_array_size(drives); i++)
		if (is_drive(json_array_get(drives, i), device))
			return true;
	return false;
}

/* Drives that cannot be opened do not match: opening them for use reports why. */
static int check_drives(const char *path, json_t *drives, const char *const paths[], unsigned count)
{
	const struct spw_device_opts opts = {.size = sizeof(opts), .read_only = true};

	if (count > 0 && !json_is_array(drives))
		return spw_error(
			-EINVAL,
			"%s: does not say which drives were measured: run 'spillway tune' again",
			path);
	for (unsigned i = 0; i < count; i++) {
		struct spw_device *device;
		bool found = false;

		if (spw_device_open(paths[i], &opts, &device) == 0) {
			found = is_among(drives, device);
			spw_device_close(device);
		}
		if (!found)
			return spw_error(-ENODEV,
					 "%s: %s is not among the drives that were measured: run "
					 "'spillway tune'",
					 path, paths[i]);
	}
	return 0;
}

static int read_file(const char *path, const char *const drives[], unsigned count,
		     struct spw_tune *tune)
{
	json_t *document = NULL, *best;
	int ret = load(path, &document);

	if (ret)
		return ret;
	best = json_object_get(document, "best");
	ret = parse_settings(path, best, "read", &tune->read);
	if (!ret)
		ret = parse_settings(path, best, "write", &tune->write);
	if (!ret && !tune->read.depth && !tune->write.depth)
		ret = spw_error(-EINVAL, "%s: holds no settings: run 'spillway tune' again", path);
	if (!ret)
		ret = check_drives(path, json_object_get(document, "drives"), drives, count);
	json_decref(document);
	return ret;
}

int spw_tune_read(const char *path, const char *const drives[], unsigned count,
		  const struct spw_log *log, struct spw_tune *tune, size_t size)
{
	struct spw_tune now = {0};
	int ret = path && path[0] != '\0' ? read_file(path, drives, count, &now) : 0;

	if (ret == -ENODEV) {
		spw_log(log, SPW_LOG_WARNING, "%s; its settings are not used", spw_last_error());
		now = (struct spw_tune){0};
	} else if (ret) {
		return ret;
	}
	spw_opts_merge(tune, size, &now, sizeof(now));
	return 0;
}
