/* SPDX-License-Identifier: MIT */
/* tools/replay/svg.c - the last replay as a picture: compute, writes, reads, memory */
#include "tools/replay/report.h"

#include <math.h>

#include "tools/replay/drive.h"
#include "tools/ui/tool.h"
#include "util/util.h"

#define WIDTH       1000.0
#define HEIGHT      540.0
#define LEFT        90.0
#define RIGHT       24.0
#define LANE_HEIGHT 26.0
#define LANE_GAP    8.0
#define LANES_TOP   92.0
#define LANES       3u
#define MEMORY_TOP  214.0
#define BOTTOM      36.0
#define TITLE_CHARS 140 /* of the model's description */

#define COLOUR_FORWARD  "#4c72b0"
#define COLOUR_BACKWARD "#8172b2"
#define COLOUR_WAITING  "#d62728"
#define COLOUR_WRITE    "#dd8452"
#define COLOUR_READ     "#2a9d5c"
#define COLOUR_GRID     "#e4e4e4"
#define COLOUR_KEPT     "#777777"

struct picture {
	const struct replay_report *report;
	FILE *out;
	double step_ns, bytes_max;
};

static double x_of(const struct picture *picture, uint64_t ns)
{
	return LEFT + fmin((double)ns / picture->step_ns, 1) * (WIDTH - LEFT - RIGHT);
}

static double y_of(const struct picture *picture, double bytes)
{
	return HEIGHT - BOTTOM - bytes / picture->bytes_max * (HEIGHT - BOTTOM - MEMORY_TOP);
}

static double lane_y(unsigned lane)
{
	return LANES_TOP + lane * (LANE_HEIGHT + LANE_GAP);
}

static void draw_text(const struct picture *picture, double x, double y, const char *style,
		      const char *text)
{
	(void)fprintf(picture->out, "<text x=\"%.1f\" y=\"%.1f\" %s>%s</text>\n", x, y, style,
		      text);
}

static void draw_rect(const struct picture *picture, double x, double y, double width,
		      double height, const char *style)
{
	(void)fprintf(picture->out,
		      "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" %s/>\n", x, y,
		      width, height, style);
}

static void draw_line(const struct picture *picture, double x1, double y1, double x2, double y2,
		      const char *style)
{
	(void)fprintf(picture->out, "<line x1=\"%.2f\" y1=\"%.1f\" x2=\"%.2f\" y2=\"%.1f\" %s/>\n",
		      x1, y1, x2, y2, style);
}

/* What is too short to be seen is drawn a third of a point wide all the same. */
static void draw_span(const struct picture *picture, unsigned lane, uint64_t begin_ns,
		      uint64_t end_ns, const char *style)
{
	double x = x_of(picture, begin_ns), width = x_of(picture, end_ns) - x;

	draw_rect(picture, x, lane_y(lane), fmax(width, 0.3), LANE_HEIGHT, style);
}

/* ---- Axes ---- */

/* 1, 2 or 5 times a power of ten, so that there are at most ten marks up to @most. */
static double mark_distance(double most)
{
	static const double factors[] = {1, 2, 5};
	double power = pow(10, floor(log10(most / 10)));

	for (unsigned i = 0; i < SPW_ARRAY_LEN(factors); i++)
		if (most / (power * factors[i]) <= 10)
			return power * factors[i];
	return power * 10;
}

static void draw_time_axis(const struct picture *picture)
{
	double distance_ns = mark_distance(picture->step_ns);
	char text[32];

	for (unsigned k = 0; k * distance_ns <= picture->step_ns; k++) {
		double ns = k * distance_ns, x = x_of(picture, (uint64_t)ns);

		draw_line(picture, x, LANES_TOP, x, HEIGHT - BOTTOM + 4,
			  "stroke=\"" COLOUR_GRID "\"");
		(void)snprintf(text, sizeof(text), "%.6g", ns / 1e6);
		draw_text(picture, x, HEIGHT - BOTTOM + 18, "text-anchor=\"middle\"", text);
	}
	draw_text(picture, LEFT - 12, HEIGHT - BOTTOM + 18, "text-anchor=\"end\"", "ms");
}

/* A power of two between marks, so that they are round numbers of MiB. */
static void draw_memory_axis(const struct picture *picture)
{
	double distance = exp2(ceil(log2(picture->bytes_max / 6)));
	char text[32];

	for (unsigned k = 0; k * distance <= picture->bytes_max; k++) {
		double bytes = k * distance, y = y_of(picture, bytes);

		draw_line(picture, LEFT, y, WIDTH - RIGHT, y, "stroke=\"" COLOUR_GRID "\"");
		draw_text(picture, LEFT - 8, y + 4, "text-anchor=\"end\"",
			  spw_size_format((uint64_t)bytes, text, sizeof(text)));
	}
	draw_text(picture, LEFT - 8, MEMORY_TOP - 12, "text-anchor=\"end\" font-weight=\"bold\"",
		  "memory");
}

