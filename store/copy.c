/* SPDX-License-Identifier: MIT */
/* store/copy.c - checksums, and copies that compute them on the way */
#define XXH_STATIC_LINKING_ONLY /* the state on the stack */
#include <xxhash.h>
#if defined(__x86_64__) && defined(__has_include)
#if __has_include(<xxh_x86dispatch.h>)
#define XXH_DISPATCH_DISABLE_REPLACE
#include <xxh_x86dispatch.h>
/* Weak: an archive for static programs may lack what the header declares, as Debian's does. */
#pragma weak XXH3_64bits_dispatch
#pragma weak XXH3_64bits_update_dispatch
#define DISPATCHES
#endif
#endif

#include <string.h>

#include "store/internal.h"

/* Small enough that the checksum finds in the first-level cache what was copied. */
#define STRIDE_BYTES 16384u

/* By what the CPU has: with AVX2 a fifth faster than with SSE2. */
uint64_t spw_checksum(const void *bytes, size_t len)
{
#ifdef DISPATCHES
	if (XXH3_64bits_dispatch)
		return XXH3_64bits_dispatch(bytes, len);
#endif
	return XXH3_64bits(bytes, len);
}

static void update(XXH3_state_t *state, const void *bytes, size_t len)
{
#ifdef DISPATCHES
	if (XXH3_64bits_update_dispatch) {
		(void)XXH3_64bits_update_dispatch(state, bytes, len);
		return;
	}
#endif
	(void)XXH3_64bits_update(state, bytes, len);
}

uint64_t spw_copy_and_checksum(void *to, const void *from, size_t len)
{
	XXH3_state_t state;

	XXH3_INITSTATE(&state);
	(void)XXH3_64bits_reset(&state);
	for (size_t at = 0; at < len; at += STRIDE_BYTES) {
		size_t stride = len - at < STRIDE_BYTES ? len - at : STRIDE_BYTES;

		memcpy((uint8_t *)to + at, (const uint8_t *)from + at, stride);
		update(&state, (const uint8_t *)to + at, stride);
	}
	return XXH3_64bits_digest(&state);
}

void spw_gather(void *to, const struct iovec *vector, uint64_t offset, size_t len)
{
	uint8_t *at = to;

	while (len > 0) {
		size_t part;

		if (offset >= vector->iov_len) {
			offset -= vector++->iov_len;
			continue;
		}
		SPW_ASSERT(vector->iov_base != NULL);
		part = vector->iov_len - offset < len ? vector->iov_len - offset : len;
		memcpy(at, (const uint8_t *)vector->iov_base + offset, part);
		at += part;
		len -= part;
		offset += part;
	}
}
