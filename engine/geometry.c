/* SPDX-License-Identifier: MIT */
/* engine/geometry.c - ask the system what a device is: ioctl, statx and sysfs */
#include "engine/geometry.h"

#include <ctype.h>
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

#include "util/util.h"

/* What Linux hands to a drive in one piece when neither the drive nor sysfs says. */
#define TRANSFER_BYTES_ASSUMED (512u << 10)

/* The least that a controller with a limit can take: MDTS 1. */
#define PASSTHROUGH_BYTES_ASSUMED 8192u

/* A controller without a limit: the kernel writes 2^32 - 1 sectors, rounded down to blocks. */
#define UNLIMITED_KIB (INT64_C(1) << 22)

/* Of all that sysfs counts in sectors. */
#define SECTOR_BYTES 512u

/*
 * A file system that does not say how direct I/O must be aligned: right for all drives with blocks
 * up to this.
 */
#define FILE_ALIGN_ASSUMED 4096u

/*
 * The first line of DIRECTORY/NAME without surrounding blanks, fit to be shown; "" when there is
 * none.
 */
static void sysfs_text(const char *directory, const char *name, char *text, size_t len)
{
	char path[PATH_MAX], line[256] = "";
	char *start = line;
	size_t end;

	text[0] = '\0';
	if (snprintf(path, sizeof(path), "%s/%s", directory, name) >= (int)sizeof(path) ||
	    !spw_read_line(path, line, sizeof(line)))
		return;
	while (isspace((unsigned char)*start))
		start++;
	end = strlen(start);
	while (end > 0 && isspace((unsigned char)start[end - 1]))
		end--;
	(void)snprintf(text, len, "%.*s", (int)end, start);
	/* A model or a serial number is what the drive says. */
	spw_make_printable(text);
}

static bool sysfs_number(const char *directory, const char *name, long long *number)
{
	char text[32], *end;

	sysfs_text(directory, name, text, sizeof(text));
	errno = 0;
	*number = strtoll(text, &end, 10);
	return end != text && *end == '\0' && errno == 0;
}

/*
 * The sysfs folder of the whole drive that a device number lies on: a partition's queue and model
 * are its parent's.
 */
static bool sysfs_drive(dev_t number, char *directory, size_t len, bool *is_partition)
{
	char link[64], partition[PATH_MAX + 16], real[PATH_MAX];

	(void)snprintf(link, sizeof(link), "/sys/dev/block/%u:%u", major(number), minor(number));
	if (!realpath(link, real))
		return false;
	(void)snprintf(partition, sizeof(partition), "%s/partition", real);
	*is_partition = access(partition, F_OK) == 0;
	if (*is_partition)
		*strrchr(real, '/') = '\0';
	return snprintf(directory, len, "%s", real) < (int)len;
}

static int numa_node(const char *drive)
{
	static const char *const names[] = {"device/numa_node", "device/device/numa_node"};
	long long node;

	for (size_t i = 0; i < SPW_ARRAY_LEN(names); i++)
		if (sysfs_number(drive, names[i], &node) && node >= 0 && node <= INT_MAX)
			return (int)node;
	return -1;
}

/* nvme0n1 -> /dev/ng0n1, when it exists. */
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

static void read_sysfs(dev_t number, struct spw_geometry *g)
{
	char drive[PATH_MAX], queue[PATH_MAX];
	bool is_partition;
	long long value;

	if (!sysfs_drive(number, drive, sizeof(drive), &is_partition) ||
	    snprintf(queue, sizeof(queue), "%s/queue", drive) >= (int)sizeof(queue))
		return;
	if (sysfs_number(queue, "max_sectors_kb", &value) && value > 0 && value <= UINT32_MAX >> 10)
		g->transfer_bytes_max = (uint32_t)value << 10;
	if (sysfs_number(queue, "max_segments", &value) && value > 0 && value <= UINT32_MAX)
		g->segments_max = (uint32_t)value;
	g->rotational = sysfs_number(queue, "rotational", &value) && value == 1;
	g->numa_node = numa_node(drive);
	sysfs_text(drive, "device/model", g->model, sizeof(g->model));
	sysfs_text(drive, "device/serial", g->serial, sizeof(g->serial));
	if (g->kind != SPW_DEVICE_BLOCK)
		return;
	g->polls = sysfs_number(queue, "io_poll", &value) && value == 1;
	g->discards = sysfs_number(queue, "discard_max_bytes", &value) && value > 0;
	/* Passthrough addresses the whole namespace. */
	if (!is_partition)
		nvme_char_path(drive, g->nvme_char_path, sizeof(g->nvme_char_path));
}