/* ---- Compute ---- */

static void draw_pass(void *context, const struct replay_pass *pass)
{
	const struct picture *picture = context;

	draw_span(picture, 0, pass->begin_ns, pass->end_ns,
		  pass->backward ? "fill=\"" COLOUR_BACKWARD "\"" : "fill=\"" COLOUR_FORWARD "\"");
}

static void name_pass(void *context, const struct replay_pass *pass)
{
	const struct picture *picture = context;
	double x = x_of(picture, pass->begin_ns), width = x_of(picture, pass->end_ns) - x;
	const char *name = pass->backward ? "backward" : "forward";
	char text[32];

	if (width < 24)
		return;
	if (width < 90)
		(void)snprintf(text, sizeof(text), "%c %u", pass->backward ? 'B' : 'F',
			       pass->micro_batch);
	else
		(void)snprintf(text, sizeof(text), "%s %u", name, pass->micro_batch);
	draw_text(picture, x + width / 2, lane_y(0) + LANE_HEIGHT / 2 + 4,
		  "text-anchor=\"middle\" fill=\"white\"", text);
}

static void draw_compute(struct picture *picture)
{
	const struct replay_step *step = picture->report->step;
	const struct replay_timeline *timeline = &picture->report->run->timeline;

	replay_each_pass(picture->report, draw_pass, picture);
	for (uint32_t i = 0; i < step->ops_count; i++)
		if (step->ops[i].event->kind == SPW_TRACE_SCOPE_ENTER) {
			double x = x_of(picture, timeline->op_ns[i]);

			draw_line(picture, x, lane_y(0) + LANE_HEIGHT - 6, x,
				  lane_y(0) + LANE_HEIGHT, "stroke=\"white\" stroke-width=\"0.7\"");
		}
	for (uint32_t i = 0; i < timeline->stalls_count; i++)
		draw_span(picture, 0, timeline->stalls[i].begin_ns, timeline->stalls[i].end_ns,
			  "fill=\"" COLOUR_WAITING "\"");
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

		draw_span(
			picture, transfers[i].read ? 2 : 1, from_ns, transfers[i].end_ns - begin_ns,
			transfers[i].read
				? "fill=\"" COLOUR_READ
				  "\" fill-opacity=\"0.6\" stroke=\"#1c6b3e\" stroke-width=\"0.2\""
				: "fill=\"" COLOUR_WRITE "\" fill-opacity=\"0.6\" "
				  "stroke=\"#a0522d\" stroke-width=\"0.2\"");
	}
}

/* ---- Memory ---- */

static void draw_memory(const struct picture *picture)
{
	const struct replay_timeline *timeline = &picture->report->run->timeline;
	double scale = picture->report->scale, y = y_of(picture, 0);

	(void)fprintf(picture->out,
		      "<path fill=\"" COLOUR_FORWARD
		      "\" fill-opacity=\"0.35\" stroke=\"" COLOUR_FORWARD "\" d=\"M%.2f %.2f",
		      LEFT, y);
	for (uint32_t i = 0; i < timeline->samples_count; i++) {
		y = y_of(picture, (double)timeline->samples[i].bytes / scale);
		(void)fprintf(picture->out, "H%.2f V%.2f", x_of(picture, timeline->samples[i].ns),
			      y);
	}
	(void)fprintf(picture->out, "H%.2f V%.2f Z\"/>\n", WIDTH - RIGHT, y_of(picture, 0));
}

static void draw_all_kept(const struct picture *picture)
{
	const struct replay_step *step = picture->report->step;
	uint64_t bytes = 0;

	(void)fprintf(picture->out,
		      "<path fill=\"none\" stroke=\"" COLOUR_KEPT
		      "\" stroke-dasharray=\"4 3\" d=\"M%.2f %.2f",
		      LEFT, y_of(picture, 0));
	for (uint32_t i = 0; i < step->ops_count; i++) {
		if (step->ops[i].kept_bytes == bytes)
			continue;
		bytes = step->ops[i].kept_bytes;
		(void)fprintf(picture->out, "H%.2f V%.2f",
			      x_of(picture, picture->report->run->timeline.op_ns[i]),
			      y_of(picture, (double)bytes / picture->report->scale));
	}
	(void)fprintf(picture->out, "H%.2f\"/>\n", WIDTH - RIGHT);
}

