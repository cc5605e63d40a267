/* SPDX-License-Identifier: MIT */
/* tools/replay/svg.c - draw the last replay as SVG: compute, transfers and memory over time */
#include "tools/replay/report.h"

#include <math.h>

#include "tools/replay/drive.h"
#include "tools/ui/svg.h"
#include "tools/ui/tool.h"
#include "util/util.h"

#define LANES 3u

struct picture {
	const struct replay_report *report;
	struct svg svg;
};

/* ---- Compute ---- */

static void draw_pass(void *context, const struct replay_pass *pass)
{
	const struct picture *picture = context;

	svg_span(&picture->svg, 0, pass->begin_ns, pass->end_ns,
		 pass->backward ? "fill=\"" SVG_COLOUR_BACKWARD "\""
				: "fill=\"" SVG_COLOUR_FORWARD "\"");
}

static void name_pass(void *context, const struct replay_pass *pass)
{
	const struct picture *picture = context;
	double x = svg_x(&picture->svg, pass->begin_ns),
	       width = svg_x(&picture->svg, pass->end_ns) - x;
	const char *name = pass->backward ? "backward" : "forward";
	char text[32];

	if (width < 24)
		return;
	if (width < 90)
		(void)snprintf(text, sizeof(text), "%c %u", pass->backward ? 'B' : 'F',
			       pass->micro_batch);
	else
		(void)snprintf(text, sizeof(text), "%s %u", name, pass->micro_batch);
	svg_text(&picture->svg, x + width / 2, svg_lane_y(0) + SVG_LANE_HEIGHT / 2 + 4,
		 "text-anchor=\"middle\" fill=\"white\"", text);
}

static void draw_compute(struct picture *picture)
{
	const struct replay_step *step = picture->report->step;
	const struct replay_timeline *timeline = &picture->report->run->timeline;

	replay_each_pass(picture->report, draw_pass, picture);
	for (uint32_t i = 0; i < step->ops_count; i++)
		if (step->ops[i].event->kind == SPW_TRACE_SCOPE_ENTER) {
			double x = svg_x(&picture->svg, timeline->op_ns[i]);

			svg_line(&picture->svg, x, svg_lane_y(0) + SVG_LANE_HEIGHT - 6, x,
				 svg_lane_y(0) + SVG_LANE_HEIGHT,
				 "stroke=\"white\" stroke-width=\"0.7\"");
		}
	for (uint32_t i = 0; i < timeline->stalls_count; i++)
		svg_span(&picture->svg, 0, timeline->stalls[i].begin_ns, timeline->stalls[i].end_ns,
			 "fill=\"" SVG_COLOUR_WAITING "\"");
	replay_each_pass(picture->report, name_pass, picture);
}

/* ---- Transfers ---- */

static void draw_transfers(const struct picture *picture)
{
	uint64_t begin_ns = picture->report->run->timeline.begin_ns;
	const struct replay_transfer *transfers;
	size_t count;

	transfers = replay_drive_transfers(&count);
	for (size_t i = 0; i < count; i++) {
		uint64_t from_ns =
			transfers[i].begin_ns > begin_ns ? transfers[i].begin_ns - begin_ns : 0;

		svg_span(&picture->svg, transfers[i].read ? 2 : 1, from_ns,
			 transfers[i].end_ns - begin_ns,
			 transfers[i].read
				 ? "fill=\"" SVG_COLOUR_READ
				   "\" fill-opacity=\"0.6\" stroke=\"#1c6b3e\" stroke-width=\"0.2\""
				 : "fill=\"" SVG_COLOUR_WRITE "\" fill-opacity=\"0.6\" "
				   "stroke=\"#a0522d\" stroke-width=\"0.2\"");
	}
}

/* ---- Memory ---- */

