/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_store_faults.c - the store over drives in memory that fail on demand, in inline
 * mode: every run is the same
 */
/* link: store/store store/object store/request store/worker store/write store/read */
/* link: store/transfer store/upkeep store/publish drives/status store/partition */
/* link: drives/opener drives/sysfs store/copy store/inbox store/level store/service */
/* link: store/put store/get store/flush store/wait store/stats store/slots alloc layout util */
/* wrap: spw_clock_ns */
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdarg.h>
#include <cmocka.h>

#include <spillway/store.h>

#include "store/internal.h"
#include "tests/unit/fake_engine.h"

#define DRIVES      3
#define DRIVE_BYTES (32u << 20)
#define CHUNK_BYTES (64u << 10)

static struct spw_store *store;

static int make_drives(void **state)
{
	(void)state;
	for (unsigned i = 0; i < DRIVES; i++)
		fake_drive_make(i, DRIVES, DRIVE_BYTES, CHUNK_BYTES);
	fake_pick = NULL;
	fake_hold = 0;
	fake_hung_drive = -1;
	return 0;
}

static int free_drives(void **state)
{
	(void)state;
	for (unsigned i = 0; i < DRIVES; i++)
		fake_drive_free(i);
	return 0;
}

static void open_store(uint32_t depth)
{
	const char *paths[DRIVES] = {"fake2", "fake0", "fake1"};
	struct spw_store_opts opts;

	spw_store_opts_init(&opts, sizeof(opts));
	opts.inline_mode = true;
	opts.queue_depth = depth;
	opts.requests_max = 64;
	opts.objects_max = 64;
	opts.arena_bytes = 8u << 20;
	assert_int_equal(spw_store_open(paths, DRIVES, &opts, &store), 0);
}

/* Bytes that differ from object to object and from place to place. */
static uint8_t *pattern(size_t len, uint64_t seed)
{
	uint8_t *bytes = aligned_alloc(4096, spw_round_up(len, 4096));

	assert_non_null(bytes);
	for (size_t i = 0; i < len; i++) {
		seed = seed * 6364136223846793005u + 1442695040888963407u;
		bytes[i] = (uint8_t)(seed >> 56);
	}
	return bytes;
}

static int put_wait(const void *bytes, size_t len, spw_object *object)
{
	struct spw_request *request;
	int rc = spw_store_put(store, bytes, len, NULL, object, &request);

	return rc ? rc : spw_request_wait(request);
}

static int get_wait(spw_object object, uint64_t offset, void *bytes, size_t len)
{
	struct spw_request *request;
	int rc = spw_store_get(store, object, offset, bytes, len, SPW_URGENT_READ, NULL, &request);

	return rc ? rc : spw_request_wait(request);
}

static void expect_identical(spw_object object, const uint8_t *bytes, size_t len)
{
	uint8_t *back = aligned_alloc(4096, spw_round_up(len, 4096));

	assert_int_equal(get_wait(object, 0, back, len), 0);
	assert_int_equal(memcmp(back, bytes, len), 0);
	free(back);
}

static struct spw_store_stats stats(void)
{
	struct spw_store_stats now;

	spw_store_stats(store, &now, sizeof(now));
	return now;
}

static bool is_retired(unsigned drive)
{
	struct spw_drive_stats now;

	assert_int_equal(spw_store_drive_stats(store, drive, &now, sizeof(now)), 0);
	return now.retired;
}

static void expect_empty(void)
{
	/* A turn that takes the last messages. */
	assert_true(spw_store_poll(store, false) >= 0);
	assert_int_equal(stats().objects, 0);
	assert_int_equal(atomic_load(&store->object_slots.taken), 0);
	assert_int_equal(stats().requests, 0);
}

/* ---- Writes ---- */

/*
 * The Nth write of one drive fails once: the chunk moves, the drive is retired, the object is
 * whole.
 */
static void test_nth_write_fails(void **state)
{
	size_t len = 100 * CHUNK_BYTES + 4321;
	uint8_t *bytes = pattern(len, 1);

	(void)state;
	for (unsigned nth = 1; nth <= 100; nth++) {
		spw_object object;
		bool reached;

		open_store(4);
		fake_drives[1].fail_write_in = nth;
		fake_drives[1].fail_error = -EIO;
		assert_int_equal(put_wait(bytes, len, &object), 0);
		reached = fake_drives[1].fail_write_in == 0;
		assert_int_equal(is_retired(1), reached);
		assert_true(!reached || stats().chunks_moved >= 1);
		expect_identical(object, bytes, len);
		assert_int_equal(spw_store_free(store, object), 0);
		expect_empty();
		spw_store_close(store);
		assert_int_equal(free_drives(NULL), 0);
		assert_int_equal(make_drives(NULL), 0);
	}
	free(bytes);
}

/* One drive fails every write: the others take everything, and its space is no longer promised. */
static void test_sticky_write_error(void **state)
{
	uint8_t *bytes = pattern(1 << 20, 2);
	spw_object objects[32];
	uint64_t capacity;

	(void)state;
	open_store(8);
	capacity = stats().capacity_bytes;
	fake_drives[0].fail_write_in = 1;
	fake_drives[0].fail_error = -EIO;
	fake_drives[0].sticky = true;
	for (unsigned i = 0; i < 32; i++)
		assert_int_equal(put_wait(bytes, 1 << 20, &objects[i]), 0);
	assert_true(is_retired(0));
	assert_int_equal(fake_drives[0].writes, 0);
	for (unsigned i = 0; i < 32; i++) {
		expect_identical(objects[i], bytes, 1 << 20);
		assert_int_equal(spw_store_free(store, objects[i]), 0);
	}
	expect_empty();
	/* What is left are the two others' blocks, all of them. */
	assert_int_equal(stats().used_bytes, capacity / 3);
	spw_store_close(store);
	free(bytes);
}

