/* SPDX-License-Identifier: MIT */
/*
 * plan/recompute.c - struct plan_recompute: the events of a step in which some scopes are
 * recomputed
 *
 * Recomputing changes the step, not the simulation: the tensors that a scope discards are packed in
 * the backward pass, where one is first wanted and while the scope's input is in memory, and all
 * later events are delayed. All times are compute time; the simulation adds the waits.
 */
#include "plan/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "util/util.h"

#define NS_MAX    (UINT64_C(1) << 50)
#define BYTES_MAX (UINT64_C(1) << 62)

/* ---- Checks ---- */

static int check_scopes(const struct spw_plan_step *step, const struct spw_plan_scopes *scopes)
{
	if (scopes->size < sizeof(scopes->size) || scopes->count > SPW_PLAN_TENSORS_MAX ||
	    (scopes->count > 0 && !scopes->scopes))
		return spw_error(-EINVAL, "plan: %u scopes, but no array of them, or more than %u",
				 scopes->count, SPW_PLAN_TENSORS_MAX);
	for (uint32_t s = 0; s < scopes->count; s++) {
		const struct spw_plan_scope *scope = &scopes->scopes[s];

		if (spw_reserved_check(scope->reserved, sizeof(scope->reserved), "plan: a scope"))
			return -EINVAL;
		if (!scope->may_again)
			continue;
		if (scope->enter_ns > NS_MAX || scope->again_ns > NS_MAX / (scopes->count + 1))
			return spw_error(-EINVAL,
					 "plan: scope %u: enter_ns or again_ns is too large", s);
		if (scope->input >= step->count)
			return spw_error(-EINVAL,
					 "plan: scope %u: there is no tensor %u to be its "
					 "input",
					 s, scope->input);
	}
	return 0;
}

static int check_flows(const struct spw_plan_scopes *scopes)
{
	if (scopes->flows_count > SPW_PLAN_FLOWS_MAX || (scopes->flows_count > 0 && !scopes->flows))
		return spw_error(-EINVAL, "plan: %u flows, but no array of them, or more than %u",
				 scopes->flows_count, SPW_PLAN_FLOWS_MAX);
	for (uint32_t k = 0; k < scopes->flows_count; k++) {
		const struct spw_plan_flow *flow = &scopes->flows[k];

		if (spw_reserved_check(flow->reserved, sizeof(flow->reserved), "plan: a flow"))
			return -EINVAL;
		if (flow->from_ns > NS_MAX || flow->ns > NS_MAX || flow->ns == 0 ||
		    flow->bytes_read > BYTES_MAX || flow->bytes_written > BYTES_MAX)
			return spw_error(-EINVAL,
					 "plan: flow %u: its time is 0, or a figure is too "
					 "large",
					 k);
		if (k > 0 && flow->from_ns < scopes->flows[k - 1].from_ns)
			return spw_error(-EINVAL, "plan: flow %u begins before the one before it",
					 k);
	}
	return 0;
}

/* ---- Open and close ---- */

static int allocate(struct plan_recompute *recompute)
{
	size_t tensors = (size_t)recompute->step->count + 1,
	       scopes = (size_t)recompute->scopes->count + 1;
	size_t flows = recompute->scopes->flows_count;
	size_t events = 3 * tensors + 2 * scopes + recompute->step->calls + flows;
	struct plan_held *held = &recompute->held;
	const struct plan_piece pieces[] = {
		{&recompute->members, tensors * sizeof(uint32_t)},
		{&recompute->first, (scopes + 1) * sizeof(uint32_t)},
		{&recompute->may, scopes},
		{&recompute->giving, tensors},
		{&recompute->stays, tensors},
		{&recompute->can_spill, tensors},
		{&recompute->recompute, scopes},
		{&recompute->done, scopes},
		{&recompute->needed, tensors * sizeof(uint32_t)},
		{&recompute->gone, tensors},
		{&recompute->work.events, events * sizeof(struct plan_event)},
		{&recompute->work.by_use, tensors * sizeof(uint32_t)},
		{&recompute->work.used, tensors},
		{&held->use_event, tensors * sizeof(uint32_t)},
		{&held->most, events * sizeof(double)},
		{&held->net, events * sizeof(double)},
		{&held->window, events * sizeof(uint32_t)},
		{&held->flows, flows * sizeof(struct plan_flow)},
		{&held->flow_end_ns, flows * sizeof(double)},
	};

	recompute->events_max = events;
	recompute->memory = spw_plan__allocate(pieces, SPW_ARRAY_LEN(pieces));
	if (!recompute->memory)
		return spw_error(-ENOMEM, "plan: no memory for %u scopes",
				 recompute->scopes->count);
	return 0;
}

