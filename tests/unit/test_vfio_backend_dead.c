/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_vfio_backend_dead.c - queues over a controller in memory that goes wrong: all
 * that it can do, and what becomes of buffers
 */
/* wrap: spw_vfio_link_open io_uring_queue_init_params */
#include "tests/unit/vfio_rig.h"

#include <liburing.h>
#include <sys/eventfd.h>

static unsigned bad_ends;

/* A buffer is given back only when the controller cannot write to it any more. */
static void done_safely(struct spw_io *io)
{
	if (io->res < 0 && !fake.cut)
		bad_ends++;
	done(io);
}

static void start_many(unsigned count)
{
	bad_ends = 0;
	for (unsigned i = 0; i < count; i++) {
		make_io(i, i % 2 ? SPW_WRITE : SPW_READ,
			(i % 3 ? memory : foreign) + (size_t)i * 4096, 4096, i * 4096);
		ios[i].done = done_safely;
		assert_int_equal(spw_queue_prepare(queue, &ios[i]), 0);
	}
	assert_int_equal(spw_queue_submit(queue), 0);
}

static void finish_many(unsigned count)
{
	while (ended < count)
		assert_true(spw_queue_reap(queue, 1, -1) >= 0);
	assert_int_equal(ended, count);
	assert_int_equal(bad_ends, 0);
	assert_true(fake.cut);
}

/* After its death everything fails at once, and a fresh open works. */
static void expect_dead_then_alive(void)
{
	struct spw_device *again;

	assert_int_equal(run(SPW_READ, memory, 4096, 0), -ENODEV);
	assert_int_equal(run(SPW_WRITE, foreign, 1u << 20, 0), -ENODEV);
	assert_int_equal(run(SPW_FLUSH, NULL, 0, 0), -ENODEV);
	assert_int_equal(spw_device_pread(device, foreign, 512, 0), -ENODEV);
	spw_queue_close(queue);
	queue = NULL;
	assert_int_equal(fake_mapped() > 0, 1); /* what the device itself has */
	spw_device_close(device);
	device = NULL;
	assert_true(fake.closed);
	memset(fake.registers, 0, FAKE_REGISTERS);
	fake.never_after = FAKE_NEVER;
	fake.wrong_cid = fake.twice = 0;
	fake.wanted_back = false;
	fake.never_stops = false;
	assert_int_equal(spw_device_open(PATH, NULL, &again), 0);
	assert_int_equal(spw_device_pread(again, foreign, 512, 0), 0);
	spw_device_close(again);
	open_device();
}

static void test_a_command_past_its_deadline(void **state)
{
	uint64_t start_ns;

	(void)state;
	open_queue_of(32, true, 60);
	fake.never_after = 5;
	start_ns = spw_clock_ns();
	start_many(20);
	finish_many(20);
	assert_true(spw_clock_ns() - start_ns >= 60000000);
	assert_int_equal(failed, 15);
	assert_int_equal(results[19], -ETIMEDOUT);
	expect_said("has not ended within 60 ms");
	expect_dead_then_alive();
}

/*
 * Others come and go meanwhile: the one that does not is found all the same, and no other one has
 * its deadline.
 */
static void test_one_stuck_among_many(void **state)
{
	unsigned rounds = 0;

	(void)state;
	open_queue_of(4, true, 50);
	start_many(1);
	fake.never_after = 0;
	fake_pump();
	fake.never_after = FAKE_NEVER;
	/* What is pending stays so: the controller forgets about it. */
	assert_int_equal(fake.pending_count, 1);
	fake.pending_count = 0;
	while (ended == 0 || results[0] == INT32_MAX) {
		make_io(1, SPW_READ, memory + 65536, 4096, 0);
		assert_int_equal(spw_queue_prepare(queue, &ios[1]), 0);
		while (results[1] == INT32_MAX)
			assert_true(spw_queue_reap(queue, 1, -1) >= 0);
		rounds++;
	}
	assert_int_equal(results[0], -ETIMEDOUT);
	assert_true(fake.cut);
	assert_true(rounds > 10);
	expect_dead_then_alive();
}

