/* SPDX-License-Identifier: MIT */
/* tools/cmd_tune.c - spillway tune: measure the best block size, depth, polling and backend */
#include "tools/ui/tool.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tools/bench/bench.h"
#include "tools/ui/stop.h"
#include "tools/tune_file.h"
#include "util/util.h"

static struct tool_devices devices;
static const char *runtime_text = "500ms", *output;
static bool with_writes, allow_destructive, json, verbose;

static const struct tool_option options[] = {
	{"devices", TOOL_DEVICES, &devices, "A,B,...",
	 "the drives, measured together (or name them without the option); \\, is a comma in a "
	 "name"},
	{"runtime", TOOL_TEXT, &runtime_text, "TIME",
	 "duration of each measurement (default 500ms)"},
	{"write", TOOL_FLAG, &with_writes, NULL, "measure writes too: OVERWRITES THE DRIVES"},
	{"allow-destructive", TOOL_FLAG, &allow_destructive, NULL,
	 "overwrite data, but never a drive in use"},
	{"output", TOOL_TEXT, &output, "FILE",
	 "write the settings there (default ~/.config/spillway/tune.json)"},
	{"json", TOOL_FLAG, &json, NULL, "print JSON"},
	{"verbose", TOOL_FLAG, &verbose, NULL, "say more on standard error"},
	{NULL, TOOL_FLAG, NULL, NULL, NULL},
};

static const uint64_t block_sizes[] = {256u << 10, 1u << 20, 4u << 20, 16u << 20};
static const uint32_t depths[] = {1, 4, 16, 64};
/* combinations with more bytes in flight are left out */
#define MEMORY_BYTES_MAX (UINT64_C(256) << 20)

/* If more than 1/16 of a drive was never written, measurements of reads are not valid. */
#define UNWRITTEN_SHARE 16
/* The most bytes to write first on such a drive; then only these are measured. */
#define REGION_BYTES_MAX (UINT64_C(8) << 30)

/* Settings within this share of the best bandwidth are equal: that with the least CPU time wins. */
#define GOOD_ENOUGH 0.97

/* A combination of settings, and its measured results. */
struct run {
	unsigned direction;
	uint64_t block_bytes;
	uint32_t depth; /* per drive */
	bool poll;
	enum spw_backend backend;
	bool measured;
	double bandwidth, iops, cpu_seconds_per_gib;
	uint64_t latency_p99_ns;
	char description[256];
};

#define RUNS_MAX (2 * 5 * SPW_ARRAY_LEN(block_sizes) * SPW_ARRAY_LEN(depths))

struct sweep {
	struct run runs[RUNS_MAX];
	unsigned runs_count;
	bool drives_poll; /* all drives support polling */
	bool drives_vfio; /* a drive is behind vfio, so no other backend reaches all drives */
	/* all drives are NVMe namespaces whose passthrough node this user may open */
	bool drives_pass;
	bool refused[SPW_BACKEND_VFIO + 1]; /* backends that cannot open a queue on these drives */
	bool interrupted;
	struct bench_devices devices;
	uint64_t region_bytes;   /* measured bytes of each drive; 0: all */
	uint64_t smallest_bytes; /* usable bytes of the smallest drive */
	json_t *drives;          /* names by which the library recognizes the drives */
	const char *path;        /* path of the settings file */
	char usual[PATH_MAX];
};

static const char *direction_name(unsigned direction)
{
	return direction == BENCH_DIR_WRITE ? "write" : "read";
}

/* ---- What to measure ------------------------------------------------------------------------- */

static void add_run(struct sweep *sweep, struct run run)
{
	if (run.block_bytes * run.depth * devices.count <= MEMORY_BYTES_MAX &&
	    run.depth * devices.count <= SPW_QUEUE_DEPTH_MAX)
		sweep->runs[sweep->runs_count++] = run;
}

static void add_waits(struct sweep *sweep, struct run run)
{
	add_run(sweep, run);
	run.poll = true;
	if (sweep->drives_poll)
		add_run(sweep, run);
}

static void add_backends(struct sweep *sweep, struct run run)
{
	if (sweep->drives_vfio) {
		run.backend = SPW_BACKEND_VFIO;
		add_run(sweep, run);
		return;
	}
	run.backend = SPW_BACKEND_IO_URING;
	add_waits(sweep, run);
	run.backend = SPW_BACKEND_NVME;
	if (sweep->drives_pass)
		add_waits(sweep, run);
	run.backend = SPW_BACKEND_LIBAIO;
	add_run(sweep, run);
}

