/* SPDX-License-Identifier: MIT */
/*
 * engine/tune.c - the settings that `spillway tune` found best for drives, read back for a queue
 * over the same drives
 */
#include "engine/tune.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <jansson.h>

#include "util/util.h"

#define FILE_BYTES_MAX (16 << 20)

#define TRANSFER_BYTES (UINT64_C(1) << 20)

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

/*
 * By serial number where the drive has one: paths change from boot to boot. Else by path and size.
 */
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

static int check_drives(const char *path, json_t *drives, struct spw_device *const devices[],
			unsigned count)
{
	if (count > 0 && !json_is_array(drives))
		return spw_error(
			-EINVAL,
			"%s: does not say which drives were measured: run 'spillway tune' again",
			path);
	for (unsigned i = 0; i < count; i++) {
		bool found = false;
		json_t *entry;
		size_t at;

		json_array_foreach(drives, at, entry) found |= is_drive(entry, devices[i]);
		if (!found)
			return spw_error(-ENODEV,
					 "%s: %s is not among the drives that were measured: run "
					 "'spillway tune'",
					 path, spw_device_path(devices[i]));
	}
	return 0;
}

int spw_tune_read(const char *path, struct spw_device *const devices[], unsigned count,
		  struct spw_tune *tune, size_t size)
{
	struct spw_tune now = {0};
	json_t *document = NULL, *best;
	int ret = load(path, &document);

	if (ret)
		return ret;
	best = json_object_get(document, "best");
	ret = parse_settings(path, best, "read", &now.read);
	if (!ret)
		ret = parse_settings(path, best, "write", &now.write);
	if (!ret && !now.read.depth && !now.write.depth)
		ret = spw_error(-EINVAL, "%s: holds no settings: run 'spillway tune' again", path);
	if (!ret)
		ret = check_drives(path, json_object_get(document, "drives"), devices, count);
	json_decref(document);
	if (!ret)
		spw_opts_merge(tune, size, &now, sizeof(now));
	return ret;
}

/*
 * As many transfers as keep in flight what was measured. How large the queue's are is not known
 * here: those of a store are chunks, much smaller than the largest blocks that are measured.
 */
static uint32_t depth_of(const struct spw_tune_settings *settings)
{
	uint64_t depth =
		settings->depth * ((settings->block_bytes + TRANSFER_BYTES - 1) / TRANSFER_BYTES);

	return depth < SPW_QUEUE_DEPTH_MAX ? (uint32_t)depth : SPW_QUEUE_DEPTH_MAX;
}

int spw_tune_apply(struct spw_device *const devices[], unsigned count, struct spw_queue_opts *opts)
{
	static const char *const waits[] = {"interrupts", "polling", "sqpoll"};
	const char *path = opts->tune_path ? opts->tune_path : secure_getenv("SPILLWAY_TUNE");
	const struct spw_tune_settings *from;
	struct spw_tune tune = {.size = sizeof(tune)};
	int ret;

	if (!path || path[0] == '\0')
		return 0;
	ret = spw_tune_read(path, devices, count, &tune, sizeof(tune));
	if (ret == -ENODEV) {
		spw_log(&opts->log, SPW_LOG_WARNING, "%s; its settings are not used",
			spw_last_error());
		return 0;
	}
	if (ret)
		return ret;
	/*
	 * One queue reads and writes: it waits as is best for reads, which somebody waits for, and
	 * is deep enough for both.
	 */
	from = tune.read.depth ? &tune.read : &tune.write;
	opts->depth = depth_of(&tune.read) > depth_of(&tune.write) ? depth_of(&tune.read)
								   : depth_of(&tune.write);
	/* io_uring is what is tried first anyway; whatever is refused today, another does. */
	if (opts->backend == SPW_BACKEND_AUTO && from->backend != SPW_BACKEND_IO_URING)
		opts->backend = from->backend;
	if (opts->wait == SPW_WAIT_INTERRUPT)
		opts->wait = from->wait;
	spw_log(&opts->log, SPW_LOG_INFO, "%s: depth %u, %s", path, opts->depth, waits[opts->wait]);
	return 0;
}
