/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_engine_io_uring.c - every refusal of the kernel that the ring goes on without, on
 * a real ring over a file
 *
 * The backend's source is included with the calls that the kernel may refuse replaced.
 */
#include <errno.h>
#include <liburing.h>
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>

#include "engine/uring.h"
#include "tests/unit/engine_file.h"

static unsigned refused_flags; /* the kernel does not know these */
static int setup_error, files_error, buffers_error, ring_fd_error;
static unsigned missing_features;
static int enter_errors[4]; /* what the next calls return */
static unsigned enter_error_count;
static unsigned setups, last_flags;
/* Of a request that is not forced to be asynchronous the kernel says -EAGAIN, whatever it did. */
static bool says_again;
static bool forced[64]; /* by slot: whether its last request was */

static int stub_queue_init_params(unsigned entries, struct io_uring *ring,
				  struct io_uring_params *params)
{
	int ret;

	setups++;
	last_flags = params->flags;
	if (setup_error)
		return setup_error;
	if (params->flags & refused_flags)
		return -EINVAL;
	ret = io_uring_queue_init_params(entries, ring, params);
	params->features &= ~missing_features;
	return ret;
}

static int stub_register_files(struct io_uring *ring, const int *files, unsigned count)
{
	return files_error ? files_error : io_uring_register_files(ring, files, count);
}

static int stub_register_buffers(struct io_uring *ring, const struct iovec *iovecs, unsigned count)
{
	return buffers_error ? buffers_error : io_uring_register_buffers(ring, iovecs, count);
}

static int stub_register_ring_fd(struct io_uring *ring)
{
	return ring_fd_error ? ring_fd_error : io_uring_register_ring_fd(ring);
}

/* The slot of a request by its tag; -1: it has no part. */
static int slot_of(uint64_t tag)
{
	const struct spw_part *part = (const struct spw_part *)(uintptr_t)tag;

	return tag > SPW_URING_TAG_CANCEL ? (int)(part - drive_queue->parts) : -1;
}

static void note_forced(const struct io_uring_sq *sq)
{
	for (unsigned at = *sq->khead; at != *sq->ktail; at++) {
		const struct io_uring_sqe *sqe = &sq->sqes[at & *sq->kring_mask];
		int slot = slot_of(sqe->user_data);

		if (slot >= 0)
			forced[slot] = (sqe->flags & IOSQE_ASYNC) != 0;
	}
}

static void say_again(const struct io_uring_cq *cq)
{
	for (unsigned at = *cq->khead; at != *cq->ktail; at++) {
		struct io_uring_cqe *cqe = &cq->cqes[at & *cq->kring_mask];
		int slot = slot_of(cqe->user_data);

		if (slot >= 0 && !forced[slot])
			cqe->res = -EAGAIN;
	}
}

static int stub_enter2(unsigned fd, unsigned count, unsigned want, unsigned flags, void *arg,
		       size_t len)
{
	struct spw_uring *u = drive_queue ? drive_queue->state : NULL;
	int ret;

	if (enter_error_count > 0)
		return enter_errors[--enter_error_count];
	if (says_again)
		note_forced(&u->ring.sq);
	ret = io_uring_enter2(fd, count, want, flags, arg, len);
	if (says_again)
		say_again(&u->ring.cq);
	return ret;
}

#define io_uring_queue_init_params stub_queue_init_params
#define io_uring_register_files    stub_register_files
#define io_uring_register_buffers  stub_register_buffers
#define io_uring_register_ring_fd  stub_register_ring_fd
#define io_uring_enter2            stub_enter2
#include "engine/backend_io_uring.c"

static int reset(void **state)
{
	(void)state;
	refused_flags = 0;
	setup_error = files_error = buffers_error = ring_fd_error = 0;
	missing_features = 0;
	enter_error_count = 0;
	setups = 0;
	says_again = false;
	return 0;
}

