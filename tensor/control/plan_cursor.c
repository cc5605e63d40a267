/* SPDX-License-Identifier: MIT */
/*
 * tensor/control/plan_cursor.c - a plan is carried out: how far the step is, and what is read next
 *
 * If a tensor does not have the size that the plan has at its place, the step has left its plan: it
 * goes on by the fixed rule, within the memory that it has used so far, and is replanned.
 */
#include "tensor/control/internal.h"
#include "tensor/control/plan_cursor.h"
#include "tensor/control/recording.h"
#include "tensor/control/reference_step.h"

/*
 * Enough in flight that no drive is idle between two requests; what is begun later takes memory
 * later.
 */
#define CHUNKS_IN_FLIGHT 4u /* of each drive */
#define READS_IN_FLIGHT  2u

/* The part, one in this number, of the saved memory that may be used to make up for a stall. */
#define HURRY_PARTS 4u

bool spw_control__follows_plan(const struct control *control)
{
	return control->signature->planned && !control->left && control->recording;
}

uint32_t spw_control__plan_number(const struct control *control)
{
	return control->plan_number;
}

void spw_control__cursor_begin(struct control *control)
{
	control->plan_number++;
	control->left = control->stalled_now = false;
	control->matched = 0;
	control->read_next = control->recompute_next = control->offer_next = 0;
	control->progress_ns = control->progress_at_ns = 0;
	control->due_ns = control->due_throttle_ns = 0;
	if (!control->signature->planned && !control->signature->varies)
		return;
	for (uint32_t i = 0; i < control->signature->reference.count; i++)
		control->slots[i] = NO_SLOT;
}

void spw_control__cursor_progress(struct control *control, uint64_t planned_ns)
{
	if (!spw_control__follows_plan(control) || planned_ns < control->progress_ns)
		return;
	control->progress_ns = planned_ns;
	control->progress_at_ns = spw_control__recording_compute_ns(control);
}

/* When the plan offers what this step has not offered yet; UINT64_MAX: that was all. */
static uint64_t next_offer_ns(struct control *control)
{
	const struct recording *reference = &control->signature->reference;

	/* An offer that was refused in the forward pass does not hold up the backward pass. */
	while (control->offer_next < reference->count &&
	       (!spw_control__has_place(&reference->tensors[control->offer_next]) ||
		control->slots[control->offer_next] != NO_SLOT ||
		(control->stage == SPW_STAGE_BACKWARD &&
		 reference->tensors[control->offer_next].planned_pack_ns <= control->progress_ns)))
		control->offer_next++;
	return control->offer_next < reference->count
		       ? reference->tensors[control->offer_next].planned_pack_ns
		       : UINT64_MAX;
}

/* When the plan next recomputes a scope; UINT64_MAX: not in this step. */
static uint64_t next_recompute_ns(struct control *control)
{
	const struct plan *plan = &control->signature->plan;

	for (; control->recompute_next < plan->use_count; control->recompute_next++) {
		uint32_t which = plan->use_order[control->recompute_next];

		if (plan->choices[which] == SPW_PLAN_AGAIN && control->slots[which] != GONE_SLOT &&
		    plan->use_ns[which] > control->progress_ns)
			return plan->use_ns[which];
	}
	return UINT64_MAX;
}

/*
 * Compute time of the plan that this step has come to. A step that is slower than planned, or whose
 * thread does not run, has not come further than its next offer, or the next scope that is computed
 * again, whatever the clock says: what is read for later would take the room that this needs.
 */
static uint64_t progress_now_ns(struct control *control)
{
	uint64_t ns = control->progress_ns + spw_control__recording_compute_ns(control) -
		      control->progress_at_ns;
	uint64_t next_ns = SPW_MIN(next_offer_ns(control), next_recompute_ns(control));

	return SPW_MAX(control->progress_ns, SPW_MIN(ns, next_ns));
}

/* ---- Is it the step that was planned for? ---- */