static void test_every_drive_fails(void **state)
{
	uint8_t *bytes = pattern(1 << 20, 3);
	spw_object object;

	(void)state;
	open_store(2);
	for (unsigned i = 0; i < DRIVES; i++) {
		fake_drives[i].fail_write_in = 1;
		fake_drives[i].fail_error = -EIO;
		fake_drives[i].sticky = true;
	}
	assert_int_equal(put_wait(bytes, 1 << 20, &object), -EIO);
	assert_int_equal(stats().drives_retired, DRIVES);
	/* The object is there, without bytes, until it is freed. */
	assert_int_equal(get_wait(object, 0, bytes, 512), -EIO);
	assert_int_equal(spw_store_free(store, object), 0);
	expect_empty();
	assert_int_equal(put_wait(bytes, 1 << 20, &object), -ENOSPC);
	spw_store_close(store);
	free(bytes);
}

/*
 * Memory that cannot be read, or a kernel without any: no drive is to blame, and none is lost to
 * those who come after.
 */
static void test_writes_that_fail_by_their_memory(void **state)
{
	static const int errors[] = {-EFAULT, -ENOMEM};
	uint8_t *bytes = pattern(1 << 20, 4);
	spw_object object;

	(void)state;
	open_store(4);
	for (unsigned i = 0; i < SPW_ARRAY_LEN(errors); i++) {
		for (unsigned drive = 0; drive < DRIVES; drive++) {
			fake_drives[drive].fail_write_in = 2;
			fake_drives[drive].fail_error = errors[i];
			fake_drives[drive].sticky = true;
		}
		assert_int_equal(put_wait(bytes, 1 << 20, &object), errors[i]);
		assert_non_null(strstr(spw_last_error(), "from the memory given"));
		assert_int_equal(stats().drives_retired, 0);
		assert_int_equal(stats().write_errors, 0);
		assert_int_equal(spw_store_free(store, object), 0);
		for (unsigned drive = 0; drive < DRIVES; drive++)
			fake_drives[drive].fail_write_in = 0;
		assert_int_equal(put_wait(bytes, 1 << 20, &object), 0);
		expect_identical(object, bytes, 1 << 20);
		assert_int_equal(spw_store_free(store, object), 0);
	}
	expect_empty();
	assert_int_equal(stats().used_bytes, 0);
	spw_store_close(store);
	free(bytes);
}

/* ---- Reads ---- */

static void test_read_error_is_retried_once(void **state)
{
	uint8_t *bytes = pattern(1 << 20, 4), *back = malloc(1 << 20);
	spw_object object;

	(void)state;
	open_store(4);
	assert_int_equal(put_wait(bytes, 1 << 20, &object), 0);
	fake_drives[2].fail_read_in = 2;
	fake_drives[2].fail_error = -EIO;
	expect_identical(object, bytes, 1 << 20);
	assert_int_equal(stats().read_errors, 1);
	fake_drives[2].fail_read_in = 1;
	fake_drives[2].sticky = true;
	assert_int_equal(get_wait(object, 0, back, 1 << 20), -EIO);
	assert_non_null(strstr(spw_last_error(), "fake2"));
	assert_non_null(strstr(spw_last_error(), "block"));
	/* The error was that request's alone: no drive is retired, other objects are read. */
	assert_int_equal(stats().drives_retired, 0);
	fake_drives[2].fail_read_in = 0;
	expect_identical(object, bytes, 1 << 20);
	spw_store_close(store);
	free(bytes);
	free(back);
}

/*
 * A sparse file may promise more than the file system below it has. To free objects would not help.
 */
static void test_a_full_file_system_is_named(void **state)
{
	uint8_t *bytes = pattern(1 << 20, 4);
	spw_object object;

	(void)state;
	for (unsigned i = 0; i < DRIVES; i++)
		fake_drives[i].geometry.kind = SPW_DEVICE_FILE;
	open_store(4);
	for (unsigned i = 0; i < DRIVES; i++) {
		fake_drives[i].fail_write_in = 1;
		fake_drives[i].fail_error = i == 1 ? -ENOSPC : -EIO;
		fake_drives[i].sticky = true;
	}
	assert_int_equal(put_wait(bytes, 1 << 20, &object), -EIO);
	assert_non_null(strstr(spw_last_error(),
			       "fake1 is out of service: the file system under it is full"));
	/* Nothing is left to reserve either. */
	assert_int_equal(put_wait(bytes, 1 << 20, &object), -ENOSPC);
	assert_non_null(strstr(spw_last_error(),
			       "fake1 is out of service: the file system under it is full"));
	assert_null(strstr(spw_last_error(), "free objects"));
	/* Once it was tried again, the others are to be looked at. */
	for (unsigned i = 0; i < DRIVES; i++) {
		fake_drives[i].fail_write_in = 0;
		fake_drives[i].sticky = false;
	}
	assert_int_equal(spw_store_revive(store, 1), 0);
	assert_int_equal(put_wait(bytes, 1 << 20, &object), 0);
	fake_drives[1].fail_write_in = 1;
	fake_drives[1].fail_error = -EIO;
	assert_int_equal(put_wait(bytes, 1 << 20, &object), -EIO);
	assert_non_null(strstr(spw_last_error(), "check what failed, have it tried again"));
	spw_store_close(store);
	free(bytes);
}