static void plan_sweep(struct sweep *sweep)
{
	/* Measure writes first: reads of blocks that were never written measure nothing. */
	for (unsigned write = with_writes; write < 2; write--)
		for (size_t i = 0; i < SPW_ARRAY_LEN(block_sizes); i++)
			for (size_t j = 0; j < SPW_ARRAY_LEN(depths); j++)
				add_backends(sweep, (struct run){
							    .direction = write ? BENCH_DIR_WRITE
									       : BENCH_DIR_READ,
							    .block_bytes = block_sizes[i],
							    .depth = depths[j],
						    });
}

/* Find a drive that was never written: write it first, if allowed, or refuse to measure it. */
static int check_written(struct sweep *sweep, const char *path, uint64_t size_bytes)
{
	uint64_t bytes = bench_unwritten(path, 0, size_bytes);

	if (bytes == BENCH_UNWRITTEN_UNKNOWN || bytes <= size_bytes / UNWRITTEN_SHARE)
		return 0;
	if (!with_writes)
		return spw_error(-ENODATA,
				 "%s: %s of its %s were never written: they are answered without "
				 "being read, and that measures nothing; with --write they are "
				 "written first (OVERWRITES THE DRIVE)",
				 path, SPW_SIZE_TEXT(bytes), SPW_SIZE_TEXT(size_bytes));
	sweep->region_bytes = REGION_BYTES_MAX;
	return 0;
}

static json_t *drive_json(const char *path, const struct spw_geometry *geometry)
{
	char *whole = realpath(path, NULL);
	json_t *drive = json_pack(
		"{s:o, s:o, s:o, s:I}", "path", tool_json_text(whole ? whole : path), "model",
		tool_json_text(geometry->model), "serial", tool_json_text(geometry->serial),
		"size_bytes", (json_int_t)geometry->size_bytes);

	free(whole);
	return drive;
}

static int look_at_drives(struct sweep *sweep)
{
	sweep->drives_poll = true;
	sweep->drives_pass = true;
	sweep->drives = json_array();
	sweep->smallest_bytes = UINT64_MAX;
	for (unsigned i = 0; i < devices.count; i++) {
		struct spw_probe_info info = {.size = sizeof(info)};
		int result = spw_probe(devices.paths[i], &info);

		if (result != 0)
			return result;
		if (info.geometry.size_bytes == 0)
			return spw_error(info.error != 0 ? info.error : -ENODEV, "%s", info.reason);
		result = check_written(sweep, devices.paths[i], info.geometry.size_bytes);
		if (result != 0)
			return result;
		sweep->smallest_bytes = SPW_MIN(sweep->smallest_bytes, info.geometry.size_bytes);
		(void)json_array_append_new(sweep->drives,
					    drive_json(devices.paths[i], &info.geometry));
		sweep->drives_poll &= info.geometry.polls;
		sweep->drives_vfio |= info.geometry.kind == SPW_DEVICE_VFIO;
		sweep->drives_pass &= info.geometry.nvme_char_path[0] != '\0' &&
				      access(info.geometry.nvme_char_path, R_OK | W_OK) == 0;
	}
	return 0;
}

/* ---- One measurement ------------------------------------------------------------------------- */

static int make_job(struct bench_job *job, const struct sweep *sweep, const struct run *run)
{
	size_t used = 0;
	int result;

	bench_job_init(job);
	(void)snprintf(job->name, sizeof(job->name), "tune");
	for (unsigned i = 0; i < devices.count; i++) {
		/* Escape colons, which would end the name. */
		for (const char *at = devices.paths[i]; *at != '\0'; at++) {
			if (used + 3 >= sizeof(job->filename))
				return spw_error(-ENAMETOOLONG,
						 "the paths of the drives are too long");
			if (*at == ':')
				job->filename[used++] = '\\';
			job->filename[used++] = *at;
		}
		if (i + 1 < devices.count)
			job->filename[used++] = ':';
	}
	job->rw = run->direction == BENCH_DIR_WRITE ? BENCH_WRITE : BENCH_READ;
	job->block_bytes_min = job->block_bytes_max = run->block_bytes;
	job->iodepth = run->depth * devices.count;
	job->hipri = run->poll;
	job->fixedbufs = true;
	job->backend = run->backend;
	job->time_based = true;
	job->size_bytes = sweep->region_bytes * devices.count;
	result = bench_parse_time(runtime_text, &job->runtime_ns);
	if (result == 0 && job->runtime_ns == 0)
		result = spw_error(-EINVAL, "the time to measure must not be 0");
	if (result != 0)
		return spw_error(-EINVAL, "--runtime: %s", spw_last_error());
	return bench_job_check(job);
}

