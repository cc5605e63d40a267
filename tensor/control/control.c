/* SPDX-License-Identifier: MIT */
/*
 * tensor/control/control.c - the controller's events, and the course of steps
 *
 * Reasons to plan: the first recording; another shape of step; a timeline, a bandwidth or a peak
 * that is no longer what the plan counts on; a stall. What is to be planned is known when a step
 * has ended; the plan is searched for during the next one, which goes on by the plan before, or by
 * none, and is in force from the step after that on: at the same one wherever the same is trained.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

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
#include "tensor/control/shapes.h"
#include "tensor/control/skipped.h"
#include "tensor/control/wear.h"
#include "util/probes.h"

int spw_control__open(const struct control_opts *opts, struct control **out)
{
	struct control *control = *out = calloc(1, sizeof(*control));

	if (!control)
		return spw_error(-ENOMEM, "no memory for a cache");
	control->opts = *opts;
	control->shape = &control->shapes[0];
	control->probe = NO_TENSOR;
	control->time = HEADROOM_NONE(TIME_PATIENCE_STEPS);
	control->shape->memory = HEADROOM_NONE(MEMORY_PATIENCE_STEPS);
	spw_control__wear_open(control);
	control->profile.width_shift = 0; /* nothing is noted before a step */
	spw_control__recording_begin(
		control); /* the first step has not begun: records is not set yet */
	control->records = opts->cache.mode >= SPW_CACHE_FASTEST;
	return control->records ? spw_control__recording_open(control) : 0;
}

void spw_control__close(struct control *control)
{
	if (control)
		spw_control__recording_close(control);
	free(control);
}

/* ---- Where the caller is ---- */

/*
 * @what, unless NULL, shows that the step is not the one planned for: another plan may fit,
 * or the fixed rule does.
 */
static void leave_by(struct control *control, const char *what)
{
	if (!what || spw_control__shape_switch(control))
		return;
	control->left = true;
	control->plan_number++;
	control->opts.count->plan_mismatches++;
	spw_notice(control->opts.notices, CONTROL_NOTICE_SHAPE,
		   "%s: this step follows the fixed rule, and the next is replanned", what);
}

void spw_control__stage(struct control *control, uint32_t micro_batch, enum spw_stage stage)
{
	if (control->stage == SPW_STAGE_FORWARD)
		spw_control__skipped_rest(control, control->stage_scope);
	control->micro_batch = micro_batch;
	control->stage = stage;
	control->stage_scope = spw_control__scope_enter(control, 0);
}

uint32_t spw_control__scope_enter(struct control *control, uint64_t key)
{
	uint32_t matched = spw_control__skipped_before(control, key);
	uint32_t number = spw_control__recording_scope(control, key);

	if (number == NO_SCOPE)
		return NO_SCOPE;
	control->now.scopes[number].matched = matched;
	leave_by(control, spw_control__cursor_scope(control, number));
	return number;
}

void spw_control__scope_leave(struct control *control, uint32_t outer)
{
	uint32_t left;

	if (control->scope != control->stage_scope)
		spw_control__skipped_rest(control, control->scope);
	left = spw_control__recording_leave(control, outer);
	if (left != NO_SCOPE)
		leave_by(control, spw_control__cursor_scope_left(control, left));
}

/* ---- Tensors ---- */

struct track spw_control__track(const struct control *control)
{
	return (struct track){.recorded = NO_TENSOR, .step = control->step};
}

void spw_control__saved(struct control *control, uint64_t len_bytes)
{
	control->keep_all_bytes += len_bytes;
}

static void take_place(struct control *control, struct recorded *recorded)
{
	struct recording *now = &control->now;

	recorded->place = now->scopes[recorded->scope].plannable;
	spw_control__skipped_offered(control, recorded);
	leave_by(control, spw_control__cursor_offer(control, recorded));
	now->scopes[recorded->scope].plannable++;
	now->scopes[recorded->scope].bytes += recorded->bytes;
	now->plannable++;
}

void spw_control__offered(struct control *control, struct track *track, uint32_t slot,
			  uint64_t len_bytes, enum spw_cache_hint hint)
{
	struct recorded *recorded, *shared = NULL;

	if (hint != SPW_HINT_INPUT && spw_control__may_plan(control, len_bytes, hint))
		spw_control__skipped_missing(control, len_bytes);
	recorded = spw_control__recording_offer(control, track, slot, len_bytes, hint);
	if (hint != SPW_HINT_INPUT)
		spw_control__recording_saved(control);
	if (!recorded)
		return;
	if (hint == SPW_HINT_INPUT) {
		spw_control__recording_input(control, recorded);
		spw_control__cursor_input(control, recorded);
	} else if (recorded->plannable) {
		shared = spw_control__skipped_shared(control, track, recorded);
		if (shared)
			spw_control__cursor_shared(control, shared);
		else
			take_place(control, recorded);
	}
}

