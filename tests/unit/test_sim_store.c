/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_sim_store.c - the store in inline mode over simulated drives, which fail, hang
 * and fill up on demand: every run is the same, and what takes minutes takes none
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/case.h"

#include "layout/layout.h"
#include "store/internal.h"
#include "tests/sim/sim.h"

#define DRIVES      3
#define DRIVE_BYTES (20u << 20)
#define CHUNK_BYTES SPW_CHUNK_BYTES_MIN
#define SECOND      UINT64_C(1000000000)
#define MARGIN_NS   (SECOND / 10) /* more than a few transfers take */

#define OWNED_MAX 8

static const char *const paths[DRIVES] = {"sim0", "sim1", "sim2"};
static struct spw_store *store;
static void *owned[OWNED_MAX]; /* freed when the case has ended */
static unsigned owned_count;

/* ---- Drives ---- */

static void format(unsigned drives)
{
	struct spw_format_opts opts;

	spw_format_opts_init(&opts, sizeof(opts));
	opts.chunk_bytes = CHUNK_BYTES;
	opts.force = true;
	assert_ok(spw_format(paths, drives, &opts, NULL));
}

/* Alike, but for a little luck that each has of its own: no two requests end at once. */
static int make_drives(void **state)
{
	(void)state;
	sim_drive_count = DRIVES;
	sim_now_ns = SECOND;
	for (unsigned i = 0; i < DRIVES; i++) {
		struct sim_drive *drive = &sim_drives[i];

		sim_drive_make(i, DRIVE_BYTES, 512, 7 + i);
		drive->geometry.memory_align_bytes = 512;
		drive->geometry.transfer_bytes_max = 1 << 20;
		drive->geometry.segments_max = 128;
		drive->geometry.discards = i != 1;
		drive->geometry.polls = false;
		drive->latency_ns = 500;
		drive->bytes_per_second = 1000000000;
		drive->channels = 1;
		drive->cache_is_volatile = drive->cancels = false;
	}
	format(DRIVES);
	return 0;
}

static void fail_nth(unsigned drive, enum spw_op op, uint32_t nth, int error)
{
	sim_drives[drive].failing[op] = (struct sim_failing){.in = nth, .error = error};
}

/* The Nth, and all that follow. */
static void fail_from(unsigned drive, enum spw_op op, uint32_t nth, int error)
{
	fail_nth(drive, op, nth, error);
	sim_drives[drive].failing[op].sticky = true;
}

static void fail_all_writes(int error)
{
	for (unsigned i = 0; i < DRIVES; i++)
		fail_from(i, SPW_WRITE, 1, error);
}

static void mend_all(void)
{
	for (unsigned i = 0; i < DRIVES; i++)
		memset(sim_drives[i].failing, 0, sizeof(sim_drives[i].failing));
}

static void hang(unsigned drive)
{
	(void)sim_fault(drive, SIM_HANG, 0, UINT32_MAX);
}

/* What hangs on a drive ends at @ns. */
static void hang_until(unsigned drive, uint64_t ns)
{
	for (struct sim_io *io = sim_drives[drive].active_first; io; io = io->next)
		io->finish_ns = ns;
}

static void hang_no_more(unsigned drive)
{
	sim_disarm(drive);
	hang_until(drive, sim_now_ns);
}

/* ---- Stores ---- */

static void close_store(void)
{
	spw_store_close(store);
	store = NULL;
}

static int tear_down(void **state)
{
	(void)state;
	close_store();
	while (owned_count > 0)
		free(owned[--owned_count]);
	return 0;
}

#define DRIVES_CASE(name) CASE_WITH(name, make_drives, tear_down)

static uint8_t *memory(size_t len)
{
	void *bytes = aligned_alloc(4096, spw_round_up(len, 4096));

	assert_non_null(bytes);
	assert_true(owned_count < OWNED_MAX);
	return owned[owned_count++] = bytes;
}

static struct spw_store_opts options(uint32_t depth)
{
	struct spw_store_opts opts;

	spw_store_opts_init(&opts, sizeof(opts));
	opts.inline_mode = true;
	opts.no_hugetlb = true;
	opts.queue_depth = depth;
	opts.requests_max = 64;
	opts.objects_max = 64;
	opts.arena_bytes = 8u << 20;
	return opts;
}

static void open_with(const struct spw_store_opts *opts)
{
	const char *shuffled[DRIVES] = {"sim2", "sim0", "sim1"};

	assert_ok(spw_store_open(shuffled, DRIVES, opts, &store));
}

static void open_store(uint32_t depth)
{
	struct spw_store_opts opts = options(depth);

	open_with(&opts);
}

static void poll_once(void)
{
	assert_true(spw_store_poll(store, false) >= 0);
}

