/* SPDX-License-Identifier: MIT */
/*
 * tensor/control/wear.c - the cap on what is written
 *
 * An allowance grows with time, and is spent by what is written: it holds an hour's at most, and
 * does so at first. So in any time no more is written than the cap gives for that time and an hour.
 * What waits to be written counts as spent until it is known not to be needed. What others write
 * through the same store, such as an optimizer its state, is spent too: the cap is on how long
 * drives last.
 *
 * Plans are made to need no more than what a step's own time gives, less what others wrote in the
 * step before, so that the allowance is for what was not planned.
 */
#include "tensor/control/internal.h"
#include "tensor/control/wear.h"

#define DAY_NS  86400e9
#define HOUR_NS 3600e9

/* Replan where a step's share of the cap has changed by more. */
#define SHARE_DRIFT 0.05

void spw_control__wear_open(struct control *control)
{
	struct wear *wear = &control->wear;

	wear->bytes_per_ns = (double)control->opts.cache.wear_bytes_per_day / DAY_NS;
	wear->left_bytes = wear->bytes_per_ns * HOUR_NS;
	wear->since_ns = control->opts.clock_ns();
}

static void grow(struct control *control)
{
	struct wear *wear = &control->wear;
	uint64_t now_ns = control->opts.clock_ns();
	double most = wear->bytes_per_ns * HOUR_NS;

	wear->left_bytes += wear->bytes_per_ns * (double)spw_since_ns(wear->since_ns, now_ns);
	if (wear->left_bytes > most)
		wear->left_bytes = most;
	wear->since_ns = now_ns;
}

bool spw_control__may_write(struct control *control, uint64_t waiting_bytes, uint64_t bytes)
{
	if (control->wear.bytes_per_ns <= 0)
		return true;
	grow(control);
	if ((double)waiting_bytes + (double)bytes <= control->wear.left_bytes)
		return true;
	spw_notice(
		control->opts.notices, CONTROL_NOTICE_WEAR,
		"the drives are worn by no more than %.4g GB a day: tensors stay in memory while "
		"that is used up (wear)",
		(double)control->opts.cache.wear_bytes_per_day / 1e9);
	return false;
}

void spw_control__written(struct control *control, uint64_t bytes)
{
	if (control->wear.bytes_per_ns <= 0)
		return;
	grow(control);
	control->wear.left_bytes -= (double)bytes;
}

void spw_control__wear_external(struct control *control, double bytes)
{
	if (control->wear.bytes_per_ns <= 0)
		return;
	grow(control);
	control->wear.left_bytes -= bytes;
	control->wear.external_bytes += bytes;
}

/* ---- Plans ---- */

void spw_control__wear_step_ended(struct control *control)
{
	control->wear.external_step_bytes = control->wear.external_bytes;
	control->wear.external_bytes = 0;
}

/* For the planner, where 0 means no limit. */
uint64_t spw_control__wear_step_bytes(const struct control *control)
{
	const struct recording *reference = &control->signature->reference;
	double bytes = control->wear.bytes_per_ns *
			       ((double)reference->forward_ns + (double)reference->backward_ns) -
		       control->wear.external_step_bytes;

	if (control->wear.bytes_per_ns <= 0)
		return 0;
	return bytes < 1 ? 1 : (uint64_t)bytes;
}

bool spw_control__wear_drifted(const struct control *control)
{
	const struct spw_plan_result *result = &control->signature->plan.result;
	double now = (double)spw_control__wear_step_bytes(control) * (1 + SHARE_DRIFT);
	double then = (double)control->signature->plan.wear_step_bytes;

	if (control->wear.bytes_per_ns <= 0)
		return false;
	if (result->limited && now > then * (1 + 2 * SHARE_DRIFT))
		return true;
	return now < (double)result->bytes_written;
}

void spw_control__wear_planned(struct control *control, const struct plan *plan)
{
	const struct spw_plan_result *result = &plan->result;

	if (!result->limited || plan->written_max != plan->wear_step_bytes)
		return;
	control->opts.count->plans_limited++;
	spw_notice(
		control->opts.notices, CONTROL_NOTICE_WEAR,
		"the drives are worn by no more than %.4g GB a day: the plan writes %llu bytes a "
		"step beside %.0f of others on the store, and keeps in memory what it would spill "
		"beyond that (wear)",
		(double)control->opts.cache.wear_bytes_per_day / 1e9,
		(unsigned long long)result->bytes_written, control->wear.external_step_bytes);
}
