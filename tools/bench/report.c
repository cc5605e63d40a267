/* SPDX-License-Identifier: MIT */
/* tools/bench/report.c - print results as text, laid out like fio's */
#include "tools/bench/bench.h"

#include <stdlib.h>
#include <string.h>

#include "util/util.h"

/* ---- Numbers for people ---------------------------------------------------------------------- */

#define NUMBER_BYTES 32

static const char *const binary_units[] = {"B", "KiB", "MiB", "GiB", "TiB", NULL};
static const char *const decimal_units[] = {"B", "kB", "MB", "GB", "TB", NULL};
static const char *const plain_units[] = {"", "k", "M", "G", NULL};

/* Format a number with four significant digits, in powers of @base: 1600000 -> "1600k" */
static const char *short_number(double value, double base, const char *const units[], char *text)
{
	unsigned unit = 0;

	while (value >= 10 * base && units[unit + 1]) {
		value /= base;
		unit++;
	}
	(void)snprintf(text, NUMBER_BYTES, value < 99.95 && unit > 0 ? "%.1f%s" : "%.0f%s", value,
		       units[unit]);
	return text;
}

#define BINARY(value)  short_number(value, 1024, binary_units, (char[NUMBER_BYTES]){0})
#define DECIMAL(value) short_number(value, 1000, decimal_units, (char[NUMBER_BYTES]){0})
#define PLAIN(value)   short_number(value, 1000, plain_units, (char[NUMBER_BYTES]){0})

/* Choose the unit of a latency. *@divisor: nanoseconds per unit */
static const char *time_unit(double ns, double *divisor)
{
	*divisor = ns < 10000 ? 1 : ns < 10000000 ? 1e3 : 1e6;
	return ns < 10000 ? "nsec" : ns < 10000000 ? "usec" : "msec";
}

static double per_second(uint64_t count, uint64_t ns)
{
	return ns == 0 ? 0 : (double)count * 1e9 / (double)ns;
}

/* ---- One entry ------------------------------------------------------------------------------- */

static void print_summary(FILE *out, const char *name, const struct spw_summary *summary)
{
	double divisor, mean = spw_summary_mean(summary);
	const char *unit = time_unit(mean, &divisor);

	if (summary->count == 0)
		return;
	(void)fprintf(out, "    %4s (%s): min=%s, max=%s, avg=%.2f, stdev=%.2f\n", name, unit,
		      PLAIN((double)summary->min / divisor), PLAIN((double)summary->max / divisor),
		      mean / divisor, spw_summary_deviation(summary) / divisor);
}

static void print_percentiles(FILE *out, const struct spw_histogram *histogram)
{
	double divisor;
	const char *unit = time_unit(spw_summary_mean(&histogram->summary), &divisor);

	(void)fprintf(out, "    clat percentiles (%s):\n", unit);
	for (unsigned i = 0; i < bench_percentiles_count; i++) {
		uint64_t value = spw_histogram_percentile(histogram, bench_percentiles[i]);
		bool line_ends = i % 4 == 3 || i + 1 == bench_percentiles_count;

		(void)fprintf(out, "%s%5.2fth=[%5ju]%s", i % 4 == 0 ? "     | " : " ",
			      bench_percentiles[i], (uintmax_t)((double)value / divisor),
			      i + 1 == bench_percentiles_count ? "\n"
			      : line_ends                      ? ",\n"
							       : ",");
	}
}

static void print_samples(FILE *out, const struct bench_direction_stats *stats)
{
	const struct spw_summary *bw = &stats->bandwidth_kib, *iops = &stats->iops;

	if (bw->count == 0)
		return;
	(void)fprintf(out, "   bw (  KiB/s): min=%ju, max=%ju, avg=%.2f, stdev=%.2f, samples=%ju\n",
		      (uintmax_t)bw->min, (uintmax_t)bw->max, spw_summary_mean(bw),
		      spw_summary_deviation(bw), (uintmax_t)bw->count);
	(void)fprintf(out, "   iops        : min=%ju, max=%ju, avg=%.2f, stdev=%.2f, samples=%ju\n",
		      (uintmax_t)iops->min, (uintmax_t)iops->max, spw_summary_mean(iops),
		      spw_summary_deviation(iops), (uintmax_t)iops->count);
}

