/* SPDX-License-Identifier: MIT */
/*
 * tools/plan/model_report.h - the figures in the report of spillway plan, printed as text and JSON
 */
#ifndef SPW_TOOLS_PLAN_MODEL_REPORT_H
#define SPW_TOOLS_PLAN_MODEL_REPORT_H

#include <stdio.h>

#include <jansson.h>

#include "tools/plan/model.h"

#define CURVE_POINTS 5u /* micro-batch sizes per line */

enum curve_line {
	CURVE_KEEP,
	CURVE_SELECTIVE,
	CURVE_FULL,
	CURVE_OFFLOAD,
	CURVE_LINES,
};

struct curve_point {
	uint32_t micro_batch;
	double peak_bytes, step_seconds, flops; /* of one GPU; flops: per second */
	double written_bytes;                   /* per step */
};

struct plan_report {
	bool has_model;
	struct model model;
	struct model_step step;
	double bandwidth_needed; /* per GPU, in the half of the step in which it writes */
	double drive_write, drive_read, drive_endurance_bytes;
	double gpu_tflops, efficiency_percent; /* their product is the model's speed */
	uint32_t drives_needed, drives;        /* per GPU; drives: given or needed */
	struct model_life life;                /* if all activations are written */
	struct model_life life_planned;        /* if only the plan's spills are written */
	struct spw_plan_result planned;
	struct curve_point curve[CURVE_LINES][CURVE_POINTS];
};

void plan_report_print(const struct plan_report *report, FILE *out);
json_t *plan_report_json(const struct plan_report *report);

#endif
