/* SPDX-License-Identifier: MIT */
/* engine/device.h - what the rest of the engine sees of a device */
#ifndef SPW_ENGINE_DEVICE_H
#define SPW_ENGINE_DEVICE_H

#include <spillway/engine.h>

/*
 * How what is behind a device is reached. All may be called by several threads at the same time,
 * and say their errors in words. spw_device_ functions check ranges, alignment and the right to
 * write before they call one.
 */
struct spw_device_ops {
	/* Transfer all. A write is durable after sync. */
	int (*read)(const struct spw_device *device, void *buf, size_t len, uint64_t offset_bytes);
	int (*write)(const struct spw_device *device, const void *buf, size_t len,
		     uint64_t offset_bytes);
	int (*sync)(const struct spw_device *device);
	/* Called only if geometry.discards. */
	int (*discard)(const struct spw_device *device, uint64_t offset_bytes, uint64_t len_bytes);
	/* NULL: zeroes are to be written. */
	int (*write_zeroes)(const struct spw_device *device, uint64_t offset_bytes,
			    uint64_t len_bytes);
	/* -EBUSY: somebody else has a lock in the range. */
	int (*lock)(const struct spw_device *device, uint64_t offset_bytes, uint64_t len_bytes);
	int (*unlock)(const struct spw_device *device, uint64_t offset_bytes, uint64_t len_bytes);
	/*
	 * Let go of locks, descriptor and state, also of a device that was not opened to the end.
	 */
	void (*close)(struct spw_device *device);
};

struct spw_device {
	char *path;
	const struct spw_device_ops *ops;
	void *state; /* of the ops */
	int fd;      /* -1: the kernel has none for it */
	/*
	 * An exclusive open file description of the block device that whoever opened the device has
	 * besides, and closes; -1: none. Rings keep it for as long as they may write.
	 */
	int claim_fd;
	bool read_only;
	struct spw_geometry geometry;
	struct spw_log log;
};

/*
 * "/dev/loop3: offset 17 is not a multiple of the logical block of 512 bytes", as -EINVAL; 0 when
 * all is well.
 */
int spw_device_check_transfer(const struct spw_device *device, const void *buf, uint64_t len_bytes,
			      uint64_t offset_bytes);

/*
 * "/dev/loop3: read of 4096 bytes at byte 512 failed: ..." Return: @error, or what it means for the
 * device.
 */
int spw_device_failed(const struct spw_device *device, const char *what, uint64_t len_bytes,
		      uint64_t offset_bytes, int error);

/*
 * As spw_device_lock(), but a lock that others may have, too, and that keeps away exclusive ones.
 * Needs a descriptor.
 */
int spw_device_lock_shared(const struct spw_device *device, uint64_t offset_bytes,
			   uint64_t len_bytes);

/*
 * Is any byte of the range locked by somebody else, shared or not? Needs a descriptor. Return: 1;
 * 0; a negative errno.
 */
int spw_device_locked(const struct spw_device *device, uint64_t offset_bytes, uint64_t len_bytes);

/* Deallocate a range; blocks. Return: 0; -EOPNOTSUPP; a negative errno. */
int spw_device_discard(const struct spw_device *device, uint64_t offset_bytes, uint64_t len_bytes);

/*
 * Have the drive make a range of whole blocks read as zeroes, without a transfer; durable after
 * spw_device_sync(). Return: 0; -EOPNOTSUPP it cannot, or is not driven from here: write zeroes; a
 * negative errno.
 */
int spw_device_write_zeroes(const struct spw_device *device, uint64_t offset_bytes,
			    uint64_t len_bytes);

/*
 * What a transfer that made no progress inside the device means: a block device was removed
 * (-ENODEV), a file has become shorter (-EIO).
 */
int spw_device_no_progress_error(const struct spw_device *device);

/*
 * A removed block device answers writes with -ENOSPC, -EIO or -ENXIO. Ask it for its size, and say
 * -ENODEV when it has none any more. For the failure path: costs a system call.
 */
int spw_device_translate_error(const struct spw_device *device, int error);

/*
 * Zeroed memory of whole logical blocks that any transfer to @device accepts; for free(). NULL: out
 * of memory, reported.
 */
void *spw_device_buffer(const struct spw_device *device, size_t len);

#endif
