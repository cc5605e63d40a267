/* SPDX-License-Identifier: MIT */
/* tools/bench/turns.c - how workers wait for one another, end one another, and share flows */
#include "tools/bench/bench.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tools/ui/stop.h"
#include "util/util.h"

#define LOOK_NS 100000000u /* an interrupt is noticed after this */

/* ---- Waiting and ending ---------------------------------------------------------------------- */

/* Whether the job that this worker waits for has ended. */
static bool may_begin(const struct bench_worker *worker)
{
	const struct bench_run *run = worker->run;

	for (unsigned i = 0; worker->job->wait_for[0] != '\0' && i < run->workers_count; i++)
		if (strcmp(run->workers[i].job->name, worker->job->wait_for) == 0 &&
		    run->workers[i].wave == worker->wave &&
		    !atomic_load(&run->workers[i].live_ended))
			return false;
	return true;
}

static uint64_t draw_delay(const struct bench_worker *worker)
{
	const struct bench_job *job = worker->job;
	uint64_t width = job->delay_ns_max - job->delay_ns_min;

	return job->delay_ns_min +
	       (width > 0 ? bench_mix(job->randseed, worker->sequence) % (width + 1) : 0);
}

void bench_await_turn(struct bench_worker *worker)
{
	uint64_t begin_ns = spw_clock_ns() + draw_delay(worker), now_ns;
	struct bench_gate *gate = worker->gate;

	(void)pthread_mutex_lock(&gate->mutex);
	while (!tool_stopped() && !atomic_load(&worker->told_to_end)) {
		bool may = may_begin(worker);
		struct timespec until;

		now_ns = spw_clock_ns();
		if (may && now_ns >= begin_ns)
			break;
		now_ns += LOOK_NS;
		if (may && begin_ns < now_ns)
			now_ns = begin_ns;
		until = (struct timespec){.tv_sec = (time_t)(now_ns / 1000000000u),
					  .tv_nsec = (long)(now_ns % 1000000000u)};
		(void)pthread_cond_timedwait(&gate->changed, &gate->mutex, &until);
	}
	(void)pthread_mutex_unlock(&gate->mutex);
}

static bool takes_along(const struct bench_worker *worker, const struct bench_worker *other)
{
	if (!worker->job->exitall || other == worker)
		return false;
	return worker->job->exit_what == BENCH_EXIT_ALL ||
	       (worker->job->exit_what == BENCH_EXIT_STONEWALL ? other->wave == worker->wave
							       : other->group == worker->group);
}

void bench_worker_ended(struct bench_worker *worker)
{
	struct bench_run *run = worker->run;

	(void)pthread_mutex_lock(&worker->gate->mutex);
	atomic_store(&worker->live_ended, true);
	for (unsigned i = 0; i < run->workers_count; i++)
		if (takes_along(worker, &run->workers[i]))
			atomic_store(&run->workers[i].told_to_end, true);
	(void)pthread_cond_broadcast(&worker->gate->changed);
	(void)pthread_mutex_unlock(&worker->gate->mutex);
}

/* ---- Flows ----------------------------------------------------------------------------------- */

int bench_flows_make(struct bench_run *run)
{
	run->flows = calloc(run->workers_count + 1, sizeof(*run->flows));
	if (!run->flows)
		return spw_error(-ENOMEM, "out of memory");
	for (unsigned i = 0; i < run->workers_count; i++) {
		struct bench_worker *worker = &run->workers[i];
		unsigned at = 0;

		if (worker->job->flow == 0)
			continue;
		while (at < run->flows_count && run->flows[at].id != worker->job->flow_id)
			at++;
		if (at == run->flows_count)
			run->flows[run->flows_count++].id = worker->job->flow_id;
		worker->flow = &run->flows[at];
	}
	return 0;
}

/* Refuse a transfer if this worker is ahead of the others by its weight. */
bool bench_flow_take(struct bench_worker *worker)
{
	struct bench_flow *flow = worker->flow;
	double moved = (double)atomic_load(&flow->moved) + 1;
	double weights = (double)atomic_load(&flow->weights);

	if (worker->flow_moved / moved > worker->job->flow / weights)
		return false;
	atomic_fetch_add(&flow->moved, 1);
	worker->flow_moved++;
	return true;
}

void bench_flow_leave(struct bench_worker *worker)
{
	if (!worker->flow)
		return;
	atomic_fetch_sub(&worker->flow->moved, (uint64_t)worker->flow_moved);
	atomic_fetch_sub(&worker->flow->weights, worker->job->flow);
	worker->flow = NULL;
}
