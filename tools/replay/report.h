/* SPDX-License-Identifier: MIT */
/*
 * tools/replay/report.h - the report of spillway replay: its figures, and functions to print it as
 * text, JSON, Chrome trace and SVG
 *
 * Sizes are printed as in the trace: bytes moved, divided by the scale.
 */
#ifndef SPW_TOOLS_REPLAY_REPORT_H
#define SPW_TOOLS_REPLAY_REPORT_H

#include <stdio.h>

#include <jansson.h>

#include "tools/replay/run.h"

struct replay_report {
	const struct spw_trace *trace;
	const char *trace_path, *mode;
	const struct replay_step *step;
	const struct replay_run *run;
	double scale, speed;
	const char *drives_text;    /* description of the drives */
	uint64_t lower_bound_bytes; /* largest scope and two chunks per drive; scaled */
};

/* A pass of the last replay. */
struct replay_pass {
	uint64_t begin_ns, end_ns; /* since the replay began */
	uint32_t micro_batch;
	bool backward;
};

/* Call @each per pass. If the trace has no stages, the backward pass begins at the first take. */
void replay_each_pass(const struct replay_report *report,
		      void (*each)(void *context, const struct replay_pass *pass), void *context);

void replay_report_print(const struct replay_report *report, FILE *out);
json_t *replay_report_json(const struct replay_report *report);

/* Write the last replay, which was measured. Return: 0; -errno with a message. */
int replay_chrome_write(const struct replay_report *report, const char *path);
int replay_svg_write(const struct replay_report *report, const char *path);

#endif
