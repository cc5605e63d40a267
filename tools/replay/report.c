/* SPDX-License-Identifier: MIT */
/* tools/replay/report.c - print the report of spillway replay as text and JSON */
#include "tools/replay/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/ui/tool.h"
#include "util/util.h"

#define WARM_STEPS 3u /* the first replays measure, find a plan, and first follow it */

static double seconds_of(uint64_t ns)
{
	return (double)ns / 1e9;
}

static double size_of(const struct replay_report *report, uint64_t bytes)
{
	return (double)bytes / report->scale;
}

#define SIZE_TEXT(bytes) SPW_SIZE_TEXT((uint64_t)size_of(report, bytes))

/* ---- Summary ---- */

static int compare(const void *a, const void *b)
{
	uint64_t first = *(const uint64_t *)a, second = *(const uint64_t *)b;

	return first < second ? -1 : first > second;
}

static uint32_t first_steady(const struct replay_report *report)
{
	return report->run->measured > WARM_STEPS ? WARM_STEPS : report->run->measured - 1;
}

/* The median of the member at @offset over the steady measures. */
static uint64_t median(const struct replay_report *report, size_t offset)
{
	uint64_t values[REPLAY_STEPS_MAX] = {0};
	uint32_t count = 0;

	for (uint32_t i = first_steady(report); i < report->run->measured; i++)
		memcpy(&values[count++], (const char *)&report->run->measures[i] + offset,
		       sizeof(*values));
	qsort(values, count, sizeof(*values), compare);
	return values[count / 2];
}

#define MEDIAN(field) median(report, offsetof(struct replay_measure, field))

/*
 * The summary of the replays from the fourth on, as the first one measures and the third is the
 * first with a plan; or of the last replay if there are fewer. Times and bytes are medians, the
 * peak is the highest.
 */
struct summary {
	double step_seconds, ideal_seconds, stall_seconds, over_ideal_max;
	double peak_bytes, bytes_written, bytes_read, bytes_forwarded;
};

/* Summarize. At least one replay was measured. */
static struct summary summarize(const struct replay_report *report)
{
	struct summary summary = {
		.ideal_seconds = seconds_of(report->step->compute_ns),
		.step_seconds = seconds_of(MEDIAN(step_ns)),
		.stall_seconds = seconds_of(MEDIAN(stall_ns)),
		.bytes_written = size_of(report, MEDIAN(bytes_written)),
		.bytes_read = size_of(report, MEDIAN(bytes_read)),
		.bytes_forwarded = size_of(report, MEDIAN(bytes_forwarded)),
	};

	for (uint32_t i = first_steady(report); i < report->run->measured; i++) {
		const struct replay_measure *measure = &report->run->measures[i];
		double peak = size_of(report, measure->peak_bytes);
		double over = seconds_of(measure->step_ns) / summary.ideal_seconds;

		summary.peak_bytes = fmax(summary.peak_bytes, peak);
		summary.over_ideal_max = fmax(summary.over_ideal_max, over);
	}
	return summary;
}

/* ---- Passes ---- */

static bool backward_is_marked(const struct replay_step *step)
{
	for (uint32_t i = 0; i < step->ops_count; i++)
		if (step->ops[i].event->kind == SPW_TRACE_STAGE && step->ops[i].event->backward)
			return true;
	return false;
}

void replay_each_pass(const struct replay_report *report,
		      void (*each)(void *context, const struct replay_pass *pass), void *context)
{
	const struct replay_step *step = report->step;
	struct replay_pass pass = {0};
	bool marked = backward_is_marked(step);

	for (uint32_t i = 0; i < step->ops_count; i++) {
		const struct spw_trace_event *event = step->ops[i].event;
		bool is_stage = event->kind == SPW_TRACE_STAGE;

		if (!is_stage && (marked || pass.backward || event->kind != SPW_TRACE_TAKE))
			continue;
		if (is_stage && event->backward == pass.backward &&
		    event->micro_batch == pass.micro_batch)
			continue;
		pass.end_ns = report->run->timeline.op_ns[i];
		if (pass.end_ns > pass.begin_ns)
			each(context, &pass);
		pass.begin_ns = pass.end_ns;
		pass.backward = is_stage ? event->backward : true;
		if (is_stage)
			pass.micro_batch = event->micro_batch;
	}
	pass.end_ns = report->run->measures[report->run->steps - 1].step_ns;
	if (pass.end_ns > pass.begin_ns)
		each(context, &pass);
}

