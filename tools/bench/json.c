/* SPDX-License-Identifier: MIT */
/* tools/bench/json.c - results as JSON with fio's keys and units */
#include "tools/bench/bench.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tools/ui/tool.h"
#include "util/util.h"

static void set(json_t *object, const char *key, json_t *value)
{
	/* Out of memory omits the key; tool_print_json() reports an unusable document. */
	(void)json_object_set_new(object, key, value);
}

static void set_count(json_t *object, const char *key, uint64_t value)
{
	set(object, key, json_integer((json_int_t)value));
}

static json_t *summary_json(const struct spw_summary *summary)
{
	return json_pack("{s:I, s:I, s:f, s:f, s:I}", "min", (json_int_t)summary->min, "max",
			 (json_int_t)summary->max, "mean", spw_summary_mean(summary), "stddev",
			 spw_summary_deviation(summary), "N", (json_int_t)summary->count);
}

static json_t *histogram_json(const struct spw_histogram *histogram)
{
	json_t *object = summary_json(&histogram->summary);
	json_t *percentiles = json_object();
	char name[32];

	for (unsigned i = 0; i < bench_percentiles_count; i++) {
		(void)snprintf(name, sizeof(name), "%f", bench_percentiles[i]);
		set_count(percentiles, name,
			  spw_histogram_percentile(histogram, bench_percentiles[i]));
	}
	if (histogram->summary.count > 0)
		set(object, "percentile", percentiles);
	else
		json_decref(percentiles);
	return object;
}

/* Set the samples as in fio: the bandwidth in KiB/s; bw_agg as a percentage of all jobs. */
static void set_samples(json_t *object, const struct bench_direction_stats *stats,
			double bandwidth_all)
{
	double mean = spw_summary_mean(&stats->bandwidth_kib);

	set_count(object, "bw_min", stats->bandwidth_kib.min);
	set_count(object, "bw_max", stats->bandwidth_kib.max);
	set(object, "bw_agg",
	    json_real(bandwidth_all > 0 ? 100.0 * mean * 1024 / bandwidth_all : 0));
	set(object, "bw_mean", json_real(mean));
	set(object, "bw_dev", json_real(spw_summary_deviation(&stats->bandwidth_kib)));
	set_count(object, "bw_samples", stats->bandwidth_kib.count);
	set_count(object, "iops_min", stats->iops.min);
	set_count(object, "iops_max", stats->iops.max);
	set(object, "iops_mean", json_real(spw_summary_mean(&stats->iops)));
	set(object, "iops_stddev", json_real(spw_summary_deviation(&stats->iops)));
	set_count(object, "iops_samples", stats->iops.count);
}

static json_t *direction_json(const struct bench_direction_stats *stats)
{
	double seconds = (double)stats->runtime_ns / 1e9;
	double bandwidth = seconds > 0 ? (double)stats->bytes / seconds : 0;
	json_t *object = json_object();

	set_count(object, "io_bytes", stats->bytes);
	set_count(object, "io_kbytes", stats->bytes / 1024);
	set_count(object, "bw_bytes", (uint64_t)bandwidth);
	set_count(object, "bw", (uint64_t)(bandwidth / 1024));
	set(object, "iops", json_real(seconds > 0 ? (double)stats->ios / seconds : 0));
	set_count(object, "runtime", stats->ios > 0 ? stats->runtime_ns / 1000000 : 0);
	set_count(object, "total_ios", stats->ios);
	set_count(object, "short_ios", 0); /* the engine continues short transfers */
	set_count(object, "drop_ios", 0);
	set(object, "slat_ns", summary_json(&stats->submit_ns));
	set(object, "clat_ns", histogram_json(&stats->complete_ns));
	set(object, "lat_ns", summary_json(&stats->total_ns));
	set_samples(object, stats, bandwidth);
	return object;
}