uint32_t spw_geometry_choose_passthrough(long long hardware_kib, long long block_kib)
{
	if (hardware_kib > 0 && hardware_kib < UNLIMITED_KIB)
		return (uint32_t)hardware_kib << 10;
	if (hardware_kib >= UNLIMITED_KIB && block_kib > 0 && block_kib < UNLIMITED_KIB)
		return (uint32_t)block_kib << 10;
	return PASSTHROUGH_BYTES_ASSUMED;
}

uint32_t spw_geometry_passthrough_bytes(int fd)
{
	char drive[PATH_MAX], queue[PATH_MAX];
	long long value, block_value;
	bool is_partition;
	struct stat st;

	if (fstat(fd, &st) || !sysfs_drive(st.st_rdev, drive, sizeof(drive), &is_partition) ||
	    snprintf(queue, sizeof(queue), "%s/queue", drive) >= (int)sizeof(queue) ||
	    !sysfs_number(queue, "max_hw_sectors_kb", &value))
		return PASSTHROUGH_BYTES_ASSUMED;
	return spw_geometry_choose_passthrough(
		value, sysfs_number(queue, "max_sectors_kb", &block_value) ? block_value : 0);
}

void spw_geometry_boundary(int fd, uint64_t *boundary_bytes, uint64_t *start_bytes)
{
	char drive[PATH_MAX], queue[PATH_MAX], device[64];
	long long sectors, start;
	bool is_partition;
	struct stat st;

	*boundary_bytes = *start_bytes = 0;
	if (fstat(fd, &st) || !S_ISBLK(st.st_mode) ||
	    !sysfs_drive(st.st_rdev, drive, sizeof(drive), &is_partition) ||
	    snprintf(queue, sizeof(queue), "%s/queue", drive) >= (int)sizeof(queue) ||
	    !sysfs_number(queue, "chunk_sectors", &sectors) || sectors <= 0 || sectors > UINT32_MAX)
		return;
	*boundary_bytes = (uint64_t)sectors * SECTOR_BYTES;
	(void)snprintf(device, sizeof(device), "/sys/dev/block/%u:%u", major(st.st_rdev),
		       minor(st.st_rdev));
	if (is_partition && sysfs_number(device, "start", &start) && start > 0)
		*start_bytes = (uint64_t)start * SECTOR_BYTES;
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

/* How direct I/O must be aligned, from kernels (6.1) and file systems that tell. */
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
	if (g->physical_block_bytes < g->logical_block_bytes)
		g->physical_block_bytes = g->logical_block_bytes;
	if (g->transfer_bytes_max < g->logical_block_bytes)
		g->transfer_bytes_max = g->logical_block_bytes;
	g->size_bytes = spw_round_down(g->size_bytes, g->logical_block_bytes);
	if (g->size_bytes == 0)
		return spw_error(-ENODEV,
				 "%s has a size of 0: the drive is gone, or the file is empty",
				 path);
	return 0;
}

int spw_geometry_read(int fd, const char *path, struct spw_geometry *g)
{
	struct stat st;
	int ret;

	*g = (struct spw_geometry){.numa_node = -1, .transfer_bytes_max = TRANSFER_BYTES_ASSUMED};
	if (fstat(fd, &st))
		return spw_error_errno(-errno, "%s cannot be examined", path);
	if (S_ISBLK(st.st_mode)) {
		g->kind = SPW_DEVICE_BLOCK;
		ret = read_block_ioctls(fd, path, g);
		if (ret)
			return ret;
	} else {
		g->kind = SPW_DEVICE_FILE;
		g->size_bytes = (uint64_t)st.st_size;
		g->logical_block_bytes = FILE_ALIGN_ASSUMED;
		g->physical_block_bytes = (uint32_t)st.st_blksize;
		g->memory_align_bytes = FILE_ALIGN_ASSUMED;
		g->discards = true;
	}
	ret = read_dio_align(fd, path, g);
	if (ret)
		return ret;
	read_sysfs(S_ISBLK(st.st_mode) ? st.st_rdev : st.st_dev, g);
	return check(path, g);
}
