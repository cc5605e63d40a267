/* SPDX-License-Identifier: MIT */
/* engine/device.c - open a device, lock it, and transfer the few blocks that need no queue */
#include "engine/device.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/geometry.h"
#include "engine/nvme_node.h"
#include "engine/vfio.h"
#include "util/util.h"

void spw_device_opts_init(struct spw_device_opts *opts, size_t size)
{
	struct spw_device_opts defaults = {.size = sizeof(defaults)};

	spw_opts_merge(opts, size, &defaults, sizeof(defaults));
}

/*
 * A program may run without standard output, as some do in the background. A drive that got its number would get what the program
 * prints, too, in its first blocks.
 */
static int above_standard(int fd)
{
	int higher, error;

	if (fd < 0 || fd > STDERR_FILENO)
		return fd;
	higher = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
	error = errno;
	(void)close(fd);
	errno = error;
	return higher;
}

static bool is_drive(const struct stat *st)
{
	return S_ISBLK(st->st_mode) || S_ISREG(st->st_mode);
}

/* @path is what the user named and the messages say, @node what is opened. */
static int open_fd(const char *path, const char *node, const struct spw_device_opts *opts, int *fd)
{
	int flags = O_DIRECT | O_CLOEXEC | O_NOCTTY | (opts->read_only ? O_RDONLY : O_RDWR);
	struct stat st;

	/* Other kinds are not opened at all: that alone may wait, or move a tape. */
	if (stat(node, &st))
		return spw_error_errno(-errno, "%s cannot be opened", path);
	if (!is_drive(&st))
		return spw_error(-ENOTBLK, "%s is neither a block device nor a regular file", path);
	/* Without O_CREAT it has a meaning for block devices alone, whatever the name led to a moment ago. */
	if (opts->exclusive)
		flags |= O_EXCL;
	*fd = above_standard(open(node, flags));
	if (*fd >= 0 && (fstat(*fd, &st) || !is_drive(&st)))
		return spw_error(-ESTALE,
				 "%s: became something else while it was opened; look what it is, and try again", path);
	if (*fd >= 0)
		return 0;
	if (errno == EINVAL && S_ISREG(st.st_mode))
		return spw_error(-EOPNOTSUPP,
				 "%s: its file system refuses O_DIRECT; use one that has direct I/O (ext4, xfs)", path);
	if (errno == EBUSY)
		return spw_error(-EBUSY, "%s is mounted or held by another program (see lsblk, fuser)", path);
	return spw_error_errno(-errno, "%s cannot be opened", path);
}

/*
 * A namespace named by its character node: transfers may go that way, locks and exclusive claims lie on the block node, so that they
 * hold against whoever names that. Proves that the character node can be opened.
 */
static int make_char_device(struct spw_device *d)
{
	int fd;

	d->geometry.kind = SPW_DEVICE_NVME_CHAR;
	if (strlen(d->path) < sizeof(d->geometry.nvme_char_path))
		(void)snprintf(d->geometry.nvme_char_path, sizeof(d->geometry.nvme_char_path), "%s", d->path);
	fd = spw_nvme_open_char(d);
	if (fd < 0)
		return fd;
	(void)close(fd);
	return 0;
}

static int open_vfio(struct spw_device *d, const struct spw_device_opts *opts)
{
	int ret = spw_vfio_open(d->path, opts->exclusive, &d->log, &d->vfio);

	if (ret == 0)
		spw_vfio_geometry(d->vfio, &d->geometry);
	return ret;
}

static int open_device(struct spw_device *d, const struct spw_device_opts *opts)
{
	char node[PATH_MAX];
	int ret;

	if (spw_vfio_is_name(d->path))
		return open_vfio(d, opts);
	ret = spw_device_block_node(d->path, node, sizeof(node));
	if (ret == 0)
		ret = open_fd(d->path, node, opts, &d->fd);
	if (ret == 0)
		ret = spw_geometry_read(d->fd, d->path, &d->geometry);
	if (ret == 0 && strcmp(node, d->path) != 0)
		ret = make_char_device(d);
	return ret;
}

int spw_device_open(const char *path, const struct spw_device_opts *user_opts, struct spw_device **device)
{
	struct spw_device_opts opts = {0};
	struct spw_device *d;
	int ret;

	*device = NULL;
	spw_device_opts_init(&opts, sizeof(opts));
	if (user_opts)
		spw_opts_merge(&opts, sizeof(opts), user_opts, user_opts->size);
	d = calloc(1, sizeof(*d));
	if (!d)
		return spw_error(-ENOMEM, "%s: no memory for the device", path);
	d->fd = d->claim_fd = -1;
	d->read_only = opts.read_only;
	d->log = opts.log;
	d->path = strdup(path);
	if (!d->path) {
		ret = spw_error(-ENOMEM, "%s: no memory for the device", path);
		goto fail;
	}
	ret = open_device(d, &opts);
	if (ret)
		goto fail;
	*device = d;
	return 0;
fail:
	spw_device_close(d);
	return ret;
}

