/* SPDX-License-Identifier: MIT */
/* engine/file.c - block devices and files: open, blocking transfers, locks, discard */
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/device.h"
#include "util/util.h"

/* Move the descriptor above 2: if stdout is closed, the drive would get what the program prints. */
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

static int open_error(const struct spw_device *device, const struct stat *st, int error)
{
	if (error == EACCES || (error == EPERM && S_ISBLK(st->st_mode)))
		return spw_error(-error, "%s: no permission to %s it; %s", device->path,
				 device->read_only ? "read" : "write",
				 spw_permission_advice(error));
	return spw_error_errno(-error, "%s cannot be opened", device->path);
}

static int open_fd(struct spw_device *device, const char *node, bool exclusive)
{
	int flags = O_DIRECT | O_CLOEXEC | O_NOCTTY | (device->read_only ? O_RDONLY : O_RDWR);
	const char *path = device->path;
	struct stat st;

	/* Do not even open other kinds: that may block, or rewind a tape. */
	if (stat(node, &st))
		return spw_engine__device_stat_error(path, -errno);
	if (!is_drive(&st))
		return spw_error(-ENOTBLK, "%s is neither a block device nor a regular file", path);
	/* Without O_CREAT, O_EXCL has a meaning only for block devices. */
	if (exclusive)
		flags |= O_EXCL;
	device->fd = above_standard(open(node, flags));
	if (device->fd >= 0 && (fstat(device->fd, &st) || !is_drive(&st)))
		return spw_error(-ESTALE,
				 "%s: became something else while it was opened; look what it is, "
				 "and try again",
				 path);
	if (device->fd >= 0)
		return 0;
	if (errno == EINVAL && S_ISREG(st.st_mode))
		return spw_error(-EOPNOTSUPP,
				 "%s: its file system refuses O_DIRECT; use one that has direct "
				 "I/O (ext4, xfs)",
				 path);
	if (errno == EBUSY)
		return spw_error(-EBUSY,
				 "%s is mounted or held by another program (see lsblk, fuser)",
				 path);
	return open_error(device, &st, errno);
}

/*
 * Check RLIMIT_FSIZE: a write beyond it raises SIGXFSZ, even within the file. It does not apply to
 * block devices.
 */
static int check_limit(const struct spw_device *device)
{
	const struct spw_geometry *geometry = &device->geometry;
	struct rlimit limit;

	if (device->read_only || geometry->kind != SPW_DEVICE_FILE ||
	    getrlimit(RLIMIT_FSIZE, &limit) || limit.rlim_cur >= geometry->size_bytes)
		return 0;
	return spw_error(-EFBIG,
			 "%s: this process may write files up to byte %llu (ulimit -f), and it has "
			 "%llu bytes: raise the limit, or use a smaller file",
			 device->path, (unsigned long long)limit.rlim_cur,
			 (unsigned long long)geometry->size_bytes);
}

static void file_close(struct spw_device *device)
{
	if (device->fd < 0)
		return;
	/* Unlock explicitly: a forked child or a ring may keep the description and its locks. */
	(void)spw_device_unlock(device, 0, 0);
	(void)close(device->fd);
}

/* After as many -EAGAIN in a row the device has failed. */
#define AGAIN_MAX 256u

static int file_transfer(const struct spw_device *device, enum spw_op op, void *buf, size_t len,
			 uint64_t offset_bytes)
{
	unsigned again = 0;

	while (len > 0) {
		off_t offset = (off_t)offset_bytes;
		ssize_t n = op == SPW_READ ? pread(device->fd, buf, len, offset)
					   : pwrite(device->fd, buf, len, offset);

		if (n < 0 && (errno == EINTR || (errno == EAGAIN && again++ < AGAIN_MAX)))
			continue;
		if (n <= 0)
			return spw_engine__device_failed(
				device, op == SPW_READ ? "read" : "write", len, offset_bytes,
				n < 0 ? -errno : spw_engine__device_no_progress_error(device));
		buf = (char *)buf + n;
		len -= (size_t)n;
		offset_bytes += (uint64_t)n;
	}
	return 0;
}

static int file_sync(const struct spw_device *device)
{
	while (fdatasync(device->fd))
		if (errno != EINTR)
			return spw_error_errno(spw_engine__device_translate_error(device, -errno),
					       "%s: flush failed", device->path);
	return 0;
}

static int file_discard(const struct spw_device *device, uint64_t offset_bytes, uint64_t len_bytes)
{
	uint64_t range[2] = {offset_bytes, len_bytes};
	int ret;

	do {
		if (device->geometry.kind == SPW_DEVICE_FILE)
			ret = fallocate(device->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
					(off_t)offset_bytes, (off_t)len_bytes);
		else
			ret = ioctl(device->fd, BLKDISCARD, range);
	} while (ret && errno == EINTR);
	return ret ? spw_engine__device_failed(device, "discard", len_bytes, offset_bytes, -errno)
		   : 0;
}

static int file_size(const struct spw_device *device, uint64_t *bytes)
{
	bool is_file = device->geometry.kind == SPW_DEVICE_FILE;
	struct stat st;

	if ((is_file ? fstat(device->fd, &st) : ioctl(device->fd, BLKGETSIZE64, bytes)) == 0) {
		if (is_file)
			*bytes = (uint64_t)st.st_size;
		return 0;
	}
	if (errno != ENODEV && errno != ENXIO)
		return spw_error_errno(-errno, "%s does not tell its size", device->path);
	*bytes = 0;
	return 0;
}

static int set_lock(const struct spw_device *device, short type, uint64_t offset_bytes,
		    uint64_t len_bytes)
{
	struct flock lock = {.l_type = type,
			     .l_whence = SEEK_SET,
			     .l_start = (off_t)offset_bytes,
			     .l_len = (off_t)len_bytes};

	if (fcntl(device->fd, F_OFD_SETLK, &lock) == 0)
		return 0;
	if (errno == EAGAIN || errno == EACCES)
		return spw_error(
			-EBUSY,
			"%s: bytes %llu to %llu are locked by another process or another opener",
			device->path, (unsigned long long)offset_bytes,
			(unsigned long long)(offset_bytes + len_bytes));
	return spw_error_errno(-errno, "%s cannot be %slocked", device->path,
			       type == F_UNLCK ? "un" : "");
}

static int file_lock(const struct spw_device *device, uint64_t offset_bytes, uint64_t len_bytes)
{
	return set_lock(device, F_WRLCK, offset_bytes, len_bytes);
}

int spw_engine__device_lock_shared(const struct spw_device *device, uint64_t offset_bytes,
				   uint64_t len_bytes)
{
	return set_lock(device, F_RDLCK, offset_bytes, len_bytes);
}

static int file_unlock(const struct spw_device *device, uint64_t offset_bytes, uint64_t len_bytes)
{
	return set_lock(device, F_UNLCK, offset_bytes, len_bytes);
}

static const struct spw_device_ops file_ops = {
	.transfer_blocking = file_transfer,
	.sync = file_sync,
	.discard = file_discard,
	.size = file_size,
	.lock = file_lock,
	.unlock = file_unlock,
	.close = file_close,
};

int spw_engine__file_open(struct spw_device *device, const char *node, bool exclusive)
{
	int ret;

	device->ops = &file_ops;
	ret = open_fd(device, node, exclusive);
	if (ret == 0)
		ret = spw_engine__geometry_read(device);
	return ret ? ret : check_limit(device);
}
