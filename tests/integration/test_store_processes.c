/* SPDX-License-Identifier: MIT */
/*
 * tests/integration/test_store_processes.c - several processes on the same drives: one per
 * partition, none in another's, none for ever
 */
#include "tests/integration/test_child.h"

#include <signal.h>
#include <stdbool.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHILDREN_MAX 4

/* A child that works in steps: it says when it has done one, and waits to be told to go on. */
struct child {
	pid_t pid;
	int said; /* read end */
	int told; /* write end */
};

static struct child children[CHILDREN_MAX];

/* In the child: one step is done. Ends with the parent. */
static int child_said, child_told;

static void say_and_wait(void)
{
	char word = 's';

	if (write(child_said, &word, 1) != 1 || read(child_told, &word, 1) != 1)
		_exit(3);
}

static struct child *start(unsigned which, void (*work)(unsigned which))
{
	struct child *child = &children[which];
	int said[2], told[2];

	assert_int_equal(pipe(said), 0);
	assert_int_equal(pipe(told), 0);
	(void)fflush(NULL);
	child->pid = fork();
	assert_true(child->pid >= 0);
	if (child->pid == 0) {
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		child_said = said[1];
		child_told = told[0];
		(void)close(said[0]);
		(void)close(told[1]);
		/* a sister's ends would keep her pipes open */
		for (unsigned i = 0; i < which; i++) {
			(void)close(children[i].said);
			(void)close(children[i].told);
		}
		work(which);
		_exit(0);
	}
	(void)close(said[1]);
	(void)close(told[0]);
	child->said = said[0];
	child->told = told[1];
	return child;
}

static void await_step(const struct child *child)
{
	char word;

	if (read(child->said, &word, 1) != 1)
		fail_msg("the child has ended instead of doing its step");
}

static void let_go_on(const struct child *child)
{
	char word = 'g';

	assert_int_equal(write(child->told, &word, 1), 1);
}