void spw_device_close(struct spw_device *device)
{
	if (!device)
		return;
	if (device->fd >= 0) {
		/* A forked child, or a ring that the kernel has not taken down yet, may hold the description, and the locks with it. */
		(void)spw_device_unlock(device, 0, 0);
		(void)close(device->fd);
	}
	if (device->vfio) {
		(void)spw_device_unlock(device, 0, 0);
		spw_vfio_close(device->vfio);
	}
	free(device->path);
	free(device);
}

const char *spw_device_path(const struct spw_device *device)
{
	return device->path;
}

const struct spw_geometry *spw_device_geometry(const struct spw_device *device)
{
	return &device->geometry;
}

int spw_device_check_transfer(const struct spw_device *device, const void *buf, uint64_t len_bytes,
			      uint64_t offset_bytes)
{
	const struct spw_geometry *g = &device->geometry;
	unsigned long long offset = offset_bytes, len = len_bytes;

	if (len == 0)
		return spw_error(-EINVAL, "%s: a transfer of no bytes", device->path);
	if (len & (g->logical_block_bytes - 1))
		return spw_error(-EINVAL, "%s: length %llu is not a multiple of the logical block of %u bytes",
				 device->path, len, g->logical_block_bytes);
	if (offset & (g->logical_block_bytes - 1))
		return spw_error(-EINVAL, "%s: offset %llu is not a multiple of the logical block of %u bytes",
				 device->path, offset, g->logical_block_bytes);
	if (len > g->size_bytes || offset > g->size_bytes - len)
		return spw_error(-EINVAL, "%s: %llu bytes at %llu end beyond the device's %llu bytes", device->path,
				 len, offset, (unsigned long long)g->size_bytes);
	if ((uintptr_t)buf & (g->memory_align_bytes - 1))
		return spw_error(-EINVAL, "%s: buffer %p is not aligned to %u bytes", device->path, buf,
				 g->memory_align_bytes);
	return 0;
}

int spw_device_no_progress_error(const struct spw_device *device)
{
	return device->geometry.kind == SPW_DEVICE_FILE ? -EIO : -ENODEV;
}

int spw_device_translate_error(const struct spw_device *device, int error)
{
	uint64_t size = 0;

	if (device->vfio || device->geometry.kind == SPW_DEVICE_FILE ||
	    (error != -ENOSPC && error != -EIO && error != -ENXIO))
		return error;
	if (ioctl(device->fd, BLKGETSIZE64, &size) || size == 0)
		return -ENODEV;
	return error;
}

static int transfer_error(const struct spw_device *device, bool is_write, size_t len, uint64_t offset_bytes, int error)
{
	return spw_error_errno(spw_device_translate_error(device, error), "%s: %s of %zu bytes at byte %llu failed",
			       device->path, is_write ? "write" : "read", len, (unsigned long long)offset_bytes);
}

static int transfer_vfio(const struct spw_device *device, bool is_write, char *buf, size_t len, uint64_t offset_bytes)
{
	if (is_write && device->read_only)
		return transfer_error(device, is_write, len, offset_bytes, -EBADF);
	return is_write ? spw_vfio_write(device->vfio, buf, len, offset_bytes)
			: spw_vfio_read(device->vfio, buf, len, offset_bytes);
}

static int transfer(const struct spw_device *device, bool is_write, char *buf, size_t len, uint64_t offset_bytes)
{
	int ret = spw_device_check_transfer(device, buf, len, offset_bytes);

	if (ret == 0 && device->vfio)
		return transfer_vfio(device, is_write, buf, len, offset_bytes);
	while (ret == 0 && len > 0) {
		ssize_t n = is_write ? pwrite(device->fd, buf, len, (off_t)offset_bytes)
				     : pread(device->fd, buf, len, (off_t)offset_bytes);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return transfer_error(device, is_write, len, offset_bytes, -errno);
		if (n == 0)
			return transfer_error(device, is_write, len, offset_bytes,
					      spw_device_no_progress_error(device));
		buf += n;
		len -= (size_t)n;
		offset_bytes += (uint64_t)n;
	}
	return ret;
}

int spw_device_pread(const struct spw_device *device, void *buf, size_t len, uint64_t offset_bytes)
{
	return transfer(device, false, buf, len, offset_bytes);
}

int spw_device_pwrite(const struct spw_device *device, const void *buf, size_t len, uint64_t offset_bytes)
{
	return transfer(device, true, (char *)(uintptr_t)buf, len, offset_bytes);
}

