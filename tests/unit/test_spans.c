/* SPDX-License-Identifier: MIT */
/* tests/unit/test_spans.c - large blocks: never overlap, are reused, join, go back */
/* link: util */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/case.h"
#include "tests/random.h"

#include "malloc/spans.c"

#define UNITS    256u
#define MIB      ((size_t)1 << 20)
#define BLOCKS   64
#define ROUNDS   20000
#define NO_LIMIT UINT64_MAX

static struct spw_spans the_spans, *const spans = &the_spans;

static bool zeroed; /* what was taken last */

static void start(uint64_t resident_max_bytes)
{
	assert_int_equal(spw_spans_init(spans, UNITS * SPW_SPAN_BYTES, resident_max_bytes), 0);
}

static void *take(size_t len)
{
	return spw_spans_take(spans, len, &zeroed);
}

/* The invariants at the top of spans.c. */
static int check(void **state)
{
	uint64_t used = 0, dirty = 0;
	unsigned free_blocks = 0, in_bins = 0;
	int before = -1;

	for (uint32_t at = 0; at < spans->count; at += spans->len[at]) {
		uint32_t len = spans->len[at];

		assert_in_range(len, 1, spans->count - at);
		for (uint32_t inside = at + 1; inside < at + len; inside++)
			assert_int_not_equal(spans->state[inside], USED);
		if (spans->state[at] != USED) {
			assert_int_equal(spans->state[at], spans->state[at + len - 1]);
			assert_int_equal(spans->len[at + len - 1], len);
			assert_int_not_equal(before, spans->state[at]);
			free_blocks++;
		}
		assert_int_not_equal(spans->state[at], INSIDE);
		used += spans->state[at] == USED ? len : 0;
		dirty += spans->state[at] == DIRTY ? len : 0;
		before = spans->state[at] == USED ? -1 : spans->state[at];
	}
	for (unsigned bin = 0; bin < SPW_SPAN_BINS; bin++)
		for (unsigned clean = 0; clean < 2; clean++)
			for (uint32_t at = spans->bins[clean][bin]; at; at = spans->next[at - 1]) {
				assert_int_equal(spans->state[at - 1], clean ? CLEAN : DIRTY);
				assert_int_equal(bin_of(spans->len[at - 1]), bin);
				in_bins++;
			}
	assert_int_equal(free_blocks, in_bins);
	assert_int_equal(used * SPW_SPAN_BYTES, spans->used_bytes);
	assert_int_equal(dirty * SPW_SPAN_BYTES, spans->resident_free_bytes);
	assert_true(spans->resident_free_bytes <= spans->resident_max_bytes);
	assert_true(spans->used_bytes + spans->resident_free_bytes <= spans->used_max_bytes);
	(void)state;
	return 0;
}

static int end(void **state)
{
	(void)check(state);
	spw_spans_destroy(spans);
	return 0;
}

#define SPANS_TEST(name) CASE_WITH(name, NULL, end)

SPANS_TEST(test_a_block_is_reused)
{
	char *first, *second;

	start(NO_LIMIT);
	first = take(MIB + 1);
	assert_true(zeroed);
	assert_int_equal((uintptr_t)first % SPW_SPAN_BYTES, 0);
	assert_int_equal(spw_spans_len_bytes(spans, first), MIB + SPW_SPAN_BYTES);
	memset(first, 1, MIB + 1);
	spw_spans_give(spans, first);
	second = take(MIB);
	assert_ptr_equal(first, second);
	assert_false(zeroed);
	assert_int_equal(spans->reused, 1);
}

SPANS_TEST(test_only_what_is_in_use_is_used)
{
	char *blocks[3];

	start(NO_LIMIT);
	for (unsigned i = 0; i < 3; i++)
		blocks[i] = take((i + 1) * SPW_SPAN_BYTES);
	for (unsigned i = 0; i < 3; i++) {
		assert_true(spw_spans_used(spans, blocks[i]));
		assert_false(spw_spans_used(spans, blocks[i] + 1));
	}
	assert_false(spw_spans_used(spans, blocks[2] + SPW_SPAN_BYTES));
	assert_false(spw_spans_used(spans, blocks[2] + 2 * SPW_SPAN_BYTES));
	assert_false(spw_spans_used(spans, blocks[2] + 3 * SPW_SPAN_BYTES));
	for (unsigned i = 0; i < 3; i++)
		spw_spans_give(spans, blocks[i]);
	for (unsigned i = 0; i < 3; i++)
		assert_false(spw_spans_used(spans, blocks[i]));
	blocks[0] = take(UNITS * SPW_SPAN_BYTES);
	for (unsigned i = 1; i < UNITS; i++)
		assert_false(spw_spans_used(spans, blocks[0] + i * SPW_SPAN_BYTES));
}

SPANS_TEST(test_beyond_the_limit_memory_goes_back)
{
	char *blocks[3];

	start(2 * MIB);
	for (unsigned i = 0; i < 3; i++) {
		blocks[i] = take(MIB);
		memset(blocks[i], 1, MIB);
	}
	for (unsigned i = 0; i < 3; i++)
		spw_spans_give(spans, blocks[i]);
	(void)check(NULL);
	assert_int_equal(spans->resident_free_bytes, 2 * MIB);
	assert_int_equal(spans->returned_bytes, MIB);
	for (size_t i = 0; i < MIB; i++)
		assert_int_equal(blocks[2][i], 0);
}

/*
 * Free blocks that are too short for the next one go back instead of staying beside it, but no more
 * of them than it takes.
 */
