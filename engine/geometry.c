/* SPDX-License-Identifier: MIT */
/* engine/geometry.c - read a device's sizes, alignment and features by ioctl, statx and sysfs */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "engine/device.h"
#include "engine/alignment_trial.h"
#include "util/util.h"

/* Linux's largest request to a drive if neither the drive nor sysfs tells. */
#define TRANSFER_BYTES_ASSUMED (512u << 10)

/* The smallest limit that a controller can have: MDTS 1. */
#define PASSTHROUGH_BYTES_ASSUMED 8192u

/* max_hw_sectors_kb of a controller without a limit: 2^32 - 1 sectors, rounded down to blocks. */
#define UNLIMITED_KIB (INT64_C(1) << 22)

#define SECTOR_BYTES 512u

/* If the file system does not tell: right for all drives with blocks up to this size. */
#define FILE_ALIGN_ASSUMED 4096u

static int64_t sysfs_number(const char *directory, const char *name, int64_t otherwise)
{
	return spw_read_number(SPW_PATH("%s/%s", directory, name), otherwise);
}

/* Find the sysfs folder of the whole drive: a partition has its parent's queue and model. */
static bool sysfs_drive(dev_t number, char directory[PATH_MAX], bool *is_partition)
{
	if (!realpath(SPW_PATH("/sys/dev/block/%u:%u", major(number), minor(number)), directory))
		return false;
	*is_partition = access(SPW_PATH("%s/partition", directory), F_OK) == 0;
	if (*is_partition)
		*strrchr(directory, '/') = '\0';
	return true;
}

static int numa_node(const char *drive)
{
	int64_t node = sysfs_number(drive, "device/numa_node", -1);

	if (node < 0)
		node = sysfs_number(drive, "device/device/numa_node", -1);
	return node >= 0 && node <= INT_MAX ? (int)node : -1;
}

static void nvme_char_path(const char *drive, char *path, size_t len)
{
	const char *name = strrchr(drive, '/') + 1;
	struct stat st;

	path[0] = '\0';
	if (strncmp(name, "nvme", 4) != 0)
		return;
	(void)snprintf(path, len, "/dev/ng%s", name + 4);
	if (stat(path, &st) || !S_ISCHR(st.st_mode))
		path[0] = '\0';
}

uint32_t spw_engine__geometry_choose_passthrough(long long hardware_kib, long long block_kib)
{
	if (hardware_kib > 0 && hardware_kib < UNLIMITED_KIB)
		return (uint32_t)hardware_kib << 10;
	if (hardware_kib >= UNLIMITED_KIB && block_kib > 0 && block_kib < UNLIMITED_KIB)
		return (uint32_t)block_kib << 10;
	return PASSTHROUGH_BYTES_ASSUMED;
}

/* An io_uring entry has one byte for a stream. @streams is negative before Linux 6.16. */
static uint16_t choose_streams(int64_t streams)
{
	return streams < 0 ? 0 : (uint16_t)SPW_MIN(streams, UINT8_MAX);
}

/* Set boundary_bytes: the block layer splits requests that cross a multiple of it on the drive. */
static void read_boundary(dev_t number, const char *queue, bool is_partition,
			  struct spw_device *device)
{
	int64_t sectors = sysfs_number(queue, "chunk_sectors", 0), start = 0;

	if (sectors <= 0 || sectors > UINT32_MAX)
		return;
	device->boundary_bytes = (uint64_t)sectors * SECTOR_BYTES;
	if (is_partition)
		start = spw_read_number(
			SPW_PATH("/sys/dev/block/%u:%u/start", major(number), minor(number)), 0);
	if (start > 0)
		device->start_bytes = (uint64_t)start * SECTOR_BYTES;
}

/* Visits the drives below a device: returns non-zero to stop at the first that misplaces. */
static int misplaces(void *context, const char *folder, const char *name)
{
	(void)context;
	return spw_engine__geometry_misplaces(SPW_PATH("%s/%s", folder, name));
}

bool spw_engine__geometry_misplaces(const char *drive)
{
	const char *name = strrchr(drive, '/') + 1;
	int64_t of_parent = sysfs_number(drive, "../queue/logical_block_size", SECTOR_BYTES);
	int64_t block_bytes = sysfs_number(drive, "queue/logical_block_size", of_parent);

	if (strncmp(name, "zram", 4) == 0)
		return true;
	if (strncmp(name, "nullb", 5) == 0 && block_bytes > SECTOR_BYTES)
		return true;
	return spw_each_name(SPW_PATH("%s/slaves", drive), misplaces, NULL) > 0;
}

