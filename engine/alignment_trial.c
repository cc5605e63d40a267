/* SPDX-License-Identifier: MIT */
/*
 * engine/alignment_trial.c - spw_engine__trial_alignment(): tests the alignment that a device
 * claims
 */
#include "engine/alignment_trial.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/device.h"
#include "util/util.h"

static void fill(uint8_t *bytes, size_t len, uint64_t seed)
{
	for (size_t i = 0; i + sizeof(seed) <= len; i += sizeof(seed)) {
		seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
		memcpy(bytes + i, &seed, sizeof(seed));
	}
}

/* Write from one buffer, read to another. Return: 0; -EBADMSG wrong bytes; -errno. */
static int round_trip(const struct spw_device *device, uint8_t *from, uint8_t *to, size_t len,
		      uint64_t offset_bytes, uint64_t seed)
{
	int rc;

	fill(from, len, seed);
	memset(to, 0, len);
	rc = spw_device_pwrite(device, from, len, offset_bytes);
	if (rc == 0)
		rc = spw_device_pread(device, to, len, offset_bytes);
	return rc == 0 && memcmp(from, to, len) != 0 ? -EBADMSG : rc;
}

/* Write from @unaligned and read back into @aligned, then the reverse; both have @len bytes. */
static int try_both_ways(const struct spw_device *device, uint8_t *aligned, uint8_t *unaligned,
			 size_t len, uint64_t offset_bytes)
{
	/* new bytes each time: those of an earlier trial must not pass */
	uint64_t seed = spw_clock_ns();
	int rc = round_trip(device, unaligned, aligned, len, offset_bytes, seed);

	return rc ? rc : round_trip(device, aligned, unaligned, len, offset_bytes, seed + 1);
}

int spw_engine__trial_alignment(const struct spw_device *device, uint64_t offset_bytes,
				uint64_t len_bytes)
{
	uint32_t claimed = spw_device_geometry(device)->memory_align_bytes;
	size_t len = SPW_MIN(len_bytes, SPW_TRIAL_BYTES);
	size_t room = spw_round_up(len + claimed, SPW_ALIGN_TRUSTED_BYTES);
	uint8_t *before;
	int rc, restored;

	if (claimed >= SPW_ALIGN_TRUSTED_BYTES)
		return 0;
	before = spw_engine__device_buffer(device, 3 * room);
	if (!before)
		return -ENOMEM;
	rc = spw_device_pread(device, before, len, offset_bytes);
	if (rc == 0) {
		rc = try_both_ways(device, before + room, before + 2 * room + claimed, len,
				   offset_bytes);
		restored = spw_device_pwrite(device, before, len, offset_bytes);
		rc = rc ? rc : restored;
	}
	free(before);
	return rc;
}