const char *spw_control__cursor_scope(struct control *control, uint32_t number)
{
	const struct recording *reference = &control->signature->reference;
	const struct recorded_scope *now = &control->now.scopes[number],
				    *was = &reference->scopes[number];

	if (!spw_control__follows_plan(control))
		return NULL;
	if (number >= reference->scope_count || now->key != was->key || now->stage != was->stage ||
	    now->micro_batch != was->micro_batch)
		return "other scopes or stages than in the step that was planned for";
	spw_control__cursor_progress(control, was->planned_enter_ns);
	return NULL;
}

const char *spw_control__cursor_scope_left(const struct control *control, uint32_t number)
{
	if (!spw_control__follows_plan(control) ||
	    control->now.scopes[number].plannable >=
		    control->signature->reference.scopes[number].plannable)
		return NULL;
	return "fewer tensors in a scope than in the step that was planned for";
}

const char *spw_control__cursor_offer(struct control *control, struct recorded *recorded)
{
	const struct recording *reference = &control->signature->reference;
	uint32_t which;

	if (!spw_control__follows_plan(control))
		return NULL;
	if (recorded->place >= reference->scopes[recorded->scope].plannable)
		return "more tensors in a scope than in the step that was planned for";
	which = spw_control__reference_place(reference, recorded);
	if (reference->tensors[which].bytes != recorded->bytes)
		return "tensors of other sizes than in the step that was planned for";
	recorded->matched = which;
	control->slots[which] = recorded->slot;
	control->matched++;
	control->due_ns = reference->tensors[which].pack_ns;
	control->due_throttle_ns = control->signature->plan.throttle_ns[which];
	spw_control__cursor_progress(control, reference->tensors[which].planned_pack_ns);
	return NULL;
}

void spw_control__cursor_input(struct control *control, struct recorded *recorded)
{
	if (!spw_control__follows_plan(control) || !recorded->plannable)
		return;
	recorded->matched = spw_control__reference_place(&control->signature->reference, recorded);
	if (recorded->matched != NO_TENSOR)
		control->slots[recorded->matched] = recorded->slot;
}

static enum spw_plan_choice choice_of(const struct control *control, uint32_t which)
{
	return which == control->probe ? SPW_PLAN_SPILL : control->signature->plan.choices[which];
}

uint32_t spw_control__cursor_kept(const struct control *control, uint64_t number,
				  uint64_t len_bytes)
{
	const struct recording *reference = &control->signature->reference;
	const struct recorded_scope *scope;
	const struct recorded *was;
	uint32_t place, which;

	/* Scopes that are skipped are found by what is offered. */
	if (!spw_control__follows_plan(control) || control->signature->varies ||
	    control->scope == NO_SCOPE || control->stage != SPW_STAGE_FORWARD)
		return NO_TENSOR;
	scope = &reference->scopes[control->scope];
	place = control->now.scopes[control->scope].plannable;
	if (place >= scope->plannable || number == 0)
		return NO_TENSOR;
	which = reference->members[scope->first + place];
	was = &reference->tensors[which];
	/* The input of a scope is offered as that, too. */
	if (was->number != number || was->bytes != len_bytes || was->is_input ||
	    choice_of(control, which) != SPW_PLAN_KEEP)
		return NO_TENSOR;
	return which;
}

/* Nothing of it comes any more in this step. */
void spw_control__cursor_skipped(struct control *control, uint32_t which)
{
	control->slots[which] = GONE_SLOT;
	control->matched += spw_control__has_place(&control->signature->reference.tensors[which]);
}

void spw_control__cursor_shared(struct control *control, const struct recorded *recorded)
{
	control->slots[recorded->matched] = recorded->slot;
}

bool spw_control__choice(const struct control *control, const struct track *track,
			 enum spw_plan_choice *choice)
{
	const struct recorded *recorded = spw_control__recording_of(control, track);

	*choice = SPW_PLAN_KEEP;
	if (control->rest.now)
		return true;
	if (!spw_control__follows_plan(control) || !recorded || recorded->matched == NO_TENSOR)
		return false;
	*choice = choice_of(control, recorded->matched);
	return true;
}