static void keep_result(struct run *run, const struct bench_run *ended)
{
	const struct bench_stats *stats = &ended->workers[0].stats;
	const struct bench_direction_stats *direction = &stats->direction[run->direction];
	double seconds = (double)direction->runtime_ns / 1e9;
	double cpu = (double)(ended->process_user_ns + ended->process_system_ns) / 1e9;

	run->measured = true;
	run->bandwidth = seconds > 0 ? (double)direction->bytes / seconds : 0;
	run->iops = seconds > 0 ? (double)direction->ios / seconds : 0;
	run->cpu_seconds_per_gib =
		direction->bytes > 0 ? cpu / ((double)direction->bytes / (1u << 30)) : 0;
	run->latency_p99_ns = spw_histogram_percentile(&direction->complete_ns, 99);
	memcpy(run->description, stats->description, sizeof(run->description));
}

/* Report a backend that is refused here, such as io_uring in containers, and do not measure it. */
static int refuse(struct sweep *sweep, enum spw_backend backend)
{
	bool any = false;

	(void)fprintf(stderr, "spillway tune: not measured: %s\n", spw_last_error());
	sweep->refused[backend] = true;
	for (unsigned i = 0; i < sweep->runs_count; i++)
		any |= !sweep->refused[sweep->runs[i].backend];
	return any ? 0 : spw_error(-EOPNOTSUPP, "neither io_uring nor libaio can be used here");
}

/* @bench: pass it to bench_run_free(), even after a failure. */
static int run_job(struct sweep *sweep, const struct bench_job *job, struct bench_run *bench)
{
	int result;

	*bench = (struct bench_run){
		.devices = &sweep->devices,
		.allow_destructive = allow_destructive,
		.verbose = verbose,
		.quiet = true,
	};
	result = bench_plan_add(&bench->plan, job);
	if (result == 0)
		result = bench_run(bench);
	sweep->interrupted = bench->interrupted || tool_stopped();
	return result;
}

/* Write the region once before measuring, by the same safety rules as every write. */
static int write_region(struct sweep *sweep)
{
	const struct run run = {.direction = BENCH_DIR_WRITE, .block_bytes = 1u << 20, .depth = 4};
	struct bench_run bench = {0};
	struct bench_job job;
	int result;

	if (sweep->region_bytes == 0)
		return 0;
	sweep->region_bytes = SPW_MIN(sweep->region_bytes,
				      spw_round_down(sweep->smallest_bytes, run.block_bytes));
	tool_progress("tune: writing the first %s of each drive, as not all ever was",
		      SPW_SIZE_TEXT(sweep->region_bytes));
	result = make_job(&job, sweep, &run);
	job.time_based = false;
	job.runtime_ns = 0;
	if (result == 0)
		result = run_job(sweep, &job, &bench);
	if (result == 0 && bench.workers[0].stats.error != 0)
		result = spw_error(bench.workers[0].stats.error, "%s",
				   bench.workers[0].stats.error_text);
	bench_run_free(&bench);
	tool_progress_end();
	if (result == 0 && !sweep->interrupted)
		(void)fprintf(stderr,
			      "spillway tune: not all was ever written: the first %s of each drive "
			      "were written, and are measured\n",
			      SPW_SIZE_TEXT(sweep->region_bytes));
	return result;
}

static int measure(struct sweep *sweep, struct run *run)
{
	struct bench_run bench = {0};
	struct bench_job job;
	int result = make_job(&job, sweep, run);

	if (result == 0)
		result = run_job(sweep, &job, &bench);
	if (result == 0 && bench.workers[0].stats.error != 0) {
		const struct bench_stats *stats = &bench.workers[0].stats;

		result = spw_error(stats->error, "%s", stats->error_text);
		/* Without a description the job had no queue: the backend is refused. */
		if (stats->description[0] == '\0' && result != -ENOMEM)
			result = refuse(sweep, run->backend);
	} else if (result == 0 && !sweep->interrupted) {
		keep_result(run, &bench);
	}
	bench_run_free(&bench);
	return result;
}

