/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_sim_store_ends.c - cancel, free and close at any moment, and who is
 * served first
 */
#include "tests/unit/sim_rig.h"

/* ---- Cancel, free and close between any two completions ---- */

/* STORE-1, STORE-5 */
DRIVES_CASE(test_cancel_at_every_point)
{
	size_t len = 20 * CHUNK_BYTES;
	uint8_t *bytes = pattern(len, 6);

	open_store(2);
	for (unsigned turns = 0; turns < 40; turns++) {
		struct spw_request *request;
		uint64_t writes_before = 0, writes_after = 0;
		spw_object object;
		int cancelled, rc;

		for (unsigned i = 0; i < DRIVES; i++)
			writes_before += sim_drives[i].writes;
		assert_ok(spw_store_put(store, bytes, len, NULL, &object, &request));
		for (unsigned i = 0; i < turns; i++)
			turn();
		cancelled = spw_request_cancel(request);
		rc = spw_request_wait(request);
		for (unsigned i = 0; i < DRIVES; i++)
			writes_after += sim_drives[i].writes;
		if (cancelled == 0) {
			assert_int_equal(rc, -ECANCELED);
			assert_int_equal(writes_after, writes_before);
		} else {
			assert_int_equal(cancelled, -EALREADY);
			assert_int_equal(rc, 0);
			expect_identical(object, bytes, len);
		}
		assert_int_equal(cancelled == 0, turns == 0);
		assert_ok(spw_store_free(store, object));
	}
	expect_empty();
	assert_int_equal(stats().used_bytes, 0);
}

static void count_end(void *context, int res)
{
	unsigned *ends = context;

	ends[res == -ECANCELED]++;
}

/* Nothing is issued before the first poll: what is cancelled by then touches no drive. */
DRIVES_CASE(test_cancelled_before_issue)
{
	const size_t len = 10 * CHUNK_BYTES;
	uint8_t *bytes = pattern(len, 24), *back = memory(len);
	unsigned ends[2] = {0};
	struct spw_notify notify = {.done = count_end, .context = ends};
	struct spw_request *put, *get;
	struct spw_store_stats before;
	spw_object object, stored;

	open_store(4);
	assert_ok(put_wait(bytes, len, &stored));
	before = stats();
	assert_ok(spw_store_put(store, bytes, len, NULL, &object, &put));
	assert_ok(spw_store_get(store, stored, 0, back, len, SPW_PREFETCH, NULL, &get));
	assert_ok(spw_request_cancel(put));
	assert_ok(spw_request_cancel(get));
	assert_true(spw_request_cancel(put) <= 0); /* twice does no harm */
	assert_int_equal(spw_request_wait(put), -ECANCELED);
	assert_int_equal(spw_request_wait(get), -ECANCELED);
	assert_int_equal(stats().bytes_written, before.bytes_written);
	assert_int_equal(stats().bytes_read, before.bytes_read);
	assert_int_equal(stats().cancelled, 2);
	/* It was never stored, but has to be freed. */
	assert_true(get_wait(object, 0, back, 1) < 0);
	assert_ok(spw_store_free(store, object));
	expect_identical(stored, bytes, len);

	/* A get of what is cancelled has its bytes, or an error. Its notification comes. */
	assert_ok(spw_store_put(store, bytes, len, &notify, &object, &put));
	assert_ok(spw_store_get(store, object, 0, back, len, SPW_PREFETCH, NULL, &get));
	assert_ok(spw_request_cancel(put));
	memset(back, 0, len);
	assert_true(spw_request_wait(get) < 0 || memcmp(back, bytes, len) == 0);
	poll_once();
	assert_int_equal(ends[1], 1);
	assert_ok(spw_store_free(store, object));
	assert_ok(spw_store_free(store, stored));
	expect_empty();
	assert_int_equal(stats().used_bytes, 0);
}

#define RAISED       4u
#define RAISED_BYTES 4096u /* too small to be verified later */

static struct {
	struct spw_request *requests[RAISED]; /* NULL: has ended */
	unsigned ends;
} raised;

/* The others are raised: those that have ended, too, but were not reaped yet. */
static void raise_others(void *context, int res)
{
	struct spw_request **ended = context;

	assert_int_equal(res, 0);
	*ended = NULL;
	raised.ends++;
	for (unsigned i = 0; i < RAISED; i++)
		if (raised.requests[i])
			spw_request_raise(raised.requests[i], SPW_URGENT_READ);
}

