/* SPDX-License-Identifier: MIT */
/*
 * tensor/control/margin.c - how far the figures are trusted: what a step that went by its plan says
 * of the next plan
 *
 * The planner leaves no time unused, and a step is never exactly like the last. So it is given a
 * part of the bandwidth only: the caution. That is a little less after a step that stalled, what it
 * turned out to be after another one soon, and more again after a number of steps without a stall;
 * that number doubles each time that this was too much. In the same way a part of a budget is left
 * unplanned after a peak above it.
 */
#include "tensor/control/internal.h"

/* Of what was believed, after a stall that may have been an accident. */
#define CAUTION_FACTOR 0.95
/* Less would keep nearly all in memory: then the drives are too slow for any plan. */
#define CAUTION_MIN 0.3
/* A plan is made anew where its timeline or a bandwidth has drifted so far. */
#define TIMELINE_DRIFT  0.05
#define BANDWIDTH_DRIFT 0.1
/* Good steps before more is risked, at most. */
#define PATIENCE_STEPS_MAX 1000u
/* Of a budget: less than one of so many is not worth leaving out. */
#define RESERVE_PARTS 64u

/* ---- Patience ---- */

/* Return: whether there were enough good steps to risk more. */
static bool patience_step(struct patience *patience)
{
	if (++patience->steps < patience->needed)
		return false;
	patience->steps = 0;
	patience->risked = true;
	return true;
}

static void patience_failed(struct patience *patience)
{
	if (patience->risked && patience->needed < PATIENCE_STEPS_MAX)
		patience->needed *= 2;
	patience->risked = false;
	patience->steps = 0;
}

/* ---- What is believed of the drives ---- */

static void at_most(uint64_t *figure, uint64_t before)
{
	if (before > 0 && *figure > before)
		*figure = before;
}

/*
 * What has been measured. Only, a step that has stalled is no proof that the drives are faster than
 * was thought: it may have read little at a time, and they let that through as a burst.
 */
struct spw_plan_drives spw_margin_believed(const struct control *control)
{
	const struct spw_plan_drives *then = &control->shape->counted_on;
	struct spw_plan_drives now = control->measure.drives;

	if (control->stalled_ago == 0) {
		at_most(&now.write_bytes_per_second, then->write_bytes_per_second);
		at_most(&now.read_bytes_per_second, then->read_bytes_per_second);
		at_most(&now.mixed_bytes_per_second, then->mixed_bytes_per_second);
	}
	return now;
}

uint64_t spw_margin_mixed(const struct spw_plan_drives *drives)
{
	if (drives->mixed_bytes_per_second > 0)
		return drives->mixed_bytes_per_second;
	return drives->read_bytes_per_second < drives->write_bytes_per_second
		       ? drives->read_bytes_per_second
		       : drives->write_bytes_per_second;
}

static bool differs(uint64_t now, uint64_t then, double share)
{
	double difference = now > then ? (double)(now - then) : (double)(then - now);

	return difference > share * (double)then;
}

/* That the drives take longer shows as a stall; that they take much less shows nowhere else. */
static bool latency_fell(const struct shape *shape, uint64_t now_ns)
{
	uint64_t then_ns = shape->counted_on.latency_ns;

	return then_ns > now_ns &&
	       (double)(then_ns - now_ns) > STALL_SHARE * (double)shape->result.wall_ns;
}

static bool drives_drifted(const struct control *control)
{
	const struct spw_plan_drives now = spw_margin_believed(control),
				     *then = &control->shape->counted_on;

	return latency_fell(control->shape, now.latency_ns) ||
	       differs(now.write_bytes_per_second, then->write_bytes_per_second, BANDWIDTH_DRIFT) ||
	       differs(now.read_bytes_per_second, then->read_bytes_per_second, BANDWIDTH_DRIFT) ||
	       differs(spw_margin_mixed(&now), spw_margin_mixed(then), CHANGE);
}

/* ---- Stalls ---- */

static double late_ns(const struct control *control)
{
	return (double)control->waited_ns - (double)control->shape->result.stall_ns;
}