static json_t *levels_json(const uint64_t levels[], const char *const names[])
{
	json_t *object = json_object();
	uint64_t total = 0;

	for (unsigned i = 0; i < BENCH_DEPTH_LEVELS; i++)
		total += levels[i];
	for (unsigned i = 0; i < BENCH_DEPTH_LEVELS; i++)
		set(object, names[i], json_real(bench_percentage(levels[i], total)));
	return object;
}

static void set_latencies(json_t *object, const struct bench_stats *stats)
{
	static const char *const names[] = {"latency_ns", "latency_us", "latency_ms"};
	uint64_t classes[BENCH_LATENCY_CLASSES + 2], count = bench_latency_classes(stats, classes);
	json_t *unit = NULL;
	char limit[16];

	for (unsigned i = 0; i < BENCH_LATENCY_CLASSES; i++) {
		if (i % (BENCH_LATENCY_CLASSES / SPW_ARRAY_LEN(names)) == 0) {
			unit = json_object();
			set(object, names[i / (BENCH_LATENCY_CLASSES / SPW_ARRAY_LEN(names))],
			    unit);
		}
		(void)snprintf(limit, sizeof(limit), "%ju", (uintmax_t)bench_latency_limit(i));
		set(unit, limit, json_real(bench_percentage(classes[i], count)));
	}
	set(unit, "2000", json_real(bench_percentage(classes[BENCH_LATENCY_CLASSES], count)));
	set(unit, ">=2000", json_real(bench_percentage(classes[BENCH_LATENCY_CLASSES + 1], count)));
}

static json_t *options_json(const struct bench_job *job)
{
	json_t *object = json_object();
	bool range = job->block_bytes_max != job->block_bytes_min;

	set(object, "name", tool_json_text(job->name));
	set(object, "filename", tool_json_text(job->filename));
	set(object, "rw", json_string(bench_rw_name(job->rw)));
	set(object, range ? "bsrange" : "bs",
	    range ? json_sprintf("%ju-%ju", (uintmax_t)job->block_bytes_min,
				 (uintmax_t)job->block_bytes_max)
		  : json_sprintf("%ju", (uintmax_t)job->block_bytes_min));
	set(object, "iodepth", json_sprintf("%u", job->iodepth));
	set(object, "numjobs", json_sprintf("%u", job->numjobs));
	return object;
}

static json_t *remarks_json(const struct bench_job *job)
{
	json_t *array = json_array();

	for (uint32_t i = 0; i < BENCH_REMARKS; i++)
		if (job->remarks >> i & 1)
			(void)json_array_append_new(array, json_string(bench_remark_words(i)));
	return array;
}

static json_t *left_out_json(const struct bench_plan *plan)
{
	json_t *array = json_array();

	for (unsigned i = 0; i < plan->left_out_count; i++) {
		json_t *object = json_object();

		set(object, "section", tool_json_text(plan->left_out[i].section));
		set(object, "ioengine", tool_json_text(plan->left_out[i].engine));
		(void)json_array_append_new(array, object);
	}
	return array;
}

/* Results for which fio has no key. */
static json_t *own_json(const struct bench_entry *entry)
{
	const struct bench_stats *stats = &entry->stats;
	json_t *object = json_object();

	set(object, "backend", tool_json_text(stats->description));
	set(object, "differs", remarks_json(entry->job));
	set_count(object, "blocks_verified", stats->blocks_verified);
	set_count(object, "unwritten_bytes", entry->unwritten_bytes);
	set_count(object, "kernel_requests", stats->queue.parts);
	set_count(object, "kernel_requests_fixed", stats->queue.parts_fixed);
	set_count(object, "system_calls", stats->queue.system_calls);
	set_count(object, "retries", stats->queue.retries);
	set_count(object, "kernel_workers", stats->queue.kernel_workers);
	if (entry->job->steady_ns > 0)
		set(object, "steady", json_boolean(entry->steady));
	if (stats->error != 0)
		set(object, "error", tool_json_text(stats->error_text));
	return object;
}

