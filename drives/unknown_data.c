/* SPDX-License-Identifier: MIT */
/* drives/unknown_data.c - find unknown data: non-zero bytes at both ends of a drive, and between */
#include "drives/unknown_data.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/device.h"
#include "util/util.h"

#define PIECE_BYTES  (256u << 10) /* length of a read */
#define SAMPLE_BYTES 4096u

static void note_first(struct spw_unknown_data *unknown, const uint8_t *buf, size_t at, size_t len,
		       uint64_t offset_bytes)
{
	SPW_ASSERT(at < len && buf[at] != 0 && unknown->bytes_count == 0);
	unknown->found = true;
	unknown->offset_bytes = offset_bytes + at;
	while (unknown->bytes_count < SPW_UNKNOWN_SHOWN_BYTES && at < len)
		unknown->bytes[unknown->bytes_count++] = buf[at++];
}

static int read_range(const struct spw_device *device, uint8_t *buf, uint64_t from_bytes,
		      uint64_t to_bytes, struct spw_unknown_data *unknown, uint64_t *not_zero)
{
	SPW_ASSERT(to_bytes <= device->geometry.size_bytes);
	while (from_bytes < to_bytes) {
		size_t len = SPW_MIN(to_bytes - from_bytes, PIECE_BYTES);
		int rc = spw_device_pread(device, buf, len, from_bytes);

		if (rc != 0)
			return rc;
		for (size_t i = 0; i < len; i++) {
			if (buf[i] == 0)
				continue;
			if (!unknown->found)
				note_first(unknown, buf, i, len, from_bytes);
			(*not_zero)++;
		}
		from_bytes += len;
	}
	return 0;
}

int spw_drives__unknown_data_read(const struct spw_device *device, struct spw_unknown_data *unknown)
{
	uint64_t size_bytes = spw_device_geometry(device)->size_bytes;
	uint64_t first_end = SPW_MIN(size_bytes, SPW_UNKNOWN_END_BYTES);
	uint64_t last_begin = SPW_MAX(size_bytes - first_end, first_end);
	uint8_t *buf = spw_engine__device_buffer(device, PIECE_BYTES);
	int rc;

	memset(unknown, 0, sizeof(*unknown));
	if (!buf)
		return -ENOMEM;
	rc = read_range(device, buf, 0, first_end, unknown, &unknown->first_bytes);
	if (rc == 0)
		rc = read_range(device, buf, last_begin, size_bytes, unknown, &unknown->last_bytes);
	free(buf);
	return rc;
}

int spw_drives__unknown_data_error(const char *path, const struct spw_unknown_data *unknown)
{
	char hex[SPW_UNKNOWN_SHOWN_BYTES * 3 + 1] = "", text[SPW_UNKNOWN_SHOWN_BYTES + 1] = "";

	SPW_ASSERT(unknown->found && unknown->bytes_count > 0 &&
		   unknown->bytes_count <= SPW_UNKNOWN_SHOWN_BYTES);
	for (unsigned i = 0; i < unknown->bytes_count; i++) {
		(void)snprintf(hex + 3 * i, 4, "%02x ", unknown->bytes[i]);
		text[i] = unknown->bytes[i] >= ' ' && unknown->bytes[i] <= '~'
				  ? (char)unknown->bytes[i]
				  : '.';
	}
	/* The remedy comes first, because callers may truncate the message. */
	return spw_error(-EEXIST,
			 "%s: nothing known is on it, and yet it is not empty; use --erase if that "
			 "may be lost, or name another device: from byte %llu on %s(\"%s\"), %s of "
			 "its first MiB and %s of its last are not zero",
			 path, (unsigned long long)unknown->offset_bytes, hex, text,
			 SPW_SIZE_TEXT(unknown->first_bytes), SPW_SIZE_TEXT(unknown->last_bytes));
}

static bool is_zero(const uint8_t *buf, size_t len)
{
	return buf[0] == 0 && memcmp(buf, buf + 1, len - 1) == 0;
}

int spw_drives__unknown_data_sample(const struct spw_device *device,
				    struct spw_unknown_data_samples *samples)
{
	const struct spw_geometry *geometry = spw_device_geometry(device);
	size_t len = SPW_MAX(geometry->logical_block_bytes, SAMPLE_BYTES);
	uint64_t span_bytes;
	uint8_t *buf;

	memset(samples, 0, sizeof(*samples));
	if (geometry->size_bytes < 2 * SPW_UNKNOWN_END_BYTES + SPW_UNKNOWN_SAMPLES * len)
		return 0;
	buf = spw_engine__device_buffer(device, len);
	if (!buf)
		return -ENOMEM;
	span_bytes = geometry->size_bytes - 2 * SPW_UNKNOWN_END_BYTES;
	for (uint64_t i = 0; i < SPW_UNKNOWN_SAMPLES; i++) {
		/* span / 128 x (2i + 1): the middle of each of 64 sections */
		uint64_t at = SPW_UNKNOWN_END_BYTES +
			      spw_round_down(span_bytes / (2 * SPW_UNKNOWN_SAMPLES) * (2 * i + 1),
					     geometry->logical_block_bytes);

		SPW_ASSERT(at + len <= geometry->size_bytes - SPW_UNKNOWN_END_BYTES);
		samples->taken++;
		if (spw_device_pread(device, buf, len, at) != 0)
			samples->unreadable++;
		else if (!is_zero(buf, len) && samples->not_zero++ == 0)
			samples->offset_bytes = at;
	}
	free(buf);
	return 0;
}