static int close_queue(void **state)
{
	(void)state;
	spw_queue_close(drive_queue);
	drive_queue = NULL;
	return 0;
}

static int reset_and_open(void **state)
{
	(void)reset(state);
	return open_drive_queue(SPW_BACKEND_IO_URING, SPW_WAIT_INTERRUPT);
}

/* By default over an open queue. */
#define RING_TEST(name)  CASE_WITH(name, reset_and_open, close_queue)
#define SETUP_TEST(name) CASE_WITH(name, reset, close_queue)

RING_TEST(test_all_features)
{
	struct spw_queue_stats stats;

	pass_over_drive();
	spw_queue_stats(drive_queue, &stats, sizeof(stats));
	assert_int_equal(stats.parts_fixed, 2 * DRIVE_BYTES / 65536);
	assert_int_equal(stats.bytes_written, DRIVE_BYTES);
	assert_int_equal(stats.bytes_read, DRIVE_BYTES);
	assert_int_equal(stats.in_flight_max, 8);
	/* One system call for at least a quarter of the depth. */
	assert_true(stats.system_calls <= stats.parts);
}

/* As device mapper does at boundaries: the same request would be refused for ever. */
RING_TEST(test_what_is_tried_again_is_forced_to_be_asynchronous)
{
	struct spw_queue_stats stats;

	says_again = true;
	pass_over_drive();
	spw_queue_stats(drive_queue, &stats, sizeof(stats));
	assert_int_equal(stats.errors, 0);
	/* Each write and read once, and both flushes. */
	assert_int_equal(stats.retries, 2 * DRIVE_BYTES / 65536 + 2);
}

/* What the entry that was issued last has where newer headers have write_stream. */
static unsigned last_stream(void)
{
	const struct spw_uring *u = drive_queue->state;
	const struct io_uring_sq *sq = &u->ring.sq;

	return *((const uint8_t *)&sq->sqes[(sq->sqe_tail - 1) & *sq->kring_mask] + 44);
}

static unsigned stream_of_io(struct spw_io io)
{
	unsigned done = 0, stream;

	io.len_bytes = 8192;
	io.done = count_done;
	io.context = &done;
	assert_ok(spw_queue_prepare(drive_queue, &io));
	assert_ok(spw_queue_submit(drive_queue));
	stream = last_stream();
	assert_int_equal(spw_queue_reap(drive_queue, 1, -1), 1);
	assert_int_equal(io.res, 8192);
	return stream;
}

/* From registered memory, from any other, and from a vector; as many as the drive has, in turn. */
SETUP_TEST(test_writes_name_their_stream)
{
	static const unsigned expected[SPW_PLACEMENT_MAX + 1] = {2, 1, 2, 1};
	char *foreign = aligned_alloc(4096, 8192);
	struct iovec halves[] = {{.iov_base = foreign, .iov_len = 4096},
				 {.iov_base = foreign + 4096, .iov_len = 4096}};
	const struct spw_io ways[] = {
		{.op = SPW_WRITE, .buf = spw_arena_memory(drive_arena, &(size_t){0})},
		{.op = SPW_WRITE, .buf = foreign},
		{.op = SPW_WRITE, .iov = halves, .iov_count = 2},
	};
	struct spw_queue_opts opts;

	assert_non_null(foreign);
	memset(foreign, 1, 8192);
	spw_queue_opts_init(&opts, sizeof(opts));
	opts.backend = SPW_BACKEND_IO_URING;
	opts.arena = drive_arena;
	opts.placement = 2;
	drive->write_streams = 2;
	assert_ok(spw_queue_open(&drive, 1, &opts, &drive_queue));
	drive->write_streams = 0;
	assert_int_equal(drive_queue->stats.drives_placing, 1);
	for (size_t i = 0; i < SPW_ARRAY_LEN(ways); i++) {
		struct spw_io io = ways[i];

		for (io.placement = 0; io.placement <= SPW_PLACEMENT_MAX; io.placement++)
			assert_int_equal(stream_of_io(io), expected[io.placement]);
		io.op = SPW_READ;
		io.placement = 1;
		assert_int_equal(stream_of_io(io), 0);
	}
	free(foreign);
}

