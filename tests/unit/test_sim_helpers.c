/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_sim_helpers.c - what happens while a helper has a transfer: the test is the
 * helper, takes whatever is posted before the store can, and gives it back when it likes
 */
#include "store/checksum_pool.h"
#include "store/drive_health.h"
#include "tests/unit/sim_rig.h"

#define HELD_MAX 64

static struct transfer *held[HELD_MAX];
static unsigned held_count;
static uint64_t writes_before; /* of this store */

static bool take_all(bool sleeps)
{
	struct transfer *transfer;

	(void)sleeps;
	while (held_count < HELD_MAX &&
	       (transfer = spw_store__pool_take(&store->pool->each[0])) != NULL)
		held[held_count++] = transfer;
	return false;
}

/* The one that was taken first. */
static void give(void)
{
	assert_true(held_count > 0);
	spw_store__pool_run(&store->pool->each[0], held[0]);
	memmove(&held[0], &held[1], --held_count * sizeof(held[0]));
}

static bool give_all(bool sleeps)
{
	(void)sleeps;
	while (held_count > 0)
		give();
	return true;
}

/* Whatever a case has left is released: closing waits for it. */
static int let_go(void **state)
{
	if (store && store->pool->count > 0)
		sim_others_turn = give_all;
	return tear_down(state);
}

#define HELPER_CASE(name) CASE_WITH(name, make_drives, let_go)

static uint64_t writes(void)
{
	return sim_drives[0].writes + sim_drives[1].writes + sim_drives[2].writes - writes_before;
}

static void open_helped(uint32_t depth)
{
	open_store(depth);
	store->overlap_bytes_min = 1;
	store->pool->each[0].store = store;
	store->pool->count = 1;
	held_count = 0;
	writes_before = 0;
	writes_before = writes();
	sim_others_turn = take_all;
}

/* What a case puts. */
static struct {
	size_t len;
	uint8_t *bytes;
	struct spw_request *request; /* until it has been waited for */
	spw_object object;
} our;

enum memory { ALIGNED, COPIED /* no drive takes it as it is */ };

static void begin_put(size_t len, enum memory how, unsigned copies)
{
	our.len = len;
	our.bytes = pattern(len + 1, len) + (how == COPIED);
	assert_ok(spw_store_put_copies(store, our.bytes, len, copies, NULL, &our.object,
				       &our.request));
	poll_once();
}

static void wait_for_put(void)
{
	assert_ok(spw_request_wait(our.request));
	our.request = NULL;
}

static void free_and_expect_empty(void)
{
	for (unsigned i = 0; i < DRIVES; i++)
		if (is_retired(i))
			spw_store__drive_revive(store, i);
	assert_ok(spw_store_free(store, our.object));
	expect_empty();
	assert_int_equal(stats().used_bytes, 0);
}

/* Whatever is left to do is done: what was put is there, and once freed nothing is left. */
static void expect_all_well(void)
{
	sim_others_turn = give_all;
	if (our.request)
		wait_for_put();
	expect_identical(our.object, our.bytes, our.len);
	free_and_expect_empty();
}

static void put_well(size_t len)
{
	sim_others_turn = give_all;
	begin_put(len, ALIGNED, 1);
	wait_for_put();
}

/* A turn of the drives, and one sum or copy, until the put has ended. */
static void give_one_each_turn(void)
{
	while (spw_request_test(our.request) == -EINPROGRESS) {
		if (held_count > 0)
			give();
		turn();
	}
	our.request = NULL;
}

/* Of those that are with a drive: neither waiting for their checksum nor with a helper. */
static unsigned summed_in_flight(void)
{
	unsigned count = 0;

	for (uint32_t i = 0; i < store->transfers_total; i++) {
		const struct transfer *transfer = &store->transfers[i];

		count += transfer->in_flight && !transfer->checksum_pending && !transfer->posted;
	}
	return count;
}

/* The store has its drives in another order. */
static bool is_simulated_by(uint32_t drive, unsigned simulated)
{
	return strcmp(paths[simulated], spw_device_path(store->drives[drive].device)) == 0;
}

/* On all drives but one; DRIVES: on all. */
static void fail_in_flight(uint32_t but)
{
	for (unsigned i = 0; i < DRIVES; i++)
		for (struct sim_io *io = sim_drives[i].active_first; io; io = io->next)
			if (but == DRIVES || !is_simulated_by(but, i))
				io->forced = -EIO;
}

static uint32_t held_drive(unsigned index)
{
	return (uint32_t)store->pieces[held[index]->piece].drive;
}

/* ---- Puts ---- */

