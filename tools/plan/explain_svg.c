/* SPDX-License-Identifier: MIT */
/* tools/plan/explain_svg.c - draw a plan as SVG: compute, drives and memory in the planned step */
#include "tools/plan/explain.h"

#include <math.h>

#include "tools/ui/svg.h"
#include "tools/ui/tool.h"
#include "util/util.h"

#define COLOUR_AGAIN "#e0b000"

enum lane {
	LANE_COMPUTE,
	LANE_WRITES,
	LANE_READS,
	LANES,
};

static const struct {
	enum lane lane;
	const char *style;
} spans[] = {
	[SPW_PLAN_SPAN_WRITE] = {LANE_WRITES, "fill=\"" SVG_COLOUR_WRITE "\" fill-opacity=\"0.6\" "
					      "stroke=\"#a0522d\" stroke-width=\"0.2\""},
	[SPW_PLAN_SPAN_READ] = {LANE_READS, "fill=\"" SVG_COLOUR_READ "\" fill-opacity=\"0.6\" "
					    "stroke=\"#1c6b3e\" stroke-width=\"0.2\""},
	[SPW_PLAN_SPAN_AGAIN] = {LANE_COMPUTE, "fill=\"" COLOUR_AGAIN "\""},
	[SPW_PLAN_SPAN_WAIT] = {LANE_COMPUTE, "fill=\"" SVG_COLOUR_WAITING "\""},
};

struct picture {
	const struct plan_explain *explain;
	struct svg svg;
};

/* Whether the measured step stops during a span. Waits inside a recomputation are part of that. */
static bool interrupts(const struct plan_explain *explain, const struct spw_plan_span *span)
{
	if (span->kind != SPW_PLAN_SPAN_WAIT)
		return span->kind == SPW_PLAN_SPAN_AGAIN;
	for (uint32_t k = 0; k < explain->planned.spans; k++) {
		const struct spw_plan_span *again = &explain->spans[k];

		if (again->kind == SPW_PLAN_SPAN_AGAIN && again->begin_ns <= span->begin_ns &&
		    span->end_ns <= again->end_ns)
			return false;
	}
	return true;
}

/* The time in the planned step at which it has done this much of its measured compute. */
static uint64_t planned_ns(const struct plan_explain *explain, uint64_t compute_ns)
{
	uint64_t ns = compute_ns;

	for (uint32_t k = 0; k < explain->planned.spans; k++) {
		const struct spw_plan_span *span = &explain->spans[k];

		if (span->begin_ns < ns && interrupts(explain, span))
			ns += span->end_ns - span->begin_ns;
	}
	return ns;
}

static void draw_pass(const struct picture *picture, bool backward, uint64_t begin_ns,
		      uint64_t end_ns)
{
	svg_span(&picture->svg, LANE_COMPUTE, begin_ns, end_ns,
		 backward ? "fill=\"" SVG_COLOUR_BACKWARD "\"" : "fill=\"" SVG_COLOUR_FORWARD "\"");
}

/* Draw the passes of all micro-batches. Waits and recomputation are drawn over them. */
static void draw_compute(const struct picture *picture)
{
	const struct plan_explain *explain = picture->explain;
	const struct replay_step *step = &explain->step;
	uint64_t begin_ns = 0, end_ns;
	bool marked = false, backward = false;

	for (uint32_t i = 0; i < step->ops_count; i++)
		marked |=
			step->ops[i].event->kind == SPW_TRACE_STAGE && step->ops[i].event->backward;
	for (uint32_t i = 0; i < step->ops_count; i++) {
		const struct spw_trace_event *event = step->ops[i].event;
		/* If the trace has no stages, the backward pass begins with the first use. */
		bool begins = !marked && !backward && event->kind == SPW_TRACE_TAKE;

		if (event->kind != SPW_TRACE_STAGE && !begins)
			continue;
		end_ns = planned_ns(explain, step->ops[i].ns);
		draw_pass(picture, backward, begin_ns, end_ns);
		begin_ns = end_ns;
		backward = begins || event->backward;
	}
	draw_pass(picture, backward, begin_ns, explain->planned.wall_ns);
}

static void draw_spans(const struct picture *picture)
{
	const struct plan_explain *explain = picture->explain;

	for (uint32_t k = 0; k < explain->planned.spans; k++) {
		const struct spw_plan_span *span = &explain->spans[k];

		svg_span(&picture->svg, spans[span->kind].lane, span->begin_ns, span->end_ns,
			 spans[span->kind].style);
	}
}

static void draw_memory(const struct picture *picture)
{
	const struct plan_explain *explain = picture->explain;

	(void)fprintf(picture->svg.out,
		      "<path fill=\"" SVG_COLOUR_FORWARD
		      "\" fill-opacity=\"0.35\" stroke=\"" SVG_COLOUR_FORWARD "\" d=\"M%.2f %.2f",
		      SVG_LEFT, svg_y(&picture->svg, 0));
	for (uint32_t k = 0; k < explain->planned.points; k++)
		(void)fprintf(picture->svg.out, "H%.2f V%.2f",
			      svg_x(&picture->svg, explain->points[k].ns),
			      svg_y(&picture->svg, (double)explain->points[k].bytes));
	(void)fprintf(picture->svg.out, "H%.2f V%.2f Z\"/>\n", SVG_WIDTH - SVG_RIGHT,
		      svg_y(&picture->svg, 0));
}

static const struct svg_legend legend[] = {
	{"fill=\"" SVG_COLOUR_FORWARD "\"", "forward", 84},
	{"fill=\"" SVG_COLOUR_BACKWARD "\"", "backward", 96},
	{"fill=\"" COLOUR_AGAIN "\"", "recomputed", 104},
	{"fill=\"" SVG_COLOUR_WAITING "\"", "waiting", 84},
	{"fill=\"" SVG_COLOUR_WRITE "\"", "write", 66},
	{"fill=\"" SVG_COLOUR_READ "\"", "read", 62},
	{"fill=\"" SVG_COLOUR_FORWARD "\" fill-opacity=\"0.35\" stroke=\"" SVG_COLOUR_FORWARD "\"",
	 "activations in memory", 0},
};

static void draw(void *context, FILE *out)
{
	static const char *const lanes[LANES] = {"compute", "writes", "reads"};
	struct picture *picture = context;
	const struct plan_explain *explain = picture->explain;
	const struct spw_plan_result *planned = &explain->planned;
	char title[160];

	picture->svg.out = out;
	(void)snprintf(title, sizeof(title),
		       "planned: a step of %.4g s, %.2f %% more than its compute; %u scopes "
		       "recomputed, %.4g s waiting",
		       (double)planned->wall_ns / 1e9,
		       ((double)planned->wall_ns / (double)explain->step.compute_ns - 1) * 100,
		       planned->scopes_again, (double)planned->stall_ns / 1e9);
	svg_begin(&picture->svg, title, lanes, LANES);
	svg_description(&picture->svg, explain->trace->model);
	svg_legend(&picture->svg, legend, SPW_ARRAY_LEN(legend));
	draw_compute(picture);
	draw_spans(picture);
	draw_memory(picture);
	svg_peak(&picture->svg, (double)planned->peak_bytes);
	svg_end(&picture->svg);
}

int plan_explain_svg(const struct plan_explain *explain, const char *path)
{
	const struct spw_plan_result *planned = &explain->planned;
	struct picture picture = {
		.explain = explain,
		.svg.step_ns = fmax((double)planned->wall_ns, 1),
		.svg.bytes_max = fmax((double)planned->peak_bytes * 1.15, 1),
	};

	return tool_output_write(path, "the picture", draw, &picture);
}