SETUP_TEST(test_a_drive_without_streams_is_logged)
{
	struct spw_queue_opts opts;

	spw_queue_opts_init(&opts, sizeof(opts));
	opts.backend = SPW_BACKEND_IO_URING;
	opts.arena = drive_arena;
	opts.log.write = collect;
	opts.placement = 1;
	drive_log[0] = '\0';
	assert_ok(spw_queue_open(&drive, 1, &opts, &drive_queue));
	assert_int_equal(drive_queue->stats.drives_placing, 0);
	assert_logged("name no placement");
	assert_int_equal(
		stream_of_io((struct spw_io){.op = SPW_WRITE,
					     .buf = spw_arena_memory(drive_arena, &(size_t){0}),
					     .placement = 2}),
		0);
}

SETUP_TEST(test_each_setup_flag_can_be_missing)
{
	for (unsigned i = 0; i < SPW_ARRAY_LEN(droppable); i++) {
		char words[64];

		(void)reset(NULL);
		refused_flags = droppable[i].flag;
		/* Who does not know the owner of a ring does not defer completions to it either. */
		if (refused_flags == IORING_SETUP_SINGLE_ISSUER)
			refused_flags |= IORING_SETUP_DEFER_TASKRUN;
		assert_int_equal(open_drive_queue(SPW_BACKEND_IO_URING, SPW_WAIT_INTERRUPT), 0);
		assert_int_equal(last_flags & refused_flags, 0);
		(void)snprintf(words, sizeof(words), "refuses %s", droppable[i].name);
		assert_logged(words);
		pass_over_drive();
		(void)close_queue(NULL);
	}
}

SETUP_TEST(test_an_old_kernel_knows_none_of_the_flags)
{
	for (unsigned i = 0; i < SPW_ARRAY_LEN(droppable); i++)
		refused_flags |= droppable[i].flag;
	assert_int_equal(open_drive_queue(SPW_BACKEND_IO_URING, SPW_WAIT_INTERRUPT), 0);
	assert_int_equal(setups, SPW_ARRAY_LEN(droppable) + 1);
	assert_int_equal(last_flags,
			 IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP | IORING_SETUP_R_DISABLED);
	pass_over_drive();
}

/* What the kernel refuses, with which words, and that libaio goes on. */
SETUP_TEST(test_io_uring_refused)
{
	static const struct {
		int setup_error, files_error;
		unsigned missing_features;
		int error;
		const char *words;
	} cases[] = {
		{-EPERM, 0, 0, -EPERM, "io_uring refused: Operation not permitted ("},
		{-ENOSYS, 0, 0, -ENOSYS, "io_uring refused"},
		{0, 0, IORING_FEAT_EXT_ARG, -EOPNOTSUPP, "needs Linux 5.11"},
		/* Else the drives' locks would end before a dead process' last write does. */
		{0, -EMFILE, 0, -EMFILE, "files cannot be registered"},
	};

	for (size_t i = 0; i < SPW_ARRAY_LEN(cases); i++) {
		setup_error = cases[i].setup_error;
		files_error = cases[i].files_error;
		missing_features = cases[i].missing_features;
		assert_int_equal(open_drive_queue(SPW_BACKEND_IO_URING, SPW_WAIT_POLL),
				 cases[i].error);
		assert_null(drive_queue);
		assert_int_equal(open_drive_queue(SPW_BACKEND_AUTO, SPW_WAIT_POLL), 0);
		assert_int_equal(spw_queue_backend(drive_queue), SPW_BACKEND_LIBAIO);
		assert_logged(cases[i].words);
		assert_logged("using libaio");
		assert_non_null(strstr(spw_queue_description(drive_queue), "io_uring refused"));
		pass_over_drive();
		(void)close_queue(NULL);
	}
}