/* POOL-1 */
HELPER_CASE(test_a_put_waits_for_its_sum)
{
	open_helped(4);
	begin_put(CHUNK_BYTES - 100, ALIGNED, 1);
	assert_int_equal(held_count, 1);
	turn();
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(spw_request_test(our.request), -EINPROGRESS);
	assert_int_equal(writes(), 1);
	assert_int_equal(store->transfers_in_flight, 0);
	assert_int_equal(spw_request_cancel(our.request), -EALREADY);
	give();
	wait_for_put();
	assert_int_equal(writes(), 1);
	assert_int_equal(stats().bytes_helped, our.len);
	assert_int_equal(stats().workers, 2);
	expect_all_well();
}

/* However long a sum takes, each drive has as many chunks as it may. */
HELPER_CASE(test_no_drive_waits_for_a_sum)
{
	open_helped(2);
	begin_put(20 * CHUNK_BYTES, ALIGNED, 1);
	for (unsigned i = 0; i < DRIVES; i++)
		assert_int_equal(store->drives[i].in_flight, 2);
	/* One of each: the first, whose turn it is. */
	assert_int_equal(held_count, DRIVES);
	turn();
	poll_once();
	assert_int_equal(store->transfers_in_flight, 2 * DRIVES);
	/* Until all there are wait for their sum. */
	for (unsigned i = 0; i < 20; i++)
		turn();
	assert_int_equal(store->transfers_in_flight, 0);
	assert_int_equal(held_count, store->transfers_total);
	assert_non_null(store->writes_first);
	assert_int_equal(spw_request_test(our.request), -EINPROGRESS);
	sim_others_turn = give_all;
	wait_for_put();
	assert_int_equal(writes(), our.len / CHUNK_BYTES);
	expect_all_well();
}

/* While chunks wait for a slot, a chunk is summed when all before it have ended on its drive. */
HELPER_CASE(test_sums_follow_the_drives)
{
	unsigned turns = 0;

	open_helped(4);
	sim_others_turn = give_all;
	store->pool->count = 0;
	begin_put(20 * CHUNK_BYTES, ALIGNED, 1);
	for (unsigned i = 0; i < 8; i++)
		poll_once();
	assert_non_null(store->writes_first);
	assert_int_equal(store->transfers_in_flight, 4 * DRIVES);
	assert_int_equal(summed_in_flight(), DRIVES);
	while (store->writes_first) {
		turn();
		for (unsigned i = 0; i < 4 && store->writes_first; i++)
			poll_once();
		if (store->writes_first)
			assert_int_equal(summed_in_flight(), DRIVES);
		turns++;
	}
	assert_true(turns >= 2);
	/* Nothing waits: what is left is summed before it is written. */
	for (unsigned i = 0; i < 4 * DRIVES; i++)
		poll_once();
	assert_true(store->transfers_in_flight > DRIVES);
	assert_int_equal(summed_in_flight(), store->transfers_in_flight);
	expect_all_well();
}

/* POOL-4: what is to be copied has a slot of its drive. POOL-5: not all slots are filled so. */
HELPER_CASE(test_no_more_is_posted_than_there_are_slots)
{
	open_helped(1);
	begin_put(20 * CHUNK_BYTES, COPIED, 1);
	poll_once();
	assert_int_equal(held_count, DRIVES);
	/* Its slot is taken until it is written. */
	give();
	poll_once();
	assert_int_equal(held_count, DRIVES - 1);
	turn();
	poll_once();
	poll_once();
	assert_int_equal(held_count, DRIVES);
	give_one_each_turn();
	for (unsigned i = 0; i < DRIVES; i++) {
		struct spw_drive_stats now;

		assert_ok(spw_store_drive_stats(store, i, &now, sizeof(now)));
		assert_int_equal(now.in_flight_max, 1);
	}
	expect_all_well();
}

/* POOL-5 */
HELPER_CASE(test_reads_find_slots_while_puts_are_copied)
{
	open_helped(4);
	begin_put(30 * CHUNK_BYTES, COPIED, 1);
	poll_once();
	poll_once();
	assert_int_equal(held_count, 4);
	for (unsigned i = 0; i < DRIVES; i++)
		assert_true(store->drives[i].in_flight < 4);
	expect_all_well();
}

/* STORE-4: nor more copy memory than the drive's share. */
HELPER_CASE(test_copies_by_helpers)
{
	open_helped(16);
	begin_put(20 * CHUNK_BYTES - 5, COPIED, 1);
	poll_once();
	for (unsigned i = 0; i < DRIVES; i++)
		assert_true(store->drives[i].bounces <= store->bounces_per_drive);
	assert_true(held_count > 0);
	give_one_each_turn();
	assert_true(stats().bytes_copied >= our.len);
	assert_int_equal(stats().bytes_helped, our.len);
	expect_all_well();
}

