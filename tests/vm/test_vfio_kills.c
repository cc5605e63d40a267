/* SPDX-License-Identifier: MIT */
/*
 * tests/vm/test_vfio_kills.c - kill -9 of a process that drives its drives itself, in the middle of its I/O, or as it
 * opens them, again and again
 *
 * Nobody tells the controllers to stop: the kernel takes the memory away from them and resets them. The next process
 * must find them good for use at once, the store intact, and not one byte changed where the killed one did not
 * write: the second partition.
 */
#include "tests/integration/test_child.h"

#include <stdbool.h>

#define DRIVES       2
#define KILLS_MAX    100
#define SLOTS        8
#define VERIFIED     2 /* of them, after each kill: to make and compare bytes takes an emulated processor longest */
#define OBJECT_BYTES (MIB + 4096)
#define KEPT_BYTES   MIB /* of each drive, in the partition that nobody has open */
#define KEPT_SEED    77
#define DELAY_US_MAX 30000
#define OPEN_EVERY   5u     /* so often as it opens them, */
#define OPEN_US_MAX  400000 /* which takes about so long */

static uint64_t seed;
static uint64_t kept_offset_bytes[DRIVES];
static uint8_t *memory; /* SLOTS objects */

static uint8_t *slot(unsigned i)
{
	return memory + i * (size_t)OBJECT_BYTES;
}

static int try_open_store(struct spw_store **store)
{
	struct spw_store_opts opts = default_opts();

	opts.arena_bytes = 16 * MIB;
	return try_open(drive_paths, DRIVES, &opts, store);
}

/* Puts and gets, all slots at a time, without end. @opening: it says so before it opens the store, not after. */
static void work(int said, uint64_t opening)
{
	struct spw_request *requests[SLOTS];
	spw_object objects[SLOTS];
	struct spw_store *store;

	if (opening)
		child_says(said);
	child_check(try_open_store(&store) == 0);
	for (unsigned round = 0;; round++) {
		for (unsigned i = 0; i < SLOTS; i++)
			child_check(spw_store_put(store, slot(i), OBJECT_BYTES, NULL, &objects[i], &requests[i]) == 0);
		if (round == 0 && !opening)
			child_says(said);
		for (unsigned i = 0; i < SLOTS; i++)
			child_check(spw_request_wait(requests[i]) == 0);
		for (unsigned i = 0; i < SLOTS; i++)
			child_check(spw_store_get(store, objects[i], 0, slot(i), OBJECT_BYTES, SPW_PREFETCH, NULL,
						  &requests[i]) == 0);
		for (unsigned i = 0; i < SLOTS; i++) {
			child_check(spw_request_wait(requests[i]) == 0);
			child_check(spw_store_free(store, objects[i]) == 0);
		}
	}
}

static void move_kept(bool write_it)
{
	uint8_t *bytes = aligned_alloc(4096, KEPT_BYTES);

	assert_non_null(bytes);
	for (unsigned i = 0; i < DRIVES; i++) {
		struct spw_device *device;

		assert_ok(spw_device_open(drive_paths[i], NULL, &device));
		content_fill(bytes, KEPT_BYTES, KEPT_SEED + i);
		if (write_it)
			assert_ok(spw_device_pwrite(device, bytes, KEPT_BYTES, kept_offset_bytes[i]));
		memset(bytes, 0, KEPT_BYTES);
		assert_ok(spw_device_pread(device, bytes, KEPT_BYTES, kept_offset_bytes[i]));
		assert_int_equal(content_differs(bytes, KEPT_BYTES, KEPT_SEED + i, 0), KEPT_BYTES);
		spw_device_close(device);
	}
	free(bytes);
}

/* What a new process finds: this one, which has nothing open. */
static void verify(unsigned round)
{
	uint8_t *back = malloc(OBJECT_BYTES);
	spw_object objects[VERIFIED];
	struct spw_store *store;

	assert_non_null(back);
	assert_ok(try_open_store(&store));
	for (unsigned i = 0; i < VERIFIED; i++) {
		content_fill(slot(i), OBJECT_BYTES, round * VERIFIED + i);
		objects[i] = put_wait(store, slot(i), OBJECT_BYTES);
	}
	move_kept(false);
	for (unsigned i = 0; i < VERIFIED; i++) {
		assert_ok(get_wait(store, objects[i], 0, back, OBJECT_BYTES));
		assert_int_equal(content_differs(back, OBJECT_BYTES, round * VERIFIED + i, 0), OBJECT_BYTES);
	}
	close_store(store);
	free(back);
}

static void test_killed(void **state)
{
	struct spw_drive_info drives[DRIVES];
	const char *text = getenv("SPW_KILLS");
	unsigned kills = text ? (unsigned)strtoul(text, NULL, 10) : KILLS_MAX;

	(void)state;
	seed = random_seed();
	(void)format_drives(DRIVES, 2, MIB);
	for (unsigned i = 0; i < DRIVES; i++)
		drives[i].size = sizeof(drives[i]);
	assert_ok(spw_check(drive_paths, DRIVES, NULL, drives));
	for (unsigned i = 0; i < DRIVES; i++)
		kept_offset_bytes[i] = drives[i].data_offset_bytes + drives[i].partition_bytes + 4 * MIB;
	move_kept(true);
	memory = malloc(SLOTS * (size_t)OBJECT_BYTES);
	assert_non_null(memory);
	content_fill(memory, SLOTS * (size_t)OBJECT_BYTES, 1);
	for (unsigned round = 1; round <= kills; round++) {
		bool opening = round % OPEN_EVERY == 0;

		start_child(work, opening);
		kill_child_within(&seed, opening ? OPEN_US_MAX : DELAY_US_MAX);
		verify(round);
	}
	assert_ok(spw_check(drive_paths, DRIVES, NULL, NULL));
	printf("killed %u times, every %uth as it opened its drives\n", kills, OPEN_EVERY);
	free(memory);
}

static int set_up(void **state)
{
	int rc = drives_from_environment(state);

	/* The child must find them free. */
	release_controllers();
	return rc;
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(test_killed, end_child)};

	return cmocka_run_group_tests(tests, set_up, NULL);
}
