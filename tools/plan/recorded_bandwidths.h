/* SPDX-License-Identifier: MIT */
/*
 * tools/plan/recorded_bandwidths.h - spillway plan --trace: what spilling a recorded step would
 * cost and save, for each bandwidth of drives
 *
 * Keep, recompute and offload of one step:
 *   keep       Everything stays in memory.
 *   recompute  Only the first tensor of each scope stays, its input. The others are discarded at
 *              the end of the scope, and recomputed, in the time that the scope took, when the
 *              backward pass first uses one of them.
 *   offload    For each bandwidth, what the planner spills in fastest mode, and what SSDTrain's
 *              positional rule spills.
 *   budget     For each bandwidth, the least that the planner spills to fit 75, 50 and 25 % of the
 *              memory that keeping everything takes.
 */
#ifndef SPW_TOOLS_PLAN_RECORDED_BANDWIDTHS_H
#define SPW_TOOLS_PLAN_RECORDED_BANDWIDTHS_H

#include <stdint.h>
#include <stdio.h>

#include <jansson.h>

#include <spillway/plan.h>

#include "tools/plan/model.h"
#include "tools/replay/step.h"

#define PLAN_TRACE_RATES_MAX 16u
#define PLAN_TRACE_BUDGETS   3u

struct plan_trace_rate {
	double write, read; /* bytes per second of all drives together */
	struct spw_plan_result fastest, positional;
	struct spw_plan_result budgets[PLAN_TRACE_BUDGETS];
	/* life of the drives by their rating, for fastest; 0: nothing is written */
	struct model_life life;
};

struct plan_trace_report {
	const char *path;
	struct spw_trace *trace;
	struct replay_step step;
	double endurance_bytes; /* of all drives together */
	uint32_t drives;        /* their number */
	double speed;
	uint64_t recompute_peak_bytes;
	double recompute_seconds; /* time of the step if scopes are recomputed */
	double bandwidth_needed;  /* to spill everything within half of the step */
	struct plan_trace_rate rates[PLAN_TRACE_RATES_MAX];
	unsigned rates_count; /* set by the caller, with write and read of rates */
};

/* Fill a report but for path, endurance_bytes, drives, speed and rates. Return: 0; -errno. */
int plan_trace_fill(struct plan_trace_report *report, uint32_t number);
void plan_trace_free(struct plan_trace_report *report);

void plan_trace_print(const struct plan_trace_report *report, FILE *out);
json_t *plan_trace_json(const struct plan_trace_report *report);

#endif
