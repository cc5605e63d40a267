/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_checksum.c - by each width of vectors that the CPU has the sum is XXH3's own, and
 * memory behind the end is not needed
 */
/* link: util */
#include <sys/mman.h>
#include <unistd.h>

#include "tests/case.h"

#include "util/checksum.h"
#include "util/checksum_wide.h"
#include "util/util.h"

#define LEN_MAX (1u << 20)

static uint8_t *end; /* of LEN_MAX bytes: behind it there is no memory */

static int make_bytes(void **state)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	uint8_t *bytes = mmap(NULL, LEN_MAX + page, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	(void)state;
	assert_true(bytes != MAP_FAILED);
	end = bytes + LEN_MAX;
	assert_int_equal(mprotect(end, page, PROT_NONE), 0);
	for (size_t i = 0; i < LEN_MAX; i++)
		bytes[i] = (uint8_t)(i * 2654435761u >> 24);
	return 0;
}

static void expect_sum(uint64_t (*sum)(const void *bytes, size_t len))
{
	static const size_t lengths[] = {0,
					 1,
					 240,
					 241,
					 4096,
					 SPW_CHECKSUM_WIDE_BYTES_MIN - 1,
					 SPW_CHECKSUM_WIDE_BYTES_MIN,
					 SPW_CHECKSUM_WIDE_BYTES_MIN + 1,
					 LEN_MAX - 7,
					 LEN_MAX};

	for (size_t i = 0; i < SPW_ARRAY_LEN(lengths); i++) {
		const uint8_t *bytes = end - lengths[i];

		assert_int_equal(sum(bytes, lengths[i]), XXH3_64bits(bytes, lengths[i]));
	}
}

CASE(test_it_is_xxh3)
{
	expect_sum(spw_checksum);
}

#ifdef __x86_64__
CASE(test_with_avx2)
{
	if (!__builtin_cpu_supports("avx2"))
		skip();
	expect_sum(spw_checksum_avx2);
}

CASE(test_with_avx512)
{
	if (!__builtin_cpu_supports("avx512f"))
		skip();
	expect_sum(spw_checksum_avx512);
}
#endif

RUN_CASES(make_bytes, NULL)
