/* SPDX-License-Identifier: MIT */
/* tests/unit/test_engine_null.c - transfers without a drive, over a file that stays hollow */
#include <errno.h>
#include <pthread.h>

#include "tests/unit/engine_file.h"

static int open_null(uint64_t bytes_per_second)
{
	struct spw_queue_opts opts;

	drive_log[0] = '\0';
	spw_queue_opts_init(&opts, sizeof(opts));
	opts.backend = SPW_BACKEND_NULL;
	opts.null_bytes_per_second = bytes_per_second;
	opts.depth = 8;
	opts.arena = drive_arena;
	opts.log.write = collect;
	return spw_queue_open(&drive, 1, &opts, &drive_queue);
}

static int at_once(void **state)
{
	(void)state;
	return open_null(0);
}

static int close_queue(void **state)
{
	(void)state;
	spw_queue_close(drive_queue);
	drive_queue = NULL;
	return 0;
}

static void prepare(struct spw_io *io)
{
	assert_int_equal(spw_queue_prepare(drive_queue, io), 0);
}

static void reap_until(const unsigned *done, unsigned count)
{
	while (*done < count)
		assert_true(spw_queue_reap(drive_queue, 1, -1) >= 0);
}

static void expect_hollow(void)
{
	static _Alignas(4096) char block[4096], zeroes[4096];

	for (unsigned i = 0; i < 16; i++) {
		assert_int_equal(spw_device_pread(drive, block, 4096, (uint64_t)i * 4096), 0);
		assert_memory_equal(block, zeroes, 4096);
	}
}

CASE_WITH(nothing_is_written_and_nothing_is_read, at_once, close_queue)
{
	unsigned done = 0;
	struct spw_io write = small_io(SPW_WRITE, drive_memory, 0, &done);
	struct spw_io read = small_io(SPW_READ, drive_memory + 4096, 0, &done);

	assert_logged("nothing is written to the drives");
	assert_int_equal(spw_queue_backend(drive_queue), SPW_BACKEND_NULL);
	memset(drive_memory, 0x5a, 8192);
	prepare(&write);
	reap_until(&done, 1);
	prepare(&read);
	reap_until(&done, 2);
	assert_int_equal(write.res, 4096);
	assert_int_equal(read.res, 4096);
	for (unsigned i = 0; i < 8192; i++)
		assert_int_equal(drive_memory[i], 0x5a);
	expect_hollow();
}

/* More than the depth, vectors, long ones that are cut, flushes, discards: all end, each once. */
CASE_WITH(all_kinds_end_once, at_once, close_queue)
{
	enum { IOS = 40 };
	struct iovec vector[] = {{drive_memory, 8192}, {drive_memory + 16384, 4096}};
	struct spw_queue_stats stats;
	struct spw_io ios[IOS];
	unsigned done = 0;
	void *memory;

	assert_int_equal(spw_arena_alloc(drive_arena, DRIVE_BYTES, &memory), 0);
	for (unsigned i = 0; i < IOS; i++) {
		ios[i] = small_io(i % 2 ? SPW_WRITE : SPW_READ, drive_memory, i, &done);
		if (i % 8 == 3) {
			ios[i].buf = NULL;
			ios[i].iov = vector;
			ios[i].iov_count = 2;
			ios[i].len_bytes = 12288;
		} else if (i % 8 == 4) {
			ios[i].op = SPW_FLUSH;
		} else if (i % 8 == 5) {
			ios[i].op = SPW_DISCARD;
		} else if (i % 8 == 6) {
			ios[i].buf = memory;
			ios[i].offset_bytes = 0;
			ios[i].len_bytes = DRIVE_BYTES;
		}
		prepare(&ios[i]);
	}
	reap_until(&done, IOS);
	assert_int_equal(spw_queue_reap(drive_queue, 0, 0), 0);
	assert_int_equal(done, IOS);
	for (unsigned i = 0; i < IOS; i++)
		if (ios[i].op == SPW_DISCARD && !spw_device_geometry(drive)->discards)
			assert_int_equal(ios[i].res, -EOPNOTSUPP);
		else
			assert_int_equal(ios[i].res, ios[i].op == SPW_FLUSH ? 0 : ios[i].len_bytes);
	spw_queue_stats(drive_queue, &stats, sizeof(stats));
	assert_int_equal(stats.in_flight_max, 8);
	spw_arena_free(drive_arena, memory);
	expect_hollow();
}

static void prepare_again(struct spw_io *io)
{
	count_done(io);
	if (*(unsigned *)io->context < 1000)
		prepare(io);
}

/* What is prepared where the one before ends belongs to the next reap: each comes to an end. */
CASE_WITH(a_reap_ends_though_each_end_begins_another, at_once, close_queue)
{
	unsigned done = 0;
	struct spw_io io = small_io(SPW_READ, drive_memory, 0, &done);

	io.done = prepare_again;
	prepare(&io);
	for (unsigned i = 1; i <= 1000; i++) {
		assert_int_equal(spw_queue_reap(drive_queue, 1, -1), 1);
		assert_int_equal(done, i);
	}
}

static void *wake(void *queue)
{
	spw_queue_wake(queue);
	return NULL;
}

/* At 1 MiB/s 64 KiB take a sixteenth of a second; nothing ends sooner, without any waiting. */
CASE(a_rate_takes_its_time)
{
	unsigned done = 0;
	struct spw_io ios[2] = {small_io(SPW_WRITE, drive_memory, 0, &done),
				small_io(SPW_READ, drive_memory, 16, &done)};
	uint64_t begun_ns;
	pthread_t thread;

	assert_int_equal(open_null(1 << 20), 0);
	ios[0].len_bytes = ios[1].len_bytes = 65536;
	begun_ns = spw_clock_ns();
	prepare(&ios[0]);
	prepare(&ios[1]);
	assert_true(spw_queue_reap(drive_queue, 0, 0) >= 0);
	assert_true(spw_queue_reap(drive_queue, 1, 1000000) >= 0);
	assert_int_equal(pthread_create(&thread, NULL, wake, drive_queue), 0);
	/* Until the wake. */
	assert_true(spw_queue_reap(drive_queue, 2, -1) >= 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_true(spw_queue_cancel(drive_queue, &ios[1]) == 0 || done == 2);
	reap_until(&done, 2);
	assert_true(spw_clock_ns() - begun_ns >= 125000000);
	assert_int_equal(ios[0].res, 65536);
	assert_int_equal(ios[1].res, 65536);
	(void)close_queue(NULL);
}

/* It is opened by its name only. */
CASE(no_other_backend_falls_back_to_it)
{
	assert_int_equal(open_drive_queue(SPW_BACKEND_AUTO, SPW_WAIT_INTERRUPT), 0);
	assert_int_not_equal(spw_queue_backend(drive_queue), SPW_BACKEND_NULL);
	(void)close_queue(NULL);
}

RUN_CASES(make_drive, remove_drive)
