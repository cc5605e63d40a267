/* SPDX-License-Identifier: MIT */
/* tools/bench/run.c - the jobs of a command line: their threads, their order, an interrupt */
#include "tools/bench/bench.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "tools/bench/devices.h"
#include "tools/ui/stop.h"
#include "tools/ui/tool.h"
#include "util/util.h"

/* The only thing that a signal handler can reach. */
static atomic_bool stop;

static void on_interrupt(int signal_number)
{
	(void)signal_number;
	atomic_store(&stop, true);
}

/* The first interrupt ends the jobs, and what was measured is reported; a second one kills. */
static void catch_interrupts(struct sigaction *before)
{
	struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND};

	atomic_store(&stop, false);
	(void)sigemptyset(&action.sa_mask);
	(void)sigaction(SIGINT, &action, before);
}

/* ---- Workers --------------------------------------------------------------------------------- */

static int add_workers(struct bench_run *run, unsigned job_index, unsigned group)
{
	const struct bench_job *job = &run->plan.jobs[job_index];
	unsigned first = run->workers_count;

	for (unsigned i = 0; i < job->numjobs; i++) {
		struct bench_worker *worker = &run->workers[first + i];
		int count;

		worker->job = job;
		worker->index = i;
		worker->sequence = first + i;
		worker->group = group;
		worker->stop = &stop;
		worker->log = tool_log(run->verbose);
		run->workers_count++;
		count = bench_split_filename(job->filename, worker->paths);
		if (count < 0)
			return spw_error(count, "job %s: %s", job->name, spw_last_error());
		worker->devices_count = (unsigned)count;
		count = spw_drives_distinct((const char *const *)worker->paths,
					    worker->devices_count);
		if (count < 0)
			return spw_error(count, "job %s: %s", job->name, spw_last_error());
	}
	return 0;
}

static int make_workers(struct bench_run *run)
{
	unsigned total = 0, group = 0;
	int result = 0;

	for (unsigned i = 0; i < run->plan.count; i++)
		total += run->plan.jobs[i].numjobs;
	if (total == 0 || total > BENCH_JOBS_MAX)
		return spw_error(-EINVAL, "%u jobs in all: there can be 1 to %u", total,
				 BENCH_JOBS_MAX);
	run->workers = calloc(total, sizeof(*run->workers));
	if (!run->workers)
		return spw_error(-ENOMEM, "out of memory");
	for (unsigned i = 0; i < run->plan.count && result == 0; i++) {
		if (i > 0 && run->plan.jobs[i].stonewall)
			group++;
		result = add_workers(run, i, group);
	}
	return result;
}

/* ---- Devices --------------------------------------------------------------------------------- */

static int collect_devices(struct bench_run *run, struct bench_devices *devices)
{
	for (unsigned i = 0; i < run->workers_count; i++) {
		struct bench_worker *worker = &run->workers[i];

		if (worker->job->level == BENCH_LEVEL_STORE)
			continue;
		for (unsigned j = 0; j < worker->devices_count; j++) {
			struct bench_device *device = bench_devices_find(devices, worker->paths[j]);

			if (!device)
				return spw_error(-ENOENT, "job %s: %s", worker->job->name,
						 spw_last_error());
			device->writes |= bench_rw_writes(worker->job->rw);
		}
	}
	return 0;
}

/* What does not fit is refused before any job has written anything. */
static int check_regions(struct bench_run *run, struct bench_devices *devices)
{
	struct bench_region region;
	int result = 0;

	for (unsigned i = 0; i < run->workers_count; i++) {
		struct bench_worker *worker = &run->workers[i];

		for (unsigned j = 0;
		     j < worker->devices_count && worker->job->level == BENCH_LEVEL_ENGINE; j++) {
			worker->devices[j] = bench_devices_find(devices, worker->paths[j])->device;
			result = bench_region_place(&region, worker->job, worker->paths[j],
						    spw_device_geometry(worker->devices[j]),
						    worker->devices_count, 0);
			if (result != 0)
				return result;
		}
	}
	return 0;
}

/* ---- Threads --------------------------------------------------------------------------------- */

static void *worker_main(void *argument)
{
	struct bench_worker *worker = argument;

	if (worker->job->level == BENCH_LEVEL_STORE)
		(void)bench_store_worker_run(worker);
	else
		(void)bench_worker_run(worker);
	atomic_store(&worker->live_ended, true);
	bench_gate_end(worker->gate);
	return NULL;
}

