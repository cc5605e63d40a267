/* SPDX-License-Identifier: MIT */
/*
 * tensor/control/throttle.c - whether a forward pass has to wait for writes, and until when
 *
 * Time that is waited counts as neither compute nor stall: the next plan is for the step as fast as
 * it is.
 */
#include "tensor/control/budget.h"
#include "tensor/control/internal.h"

/* When the plan is as far; and steps are by now, if they have become faster since it was made. */
static uint64_t plan_is_there_ns(const struct control *control)
{
	return control->began_ns + SPW_MIN(control->progress_ns, control->due_ns) +
	       control->due_throttle_ns;
}

uint64_t spw_control__throttle_until_ns(const struct control *control, uint64_t returned_bytes)
{
	enum spw_cache_mode mode = control->opts.cache.mode;
	uint64_t not_counted = control->old_bytes + returned_bytes, until_ns;

	if (!spw_control__follows_plan(control) || control->stage != SPW_STAGE_FORWARD ||
	    (mode != SPW_CACHE_FASTEST && mode != SPW_CACHE_BUDGET))
		return 0;
	if (control->memory_bytes <= spw_control__memory_bytes(control) + not_counted)
		return 0;
	until_ns = plan_is_there_ns(control);
	if (mode == SPW_CACHE_BUDGET &&
	    spw_control__budget_fits(control, &control->signature->plan) &&
	    control->memory_bytes > control->opts.cache.memory_bytes + not_counted &&
	    control->opts.clock_ns() >= until_ns)
		return UINT64_MAX;
	return until_ns;
}

uint64_t spw_control__throttle_ended(struct control *control, uint64_t began_ns)
{
	uint64_t ns = spw_since_ns(began_ns, control->opts.clock_ns());

	/* First: the wait is not a stall. */
	control->throttled_ns += ns;
	(void)spw_control__wait_ended(control);
	return ns;
}