/* Poll when the next transfer has ended: between any two ends is a point of its own. */
static void turn(void)
{
	uint64_t next_ns = UINT64_MAX;

	for (unsigned i = 0; i < DRIVES; i++)
		for (struct sim_io *io = sim_drives[i].active_first; io; io = io->next)
			next_ns = io->finish_ns < next_ns ? io->finish_ns : next_ns;
	if (next_ns != UINT64_MAX && next_ns > sim_now_ns)
		sim_now_ns = next_ns;
	poll_once();
}

/* Bytes that differ from object to object and from place to place. */
static uint8_t *pattern(size_t len, uint64_t seed)
{
	uint8_t *bytes = memory(len);

	sim_fill(bytes, len, seed);
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

	assert_ok(get_wait(object, 0, back, len));
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

	assert_ok(spw_store_drive_stats(store, drive, &now, sizeof(now)));
	return now.retired;
}

static void expect_empty(void)
{
	poll_once(); /* takes the last messages */
	assert_int_equal(stats().objects, 0);
	assert_int_equal(atomic_load(&store->object_slots.taken), 0);
	assert_int_equal(stats().requests, 0);
}

/* ---- Writes ---- */

/* The Nth write of one drive fails: the chunk moves, the drive is retired, the object is whole. */
DRIVES_CASE(test_nth_write_fails)
{
	size_t len = 100 * CHUNK_BYTES + 4321;
	uint8_t *bytes = pattern(len, 1);

	for (unsigned nth = 1; nth <= 100; nth++) {
		spw_object object;
		bool reached;

		open_store(4);
		fail_nth(1, SPW_WRITE, nth, -EIO);
		assert_ok(put_wait(bytes, len, &object));
		reached = sim_drives[1].failing[SPW_WRITE].in == 0;
		assert_int_equal(is_retired(1), reached);
		assert_true(!reached || stats().chunks_moved >= 1);
		expect_identical(object, bytes, len);
		assert_ok(spw_store_free(store, object));
		expect_empty();
		close_store();
	}
}

/* One drive fails every write: the others take everything, and its space is no longer promised. */
DRIVES_CASE(test_sticky_write_error)
{
	uint8_t *bytes = pattern(1 << 20, 2);
	spw_object objects[32];
	uint64_t capacity;

	open_store(8);
	capacity = stats().capacity_bytes;
	sim_drives[0].recent_count = 0;
	fail_from(0, SPW_WRITE, 1, -EIO);
	for (unsigned i = 0; i < 32; i++)
		assert_ok(put_wait(bytes, 1 << 20, &objects[i]));
	assert_true(is_retired(0));
	assert_int_equal(sim_drives[0].recent_count, 0);
	for (unsigned i = 0; i < 32; i++) {
		expect_identical(objects[i], bytes, 1 << 20);
		assert_ok(spw_store_free(store, objects[i]));
	}
	expect_empty();
	/* What is left are the two others' blocks, all of them. */
	assert_int_equal(stats().used_bytes, capacity / 3);
}

DRIVES_CASE(test_every_drive_fails)
{
	uint8_t *bytes = pattern(1 << 20, 3);
	spw_object object;

	open_store(2);
	fail_all_writes(-EIO);
	assert_int_equal(put_wait(bytes, 1 << 20, &object), -EIO);
	assert_int_equal(stats().drives_retired, DRIVES);
	/* The object is there, without bytes, until it is freed. */
	assert_int_equal(get_wait(object, 0, bytes, 512), -EIO);
	assert_ok(spw_store_free(store, object));
	expect_empty();
	assert_int_equal(put_wait(bytes, 1 << 20, &object), -ENOSPC);
}

/* Memory that cannot be read, or a kernel without any: no drive is to blame or retired. */
DRIVES_CASE(test_writes_that_fail_by_their_memory)
{
	static const int errors[] = {-EFAULT, -ENOMEM};
	uint8_t *bytes = pattern(1 << 20, 4);
	spw_object object;

	open_store(4);
	for (unsigned i = 0; i < SPW_ARRAY_LEN(errors); i++) {
		for (unsigned drive = 0; drive < DRIVES; drive++)
			fail_from(drive, SPW_WRITE, 2, errors[i]);
		assert_int_equal(put_wait(bytes, 1 << 20, &object), errors[i]);
		expect_words("from the memory given");
		assert_int_equal(stats().drives_retired, 0);
		assert_int_equal(stats().write_errors, 0);
		assert_ok(spw_store_free(store, object));
		mend_all();
		assert_ok(put_wait(bytes, 1 << 20, &object));
		expect_identical(object, bytes, 1 << 20);
		assert_ok(spw_store_free(store, object));
	}
	expect_empty();
	assert_int_equal(stats().used_bytes, 0);
}

