/* SPDX-License-Identifier: MIT */
/*
 * tests/integration/test_store_space.c - space and slots: used to the last block, refused exactly,
 * reused at once, spread evenly
 */
#include "tests/integration/store_case.h"

#include <stdbool.h>

#define OBJECTS_MAX 4096u

static uint8_t memory[80 * MIB];

static spw_object objects[OBJECTS_MAX];

/* Put objects of @len until one is refused. Return: how many there are then. */
static unsigned fill(size_t len, unsigned count)
{
	struct spw_request *request;
	int result;

	for (;; count++) {
		assert_true(count < OBJECTS_MAX);
		content_fill(memory + 1, len, count);
		result = spw_store_put(store, memory + 1, len, NULL, &objects[count], &request);
		if (result)
			break;
		assert_ok(spw_request_wait(request));
	}
	assert_int_equal(result, -ENOSPC);
	assert_int_equal(objects[count].value, 0);
	return count;
}

static void check_all(size_t len, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		get_check(store, objects[i], 0, memory, len, i);
}

/* ---- Full ------------------------------------------------------------------------------------ */

static void fill_to_the_last_block(size_t len, uint64_t chunk_bytes)
{
	struct spw_store_info info = format_small(48 * MIB, chunk_bytes);
	struct spw_store_opts opts = default_opts();
	struct spw_store_stats before, after;
	uint64_t object_bytes = (len + info.block_bytes - 1) / info.block_bytes * info.block_bytes;
	struct spw_request *request;
	spw_object other;
	unsigned count;

	store = open_drives(4, &opts);
	assert_int_equal(stats_of(store).capacity_bytes, info.partition_capacity_bytes);
	count = fill(len, 0);

	/* Exact: an object less would have fitted, and what is left is too little. */
	before = stats_of(store);
	assert_int_equal(before.used_bytes, count * object_bytes);
	assert_true(before.capacity_bytes - before.used_bytes < object_bytes);

	/* The refusal changed nothing. */
	assert_int_equal(spw_store_put(store, memory, len, NULL, &other, &request), -ENOSPC);
	assert_true(strlen(spw_last_error()) > 0);
	after = stats_of(store);
	assert_int_equal(after.used_bytes, before.used_bytes);
	assert_int_equal(after.objects, count);
	assert_int_equal(after.requests, 0);
	check_all(len, count);

	/* One freed, one fits, and only one. */
	for (unsigned i = 0; i < count; i += count / 3) {
		assert_ok(spw_store_free(store, objects[i]));
		content_fill(memory + 1, len, i);
		objects[i] = put_wait(store, memory + 1, len);
		assert_int_equal(spw_store_put(store, memory, len, NULL, &other, &request),
				 -ENOSPC);
	}
	check_all(len, count);

	/* What is left over can be used too. */
	while (before.capacity_bytes > (after = stats_of(store)).used_bytes)
		(void)put_wait(store, memory, info.block_bytes);
	assert_int_equal(after.used_bytes, after.capacity_bytes);
	for (unsigned i = 0; i < count; i++)
		assert_ok(spw_store_free(store, objects[i]));
	close_store(store);
}

STORE_CASE(test_full)
{
	fill_to_the_last_block(1000003, 0);
	fill_to_the_last_block(3 * MIB + 1, SPW_CHUNK_BYTES_MIN);
}

/* One object as large as the partition; then not one byte more. */
STORE_CASE(test_one_object_of_all_space)
{
	struct spw_store_info info = format_small(48 * MIB, 0);
	uint64_t len = info.partition_capacity_bytes;
	struct spw_request *request;
	spw_object object, other;

	assert_true(len < sizeof(memory));
	store = open_default();
	for (unsigned round = 0; round < 3; round++) {
		assert_int_equal(spw_store_put(store, memory, len + 1, NULL, &other, &request),
				 -ENOSPC);
		content_fill(memory, len, round);
		object = put_wait(store, memory, len);
		assert_int_equal(spw_store_put(store, memory, 1, NULL, &other, &request), -ENOSPC);
		get_check(store, object, 0, memory, len, round);
		assert_ok(spw_store_free(store, object));
	}
	assert_int_equal(spw_store_put(store, memory, SIZE_MAX, NULL, &other, &request), -ENOSPC);
}