/* All full: refused by name. A second later each is tried again, in silence, until one has room. */
static void test_a_full_drive_comes_back(void **state)
{
	uint8_t *bytes = pattern(1 << 20, 4);
	struct spw_drive_stats drive;
	spw_object object;

	(void)state;
	fake_drives[0].geometry.kind = SPW_DEVICE_FILE;
	open_store(4);
	for (unsigned i = 0; i < DRIVES; i++) {
		fake_drives[i].fail_write_in = 1;
		fake_drives[i].fail_error = -ENOSPC;
		fake_drives[i].sticky = true;
	}
	assert_int_equal(put_wait(bytes, 1 << 20, &object), -ENOSPC);
	assert_non_null(strstr(spw_last_error(),
			       "fake0 is out of service: the file system under it is full"));
	assert_non_null(
		strstr(spw_last_error(), "fake1 is out of service: there is no space below it"));
	assert_non_null(strstr(spw_last_error(), "make room there"));
	assert_int_equal(spw_store_free(store, object), 0);
	expect_empty();
	assert_int_equal(stats().drives_retired, DRIVES);
	assert_int_equal(put_wait(bytes, 1 << 20, &object), -ENOSPC);

	/* Still full: once more for nothing. */
	fake_now_ns += 1000000000;
	assert_true(spw_store_poll(store, false) >= 0);
	assert_int_equal(stats().drives_retired, 0);
	assert_int_equal(put_wait(bytes, 1 << 20, &object), -ENOSPC);
	assert_int_equal(spw_store_free(store, object), 0);
	assert_int_equal(stats().drives_retired, DRIVES);

	for (unsigned i = 0; i < DRIVES; i++)
		fake_drives[i].fail_write_in = 0;
	fake_now_ns += 999999999;
	assert_true(spw_store_poll(store, false) >= 0);
	assert_int_equal(stats().drives_retired, DRIVES);
	fake_now_ns += 1;
	assert_true(spw_store_poll(store, false) >= 0);
	assert_int_equal(stats().drives_retired, 0);
	assert_int_equal(put_wait(bytes, 1 << 20, &object), 0);
	expect_identical(object, bytes, 1 << 20);
	assert_int_equal(spw_store_drive_stats(store, 0, &drive, sizeof(drive)), 0);
	assert_true(drive.writes_no_space >= 2 && drive.writes_no_space == drive.write_errors &&
		    !drive.full);
	assert_int_equal(spw_store_free(store, object), 0);
	expect_empty();
	assert_int_equal(stats().used_bytes, 0);
	spw_store_close(store);
	free(bytes);
}

static void test_a_drive_found_gone_by_a_read_is_retired(void **state)
{
	uint8_t *bytes = pattern(1 << 20, 4), *back = malloc(1 << 20);
	spw_object object, other;

	(void)state;
	open_store(4);
	assert_int_equal(put_wait(bytes, 1 << 20, &object), 0);
	fake_drives[1].fail_read_in = 1;
	fake_drives[1].fail_error = -ENODEV;
	fake_drives[1].sticky = true;
	assert_int_equal(get_wait(object, 0, back, 1 << 20), -ENODEV);
	assert_non_null(strstr(spw_last_error(), "fake1"));
	assert_int_equal(stats().drives_retired, 1);
	/* What is put from now on is not lost with it. */
	assert_int_equal(put_wait(bytes, 1 << 20, &other), 0);
	expect_identical(other, bytes, 1 << 20);
	spw_store_close(store);
	free(bytes);
	free(back);
}

static void test_flipped_bit(void **state)
{
	uint8_t *bytes = pattern(CHUNK_BYTES * 3 + 100, 5), *back = malloc(CHUNK_BYTES * 3 + 100);
	spw_object object;

	(void)state;
	open_store(4);
	assert_int_equal(put_wait(bytes, CHUNK_BYTES * 3 + 100, &object), 0);
	/* On the way, once: the second try is right. */
	fake_drives[0].flip_read_in = 1;
	expect_identical(object, bytes, CHUNK_BYTES * 3 + 100);
	assert_int_equal(stats().checksum_errors, 1);
	/* On the drive. */
	fake_drives[0].flip_read_in = 1;
	fake_drives[0].sticky = true;
	assert_int_equal(get_wait(object, 0, back, CHUNK_BYTES * 3 + 100), -EBADMSG);
	assert_non_null(strstr(spw_last_error(), "fake0"));
	assert_non_null(strstr(spw_last_error(), "expected"));
	spw_store_close(store);
	free(bytes);
	free(back);
}

