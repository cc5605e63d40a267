/* SPDX-License-Identifier: MIT */
/*
 * tests/integration/test_store_processes.c - several processes on the same drives: one per
 * partition, none in another's, none for ever
 */
#include "tests/integration/test_child.h"

/* A store in use is not formatted, forced or not, nor wiped; it can be looked at. */
static void expect_left_alone(void)
{
	struct spw_format_opts opts;

	spw_format_opts_init(&opts, sizeof(opts));
	opts.force = true;
	assert_int_equal(spw_format(drive_paths, 4, &opts, NULL), -EBUSY);
	assert_int_equal(spw_format(drive_paths + 3, 1, &opts, NULL), -EBUSY);
	assert_int_equal(spw_wipe(drive_paths, 4, NULL), -EBUSY);
}

static unsigned partitions_in_use(void)
{
	struct spw_store_info info = {.size = sizeof(info)};

	assert_ok(spw_check(drive_paths, 4, &info, NULL));
	return info.partitions_in_use;
}

/* ---- One partition, one process -------------------------------------------------------------- */

static void hold_partition(uint64_t partition)
{
	struct spw_store *store;

	child_check(open_partition((uint32_t)partition, &store) == 0);
	child_says_and_waits();
	close_store(store);
	child_says_and_waits();
}

CHILD_CASE(test_partition_in_use)
{
	struct spw_store *store, *mine;
	struct child *child;

	format_drives(4, 2, 0);
	child = start_child(0, hold_partition, 0);
	await_step(child);
	assert_int_equal(open_partition(0, &store), -EBUSY);
	assert_null(store);
	assert_true(strlen(spw_last_error()) > 0);
	assert_int_equal(open_partition(2, &store), -EINVAL); /* there are two */
	expect_left_alone();
	assert_int_equal(partitions_in_use(), 1);

	assert_ok(open_partition(SPW_PARTITION_ANY, &mine));
	assert_int_equal(stats_of(mine).partition, 1);
	assert_int_equal(open_partition(SPW_PARTITION_ANY, &store), -EBUSY);
	assert_int_equal(open_partition(1, &store), -EBUSY); /* also for the process that has it */

	let_go_on(child); /* it closes, and lives on */
	await_step(child);
	assert_int_equal(partitions_in_use(), 1);
	assert_ok(open_partition(0, &store));
	close_store(store);
	close_store(mine);
	assert_ok(open_partition(1, &mine));
	close_store(mine);
	let_go_on(child);
	assert_int_equal(reap(child), 0);
}

/* ---- Forked ---- */

static struct spw_store *inherited;
static struct spw_request *inherited_request;
static spw_object inherited_object;

/* All that a child could do by mistake is refused, does not hang, and touches nothing. */
static void misuse(uint64_t argument)
{
	static uint8_t bytes[4096];
	struct spw_request *request;
	spw_object object;
	void *memory;
	size_t len;

	(void)argument;
	(void)alarm(60);
	child_check(spw_store_put(inherited, bytes, sizeof(bytes), NULL, &object, &request) ==
		    -EPERM);
	child_check(strstr(spw_last_error(), "before fork()") != NULL);
	child_check(spw_store_get(inherited, inherited_object, 0, bytes, sizeof(bytes),
				  SPW_URGENT_READ, NULL, &request) == -EPERM);
	child_check(spw_request_wait(inherited_request) == -EPERM);
	child_check(spw_request_test(inherited_request) == -EPERM);
	child_check(spw_request_wait_any(&inherited_request, 1, -1) == -EPERM);
	child_check(spw_request_cancel(inherited_request) == -EPERM);
	child_check(spw_store_flush(inherited, NULL, &request) == -EPERM);
	child_check(spw_store_free(inherited, inherited_object) == -EPERM);
	child_check(spw_store_alloc(inherited, 4096, &memory) == -EPERM);
	child_check(spw_store_arena(inherited, &memory, &len) == -EPERM);
	child_check(spw_store_poll(inherited, false) == -EPERM);
	spw_store_close(inherited);
}

