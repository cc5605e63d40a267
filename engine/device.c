/* SPDX-License-Identifier: MIT */
/* engine/device.c - spw_device_pread(), _lock() etc.: checks, then the ops of the kind */
#include "engine/device.h"

#include <errno.h>
#include <linux/fs.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#include "util/util.h"

/* Page alignment: direct I/O then needs the fewest segments. */
#define BUFFER_ALIGN_BYTES 4096u

void spw_device_opts_init(struct spw_device_opts *opts, size_t size)
{
	struct spw_device_opts defaults = {.size = sizeof(defaults)};

	spw_opts_merge(opts, size, &defaults, sizeof(defaults));
}

void spw_device_close(struct spw_device *device)
{
	if (!device)
		return;
	if (device->ops)
		device->ops->close(device);
	free(device->path);
	free(device);
}

int spw_engine__device_stat_error(const char *path, int error)
{
	if (error == -ENOENT)
		return spw_error(
			-ENOENT,
			"%s cannot be opened: there is no such file or device; look at its "
			"name (spillway probe lists drives), or make a file (fallocate -l 1G)",
			path);
	return spw_error_errno(error, "%s cannot be examined", path);
}

const char *spw_device_path(const struct spw_device *device)
{
	return device->path;
}

const struct spw_geometry *spw_device_geometry(const struct spw_device *device)
{
	return &device->geometry;
}

int spw_engine__device_check_transfer(const struct spw_device *device, const void *buf,
				      uint64_t len_bytes, uint64_t offset_bytes)
{
	const struct spw_geometry *g = &device->geometry;
	unsigned long long offset = offset_bytes, len = len_bytes;
	uint32_t block_mask = g->logical_block_bytes - 1;

	if (len == 0)
		return spw_error(-EINVAL, "%s: a transfer of no bytes", device->path);
	if ((len | offset) & block_mask)
		return spw_error(-EINVAL,
				 "%s: %s %llu is not a multiple of the logical block of %u bytes",
				 device->path, len & block_mask ? "length" : "offset",
				 len & block_mask ? len : offset, g->logical_block_bytes);
	if (len > g->size_bytes || offset > g->size_bytes - len)
		return spw_error(-EINVAL,
				 "%s: %llu bytes at %llu end beyond the device's %llu bytes",
				 device->path, len, offset, (unsigned long long)g->size_bytes);
	if ((uintptr_t)buf & (g->memory_align_bytes - 1))
		return spw_error(-EINVAL, "%s: buffer %p is not aligned to %u bytes", device->path,
				 buf, g->memory_align_bytes);
	return 0;
}

int spw_engine__device_no_progress_error(const struct spw_device *device)
{
	return device->geometry.kind == SPW_DEVICE_FILE ? -EIO : -ENODEV;
}

int spw_engine__device_size_now(const struct spw_device *device, uint64_t *bytes)
{
	if (device->ops->size)
		return device->ops->size(device, bytes);
	*bytes = device->geometry.size_bytes;
	return 0;
}

int spw_engine__device_translate_error(const struct spw_device *device, int error)
{
	uint64_t size = 0;

	if (device->fd < 0 || device->geometry.kind == SPW_DEVICE_FILE ||
	    (error != -ENOSPC && error != -EIO && error != -ENXIO))
		return error;
	if (ioctl(device->fd, BLKGETSIZE64, &size) || size == 0)
		return -ENODEV;
	return error;
}

int spw_engine__device_failed(const struct spw_device *device, const char *what, uint64_t len_bytes,
			      uint64_t offset_bytes, int error)
{
	return spw_error_errno(spw_engine__device_translate_error(device, error),
			       "%s: %s of %llu bytes at byte %llu failed", device->path, what,
			       (unsigned long long)len_bytes, (unsigned long long)offset_bytes);
}

int spw_device_pread(const struct spw_device *device, void *buf, size_t len, uint64_t offset_bytes)
{
	int ret = spw_engine__device_check_transfer(device, buf, len, offset_bytes);

	return ret ? ret : device->ops->transfer_blocking(device, SPW_READ, buf, len, offset_bytes);
}

int spw_device_pwrite(const struct spw_device *device, const void *buf, size_t len,
		      uint64_t offset_bytes)
{
	int ret = spw_engine__device_check_transfer(device, buf, len, offset_bytes);

	if (ret == 0 && device->read_only)
		ret = spw_engine__device_failed(device, "write", len, offset_bytes, -EBADF);
	return ret ? ret
		   : device->ops->transfer_blocking(device, SPW_WRITE, (void *)(uintptr_t)buf, len,
						    offset_bytes);
}

int spw_device_sync(const struct spw_device *device)
{
	return device->ops->sync(device);
}

int spw_device_discard(const struct spw_device *device, uint64_t offset_bytes, uint64_t len_bytes)
{
	int ret;

	if (!device->geometry.discards)
		return spw_error(-EOPNOTSUPP, "%s cannot discard", device->path);
	ret = spw_engine__device_check_transfer(device, NULL, len_bytes, offset_bytes);
	if (ret == 0 && device->read_only)
		ret = spw_error(-EBADF, "%s: a discard needs a device opened read-write",
				device->path);
	return ret ? ret : device->ops->discard(device, offset_bytes, len_bytes);
}

int spw_engine__device_write_zeroes(const struct spw_device *device, uint64_t offset_bytes,
				    uint64_t len_bytes)
{
	int ret;

	if (!device->ops->write_zeroes)
		return spw_error(-EOPNOTSUPP, "%s is not asked to write zeroes by itself",
				 device->path);
	if (device->read_only)
		return spw_error(-EBADF, "%s: writing zeroes needs a device opened read-write",
				 device->path);
	ret = spw_engine__device_check_transfer(device, NULL, len_bytes, offset_bytes);
	return ret ? ret : device->ops->write_zeroes(device, offset_bytes, len_bytes);
}

int spw_device_lock(const struct spw_device *device, uint64_t offset_bytes, uint64_t len_bytes)
{
	if (device->read_only)
		return spw_error(-EBADF, "%s: a lock needs a device opened read-write",
				 device->path);
	return device->ops->lock(device, offset_bytes, len_bytes);
}

int spw_device_unlock(const struct spw_device *device, uint64_t offset_bytes, uint64_t len_bytes)
{
	return device->ops->unlock(device, offset_bytes, len_bytes);
}

void *spw_engine__device_buffer(const struct spw_device *device, size_t len)
{
	const struct spw_geometry *geometry = &device->geometry;
	uint32_t unit = SPW_MAX(geometry->logical_block_bytes, geometry->memory_align_bytes);
	size_t align = SPW_MAX(unit, BUFFER_ALIGN_BYTES);
	void *buf;

	len = spw_round_up(len, align);
	buf = aligned_alloc(align, len);
	if (buf)
		memset(buf, 0, len);
	else
		(void)spw_error(-ENOMEM, "%s: no memory for %zu bytes", device->path, len);
	return buf;
}