static void draw_memory(const struct picture *picture)
{
	const struct replay_timeline *timeline = &picture->report->run->timeline;
	double scale = picture->report->scale, y = svg_y(&picture->svg, 0);

	(void)fprintf(picture->svg.out,
		      "<path fill=\"" SVG_COLOUR_FORWARD
		      "\" fill-opacity=\"0.35\" stroke=\"" SVG_COLOUR_FORWARD "\" d=\"M%.2f %.2f",
		      SVG_LEFT, y);
	for (uint32_t i = 0; i < timeline->samples_count; i++) {
		y = svg_y(&picture->svg, (double)timeline->samples[i].bytes / scale);
		(void)fprintf(picture->svg.out, "H%.2f V%.2f",
			      svg_x(&picture->svg, timeline->samples[i].ns), y);
	}
	(void)fprintf(picture->svg.out, "H%.2f V%.2f Z\"/>\n", SVG_WIDTH - SVG_RIGHT,
		      svg_y(&picture->svg, 0));
}

static void draw_all_kept(const struct picture *picture)
{
	const struct replay_step *step = picture->report->step;
	uint64_t bytes = 0;

	(void)fprintf(picture->svg.out,
		      "<path fill=\"none\" stroke=\"" SVG_COLOUR_KEPT
		      "\" stroke-dasharray=\"4 3\" d=\"M%.2f %.2f",
		      SVG_LEFT, svg_y(&picture->svg, 0));
	for (uint32_t i = 0; i < step->ops_count; i++) {
		if (step->ops[i].kept_bytes == bytes)
			continue;
		bytes = step->ops[i].kept_bytes;
		(void)fprintf(picture->svg.out, "H%.2f V%.2f",
			      svg_x(&picture->svg, picture->report->run->timeline.op_ns[i]),
			      svg_y(&picture->svg, (double)bytes / picture->report->scale));
	}
	(void)fprintf(picture->svg.out, "H%.2f\"/>\n", SVG_WIDTH - SVG_RIGHT);
}

/* ---- Legend and title ---- */

static const struct svg_legend legend[] = {
	{"fill=\"" SVG_COLOUR_FORWARD "\"", "forward", 84},
	{"fill=\"" SVG_COLOUR_BACKWARD "\"", "backward", 96},
	{"fill=\"" SVG_COLOUR_WAITING "\"", "waiting for I/O", 126},
	{"fill=\"" SVG_COLOUR_WRITE "\"", "write", 66},
	{"fill=\"" SVG_COLOUR_READ "\"", "read", 62},
	{"fill=\"" SVG_COLOUR_FORWARD "\" fill-opacity=\"0.35\" stroke=\"" SVG_COLOUR_FORWARD "\"",
	 "activations in memory", 168},
	{"fill=\"none\" stroke=\"" SVG_COLOUR_KEPT "\" stroke-dasharray=\"3 2\"",
	 "if all were kept", 0},
};

static void draw(void *context, FILE *out)
{
	struct picture *picture = context;
	static const char *const lanes[LANES] = {"compute", "writes", "reads"};
	const struct replay_report *report = picture->report;
	const struct replay_measure *last = &report->run->measures[report->run->steps - 1];
	char text[160];

	picture->svg.out = out;
	(void)snprintf(text, sizeof(text),
		       "%s mode: a step of %.4g s, %.2f %% more than without I/O; %.4g s waiting",
		       report->mode, (double)last->step_ns / 1e9,
		       ((double)last->step_ns / (double)report->step->compute_ns - 1) * 100,
		       (double)last->stall_ns / 1e9);
	svg_begin(&picture->svg, text, lanes, LANES);
	svg_description(&picture->svg, report->trace->model);
	svg_legend(&picture->svg, legend, SPW_ARRAY_LEN(legend));
	draw_compute(picture);
	draw_transfers(picture);
	draw_memory(picture);
	draw_all_kept(picture);
	svg_peak(&picture->svg, (double)last->peak_bytes / report->scale);
	svg_end(&picture->svg);
}

int replay_svg_write(const struct replay_report *report, const char *path)
{
	const struct replay_measure *last = &report->run->measures[report->run->steps - 1];
	struct picture picture = {.report = report, .svg.step_ns = fmax((double)last->step_ns, 1)};
	double most = fmax((double)report->step->keep_all_bytes, (double)last->peak_bytes);

	picture.svg.bytes_max = fmax(most / report->scale * 1.08, 1);
	return tool_output_write(path, "the picture", draw, &picture);
}