/* ---- Reads ---- */

DRIVES_CASE(test_read_error_is_retried_once)
{
	uint8_t *bytes = pattern(1 << 20, 4), *back = memory(1 << 20);
	spw_object object;

	open_store(4);
	assert_ok(put_wait(bytes, 1 << 20, &object));
	fail_nth(2, SPW_READ, 2, -EIO);
	expect_identical(object, bytes, 1 << 20);
	assert_int_equal(stats().read_errors, 1);
	fail_from(2, SPW_READ, 1, -EIO);
	assert_int_equal(get_wait(object, 0, back, 1 << 20), -EIO);
	expect_words("sim2");
	expect_words("block");
	/* The error was that request's alone: no drive is retired, other objects are read. */
	assert_int_equal(stats().drives_retired, 0);
	mend_all();
	expect_identical(object, bytes, 1 << 20);
}

/* A sparse file may promise more than its file system has. To free objects would not help. */
DRIVES_CASE(test_a_full_file_system_is_named)
{
	uint8_t *bytes = pattern(1 << 20, 4);
	spw_object object;

	for (unsigned i = 0; i < DRIVES; i++)
		sim_drives[i].geometry.kind = SPW_DEVICE_FILE;
	open_store(4);
	for (unsigned i = 0; i < DRIVES; i++)
		fail_from(i, SPW_WRITE, 1, i == 1 ? -ENOSPC : -EIO);
	assert_int_equal(put_wait(bytes, 1 << 20, &object), -EIO);
	expect_words("sim1 is out of service: the file system under it is full");
	/* Nothing is left to reserve either. */
	assert_int_equal(put_wait(bytes, 1 << 20, &object), -ENOSPC);
	expect_words("sim1 is out of service: the file system under it is full");
	assert_null(strstr(spw_last_error(), "free objects"));
	/* Once it was tried again, the others are to be looked at. */
	mend_all();
	assert_ok(spw_store_revive(store, 1));
	assert_ok(put_wait(bytes, 1 << 20, &object));
	fail_nth(1, SPW_WRITE, 1, -EIO);
	assert_int_equal(put_wait(bytes, 1 << 20, &object), -EIO);
	expect_words("check what failed, have it tried again");
}

/* All full: refused by name. A second later each is tried again, in silence, until one has room. */
DRIVES_CASE(test_a_full_drive_comes_back)
{
	uint8_t *bytes = pattern(1 << 20, 4);
	struct spw_drive_stats drive;
	spw_object object;

	sim_drives[0].geometry.kind = SPW_DEVICE_FILE;
	open_store(4);
	fail_all_writes(-ENOSPC);
	assert_int_equal(put_wait(bytes, 1 << 20, &object), -ENOSPC);
	expect_words("sim0 is out of service: the file system under it is full");
	expect_words("sim1 is out of service: there is no space below it");
	expect_words("make room there");
	assert_ok(spw_store_free(store, object));
	expect_empty();
	assert_int_equal(stats().drives_retired, DRIVES);
	assert_int_equal(put_wait(bytes, 1 << 20, &object), -ENOSPC);

	/* Still full: once more for nothing. */
	sim_now_ns += SECOND;
	poll_once();
	assert_int_equal(stats().drives_retired, 0);
	assert_int_equal(put_wait(bytes, 1 << 20, &object), -ENOSPC);
	assert_ok(spw_store_free(store, object));
	assert_int_equal(stats().drives_retired, DRIVES);

	mend_all();
	sim_now_ns += SECOND - MARGIN_NS;
	poll_once();
	assert_int_equal(stats().drives_retired, DRIVES);
	sim_now_ns += MARGIN_NS;
	poll_once();
	assert_int_equal(stats().drives_retired, 0);
	assert_ok(put_wait(bytes, 1 << 20, &object));
	expect_identical(object, bytes, 1 << 20);
	assert_ok(spw_store_drive_stats(store, 0, &drive, sizeof(drive)));
	assert_true(drive.writes_no_space >= 2 && drive.writes_no_space == drive.write_errors &&
		    !drive.full);
	assert_ok(spw_store_free(store, object));
	expect_empty();
	assert_int_equal(stats().used_bytes, 0);
}

DRIVES_CASE(test_a_drive_found_gone_by_a_read_is_retired)
{
	uint8_t *bytes = pattern(1 << 20, 4), *back = memory(1 << 20);
	spw_object object, other;

	open_store(4);
	assert_ok(put_wait(bytes, 1 << 20, &object));
	fail_from(1, SPW_READ, 1, -ENODEV);
	assert_int_equal(get_wait(object, 0, back, 1 << 20), -ENODEV);
	expect_words("sim1");
	assert_int_equal(stats().drives_retired, 1);
	/* What is put from now on is not lost with it. */
	assert_ok(put_wait(bytes, 1 << 20, &other));
	expect_identical(other, bytes, 1 << 20);
}