/*
 * ---- Choose the best ---------------------------------------------------------------------------
 */

static const struct run *best_of(const struct sweep *sweep, unsigned direction)
{
	const struct run *best = NULL;
	double most = 0;

	for (unsigned i = 0; i < sweep->runs_count; i++)
		if (sweep->runs[i].direction == direction && sweep->runs[i].bandwidth > most)
			most = sweep->runs[i].bandwidth;
	for (unsigned i = 0; i < sweep->runs_count; i++) {
		const struct run *run = &sweep->runs[i];

		if (run->measured && run->direction == direction &&
		    run->bandwidth >= GOOD_ENOUGH * most &&
		    (!best || run->cpu_seconds_per_gib < best->cpu_seconds_per_gib))
			best = run;
	}
	return best;
}

static void show_progress(const struct sweep *sweep, unsigned done, uint64_t begin_ns)
{
	const struct run *next = &sweep->runs[done];
	const struct run *best = best_of(sweep, next->direction);
	uint64_t spent_ns = spw_clock_ns() - begin_ns;

	tool_progress("tune: %u of %u: %s, blocks of %s, depth %u, %s%s%s%s%s", done + 1,
		      sweep->runs_count, next->direction == BENCH_DIR_WRITE ? "writes" : "reads",
		      SPW_SIZE_TEXT(next->block_bytes), next->depth,
		      bench_backend_name(next->backend), next->poll ? " polled" : "",
		      best ? "; best so far " : "",
		      best ? TOOL_SHORT("%s/s", SPW_SIZE_TEXT((uint64_t)best->bandwidth)) : "",
		      done > 0 ? TOOL_SHORT("; %ju s left",
					    (uintmax_t)(spent_ns / done *
							(sweep->runs_count - done) / 1000000000u))
			       : "");
}

static int run_sweep(struct sweep *sweep)
{
	uint64_t begin_ns = spw_clock_ns();
	int result = 0;

	/* Open devices once for all measurements: no other process may claim one in between. */
	for (unsigned i = 0; i < devices.count && result == 0; i++) {
		struct bench_device *device = bench_devices_find(&sweep->devices, devices.paths[i]);

		if (device)
			device->writes = with_writes;
		else
			result = -ENOENT;
	}
	tool_stop_catch();
	if (result == 0)
		result = write_region(sweep);
	for (unsigned i = 0; i < sweep->runs_count && result == 0 && !sweep->interrupted; i++) {
		show_progress(sweep, i, begin_ns);
		if (!sweep->refused[sweep->runs[i].backend])
			result = measure(sweep, &sweep->runs[i]);
	}
	tool_stop_release();
	bench_devices_close(&sweep->devices);
	tool_progress_end();
	return result;
}

/* ---- Results --------------------------------------------------------------------------------- */

static json_t *run_json(const struct run *run)
{
	return json_pack(
		"{s:s, s:I, s:I, s:s, s:s, s:f, s:f, s:f, s:I, s:o}", "rw",
		direction_name(run->direction), "block_bytes", (json_int_t)run->block_bytes,
		"iodepth", (json_int_t)run->depth, "wait", run->poll ? "poll" : "interrupt",
		"backend", bench_backend_name(run->backend), "bandwidth_bytes_per_second",
		run->bandwidth, "iops", run->iops, "cpu_seconds_per_gib", run->cpu_seconds_per_gib,
		"latency_p99_ns", (json_int_t)run->latency_p99_ns, "description",
		tool_json_text(run->description));
}

static json_t *sweep_json(const struct sweep *sweep)
{
	const struct run *read = best_of(sweep, BENCH_DIR_READ),
			 *write = best_of(sweep, BENCH_DIR_WRITE);
	json_t *paths = json_array(), *best = json_object(), *runs = json_array();

	for (unsigned i = 0; i < devices.count; i++)
		(void)json_array_append_new(paths, tool_json_text(devices.paths[i]));
	if (read)
		(void)json_object_set_new(best, "read", run_json(read));
	if (write)
		(void)json_object_set_new(best, "write", run_json(write));
	for (unsigned i = 0; i < sweep->runs_count; i++)
		if (sweep->runs[i].measured)
			(void)json_array_append_new(runs, run_json(&sweep->runs[i]));
	return json_pack("{s:i, s:s, s:I, s:o, s:O, s:o, s:o}", "format", SPW_TUNE_FORMAT,
			 "version", spw_version(), "timestamp", (json_int_t)time(NULL), "devices",
			 paths, "drives", sweep->drives, "best", best, "runs", runs);
}