/* So far it was only the input of scopes that may be recomputed. */
static void saved_after_all(struct control *control, struct recorded *recorded)
{
	if (!recorded->plannable || control->stage != SPW_STAGE_FORWARD ||
	    control->scope == NO_SCOPE)
		return;
	recorded->only_input = false;
	recorded->scope = control->scope;
	take_place(control, recorded);
}

void spw_control__hinted(struct control *control, const struct track *track,
			 enum spw_cache_hint hint)
{
	struct recorded *recorded = spw_control__recording_of(control, track);

	if (hint != SPW_HINT_INPUT)
		spw_control__recording_saved(control);
	if (!recorded)
		return;
	if (hint == SPW_HINT_INPUT)
		spw_control__recording_input(control, recorded);
	else if (recorded->scope != control->scope)
		recorded->no_recompute = true;
	if (hint != SPW_HINT_INPUT && recorded->only_input)
		saved_after_all(control, recorded);
	if (hint == SPW_HINT_PIN || (hint == SPW_HINT_KEEP && recorded->hint != SPW_HINT_PIN))
		recorded->hint = (uint8_t)hint;
}

void spw_control__taken(struct control *control, const struct track *track)
{
	struct recorded *recorded = spw_control__recording_of(control, track);

	/* What a recompute takes is not a use by the step. */
	if (!recorded || control->recomputing)
		return;
	spw_control__skipped_taken(control, recorded);
	spw_control__recording_take(control, recorded);
	if (recorded->matched != NO_TENSOR && recorded->takes == 1)
		spw_control__cursor_progress(
			control,
			control->shape->reference.tensors[recorded->matched].planned_use_ns);
}

void spw_control__gone(struct control *control, uint64_t len_bytes)
{
	SPW_ASSERT(control->keep_all_bytes >= len_bytes);
	control->keep_all_bytes -= len_bytes;
	spw_control__profile_note(control);
}

void spw_control__released(struct control *control, const struct track *track, bool leased)
{
	struct recorded *recorded = spw_control__recording_of(control, track);

	if (!recorded)
		return;
	spw_control__recording_release(control, recorded);
	if (recorded->matched == NO_TENSOR)
		return;
	if (!leased)
		spw_control__cursor_progress(
			control,
			control->shape->reference.tensors[recorded->matched].planned_release_ns);
	control->slots[recorded->matched] = GONE_SLOT;
}

void spw_control__stored(struct control *control, const struct track *track, bool stored)
{
	struct recorded *recorded = spw_control__recording_of(control, track);

	if (recorded)
		recorded->stored = stored;
}

/* ---- Memory and time ---- */

void spw_control__memory_add(struct control *control, const struct track *track, uint64_t bytes)
{
	control->memory_bytes += bytes;
	if (control->memory_bytes > control->peak_bytes) {
		control->peak_bytes = control->memory_bytes;
		control->peak_writing_bytes =
			control->measure.flows[DIRECTION_WRITE].bytes_in_flight;
	}
	if (track->step != control->step)
		control->old_bytes += bytes;
	spw_control__profile_note(control);
}

void spw_control__memory_sub(struct control *control, const struct track *track, uint64_t bytes)
{
	SPW_ASSERT(control->memory_bytes >= bytes);
	control->memory_bytes -= bytes;
	spw_control__profile_note(control);
	if (track->step == control->step)
		return;
	SPW_ASSERT(control->old_bytes >= bytes); /* CONTROL-2 */
	control->old_bytes -= bytes;
}

uint64_t spw_control__wait_began(struct control *control)
{
	uint64_t now_ns = control->opts.clock_ns();

	if (control->waiting++ == 0)
		control->waiting_since_ns = now_ns;
	spw_control__recording_away(control, true, now_ns);
	return now_ns;
}

/* Once a step stalls by more than its share, time is worth more than memory. */
static void stall_noticed(struct control *control)
{
	if (!spw_control__follows_plan(control) || control->stalled_now ||
	    control->opts.cache.mode == SPW_CACHE_BUDGET ||
	    (double)spw_control__stalled_ns(control) <
		    (double)control->shape->plan.result.stall_ns +
			    NEGLIGIBLE * (double)control->shape->plan.result.wall_ns)
		return;
	control->stalled_now = true;
	control->opts.count->steps_hurried++;
}

