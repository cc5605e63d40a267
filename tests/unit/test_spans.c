/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_spans.c - large blocks: they never overlap, are reused, join again, and go back
 * beyond the limit
 */
/* link: util */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "malloc/spans.c"

#define UNITS    256u
#define MIB      ((size_t)1 << 20)
#define BLOCKS   64
#define ROUNDS   20000
#define NO_LIMIT UINT64_MAX

static void start(struct spw_spans *spans, uint64_t resident_max_bytes)
{
	assert_int_equal(spw_spans_init(spans, UNITS * SPW_SPAN_BYTES, resident_max_bytes), 0);
}

/* The invariants at the top of spans.c. */
static void check(const struct spw_spans *spans)
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
}

static void test_a_block_is_reused(void **state)
{
	struct spw_spans spans;
	bool zeroed;
	char *first, *second;

	(void)state;
	start(&spans, NO_LIMIT);
	first = spw_spans_take(&spans, MIB + 1, &zeroed);
	assert_true(zeroed);
	assert_int_equal((uintptr_t)first % SPW_SPAN_BYTES, 0);
	assert_int_equal(spw_spans_len_bytes(&spans, first), MIB + SPW_SPAN_BYTES);
	memset(first, 1, MIB + 1);
	spw_spans_give(&spans, first);
	second = spw_spans_take(&spans, MIB, &zeroed);
	assert_ptr_equal(first, second);
	assert_false(zeroed);
	assert_int_equal(spans.reused, 1);
	check(&spans);
	spw_spans_destroy(&spans);
}

static void test_only_what_is_in_use_is_used(void **state)
{
	struct spw_spans spans;
	bool zeroed;
	char *blocks[3];

	(void)state;
	start(&spans, NO_LIMIT);
	for (unsigned i = 0; i < 3; i++)
		blocks[i] = spw_spans_take(&spans, (i + 1) * SPW_SPAN_BYTES, &zeroed);
	for (unsigned i = 0; i < 3; i++) {
		assert_true(spw_spans_used(&spans, blocks[i]));
		assert_false(spw_spans_used(&spans, blocks[i] + 1));
	}
	assert_false(spw_spans_used(&spans, blocks[2] + SPW_SPAN_BYTES));
	assert_false(spw_spans_used(&spans, blocks[2] + 2 * SPW_SPAN_BYTES));
	assert_false(spw_spans_used(&spans, blocks[2] + 3 * SPW_SPAN_BYTES));
	for (unsigned i = 0; i < 3; i++)
		spw_spans_give(&spans, blocks[i]);
	for (unsigned i = 0; i < 3; i++)
		assert_false(spw_spans_used(&spans, blocks[i]));
	blocks[0] = spw_spans_take(&spans, UNITS * SPW_SPAN_BYTES, &zeroed);
	for (unsigned i = 1; i < UNITS; i++)
		assert_false(spw_spans_used(&spans, blocks[0] + i * SPW_SPAN_BYTES));
	check(&spans);
	spw_spans_destroy(&spans);
}

static void test_beyond_the_limit_memory_goes_back(void **state)
{
	struct spw_spans spans;
	bool zeroed;
	char *blocks[3];

	(void)state;
	start(&spans, 2 * MIB);
	for (unsigned i = 0; i < 3; i++) {
		blocks[i] = spw_spans_take(&spans, MIB, &zeroed);
		memset(blocks[i], 1, MIB);
	}
	for (unsigned i = 0; i < 3; i++)
		spw_spans_give(&spans, blocks[i]);
	check(&spans);
	assert_int_equal(spans.resident_free_bytes, 2 * MIB);
	assert_int_equal(spans.returned_bytes, MIB);
	for (size_t i = 0; i < MIB; i++)
		assert_int_equal(blocks[2][i], 0);
	spw_spans_destroy(&spans);
}

/*
 * Free blocks that are too short for the next one go back instead of staying beside it, but no more
 * of them than it takes.
 */
static void test_resident_is_what_was_used_at_once(void **state)
{
	struct spw_spans spans;
	bool zeroed;
	char *blocks[3], *longer;

	(void)state;
	start(&spans, NO_LIMIT);
	for (unsigned i = 0; i < 3; i++) {
		blocks[i] = spw_spans_take(&spans, 3 * MIB, &zeroed);
		memset(blocks[i], 1, 3 * MIB);
	}
	spw_spans_give(&spans, blocks[0]);
	spw_spans_give(&spans, blocks[2]);
	check(&spans);
	assert_int_equal(spans.resident_free_bytes, 6 * MIB);
	assert_int_equal(spans.returned_bytes, 0);
	longer = spw_spans_take(&spans, 4 * MIB, &zeroed);
	assert_true(zeroed);
	assert_int_equal(spans.used_max_bytes, 9 * MIB);
	assert_int_equal(spans.used_bytes + spans.resident_free_bytes + spans.returned_bytes,
			 3 * MIB + 4 * MIB + 6 * MIB);
	assert_in_range(spans.returned_bytes, 4 * MIB, 6 * MIB);
	check(&spans);
	spw_spans_give(&spans, longer);
	assert_non_null(spw_spans_take(&spans, 4 * MIB, &zeroed));
	assert_false(zeroed);
	check(&spans);
	spw_spans_destroy(&spans);
}

