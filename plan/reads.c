/* SPDX-License-Identifier: MIT */
/*
 * plan/reads.c - the earliest time at which each spilled tensor may be read
 *
 * The planner's prefetch rule (plan/plan.c) turned around: tensor i may be read from the end of the
 * last point before its use at which V + C(i) is above M. Points and tensors are visited in order
 * of time; only a point higher than all later ones can be that last point, so they form a stack.
 */
#include "plan/internal.h"

#include "util/util.h"

/* Points before the use of a tensor, each higher than those that come after it. */
struct lookback {
	const struct plan_forecast *forecast;
	uint32_t *stack;
	uint32_t depth, next;
};

static void push_until(struct lookback *back, double use_ns)
{
	const struct plan_forecast *forecast = back->forecast;

	for (; back->next < forecast->points && forecast->point_ns[back->next] < use_ns;
	     back->next++) {
		double bytes = forecast->point_bytes[back->next];

		while (back->depth > 0 &&
		       forecast->point_bytes[back->stack[back->depth - 1]] <= bytes)
			back->depth--;
		back->stack[back->depth++] = back->next;
		SPW_ASSERT(back->depth <= back->next + 1);
	}
}

/* The end of the last point above @limit. */
static double free_from_ns(const struct lookback *back, double limit, double use_ns)
{
	const struct plan_forecast *forecast = back->forecast;
	/* points below low are above the limit, from high on they are not */
	uint32_t low = 0, high = back->depth;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (forecast->point_bytes[back->stack[middle]] > limit)
			low = middle + 1;
		else
			high = middle;
	}
	if (low == 0)
		return 0;
	if (back->stack[low - 1] + 1 >= back->next)
		return use_ns;
	return forecast->point_ns[back->stack[low - 1] + 1];
}

void spw_plan__time_reads(struct plan_work *work, const uint8_t *spill, double memory)
{
	struct lookback back = {.forecast = &work->forecast, .stack = work->stack};
	double ahead = 0;

	spw_plan__forecast_needs(work, spill);
	for (uint32_t k = 0; k < work->count; k++) {
		uint32_t i = work->by_use[k];

		if (!spill[i] || !work->used[i])
			continue;
		push_until(&back, work->use_ns[i]);
		work->read_from_ns[i] =
			free_from_ns(&back, memory - ahead - work->bytes[i], work->use_ns[i]);
		SPW_ASSERT(work->read_from_ns[i] <= work->use_ns[i]);
		if (work->forecast.out[i])
			ahead += work->bytes[i];
	}
}

int spw_plan__schedule(const struct spw_plan_step *step, const struct spw_plan_drives *drives,
		       uint64_t memory_bytes, const enum spw_plan_choice choices[],
		       uint64_t from_ns[])
{
	struct plan_work work;
	int rc = spw_plan__work_open(&work, step, drives);

	if (rc)
		return rc;
	for (uint32_t i = 0; i < work.count; i++)
		work.spill[i] = choices[i] == SPW_PLAN_SPILL;
	spw_plan__time_reads(&work, work.spill, (double)memory_bytes);
	for (uint32_t i = 0; i < work.count; i++)
		if (work.spill[i] && work.used[i])
			from_ns[i] = work.forecast.out[i] ? (uint64_t)work.read_from_ns[i] : 0;
	spw_plan__work_close(&work);
	return 0;
}