HELPER_CASE(test_drive_is_retired_while_its_chunk_is_copied)
{
	uint32_t drive;

	open_helped(4);
	begin_put(CHUNK_BYTES, COPIED, 1);
	drive = held_drive(0);
	spw_store__drive_retire(store, drive, -EIO);
	give();
	poll_once();
	/* Elsewhere, and copied once more. */
	assert_int_equal(writes(), 0);
	assert_int_equal(held_count, 1);
	assert_int_not_equal(held_drive(0), drive);
	give();
	wait_for_put();
	assert_int_equal(stats().chunks_moved, 1);
	expect_all_well();
}

/* CHECKSUM-1: only then it is placed again. */
HELPER_CASE(test_write_fails_while_its_chunk_is_summed)
{
	uint32_t drive;

	open_helped(4);
	begin_put(CHUNK_BYTES, ALIGNED, 1);
	drive = held_drive(0);
	fail_in_flight(DRIVES);
	turn();
	assert_int_equal(store->transfers_in_flight, 0);
	assert_int_equal(stats().chunks_moved, 0);
	give();
	poll_once();
	assert_int_equal(stats().chunks_moved, 1);
	assert_int_equal(held_count, 1);
	assert_int_not_equal(held_drive(0), drive);
	expect_all_well();
}

HELPER_CASE(test_put_fails_while_a_chunk_is_copied)
{
	open_helped(4);
	begin_put(2 * CHUNK_BYTES, COPIED, 1);
	poll_once();
	assert_int_equal(held_count, 2);
	fail_all_writes(-EFAULT);
	give();
	poll_once();
	turn();
	mend_all();
	assert_int_equal(spw_request_test(our.request), -EINPROGRESS);
	/* Its other chunk is not written any more. */
	give();
	assert_int_equal(spw_request_wait(our.request), -EFAULT);
	assert_int_equal(writes(), 1);
	free_and_expect_empty();
}

/* ---- Two copies: one sum ---- */

/* What the helper has of a drive, the first; NULL: nothing. */
static const struct transfer *held_of(uint32_t drive)
{
	for (unsigned i = 0; i < held_count; i++)
		if (held_drive(i) == drive)
			return held[i];
	return NULL;
}

/* Writes of a drive that wait for their sum. */
static unsigned late_ones(uint32_t drive)
{
	unsigned count = 0;

	for (const struct transfer *transfer = store->drives[drive].pending_first; transfer;
	     transfer = transfer->next)
		count++;
	return count;
}

/* And once freed nothing is left. */
static void expect_both_copies(void)
{
	sim_others_turn = give_all;
	for (unsigned i = 0; i < DRIVES; i++) {
		fail_from(i, SPW_READ, 1, -EIO);
		expect_identical(our.object, our.bytes, our.len);
		mend_all();
	}
	assert_int_equal(stats().checksum_errors, 0);
	free_and_expect_empty();
}

/* Of the two transfers one brings the sum; both have long ended. */
HELPER_CASE(test_both_copies_have_the_sum)
{
	open_helped(4);
	begin_put(CHUNK_BYTES, ALIGNED, 2);
	assert_int_equal(held_count, 1);
	turn();
	turn();
	assert_int_equal(writes(), 2);
	assert_int_equal(store->transfers_in_flight, 0);
	assert_int_equal(spw_request_test(our.request), -EINPROGRESS);
	give();
	wait_for_put();
	expect_both_copies();
}

/* Its write fails while the sum is still to come: it finds another place, without a sum. */
HELPER_CASE(test_second_copy_moves_before_the_sum_is_there)
{
	uint32_t first;

	open_helped(4);
	begin_put(CHUNK_BYTES, ALIGNED, 2);
	first = held_drive(0);
	fail_in_flight(first);
	turn();
	turn();
	turn();
	assert_int_equal(stats().drives_retired, 1);
	assert_int_equal(held_drive(0), first);
	give();
	wait_for_put();
	expect_both_copies();
}