/* Return: the exit status, or minus the signal. */
static int reap(struct child *child)
{
	int status;

	(void)close(child->said);
	(void)close(child->told);
	while (waitpid(child->pid, &status, 0) < 0)
		assert_int_equal(errno, EINTR);
	child->pid = 0;
	return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

/* Also after a test that failed half-way: no child stays. */
static int end_all(void **state)
{
	for (unsigned i = 0; i < CHILDREN_MAX; i++)
		if (children[i].pid > 0) {
			(void)kill(children[i].pid, SIGKILL);
			(void)reap(&children[i]);
		}
	return close_stores(state);
}

static struct spw_store_opts partition_opts(uint32_t partition)
{
	struct spw_store_opts opts = default_opts();

	opts.partition = partition;
	opts.arena_bytes = 16 * MIB;
	return opts;
}

static int open_partition(uint32_t partition, struct spw_store **store)
{
	struct spw_store_opts opts = partition_opts(partition);

	return try_open(drive_paths, 4, &opts, store);
}

/* ---- One partition, one process -------------------------------------------------------------- */

static void hold_partition(unsigned which)
{
	struct spw_store *store;

	child_check(open_partition(which, &store) == 0);
	say_and_wait();
	close_store(store);
	say_and_wait();
}

static void test_partition_in_use(void **state)
{
	struct spw_store *store, *mine;
	struct child *child;

	(void)state;
	format_drives(4, 2, 0);
	child = start(0, hold_partition);
	await_step(child);
	assert_int_equal(open_partition(0, &store), -EBUSY);
	assert_null(store);
	assert_true(strlen(spw_last_error()) > 0);
	assert_int_equal(open_partition(2, &store), -EINVAL); /* there are two */

	assert_ok(open_partition(SPW_PARTITION_ANY, &mine));
	assert_int_equal(stats_of(mine).partition, 1);
	assert_int_equal(open_partition(SPW_PARTITION_ANY, &store), -EBUSY);
	assert_int_equal(open_partition(1, &store), -EBUSY); /* also for the process that has it */

	let_go_on(child); /* it closes, and lives on */
	await_step(child);
	assert_ok(open_partition(0, &store));
	close_store(store);
	close_store(mine);
	assert_ok(open_partition(1, &mine));
	close_store(mine);
	let_go_on(child);
	assert_int_equal(reap(child), 0);
}

/* A store in use is not formatted, forced or not, nor wiped; it can be looked at. */
static void test_in_use_is_left_alone(void **state)
{
	struct spw_store_info info = {.size = sizeof(info)};
	struct spw_format_opts opts;
	struct child *child;

	(void)state;
	format_drives(4, 2, 0);
	child = start(0, hold_partition);
	await_step(child);
	spw_format_opts_init(&opts, sizeof(opts));
	opts.force = true;
	assert_int_equal(spw_format(drive_paths, 4, &opts, NULL), -EBUSY);
	assert_int_equal(spw_format(drive_paths + 3, 1, &opts, NULL), -EBUSY);
	assert_int_equal(spw_wipe(drive_paths, 4, NULL), -EBUSY);
	assert_ok(spw_check(drive_paths, 4, &info, NULL));
	assert_int_equal(info.partitions_in_use, 1);
	let_go_on(child);
	await_step(child);
	let_go_on(child);
	assert_int_equal(reap(child), 0);
	assert_ok(spw_check(drive_paths, 4, &info, NULL));
	assert_int_equal(info.partitions_in_use, 0);
}

/* ---- Forked ---- */

static struct spw_store *inherited;
static struct spw_request *inherited_request;
static spw_object inherited_object;

/*
 * All that a child could do by mistake: it is told, nothing hangs, and nothing of the parent's is
 * touched.
 */
static void misuse(unsigned which)
{
	static uint8_t bytes[4096];
	struct spw_request *request;
	spw_object object;
	void *memory;
	size_t len;

	(void)which;
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

static void test_child_of_fork(void **state)
{
	uint8_t *bytes = malloc(4 * MIB);
	struct spw_store *store;
	struct child *child;

	(void)state;
	assert_non_null(bytes);
	content_fill(bytes, 4 * MIB, 7);
	format_drives(4, 1, 0);
	for (unsigned inline_mode = 0; inline_mode < 2; inline_mode++) {
		struct spw_store_opts opts = partition_opts(0);

		opts.inline_mode = inline_mode != 0;
		assert_ok(try_open(drive_paths, 4, &opts, &inherited));
		assert_ok(spw_store_put(inherited, bytes, 4 * MIB, NULL, &inherited_object,
					&inherited_request));
		child = start(0, misuse);
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

/* ---- Killed ---------------------------------------------------------------------------------- */

/* Puts, gets and frees without end, all of it in flight. */
static void work_until_killed(unsigned which)
{
	enum { SLOTS = 16 };
	struct spw_request *requests[SLOTS] = {NULL};
	spw_object objects[SLOTS];
	uint8_t *from = malloc(SLOTS * (size_t)MIB);
	struct spw_store *store;

	child_check(from && open_partition(which, &store) == 0);
	content_fill(from, SLOTS * (size_t)MIB, 1);
	for (unsigned i = 0;; i++) {
		unsigned slot = i % SLOTS;

		if (requests[slot]) {
			child_check(spw_request_wait(requests[slot]) == 0);
			child_check(spw_store_free(store, objects[slot]) == 0);
		}
		child_check(spw_store_put(store, from + slot * MIB, MIB - 1, NULL, &objects[slot],
					  &requests[slot]) == 0);
		if (i == 2 * SLOTS)
			child_check(write(child_said, "s", 1) == 1);
	}
}

static void test_killed_in_the_middle(void **state)
{
	struct spw_store_info info = {.size = sizeof(info)};
	uint8_t *bytes = malloc(4 * MIB);
	struct spw_store *store;
	struct child *child;
	spw_object object;

	(void)state;
	assert_non_null(bytes);
	format_drives(4, 1, 0);
	for (unsigned round = 0; round < 5; round++) {
		child = start(0, work_until_killed);
		await_step(child);
		assert_int_equal(kill(child->pid, SIGKILL), 0);
		assert_int_equal(reap(child), -SIGKILL);

		/* At once, without repair, empty, and good for use. */
		assert_ok(open_partition(0, &store));
		assert_int_equal(stats_of(store).used_bytes, 0);
		content_fill(bytes, 4 * MIB, round);
		object = put_wait(store, bytes, 4 * MIB);
		get_check(store, object, 0, bytes, 4 * MIB, round);
		close_store(store);
		assert_ok(spw_check(drive_paths, 4, &info, NULL));
	}
	free(bytes);
}

/* ---- Side by side ---------------------------------------------------------------------------- */

/*
 * Fills its partition to the last block; when all have, reads it all; then again with other bytes,
 * freed in another order.
 */
static void fill_and_verify(unsigned which)
{
	enum { OBJECTS_MAX = 64 };
	const size_t len = MIB - 4096 * which;
	spw_object objects[OBJECTS_MAX];
	uint8_t *bytes = malloc(MIB);
	struct spw_request *request;
	struct spw_store *store;
	unsigned count;
	int result;

	child_check(bytes && open_partition(which, &store) == 0);
	for (unsigned round = 0; round < 3; round++) {
		for (count = 0, result = 0; result == 0; count += result == 0) {
			child_check(count < OBJECTS_MAX);
			content_fill(bytes, len, which * 1000 + round * 100 + count);
			result = spw_store_put(store, bytes, len, NULL, &objects[count], &request);
			child_check(result == -ENOSPC || spw_request_wait(request) == 0);
		}
		child_check(result == -ENOSPC && count > 4);
		say_and_wait();
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
		say_and_wait();
	}
	close_store(store);
	free(bytes);
}

static void test_partitions_do_not_touch(void **state)
{
	struct spw_store_info info = {.size = sizeof(info)};
	struct spw_drive_info drives[4];

	(void)state;
	/* As many partitions as make each small; four of them, neighbours, are used. */
	info = format_small(24 * MIB, 0);
	assert_true(info.partitions >= CHILDREN_MAX);
	for (unsigned i = 0; i < CHILDREN_MAX; i++)
		(void)start(i, fill_and_verify);
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_partition_in_use, end_all),
		cmocka_unit_test_teardown(test_in_use_is_left_alone, end_all),
		cmocka_unit_test_teardown(test_child_of_fork, end_all),
		cmocka_unit_test_teardown(test_killed_in_the_middle, end_all),
		cmocka_unit_test_teardown(test_partitions_do_not_touch, end_all),
	};

	return cmocka_run_group_tests(tests, drives_from_environment, NULL);
}