/* Full of single blocks, half of them freed at random: what fits then lies in many pieces. */
STORE_CASE(test_splits_over_many_extents)
{
	struct spw_store_info info = format_small(12 * MIB, SPW_CHUNK_BYTES_MIN);
	uint64_t freed_bytes = 0, random = random_seed();
	bool freed[OBJECTS_MAX] = {false};
	spw_object object;
	unsigned count;

	store = open_default();
	count = fill(info.block_bytes, 0);
	for (unsigned i = 0; i < count; i++) {
		freed[i] = random_below(&random, 2) == 0;
		if (freed[i])
			assert_ok(spw_store_free(store, objects[i]));
		freed_bytes += freed[i] ? info.block_bytes : 0;
	}
	content_fill(memory + 7, freed_bytes - 11, 4711);
	object = put_wait(store, memory + 7, freed_bytes - 11);
	assert_int_equal(stats_of(store).used_bytes, count * (uint64_t)info.block_bytes);
	assert_true(stats_of(store).chunks_split > 0);
	get_check(store, object, 0, memory, freed_bytes - 11, 4711);
	for (unsigned i = 0; i < count; i++)
		if (!freed[i])
			get_check(store, objects[i], 0, memory, info.block_bytes, i);
	get_check(store, object, 12345, memory + 3, freed_bytes / 2, 4711);
}

/* ---- Reuse ----------------------------------------------------------------------------------- */

/* Twenty times what fits, each object in place of one that was freed while it was read. */
static void reuse(bool inline_mode)
{
	struct spw_store_info info = format_small(24 * MIB, 0);
	struct spw_store_opts opts = default_opts();
	uint64_t len = info.partition_capacity_bytes / 4 / info.block_bytes * info.block_bytes;
	uint8_t *from = memory, *to = memory + 16 * MIB;
	struct spw_request *get, *put;
	spw_object live[4];

	opts.inline_mode = inline_mode;
	store = open_drives(4, &opts);
	for (unsigned i = 0; i < 80; i++) {
		unsigned slot = i % 4;

		if (i >= 4) { /* full: what is freed is needed at once */
			assert_ok(spw_store_get(store, live[slot], 0, to, len, SPW_PREFETCH, NULL,
						&get));
			assert_ok(spw_store_free(store, live[slot]));
			assert_ok(spw_request_wait(get));
			assert_content(to, len, i - 4, 0);
		}
		content_fill(from, len, i);
		assert_ok(spw_store_put(store, from, len, NULL, &live[slot], &put));
		assert_ok(spw_request_wait(put));
	}
	for (unsigned i = 76; i < 80; i++)
		get_check(store, live[i % 4], 0, to, len, i);
	assert_int_equal(stats_of(store).bytes_put, 80 * len);
	close_store(store);
}

/* STORE-3 */
STORE_CASE(test_space_is_reused_at_once)
{
	reuse(false);
	reuse(true);
}

/* ---- Slots ----------------------------------------------------------------------------------- */

static void check_requests_max(bool inline_mode)
{
	struct spw_store_opts opts = default_opts();
	struct spw_request *requests[4], *more;
	spw_object live[5];

	opts.requests_max = 4;
	opts.inline_mode = inline_mode;
	store = open_drives(4, &opts);
	content_fill(memory, MIB, 1);
	for (unsigned round = 0; round < 50; round++) {
		for (unsigned i = 0; i < 4; i++)
			assert_ok(spw_store_put(store, memory, MIB, NULL, &live[i], &requests[i]));
		assert_int_equal(spw_store_put(store, memory, MIB, NULL, &live[4], &more),
				 -ENOBUFS);
		assert_int_equal(live[4].value, 0);
		assert_int_equal(spw_store_get(store, live[0], 0, memory + MIB, 1, SPW_URGENT_READ,
					       NULL, &more),
				 -ENOBUFS);
		assert_ok(spw_request_wait(requests[3]));
		assert_ok(spw_store_get(store, live[3], 0, memory + MIB, MIB, SPW_URGENT_READ, NULL,
					&requests[3]));
		for (unsigned i = 0; i < 4; i++)
			assert_ok(spw_request_wait(requests[i]));
		assert_content(memory + MIB, MIB, 1, 0);
		for (unsigned i = 0; i < 4; i++)
			assert_ok(spw_store_free(store, live[i]));
		/* what the refused put reserved is back */
		assert_int_equal(stats_of(store).used_bytes, 0);
		assert_int_equal(stats_of(store).requests, 0);
	}
	close_store(store);
}

FORMATTED_CASE(test_requests_max)
{
	check_requests_max(false);
	check_requests_max(true);
}

/* The slot of a freed object comes back when the worker has seen it; inline: in the next poll. */
static spw_object put_when_slot_is_free(bool inline_mode)
{
	struct spw_request *request;
	spw_object object;
	int result;

	while ((result = spw_store_put(store, memory, 5000, NULL, &object, &request)) == -ENOBUFS)
		assert_true(!inline_mode || spw_store_poll(store, false) == 0);
	assert_ok(result);
	assert_ok(spw_request_wait(request));
	return object;
}

