/* SPDX-License-Identifier: MIT */
/*
 * tensor/control/headroom.c - how far the figures are trusted: what one step says of the next plan
 *
 * The planner leaves no time and no memory unused, and a step is never exactly like the last. So a
 * part of either is left out of the plan: the headroom. It grows by what a step exceeded its plan
 * by, and it is halved after a number of steps that did not; that number doubles each time that it
 * was needed after all.
 *
 * One late step may be an accident: it counts for what two like steps differ by, or not at all
 * where a timeline or a bandwidth that has changed explains it. The next one soon after says what
 * is missing. A peak above the budget counts at once.
 */
#include "tensor/control/background_traffic.h"
#include "tensor/control/headroom.h"
#include "tensor/control/internal.h"
#include "tensor/control/ranks.h"
#include "tensor/control/recording.h"
#include "tensor/control/reference_step.h"
#include "tensor/control/wear.h"

/*
 * Replan where the timeline or a bandwidth has changed by more than this, by which two equal steps,
 * and what they measure of the drives, may differ.
 */
#define TIMELINE_DRIFT  0.05
#define BANDWIDTH_DRIFT 0.1

/* After a stall no plan writes more than the one that stalled, until this many steps have none. */
#define CALM_STEPS 4u

/* ---- Margins ---- */

static void headroom_grow(struct headroom *headroom, double share)
{
	if (headroom->tried)
		headroom->needed *= 2;
	headroom->tried = false;
	headroom->steps = 0;
	headroom->share += share;
}

/* A step was within its plan. Return: whether there were enough of them to try with less. */
static bool headroom_kept(struct headroom *headroom)
{
	if (++headroom->steps < headroom->needed)
		return false;
	headroom->steps = 0;
	return true;
}

/* Return: whether there was any. */
static bool headroom_halve(struct headroom *headroom)
{
	if (headroom->share <= 0)
		return false;
	headroom->tried = true;
	headroom->share = headroom->share / 2 > STALL_TOLERANCE ? headroom->share / 2 : 0;
	return true;
}

/* ---- What is believed of the drives ---- */

static void at_most(uint64_t *figure, uint64_t before)
{
	if (before > 0 && *figure > before)
		*figure = before;
}

/*
 * What has been measured, except that a step that stalled does not prove the drives to be faster
 * than assumed: it may have read little at a time, which they served as a burst.
 */
struct spw_plan_drives spw_control__headroom_believed(const struct control *control)
{
	const struct spw_plan_drives *then = &control->signature->plan.counted_on;
	struct spw_plan_drives now = spw_control__ranks_share(control);

	if (control->was_late) {
		at_most(&now.write_bytes_per_second, then->write_bytes_per_second);
		at_most(&now.read_bytes_per_second, then->read_bytes_per_second);
		at_most(&now.mixed_bytes_per_second, then->mixed_bytes_per_second);
		at_most(&now.bus_out_bytes_per_second, then->bus_out_bytes_per_second);
		at_most(&now.bus_in_bytes_per_second, then->bus_in_bytes_per_second);
	}
	return now;
}

uint64_t spw_control__headroom_mixed(const struct spw_plan_drives *drives)
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
static bool latency_fell(const struct signature *signature, uint64_t now_ns)
{
	uint64_t then_ns = signature->plan.counted_on.latency_ns;

	return then_ns > now_ns && (double)(then_ns - now_ns) >
					   STALL_TOLERANCE * (double)signature->plan.result.wall_ns;
}

static bool drives_drifted(const struct control *control)
{
	const struct spw_plan_drives now = spw_control__headroom_believed(control),
				     *then = &control->signature->plan.counted_on;

	return latency_fell(control->signature, now.latency_ns) ||
	       differs(now.write_bytes_per_second, then->write_bytes_per_second, BANDWIDTH_DRIFT) ||
	       differs(now.read_bytes_per_second, then->read_bytes_per_second, BANDWIDTH_DRIFT) ||
	       differs(now.bus_out_bytes_per_second, then->bus_out_bytes_per_second, RATE_DRIFT) ||
	       differs(now.bus_in_bytes_per_second, then->bus_in_bytes_per_second, RATE_DRIFT) ||
	       differs(spw_control__headroom_mixed(&now), spw_control__headroom_mixed(then),
		       RATE_DRIFT);
}

