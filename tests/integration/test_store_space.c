/* SPDX-License-Identifier: MIT */
/*
 * tests/integration/test_store_space.c - space and slots: used to the last block, refused exactly,
 * reused at once, spread evenly
 */
#include "tests/integration/test_store.h"

#include <stdbool.h>

#define OBJECTS_MAX 4096u

static uint8_t *memory;
static const size_t memory_bytes = (size_t)80 * MIB;

static int setup(void **state)
{
	memory = malloc(memory_bytes);
	if (!memory)
		quit("no memory for the test's buffers");
	return drives_from_environment(state);
}

static int teardown(void **state)
{
	(void)state;
	free(memory);
	return 0;
}

static spw_object objects[OBJECTS_MAX];

/* Put objects of @len until one is refused. Return: how many there are then. */
static unsigned fill(struct spw_store *store, size_t len, unsigned count)
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

static void check_all(struct spw_store *store, size_t len, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		get_check(store, objects[i], 0, memory, len, i);
}

/* ---- Full ------------------------------------------------------------------------------------ */

static void fill_to_the_last_block(size_t len, uint64_t chunk_bytes, enum spw_stripe stripe)
{
	struct spw_store_info info = format_small(48 * MIB, chunk_bytes);
	struct spw_store_opts opts = default_opts();
	struct spw_store_stats before, after;
	uint64_t object_bytes = (len + info.block_bytes - 1) / info.block_bytes * info.block_bytes;
	struct spw_request *request;
	struct spw_store *store;
	spw_object other;
	unsigned count;

	opts.stripe = stripe;
	store = open_drives(4, &opts);
	assert_int_equal(stats_of(store).capacity_bytes, info.partition_capacity_bytes);
	count = fill(store, len, 0);

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
	check_all(store, len, count);

	/* One freed, one fits, and only one. */
	for (unsigned i = 0; i < count; i += count / 3) {
		assert_ok(spw_store_free(store, objects[i]));
		content_fill(memory + 1, len, i);
		objects[i] = put_wait(store, memory + 1, len);
		assert_int_equal(spw_store_put(store, memory, len, NULL, &other, &request),
				 -ENOSPC);
	}
	check_all(store, len, count);

	/* What is left over can be used too. */
	while (before.capacity_bytes > (after = stats_of(store)).used_bytes)
		(void)put_wait(store, memory, info.block_bytes);
	assert_int_equal(after.used_bytes, after.capacity_bytes);
	for (unsigned i = 0; i < count; i++)
		assert_ok(spw_store_free(store, objects[i]));
	close_store(store);
}

static void test_full_pull(void **state)
{
	(void)state;
	fill_to_the_last_block(1000003, 0, SPW_STRIPE_PULL);
	fill_to_the_last_block(3 * MIB + 1, SPW_CHUNK_BYTES_MIN, SPW_STRIPE_PULL);
}

static void test_full_static(void **state)
{
	(void)state;
	fill_to_the_last_block(1000003, 0, SPW_STRIPE_STATIC);
	fill_to_the_last_block(3 * MIB + 1, SPW_CHUNK_BYTES_MIN, SPW_STRIPE_STATIC);
}

/* One object as large as the partition; then not one byte more. */
static void test_one_object_of_all_space(void **state)
{
	struct spw_store_info info = format_small(48 * MIB, 0);
	uint64_t len = info.partition_capacity_bytes;
	struct spw_request *request;
	struct spw_store *store;
	spw_object object, other;

	(void)state;
	assert_true(len < memory_bytes);
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
	close_store(store);
}

/*
 * Full of single blocks, half of them freed at random: what fits then lies in many pieces, and
 * comes back whole.
 */
static void test_splits_over_many_extents(void **state)
{
	struct spw_store_info info = format_small(12 * MIB, SPW_CHUNK_BYTES_MIN);
	uint64_t freed_bytes = 0, random = random_seed();
	bool freed[OBJECTS_MAX] = {false};
	struct spw_store *store;
	spw_object object;
	unsigned count;

	(void)state;
	store = open_default();
	count = fill(store, info.block_bytes, 0);
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
	close_store(store);
}

/* ---- Reuse ----------------------------------------------------------------------------------- */

/*
 * Twenty times what fits, each object in what another has just given back, which was freed while it
 * was read.
 */