/* While a read waits for its checksum, its slot goes to the next: the second try waits for one. */
static void test_second_try_waits_for_a_slot(void **state)
{
	size_t len = 30 * CHUNK_BYTES;
	uint8_t *bytes = pattern(len, 23);
	spw_object object;

	(void)state;
	open_store(1);
	assert_int_equal(put_wait(bytes, len, &object), 0);
	for (unsigned i = 1; i <= 10; i++) {
		fake_drives[0].flip_read_in = i;
		expect_identical(object, bytes, len);
		assert_int_equal(stats().checksum_errors, i);
	}
	for (unsigned i = 0; i < DRIVES; i++) {
		struct spw_drive_stats now;

		assert_int_equal(spw_store_drive_stats(store, i, &now, sizeof(now)), 0);
		assert_int_equal(now.in_flight_max, 1);
	}
	spw_store_close(store);
	free(bytes);
}

/* ---- Cancel, free and close between any two completions ---- */

static void test_cancel_at_every_point(void **state)
{
	size_t len = 20 * CHUNK_BYTES;
	uint8_t *bytes = pattern(len, 6);

	(void)state;
	open_store(2);
	for (unsigned turns = 0; turns < 40; turns++) {
		struct spw_request *request;
		unsigned writes_before = 0, writes_after = 0;
		spw_object object;
		int cancelled, rc;

		for (unsigned i = 0; i < DRIVES; i++)
			writes_before += fake_drives[i].writes;
		assert_int_equal(spw_store_put(store, bytes, len, NULL, &object, &request), 0);
		for (unsigned i = 0; i < turns; i++)
			assert_true(spw_store_poll(store, false) >= 0);
		cancelled = spw_request_cancel(request);
		rc = spw_request_wait(request);
		for (unsigned i = 0; i < DRIVES; i++)
			writes_after += fake_drives[i].writes;
		if (cancelled == 0) {
			assert_int_equal(rc, -ECANCELED);
			assert_int_equal(writes_after, writes_before);
		} else {
			assert_int_equal(cancelled, -EALREADY);
			assert_int_equal(rc, 0);
			expect_identical(object, bytes, len);
		}
		assert_int_equal(cancelled == 0, turns == 0);
		assert_int_equal(spw_store_free(store, object), 0);
	}
	expect_empty();
	assert_int_equal(stats().used_bytes, 0);
	spw_store_close(store);
	free(bytes);
}

/*
 * Freed while it is written or read: the space comes back only after the last transfer, and the get
 * still gets its bytes.
 */
static void test_free_at_every_point(void **state)
{
	size_t len = 20 * CHUNK_BYTES;
	uint8_t *bytes = pattern(len, 7), *back = aligned_alloc(4096, len);

	(void)state;
	open_store(2);
	for (unsigned turns = 0; turns < 40; turns++) {
		struct spw_request *put, *get;
		spw_object object;

		assert_int_equal(spw_store_put(store, bytes, len, NULL, &object, &put), 0);
		if (turns % 2)
			assert_int_equal(spw_request_wait(put), 0);
		memset(back, 0, len);
		assert_int_equal(
			spw_store_get(store, object, 0, back, len, SPW_PREFETCH, NULL, &get), 0);
		for (unsigned i = 0; i < turns; i++)
			assert_true(spw_store_poll(store, false) >= 0);
		assert_int_equal(spw_store_free(store, object), 0);
		assert_int_equal(spw_store_free(store, object), -ENOENT);
		assert_int_equal(spw_request_wait(get), 0);
		assert_int_equal(memcmp(back, bytes, len), 0);
		if (turns % 2 == 0)
			assert_int_equal(spw_request_wait(put), 0);
		expect_empty();
		assert_int_equal(stats().used_bytes, 0);
	}
	spw_store_close(store);
	free(bytes);
	free(back);
}

static void count_end(void *context, int res)
{
	unsigned *ends = context;

	ends[res == -ECANCELED]++;
}

static void test_close_at_every_point(void **state)
{
	uint8_t *bytes = pattern(10 * CHUNK_BYTES, 8),
		*back = aligned_alloc(4096, 10 * CHUNK_BYTES);

	(void)state;
	for (unsigned turns = 0; turns < 40; turns++) {
		unsigned ends[2] = {0};
		struct spw_notify notify = {.done = count_end, .context = ends};
		spw_object objects[4];

		open_store(1);
		assert_int_equal(put_wait(bytes, 10 * CHUNK_BYTES, &objects[0]), 0);
		for (unsigned i = 1; i < 4; i++)
			assert_int_equal(spw_store_put(store, bytes, 10 * CHUNK_BYTES, &notify,
						       &objects[i], NULL),
					 0);
		assert_int_equal(spw_store_get(store, objects[0], 0, back, 10 * CHUNK_BYTES,
					       SPW_PREFETCH, &notify, NULL),
				 0);
		for (unsigned i = 0; i < turns; i++)
			assert_true(spw_store_poll(store, false) >= 0);
		spw_store_close(store);
		assert_int_equal(ends[0] + ends[1], 4);
	}
	free(bytes);
	free(back);
}

/*
 * Writes that fail while the store closes go back to the list, to be ended there: none is
 * forgotten.
 */