/* Sort tensors by scope, in the order of packing: count them, then fill from the end. */
static void sort_members(struct plan_recompute *recompute)
{
	const struct spw_plan_step *step = recompute->step;
	uint32_t count = recompute->scopes->count, total = 0;

	for (uint32_t i = 0; i < step->count; i++)
		if (step->tensors[i].scope < count)
			recompute->first[step->tensors[i].scope]++;
	for (uint32_t s = 0; s < count; s++) {
		total += recompute->first[s];
		recompute->first[s] = total;
	}
	recompute->first[count] = total;
	for (uint32_t k = step->count; k-- > 0;) {
		uint32_t i = recompute->base.by_pack[k], s = step->tensors[i].scope;

		if (s < count)
			recompute->members[--recompute->first[s]] = i;
	}
	SPW_ASSERT(recompute->first[0] == 0 && recompute->first[count] == total);
}

static bool is_saved_before(const struct plan_recompute *recompute, uint32_t input, uint32_t i)
{
	return recompute->base.pack_ns[input] <= recompute->base.use_ns[i];
}

/*
 * Find the tensors that recomputation can restore. It helps if one is used after the scope's input
 * is in memory.
 */
static void find_givers(struct plan_recompute *recompute)
{
	const struct spw_plan_scopes *scopes = recompute->scopes;

	for (uint32_t s = 0; s < scopes->count; s++)
		for (uint32_t k = recompute->first[s]; k < recompute->first[s + 1]; k++) {
			uint32_t i = recompute->members[k];
			const struct spw_plan_tensor *tensor = &recompute->step->tensors[i];

			recompute->giving[i] =
				scopes->scopes[s].may_again && !tensor->not_again &&
				scopes->scopes[s].input != i && tensor->users > 0 &&
				is_saved_before(recompute, scopes->scopes[s].input, i);
			recompute->may[s] |= recompute->giving[i];
		}
}

static void set_flows(struct plan_recompute *recompute, const struct spw_plan_drives *drives)
{
	const struct spw_plan_scopes *scopes = recompute->scopes;
	/* Const for all other functions. */
	struct plan_flow *flows = (struct plan_flow *)recompute->held.flows;

	recompute->held.flows_count = scopes->flows_count;
	for (uint32_t k = 0; k < scopes->flows_count; k++) {
		const struct spw_plan_flow *flow = &scopes->flows[k];
		double seconds = (double)flow->ns / 1e9, share = 0;

		if (drives->write_bytes_per_second > 0)
			share += (double)flow->bytes_written / seconds /
				 (double)drives->write_bytes_per_second;
		if (drives->read_bytes_per_second > 0)
			share += (double)flow->bytes_read / seconds /
				 (double)drives->read_bytes_per_second;
		/* Traffic beyond the drives' bandwidth takes longer. */
		flows[k] = (struct plan_flow){.share = share < 1 ? share : 1,
					      .ns = (double)flow->ns * (share < 1 ? 1 : share)};
	}
}

int spw_plan__recompute_open(struct plan_recompute *recompute, const struct spw_plan_step *step,
			     const struct spw_plan_drives *drives,
			     const struct spw_plan_scopes *scopes)
{
	double measured_ns = (double)(step->forward_ns + step->backward_ns);
	int rc;

	memset(recompute, 0, sizeof(*recompute));
	recompute->step = step;
	recompute->scopes = scopes;
	rc = spw_plan__work_open(&recompute->base, step, drives);
	if (rc)
		return rc;
	rc = check_scopes(step, scopes);
	if (!rc)
		rc = check_flows(scopes);
	if (!rc) {
		recompute->work = recompute->base;
		rc = allocate(recompute);
	}
	if (rc) {
		spw_plan__work_close(&recompute->base);
		return rc;
	}
	sort_members(recompute);
	find_givers(recompute);
	set_flows(recompute, drives);
	if (recompute->base.event_count > 0)
		recompute->compute_ns = recompute->base.events[recompute->base.event_count - 1].ns;
	if (measured_ns > recompute->compute_ns)
		recompute->compute_ns = measured_ns;
	spw_plan__recompute_set(recompute, recompute->done);
	recompute->held.throttled = true;
	return 0;
}