/* STORE-10: each ends once, and its slot is used again only when no message refers to it. */
DRIVES_CASE(test_raised_while_it_ends)
{
	uint8_t *bytes = pattern(RAISED_BYTES, 26), *back = memory(RAISED * RAISED_BYTES);
	struct spw_store_opts opts = options(4);
	spw_object object;

	opts.requests_max = RAISED;
	open_with(&opts);
	assert_ok(put_wait(bytes, RAISED_BYTES, &object));
	for (unsigned round = 0; round < 20; round++) {
		raised.ends = 0;
		for (unsigned i = 0; i < RAISED; i++) {
			struct spw_notify notify = {.done = raise_others,
						    .context = &raised.requests[i]};

			assert_ok(spw_store_get(store, object, 0, back + i * RAISED_BYTES,
						RAISED_BYTES, SPW_PREFETCH, &notify,
						&raised.requests[i]));
		}
		for (unsigned turns = 0; raised.ends < RAISED; turns++) {
			assert_true(turns < 1000);
			poll_once();
			sim_now_ns += 1000000000; /* all that was issued ends at once */
		}
		for (unsigned i = 0; i < RAISED; i++)
			assert_memory_equal(back + i * RAISED_BYTES, bytes, RAISED_BYTES);
	}
	assert_ok(spw_store_free(store, object));
}

DRIVES_CASE(test_poll_says_how_many_ended)
{
	enum { COUNT = 8 };
	uint8_t *bytes = pattern(CHUNK_BYTES, 25);
	struct spw_request *requests[COUNT];
	spw_object objects[COUNT];
	int ended = 0;

	open_store(2);
	assert_ok(spw_store_poll(store, false));
	for (unsigned i = 0; i < COUNT; i++)
		assert_ok(
			spw_store_put(store, bytes, CHUNK_BYTES, NULL, &objects[i], &requests[i]));
	while (ended < COUNT) {
		int now = spw_store_poll(store, true);

		assert_true(now > 0);
		ended += now;
	}
	assert_int_equal(ended, COUNT);
	for (unsigned i = 0; i < COUNT; i++)
		assert_ok(spw_request_test(requests[i]));
}

/* STORE-2: freed while it is written or read: the get still succeeds, and then space comes back. */
DRIVES_CASE(test_free_at_every_point)
{
	size_t len = 20 * CHUNK_BYTES;
	uint8_t *bytes = pattern(len, 7), *back = memory(len);

	open_store(2);
	for (unsigned turns = 0; turns < 40; turns++) {
		struct spw_request *put, *get;
		spw_object object;

		assert_ok(spw_store_put(store, bytes, len, NULL, &object, &put));
		if (turns % 2)
			assert_ok(spw_request_wait(put));
		memset(back, 0, len);
		assert_ok(spw_store_get(store, object, 0, back, len, SPW_PREFETCH, NULL, &get));
		for (unsigned i = 0; i < turns; i++)
			turn();
		assert_ok(spw_store_free(store, object));
		assert_int_equal(spw_store_free(store, object), -ENOENT);
		assert_ok(spw_request_wait(get));
		assert_int_equal(memcmp(back, bytes, len), 0);
		if (turns % 2 == 0)
			assert_ok(spw_request_wait(put));
		expect_empty();
		assert_int_equal(stats().used_bytes, 0);
	}
}

DRIVES_CASE(test_close_at_every_point)
{
	uint8_t *bytes = pattern(10 * CHUNK_BYTES, 8), *back = memory(10 * CHUNK_BYTES);

	for (unsigned turns = 0; turns < 40; turns++) {
		unsigned ends[2] = {0};
		struct spw_notify notify = {.done = count_end, .context = ends};
		spw_object objects[4];

		open_store(1);
		assert_ok(put_wait(bytes, 10 * CHUNK_BYTES, &objects[0]));
		for (unsigned i = 1; i < 4; i++)
			assert_ok(spw_store_put(store, bytes, 10 * CHUNK_BYTES, &notify,
						&objects[i], NULL));
		assert_ok(spw_store_get(store, objects[0], 0, back, 10 * CHUNK_BYTES, SPW_PREFETCH,
					&notify, NULL));
		for (unsigned i = 0; i < turns; i++)
			turn();
		close_store();
		assert_int_equal(ends[0] + ends[1], 4);
	}
}

