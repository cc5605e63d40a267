/* SPDX-License-Identifier: MIT */
/* tools/bench/entries.c - the entries of a report: one per worker, or one per group */
#include "tools/bench/bench.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "util/util.h"

/* fio's default list. */
const double bench_percentiles[] = {1,  5,  10, 20, 30,   40,   50,    60,   70,
				    80, 90, 95, 99, 99.5, 99.9, 99.95, 99.99};
const unsigned bench_percentiles_count = SPW_ARRAY_LEN(bench_percentiles);

static void merge_direction(struct bench_direction_stats *to,
			    const struct bench_direction_stats *from)
{
	to->ios += from->ios;
	to->bytes += from->bytes;
	/* Side by side: together they took as long as the longest of them. */
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
	to->ios += from->ios;
	to->bytes_read += from->bytes_read;
	to->bytes_written += from->bytes_written;
	to->parts += from->parts;
	to->parts_fixed += from->parts_fixed;
	to->short_transfers += from->short_transfers;
	to->retries += from->retries;
	to->errors += from->errors;
	to->system_calls += from->system_calls;
	to->sleeps += from->sleeps;
	if (from->in_flight_max > to->in_flight_max)
		to->in_flight_max = from->in_flight_max;
	/* Of the process, not of the queue. */
	if (from->kernel_workers > to->kernel_workers)
		to->kernel_workers = from->kernel_workers;
}

void bench_stats_merge(struct bench_stats *to, const struct bench_stats *from)
{
	for (unsigned i = 0; i < BENCH_DIRECTIONS; i++)
		merge_direction(&to->direction[i], &from->direction[i]);
	for (unsigned i = 0; i < BENCH_DEPTH_LEVELS; i++) {
		to->depth_levels[i] += from->depth_levels[i];
		to->submit_levels[i] += from->submit_levels[i];
		to->complete_levels[i] += from->complete_levels[i];
	}
	to->runtime_ns += from->runtime_ns; /* as fio: the CPU shares refer to the sum */
	to->user_ns += from->user_ns;
	to->system_ns += from->system_ns;
	to->context_switches += from->context_switches;
	to->faults_major += from->faults_major;
	to->faults_minor += from->faults_minor;
	to->blocks_verified += from->blocks_verified;
	merge_queue(&to->queue, &from->queue);
	if (to->error == 0 && from->error != 0) {
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
		bench_stats_merge(&last->stats, &worker->stats);
	}
	return count;
}
