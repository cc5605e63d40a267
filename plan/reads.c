/* SPDX-License-Identifier: MIT */
/*
 * plan/reads.c - from when on each spilled tensor may be read, for whoever carries a plan out
 *
 * The planner's rule for reading ahead (plan/plan.c), turned around: tensor i may be read at
 * compute time t if
 *              max of V over [t, u(i))  +  C(i)  <=  M
 * so it may be from the end of the last point before its use at which V + C(i) is above M. Points
 * and tensors both are gone through in order of time, and only points that are higher than all
 * after them can be the last: a stack.
 */
#include "plan/internal.h"

#include <errno.h>
#include <stdlib.h>

#include "util/util.h"

struct lookback {
	const struct plan_forecast *forecast;
	uint32_t *stack; /* points before the use, each higher than those above it */
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

static void find_times(struct plan_work *work, const uint8_t *spill, double memory, uint32_t *stack,
		       struct plan_schedule *schedule)
{
	struct lookback back = {.forecast = &work->forecast, .stack = stack};
	double ahead = 0;

	schedule->count = 0;
	for (uint32_t k = 0; k < work->count; k++) {
		uint32_t i = work->by_use[k];

		schedule->from_ns[i] = 0;
		if (!spill[i] || !work->used[i])
			continue;
		schedule->order[schedule->count++] = i;
		if (!work->forecast.out[i])
			continue;
		ahead += work->bytes[i];
		push_until(&back, work->use_ns[i]);
		schedule->from_ns[i] =
			(uint64_t)free_from_ns(&back, memory - ahead, work->use_ns[i]);
	}
}

int spw_planner_read_times(const struct spw_plan_step *step, const struct spw_plan_drives *drives,
			   uint64_t memory_bytes, const enum spw_plan_choice choices[],
			   struct plan_schedule *schedule)
{
	struct plan_work work = {0};
	uint32_t *stack = NULL;
	uint8_t *spill = NULL;
	int rc = spw_planner_work_open(&work, step, drives);

	if (rc)
		goto out;
	spill = calloc((size_t)work.count + 1, sizeof(*spill));
	/* as many as a forecast has points */
	stack = calloc(4 * ((size_t)work.count + 1), sizeof(*stack));
	if (!spill || !stack) {
		rc = spw_error(-ENOMEM, "plan: no memory for %u tensors", work.count);
		goto out;
	}
	for (uint32_t i = 0; i < work.count; i++)
		spill[i] = choices[i] == SPW_PLAN_SPILL;
	spw_planner_forecast_needs(&work, spill);
	find_times(&work, spill, (double)memory_bytes, stack, schedule);
out:
	free(stack);
	free(spill);
	spw_planner_work_close(&work);
	return rc;
}
