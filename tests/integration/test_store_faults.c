/* SPDX-License-Identifier: MIT */
/*
 * tests/integration/test_store_faults.c - bytes that change on the drive behind the store's back
 * are found, named, and never handed out
 */
#include "tests/integration/test_store.h"

#include <stdbool.h>

#define BLOCK_BYTES  4096u
#define SEARCH_BYTES (4 * MIB)

static uint8_t *memory, *raw;

static int setup(void **state)
{
	memory = malloc(16 * MIB);
	raw = aligned_alloc(BLOCK_BYTES, SEARCH_BYTES);
	if (!memory || !raw)
		quit("no memory for the test's buffers");
	return drives_from_environment(state);
}

static int teardown(void **state)
{
	(void)state;
	free(memory);
	free(raw);
	return 0;
}

/* ---- The drive, past the store --------------------------------------------------------------- */

struct found {
	unsigned drive;
	off_t offset_bytes;
};

static struct spw_device *open_raw(unsigned drive)
{
	struct spw_device *device;

	assert_ok(spw_device_open(drive_paths[drive], NULL, &device));
	return device;
}

static void raw_transfer(const struct found *place, void *block, bool write)
{
	struct spw_device *device = open_raw(place->drive);

	assert_ok(
		write ? spw_device_pwrite(device, block, BLOCK_BYTES, (uint64_t)place->offset_bytes)
		      : spw_device_pread(device, block, BLOCK_BYTES,
					 (uint64_t)place->offset_bytes));
	spw_device_close(device);
}

static bool find_on(unsigned drive, const uint8_t *block, struct found *found)
{
	struct spw_device *device = open_raw(drive);
	uint64_t size_bytes = spw_device_geometry(device)->size_bytes;
	bool is_found = false;
	size_t len;

	for (uint64_t at = 0; !is_found && at < size_bytes; at += len) {
		len = size_bytes - at < SEARCH_BYTES ? (size_t)(size_bytes - at) : SEARCH_BYTES;
		assert_ok(spw_device_pread(device, raw, len, at));
		for (size_t i = 0; !is_found && i + BLOCK_BYTES <= len; i += BLOCK_BYTES)
			if (memcmp(raw + i, block, BLOCK_BYTES) == 0) {
				*found = (struct found){.drive = drive,
							.offset_bytes = (off_t)(at + i)};
				is_found = true;
			}
	}
	spw_device_close(device);
	return is_found;
}

/* Where the block that begins at @offset of the content of @seed lies. */
static struct found find_block(uint64_t seed, uint64_t offset)
{
	struct found found = {0};
	uint8_t block[BLOCK_BYTES];

	content_fill_at(block, sizeof(block), seed, offset);
	for (unsigned drive = 0; drive < 4; drive++)
		if (find_on(drive, block, &found))
			return found;
	fail_msg("the object's bytes are on none of the drives");
	return found;
}

static void flip_bit(const struct found *place, size_t byte, unsigned bit)
{
	raw_transfer(place, raw, false);
	raw[byte] ^= (uint8_t)(1u << bit);
	raw_transfer(place, raw, true);
}

/* The error's words name the drive, and the byte on it where the damaged chunk begins. */
static void check_words(const struct found *chunk)
{
	const char *words = spw_last_error();
	char byte[64];

	(void)snprintf(byte, sizeof(byte), "byte %lld", (long long)chunk->offset_bytes);
	if (!strstr(words, drive_paths[chunk->drive]) || !strstr(words, byte) ||
	    !strstr(words, "block"))
		fail_msg("\"%s\" does not name %s, its block and %s", words,
			 drive_paths[chunk->drive], byte);
}

/* ---- Tests ----------------------------------------------------------------------------------- */