int spw_device_sync(const struct spw_device *device)
{
	if (device->vfio)
		return spw_vfio_flush(device->vfio);
	while (fdatasync(device->fd))
		if (errno != EINTR)
			return spw_error_errno(spw_device_translate_error(device, -errno), "%s: flush failed",
					       device->path);
	return 0;
}

int spw_device_discard(const struct spw_device *device, uint64_t offset_bytes, uint64_t len_bytes)
{
	uint64_t range[2] = {offset_bytes, len_bytes};
	int ret;

	if (!device->geometry.discards)
		return spw_error(-EOPNOTSUPP, "%s cannot discard", device->path);
	ret = spw_device_check_transfer(device, NULL, len_bytes, offset_bytes);
	if (ret)
		return ret;
	if (device->vfio)
		return device->read_only
			       ? spw_error(-EBADF, "%s: a discard needs a device opened read-write", device->path)
			       : spw_vfio_deallocate(device->vfio, offset_bytes, len_bytes);
	do {
		if (device->geometry.kind == SPW_DEVICE_FILE)
			ret = fallocate(device->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset_bytes,
					(off_t)len_bytes);
		else
			ret = ioctl(device->fd, BLKDISCARD, range);
	} while (ret && errno == EINTR);
	return ret ? spw_error_errno(spw_device_translate_error(device, -errno),
				     "%s: discard of %llu bytes at byte %llu failed", device->path,
				     (unsigned long long)len_bytes, (unsigned long long)offset_bytes)
		   : 0;
}

int spw_device_write_zeroes(const struct spw_device *device, uint64_t offset_bytes, uint64_t len_bytes)
{
	if (!device->vfio)
		return spw_error(-EOPNOTSUPP, "%s is not asked to write zeroes by itself", device->path);
	if (device->read_only)
		return spw_error(-EBADF, "%s: writing zeroes needs a device opened read-write", device->path);
	return spw_vfio_write_zeroes(device->vfio, offset_bytes, len_bytes);
}

static int set_lock(const struct spw_device *device, short type, uint64_t offset_bytes, uint64_t len_bytes)
{
	struct flock lock = {
		.l_type = type,
		.l_whence = SEEK_SET,
		.l_start = (off_t)offset_bytes,
		.l_len = (off_t)len_bytes,
	};

	return fcntl(device->fd, F_OFD_SETLK, &lock) ? -errno : 0;
}

int spw_device_lock(const struct spw_device *device, uint64_t offset_bytes, uint64_t len_bytes)
{
	int ret;

	if (device->vfio && !device->read_only)
		return spw_vfio_lock(device->vfio, device, offset_bytes, len_bytes);
	ret = device->vfio ? -EBADF : set_lock(device, F_WRLCK, offset_bytes, len_bytes);
	if (ret == -EAGAIN || ret == -EACCES)
		return spw_error(-EBUSY, "%s: bytes %llu to %llu are locked by another process or another opener",
				 device->path, (unsigned long long)offset_bytes,
				 (unsigned long long)(offset_bytes + len_bytes));
	if (ret == -EBADF)
		return spw_error(-EBADF, "%s: a lock needs a device opened read-write", device->path);
	return ret ? spw_error_errno(ret, "%s cannot be locked", device->path) : 0;
}

int spw_device_lock_shared(const struct spw_device *device, uint64_t offset_bytes, uint64_t len_bytes)
{
	int ret = set_lock(device, F_RDLCK, offset_bytes, len_bytes);

	if (ret == -EAGAIN || ret == -EACCES)
		return spw_error(-EBUSY, "%s: byte %llu is locked by another process", device->path,
				 (unsigned long long)offset_bytes);
	return ret ? spw_error_errno(ret, "%s cannot be locked", device->path) : 0;
}

int spw_device_locked(const struct spw_device *device, uint64_t offset_bytes, uint64_t len_bytes)
{
	struct flock lock = {
		.l_type = F_WRLCK,
		.l_whence = SEEK_SET,
		.l_start = (off_t)offset_bytes,
		.l_len = (off_t)len_bytes,
	};

	if (fcntl(device->fd, F_OFD_GETLK, &lock))
		return spw_error_errno(-errno, "%s: cannot be asked for locks", device->path);
	return lock.l_type != F_UNLCK;
}

int spw_device_unlock(const struct spw_device *device, uint64_t offset_bytes, uint64_t len_bytes)
{
	int ret;

	if (device->vfio)
		return spw_vfio_unlock(device->vfio, device, offset_bytes, len_bytes);
	ret = set_lock(device, F_UNLCK, offset_bytes, len_bytes);
	return ret ? spw_error_errno(ret, "%s cannot be unlocked", device->path) : 0;
}
