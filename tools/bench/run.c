/* SPDX-License-Identifier: MIT */
/* tools/bench/run.c - bench_run(): run the jobs in threads, in their order, until an interrupt */
#include "tools/bench/bench.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "tools/ui/stop.h"
#include "tools/ui/tool.h"
#include "util/util.h"

/* ---- Workers --------------------------------------------------------------------------------- */

/* Log only warnings: the error that ends a job is reported once at its end, not per transfer. */
static void log_warnings_alone(void *context, enum spw_log_level level, const char *message)
{
	if (level == SPW_LOG_WARNING)
		tool_log(false).write(context, level, message);
}

static int add_workers(struct bench_run *run, unsigned job_index, unsigned group, unsigned wave)
{
	const struct bench_job *job = &run->plan.jobs[job_index];
	unsigned first = run->workers_count;

	for (unsigned i = 0; i < job->numjobs; i++) {
		struct bench_worker *worker = &run->workers[first + i];
		int result;

		worker->job = job;
		worker->index = i;
		worker->sequence = first + i;
		worker->group = group;
		worker->wave = wave;
		worker->run = run;
		worker->log = run->verbose ? tool_log(true)
					   : (struct spw_log){.write = log_warnings_alone};
		run->workers_count++;
		result = bench_name_files(worker);
		if (result == 0)
			result = spw_drives_distinct((const char *const *)worker->paths,
						     worker->devices_count);
		if (result != 0)
			return spw_error(result, "job %s: %s", job->name, spw_last_error());
	}
	return 0;
}

/* Check wait_for: it must name an earlier job, so that jobs cannot wait for each other. */
static int check_wait(const struct bench_run *run, unsigned number)
{
	const struct bench_job *job = &run->plan.jobs[number];

	if (job->wait_for[0] == '\0')
		return 0;
	for (unsigned i = 0; i < number; i++)
		if (strcmp(run->plan.jobs[i].name, job->wait_for) == 0)
			return 0;
	return spw_error(-EINVAL, "job %s: wait_for=%s names no job before it", job->name,
			 job->wait_for);
}

static int make_workers(struct bench_run *run)
{
	unsigned total = 0, group = 0, wave = 0;
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
		const struct bench_job *job = &run->plan.jobs[i];

		wave += i > 0 && job->stonewall;
		group += i > 0 && (job->stonewall || job->new_group);
		result = check_wait(run, i);
		if (result == 0)
			result = add_workers(run, i, group, wave);
	}
	return result == 0 ? bench_flows_make(run) : result;
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

static int offset_job(struct bench_job *job, unsigned index)
{
	if (__builtin_mul_overflow(job->offset_increment_bytes, index,
				   &job->offset_increment_bytes) ||
	    __builtin_add_overflow(job->offset_bytes, job->offset_increment_bytes,
				   &job->offset_bytes))
		return spw_error(-EINVAL, "job %s: offset_increment: too large for numjobs=%u",
				 job->name, job->numjobs);
	return 0;
}

/* Set how much a worker moves, of @total bytes in its regions. */
static int set_limits(struct bench_worker *worker, uint64_t total)
{
	const struct bench_job *job = worker->job;
	bool read_back = job->verify != BENCH_VERIFY_NONE && bench_rw_writes(job->rw);
	uint64_t limit;

	/* Verifying repeats the job's single sequence of directions: it takes one file. */
	if (read_back && bench_rw_reads(job->rw) && worker->devices_count > 1)
		return spw_error(-EINVAL, "job %s: verify of rw=%s takes one file", job->name,
				 bench_rw_name(job->rw));
	if (job->size_bytes > 0)
		total = SPW_MIN(total, job->size_bytes);
	worker->pass_bytes = total;
	limit = job->io_bytes > 0     ? job->io_bytes
		: job->io_percent > 0 ? bench_percent_of(total, job->io_percent)
				      : total;
	if (__builtin_mul_overflow(limit, job->loops, &worker->limit_bytes))
		worker->limit_bytes = UINT64_MAX;
	atomic_store_explicit(&worker->live_total_bytes,
			      worker->limit_bytes << (read_back && job->do_verify),
			      memory_order_relaxed);
	return 0;
}

/* Place a worker's regions. Those that do not fit are refused before any job writes. */
static int place_regions(struct bench_worker *worker, struct bench_devices *devices)
{
	struct bench_job job = *worker->job;
	uint64_t seed = bench_mix(job.randseed, worker->sequence), total = 0;
	int result = 0;

	if (job.level == BENCH_LEVEL_STORE)
		return 0;
	worker->regions = calloc(worker->devices_count, sizeof(*worker->regions));
	if (!worker->regions)
		return spw_error(-ENOMEM, "out of memory");
	result = offset_job(&job, worker->index);
	for (unsigned i = 0; i < worker->devices_count && result == 0; i++) {
		worker->devices[i] = bench_devices_find(devices, worker->paths[i])->device;
		result = bench_region_place(&worker->regions[i], &job, worker->paths[i],
					    spw_device_geometry(worker->devices[i]),
					    worker->devices_count, bench_mix(seed, i));
		total += worker->regions[i].len_bytes;
	}
	return result == 0 ? set_limits(worker, total) : result;
}

/* ---- Threads --------------------------------------------------------------------------------- */

