/* SPDX-License-Identifier: MIT */
/* tools/bench/crc32c.h - CRC-32C (Castagnoli) */
#ifndef SPW_BENCH_CRC32C_H
#define SPW_BENCH_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Go on from @crc, which is 0 for the first bytes. */
uint32_t bench_crc32c(uint32_t crc, const void *bytes, size_t len);

#endif
