/* SPDX-License-Identifier: MIT */
/*
 * tests/vm/test_removal.c - a drive is pulled out of the machine under a store that is busy with it: it goes on with the others
 *
 * Every case pulls one drive, so the machine needs four again before the next: tests/vm/suite runs one case at a time.
 */
#include "tests/integration/test_store.h"
#include "tests/vm/machine.h"

#define OBJECT_BYTES (4 * MIB)
#define OBJECTS      24u /* alive at once */
#define BATCH        4u  /* in flight at once */

static uint8_t *memory[BATCH];
static spw_object objects[OBJECTS];
static uint64_t seeds[OBJECTS];
static uint64_t puts_begun;

static int setup(void **state)
{
	if (!machine_is_there()) {
		printf("runs in the virtual machine of tests/vm\n");
		exit(77);
	}
	for (unsigned i = 0; i < BATCH; i++) {
		memory[i] = aligned_alloc(4096, OBJECT_BYTES);
		if (!memory[i])
			quit("no memory for the test's buffers");
	}
	return drives_from_environment(state);
}

static int teardown(void **state)
{
	(void)state;
	for (unsigned i = 0; i < BATCH; i++)
		free(memory[i]);
	return 0;
}

/* A batch of objects in the places of the oldest. All must succeed, whatever becomes of the drives. */
static void put_batch(struct spw_store *store, bool pull)
{
	struct spw_request *requests[BATCH];

	for (unsigned i = 0; i < BATCH; i++) {
		unsigned place = (unsigned)(puts_begun % OBJECTS);

		if (puts_begun >= OBJECTS)
			assert_ok(spw_store_free(store, objects[place]));
		seeds[place] = ++puts_begun;
		content_fill(memory[i], OBJECT_BYTES, seeds[place]);
		assert_ok(spw_store_put(store, memory[i], OBJECT_BYTES, NULL, &objects[place], &requests[i]));
	}
	if (pull)
		machine_pull(machine_victim());
	for (unsigned i = 0; i < BATCH; i++)
		assert_ok(spw_request_wait(requests[i]));
}

/* How a get ended: with the right bytes, or because the drive that was pulled is gone, which the words name. */
static bool is_readable(struct spw_request *request, unsigned place, const uint8_t *bytes)
{
	int result = spw_request_wait(request);

	if (result == 0) {
		assert_content(bytes, OBJECT_BYTES, seeds[place], 0);
		return true;
	}
	if (result != -ENODEV || !strstr(spw_last_error(), drive_paths[machine_victim()]) ||
	    !strstr(spw_last_error(), "at block"))
		fail_msg("get ended with %s (%s)", spw_strerror(result), spw_last_error());
	return false;
}

/* All objects, in batches. Return: how many could not be read. */
static unsigned get_all(struct spw_store *store, bool pull)
{
	struct spw_request *requests[BATCH];
	unsigned lost = 0;

	for (unsigned place = 0; place < OBJECTS; place += BATCH) {
		for (unsigned i = 0; i < BATCH; i++) {
			memset(memory[i], 0xA5, OBJECT_BYTES);
			assert_ok(spw_store_get(store, objects[place + i], 0, memory[i], OBJECT_BYTES, SPW_URGENT_READ,
						NULL, &requests[i]));
		}
		if (pull && place == BATCH)
			machine_pull(machine_victim());
		for (unsigned i = 0; i < BATCH; i++)
			lost += !is_readable(requests[i], place + i, memory[i]);
	}
	return lost;
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
	for (unsigned i = 0; i < 2 * OBJECTS; i += BATCH)
		put_batch(store, false);
	assert_int_equal(get_all(store, false), 0);
	assert_retired(store);
	for (unsigned place = 0; place < OBJECTS; place++)
		assert_ok(spw_store_free(store, objects[place]));
	/* What was freed comes back when the worker has seen it: a request that ends later proves that. */
	objects[0] = put_wait(store, memory[0], OBJECT_BYTES);
	assert_int_equal(used_bytes(store), OBJECT_BYTES);
	close_store(store);
}

static void test_pulled_during_put(void **state)
{
	time_t deadline = machine_seconds() + MACHINE_PATIENCE_S;
	struct spw_store *store;

	(void)state;
	(void)format_drives(4, 1, MIB);
	store = open_default();
	while (puts_begun < OBJECTS)
		put_batch(store, false);
	put_batch(store, true);
	while (stats_of(store).drives_retired == 0) {
		machine_assert_before(deadline, "a write to the drive that was pulled fails");
		put_batch(store, false);
	}
	assert_true(stats_of(store).chunks_moved > 0);
	assert_true(stats_of(store).write_errors > 0);
	/* Objects from before are lost in part; whatever is handed out is right. */
	assert_true(get_all(store, false) > 0);
	goes_on_without_it(store);
}

static void test_pulled_during_get(void **state)
{
	time_t deadline = machine_seconds() + MACHINE_PATIENCE_S;
	struct spw_store *store;
	unsigned lost;

	(void)state;
	(void)format_drives(4, 1, MIB);
	store = open_default();
	while (puts_begun < OBJECTS)
		put_batch(store, false);
	for (lost = get_all(store, true); lost == 0; lost = get_all(store, false))
		machine_assert_before(deadline, "a read of the drive that was pulled fails");
	assert_true(stats_of(store).read_errors > 0);
	assert_int_equal(stats_of(store).checksum_errors, 0);
	assert_retired(store);
	goes_on_without_it(store);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		test_case(test_pulled_during_put),
		test_case(test_pulled_during_get),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, setup, teardown);
}
