/* SPDX-License-Identifier: MIT */
/*
 * tensor/control/steps.c - a step ends and the next one begins: what the step says of its plan, and
 * whether to make another
 *
 * Reasons to plan: the first recording; another signature of step; a timeline, a bandwidth or a
 * peak that is no longer what the plan counts on; a stall. What is to be planned is known when a
 * step has ended. The search runs during the next step, which follows the plan before, or none. The
 * new plan is in force in the step after that: always the same one, so that a training run repeats.
 */
#include <errno.h>
#include <stdio.h>

#include "tensor/control/background_traffic.h"
#include "tensor/control/budget.h"
#include "tensor/control/device_clock.h"
#include "tensor/control/headroom.h"
#include "tensor/control/internal.h"
#include "tensor/control/plan_cursor.h"
#include "tensor/control/planning.h"
#include "tensor/control/profile.h"
#include "tensor/control/recording.h"
#include "tensor/control/reference_step.h"
#include "tensor/control/rest.h"
#include "tensor/control/signatures.h"
#include "tensor/control/skipped.h"
#include "tensor/control/wear.h"
#include "util/probes.h"

/* ---- A step has ended ---- */

static void count_step(const struct control *control)
{
	struct spw_cache_stats *count = control->opts.count;

	count->step_compute_ns = spw_control__recording_compute_ns(control);
	count->step_stall_ns = spw_control__stalled_ns(control);
	count->step_hold_ns = control->waited_ns - spw_control__stalled_ns(control);
	count->step_again_ns = control->recompute_ns;
	count->step_peak_bytes = control->peak_bytes;
	count->step_forward_ns = control->now.forward_ns;
	count->step_backward_ns = control->now.backward_ns;
}

/*
 * A backward pass that ended early, after an error or because the loss is not finite: the step says
 * nothing about the next one. Two in a row are how steps are now.
 */
static bool breaks_off(struct control *control)
{
	bool before = control->broke_off;

	control->broke_off = false;
	for (uint32_t i = 0; i < control->now.count && !control->broke_off; i++) {
		const struct recorded *recorded = &control->now.tensors[i];

		control->broke_off =
			recorded->matched != NO_TENSOR && !recorded->only_input &&
			recorded->takes == 0 &&
			control->signature->reference.tensors[recorded->matched].takes > 0;
	}
	return control->broke_off && !before;
}

/* @replaced: by another plan, which it says nothing of. */
static enum plan_reason planned_step_ended(struct control *control, bool replaced)
{
	control->opts.count->steps_planned++;
	spw_control__signature_ended(control);
	if (breaks_off(control))
		return PLAN_REASON_NONE;
	spw_control__background_merge(control, false);
	spw_control__skipped_fill(control);
	spw_control__reference_merge(&control->signature->reference, &control->now);
	return replaced ? PLAN_REASON_NONE : spw_control__headroom_step_ended(control);
}

/* @missing: tensors of the plan, at the end. */
static enum plan_reason fixed_step_ended(struct control *control, bool missing)
{
	struct spw_cache_stats *count = control->opts.count;
	uint32_t timed_by;
	bool replace;

	count->steps_fixed++;
	count->plan_mismatches += missing;
	if (control->now.is_truncated) {
		count->recordings_short++;
		spw_notice(control->opts.notices, CONTROL_NOTICE_SHORT,
			   "a step of more than %u tensors or %u scopes is not planned: "
			   "raise tensors_max",
			   control->tensors_max, control->scopes_max);
		return PLAN_REASON_NONE;
	}
	timed_by = spw_control__device_clock_timed_by(control);
	if (spw_control__signature_known(control)) {
		spw_control__signature_ended(control);
		return PLAN_REASON_NONE;
	}
	replace = spw_control__signature_new(control);
	spw_control__signature_ended(control);
	if (replace) {
		spw_control__background_merge(control, true);
		spw_control__skipped_fill(control);
		spw_control__reference_replace(&control->signature->reference, &control->now);
	}
	if (!replace && control->signature->planned)
		return PLAN_REASON_NONE;
	if (spw_control__device_clock_awaits(control, timed_by))
		return PLAN_REASON_NONE;
	if ((control->opts.drives > 0 || control->host_bytes > 0) &&
	    control->measure.drives.write_bytes_per_second == 0 &&
	    !spw_control__planning_has_host(control))
		return PLAN_REASON_NONE;
	return count->plans == 0 ? PLAN_REASON_FIRST : PLAN_REASON_SHAPE;
}

/* ---- The plan ---- */

