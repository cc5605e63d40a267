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

static void print_since(const char *what, uint64_t begun_us)
{
	printf("%s after %.1f ms\n", what, (double)(now_us() - begun_us) / 1000);
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

static void read_first_block(uint8_t *block)
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
	uint64_t begun = now_us();

	spw_queue_opts_init(&opts, sizeof(opts));
	opts.backend = SPW_BACKEND_VFIO;
	assert_ok(spw_device_open(drive_paths[0], NULL, &device));
	assert_ok(spw_queue_open(&device, 1, &opts, &queue));
	assert_way(queue);
	assert_ok(spw_queue_prepare(queue, &io));
	while (!ended)
		assert_true(spw_queue_reap(queue, 1, -1) >= 0);
	print_since("open to first I/O:", begun);
	assert_int_equal(io.res, 4096);
	spw_queue_close(queue);
	spw_device_close(device);
}

CASE(test_open_to_first_io)
{
	uint8_t *block = aligned_alloc(4096, 4096);

	assert_non_null(block);
	for (unsigned i = 0; i < ROUNDS; i++)
		read_first_block(block);
	free(block);
}

STORE_CASE(test_open_to_first_object)
{
	struct spw_store_opts opts = default_opts();
	uint8_t *block = aligned_alloc(4096, 4096);

	assert_non_null(block);
	content_fill(block, 4096, 1);
	(void)format_drives(4, 1, 0);
	opts.arena_bytes = 16 * MIB;
	for (unsigned i = 0; i < ROUNDS; i++) {
		uint64_t begun = now_us();
		struct spw_store *store = open_drives(4, &opts);

		print_since("a store of four drives: open", begun);
		(void)put_wait(store, block, 4096);
		print_since("a store of four drives: first object put", begun);
		begun = now_us();
		close_store(store);
		print_since("a store of four drives: closed", begun);
	}
	free(block);
}

static int set_up(void **state)
{
	int rc = drives_from_environment(state);

	release_controllers();
	return rc;
}

RUN_CASES(set_up, NULL)