static void check_objects_max(bool inline_mode)
{
	struct spw_store_opts opts = default_opts();
	struct spw_request *more;
	spw_object live[9];

	opts.objects_max = 8;
	opts.inline_mode = inline_mode;
	store = open_drives(4, &opts);
	for (unsigned i = 0; i < 8; i++)
		live[i] = put_wait(store, memory, 5000);
	for (unsigned round = 0; round < 50; round++) {
		assert_int_equal(spw_store_put(store, memory, 5000, NULL, &live[8], &more),
				 -ENOBUFS);
		assert_int_equal(stats_of(store).objects, 8);
		assert_ok(spw_store_free(store, live[round % 8]));
		live[round % 8] = put_when_slot_is_free(inline_mode);
	}
	for (unsigned i = 0; i < 8; i++)
		assert_ok(spw_store_free(store, live[i]));
	assert_int_equal(stats_of(store).used_bytes, 0);
	close_store(store);
}

FORMATTED_CASE(test_objects_max)
{
	check_objects_max(false);
	check_objects_max(true);
}

/* ---- Sums ------------------------------------------------------------------------------------ */

OPEN_CASE(test_counters_add_up)
{
	struct spw_drive_stats drive = {0}, sum = {0};
	struct spw_store_stats stats;
	uint64_t put_bytes = 0;

	for (unsigned i = 0; i < 50; i++) {
		size_t len = 1 + i * 70001;

		content_fill(memory, len, i);
		objects[i] = put_wait(store, memory, len);
		put_bytes += len;
	}
	for (unsigned i = 0; i < 50; i++)
		get_check(store, objects[i], 0, memory, 1 + i * 70001, i);
	for (unsigned i = 0; i < 10; i++)
		assert_ok(spw_store_free(store, objects[i]));
	for (unsigned i = 0; i < 4; i++) {
		assert_ok(spw_store_drive_stats(store, i, &drive, sizeof(drive)));
		assert_int_equal(drive.size, sizeof(drive));
		assert_true(strlen(drive.path) > 0);
		assert_int_equal(drive.in_flight, 0);
		assert_in_range(drive.in_flight_max, 1, drive.depth);
		assert_false(drive.retired);
		sum.capacity_bytes += drive.capacity_bytes;
		sum.used_bytes += drive.used_bytes;
		sum.bytes_written += drive.bytes_written;
		sum.bytes_read += drive.bytes_read;
	}
	assert_true(spw_store_drive_stats(store, 4, &drive, sizeof(drive)) < 0);
	stats = stats_of(store);
	assert_int_equal(stats.drives, 4);
	assert_int_equal(stats.drives_retired, 0);
	assert_int_equal(stats.objects, 40);
	assert_int_equal(stats.requests, 0);
	assert_int_equal(stats.puts, 50);
	assert_int_equal(stats.gets, 50);
	assert_int_equal(stats.frees, 10);
	assert_int_equal(stats.bytes_put, put_bytes);
	assert_int_equal(stats.bytes_got, put_bytes);
	assert_int_equal(stats.capacity_bytes, sum.capacity_bytes);
	assert_int_equal(stats.bytes_written, sum.bytes_written);
	assert_int_equal(stats.bytes_read, sum.bytes_read);
	assert_true(stats.bytes_written >= put_bytes &&
		    stats.bytes_written < put_bytes + 50 * 4096 * 2);
	assert_true(stats.used_bytes_max >= put_bytes);
	assert_int_equal(stats.checksum_errors + stats.read_errors + stats.write_errors, 0);
	for (unsigned i = 10; i < 50; i++)
		assert_ok(spw_store_free(store, objects[i]));
	assert_int_equal(stats_of(store).used_bytes, 0);
	assert_int_equal(stats_of(store).objects, 0);
	assert_int_equal(stats_of(store).used_bytes_max, stats.used_bytes_max);

	/* A put waited for comes after the frees: the drives' own figures have followed. */
	objects[0] = put_wait(store, memory, 1);
	for (unsigned i = 0; i < 4; i++) {
		assert_ok(spw_store_drive_stats(store, i, &drive, sizeof(drive)));
		put_bytes = i == 0 ? drive.used_bytes : put_bytes + drive.used_bytes;
	}
	assert_int_equal(put_bytes, stats_of(store).used_bytes);
}

/* An older caller's smaller struct is filled as far as it goes, and not beyond. */
OPEN_CASE(test_stats_of_an_older_caller)
{
	struct {
		struct spw_store_stats stats;
	} room;

	memset(&room, 0x77, sizeof(room));
	spw_store_stats(store, &room.stats, offsetof(struct spw_store_stats, puts));
	assert_int_equal(room.stats.drives, 4);
	assert_int_equal(room.stats.puts, UINT64_C(0x7777777777777777));
}

RUN_CASES(drives_from_environment, NULL)