/* Not on the drive: the second try is right. */
DRIVES_CASE(test_bit_flipped_on_the_way)
{
	uint8_t *bytes = pattern(CHUNK_BYTES * 3 + 100, 5);
	spw_object object;

	open_store(4);
	assert_ok(put_wait(bytes, CHUNK_BYTES * 3 + 100, &object));
	(void)sim_fault(0, SIM_FLIP, 0, 1);
	expect_identical(object, bytes, CHUNK_BYTES * 3 + 100);
	assert_int_equal(stats().checksum_errors, 1);
}

/* STORE-6, OVERLAP-1: a read that waits for its checksum has no slot: the second try needs one. */
DRIVES_CASE(test_second_try_waits_for_a_slot)
{
	size_t len = 30 * CHUNK_BYTES;
	uint8_t *bytes = pattern(len, 23);
	spw_object object;

	open_store(1);
	assert_ok(put_wait(bytes, len, &object));
	for (unsigned i = 1; i <= 8; i++) {
		memset(sim_drives[0].spared, 0, sizeof(sim_drives[0].spared));
		(void)sim_fault(0, SIM_FLIP, i - 1, 1);
		expect_identical(object, bytes, len);
		assert_int_equal(stats().checksum_errors, i);
	}
	for (unsigned i = 0; i < DRIVES; i++) {
		struct spw_drive_stats now;

		assert_ok(spw_store_drive_stats(store, i, &now, sizeof(now)));
		assert_int_equal(now.in_flight_max, 1);
	}
}

/* ---- Bytes that change on a drive behind the store's back ---- */

#define BLOCK_BYTES 4096u

/* Where the block of an object lies that holds these bytes. */
static uint8_t *find_block(const uint8_t *block, struct sim_drive **drive)
{
	for (unsigned i = 0; i < DRIVES; i++) {
		uint8_t *found = memmem(sim_drives[i].medium, DRIVE_BYTES, block, BLOCK_BYTES);

		*drive = &sim_drives[i];
		if (found)
			return found;
	}
	fail_msg("the object's bytes are on none of the drives");
	return NULL;
}

/* The drive is named, and the byte on it where the damaged chunk begins. */
static void expect_damage(spw_object object, uint64_t offset, size_t len, const uint8_t *chunk,
			  const struct sim_drive *drive)
{
	uint8_t *back = malloc(len);
	char place[64];

	(void)snprintf(place, sizeof(place), "byte %td", chunk - drive->medium);
	assert_int_equal(get_wait(object, offset, back, len), -EBADMSG);
	expect_words(drive->path);
	expect_words(place);
	expect_words("block");
	expect_words("expected");
	free(back);
}

DRIVES_CASE(test_flipped_bits)
{
	static const size_t places[] = {0, BLOCK_BYTES - 1, 13 * BLOCK_BYTES, 14 * BLOCK_BYTES - 1};
	const size_t len = 14 * BLOCK_BYTES + 1001;
	uint8_t *bytes = pattern(len, 31), *others = pattern(len, 32), *chunk;
	spw_object victim, witness;
	struct spw_drive_stats now;
	struct sim_drive *drive;

	open_store(4);
	assert_ok(put_wait(bytes, len, &victim));
	assert_ok(put_wait(others, len, &witness));
	chunk = find_block(bytes, &drive);
	for (unsigned i = 0; i < SPW_ARRAY_LEN(places); i++) {
		chunk[places[i]] ^= (uint8_t)(1u << i);
		expect_damage(victim, 0, len, chunk, drive);
		expect_damage(victim, len / 2, 1, chunk, drive); /* the whole chunk is checked */
		expect_identical(witness, others, len);
		chunk[places[i]] ^= (uint8_t)(1u << i);
		expect_identical(victim, bytes, len);
	}
	assert_ok(spw_store_drive_stats(store, drive->index, &now, sizeof(now)));
	assert_true(now.checksum_errors >= 8); /* a second try counts, too */
	assert_int_equal(stats().checksum_errors, now.checksum_errors);
	assert_int_equal(stats().drives_retired, 0);
}

