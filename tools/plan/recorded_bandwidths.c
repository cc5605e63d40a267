/* SPDX-License-Identifier: MIT */
/*
 * tools/plan/recorded_bandwidths.c - plan a recorded step for several bandwidths, print a table or
 * JSON
 */
#include "tools/plan/recorded_bandwidths.h"

#include <errno.h>
#include <stdlib.h>

#include "tools/plan/model.h"
#include "tools/replay/positional.h"
#include "tools/ui/tool.h"
#include "util/util.h"

#define LATENCY_NS  100000u
#define CHUNK_BYTES (1u << 20)
#define MIN_BYTES   (64u << 10) /* the cache's default */

static const unsigned budget_percent[PLAN_TRACE_BUDGETS] = {75, 50, 25};

/* ---- Recompute ---- */

struct change {
	uint64_t ns;
	int64_t bytes;
};

/* Order changes by time. At equal times additions come first, so that the peak is never too low. */
static int compare_changes(const void *a, const void *b)
{
	const struct change *first = a, *second = b;

	if (first->ns != second->ns)
		return first->ns < second->ns ? -1 : 1;
	return (first->bytes < second->bytes) - (first->bytes > second->bytes);
}

static void add_stay(struct change changes[], size_t *count, uint64_t from_ns, uint64_t to_ns,
		     uint64_t bytes)
{
	changes[(*count)++] = (struct change){.ns = from_ns, .bytes = (int64_t)bytes};
	changes[(*count)++] = (struct change){.ns = to_ns, .bytes = -(int64_t)bytes};
}

/* Add the memory changes of one scope, of the tensors from @first to before @end. */
static void add_scope(const struct replay_step *step, uint32_t first, uint32_t end,
		      struct change changes[], size_t *count)
{
	uint64_t last_pack_ns = step->tensors[end - 1].pack_ns, again_ns = UINT64_MAX;

	for (uint32_t i = first; i < end; i++)
		if (step->tensors[i].takes > 0 && step->tensors[i].use_ns < again_ns)
			again_ns = step->tensors[i].use_ns;
	for (uint32_t i = first; i < end; i++) {
		const struct replay_tensor *tensor = &step->tensors[i];

		if (i == first || tensor->in_backward || tensor->release_ns <= last_pack_ns ||
		    again_ns <= last_pack_ns) {
			add_stay(changes, count, tensor->pack_ns, tensor->release_ns,
				 tensor->bytes);
			continue;
		}
		add_stay(changes, count, tensor->pack_ns, last_pack_ns, tensor->bytes);
		if (again_ns < tensor->release_ns)
			add_stay(changes, count, again_ns, tensor->release_ns, tensor->bytes);
	}
}

static int find_recompute(struct plan_trace_report *report)
{
	const struct replay_step *step = &report->step;
	struct change *changes = calloc(4 * (size_t)step->tensors_count, sizeof(*changes));
	uint64_t again_ns = 0;
	int64_t bytes = 0, peak = 0;
	size_t count = 0;

	if (!changes)
		return spw_error(-ENOMEM, "no memory for a step of %u tensors",
				 step->tensors_count);
	for (uint32_t i = 0, first = 0; i < step->tensors_count; i++) {
		if (i + 1 < step->tensors_count &&
		    step->tensors[i + 1].scope == step->tensors[i].scope)
			continue;
		add_scope(step, first, i + 1, changes, &count);
		if (!step->tensors[first].in_backward)
			again_ns += step->tensors[i].pack_ns - step->tensors[first].pack_ns;
		first = i + 1;
	}
	qsort(changes, count, sizeof(*changes), compare_changes);
	for (size_t i = 0; i < count; i++) {
		bytes += changes[i].bytes;
		peak = bytes > peak ? bytes : peak;
	}
	free(changes);
	report->recompute_peak_bytes = (uint64_t)peak;
	report->recompute_seconds = (double)(step->compute_ns + again_ns) / 1e9;
	return 0;
}

/* ---- Offload ---- */

struct planning {
	struct spw_plan_step step;
	struct spw_plan_tensor *tensors;
	enum spw_plan_choice *choices;
};

static int plan_once(const struct planning *planning, const struct spw_plan_drives *drives,
		     enum spw_plan_mode mode, uint64_t memory_bytes, struct spw_plan_result *result)
{
	struct spw_plan_opts opts;

	spw_plan_opts_init(&opts, sizeof(opts));
	opts.mode = mode;
	opts.memory_bytes = memory_bytes;
	result->size = sizeof(*result);
	return spw_plan(&planning->step, drives, &opts, planning->choices, result);
}

