/* SPDX-License-Identifier: MIT */
/*
 * tests/vm/test_vfio_open.c - from opening drives behind vfio to their first I/O, each time from
 * nothing
 */
#include "tests/integration/test_store.h"

#include <time.h>

#define ROUNDS 5

static uint64_t now_us(void)
{
	struct timespec now;

	assert_int_equal(clock_gettime(CLOCK_MONOTONIC, &now), 0);
	return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static void note_end(struct spw_io *io)
{
	*(int *)io->context = 1;
}

/* Where SPW_VM_WAY says which way is tested, the other will not do. */
static void assert_way(struct spw_queue *queue)
{
	const char *way = getenv("SPW_VM_WAY");
	struct spw_queue_stats stats = {.size = sizeof(stats)};

	spw_queue_stats(queue, &stats, sizeof(stats));
	printf("%s\n", spw_queue_description(queue));
	if (!way)
		return;
	assert_non_null(strstr(spw_queue_description(queue), way));
	assert_int_equal(stats.vfio_by_group, strcmp(way, "group") == 0);
}

/* Return: microseconds. */
static uint64_t read_first_block(uint8_t *block)
{
	struct spw_queue_opts opts;
	struct spw_device *device;
	struct spw_queue *queue;
	int ended = 0;
	struct spw_io io = {.op = SPW_READ,
			    .buf = block,
			    .len_bytes = 4096,
			    .done = note_end,
			    .context = &ended};
	uint64_t begun = now_us(), us;

	spw_queue_opts_init(&opts, sizeof(opts));
	opts.backend = SPW_BACKEND_VFIO;
	assert_ok(spw_device_open(drive_paths[0], NULL, &device));
	assert_ok(spw_queue_open(&device, 1, &opts, &queue));
	assert_way(queue);
	assert_ok(spw_queue_prepare(queue, &io));
	while (!ended)
		assert_true(spw_queue_reap(queue, 1, -1) >= 0);
	us = now_us() - begun;
	assert_int_equal(io.res, 4096);
	spw_queue_close(queue);
	spw_device_close(device);
	return us;
}

static void test_open_to_first_io(void **state)
{
	uint8_t *block = aligned_alloc(4096, 4096);

	(void)state;
	assert_non_null(block);
	for (unsigned i = 0; i < ROUNDS; i++)
		printf("open to first I/O: %.1f ms\n", (double)read_first_block(block) / 1000);
	free(block);
}

/* Return: microseconds. */
static uint64_t put_first_object(uint8_t *block)
{
	struct spw_store_opts opts = default_opts();
	uint64_t begun = now_us(), us;
	struct spw_store *store;

	opts.arena_bytes = 16 * MIB;
	store = open_drives(4, &opts);
	us = now_us() - begun;
	(void)put_wait(store, block, 4096);
	printf("a store of four drives: open after %.1f ms, first object put after %.1f ms\n",
	       (double)us / 1000, (double)(now_us() - begun) / 1000);
	begun = now_us();
	close_store(store);
	printf("a store of four drives: closed after %.1f ms\n", (double)(now_us() - begun) / 1000);
	return us;
}

static void test_open_to_first_object(void **state)
{
	uint8_t *block = aligned_alloc(4096, 4096);

	(void)state;
	assert_non_null(block);
	content_fill(block, 4096, 1);
	(void)format_drives(4, 1, 0);
	for (unsigned i = 0; i < ROUNDS; i++)
		assert_true(put_first_object(block) > 0);
	free(block);
}

static int set_up(void **state)
{
	int rc = drives_from_environment(state);

	release_controllers();
	return rc;
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_open_to_first_io),
					   test_case(test_open_to_first_object)};

	return cmocka_run_group_tests(tests, set_up, NULL);
}