static json_t *entry_json(const struct bench_run *run, const struct bench_entry *entry)
{
	static const struct bench_direction_stats nothing;
	const struct bench_stats *stats = &entry->stats;
	json_t *object = json_object();

	set(object, "jobname", tool_json_text(entry->job->name));
	set_count(object, "groupid", entry->group);
	set_count(object, "error", (uint64_t)-stats->error);
	if (entry->job->description[0] != '\0')
		set(object, "desc", tool_json_text(entry->job->description));
	set_count(object, "eta", 0);
	set_count(object, "elapsed", (run->elapsed_ns + 999999999u) / 1000000000u);
	set(object, "job options", options_json(entry->job));
	set(object, "read", direction_json(&stats->direction[BENCH_DIR_READ]));
	set(object, "write", direction_json(&stats->direction[BENCH_DIR_WRITE]));
	set(object, "trim", direction_json(&nothing));
	set(object, "sync",
	    json_pack("{s:i, s:o}", "total_ios", 0, "lat_ns", summary_json(&nothing.total_ns)));
	set_count(object, "job_runtime", stats->runtime_ns / 1000000);
	set(object, "usr_cpu", json_real(bench_percentage(stats->user_ns, stats->runtime_ns)));
	set(object, "sys_cpu", json_real(bench_percentage(stats->system_ns, stats->runtime_ns)));
	set_count(object, "ctx", stats->context_switches);
	set_count(object, "majf", stats->faults_major);
	set_count(object, "minf", stats->faults_minor);
	set(object, "iodepth_level", levels_json(stats->depth_levels, bench_depth_names));
	set(object, "iodepth_submit", levels_json(stats->submit_levels, bench_batch_names));
	set(object, "iodepth_complete", levels_json(stats->complete_levels, bench_batch_names));
	set_latencies(object, stats);
	set_count(object, "latency_depth", entry->job->iodepth);
	set_count(object, "latency_target", 0);
	set(object, "latency_percentile", json_real(100));
	set_count(object, "latency_window", 0);
	set(object, "spillway", own_json(entry));
	return object;
}

static json_t *drives_json(const struct bench_run *run)
{
	json_t *array = json_array();

	for (unsigned i = 0; i < run->workers_count; i++)
		for (unsigned j = 0; run->workers[i].drives && j < run->workers[i].devices_count;
		     j++) {
			const struct spw_drive_stats *drive = &run->workers[i].drives[j];
			json_t *object = json_object();

			set(object, "jobname", tool_json_text(run->workers[i].job->name));
			set(object, "path", tool_json_text(drive->path));
			set_count(object, "bytes_written", drive->bytes_written);
			set_count(object, "bytes_read", drive->bytes_read);
			set_count(object, "in_flight_max", drive->in_flight_max);
			set_count(object, "depth", drive->depth);
			(void)json_array_append_new(array, object);
		}
	return array;
}

json_t *bench_report_json(const struct bench_run *run)
{
	json_t *document = json_object(), *jobs = json_array();
	time_t seconds = (time_t)(run->start_time_ms / 1000);
	struct bench_entry *entries;
	int count = bench_entries(run, &entries);
	struct tm local;
	char text[64];

	set(document, "fio version", json_string("spillway-" SPW_VERSION));
	set_count(document, "timestamp", run->start_time_ms / 1000);
	set_count(document, "timestamp_ms", run->start_time_ms);
	if (localtime_r(&seconds, &local) &&
	    strftime(text, sizeof(text), "%a %b %e %H:%M:%S %Y", &local) > 0)
		set(document, "time", json_string(text));
	for (int i = 0; i < count; i++)
		(void)json_array_append_new(jobs, entry_json(run, &entries[i]));
	set(document, "jobs", jobs);
	set(document, "disk_util", json_array());
	set(document, "spillway",
	    json_pack("{s:f, s:f, s:b, s:o, s:o}", "process_user_seconds",
		      (double)run->process_user_ns / 1e9, "process_system_seconds",
		      (double)run->process_system_ns / 1e9, "interrupted", run->interrupted,
		      "drives", drives_json(run), "left_out", left_out_json(&run->plan)));
	free(entries);
	return document;
}