static void test_flipped_bit(void **state)
{
	const size_t len = 300001;
	struct spw_drive_stats drive = {0};
	spw_object victim, witness;
	struct spw_store *store;
	struct found chunk, place;

	(void)state;
	format_drives(4, 1, 0);
	store = open_default();
	content_fill(memory, len, 1);
	victim = put_wait(store, memory, len);
	content_fill(memory, len, 2);
	witness = put_wait(store, memory, len);
	chunk = find_block(1, 0);
	get_check(store, victim, 0, memory, len, 1);

	/*
	 * In the first block, in the last whole one, at the ends of both; each found, and gone when
	 * undone.
	 */
	for (unsigned i = 0; i < 4; i++) {
		place = find_block(1, i < 2 ? 0 : len / BLOCK_BYTES * BLOCK_BYTES - BLOCK_BYTES);
		flip_bit(&place, i % 2 ? BLOCK_BYTES - 1 : 0, i);
		assert_int_equal(get_wait(store, victim, 0, memory, len), -EBADMSG);
		check_words(&chunk);
		assert_int_equal(get_wait(store, victim, len / 2, memory, 1),
				 -EBADMSG); /* the whole chunk is checked */
		get_check(store, witness, 0, memory, len, 2);
		flip_bit(&place, i % 2 ? BLOCK_BYTES - 1 : 0, i);
		get_check(store, victim, 0, memory, len, 1);
	}
	assert_ok(spw_store_drive_stats(store, chunk.drive, &drive, sizeof(drive)));
	assert_true(drive.checksum_errors >= 8); /* a second try counts too */
	assert_int_equal(stats_of(store).checksum_errors, drive.checksum_errors);
	assert_int_equal(stats_of(store).drives_retired, 0);
	assert_ok(spw_store_free(store, victim));
	assert_ok(spw_store_free(store, witness));
	close_store(store);
}

/* Two chunks change places: each is whole, and neither is what was stored there. */
static void test_exchanged_blocks(void **state)
{
	uint8_t *blocks = aligned_alloc(BLOCK_BYTES, 2 * BLOCK_BYTES);
	struct spw_store *store;
	struct found places[2];
	spw_object objects[2];

	(void)state;
	assert_non_null(blocks);
	format_drives(4, 1, 0);
	store = open_default();
	for (unsigned i = 0; i < 2; i++) {
		content_fill(memory, BLOCK_BYTES, 10 + i);
		objects[i] = put_wait(store, memory, BLOCK_BYTES);
		places[i] = find_block(10 + i, 0);
		raw_transfer(&places[i], blocks + i * BLOCK_BYTES, false);
	}
	raw_transfer(&places[0], blocks + BLOCK_BYTES, true);
	raw_transfer(&places[1], blocks, true);
	free(blocks);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(get_wait(store, objects[i], 0, memory, BLOCK_BYTES), -EBADMSG);
		check_words(&places[i]);
	}
	close_store(store);
}

/*
 * A write that never reached the drive: what an earlier object left there is not taken for the
 * later one's.
 */
static void test_stale_block(void **state)
{
	struct spw_store_info info = format_small(12 * MIB, 0);
	struct spw_store *store = open_default();
	uint64_t len = info.partition_capacity_bytes;
	struct spw_request *request;
	struct found place;
	spw_object object;

	(void)state;
	assert_true(len <= 16 * MIB);
	content_fill(memory, len, 20);
	object = put_wait(store, memory, len);
	place = find_block(20, 5 * BLOCK_BYTES);
	raw_transfer(&place, raw, false);
	assert_ok(spw_store_free(store, object));
	content_fill(memory, len, 21);
	object = put_wait(store, memory, len); /* in the same place: there is no other */
	raw_transfer(&place, raw, true);
	assert_int_equal(get_wait(store, object, 0, memory, len), -EBADMSG);
	assert_true(strstr(spw_last_error(), drive_paths[place.drive]) != NULL);

	/* What does not touch the damaged chunk still comes. */
	assert_ok(spw_store_get(store, object, len - 100, memory, 100, SPW_URGENT_READ, NULL,
				&request));
	assert_ok(spw_request_wait(request));
	assert_content(memory, 100, 21, len - 100);
	close_store(store);
}