/*
 * A slot that is hardly ever free for longer than the deadline: each of its commands has a deadline
 * of its own.
 */
static void test_one_slot_for_many_in_turn(void **state)
{
	uint64_t until_ns = spw_clock_ns() + 800000000;

	(void)state;
	open_queue_of(1, true, 400);
	fake.delay = 100;
	while (spw_clock_ns() < until_ns)
		assert_int_equal(run(SPW_READ, memory, 4096, 0), 4096);
	assert_false(fake.cut);
}

static void test_a_controller_that_does_not_even_stop(void **state)
{
	(void)state;
	open_queue_of(32, true, 40);
	fake.never_after = 0;
	fake.never_stops = true;
	start_many(8);
	finish_many(8);
	assert_int_equal(failed, 8);
	expect_dead_then_alive();
}

/* Not as long as it says that a start takes: all that it had waits for it. */
static void test_a_controller_that_takes_long_to_stop(void **state)
{
	uint64_t start_ns;

	(void)state;
	spw_vfio_of(device)->controller->ready_ms = 600000;
	spw_vfio_of(device)->controller->stop_ms = 30;
	open_queue_of(32, true, 40);
	fake.never_after = 0;
	fake.never_stops = true;
	start_many(8);
	start_ns = spw_clock_ns();
	finish_many(8);
	assert_in_range(spw_clock_ns() - start_ns, 30000000, 20000000000);
	assert_int_equal(failed, 8);
	expect_dead_then_alive();
}

static void test_a_fatal_status(void **state)
{
	(void)state;
	open_queue_of(32, true, 20000);
	fake.never_after = 2;
	start_many(8);
	fake_pump();
	fake.registers[0x1c / 4] |= 2;
	finish_many(8);
	assert_int_equal(failed, 6);
	assert_int_equal(results[7], -EIO);
	expect_said("CSTS.CFS");
	expect_dead_then_alive();
}

static void test_registers_of_all_ones(void **state)
{
	(void)state;
	open_queue_of(32, true, 20000);
	fake.never_after = 0;
	start_many(8);
	memset(fake.registers, 0xff, FAKE_REGISTERS);
	finish_many(8);
	assert_int_equal(results[0], -ENODEV);
	expect_said("all ones");
	expect_dead_then_alive();
}

static void test_reset_behind_our_back(void **state)
{
	(void)state;
	open_queue_of(32, true, 20000);
	fake.never_after = 0;
	start_many(8);
	fake_reset();
	fake.registers[0x1c / 4] = 0;
	fake.registers[0x14 / 4] = 0;
	finish_many(8);
	assert_int_equal(results[0], -EIO);
	expect_said("CSTS.RDY");
	expect_dead_then_alive();
}

static void test_wanted_back_by_the_kernel(void **state)
{
	(void)state;
	open_queue_of(32, true, 20000);
	fake.never_after = 0;
	start_many(8);
	fake.wanted_back = true;
	finish_many(8);
	assert_int_equal(results[0], -ENODEV);
	expect_said("the kernel wants the device back");
	expect_dead_then_alive();
}

/* ---- Without commands ------------------------------------------------------------------------ */

#define PATIENCE_NS 20000000000

static void wake_queue(void)
{
	spw_queue_wake(queue);
}

/* Nothing but the controller's end wakes the queue. */
static void sleep_until_cut(void)
{
	uint64_t start_ns = spw_clock_ns();

	fake.on_cut = wake_queue;
	assert_int_equal(spw_queue_reap(queue, 1, PATIENCE_NS), 0);
	assert_true(spw_clock_ns() - start_ns < PATIENCE_NS);
	assert_true(fake.cut);
	fake.on_cut = NULL;
}

