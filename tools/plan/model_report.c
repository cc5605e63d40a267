/* SPDX-License-Identifier: MIT */
/* tools/plan/model_report.c - print the report of spillway plan as text and JSON */
#include "tools/plan/model_report.h"

#include <string.h>

#include "tools/ui/tool.h"
#include "util/util.h"

static const char *const curve_names[CURVE_LINES] = {"keep", "recompute selectively",
						     "recompute all", "offload"};

#define RATE_TEXT(rate)                                       \
	((rate) < 1e8 ? TOOL_SHORT("%.1f MB/s", (rate) / 1e6) \
		      : TOOL_SHORT("%.2f GB/s", (rate) / 1e9))

/* ---- Text ---- */

static void print_model(const struct plan_report *report, FILE *out)
{
	const struct model_step *step = &report->step;

	(void)fprintf(out, "Each GPU (%u layers of %u, tensor-parallel %u)\n", step->layers,
		      report->model.layers, report->model.tensor_parallel);
	(void)fprintf(out, "  activations per layer   %s for one micro-batch of %u\n",
		      SPW_SIZE_TEXT((uint64_t)step->layer_bytes), report->model.micro_batch);
	(void)fprintf(out, "  activations per step    %s in %u micro-batches\n",
		      SPW_SIZE_TEXT((uint64_t)step->step_bytes), report->model.micro_batches);
	if (step->outside_layers_bytes > 0)
		(void)fprintf(out,
			      "  output layer            %s, never spilled, in every peak below\n",
			      SPW_SIZE_TEXT((uint64_t)step->outside_layers_bytes));
	(void)fprintf(out, "  step                    %.3g s, %.1f TFLOPS\n", step->seconds,
		      step->model_flops / step->seconds / 1e12);
}

/* Fused attention always recomputes its core: that is not a way of its own. */
static bool has_line(const struct plan_report *report, unsigned line)
{
	return line != CURVE_SELECTIVE || report->model.unfused;
}

#define SHORT_LIFE_SECONDS (365.25 * 86400)

/* Print what follows from the figures below: whether to spill, and what to mind. */
static void print_verdict(const struct plan_report *report, FILE *out)
{
	const struct model_life *life = report->has_model ? &report->life_planned : &report->life;
	const struct curve_point *keep = &report->curve[CURVE_KEEP][0],
				 *offload = &report->curve[CURVE_OFFLOAD][0],
				 *full = &report->curve[CURVE_FULL][0];
	const char *drives = report->drives == 1 ? "drive" : "drives";

	if (report->has_model && offload->peak_bytes >= 0.95 * keep->peak_bytes)
		(void)fprintf(out, "Spilling gains little: %u %s of %s are too slow for this step.",
			      report->drives, drives, RATE_TEXT(report->drive_write));
	else if (report->has_model)
		(void)fprintf(out,
			      "Spilling to %u %s: activations take %s instead of %s, in %.2f of "
			      "the time.",
			      report->drives, drives, SPW_SIZE_TEXT((uint64_t)offload->peak_bytes),
			      SPW_SIZE_TEXT((uint64_t)keep->peak_bytes),
			      offload->step_seconds / keep->step_seconds);
	else
		(void)fprintf(out, "To spill that takes %u %s that write %s.",
			      report->drives_needed,
			      report->drives_needed == 1 ? "drive" : "drives",
			      RATE_TEXT(report->drive_write));
	if (report->has_model)
		(void)fprintf(out, "\nRecomputing every layer: %s, in %.2f of the time.",
			      SPW_SIZE_TEXT((uint64_t)full->peak_bytes),
			      full->step_seconds / keep->step_seconds);
	if (life->bytes_per_day > 0 && life->rated_seconds < SHORT_LIFE_SECONDS)
		(void)fprintf(out,
			      "\nTraining all the time wears the drives out in %s; offload(wear=) "
			      "sets a limit.",
			      TOOL_SPAN(life->rated_seconds));
	(void)fputs("\n\n", out);
}