/* Each is whole, and neither is what was stored there. */
DRIVES_CASE(test_exchanged_blocks)
{
	uint8_t *bytes = pattern(2 * BLOCK_BYTES, 33), *places[2];
	struct sim_drive *drives[2];
	spw_object objects[2];

	open_store(4);
	for (unsigned i = 0; i < 2; i++) {
		assert_ok(put_wait(bytes + i * BLOCK_BYTES, BLOCK_BYTES, &objects[i]));
		places[i] = find_block(bytes + i * BLOCK_BYTES, &drives[i]);
	}
	for (unsigned i = 0; i < 2; i++)
		memcpy(places[i], bytes + (1 - i) * BLOCK_BYTES, BLOCK_BYTES);
	for (unsigned i = 0; i < 2; i++)
		expect_damage(objects[i], 0, BLOCK_BYTES, places[i], drives[i]);
}

/* A write that never reached the drive leaves what an earlier object had there. */
DRIVES_CASE(test_stale_block)
{
	uint8_t stale[BLOCK_BYTES], *bytes, *place;
	struct sim_drive *drive;
	spw_object object;
	size_t len;

	open_store(4);
	len = stats().capacity_bytes; /* there is no other place */
	bytes = pattern(len, 34);
	assert_ok(put_wait(bytes, len, &object));
	place = find_block(bytes + 5 * BLOCK_BYTES, &drive);
	memcpy(stale, place, BLOCK_BYTES);
	assert_ok(spw_store_free(store, object));
	sim_fill(bytes, len, 35);
	assert_ok(put_wait(bytes, len, &object));
	memcpy(place, stale, BLOCK_BYTES);
	assert_int_equal(get_wait(object, 0, memory(len), len), -EBADMSG);
	expect_words(drive->path);
	/* What does not touch the damaged chunk still comes. */
	assert_ok(get_wait(object, len - BLOCK_BYTES, stale, BLOCK_BYTES));
	assert_memory_equal(stale, bytes + len - BLOCK_BYTES, BLOCK_BYTES);
}

/* Of many reads at once, those of the damaged object fail, each of them, and no other. */
DRIVES_CASE(test_damage_amid_others)
{
	enum { OBJECTS = 16, GETS = 64, LEN = 100000 };
	uint8_t *bytes = pattern(OBJECTS * LEN, 36), *back = memory(GETS * LEN);
	struct spw_request *gets[GETS];
	spw_object objects[OBJECTS];
	struct sim_drive *drive;

	open_store(4);
	for (unsigned i = 0; i < OBJECTS; i++)
		assert_ok(put_wait(bytes + i * LEN, LEN, &objects[i]));
	find_block(bytes + 7 * LEN + 8 * BLOCK_BYTES, &drive)[1234] ^= 1u << 5;
	for (unsigned i = 0; i < GETS; i++)
		assert_ok(spw_store_get(store, objects[i % OBJECTS], 1, back + i * LEN, LEN - 1,
					(enum spw_class)(i % SPW_CLASSES), NULL, &gets[i]));
	for (unsigned i = 0; i < GETS; i++) {
		bool damaged = i % OBJECTS == 7;

		assert_int_equal(spw_request_wait(gets[i]), damaged ? -EBADMSG : 0);
		if (!damaged)
			assert_memory_equal(back + i * LEN, bytes + i % OBJECTS * LEN + 1, LEN - 1);
	}
}

/* That this is so is the point of leaving checksums on. */
DRIVES_CASE(test_no_checksums_believes_the_drive)
{
	struct spw_store_opts opts = options(4);
	uint8_t *bytes = pattern(10000, 37);
	struct sim_drive *drive;
	spw_object object;

	opts.no_checksums = true;
	open_with(&opts);
	assert_ok(put_wait(bytes, 10000, &object));
	find_block(bytes + BLOCK_BYTES, &drive)[17] ^= 1u << 3;
	bytes[BLOCK_BYTES + 17] ^= 1u << 3;
	expect_identical(object, bytes, 10000);
	assert_int_equal(stats().checksum_errors, 0);
}

/* What fills up an object's last block is no byte of any other object, or of beyond its end. */
DRIVES_CASE(test_last_block_is_padded)
{
	static const uint8_t zeros[BLOCK_BYTES];
	const size_t len = 2 * BLOCK_BYTES + 100;

	open_store(4);
	for (unsigned odd = 0; odd < 2; odd++) {
		uint8_t *before = pattern(4 * BLOCK_BYTES, 38 + odd);
		uint8_t *bytes = pattern(4 * BLOCK_BYTES, 40 + odd) + odd, *last;
		struct sim_drive *drive;
		spw_object object;

		/* In the same copy memory: what ended last is used first. */
		assert_ok(put_wait(before + odd, 3 * BLOCK_BYTES - 1, &object));
		assert_ok(spw_store_free(store, object));
		assert_ok(put_wait(bytes, len, &object));
		last = find_block(bytes + BLOCK_BYTES, &drive) + BLOCK_BYTES;
		assert_memory_equal(last, bytes + 2 * BLOCK_BYTES, 100);
		assert_memory_equal(last + 100, zeros, BLOCK_BYTES - 100);
		assert_ok(spw_store_free(store, object));
	}
}

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

	/* A get of what is cancelled has its bytes, or an error. Who is notified is told. */
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

