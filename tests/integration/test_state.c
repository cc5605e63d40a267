/* SPDX-License-Identifier: MIT */
/*
 * tests/integration/test_state.c - training state on drives: what is committed is there after the
 * store was opened again, what is not is as it was, and how many bytes a pass moves
 */
#include "tests/integration/store_case.h"

#define RECORDS    23u
#define RECORD_MAX (1536 * KIB)
#define BUFFERS    6u
#define MOVED      (RECORDS - BUFFERS)
#define MANIFEST   "step and random state"
#define SEED_OF(i) (1000u * turn + (i))

static struct spw_state *held;
static unsigned turn; /* of all records: what their bytes are */

/* Of all kinds: whole and part of a block, of a chunk. */
static size_t len_of(uint32_t record)
{
	return record % 4 == 0   ? RECORD_MAX
	       : record % 4 == 1 ? 4096 + record
				 : RECORD_MAX - 512 * record;
}

static void open_state(uint32_t buffers)
{
	struct spw_state_opts opts;

	spw_state_opts_init(&opts, sizeof(opts));
	opts.record_bytes_max = RECORD_MAX;
	opts.memory_bytes = (uint64_t)buffers * RECORD_MAX;
	assert_ok(spw_state_open(store, &opts, &held));
}

static void declare(const char *shape)
{
	for (uint32_t i = 0; i < RECORDS; i++) {
		char name[32];
		uint32_t number;

		(void)snprintf(name, sizeof(name), "layer %u", i);
		assert_ok(spw_state_add(held, name, len_of(i), shape, strlen(shape), &number));
	}
}

static void close_all(void)
{
	spw_state_close(held);
	held = NULL;
	close_store(store);
}

static void open_again(const struct spw_store_opts *opts)
{
	close_all();
	store = open_drives(4, opts);
	open_state(BUFFERS);
	declare("f32");
	assert_int_equal(spw_state_attach(held), 1);
}

static int begin(void **state)
{
	(void)format_and_open(state);
	turn = 0;
	open_state(BUFFERS);
	declare("f32");
	assert_int_equal(spw_state_attach(held), 0);
	return 0;
}

static int end(void **state)
{
	spw_state_close(held);
	held = NULL;
	return close_stores(state);
}

#define STATE_CASE(name) CASE_WITH(name, begin, end)

static struct spw_state_stats state_stats(void)
{
	struct spw_state_stats stats;

	spw_state_stats(held, &stats, sizeof(stats));
	return stats;
}

static void check(uint32_t record, const void *memory)
{
	static const uint8_t zeros[RECORD_MAX];

	if (turn == 0)
		assert_memory_equal(memory, zeros, len_of(record));
	else
		assert_content(memory, len_of(record), SEED_OF(record), 0);
}

/* Every record has the bytes of this turn, and gets those of the next. */
static void pass(bool down)
{
	uint32_t order[RECORDS];
	void *memory;

	for (uint32_t i = 0; i < RECORDS; i++)
		order[i] = down ? RECORDS - 1 - i : i;
	assert_ok(spw_state_pass(held, order, RECORDS));
	for (uint32_t i = 0; i < RECORDS; i++) {
		assert_ok(spw_state_take(held, order[i], &memory));
		check(order[i], memory);
		content_fill(memory, len_of(order[i]), SEED_OF(order[i]) + 1000);
		assert_ok(spw_state_give(held, order[i], true));
	}
	turn++;
}

static void check_all(void)
{
	for (uint32_t i = 0; i < RECORDS; i++) {
		void *memory;

		assert_ok(spw_state_take(held, i, &memory));
		check(i, memory);
		assert_ok(spw_state_give(held, i, false));
	}
}

static uint64_t bytes_of(uint32_t first, uint32_t count)
{
	uint64_t bytes = 0;

	for (uint32_t i = first; i < first + count; i++)
		bytes += len_of(i);
	return bytes;
}

/* Up and down in turn: the records that were used last are the first of the next pass. */
STATE_CASE(test_a_pass_moves_what_does_not_fit)
{
	pass(false);
	for (unsigned i = 0; i < 4; i++) {
		struct spw_state_stats before = state_stats(), after;
		/* Going down, the last BUFFERS ones are in memory; going up, the first. */
		uint64_t read = bytes_of(i % 2 ? BUFFERS : 0, MOVED);
		uint64_t written = bytes_of(i % 2 ? 0 : BUFFERS, MOVED);

		pass(i % 2 == 0);
		after = state_stats();
		assert_int_equal(after.bytes_read - before.bytes_read, read);
		assert_int_equal(after.bytes_written - before.bytes_written, written);
	}
	/* The store has seen no others. */
	assert_int_equal(stats_of(store).bytes_got, state_stats().bytes_read);
	assert_int_equal(stats_of(store).bytes_put, state_stats().bytes_written);
	assert_int_equal(stats_of(store).copies_unaligned_address, 0);
}

