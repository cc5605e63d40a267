/* SPDX-License-Identifier: MIT */
/*
 * tools/bench/crc32c.c - CRC-32C (Castagnoli), as fio's verify=crc32c: by the processor where it
 * can
 */
#include "tools/bench/crc32c.h"

#include <stdbool.h>
#include <string.h>

#define POLYNOMIAL UINT32_C(0x82f63b78) /* reflected */

/* Slow, for processors without an instruction for it. */
static uint32_t by_hand(uint32_t crc, const unsigned char *bytes, size_t len)
{
	for (size_t i = 0; i < len; i++) {
		crc ^= bytes[i];
		for (unsigned bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
	}
	return crc;
}

#if defined(__x86_64__)
#include <nmmintrin.h>

__attribute__((target("sse4.2"))) static uint32_t by_processor(uint32_t crc,
							       const unsigned char *bytes,
							       size_t len)
{
	uint64_t wide = crc;

	for (; len >= sizeof(wide); bytes += sizeof(wide), len -= sizeof(wide)) {
		uint64_t word;

		memcpy(&word, bytes, sizeof(word));
		wide = _mm_crc32_u64(wide, word);
	}
	crc = (uint32_t)wide;
	for (; len > 0; bytes++, len--)
		crc = _mm_crc32_u8(crc, *bytes);
	return crc;
}

static bool processor_can(void)
{
	return __builtin_cpu_supports("sse4.2");
}
#else
static uint32_t by_processor(uint32_t crc, const unsigned char *bytes, size_t len)
{
	return by_hand(crc, bytes, len);
}

static bool processor_can(void)
{
	return false;
}
#endif

uint32_t bench_crc32c(uint32_t crc, const void *bytes, size_t len)
{
	return ~(processor_can() ? by_processor(~crc, bytes, len) : by_hand(~crc, bytes, len));
}