/* An urgent read overtakes prefetches and writes, but each of them only so many times. */
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

/* ---- Space ---- */

static void expect_even_shares(void)
{
	uint64_t least = UINT64_MAX, most = 0;

	for (unsigned drive = 0; drive < DRIVES; drive++) {
		struct spw_drive_stats now;

		assert_ok(spw_store_drive_stats(store, drive, &now, sizeof(now)));
		least = now.bytes_written < least ? now.bytes_written : least;
		most = now.bytes_written > most ? now.bytes_written : most;
	}
	assert_true(most - least <= 2 * CHUNK_BYTES);
}

/* Whatever the objects' sizes, together or one at a time: to within two chunks. */
DRIVES_CASE(test_equal_drives_share_evenly)
{
	enum { COUNT = 30 };
	static const size_t lens[] = {CHUNK_BYTES / 2 + 1, CHUNK_BYTES, 4 * CHUNK_BYTES + 4096,
				      20 * CHUNK_BYTES};
	uint8_t *bytes = pattern(20 * CHUNK_BYTES, 23);
	struct spw_request *requests[COUNT];
	spw_object objects[COUNT];

	for (unsigned i = 0; i < 2 * SPW_ARRAY_LEN(lens); i++) {
		bool together = i % 2;

		open_store(4);
		for (unsigned k = 0; k < COUNT; k++) {
			assert_ok(spw_store_put(store, bytes, lens[i / 2], NULL, &objects[k],
						&requests[k]));
			if (!together)
				assert_ok(spw_request_wait(requests[k]));
		}
		for (unsigned k = 0; together && k < COUNT; k++)
			assert_ok(spw_request_wait(requests[k]));
		expect_even_shares();
		for (unsigned k = 0; k < COUNT; k++)
			assert_ok(spw_store_free(store, objects[k]));
		expect_empty();
		close_store();
	}
}

/* ---- Drives that hang, come back, flush, trim ---- */

#define DEADLINE 4 /* s */

static void open_with_deadlines(void)
{
	struct spw_store_opts opts = options(2);

	opts.read_deadline_ms = opts.write_deadline_ms = DEADLINE * 1000;
	open_with(&opts);
}

/*
 * Flushes take the queue's slots, and writes wait in it that no drive has seen yet; then nobody
 * polls for longer than the deadline. As when a process is stopped and goes on.
 */
DRIVES_CASE(test_absence_is_not_the_drives_fault)
{
	uint8_t *bytes = memory(16 * CHUNK_BYTES);
	struct spw_request *flush, *put;
	spw_object object;

	open_with_deadlines();
	assert_ok(spw_store_flush(store, NULL, &flush));
	assert_ok(spw_store_put(store, bytes, 16 * CHUNK_BYTES, NULL, &object, &put));
	poll_once();
	for (unsigned i = 0; i < 3; i++) {
		sim_now_ns += 10 * DEADLINE * SECOND;
		poll_once();
	}
	assert_ok(spw_request_wait(flush));
	assert_ok(spw_request_wait(put));
	assert_int_equal(stats().timeouts, 0);
	assert_int_equal(stats().drives_retired, 0);
}

/* A chunk that all drives hang with. */
static void put_hanging(struct spw_request **put)
{
	spw_object object;

	open_with_deadlines();
	for (unsigned i = 0; i < DRIVES; i++)
		hang(i);
	assert_ok(spw_store_put(store, memory(CHUNK_BYTES), CHUNK_BYTES, NULL, &object, put));
}

/* Each drive in turn hangs with what the one before did not take. */
DRIVES_CASE(test_hang_is_noticed)
{
	uint64_t began_ns = sim_now_ns;
	struct spw_request *put;

	put_hanging(&put);
	assert_int_equal(spw_request_wait(put), -EIO);
	assert_int_equal(stats().timeouts, DRIVES);
	assert_in_range(sim_now_ns - began_ns, DRIVES * DEADLINE * SECOND,
			2 * DRIVES * DEADLINE * SECOND);
}

DRIVES_CASE(test_hang_is_noticed_by_who_looks_seldom)
{
	struct spw_request *put;
	uint64_t looks = 0;

	put_hanging(&put);
	for (; stats().timeouts == 0 && looks < 100; looks++) {
		for (unsigned i = 0; i < DRIVES; i++)
			hang_until(i, UINT64_MAX / 2);
		sim_now_ns += 30 * SECOND;
		poll_once();
	}
	assert_int_equal(stats().timeouts, 1);
	assert_in_range(looks, 2, 99);
	for (unsigned i = 0; i < DRIVES; i++)
		hang_no_more(i);
	(void)spw_request_wait(put);
}

