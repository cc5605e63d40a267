/* SPDX-License-Identifier: MIT */
/*
 * tests/vm/objects.h - a store kept busy with objects while one of its drives goes bad: what may
 * then fail, and what must not
 */
#ifndef SPW_TESTS_VM_OBJECTS_H
#define SPW_TESTS_VM_OBJECTS_H

#include "tests/integration/test_store.h"
#include "tests/vm/machine.h"

#define OBJECT_BYTES (4 * MIB)
#define OBJECTS      24u /* alive at once */
#define BATCH        4u  /* in flight at once */

static uint8_t *memory[BATCH];
static spw_object objects[OBJECTS];
static uint64_t seeds[OBJECTS];
static uint64_t puts_begun;
static const int *errors_allowed; /* what a get from the bad drive may end with; the last is 0 */

__attribute__((unused)) static int setup_objects(void **state)
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

__attribute__((unused)) static int teardown_objects(void **state)
{
	(void)state;
	for (unsigned i = 0; i < BATCH; i++)
		free(memory[i]);
	return 0;
}

/*
 * A batch of objects in the places of the oldest. All must succeed, whatever becomes of the drive.
 */
__attribute__((unused)) static void put_batch(struct spw_store *store, void (*meanwhile)(void))
{
	struct spw_request *requests[BATCH];

	for (unsigned i = 0; i < BATCH; i++) {
		unsigned place = (unsigned)(puts_begun % OBJECTS);

		if (puts_begun >= OBJECTS)
			assert_ok(spw_store_free(store, objects[place]));
		seeds[place] = ++puts_begun;
		content_fill(memory[i], OBJECT_BYTES, seeds[place]);
		assert_ok(spw_store_put(store, memory[i], OBJECT_BYTES, NULL, &objects[place],
					&requests[i]));
	}
	if (meanwhile)
		meanwhile();
	for (unsigned i = 0; i < BATCH; i++)
		assert_ok(spw_request_wait(requests[i]));
}

/* As many as are alive at once: none of them is from before. */
__attribute__((unused)) static void put_all(struct spw_store *store)
{
	for (unsigned i = 0; i < OBJECTS; i += BATCH)
		put_batch(store, NULL);
}

__attribute__((unused)) static struct spw_store *open_filled(void)
{
	struct spw_store *store;

	(void)format_drives(4, 1, MIB);
	store = open_default();
	put_all(store);
	return store;
}

/*
 * How a get ended: with the right bytes, or in one of the ways allowed, which names the bad drive
 * and the block.
 */
static bool is_readable(struct spw_request *request, unsigned place, const uint8_t *bytes)
{
	int result = spw_request_wait(request);
	bool allowed = false;

	if (result == 0) {
		assert_content(bytes, OBJECT_BYTES, seeds[place], 0);
		return true;
	}
	for (const int *error = errors_allowed; *error; error++)
		allowed |= result == *error;
	if (!allowed || !strstr(spw_last_error(), drive_paths[machine_victim()]) ||
	    !strstr(spw_last_error(), "block "))
		fail_msg("get ended with %s (%s)", spw_strerror(result), spw_last_error());
	return false;
}

/* All objects, in batches. Return: how many could not be read. */
__attribute__((unused)) static unsigned get_all(struct spw_store *store, void (*meanwhile)(void))
{
	struct spw_request *requests[BATCH];
	unsigned lost = 0;

	for (unsigned place = 0; place < OBJECTS; place += BATCH) {
		for (unsigned i = 0; i < BATCH; i++) {
			memset(memory[i], 0xA5, OBJECT_BYTES);
			assert_ok(spw_store_get(store, objects[place + i], 0, memory[i],
						OBJECT_BYTES, SPW_URGENT_READ, NULL, &requests[i]));
		}
		if (meanwhile && place == BATCH)
			meanwhile();
		for (unsigned i = 0; i < BATCH; i++)
			lost += !is_readable(requests[i], place + i, memory[i]);
	}
	return lost;
}

/* With an argument, only the case of that name. */
#define RUN_OBJECT_CASES(allowed)                                                           \
	int main(int argc, char **argv)                                                     \
	{                                                                                   \
		if (argc > 1)                                                               \
			cmocka_set_test_filter(argv[1]);                                    \
		errors_allowed = allowed;                                                   \
		return cmocka_run_group_tests(test_cases, setup_objects, teardown_objects); \
	}

#endif