STATE_CASE(test_a_commit_is_there_when_the_store_is_opened_again)
{
	struct spw_store_opts opts = default_opts();
	char text[64];
	size_t len = sizeof(text);
	uint64_t number;

	pass(false);
	pass(true);
	assert_ok(spw_state_commit(held, 2, MANIFEST, sizeof(MANIFEST), false));
	pass(false); /* is not committed */
	open_again(&opts);
	turn--;
	assert_ok(spw_state_attached(held, &number));
	assert_int_equal(number, 2);
	assert_ok(spw_state_extra(held, text, &len));
	assert_int_equal(len, sizeof(MANIFEST));
	assert_string_equal(text, MANIFEST);
	check_all();
	pass(false);
	pass(true);
	assert_ok(spw_state_commit(held, 3, NULL, 0, false));
	open_again(&opts);
	check_all();
}

/* One that was kept is chosen by its number. */
STATE_CASE(test_a_commit_that_was_kept_is_there_on_demand)
{
	struct spw_store_opts opts = default_opts();
	uint64_t number;

	pass(false);
	assert_ok(spw_state_commit(held, 1, NULL, 0, false));
	pass(true);
	assert_ok(spw_state_commit(held, 2, NULL, 0, true));
	assert_int_equal(spw_state_commit(held, 3, NULL, 0, false), -EBUSY);
	opts.commit_number = 1;
	open_again(&opts);
	turn--;
	assert_ok(spw_state_attached(held, &number));
	assert_int_equal(number, 1);
	check_all();
	pass(false);
	assert_ok(spw_state_commit(held, 2, NULL, 0, true));
	assert_ok(spw_state_commit_release(held));
	assert_ok(spw_state_commit(held, 3, NULL, 0, false));
}

/* Commit after commit: what is not committed any more is free again. */
STATE_CASE(test_space_is_reused)
{
	uint64_t used_bytes = 0;

	for (unsigned i = 1; i <= 12; i++) {
		pass(i % 2 == 0);
		assert_ok(spw_state_commit(held, i, NULL, 0, false));
		if (i == 4)
			used_bytes = stats_of(store).used_bytes;
	}
	assert_int_equal(stats_of(store).used_bytes, used_bytes);
}

STATE_CASE(test_other_records_are_refused)
{
	pass(false);
	assert_ok(spw_state_commit(held, 1, NULL, 0, false));
	close_all();
	store = open_default();
	assert_int_equal(spw_state_committed_count(store), RECORDS);
	open_state(BUFFERS);
	declare("bf16");
	expect_refusal(-EUCLEAN, "layer 0 has another shape there", spw_state_attach(held));
	spw_state_close(held);
	open_state(4);
	declare("f32");
	assert_int_equal(spw_state_attach(held), 1);
	check_all();
}

STATE_CASE(test_a_state_that_was_closed_leaves_the_store_to_be_opened_again)
{
	struct spw_store_opts opts = default_opts();

	pass(false);
	assert_ok(spw_state_commit(held, 1, NULL, 0, false));
	open_again(&opts);
	spw_state_close(held);
	open_state(BUFFERS);
	declare("f32");
	expect_refusal(-EALREADY, "open the store again", spw_state_attach(held));
}

static int see(void *context, const char *name, uint64_t len, const void *shape, size_t shape_len,
	       spw_object object)
{
	static uint8_t memory[RECORD_MAX];
	unsigned *seen = context;
	char expected[32];

	(void)snprintf(expected, sizeof(expected), "layer %u", *seen);
	assert_string_equal(name, expected);
	assert_int_equal(len, len_of(*seen));
	assert_int_equal(shape_len, 3);
	assert_memory_equal(shape, "f32", 3);
	get_check(store, object, 0, memory, len, SEED_OF(*seen));
	++*seen;
	return 0;
}

STATE_CASE(test_tools_read_what_is_committed)
{
	unsigned seen = 0;
	char extra[8] = "";
	size_t len = 0;

	pass(false);
	assert_ok(spw_state_commit(held, 1, "extra", 5, false));
	close_all();
	store = open_default();
	assert_ok(spw_state_committed(store, see, &seen));
	assert_int_equal(seen, RECORDS);
	assert_ok(spw_state_committed_extra(store, NULL, &len));
	assert_int_equal(len, 5);
	len = 4;
	assert_int_equal(spw_state_committed_extra(store, extra, &len), -ERANGE);
	assert_ok(spw_state_committed_extra(store, extra, &len));
	assert_string_equal(extra, "extra");
}

/* Said before the first step, and true: where it fits, all records are written twice. */
static void fit(uint64_t partition_bytes, int expected)
{
	(void)format_small(partition_bytes, 0);
	store = open_default();
	open_state(BUFFERS);
	declare("f32");
	assert_int_equal(spw_state_attach(held), expected);
	if (expected == 0) {
		for (turn = 0; turn < 5;) {
			pass(turn % 2);
			assert_ok(spw_state_commit(held, turn, NULL, 0, false));
		}
		assert_int_equal(state_stats().write_failures, 0);
	} else {
		expect_words("the store is too small by ");
	}
	close_all();
}

CASE_WITH(test_a_store_has_to_have_room_for_two_commits, NULL, end)
{
	uint64_t bytes = bytes_of(0, RECORDS);

	turn = 0;
	fit(2 * bytes - 4 * MIB, -ENOSPC);
	fit(2 * bytes + 16 * MIB, 0);
}

RUN_CASES(drives_from_environment, NULL)
