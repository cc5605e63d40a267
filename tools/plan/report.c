/* SPDX-License-Identifier: MIT */
/* tools/plan/report.c - the report of spillway plan for people and as JSON */
#include "tools/plan/report.h"

#include <string.h>

#include "tools/ui/tool.h"
#include "util/util.h"

#define DAY_SECONDS  86400.0
#define YEAR_SECONDS (365.25 * DAY_SECONDS)

const char *const curve_names[CURVE_LINES] = {"keep", "recompute selectively", "recompute all",
					      "offload"};

static const char *format_bytes(double bytes, char *buf, size_t len)
{
	return spw_size_format((uint64_t)bytes, buf, len);
}

static const char *format_rate(double bytes_per_second, char *buf, size_t len)
{
	(void)snprintf(buf, len, bytes_per_second < 1e8 ? "%.1f MB/s" : "%.2f GB/s",
		       bytes_per_second / (bytes_per_second < 1e8 ? 1e6 : 1e9));
	return buf;
}

static const char *format_span(double seconds, char *buf, size_t len)
{
	if (seconds < 2 * DAY_SECONDS)
		(void)snprintf(buf, len, "%.1f hours", seconds / 3600);
	else if (seconds < YEAR_SECONDS)
		(void)snprintf(buf, len, "%.1f days", seconds / DAY_SECONDS);
	else
		(void)snprintf(buf, len, "%.1f years", seconds / YEAR_SECONDS);
	return buf;
}

/* ---- Text ---- */

static void print_model(const struct plan_report *report, FILE *out)
{
	const struct model_step *step = &report->step;
	char bytes[32];

	(void)fprintf(out, "Each GPU (%u layers of %u, tensor-parallel %u)\n", step->layers,
		      report->model.layers, report->model.tensor_parallel);
	(void)fprintf(out, "  activations per layer   %s for one micro-batch of %u\n",
		      format_bytes(step->layer_bytes, bytes, sizeof(bytes)),
		      report->model.micro_batch);
	(void)fprintf(out, "  activations per step    %s in %u micro-batches\n",
		      format_bytes(step->step_bytes, bytes, sizeof(bytes)),
		      report->model.micro_batches);
	if (step->outside_layers_bytes > 0)
		(void)fprintf(out,
			      "  output layer            %s, never spilled, in every peak below\n",
			      format_bytes(step->outside_layers_bytes, bytes, sizeof(bytes)));
	(void)fprintf(out, "  step                    %.3g s, %.1f TFLOPS\n", step->seconds,
		      step->model_flops / step->seconds / 1e12);
}

static void print_drives(const struct plan_report *report, FILE *out)
{
	char rate[32], drive[32];

	(void)fprintf(out, "Drives of each GPU\n");
	(void)fprintf(out, "  bandwidth to spill all  %s, in half of the step\n",
		      format_rate(report->bandwidth_needed, rate, sizeof(rate)));
	(void)fprintf(out, "  drives to spill all     %u that write %s\n", report->drives_needed,
		      format_rate(report->drive_write, drive, sizeof(drive)));
	(void)fprintf(out, "  drives planned with     %u\n", report->drives);
	if (report->has_model)
		(void)fprintf(
			out, "  spilled per step        %s of activations, %u tensors, no stall\n",
			format_bytes((double)report->planned.bytes_written, rate, sizeof(rate)),
			report->planned.tensors_spilled);
}

static void add_life(struct tool_table *table, const char *what, double all, double planned,
		     bool has_model)
{
	char text[32];

	tool_table_cell(table, "  %s", what);
	tool_table_cell(table, "%s", format_span(all, text, sizeof(text)));
	if (has_model)
		tool_table_cell(table, "%s",
				planned > 0 ? format_span(planned, text, sizeof(text))
					    : "no writes");
}

static void print_life(const struct plan_report *report, FILE *out)
{
	const struct tool_column columns[] = {
		{"  Life of the drives", false}, {"all spilled", true}, {"as planned", true}};
	const struct model_life *all = &report->life, *planned = &report->life_planned;
	struct tool_table *table = tool_table_new(columns, report->has_model ? 3 : 2);

	add_life(table, "as rated", all->rated_seconds, planned->rated_seconds, report->has_model);
	add_life(table, "rated at a write amplification of 2.5, used at 1", all->sequential_seconds,
		 planned->sequential_seconds, report->has_model);
	add_life(table, "and if data need last a day only (86 times; no setting of a drive)",
		 all->retention_seconds, planned->retention_seconds, report->has_model);
	tool_table_print(table, out);
	tool_table_free(table);
}

static void print_curve(const struct plan_report *report, FILE *out)
{
	static const struct tool_column columns[] = {
		{"  Activations", false}, {"micro-batch", true}, {"peak", true},
		{"step", true},           {"TFLOPS", true},      {"written/step", true}};
	struct tool_table *table = tool_table_new(columns, SPW_ARRAY_LEN(columns));
	char text[32];

	for (unsigned line = 0; line < CURVE_LINES; line++)
		for (unsigned k = 0; k < report->points; k++) {
			const struct curve_point *point = &report->curve[line][k];

			tool_table_cell(table, "  %s", curve_names[line]);
			tool_table_cell(table, "%u", point->micro_batch);
			tool_table_cell(table, "%s",
					format_bytes(point->peak_bytes, text, sizeof(text)));
			tool_table_cell(table, "%.3g s", point->step_seconds);
			tool_table_cell(table, "%.1f", point->flops / 1e12);
			tool_table_cell(table, "%s",
					format_bytes(point->written_bytes, text, sizeof(text)));
		}
	tool_table_print(table, out);
	tool_table_free(table);
}

void plan_report_print(const struct plan_report *report, FILE *out)
{
	if (report->has_model)
		print_model(report, out);
	print_drives(report, out);
	print_life(report, out);
	if (report->has_model)
		print_curve(report, out);
}

/* ---- JSON ---- */

static json_t *json_life(const struct model_life *life)
{
	return json_pack("{s:f, s:f, s:f}", "rated_seconds", life->rated_seconds,
			 "write_amplification_1_seconds", life->sequential_seconds,
			 "retention_1_day_seconds", life->retention_seconds);
}

static json_t *json_curve(const struct plan_report *report)
{
	json_t *curve = json_array();

	for (unsigned line = 0; line < CURVE_LINES; line++)
		for (unsigned k = 0; k < report->points; k++) {
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

json_t *plan_report_json(const struct plan_report *report)
{
	const struct model_step *step = &report->step;
	json_t *json = json_pack("{s:f, s:i, s:i, s:o}", "bandwidth_needed_bytes_per_second",
				 report->bandwidth_needed, "drives_needed",
				 (int)report->drives_needed, "drives", (int)report->drives,
				 "life_all_spilled", json_life(&report->life));

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
