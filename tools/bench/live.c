/* SPDX-License-Identifier: MIT */
/* tools/bench/live.c - the progress line on a terminal, and the samples of bandwidth over time */
#include "tools/bench/bench.h"

#include <errno.h>
#include <time.h>
#include <unistd.h>

#include "util/util.h"

#define SAMPLE_NS 500000000u

struct live {
	uint64_t rates[BENCH_DIRECTIONS], iops[BENCH_DIRECTIONS]; /* current rates of all workers */
};

static uint64_t load(const _Atomic uint64_t *value)
{
	return atomic_load_explicit(value, memory_order_relaxed);
}

/* The rate between two counts; 0 if the count was reset, at the end of the ramp. */
static uint64_t rate_of(uint64_t now, uint64_t before, double seconds)
{
	return now < before ? 0 : (uint64_t)((double)(now - before) / seconds);
}

/* Add a worker's rates to the line, and to its samples unless it is in the ramp. */
static void sample_worker(struct live *live, struct bench_worker *worker, uint64_t now_ns)
{
	struct bench_sample *last = &worker->sample;
	double seconds = (double)(now_ns - last->time_ns) / 1e9;
	uint64_t start_ns = atomic_load(&worker->live_start_ns);
	bool ramped = worker->job->ramp_ns > 0 && (start_ns == 0 || start_ns != last->start_ns);

	for (unsigned i = 0; i < BENCH_DIRECTIONS; i++) {
		uint64_t bytes = load(&worker->live_bytes[i]), ios = load(&worker->live_ios[i]);
		uint64_t rate = rate_of(bytes, last->bytes[i], seconds);
		uint64_t iops = rate_of(ios, last->ios[i], seconds);

		last->bytes[i] = bytes;
		last->ios[i] = ios;
		live->rates[i] += rate;
		live->iops[i] += iops;
		if (atomic_load(&worker->live_ended) || rate == 0 || ramped)
			continue;
		spw_summary_add(&last->bandwidth[i], rate / 1024);
		spw_summary_add(&last->iops[i], iops);
	}
	last->time_ns = now_ns;
	last->start_ns = start_ns;
}

/* The progress of the slowest worker. *@left_ns: set to the time left; 0 if not known */
static double progress(struct bench_worker *workers, unsigned count, uint64_t now_ns,
		       uint64_t *left_ns)
{
	double least = 1;
	uint64_t elapsed = 0;

	for (unsigned i = 0; i < count; i++) {
		struct bench_worker *worker = &workers[i];
		uint64_t start_ns = load(&worker->live_start_ns);
		uint64_t total = load(&worker->live_total_bytes);
		uint64_t moved = load(&worker->live_bytes[0]) + load(&worker->live_bytes[1]);
		double by_bytes = total == 0 ? 0 : (double)moved / (double)total;
		double by_time = 0, part;

		if (start_ns != 0 && worker->job->runtime_ns > 0)
			by_time = (double)(now_ns - start_ns) / (double)worker->job->runtime_ns;
		part = worker->job->time_based || by_time > by_bytes ? by_time : by_bytes;
		if (atomic_load(&worker->live_ended))
			part = 1;
		if (part <= least) {
			least = part;
			elapsed = start_ns == 0 ? 0 : now_ns - start_ns;
		}
	}
	*left_ns = least > 0.001 ? (uint64_t)((double)elapsed / least * (1 - least)) : 0;
	return least;
}

static void draw(const struct live *live, struct bench_worker *workers, unsigned count,
		 uint64_t now_ns)
{
	unsigned running = 0;
	char left[32] = "";
	uint64_t left_ns;
	double part = progress(workers, count, now_ns, &left_ns);

	for (unsigned i = 0; i < count; i++)
		running += !atomic_load(&workers[i].live_ended);
	if (left_ns > 0)
		(void)snprintf(left, sizeof(left), ", %ju s left",
			       (uintmax_t)((left_ns + 999999999u) / 1000000000u));
	tool_progress("%s: %u job%s, %3.0f %%  read %s/s %ju IOPS  write %s/s %ju IOPS%s",
		      workers[0].job->name, running, running == 1 ? "" : "s", part * 100,
		      SPW_SIZE_TEXT(live->rates[BENCH_DIR_READ]),
		      (uintmax_t)live->iops[BENCH_DIR_READ],
		      SPW_SIZE_TEXT(live->rates[BENCH_DIR_WRITE]),
		      (uintmax_t)live->iops[BENCH_DIR_WRITE], left);
}

/* Wait until all workers have ended, or @until_ns (monotonic). Return: whether all have ended. */
static bool await_end(struct bench_gate *gate, unsigned workers, uint64_t until_ns)
{
	struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000u),
				 .tv_nsec = (long)(until_ns % 1000000000u)};

	while (gate->ended < workers) {
		if (sem_clockwait(&gate->end, CLOCK_MONOTONIC, &until) == 0)
			gate->ended++;
		else if (errno == ETIMEDOUT)
			return false;
	}
	return true;
}

void bench_live_watch(const struct bench_run *run, struct bench_gate *gate,
		      struct bench_worker *workers, unsigned count)
{
	bool show = !run->quiet && isatty(STDERR_FILENO), drawn = false;
	uint64_t sample_ns = spw_clock_ns();

	for (unsigned i = 0; i < count; i++)
		workers[i].sample.time_ns = sample_ns;
	for (; !await_end(gate, count, sample_ns + SAMPLE_NS); drawn = show) {
		struct live live = {0};

		sample_ns = spw_clock_ns();
		for (unsigned i = 0; i < count; i++)
			sample_worker(&live, &workers[i], sample_ns);
		bench_steady_look(workers, count, sample_ns);
		if (show)
			draw(&live, workers, count, sample_ns);
	}
	if (drawn)
		tool_progress_end();
	/* Workers own their statistics until they have ended, so copy the samples only now. */
	for (unsigned i = 0; i < count; i++)
		for (unsigned j = 0; j < BENCH_DIRECTIONS; j++) {
			workers[i].stats.direction[j].bandwidth_kib =
				workers[i].sample.bandwidth[j];
			workers[i].stats.direction[j].iops = workers[i].sample.iops[j];
		}
}