/*
 * What part of the bandwidth that was counted on is, from now on. One stall may be an accident, or
 * what the new timeline or bandwidth explains. Of two within a few steps the second tells: the
 * reads of a backward pass were to take no longer than that, and took longer by the stall. On a
 * machine that is fast in one step and slow in the next each has its explanation, and a plan for
 * the one stalls in the other.
 */
static double less_after_a_stall(const struct control *control, bool again)
{
	double backward_ns = (double)control->now.backward_ns;
	double part = again && backward_ns > 0 ? backward_ns / (backward_ns + late_ns(control))
					       : CAUTION_FACTOR;

	return part < CAUTION_FACTOR ? part : CAUTION_FACTOR;
}

/*
 * @explained: by figures that have drifted; @again: another step stalled not long ago. Return:
 * whether the plan is to be changed because of a stall, or of a long time without one.
 */
static bool stall_seen(struct control *control, bool explained, bool again)
{
	if (control->stalled_ago == 0 && (!explained || again)) {
		patience_failed(&control->calm);
		if (control->caution * CAUTION_FACTOR < CAUTION_MIN)
			return false;
		control->caution *= less_after_a_stall(control, again);
		if (control->caution < CAUTION_MIN)
			control->caution = CAUTION_MIN;
		return true;
	}
	if (control->stalled_ago == 0) {
		control->calm.steps = 0;
		return false;
	}
	if (control->caution >= 1 || !patience_step(&control->calm))
		return false;
	control->caution /= CAUTION_FACTOR;
	if (control->caution > 1)
		control->caution = 1;
	return true;
}

/* ---- A budget ---- */

/*
 * What is left out of the budget may not be needed any more: some steps hold memory that others do
 * not.
 */
static bool reserve_less(struct control *control, uint64_t budget)
{
	uint64_t *reserve_bytes = &control->shape->reserve_bytes;

	if (*reserve_bytes == 0 || !patience_step(&control->below))
		return false;
	*reserve_bytes = *reserve_bytes > budget / RESERVE_PARTS ? *reserve_bytes / 2 : 0;
	return true;
}

/*
 * The peak was above the budget though the plan's is not: something is not as simulated. Leave that
 * much out.
 */
static bool peak_seen(struct control *control)
{
	uint64_t budget = control->opts.cache.memory_bytes, peak = control->peak_bytes;

	if (control->opts.cache.mode != SPW_CACHE_BUDGET || control->switched)
		return false;
	if (!control->shape->result.feasible || peak <= budget)
		return reserve_less(control, budget);
	patience_failed(&control->below);
	if (control->shape->reserve_bytes + (peak - budget) > budget / 2)
		return false;
	control->shape->reserve_bytes += peak - budget;
	return true;
}

/* ---- A step has ended ---- */

void spw_margin_open(struct control *control)
{
	control->caution = 1;
	control->calm.needed = control->below.needed = PATIENCE_STEPS;
	control->stalled_ago = RECENT_STEPS;
}

void spw_margin_step_unplanned(struct control *control)
{
	control->stalled_ago = RECENT_STEPS;
}

enum plan_reason spw_margin_step_ended(struct control *control)
{
	const struct recording *basis = &control->shape->basis;
	enum plan_reason reason = PLAN_REASON_NONE;
	bool again = control->stalled_ago < RECENT_STEPS;

	if (late_ns(control) > STALL_SHARE * (double)control->opts.count->step_compute_ns)
		control->stalled_ago = 0;
	else if (again)
		control->stalled_ago++;
	if (drives_drifted(control))
		reason = PLAN_REASON_BANDWIDTH;
	else if (spw_basis_drift(basis, basis, true) > TIMELINE_DRIFT)
		reason = PLAN_REASON_TIMELINE;
	if (stall_seen(control, reason != PLAN_REASON_NONE, again) && reason == PLAN_REASON_NONE)
		reason = PLAN_REASON_STALL;
	if (peak_seen(control) && reason == PLAN_REASON_NONE)
		reason = PLAN_REASON_MEMORY;
	return control->opts.cache.mode == SPW_CACHE_POSITIONAL ? PLAN_REASON_NONE : reason;
}
