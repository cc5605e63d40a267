/* SPDX-License-Identifier: MIT */
/*
 * tools/cmd_plan.c - spillway plan: what spilling a model's activations takes and gives, before
 * anything is bought
 */
#include "tools/ui/tool.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/plan/report.h"
#include "tools/plan/trace.h"
#include "util/util.h"

#define DEFAULT_DRIVE_WRITE 5000000000u
#define DEFAULT_DRIVE_READ  7000000000u

static const struct model default_model = {.sequence = 2048,
					   .micro_batch = 1,
					   .tensor_parallel = 1,
					   .pipeline_parallel = 1,
					   .dtype_bytes = 2};
static struct model model = {.sequence = 2048,
			     .micro_batch = 1,
			     .tensor_parallel = 1,
			     .pipeline_parallel = 1,
			     .dtype_bytes = 2};
static const char default_recompute[] = "none", default_gpu[] = "312", default_efficiency[] = "50",
		  default_speed[] = "1";
static const char *recompute_text = default_recompute, *gpu_text = default_gpu,
		  *efficiency_text = default_efficiency;
static const char *endurance_text = "600", *bandwidth_text, *speed_text = default_speed, *svg;
static struct tool_devices traces;
static uint64_t drive_write = DEFAULT_DRIVE_WRITE, drive_read = DEFAULT_DRIVE_READ, need;
static uint32_t drives, step_number;
static bool json;

static const struct tool_option options[] = {
	{"layers", TOOL_COUNT, &model.layers, "N", "of the model"},
	{"hidden", TOOL_COUNT, &model.hidden, "N", "size of a layer"},
	{"heads", TOOL_COUNT, &model.heads, "N", "attention heads"},
	{"sequence", TOOL_COUNT, &model.sequence, "N", "tokens (default 2048)"},
	{"micro-batch", TOOL_COUNT, &model.micro_batch, "N", "sequences in one pass (default 1)"},
	{"micro-batches", TOOL_COUNT, &model.micro_batches, "N",
	 "passes per step (default: as many as pipeline stages)"},
	{"vocabulary", TOOL_COUNT, &model.vocabulary, "N",
	 "tokens that are told apart (default 0: without output layer)"},
	{"tensor-parallel", TOOL_COUNT, &model.tensor_parallel, "N",
	 "GPUs that share each layer (default 1)"},
	{"pipeline-parallel", TOOL_COUNT, &model.pipeline_parallel, "N",
	 "stages (default 1); planned is the first, 1F1B"},
	{"recompute", TOOL_TEXT, &recompute_text, "MODE",
	 "none, selective (also for fused attention) or full: what is recomputed besides spilling "
	 "(default none)"},
	{"dtype-bytes", TOOL_COUNT, &model.dtype_bytes, "N", "of an element (default 2)"},
	{"gpu-tflops", TOOL_TEXT, &gpu_text, "N", "of one GPU at best (default 312)"},
	{"efficiency", TOOL_TEXT, &efficiency_text, "N",
	 "percent of it that is reached (default 50)"},
	{"drive-write", TOOL_SIZE, &drive_write, "RATE",
	 "of one drive, bytes per second (default 5GB)"},
	{"drive-read", TOOL_SIZE, &drive_read, "RATE", "the same for reading (default 7GB)"},
	{"drives", TOOL_COUNT, &drives, "N", "per GPU (default: as many as it takes)"},
	{"endurance", TOOL_TEXT, &endurance_text, "N",
	 "of one drive, in terabytes written (default 600)"},
	{"bandwidth", TOOL_TEXT, &bandwidth_text, "RATE",
	 "instead of a model: what a GPU writes in half of each step; with a trace: of all drives, "
	 "A,B,..."},
	{"trace", TOOL_DEVICES, &traces, "FILE",
	 "instead of a model: a step that the tensor cache recorded"},
	{"step", TOOL_COUNT, &step_number, "N", "with a trace: which step (default: the last)"},
	{"speed", TOOL_TEXT, &speed_text, "X",
	 "with a trace: compute is X times faster (default 1)"},
	{"svg", TOOL_TEXT, &svg, "FILE", "write the curve there as a chart"},
	{"json", TOOL_FLAG, &json, NULL, "print JSON"},
	{NULL, TOOL_FLAG, NULL, NULL, NULL},
};

