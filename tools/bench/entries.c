/* SPDX-License-Identifier: MIT */
/* tools/bench/entries.c - make the entries of a report: one per worker, or one per group */
#include "tools/bench/bench.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "util/util.h"

/* fio's default percentiles. */
const double bench_percentiles[] = {1,  5,  10, 20, 30,   40,   50,    60,   70,
				    80, 90, 95, 99, 99.5, 99.9, 99.95, 99.99};
const unsigned bench_percentiles_count = SPW_ARRAY_LEN(bench_percentiles);

static const uint64_t limits_ns[] = {2, 4, 10, 20, 50, 100, 250, 500, 750, 1000};

uint64_t bench_latency_limit(unsigned class)
{
	return limits_ns[class % SPW_ARRAY_LEN(limits_ns)];
}

static unsigned latency_class(uint64_t ns)
{
	uint64_t unit_ns = 1;
	unsigned class = 0;

	for (; class < BENCH_LATENCY_CLASSES; class ++) {
		if (ns < bench_latency_limit(class) * unit_ns)
			return class;
		if ((class + 1) % SPW_ARRAY_LEN(limits_ns) == 0)
			unit_ns *= 1000;
	}
	return ns < UINT64_C(2000000000) ? class : class + 1;
}

uint64_t bench_latency_classes(const struct bench_stats *stats,
			       uint64_t classes[BENCH_LATENCY_CLASSES + 2])
{
	uint64_t count = 0;

	memset(classes, 0, (BENCH_LATENCY_CLASSES + 2) * sizeof(*classes));
	for (unsigned i = 0; i < BENCH_DIRECTIONS; i++)
		for (unsigned bucket = 0; bucket < SPW_HISTOGRAM_BUCKETS; bucket++) {
			uint64_t here = stats->direction[i].complete_ns.buckets[bucket];

			classes[latency_class(spw_histogram_bucket_value(bucket))] += here;
			count += here;
		}
	return count;
}

const char *const bench_depth_names[] = {"1", "2", "4", "8", "16", "32", ">=64"};
const char *const bench_batch_names[] = {"0", "4", "8", "16", "32", "64", ">=64"};

double bench_percentage(uint64_t part, uint64_t whole)
{
	return whole == 0 ? 0 : 100.0 * (double)part / (double)whole;
}

static void merge_direction(struct bench_direction_stats *to,
			    const struct bench_direction_stats *from)
{
	to->ios += from->ios;
	to->bytes += from->bytes;
	/* The workers ran at the same time, so the longest runtime counts. */
	if (from->runtime_ns > to->runtime_ns)
		to->runtime_ns = from->runtime_ns;
	spw_summary_merge(&to->submit_ns, &from->submit_ns);
	spw_summary_merge(&to->total_ns, &from->total_ns);
	spw_histogram_merge(&to->complete_ns, &from->complete_ns);
	spw_summary_merge(&to->bandwidth_kib, &from->bandwidth_kib);
	spw_summary_merge(&to->iops, &from->iops);
}

static void merge_queue(struct spw_queue_stats *to, const struct spw_queue_stats *from)
{
	to->parts += from->parts;
	to->parts_fixed += from->parts_fixed;
	to->retries += from->retries;
	to->system_calls += from->system_calls;
	/* A count of the process, not of the queue: do not add it. */
	if (from->kernel_workers > to->kernel_workers)
		to->kernel_workers = from->kernel_workers;
}

static void merge(struct bench_stats *to, const struct bench_stats *from)
{
	for (unsigned i = 0; i < BENCH_DIRECTIONS; i++)
		merge_direction(&to->direction[i], &from->direction[i]);
	for (unsigned i = 0; i < BENCH_DEPTH_LEVELS; i++) {
		to->depth_levels[i] += from->depth_levels[i];
		to->submit_levels[i] += from->submit_levels[i];
		to->complete_levels[i] += from->complete_levels[i];
	}
	to->runtime_ns += from->runtime_ns; /* as in fio: CPU shares refer to the sum */
	to->user_ns += from->user_ns;
	to->system_ns += from->system_ns;
	to->context_switches += from->context_switches;
	to->faults_major += from->faults_major;
	to->faults_minor += from->faults_minor;
	to->blocks_verified += from->blocks_verified;
	merge_queue(&to->queue, &from->queue);
	if (to->error == 0) {
		to->error = from->error;
		memcpy(to->error_text, from->error_text, sizeof(to->error_text));
	}
	if (to->description[0] == '\0')
		memcpy(to->description, from->description, sizeof(to->description));
}

int bench_entries(const struct bench_run *run, struct bench_entry **entries)
{
	struct bench_entry *list = calloc(run->workers_count + 1, sizeof(*list));
	int count = 0;

	*entries = list;
	if (!list)
		return spw_error(-ENOMEM, "out of memory");
	for (unsigned i = 0; i < run->workers_count; i++) {
		const struct bench_worker *worker = &run->workers[i];
		struct bench_entry *last = count > 0 ? &list[count - 1] : NULL;

		if (!worker->started)
			continue;
		if (last && last->group == worker->group && last->job->group_reporting &&
		    worker->job->group_reporting) {
			last->workers++;
		} else {
			last = &list[count++];
			*last = (struct bench_entry){
				.job = worker->job, .group = worker->group, .workers = 1};
		}
		merge(&last->stats, &worker->stats);
		last->steady |= worker->steady.attained;
		last->unwritten_bytes += worker->unwritten_bytes;
	}
	return count;
}