SPANS_TEST(test_resident_is_what_was_used_at_once)
{
	char *blocks[3], *longer;

	start(NO_LIMIT);
	for (unsigned i = 0; i < 3; i++) {
		blocks[i] = take(3 * MIB);
		memset(blocks[i], 1, 3 * MIB);
	}
	spw_spans_give(spans, blocks[0]);
	spw_spans_give(spans, blocks[2]);
	(void)check(NULL);
	assert_int_equal(spans->resident_free_bytes, 6 * MIB);
	assert_int_equal(spans->returned_bytes, 0);
	longer = take(4 * MIB);
	assert_true(zeroed);
	assert_int_equal(spans->used_max_bytes, 9 * MIB);
	assert_int_equal(spans->used_bytes + spans->resident_free_bytes + spans->returned_bytes,
			 3 * MIB + 4 * MIB + 6 * MIB);
	assert_in_range(spans->returned_bytes, 4 * MIB, 6 * MIB);
	(void)check(NULL);
	spw_spans_give(spans, longer);
	assert_non_null(take(4 * MIB));
	assert_false(zeroed);
}

SPANS_TEST(test_what_does_not_fit_is_refused)
{
	void *blocks[4];

	start(NO_LIMIT);
	assert_null(take(UNITS * SPW_SPAN_BYTES + 1));
	assert_null(take(SIZE_MAX));
	assert_null(take(0));
	for (unsigned i = 0; i < 4; i++)
		blocks[i] = take(UNITS / 4 * SPW_SPAN_BYTES);
	assert_null(take(1));
	assert_int_equal(spans->refused, 4);
	for (unsigned i = 0; i < 4; i++)
		spw_spans_give(spans, blocks[i ^ 1]);
	(void)check(NULL);
	assert_non_null(take(UNITS * SPW_SPAN_BYTES));
}

/* Dirty and clean blocks in turns leave no room until all are clean. */
SPANS_TEST(test_room_is_joined_when_it_is_needed)
{
	void *blocks[UNITS];

	start(UNITS / 2 * SPW_SPAN_BYTES);
	for (unsigned i = 0; i < UNITS; i++)
		blocks[i] = take(SPW_SPAN_BYTES);
	for (unsigned i = 0; i < UNITS; i += 2)
		spw_spans_give(spans, blocks[i]);
	for (unsigned i = 1; i < UNITS; i += 2)
		spw_spans_give(spans, blocks[i]);
	(void)check(NULL);
	assert_int_equal(spans->resident_free_bytes, UNITS / 2 * SPW_SPAN_BYTES);
	assert_non_null(take(UNITS * SPW_SPAN_BYTES));
	assert_true(zeroed);
}

SPANS_TEST(test_random)
{
	uint64_t random = random_seed();
	unsigned char *blocks[BLOCKS] = {NULL};
	size_t lens[BLOCKS];

	start(40 * SPW_SPAN_BYTES);
	for (unsigned round = 0; round < ROUNDS; round++) {
		unsigned i = (unsigned)random_below(&random, BLOCKS);

		if (blocks[i]) { /* its first and last byte are still its own */
			assert_int_equal(blocks[i][0], i + 1);
			assert_int_equal(blocks[i][lens[i] - 1], i + 1);
			spw_spans_give(spans, blocks[i]);
			blocks[i] = NULL;
		} else {
			lens[i] = 2 + random_below(&random, 24 * SPW_SPAN_BYTES);
			blocks[i] = take(lens[i]);
			if (blocks[i]) {
				assert_true(spw_spans_own(spans, blocks[i]));
				assert_true(!zeroed ||
					    (blocks[i][0] == 0 && blocks[i][lens[i] - 1] == 0));
				blocks[i][0] = blocks[i][lens[i] - 1] = (unsigned char)(i + 1);
			}
		}
		if (random_below(&random, 64) == 0)
			spw_spans_step(spans);
		if (round % 16 == 0)
			(void)check(NULL);
	}
	assert_true(spans->reused > 0 && spans->returned_bytes > 0 && spans->refused > 0);
}

/* Free memory of a step that needed more goes back once some others have not. */
SPANS_TEST(test_the_peak_is_that_of_the_last_steps)
{
	void *large, *small;

	start(NO_LIMIT);
	large = take(100 * SPW_SPAN_BYTES);
	spw_spans_give(spans, large);
	for (unsigned step = 0; step < SPW_SPAN_STEPS; step++) {
		assert_int_equal(spans->resident_free_bytes, 100 * SPW_SPAN_BYTES);
		spw_spans_step(spans);
		small = take(10 * SPW_SPAN_BYTES);
		spw_spans_give(spans, small);
		(void)check(NULL);
	}
	assert_int_equal(spans->resident_free_bytes, 10 * SPW_SPAN_BYTES);
	small = take(7 * SPW_SPAN_BYTES);
	for (unsigned step = 0; step < 2 * SPW_SPAN_STEPS; step++)
		spw_spans_step(spans); /* in which nothing is taken */
	assert_int_equal(spans->used_bytes, 7 * SPW_SPAN_BYTES);
	assert_int_equal(spans->resident_free_bytes, 0);
	spw_spans_give(spans, small);
	(void)check(NULL);
	assert_int_equal(spans->resident_free_bytes, 7 * SPW_SPAN_BYTES);
}

CASE(test_no_range)
{
	assert_int_equal(spw_spans_init(spans, 1, NO_LIMIT), -EINVAL);
	assert_int_equal(spw_spans_init(spans, (uint64_t)UINT32_MAX * SPW_SPAN_BYTES, NO_LIMIT),
			 -EINVAL);
	assert_int_equal(spw_spans_init(spans, (uint64_t)1 << 47, NO_LIMIT), -ENOMEM);
	assert_false(spw_spans_own(spans, spans));
}

RUN_CASES(NULL, NULL)
