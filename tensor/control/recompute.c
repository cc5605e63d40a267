/* SPDX-License-Identifier: MIT */
/*
 * tensor/control/recompute.c - plans of scopes: what the planner is asked, and what becomes of it
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/control/internal.h"
#include "tensor/control/recompute.h"

bool spw_control__recompute_scope_may(const struct recorded_scope *scope)
{
	return scope->stage == SPW_STAGE_FORWARD && scope->input != NO_TENSOR && !scope->has_scopes;
}

bool spw_control__recompute_may(const struct recording *reference)
{
	for (uint32_t i = 0; i < reference->scope_count; i++)
		if (spw_control__recompute_scope_may(&reference->scopes[i]))
			return true;
	return false;
}

struct spw_plan_scopes spw_control__recompute_scopes(struct asked *asked)
{
	const struct recording *reference = asked->reference;
	struct spw_plan_scopes scopes;

	spw_plan_scopes_init(&scopes, sizeof(scopes));
	for (uint32_t i = 0; i < reference->scope_count; i++) {
		const struct recorded_scope *scope = &reference->scopes[i];
		bool may = spw_control__recompute_scope_may(scope);

		asked->scopes[i] = (struct spw_plan_scope){
			.enter_ns = scope->enter_ns,
			.again_ns = scope->saved_ns > scope->enter_ns
					    ? scope->saved_ns - scope->enter_ns
					    : 0,
			.input = may ? scope->input : 0,
			.may_again = may,
		};
	}
	scopes.scopes = asked->scopes;
	scopes.count = reference->scope_count;
	if (!spw_control__recompute_may(reference))
		scopes.slack = 0; /* as of plans that only spill */
	scopes.flows = asked->flows;
	scopes.flows_count = asked->flows_count;
	scopes.unthrottled = asked->unthrottled;
	return scopes;
}

/* ---- When to read ---- */

static int by_begin(const void *a, const void *b)
{
	const struct spw_plan_span *one = a, *other = b;

	return (one->begin_ns > other->begin_ns) - (one->begin_ns < other->begin_ns);
}

/*
 * When the read of each tensor may begin, in compute time. Time that is recomputed or waited is not
 * compute time; both may be at once.
 */
static void time_reads(struct plan *plan, const struct spw_plan_span spans[], uint32_t count)
{
	uint64_t away_ns = 0, away_until_ns = 0;

	for (uint32_t k = 0; k < count; k++) {
		const struct spw_plan_span *span = &spans[k];
		uint64_t from_ns = SPW_MAX(span->begin_ns, away_until_ns);

		if (span->kind == SPW_PLAN_SPAN_READ) {
			plan->read_from_ns[span->which] = from_ns - away_ns;
		} else if (span->kind != SPW_PLAN_SPAN_WRITE && span->end_ns > away_until_ns) {
			away_ns += span->end_ns - from_ns;
			away_until_ns = span->end_ns;
		}
	}
}

/* From when each tensor is saved, to what compute waits before that. */
static void time_throttles(const struct asked *asked, struct plan *plan,
			   const struct spw_plan_step *step)
{
	for (uint32_t i = 0; i < step->count; i++)
		plan->throttle_ns[i] =
			plan->choices[i] == SPW_PLAN_AGAIN || asked->reference->tensors[i].decided
				? 0
				: spw_since_ns(step->tensors[i].pack_ns, plan->throttle_ns[i]);
}

int spw_control__recompute_schedule(struct asked *asked, const struct spw_plan_step *step,
				    struct plan *plan)
{
	const struct spw_plan_scopes scopes = spw_control__recompute_scopes(asked);
	size_t most = (size_t)SPW_PLAN_SPANS_PER_TENSOR * step->count + scopes.count;
	struct spw_plan_span *spans = calloc(most + 1, sizeof(*spans));
	const struct spw_plan_record record = {
		.spans = spans, .spans_max = most, .saved_ns = plan->throttle_ns};
	struct spw_plan_result result = {.size = sizeof(result)};
	int rc;

	if (spans)
		rc = spw_plan_scopes_simulate(step, &asked->drives, &scopes,
					      plan->result.memory_bytes, plan->choices, &record,
					      &result);
	else
		rc = spw_error(-ENOMEM, "no memory for the reads of %u tensors", step->count);
	if (rc == 0) {
		/* What the simulation does not read stays in memory, or is read when it can be. */
		memset(plan->read_from_ns, 0, step->count * sizeof(plan->read_from_ns[0]));
		qsort(spans, result.spans, sizeof(*spans), by_begin);
		time_reads(plan, spans, result.spans);
		if (scopes.unthrottled)
			memset(plan->throttle_ns, 0, step->count * sizeof(plan->throttle_ns[0]));
		else
			time_throttles(asked, plan, step);
	}
	free(spans);
	return rc;
}
