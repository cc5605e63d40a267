/* SPDX-License-Identifier: MIT */
/*
 * tensor/control/hold.c - how far a forward pass is ahead of its plan, and whether it has to wait
 *
 * Time that is waited counts as neither compute nor stall: the next plan is for the step as fast as
 * it is.
 */
#include "tensor/control/internal.h"

/* When the plan is as far; and steps are by now, if they have become faster since it was made. */
uint64_t spw_control_hold_until_ns(const struct control *control)
{
	return control->began_ns + SPW_MIN(control->progress_ns, control->due_ns) +
	       control->due_hold_ns;
}

bool spw_control_is_ahead(const struct control *control, uint64_t returned_bytes)
{
	enum spw_cache_mode mode = control->opts.cache.mode;

	if (!spw_control_follows_plan(control) || control->stage != SPW_STAGE_FORWARD ||
	    (mode != SPW_CACHE_FASTEST && mode != SPW_CACHE_BUDGET))
		return false;
	return control->memory_bytes >
		       spw_control_memory_bytes(control) + control->old_bytes + returned_bytes &&
	       control->opts.clock_ns() < spw_control_hold_until_ns(control);
}

uint64_t spw_control_hold_ended(struct control *control, uint64_t began_ns)
{
	uint64_t ns = spw_since_ns(began_ns, control->opts.clock_ns());

	/* First: the wait is no stall. */
	control->held_ns += ns;
	(void)spw_control_wait_ended(control);
	return ns;
}