static void *worker_main(void *argument)
{
	struct bench_worker *worker = argument;

	if (worker->job->level == BENCH_LEVEL_STORE)
		bench_store_worker_run(worker);
	else
		bench_worker_run(worker);
	bench_flow_leave(worker);
	bench_worker_ended(worker);
	(void)sem_post(&worker->gate->end);
	return NULL;
}

/* Add or subtract the CPU time of the process, including its kernel threads. @sign: 1 or -1 */
static void add_process_time(struct bench_run *run, int sign)
{
	struct rusage usage;

	(void)getrusage(RUSAGE_SELF, &usage);
	run->process_user_ns += (uint64_t)sign * bench_timeval_ns(&usage.ru_utime);
	run->process_system_ns += (uint64_t)sign * bench_timeval_ns(&usage.ru_stime);
}

/* Find unwritten parts just before a job begins, as an earlier job may have written them. */
static void look_for_unwritten(const struct bench_run *run, struct bench_worker *worker)
{
	const struct bench_job *job = worker->job;

	if (!worker->regions || job->null || !bench_rw_reads(job->rw))
		return;
	for (unsigned i = 0; i < worker->devices_count; i++) {
		const struct bench_region *region = &worker->regions[i];
		uint64_t bytes =
			bench_unwritten(worker->paths[i], region->start_bytes, region->len_bytes);

		if (bytes == 0 || bytes == BENCH_UNWRITTEN_UNKNOWN)
			continue;
		worker->unwritten_bytes += bytes;
		if (!run->quiet && worker->index == 0)
			(void)fprintf(
				stderr,
				"spillway bench: %s: %s of the %s that job %s is to read were "
				"never written: reads of those measure nothing; write them "
				"first (--rw=write)\n",
				worker->paths[i], SPW_SIZE_TEXT(bytes),
				SPW_SIZE_TEXT(region->len_bytes), job->name);
	}
}

/* Run the workers of one wave at the same time. Preparation (filling buffers) is not measured. */
static int run_wave(struct bench_run *run, unsigned first, unsigned count)
{
	struct bench_gate gate;
	unsigned started = 0;
	int result = 0;

	for (unsigned i = 0; i < count; i++)
		look_for_unwritten(run, &run->workers[first + i]);
	bench_gate_init(&gate);
	for (unsigned i = 0; i < count; i++)
		if (run->workers[first + i].flow)
			atomic_fetch_add(&run->workers[first + i].flow->weights,
					 run->workers[first + i].job->flow);
	for (; started < count; started++) {
		struct bench_worker *worker = &run->workers[first + started];

		worker->gate = &gate;
		result = -pthread_create(&worker->thread, NULL, worker_main, worker);
		if (result != 0) {
			result = spw_error_errno(result, "cannot start a thread");
			tool_stop();
			break;
		}
		worker->started = true;
	}
	for (unsigned i = 0; i < started; i++)
		bench_await(&gate.ready);
	add_process_time(run, -1);
	for (unsigned i = 0; i < started; i++)
		(void)sem_post(&gate.open);
	bench_live_watch(run, &gate, &run->workers[first], started);
	add_process_time(run, 1);
	for (unsigned i = 0; i < started; i++)
		(void)pthread_join(run->workers[first + i].thread, NULL);
	return result;
}

static int run_waves(struct bench_run *run)
{
	unsigned first = 0;
	int result = 0;

	while (result == 0 && first < run->workers_count && !tool_stopped()) {
		unsigned count = 1;

		while (first + count < run->workers_count &&
		       run->workers[first + count].wave == run->workers[first].wave)
			count++;
		result = run_wave(run, first, count);
		first += count;
	}
	return result;
}

int bench_run(struct bench_run *run)
{
	struct bench_devices own = {.count = 0}, *devices = run->devices ? run->devices : &own;
	struct spw_log log = tool_log(run->verbose);
	struct timespec wall;
	uint64_t begin_ns;
	struct bench_null null;
	int result = bench_null_make(&run->plan, &null);

	if (result == 0)
		result = make_workers(run);
	if (result == 0)
		result = collect_devices(run, devices);
	if (result == 0)
		result = bench_devices_open(devices, run->allow_destructive, &log);
	for (unsigned i = 0; i < run->workers_count && result == 0; i++)
		result = place_regions(&run->workers[i], devices);
	if (result != 0)
		goto out;
	(void)clock_gettime(CLOCK_REALTIME, &wall);
	run->start_time_ms = (uint64_t)wall.tv_sec * 1000 + (uint64_t)wall.tv_nsec / 1000000;
	begin_ns = spw_clock_ns();
	result = run_waves(run);
	run->elapsed_ns = spw_clock_ns() - begin_ns;
	run->interrupted = tool_stopped() && result == 0;
out:
	bench_devices_close(&own);
	bench_null_remove(&null);
	return result;
}

void bench_run_free(struct bench_run *run)
{
	for (unsigned i = 0; i < run->workers_count; i++) {
		for (unsigned j = 0; j < BENCH_FILES_MAX; j++)
			free(run->workers[i].paths[j]);
		for (unsigned j = 0; run->workers[i].regions && j < run->workers[i].devices_count;
		     j++)
			bench_region_remove(&run->workers[i].regions[j]);
		free(run->workers[i].regions);
		free(run->workers[i].steady.rates);
		free(run->workers[i].drives);
	}
	free(run->workers);
	free(run->flows);
	bench_plan_free(&run->plan);
	run->workers = NULL;
	run->workers_count = 0;
}
