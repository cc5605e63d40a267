/* SPDX-License-Identifier: MIT */
/* tools/bench/steady.c - end jobs whose rate is steady, by fio's two measures */
#include "tools/bench/bench.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "util/util.h"

#define SECOND_NS UINT64_C(1000000000)

/* The slope of the rate per second, by least squares. */
static double slope_of(const double *rates, unsigned count)
{
	double sum_x = 0, sum_xx = 0, sum_y = 0, sum_xy = 0;

	for (unsigned i = 0; i < count; i++) {
		sum_x += i;
		sum_xx += (double)i * i;
		sum_y += rates[i];
		sum_xy += i * rates[i];
	}
	return (sum_xy - sum_x * sum_y / count) / (sum_xx - sum_x * sum_x / count);
}

bool bench_is_steady(const struct bench_job *job, const double *rates, unsigned count)
{
	double mean = 0, found = 0;

	for (unsigned i = 0; i < count; i++)
		mean += rates[i] / count;
	if (job->steady_slope)
		found = fabs(slope_of(rates, count));
	for (unsigned i = 0; !job->steady_slope && i < count; i++)
		found = fmax(found, fabs(rates[i] - mean));
	return (job->steady_percent ? 100 * found / mean : found) < job->steady_limit;
}

static uint64_t moved_by(const struct bench_worker *workers, unsigned count)
{
	bool bytes = workers[0].job->steady_bandwidth;
	uint64_t sum = 0;

	for (unsigned i = 0; i < count; i++)
		for (unsigned j = 0; j < BENCH_DIRECTIONS; j++)
			sum += atomic_load(bytes ? &workers[i].live_bytes[j]
						 : &workers[i].live_ios[j]);
	return sum;
}

static void add_rate(struct bench_steady *steady, unsigned wanted, double rate)
{
	if (steady->count == wanted)
		memmove(steady->rates, steady->rates + 1, --steady->count * sizeof(rate));
	steady->rates[steady->count++] = rate;
}

/* Check the jobs of a group. The first of @count workers keeps the rates of all. */
static void look(struct bench_worker *workers, unsigned count, uint64_t now_ns)
{
	const struct bench_job *job = workers[0].job;
	struct bench_steady *steady = &workers[0].steady;
	unsigned wanted = (unsigned)(job->steady_ns / SECOND_NS);
	uint64_t start_ns = atomic_load(&workers[0].live_start_ns);
	uint64_t moved = moved_by(workers, count), before = steady->moved;
	double seconds = (double)(now_ns - steady->time_ns) / 1e9;

	if (steady->attained || now_ns - steady->time_ns < SECOND_NS)
		return;
	if (!steady->rates)
		steady->rates = calloc(wanted, sizeof(*steady->rates));
	steady->time_ns = now_ns;
	steady->moved = moved;
	/* As in fio, rates count from the second after the ramp. */
	if (!steady->rates || start_ns == 0 || moved < before ||
	    now_ns - start_ns < job->steady_ramp_ns + SECOND_NS)
		return;
	add_rate(steady, wanted, (double)(moved - before) / seconds);
	if (steady->count < wanted || !bench_is_steady(job, steady->rates, wanted))
		return;
	steady->attained = true;
	for (unsigned i = 0; i < count; i++)
		atomic_store(&workers[i].told_to_end, true);
}

void bench_steady_look(struct bench_worker *workers, unsigned count, uint64_t now_ns)
{
	for (unsigned i = 0; i < count;) {
		unsigned group = 1;

		while (workers[i].job->group_reporting && i + group < count &&
		       workers[i + group].group == workers[i].group)
			group++;
		if (workers[i].job->steady_ns > 0)
			look(&workers[i], group, now_ns);
		i += group;
	}
}
