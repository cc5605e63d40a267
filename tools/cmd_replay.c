/* SPDX-License-Identifier: MIT */
/* tools/cmd_replay.c - spillway replay: replay a recorded step on real or simulated drives */
#include "tools/ui/tool.h"

#include <errno.h>
#include <inttypes.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/replay/scopes.h"
#include "tools/replay/drive.h"
#include "tools/replay/positional.h"
#include "tools/replay/report.h"
#include "tools/ui/stop.h"
#include "util/util.h"

#define SIM_CHUNK_BYTES  (1u << 20)
#define SIM_LATENCY_NS   100000u
#define CHUNKS_PER_DRIVE 2u
/* bytes per second; slower drives could overflow times in nanoseconds */
#define RATE_MIN 1000u
#define HURRY    1.2

static struct tool_devices traces, devices;
static const char *bandwidth_text, *dip_text, *hurry_text, *chrome, *svg;
static struct tool_number speed = {1, 1e-6, 1e6}, scale = {1, 1e-6, 1e6};
static struct tool_choice mode = {.names = {"fastest", "budget", "positional", "spill", "keep"}};
static const enum spw_cache_mode modes[] = {SPW_CACHE_FASTEST, SPW_CACHE_BUDGET, SPW_CACHE_SPILL,
					    SPW_CACHE_SPILL, SPW_CACHE_OBSERVE};
#define MODE_POSITIONAL 2u /* mode spill, with the tensors pinned that the positional rule keeps */
#define POSITIONAL_STEP 2u /* index of the replay that first follows the rule */
static uint64_t budget, wear;
/* Smaller tensors are always kept, so a smaller budget is a mistake. */
#define SIZE_LEAST 65536u
static uint32_t steps = 6, step_number;
static bool json, verbose, recompute;

static const struct tool_option options[] = {
	{"trace", TOOL_DEVICES, &traces, "FILE", "the trace; --trace may be left out"},
	{"devices", TOOL_DEVICES, &devices, "A,B,...",
	 "all drives of a store, which they remain; \\, is a comma in a name"},
	{"bandwidth", TOOL_TEXT, &bandwidth_text, "W[,R[,M]]",
	 "instead: of a simulated drive, bytes per second, for writes, reads (default: W), both "
	 "together (default: the lower)"},
	{"dip", TOOL_TEXT, &dip_text, "N-M",
	 "half of that bandwidth in replays N to M (of --steps)"},
	{"hurry", TOOL_TEXT, &hurry_text, "N-M",
	 "compute is a fifth faster until the first backward pass, in replays N to M"},
	{"mode", TOOL_CHOICE, &mode, "MODE",
	 "fastest, budget, positional, spill or keep (default fastest)"},
	{"budget", TOOL_SIZE, &budget, "SIZE", "memory for activations in budget mode"},
	{"recompute", TOOL_FLAG, &recompute, NULL,
	 "in modes fastest and budget: innermost scopes may be recomputed"},
	{"wear", TOOL_SIZE, &wear, "SIZE",
	 "limit of bytes written per day; beyond it tensors are kept (default: no limit)"},
	{"steps", TOOL_COUNT, &steps, "N", "replays of the step (default 6)"},
	{"step", TOOL_COUNT, &step_number, "N", "which step of the trace (default: the last)"},
	{"speed", TOOL_NUMBER, &speed, "X", "compute is X times faster (default 1)"},
	{"scale", TOOL_NUMBER, &scale, "X",
	 "tensors, and a simulated drive's bandwidth, are X times as large (default 1); the report "
	 "is in sizes of the trace"},
	{"chrome", TOOL_TEXT, &chrome, "FILE",
	 "write the last replay there as a Chrome trace, for Perfetto"},
	{"svg", TOOL_TEXT, &svg, "FILE", "the same as a picture: compute, writes, reads, memory"},
	{"json", TOOL_FLAG, &json, NULL, "print JSON"},
	{"verbose", TOOL_FLAG, &verbose, NULL, "say more on standard error"},
	{NULL, TOOL_FLAG, NULL, NULL, NULL},
};

/* A range of replays, counted from 1; empty if first is 0. */
struct stretch {
	unsigned long first, last;
};

static struct spw_plan_drives drives; /* simulated drives, scaled */
static struct stretch dip, hurry;
static struct spw_plan_step planned; /* for mode positional: the step in the planner's form */
static char drives_text[512];

/* ---- Options ---- */