static void test_wanted_back_while_a_queue_sleeps(void **state)
{
	struct spw_queue_stats before, after;
	int fd = eventfd(1, EFD_CLOEXEC);

	(void)state;
	assert_true(fd >= 0);
	spw_vfio_idle_ms = 3600000;
	fake.wanted_back = true;
	fake.link.wanted_back = fd;
	open_queue_of(32, true, 20000);
	sleep_until_cut();
	expect_said("the kernel wants the device back");
	/* It stays readable, and keeps nobody awake; the wake may be left over, for one turn. */
	spw_queue_stats(queue, &before, sizeof(before));
	assert_int_equal(spw_queue_reap(queue, 1, 30000000), 0);
	spw_queue_stats(queue, &after, sizeof(after));
	assert_in_range(after.sleeps - before.sleeps, 1, 2);
	expect_dead_then_alive();
	fake.link.wanted_back = -1;
	assert_int_equal(close(fd), 0);
}

static struct spw_device *open_file(void)
{
	const char *base = getenv("TMPDIR");
	struct spw_device *file;
	char path[256];
	int fd;

	(void)snprintf(path, sizeof(path), "%s/spillway-vfio.XXXXXX", base ? base : "/var/tmp");
	fd = mkstemp(path);
	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, 4 << 20), 0);
	assert_int_equal(close(fd), 0);
	assert_int_equal(spw_device_open(path, NULL, &file), 0);
	assert_int_equal(unlink(path), 0);
	return file;
}

static bool has_io_uring = true;

int __real_io_uring_queue_init_params(unsigned entries, struct io_uring *ring,
				      struct io_uring_params *params);
int __wrap_io_uring_queue_init_params(unsigned entries, struct io_uring *ring,
				      struct io_uring_params *params);

int __wrap_io_uring_queue_init_params(unsigned entries, struct io_uring *ring,
				      struct io_uring_params *params)
{
	return has_io_uring ? __real_io_uring_queue_init_params(entries, ring, params) : -ENOSYS;
}

/* It sleeps in the other backend then, which knows nothing of controllers. */
static void wanted_back_while_a_mixed_queue_sleeps(const char *backend)
{
	struct spw_device *devices[3] = {device, open_file()};
	struct spw_queue_stats before, after;
	int fd = eventfd(0, EFD_CLOEXEC);
	struct spw_queue_opts opts;

	assert_true(fd >= 0);
	spw_vfio_idle_ms = 3600000;
	fake.link.wanted_back = fd;
	assert_int_equal(spw_device_open("pci:" FAKE_ADDRESS "/2", NULL, &devices[2]), 0);
	spw_queue_opts_init(&opts, sizeof(opts));
	opts.arena = arena;
	opts.log.write = collect;
	opts.tune_path = "";
	assert_int_equal(spw_queue_open(devices, 3, &opts, &queue), 0);
	assert_non_null(strstr(spw_queue_description(queue), backend));
	/* A wake is one as before; */
	spw_queue_wake(queue);
	assert_int_equal(spw_queue_reap(queue, 1, PATIENCE_NS), 0);
	assert_false(fake.cut);
	/* and so is a time. */
	assert_int_equal(spw_queue_reap(queue, 1, 10000000), 0);
	spw_queue_stats(queue, &before, sizeof(before));
	fake.wanted_back = true;
	assert_int_equal(eventfd_write(fd, 1), 0);
	sleep_until_cut();
	expect_said("the kernel wants the device back");
	spw_queue_stats(queue, &after, sizeof(after));
	assert_in_range(after.sleeps - before.sleeps, 1, 3);
	/*
	 * It stays readable, and keeps nobody awake; the wake, and polls left over, may do so for a
	 * turn.
	 */
	spw_queue_stats(queue, &before, sizeof(before));
	assert_int_equal(spw_queue_reap(queue, 1, 30000000), 0);
	spw_queue_stats(queue, &after, sizeof(after));
	assert_in_range(after.sleeps - before.sleeps, 1, 3);
	/* The file goes on. */
	assert_int_equal(run_on(1, SPW_READ, memory, 4096, 0), 4096);
	spw_queue_close(queue);
	queue = NULL;
	spw_device_close(devices[1]);
	spw_device_close(devices[2]);
	fake.link.wanted_back = -1;
	assert_int_equal(close(fd), 0);
}

static void test_wanted_back_while_a_mixed_queue_sleeps(void **state)
{
	(void)state;
	wanted_back_while_a_mixed_queue_sleeps("io_uring for");
}

