/* SPDX-License-Identifier: MIT */
/* tools/plan/explain.c - plan a recorded step, and print the reason for each scope's choice */
#include "tools/plan/explain.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include <spillway/wear.h>

#include "tools/ui/tool.h"
#include "util/util.h"

#define LATENCY_NS  100000u
#define CHUNK_BYTES (1u << 20)
#define MIN_BYTES   (64u << 10) /* the cache's default */

static const char *const way_names[SPW_PLAN_WAYS] = {"keep", "spill", "recompute",
						     "recompute, input spilled"};

/* ---- Planning ---- */

/* Add optimizer state as background traffic: reads in backward, writes in the next forward. */
static void set_flows(struct plan_explain *explain)
{
	const struct replay_step *step = &explain->step;
	struct spw_plan_scopes *scopes = &explain->scopes.scopes;

	if (explain->state_bytes == 0 || step->backward_ns == 0 ||
	    step->backward_ns >= step->compute_ns)
		return;
	explain->flows[0] = (struct spw_plan_flow){.ns = step->backward_ns,
						   .bytes_written = explain->state_bytes};
	explain->flows[1] = (struct spw_plan_flow){.from_ns = step->backward_ns,
						   .ns = step->compute_ns - step->backward_ns,
						   .bytes_read = explain->state_bytes};
	scopes->flows = explain->flows;
	scopes->flows_count = PLAN_EXPLAIN_FLOWS;
}

static void set_opts(const struct plan_explain *explain, struct spw_plan_opts *opts)
{
	double days = (double)explain->step.compute_ns / 1e9 / SPW_SECONDS_PER_DAY;

	spw_plan_opts_init(opts, sizeof(*opts));
	if (explain->budget_bytes > 0) {
		opts->mode = SPW_PLAN_BUDGET;
		opts->memory_bytes = explain->budget_bytes;
	}
	/* At least 1, as 0 would mean no limit. */
	if (explain->day_bytes > 0)
		opts->bytes_written_max = (uint64_t)fmax((double)explain->day_bytes * days, 1);
}

static int plan(struct plan_explain *explain)
{
	struct replay_scopes *scopes = &explain->scopes;
	size_t tensors = explain->step.tensors_count, count = scopes->scopes.count;
	struct spw_plan_record record = {
		.points_max = SPW_PLAN_POINTS_PER_TENSOR * tensors,
		.spans_max = SPW_PLAN_SPANS_PER_TENSOR * tensors + count,
	};
	struct spw_plan_result again = {.size = sizeof(again)};
	struct spw_plan_opts opts;
	int rc;

	explain->choices = calloc(tensors, sizeof(*explain->choices));
	explain->reasons = calloc(count + 1, sizeof(*explain->reasons));
	explain->points = record.points = calloc(record.points_max, sizeof(*record.points));
	explain->spans = record.spans = calloc(record.spans_max, sizeof(*record.spans));
	if (!explain->choices || !explain->reasons || !explain->points || !explain->spans)
		return spw_error(-ENOMEM, "no memory for a step of %zu tensors", tensors);
	set_opts(explain, &opts);
	explain->planned.size = sizeof(explain->planned);
	rc = spw_plan_scopes(&scopes->step, &explain->drives, &scopes->scopes, &opts,
			     explain->choices, &explain->planned);
	if (rc == 0)
		rc = spw_plan_scopes_simulate(&scopes->step, &explain->drives, &scopes->scopes,
					      explain->planned.memory_bytes, explain->choices,
					      &record, &again);
	if (rc == 0)
		rc = spw_plan_explain(&scopes->step, &explain->drives, &scopes->scopes,
				      explain->planned.memory_bytes, explain->choices,
				      explain->reasons);
	explain->planned.points = again.points;
	explain->planned.spans = again.spans;
	return rc;
}

