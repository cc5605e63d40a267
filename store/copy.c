/* SPDX-License-Identifier: MIT */
/* store/copy.c - copy and checksum the bytes of vectors, in one pass where possible */
#include "store/copy.h"

#include <string.h>

#include "util/checksum.h"
#include "util/util.h"

/* Small enough that the copied bytes are still in the L1 cache for the checksum. */
#define STRIDE_BYTES 16384u

uint64_t spw_store__copy_and_checksum(void *to, const void *from, size_t len)
{
	XXH3_state_t state;

	XXH3_INITSTATE(&state);
	(void)XXH3_64bits_reset(&state);
	for (size_t at = 0; at < len; at += STRIDE_BYTES) {
		size_t stride = len - at < STRIDE_BYTES ? len - at : STRIDE_BYTES;

		memcpy((uint8_t *)to + at, (const uint8_t *)from + at, stride);
		spw_checksum_update(&state, (const uint8_t *)to + at, stride);
	}
	return XXH3_64bits_digest(&state);
}

/* ---- Vectors ---- */

/* The element that contains @offset, which becomes relative to it. */
static const struct iovec *seek(const struct iovec *vector, uint64_t *offset)
{
	while (*offset >= vector->iov_len)
		*offset -= vector++->iov_len;
	return vector;
}

/* The next contiguous bytes, at most @max; advances @vector and @offset past them. */
static struct iovec next_run(const struct iovec **vector, uint64_t *offset, size_t max)
{
	struct iovec run;

	*vector = seek(*vector, offset);
	SPW_ASSERT((*vector)->iov_base != NULL);
	run.iov_base = (uint8_t *)(*vector)->iov_base + *offset;
	run.iov_len = SPW_MIN((*vector)->iov_len - *offset, max);
	*offset += run.iov_len;
	return run;
}

void *spw_store__run_of(const struct iovec *vector, uint64_t offset, size_t len)
{
	struct iovec run = next_run(&vector, &offset, len);

	return run.iov_len == len ? run.iov_base : NULL;
}

void spw_store__gather(void *to, const struct iovec *vector, uint64_t offset, size_t len)
{
	uint8_t *at = to;

	while (len > 0) {
		struct iovec run = next_run(&vector, &offset, len);

		memcpy(at, run.iov_base, run.iov_len);
		at += run.iov_len;
		len -= run.iov_len;
	}
}

void spw_store__scatter(const struct iovec *vector, uint64_t offset, const void *from, size_t len)
{
	const uint8_t *at = from;

	while (len > 0) {
		struct iovec run = next_run(&vector, &offset, len);

		memcpy(run.iov_base, at, run.iov_len);
		at += run.iov_len;
		len -= run.iov_len;
	}
}

void spw_store__regather(const struct iovec *to, const struct iovec *from, uint64_t offset,
			 size_t len)
{
	uint64_t to_offset = 0;

	while (len > 0) {
		struct iovec run = next_run(&to, &to_offset, len);

		spw_store__gather(run.iov_base, from, offset, run.iov_len);
		offset += run.iov_len;
		len -= run.iov_len;
	}
}

uint64_t spw_store__checksum_vector(const struct iovec *vector, uint64_t offset, size_t len)
{
	const void *all = spw_store__run_of(vector, offset, len);
	XXH3_state_t state;

	if (all)
		return spw_checksum(all, len);
	XXH3_INITSTATE(&state);
	(void)XXH3_64bits_reset(&state);
	while (len > 0) {
		struct iovec run = next_run(&vector, &offset, len);

		spw_checksum_update(&state, run.iov_base, run.iov_len);
		len -= run.iov_len;
	}
	return XXH3_64bits_digest(&state);
}