uint64_t spw_control__wait_ended(struct control *control)
{
	uint64_t now_ns = control->opts.clock_ns();

	SPW_ASSERT(control->waiting > 0); /* CONTROL-1 */
	if (--control->waiting == 0)
		control->waited_ns += now_ns - control->waiting_since_ns;
	spw_control__recording_away(control, false, now_ns);
	stall_noticed(control);
	return now_ns;
}

/* The time that has passed was taken for compute: it stands still until it has been made up for. */
static void device_stalled(struct control *control, uint64_t ns)
{
	if (ns == 0)
		return;
	control->compute_ns_min = spw_control__recording_host_ns(control);
	control->waited_ns += ns;
	control->away_ns += ns;
	stall_noticed(control);
}

void spw_control__device(struct control *control, const struct spw_device_times *times)
{
	spw_control__measure_copied(&control->measure, DIRECTION_WRITE, times->bytes_out,
				    times->out_ns);
	spw_control__measure_copied(&control->measure, DIRECTION_READ, times->bytes_in,
				    times->in_ns);
	device_stalled(control, times->stall_ns);
}

uint64_t spw_control__mark(struct control *control)
{
	return spw_control__device_clock_mark(control, spw_control__recording_host_ns(control));
}

void spw_control__marked(struct control *control, uint64_t mark, uint64_t device_ns)
{
	spw_control__device_clock_marked(control, mark, device_ns);
}

void spw_control__recomputing(struct control *control, bool again)
{
	uint64_t now_ns = control->opts.clock_ns();

	SPW_ASSERT(again != control->recomputing);
	control->recomputing = again;
	if (again)
		control->recompute_since_ns = now_ns;
	else
		control->recompute_ns += now_ns - control->recompute_since_ns;
	spw_control__recording_away(control, again, now_ns);
}

uint64_t spw_control__step_ns(const struct control *control)
{
	return control->opts.clock_ns() - control->began_ns;
}

uint64_t spw_control__io_began(struct control *control, enum direction direction, uint64_t bytes)
{
	uint64_t now_ns = control->opts.clock_ns();

	spw_control__measure_began(&control->measure, direction, bytes, now_ns);
	return now_ns;
}

void spw_control__io_ended(struct control *control, enum direction direction, uint64_t bytes,
			   bool served, uint64_t began_ns)
{
	spw_control__measure_ended(&control->measure, direction, bytes, served, began_ns,
				   control->opts.clock_ns());
}

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

		control->broke_off = recorded->matched != NO_TENSOR && !recorded->only_input &&
				     recorded->takes == 0 &&
				     control->shape->reference.tensors[recorded->matched].takes > 0;
	}
	return control->broke_off && !before;
}

/* @replaced: by another plan, which it says nothing of. */
static enum plan_reason planned_step_ended(struct control *control, bool replaced)
{
	control->opts.count->steps_planned++;
	spw_control__shape_ended(control);
	if (breaks_off(control))
		return PLAN_REASON_NONE;
	spw_control__background_merge(control, false);
	spw_control__skipped_fill(control);
	spw_control__reference_merge(&control->shape->reference, &control->now);
	return replaced ? PLAN_REASON_NONE : spw_control__headroom_step_ended(control);
}

/* @missing: tensors of the plan, at the end. */
static enum plan_reason fixed_step_ended(struct control *control, bool missing)
{
	const struct spw_cache_opts *opts = &control->opts.cache;
	struct spw_cache_stats *count = control->opts.count;
	uint32_t timed_by;
	bool replace;

