/* SPDX-License-Identifier: MIT */
/*
 * tests/integration/test_committed.c - what is committed is there again: after a close, and after
 * kill -9 at random moments of a process that puts, frees and commits, with a neighbour at work
 */
#include "tests/integration/test_child.h"

#include <sys/mman.h>

#define KILLS        8
#define OBJECTS      5
#define OBJECT_BYTES (MIB / 2)

static uint64_t seed;

static size_t len_of(uint64_t step, unsigned index)
{
	return 1 + (step * 7919 + index * 104729) % OBJECT_BYTES;
}

/* Puts the step's objects, frees those of the step before, commits. */
static int commit_step(struct spw_store *store, uint64_t step, spw_object objects[OBJECTS],
		       uint8_t *bytes)
{
	for (unsigned i = 0; i < OBJECTS; i++) {
		struct spw_request *request;
		int rc;

		if (objects[i].value && spw_store_free(store, objects[i]))
			return -ENOENT;
		content_fill(bytes, len_of(step, i), step * OBJECTS + i);
		rc = spw_store_put(store, bytes, len_of(step, i), NULL, &objects[i], &request);
		if (rc == 0)
			rc = spw_request_wait(request);
		if (rc)
			return rc;
	}
	return spw_store_commit(store, objects, OBJECTS, step, &step, sizeof(step), false);
}

/* Return: the step that is there, with every byte; 0: none. */
static uint64_t verify(struct spw_store *store, spw_object objects[OBJECTS])
{
	struct spw_commit_info info;
	uint64_t lens[OBJECTS], step;

	memset(objects, 0, OBJECTS * sizeof(*objects));
	if (spw_store_committed(store, &info, sizeof(info)) == -ENODATA)
		return 0;
	assert_int_equal(info.objects, OBJECTS);
	assert_ok(spw_store_committed_record(store, &step, sizeof(step)));
	assert_int_equal(step, info.number);
	assert_ok(spw_store_committed_objects(store, objects, lens, OBJECTS));
	for (unsigned i = 0; i < OBJECTS; i++) {
		uint8_t *bytes = malloc(OBJECT_BYTES);

		assert_non_null(bytes);
		assert_int_equal(lens[i], len_of(step, i));
		get_check(store, objects[i], 0, bytes, lens[i], step * OBJECTS + i);
		free(bytes);
	}
	return step;
}

/*
 * Commits without end; the step that is durable by now is in shared memory. One is before it says
 * that it is at work: however slow the drives, something is there when it is killed.
 */
static _Atomic uint64_t *durable;

static void commits(uint64_t random)
{
	uint8_t *bytes = malloc(OBJECT_BYTES);
	spw_object objects[OBJECTS] = {{0}};
	struct spw_store *store;

	(void)random;
	child_check(bytes && open_partition(0, &store) == 0);
	child_check(verify(store, objects) >= *durable);
	if (*durable > 0)
		child_says();
	for (uint64_t step = *durable + 2;; step++) {
		child_check(commit_step(store, step, objects, bytes) == 0);
		*durable = step;
		if (step == 2)
			child_says();
	}
}

CHILD_CASE(test_commits_killed)
{
	uint8_t *bytes = malloc(OBJECT_BYTES);
	spw_object objects[OBJECTS], others[OBJECTS] = {{0}};
	struct spw_store *store, *neighbour;

	skip_under_thread_sanitizer();
	assert_non_null(bytes);
	durable = mmap(NULL, sizeof(*durable), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
		       -1, 0);
	assert_true(durable != MAP_FAILED);
	format_drives(4, 2, SPW_CHUNK_BYTES_MIN);
	assert_ok(open_partition(1, &neighbour));
	for (unsigned round = 0; round < KILLS; round++) {
		uint64_t step, before = *durable;

		kill_at_work(commits, random_next(&seed), &seed, 60000);
		assert_ok(open_partition(0, &store));
		step = verify(store, objects);
		/* What was reported is there; or the one that was under way. */
		assert_true(step == *durable || step == *durable + 1 ||
			    (*durable == before && step == before + 2));
		*durable = step;
		assert_ok(commit_step(neighbour, round + 1, others, bytes));
		close_store(store);
	}
	assert_true(*durable > 0);
	close_store(neighbour);
	assert_ok(open_partition(1, &neighbour));
	assert_int_equal(verify(neighbour, objects), KILLS);
	close_store(neighbour);
	(void)munmap((void *)durable, sizeof(*durable));
	free(bytes);
}

/* A commit stays, whatever the store is used for next; format and wipe ask before they end it. */
STORE_CASE(test_refused)
{
	spw_object objects[OBJECTS] = {{0}};
	uint8_t *bytes = malloc(OBJECT_BYTES);
	struct spw_format_opts format;
	struct spw_wipe_opts wipe;
	struct spw_store *store;

	assert_non_null(bytes);
	format_drives(4, 1, SPW_CHUNK_BYTES_MIN);
	assert_ok(open_partition(0, &store));
	assert_ok(commit_step(store, 1, objects, bytes));
	close_store(store);
	spw_format_opts_init(&format, sizeof(format));
	format.force = true;
	expect_refusal(-EEXIST, "holds commit 1", spw_format(drive_paths, 4, &format, NULL));
	assert_int_equal(spw_wipe(drive_paths, 4, NULL), -EEXIST);
	assert_ok(open_partition(0, &store));
	assert_int_equal(verify(store, objects), 1);
	close_store(store);
	spw_wipe_opts_init(&wipe, sizeof(wipe));
	wipe.erase = true;
	assert_ok(spw_wipe(drive_paths, 4, &wipe));
	format_drives(4, 1, SPW_CHUNK_BYTES_MIN);
	assert_ok(open_partition(0, &store));
	assert_int_equal(verify(store, objects), 0);
	close_store(store);
	free(bytes);
}

static int set_up(void **state)
{
	seed = random_seed();
	return drives_from_environment(state);
}

RUN_CASES(set_up, NULL)
