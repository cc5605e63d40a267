/* SPDX-License-Identifier: MIT */
/*
 * tensor/control/rest.c - steps that need not be seen, as their plan moves nothing
 *
 * After REST_AFTER such steps in a row REST_FIRST steps rest: the caller offers nothing in them.
 * The step after them is seen. If it is as before twice as many rest, up to REST_MAX; if not, all
 * steps are seen until REST_AFTER have moved nothing again.
 *
 * A budget is a promise, and what a step that rests holds is not seen. So with one steps rest only
 * where twice of what they hold fits.
 */
#include "tensor/control/rest.h"

#define REST_AFTER 4u
#define REST_FIRST 7u
#define REST_MAX   255u

/*
 * Whether tensors were taken, and none was written, copied or discarded since the step before ended
 * but the one that the drives are tried with.
 */
static bool moved_nothing(struct control *control)
{
	const struct spw_cache_stats *count = control->opts.count;
	struct rest *rest = &control->rest;
	uint64_t moved = count->tensors_spilled + count->tensors_given_up + count->scopes_again +
			 count->copies;
	bool nothing =
		count->takes > rest->takes && (moved == rest->moved || control->probe != NO_TENSOR);

	rest->moved = moved;
	rest->takes = count->takes;
	return nothing;
}

/* Whether tensors were offered, and all were too small to be planned. */
static bool all_small(struct control *control)
{
	const struct spw_cache_stats *count = control->opts.count;
	struct rest *rest = &control->rest;
	uint64_t others = count->offers - count->tensors_deduplicated - count->tensors_kept_small;
	bool all = others == rest->others && count->tensors_kept_small > rest->small;

	rest->others = others;
	rest->small = count->tensors_kept_small;
	return all;
}

static bool plans_nothing(const struct control *control)
{
	const struct spw_plan_result *result = &control->signature->plan.result;

	if (!control->signature->planned || result->tensors_spilled > 0 || result->scopes_again > 0)
		return false;
	return control->opts.cache.mode != SPW_CACHE_BUDGET ||
	       result->peak_keep_all_bytes <= control->opts.cache.memory_bytes / 2;
}

void spw_control__rest_step_ended(struct control *control, bool followed)
{
	struct rest *rest = &control->rest;
	/* In this order: each remembers what it has seen. */
	bool nothing = moved_nothing(control), small = all_small(control);

	rest->only_small = small;
	if (!control->records || !nothing || !(small || (followed && plans_nothing(control))))
		rest->calm = rest->steps = 0;
	else if (rest->calm < REST_AFTER)
		rest->calm++;
}

bool spw_control__is_calm(const struct control *control)
{
	return control->rest.calm > 0;
}

bool spw_control__rests(const struct control *control)
{
	return control->rest.now;
}

/* Another plan may come. */
static bool is_searching(const struct control *control)
{
	return control->draft_of && !control->rest.only_small;
}

bool spw_control__rests_on(const struct control *control)
{
	return control->rest.now && control->rest.left > 0 && !is_searching(control);
}

bool spw_control__rest_begin(struct control *control, bool *last)
{
	struct rest *rest = &control->rest;

	if (is_searching(control))
		return false;
	if (!rest->now && rest->calm >= REST_AFTER) {
		rest->now = true;
		rest->steps =
			rest->steps == 0 ? REST_FIRST : SPW_MIN(2 * rest->steps + 1, REST_MAX);
		rest->left = rest->steps;
	}
	rest->now = rest->now && rest->left > 0;
	if (rest->now)
		rest->left--;
	*last = rest->left == 0;
	return rest->now;
}

void spw_control__rest_end(struct control *control)
{
	control->rest.now = false;
}