void spw_plan__recompute_close(struct plan_recompute *recompute)
{
	free(recompute->memory);
	spw_plan__work_close(&recompute->base);
}

/* ---- The step with recomputed scopes ---- */

/* The state of writing the new sequence of events. */
struct laying {
	struct plan_recompute *recompute;
	struct plan_event *event;
	uint32_t uses, flows;
	double late_ns; /* time spent recomputing so far */
};

static void lay(struct laying *laying, double ns, uint32_t which, enum plan_event_kind kind)
{
	*laying->event++ = (struct plan_event){ns, which, kind};
}

static void lay_use(struct laying *laying, double ns, uint32_t i)
{
	struct plan_recompute *recompute = laying->recompute;

	SPW_ASSERT(!recompute->work.used[i] && laying->uses < recompute->step->count);
	recompute->work.used[i] = 1;
	recompute->work.by_use[laying->uses++] = i;
	recompute->held.use_event[i] = (uint32_t)(laying->event - recompute->work.events);
	lay(laying, ns, i, PLAN_USE);
}

static void lay_release(struct laying *laying, double ns, uint32_t i)
{
	/* An input stays in memory until the last scope that needs it has been recomputed. */
	laying->recompute->gone[i] = 1;
	if (laying->recompute->needed[i] == 0)
		lay(laying, ns, i, PLAN_RELEASE);
}

/* Add the recomputation of scope @s at @ns, where the backward pass first wants a tensor of it. */
static void lay_recompute(struct laying *laying, double ns, uint32_t s)
{
	struct plan_recompute *recompute = laying->recompute;
	const struct spw_plan_scope *scope = &recompute->scopes->scopes[s];
	double again_ns = (double)scope->again_ns;
	uint32_t input = scope->input;

	SPW_ASSERT(!recompute->done[s] && recompute->needed[input] > 0);
	if (!recompute->work.used[input])
		lay_use(laying, ns, input);
	lay(laying, ns, s, PLAN_RECOMPUTE_BEGIN);
	for (uint32_t k = recompute->first[s]; k < recompute->first[s + 1]; k++) {
		uint32_t i = recompute->members[k];
		double after_ns = recompute->base.pack_ns[i] - (double)scope->enter_ns;

		/* Skip tensors that stayed in memory as the input of another scope. */
		if (!spw_plan__recompute_gives(recompute, i) || recompute->gone[i])
			continue;
		if (after_ns < 0)
			after_ns = 0;
		lay(laying, ns + (after_ns < again_ns ? after_ns : again_ns), i, PLAN_PACK);
	}
	lay(laying, ns + again_ns, s, PLAN_RECOMPUTE_END);
	recompute->done[s] = 1;
	laying->late_ns += again_ns;
	recompute->needed[input]--;
	if (recompute->needed[input] == 0 && recompute->gone[input])
		lay(laying, ns + again_ns, input, PLAN_RELEASE);
}

/* Add the begin of background traffic that compute reaches until @until_ns. */
static void lay_flows(struct laying *laying, double until_ns)
{
	const struct spw_plan_scopes *scopes = laying->recompute->scopes;

	for (; laying->flows < scopes->flows_count &&
	       (double)scopes->flows[laying->flows].from_ns <= until_ns;
	     laying->flows++)
		lay(laying, (double)scopes->flows[laying->flows].from_ns + laying->late_ns,
		    laying->flows, PLAN_FLOW);
}

static void lay_event(struct laying *laying, const struct plan_event *event)
{
	struct plan_recompute *recompute = laying->recompute;
	uint32_t i = event->tensor, s;
	bool gives;

	if (event->kind == PLAN_CALL) {
		lay(laying, event->ns + laying->late_ns, i, PLAN_CALL);
		return;
	}
	s = recompute->step->tensors[i].scope;
	gives = spw_plan__recompute_gives(recompute, i);
	if (event->kind == PLAN_PACK) {
		if (!gives)
			lay(laying, event->ns + laying->late_ns, i, PLAN_PACK);
	} else if (event->kind == PLAN_USE) {
		if (gives && !recompute->done[s])
			lay_recompute(laying, event->ns + laying->late_ns, s);
		if (!recompute->work.used[i])
			lay_use(laying, event->ns + laying->late_ns, i);
	} else if (!gives || recompute->done[s]) {
		lay_release(laying, event->ns + laying->late_ns, i);
	} else {
		recompute->gone[i] = 1;
	}
}