static int parse_rates(const struct tool_command *command)
{
	uint64_t rates[3] = {0};
	unsigned count = tool_sizes_parse(bandwidth_text, rates, SPW_ARRAY_LEN(rates));

	if (count == 0)
		return tool_usage_error(
			command,
			"--bandwidth=%s: one to three sizes above 0, such as 2GB or 2GB,3GB,3GB",
			bandwidth_text);
	for (unsigned i = 0; i < count; i++)
		if (replay_scaled(rates[i], scale.value) < RATE_MIN)
			return tool_usage_error(
				command,
				"--bandwidth=%s: at least %u bytes per second, also "
				"when made smaller by --scale; sizes need their unit, such as 2GB",
				bandwidth_text, RATE_MIN);
	drives = (struct spw_plan_drives){
		.write_bytes_per_second = replay_scaled(rates[0], scale.value),
		.read_bytes_per_second = replay_scaled(rates[count > 1 ? 1 : 0], scale.value),
		.mixed_bytes_per_second = replay_scaled(rates[2], scale.value),
		.latency_ns = SIM_LATENCY_NS,
		.chunk_bytes = replay_scaled(SIM_CHUNK_BYTES, scale.value),
	};
	(void)snprintf(drives_text, sizeof(drives_text), "simulated: %s", bandwidth_text);
	return 0;
}

static int parse_stretch(const struct tool_command *command, const char *name, const char *text,
			 struct stretch *stretch)
{
	char *end;

	if (!text)
		return 0;
	stretch->first = strtoul(text, &end, 10);
	stretch->last = *end == '-' ? strtoul(end + 1, &end, 10) : 0;
	if (*end != '\0' || stretch->first == 0 || stretch->first > stretch->last ||
	    stretch->last > REPLAY_STEPS_MAX || !bandwidth_text)
		return tool_usage_error(command,
					"--%s=%s: two replays such as 6-9, of a simulated drive",
					name, text);
	if (stretch->first > steps)
		return tool_usage_error(
			command, "--%s=%s: there are %u replays; --steps=%lu and more has them",
			name, text, steps, stretch->first);
	return 0;
}

static int parse(const struct tool_command *command)
{
	bool simulated = bandwidth_text != NULL, kept = modes[mode.value] == SPW_CACHE_OBSERVE;

	if (traces.count != 1)
		return tool_usage_error(command, "one trace is replayed: TRACE");
	if ((devices.count > 0) + simulated + kept != 1)
		return tool_usage_error(
			command,
			"on what: --devices=A,B,... or --bandwidth=RATE; --mode=keep needs none");
	if (steps == 0 || steps > REPLAY_STEPS_MAX)
		return tool_usage_error(command, "--steps=%u: 1 to %u", steps, REPLAY_STEPS_MAX);
	if ((modes[mode.value] == SPW_CACHE_BUDGET) != (budget > 0))
		return tool_usage_error(command, "--mode=budget and --budget=SIZE go together");
	if (budget > 0 && tool_too_small(command, "budget", budget, "", SIZE_LEAST) != TOOL_GO_ON)
		return TOOL_USAGE;
	if (wear > 0 && tool_too_small(command, "wear", wear, " per day", SIZE_LEAST) != TOOL_GO_ON)
		return TOOL_USAGE;
	if (recompute && modes[mode.value] != SPW_CACHE_FASTEST &&
	    modes[mode.value] != SPW_CACHE_BUDGET)
		return tool_usage_error(command,
					"--recompute is for --mode=fastest and --mode=budget");
	if (wear > 0 && (kept || mode.value == MODE_POSITIONAL))
		return tool_usage_error(command, "--wear is for modes that limit what is written: "
						 "not for positional and keep");
	if (simulated && parse_rates(command) != 0)
		return TOOL_USAGE;
	if (parse_stretch(command, "dip", dip_text, &dip) != 0)
		return TOOL_USAGE;
	return parse_stretch(command, "hurry", hurry_text, &hurry);
}

/* ---- The replay ---- */

static bool is_within(uint32_t number, const struct stretch *stretch)
{
	return number + 1 >= stretch->first && number + 1 <= stretch->last;
}

/* Apply the positional rule once, after the first step, which warms up, as its authors do. */
static void cut_by_position(struct replay_run *run)
{
	struct spw_cache_stats stats;

	spw_cache_stats(run->cache, &stats, sizeof(stats));
	run->pinned_from_scope = replay_positional_cut(&planned, stats.write_bytes_per_second);
}