int plan_explain_fill(struct plan_explain *explain)
{
	const struct replay_step_opts opts = {.number = explain->number,
					      .speed = explain->speed,
					      .scale = 1,
					      .min_bytes = MIN_BYTES};
	int rc = spw_trace_read(explain->path, &explain->trace);

	if (rc == 0)
		rc = replay_step_make(explain->trace, &opts, &explain->step);
	if (rc == 0)
		rc = replay_scopes_make(&explain->step, MIN_BYTES, REPLAY_SCOPES_INNER,
					&explain->scopes);
	if (rc)
		return rc;
	explain->drives =
		(struct spw_plan_drives){.write_bytes_per_second = (uint64_t)explain->bandwidth,
					 .read_bytes_per_second = (uint64_t)explain->bandwidth,
					 .latency_ns = LATENCY_NS,
					 .chunk_bytes = CHUNK_BYTES,
					 .bus_out_bytes_per_second = explain->bus,
					 .bus_in_bytes_per_second = explain->bus,
					 .host_bytes = explain->host};
	explain->scopes.scopes.slack = explain->slack;
	if (explain->never_again)
		for (uint32_t s = 0; s < explain->scopes.scopes.count; s++)
			explain->scopes.own[s].may_again = false;
	set_flows(explain);
	return plan(explain);
}

void plan_explain_free(struct plan_explain *explain)
{
	free(explain->choices);
	free(explain->reasons);
	free(explain->points);
	free(explain->spans);
	replay_scopes_free(&explain->scopes);
	replay_step_free(&explain->step);
	spw_trace_free(explain->trace);
}

/* ---- For people ---- */

static double percent_longer(const struct plan_explain *explain, uint64_t wall_ns)
{
	return 100 * ((double)wall_ns / (double)explain->step.compute_ns - 1);
}

static double per_day(const struct plan_explain *explain)
{
	return (double)explain->planned.bytes_written / ((double)explain->planned.wall_ns / 1e9) *
	       SPW_SECONDS_PER_DAY;
}

static void print_asked(const struct plan_explain *explain, FILE *out)
{
	(void)fprintf(out, "Step %u of %s: ", explain->step.number, explain->path);
	tool_print_text(explain->trace->model, out);
	if (explain->bandwidth > 0)
		(void)fprintf(out, "\n  drives     %.4g GB/s together", explain->bandwidth / 1e9);
	else
		(void)fprintf(out, "\n  drives     none");
	if (explain->bus > 0)
		(void)fprintf(out, ", behind a bus of %.4g GB/s", (double)explain->bus / 1e9);
	if (explain->scopes.scopes.flows_count > 0)
		(void)fprintf(out, ", of which others read and write %s in each step",
			      SPW_SIZE_TEXT(explain->state_bytes));
	if (explain->host > 0)
		(void)fprintf(out, "\n  host       %s of memory for what stays there",
			      SPW_SIZE_TEXT(explain->host));
	if (explain->budget_bytes > 0)
		(void)fprintf(out, "\n  asked for  the shortest step within %s of activations",
			      SPW_SIZE_TEXT(explain->budget_bytes));
	else
		(void)fprintf(out,
			      "\n  asked for  the lowest peak of a step that is at most %.3g %% "
			      "longer than its compute",
			      100 * explain->slack);
	if (explain->day_bytes > 0)
		(void)fprintf(out, ", writing at most %s a day", SPW_SIZE_TEXT(explain->day_bytes));
	(void)fputc('\n', out);
}

static void print_planned(const struct plan_explain *explain, FILE *out)
{
	const struct spw_plan_result *planned = &explain->planned;

	(void)fprintf(out, "  keep all   peak %s, step %.4g s\n",
		      SPW_SIZE_TEXT(planned->peak_keep_all_bytes),
		      (double)explain->step.compute_ns / 1e9);
	(void)fprintf(out, "  planned    peak %s (%.1f %%), step %.4g s (%+.2f %%)\n",
		      SPW_SIZE_TEXT(planned->peak_bytes),
		      100 * (double)planned->peak_bytes / (double)planned->peak_keep_all_bytes,
		      (double)planned->wall_ns / 1e9, percent_longer(explain, planned->wall_ns));
	(void)fprintf(out, "             %u of %u scopes recomputed in %.4g s, waits of %.4g s\n",
		      planned->scopes_again, explain->scopes.scopes.count,
		      (double)planned->again_ns / 1e9, (double)planned->stall_ns / 1e9);
	(void)fprintf(out, "             written %s, %s\n", SPW_SIZE_TEXT(planned->bytes_written),
		      TOOL_PER_DAY(per_day(explain)));
	if (explain->host > 0)
		(void)fprintf(out,
			      "             %u of %u spilled tensors stay in %s of host memory\n",
			      planned->tensors_host, planned->tensors_spilled,
			      SPW_SIZE_TEXT(planned->host_peak_bytes));
	if (!planned->feasible)
		(void)fprintf(out, "  The budget cannot be met: this is the lowest peak found.\n");
	if (planned->limited)
		(void)fprintf(out, "  The limit on bytes written a day rules out better plans.\n");
	(void)fputc('\n', out);
}

