/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_state.c - training state over a store in memory (state_fake.h): which records
 * move, and that each take gives the bytes that were released last
 */
/* link: simstore libspillway */
#include "tests/unit/state_rig.h"

/* ---- Which records move ---- */

/* How the fake's requests end: when waited for, at once, by chance. */
static const unsigned speeds[] = {0, 1, 3};

static const struct {
	uint32_t buffers, records;
} sizes[] = {{4, 4},  {4, 5}, {4, 6},   {4, 40},  {5, 40},
	     {7, 40}, {8, 9}, {16, 40}, {39, 40}, {64, 40}};

/* Passes up and down in turn: what does not fit moves once each way, and nothing else. */
static void check_up_and_down(uint32_t buffers, uint32_t records, bool commits)
{
	uint32_t moved = records > buffers ? records - buffers : 0;
	struct spw_state_stats before, after;

	open_with(buffers, records);
	pass(records, false, 0, 1);
	for (uint8_t i = 1; i < 8; i++) {
		if (commits)
			assert_ok(spw_state_commit(held, i, NULL, 0, false));
		before = stats_now();
		pass(records, i % 2, i, i + 1);
		after = stats_now();
		assert_int_equal(after.bytes_read - before.bytes_read, (uint64_t)moved * LEN);
		assert_int_equal(after.bytes_written - before.bytes_written, (uint64_t)moved * LEN);
		assert_int_equal(after.reads - before.reads, moved);
		assert_int_equal(after.writes - before.writes, moved);
		assert_true(after.hits - before.hits >= records - moved);
		assert_int_equal(after.waits_for_write, 0);
		if (commits)
			assert_int_equal(after.commit_bytes_written,
					 (uint64_t)i * (records - moved) * LEN);
	}
	assert_int_equal(stats_now().passes_departed, 0);
	assert_int_equal(stats_now().write_failures + stats_now().read_failures, 0);
}

STATE_CASE(test_up_and_down_moves_only_what_does_not_fit)
{
	for (size_t i = 0; i < SPW_ARRAY_LEN(sizes) * SPW_ARRAY_LEN(speeds) * 2; i++) {
		size_t size = i / 2 / SPW_ARRAY_LEN(speeds);

		fake.lazy = speeds[i / 2 % SPW_ARRAY_LEN(speeds)];
		check_up_and_down(sizes[size].buffers, sizes[size].records, i % 2);
		close_state();
		fake_check_empty();
		teardown(NULL);
		setup(NULL);
	}
}

/* Always up: what was used last is used last again, and stays but for what keeps drives busy. */
STATE_CASE(test_passes_in_one_direction_keep_what_is_used_last)
{
	for (size_t i = 0; i < SPW_ARRAY_LEN(speeds); i++) {
		struct spw_state_stats before, after;

		fake.lazy = speeds[i];
		fake.store->chunk_bytes = 1; /* two transfers each way: six buffers keep all busy */
		open_with(16, 40);
		pass(40, false, 0, 1);
		for (uint8_t n = 1; n < 5; n++) {
			before = stats_now();
			pass(40, false, n, n + 1);
			after = stats_now();
			/* Drives that are late let more of it stay. */
			assert_in_range(after.reads - before.reads, 40 - 16, 40 - (16 - 6));
			assert_in_range(after.writes - before.writes, 40 - 16, 40 - (16 - 6));
			if (fake.lazy == 1)
				assert_int_equal(after.reads - before.reads, 40 - (16 - 6));
		}
		teardown(NULL);
		setup(NULL);
	}
}

STATE_CASE(test_what_was_not_changed_is_not_written)
{
	struct spw_state_stats before;

	open_with(4, 10);
	pass(10, false, 0, 1);
	pass(10, true, 1, 1);
	before = stats_now();
	pass(10, false, 1, 1);
	assert_int_equal(stats_now().writes, before.writes);
	assert_int_equal(stats_now().reads - before.reads, 6);
	/* A change before is not forgotten by a use that changes nothing. */
	use(0, 1, 2);
	use(0, 2, 2);
	begin_pass(10, true);
	for (uint32_t i = 10; i-- > 0;)
		use(i, i == 0 ? 2 : 1, 3);
}

STATE_CASE(test_zeros_move_no_byte)
{
	open_with(4, 20);
	pass(20, false, 0, 0);
	pass(20, true, 0, 0);
	assert_int_equal(stats_now().reads + stats_now().writes, 0);
	assert_ok(spw_state_commit(held, 1, NULL, 0, false));
	assert_int_equal(fake.set.count, 0);
	reopen(4, 20);
	pass(20, false, 0, 0);
}