/* A number above 0, up to @most. */
static int parse_number(const struct tool_command *command, const char *name, const char *text,
			double most, double *value)
{
	char *end;

	*value = strtod(text, &end);
	if (end != text && *end == '\0' && isfinite(*value) && *value > 0 && *value <= most)
		return 0;
	(void)tool_usage_error(command, "--%s=%s: not a number above 0 and up to %g", name, text,
			       most);
	return -EINVAL;
}

static int parse_recompute(const struct tool_command *command)
{
	static const char *const names[] = {"none", "selective", "full"};

	for (unsigned i = 0; i < SPW_ARRAY_LEN(names); i++)
		if (strcmp(recompute_text, names[i]) == 0) {
			model.recompute = (enum model_recompute)i;
			return 0;
		}
	(void)tool_usage_error(command, "--recompute=%s: none, selective or full", recompute_text);
	return -EINVAL;
}

static int parse_values(const struct tool_command *command, struct plan_report *report)
{
	double tflops, percent, terabytes;

	if (parse_recompute(command) ||
	    parse_number(command, "gpu-tflops", gpu_text, 1e9, &tflops) ||
	    parse_number(command, "efficiency", efficiency_text, 100, &percent) ||
	    parse_number(command, "endurance", endurance_text, 1e9, &terabytes))
		return -EINVAL;
	if (drive_write == 0 || drive_read == 0 || drive_write >= 1ull << 50 ||
	    drive_read >= 1ull << 50) {
		(void)tool_usage_error(
			command,
			"a drive writes and reads more than 0 and less than 1 PiB per second");
		return -EINVAL;
	}
	if (drives > 1024) {
		(void)tool_usage_error(command, "--drives=%u: at most 1024 for one GPU", drives);
		return -EINVAL;
	}
	model.gpu_flops = tflops * 1e12 * percent / 100;
	if (model.micro_batches == 0)
		model.micro_batches = model.pipeline_parallel;
	report->has_model = need == 0;
	report->model = model;
	report->drive_write = (double)drive_write;
	report->drive_read = (double)drive_read;
	report->drive_endurance_bytes = terabytes * 1e12;
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
	report->points = CURVE_POINTS;
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

/* ---- All of it ---- */

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
	/* Half of the time nothing is written. */
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

/* "1GB,2GB": of all drives, writing and reading. Without it, from 1/4 to 32 GB/s. */
static int parse_rates(const struct tool_command *command, struct plan_trace_report *report)
{
	char text[256], *rest = text;

	if (!bandwidth_text) {
		for (uint64_t rate = 250000000; rate <= 32000000000; rate *= 2)
			report->rates[report->rates_count++] = (struct plan_trace_rate){
				.write = (double)rate, .read = (double)rate};
		return 0;
	}
	if ((size_t)snprintf(text, sizeof(text), "%s", bandwidth_text) < sizeof(text))
		while (rest && report->rates_count < PLAN_TRACE_RATES_MAX) {
			uint64_t rate;

			if (spw_size_parse(strsep(&rest, ","), &rate) || rate == 0 ||
			    rate >= 1ull << 50)
				break;
			report->rates[report->rates_count++] = (struct plan_trace_rate){
				.write = (double)rate, .read = (double)rate};
			if (!rest)
				return 0;
		}
	(void)tool_usage_error(command, "--bandwidth=%s: up to %u sizes above 0, such as 500MB,2GB",
			       bandwidth_text, PLAN_TRACE_RATES_MAX);
	return -EINVAL;
}

/* What would be left unread without a word. */
static bool describes_a_model(void)
{
	const struct model *is = &model, *was = &default_model;

	return is->layers != was->layers || is->hidden != was->hidden || is->heads != was->heads ||
	       is->sequence != was->sequence || is->micro_batch != was->micro_batch ||
	       is->micro_batches != was->micro_batches || is->vocabulary != was->vocabulary ||
	       is->tensor_parallel != was->tensor_parallel ||
	       is->pipeline_parallel != was->pipeline_parallel ||
	       is->dtype_bytes != was->dtype_bytes || recompute_text != default_recompute ||
	       gpu_text != default_gpu || efficiency_text != default_efficiency ||
	       drive_write != DEFAULT_DRIVE_WRITE || drive_read != DEFAULT_DRIVE_READ || svg;
}

static int run_trace(const struct tool_command *command)
{
	static struct plan_trace_report report;
	double terabytes, speed;
	int result;

	if (traces.count != 1 || describes_a_model())
		return tool_usage_error(command,
					"one trace stands in place of a model, and draws no chart: "
					"with it go --step, "
					"--speed, --bandwidth, --drives, --endurance and --json");
	if (parse_number(command, "endurance", endurance_text, 1e9, &terabytes) ||
	    parse_number(command, "speed", speed_text, 1e6, &speed) ||
	    parse_rates(command, &report))
		return TOOL_USAGE;
	report.path = traces.paths[0];
	report.endurance_bytes = terabytes * 1e12 * (drives ? drives : 1);
	result = plan_trace_fill(&report, step_number, speed);
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

	if (speed_text != default_speed || step_number != 0)
		return tool_usage_error(command,
					"--speed and --step are of a recorded step: --trace FILE");
	if (bandwidth_text && (spw_size_parse(bandwidth_text, &need) != 0 || need == 0))
		return tool_usage_error(
			command, "--bandwidth=%s: not a size above 0; write for example 12.1GB",
			bandwidth_text);
	if (need == 0 && (model.layers == 0 || model.hidden == 0 || model.heads == 0))
		return tool_usage_error(command, "describe the model: --layers, --hidden and "
						 "--heads; or give --bandwidth, or "
						 "--trace");
	if (need != 0 && (model.layers != 0 || model.hidden != 0 || model.heads != 0 || svg))
		return tool_usage_error(command, "--bandwidth stands in place of a model, and "
						 "there is no curve without one");
	if (parse_values(command, &report) != 0)
		return TOOL_USAGE;
	result = fill(&report);
	if (result == 0 && svg)
		result = plan_report_svg(&report, svg);
	if (result != 0)
		return tool_fail(command, result, json);
	if (json)
		return tool_print_json(plan_report_json(&report));
	plan_report_print(&report, stdout);
	return TOOL_DONE;
}

static int run_plan(const struct tool_command *command, int argc, char **argv)
{
	int result = tool_options_parse(command, argc, argv);

	if (result != 0)
		result = tool_usage_exit(result);
	else
		result = traces.count > 0 ? run_trace(command) : run_model(command);
	tool_devices_free(&traces);
	return result;
}

const struct tool_command command_plan = {
	.name = "plan",
	.summary = "what spilling a model's activations takes from drives, and gives",
	.synopsis = "(--layers N --hidden N --heads N | --trace FILE) [OPTION...]",
	.description = "Computes, for a transformer that is trained on given GPUs and drives: the "
		       "activations of a "
		       "layer and of a\n"
		       "step, the bandwidth and the drives that each GPU needs to spill them all, "
		       "what the planner "
		       "would spill\n"
		       "without making the step longer, how long the drives last, and, for growing "
		       "micro-batches, the "
		       "peak of\n"
		       "the activations and the throughput if they are kept, recomputed or "
		       "spilled. For a recorded step, "
		       "the same of\n"
		       "that step for drives of several bandwidths. Touches no device.",
	.examples = "  spillway plan --layers 40 --hidden 5120 --heads 40 --drives 4\n"
		    "  spillway plan --layers 96 --hidden 12288 --heads 96 --tensor-parallel 8 "
		    "--pipeline-parallel 8 "
		    "--micro-batches 32 \\\n"
		    "                --recompute selective --gpu-tflops 989 --efficiency 40 "
		    "--drive-write 10GB --svg "
		    "curve.svg\n"
		    "  spillway plan --trace step.jsonl.gz --bandwidth 1GB,2GB,4GB --speed 40 "
		    "--drives 4\n"
		    "  spillway plan --bandwidth 12.1GB --drives 4 --endurance 600 --json\n",
	.run = run_plan,
	.options = options,
};