static void before_step(struct replay_run *run, uint32_t number)
{
	struct spw_plan_drives now = drives;

	if (number == POSITIONAL_STEP && planned.count > 0)
		cut_by_position(run);
	if (is_within(number, &hurry))
		run->hurry = HURRY;
	if (is_within(number, &dip)) {
		now.write_bytes_per_second /= 2;
		now.read_bytes_per_second /= 2;
		now.mixed_bytes_per_second /= 2;
	}
	if (dip.first > 0)
		replay_drive_change(&now);
}

/* Whether to show progress; a simulation is too fast for it. */
static bool shows_progress(void)
{
	return !bandwidth_text && (verbose || isatty(STDERR_FILENO));
}

static void after_step(uint32_t number, const struct replay_measure *measure)
{
	if (!shows_progress())
		return;
	(void)fprintf(stderr, "%sspillway replay: %u of %u: %.4f s, of which %.4f s waiting%s",
		      verbose ? "" : "\r", number + 1, steps, (double)measure->step_ns / 1e9,
		      (double)measure->stall_ns / 1e9, verbose ? "\n" : "");
}

static int open_cache(const struct replay_step *step, struct spw_store *store,
		      struct spw_cache **cache)
{
	struct spw_cache_opts opts;

	spw_cache_opts_init(&opts, sizeof(opts));
	opts.mode = modes[mode.value];
	opts.spill_last_scope = mode.value == MODE_POSITIONAL;
	opts.min_bytes = replay_scaled(opts.min_bytes, scale.value);
	opts.staging_bytes = replay_scaled(opts.staging_bytes, scale.value);
	opts.memory_bytes = replay_scaled(budget, scale.value);
	opts.wear_bytes_per_day = replay_scaled(wear, scale.value);
	if (opts.tensors_max < 2 * step->tensors_count)
		opts.tensors_max = 2 * step->tensors_count;
	opts.log = tool_log(verbose);
	return replay_drive_open_cache(store, &opts, cache);
}

/* Open the store for the cache: simulated, real, or none. */
static int open_store(struct spw_store **store, uint64_t *chunk_bytes)
{
	struct spw_store_opts opts;
	struct spw_tune tune;
	int rc;

	*store = NULL;
	*chunk_bytes = drives.chunk_bytes;
	if (bandwidth_text) {
		*store = replay_drive_begin(&drives, *chunk_bytes);
		return *store ? 0 : spw_error(-ENOMEM, "no memory for the simulated store");
	}
	(void)snprintf(drives_text, sizeof(drives_text), "none");
	if (devices.count == 0)
		return 0;
	spw_store_opts_init(&opts, sizeof(opts));
	opts.log = tool_log(verbose);
	opts.tune = &tune;
	rc = spw_tune_read(getenv("SPILLWAY_TUNE"), devices.paths, devices.count, &opts.log, &tune,
			   sizeof(tune));
	if (rc)
		return rc;
	rc = spw_store_open(devices.paths, devices.count, &opts, store);
	if (rc)
		return rc;
	(void)snprintf(drives_text, sizeof(drives_text), "%u: %s", devices.count,
		       spw_store_description(*store));
	*chunk_bytes = spw_store_chunk_bytes(*store) * devices.count;
	return 0;
}

static void close_store(struct spw_store *store)
{
	if (bandwidth_text)
		replay_drive_end();
	else
		spw_store_close(store);
}

static void say_interrupted(const struct tool_command *command, const struct replay_run *run)
{
	if (run->measured == 0)
		(void)fprintf(stderr,
			      "spillway %s: interrupted before the first replay had ended\n",
			      command->name);
	if (chrome || svg)
		(void)fprintf(stderr,
			      "spillway %s: interrupted: no timeline was written, as it is of the "
			      "last replay\n",
			      command->name);
}

static int report(const struct tool_command *command, const struct replay_report *report)
{
	const struct replay_run *run = report->run;
	int rc = 0;

	if (run->interrupted)
		say_interrupted(command, run);
	else if (chrome)
		rc = replay_chrome_write(report, chrome);
	if (rc == 0 && svg && !run->interrupted)
		rc = replay_svg_write(report, svg);
	if (rc)
		return tool_fail(command, rc, json);
	if (json)
		rc = tool_print_json(run->measured > 0 ? replay_report_json(report)
						       : json_pack("{s:b, s:i}", "interrupted", 1,
								   "replays", 0));
	else if (run->measured > 0)
		replay_report_print(report, stdout);
	return rc == TOOL_DONE && run->interrupted ? TOOL_INTERRUPTED : rc;
}