static void test_what_does_not_fit_is_refused(void **state)
{
	struct spw_spans spans;
	bool zeroed;
	void *blocks[4];

	(void)state;
	start(&spans, NO_LIMIT);
	assert_null(spw_spans_take(&spans, UNITS * SPW_SPAN_BYTES + 1, &zeroed));
	assert_null(spw_spans_take(&spans, SIZE_MAX, &zeroed));
	assert_null(spw_spans_take(&spans, 0, &zeroed));
	for (unsigned i = 0; i < 4; i++)
		blocks[i] = spw_spans_take(&spans, UNITS / 4 * SPW_SPAN_BYTES, &zeroed);
	assert_null(spw_spans_take(&spans, 1, &zeroed));
	assert_int_equal(spans.refused, 4);
	for (unsigned i = 0; i < 4; i++)
		spw_spans_give(&spans, blocks[i ^ 1]);
	check(&spans);
	assert_non_null(spw_spans_take(&spans, UNITS * SPW_SPAN_BYTES, &zeroed));
	spw_spans_destroy(&spans);
}

/* Dirty and clean blocks in turns leave no room until all are clean. */
static void test_room_is_joined_when_it_is_needed(void **state)
{
	struct spw_spans spans;
	bool zeroed;
	void *blocks[UNITS];

	(void)state;
	start(&spans, UNITS / 2 * SPW_SPAN_BYTES);
	for (unsigned i = 0; i < UNITS; i++)
		blocks[i] = spw_spans_take(&spans, SPW_SPAN_BYTES, &zeroed);
	for (unsigned i = 0; i < UNITS; i += 2)
		spw_spans_give(&spans, blocks[i]);
	for (unsigned i = 1; i < UNITS; i += 2)
		spw_spans_give(&spans, blocks[i]);
	check(&spans);
	assert_int_equal(spans.resident_free_bytes, UNITS / 2 * SPW_SPAN_BYTES);
	assert_non_null(spw_spans_take(&spans, UNITS * SPW_SPAN_BYTES, &zeroed));
	assert_true(zeroed);
	check(&spans);
	spw_spans_destroy(&spans);
}

static void test_random(void **state)
{
	const char *given = getenv("SPW_SEED");
	unsigned seed = given ? (unsigned)strtoul(given, NULL, 10) : (unsigned)time(NULL);
	struct spw_spans spans;
	unsigned char *blocks[BLOCKS] = {NULL};
	size_t lens[BLOCKS];

	(void)state;
	print_message("SPW_SEED=%u\n", seed);
	srand(seed);
	start(&spans, 40 * SPW_SPAN_BYTES);
	for (unsigned round = 0; round < ROUNDS; round++) {
		unsigned i = (unsigned)rand() % BLOCKS;
		bool zeroed;

		if (blocks[i]) { /* its first and last byte are still its own */
			assert_int_equal(blocks[i][0], i + 1);
			assert_int_equal(blocks[i][lens[i] - 1], i + 1);
			spw_spans_give(&spans, blocks[i]);
			blocks[i] = NULL;
		} else {
			lens[i] = 2 + (size_t)rand() % (24 * SPW_SPAN_BYTES);
			blocks[i] = spw_spans_take(&spans, lens[i], &zeroed);
			if (blocks[i]) {
				assert_true(spw_spans_own(&spans, blocks[i]));
				assert_true(!zeroed ||
					    (blocks[i][0] == 0 && blocks[i][lens[i] - 1] == 0));
				blocks[i][0] = blocks[i][lens[i] - 1] = (unsigned char)(i + 1);
			}
		}
		if (round % 16 == 0)
			check(&spans);
	}
	assert_true(spans.reused > 0 && spans.returned_bytes > 0 && spans.refused > 0);
	spw_spans_destroy(&spans);
}

static void test_no_range(void **state)
{
	struct spw_spans spans;

	(void)state;
	assert_int_equal(spw_spans_init(&spans, 1, NO_LIMIT), -EINVAL);
	assert_int_equal(spw_spans_init(&spans, (uint64_t)UINT32_MAX * SPW_SPAN_BYTES, NO_LIMIT),
			 -EINVAL);
	assert_int_equal(spw_spans_init(&spans, (uint64_t)1 << 47, NO_LIMIT), -ENOMEM);
	assert_false(spw_spans_own(&spans, &spans));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_block_is_reused),
		cmocka_unit_test(test_only_what_is_in_use_is_used),
		cmocka_unit_test(test_beyond_the_limit_memory_goes_back),
		cmocka_unit_test(test_resident_is_what_was_used_at_once),
		cmocka_unit_test(test_what_does_not_fit_is_refused),
		cmocka_unit_test(test_room_is_joined_when_it_is_needed),
		cmocka_unit_test(test_random),
		cmocka_unit_test(test_no_range),
	};

	return cmocka_run_group_tests_name("spans", tests, NULL, NULL);
}
