/* SPDX-License-Identifier: MIT */
/* engine/device.h - what the rest of the engine sees of a device */
#ifndef SPW_ENGINE_DEVICE_H
#define SPW_ENGINE_DEVICE_H

#include <spillway/engine.h>

#include "engine/transport.h"

/* Any threads; errors set spw_last_error(); range, alignment and the right to write have been
 * checked. */
struct spw_device_ops {
	/* SPW_READ or SPW_WRITE: return when all is transferred. A write is durable after sync. */
	int (*transfer_blocking)(const struct spw_device *device, enum spw_op op, void *buf,
				 size_t len, uint64_t offset_bytes);
	int (*sync)(const struct spw_device *device);
	/* Called only if geometry.discards. */
	int (*discard)(const struct spw_device *device, uint64_t offset_bytes, uint64_t len_bytes);
	/* NULL: zeroes are to be written. */
	int (*write_zeroes)(const struct spw_device *device, uint64_t offset_bytes,
			    uint64_t len_bytes);
	/* How long it is now, 0: it is gone. NULL: as when it was opened. Return: 0; -errno */
	int (*size)(const struct spw_device *device, uint64_t *bytes);
	/* -EBUSY: another process has a lock in the range. */
	int (*lock)(const struct spw_device *device, uint64_t offset_bytes, uint64_t len_bytes);
	int (*unlock)(const struct spw_device *device, uint64_t offset_bytes, uint64_t len_bytes);
	/* Let go of locks, descriptor and state, also of a device that was not opened wholly. */
	void (*close)(struct spw_device *device);
};

struct spw_device {
	char *path;
	const struct spw_device_ops *ops;
	void *state; /* of the ops */
	int fd;      /* -1: the kernel has none for it */
	/* the opener's exclusive description of the block device, for rings to keep; or -1 */
	int claim_fd;
	bool read_only;
	/* drives/: no other process uses what this one writes to: see spw_drives__claimed() */
	bool claimed;
	struct spw_geometry geometry;
	struct spw_transport transport;
	/* what one passthrough command may carry, by the controller (MDTS) and the kernel */
	uint32_t passthrough_bytes;
	uint64_t boundary_bytes; /* the block layer splits at its multiples on the drive; 0: no */
	uint64_t start_bytes;    /* of the device on that drive */
	uint16_t write_streams;  /* that a write through the block layer may name, from 1 on */
	struct spw_log log;
};

/* "/dev/loop3: offset 17 is not a multiple of the logical block ..." as -EINVAL; 0: fine. */
int spw_engine__device_check_transfer(const struct spw_device *device, const void *buf,
				      uint64_t len_bytes, uint64_t offset_bytes);

/* "/dev/loop3: read of 4096 bytes at byte 512 failed: ..." Return: what @error means. */
int spw_engine__device_failed(const struct spw_device *device, const char *what, uint64_t len_bytes,
			      uint64_t offset_bytes, int error);

/* A lock that others may share, and that excludes exclusive ones. Needs a descriptor. */
int spw_engine__device_lock_shared(const struct spw_device *device, uint64_t offset_bytes,
				   uint64_t len_bytes);

/*
 * Have whole blocks read as zeroes, without a transfer; durable after spw_device_sync(). Return: 0;
 * -EOPNOTSUPP it cannot, or is not driven from here: write zeroes; another negative errno.
 */
int spw_engine__device_write_zeroes(const struct spw_device *device, uint64_t offset_bytes,
				    uint64_t len_bytes);

/* After no progress: -ENODEV, a block device was removed; -EIO, a file became shorter. */
int spw_engine__device_no_progress_error(const struct spw_device *device);

/* Of a path that stat(2) refuses. Return: @error, in words. */
int spw_engine__device_stat_error(const char *path, int error);

/*
 * How long it is now: others may have cut it since it was opened. 0: it is gone. Return: 0; -errno,
 * in words.
 */
int spw_engine__device_size_now(const struct spw_device *device, uint64_t *bytes);

/* -ENODEV if the block device has no size any more, else @error. A system call. */
int spw_engine__device_translate_error(const struct spw_device *device, int error);

/* Zeroed memory for any transfer to @device; for free(). NULL: none, reported. */
void *spw_engine__device_buffer(const struct spw_device *device, size_t len);

/*
 * Open @node, a block device or a regular file, as what is behind @device, whose path, log and
 * right to write are set. Return: as spw_device_open(); spw_device_close() also after a failure.
 */
int spw_engine__file_open(struct spw_device *device, const char *node, bool exclusive);

/* What ioctl(2), statx(2) and sysfs say of its descriptor. Return: as spw_device_open(). */
int spw_engine__geometry_read(struct spw_device *device);

/*
 * Does the drive of this sysfs folder, or one below it, accept memory that it then misplaces? zram
 * moves other bytes than lie in memory that is not page-aligned (Linux 6.1 to 6.18). null_blk
 * with blocks above 512 bytes accepts memory aligned to 512, and copies past the end of its own
 * pages (6.1): a trial (engine/trial.h) would do the harm, so it is known by name.
 */
bool spw_engine__geometry_misplaces(const char *drive);

/* passthrough_bytes, of queue/max_hw_sectors_kb and max_sectors_kb; 0: unknown. */
uint32_t spw_engine__geometry_choose_passthrough(long long hardware_kib, long long block_kib);

#endif
