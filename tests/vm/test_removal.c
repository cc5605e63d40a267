/* SPDX-License-Identifier: MIT */
/*
 * tests/vm/test_removal.c - a drive is pulled out of the machine under a store that is busy with
 * it: it goes on with the others
 *
 * Every case pulls one drive, so the machine needs four again before the next: tests/vm/suite runs
 * one case at a time.
 */
#include "tests/vm/objects.h"

static const int gone[] = {-ENODEV, 0};

static void pull(void)
{
	machine_pull(machine_victim());
}

static void assert_retired(struct spw_store *store)
{
	struct spw_drive_stats drive;

	assert_int_equal(stats_of(store).drives_retired, 1);
	assert_int_equal(spw_store_drive_stats(store, machine_victim(), &drive, sizeof(drive)), 0);
	assert_true(drive.retired);
}

/* On all drives; the store counts what is free on one that is retired as used. */
static uint64_t used_bytes(struct spw_store *store)
{
	struct spw_drive_stats drive;
	uint64_t used = 0;

	for (unsigned i = 0; i < 4; i++) {
		assert_int_equal(spw_store_drive_stats(store, i, &drive, sizeof(drive)), 0);
		used += drive.used_bytes;
	}
	return used;
}

/* New objects lie on the drives that are left, and nothing of the space is lost but the drive's. */
static void goes_on_without_it(struct spw_store *store)
{
	put_all(store);
	put_all(store);
	assert_int_equal(get_all(store, NULL), 0);
	assert_retired(store);
	for (unsigned place = 0; place < OBJECTS; place++)
		assert_ok(spw_store_free(store, objects[place]));
	/*
	 * What was freed comes back when the worker has seen it: a request that ends later proves
	 * that.
	 */
	objects[0] = put_wait(store, memory[0], OBJECT_BYTES);
	assert_int_equal(used_bytes(store), OBJECT_BYTES);
	close_store(store);
}

STORE_CASE(test_pulled_during_put)
{
	time_t deadline = machine_seconds() + MACHINE_PATIENCE_S;
	struct spw_store *store = open_filled();

	put_batch(store, pull);
	while (stats_of(store).drives_retired == 0) {
		machine_assert_before(deadline, "a write to the drive that was pulled fails");
		put_batch(store, NULL);
	}
	assert_true(stats_of(store).chunks_moved > 0);
	assert_true(stats_of(store).write_errors > 0);
	/* Objects from before are lost in part; whatever is handed out is right. */
	assert_true(get_all(store, NULL) > 0);
	goes_on_without_it(store);
}

STORE_CASE(test_pulled_during_get)
{
	time_t deadline = machine_seconds() + MACHINE_PATIENCE_S;
	struct spw_store *store = open_filled();
	unsigned lost;

	for (lost = get_all(store, pull); lost == 0; lost = get_all(store, NULL))
		machine_assert_before(deadline, "a read of the drive that was pulled fails");
	assert_true(stats_of(store).read_errors > 0);
	assert_int_equal(stats_of(store).checksum_errors, 0);
	assert_retired(store);
	goes_on_without_it(store);
}

RUN_OBJECT_CASES(gone)
