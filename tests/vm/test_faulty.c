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
	const char *command = getenv("SPW_VM_BREAK");

	if (command && system(command) != 0)
		fail_msg("failed: %s", command);
}

static struct spw_store *open_filled(void)
{
	struct spw_store *store;

	(void)format_drives(4, 1, MIB);
	store = open_default();
	while (puts_begun < OBJECTS)
		put_batch(store, NULL);
	return store;
}

static uint64_t faults_seen(struct spw_store *store)
{
	struct spw_store_stats stats = stats_of(store);

	return stats.write_errors + stats.read_errors + stats.checksum_errors;
}

/* Every put succeeds, and every get hands out what was put or names the drive and the block. */
static void test_a_drive_that_fails(void **state)
{
	time_t deadline = machine_seconds() + MACHINE_PATIENCE_S;
	struct spw_store *store = open_filled();

	(void)state;
	/* One that nothing has to break is bad from the start. */
	if (getenv("SPW_VM_BREAK"))
		assert_int_equal(faults_seen(store), 0);
	(void)get_all(store, break_drive);
	while (faults_seen(store) == 0) {
		machine_assert_before(deadline, "the drive fails");
		put_batch(store, NULL);
		(void)get_all(store, NULL);
	}
	for (unsigned i = 0; i < OBJECTS; i += BATCH)
		put_batch(store, NULL);
	(void)get_all(store, NULL);
	close_store(store);
}

/* Nothing fails, and slow is no reason to retire. */
static void test_a_drive_that_is_slow(void **state)
{
	struct spw_store *store = open_filled();

	(void)state;
	break_drive();
	for (unsigned i = 0; i < OBJECTS; i += BATCH)
		put_batch(store, NULL);
	assert_int_equal(get_all(store, NULL), 0);
	assert_int_equal(faults_seen(store), 0);
	assert_int_equal(stats_of(store).drives_retired, 0);
	close_store(store);
}

/* A drive that is elsewhere, and answers. */
static void test_a_drive_that_is_well(void **state)
{
	struct spw_store *store = open_filled();

	(void)state;
	assert_int_equal(get_all(store, NULL), 0);
	assert_int_equal(faults_seen(store), 0);
	close_store(store);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		test_case(test_a_drive_that_fails),
		test_case(test_a_drive_that_is_slow),
		test_case(test_a_drive_that_is_well),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	errors_allowed = faults;
	return cmocka_run_group_tests(tests, setup_objects, teardown_objects);
}