/* So few that the next may begin, and not one more, whatever is wanted. */
STATE_CASE(test_transfers_are_few)
{
	fake.store->chunk_bytes =
		1; /* a record keeps all drives busy: one is served, one follows */
	open_with(32, 100);
	pass(100, false, 0, 1);
	begin_pass(100, false);
	assert_int_equal(fake.store->requests_used, 2);
	pass(100, true, 1, 2);
	assert_int_equal(fake.requests_used_max, 4);
}

/* Records so short that one does not keep the drives busy: more of them. */
STATE_CASE(test_short_records_are_read_many_at_a_time)
{
	fake.store->chunk_bytes =
		LEN / 2; /* 4 drives x 4 chunks are 8 records; and one that follows */
	open_with(40, 100);
	pass(100, false, 0, 1);
	assert_int_equal(fake.requests_used_max, 9);
	pass(100, true, 1, 2);
	assert_in_range(fake.requests_used_max, 10, 18);
	fake.requests_used_max = 0;
	spw_state_close(held);
	open_with(10, 100); /* but half of the buffers at most, in each direction */
	pass(100, false, 0, 1);
	assert_int_equal(fake.requests_used_max, 5);
}

/* The next read has its buffer when it begins: the put before it began in time. */
STATE_CASE(test_nobody_waits_when_drives_are_fast)
{
	struct spw_state_stats before, after;

	fake.lazy = 1; /* every transfer ends before the next call */
	open_with(4, 30);
	pass(30, false, 0, 1);
	before = stats_now();
	pass(30, true, 1, 2);
	after = stats_now();
	assert_int_equal(after.waits, before.waits);
	assert_int_equal(after.hits - before.hits, 4);
	assert_int_equal(after.ready - before.ready, 26);
	assert_int_equal(after.wait_ns, before.wait_ns);
}

STATE_CASE(test_a_read_ahead_that_is_waited_for_becomes_urgent)
{
	open_with(4, 12);
	pass(12, false, 0, 1);
	begin_pass(12, true);
	for (uint32_t i = 12; i-- > 8;)
		use(i, 1, 2);
	assert_int_equal(fake.store->raises, 0);
	use(7, 1, 2);
	assert_true(fake.store->raises > 0);
}

/* A take from outside the order, and one of what is on its way to the drives. */
STATE_CASE(test_takes_out_of_order_are_served_and_counted)
{
	open_with(4, 12);
	pass(12, false, 0, 1);
	assert_int_equal(stats_now().passes_departed, 0);
	begin_pass(12, true);
	use(3, 1, 2);
	use(11, 1, 2);
	use(0, 1, 2);
	use(3, 2, 3); /* twice in a pass */
	assert_int_equal(stats_now().passes_departed, 1);
	for (uint32_t i = 12; i-- > 0;)
		use(i, i == 3 ? 3 : i == 0 || i == 11 ? 2 : 1, 4);
	assert_int_equal(stats_now().passes_departed, 1);
	pass(12, false, 4, 5);
	assert_int_equal(stats_now().passes_departed, 1);
	use(5, 5, 6); /* after the end of a pass */
	assert_int_equal(stats_now().passes_departed, 2);
}

STATE_CASE(test_a_take_waits_for_the_put_of_the_record)
{
	open_with(4, 12);
	begin_pass(12, false);
	use(0, 0, 1);
	/* The fourth buffer was wanted at once, and the drives are slow. */
	use(1, 0, 1);
	assert_true(fake.store->puts > 0);
	use(0, 1, 2);
	assert_int_equal(stats_now().waits_for_write, 1);
	use(0, 2, 3);
}

STATE_CASE(test_without_an_order_the_last_used_stay)
{
	struct spw_state_stats before;

	open_with(4, 10);
	for (uint32_t i = 0; i < 10; i++)
		use(i, 0, 1);
	assert_int_equal(stats_now().passes_departed, 0);
	before = stats_now();
	for (uint32_t i = 7; i < 10; i++)
		use(i, 1, 2);
	assert_int_equal(stats_now().reads, before.reads);
	assert_int_equal(stats_now().hits - before.hits, 3);
}

STATE_CASE(test_a_pass_may_name_a_part)
{
	const uint32_t order[] = {9, 2, 5};

	open_with(4, 10);
	pass(10, false, 0, 1);
	assert_ok(spw_state_pass(held, order, 3));
	use(9, 1, 2);
	use(2, 1, 2);
	use(5, 1, 2);
	assert_ok(spw_state_pass(held, NULL, 0));
	for (uint32_t i = 0; i < 10; i++)
		use(i, i == 9 || i == 2 || i == 5 ? 2 : 1, 3);
}