/* STORE-9 */
DRIVES_CASE(test_hung_write_moves)
{
	uint8_t *bytes = pattern(1 << 20, 13);
	struct spw_store_opts opts = options(16);
	spw_object object;
	uint64_t used;

	opts.write_deadline_ms = 20;
	open_with(&opts);
	hang(1);
	assert_ok(put_wait(bytes, 1 << 20, &object));
	assert_true(!is_retired(0) && is_retired(1) && !is_retired(2));
	assert_true(stats().timeouts > 0 && stats().chunks_moved > 0);
	expect_identical(object, bytes, 1 << 20);
	/* The drive answers after all: its blocks come back, and count once it is revived. */
	hang_no_more(1);
	for (unsigned i = 0; i < 64; i++)
		assert_true(spw_store_poll(store, true) >= 0);
	expect_identical(object, bytes, 1 << 20);
	assert_ok(spw_store_revive(store, 1));
	assert_int_equal(spw_store_revive(store, 1), -EALREADY);
	assert_int_equal(spw_store_revive(store, DRIVES), -EINVAL);
	assert_false(is_retired(1));
	used = stats().used_bytes;
	assert_int_equal(used, 1 << 20);
	assert_ok(spw_store_free(store, object));
	expect_empty();
	assert_int_equal(stats().used_bytes, 0);
}

/* STORE-4: a hung drive keeps its copy memory; there must be more, for the other drives. */
DRIVES_CASE(test_hung_drive_leaves_copy_memory)
{
	enum { CHUNKS = 48 };
	const size_t len = CHUNKS * CHUNK_BYTES;
	uint8_t *bytes = pattern(len + 1, 18);
	struct spw_request *requests[CHUNKS];
	uint8_t parts[CHUNKS][512], part[512];
	struct spw_store_opts opts = options(16);
	spw_object object, other;

	opts.write_deadline_ms = 20;
	opts.arena_bytes = 1u << 20; /* as little as there can be: two chunks for each drive */
	open_with(&opts);
	assert_ok(put_wait(bytes, len, &object));
	hang(1);
	assert_ok(put_wait(bytes + 1, len, &other));
	assert_true(!is_retired(0) && is_retired(1) && !is_retired(2));
	expect_identical(other, bytes + 1, len);
	/* Parts of chunks are read by way of copy memory, too. */
	for (uint64_t i = 0; i < CHUNKS; i++)
		assert_ok(spw_store_get(store, object, i * CHUNK_BYTES + 512, parts[i],
					sizeof(parts[i]), SPW_URGENT_READ, NULL, &requests[i]));
	for (uint64_t i = 0; i < CHUNKS; i++) {
		assert_ok(get_wait(other, i * CHUNK_BYTES + 512, part, sizeof(part)));
		assert_memory_equal(part, bytes + 1 + i * CHUNK_BYTES + 512, sizeof(part));
	}
	hang_no_more(1);
	for (uint64_t i = 0; i < CHUNKS; i++) {
		assert_ok(spw_request_wait(requests[i]));
		assert_memory_equal(parts[i], bytes + i * CHUNK_BYTES + 512, sizeof(part));
	}
}

/* More chunks than there can be descriptors for: such a store can be used all the same. */
DRIVES_CASE(test_small_chunks_on_large_drives)
{
	const uint64_t size_bytes = UINT64_C(20) << 40;
	struct sim_drive *drive = &sim_drives[0];
	struct spw_store_opts opts = options(4);
	uint8_t *bytes = pattern(1 << 20, 19);
	struct spw_superblock sb;
	spw_object object;
	const char *why;
	int rc;

	format(1);
	assert_ok(spw_layout_decode(drive->medium, 0, &sb, &why));
	assert_ok(spw_layout_plan(&sb, size_bytes));
	spw_layout_encode(&sb, 0, drive->medium);
	/* There are no bytes so far out: it cannot be read there, and is never written. */
	drive->geometry.size_bytes = drive->size_now_bytes = size_bytes;
	drive->bad[0] = (struct sim_range){.offset_bytes = DRIVE_BYTES, .len_bytes = size_bytes};
	rc = spw_store_open(paths, 1, &opts, &store);
	if (rc == -ENOMEM && getenv("SPW_TEST_VALGRIND")) {
		print_message("valgrind has no room for so many descriptors\n");
		skip();
	}
	assert_int_equal(rc, 0);
	assert_ok(put_wait(bytes, 1 << 20, &object));
	expect_identical(object, bytes, 1 << 20);
}

