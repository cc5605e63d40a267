/* SPDX-License-Identifier: MIT */
/*
 * tools/bench/latency.c - fio's coarse classes of latency: how many completions took up to 2, 4, 10
 * ... ns, us, ms
 */
#include "tools/bench/latency.h"

#include <string.h>

#include "util/util.h"

static const uint64_t limits_ns[BENCH_LATENCY_CLASSES] = {2,   4,   10,  20,  50,
							  100, 250, 500, 750, 1000};

void bench_latency_classes(const struct bench_stats *stats, struct bench_latency *latency)
{
	memset(latency, 0, sizeof(*latency));
	for (unsigned dir = 0; dir < BENCH_DIRECTIONS; dir++) {
		const struct spw_histogram *histogram = &stats->direction[dir].complete_ns;

		latency->count += histogram->summary.count;
		for (unsigned bucket = 0; bucket < SPW_HISTOGRAM_BUCKETS; bucket++)
			if (histogram->buckets[bucket] > 0)
				bench_latency_add(latency, spw_histogram_bucket_value(bucket),
						  histogram->buckets[bucket]);
	}
}

void bench_latency_add(struct bench_latency *latency, uint64_t value_ns, uint64_t count)
{
	uint64_t unit_ns = 1;

	for (unsigned unit = 0; unit < BENCH_LATENCY_UNITS; unit++, unit_ns *= 1000)
		for (unsigned i = 0; i < BENCH_LATENCY_CLASSES; i++)
			if (value_ns < limits_ns[i] * unit_ns) {
				latency->classes[unit][i] += count;
				return;
			}
	if (value_ns < UINT64_C(2000000000))
		latency->up_to_2s += count;
	else
		latency->above_2s += count;
}

uint64_t bench_latency_limit(unsigned index)
{
	return limits_ns[index];
}