/*
 * Many reads of a damaged and of good objects at once: only those of the damaged one fail, each of
 * them.
 */
static void test_damage_amid_others(void **state)
{
	enum { OBJECTS = 16, ROUNDS = 8 };
	struct spw_request *requests[OBJECTS * ROUNDS];
	const size_t len = 100000;
	spw_object objects[OBJECTS];
	struct spw_store *store;
	struct found place;

	(void)state;
	format_drives(4, 1, 0);
	store = open_default();
	for (unsigned i = 0; i < OBJECTS; i++) {
		content_fill(memory, len, 100 + i);
		objects[i] = put_wait(store, memory, len);
	}
	place = find_block(107, 8 * BLOCK_BYTES);
	flip_bit(&place, 1234, 5);
	for (unsigned i = 0; i < OBJECTS * ROUNDS; i++)
		assert_ok(spw_store_get(store, objects[i % OBJECTS], 1, memory + i * len, len - 1,
					(enum spw_class)(i % SPW_CLASSES), NULL, &requests[i]));
	for (unsigned i = 0; i < OBJECTS * ROUNDS; i++) {
		assert_int_equal(spw_request_wait(requests[i]), i % OBJECTS == 7 ? -EBADMSG : 0);
		if (i % OBJECTS != 7)
			assert_content(memory + i * len, len - 1, 100 + i % OBJECTS, 1);
	}
	close_store(store);
}

/* Switched off, the drive is believed; that this is so is the point of leaving checksums on. */
static void test_no_checksums_believes_the_drive(void **state)
{
	struct spw_store_opts opts = default_opts();
	struct spw_store *store;
	struct found place;
	spw_object object;

	(void)state;
	format_drives(4, 1, 0);
	opts.no_checksums = true;
	store = open_drives(4, &opts);
	content_fill(memory, 10000, 30);
	object = put_wait(store, memory, 10000);
	place = find_block(30, BLOCK_BYTES);
	flip_bit(&place, 17, 3);
	assert_ok(get_wait(store, object, 0, memory, 10000));
	assert_int_equal(content_differs(memory, 10000, 30, 0), BLOCK_BYTES + 17);
	assert_int_equal(stats_of(store).checksum_errors, 0);
	close_store(store);
}

/* What fills up an object's last block is no byte of any other object. */
static void test_last_block_is_padded(void **state)
{
	struct found place;
	struct spw_store *store;
	spw_object object;

	(void)state;
	format_drives(4, 1, 0);
	store = open_default();
	for (unsigned aligned = 0; aligned < 2; aligned++) {
		uint8_t *from = aligned ? raw : memory + 1;

		/* The same memory has carried other bytes before: what ended last is used first. */
		content_fill(from + MIB, 3 * BLOCK_BYTES, 50 + aligned);
		object = put_wait(store, from + MIB, 3 * BLOCK_BYTES - 1);
		assert_ok(spw_store_free(store, object));
		/* beyond the object's end: must not get there */
		content_fill(from, 4 * BLOCK_BYTES, 40 + aligned);
		object = put_wait(store, from, 2 * BLOCK_BYTES + 100);
		place = find_block(40 + aligned, BLOCK_BYTES);
		place.offset_bytes += BLOCK_BYTES;
		raw_transfer(&place, raw, false);
		assert_content(raw, 100, 40 + aligned, 2 * BLOCK_BYTES);
		for (unsigned i = 100; i < BLOCK_BYTES; i++)
			assert_int_equal(raw[i], 0);
		assert_ok(spw_store_free(store, object));
	}
	close_store(store);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		test_case(test_flipped_bit),
		test_case(test_exchanged_blocks),
		test_case(test_stale_block),
		test_case(test_damage_amid_others),
		test_case(test_no_checksums_believes_the_drive),
		test_case(test_last_block_is_padded),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