static void draw_peak(const struct picture *picture, double bytes)
{
	double y = y_of(picture, bytes);
	char size[32], text[96];

	draw_line(picture, LEFT, y, WIDTH - RIGHT, y,
		  "stroke=\"" COLOUR_FORWARD "\" stroke-dasharray=\"1 3\"");
	(void)snprintf(text, sizeof(text), "peak %s",
		       spw_size_format((uint64_t)bytes, size, sizeof(size)));
	draw_text(picture, WIDTH - RIGHT - 4, y - 5,
		  "text-anchor=\"end\" fill=\"" COLOUR_FORWARD "\"", text);
}

/* ---- Words ---- */

static void draw_legend(const struct picture *picture)
{
	static const struct {
		const char *style, *text;
		double width;
	} entries[] = {
		{"fill=\"" COLOUR_FORWARD "\"", "forward", 84},
		{"fill=\"" COLOUR_BACKWARD "\"", "backward", 96},
		{"fill=\"" COLOUR_WAITING "\"", "waiting for I/O", 126},
		{"fill=\"" COLOUR_WRITE "\"", "write", 66},
		{"fill=\"" COLOUR_READ "\"", "read", 62},
		{"fill=\"" COLOUR_FORWARD "\" fill-opacity=\"0.35\" stroke=\"" COLOUR_FORWARD "\"",
		 "activations in memory", 168},
		{"fill=\"none\" stroke=\"" COLOUR_KEPT "\" stroke-dasharray=\"3 2\"",
		 "if all were kept", 0},
	};
	double x = LEFT;

	for (unsigned i = 0; i < SPW_ARRAY_LEN(entries); i++) {
		draw_rect(picture, x, 64, 12, 12, entries[i].style);
		draw_text(picture, x + 18, 74, "", entries[i].text);
		x += entries[i].width;
	}
}

/* The model's description, as much as fits; in a file that may be of any bytes. */
static void draw_model(const struct picture *picture)
{
	const char *model = picture->report->trace->model;

	(void)fprintf(picture->out, "<text x=\"%.1f\" y=\"48\" fill=\"#555\">", LEFT);
	for (unsigned i = 0; i < TITLE_CHARS && model[i]; i++) {
		unsigned char c = (unsigned char)model[i];

		if (c < ' ' || c > '~')
			(void)fputc('?', picture->out);
		else if (c == '<' || c == '>' || c == '&')
			(void)fprintf(picture->out, "&#%u;", c);
		else
			(void)fputc(c, picture->out);
	}
	(void)fputs("</text>\n", picture->out);
}

static void draw(void *context, FILE *out)
{
	struct picture *picture = context;
	static const char *const lanes[LANES] = {"compute", "writes", "reads"};
	const struct replay_report *report = picture->report;
	const struct replay_measure *last = &report->run->measures[report->run->steps - 1];
	char text[160];

	picture->out = out;
	(void)fprintf(
		out,
		"<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" "
		"width=\"%.0f\" height=\"%.0f\" font-family=\"sans-serif\" font-size=\"12\">\n"
		"<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
		WIDTH, HEIGHT, WIDTH, HEIGHT);
	(void)snprintf(text, sizeof(text),
		       "%s mode: a step of %.4g s, %.2f %% more than without I/O; %.4g s waiting",
		       report->mode, (double)last->step_ns / 1e9,
		       ((double)last->step_ns / (double)report->step->compute_ns - 1) * 100,
		       (double)last->stall_ns / 1e9);
	draw_text(picture, LEFT, 28, "font-size=\"15\" font-weight=\"bold\"", text);
	draw_model(picture);
	draw_legend(picture);
	for (unsigned i = 0; i < LANES; i++) {
		draw_rect(picture, LEFT, lane_y(i), WIDTH - LEFT - RIGHT, LANE_HEIGHT,
			  "fill=\"#f4f4f4\"");
		draw_text(picture, LEFT - 8, lane_y(i) + LANE_HEIGHT / 2 + 4,
			  "text-anchor=\"end\" font-weight=\"bold\"", lanes[i]);
	}
	draw_time_axis(picture);
	draw_memory_axis(picture);
	draw_compute(picture);
	draw_transfers(picture);
	draw_memory(picture);
	draw_all_kept(picture);
	draw_peak(picture, (double)last->peak_bytes / report->scale);
	(void)fputs("</svg>\n", out);
}

int replay_svg_write(const struct replay_report *report, const char *path)
{
	const struct replay_measure *last = &report->run->measures[report->run->steps - 1];
	struct picture picture = {.report = report, .step_ns = fmax((double)last->step_ns, 1)};
	double most = fmax((double)report->step->keep_all_bytes, (double)last->peak_bytes);

	picture.bytes_max = fmax(most / report->scale * 1.08, 1);
	return tool_output_write(path, "the picture", draw, &picture);
}