/* Print all assumptions; each is an option. */
static void print_assumptions(const struct plan_report *report, FILE *out)
{
	static const char *const recompute[] = {"none", "selective", "full"};
	const struct model *model = &report->model;

	(void)fprintf(out, "Assumed, by the options of these names\n");
	if (report->has_model)
		(void)fprintf(
			out,
			"  layers %u, hidden %u, heads %u, sequence %u, vocabulary %u\n"
			"  micro-batch %u, micro-batches %u, tensor-parallel %u, pipeline-parallel "
			"%u\n"
			"  attention %s, recompute %s, dtype-bytes %u\n"
			"  gpu-tflops %.4g, efficiency %.3g %%\n",
			model->layers, model->hidden, model->heads, model->sequence,
			model->vocabulary, model->micro_batch, model->micro_batches,
			model->tensor_parallel, model->pipeline_parallel,
			model->unfused ? "unfused" : "fused", recompute[model->recompute],
			model->dtype_bytes, report->gpu_tflops, report->efficiency_percent);
	else
		(void)fprintf(out, "  bandwidth %s\n", RATE_TEXT(report->bandwidth_needed));
	(void)fprintf(out, "  drives %u, drive-write %s, drive-read %s, endurance %.4g TB each\n",
		      report->drives, RATE_TEXT(report->drive_write), RATE_TEXT(report->drive_read),
		      report->drive_endurance_bytes / 1e12);
}

static void print_drives(const struct plan_report *report, FILE *out)
{
	(void)fprintf(out, "Drives of each GPU\n");
	(void)fprintf(out, "  bandwidth to spill all  %s, in half of the step\n",
		      RATE_TEXT(report->bandwidth_needed));
	(void)fprintf(out, "  drives to spill all     %u that write %s\n", report->drives_needed,
		      RATE_TEXT(report->drive_write));
	(void)fprintf(out, "  drives planned with     %u\n", report->drives);
	if (report->has_model)
		(void)fprintf(out,
			      "  spilled per step        %s of activations, %u tensors, no stall\n",
			      SPW_SIZE_TEXT(report->planned.bytes_written),
			      report->planned.tensors_spilled);
}

/* Print wear, for new drives. */
static void print_wear(const struct plan_report *report, FILE *out)
{
	const struct model_life *life = report->has_model ? &report->life_planned : &report->life;

	(void)fprintf(out, "Wear of the drives\n");
	if (report->has_model && life->bytes_per_day <= 0) {
		(void)fprintf(out, "  as planned              nothing is written\n");
		return;
	}
	(void)fprintf(out, "  %s             %s to %u drive%s\n",
		      report->has_model ? "as planned" : "at that rate",
		      TOOL_PER_DAY(life->bytes_per_day), report->drives,
		      report->drives == 1 ? "" : "s");
	(void)fprintf(
		out, "  they last               %s, if each may be written %.3g TB (--endurance)\n",
		TOOL_SPAN(life->rated_seconds), report->drive_endurance_bytes / 1e12);
}

static void print_life(const struct plan_report *report, FILE *out)
{
	const struct model_life *all = &report->life, *planned = &report->life_planned;
	const struct {
		const char *what;
		double all, planned;
	} rows[] = {
		{"  as rated, for small random writes", all->rated_seconds, planned->rated_seconds},
		{"  for large sequential writes, as these (2.5 times)", all->sequential_seconds,
		 planned->sequential_seconds},
	};
	struct tool_table *table =
		tool_table_new(report->has_model ? "  Life of the drives|>all spilled|>as planned"
						 : "  Life of the drives|>all spilled");

	for (unsigned i = 0; i < SPW_ARRAY_LEN(rows); i++) {
		const char *as_planned =
			rows[i].planned > 0 ? TOOL_SPAN(rows[i].planned) : "no writes";

		/* NULL ends the row. */
		tool_table_row(table, rows[i].what, TOOL_SPAN(rows[i].all),
			       report->has_model ? as_planned : NULL);
	}
	tool_table_end(table, out);
}

static void print_curve(const struct plan_report *report, FILE *out)
{
	struct tool_table *table =
		tool_table_new("  Activations|>micro-batch|>peak|>step|>TFLOPS|>written/step");

	for (unsigned line = 0; line < CURVE_LINES; line++)
		for (unsigned k = 0; k < CURVE_POINTS && has_line(report, line); k++) {
			const struct curve_point *point = &report->curve[line][k];

			tool_table_row(table, TOOL_SHORT("  %s", curve_names[line]),
				       TOOL_SHORT("%u", point->micro_batch),
				       SPW_SIZE_TEXT((uint64_t)point->peak_bytes),
				       TOOL_SHORT("%.3g s", point->step_seconds),
				       TOOL_SHORT("%.1f", point->flops / 1e12),
				       SPW_SIZE_TEXT((uint64_t)point->written_bytes));
		}
	tool_table_end(table, out);
}

