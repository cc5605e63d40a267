/* SPDX-License-Identifier: MIT */
/* tests/unit/test_vfio_backend_dead.c - queues over a controller in memory that goes wrong */
/* wrap: spw_vfio__link_open io_uring_queue_init_params */
#include "tests/unit/vfio_rig.h"
#include "tests/wrap.h"

#include <liburing.h>
#include <sys/eventfd.h>

static unsigned bad_ends;

/* A buffer is released only when the controller cannot write to it any more. */
static void done_safely(struct spw_io *io)
{
	if (io->res < 0 && !fake.cut)
		bad_ends++;
	done(io);
}

static void start_many(unsigned count)
{
	bad_ends = ended = failed = 0;
	said[0] = '\0';
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
	reap_until(count);
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
	close_queue();
	assert_int_equal(fake_mapped() > 0, 1); /* what the device itself has */
	close_device();
	memset(fake.registers, 0, FAKE_REGISTERS);
	fake.never_after = FAKE_NEVER;
	fake.wrong_cid = fake.twice = fake.sq_flip = 0;
	fake.wanted_back = false;
	fake.never_stops = false;
	assert_int_equal(spw_device_open(PATH, NULL, &again), 0);
	assert_int_equal(spw_device_pread(again, foreign, 512, 0), 0);
	spw_device_close(again);
	open_device();
}

/*
 * Of eight commands @ended_before end, and then the controller dies, by itself or by @die():
 * @failures of them fail, or, 0, some.
 */
static void expect_death(uint32_t timeout_ms, unsigned ended_before, void (*die)(void),
			 unsigned failures, const char *words)
{
	printf("# %s\n", words);
	open_queue_of(32, timeout_ms);
	fake.never_after = ended_before;
	start_many(8);
	if (die) {
		fake_pump();
		die();
	}
	finish_many(8);
	assert_in_range(failed, failures > 0 ? failures : 1, failures > 0 ? failures : 8);
	expect_said(words);
	expect_dead_then_alive();
}