static void print_direction(FILE *out, const char *name, const struct bench_direction_stats *stats)
{
	double bandwidth = per_second(stats->bytes, stats->runtime_ns);

	if (stats->ios == 0)
		return;
	(void)fprintf(out, "  %5s: IOPS=%s, BW=%s/s (%s/s)(%s/%jumsec)\n", name,
		      PLAIN(per_second(stats->ios, stats->runtime_ns)), BINARY(bandwidth),
		      DECIMAL(bandwidth), BINARY((double)stats->bytes),
		      (uintmax_t)(stats->runtime_ns / 1000000));
	print_summary(out, "slat", &stats->submit_ns);
	print_summary(out, "clat", &stats->complete_ns.summary);
	print_summary(out, "lat", &stats->total_ns);
	print_percentiles(out, &stats->complete_ns);
	print_samples(out, stats);
}

static void print_latencies(FILE *out, const struct bench_stats *stats)
{
	static const char *const units[] = {"nsec", "usec", "msec"};
	uint64_t classes[BENCH_LATENCY_CLASSES + 2], count = bench_latency_classes(stats, classes);
	unsigned begun = 0; /* numbers of units begun, from 1 */

	for (unsigned i = 0; i < BENCH_LATENCY_CLASSES; i++) {
		unsigned unit = i / (BENCH_LATENCY_CLASSES / SPW_ARRAY_LEN(units)) + 1;

		if (classes[i] == 0)
			continue;
		if (begun == unit)
			(void)fprintf(out, ", ");
		else
			(void)fprintf(out, "%s  lat (%s)   : ", begun ? "\n" : "", units[unit - 1]);
		begun = unit;
		(void)fprintf(out, "%ju=%.2f%%", (uintmax_t)bench_latency_limit(i),
			      bench_percentage(classes[i], count));
	}
	if (begun)
		(void)fputc('\n', out);
}

static void print_levels(FILE *out, const char *title, const uint64_t levels[],
			 const char *const names[])
{
	uint64_t total = 0;

	for (unsigned i = 0; i < BENCH_DEPTH_LEVELS; i++)
		total += levels[i];
	(void)fprintf(out, "  %-12s: ", title);
	for (unsigned i = 0; i < BENCH_DEPTH_LEVELS; i++)
		(void)fprintf(out, "%s%s=%.1f%%", i > 0 ? ", " : "", names[i],
			      bench_percentage(levels[i], total));
	(void)fputc('\n', out);
}

static void print_entry(FILE *out, const struct bench_entry *entry)
{
	const struct bench_stats *stats = &entry->stats;

	(void)fprintf(out, "\n%s: (groupid=%u, jobs=%u): err=%2d", entry->job->name, entry->group,
		      entry->workers, -stats->error);
	/* The full message follows at the end, on standard error. */
	if (stats->error != 0)
		(void)fprintf(out, " (%s)", spw_strerror(stats->error));
	(void)fputc('\n', out);
	(void)fprintf(out, "  engine     : %s\n",
		      stats->description[0] != '\0' ? stats->description : "not started");
	if (entry->job->description[0] != '\0')
		(void)fprintf(out, "  Description  : [%s]\n", entry->job->description);
	for (uint32_t i = 0; i < BENCH_REMARKS; i++)
		if (entry->job->remarks >> i & 1)
			(void)fprintf(out, "  differs      : %s\n", bench_remark_words(i));
	print_direction(out, "read", &stats->direction[BENCH_DIR_READ]);
	print_direction(out, "write", &stats->direction[BENCH_DIR_WRITE]);
	print_latencies(out, stats);
	(void)fprintf(out, "  cpu          : usr=%.2f%%, sys=%.2f%%, ctx=%ju, majf=%ju, minf=%ju\n",
		      bench_percentage(stats->user_ns, stats->runtime_ns),
		      bench_percentage(stats->system_ns, stats->runtime_ns),
		      (uintmax_t)stats->context_switches, (uintmax_t)stats->faults_major,
		      (uintmax_t)stats->faults_minor);
	print_levels(out, "IO depths", stats->depth_levels, bench_depth_names);
	print_levels(out, "   submit", stats->submit_levels, bench_batch_names);
	print_levels(out, "   complete", stats->complete_levels, bench_batch_names);
	(void)fprintf(out,
		      "  issued rwts  : total=%ju,%ju,0,0, kernel requests=%ju, system calls=%ju\n",
		      (uintmax_t)stats->direction[BENCH_DIR_READ].ios,
		      (uintmax_t)stats->direction[BENCH_DIR_WRITE].ios,
		      (uintmax_t)stats->queue.parts, (uintmax_t)stats->queue.system_calls);
	if (entry->job->steady_ns > 0)
		(void)fprintf(out, "  steadystate  : attained=%s\n", entry->steady ? "yes" : "no");
	if (entry->job->verify != BENCH_VERIFY_NONE)
		(void)fprintf(out, "  verified     : %ju blocks\n",
			      (uintmax_t)stats->blocks_verified);
}

