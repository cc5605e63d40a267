/* SPDX-License-Identifier: MIT */
/* tools/cmd_plan.c - spillway plan: what spilling of a model or a trace costs and saves */
#include "tools/ui/tool.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/plan/explain.h"
#include "tools/plan/model_report.h"
#include "tools/plan/recorded_bandwidths.h"
#include "util/util.h"

static struct model model = {.sequence = 2048,
			     .micro_batch = 1,
			     .tensor_parallel = 1,
			     .pipeline_parallel = 1,
			     .dtype_bytes = 2};
static struct tool_choice recompute = {.names = {"none", "selective", "full"}},
			  attention = {.names = {"fused", "unfused"}};
/* Limits of plausible values, so that a fraction or a number in another unit is refused. */
static struct tool_number gpu_tflops = {312, 0.01, 1e6}, efficiency = {50, 1, 100},
			  endurance = {600, 0.01, 1e6}, speed = {1, 1e-6, 1e6};
static const char *bandwidth_text;
static struct tool_devices traces;
static uint64_t drive_write = 5000000000, drive_read = 7000000000, need;
static uint32_t drives, step_number;
static bool json, explained, no_drives, no_recompute;
static struct tool_number slack = {2, 0, 10000};
static uint64_t budget, state, wear, bus, host;
static const char *svg;

/* Bytes per second. No drive is slower, so less is a mistake. */
#define RATE_LEAST 1000000u

static const struct tool_option options[] = {
	{"layers", TOOL_COUNT, &model.layers, "N", "of the model"},
	{"hidden", TOOL_COUNT, &model.hidden, "N", "hidden size"},
	{"heads", TOOL_COUNT, &model.heads, "N", "attention heads"},
	{"sequence", TOOL_COUNT, &model.sequence, "N", "tokens (default 2048)"},
	{"micro-batch", TOOL_COUNT, &model.micro_batch, "N", "sequences in one pass (default 1)"},
	{"micro-batches", TOOL_COUNT, &model.micro_batches, "N",
	 "passes per step (default: as many as pipeline stages)"},
	{"vocabulary", TOOL_COUNT, &model.vocabulary, "N",
	 "vocabulary size (default 0: without output layer)"},
	{"tensor-parallel", TOOL_COUNT, &model.tensor_parallel, "N",
	 "GPUs that share each layer (default 1)"},
	{"pipeline-parallel", TOOL_COUNT, &model.pipeline_parallel, "N",
	 "stages (default 1); the first is planned, with 1F1B"},
	{"attention", TOOL_CHOICE, &attention, "KIND",
	 "fused, as SDPA and FlashAttention, or unfused, which saves scores (default fused)"},
	{"recompute", TOOL_CHOICE, &recompute, "MODE",
	 "none, selective (unfused attention) or full: what is recomputed in addition to spilling "
	 "(default none)"},
	{"dtype-bytes", TOOL_COUNT, &model.dtype_bytes, "N", "of an element (default 2)"},
	{"gpu-tflops", TOOL_NUMBER, &gpu_tflops, "N", "peak of one GPU (default 312)"},
	{"efficiency", TOOL_NUMBER, &efficiency, "N",
	 "percentage of the peak that is reached (default 50)"},
	{"drive-write", TOOL_SIZE, &drive_write, "RATE",
	 "of one drive, bytes per second (default 5GB)"},
	{"drive-read", TOOL_SIZE, &drive_read, "RATE", "the same for reading (default 7GB)"},
	{"drives", TOOL_COUNT, &drives, "N", "drives per GPU (default: as many as needed)"},
	{"endurance", TOOL_NUMBER, &endurance, "N",
	 "of one drive, in terabytes written (default 600)"},
	{"bandwidth", TOOL_TEXT, &bandwidth_text, "RATE",
	 "instead of a model: what a GPU writes in half of each step; with a trace: of all drives, "
	 "A,B,..."},
	{"trace", TOOL_DEVICES, &traces, "FILE",
	 "instead of a model: a step that the tensor cache recorded"},
	{"step", TOOL_COUNT, &step_number, "N", "with a trace: the step (default: the last)"},
	{"speed", TOOL_NUMBER, &speed, "X", "with a trace: compute is X times faster (default 1)"},
	{"explain", TOOL_FLAG, &explained, NULL,
	 "with a trace: one plan of what is kept, spilled and recomputed, and why, scope by scope"},
	{"budget", TOOL_SIZE, &budget, "SIZE",
	 "with --explain: the shortest step within this memory budget (default: the lowest peak)"},
	{"slack", TOOL_NUMBER, &slack, "N",
	 "with --explain: percent by which the step with the lowest peak may be longer (default "
	 "2)"},
	{"state", TOOL_SIZE, &state, "SIZE",
	 "with --explain: training state that the same drives read and write in each step"},
	{"wear", TOOL_SIZE, &wear, "SIZE", "with --explain: limit of bytes written per day"},
	{"bus", TOOL_SIZE, &bus, "RATE",
	 "with --explain: for GPU tensors: bandwidth of copies to the host and back"},
	{"host", TOOL_SIZE, &host, "SIZE",
	 "with --bus: host memory in which copies of GPU tensors may stay, so that they are not "
	 "written"},
	{"no-drives", TOOL_FLAG, &no_drives, NULL,
	 "with --explain: nothing is spilled, only kept or recomputed"},
	{"no-recompute", TOOL_FLAG, &no_recompute, NULL,
	 "with --explain: nothing is recomputed, only kept or spilled"},
	{"svg", TOOL_TEXT, &svg, "FILE", "with --explain: draw the planned step"},
	{"json", TOOL_FLAG, &json, NULL, "print JSON"},
	{NULL, TOOL_FLAG, NULL, NULL, NULL},
};