static void test_close_while_writes_fail(void **state)
{
	uint8_t *bytes = pattern(10 * CHUNK_BYTES, 17);

	(void)state;
	for (unsigned chunks = 1; chunks <= 10; chunks++) {
		unsigned ends[2] = {0};
		struct spw_notify notify = {.done = count_end, .context = ends};
		spw_object object;

		open_store(4);
		for (unsigned i = 0; i < DRIVES; i++) {
			fake_drives[i].fail_write_in = 1;
			fake_drives[i].fail_error = -EIO;
			fake_drives[i].sticky = true;
		}
		/*
		 * All chunks are in flight, none waits: only their failure brings the put back to
		 * the list.
		 */
		fake_hold = chunks;
		assert_int_equal(
			spw_store_put(store, bytes, chunks * CHUNK_BYTES, &notify, &object, NULL),
			0);
		assert_int_equal(spw_store_poll(store, false), 0);
		fake_hold = 0;
		spw_store_close(store);
		assert_int_equal(ends[0] + ends[1], 1);
	}
	free(bytes);
}

/* ---- Order ---- */

static uint8_t order[64];
static unsigned order_count;

static void note_end(void *context, int res)
{
	assert_int_equal(res, 0);
	order[order_count++] = *(uint8_t *)context;
}

/*
 * An urgent read overtakes prefetches and writes; none of them is overtaken more than a bounded
 * number of times.
 */
static void test_urgent_first_but_nobody_starves(void **state)
{
	static uint8_t urgent = 'u', prefetch = 'p', write = 'w';
	struct spw_notify notify_urgent = {note_end, &urgent},
			  notify_prefetch = {note_end, &prefetch},
			  notify_write = {note_end, &write};
	uint8_t *bytes = pattern(DRIVES * CHUNK_BYTES, 9);
	uint8_t *back = aligned_alloc(4096, DRIVES * CHUNK_BYTES);
	spw_object object, written;
	unsigned first_write = 0, first_prefetch = 0;

	(void)state;
	open_store(1);
	order_count = 0;
	assert_int_equal(put_wait(bytes, DRIVES * CHUNK_BYTES, &object), 0);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(
			spw_store_put(store, bytes, CHUNK_BYTES, &notify_write, &written, NULL), 0);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(spw_store_get(store, object, 0, back, DRIVES * CHUNK_BYTES,
					       SPW_PREFETCH, &notify_prefetch, NULL),
				 0);
	for (unsigned i = 0; i < 20; i++)
		assert_int_equal(spw_store_get(store, object, 0, back, DRIVES * CHUNK_BYTES,
					       SPW_URGENT_READ, &notify_urgent, NULL),
				 0);
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
	spw_store_close(store);
	free(bytes);
	free(back);
}

/* A prefetch that becomes urgent overtakes the other prefetches. */
static void test_raise(void **state)
{
	static uint8_t names[] = {'0', '1', '2', '3', '4', '5', '6', '7'};
	uint8_t *bytes = pattern(DRIVES * CHUNK_BYTES, 10);
	uint8_t *back = aligned_alloc(4096, DRIVES * CHUNK_BYTES);
	struct spw_request *last = NULL;
	spw_object object;

	(void)state;
	open_store(1);
	order_count = 0;
	assert_int_equal(put_wait(bytes, DRIVES * CHUNK_BYTES, &object), 0);
	for (unsigned i = 0; i < 8; i++) {
		struct spw_notify notify = {note_end, &names[i]};

		assert_int_equal(spw_store_get(store, object, 0, back, DRIVES * CHUNK_BYTES,
					       SPW_PREFETCH, &notify, &last),
				 0);
	}
	/*
	 * Without a turn first, the class is simply changed; after one, the waiting reads have to
	 * be moved.
	 */
	assert_true(spw_store_poll(store, false) >= 0);
	spw_request_raise(last, SPW_URGENT_READ);
	while (order_count < 8)
		assert_true(spw_store_poll(store, true) >= 0);
	assert_true(order[0] == '7' || order[1] == '7');
	spw_store_close(store);
	free(bytes);
	free(back);
}

/* ---- Space ---- */

/* Free space in single chunks, none adjacent: a larger chunk is split, and comes back whole. */
/*
 * Equal drives, equal speed: whatever the objects' sizes, no drive takes more than a chunk's share
 * beyond another.
 */
static void test_equal_drives_share_evenly(void **state)
{
	static const size_t lens[] = {CHUNK_BYTES / 2 + 1, CHUNK_BYTES, 4 * CHUNK_BYTES + 4096,
				      30 * CHUNK_BYTES};
	uint8_t *bytes = pattern(30 * CHUNK_BYTES, 23);

	(void)state;
	for (unsigned i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
		struct spw_request *requests[60];
		spw_object objects[60];
		unsigned count = 30;
		uint64_t least = UINT64_MAX, most = 0;

		open_store(4);
		for (unsigned k = 0; k < count; k++)
			assert_int_equal(spw_store_put(store, bytes, lens[i], NULL, &objects[k],
						       &requests[k]),
					 0);
		for (unsigned k = 0; k < count; k++)
			assert_int_equal(spw_request_wait(requests[k]), 0);
		for (unsigned drive = 0; drive < DRIVES; drive++) {
			struct spw_drive_stats now;

			assert_int_equal(spw_store_drive_stats(store, drive, &now, sizeof(now)), 0);
			least = now.bytes_written < least ? now.bytes_written : least;
			most = now.bytes_written > most ? now.bytes_written : most;
		}
		assert_true(most - least <= 2 * CHUNK_BYTES);
		for (unsigned k = 0; k < count; k++)
			assert_int_equal(spw_store_free(store, objects[k]), 0);
		expect_empty();
		spw_store_close(store);
	}
	free(bytes);
}