DRIVES_CASE(test_flush)
{
	struct spw_request *request, *second;

	open_store(4);
	assert_ok(spw_store_flush(store, NULL, &request));
	assert_ok(spw_store_flush(store, NULL, &second));
	assert_ok(spw_request_wait(request));
	assert_ok(spw_request_wait(second));
	fail_nth(1, SPW_FLUSH, 1, -EIO);
	assert_ok(spw_store_flush(store, NULL, &request));
	assert_int_equal(spw_request_wait(request), -EIO);
	expect_words("sim1");
	expect_empty();
}

/* Trim discards what is free and nothing else. One of the drives has no such command. */
DRIVES_CASE(test_trim)
{
	uint8_t *bytes = pattern(1 << 20, 14);
	spw_object objects[8];
	struct spw_request *request;
	uint64_t before;

	open_store(4);
	for (unsigned i = 0; i < 8; i++)
		assert_ok(put_wait(bytes, 1 << 20, &objects[i]));
	for (unsigned i = 0; i < 8; i += 2)
		assert_ok(spw_store_free(store, objects[i]));
	before = stats().used_bytes;
	assert_ok(spw_store_trim(store, NULL, &request));
	assert_ok(spw_request_wait(request));
	assert_int_equal(stats().used_bytes, before);
	assert_true(stats().bytes_trimmed > 30u << 20);
	for (unsigned i = 1; i < 8; i += 2)
		expect_identical(objects[i], bytes, 1 << 20);
	assert_ok(put_wait(bytes, 1 << 20, &objects[0]));
	expect_identical(objects[0], bytes, 1 << 20);
}

/* ---- Vectors, waiting for any ---- */

DRIVES_CASE(test_putv)
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

	open_store(4);
	assert_ok(spw_store_putv(store, vector, 5, NULL, &object, &request));
	assert_ok(spw_request_wait(request));
	/* Only what spans elements, or lies unaligned in one, was copied. */
	assert_in_range(stats().bytes_copied, 1, 3 * CHUNK_BYTES);
	expect_identical(object, bytes, len);
	assert_int_equal(spw_store_putv(store, vector, 0, NULL, &object, &request), -EINVAL);
}

/* The object is asked for while its bytes still lie in the pieces of the caller's vector. */
DRIVES_CASE(test_get_from_a_vector_still_in_memory)
{
	size_t len = 2 * CHUNK_BYTES + 55;
	uint8_t *bytes = pattern(len, 21), *back = memory(len);
	struct iovec vector[3] = {
		{.iov_base = bytes, .iov_len = 1000},
		{.iov_base = NULL, .iov_len = 0},
		{.iov_base = bytes + 1000, .iov_len = len - 1000},
	};
	struct spw_request *put, *get;
	spw_object object;

	assert_non_null(back);
	open_store(4);
	for (unsigned i = 0; i < DRIVES; i++)
		sim_drives[i].latency_ns = SECOND / 10; /* no write ends meanwhile */
	assert_ok(spw_store_putv(store, vector, 3, NULL, &object, &put));
	for (size_t offset = 0; offset < len; offset += 333) {
		size_t part = len - offset < 5000 ? len - offset : 5000;

		assert_ok(spw_store_get(store, object, offset, back, part, SPW_URGENT_READ, NULL,
					&get));
		assert_ok(spw_request_test(get));
		assert_memory_equal(back, bytes + offset, part);
	}
	assert_true(stats().bytes_from_memory > 0);
	assert_ok(spw_request_wait(put));
	expect_identical(object, bytes, len);
}

DRIVES_CASE(test_wait_any)
{
	uint8_t *bytes = pattern(1 << 20, 16);
	struct spw_request *requests[4];
	spw_object objects[4];

	open_store(4);
	for (unsigned i = 0; i < 4; i++)
		assert_ok(spw_store_put(store, bytes, (4 - i) * CHUNK_BYTES, NULL, &objects[i],
					&requests[i]));
	for (unsigned left = 4; left > 0; left--) {
		int index = spw_request_wait_any(requests, left, -1);

		assert_in_range(index, 0, left - 1);
		assert_ok(spw_request_test(requests[index]));
		requests[index] = requests[left - 1];
	}
	hang(0);
	assert_ok(spw_store_put(store, bytes, 1 << 20, NULL, &objects[0], &requests[0]));
	sim_glances = 0;
	assert_int_equal(spw_request_wait_any(requests, 1, 1000000), -ETIMEDOUT);
	/* The turn that issues, and one for each checksum: all others sleep. */
	assert_true(sim_glances <= 1 + (1 << 20) / CHUNK_BYTES);
	hang_no_more(0);
	assert_ok(spw_request_wait_any(requests, 1, -1));
	assert_ok(spw_request_wait(requests[0]));
}

RUN_CASES(NULL, NULL)
