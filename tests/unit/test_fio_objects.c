/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_fio_objects.c - the fio engine's blocks as objects, of a store that cannot be
 * polled any more
 */
/* wrap: spw_store_poll */
#include "tools/fio_engine/objects.c"

#include "tests/unit/format_drives.h"
#include "tests/wrap.h"

#define DEPTH       4u
#define BLOCK_BYTES (64u << 10)

/* ---- A store that cannot be polled ---- */

static unsigned polls_left; /* before it fails */

WRAP(int, spw_store_poll, (struct spw_store * store, bool wait))
{
	if (polls_left == 0)
		return spw_error(-EIO, "the ring is gone");
	polls_left--;
	return __real_spw_store_poll(store, wait);
}

/* ---- A job ---- */

static struct spw_fio_level *level;
static uint8_t *memory; /* a block for each request */

static void open_job(uint64_t blocks)
{
	struct spw_fio_config config = {
		.paths = (char **)(uintptr_t)drives,
		.path_count = DRIVES,
		.depth = DEPTH,
		.block_bytes_max = BLOCK_BYTES,
		.range_len_bytes = blocks * BLOCK_BYTES,
	};
	void *allocated;

	expect(0, format_drives(DRIVES, true, NULL));
	expect(0, spw_fio_objects.open(&config, &level));
	expect(0, level->ops->memory_alloc(level, DEPTH * BLOCK_BYTES, &allocated));
	memory = allocated;
	memset(memory, 0x3c, DEPTH * BLOCK_BYTES);
	polls_left = UINT_MAX;
}

/* As fio ends a job: the memory first. A write to the frame of a function that has ended shows. */
static __attribute__((noinline)) void close_job(void)
{
	volatile uint8_t frame[2048];

	for (unsigned i = 0; i < sizeof(frame); i++)
		frame[i] = 0xa5;
	level->ops->memory_free(level, memory);
	level->ops->close(level);
	for (unsigned i = 0; i < sizeof(frame); i++)
		assert_int_equal(frame[i], 0xa5);
}

/* ---- Cases ---- */

#define DRIVE_CASE(name) CASE_WITH(name, make_drives, remove_drives)

/* With fewer puts than there are requests, and with more; polling fails at once, or later. */
DRIVE_CASE(test_laying_out)
{
	static const struct {
		uint64_t blocks;
		unsigned polls;
	} cases[] = {{DEPTH / 2, 0}, {3 * DEPTH, 0}, {3 * DEPTH, 1}, {3 * DEPTH, 2}};

	for (size_t i = 0; i < SPW_ARRAY_LEN(cases); i++) {
		open_job(cases[i].blocks);
		polls_left = cases[i].polls;
		expect_refusal(-EIO, "the ring is gone", spw_fio_objects_lay_out(level, memory));
		close_job();
	}
	open_job(3 * DEPTH);
	expect(0, spw_fio_objects_lay_out(level, memory));
	close_job();
}

static unsigned ended, failed;

static void note_end(struct spw_fio_request *request)
{
	ended++;
	failed += request->res != 0;
}

/* What was queued ends once, when the job is closed at the latest. */
DRIVE_CASE(test_requests)
{
	for (unsigned polls = 0; polls < 6; polls++) {
		struct spw_fio_request requests[DEPTH] = {0};

		open_job(DEPTH);
		expect(0, spw_fio_objects_lay_out(level, memory));
		ended = failed = 0;
		for (unsigned i = 0; i < DEPTH; i++) {
			requests[i] = (struct spw_fio_request){
				.op = i % 2 ? SPW_READ : SPW_WRITE,
				.offset_bytes = i * BLOCK_BYTES,
				.len_bytes = BLOCK_BYTES,
				.buf = memory + i * BLOCK_BYTES,
				.done = note_end,
				.level = level,
			};
			assert_int_equal(level->ops->queue(level, &requests[i]), SPW_FIO_QUEUED);
		}
		polls_left = polls;
		for (unsigned i = 0; i < polls; i++)
			expect(0, i == 0 ? level->ops->submit(level) : level->ops->reap(level, 0));
		expect(-EIO, level->ops->reap(level, 1));
		expect(-EIO, level->ops->submit(level));
		close_job();
		assert_int_equal(ended, DEPTH);
		assert_true(polls > 0 || failed == DEPTH);
	}
}

RUN_CASES(make_folder, remove_folder)
