/* SPDX-License-Identifier: MIT */
/*
 * tools/replay/report.h - the report of spillway replay: what it is made of, as text, JSON, Chrome
 * trace and SVG
 *
 * Sizes are those of the trace: what was moved, divided by the scale.
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
	const char *drives_text;    /* in words */
	uint64_t lower_bound_bytes; /* the largest scope, and two chunks per drive; scaled */
};

/* The last replay, from the beginning of one pass to that of the next. */
struct replay_pass {
	uint64_t begin_ns, end_ns; /* since the replay began */
	uint32_t micro_batch;
	bool backward;
};

/* As in the trace; where it has no stages, the backward pass begins at the first take. */
void replay_each_pass(const struct replay_report *report,
		      void (*each)(void *context, const struct replay_pass *pass), void *context);

void replay_report_print(const struct replay_report *report, FILE *out);
json_t *replay_report_json(const struct replay_report *report);

/* The last replay; it was measured. Return: 0; -errno with words. */
int replay_chrome_write(const struct replay_report *report, const char *path);
int replay_svg_write(const struct replay_report *report, const char *path);

#endif
