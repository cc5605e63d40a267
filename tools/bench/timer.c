/* SPDX-License-Identifier: MIT */
/* tools/bench/timer.c - bench_timer: begin and end of a worker's measurement, rates, CPU time */
#include "tools/bench/bench.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <time.h>

#include "tools/ui/stop.h"
#include "util/util.h"

#define SLEEP_NS_MAX 100000000u /* an interrupt is noticed after this */

void bench_gate_init(struct bench_gate *gate)
{
	pthread_condattr_t attributes;

	/* None of these can fail with these arguments. */
	(void)sem_init(&gate->ready, 0, 0);
	(void)sem_init(&gate->open, 0, 0);
	(void)sem_init(&gate->end, 0, 0);
	gate->ended = 0;
	(void)pthread_mutex_init(&gate->mutex, NULL);
	(void)pthread_condattr_init(&attributes);
	(void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	(void)pthread_cond_init(&gate->changed, &attributes);
	(void)pthread_condattr_destroy(&attributes);
}

void bench_await(sem_t *semaphore)
{
	while (sem_wait(semaphore) != 0)
		continue; /* a signal has interrupted it */
}

void bench_gate_wait(struct bench_gate *gate)
{
	(void)sem_post(&gate->ready);
	bench_await(&gate->open);
}

uint64_t bench_timeval_ns(const struct timeval *time)
{
	return (uint64_t)time->tv_sec * 1000000000u + (uint64_t)time->tv_usec * 1000u;
}

static uint64_t job_cycle_ns(const struct bench_job *job)
{
	return (uint64_t)job->rate_cycle_ms * 1000000u;
}

static bool has_least_rate(const struct bench_job *job)
{
	return (job->rate_min_bytes[0] | job->rate_min_bytes[1] | job->rate_min_iops[0] |
		job->rate_min_iops[1]) != 0;
}

/* Check the least rate over the time since the last check. */
static int check_least_rate(struct bench_timer *timer, struct bench_worker *worker, uint64_t now_ns)
{
	const struct bench_job *job = worker->job;
	double seconds = (double)(now_ns - timer->check_ns) / 1e9 + job->rate_cycle_ms / 1e3;
	int result = 0;

	for (unsigned i = 0; i < BENCH_DIRECTIONS; i++) {
		const struct bench_direction_stats *stats = &worker->stats.direction[i];
		double bytes = (double)(stats->bytes - timer->checked_bytes[i]) / seconds;
		double ios = (double)(stats->ios - timer->checked_ios[i]) / seconds;

		timer->checked_bytes[i] = stats->bytes;
		timer->checked_ios[i] = stats->ios;
		if (stats->ios == 0 || (bytes >= (double)job->rate_min_bytes[i] &&
					ios >= (double)job->rate_min_iops[i]))
			continue;
		result = spw_error(-EIO,
				   "job %s: %s at %.0f bytes and %.1f transfers a second, below "
				   "rate_min",
				   job->name, i == BENCH_DIR_READ ? "reads" : "writes", bytes, ios);
	}
	timer->check_ns = now_ns + job_cycle_ns(job);
	return result;
}

/* Begin the measurement, and drop earlier results. The runtime begins after the ramp. */
static void measure_from(struct bench_timer *timer, struct bench_worker *worker, uint64_t now_ns)
{
	uint64_t runtime_ns = worker->job->runtime_ns;
	bool ramping = timer->ramp_end_ns > 0;

	(void)getrusage(RUSAGE_THREAD, &timer->usage); /* cannot fail with these arguments */
	memset(&worker->stats, 0, sizeof(worker->stats));
	bench_worker_live(worker);
	/* Do not make up for transfers that the rate allowed before. */
	for (unsigned i = 0; i < BENCH_DIRECTIONS; i++)
		timer->due_ns[i] = timer->due_ns[i] > now_ns ? timer->due_ns[i] : now_ns;
	timer->start_ns = now_ns;
	timer->check_ns = now_ns + job_cycle_ns(worker->job);
	memset(timer->checked_bytes, 0, sizeof(timer->checked_bytes));
	memset(timer->checked_ios, 0, sizeof(timer->checked_ios));
	timer->end_ns = runtime_ns > 0 && !ramping ? now_ns + runtime_ns : UINT64_MAX;
	/* Store the time after the counts, so that a reader that sees it sees the counts reset. */
	atomic_store(&worker->live_start_ns, ramping ? 0 : now_ns);
}

void bench_timer_begin(struct bench_timer *timer, struct bench_worker *worker)
{
	const struct bench_job *job = worker->job;
	uint64_t now_ns = spw_clock_ns();

	timer->ramp_end_ns = job->ramp_ns > 0 ? now_ns + job->ramp_ns : 0;
	timer->random.state = bench_mix(job->randseed, ~worker->sequence);
	for (unsigned i = 0; i < BENCH_DIRECTIONS; i++) {
		uint64_t bytes = job->rate_bytes[i], ios = bytes > 0 ? 0 : job->rate_iops[i];

		timer->ns_per_byte[i] = bytes > 0 ? 1e9 / (double)bytes : 0;
		timer->ns_per_io[i] = ios > 0 ? 1e9 / (double)ios : 0;
	}
	measure_from(timer, worker, now_ns);
}

bool bench_timer_expired(struct bench_timer *timer, struct bench_worker *worker, uint64_t now_ns)
{
	if (timer->ramp_end_ns > 0 && now_ns >= timer->ramp_end_ns && worker->stats.error == 0) {
		timer->ramp_end_ns = 0;
		measure_from(timer, worker, now_ns);
	}
	if (has_least_rate(worker->job) && timer->ramp_end_ns == 0 && now_ns >= timer->check_ns)
		bench_worker_failed(worker, check_least_rate(timer, worker, now_ns));
	return now_ns >= timer->end_ns || atomic_load(&worker->told_to_end) || tool_stopped();
}

void bench_timer_pace(struct bench_timer *timer, const struct bench_job *job, unsigned direction,
		      uint64_t bytes)
{
	double ns = (double)bytes * timer->ns_per_byte[direction] + timer->ns_per_io[direction];

	/* The times between events of a Poisson process are distributed exponentially. */
	if (job->rate_poisson && ns > 0)
		ns *= -log(((double)(bench_random_next(&timer->random) >> 11) + 1) * 0x1p-53);
	timer->due_ns[direction] += (uint64_t)ns;
}

void bench_timer_sleep(const struct bench_timer *timer, unsigned direction)
{
	uint64_t until_ns = spw_clock_ns() + SLEEP_NS_MAX;
	struct timespec until;

	until_ns = timer->end_ns < until_ns ? timer->end_ns : until_ns;
	until_ns = timer->due_ns[direction] < until_ns ? timer->due_ns[direction] : until_ns;
	until = (struct timespec){.tv_sec = (time_t)(until_ns / 1000000000u),
				  .tv_nsec = (long)(until_ns % 1000000000u)};
	(void)clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
}

void bench_timer_end(const struct bench_timer *timer, struct bench_worker *worker)
{
	const struct rusage *before = &timer->usage;
	struct bench_stats *stats = &worker->stats;
	struct rusage now;

	(void)getrusage(RUSAGE_THREAD, &now);
	stats->runtime_ns = spw_clock_ns() - timer->start_ns;
	stats->user_ns = bench_timeval_ns(&now.ru_utime) - bench_timeval_ns(&before->ru_utime);
	stats->system_ns = bench_timeval_ns(&now.ru_stime) - bench_timeval_ns(&before->ru_stime);
	stats->context_switches =
		(uint64_t)(now.ru_nvcsw - before->ru_nvcsw + now.ru_nivcsw - before->ru_nivcsw);
	stats->faults_major = (uint64_t)(now.ru_majflt - before->ru_majflt);
	stats->faults_minor = (uint64_t)(now.ru_minflt - before->ru_minflt);
}

void bench_worker_live(struct bench_worker *worker)
{
	for (unsigned i = 0; i < BENCH_DIRECTIONS; i++) {
		atomic_store_explicit(&worker->live_bytes[i], worker->stats.direction[i].bytes,
				      memory_order_relaxed);
		atomic_store_explicit(&worker->live_ios[i], worker->stats.direction[i].ios,
				      memory_order_relaxed);
	}
}

void bench_worker_failed(struct bench_worker *worker, int error)
{
	struct bench_stats *stats = &worker->stats;
	const char *words = spw_last_error();

	if (error == 0 || stats->error != 0)
		return;
	stats->error = error;
	(void)snprintf(stats->error_text, sizeof(stats->error_text), "%s",
		       words[0] != '\0' ? words : spw_strerror(error));
}

void bench_account(struct bench_direction_stats *stats, uint64_t bytes, uint64_t start_ns,
		   uint64_t issue_ns, uint64_t end_ns)
{
	stats->ios++;
	stats->bytes += bytes;
	spw_histogram_add(&stats->complete_ns, end_ns - issue_ns);
	spw_summary_add(&stats->total_ns, end_ns - start_ns);
}

unsigned bench_depth_level(unsigned in_flight)
{
	unsigned level = in_flight <= 1 ? 0 : 31u - (unsigned)__builtin_clz(in_flight);

	return level < BENCH_DEPTH_LEVELS ? level : BENCH_DEPTH_LEVELS - 1;
}

/* fio's levels of batch sizes: 0, up to 4, up to 8 ... up to 64, more. */
unsigned bench_batch_level(unsigned batch)
{
	unsigned level = 1;

	if (batch == 0)
		return 0;
	for (unsigned limit = 4; batch > limit && level < BENCH_DEPTH_LEVELS - 1; limit *= 2)
		level++;
	return level;
}
