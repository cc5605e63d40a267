/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_vfio_cost.c - reads and writes of 4 KiB at depth 32, as many as SPW_VFIO_COST_IOS
 * says:
 * test_vfio_cost.sh counts their instructions
 */
/* wrap: spw_vfio_link_open */
#include "tests/unit/vfio_fake.h"

#include <spillway/engine.h>

#define DEPTH 32u

static struct spw_io ios[DEPTH];
static uint64_t ended, correct;

static void done(struct spw_io *io)
{
	ended++;
	correct += io->res == 4096;
}

static void test_transfers(void **state)
{
	const char *text = getenv("SPW_VFIO_COST_IOS");
	uint64_t count = text ? strtoull(text, NULL, 10) : 1000;
	struct spw_queue_opts opts;
	struct spw_arena_opts arena_opts;
	struct spw_device *device;
	struct spw_arena *arena;
	struct spw_queue *queue;
	void *memory;

	(void)state;
	fake_begin(9);
	assert_int_equal(spw_device_open("pci:" FAKE_ADDRESS, NULL, &device), 0);
	spw_arena_opts_init(&arena_opts, sizeof(arena_opts));
	arena_opts.bytes = 2 << 20;
	arena_opts.no_hugetlb = true;
	assert_int_equal(spw_arena_open(&arena_opts, &arena), 0);
	assert_int_equal(spw_arena_alloc(arena, 2 << 20, &memory), 0);
	spw_queue_opts_init(&opts, sizeof(opts));
	opts.arena = arena;
	opts.depth = DEPTH;
	opts.tune_path = "";
	assert_int_equal(spw_queue_open(&device, 1, &opts, &queue), 0);
	for (uint64_t i = 0; i < count;) {
		for (unsigned j = 0; j < DEPTH && i < count; j++, i++) {
			ios[j] = (struct spw_io){
				.op = j % 2 ? SPW_WRITE : SPW_READ,
				.buf = (char *)memory + j * 8192,
				.len_bytes = 4096,
				.offset_bytes = i % 4096 * 4096,
				.done = done,
			};
			assert_int_equal(spw_queue_prepare(queue, &ios[j]), 0);
		}
		assert_int_equal(spw_queue_submit(queue), 0);
		while (ended < i)
			assert_true(spw_queue_reap(queue, (unsigned)(i - ended), -1) >= 0);
	}
	assert_int_equal(correct, count);
	assert_int_equal(fake.reads + fake.writes, count);
	assert_int_equal(fake.faults, 0);
	spw_queue_close(queue);
	spw_device_close(device);
	spw_arena_close(arena);
	fake_end();
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_transfers)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