static void read_sysfs(dev_t number, struct spw_device *device)
{
	struct spw_geometry *g = &device->geometry;
	char drive[PATH_MAX], queue[PATH_MAX];
	bool is_partition;
	int64_t kib, segments;

	if (!sysfs_drive(number, drive, &is_partition))
		return;
	(void)spw_path(queue, "%s/queue", drive);
	kib = sysfs_number(queue, "max_sectors_kb", 0);
	segments = sysfs_number(queue, "max_segments", 0);
	if (kib > 0 && kib <= UINT32_MAX >> 10)
		g->transfer_bytes_max = (uint32_t)kib << 10;
	if (segments > 0 && segments <= UINT32_MAX)
		g->segments_max = (uint32_t)segments;
	device->passthrough_bytes = spw_engine__geometry_choose_passthrough(
		sysfs_number(queue, "max_hw_sectors_kb", 0), kib);
	g->rotational = sysfs_number(queue, "rotational", 0) == 1;
	g->numa_node = numa_node(drive);
	(void)spw_read_text(SPW_PATH("%s/device/model", drive), g->model, sizeof(g->model));
	(void)spw_read_text(SPW_PATH("%s/device/serial", drive), g->serial, sizeof(g->serial));
	spw_engine__transport_read(drive, &device->transport);
	(void)snprintf(g->transport, sizeof(g->transport), "%s", device->transport.name);
	if (spw_engine__geometry_misplaces(drive))
		g->memory_align_bytes = SPW_MAX(g->memory_align_bytes, SPW_ALIGN_TRUSTED_BYTES);
	if (g->kind != SPW_DEVICE_BLOCK)
		return;
	/* dm-crypt inherits io_poll from the drive below, but refuses polled requests. */
	g->polls = sysfs_number(queue, "io_poll", 0) == 1 &&
		   access(SPW_PATH("%s/dm", drive), F_OK) != 0;
	g->discards = sysfs_number(queue, "discard_max_bytes", 0) > 0;
	device->write_streams = choose_streams(sysfs_number(queue, "max_write_streams", 0));
	read_boundary(number, queue, is_partition, device);
	/* Passthrough addresses the whole namespace. */
	if (!is_partition)
		nvme_char_path(drive, g->nvme_char_path, sizeof(g->nvme_char_path));
}

static int read_block_ioctls(int fd, const char *path, struct spw_geometry *g)
{
	unsigned int physical;
	int logical;

	if (ioctl(fd, BLKGETSIZE64, &g->size_bytes) || ioctl(fd, BLKSSZGET, &logical) ||
	    ioctl(fd, BLKPBSZGET, &physical))
		return spw_error_errno(-errno, "%s does not tell its size", path);
	g->logical_block_bytes = (uint32_t)logical;
	g->physical_block_bytes = physical;
	g->memory_align_bytes = (uint32_t)logical;
	return 0;
}

/* Alignment of direct I/O, from kernels (6.1 or later) and file systems that tell. */
static int read_dio_align(int fd, const char *path, struct spw_geometry *g)
{
	struct statx stx;

	if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &stx) || !(stx.stx_mask & STATX_DIOALIGN))
		return 0;
	if (stx.stx_dio_offset_align == 0)
		return spw_error(-EOPNOTSUPP,
				 "%s: the file system has no direct I/O for this file (encrypted, "
				 "journalled?)",
				 path);
	g->memory_align_bytes = stx.stx_dio_mem_align ? stx.stx_dio_mem_align : 1;
	if (g->kind == SPW_DEVICE_FILE)
		g->logical_block_bytes = stx.stx_dio_offset_align;
	return 0;
}

static int check(const char *path, struct spw_geometry *g)
{
	if (!spw_is_power_of_two(g->logical_block_bytes) ||
	    !spw_is_power_of_two(g->memory_align_bytes))
		return spw_error(-EINVAL,
				 "%s: a logical block of %u bytes and a memory alignment of %u are "
				 "not powers of two",
				 path, g->logical_block_bytes, g->memory_align_bytes);
	g->physical_block_bytes = SPW_MAX(g->physical_block_bytes, g->logical_block_bytes);
	g->transfer_bytes_max = SPW_MAX(g->transfer_bytes_max, g->logical_block_bytes);
	g->size_bytes = spw_round_down(g->size_bytes, g->logical_block_bytes);
	if (g->size_bytes == 0)
		return spw_error(-ENODEV,
				 "%s has a size of 0: the drive is gone, or the file is empty",
				 path);
	return 0;
}

int spw_engine__geometry_read(struct spw_device *device)
{
	struct spw_geometry *g = &device->geometry;
	const char *path = device->path;
	struct stat st;
	int ret = 0;

	*g = (struct spw_geometry){
		.size = sizeof(*g), .numa_node = -1, .transfer_bytes_max = TRANSFER_BYTES_ASSUMED};
	device->passthrough_bytes = PASSTHROUGH_BYTES_ASSUMED;
	if (fstat(device->fd, &st))
		return spw_error_errno(-errno, "%s cannot be examined", path);
	if (S_ISBLK(st.st_mode)) {
		g->kind = SPW_DEVICE_BLOCK;
		ret = read_block_ioctls(device->fd, path, g);
	} else {
		g->kind = SPW_DEVICE_FILE;
		g->size_bytes = (uint64_t)st.st_size;
		g->logical_block_bytes = FILE_ALIGN_ASSUMED;
		g->physical_block_bytes = (uint32_t)st.st_blksize;
		g->memory_align_bytes = FILE_ALIGN_ASSUMED;
		g->discards = true;
	}
	if (ret == 0)
		ret = read_dio_align(device->fd, path, g);
	if (ret)
		return ret;
	read_sysfs(S_ISBLK(st.st_mode) ? st.st_rdev : st.st_dev, device);
	return check(path, g);
}