static int parse_values(const struct tool_command *command, struct plan_report *report)
{
	if (drive_write == 0 || drive_read == 0 || drive_write >= 1ull << 50 ||
	    drive_read >= 1ull << 50)
		return tool_usage_error(
			command,
			"a drive writes and reads more than 0 and less than 1 PiB per second");
	if (tool_too_small(command, "drive-write", drive_write, " per second", RATE_LEAST) !=
		    TOOL_GO_ON ||
	    tool_too_small(command, "drive-read", drive_read, " per second", RATE_LEAST) !=
		    TOOL_GO_ON)
		return TOOL_USAGE;
	if (drives > 1024)
		return tool_usage_error(command, "--drives=%u: at most 1024 for one GPU", drives);
	model.recompute = (enum model_recompute)recompute.value;
	model.unfused = attention.value == 1;
	if (!model.unfused && model.recompute == MODEL_RECOMPUTE_SELECTIVE)
		return tool_usage_error(command,
					"--recompute selective is what fused attention does "
					"anyway: it goes with --attention unfused");
	model.gpu_flops = gpu_tflops.value * 1e12 * efficiency.value / 100;
	if (model.micro_batches == 0)
		model.micro_batches = model.pipeline_parallel;
	report->has_model = need == 0;
	report->model = model;
	report->drive_write = (double)drive_write;
	report->drive_read = (double)drive_read;
	report->drive_endurance_bytes = endurance.value * 1e12;
	report->gpu_tflops = gpu_tflops.value;
	report->efficiency_percent = efficiency.value;
	return 0;
}

/* ---- The curve ---- */

static struct model_drives all_drives(const struct plan_report *report)
{
	return (struct model_drives){.write = report->drive_write * report->drives,
				     .read = report->drive_read * report->drives,
				     .endurance_bytes =
					     report->drive_endurance_bytes * report->drives};
}

static int plan_point(const struct plan_report *report, enum curve_line line,
		      struct curve_point *point)
{
	struct model variant = report->model;
	struct model_drives together = all_drives(report);
	struct spw_plan_result result;
	struct model_step step;
	int rc;

	variant.micro_batch = point->micro_batch;
	if (line == CURVE_KEEP)
		variant.recompute = MODEL_RECOMPUTE_NONE;
	else if (line != CURVE_OFFLOAD)
		variant.recompute =
			line == CURVE_FULL ? MODEL_RECOMPUTE_FULL : MODEL_RECOMPUTE_SELECTIVE;
	model_step_of(&variant, &step);
	rc = model_plan(&variant, line == CURVE_OFFLOAD ? &together : NULL, &result);
	if (rc)
		return rc;
	point->peak_bytes =
		(double)result.peak_bytes + step.outside_layers_bytes + step.recompute_bytes;
	point->step_seconds = step.seconds + (double)result.stall_ns / 1e9;
	point->flops = step.model_flops / point->step_seconds;
	point->written_bytes = (double)result.bytes_written;
	return 0;
}

static int plan_curve(struct plan_report *report)
{
	for (unsigned line = 0; line < CURVE_LINES; line++)
		for (unsigned k = 0; k < CURVE_POINTS; k++) {
			uint64_t micro_batch = (uint64_t)report->model.micro_batch << k;
			int rc;

			if (micro_batch > UINT32_MAX)
				return spw_error(-EINVAL, "a micro-batch of %u is too large",
						 report->model.micro_batch);
			report->curve[line][k].micro_batch = (uint32_t)micro_batch;
			rc = plan_point(report, line, &report->curve[line][k]);
			if (rc)
				return rc;
		}
	return 0;
}

/* ---- The report ---- */

