/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_sim_store_errors.c - writes and reads that fail, and bytes that
 * are others than were written
 */
#include "tests/unit/sim_rig.h"

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
	expect_refusal(-EIO, "sim2", get_wait(object, 0, back, 1 << 20));
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
	expect_refusal(-EIO, "sim1 is out of service: the file system under it is full",
		       put_wait(bytes, 1 << 20, &object));
	/* Nothing is left to reserve either. */
	expect_refusal(-ENOSPC, "sim1 is out of service: the file system under it is full",
		       put_wait(bytes, 1 << 20, &object));
	assert_null(strstr(spw_last_error(), "free objects"));
	/* Once it was tried again, the others are to be looked at. */
	mend_all();
	assert_ok(spw_store_revive(store, 1));
	assert_ok(put_wait(bytes, 1 << 20, &object));
	fail_nth(1, SPW_WRITE, 1, -EIO);
	expect_refusal(-EIO, "check what failed, have it tried again",
		       put_wait(bytes, 1 << 20, &object));
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
	expect_refusal(-ENOSPC, "sim0 is out of service: the file system under it is full",
		       put_wait(bytes, 1 << 20, &object));
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

/* A second: far more than all attempts take. */
static void expect_soon(uint64_t began_ns)
{
	assert_true(sim_now_ns - began_ns < SECOND);
}

/* Nothing says that it has failed: others have its chunks, and it comes back by itself. */
DRIVES_CASE(test_a_drive_that_always_says_again_rests)
{
	uint8_t *bytes = pattern(1 << 20, 4);
	uint64_t began_ns;
	spw_object object;

	open_store(4);
	fail_from(1, SPW_WRITE, 1, -EAGAIN);
	began_ns = sim_now_ns;
	assert_ok(put_wait(bytes, 1 << 20, &object));
	expect_soon(began_ns);
	expect_identical(object, bytes, 1 << 20);
	assert_true(!is_retired(0) && is_retired(1) && !is_retired(2));
	fail_all_writes(-EINTR);
	began_ns = sim_now_ns;
	assert_int_equal(put_wait(bytes, 1 << 20, &object), -EAGAIN);
	expect_soon(began_ns);
	expect_words("sim1 is out of service: it asks for another attempt at each write");
	expect_words("it is tried again by itself");
	assert_null(strstr(spw_last_error(), "revive"));
	assert_null(strstr(spw_last_error(), "make room"));
	assert_ok(spw_store_free(store, object));
	mend_all();
	sim_now_ns += SECOND;
	poll_once();
	assert_int_equal(stats().drives_retired, 0);
	assert_ok(put_wait(bytes, 1 << 20, &object));
	expect_identical(object, bytes, 1 << 20);
}

DRIVES_CASE(test_reads_and_flushes_that_always_say_again_end_in_words)
{
	uint8_t *bytes = pattern(1 << 20, 4), *back = memory(1 << 20);
	uint64_t began_ns = sim_now_ns;
	struct spw_request *request;
	spw_object object;

	open_store(4);
	assert_ok(put_wait(bytes, 1 << 20, &object));
	fail_from(1, SPW_READ, 1, -EAGAIN);
	fail_from(1, SPW_FLUSH, 1, -EAGAIN);
	expect_refusal(-EAGAIN, "sim1: cannot read", get_wait(object, 0, back, 1 << 20));
	assert_ok(spw_store_flush(store, NULL, &request));
	expect_refusal(-EAGAIN, "sim1: cannot flush", spw_request_wait(request));
	expect_refusal(-EAGAIN, "sim1", spw_store_commit(store, &object, 1, 1, NULL, 0, 0));
	expect_soon(began_ns);
	assert_int_equal(stats().drives_retired, 0);
	mend_all();
	expect_identical(object, bytes, 1 << 20);
	assert_ok(spw_store_commit(store, &object, 1, 2, NULL, 0, 0));
}

DRIVES_CASE(test_a_drive_found_gone_by_a_read_is_retired)
{
	uint8_t *bytes = pattern(1 << 20, 4), *back = memory(1 << 20);
	spw_object object, other;

	open_store(4);
	assert_ok(put_wait(bytes, 1 << 20, &object));
	fail_from(1, SPW_READ, 1, -ENODEV);
	expect_refusal(-ENODEV, "sim1", get_wait(object, 0, back, 1 << 20));
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

/* STORE-6, POOL-1: a read that waits for its checksum has no slot: the second try needs one. */
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
	expect_refusal(-EBADMSG, drive->path, get_wait(object, offset, back, len));
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
	expect_refusal(-EBADMSG, drive->path, get_wait(object, 0, memory(len), len));
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

/* What fills up an object's last block does not come from another object, or from past its end. */
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

RUN_CASES(NULL, NULL)
