/* SPDX-License-Identifier: MIT */
/* tests/unit/test_tool_tune.c - spillway tune: interrupts within and between measurements */
/* link: util alloc layout engine status drives store tools/cmd_tune tools/tune_file */
/* link: tools/ui/output_file tools/ui/output tools/ui/options tools/ui/nearest */
/* link: tools/ui/stop tools/bench/options tools/bench/values tools/bench/jobfile */
/* link: tools/bench/unwritten tools/bench/null */
/* link: tools/bench/run tools/bench/devices tools/bench/timer */
/* link: tools/bench/worker tools/bench/store tools/bench/offsets tools/bench/verify */
/* link: tools/bench/live tools/bench/region tools/bench/spread tools/bench/content */
/* link: tools/bench/steady */
/* link: tools/bench/lists tools/bench/check tools/bench/fio_options tools/bench/job */
/* link: tools/bench/thread_place tools/bench/turns */
/* wrap: bench_run bench_run_free spw_device_open */

#include "tests/case.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "tools/bench/bench.h"
#include "tools/ui/tool.h"

static char drive[256], settings[300], written[1 << 20];

/* ---- Measurements ---- */

static unsigned measurements, interrupt_before; /* this one */
static bool measures;                           /* in earnest */
static unsigned opens, interrupt_open;          /* of a drive; at this one */

typeof(spw_device_open) __real_spw_device_open, __wrap_spw_device_open;
int __wrap_spw_device_open(const char *path, const struct spw_device_opts *opts,
			   struct spw_device **device)
{
	if (measures && ++opens == interrupt_open)
		assert_int_equal(raise(SIGINT), 0);
	return __real_spw_device_open(path, opts, device);
}

typeof(bench_run) __real_bench_run, __wrap_bench_run;
int __wrap_bench_run(struct bench_run *run)
{
	static struct bench_worker worker;

	/* Only what is opened from here on is within a measurement. */
	if (interrupt_open > 0) {
		measures = true;
		return __real_bench_run(run);
	}
	if (++measurements == interrupt_before)
		assert_int_equal(raise(SIGINT), 0);
	worker.stats.direction[BENCH_DIR_READ].bytes = 1000;
	worker.stats.direction[BENCH_DIR_READ].runtime_ns = 1000;
	run->workers = &worker;
	run->workers_count = 1;
	return 0;
}

typeof(bench_run_free) __real_bench_run_free, __wrap_bench_run_free;
void __wrap_bench_run_free(struct bench_run *run)
{
	if (interrupt_open > 0)
		__real_bench_run_free(run);
	else
		bench_plan_free(&run->plan);
}

/* ---- Cases ---- */

static int set_up(void **state)
{
	const char *base = getenv("TMPDIR");
	int fd;

	(void)state;
	(void)snprintf(drive, sizeof(drive), "%s/spillway-tune.XXXXXX", base ? base : "/var/tmp");
	fd = mkstemp(drive);
	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, 64 << 20), 0);
	/* What was never written is not measured. */
	for (unsigned i = 0; i < 64; i++)
		assert_int_equal(write(fd, written, sizeof(written)), sizeof(written));
	assert_int_equal(close(fd), 0);
	(void)snprintf(settings, sizeof(settings), "%s.json", drive);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	(void)unlink(settings);
	return unlink(drive);
}

static int tune(void)
{
	char *arguments[] = {"tune", drive, "--output", settings, "--json", NULL};

	measurements = 0;
	return tool_run(&command_tune, 5, arguments);
}

CASE(an_interrupt_between_two_measurements)
{
	interrupt_before = 2;
	assert_int_equal(tune(), TOOL_INTERRUPTED);
	assert_int_equal(measurements, 2);
	assert_int_not_equal(access(settings, F_OK), 0);
	/* The next one, and what is done with it, is the system's again. */
	interrupt_before = 0;
	assert_int_equal(tune(), TOOL_DONE);
	assert_int_equal(access(settings, F_OK), 0);
}

/* The bench's own handler is not there yet: it must not measure for a minute first. */
CASE(an_interrupt_as_a_measurement_begins)
{
	char *arguments[] = {"tune",   drive,       "--output", settings,
			     "--json", "--runtime", "60",       NULL};

	(void)unlink(settings);
	interrupt_open = 1;
	(void)alarm(50);
	assert_int_equal(tool_run(&command_tune, 7, arguments), TOOL_INTERRUPTED);
	(void)alarm(0);
	assert_int_equal(opens, 1);
	assert_int_not_equal(access(settings, F_OK), 0);
}

RUN_CASES(set_up, tear_down)
