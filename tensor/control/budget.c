/* SPDX-License-Identifier: MIT */
/*
 * tensor/control/budget.c - whether steps meet their budget, and why not
 *
 * It is a state, which the counters show as long as it lasts, and is logged when it begins and when
 * its cause changes.
 */
#include <inttypes.h>

#include "tensor/control/budget.h"
#include "tensor/control/internal.h"

bool spw_control__budget_fits(const struct control *control, const struct plan *plan)
{
	return plan->result.peak_bytes <= control->opts.cache.memory_bytes;
}

static enum spw_budget_cause cause_of(const struct control *control, uint64_t over_bytes,
				      bool planned, bool followed)
{
	if (over_bytes == 0)
		return SPW_BUDGET_MET;
	if (!planned)
		return SPW_BUDGET_UNPLANNED;
	if (!followed)
		return SPW_BUDGET_CHANGED;
	if (!spw_control__budget_fits(control, &control->signature->plan))
		return SPW_BUDGET_INFEASIBLE;
	/* Without it the peak would have been within the budget. */
	return control->peak_writing_bytes >= over_bytes ? SPW_BUDGET_DRIVES : SPW_BUDGET_HELD;
}

static const char *words_of(enum spw_budget_cause cause)
{
	switch (cause) {
	case SPW_BUDGET_UNPLANNED:
		return "no plan is in force: steps unlike those before are measured first";
	case SPW_BUDGET_INFEASIBLE:
		return "no plan was found that fits: raise it, or recompute more";
	case SPW_BUDGET_CHANGED:
		return "the step was not the one that was planned for, and went by the fixed rule";
	case SPW_BUDGET_DRIVES:
		return "the drives were slower than planned: what was above it waited to be "
		       "written";
	case SPW_BUDGET_HELD:
		return "tensors were saved earlier, or in use longer, than planned; the next plan "
		       "leaves a headroom";
	case SPW_BUDGET_MET: break;
	}
	return "it is met";
}

void spw_control__budget_step_ended(struct control *control, bool planned, bool followed)
{
	struct spw_cache_stats *count = control->opts.count;
	uint64_t budget = control->opts.cache.memory_bytes, peak = control->peak_bytes;
	uint64_t over_bytes = peak > budget ? peak - budget : 0;
	enum spw_budget_cause before = (enum spw_budget_cause)count->budget_cause, cause;

	if (control->opts.cache.mode != SPW_CACHE_BUDGET)
		return;
	cause = cause_of(control, over_bytes, planned, followed);
	count->budget_cause = cause;
	count->budget_over_bytes = over_bytes;
	count->budget_over_bytes_max = SPW_MAX(count->budget_over_bytes_max, over_bytes);
	count->budget_steps_over += over_bytes > 0;
	if (cause == SPW_BUDGET_MET || cause == before)
		return;
	spw_notice(control->opts.notices, CONTROL_NOTICE_BUDGET + (unsigned)cause - 1,
		   "the budget of %" PRIu64 " bytes is exceeded by %" PRIu64 ": %s", budget,
		   over_bytes, words_of(cause));
}