static int fill(struct plan_report *report)
{
	struct model_drives together;
	double count;
	int rc = report->has_model ? model_check(&report->model) : 0;

	if (rc)
		return rc;
	if (report->has_model) {
		model_step_of(&report->model, &report->step);
		report->bandwidth_needed = model_bandwidth_needed(&report->step);
	} else {
		report->bandwidth_needed = (double)need;
	}
	count = ceil(report->bandwidth_needed / report->drive_write);
	report->drives_needed = count < UINT32_MAX ? (uint32_t)count : UINT32_MAX;
	if (!drives && report->drives_needed > 1024)
		return spw_error(-EINVAL,
				 "it would take %u drives per GPU; plan with fewer: --drives",
				 report->drives_needed);
	report->drives = drives ? drives : report->drives_needed;
	together = all_drives(report);
	/* Drives are written only during the forward pass, half of the time. */
	report->life = model_life_of(together.endurance_bytes, report->bandwidth_needed / 2, 1);
	if (!report->has_model)
		return 0;
	rc = model_plan(&report->model, &together, &report->planned);
	if (rc)
		return rc;
	if (report->planned.bytes_written > 0)
		report->life_planned =
			model_life_of(together.endurance_bytes,
				      (double)report->planned.bytes_written, report->step.seconds);
	return plan_curve(report);
}

/* ---- A recorded step ---- */

/* Parse "1GB,2GB", the rates of all drives together. Default: 1/4 to 32 GB/s. */
static int parse_rates(const struct tool_command *command, struct plan_trace_report *report)
{
	uint64_t sizes[PLAN_TRACE_RATES_MAX];

	if (bandwidth_text) {
		report->rates_count = tool_sizes_parse(bandwidth_text, sizes, PLAN_TRACE_RATES_MAX);
	} else {
		for (uint64_t rate = 250000000; rate <= 32000000000; rate *= 2)
			sizes[report->rates_count++] = rate;
	}
	if (report->rates_count == 0)
		return tool_usage_error(command,
					"--bandwidth=%s: up to %u sizes above 0, such as 500MB,2GB",
					bandwidth_text, PLAN_TRACE_RATES_MAX);
	for (unsigned i = 0; i < report->rates_count; i++) {
		report->rates[i].write = report->rates[i].read = (double)sizes[i];
		if (tool_too_small(command, "bandwidth", sizes[i], " per second", RATE_LEAST) !=
		    TOOL_GO_ON)
			return TOOL_USAGE;
	}
	return 0;
}

/* --explain: one plan, for one bandwidth. */
static int run_explain(const struct tool_command *command)
{
	static const char *const goes_with[] = {
		"trace", "step", "speed", "bandwidth", "explain",      "budget", "slack", "state",
		"wear",  "bus",  "host",  "no-drives", "no-recompute", "svg",    "json",  NULL};
	static struct plan_explain explain;
	uint64_t rate = 0;
	int result;

	if (traces.count != 1 || tool_gave_other_than(command, goes_with))
		return tool_usage_error(command,
					"--explain plans one trace: with it go --step, --speed, "
					"--bandwidth, --budget, --slack, --state, --wear, --bus, "
					"--host, --no-drives, --no-recompute, --svg and --json");
	if (no_drives == (bandwidth_text != NULL))
		return tool_usage_error(command, "--explain plans for one --bandwidth of all "
						 "drives, or for --no-drives");
	if (bandwidth_text && (spw_size_parse(bandwidth_text, &rate) != 0 || rate == 0))
		return tool_usage_error(
			command, "--bandwidth=%s: --explain wants one size above 0, such as 2GB",
			bandwidth_text);
	if (bandwidth_text &&
	    tool_too_small(command, "bandwidth", rate, " per second", RATE_LEAST) != TOOL_GO_ON)
		return TOOL_USAGE;
	if (host > 0 && bus == 0)
		return tool_usage_error(command, "--host is memory for copies of GPU tensors: how "
						 "fast they are made is --bus RATE");
	explain.path = traces.paths[0];
	explain.number = step_number;
	explain.speed = speed.value;
	explain.bandwidth = (double)rate;
	explain.slack = slack.value / 100;
	explain.budget_bytes = budget;
	explain.state_bytes = state;
	explain.day_bytes = wear;
	explain.bus = bus;
	explain.host = host;
	explain.never_again = no_recompute;
	result = plan_explain_fill(&explain);
	if (result == 0 && svg)
		result = plan_explain_svg(&explain, svg);
	if (result != 0)
		result = tool_fail(command, result, json);
	else if (json)
		result = tool_print_json(plan_explain_json(&explain));
	else
		plan_explain_print(&explain, stdout);
	plan_explain_free(&explain);
	return result;
}