STATE_CASE(test_several_are_taken_at_once)
{
	void *memory;

	open_with(4, 10);
	pass(10, false, 0, 1);
	begin_pass(10, true);
	for (uint32_t i = 9; i > 6; i--)
		assert_int_equal(take(i)[0], 1);
	assert_int_equal(spw_state_take(held, 6, &memory), -ENOBUFS);
	assert_null(memory);
	expect_words("3 records are taken");
	expect_refusal(-EALREADY, "tile 9 is taken", spw_state_take(held, 9, &memory));
	for (uint32_t i = 7; i < 10; i++)
		assert_ok(spw_state_give(held, i, false));
	expect_refusal(-EINVAL, "tile 9 is not taken", spw_state_give(held, 9, false));
	for (uint32_t i = 7; i-- > 0;)
		use(i, 1, 2);
}

/* ---- Failures ---- */

STATE_CASE(test_a_failed_write_keeps_the_record)
{
	open_with(4, 12);
	fake.put_error = -ENOSPC;
	pass(12, false, 0, 1);
	assert_int_equal(stats_now().write_failures, 1);
	assert_int_equal(logs, 1);
	assert_non_null(strstr(logged, "tile 0 cannot be written and stays in memory: drive 2"));
	fake.put_refusal = -ENOBUFS;
	pass(12, true, 1, 2);
	assert_int_equal(stats_now().write_failures, 2);
	pass(12, false, 2, 3);
}

/* The call that needs the room says so; nothing is lost; once drives are well, all goes on. */
STATE_CASE(test_failed_writes_are_reported_by_who_needs_the_room)
{
	void *memory;
	uint32_t i = 0;

	open_with(4, 12);
	begin_pass(12, false);
	fake.put_fails = 1;
	for (; i < 4; i++)
		use(i, 0, 1);
	assert_int_equal(spw_state_take(held, 4, &memory), -EIO);
	assert_null(memory);
	expect_words("no room for record tile 4");
	expect_words("drive 2 gave up");
	assert_int_equal(stats_now().takes, 4);
	assert_true(logs > 0 && logs <= 4); /* each record once */
	expect_refusal(-EIO, "nothing is committed", spw_state_commit(held, 1, NULL, 0, false));
	assert_int_equal(fake.commits, 0);
	fake.put_fails = 0;
	fake.put_refused = 1;
	expect_refusal(-ENOBUFS, "drive 2 refused", spw_state_take(held, 4, &memory));
	fake.put_refused = 0;
	for (; i < 12; i++)
		use(i, 0, 1);
	assert_ok(spw_state_commit(held, 1, NULL, 0, false));
	pass(12, true, 1, 2);
}

STATE_CASE(test_a_failed_read_is_returned_by_the_take)
{
	void *memory;

	open_with(4, 12);
	pass(12, false, 0, 1);
	fake.get_fails = 1;
	assert_int_equal(spw_state_take(held, 2, &memory), -EIO);
	assert_null(memory);
	expect_words("record tile 2 cannot be read: drive 2 gave up");
	assert_true(stats_now().read_failures > 0);
	fake.get_fails = 0;
	fake.get_refusal = -ENOBUFS;
	expect_refusal(-ENOBUFS, "drive 2 refused", spw_state_take(held, 2, &memory));
	use(2, 1, 1);
	pass(12, true, 1, 2);
}

/* Only the log hears of a failed prefetch: the take reads once more. */
STATE_CASE(test_a_failed_read_ahead_is_made_again_by_the_take)
{
	unsigned gets;

	open_with(4, 12);
	pass(12, false, 0, 1);
	fake.lazy = 1;
	begin_pass(12, true);
	use(11, 1, 2);
	fake.get_fails = 1;
	use(10, 1, 2); /* reading 7 ahead ends here, badly */
	fake.get_fails = 0;
	assert_int_equal(stats_now().read_failures, 1);
	assert_non_null(strstr(logged, "tile 7 cannot be read"));
	use(9, 1, 2);
	gets = fake.store->gets;
	use(8, 1, 2); /* and is not begun again by others */
	use(7, 1, 2);
	assert_true(fake.store->gets > gets);
	for (uint32_t i = 7; i-- > 0;)
		use(i, 1, 2);
	assert_int_equal(stats_now().read_failures, 1);
}

RUN_CASES(NULL, NULL)
