/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_vfio_cost.c - reads and writes of 4 KiB at depth 32, as many as SPW_VFIO_COST_IOS
 * says: test_vfio_instructions.sh counts their instructions
 */
/* wrap: spw_vfio__link_open */
#include "tests/unit/vfio_rig.h"

#define DEPTH 32u

static uint64_t correct;

static void count_end(struct spw_io *io)
{
	ended++;
	correct += io->res == 4096;
}

TEST(test_transfers)
{
	const char *text = getenv("SPW_VFIO_COST_IOS");
	uint64_t count = text ? strtoull(text, NULL, 10) : 1000;

	open_queue_of(DEPTH, 20000);
	for (uint64_t i = 0; i < count;) {
		for (unsigned j = 0; j < DEPTH && i < count; j++, i++) {
			struct spw_io *io =
				make_io(j, j % 2 ? SPW_WRITE : SPW_READ, memory + (size_t)j * 8192,
					4096, i % 4096 * 4096);

			io->done = count_end;
			assert_int_equal(spw_queue_prepare(queue, io), 0);
		}
		assert_int_equal(spw_queue_submit(queue), 0);
		while (ended < i)
			assert_true(spw_queue_reap(queue, (unsigned)(i - ended), -1) >= 0);
	}
	assert_int_equal(correct, count);
	assert_int_equal(fake.reads + fake.writes, count);
}

RUN_CASES(NULL, NULL)