static void test_wanted_back_while_a_mixed_queue_sleeps_in_libaio(void **state)
{
	(void)state;
	has_io_uring = false;
	wanted_back_while_a_mixed_queue_sleeps("libaio for");
	has_io_uring = true;
}

static void test_death_while_a_queue_sleeps(void **state)
{
	(void)state;
	open_queue_of(32, true, 20000);
	spw_vfio_idle_ms = 5;
	memset(fake.registers, 0xff, FAKE_REGISTERS);
	sleep_until_cut();
	expect_said("all ones");
	expect_dead_then_alive();
}

/*
 * Looking now and then ends no wait, neither one with a limit nor one without. On a busy machine a
 * sleep may last as long as the wait.
 */
static void test_looking_at_controllers_ends_no_sleep(void **state)
{
	uint64_t begin_ns = spw_clock_ns();
	struct spw_queue_stats stats;
	unsigned waits = 0;

	(void)state;
	open_queue_of(32, true, 20000);
	spw_vfio_idle_ms = 5;
	do {
		uint64_t start_ns = spw_clock_ns();

		assert_int_equal(spw_queue_reap(queue, 1, 100000000), 0);
		assert_true(spw_clock_ns() - start_ns >= 100000000);
		spw_queue_stats(queue, &stats, sizeof(stats));
		waits++;
	} while (stats.sleeps <= waits && spw_clock_ns() - begin_ns < PATIENCE_NS);
	assert_true(stats.sleeps > waits);
	assert_false(fake.cut);
}

/* ---- Completions that cannot be -------------------------------------------------------------- */

static void test_completions_for_other_commands(void **state)
{
	static const uint16_t flips[] = {0x3ff, 0x400, 0x7c00, 0x8000, 0xffff};

	(void)state;
	for (size_t i = 0; i < SPW_ARRAY_LEN(flips); i++) {
		open_queue_of(32, true, 20000);
		ended = failed = 0;
		fake.never_after = 3;
		fake.wrong_cid = 1;
		fake.cid_flip = flips[i];
		start_many(8);
		finish_many(8);
		assert_true(failed > 0);
		expect_said("a completion for a command that");
		expect_dead_then_alive();
		said[0] = '\0';
	}
}

/* Another queue may well have a command of that identifier. */
static void test_completions_of_another_queue(void **state)
{
	(void)state;
	open_queue_of(32, true, 20000);
	fake.sq_flip = 3;
	start_many(8);
	finish_many(8);
	assert_int_equal(failed, 8);
	expect_said("a completion for a command of another queue");
	fake.sq_flip = 0;
	expect_dead_then_alive();
}

static void test_completions_that_come_twice(void **state)
{
	(void)state;
	open_queue_of(32, true, 20000);
	fake.twice = 1;
	fake.never_after = 4;
	start_many(8);
	finish_many(8);
	expect_said("a second completion for one command");
	expect_dead_then_alive();
}

static void test_death_while_a_call_waits(void **state)
{
	(void)state;
	spw_vfio_timeout_ms = 40;
	fake.never_after = 0;
	assert_int_equal(spw_device_pread(device, foreign, 512, 0), -ETIMEDOUT);
	expect_error("no answer to command 02h of queue 1 within 40 ms");
	assert_true(fake.cut);
	assert_int_equal(spw_device_pread(device, foreign, 512, 0), -ENODEV);
	expect_error("no answer to command 02h");
	fake.never_after = FAKE_NEVER;
	spw_device_close(device);
	open_device();
	assert_int_equal(spw_device_pread(device, foreign, 512, 0), 0);
}

/* What has ended while this process was stopped is no late answer, however late it is taken. */
static void test_a_process_stopped_while_a_call_waits(void **state)
{
	(void)state;
	spw_vfio_timeout_ms = 20;
	fake.delay = UINT32_MAX;
	fake.sleeps_ms = 40;
	assert_int_equal(spw_device_pread(device, foreign, 512, 0), 0);
	assert_int_equal(fake.sleeps_ms, 0);
	assert_false(fake.cut);
}