/* Describe in a few words what another choice would cost. */
static const char *cost_text(const struct plan_explain *explain,
			     const struct spw_plan_other_way *way, char *text, size_t size)
{
	uint64_t limit = explain->planned.memory_bytes;
	char bytes[32];

	if (!way->possible)
		(void)snprintf(text, size, "-");
	else if (!way->fits && way->peak_bytes > limit)
		(void)snprintf(text, size, "%s over",
			       spw_size_format(way->peak_bytes - limit, bytes, sizeof(bytes)));
	else if (way->wall_ns == SPW_PLAN_STALL_FOREVER)
		(void)snprintf(text, size, "for ever");
	else
		(void)snprintf(text, size, "%+.2f %%",
			       100 * ((double)way->wall_ns / (double)explain->planned.wall_ns - 1));
	return text;
}

#define COST(way) cost_text(explain, &reason->ways[way], (char[64]){0}, 64)

static const char *why_text(const struct plan_explain *explain,
			    const struct spw_plan_reason *reason)
{
	const struct spw_plan_other_way *keep = &reason->ways[SPW_PLAN_WAY_KEEP];
	const struct spw_plan_other_way *spill = &reason->ways[SPW_PLAN_WAY_SPILL];

	if (reason->next == SPW_PLAN_WAYS)
		return "nothing else can be done";
	if (reason->way == SPW_PLAN_WAY_KEEP)
		return "there is room, and nothing is shorter";
	if (keep->fits && keep->wall_ns <= explain->planned.wall_ns)
		return "keeping it would do as well";
	if (reason->way == SPW_PLAN_WAY_SPILL)
		return keep->fits ? "kept, others have less room" : "kept, it does not fit";
	if (!spill->possible)
		return "kept, it does not fit, and it cannot be written";
	if (!spill->fits)
		return "spilled, it would not leave in time";
	return spill->wall_ns > explain->planned.wall_ns ? "the drives would take longer"
							 : "spilling it would do as well";
}

static const char *scope_text(const struct plan_explain *explain, uint32_t s, char *text,
			      size_t size)
{
	(void)snprintf(text, size, "%u.%u", explain->scopes.micro_batch[s], s);
	return text;
}

void plan_explain_print(const struct plan_explain *explain, FILE *out)
{
	struct tool_table *table = tool_table_new(
		">SCOPE|>SAVES|>SPILLED|>GIVEN UP|>TIME s|DONE|WHY|NEXT BEST|>COSTS");

	print_asked(explain, out);
	print_planned(explain, out);
	for (uint32_t s = 0; s < explain->scopes.scopes.count; s++) {
		const struct spw_plan_reason *reason = &explain->reasons[s];

		if (explain->scopes.saved_bytes[s] == 0)
			continue;
		tool_table_row(table, scope_text(explain, s, (char[32]){0}, 32),
			       SPW_SIZE_TEXT(explain->scopes.saved_bytes[s]),
			       SPW_SIZE_TEXT(reason->bytes_spilled),
			       SPW_SIZE_TEXT(reason->bytes_again),
			       TOOL_SHORT("%.4f", (double)explain->scopes.own[s].again_ns / 1e9),
			       way_names[reason->way], why_text(explain, reason),
			       reason->next < SPW_PLAN_WAYS ? way_names[reason->next] : "-",
			       reason->next < SPW_PLAN_WAYS ? COST(reason->next) : "-");
	}
	tool_table_end(table, out);
	(void)fprintf(out,
		      "\nSCOPE is micro-batch and number; TIME what recomputing it takes, to its "
		      "last save; COSTS what the next best\nwould have made of the step, the "
		      "other scopes as planned: longer or shorter, or so much over the limit.\n");
}