static void test_split_over_fragments(void **state)
{
	uint64_t capacity;
	spw_object small[64] = {{0}}, large;
	uint8_t *bytes = pattern(3 << 20, 11);
	unsigned count;

	(void)state;
	open_store(4);
	capacity = stats().capacity_bytes;
	/*
	 * Objects of one and a half chunks fill the store; freeing every other one leaves holes of
	 * half chunks and chunks.
	 */
	for (count = 0; count < 60; count++)
		assert_int_equal(put_wait(bytes,
					  capacity / 60 / 4096 * 4096 - (count % 2 ? 4096 : 0),
					  &small[count]),
				 0);
	while (count < 63 && put_wait(bytes, 4096, &small[count]) == 0)
		count++;
	for (unsigned i = 0; i < 60; i += 2)
		assert_int_equal(spw_store_free(store, small[i]), 0);
	assert_int_equal(put_wait(bytes, 3 << 20, &large), 0);
	expect_identical(large, bytes, 3 << 20);
	spw_store_close(store);
	free(bytes);
}

static void test_full_changes_nothing(void **state)
{
	uint8_t *bytes = pattern(4 << 20, 12);
	spw_object objects[32], one_more;
	uint64_t used;
	unsigned count = 0;

	(void)state;
	open_store(4);
	while (put_wait(bytes, 4 << 20, &objects[count]) == 0)
		count++;
	assert_in_range(count, 16, 24);
	used = stats().used_bytes;
	assert_int_equal(put_wait(bytes, 4 << 20, &one_more), -ENOSPC);
	assert_int_equal(one_more.value, 0);
	assert_int_equal(stats().used_bytes, used);
	for (unsigned i = 0; i < count; i++)
		expect_identical(objects[i], bytes, 4 << 20);
	assert_int_equal(spw_store_free(store, objects[3]), 0);
	assert_int_equal(put_wait(bytes, 4 << 20, &objects[3]), 0);
	expect_identical(objects[3], bytes, 4 << 20);
	spw_store_close(store);
	free(bytes);
}

/* ---- Drives that hang, come back, flush, trim ---- */

static void test_hung_write_moves(void **state)
{
	uint8_t *bytes = pattern(1 << 20, 13);
	const char *paths[DRIVES] = {"fake0", "fake1", "fake2"};
	struct spw_store_opts opts;
	spw_object object;
	uint64_t used;

	(void)state;
	spw_store_opts_init(&opts, sizeof(opts));
	opts.inline_mode = true;
	opts.write_deadline_ms = 20;
	opts.arena_bytes = 8u << 20;
	assert_int_equal(spw_store_open(paths, DRIVES, &opts, &store), 0);
	fake_hung_drive = 1;
	assert_int_equal(put_wait(bytes, 1 << 20, &object), 0);
	assert_true(!is_retired(0) && is_retired(1) && !is_retired(2));
	assert_true(stats().timeouts > 0 && stats().chunks_moved > 0);
	expect_identical(object, bytes, 1 << 20);
	/*
	 * The drive answers after all: its blocks come back to it, and count again once it is
	 * revived.
	 */
	fake_hung_drive = -1;
	for (unsigned i = 0; i < 64; i++)
		assert_true(spw_store_poll(store, true) >= 0);
	expect_identical(object, bytes, 1 << 20);
	assert_int_equal(spw_store_revive(store, 1), 0);
	assert_int_equal(spw_store_revive(store, 1), -EALREADY);
	assert_int_equal(spw_store_revive(store, DRIVES), -EINVAL);
	assert_false(is_retired(1));
	used = stats().used_bytes;
	assert_int_equal(used, 1 << 20);
	assert_int_equal(spw_store_free(store, object), 0);
	expect_empty();
	assert_int_equal(stats().used_bytes, 0);
	spw_store_close(store);
	free(bytes);
}

/*
 * Copy memory that a hung drive does not give back must not be all there is: the other drives need
 * some.
 */
static void test_hung_drive_leaves_copy_memory(void **state)
{
	enum { CHUNKS = 48 };
	const size_t len = CHUNKS * CHUNK_BYTES;
	uint8_t *bytes = pattern(len + 1, 18);
	const char *paths[DRIVES] = {"fake0", "fake1", "fake2"};
	struct spw_request *requests[CHUNKS];
	uint8_t parts[CHUNKS][512], part[512];
	struct spw_store_opts opts;
	spw_object object, other;

	(void)state;
	spw_store_opts_init(&opts, sizeof(opts));
	opts.inline_mode = true;
	opts.write_deadline_ms = 20;
	opts.queue_depth = 16;
	opts.arena_bytes = 1u << 20; /* as little as there can be: two chunks for each drive */
	assert_int_equal(spw_store_open(paths, DRIVES, &opts, &store), 0);
	assert_int_equal(put_wait(bytes, len, &object), 0);
	fake_hung_drive = 1;
	assert_int_equal(put_wait(bytes + 1, len, &other), 0);
	assert_true(!is_retired(0) && is_retired(1) && !is_retired(2));
	expect_identical(other, bytes + 1, len);
	/* Parts of chunks are read by way of copy memory, too. */
	for (uint64_t i = 0; i < CHUNKS; i++)
		assert_int_equal(spw_store_get(store, object, i * CHUNK_BYTES + 512, parts[i],
					       sizeof(parts[i]), SPW_URGENT_READ, NULL,
					       &requests[i]),
				 0);
	for (uint64_t i = 0; i < CHUNKS; i++) {
		assert_int_equal(get_wait(other, i * CHUNK_BYTES + 512, part, sizeof(part)), 0);
		assert_memory_equal(part, bytes + 1 + i * CHUNK_BYTES + 512, sizeof(part));
	}
	fake_hung_drive = -1;
	for (uint64_t i = 0; i < CHUNKS; i++) {
		assert_int_equal(spw_request_wait(requests[i]), 0);
		assert_memory_equal(parts[i], bytes + i * CHUNK_BYTES + 512, sizeof(part));
	}
	spw_store_close(store);
	free(bytes);
}