static int plan_rate(const struct plan_trace_report *report, const struct planning *planning,
		     struct plan_trace_rate *rate)
{
	const struct spw_plan_drives drives = {.write_bytes_per_second = (uint64_t)rate->write,
					       .read_bytes_per_second = (uint64_t)rate->read,
					       .latency_ns = LATENCY_NS,
					       .chunk_bytes = CHUNK_BYTES};
	int rc = plan_once(planning, &drives, SPW_PLAN_FASTEST, 0, &rate->fastest);

	if (rc == 0)
		rc = replay_positional_simulate(&planning->step, &drives, planning->choices,
						&rate->positional);
	for (unsigned i = 0; i < PLAN_TRACE_BUDGETS && rc == 0; i++)
		rc = plan_once(planning, &drives, SPW_PLAN_BUDGET,
			       rate->fastest.peak_keep_all_bytes / 100 * budget_percent[i],
			       &rate->budgets[i]);
	if (rc == 0)
		rate->life =
			model_life_of(report->endurance_bytes, (double)rate->fastest.bytes_written,
				      (double)report->step.compute_ns / 1e9);
	return rc;
}

static int plan_rates(struct plan_trace_report *report)
{
	struct planning planning = {
		.tensors = calloc(report->step.tensors_count, sizeof(*planning.tensors)),
		.choices = calloc(report->step.tensors_count, sizeof(*planning.choices)),
	};
	int rc = 0;

	if (!planning.tensors || !planning.choices)
		rc = spw_error(-ENOMEM, "no memory for a step of %u tensors",
			       report->step.tensors_count);
	else
		replay_step_plan(&report->step, MIN_BYTES, planning.tensors, &planning.step);
	for (unsigned i = 0; i < report->rates_count && rc == 0; i++)
		rc = plan_rate(report, &planning, &report->rates[i]);
	free(planning.tensors);
	free(planning.choices);
	return rc;
}

int plan_trace_fill(struct plan_trace_report *report, uint32_t number)
{
	const struct replay_step_opts opts = {
		.number = number, .speed = report->speed, .scale = 1, .min_bytes = MIN_BYTES};
	int rc = spw_trace_read(report->path, &report->trace);

	if (rc == 0)
		rc = replay_step_make(report->trace, &opts, &report->step);
	if (rc == 0)
		rc = find_recompute(report);
	if (rc)
		return rc;
	report->bandwidth_needed =
		(double)report->step.saved_bytes / ((double)report->step.compute_ns / 2e9);
	return plan_rates(report);
}

void plan_trace_free(struct plan_trace_report *report)
{
	replay_step_free(&report->step);
	spw_trace_free(report->trace);
}

/* ---- For people ---- */

static void print_head(const struct plan_trace_report *report, FILE *out)
{
	const struct replay_step *step = &report->step;
	double seconds = (double)step->compute_ns / 1e9;

	(void)fprintf(out, "Step %u of %s: ", step->number, report->path);
	tool_print_text(report->trace->model, out);
	(void)fputc('\n', out);
	(void)fprintf(out,
		      "  assumed                 speed %.4g; drives %u, endurance %.4g TB of all; "
		      "reads as fast as writes, latency %u us\n",
		      report->speed, report->drives, report->endurance_bytes / 1e12,
		      LATENCY_NS / 1000);
	(void)fprintf(out, "  step                    %.4g s of compute\n", seconds);
	(void)fprintf(out, "  saved                   %s in %u tensors\n",
		      SPW_SIZE_TEXT(step->saved_bytes), step->tensors_count);
	(void)fprintf(out, "  largest scope           %s\n", SPW_SIZE_TEXT(step->scope_bytes));
	(void)fprintf(out, "  bandwidth to spill all  %.3g GB/s, in half of the step\n",
		      report->bandwidth_needed / 1e9);
	(void)fprintf(out, "  keep                    peak %s\n",
		      SPW_SIZE_TEXT(step->keep_all_bytes));
	(void)fprintf(out, "  recompute               peak %s, step %.4g s: %.1f %% more\n\n",
		      SPW_SIZE_TEXT(report->recompute_peak_bytes), report->recompute_seconds,
		      (report->recompute_seconds / seconds - 1) * 100);
}

#define STALL_TEXT(result)                            \
	((result)->stall_ns == SPW_PLAN_STALL_FOREVER \
		 ? "for ever"                         \
		 : TOOL_SHORT("%.4f", (double)(result)->stall_ns / 1e9))
#define BUDGET_TEXT(result) ((result)->feasible ? SPW_SIZE_TEXT((result)->bytes_written) : "-")

