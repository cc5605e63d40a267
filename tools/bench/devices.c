/* SPDX-License-Identifier: MIT */
/* tools/bench/devices.c - check and open the devices of all jobs before the first job begins */
#include "tools/bench/bench.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <spillway/format.h>

#include "util/names.h"
#include "util/util.h"

/* The prefix of namespaces driven from this process, which have no device node. */
#define VFIO_PREFIX "pci:"

static int add_path(void *context, const char *path)
{
	struct bench_worker *worker = context;

	if (path[0] == '\0')
		return 0;
	if (worker->devices_count == BENCH_FILES_MAX)
		return spw_error(-EINVAL, "more than %u files in one job", BENCH_FILES_MAX);
	worker->paths[worker->devices_count] = strdup(path);
	if (!worker->paths[worker->devices_count])
		return spw_error(-ENOMEM, "out of memory");
	worker->devices_count++;
	return 0;
}

int bench_split_filename(const char *filename, struct bench_worker *worker)
{
	int result = spw_names_split(filename, ':', add_path, worker);

	if (result == 0 && worker->devices_count == 0)
		return spw_error(-EINVAL, "filename '%s' names no file", filename);
	return result;
}

/* Choose a directory: workers take turns, as in fio. */
static int choose_directory(const struct bench_worker *worker, char *directory, size_t bytes)
{
	const char *list = worker->job->directory;
	unsigned count = 1, turn;

	for (const char *at = list; *at != '\0'; at++)
		count += *at == ':';
	for (turn = worker->index % count; turn > 0; turn--)
		list = strchr(list, ':') + 1;
	if (snprintf(directory, bytes, "%.*s", (int)strcspn(list, ":"), list) >= (int)bytes)
		return spw_error(-ENAMETOOLONG, "job %s: directory is too long", worker->job->name);
	return 0;
}

/* Put the worker's file names into its directory. */
static int move_names(struct bench_worker *worker, const char *directory)
{
	for (unsigned i = 0; i < worker->devices_count; i++) {
		char *name = worker->paths[i];

		if (asprintf(&worker->paths[i], "%s/%s", directory, name) < 0)
			worker->paths[i] = NULL;
		free(name);
		if (!worker->paths[i])
			return spw_error(-ENOMEM, "out of memory");
	}
	return 0;
}

int bench_name_files(struct bench_worker *worker)
{
	const struct bench_job *job = worker->job;
	char directory[BENCH_FILENAME_BYTES] = "", name[BENCH_NAME_BYTES + 32];
	int result = 0;

	if (job->directory[0] != '\0')
		result = choose_directory(worker, directory, sizeof(directory));
	if (result == 0 && job->filename[0] != '\0')
		result = bench_split_filename(job->filename, worker);
	for (unsigned i = 0; job->filename[0] == '\0' && i < job->nrfiles && result == 0; i++) {
		(void)snprintf(name, sizeof(name), "%s.%u.%u", job->name, worker->index, i);
		result = add_path(worker, name);
	}
	return result == 0 && directory[0] != '\0' ? move_names(worker, directory) : result;
}

/* Whether two names mean the same device. It can be opened only once: the claim is exclusive. */
static bool same_device(const struct bench_device *device, const struct stat *status)
{
	const struct stat *own = &device->status;

	if (device->is_vfio || S_ISBLK(own->st_mode) != S_ISBLK(status->st_mode))
		return false;
	return S_ISBLK(own->st_mode)
		       ? own->st_rdev == status->st_rdev
		       : own->st_dev == status->st_dev && own->st_ino == status->st_ino;
}

struct bench_device *bench_devices_find(struct bench_devices *devices, const char *path)
{
	bool is_vfio = strncmp(path, VFIO_PREFIX, strlen(VFIO_PREFIX)) == 0;
	struct bench_device *device;
	struct stat status = {0};

	if (!is_vfio && stat(path, &status) != 0) {
		(void)spw_error_errno(-errno, "%s", path);
		return NULL;
	}
	for (unsigned i = 0; i < devices->count; i++)
		if (is_vfio ? strcmp(devices->list[i]->path, path) == 0
			    : same_device(devices->list[i], &status))
			return devices->list[i];
	if (devices->count == SPW_ARRAY_LEN(devices->list)) {
		(void)spw_error(-EINVAL, "more than %zu devices", SPW_ARRAY_LEN(devices->list));
		return NULL;
	}
	device = calloc(1, sizeof(*device));
	if (device)
		device->path = strdup(path);
	if (!device || !device->path) {
		free(device);
		(void)spw_error(-ENOMEM, "out of memory");
		return NULL;
	}
	device->is_vfio = is_vfio;
	device->status = status;
	devices->list[devices->count++] = device;
	return device;
}

/* Refuse to write to a device with known data. @claimed: by this process, so it looks in use */
static int check_writable(const struct bench_device *device, bool allow_destructive, bool claimed)
{
	struct spw_probe_info info = {.size = sizeof(info)};
	int result = spw_probe(device->path, &info);

	if (result != 0)
		return result;
	if (info.error == -EBUSY && !claimed)
		return spw_error(-EBUSY, "%s", info.reason);
	/*
	 * Errors that matter only to a store (too small, without --force) do not prevent measuring.
	 */
	if (info.error != 0 && info.error != -EBUSY && info.error != -ENOSPC &&
	    info.error != -EEXIST && info.error != -ESPIPE)
		return spw_error(info.error, "%s", info.reason);
	if (info.error == -ESPIPE && !allow_destructive)
		return spw_error(
			-ESPIPE,
			"%s; to measure zones of it that take any order, add --allow-destructive",
			info.reason);
	/* Allow unknown data, which may be left from an earlier benchmark. */
	if (!info.unknown_data && strcmp(info.holds, "nothing known") != 0 && !allow_destructive)
		return spw_error(-EEXIST,
				 "%s: carries %s, which writing would destroy; if that is meant, "
				 "add --allow-destructive",
				 device->path, info.holds);
	return 0;
}

/*
 * Open a device. One that will be written is claimed and then checked again, as it may have become
 * part of a store.
 */
static int open_device(struct bench_device *device, bool allow_destructive,
		       const struct spw_log *log)
{
	struct spw_device_opts opts;
	int result;

	if (device->writes) {
		result = spw_claim(device->path, log, &device->device);
		/* Behind vfio no other process can reach the drive. */
		return result != 0 || device->is_vfio
			       ? result
			       : check_writable(device, allow_destructive, true);
	}
	spw_device_opts_init(&opts, sizeof(opts));
	opts.read_only = true;
	opts.log = *log;
	return spw_device_open(device->path, &opts, &device->device);
}

int bench_devices_open(struct bench_devices *devices, bool allow_destructive,
		       const struct spw_log *log)
{
	int result = 0;

	for (unsigned i = 0; i < devices->count && result == 0; i++)
		if (devices->list[i]->writes && !devices->list[i]->device)
			result = check_writable(devices->list[i], allow_destructive, false);
	for (unsigned i = 0; i < devices->count && result == 0; i++)
		if (!devices->list[i]->device)
			result = open_device(devices->list[i], allow_destructive, log);
	return result;
}

void bench_devices_close(struct bench_devices *devices)
{
	for (unsigned i = 0; i < devices->count; i++) {
		if (devices->list[i]->device)
			spw_device_close(devices->list[i]->device);
		free(devices->list[i]->path);
		free(devices->list[i]);
	}
	devices->count = 0;
}
