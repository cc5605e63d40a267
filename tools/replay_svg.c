/* SPDX-License-Identifier: MIT */
/* tools/replay_svg.c - the last replay as a picture: compute, writes, reads and memory over one step */
#include "tools/replay_report.h"

#include <errno.h>
#include <math.h>

#include "tools/replay_drive.h"
#include "util/util.h"

#define WIDTH       960.0
#define HEIGHT      430.0
#define LEFT        90.0
#define RIGHT       20.0
#define LANE_HEIGHT 26.0
#define LANE_GAP    10.0
#define LANES_TOP   50.0
#define MEMORY_TOP  170.0
#define BOTTOM      40.0

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

static void draw_span(const struct picture *picture, unsigned lane, uint64_t begin_ns, uint64_t end_ns,
		      const char *style)
{
	double x = x_of(picture, begin_ns), width = x_of(picture, end_ns) - x;

	(void)fprintf(picture->out, "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" %s/>\n", x,
		      lane_y(lane), fmax(width, 0.3), LANE_HEIGHT, style);
}

static void draw_text(const struct picture *picture, double x, double y, const char *anchor, const char *text)
{
	(void)fprintf(picture->out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", x, y, anchor, text);
}

/* ---- Compute ---- */

static void draw_compute(const struct picture *picture)
{
	const struct replay_step *step = picture->report->step;
	const struct replay_timeline *timeline = &picture->report->run->timeline;
	uint64_t begin_ns = 0;
	bool backward = false, next = false;

	for (uint32_t i = 0; i <= step->ops_count; i++) {
		uint64_t ns = i < step->ops_count ? timeline->op_ns[i] : (uint64_t)picture->step_ns;

		if (i < step->ops_count && step->ops[i].event->kind == SPW_TRACE_STAGE)
			next = step->ops[i].event->backward;
		else if (i < step->ops_count && !next && step->ops[i].ns >= step->backward_ns)
			next = true;
		if (next == backward && i < step->ops_count)
			continue;
		draw_span(picture, 0, begin_ns, ns, backward ? "fill=\"#8172b2\"" : "fill=\"#4c72b0\"");
		begin_ns = ns;
		backward = next;
	}
	for (uint32_t i = 0; i < timeline->stalls_count; i++)
		draw_span(picture, 0, timeline->stalls[i].begin_ns, timeline->stalls[i].end_ns, "fill=\"#d62728\"");
	for (uint32_t i = 0; i < step->ops_count; i++)
		if (step->ops[i].event->kind == SPW_TRACE_SCOPE_ENTER)
			(void)fprintf(picture->out,
				      "<line x1=\"%.2f\" y1=\"%.1f\" x2=\"%.2f\" y2=\"%.1f\" stroke=\"white\" "
				      "stroke-width=\"0.7\"/>\n",
				      x_of(picture, timeline->op_ns[i]), lane_y(0), x_of(picture, timeline->op_ns[i]),
				      lane_y(0) + LANE_HEIGHT);
}

/* ---- Transfers ---- */

static void draw_transfers(const struct picture *picture)
{
	uint64_t begin_ns = picture->report->run->timeline.begin_ns;
	const struct replay_transfer *transfers;
	size_t count;

	transfers = replay_drive_transfers(&count);
	for (size_t i = 0; i < count; i++) {
		uint64_t from_ns = transfers[i].begin_ns > begin_ns ? transfers[i].begin_ns - begin_ns : 0;

		draw_span(picture, transfers[i].read ? 2 : 1, from_ns, transfers[i].end_ns - begin_ns,
			  transfers[i].read
				  ? "fill=\"#2a9d5c\" fill-opacity=\"0.6\" stroke=\"#1c6b3e\" stroke-width=\"0.2\""
				  : "fill=\"#dd8452\" fill-opacity=\"0.6\" stroke=\"#a0522d\" "
				    "stroke-width=\"0.2\"");
	}
}

/* ---- Memory ---- */

static void draw_level(const struct picture *picture, double bytes, const char *what)
{
	double y = y_of(picture, bytes);
	char size[32], text[96];

	(void)fprintf(
		picture->out,
		"<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#888\" stroke-dasharray=\"4 3\"/>\n",
		LEFT, y, WIDTH - RIGHT, y);
	(void)snprintf(text, sizeof(text), "%s: %s", what, spw_size_format((uint64_t)bytes, size, sizeof(size)));
	draw_text(picture, WIDTH - RIGHT, y - 4, "end", text);
}

static void draw_memory(const struct picture *picture)
{
	const struct replay_timeline *timeline = &picture->report->run->timeline;
	double scale = picture->report->scale, y = y_of(picture, 0);

	(void)fprintf(picture->out, "<path fill=\"#4c72b0\" fill-opacity=\"0.35\" stroke=\"#4c72b0\" d=\"M%.2f %.2f",
		      LEFT, y);
	for (uint32_t i = 0; i < timeline->samples_count; i++) {
		y = y_of(picture, (double)timeline->samples[i].bytes / scale);
		(void)fprintf(picture->out, "H%.2f V%.2f", x_of(picture, timeline->samples[i].ns), y);
	}
	(void)fprintf(picture->out, "H%.2f V%.2f Z\"/>\n", WIDTH - RIGHT, y_of(picture, 0));
}

static void draw_axis(const struct picture *picture)
{
	char text[32];

	for (unsigned k = 0; k <= 5; k++) {
		double ns = picture->step_ns * k / 5;

		(void)snprintf(text, sizeof(text), "%.4g ms", ns / 1e6);
		draw_text(picture, x_of(picture, (uint64_t)ns), HEIGHT - BOTTOM + 18, "middle", text);
	}
}

static void draw(const struct picture *picture)
{
	static const char *const lanes[] = {"compute", "writes", "reads"};
	const struct replay_report *report = picture->report;
	const struct replay_measure *last = &report->run->measures[report->run->steps - 1];
	char text[160];

	(void)fprintf(picture->out,
		      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" font-family=\"sans-serif\" "
		      "font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
		      WIDTH, HEIGHT);
	(void)snprintf(text, sizeof(text), "%s mode: step %.4g s, %.4g s without I/O, %.4g s of it waiting (red)",
		       report->mode, (double)last->step_ns / 1e9, (double)report->step->compute_ns / 1e9,
		       (double)last->stall_ns / 1e9);
	draw_text(picture, LEFT, 26, "start", text);
	for (unsigned i = 0; i < SPW_ARRAY_LEN(lanes); i++)
		draw_text(picture, LEFT - 10, lane_y(i) + LANE_HEIGHT / 2 + 4, "end", lanes[i]);
	draw_text(picture, LEFT - 10, (MEMORY_TOP + HEIGHT - BOTTOM) / 2, "end", "memory");
	draw_compute(picture);
	draw_transfers(picture);
	draw_memory(picture);
	draw_level(picture, (double)report->step->keep_all_bytes / report->scale, "all kept");
	draw_level(picture, (double)last->peak_bytes / report->scale, "peak");
	draw_axis(picture);
	(void)fprintf(picture->out, "</svg>\n");
}

int replay_svg_write(const struct replay_report *report, const char *path)
{
	const struct replay_measure *last = &report->run->measures[report->run->steps - 1];
	struct picture picture = {.report = report, .step_ns = fmax((double)last->step_ns, 1)};
	double most = fmax((double)report->step->keep_all_bytes, (double)last->peak_bytes);
	int failed;

	picture.bytes_max = fmax(most / report->scale * 1.08, 1);
	picture.out = fopen(path, "w");
	if (!picture.out)
		return spw_error_errno(-errno, "cannot create the picture %s", path);
	draw(&picture);
	failed = ferror(picture.out);
	if (fclose(picture.out) != 0 || failed)
		return spw_error_errno(errno ? -errno : -EIO, "cannot write the picture %s", path);
	return 0;
}