/* ---- For people ---- */

static void print_steps(const struct replay_report *report, FILE *out)
{
	struct tool_table *table = tool_table_new(
		">REPLAY|>SECONDS|>OVER IDEAL|>STALL|>HELD BACK|>RECOMPUTED|>LATE|>PEAK|"
		">WRITTEN|>READ|>FORWARDED|>PLANNED PEAK");
	double ideal = seconds_of(report->step->compute_ns);

	for (uint32_t i = 0; i < report->run->measured; i++) {
		const struct replay_measure *measure = &report->run->measures[i];
		double seconds = seconds_of(measure->step_ns);
		uint64_t planned = measure->stats.plan_peak_bytes;

		tool_table_row(table, TOOL_SHORT("%u", i + 1), TOOL_SHORT("%.4f", seconds),
			       TOOL_SHORT("%.4f", seconds / ideal),
			       TOOL_SHORT("%.4f", seconds_of(measure->stall_ns)),
			       TOOL_SHORT("%.4f", seconds_of(measure->hold_ns)),
			       TOOL_SHORT("%.4f", seconds_of(measure->recompute_ns)),
			       TOOL_SHORT("%.4f", seconds_of(measure->late_ns)),
			       SIZE_TEXT(measure->peak_bytes), SIZE_TEXT(measure->bytes_written),
			       SIZE_TEXT(measure->bytes_read), SIZE_TEXT(measure->bytes_forwarded),
			       planned > 0 ? SIZE_TEXT(planned) : "-");
	}
	tool_table_end(table, out);
}

void replay_report_print(const struct replay_report *report, FILE *out)
{
	const struct replay_step *step = report->step;
	struct summary summary = summarize(report);

	(void)fprintf(out, "trace        %s, step %u: ", report->trace_path, step->number);
	tool_print_text(report->trace->model, out);
	(void)fputc('\n', out);
	(void)fprintf(out, "tensors      %u, %s if all are kept\n", step->tensors_count,
		      SIZE_TEXT(step->keep_all_bytes));
	(void)fprintf(out, "drives       %s\n", report->drives_text);
	(void)fprintf(out, "mode         %s\n", report->mode);
	(void)fprintf(out, "lower bound  %s: the largest scope, and two chunks per drive\n\n",
		      SIZE_TEXT(report->lower_bound_bytes));
	print_steps(report, out);
	(void)fprintf(out, "\nstep         %.4f s; %.4f s without any I/O: %.2f %% more\n",
		      summary.step_seconds, summary.ideal_seconds,
		      (summary.step_seconds / summary.ideal_seconds - 1) * 100);
	(void)fprintf(out, "stall        %.4f s\n", summary.stall_seconds);
	(void)fprintf(out, "peak         %s of activations: %.1f %% of keeping all\n",
		      SPW_SIZE_TEXT((uint64_t)summary.peak_bytes),
		      summary.peak_bytes / size_of(report, step->keep_all_bytes) * 100);
	(void)fprintf(out, "written      %s\n", SPW_SIZE_TEXT((uint64_t)summary.bytes_written));
	(void)fprintf(out, "read         %s\n", SPW_SIZE_TEXT((uint64_t)summary.bytes_read));
	(void)fprintf(out, "forwarded    %s\n", SPW_SIZE_TEXT((uint64_t)summary.bytes_forwarded));
	if (report->run->interrupted)
		(void)fprintf(out, "\nInterrupted: this is what %u of %u replays measured.\n",
			      report->run->measured, report->run->steps);
}

/* ---- JSON ---- */

static json_t *size_json(const struct replay_report *report, uint64_t bytes)
{
	return json_integer((json_int_t)size_of(report, bytes));
}