/* More chunks than there can be descriptors for: such a store can be used all the same. */
static void test_small_chunks_on_large_drives(void **state)
{
	const char *paths[] = {"fake0"};
	uint8_t *bytes = pattern(1 << 20, 19);
	struct spw_store_opts opts;
	spw_object object;
	int rc;

	(void)state;
	fake_drive_free(0);
	fake_drive_make(0, 1, DRIVE_BYTES, CHUNK_BYTES);
	/* Never written so far out. */
	fake_drives[0].superblock.partition_bytes = UINT64_C(20) << 40;
	spw_store_opts_init(&opts, sizeof(opts));
	opts.inline_mode = true;
	opts.arena_bytes = 8u << 20;
	rc = spw_store_open(paths, 1, &opts, &store);
	if (rc == -ENOMEM && getenv("SPW_TEST_VALGRIND")) {
		print_message("valgrind has no room for so many descriptors\n");
		skip();
	}
	assert_int_equal(rc, 0);
	assert_int_equal(put_wait(bytes, 1 << 20, &object), 0);
	expect_identical(object, bytes, 1 << 20);
	spw_store_close(store);
	free(bytes);
}

static void test_flush(void **state)
{
	struct spw_request *request, *second;

	(void)state;
	open_store(4);
	assert_int_equal(spw_store_flush(store, NULL, &request), 0);
	assert_int_equal(spw_store_flush(store, NULL, &second), 0);
	assert_int_equal(spw_request_wait(request), 0);
	assert_int_equal(spw_request_wait(second), 0);
	fake_drives[1].flush_error = -EIO;
	assert_int_equal(spw_store_flush(store, NULL, &request), 0);
	assert_int_equal(spw_request_wait(request), -EIO);
	assert_non_null(strstr(spw_last_error(), "fake1"));
	expect_empty();
	spw_store_close(store);
}

/* Trim discards what is free and nothing else. */
static void test_trim(void **state)
{
	uint8_t *bytes = pattern(1 << 20, 14);
	spw_object objects[8];
	struct spw_request *request;
	uint64_t before;

	(void)state;
	for (unsigned i = 0; i < DRIVES; i++)
		fake_drives[i].geometry.discards = i != 1;
	open_store(4);
	for (unsigned i = 0; i < 8; i++)
		assert_int_equal(put_wait(bytes, 1 << 20, &objects[i]), 0);
	for (unsigned i = 0; i < 8; i += 2)
		assert_int_equal(spw_store_free(store, objects[i]), 0);
	before = stats().used_bytes;
	assert_int_equal(spw_store_trim(store, NULL, &request), 0);
	assert_int_equal(spw_request_wait(request), 0);
	assert_int_equal(stats().used_bytes, before);
	assert_true(stats().bytes_trimmed > 32u << 20);
	for (unsigned i = 1; i < 8; i += 2)
		expect_identical(objects[i], bytes, 1 << 20);
	assert_int_equal(put_wait(bytes, 1 << 20, &objects[0]), 0);
	expect_identical(objects[0], bytes, 1 << 20);
	spw_store_close(store);
	free(bytes);
}

/* ---- Vectors, waiting for any ---- */

static void test_putv(void **state)
{
	size_t len = 5 * CHUNK_BYTES + 777;
	uint8_t *bytes = pattern(len, 15);
	struct iovec vector[5] = {
		{.iov_base = bytes, .iov_len = CHUNK_BYTES},
		{.iov_base = bytes + CHUNK_BYTES, .iov_len = 0},
		{.iov_base = bytes + CHUNK_BYTES, .iov_len = 2 * CHUNK_BYTES},
		{.iov_base = bytes + 3 * CHUNK_BYTES, .iov_len = 13},
		{.iov_base = bytes + 3 * CHUNK_BYTES + 13, .iov_len = len - 3 * CHUNK_BYTES - 13},
	};
	struct spw_request *request;
	spw_object object;

	(void)state;
	open_store(4);
	assert_int_equal(spw_store_putv(store, vector, 5, NULL, &object, &request), 0);
	assert_int_equal(spw_request_wait(request), 0);
	/* Only what spans elements, or lies unaligned in one, was copied. */
	assert_in_range(stats().bytes_copied, 1, 3 * CHUNK_BYTES);
	expect_identical(object, bytes, len);
	assert_int_equal(spw_store_putv(store, vector, 0, NULL, &object, &request), -EINVAL);
	spw_store_close(store);
	free(bytes);
}