static int run_trace(const struct tool_command *command)
{
	static struct plan_trace_report report;
	static const char *const goes_with[] = {"trace",  "step",      "speed", "bandwidth",
						"drives", "endurance", "json",  NULL};
	int result;

	/* Refuse options that would be silently ignored. */
	if (traces.count != 1 || tool_gave_other_than(command, goes_with))
		return tool_usage_error(
			command, "one trace stands in place of a model: with it go "
				 "--step, --speed, --bandwidth, --drives, --endurance and --json");
	if (parse_rates(command, &report))
		return TOOL_USAGE;
	report.path = traces.paths[0];
	report.speed = speed.value;
	report.drives = drives ? drives : 1;
	report.endurance_bytes = endurance.value * 1e12 * (drives ? drives : 1);
	result = plan_trace_fill(&report, step_number);
	if (result != 0)
		result = tool_fail(command, result, json);
	else if (json)
		result = tool_print_json(plan_trace_json(&report));
	else
		plan_trace_print(&report, stdout);
	plan_trace_free(&report);
	return result;
}

/* ---- The command ---- */

static int run_model(const struct tool_command *command)
{
	static struct plan_report report;
	int result;

	if (speed.value != 1 || step_number != 0)
		return tool_usage_error(command,
					"--speed and --step are of a recorded step: --trace FILE");
	if (bandwidth_text && (spw_size_parse(bandwidth_text, &need) != 0 || need == 0))
		return tool_usage_error(
			command, "--bandwidth=%s: not a size above 0; write for example 12.1GB",
			bandwidth_text);
	if (bandwidth_text &&
	    tool_too_small(command, "bandwidth", need, " per second", RATE_LEAST) != TOOL_GO_ON)
		return TOOL_USAGE;
	if (need == 0 && (model.layers == 0 || model.hidden == 0 || model.heads == 0))
		return tool_usage_error(command, "describe the model: --layers, --hidden and "
						 "--heads; or give --bandwidth, or --trace");
	if (need != 0 && (model.layers != 0 || model.hidden != 0 || model.heads != 0))
		return tool_usage_error(command, "--bandwidth stands in place of a model, and "
						 "there is no curve without one");
	if (parse_values(command, &report) != 0)
		return TOOL_USAGE;
	result = fill(&report);
	if (result != 0)
		return tool_fail(command, result, json);
	if (json)
		return tool_print_json(plan_report_json(&report));
	plan_report_print(&report, stdout);
	return TOOL_DONE;
}

static int plan(const struct tool_command *command)
{
	if (explained)
		return run_explain(command);
	if (budget != 0 || state != 0 || wear != 0 || bus != 0 || host != 0 || svg || no_drives ||
	    no_recompute || slack.value != 2)
		return tool_usage_error(command,
					"--budget, --slack, --state, --wear, --bus, --host, --svg, "
					"--no-drives and --no-recompute go with --explain");
	return traces.count > 0 ? run_trace(command) : run_model(command);
}

const struct tool_command command_plan = {
	.name = "plan",
	.summary = "estimate cost and benefit of spilling a model's activations",
	.synopsis = "(--layers N --hidden N --heads N | --trace FILE) [OPTION...]",
	.description = "For a transformer trained on given GPUs and drives, computes the\n"
		       "activations of a layer and of a step, the bandwidth and drives per GPU\n"
		       "to spill them all, what the planner would spill without a longer step,\n"
		       "how long the drives last, and, for growing micro-batches, the peak of\n"
		       "the activations and the throughput if they are kept, recomputed or\n"
		       "spilled. For a recorded step, the same for drives of several bandwidths;\n"
		       "with --explain one plan of what to keep, spill and recompute, and the\n"
		       "alternatives for each scope. Touches no device. To see whether a model\n"
		       "trains on a machine, and what must be on drives: python3 -m spillway.plan.",
	.examples = "  spillway plan --layers 40 --hidden 5120 --heads 40 --drives 4\n"
		    "  spillway plan --layers 96 --hidden 12288 --heads 96 --tensor-parallel 8 "
		    "--pipeline-parallel 8 --micro-batches 32 \\\n"
		    "                --gpu-tflops 989 --efficiency 40 "
		    "--drive-write 10GB\n"
		    "  spillway plan --trace step.jsonl.gz --bandwidth 1GB,2GB,4GB --speed 40 "
		    "--drives 4\n"
		    "  spillway plan --trace step.jsonl.gz --explain --bandwidth 2GB --budget "
		    "400MiB --svg plan.svg\n"
		    "  spillway plan --bandwidth 12.1GB --drives 4 --endurance 600 --json\n",
	.action = plan,
	.options = options,
};