static void wait_until_ready(struct bench_gate *gate, unsigned workers)
{
	(void)pthread_mutex_lock(&gate->lock);
	while (gate->waiting < workers)
		(void)pthread_cond_wait(&gate->changed, &gate->lock);
	(void)pthread_mutex_unlock(&gate->lock);
}

static void open_gate(struct bench_gate *gate)
{
	(void)pthread_mutex_lock(&gate->lock);
	gate->open = true;
	(void)pthread_cond_broadcast(&gate->changed);
	(void)pthread_mutex_unlock(&gate->lock);
}

static uint64_t timeval_ns(const struct timeval *time)
{
	return (uint64_t)time->tv_sec * 1000000000u + (uint64_t)time->tv_usec * 1000u;
}

/*
 * CPU time of the whole process, threads of the kernel that work for it included. @sign: 1 or -1.
 */
static void add_process_time(struct bench_run *run, int sign)
{
	struct rusage usage;

	(void)getrusage(RUSAGE_SELF, &usage);
	run->process_user_ns += (uint64_t)sign * timeval_ns(&usage.ru_utime);
	run->process_system_ns += (uint64_t)sign * timeval_ns(&usage.ru_stime);
}

/* The workers of one group, side by side. Preparing them (filling buffers) is not measured. */
static int run_wave(struct bench_run *run, struct bench_live *live, unsigned first, unsigned count)
{
	struct bench_gate gate;
	unsigned started = 0;
	int result = 0;

	bench_gate_init(&gate);
	for (; started < count; started++) {
		struct bench_worker *worker = &run->workers[first + started];

		worker->gate = &gate;
		result = -pthread_create(&worker->thread, NULL, worker_main, worker);
		if (result != 0) {
			result = spw_error_errno(result, "cannot start a thread");
			atomic_store(&stop, true);
			break;
		}
		worker->started = true;
	}
	wait_until_ready(&gate, started);
	add_process_time(run, -1);
	open_gate(&gate);
	bench_live_watch(live, &gate, &run->workers[first], started);
	add_process_time(run, 1);
	for (unsigned i = 0; i < started; i++)
		(void)pthread_join(run->workers[first + i].thread, NULL);
	return result;
}

static int run_waves(struct bench_run *run)
{
	struct bench_live *live = bench_live_new(run);
	int result = live ? 0 : spw_error(-ENOMEM, "out of memory");
	unsigned first = 0;

	while (result == 0 && first < run->workers_count && !atomic_load(&stop)) {
		unsigned count = 1;

		while (first + count < run->workers_count &&
		       run->workers[first + count].group == run->workers[first].group)
			count++;
		result = run_wave(run, live, first, count);
		first += count;
	}
	bench_live_free(live);
	return result;
}

int bench_run(struct bench_run *run)
{
	struct bench_devices own = {.count = 0}, *devices = run->devices ? run->devices : &own;
	struct spw_log log = tool_log(run->verbose);
	struct timespec wall;
	struct sigaction before;
	uint64_t begin_ns;
	int result = make_workers(run);

	if (result == 0)
		result = collect_devices(run, devices);
	if (result == 0)
		result = bench_devices_open(devices, run->allow_destructive, &log);
	if (result == 0)
		result = check_regions(run, devices);
	if (result != 0)
		goto out;
	(void)clock_gettime(CLOCK_REALTIME, &wall);
	run->start_time_ms = (uint64_t)wall.tv_sec * 1000 + (uint64_t)wall.tv_nsec / 1000000;
	begin_ns = spw_clock_ns();
	catch_interrupts(&before);
	/* One that came before, and that a command caught which runs several of these. */
	if (tool_stopped())
		atomic_store(&stop, true);
	result = run_waves(run);
	(void)sigaction(SIGINT, &before, NULL);
	run->elapsed_ns = spw_clock_ns() - begin_ns;
	run->interrupted = atomic_load(&stop) && result == 0;
out:
	bench_devices_close(&own);
	return result;
}

void bench_run_free(struct bench_run *run)
{
	for (unsigned i = 0; i < run->workers_count; i++) {
		for (unsigned j = 0; j < BENCH_FILES_MAX; j++)
			free(run->workers[i].paths[j]);
		free(run->workers[i].shares);
	}
	free(run->workers);
	bench_plan_free(&run->plan);
	run->workers = NULL;
	run->workers_count = 0;
}
