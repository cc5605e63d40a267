/* SPDX-License-Identifier: MIT */
/*
 * tools/bench/unwritten.c - find parts of a drive that were never written, which it answers without
 * reading
 *
 * A file shows them as holes, and so does the file behind a loop device; an NVMe drive counts the
 * blocks of a namespace that are in use, if only roughly. Other drives cannot be queried.
 */
#include "tools/bench/bench.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <spillway/nvme.h>

#include "util/util.h"

/* Count bytes in holes, and beyond the file's end. */
static uint64_t holes_of(const char *path, uint64_t offset_bytes, uint64_t len_bytes)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	off_t at = (off_t)offset_bytes, end = (off_t)(offset_bytes + len_bytes);
	uint64_t holes = len_bytes;

	if (fd < 0)
		return BENCH_UNWRITTEN_UNKNOWN;
	while (at < end) {
		off_t data = lseek(fd, at, SEEK_DATA), hole;

		/* ENXIO: there are no more data. */
		if (data < 0 && errno != ENXIO)
			holes = BENCH_UNWRITTEN_UNKNOWN;
		if (data < 0 || data >= end)
			break;
		hole = lseek(fd, data, SEEK_HOLE);
		if (hole < 0) {
			holes = BENCH_UNWRITTEN_UNKNOWN;
			break;
		}
		hole = SPW_MIN(hole, end);
		holes -= (uint64_t)(hole - data);
		at = hole;
	}
	(void)close(fd);
	return holes;
}

static uint64_t unwritten_of_loop(dev_t number, uint64_t offset_bytes, uint64_t len_bytes)
{
	const char *folder = SPW_PATH("/sys/dev/block/%u:%u/loop", major(number), minor(number));
	char path[PATH_MAX], offset[32];
	struct stat st;

	if (!spw_read_line(SPW_PATH("%s/backing_file", folder), path, sizeof(path)) ||
	    !spw_read_line(SPW_PATH("%s/offset", folder), offset, sizeof(offset)) ||
	    stat(path, &st) != 0 || !S_ISREG(st.st_mode))
		return BENCH_UNWRITTEN_UNKNOWN;
	return holes_of(path, offset_bytes + strtoull(offset, NULL, 10), len_bytes);
}

/* The least number of unwritten bytes: the drive tells how many blocks are in use, not which. */
static uint64_t unwritten_of_nvme(const char *path, uint64_t len_bytes)
{
	struct spw_nvme_info info = {.size = sizeof(info)};

	if (spw_nvme_info(path, &info) != 0 || info.namespace_bytes == 0)
		return BENCH_UNWRITTEN_UNKNOWN;
	return len_bytes - SPW_MIN(len_bytes, info.namespace_used_bytes);
}

uint64_t bench_unwritten(const char *path, uint64_t offset_bytes, uint64_t len_bytes)
{
	struct stat st = {0};
	uint64_t bytes;

	if (stat(path, &st) == 0 && S_ISREG(st.st_mode))
		return holes_of(path, offset_bytes, len_bytes);
	bytes = S_ISBLK(st.st_mode) ? unwritten_of_loop(st.st_rdev, offset_bytes, len_bytes)
				    : BENCH_UNWRITTEN_UNKNOWN;
	return bytes == BENCH_UNWRITTEN_UNKNOWN ? unwritten_of_nvme(path, len_bytes) : bytes;
}