/* ---- JSON ---- */

static json_t *way_json(const struct spw_plan_other_way *way)
{
	if (!way->possible)
		return json_null();
	return json_pack("{s:b, s:o, s:I}", "fits", way->fits, "step_seconds",
			 way->wall_ns == SPW_PLAN_STALL_FOREVER
				 ? json_null()
				 : json_real((double)way->wall_ns / 1e9),
			 "peak_bytes", (json_int_t)way->peak_bytes);
}

static json_t *scope_json(const struct plan_explain *explain, uint32_t s)
{
	const struct spw_plan_reason *reason = &explain->reasons[s];
	json_t *ways = json_object();

	for (unsigned way = 0; way < SPW_PLAN_WAYS; way++)
		(void)json_object_set_new(ways, way_names[way], way_json(&reason->ways[way]));
	return json_pack(
		"{s:i, s:i, s:s, s:s, s:o, s:f, s:I, s:I, s:I, s:I, s:o}", "scope", (int)s,
		"micro_batch", (int)explain->scopes.micro_batch[s], "done", way_names[reason->way],
		"why", why_text(explain, reason), "next_best",
		reason->next < SPW_PLAN_WAYS ? json_string(way_names[reason->next]) : json_null(),
		"recompute_seconds", (double)explain->scopes.own[s].again_ns / 1e9, "bytes_kept",
		(json_int_t)reason->bytes_kept, "bytes_spilled", (json_int_t)reason->bytes_spilled,
		"bytes_in_host_memory", (json_int_t)reason->bytes_host, "bytes_recomputed",
		(json_int_t)reason->bytes_again, "ways", ways);
}

json_t *plan_explain_json(const struct plan_explain *explain)
{
	const struct spw_plan_result *planned = &explain->planned;
	json_t *scopes = json_array();

	for (uint32_t s = 0; s < explain->scopes.scopes.count; s++)
		if (explain->scopes.saved_bytes[s] > 0)
			(void)json_array_append_new(scopes, scope_json(explain, s));
	return json_pack(
		"{s:o, s:o, s:i, s:f, s:I, s:f, s:f, s:I, s:I, s:b, s:b, s:I, s:I, s:f, s:f, s:f, "
		"s:I, s:I, s:I, s:i, s:i, s:I, s:i, s:o}",
		"trace", tool_json_text(explain->path), "model",
		tool_json_text(explain->trace->model), "trace_step", (int)explain->step.number,
		"bandwidth_bytes_per_second", explain->bandwidth, "bus_bytes_per_second",
		(json_int_t)explain->bus, "compute_seconds", (double)explain->step.compute_ns / 1e9,
		"slack", explain->slack, "budget_bytes", (json_int_t)explain->budget_bytes,
		"state_bytes", (json_int_t)explain->state_bytes, "feasible", planned->feasible,
		"limited", planned->limited, "peak_keep_bytes",
		(json_int_t)planned->peak_keep_all_bytes, "peak_bytes",
		(json_int_t)planned->peak_bytes, "step_seconds", (double)planned->wall_ns / 1e9,
		"stall_seconds", (double)planned->stall_ns / 1e9, "recompute_seconds",
		(double)planned->again_ns / 1e9, "bytes_written",
		(json_int_t)planned->bytes_written, "bytes_read", (json_int_t)planned->bytes_read,
		"host_bytes", (json_int_t)explain->host, "tensors_spilled",
		(int)planned->tensors_spilled, "tensors_in_host_memory", (int)planned->tensors_host,
		"host_peak_bytes", (json_int_t)planned->host_peak_bytes, "scopes_recomputed",
		(int)planned->scopes_again, "scopes", scopes);
}
