/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_state_masters.c - float32 masters come back from 17 bits and their weights, with
 * either width of vectors; tests/python/test_optimizer_compact.py has every upper half
 */
/* link: util */
#include "state/masters.c"

#include "tests/case.h"
#include "tests/random.h"

#define BLOCKS 40u
#define COUNT  (BLOCKS * BLOCK)

static uint32_t masters[COUNT], again[COUNT];
static uint16_t weights[COUNT], low[2][COUNT];
static uint8_t carry[2][COUNT / 8];

/* To nearest, ties to even; NaN as PyTorch has it. */
static uint16_t rounded(uint32_t bits)
{
	if ((bits & 0x7fffffff) > 0x7f800000)
		return 0x7fc0;
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static void draw(uint64_t *seed)
{
	static const uint32_t edges[] = {0,          1,          0x00007fff, 0x00008000,
					 0x00018000, 0x7f7f8000, 0x7f7fffff, 0x7f800000,
					 0x7fc00000, 0xffc00000, 0x80000000, 0x80000001,
					 0xff7fffff, 0xff800000, 0xffff0000};

	for (size_t i = 0; i < COUNT; i++) {
		masters[i] = (uint32_t)random_next(seed);
		if (i % 7 == 0)
			masters[i] = edges[i / 7 % (sizeof(edges) / sizeof(edges[0]))];
		if ((masters[i] & 0x7fffffff) > 0x7f800000)
			masters[i] &= ~0xffffu;
		weights[i] = rounded(masters[i]);
	}
}

static void expect_same(void)
{
	for (size_t i = 0; i < COUNT; i++)
		assert_int_equal(again[i], masters[i]);
}

CASE(test_both_widths_are_the_same)
{
	uint64_t seed = random_seed(), nans = 0;

	for (unsigned round = 0; round < 100; round++) {
		draw(&seed);
		assert_int_equal(pack_blocks(masters, weights, BLOCKS, low[0], carry[0], &nans), 0);
		unpack_blocks(again, weights, BLOCKS, low[0], carry[0]);
		expect_same();
		if (!HAS_WIDE())
			continue;
		assert_int_equal(pack_wide(masters, weights, BLOCKS, low[1], carry[1], &nans), 0);
		assert_memory_equal(low[0], low[1], sizeof(low[0]));
		assert_memory_equal(carry[0], carry[1], sizeof(carry[0]));
		memset(again, 0, sizeof(again));
		unpack_wide(again, weights, BLOCKS, low[1], carry[1]);
		expect_same();
	}
	assert_int_equal(nans, 0);
}

CASE(test_what_is_lost_is_counted)
{
	uint64_t seed = random_seed(), sum, odd;

	draw(&seed);
	masters[3] = 0x7f800001;
	weights[3] = 0x7fc0;
	masters[COUNT - 1] = 0xffffffff;
	weights[COUNT - 1] = 0xffff;
	masters[100] = 0x3f800000;
	weights[100] = 0x3f82; /* two more */
	masters[200] = 0x3f800000;
	weights[200] = 0x7fc0;
	masters[300] = 0x7fc00000;
	weights[300] = 0x3f80;
	assert_int_equal(
		spw_state_masters_pack(masters, weights, COUNT, low[0], carry[0], 0, &sum, &odd),
		3);
	assert_int_equal(odd, 2);
	assert_int_equal(spw_state_masters_unpack(again, weights, COUNT, low[0], carry[0], 0, sum),
			 1);
	assert_int_equal(again[3], 0x7fc00000);
	assert_int_equal(again[COUNT - 1], 0xffff0000);
	assert_int_equal(spw_state_masters_unpack(NULL, weights, COUNT, NULL, NULL, 0, sum), 1);
	weights[5] ^= 1;
	assert_int_equal(spw_state_masters_unpack(NULL, weights, COUNT, NULL, NULL, 0, sum), 0);
	assert_int_equal(spw_state_masters_unpack(again, weights, COUNT, low[0], carry[0], 0, sum),
			 0);
	for (size_t i = 0; i < COUNT; i++)
		assert_int_equal(again[i], (uint32_t)weights[i] << 16);
}

RUN_CASES(NULL, NULL)