/* ---- Groups ---------------------------------------------------------------------------------- */

static void print_group_direction(FILE *out, const char *name, const struct bench_entry *entries,
				  int count, unsigned group, unsigned direction)
{
	struct spw_summary rates = {0}, times_ms = {0};
	uint64_t bytes = 0;
	double all;

	for (int i = 0; i < count; i++) {
		const struct bench_direction_stats *stats = &entries[i].stats.direction[direction];

		if (entries[i].group != group || stats->ios == 0)
			continue;
		spw_summary_add(&rates, (uint64_t)per_second(stats->bytes, stats->runtime_ns));
		spw_summary_add(&times_ms, stats->runtime_ns / 1000000);
		bytes += stats->bytes;
	}
	if (bytes == 0)
		return;
	/* As in fio: all bytes of the group divided by the time of its longest job. */
	all = times_ms.max == 0 ? (double)rates.max : (double)bytes * 1000 / (double)times_ms.max;
	(void)fprintf(out, "  %5s: bw=%s/s (%s/s), %s/s-%s/s, io=%s (%s), run=%ju-%jumsec\n", name,
		      BINARY(all), DECIMAL(all), BINARY((double)rates.min),
		      BINARY((double)rates.max), BINARY((double)bytes), DECIMAL((double)bytes),
		      (uintmax_t)times_ms.min, (uintmax_t)times_ms.max);
}

static void print_group(FILE *out, const struct bench_entry *entries, int count, unsigned group)
{
	(void)fprintf(out, "\nRun status group %u (all jobs):\n", group);
	print_group_direction(out, "READ", entries, count, group, BENCH_DIR_READ);
	print_group_direction(out, "WRITE", entries, count, group, BENCH_DIR_WRITE);
}

/* Print each drive's share of a job on a store, which should be even. */
static void print_drives(const struct bench_run *run, FILE *out)
{
	for (unsigned i = 0; i < run->workers_count; i++) {
		const struct bench_worker *worker = &run->workers[i];

		if (worker->drives)
			(void)fprintf(out, "\nDrives of %s:\n", worker->job->name);
		for (unsigned j = 0; worker->drives && j < worker->devices_count; j++)
			(void)fprintf(out,
				      "  %s: written=%s, read=%s, in flight at most %u of %u\n",
				      worker->drives[j].path,
				      BINARY((double)worker->drives[j].bytes_written),
				      BINARY((double)worker->drives[j].bytes_read),
				      worker->drives[j].in_flight_max, worker->drives[j].depth);
	}
}

int bench_report_text(const struct bench_run *run, FILE *out)
{
	struct bench_entry *entries;
	int count = bench_entries(run, &entries);

	if (count < 0)
		return count;
	(void)fprintf(out, "spillway-%s\n", spw_version());
	for (int i = 0; i < count; i++)
		print_entry(out, &entries[i]);
	for (int i = 0; i < count; i++)
		if (i == 0 || entries[i].group != entries[i - 1].group)
			print_group(out, entries, count, entries[i].group);
	print_drives(run, out);
	for (unsigned i = 0; i < run->plan.left_out_count; i++)
		(void)fprintf(out,
			      "\nLeft out: [%s], whose ioengine=%s is not one of spillway's.\n",
			      run->plan.left_out[i].section, run->plan.left_out[i].engine);
	(void)fprintf(out, "\nProcess, kernel workers included: user %.3f s, system %.3f s\n",
		      (double)run->process_user_ns / 1e9, (double)run->process_system_ns / 1e9);
	if (run->interrupted)
		(void)fprintf(out, "Interrupted: this is what was measured until then.\n");
	free(entries);
	return 0;
}
