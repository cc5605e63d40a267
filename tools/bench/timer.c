/* SPDX-License-Identifier: MIT */
/* tools/bench/timer.c - when a worker's measurement begins and ends, and what CPU time it took */
#include "tools/bench/bench.h"

#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "util/util.h"

void bench_gate_init(struct bench_gate *gate)
{
	pthread_condattr_t attributes;

	*gate = (struct bench_gate){.lock = PTHREAD_MUTEX_INITIALIZER};
	/* None of these can fail on Linux. */
	(void)pthread_condattr_init(&attributes);
	(void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	(void)pthread_cond_init(&gate->changed, &attributes);
	(void)pthread_condattr_destroy(&attributes);
}

void bench_gate_end(struct bench_gate *gate)
{
	(void)pthread_mutex_lock(&gate->lock);
	gate->ended++;
	(void)pthread_cond_broadcast(&gate->changed);
	(void)pthread_mutex_unlock(&gate->lock);
}

unsigned bench_gate_watch(struct bench_gate *gate, unsigned count, uint64_t until_ns)
{
	struct timespec until = {
		.tv_sec = (time_t)(until_ns / 1000000000u),
		.tv_nsec = (long)(until_ns % 1000000000u),
	};
	unsigned ended;
	int result = 0;

	(void)pthread_mutex_lock(&gate->lock);
	while (gate->ended < count && result == 0)
		result = pthread_cond_timedwait(&gate->changed, &gate->lock, &until);
	ended = gate->ended;
	(void)pthread_mutex_unlock(&gate->lock);
	return ended;
}

void bench_gate_wait(struct bench_gate *gate)
{
	(void)pthread_mutex_lock(&gate->lock);
	gate->waiting++;
	(void)pthread_cond_broadcast(&gate->changed);
	while (!gate->open)
		(void)pthread_cond_wait(&gate->changed, &gate->lock);
	(void)pthread_mutex_unlock(&gate->lock);
}

static uint64_t timeval_ns(const struct timeval *time)
{
	return (uint64_t)time->tv_sec * 1000000000u + (uint64_t)time->tv_usec * 1000u;
}

static void read_usage(struct bench_timer *timer)
{
	struct rusage usage;

	/* Cannot fail with these arguments. */
	(void)getrusage(RUSAGE_THREAD, &usage);
	timer->user_ns = timeval_ns(&usage.ru_utime);
	timer->system_ns = timeval_ns(&usage.ru_stime);
	timer->context_switches = (uint64_t)(usage.ru_nvcsw + usage.ru_nivcsw);
	timer->faults_major = (uint64_t)usage.ru_majflt;
	timer->faults_minor = (uint64_t)usage.ru_minflt;
}

static void start_measuring(struct bench_timer *timer, struct bench_worker *worker, uint64_t now_ns)
{
	const struct bench_job *job = worker->job;

	read_usage(timer);
	memset(&worker->stats, 0, sizeof(worker->stats));
	timer->ramping = false;
	timer->start_ns = now_ns;
	timer->end_ns = job->runtime_ns > 0 ? now_ns + job->runtime_ns : UINT64_MAX;
	for (unsigned i = 0; i < BENCH_DIRECTIONS; i++) {
		atomic_store_explicit(&worker->live_bytes[i], 0, memory_order_relaxed);
		atomic_store_explicit(&worker->live_ios[i], 0, memory_order_relaxed);
	}
	atomic_store_explicit(&worker->live_start_ns, now_ns, memory_order_relaxed);
}

void bench_timer_begin(struct bench_timer *timer, struct bench_worker *worker)
{
	timer->begin_ns = spw_clock_ns();
	if (worker->job->ramp_ns == 0) {
		start_measuring(timer, worker, timer->begin_ns);
		return;
	}
	timer->ramping = true;
	timer->end_ns = UINT64_MAX;
	timer->start_ns = timer->begin_ns;
}

bool bench_timer_expired(struct bench_timer *timer, struct bench_worker *worker, uint64_t now_ns)
{
	if (timer->ramping && now_ns - timer->begin_ns >= worker->job->ramp_ns)
		start_measuring(timer, worker, now_ns);
	return now_ns >= timer->end_ns || atomic_load_explicit(worker->stop, memory_order_relaxed);
}

void bench_timer_end(struct bench_timer *timer, struct bench_worker *worker)
{
	struct bench_stats *stats = &worker->stats;
	struct bench_timer now = {0};

	read_usage(&now);
	stats->runtime_ns = spw_clock_ns() - timer->start_ns;
	stats->user_ns = now.user_ns - timer->user_ns;
	stats->system_ns = now.system_ns - timer->system_ns;
	stats->context_switches = now.context_switches - timer->context_switches;
	stats->faults_major = now.faults_major - timer->faults_major;
	stats->faults_minor = now.faults_minor - timer->faults_minor;
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

int bench_worker_ended(struct bench_worker *worker, int result)
{
	struct bench_stats *stats = &worker->stats;

	stats->error = result;
	if (result != 0 && stats->error_text[0] == '\0')
		(void)snprintf(stats->error_text, sizeof(stats->error_text), "%s",
			       spw_last_error());
	return result;
}

unsigned bench_depth_level(unsigned in_flight)
{
	unsigned level = in_flight <= 1 ? 0 : 31u - (unsigned)__builtin_clz(in_flight);

	return level < BENCH_DEPTH_LEVELS ? level : BENCH_DEPTH_LEVELS - 1;
}

/* fio's: none, up to 4, up to 8, ... up to 64, more. */
unsigned bench_batch_level(unsigned batch)
{
	unsigned level = 1;

	if (batch == 0)
		return 0;
	for (unsigned limit = 4; batch > limit && level < BENCH_DEPTH_LEVELS - 1; limit *= 2)
		level++;
	return level;
}
