/* SPDX-License-Identifier: MIT */
/*
 * tests/integration/test_killed.c - kill -9 at random moments: of a process that puts, gets and
 * frees, and of one that formats
 *
 * After a kill the store opens at once, empty and good for use, and its neighbour's partition holds
 * every byte. After a kill in the middle of a format the drives are the old store, the new one, or
 * are refused with a message; never anything else.
 */
#include "tests/integration/test_child.h"

#define KILLS         8
#define FORMAT_KILLS  12
#define OPENING_KILLS 20
#define FORMAT_DRIVES 2
#define SLOTS         8
#define OBJECT_BYTES  (MIB / 2)

static uint64_t seed;

/* ---- Traffic ---- */

/* Puts, gets and frees without end; every byte that comes back is checked. */
static void traffic(uint64_t random)
{
	struct spw_request *puts[SLOTS] = {NULL};
	uint8_t *from = malloc(SLOTS * (size_t)OBJECT_BYTES), *back = malloc(OBJECT_BYTES);
	spw_object objects[SLOTS];
	size_t lens[SLOTS];
	struct spw_store *store;

	child_check(from && back && open_partition(0, &store) == 0);
	content_fill(from, SLOTS * (size_t)OBJECT_BYTES, random);
	child_says();
	for (;;) {
		unsigned slot = (unsigned)random_below(&random, SLOTS);

		if (puts[slot]) {
			child_check(spw_request_wait(puts[slot]) == 0);
			child_check(get_wait(store, objects[slot], 0, back, lens[slot]) == 0);
			child_check(memcmp(back, from + slot * (size_t)OBJECT_BYTES, lens[slot]) ==
				    0);
			child_check(spw_store_free(store, objects[slot]) == 0);
		}
		lens[slot] = 1 + random_below(&random, OBJECT_BYTES);
		child_check(spw_store_put(store, from + slot * (size_t)OBJECT_BYTES, lens[slot],
					  NULL, &objects[slot], &puts[slot]) == 0);
	}
}

/* URING-1 */
CHILD_CASE(test_traffic_killed)
{
	uint8_t *bytes = malloc(4 * MIB);
	struct spw_store *store, *neighbour;
	spw_object kept, object;

	skip_under_thread_sanitizer();
	assert_non_null(bytes);
	format_drives(4, 2, SPW_CHUNK_BYTES_MIN);
	assert_ok(open_partition(1, &neighbour));
	content_fill(bytes, 4 * MIB, 77);
	kept = put_wait(neighbour, bytes, 4 * MIB);
	for (unsigned round = 0; round < KILLS; round++) {
		kill_at_work(traffic, random_next(&seed), &seed, 30000);
		assert_ok(open_partition(0, &store));
		assert_int_equal(stats_of(store).used_bytes, 0);
		content_fill(bytes, 4 * MIB, round);
		object = put_wait(store, bytes, 4 * MIB);
		get_check(store, object, 0, bytes, 4 * MIB, round);
		get_check(neighbour, kept, 0, bytes, 4 * MIB, 77);
		close_store(store);
		assert_ok(spw_check(drive_paths, 4, NULL, NULL));
	}
	close_store(neighbour);
	free(bytes);
}

/* ---- Opening ---- */

/* With as much memory as by default: the kernel takes long to register and to release it. */
static void opens(uint64_t random)
{
	struct spw_store_opts opts = default_opts();
	struct spw_store *store;

	(void)random;
	opts.partition = 0;
	opts.arena_bytes = 256 * MIB;
	child_says();
	child_check(try_open(drive_paths, 4, &opts, &store) == 0);
	for (;;)
		(void)pause();
}

/* Also before it has published who it is: who opens next waits for the kernel, without an error. */
CHILD_CASE(test_opening_killed)
{
	struct spw_store *store;

	format_drives(4, 1, SPW_CHUNK_BYTES_MIN);
	for (unsigned round = 0; round < OPENING_KILLS; round++) {
		kill_at_work(opens, random_next(&seed), &seed, 160000);
		assert_ok(open_partition(0, &store));
		close_store(store);
	}
}

/* ---- Format ---- */

static int format_with(uint32_t partitions)
{
	struct spw_format_opts opts;

	spw_format_opts_init(&opts, sizeof(opts));
	opts.partitions = partitions;
	opts.chunk_bytes = SPW_CHUNK_BYTES_MIN;
	opts.force = true;
	return spw_format(drive_paths, FORMAT_DRIVES, &opts, NULL);
}

/* A store of 3 partitions, then one of 4, again and again. */
static void formats(uint64_t random)
{
	(void)random;
	child_says();
	for (unsigned i = 0;; i++)
		child_check(format_with(3 + i % 2) == 0);
}

CHILD_CASE(test_format_killed)
{
	unsigned usable = 0, refused = 0;

	assert_ok(format_with(4));
	for (unsigned round = 0; round < FORMAT_KILLS; round++) {
		struct spw_store_info info = {.size = sizeof(info)};
		struct spw_store *store = NULL;
		struct spw_store_opts opts = default_opts();
		int rc;

		kill_at_work(formats, random_next(&seed), &seed, 60000);
		rc = spw_check(drive_paths, FORMAT_DRIVES, &info, NULL);
		if (rc == 0)
			assert_true(info.drives == FORMAT_DRIVES &&
				    (info.partitions == 3 || info.partitions == 4));
		else if ((rc != -EUCLEAN && rc != -EMEDIUMTYPE && rc != -ENXIO) ||
			 spw_last_error()[0] == '\0')
			fail_msg("a format that was killed left %s (%s)", spw_strerror(rc),
				 spw_last_error());
		usable += rc == 0;
		refused += rc != 0;
		opts.arena_bytes = 8 * MIB;
		assert_int_equal(try_open(drive_paths, FORMAT_DRIVES, &opts, &store), rc);
		if (store)
			close_store(store);
		assert_ok(format_with(4));
	}
	print_message("killed in a format: %u times usable, %u times refused\n", usable, refused);
}

static int setup(void **state)
{
	seed = random_seed();
	return drives_from_environment(state);
}

RUN_CASES(setup, NULL)
