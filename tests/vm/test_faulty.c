/* SPDX-License-Identifier: MIT */
/*
 * tests/vm/test_faulty.c - a store over one drive that is slow, fails now and then, or hands out
 * other bytes
 *
 * The kernel's own faulty drives (dm-flakey, dm-delay, scsi_debug) and QEMU's, set up by
 * tests/vm/machines.py. SPW_VM_BREAK is the command that lets the last drive go bad, once the store
 * is in use.
 */
#include "tests/vm/objects.h"

static const int faults[] = {-EIO, -ENODEV, -ETIMEDOUT, -EBADMSG, -EREMOTEIO, -ENODATA, -EILSEQ, 0};

static void break_drive(void)
{
	(void)machine_run("SPW_VM_BREAK");
}

static uint64_t faults_seen(struct spw_store *store)
{
	struct spw_store_stats stats = stats_of(store);

	return stats.write_errors + stats.read_errors + stats.checksum_errors;
}

/* Every put succeeds, and every get hands out what was put or names the drive and the block. */
STORE_CASE(test_a_drive_that_fails)
{
	time_t deadline = machine_seconds() + MACHINE_PATIENCE_S;
	struct spw_store *store = open_filled();

	/* One that nothing has to break is bad from the start. */
	if (getenv("SPW_VM_BREAK"))
		assert_int_equal(faults_seen(store), 0);
	(void)get_all(store, break_drive);
	while (faults_seen(store) == 0) {
		machine_assert_before(deadline, "the drive fails");
		put_batch(store, NULL);
		(void)get_all(store, NULL);
	}
	put_all(store);
	(void)get_all(store, NULL);
	close_store(store);
}

/* Nothing fails, and a slow drive is not retired for that. */
STORE_CASE(test_a_drive_that_is_slow)
{
	struct spw_store *store = open_filled();

	break_drive();
	put_all(store);
	assert_int_equal(get_all(store, NULL), 0);
	assert_int_equal(faults_seen(store), 0);
	assert_int_equal(stats_of(store).drives_retired, 0);
	close_store(store);
}

/* A drive that is elsewhere, and answers. */
STORE_CASE(test_a_drive_that_is_well)
{
	struct spw_store *store = open_filled();

	assert_int_equal(get_all(store, NULL), 0);
	assert_int_equal(faults_seen(store), 0);
	close_store(store);
}

RUN_OBJECT_CASES(faults)
