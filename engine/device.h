/* SPDX-License-Identifier: MIT */
/* engine/device.h - what the rest of the engine sees of a device */
#ifndef SPW_ENGINE_DEVICE_H
#define SPW_ENGINE_DEVICE_H

#include <spillway/engine.h>

struct spw_vfio_namespace;

struct spw_device {
	char *path;
	int fd; /* -1 of what is behind vfio */
	/*
	 * An exclusive open file description of the block device that whoever opened the device has besides, and closes; -1: none. Rings
	 * keep it for as long as they may write.
	 */
	int claim_fd;
	bool read_only;
	struct spw_vfio_namespace *vfio; /* NULL: fd is what to use */
	struct spw_geometry geometry;
	struct spw_log log;
};

/* "/dev/loop3: offset 17 is not a multiple of the logical block of 512 bytes", as -EINVAL; 0 when all is well. */
int spw_device_check_transfer(const struct spw_device *device, const void *buf, uint64_t len_bytes,
			      uint64_t offset_bytes);

/* As spw_device_lock(), but a lock that others may have, too, and that keeps away exclusive ones. Not of what is behind vfio. */
int spw_device_lock_shared(const struct spw_device *device, uint64_t offset_bytes, uint64_t len_bytes);

/* Is any byte of the range locked by somebody else, shared or not? Not of what is behind vfio. Return: 1; 0; a negative errno. */
int spw_device_locked(const struct spw_device *device, uint64_t offset_bytes, uint64_t len_bytes);

/* Deallocate a range; blocks. Return: 0; -EOPNOTSUPP; a negative errno. */
int spw_device_discard(const struct spw_device *device, uint64_t offset_bytes, uint64_t len_bytes);

/*
 * Have the drive make a range of whole blocks read as zeroes, without a transfer; durable after spw_device_sync().
 * Return: 0; -EOPNOTSUPP it cannot, or is not driven from here: write zeroes; a negative errno.
 */
int spw_device_write_zeroes(const struct spw_device *device, uint64_t offset_bytes, uint64_t len_bytes);

/*
 * What a transfer that made no progress inside the device means: a block device was removed (-ENODEV), a file has become shorter
 * (-EIO).
 */
int spw_device_no_progress_error(const struct spw_device *device);

/*
 * A removed block device answers writes with -ENOSPC, -EIO or -ENXIO. Ask it for its size, and say -ENODEV when it has none any
 * more. For the failure path: costs a system call.
 */
int spw_device_translate_error(const struct spw_device *device, int error);

#endif
