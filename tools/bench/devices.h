/* SPDX-License-Identifier: MIT */
/* tools/bench/devices.h - the devices of all jobs of a run */
#ifndef SPW_BENCH_DEVICES_H
#define SPW_BENCH_DEVICES_H

#include <sys/types.h>

#include "tools/bench/bench.h"

struct bench_device {
	char *path; /* as first named */
	bool writes;
	bool is_block;
	bool is_vfio; /* no node, so no identity but its name */
	dev_t file_system;
	uint64_t identity; /* device number or inode */
	struct spw_device *device;
};

struct bench_devices {
	struct bench_device *list[BENCH_FILES_MAX];
	unsigned count;
};

/* The device that @path names, added if it is new. NULL: the words are in spw_last_error(). */
struct bench_device *bench_devices_find(struct bench_devices *devices, const char *path);

/**
 * bench_devices_open - check every device that is written, then open all that are not open yet
 * Return: 0; -EBUSY, -EEXIST, -ESPIPE refused for safety; or what probing and opening give. Nothing
 * has been written.
 */
int bench_devices_open(struct bench_devices *devices, bool allow_destructive,
		       const struct spw_log *log);
void bench_devices_close(struct bench_devices *devices);

#endif