void spw_control__plan(struct control *control)
{
	uint64_t began_ns = control->opts.clock_ns();
	int rc = spw_control__planning_plan(&control->asked, &control->draft);

	if (rc)
		(void)snprintf(control->draft_words, sizeof(control->draft_words), "%s",
			       spw_last_error());
	control->draft_cost_ns = control->opts.clock_ns() - began_ns;
	control->draft_rc = rc;
}

/* In a child of fork(2) a search never ends. */
static void plan_begin(struct control *control, enum plan_reason reason)
{
	control->draft_of = control->signature;
	control->draft_reason = reason;
	control->draft_rc = -ECANCELED;
	(void)snprintf(control->draft_words, sizeof(control->draft_words), "%s",
		       "the process that searched is another one");
	spw_control__planning_ask(control);
}

static void count_plan(const struct control *control)
{
	struct spw_cache_stats *count = control->opts.count;
	enum plan_reason reason = control->draft_reason;

	count->plans++;
	count->plans_shape += reason == PLAN_REASON_SHAPE;
	count->plans_timeline += reason == PLAN_REASON_TIMELINE;
	count->plans_bandwidth += reason == PLAN_REASON_BANDWIDTH;
	count->plans_stall += reason == PLAN_REASON_STALL;
	count->plans_memory += reason == PLAN_REASON_MEMORY;
}

/* What was searched for is the plan of its signature. Return: that; NULL: nothing was found. */
static struct signature *plan_take(struct control *control)
{
	const struct spw_plan_result *result = &control->draft.result;
	struct signature *signature = control->draft_of;
	struct plan before = signature->plan;

	control->draft_of = NULL;
	control->opts.count->plan_cost_ns = control->draft_cost_ns;
	if (control->draft_rc) {
		control->opts.count->plans_failed++;
		spw_notice(control->opts.notices, CONTROL_NOTICE_PLAN, "no plan could be made: %s",
			   control->draft_words);
		return NULL;
	}
	count_plan(control);
	SPW_PROBE(plan, control, control->draft_reason, result->tensors_spilled,
		  control->draft_cost_ns);
	if (control->opts.cache.mode == SPW_CACHE_BUDGET &&
	    !spw_control__budget_fits(control, &control->draft)) {
		control->opts.count->plans_failed++;
		spw_notice(control->opts.notices, CONTROL_NOTICE_PLAN,
			   "a budget of %llu bytes cannot be met: planned for the lowest "
			   "peak found, %llu bytes",
			   (unsigned long long)control->opts.cache.memory_bytes,
			   (unsigned long long)result->peak_bytes);
	}
	spw_control__wear_planned(control, &control->draft);
	signature->plan = control->draft;
	control->draft = before;
	signature->planned = true;
	spw_control__reference_planned(&signature->reference);
	if (signature == control->signature)
		control->probe = NO_TENSOR; /* the plan before has tried the drives with it */
	return signature;
}

bool spw_control__step_ended(struct control *control)
{
	bool planned = control->signature->planned && !control->left;
	bool followed = spw_control__follows_plan(control) &&
			control->matched == control->signature->reference.plannable;
	bool replaced;
	enum plan_reason reason = PLAN_REASON_NONE;

	spw_control__profile_note(control);
	spw_control__skipped_end(control);
	spw_control__recording_end(control);
	if (control->opts.count->steps > 0) /* before the first there was none */
		count_step(control);
	if (control->now.takes > 0)
		spw_control__budget_step_ended(control, control->signature->planned, followed);
	spw_control__measure_step(&control->measure);
	replaced = control->draft_of && plan_take(control) == control->signature;
	/* Without a backward pass it was not a training step, and says nothing about the next. */
	if (control->records && control->now.takes > 0) {
		spw_control__wear_step_ended(control);
		if (!followed)
			control->late_before = control->was_late = false;
		reason = followed ? planned_step_ended(control, replaced)
				  : fixed_step_ended(control, planned);
	}
	if (control->now.takes > 0 && !control->broke_off && !control->now.is_truncated)
		spw_control__device_clock_belongs(control);
	if (reason != PLAN_REASON_NONE)
		plan_begin(control, reason);
	spw_control__rest_step_ended(control, followed && !control->broke_off);
	return reason != PLAN_REASON_NONE;
}

/* ---- A step begins ---- */

void spw_control__step_began(struct control *control)
{
	spw_control__device_clock_adopt(control);
	control->step++;
	spw_control__recording_begin(control);
	spw_control__background_begin(control);
	spw_control__profile_step_began(control);
	spw_control__signature_predict(control);
	control->switched = false;
	spw_control__cursor_begin(control);
	spw_control__skipped_begin(control, control->skips_off);
	control->skips_off = false;
	if (control->signature->planned)
		spw_control__planning_probe(control);
}