void plan_trace_print(const struct plan_trace_report *report, FILE *out)
{
	struct tool_table *table =
		tool_table_new(">OFFLOAD GB/s|>PEAK|>% OF KEEP|>STALL "
			       "s|>WRITTEN|>PER DAY|>LIFE, RATED|>POSITIONAL|>STALL s|"
			       ">FOR 75 %|>FOR 50 %|>FOR 25 %");

	print_head(report, out);
	for (unsigned i = 0; i < report->rates_count; i++) {
		const struct plan_trace_rate *rate = &report->rates[i];
		const struct spw_plan_result *fastest = &rate->fastest;
		double percent =
			100 * (double)fastest->peak_bytes / (double)fastest->peak_keep_all_bytes;

		tool_table_row(table, TOOL_SHORT("%.4g", rate->write / 1e9),
			       SPW_SIZE_TEXT(fastest->peak_bytes), TOOL_SHORT("%.1f", percent),
			       STALL_TEXT(fastest), SPW_SIZE_TEXT(fastest->bytes_written),
			       TOOL_PER_DAY(rate->life.bytes_per_day),
			       rate->life.rated_seconds > 0 ? TOOL_SPAN(rate->life.rated_seconds)
							    : "no writes",
			       SPW_SIZE_TEXT(rate->positional.peak_bytes),
			       STALL_TEXT(&rate->positional), BUDGET_TEXT(&rate->budgets[0]),
			       BUDGET_TEXT(&rate->budgets[1]), BUDGET_TEXT(&rate->budgets[2]));
	}
	tool_table_end(table, out);
	(void)fprintf(out,
		      "\nLife: of drives that may all together be written %.3g TB (--endurance, of "
		      "one, x --drives).\n",
		      report->endurance_bytes / 1e12);
	(void)fprintf(out, "For 75, 50 and 25 %%: the least that is written to fit that share of "
			   "what keeping takes; it may stall. -: cannot be met.\n");
}

/* ---- JSON ---- */

static json_t *result_json(const struct spw_plan_result *result)
{
	bool forever = result->stall_ns == SPW_PLAN_STALL_FOREVER;

	return json_pack(
		"{s:b, s:I, s:o, s:o, s:I, s:I, s:I, s:i}", "feasible", result->feasible,
		"peak_bytes", (json_int_t)result->peak_bytes, "stall_seconds",
		forever ? json_null() : json_real((double)result->stall_ns / 1e9), "step_seconds",
		forever ? json_null() : json_real((double)result->wall_ns / 1e9), "bytes_written",
		(json_int_t)result->bytes_written, "bytes_read", (json_int_t)result->bytes_read,
		"bytes_forwarded", (json_int_t)result->bytes_forwarded, "tensors_spilled",
		(int)result->tensors_spilled);
}

static json_t *rate_json(const struct plan_trace_rate *rate)
{
	json_t *budgets = json_array();

	for (unsigned i = 0; i < PLAN_TRACE_BUDGETS; i++) {
		json_t *budget = result_json(&rate->budgets[i]);

		(void)json_object_set_new(budget, "percent_of_keep",
					  json_integer(budget_percent[i]));
		(void)json_array_append_new(budgets, budget);
	}
	return json_pack("{s:f, s:f, s:o, s:o, s:o, s:f, s:f}", "write_bytes_per_second",
			 rate->write, "read_bytes_per_second", rate->read, "fastest",
			 result_json(&rate->fastest), "positional", result_json(&rate->positional),
			 "budgets", budgets, "life_rated_seconds", rate->life.rated_seconds,
			 "written_bytes_per_day", rate->life.bytes_per_day);
}

json_t *plan_trace_json(const struct plan_trace_report *report)
{
	const struct replay_step *step = &report->step;
	json_t *rates = json_array();

	for (unsigned i = 0; i < report->rates_count; i++)
		(void)json_array_append_new(rates, rate_json(&report->rates[i]));
	return json_pack("{s:o, s:{s:f, s:I, s:f, s:I}, s:o, s:i, s:f, s:I, s:I, s:I, s:f, s:i, "
			 "s:I, s:f, s:o}",
			 "trace", tool_json_text(report->path), "assumptions", "speed",
			 report->speed, "drives", (json_int_t)report->drives, "endurance_bytes",
			 report->endurance_bytes, "latency_ns", (json_int_t)LATENCY_NS, "model",
			 tool_json_text(report->trace->model), "trace_step", (int)step->number,
			 "step_seconds", (double)step->compute_ns / 1e9, "step_activation_bytes",
			 (json_int_t)step->saved_bytes, "largest_scope_bytes",
			 (json_int_t)step->scope_bytes, "peak_keep_bytes",
			 (json_int_t)step->keep_all_bytes, "bandwidth_needed_bytes_per_second",
			 report->bandwidth_needed, "tensors", (int)step->tensors_count,
			 "peak_recompute_bytes", (json_int_t)report->recompute_peak_bytes,
			 "step_recompute_seconds", report->recompute_seconds, "bandwidths", rates);
}
