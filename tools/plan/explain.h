/* SPDX-License-Identifier: MIT */
/*
 * tools/plan/explain.h - spillway plan --trace FILE --explain: one plan, scope by scope
 */
#ifndef SPW_TOOLS_PLAN_EXPLAIN_H
#define SPW_TOOLS_PLAN_EXPLAIN_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <jansson.h>

#include <spillway/plan.h>

#include "tools/replay/scopes.h"
#include "tools/replay/step.h"

#define PLAN_EXPLAIN_FLOWS 2u

struct plan_explain {
	/* set by the caller */
	const char *path;
	uint32_t number; /* of the step */
	double speed;
	double bandwidth;      /* bytes per second, of all drives; 0: there are none */
	double slack;          /* as a share of the step; of the lowest peak, */
	uint64_t budget_bytes; /* or, if it is not 0, of the shortest step */
	uint64_t state_bytes;  /* that others read and write in each step */
	uint64_t day_bytes;    /* most bytes that are written in a day; 0: no limit */
	uint64_t bus;  /* bytes per second, each way, to a device and back; 0: there is none */
	uint64_t host; /* memory in which copies of the device's tensors may stay */
	bool never_again;

	struct spw_trace *trace;
	struct replay_step step;
	struct replay_scopes scopes;
	struct spw_plan_flow flows[PLAN_EXPLAIN_FLOWS];
	struct spw_plan_drives drives;
	enum spw_plan_choice *choices;
	struct spw_plan_reason *reasons;
	struct spw_plan_result planned;
	struct spw_plan_point *points;
	struct spw_plan_span *spans;
};

/* Make the plan and its explanation. Return: 0; -errno, with a message. */
int plan_explain_fill(struct plan_explain *explain);
void plan_explain_free(struct plan_explain *explain);

void plan_explain_print(const struct plan_explain *explain, FILE *out);
json_t *plan_explain_json(const struct plan_explain *explain);

/* Draw memory, compute and drives over the planned step. Return: 0; -errno, with a message. */
int plan_explain_svg(const struct plan_explain *explain, const char *path);

#endif