static int replay(const struct tool_command *command, const struct spw_trace *trace,
		  const struct replay_step *step, const struct replay_scopes *again)
{
	struct replay_run run = {.step = step,
				 .recomputable = again,
				 .steps = steps,
				 .pinned_from_scope = UINT32_MAX,
				 .before_step = before_step,
				 .after_step = after_step};
	struct spw_store *store;
	uint64_t chunk_bytes;
	int rc, code;

	tool_stop_catch();
	rc = open_store(&store, &chunk_bytes);
	if (rc == 0) {
		rc = open_cache(step, store, &run.cache);
		if (rc == 0)
			rc = replay_run(&run);
		if (run.measured > 0 && shows_progress() && !verbose)
			(void)fputc('\n', stderr);
		close_store(store);
	}
	tool_stop_release();
	code = rc ? tool_fail(command, rc, json)
		  : report(command, &(struct replay_report){
					    .trace = trace,
					    .trace_path = traces.paths[0],
					    .mode = mode.names[mode.value],
					    .step = step,
					    .run = &run,
					    .scale = scale.value,
					    .speed = speed.value,
					    .drives_text = drives_text,
					    .lower_bound_bytes = step->scope_bytes +
								 CHUNKS_PER_DRIVE * chunk_bytes,
				    });
	replay_run_free(&run);
	replay_drive_forget();
	return code;
}

static int run_parsed(const struct tool_command *command)
{
	struct spw_cache_opts defaults;
	struct replay_step_opts opts;
	struct spw_plan_tensor *tensors = NULL;
	struct replay_scopes again = {0};
	struct replay_step step;
	struct spw_trace *trace;
	int rc, code;

	if (parse(command) != 0)
		return TOOL_USAGE;
	spw_cache_opts_init(&defaults, sizeof(defaults));
	opts = (struct replay_step_opts){.number = step_number,
					 .speed = speed.value,
					 .scale = scale.value,
					 .min_bytes = defaults.min_bytes};
	/* Let malloc reuse freed memory: page faults would cost more than what is measured. */
	(void)mallopt(M_MMAP_MAX, 0);
	(void)mallopt(M_TRIM_THRESHOLD, INT32_MAX);
	rc = spw_trace_read(traces.paths[0], &trace);
	if (rc)
		return tool_fail(command, rc, json);
	rc = replay_step_make(trace, &opts, &step);
	if (rc == 0 && mode.value == MODE_POSITIONAL) {
		tensors = calloc(step.tensors_count, sizeof(*tensors));
		rc = tensors ? 0 : spw_error(-ENOMEM, "no memory for the step's tensors");
	}
	if (tensors)
		replay_step_plan(&step, replay_scaled(opts.min_bytes, opts.scale), tensors,
				 &planned);
	if (rc == 0 && recompute)
		rc = replay_scopes_make(&step, replay_scaled(opts.min_bytes, opts.scale),
					REPLAY_SCOPES_INNER, &again);
	code = rc ? tool_fail(command, rc, json)
		  : replay(command, trace, &step, recompute ? &again : NULL);
	free(tensors);
	replay_scopes_free(&again);
	replay_step_free(&step);
	spw_trace_free(trace);
	return code;
}

const struct tool_command command_replay = {
	.name = "replay",
	.summary = "replay a recorded training step on drives",
	.synopsis = "TRACE (--devices A,B,... | --bandwidth RATE) [OPTION...]",
	.description = "Repeats a recorded step through the tensor cache: compute is sleeping,\n"
		       "tensors are real memory, and every byte read back is compared. Shows the\n"
		       "step time against the same step without I/O, stalls, the peak of the\n"
		       "activations, and bytes written and read. With --bandwidth the drive and\n"
		       "the time are simulated: the result is immediate and the same on any\n"
		       "machine. Otherwise the drives must hold a store (spillway format) that\n"
		       "no process has open. An interrupt prints the report so far and exits\n"
		       "with status 130.\n",
	.examples =
		"  spillway replay step.jsonl.gz --devices /dev/nvme1n1,/dev/nvme2n1\n"
		"  spillway replay step.jsonl.gz --bandwidth 2GB --mode positional --json\n"
		"  spillway replay step.jsonl.gz --bandwidth 2GB --mode budget --budget 400MiB "
		"--svg step.svg --chrome step.json\n"
		"  spillway replay step.jsonl.gz --bandwidth 500MB --mode budget --budget 400MiB "
		"--recompute\n"
		"  spillway replay step.jsonl.gz --bandwidth 1GB,1.5GB --dip 8-14 --steps 20\n",
	.action = run_parsed,
	.options = options,
};