static void print_table(const struct sweep *sweep)
{
	struct tool_table *table = tool_table_new("|RW|>BLOCK|>DEPTH|BACKEND|WAIT|>BANDWIDTH|>IOPS|"
						  ">99% LATENCY|>CPU s/GiB");

	for (unsigned i = 0; i < sweep->runs_count; i++) {
		const struct run *run = &sweep->runs[i];

		if (!run->measured)
			continue;
		tool_table_row(table, run == best_of(sweep, run->direction) ? "*" : "",
			       direction_name(run->direction), SPW_SIZE_TEXT(run->block_bytes),
			       TOOL_SHORT("%u", run->depth), bench_backend_name(run->backend),
			       run->poll ? "poll" : "interrupt",
			       TOOL_SHORT("%s/s", SPW_SIZE_TEXT((uint64_t)run->bandwidth)),
			       TOOL_SHORT("%.0f", run->iops),
			       TOOL_SHORT("%.0f us", (double)run->latency_p99_ns / 1000),
			       TOOL_SHORT("%.4f", run->cpu_seconds_per_gib));
	}
	tool_table_end(table, stdout);
	(void)printf("\n* best: least CPU time within 3 %% of the highest bandwidth. Depth is per "
		     "drive.\n");
}

static int report(const struct tool_command *command, const struct sweep *sweep)
{
	json_t *document = sweep_json(sweep);
	int code = TOOL_DONE, result;

	if (!document)
		return tool_fail(command, spw_error(-ENOMEM, "out of memory"), json);
	if (!json)
		print_table(sweep);
	if (sweep->interrupted) {
		(void)fprintf(stderr, "spillway tune: interrupted: no settings were written\n");
		code = TOOL_INTERRUPTED;
	} else {
		result = tune_file_save(sweep->path, document);
		if (result != 0)
			code = tool_fail(command, result, false);
		else if (!json)
			(void)printf(
				"Settings written to %s; 'spillway bench --tuned' uses them, and "
				"so does every program over these drives with SPILLWAY_TUNE=%s.\n",
				sweep->path, sweep->path);
	}
	if (json && tool_print_json(json_incref(document)) != TOOL_DONE && code == TOOL_DONE)
		code = TOOL_FAILED;
	json_decref(document);
	return code;
}

static int tune(const struct tool_command *command)
{
	struct sweep sweep = {0};
	struct bench_job job;
	int code, result;

	result = make_job(&job, &sweep, &(struct run){.block_bytes = 4096, .depth = 1});
	if (result == 0)
		result = spw_drives_distinct(devices.paths, devices.count);
	if (result != 0)
		return tool_usage_error(command, "%s", spw_last_error());
	sweep.path = output ? output : tune_file_default(sweep.usual, sizeof(sweep.usual));
	result = sweep.path ? tune_file_check(sweep.path) : -ENOENT;
	if (result == 0)
		result = look_at_drives(&sweep);
	if (result == 0) {
		plan_sweep(&sweep);
		result = run_sweep(&sweep);
	}
	code = result == 0 ? report(command, &sweep) : tool_fail(command, result, json);
	json_decref(sweep.drives);
	return code;
}

const struct tool_command command_tune = {
	.name = "tune",
	.summary = "find the best block size, depth and backend for drives",
	.synopsis = "DEVICE... [--write] [--runtime TIME] [--output FILE] [--json]",
	.description = "Measures sequential transfers of all drives together, in every\n"
		       "combination of block size, depth per drive, backend and (if all drives\n"
		       "support it) polling; prints a table with the best marked, and writes\n"
		       "the settings to a file. Unavailable backends are left out. Read-only\n"
		       "unless --write is given. Unwritten blocks are answered without being\n"
		       "read: if that can be detected (holes of files, also under loop devices;\n"
		       "NVMe namespace utilization), nothing is measured, or, with --write, up\n"
		       "to 8 GiB of each drive are written first.\n",
	.examples = "  spillway tune /dev/nvme1n1 /dev/nvme2n1\n"
		    "  spillway tune a.img --write --runtime 200ms --output settings.json\n"
		    "  spillway bench --filename=/dev/nvme1n1 --rw=read --tuned --runtime=10 "
		    "--time-based\n",
	.action = tune,
	.none_named = tool_no_drives,
	.options = options,
};
