/* SPDX-License-Identifier: MIT */
/* engine/device.h - struct spw_device, the ops of each kind of device, and geometry */
#ifndef SPW_ENGINE_DEVICE_H
#define SPW_ENGINE_DEVICE_H

#include <spillway/engine.h>

#include "engine/transport.h"

/*
 * Operations of a kind of device. Thread-safe; errors set spw_last_error(). The caller has checked
 * range, alignment and that the device is writable.
 */
struct spw_device_ops {
	/* SPW_READ or SPW_WRITE: returns after the transfer. A write is durable after sync. */
	int (*transfer_blocking)(const struct spw_device *device, enum spw_op op, void *buf,
				 size_t len, uint64_t offset_bytes);
	int (*sync)(const struct spw_device *device);
	/* Called only if geometry.discards. */
	int (*discard)(const struct spw_device *device, uint64_t offset_bytes, uint64_t len_bytes);
	/* NULL: not supported, the caller writes zeroes. */
	int (*write_zeroes)(const struct spw_device *device, uint64_t offset_bytes,
			    uint64_t len_bytes);
	/* *bytes: present size, 0: the device is gone. NULL: it never changes. Return: 0; -errno */
	int (*size)(const struct spw_device *device, uint64_t *bytes);
	/* Return: -EBUSY another process has a lock in the range. */
	int (*lock)(const struct spw_device *device, uint64_t offset_bytes, uint64_t len_bytes);
	int (*unlock)(const struct spw_device *device, uint64_t offset_bytes, uint64_t len_bytes);
	/* Release locks, descriptor and state, also if opening the device has failed midway. */
	void (*close)(struct spw_device *device);
};

struct spw_device {
	char *path;
	const struct spw_device_ops *ops;
	void *state; /* private to the ops */
	int fd;      /* -1: the device has no node in the kernel */
	/* exclusive descriptor of the block device, which rings register too; or -1 */
	int claim_fd;
	bool read_only;
	/* set by drives/: no other process uses the device, see spw_drives__claimed() */
	bool claimed;
	struct spw_geometry geometry;
	struct spw_transport transport;
	/* most bytes of a passthrough command, by the controller (MDTS) and the kernel */
	uint32_t passthrough_bytes;
	/* the block layer splits at multiples of this on the drive; 0: never */
	uint64_t boundary_bytes;
	uint64_t start_bytes;   /* start of the device on its drive */
	uint16_t write_streams; /* number of write streams of the block layer, numbered from 1 */
	struct spw_log log;
};

/* Check range and alignment. Return: 0; -EINVAL "/dev/loop3: offset 17 is not a multiple ...". */
int spw_engine__device_check_transfer(const struct spw_device *device, const void *buf,
				      uint64_t len_bytes, uint64_t offset_bytes);

/* Report "/dev/loop3: read of 4096 bytes at byte 512 failed: ...". Return: the errno to return. */
int spw_engine__device_failed(const struct spw_device *device, const char *what, uint64_t len_bytes,
			      uint64_t offset_bytes, int error);

/* Take a shared lock, which excludes exclusive ones. The device must have a descriptor. */
int spw_engine__device_lock_shared(const struct spw_device *device, uint64_t offset_bytes,
				   uint64_t len_bytes);

/*
 * Zero whole blocks without a transfer; durable after spw_device_sync(). Return: 0; -EOPNOTSUPP not
 * supported: the caller writes zeroes; another negative errno.
 */
int spw_engine__device_write_zeroes(const struct spw_device *device, uint64_t offset_bytes,
				    uint64_t len_bytes);

/* Errno of a transfer of 0 bytes: -ENODEV a block device was removed; -EIO a file was truncated. */
int spw_engine__device_no_progress_error(const struct spw_device *device);

/* Report that stat(2) of a path failed. Return: @error, with a message. */
int spw_engine__device_stat_error(const char *path, int error);

/*
 * The present size: a file may have been truncated since it was opened. 0: the device is gone.
 * Return: 0; -errno with a message.
 */
int spw_engine__device_size_now(const struct spw_device *device, uint64_t *bytes);

/* Return: -ENODEV if the block device has size 0 now, else @error. Makes a system call. */
int spw_engine__device_translate_error(const struct spw_device *device, int error);

/*
 * Allocate zeroed memory, aligned for transfers to @device; for free(). NULL, reported: no memory.
 */
void *spw_engine__device_buffer(const struct spw_device *device, size_t len);

/*
 * Open @node, a block device or regular file, for @device, whose path, log and read_only are set.
 * Call spw_device_close() also after a failure. Return: as spw_device_open().
 */
int spw_engine__file_open(struct spw_device *device, const char *node, bool exclusive);

/* Set the geometry, by ioctl(2), statx(2) and sysfs. Return: as spw_device_open(). */
int spw_engine__geometry_read(struct spw_device *device);

/*
 * Does the drive of this sysfs folder, or one below it, claim a smaller alignment than it handles?
 * zram transfers wrong bytes if memory is not page-aligned (Linux 6.1 to 6.18). null_blk with
 * blocks above 512 bytes accepts memory aligned to 512, and overruns its own pages (6.1): a trial
 * (engine/alignment_trial.h) would already do harm, so it is recognized by name.
 */
bool spw_engine__geometry_misplaces(const char *drive);

/* Compute passthrough_bytes from queue/max_hw_sectors_kb and max_sectors_kb; 0: unknown. */
uint32_t spw_engine__geometry_choose_passthrough(long long hardware_kib, long long block_kib);

#endif