/* The object is asked for while its bytes still lie in the pieces of the caller's vector. */
static void test_get_from_a_vector_still_in_memory(void **state)
{
	size_t len = 2 * CHUNK_BYTES + 55;
	uint8_t *bytes = pattern(len, 21), *back = malloc(len);
	struct iovec vector[3] = {
		{.iov_base = bytes, .iov_len = 1000},
		{.iov_base = NULL, .iov_len = 0},
		{.iov_base = bytes + 1000, .iov_len = len - 1000},
	};
	struct spw_request *put, *get;
	spw_object object;

	(void)state;
	assert_non_null(back);
	open_store(4);
	fake_hold = UINT32_MAX; /* no write ends */
	assert_int_equal(spw_store_putv(store, vector, 3, NULL, &object, &put), 0);
	for (size_t offset = 0; offset < len; offset += 333) {
		size_t part = len - offset < 5000 ? len - offset : 5000;

		assert_int_equal(spw_store_get(store, object, offset, back, part, SPW_URGENT_READ,
					       NULL, &get),
				 0);
		assert_int_equal(spw_request_test(get), 0);
		assert_memory_equal(back, bytes + offset, part);
	}
	assert_true(stats().bytes_from_memory > 0);
	fake_hold = 0;
	assert_int_equal(spw_request_wait(put), 0);
	expect_identical(object, bytes, len);
	spw_store_close(store);
	free(back);
	free(bytes);
}

static void test_wait_any(void **state)
{
	uint8_t *bytes = pattern(1 << 20, 16);
	struct spw_request *requests[4];
	spw_object objects[4];

	(void)state;
	open_store(4);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(spw_store_put(store, bytes, (4 - i) * CHUNK_BYTES, NULL,
					       &objects[i], &requests[i]),
				 0);
	for (unsigned left = 4; left > 0; left--) {
		int index = spw_request_wait_any(requests, left, -1);

		assert_in_range(index, 0, left - 1);
		assert_int_equal(spw_request_test(requests[index]), 0);
		requests[index] = requests[left - 1];
	}
	fake_hung_drive = 0;
	assert_int_equal(spw_store_put(store, bytes, 1 << 20, NULL, &objects[0], &requests[0]), 0);
	fake_glances = 0;
	assert_int_equal(spw_request_wait_any(requests, 1, 1000000), -ETIMEDOUT);
	/* The turn that issues, and one for each checksum: all others sleep. */
	assert_true(fake_glances <= 1 + (1 << 20) / CHUNK_BYTES);
	fake_hung_drive = -1;
	assert_int_equal(spw_request_wait_any(requests, 1, -1), 0);
	assert_int_equal(spw_request_wait(requests[0]), 0);
	spw_store_close(store);
	free(bytes);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_nth_write_fails, make_drives, free_drives),
		cmocka_unit_test_setup_teardown(test_sticky_write_error, make_drives, free_drives),
		cmocka_unit_test_setup_teardown(test_every_drive_fails, make_drives, free_drives),
		cmocka_unit_test_setup_teardown(test_writes_that_fail_by_their_memory, make_drives,
						free_drives),
		cmocka_unit_test_setup_teardown(test_read_error_is_retried_once, make_drives,
						free_drives),
		cmocka_unit_test_setup_teardown(test_a_full_file_system_is_named, make_drives,
						free_drives),
		cmocka_unit_test_setup_teardown(test_a_full_drive_comes_back, make_drives,
						free_drives),
		cmocka_unit_test_setup_teardown(test_a_drive_found_gone_by_a_read_is_retired,
						make_drives, free_drives),
		cmocka_unit_test_setup_teardown(test_flipped_bit, make_drives, free_drives),
		cmocka_unit_test_setup_teardown(test_second_try_waits_for_a_slot, make_drives,
						free_drives),
		cmocka_unit_test_setup_teardown(test_cancel_at_every_point, make_drives,
						free_drives),
		cmocka_unit_test_setup_teardown(test_free_at_every_point, make_drives, free_drives),
		cmocka_unit_test_setup_teardown(test_close_at_every_point, make_drives,
						free_drives),
		cmocka_unit_test_setup_teardown(test_close_while_writes_fail, make_drives,
						free_drives),
		cmocka_unit_test_setup_teardown(test_urgent_first_but_nobody_starves, make_drives,
						free_drives),
		cmocka_unit_test_setup_teardown(test_raise, make_drives, free_drives),
		cmocka_unit_test_setup_teardown(test_equal_drives_share_evenly, make_drives,
						free_drives),
		cmocka_unit_test_setup_teardown(test_split_over_fragments, make_drives,
						free_drives),
		cmocka_unit_test_setup_teardown(test_full_changes_nothing, make_drives,
						free_drives),
		cmocka_unit_test_setup_teardown(test_hung_write_moves, make_drives, free_drives),
		cmocka_unit_test_setup_teardown(test_hung_drive_leaves_copy_memory, make_drives,
						free_drives),
		cmocka_unit_test_setup_teardown(test_small_chunks_on_large_drives, make_drives,
						free_drives),
		cmocka_unit_test_setup_teardown(test_flush, make_drives, free_drives),
		cmocka_unit_test_setup_teardown(test_trim, make_drives, free_drives),
		cmocka_unit_test_setup_teardown(test_putv, make_drives, free_drives),
		cmocka_unit_test_setup_teardown(test_get_from_a_vector_still_in_memory, make_drives,
						free_drives),
		cmocka_unit_test_setup_teardown(test_wait_any, make_drives, free_drives),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
