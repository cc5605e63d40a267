/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_engine_libaio.c - partial submissions, refusals and interruptions of Linux native
 * asynchronous I/O, over a file
 *
 * The backend's source is included with the system calls replaced by ones that can be told to
 * refuse.
 */
#include <errno.h>
#include <libaio.h>

#include "tests/unit/engine_file.h"

static long batch_max;      /* io_submit takes no more at once; 0: no limit */
static unsigned full_every; /* every so manieth io_submit is answered with -EAGAIN; 0: none */
static unsigned submissions;
static int flush_error, setup_error, poll_error, wait_error;

static int stub_setup(int count, io_context_t *context)
{
	return setup_error ? setup_error : io_setup(count, context);
}

static int stub_submit(io_context_t context, long count, struct iocb **iocbs)
{
	submissions++;
	if (full_every && submissions % full_every == 0)
		return -EAGAIN;
	if (flush_error && iocbs[0]->aio_lio_opcode == IO_CMD_FDSYNC)
		return flush_error;
	if (poll_error && iocbs[0]->aio_lio_opcode == IO_CMD_POLL)
		return poll_error;
	for (long i = 1; flush_error && i < count; i++)
		if (iocbs[i]->aio_lio_opcode == IO_CMD_FDSYNC)
			count = i;
	return io_submit(context, batch_max && count > batch_max ? batch_max : count, iocbs);
}

static int stub_getevents(io_context_t context, long min, long max, struct io_event *events,
			  struct timespec *timeout)
{
	if (wait_error) {
		int error = wait_error;

		wait_error = 0;
		return error;
	}
	return io_getevents(context, min, max, events, timeout);
}

#define io_setup     stub_setup
#define io_submit    stub_submit
#define io_getevents stub_getevents
#include "engine/backend_libaio.c"

static int reset(void **state)
{
	(void)state;
	batch_max = 0;
	full_every = submissions = 0;
	flush_error = setup_error = poll_error = wait_error = 0;
	return open_drive_queue(SPW_BACKEND_LIBAIO, SPW_WAIT_INTERRUPT);
}

static int close_queue(void **state)
{
	(void)state;
	full_every = 0;
	spw_queue_close(drive_queue);
	drive_queue = NULL;
	return 0;
}

#define AIO_TEST(name) CASE_WITH(name, reset, close_queue)

AIO_TEST(test_plain)
{
	struct spw_queue_stats stats;

	pass_over_drive();
	spw_queue_stats(drive_queue, &stats, sizeof(stats));
	assert_int_equal(stats.parts, 2 * (DRIVE_BYTES / 65536 + 1));
	assert_int_equal(stats.parts_fixed, 0);
	assert_int_equal(stats.in_flight_max, 8);
}

AIO_TEST(test_partial_submissions)
{
	for (batch_max = 1; batch_max < 6; batch_max++)
		pass_over_drive();
}

AIO_TEST(test_a_full_kernel)
{
	batch_max = 3;
	full_every = 2;
	pass_over_drive();
}

AIO_TEST(test_a_refused_request_fails_alone)
{
	unsigned done = 0;
	struct spw_io ios[3];

	flush_error = -EBADF;
	for (unsigned i = 0; i < 3; i++) {
		ios[i] = small_io(i == 1 ? SPW_FLUSH : SPW_READ, drive_memory, 0, &done);
		assert_int_equal(spw_queue_prepare(drive_queue, &ios[i]), 0);
	}
	while (done < 3)
		assert_true(spw_queue_reap(drive_queue, 3, -1) > 0);
	assert_int_equal(ios[0].res, 4096);
	assert_int_equal(ios[1].res, -EBADF);
	assert_int_equal(ios[2].res, 4096);
	assert_logged("flush failed: Bad file descriptor");
}

struct stubborn {
	struct spw_io io;
	unsigned tries;
};

/* Prepares what was refused once more. */
static void try_again(struct spw_io *io)
{
	struct stubborn *stubborn = io->context;

	assert_int_equal(io->res, -EBADF);
	if (++stubborn->tries < 20)
		assert_int_equal(spw_queue_prepare(drive_queue, io), 0);
}

/* AIO-1: each try is refused as the others are submitted, and takes the place of one of those. */
AIO_TEST(test_refused_requests_that_are_prepared_again)
{
	struct spw_device_opts device_opts;
	struct spw_queue_opts opts;
	struct stubborn ios[8];
	struct spw_device *device;

	(void)close_queue(NULL);
	spw_device_opts_init(&device_opts, sizeof(device_opts));
	device_opts.read_only = true;
	assert_int_equal(spw_device_open(drive_path, &device_opts, &device), 0);
	spw_queue_opts_init(&opts, sizeof(opts));
	opts.backend = SPW_BACKEND_LIBAIO;
	opts.depth = 8;
	assert_int_equal(spw_queue_open(&device, 1, &opts, &drive_queue), 0);
	for (unsigned i = 0; i < 8; i++) {
		ios[i] = (struct stubborn){.io = {.op = SPW_WRITE,
						  .buf = drive_memory,
						  .len_bytes = 4096,
						  .done = try_again}};
		ios[i].io.context = &ios[i];
		assert_int_equal(spw_queue_prepare(drive_queue, &ios[i].io), 0);
	}
	while (spw_engine__queue_ios(drive_queue) > 0)
		assert_true(spw_queue_reap(drive_queue, 1, -1) > 0);
	for (unsigned i = 0; i < 8; i++)
		assert_int_equal(ios[i].tries, 20);
	spw_queue_close(drive_queue);
	drive_queue = NULL;
	spw_device_close(device);
}

AIO_TEST(test_what_is_cancelled_before_it_is_submitted_never_reaches_the_drive)
{
	check_cancelled_before_submission(drive_memory);
}

AIO_TEST(test_interrupted_wait)
{
	wait_error = -EINTR;
	assert_int_equal(spw_queue_reap(drive_queue, 1, -1), 0);
	wait_error = -EINVAL;
	assert_int_equal(spw_queue_reap(drive_queue, 1, -1), -EINVAL);
	pass_over_drive();
}

AIO_TEST(test_refusals_at_open)
{
	(void)close_queue(NULL);
	setup_error = -EAGAIN;
	expect_refusal(-EAGAIN, "fs.aio-max-nr",
		       open_drive_queue(SPW_BACKEND_LIBAIO, SPW_WAIT_INTERRUPT));
	setup_error = 0;
	poll_error = -EINVAL;
	assert_int_equal(open_drive_queue(SPW_BACKEND_LIBAIO, SPW_WAIT_INTERRUPT), -EINVAL);
	assert_null(drive_queue);
	poll_error = 0;
	assert_int_equal(open_drive_queue(SPW_BACKEND_LIBAIO, SPW_WAIT_SQPOLL), 0);
	assert_logged("using interrupts");
}

RUN_CASES(make_drive, remove_drive)