bool spw_control__copy_ends(const struct control *control, const struct track *track, bool *ended)
{
	const struct recorded *recorded = spw_control__recording_of(control, track);
	const struct plan *plan = &control->signature->plan;

	if (!spw_control__follows_plan(control) || !recorded || recorded->matched == NO_TENSOR ||
	    plan->copied_ns[recorded->matched] == 0)
		return false;
	*ended = plan->copied_ns[recorded->matched] <=
		 control->progress_ns + control->due_throttle_ns;
	return true;
}

/* ---- Memory ---- */

uint64_t spw_control__memory_bytes(const struct control *control)
{
	const struct spw_plan_result *result = &control->signature->plan.result;
	uint64_t bytes = result->memory_bytes;

	if (bytes < result->peak_bytes)
		bytes = result->peak_bytes; /* of a budget that cannot be met */
	if (control->opts.cache.mode != SPW_CACHE_BUDGET && control->stalled_now &&
	    bytes < result->peak_keep_all_bytes)
		bytes += (result->peak_keep_all_bytes - bytes) / HURRY_PARTS;
	return bytes;
}

/* By so much the plan may be exceeded so that the drives are not idle: what they have in flight. */
static uint64_t slack_bytes(const struct control *control)
{
	return control->opts.cache.mode == SPW_CACHE_BUDGET
		       ? 0
		       : 2 * control->opts.chunk_bytes * control->opts.drives;
}

/* Whether the drives would be idle soon. */
static bool reads_wanted(const struct control *control)
{
	const struct flow *reads = &control->measure.flows[DIRECTION_READ];

	return reads->in_flight < READS_IN_FLIGHT ||
	       reads->bytes_in_flight <
		       CHUNKS_IN_FLIGHT * control->opts.chunk_bytes * control->opts.drives;
}

bool spw_control__fits_below_peak(const struct control *control, uint64_t bytes)
{
	const struct spw_cache_opts *opts = &control->opts.cache;
	bool plans = opts->mode == SPW_CACHE_FASTEST || opts->mode == SPW_CACHE_BUDGET;

	return plans && opts->prefetch_bytes == 0 && control->stage == SPW_STAGE_BACKWARD &&
	       reads_wanted(control) && control->memory_bytes + bytes <= control->peak_bytes;
}

/* ---- What is read next ---- */

uint32_t spw_control__next(struct control *control)
{
	const struct signature *signature = control->signature;

	for (; control->read_next < signature->plan.use_count; control->read_next++) {
		uint32_t which = signature->plan.use_order[control->read_next];
		uint32_t slot = control->slots[which];

		if (!spw_control__leaves(choice_of(control, which)))
			continue;
		if (slot != NO_SLOT && slot != GONE_SLOT)
			return slot;
		/* Not offered: it comes yet, or it should have by now. */
		if (slot == NO_SLOT &&
		    control->progress_ns <= signature->reference.tensors[which].planned_pack_ns)
			break;
	}
	return NO_SLOT;
}

bool spw_control__next_is_due(struct control *control)
{
	const struct signature *signature = control->signature;
	uint32_t which = signature->plan.use_order[control->read_next];

	return control->stalled_now || progress_now_ns(control) + signature->plan.lead_ns >=
					       signature->plan.read_from_ns[which];
}

bool spw_control__next_has_room(struct control *control, uint64_t bytes)
{
	const struct signature *signature = control->signature;
	uint64_t from_ns =
		signature->plan.read_from_ns[signature->plan.use_order[control->read_next]];
	uint64_t most_bytes = spw_control__memory_bytes(control);
	bool idle = control->measure.flows[DIRECTION_READ].in_flight == 0;

	SPW_ASSERT(control->memory_bytes >= control->old_bytes); /* CONTROL-2 */
	/* The plan would have begun it by now. */
	if (idle && progress_now_ns(control) > from_ns + signature->plan.lead_ns)
		most_bytes += slack_bytes(control);
	return control->memory_bytes - control->old_bytes + bytes <= most_bytes &&
	       reads_wanted(control);
}

void spw_control__next_done(struct control *control)
{
	control->read_next++;
}