/* Writes that fail while the store closes go back to the list, and are ended there. */
DRIVES_CASE(test_close_while_writes_fail)
{
	uint8_t *bytes = pattern(10 * CHUNK_BYTES, 17);

	for (unsigned chunks = 1; chunks <= 10; chunks++) {
		unsigned ends[2] = {0};
		struct spw_notify notify = {.done = count_end, .context = ends};
		spw_object object;

		open_store(4);
		fail_all_writes(-EIO);
		/* All chunks are in flight: only their failure brings the put back to the list. */
		assert_ok(
			spw_store_put(store, bytes, chunks * CHUNK_BYTES, &notify, &object, NULL));
		assert_ok(spw_store_poll(store, false));
		close_store();
		assert_int_equal(ends[0] + ends[1], 1);
	}
}

/* ---- Order ---- */

static uint8_t order[64];
static unsigned order_count;

static void note_end(void *context, int res)
{
	assert_int_equal(res, 0);
	order[order_count++] = *(uint8_t *)context;
}

/* An urgent read overtakes prefetches and writes, but each only a limited number of times. */
DRIVES_CASE(test_urgent_first_but_nobody_starves)
{
	static uint8_t urgent = 'u', prefetch = 'p', write = 'w';
	struct spw_notify notify_urgent = {note_end, &urgent},
			  notify_prefetch = {note_end, &prefetch},
			  notify_write = {note_end, &write};
	uint8_t *bytes = pattern(DRIVES * CHUNK_BYTES, 9);
	uint8_t *back = memory(DRIVES * CHUNK_BYTES);
	spw_object object, written;
	unsigned first_write = 0, first_prefetch = 0;

	open_store(1);
	order_count = 0;
	assert_ok(put_wait(bytes, DRIVES * CHUNK_BYTES, &object));
	for (unsigned i = 0; i < 4; i++)
		assert_ok(spw_store_put(store, bytes, CHUNK_BYTES, &notify_write, &written, NULL));
	for (unsigned i = 0; i < 4; i++)
		assert_ok(spw_store_get(store, object, 0, back, DRIVES * CHUNK_BYTES, SPW_PREFETCH,
					&notify_prefetch, NULL));
	for (unsigned i = 0; i < 20; i++)
		assert_ok(spw_store_get(store, object, 0, back, DRIVES * CHUNK_BYTES,
					SPW_URGENT_READ, &notify_urgent, NULL));
	while (order_count < 28)
		assert_true(spw_store_poll(store, true) >= 0);
	for (unsigned i = 0; i < 28; i++) {
		first_write = first_write || order[i] != 'w' ? first_write : i + 1;
		first_prefetch = first_prefetch || order[i] != 'p' ? first_prefetch : i + 1;
	}
	assert_int_equal(order[0], 'u');
	assert_in_range(first_prefetch, 2, 20);
	assert_in_range(first_write, 2, 20);
	assert_true(stats().bypasses > 0);
}

/* STORE-8: a prefetch that becomes urgent overtakes the other prefetches. */
DRIVES_CASE(test_raise)
{
	static uint8_t names[] = {'0', '1', '2', '3', '4', '5', '6', '7'};
	uint8_t *bytes = pattern(DRIVES * CHUNK_BYTES, 10);
	uint8_t *back = memory(DRIVES * CHUNK_BYTES);
	spw_object object;

	open_store(1);
	assert_ok(put_wait(bytes, DRIVES * CHUNK_BYTES, &object));
	/* Before the first turn its class is simply changed; later it has to be moved. */
	for (unsigned turns = 0; turns < 2; turns++) {
		struct spw_request *last = NULL;

		order_count = 0;
		for (unsigned i = 0; i < 8; i++) {
			struct spw_notify notify = {note_end, &names[i]};

			assert_ok(spw_store_get(store, object, 0, back, DRIVES * CHUNK_BYTES,
						SPW_PREFETCH, &notify, &last));
		}
		if (turns > 0)
			poll_once();
		spw_request_raise(last, SPW_URGENT_READ);
		while (order_count < 8)
			assert_true(spw_store_poll(store, true) >= 0);
		assert_true(order[0] == '7' || order[1] == '7');
	}
}

RUN_CASES(NULL, NULL)