/* It is late before it is summed, and its second copy has no other sum. */
HELPER_CASE(test_late_copies_have_their_sum)
{
	uint32_t late;
	int rc;

	open_helped(24);
	for (unsigned i = 0; i < DRIVES; i++)
		hang(i);
	begin_put(60 * CHUNK_BYTES, ALIGNED, 2);
	poll_once();
	for (late = DRIVES; late-- > 0 && (late_ones(late) == 0 || !held_of(late));)
		;
	assert_true(late < DRIVES);
	for (unsigned i = 0; i < DRIVES; i++)
		if (!is_simulated_by(late, i))
			hang_no_more(i);
	for (unsigned i = 0; i < 80 && late_ones(late) > 0; i++) {
		sim_now_ns += SECOND;
		poll_once();
	}
	assert_int_equal(store->drives[late].retired, -ETIMEDOUT);
	assert_int_equal(late_ones(late), 0);
	/* But what a helper has is dropped when it is back. */
	assert_true(held_of(late)->in_flight && !held_of(late)->abandoned);
	sim_others_turn = give_all;
	for (rc = -EINPROGRESS; rc == -EINPROGRESS; rc = spw_request_test(our.request))
		sim_now_ns += SECOND;
	assert_ok(rc);
	for (unsigned i = 0; i < DRIVES; i++)
		hang_no_more(i);
	turn();
	for (unsigned i = 0; i < DRIVES; i++)
		if (is_retired(i))
			spw_store__drive_revive(store, i);
	expect_both_copies();
}

/* The one that brings the sum loses its place by then. */
HELPER_CASE(test_first_copy_moves_with_the_sum)
{
	open_helped(4);
	begin_put(CHUNK_BYTES, ALIGNED, 2);
	spw_store__drive_retire(store, held_drive(0), -EIO);
	sim_others_turn = give_all;
	wait_for_put();
	assert_int_equal(stats().chunks_single, 0);
	expect_both_copies();
}

/* ---- Gets ---- */

HELPER_CASE(test_a_get_waits_for_its_sum)
{
	const size_t len = 3 * CHUNK_BYTES;
	uint8_t *back = memory(len);
	struct spw_request *request;

	open_helped(4);
	put_well(len);
	sim_others_turn = take_all;
	assert_ok(spw_store_get(store, our.object, 0, back, len, SPW_PREFETCH, NULL, &request));
	for (unsigned i = 0; i < 10; i++)
		turn();
	assert_int_equal(held_count, 3);
	assert_int_equal(spw_request_test(request), -EINPROGRESS);
	/* It does not go before its last piece is back. */
	assert_ok(spw_store_free(store, our.object));
	poll_once();
	assert_true(stats().used_bytes > 0);
	give();
	give();
	assert_int_equal(spw_request_test(request), -EINPROGRESS);
	give();
	assert_ok(spw_request_wait(request));
	assert_int_equal(memcmp(back, our.bytes, len), 0);
	expect_empty();
	assert_int_equal(stats().used_bytes, 0);
}

HELPER_CASE(test_wrong_bytes_are_seen_by_helpers)
{
	open_helped(1);
	put_well(3 * CHUNK_BYTES);
	(void)sim_fault(0, SIM_FLIP, 0, 1);
	expect_identical(our.object, our.bytes, our.len);
	assert_int_equal(stats().checksum_errors, 1);
}

/* ---- The end ---- */

HELPER_CASE(test_close_waits_for_helpers)
{
	open_helped(4);
	begin_put(3 * CHUNK_BYTES, ALIGNED, 1);
	assert_int_equal(held_count, 3);
	sim_others_turn = give_all;
	close_store();
	assert_int_equal(held_count, 0);
	assert_int_equal(writes(), 3);
}

/* ---- Who is first ---- */

/* Urgent reads overtake what else waits, and that not for ever. */
HELPER_CASE(test_urgent_reads_go_first)
{
	const size_t len = 12 * CHUNK_BYTES;
	uint8_t *backs[2] = {memory(len), memory(len)};
	struct spw_request *requests[2];
	unsigned urgent = 0, overtaken = 0;

	open_helped(16);
	put_well(len);
	/* All are read at once: nothing is taken before they are posted. */
	sim_others_turn = NULL;
	for (unsigned i = 0; i < 2; i++)
		assert_ok(spw_store_get(store, our.object, 0, backs[i], len,
					i == 0 ? SPW_PREFETCH : SPW_URGENT_READ, NULL,
					&requests[i]));
	poll_once();
	sim_now_ns += SECOND;
	sim_others_turn = take_all;
	poll_once();
	poll_once();
	assert_int_equal(held_count, 24);
	for (unsigned i = 0; i < held_count; i++) {
		bool is_urgent = held[i]->request == requests[1];

		urgent += is_urgent;
		if (!is_urgent && urgent < 12) {
			overtaken++;
			assert_true(urgent >= 8);
		}
	}
	assert_int_equal(overtaken, 1);
	sim_others_turn = give_all;
	for (unsigned i = 0; i < 2; i++) {
		assert_ok(spw_request_wait(requests[i]));
		assert_int_equal(memcmp(backs[i], our.bytes, len), 0);
	}
	free_and_expect_empty();
}

RUN_CASES(NULL, NULL)