TEST(test_a_command_past_its_deadline)
{
	uint64_t start_ns;

	open_queue_of(32, 60);
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
TEST(test_one_stuck_among_many)
{
	unsigned rounds = 0;

	open_queue_of(4, 50);
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
TEST(test_one_slot_for_many_in_turn)
{
	uint64_t until_ns = spw_clock_ns() + 800000000;

	open_queue_of(1, 400);
	fake.delay = 100;
	while (spw_clock_ns() < until_ns)
		assert_int_equal(run(SPW_READ, memory, 4096, 0), 4096);
	assert_false(fake.cut);
}

/* CTRL-1 */
TEST(test_a_controller_that_does_not_even_stop)
{
	fake.never_stops = true;
	expect_death(40, 0, NULL, 8, "has not ended within 40 ms");
}

/* VFIO-2: Not as long as it says that a start takes: all that it had waits for it. */
TEST(test_a_controller_that_takes_long_to_stop)
{
	uint64_t start_ns;

	spw_vfio__of(device)->controller->ready_ms = 600000;
	spw_vfio__of(device)->controller->stop_ms = 30;
	fake.never_stops = true;
	start_ns = spw_clock_ns();
	expect_death(40, 0, NULL, 8, "has not ended within 40 ms");
	assert_in_range(spw_clock_ns() - start_ns, 70000000, PATIENCE_NS);
}

static void report_fatal_error(void)
{
	fake.registers[0x1c / 4] |= 2;
}

static void pull_out(void)
{
	memset(fake.registers, 0xff, FAKE_REGISTERS);
}

static void reset(void)
{
	fake_reset();
	fake.registers[0x1c / 4] = 0;
	fake.registers[0x14 / 4] = 0;
}

static void want_back(void)
{
	fake.wanted_back = true;
}

TEST(test_controllers_that_die)
{
	static const struct {
		void (*die)(void);
		unsigned ended_before;
		int result;
		const char *words;
	} cases[] = {
		{report_fatal_error, 2, -EIO, "CSTS.CFS"},
		{pull_out, 0, -ENODEV, "all ones"},
		{reset, 0, -EIO, "CSTS.RDY"},
		{want_back, 0, -ENODEV, "the kernel wants the device back"},
	};

	for (size_t i = 0; i < SPW_ARRAY_LEN(cases); i++) {
		expect_death(20000, cases[i].ended_before, cases[i].die, 8 - cases[i].ended_before,
			     cases[i].words);
		assert_int_equal(results[7], cases[i].result);
	}
}

/* ---- Without commands ------------------------------------------------------------------------ */

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

TEST(test_wanted_back_while_a_queue_sleeps)
{
	uint64_t sleeps;
	int fd = eventfd(1, EFD_CLOEXEC);

	assert_true(fd >= 0);
	fake.link.idle_ms = 3600000;
	fake.wanted_back = true;
	fake.link.wanted_back = fd;
	open_queue_of(32, 20000);
	sleep_until_cut();
	expect_said("the kernel wants the device back");
	/* It stays readable, and keeps no waiter awake; the wake may be left over, for one turn. */
	sleeps = queue_stats().sleeps;
	assert_int_equal(spw_queue_reap(queue, 1, 30000000), 0);
	assert_in_range(queue_stats().sleeps - sleeps, 1, 2);
	expect_dead_then_alive();
	fake.link.wanted_back = -1;
	assert_int_equal(close(fd), 0);
}

static bool has_io_uring = true;

WRAP(int, io_uring_queue_init_params,
     (unsigned entries, struct io_uring *ring, struct io_uring_params *params))
{
	return has_io_uring ? __real_io_uring_queue_init_params(entries, ring, params) : -ENOSYS;
}

/* It sleeps in the other backend then, which knows nothing of controllers. */
static void wanted_back_while_a_mixed_queue_sleeps(const char *backend)
{
	struct spw_device *devices[3] = {device, open_file()};
	uint64_t sleeps;
	int fd = eventfd(0, EFD_CLOEXEC);

	assert_true(fd >= 0);
	fake.link.idle_ms = 3600000;
	fake.link.wanted_back = fd;
	assert_int_equal(spw_device_open("pci:" FAKE_ADDRESS "/2", NULL, &devices[2]), 0);
	open_queue_over(devices, 3, 32, 0);
	expect_in(backend, spw_queue_description(queue));
	/* A wake is one as before; */
	spw_queue_wake(queue);
	assert_int_equal(spw_queue_reap(queue, 1, PATIENCE_NS), 0);
	assert_false(fake.cut);
	/* and so is a time. */
	assert_int_equal(spw_queue_reap(queue, 1, 10000000), 0);
	sleeps = queue_stats().sleeps;
	fake.wanted_back = true;
	assert_int_equal(eventfd_write(fd, 1), 0);
	sleep_until_cut();
	expect_said("the kernel wants the device back");
	assert_in_range(queue_stats().sleeps - sleeps, 1, 3);
	/* It stays readable, and wakes no waiter; the wake and old polls may, for one turn. */
	sleeps = queue_stats().sleeps;
	assert_int_equal(spw_queue_reap(queue, 1, 30000000), 0);
	assert_in_range(queue_stats().sleeps - sleeps, 1, 3);
	/* The file goes on. */
	assert_int_equal(run_io(make_io(0, SPW_READ, memory, 4096, 0), 1), 4096);
	close_queue();
	spw_device_close(devices[1]);
	spw_device_close(devices[2]);
	fake.link.wanted_back = -1;
	assert_int_equal(close(fd), 0);
}

TEST(test_wanted_back_while_a_mixed_queue_sleeps)
{
	wanted_back_while_a_mixed_queue_sleeps("io_uring for");
}

TEST(test_wanted_back_while_a_mixed_queue_sleeps_in_libaio)
{
	has_io_uring = false;
	wanted_back_while_a_mixed_queue_sleeps("libaio for");
	has_io_uring = true;
}

TEST(test_death_while_a_queue_sleeps)
{
	fake.link.idle_ms = 5;
	open_queue_of(32, 20000);
	memset(fake.registers, 0xff, FAKE_REGISTERS);
	sleep_until_cut();
	expect_said("all ones");
	expect_dead_then_alive();
}

/*
 * Looking now and then ends no wait, neither one with a limit nor one without. On a busy machine a
 * sleep may last as long as the wait.
 */
TEST(test_looking_at_controllers_ends_no_sleep)
{
	uint64_t begin_ns = spw_clock_ns();
	unsigned waits = 0;

	fake.link.idle_ms = 5;
	open_queue_of(32, 20000);
	do {
		uint64_t start_ns = spw_clock_ns();

		assert_int_equal(spw_queue_reap(queue, 1, 100000000), 0);
		assert_true(spw_clock_ns() - start_ns >= 100000000);
		waits++;
	} while (queue_stats().sleeps <= waits && spw_clock_ns() - begin_ns < PATIENCE_NS);
	assert_true(queue_stats().sleeps > waits);
	assert_false(fake.cut);
}

/* ---- Completions that cannot be -------------------------------------------------------------- */

TEST(test_completions_for_other_commands)
{
	static const uint16_t flips[] = {0x3ff, 0x400, 0x7c00, 0x8000, 0xffff};

	for (size_t i = 0; i < SPW_ARRAY_LEN(flips); i++) {
		fake.wrong_cid = 1;
		fake.cid_flip = flips[i];
		expect_death(20000, 3, NULL, 0, "a completion for a command that");
	}
}

/* Another queue may well have a command of that identifier. */
TEST(test_completions_of_another_queue)
{
	fake.sq_flip = 3;
	expect_death(20000, FAKE_NEVER, NULL, 8, "a completion for a command of another queue");
}

TEST(test_completions_that_come_twice)
{
	fake.twice = 1;
	expect_death(20000, 4, NULL, 0, "a second completion for one command");
}

TEST(test_death_while_a_call_waits)
{
	fake.link.timeout_ms = 40;
	fake.never_after = 0;
	expect_refusal(-ETIMEDOUT, "no answer to command 02h of queue 1 within 40 ms",
		       spw_device_pread(device, foreign, 512, 0));
	assert_true(fake.cut);
	expect_refusal(-ENODEV, "no answer to command 02h",
		       spw_device_pread(device, foreign, 512, 0));
	fake.never_after = FAKE_NEVER;
	spw_device_close(device);
	open_device();
	assert_int_equal(spw_device_pread(device, foreign, 512, 0), 0);
}

/* What has ended while this process was stopped is not late, whenever it is taken. */
TEST(test_a_process_stopped_while_a_call_waits)
{
	fake.link.timeout_ms = 20;
	fake.delay = UINT32_MAX;
	fake.sleeps_ms = 40;
	assert_int_equal(spw_device_pread(device, foreign, 512, 0), 0);
	assert_int_equal(fake.sleeps_ms, 0);
	assert_false(fake.cut);
}

/* CTRL-2 */
TEST(test_closing_with_commands_that_never_end)
{
	open_queue_of(32, 40);
	fake.never_after = 0;
	start_many(8);
	close_queue();
	assert_int_equal(ended, 8);
	assert_int_equal(bad_ends, 0);
}

/*
 * Nothing has reset it since its last owner left it: it is stopped first, and only then does it
 * reach memory.
 */
TEST(test_a_controller_that_still_runs_when_opened)
{
	close_device();
	fake.still_runs = true;
	open_device();
	assert_int_equal(spw_device_pread(device, foreign, 512, 0), 0);
	spw_device_close(device);
	/* One that does not stop never reaches any. */
	fake.never_stops = true;
	assert_int_equal(spw_device_open(PATH, NULL, &device), -ETIMEDOUT);
	device = NULL;
	expect_words("does not stop within 1000 ms");
	assert_false(fake.transfers);
	fake.still_runs = fake.never_stops = false;
	open_device();
}

/*
 * It is waited for as long as the controller says, within limits: not as long as it takes to become
 * ready.
 */
TEST(test_how_long_a_shutdown_may_take)
{
	static const struct {
		uint32_t told_us, waits_ms;
	} cases[] = {{0, 5000},       {4999999, 5000},   {5000001, 5001},
		     {7000000, 7000}, {60000001, 60000}, {UINT32_MAX, 60000}};
	uint64_t start_ns;

	for (size_t i = 0; i < SPW_ARRAY_LEN(cases); i++) {
		spw_device_close(device);
		fake.rtd3e_us = cases[i].told_us;
		open_device();
		assert_int_equal(spw_vfio__of(device)->controller->shutdown_ms, cases[i].waits_ms);
	}
	fake.never_shuts_down = true;
	spw_vfio__of(device)->controller->ready_ms = 20000;
	spw_vfio__of(device)->controller->shutdown_ms = 30;
	start_ns = spw_clock_ns();
	spw_device_close(device);
	assert_in_range(spw_clock_ns() - start_ns, 30000000, 20000000000 - 1);
	fake.never_shuts_down = false;
	open_device();
}

TEST(test_events_are_logged_and_asked_for_again)
{
	open_queue_of(4, 40);
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

RUN_CASES(NULL, NULL)