static void reuse(bool inline_mode)
{
	struct spw_store_info info = format_small(24 * MIB, 0);
	struct spw_store_opts opts = default_opts();
	uint64_t len = info.partition_capacity_bytes / 4 / info.block_bytes * info.block_bytes;
	uint8_t *from = memory, *to = memory + 16 * MIB;
	struct spw_request *get, *put;
	struct spw_store *store;
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

static void test_space_is_reused_at_once(void **state)
{
	(void)state;
	reuse(false);
	reuse(true);
}

/* ---- Slots ----------------------------------------------------------------------------------- */

static void check_requests_max(bool inline_mode)
{
	struct spw_store_opts opts = default_opts();
	struct spw_request *requests[4], *more;
	struct spw_store *store;
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

static void test_requests_max(void **state)
{
	(void)state;
	format_drives(4, 1, 0);
	check_requests_max(false);
	check_requests_max(true);
}

/*
 * The slot of an object that was freed comes back as soon as the worker has seen it; inline mode:
 * in the next poll.
 */
static spw_object put_when_slot_is_free(struct spw_store *store, bool inline_mode)
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
	struct spw_store *store;
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
		live[round % 8] = put_when_slot_is_free(store, inline_mode);
	}
	for (unsigned i = 0; i < 8; i++)
		assert_ok(spw_store_free(store, live[i]));
	assert_int_equal(stats_of(store).used_bytes, 0);
	close_store(store);
}

static void test_objects_max(void **state)
{
	(void)state;
	format_drives(4, 1, 0);
	check_objects_max(false);
	check_objects_max(true);
}

/* ---- Spread ---------------------------------------------------------------------------------- */

/*
 * 256 MiB. One object at a time, the bytes written per drive are within 2 % of their mean. All at
 * once, a drive that the machine holds up takes less, as it should: only that none is left out is
 * certain.
 */
static void check_even(size_t len, bool wait_for_each)
{
	double tolerance = wait_for_each ? 0.02 : 0.5;
	struct spw_request *requests[256];
	struct spw_drive_stats drive = {0};
	unsigned count = (unsigned)(256 * MIB / len);
	struct spw_store *store = open_default();
	uint64_t written = 0;
	double mean;

	assert_true(count <= 256);
	content_fill(memory, len, 1);
	for (unsigned i = 0; i < count; i++) {
		assert_ok(spw_store_put(store, memory, len, NULL, &objects[i], &requests[i]));
		if (wait_for_each)
			assert_ok(spw_request_wait(requests[i]));
	}
	for (unsigned i = 0; i < count && !wait_for_each; i++)
		assert_ok(spw_request_wait(requests[i]));
	mean = (double)stats_of(store).bytes_written / 4;
	for (unsigned i = 0; i < 4; i++) {
		assert_ok(spw_store_drive_stats(store, i, &drive, sizeof(drive)));
		written += drive.bytes_written;
		if ((double)drive.bytes_written < mean * (1 - tolerance) ||
		    (double)drive.bytes_written > mean * (1 + tolerance))
			fail_msg("objects of %zu bytes: drive %u of 4 took %llu bytes, the mean is "
				 "%.0f",
				 len, i, (unsigned long long)drive.bytes_written, mean);
	}
	assert_int_equal(written, stats_of(store).bytes_written);
	assert_true(written >= count * len);
	close_store(store);
}

static void test_drives_are_used_evenly(void **state)
{
	(void)state;
	format_drives(4, 1, 0);
	check_even(64 * MIB, false);
	check_even(4 * MIB, false);
	check_even(4 * MIB, true);
	check_even(MIB, true);
	check_even(1100000, false);
}

/* ---- Sums ------------------------------------------------------------------------------------ */

static void test_counters_add_up(void **state)
{
	struct spw_drive_stats drive = {0}, sum = {0};
	struct spw_store_stats stats;
	struct spw_store *store;
	uint64_t put_bytes = 0;

	(void)state;
	format_drives(4, 1, 0);
	store = open_default();
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
	close_store(store);
}

/* An older caller's smaller struct is filled as far as it goes, and not beyond. */
static void test_stats_of_an_older_caller(void **state)
{
	struct spw_store *store;
	struct {
		struct spw_store_stats stats;
	} room;

	(void)state;
	format_drives(4, 1, 0);
	store = open_default();
	memset(&room, 0x77, sizeof(room));
	spw_store_stats(store, &room.stats, offsetof(struct spw_store_stats, puts));
	assert_int_equal(room.stats.drives, 4);
	assert_int_equal(room.stats.puts, UINT64_C(0x7777777777777777));
	close_store(store);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		test_case(test_full_pull),
		test_case(test_full_static),
		test_case(test_one_object_of_all_space),
		test_case(test_splits_over_many_extents),
		test_case(test_space_is_reused_at_once),
		test_case(test_requests_max),
		test_case(test_objects_max),
		test_case(test_drives_are_used_evenly),
		test_case(test_counters_add_up),
		test_case(test_stats_of_an_older_caller),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
