/* SPDX-License-Identifier: MIT */
/* tools/bench/terse.c - print results in fio's terse version 3: one line of fields per entry */
#include "tools/bench/bench.h"

#include <stdlib.h>

#define PERCENTILES_OF_A_LINE 20 /* fio pads its list to this */
#define CLASSES_OF_A_UNIT     (BENCH_LATENCY_CLASSES / 3)

static void print_times(FILE *out, const struct spw_summary *summary)
{
	(void)fprintf(out, ";%ju;%ju;%f;%f", (uintmax_t)(summary->min / 1000),
		      (uintmax_t)(summary->max / 1000), spw_summary_mean(summary) / 1000,
		      spw_summary_deviation(summary) / 1000);
}

static void print_direction(FILE *out, const struct bench_direction_stats *stats)
{
	const struct spw_summary *samples = &stats->bandwidth_kib;
	double seconds = (double)stats->runtime_ns / 1e9, mean = spw_summary_mean(samples);
	double bandwidth = seconds > 0 ? (double)stats->bytes / 1024 / seconds : 0;

	(void)fprintf(out, ";%ju;%ju;%ju;%ju", (uintmax_t)(stats->bytes / 1024),
		      (uintmax_t)bandwidth,
		      (uintmax_t)(seconds > 0 ? (double)stats->ios / seconds : 0),
		      (uintmax_t)(stats->ios > 0 ? stats->runtime_ns / 1000000 : 0));
	print_times(out, &stats->submit_ns);
	print_times(out, &stats->complete_ns.summary);
	for (unsigned i = 0; i < bench_percentiles_count; i++)
		(void)fprintf(out, ";%f%%=%ju", bench_percentiles[i],
			      (uintmax_t)(spw_histogram_percentile(&stats->complete_ns,
								   bench_percentiles[i]) /
					  1000));
	for (unsigned i = bench_percentiles_count; i < PERCENTILES_OF_A_LINE; i++)
		(void)fprintf(out, ";0%%=0");
	print_times(out, &stats->total_ns);
	(void)fprintf(out, ";%ju;%ju;%f%%;%f;%f", (uintmax_t)samples->min, (uintmax_t)samples->max,
		      bandwidth > 0 ? 100 * mean / bandwidth : 0, mean,
		      spw_summary_deviation(samples));
}

static void print_tail(FILE *out, const struct bench_stats *stats)
{
	uint64_t classes[BENCH_LATENCY_CLASSES + 2], count = bench_latency_classes(stats, classes);
	uint64_t issued = 0;

	(void)fprintf(out, ";%f%%;%f%%;%ju;%ju;%ju",
		      bench_percentage(stats->user_ns, stats->runtime_ns),
		      bench_percentage(stats->system_ns, stats->runtime_ns),
		      (uintmax_t)stats->context_switches, (uintmax_t)stats->faults_major,
		      (uintmax_t)stats->faults_minor);
	for (unsigned i = 0; i < BENCH_DEPTH_LEVELS; i++)
		issued += stats->depth_levels[i];
	for (unsigned i = 0; i < BENCH_DEPTH_LEVELS; i++)
		(void)fprintf(out, ";%.1f%%", bench_percentage(stats->depth_levels[i], issued));
	/* Version 3 has no nanosecond classes: add them to the first microsecond class. */
	for (unsigned i = 0; i < CLASSES_OF_A_UNIT; i++)
		classes[CLASSES_OF_A_UNIT] += classes[i];
	for (unsigned i = CLASSES_OF_A_UNIT; i < BENCH_LATENCY_CLASSES + 2; i++)
		(void)fprintf(out, ";%.2f%%", bench_percentage(classes[i], count));
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
		(void)fprintf(out, "%s%s\n", entries[i].job->description[0] != '\0' ? ";" : "",
			      entries[i].job->description);
	}
	free(entries);
	return count < 0 ? count : 0;
}
