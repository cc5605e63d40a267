/* SPDX-License-Identifier: MIT */
/* tools/cmd_tune.c - spillway tune: which block size, depth, polling and backend suit the drives */
#include "tools/ui/tool.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tools/bench/bench.h"
#include "tools/bench/devices.h"
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
	{"runtime", TOOL_TEXT, &runtime_text, "TIME", "of each measurement (default 500ms)"},
	{"write", TOOL_FLAG, &with_writes, NULL, "measure writes too: OVERWRITES THE DRIVES"},
	{"allow-destructive", TOOL_FLAG, &allow_destructive, NULL,
	 "write also where something is; never where it is in use"},
	{"output", TOOL_TEXT, &output, "FILE",
	 "write the settings there (default ~/.config/spillway/tune.json)"},
	{"json", TOOL_FLAG, &json, NULL, "print JSON"},
	{"verbose", TOOL_FLAG, &verbose, NULL, "say more on standard error"},
	{NULL, TOOL_FLAG, NULL, NULL, NULL},
};

static const uint64_t block_sizes[] = {256u << 10, 1u << 20, 4u << 20, 16u << 20};
static const uint32_t depths[] = {1, 4, 16, 64};
/* combinations that keep more in flight are left out */
#define MEMORY_BYTES_MAX (UINT64_C(256) << 20)

/*
 * Within so much of the best bandwidth, the setting that costs the least CPU time is the better
 * one.
 */
#define GOOD_ENOUGH 0.97

struct setting {
	unsigned direction;
	uint64_t block_bytes;
	uint32_t depth; /* per drive */
	bool poll;
	enum spw_backend backend;
};

struct result {
	struct setting setting;
	double bandwidth, iops, cpu_seconds_per_gib;
	uint64_t latency_p99_ns;
	char description[256];
};

struct sweep {
	struct setting *settings;
	unsigned settings_count;
	struct result *results;
	unsigned results_count;
	bool drives_poll; /* all of them */
	bool drives_vfio; /* one of them is driven from this process, so nothing else reaches all */
	/* all of them are NVMe namespaces, with a node for passthrough that may be opened */
	bool drives_pass;
	bool refused[SPW_BACKEND_VFIO + 1]; /* no queue over them can be had this way */
	bool interrupted;
	struct bench_devices devices;
	json_t *drives;   /* as the library tells them again */
	const char *path; /* of the settings */
	char usual[PATH_MAX];
};

static const char *backend_name(enum spw_backend backend)
{
	switch (backend) {
	case SPW_BACKEND_LIBAIO: return "libaio";
	case SPW_BACKEND_NVME: return "nvme";
	case SPW_BACKEND_VFIO: return "vfio";
	default: return "io_uring";
	}
}

/* ---- What to measure ------------------------------------------------------------------------- */

static void add_setting(struct sweep *sweep, struct setting setting)
{
	if (!sweep->refused[setting.backend] &&
	    setting.block_bytes * setting.depth * devices.count <= MEMORY_BYTES_MAX &&
	    setting.depth * devices.count <= SPW_QUEUE_DEPTH_MAX)
		sweep->settings[sweep->settings_count++] = setting;
}

static void add_waits(struct sweep *sweep, struct setting setting)
{
	add_setting(sweep, setting);
	setting.poll = true;
	if (sweep->drives_poll)
		add_setting(sweep, setting);
}

static void add_backends(struct sweep *sweep, struct setting setting)
{
	if (sweep->drives_vfio) {
		setting.backend = SPW_BACKEND_VFIO;
		add_setting(sweep, setting);
		return;
	}
	setting.backend = SPW_BACKEND_IO_URING;
	add_waits(sweep, setting);
	setting.backend = SPW_BACKEND_NVME;
	if (sweep->drives_pass)
		add_waits(sweep, setting);
	setting.backend = SPW_BACKEND_LIBAIO;
	add_setting(sweep, setting);
}