CHILD_CASE(test_child_of_fork)
{
	uint8_t *bytes = malloc(4 * MIB);
	struct spw_store *store;
	struct child *child;

	assert_non_null(bytes);
	content_fill(bytes, 4 * MIB, 7);
	format_drives(4, 1, 0);
	for (unsigned inline_mode = 0; inline_mode < 2; inline_mode++) {
		struct spw_store_opts opts = partition_opts(0);

		opts.inline_mode = inline_mode != 0;
		assert_ok(try_open(drive_paths, 4, &opts, &inherited));
		assert_ok(spw_store_put(inherited, bytes, 4 * MIB, NULL, &inherited_object,
					&inherited_request));
		child = start_child(0, misuse, 0);
		assert_int_equal(reap(child), 0);
		/* The partition is still the parent's, and its bytes too. */
		assert_int_equal(open_partition(0, &store), -EBUSY);
		assert_ok(spw_request_wait(inherited_request));
		get_check(inherited, inherited_object, 0, bytes, 4 * MIB, 7);
		assert_ok(spw_store_free(inherited, inherited_object));
		close_store(inherited);
		assert_ok(open_partition(0, &store));
		close_store(store);
	}
	free(bytes);
}

/* ---- Side by side ---------------------------------------------------------------------------- */

/* Fill the partition; when all are full, read it; then with other bytes, freed in another order. */
static void fill_and_verify(uint64_t which)
{
	enum { OBJECTS_MAX = 64 };
	const size_t len = MIB - 4096 * which;
	spw_object objects[OBJECTS_MAX];
	uint8_t *bytes = malloc(MIB);
	struct spw_request *request;
	struct spw_store *store;
	unsigned count;
	int result;

	child_check(bytes && open_partition((uint32_t)which, &store) == 0);
	for (unsigned round = 0; round < 3; round++) {
		for (count = 0, result = 0; result == 0; count += result == 0) {
			child_check(count < OBJECTS_MAX);
			content_fill(bytes, len, which * 1000 + round * 100 + count);
			result = spw_store_put(store, bytes, len, NULL, &objects[count], &request);
			child_check(result == -ENOSPC || spw_request_wait(request) == 0);
		}
		child_check(result == -ENOSPC && count > 4);
		child_says_and_waits();
		for (unsigned i = 0; i < count; i++) {
			memset(bytes, 0xA5, len);
			child_check(get_wait(store, objects[i], 0, bytes, len) == 0);
			child_check(content_differs(bytes, len, which * 1000 + round * 100 + i,
						    0) == len);
		}
		for (unsigned i = 0; i < count; i += 2)
			child_check(spw_store_free(store, objects[i]) == 0);
		for (unsigned i = 1; i < count; i += 2)
			child_check(spw_store_free(store, objects[i]) == 0);
		child_says_and_waits();
	}
	close_store(store);
	free(bytes);
}

CHILD_CASE(test_partitions_do_not_touch)
{
	struct spw_store_info info = {.size = sizeof(info)};
	struct spw_drive_info drives[4];

	/* As many partitions as make each small; four of them, neighbours, are used. */
	info = format_small(24 * MIB, 0);
	assert_true(info.partitions >= CHILDREN_MAX);
	for (unsigned i = 0; i < CHILDREN_MAX; i++)
		(void)start_child(i, fill_and_verify, i);
	for (unsigned step = 0; step < 6; step++) {
		for (unsigned i = 0; i < CHILDREN_MAX; i++)
			await_step(&children[i]);
		for (unsigned i = 0; i < CHILDREN_MAX; i++)
			let_go_on(&children[i]);
	}
	for (unsigned i = 0; i < CHILDREN_MAX; i++)
		assert_int_equal(reap(&children[i]), 0);
	memset(drives, 0, sizeof(drives));
	for (unsigned i = 0; i < 4; i++)
		drives[i].size = sizeof(drives[i]);
	assert_ok(spw_check(drive_paths, 4, &info, drives));
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(drives[i].copies_good, 2);
}

RUN_CASES(drives_from_environment, NULL)