	count->steps_fixed++;
	count->plan_mismatches += missing;
	if (control->now.is_short) {
		count->recordings_short++;
		spw_notice(control->opts.notices, CONTROL_NOTICE_SHORT,
			   "a step of more than %u tensors or %u scopes is not planned: "
			   "raise tensors_max",
			   control->tensors_max, control->scopes_max);
		return PLAN_REASON_NONE;
	}
	timed_by = spw_control__device_clock_timed_by(control);
	if (spw_control__shape_known(control)) {
		spw_control__shape_ended(control);
		return PLAN_REASON_NONE;
	}
	replace = spw_control__shape_new(control);
	spw_control__shape_ended(control);
	if (replace) {
		spw_control__background_merge(control, true);
		spw_control__skipped_fill(control);
		spw_control__reference_replace(&control->shape->reference, &control->now);
	}
	if (!replace && control->shape->planned)
		return PLAN_REASON_NONE;
	if (spw_control__device_clock_awaits(control, timed_by))
		return PLAN_REASON_NONE;
	if (control->opts.drives > 0 && control->measure.drives.write_bytes_per_second == 0)
		return PLAN_REASON_NONE;
	/* As its authors do: not from the first step, which warms up. */
	if (opts->mode == SPW_CACHE_POSITIONAL && count->steps < 2)
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
	control->draft_of = control->shape;
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

/* What was searched for is the plan of its shape. Return: that; NULL: nothing was found. */
static struct shape *plan_take(struct control *control)
{
	const struct spw_plan_result *result = &control->draft.result;
	struct shape *shape = control->draft_of;
	struct plan before = shape->plan;

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
	shape->plan = control->draft;
	control->draft = before;
	shape->planned = true;
	spw_control__reference_planned(&shape->reference);
	if (shape == control->shape)
		control->probe = NO_TENSOR; /* the plan before has tried the drives with it */
	return shape;
}

bool spw_control__step_ended(struct control *control)
{
	bool planned = control->shape->planned && !control->left;
	bool followed = spw_control__follows_plan(control) &&
			control->matched == control->shape->reference.plannable;
	bool replaced;
	enum plan_reason reason = PLAN_REASON_NONE;

	spw_control__profile_note(control);
	spw_control__skipped_end(control);
	spw_control__recording_end(control);
	if (control->opts.count->steps > 0) /* before the first there was none */
		count_step(control);
	if (control->now.takes > 0)
		spw_control__budget_step_ended(control, control->shape->planned, followed);
	spw_control__measure_step(&control->measure);
	replaced = control->draft_of && plan_take(control) == control->shape;
	/* Without a backward pass it was not a training step, and says nothing about the next. */
	if (control->records && control->now.takes > 0) {
		spw_control__wear_step_ended(control);
		if (!followed)
			control->late_before = control->was_late = false;
		reason = followed ? planned_step_ended(control, replaced)
				  : fixed_step_ended(control, planned);
	}
	if (control->now.takes > 0 && !control->broke_off && !control->now.is_short)
		spw_control__device_clock_belongs(control);
	if (reason != PLAN_REASON_NONE)
		plan_begin(control, reason);
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
	spw_control__shape_predict(control);
	control->switched = false;
	spw_control__cursor_begin(control);
	spw_control__skipped_begin(control, control->skips_off);
	control->skips_off = false;
	if (control->shape->planned)
		spw_control__planning_probe(control);
}

/* ---- Counters ---- */

void spw_control__stats(const struct control *control, struct spw_cache_stats *stats)
{
	const struct spw_plan_drives *drives = &control->measure.drives;
	const struct plan *plan = &control->shape->plan;
	const struct spw_plan_result *result = &plan->result;

	stats->write_bytes_per_second = drives->write_bytes_per_second;
	stats->read_bytes_per_second = drives->read_bytes_per_second;
	stats->mixed_bytes_per_second = drives->mixed_bytes_per_second;
	stats->drive_latency_ns = drives->latency_ns;
	stats->bus_out_bytes_per_second = drives->bus_out_bytes_per_second;
	stats->bus_in_bytes_per_second = drives->bus_in_bytes_per_second;
	stats->wear_bytes_per_day = control->opts.cache.wear_bytes_per_day;
	if (control->opts.cache.mode == SPW_CACHE_BUDGET)
		stats->budget_bytes = control->opts.cache.memory_bytes;
	if (!control->shape->planned)
		return;
	stats->plan_tensors = control->shape->reference.count;
	stats->plan_tensors_spilled = result->tensors_spilled;
	stats->plan_peak_bytes = result->peak_bytes;
	stats->plan_keep_all_bytes = result->peak_keep_all_bytes;
	stats->plan_stall_ns = result->stall_ns;
	stats->plan_wall_ns = result->wall_ns;
	stats->plan_bytes_written = result->bytes_written;
	stats->plan_bytes_read = result->bytes_read;
	stats->plan_bytes_forwarded = result->bytes_forwarded;
	stats->plan_memory_bytes = result->memory_bytes;
	stats->plan_bytes_written_max = plan->wear_step_bytes;
	stats->plan_scopes_again = result->scopes_again;
	stats->plan_again_ns = result->again_ns;
	stats->plan_caution_percent = (uint64_t)(100 / (1 + plan->time_share) + 0.5);
}