static int plan_sweep(struct sweep *sweep)
{
	size_t most = 2 * 5 * SPW_ARRAY_LEN(block_sizes) * SPW_ARRAY_LEN(depths);

	sweep->settings = calloc(most, sizeof(*sweep->settings));
	sweep->results = calloc(most, sizeof(*sweep->results));
	if (!sweep->settings || !sweep->results)
		return spw_error(-ENOMEM, "out of memory");
	/* Writing comes first: reading blocks that were never written measures nothing. */
	for (unsigned write = with_writes; write < 2; write--)
		for (size_t i = 0; i < SPW_ARRAY_LEN(block_sizes); i++)
			for (size_t j = 0; j < SPW_ARRAY_LEN(depths); j++)
				add_backends(sweep, (struct setting){
							    .direction = write ? BENCH_DIR_WRITE
									       : BENCH_DIR_READ,
							    .block_bytes = block_sizes[i],
							    .depth = depths[j],
						    });
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
	for (unsigned i = 0; i < devices.count; i++) {
		struct spw_probe_info info = {.size = sizeof(info)};
		int result = spw_probe(devices.paths[i], &info);

		if (result != 0)
			return result;
		if (info.geometry.size_bytes == 0)
			return spw_error(info.error != 0 ? info.error : -ENODEV, "%s", info.reason);
		(void)json_array_append_new(sweep->drives,
					    drive_json(devices.paths[i], &info.geometry));
		sweep->drives_poll &= info.geometry.polls;
		sweep->drives_vfio |= info.geometry.kind == SPW_DEVICE_VFIO;
		sweep->drives_pass &= info.geometry.nvme_char_path[0] != '\0' &&
				      access(info.geometry.nvme_char_path, R_OK | W_OK) == 0;
	}
	return 0;
}

static int open_drives(struct spw_device *drives[], unsigned *count)
{
	struct spw_device_opts opts;
	int result = 0;

	if (devices.count > SPW_QUEUE_DEVICES_MAX)
		return spw_error(-EINVAL, "%u drives: at most %u", devices.count,
				 SPW_QUEUE_DEVICES_MAX);
	spw_device_opts_init(&opts, sizeof(opts));
	opts.read_only = true;
	for (*count = 0; *count < devices.count && result == 0; *count += result == 0)
		result = spw_device_open(devices.paths[*count], &opts, &drives[*count]);
	return result;
}

static int try_backend(struct spw_device *drives[], unsigned count, enum spw_backend backend)
{
	struct spw_queue *queue;
	struct spw_queue_opts opts;
	int result;

	spw_queue_opts_init(&opts, sizeof(opts));
	opts.tune_path = "";
	opts.backend = backend;
	opts.depth = 1;
	result = spw_queue_open(drives, count, &opts, &queue);
	if (result == 0)
		spw_queue_close(queue);
	return result;
}

/*
 * What is refused here, as io_uring is in many containers and passthrough to many users, is said
 * and not measured.
 */
static int try_backends(struct sweep *sweep)
{
	static const enum spw_backend all[] = {SPW_BACKEND_IO_URING, SPW_BACKEND_LIBAIO,
					       SPW_BACKEND_NVME};
	struct spw_device *drives[SPW_QUEUE_DEVICES_MAX];
	unsigned count = 0, refused = 0, tried = 0;
	int result = sweep->drives_vfio ? 0 : open_drives(drives, &count);

	for (size_t i = 0; i < SPW_ARRAY_LEN(all) && result == 0 && !sweep->drives_vfio; i++) {
		if (all[i] == SPW_BACKEND_NVME && !sweep->drives_pass)
			continue;
		tried++;
		sweep->refused[all[i]] = try_backend(drives, count, all[i]) != 0;
		refused += sweep->refused[all[i]];
		if (sweep->refused[all[i]])
			(void)fprintf(stderr, "spillway tune: not measured: %s\n",
				      spw_last_error());
	}
	while (count > 0)
		spw_device_close(drives[--count]);
	if (result == 0 && tried > 0 && refused == tried)
		return spw_error(-EOPNOTSUPP, "neither io_uring nor libaio can be used here");
	return result;
}

