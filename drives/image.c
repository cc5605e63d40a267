/* SPDX-License-Identifier: MIT */
/*
 * drives/image.c - what libblkid is shown of a drive that has no node: its beginning and its end,
 * at their places in memory
 *
 * File systems, volumes and partition tables have their marks in the first 2 MiB and in the last;
 * LUKS has a second header that may begin at 4 MiB, and is what is left where the first was
 * destroyed. What points from there to a place between finds zeros: such a signature may go
 * unrecognized, so a boot sector that is none is said to be one (safety.c).
 */
#include "drives/image.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/device.h"
#include "util/util.h"

#define HEAD_BYTES (5u << 20)
#define TAIL_BYTES (2u << 20)
#define STEP_BYTES (256u << 10)

static int write_all(int fd, const uint8_t *buf, size_t len, uint64_t offset_bytes)
{
	while (len > 0) {
		ssize_t n = pwrite(fd, buf, len, (off_t)offset_bytes);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EIO;
		buf += n;
		len -= (size_t)n;
		offset_bytes += (uint64_t)n;
	}
	return 0;
}

static int copy(const struct spw_device *device, int fd, uint8_t *buf, uint64_t from_bytes,
		uint64_t to_bytes)
{
	int rc = 0;

	while (rc == 0 && from_bytes < to_bytes) {
		size_t len =
			to_bytes - from_bytes < STEP_BYTES ? to_bytes - from_bytes : STEP_BYTES;

		rc = spw_device_pread(device, buf, len, from_bytes);
		if (rc)
			return rc;
		rc = write_all(fd, buf, len, from_bytes);
		if (rc)
			return spw_error_errno(rc, "%s: no memory for a copy of its ends",
					       spw_device_path(device));
		from_bytes += len;
	}
	return rc;
}

int spw_drive_image(const struct spw_device *device)
{
	const struct spw_geometry *geometry = spw_device_geometry(device);
	uint64_t unit = geometry->logical_block_bytes,
		 end = spw_round_down(geometry->size_bytes, unit);
	uint64_t head = end < HEAD_BYTES ? end : HEAD_BYTES;
	uint64_t tail = end - head < TAIL_BYTES ? head : spw_round_down(end - TAIL_BYTES, unit);
	uint8_t *buf = spw_device_buffer(device, STEP_BYTES);
	int fd, rc;

	if (!buf)
		return -ENOMEM;
	fd = memfd_create("spillway-drive", MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, (off_t)geometry->size_bytes) != 0)
		rc = spw_error_errno(-errno, "%s: no memory for a copy of its ends",
				     spw_device_path(device));
	else
		rc = copy(device, fd, buf, 0, head);
	if (rc == 0)
		rc = copy(device, fd, buf, tail, end);
	free(buf);
	if (rc && fd >= 0)
		(void)close(fd);
	return rc ? rc : fd;
}
