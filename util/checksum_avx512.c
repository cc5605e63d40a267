/* SPDX-License-Identifier: MIT */
/* util/checksum_avx512.c - XXH3 with AVX-512; the Makefile compiles this file with -mavx512f */
#include "util/checksum_wide.h"

#ifdef __AVX512F__
#define XXH_INLINE_ALL
#define XXH_VECTOR        XXH_AVX512
#define XXH_PREFETCH_DIST SPW_CHECKSUM_AHEAD_BYTES
#include <xxhash.h>

uint64_t spw_checksum_avx512(const void *bytes, size_t len)
{
	return XXH3_64bits(bytes, len);
}
#endif