/* ---- One measurement ------------------------------------------------------------------------- */

static int make_job(struct bench_job *job, const struct setting *setting)
{
	size_t used = 0;
	int result;

	bench_job_init(job);
	(void)snprintf(job->name, sizeof(job->name), "tune");
	for (unsigned i = 0; i < devices.count; i++) {
		/* A colon would end the name. */
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
	job->rw = setting->direction == BENCH_DIR_WRITE ? BENCH_WRITE : BENCH_READ;
	job->block_bytes_min = job->block_bytes_max = setting->block_bytes;
	job->iodepth = setting->depth * devices.count;
	job->hipri = setting->poll;
	job->fixedbufs = true;
	job->backend = setting->backend;
	job->time_based = true;
	result = bench_parse_time(runtime_text, &job->runtime_ns);
	if (result == 0 && job->runtime_ns == 0)
		result = spw_error(-EINVAL, "0 is no time to measure");
	if (result != 0)
		return spw_error(-EINVAL, "--runtime: %s", spw_last_error());
	return bench_job_check(job);
}

static void keep_result(struct sweep *sweep, const struct setting *setting,
			const struct bench_run *run)
{
	const struct bench_stats *stats = &run->workers[0].stats;
	const struct bench_direction_stats *direction = &stats->direction[setting->direction];
	struct result *result = &sweep->results[sweep->results_count++];
	double seconds = (double)direction->runtime_ns / 1e9;
	double cpu = (double)(run->process_user_ns + run->process_system_ns) / 1e9;

	result->setting = *setting;
	result->bandwidth = seconds > 0 ? (double)direction->bytes / seconds : 0;
	result->iops = seconds > 0 ? (double)direction->ios / seconds : 0;
	result->cpu_seconds_per_gib =
		direction->bytes > 0 ? cpu / ((double)direction->bytes / (1u << 30)) : 0;
	result->latency_p99_ns = spw_histogram_percentile(&direction->complete_ns, 99);
	memcpy(result->description, stats->description, sizeof(result->description));
}

static int measure(struct sweep *sweep, const struct setting *setting)
{
	struct bench_run run = {
		.devices = &sweep->devices,
		.allow_destructive = allow_destructive,
		.verbose = verbose,
		.quiet = true,
	};
	struct bench_job job;
	int result = make_job(&job, setting);

	if (result == 0)
		result = bench_plan_add(&run.plan, &job);
	if (result == 0)
		result = bench_run(&run);
	if (result == 0 && run.workers[0].stats.error != 0)
		result = spw_error(run.workers[0].stats.error, "%s",
				   run.workers[0].stats.error_text);
	sweep->interrupted = run.interrupted || tool_stopped();
	if (result == 0 && !sweep->interrupted)
		keep_result(sweep, setting, &run);
	bench_run_free(&run);
	return result;
}

/* ---- Which is best --------------------------------------------------------------------------- */

static const struct result *best_of(const struct sweep *sweep, unsigned direction)
{
	const struct result *fastest = NULL, *best = NULL;

	for (unsigned i = 0; i < sweep->results_count; i++)
		if (sweep->results[i].setting.direction == direction &&
		    (!fastest || sweep->results[i].bandwidth > fastest->bandwidth))
			fastest = &sweep->results[i];
	for (unsigned i = 0; fastest && i < sweep->results_count; i++) {
		const struct result *result = &sweep->results[i];

		if (result->setting.direction == direction &&
		    result->bandwidth >= GOOD_ENOUGH * fastest->bandwidth &&
		    (!best || result->cpu_seconds_per_gib < best->cpu_seconds_per_gib))
			best = result;
	}
	return best;
}

static void show_progress(const struct sweep *sweep, unsigned done, uint64_t begin_ns)
{
	const struct setting *next = &sweep->settings[done];
	const struct result *best = best_of(sweep, next->direction);
	uint64_t spent_ns = spw_clock_ns() - begin_ns;
	char block[32], rate[32];

	if (!isatty(STDERR_FILENO))
		return;
	(void)fprintf(stderr, "\rtune: %u of %u: %s, blocks of %s, depth %u, %s%s", done + 1,
		      sweep->settings_count,
		      next->direction == BENCH_DIR_WRITE ? "writes" : "reads",
		      spw_size_format(next->block_bytes, block, sizeof(block)), next->depth,
		      backend_name(next->backend), next->poll ? " polled" : "");
	if (best)
		(void)fprintf(stderr, "; best so far %s/s",
			      spw_size_format((uint64_t)best->bandwidth, rate, sizeof(rate)));
	if (done > 0)
		(void)fprintf(stderr, "; %ju s left",
			      (uintmax_t)(spent_ns / done * (sweep->settings_count - done) /
					  1000000000u));
	(void)fprintf(stderr, "\033[K");
	(void)fflush(stderr);
}

static int run_sweep(struct sweep *sweep)
{
	uint64_t begin_ns = spw_clock_ns();
	int result = 0;

	/*
	 * Opened by the first measurement and kept until the last: nobody gets a drive between two
	 * that write.
	 */
	for (unsigned i = 0; i < devices.count && result == 0; i++) {
		struct bench_device *device = bench_devices_find(&sweep->devices, devices.paths[i]);

		if (device)
			device->writes = with_writes;
		else
			result = -ENOENT;
	}
	/* The bench catches interrupts too, but not between two measurements. */
	tool_stop_catch();
	for (unsigned i = 0; i < sweep->settings_count && result == 0 && !sweep->interrupted; i++) {
		show_progress(sweep, i, begin_ns);
		result = measure(sweep, &sweep->settings[i]);
	}
	tool_stop_release();
	bench_devices_close(&sweep->devices);
	if (isatty(STDERR_FILENO))
		(void)fprintf(stderr, "\r\033[K");
	return result;
}

/* ---- Results --------------------------------------------------------------------------------- */

static json_t *result_json(const struct result *result)
{
	return json_pack("{s:s, s:I, s:I, s:s, s:s, s:f, s:f, s:f, s:I, s:o}", "rw",
			 result->setting.direction == BENCH_DIR_WRITE ? "write" : "read",
			 "block_bytes", (json_int_t)result->setting.block_bytes, "iodepth",
			 (json_int_t)result->setting.depth, "wait",
			 result->setting.poll ? "poll" : "interrupt", "backend",
			 backend_name(result->setting.backend), "bandwidth_bytes_per_second",
			 result->bandwidth, "iops", result->iops, "cpu_seconds_per_gib",
			 result->cpu_seconds_per_gib, "latency_p99_ns",
			 (json_int_t)result->latency_p99_ns, "description",
			 tool_json_text(result->description));
}

static json_t *sweep_json(const struct sweep *sweep)
{
	const struct result *read = best_of(sweep, BENCH_DIR_READ),
			    *write = best_of(sweep, BENCH_DIR_WRITE);
	json_t *paths = json_array(), *best = json_object(), *runs = json_array();

	for (unsigned i = 0; i < devices.count; i++)
		(void)json_array_append_new(paths, tool_json_text(devices.paths[i]));
	if (read)
		(void)json_object_set_new(best, "read", result_json(read));
	if (write)
		(void)json_object_set_new(best, "write", result_json(write));
	for (unsigned i = 0; i < sweep->results_count; i++)
		(void)json_array_append_new(runs, result_json(&sweep->results[i]));
	return json_pack("{s:i, s:s, s:I, s:o, s:O, s:o, s:o}", "format", SPW_TUNE_FORMAT,
			 "version", spw_version(), "timestamp", (json_int_t)time(NULL), "devices",
			 paths, "drives", sweep->drives, "best", best, "runs", runs);
}

static const struct tool_column columns[] = {
	{"", false},           {"RW", false},       {"BLOCK", true},     {"DEPTH", true},
	{"BACKEND", false},    {"WAIT", false},     {"BANDWIDTH", true}, {"IOPS", true},
	{"99% LATENCY", true}, {"CPU s/GiB", true},
};

static void print_table(const struct sweep *sweep)
{
	struct tool_table *table = tool_table_new(columns, SPW_ARRAY_LEN(columns));
	char text[32];

	for (unsigned i = 0; i < sweep->results_count; i++) {
		const struct result *result = &sweep->results[i];

		tool_table_cell(table, "%s",
				result == best_of(sweep, result->setting.direction) ? "*" : "");
		tool_table_cell(table, "%s",
				result->setting.direction == BENCH_DIR_WRITE ? "write" : "read");
		tool_table_cell(table, "%s",
				spw_size_format(result->setting.block_bytes, text, sizeof(text)));
		tool_table_cell(table, "%u", result->setting.depth);
		tool_table_cell(table, "%s", backend_name(result->setting.backend));
		tool_table_cell(table, "%s", result->setting.poll ? "poll" : "interrupt");
		tool_table_cell(table, "%s/s",
				spw_size_format((uint64_t)result->bandwidth, text, sizeof(text)));
		tool_table_cell(table, "%.0f", result->iops);
		tool_table_cell(table, "%.0f us", (double)result->latency_p99_ns / 1000);
		tool_table_cell(table, "%.4f", result->cpu_seconds_per_gib);
	}
	tool_table_print(table, stdout);
	tool_table_free(table);
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
			(void)printf("Settings written to %s; 'spillway bench --tuned' uses them, "
				     "and so does every "
				     "program over these drives with SPILLWAY_TUNE=%s.\n",
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

	result = make_job(&job, &(struct setting){.block_bytes = 4096, .depth = 1});
	if (result == 0)
		result = spw_drives_distinct(devices.paths, devices.count);
	if (result != 0)
		return tool_usage_error(command, "%s", spw_last_error());
	sweep.path = output ? output : tune_file_default(sweep.usual, sizeof(sweep.usual));
	result = sweep.path ? tune_file_check(sweep.path) : -ENOENT;
	if (result == 0)
		result = look_at_drives(&sweep);
	if (result == 0)
		result = try_backends(&sweep);
	if (result == 0)
		result = plan_sweep(&sweep);
	if (result == 0)
		result = run_sweep(&sweep);
	code = result == 0 ? report(command, &sweep) : tool_fail(command, result, json);
	json_decref(sweep.drives);
	free(sweep.settings);
	free(sweep.results);
	return code;
}

static int run(const struct tool_command *command, int argc, char **argv)
{
	return tool_run_on_drives(command, argc, argv, &devices, tune);
}

const struct tool_command command_tune = {
	.name = "tune",
	.summary = "find the block size, depth, polling and backend that suit the drives",
	.synopsis = "DEVICE... [--write] [--runtime TIME] [--output FILE] [--json]",
	.description = "Measures sequential transfers of the drives together, in every combination "
		       "of block size, "
		       "depth per drive,\n"
		       "backend and (where all drives can) polling; prints a table with the best "
		       "marked, and writes "
		       "the settings to\n"
		       "a file. A backend that is refused here is left out. Reads only, unless "
		       "--write is given. Drives that "
		       "were\n"
		       "never written answer reads without reading anything: write them once "
		       "before, or give --write.\n",
	.examples = "  spillway tune /dev/nvme1n1 /dev/nvme2n1\n"
		    "  spillway tune a.img --write --runtime 200ms --output settings.json\n"
		    "  spillway bench --filename=/dev/nvme1n1 --rw=read --tuned --runtime=10 "
		    "--time-based\n",
	.run = run,
	.options = options,
};