SETUP_TEST(test_nothing_else_can_be_registered)
{
	struct spw_queue_stats stats;

	buffers_error = -ENOMEM;
	ring_fd_error = -EINVAL;
	assert_int_equal(open_drive_queue(SPW_BACKEND_IO_URING, SPW_WAIT_INTERRUPT), 0);
	assert_logged("memory cannot be registered");
	pass_over_drive();
	assert_logged("ring itself cannot be registered");
	spw_queue_stats(drive_queue, &stats, sizeof(stats));
	assert_int_equal(stats.parts_fixed, 0);
}

SETUP_TEST(test_a_kernel_thread_submits)
{
	assert_int_equal(open_drive_queue(SPW_BACKEND_IO_URING, SPW_WAIT_SQPOLL), 0);
	assert_non_null(strstr(spw_queue_description(drive_queue), "sqpoll"));
	pass_over_drive();
	pass_over_drive();
}

SETUP_TEST(test_no_kernel_thread_no_polling)
{
	refused_flags = IORING_SETUP_SQPOLL;
	assert_int_equal(open_drive_queue(SPW_BACKEND_IO_URING, SPW_WAIT_SQPOLL), 0);
	assert_logged("using interrupts");
	assert_non_null(strstr(spw_queue_description(drive_queue), "defer_taskrun"));
	pass_over_drive();
	(void)close_queue(NULL);
	assert_int_equal(open_drive_queue(SPW_BACKEND_IO_URING, SPW_WAIT_POLL), 0);
	assert_logged("cannot be polled");
	pass_over_drive();
}

RING_TEST(test_a_busy_kernel_is_asked_again)
{
	for (unsigned round = 0; round < 3; round++) {
		enter_errors[0] = -EBUSY;
		enter_errors[1] = -EAGAIN;
		enter_errors[2] = -EINTR;
		enter_error_count = 3;
		pass_over_drive();
		assert_int_equal(enter_error_count, 0);
	}
}

RING_TEST(test_an_error_of_the_ring_is_reported)
{
	unsigned done = 0;
	struct spw_io io = small_io(SPW_READ, drive_memory, 0, &done);

	assert_int_equal(spw_queue_prepare(drive_queue, &io), 0);
	enter_errors[0] = -EBADFD;
	enter_error_count = 1;
	assert_int_equal(spw_queue_reap(drive_queue, 1, -1), -EBADFD);
	assert_int_equal(done, 0);
	assert_int_equal(spw_queue_reap(drive_queue, 1, -1), 1);
	assert_int_equal(io.res, 4096);
}

struct elsewhere {
	struct spw_queue *own;
	int own_ret, foreign_ret;
	unsigned done;
	struct spw_io io;
};

/* A thread with a ring of its own: a number that is registered for the first means that one. */
static void *use_from_elsewhere(void *context)
{
	struct elsewhere *e = context;

	e->own_ret = spw_queue_reap(e->own, 0, 0);
	if (e->own_ret == 0)
		e->own_ret = spw_queue_prepare(e->own, &e->io);
	e->foreign_ret = spw_queue_reap(drive_queue, 0, 0);
	while (e->own_ret == 0 && e->done == 0)
		e->own_ret = spw_queue_reap(e->own, 1, -1) < 0;
	spw_queue_close(e->own);
	return NULL;
}