/* ---- Time ---- */

static double late_ns(const struct control *control)
{
	return (double)spw_control__stalled_ns(control) -
	       (double)control->signature->plan.result.stall_ns;
}

/*
 * The headroom of time, in parts of the backward pass: its reads took so much longer than planned.
 * @explained: by figures that have drifted. Return: whether the plan is to be changed for it.
 */
static bool time_seen(struct control *control, bool explained)
{
	double share = late_ns(control) / (double)control->now.backward_ns;
	bool again = control->late_before;

	if (control->was_late) {
		control->late_before = true;
		if (!again || share < TIMELINE_DRIFT)
			share = explained && !again ? 0 : TIMELINE_DRIFT;
		headroom_grow(&control->time, share);
		return share > 0;
	}
	if (!headroom_kept(&control->time))
		return false;
	control->late_before = false;
	return headroom_halve(&control->time);
}

/* ---- After a stall ---- */

/*
 * Other figures may say that more can be written: they are those of a step that has gone wrong. A
 * budget has to be met, and is so by as few writes as possible anyway.
 * Return: whether the plan may write more than it was allowed to when it was made.
 */
static bool calm_seen(struct control *control)
{
	struct signature *signature = control->signature;
	uint64_t written = signature->plan.result.bytes_written;

	if (control->opts.cache.mode != SPW_CACHE_FASTEST)
		return false;
	if (control->was_late) {
		signature->calm_steps = 0;
		if (written > 0 &&
		    (signature->stalled_bytes == 0 || written < signature->stalled_bytes))
			signature->stalled_bytes = written;
		return false;
	}
	if (signature->stalled_bytes == 0 || ++signature->calm_steps < CALM_STEPS)
		return false;
	signature->stalled_bytes = 0;
	return signature->plan.result.limited;
}

uint64_t spw_control__headroom_written_max(const struct signature *signature, uint64_t wear)
{
	uint64_t stalled = signature->stalled_bytes;

	return wear == 0 || (stalled > 0 && stalled < wear) ? stalled : wear;
}

/* ---- A budget ---- */

/* The peak was above the budget though the plan's is not: that much is left out from now on. */
static bool peak_seen(struct control *control)
{
	double budget = (double)control->opts.cache.memory_bytes;
	double above = (double)control->peak_bytes / budget - 1;
	struct headroom *headroom = &control->signature->memory;

	if (control->opts.cache.mode != SPW_CACHE_BUDGET || control->switched)
		return false;
	if (!control->signature->plan.result.feasible || above <= 0)
		return headroom_kept(headroom) && headroom_halve(headroom);
	if (headroom->share + above > 0.5)
		above = 0; /* no plan for half of it would help */
	headroom_grow(headroom, above);
	return above > 0;
}

/* ---- A step has ended ---- */

enum plan_reason spw_control__headroom_step_ended(struct control *control)
{
	const struct recording *reference = &control->signature->reference;
	enum plan_reason reason = PLAN_REASON_NONE;
	bool time, peak, calm;

	control->was_late =
		late_ns(control) > STALL_TOLERANCE * (double)control->opts.count->step_compute_ns;
	if (drives_drifted(control) || spw_control__background_drifted(control))
		reason = PLAN_REASON_BANDWIDTH;
	else if (spw_control__reference_drift(reference, reference, true) > TIMELINE_DRIFT ||
		 spw_control__reference_redecided(reference) || spw_control__wear_drifted(control))
		reason = PLAN_REASON_TIMELINE;
	time = time_seen(control, reason != PLAN_REASON_NONE);
	peak = peak_seen(control);
	calm = calm_seen(control);
	if (reason != PLAN_REASON_NONE)
		return reason;
	return time || calm ? PLAN_REASON_STALL : peak ? PLAN_REASON_MEMORY : PLAN_REASON_NONE;
}