void plan_report_print(const struct plan_report *report, FILE *out)
{
	print_verdict(report, out);
	print_assumptions(report, out);
	if (report->has_model)
		print_model(report, out);
	print_drives(report, out);
	print_wear(report, out);
	print_life(report, out);
	if (report->has_model)
		print_curve(report, out);
}

/* ---- JSON ---- */

static json_t *json_life(const struct model_life *life)
{
	return json_pack("{s:f, s:f, s:f}", "bytes_per_day", life->bytes_per_day, "rated_seconds",
			 life->rated_seconds, "write_amplification_1_seconds",
			 life->sequential_seconds);
}

static json_t *json_curve(const struct plan_report *report)
{
	json_t *curve = json_array();

	for (unsigned line = 0; line < CURVE_LINES; line++)
		for (unsigned k = 0; k < CURVE_POINTS && has_line(report, line); k++) {
			const struct curve_point *point = &report->curve[line][k];

			(void)json_array_append_new(
				curve,
				json_pack("{s:s, s:i, s:f, s:f, s:f, s:f}", "activations",
					  curve_names[line], "micro_batch", (int)point->micro_batch,
					  "peak_bytes", point->peak_bytes, "step_seconds",
					  point->step_seconds, "flops_per_second", point->flops,
					  "bytes_written", point->written_bytes));
		}
	return curve;
}

static json_t *json_assumptions(const struct plan_report *report)
{
	static const char *const recompute[] = {"none", "selective", "full"};
	const struct model *model = &report->model;
	json_t *json = json_pack(
		"{s:f, s:f, s:f, s:I}", "drive_write_bytes_per_second", report->drive_write,
		"drive_read_bytes_per_second", report->drive_read, "drive_endurance_bytes",
		report->drive_endurance_bytes, "drives", (json_int_t)report->drives);

	if (!json || !report->has_model)
		return json;
	(void)json_object_update_new(
		json,
		json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:s, s:I, s:f, s:f}",
			  "layers", (json_int_t)model->layers, "hidden", (json_int_t)model->hidden,
			  "heads", (json_int_t)model->heads, "sequence",
			  (json_int_t)model->sequence, "vocabulary", (json_int_t)model->vocabulary,
			  "micro_batch", (json_int_t)model->micro_batch, "micro_batches",
			  (json_int_t)model->micro_batches, "tensor_parallel",
			  (json_int_t)model->tensor_parallel, "pipeline_parallel",
			  (json_int_t)model->pipeline_parallel, "attention",
			  model->unfused ? "unfused" : "fused", "recompute",
			  recompute[model->recompute], "dtype_bytes",
			  (json_int_t)model->dtype_bytes, "gpu_tflops", report->gpu_tflops,
			  "efficiency_percent", report->efficiency_percent));
	return json;
}

json_t *plan_report_json(const struct plan_report *report)
{
	const struct model_step *step = &report->step;
	json_t *json =
		json_pack("{s:o, s:f, s:i, s:i, s:o}", "assumptions", json_assumptions(report),
			  "bandwidth_needed_bytes_per_second", report->bandwidth_needed,
			  "drives_needed", (int)report->drives_needed, "drives",
			  (int)report->drives, "life_all_spilled", json_life(&report->life));

	if (!json || !report->has_model)
		return json;
	(void)json_object_update_new(
		json,
		json_pack("{s:f, s:f, s:f, s:f, s:I, s:I, s:I, s:I, s:o, s:o}",
			  "layer_activation_bytes", step->layer_bytes, "step_activation_bytes",
			  step->step_bytes, "step_seconds", step->seconds, "flops_per_second",
			  step->model_flops / step->seconds, "peak_keep_bytes",
			  (json_int_t)report->planned.peak_keep_all_bytes, "peak_offload_bytes",
			  (json_int_t)report->planned.peak_bytes, "bytes_written",
			  (json_int_t)report->planned.bytes_written, "tensors_spilled",
			  (json_int_t)report->planned.tensors_spilled, "life_planned",
			  report->planned.bytes_written > 0 ? json_life(&report->life_planned)
							    : json_null(),
			  "curve", json_curve(report)));
	return json;
}