RING_TEST(test_a_second_thread_is_refused)
{
	struct elsewhere e = {0};
	pthread_t thread;

	e.io = small_io(SPW_READ, drive_memory, 3, &e.done);
	assert_int_equal(open_drive_queue(SPW_BACKEND_IO_URING, SPW_WAIT_INTERRUPT), 0);
	e.own = drive_queue;
	assert_int_equal(open_drive_queue(SPW_BACKEND_IO_URING, SPW_WAIT_INTERRUPT), 0);
	assert_int_equal(spw_queue_reap(drive_queue, 0, 0), 0);
	assert_int_equal(pthread_create(&thread, NULL, use_from_elsewhere, &e), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(e.own_ret, 0);
	assert_int_equal(e.foreign_ret, -EEXIST);
	assert_int_equal(e.io.res, 4096);
}

static volatile sig_atomic_t alarms;

static void on_alarm(int number)
{
	(void)number;
	alarms++;
}

RING_TEST(test_a_signal_ends_the_wait)
{
	struct sigaction action = {.sa_handler = on_alarm}, before;
	struct itimerval soon = {.it_value = {.tv_usec = 20000}};

	if (getenv("SPW_TEST_VALGRIND")) {
		print_message("valgrind holds signals back while io_uring_enter() waits\n");
		skip();
	}
	assert_int_equal(sigaction(SIGALRM, &action, &before), 0);
	assert_int_equal(setitimer(ITIMER_REAL, &soon, NULL), 0);
	assert_int_equal(spw_queue_reap(drive_queue, 1, -1), 0);
	assert_int_equal(alarms, 1);
	assert_int_equal(sigaction(SIGALRM, &before, NULL), 0);
}

/* Registered memory, and the caller's own. */
static void both_memories(void (*check)(char *memory))
{
	void *memory;

	pass_over_drive();
	check(drive_memory);
	memory = aligned_alloc(4096, 65536);
	assert_non_null(memory);
	check(memory);
	free(memory);
}

RING_TEST(test_what_is_cancelled_before_it_is_submitted_never_reaches_the_drive)
{
	both_memories(check_cancelled_before_submission);
}

static void check_parts(char *memory)
{
	struct spw_queue_stats before, stats;
	unsigned done = 0;
	struct spw_io io = small_io(SPW_READ, memory, 0, &done);

	spw_queue_stats(drive_queue, &before, sizeof(before));
	assert_int_equal(spw_queue_prepare(drive_queue, &io), 0);
	assert_int_equal(spw_queue_reap(drive_queue, 1, -1), 1);
	spw_queue_stats(drive_queue, &stats, sizeof(stats));
	assert_int_equal(stats.ios - before.ios, 1);
	assert_int_equal(stats.parts - before.parts, 1);
	assert_int_equal(stats.parts_fixed - before.parts_fixed,
			 (uintptr_t)memory - drive_queue->arena_base <
				 drive_queue->arena_len_bytes);
}

/* URING-3 */
RING_TEST(test_parts_of_both_memories_are_counted)
{
	both_memories(check_parts);
}

RING_TEST(test_a_file_that_became_shorter)
{
	struct spw_queue_stats stats;
	unsigned done = 0;
	struct spw_io io = small_io(SPW_READ, drive_memory, DRIVE_BYTES / 2 / 4096 - 8, &done);
	int ret;

	io.len_bytes = 65536;
	assert_int_equal(truncate(drive_path, DRIVE_BYTES / 2), 0);
	ret = spw_queue_prepare(drive_queue, &io);
	while (ret >= 0 && done == 0)
		ret = spw_queue_reap(drive_queue, 1, -1);
	assert_int_equal(truncate(drive_path, DRIVE_BYTES), 0);
	assert_true(ret >= 0);
	assert_int_equal(io.res, -EIO);
	spw_queue_stats(drive_queue, &stats, sizeof(stats));
	assert_int_equal(stats.short_transfers, 2);
	assert_int_equal(stats.parts, 2);
	assert_int_equal(stats.errors, 1);
	assert_int_equal(spw_engine__queue_ios(drive_queue), 0);
	pass_over_drive();
}

int main(void)
{
	struct io_uring_params params = {0};
	struct io_uring ring;
	int ret = stub_queue_init_params(2, &ring, &params);

	if (ret) {
		fprintf(stderr, "# io_uring is not to be had here: %s\n", strerror(-ret));
		return 77;
	}
	io_uring_queue_exit(&ring);
	return cmocka_run_group_tests(test_cases, make_drive, remove_drive);
}