bool spw_plan__recompute_gives(const struct plan_recompute *recompute, uint32_t i)
{
	uint32_t s = recompute->step->tensors[i].scope;

	/* The input of another recomputed scope stays in memory. */
	return recompute->giving[i] && recompute->recompute[s] && !recompute->stays[i];
}

void spw_plan__recompute_set(struct plan_recompute *recompute, const uint8_t *scopes)
{
	uint32_t count = recompute->scopes->count, tensors = recompute->step->count;
	struct laying laying = {.recompute = recompute, .event = recompute->work.events};

	memset(recompute->needed, 0, tensors * sizeof(*recompute->needed));
	memset(recompute->stays, 0, tensors);
	memset(recompute->gone, 0, tensors);
	memset(recompute->work.used, 0, tensors);
	for (uint32_t s = 0; s < count; s++) {
		recompute->recompute[s] = scopes[s] && recompute->may[s];
		if (!recompute->recompute[s])
			continue;
		recompute->needed[recompute->scopes->scopes[s].input]++;
		recompute->stays[recompute->scopes->scopes[s].input] = 1;
	}
	memset(recompute->done, 0, count);
	for (uint32_t k = 0; k < recompute->base.event_count; k++) {
		const struct plan_event *event = &recompute->base.events[k];

		lay_flows(&laying, event->ns);
		lay_event(&laying, event);
	}
	/*
	 * Release inputs of scopes that were not recomputed after all, as all their tensors stay
	 * for other scopes.
	 */
	for (uint32_t i = 0; i < tensors; i++)
		if (recompute->needed[i] > 0 && recompute->gone[i])
			lay(&laying, recompute->compute_ns + laying.late_ns, i, PLAN_RELEASE);
	for (uint32_t i = 0, k = laying.uses; i < tensors; i++)
		if (!recompute->work.used[i])
			recompute->work.by_use[k++] = i;
	memcpy(recompute->can_spill, recompute->base.eligible, tensors);
	for (uint32_t i = 0; i < tensors; i++)
		if (recompute->giving[i])
			recompute->can_spill[i] &= !spw_plan__recompute_gives(recompute, i);
	recompute->work.event_count = (uint32_t)(laying.event - recompute->work.events);
	recompute->again_ns = laying.late_ns;
	SPW_ASSERT(recompute->work.event_count <= recompute->events_max &&
		   laying.flows <= recompute->scopes->flows_count);
}

void spw_plan__recompute_simulate(struct plan_recompute *recompute, const uint8_t *spill,
				  double limit, const struct plan_bounds *bounds,
				  struct plan_profile *profile, struct plan_outcome *outcome)
{
	SPW_ASSERT(limit >= 0);
	recompute->held.limit = limit;
	spw_plan__simulate(&recompute->work, spill, &recompute->held, bounds, profile, outcome);
}

int spw_plan__recompute_choose(struct plan_recompute *recompute,
			       const enum spw_plan_choice choices[], bool is_earlier)
{
	const struct spw_plan_step *step = recompute->step;
	uint8_t *scopes = recompute->done; /* scratch until the step is set */

	memset(scopes, 0, recompute->scopes->count);
	for (uint32_t i = 0; i < step->count; i++) {
		if (choices[i] == SPW_PLAN_HOST && recompute->base.host <= 0)
			return spw_error(-EINVAL, "plan: tensor %u: there is no host memory", i);
		recompute->base.in_host[i] = choices[i] == SPW_PLAN_HOST;
		recompute->base.spill[i] =
			(choices[i] == SPW_PLAN_SPILL || choices[i] == SPW_PLAN_HOST) &&
			(recompute->base.eligible[i] || !is_earlier);
		if (choices[i] != SPW_PLAN_AGAIN)
			continue;
		if (!recompute->giving[i] && is_earlier)
			continue;
		if (!recompute->giving[i])
			return spw_error(-EINVAL, "plan: tensor %u cannot be recomputed", i);
		scopes[step->tensors[i].scope] = 1;
	}
	spw_plan__recompute_set(recompute, scopes);
	for (uint32_t i = 0; i < step->count; i++)
		if (spw_plan__recompute_gives(recompute, i))
			recompute->base.spill[i] = 0;
	return 0;
}