static json_t *plan_json(const struct replay_report *report, const struct spw_cache_stats *stats)
{
	return json_pack("{s:I, s:I, s:o, s:o, s:o, s:f, s:f, s:I, s:f, s:f, s:f}", "plans",
			 (json_int_t)stats->plans, "tensors_spilled",
			 (json_int_t)stats->plan_tensors_spilled, "peak_bytes",
			 size_json(report, stats->plan_peak_bytes), "bytes_written",
			 size_json(report, stats->plan_bytes_written), "memory_bytes",
			 size_json(report, stats->plan_memory_bytes), "stall_seconds",
			 seconds_of(stats->plan_stall_ns), "step_seconds",
			 seconds_of(stats->plan_wall_ns), "scopes_recomputed",
			 (json_int_t)stats->plan_scopes_again, "write_bytes_per_second",
			 size_of(report, stats->write_bytes_per_second), "read_bytes_per_second",
			 size_of(report, stats->read_bytes_per_second), "mixed_bytes_per_second",
			 size_of(report, stats->mixed_bytes_per_second));
}

static json_t *steps_json(const struct replay_report *report)
{
	json_t *steps = json_array();

	for (uint32_t i = 0; i < report->run->measured; i++) {
		const struct replay_measure *measure = &report->run->measures[i];

		(void)json_array_append_new(
			steps,
			json_pack("{s:f, s:f, s:f, s:f, s:f, s:o, s:o, s:o, s:o, s:o}",
				  "step_seconds", seconds_of(measure->step_ns), "stall_seconds",
				  seconds_of(measure->stall_ns), "held_back_seconds",
				  seconds_of(measure->hold_ns), "recomputed_seconds",
				  seconds_of(measure->recompute_ns), "late_seconds",
				  seconds_of(measure->late_ns), "activation_peak_bytes",
				  size_json(report, measure->peak_bytes), "bytes_written",
				  size_json(report, measure->bytes_written), "bytes_read",
				  size_json(report, measure->bytes_read), "bytes_forwarded",
				  size_json(report, measure->bytes_forwarded), "plan",
				  plan_json(report, &measure->stats)));
	}
	return steps;
}

json_t *replay_report_json(const struct replay_report *report)
{
	struct summary summary = summarize(report);
	const struct replay_step *step = report->step;
	const struct spw_cache_stats *stats =
		&report->run->measures[report->run->measured - 1].stats;

	return json_pack(
		"{s:o, s:o, s:i, s:s, s:o, s:f, s:f, s:i, s:o, s:o, s:o, s:o, s:o, s:b, s:i, s:f, "
		"s:f, s:f, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:o}",
		"trace", tool_json_text(report->trace_path), "model",
		tool_json_text(report->trace->model), "trace_step", (int)step->number, "mode",
		report->mode, "drives", tool_json_text(report->drives_text), "speed", report->speed,
		"scale", report->scale, "tensors", (int)step->tensors_count, "saved_bytes",
		size_json(report, step->saved_bytes), "keep_all_bytes",
		size_json(report, step->keep_all_bytes), "largest_scope_bytes",
		size_json(report, step->scope_bytes), "small_bytes",
		size_json(report, step->small_bytes), "lower_bound_bytes",
		size_json(report, report->lower_bound_bytes), "interrupted",
		report->run->interrupted, "replays", (int)report->run->measured, "step_seconds",
		summary.step_seconds, "ideal_seconds", summary.ideal_seconds, "stall_seconds",
		summary.stall_seconds, "over_ideal_max", summary.over_ideal_max,
		"activation_peak_bytes", (json_int_t)summary.peak_bytes, "bytes_written",
		(json_int_t)summary.bytes_written, "bytes_read", (json_int_t)summary.bytes_read,
		"bytes_forwarded", (json_int_t)summary.bytes_forwarded, "writes_cancelled",
		(json_int_t)stats->writes_cancelled, "misses", (json_int_t)stats->misses, "steps",
		steps_json(report));
}
