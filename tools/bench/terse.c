/* SPDX-License-Identifier: MIT */
/*
 * tools/bench/terse.c - results as fio's terse lines, version 3: one line of semicolon separated
 * fields per entry
 */
#include "tools/bench/bench.h"

#include <stdlib.h>

#include "tools/bench/latency.h"

#define PERCENTILES_OF_A_LINE 20 /* fio pads its list to this */

static void print_times(FILE *out, const struct spw_summary *summary)
{
	(void)fprintf(out, ";%ju;%ju;%f;%f", (uintmax_t)(summary->min / 1000),
		      (uintmax_t)(summary->max / 1000), spw_summary_mean(summary) / 1000,
		      spw_summary_deviation(summary) / 1000);
}

static void print_direction(FILE *out, const struct bench_direction_stats *stats)
{
	double seconds = (double)stats->runtime_ns / 1e9;
	double mean = spw_summary_mean(&stats->bandwidth_kib);
	double bandwidth = seconds > 0 ? (double)stats->bytes / 1024 / seconds : 0;

	(void)fprintf(out, ";%ju;%ju;%ju;%ju", (uintmax_t)(stats->bytes / 1024),
		      (uintmax_t)bandwidth,
		      (uintmax_t)(seconds > 0 ? (double)stats->ios / seconds : 0),
		      (uintmax_t)(stats->ios > 0 ? stats->runtime_ns / 1000000 : 0));
	print_times(out, &stats->submit_ns);
	print_times(out, &stats->complete_ns.summary);
	for (unsigned i = 0; i < PERCENTILES_OF_A_LINE; i++) {
		if (i < bench_percentiles_count)
			(void)fprintf(out, ";%f%%=%ju", bench_percentiles[i],
				      (uintmax_t)(spw_histogram_percentile(&stats->complete_ns,
									   bench_percentiles[i]) /
						  1000));
		else
			(void)fprintf(out, ";0%%=0");
	}
	print_times(out, &stats->total_ns);
	(void)fprintf(out, ";%ju;%ju;%f%%;%f;%f", (uintmax_t)stats->bandwidth_kib.min,
		      (uintmax_t)stats->bandwidth_kib.max,
		      bandwidth > 0 ? 100 * mean / bandwidth : 0, mean,
		      spw_summary_deviation(&stats->bandwidth_kib));
}

static double share(uint64_t part, uint64_t whole)
{
	return whole == 0 ? 0 : 100.0 * (double)part / (double)whole;
}

static void print_tail(FILE *out, const struct bench_stats *stats)
{
	struct bench_latency latency;
	uint64_t issued = 0;

	(void)fprintf(out, ";%f%%;%f%%;%ju;%ju;%ju", share(stats->user_ns, stats->runtime_ns),
		      share(stats->system_ns, stats->runtime_ns),
		      (uintmax_t)stats->context_switches, (uintmax_t)stats->faults_major,
		      (uintmax_t)stats->faults_minor);
	for (unsigned i = 0; i < BENCH_DEPTH_LEVELS; i++)
		issued += stats->depth_levels[i];
	for (unsigned i = 0; i < BENCH_DEPTH_LEVELS; i++)
		(void)fprintf(out, ";%.1f%%", share(stats->depth_levels[i], issued));
	bench_latency_classes(stats, &latency);
	/*
	 * Version 3 has classes of microseconds and milliseconds; what took less than 2 us is in
	 * the first.
	 */
	for (unsigned i = 0; i < BENCH_LATENCY_CLASSES; i++)
		latency.classes[1][0] += latency.classes[0][i];
	for (unsigned unit = 1; unit < BENCH_LATENCY_UNITS; unit++)
		for (unsigned i = 0; i < BENCH_LATENCY_CLASSES; i++)
			(void)fprintf(out, ";%.2f%%",
				      share(latency.classes[unit][i], latency.count));
	(void)fprintf(out, ";%.2f%%;%.2f%%\n", share(latency.up_to_2s, latency.count),
		      share(latency.above_2s, latency.count));
}

int bench_report_terse(const struct bench_run *run, FILE *out)
{
	struct bench_entry *entries;
	int count = bench_entries(run, &entries);

	for (int i = 0; i < count; i++) {
		(void)fprintf(out, "3;spillway-%s;%s;%u;%d", SPW_VERSION, entries[i].job->name,
			      entries[i].group, -entries[i].stats.error);
		print_direction(out, &entries[i].stats.direction[BENCH_DIR_READ]);
		print_direction(out, &entries[i].stats.direction[BENCH_DIR_WRITE]);
		print_tail(out, &entries[i].stats);
	}
	free(entries);
	return count < 0 ? count : 0;
}
