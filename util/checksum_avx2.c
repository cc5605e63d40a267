/* SPDX-License-Identifier: MIT */
/* util/checksum_avx2.c - XXH3 with AVX2; the Makefile compiles this file with -mavx2 */
#include "util/checksum_wide.h"

#ifdef __AVX2__
#define XXH_INLINE_ALL
#define XXH_VECTOR        XXH_AVX2
#define XXH_PREFETCH_DIST SPW_CHECKSUM_AHEAD_BYTES
#include <xxhash.h>

uint64_t spw_checksum_avx2(const void *bytes, size_t len)
{
	return XXH3_64bits(bytes, len);
}
#endif