static void test_closing_with_commands_that_never_end(void **state)
{
	(void)state;
	open_queue_of(32, true, 40);
	fake.never_after = 0;
	start_many(8);
	spw_queue_close(queue);
	queue = NULL;
	assert_int_equal(ended, 8);
	assert_int_equal(bad_ends, 0);
}

/*
 * Nothing has reset it since somebody left it: it is stopped first, and only then does it reach
 * memory.
 */
static void test_a_controller_that_still_runs_when_opened(void **state)
{
	(void)state;
	spw_device_close(device);
	device = NULL;
	fake.still_runs = true;
	open_device();
	assert_int_equal(spw_device_pread(device, foreign, 512, 0), 0);
	spw_device_close(device);
	/* One that does not stop never reaches any. */
	fake.never_stops = true;
	assert_int_equal(spw_device_open(PATH, NULL, &device), -ETIMEDOUT);
	device = NULL;
	expect_error("does not stop within 1000 ms");
	assert_false(fake.transfers);
	fake.still_runs = fake.never_stops = false;
	open_device();
}

/*
 * It is waited for as long as the controller says, within limits: not as long as it takes to become
 * ready.
 */
static void test_how_long_a_shutdown_may_take(void **state)
{
	static const struct {
		uint32_t told_us, waits_ms;
	} cases[] = {{0, 5000},       {4999999, 5000},   {5000001, 5001},
		     {7000000, 7000}, {60000001, 60000}, {UINT32_MAX, 60000}};
	uint64_t start_ns;

	(void)state;
	for (size_t i = 0; i < SPW_ARRAY_LEN(cases); i++) {
		spw_device_close(device);
		fake.rtd3e_us = cases[i].told_us;
		open_device();
		assert_int_equal(spw_vfio_of(device)->controller->shutdown_ms, cases[i].waits_ms);
	}
	fake.never_shuts_down = true;
	spw_vfio_of(device)->controller->ready_ms = 20000;
	spw_vfio_of(device)->controller->shutdown_ms = 30;
	start_ns = spw_clock_ns();
	spw_device_close(device);
	assert_in_range(spw_clock_ns() - start_ns, 30000000, 20000000000 - 1);
	fake.never_shuts_down = false;
	open_device();
}

static void test_events_are_logged_and_asked_for_again(void **state)
{
	(void)state;
	open_queue_of(4, true, 40);
	for (unsigned i = 0; i < 2; i++) {
		said[0] = '\0';
		fake_pump();
		fake_event(0x020101); /* health: temperature; its page: 2 */
		while (!said[0])
			assert_int_equal(run(SPW_READ, memory, 4096, 0), 4096);
		expect_said("the temperature is over its limit");
	}
	assert_false(fake.cut);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_a_command_past_its_deadline),
		TEST(test_one_stuck_among_many),
		TEST(test_one_slot_for_many_in_turn),
		TEST(test_a_controller_that_does_not_even_stop),
		TEST(test_a_controller_that_takes_long_to_stop),
		TEST(test_a_fatal_status),
		TEST(test_registers_of_all_ones),
		TEST(test_reset_behind_our_back),
		TEST(test_wanted_back_by_the_kernel),
		TEST(test_wanted_back_while_a_queue_sleeps),
		TEST(test_wanted_back_while_a_mixed_queue_sleeps),
		TEST(test_wanted_back_while_a_mixed_queue_sleeps_in_libaio),
		TEST(test_death_while_a_queue_sleeps),
		TEST(test_looking_at_controllers_ends_no_sleep),
		TEST(test_completions_for_other_commands),
		TEST(test_completions_of_another_queue),
		TEST(test_completions_that_come_twice),
		TEST(test_death_while_a_call_waits),
		TEST(test_a_process_stopped_while_a_call_waits),
		TEST(test_closing_with_commands_that_never_end),
		TEST(test_a_controller_that_still_runs_when_opened),
		TEST(test_how_long_a_shutdown_may_take),
		TEST(test_events_are_logged_and_asked_for_again),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
