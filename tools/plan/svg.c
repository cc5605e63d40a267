/* SPDX-License-Identifier: MIT */
/*
 * tools/plan/svg.c - the recompute-offload-keep curve as a chart: peak of activations against
 * throughput
 */
#include "tools/plan/report.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "util/util.h"

#define WIDTH  760.0
#define HEIGHT 440.0
#define LEFT   70.0
#define RIGHT  190.0
#define TOP    40.0
#define BOTTOM 60.0

static const char *const colours[CURVE_LINES] = {"#4c72b0", "#8172b2", "#c44e52", "#2a9d5c"};

struct axes {
	double peak_min, peak_max; /* powers of 2: the scale of the peaks is logarithmic */
	double flops_max;
};

static double x_of(const struct axes *axes, double peak)
{
	return LEFT + log2(peak / axes->peak_min) / log2(axes->peak_max / axes->peak_min) *
			      (WIDTH - LEFT - RIGHT);
}

static double y_of(const struct axes *axes, double flops)
{
	return HEIGHT - BOTTOM - flops / axes->flops_max * (HEIGHT - TOP - BOTTOM);
}

/* 1, 2 or 5 times a power of ten, so that there are four to nine marks up to @most. */
static double mark_distance(double most)
{
	static const double factors[] = {1, 2, 5};
	double power = pow(10, floor(log10(most / 5)));

	for (unsigned i = 0; i < SPW_ARRAY_LEN(factors); i++)
		if (most / (power * factors[i]) <= 9)
			return power * factors[i];
	return power * 10;
}

static void draw_axes(const struct axes *axes, FILE *out)
{
	int steps = (int)lround(log2(axes->peak_max / axes->peak_min)), every = 1 + steps / 8;
	double distance = mark_distance(axes->flops_max / 1e12) * 1e12;
	char text[32];

	for (int k = 0; k <= steps; k += every) {
		double peak = ldexp(axes->peak_min, k);

		(void)fprintf(
			out,
			"<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>"
			"<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n",
			x_of(axes, peak), TOP, x_of(axes, peak), HEIGHT - BOTTOM, x_of(axes, peak),
			HEIGHT - BOTTOM + 18, spw_size_format((uint64_t)peak, text, sizeof(text)));
	}
	for (int k = 0; k * distance <= axes->flops_max; k++)
		(void)fprintf(
			out,
			"<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>"
			"<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n",
			LEFT, y_of(axes, k * distance), WIDTH - RIGHT, y_of(axes, k * distance),
			LEFT - 8, y_of(axes, k * distance) + 4, k * distance / 1e12);
	(void)fprintf(out,
		      "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">peak of activations per "
		      "GPU</text>\n"
		      "<text x=\"%.1f\" y=\"%.1f\">TFLOPS per GPU; numbers are micro-batch "
		      "sizes</text>\n",
		      (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 20, LEFT, TOP - 14);
}

static void draw_line(const struct plan_report *report, const struct axes *axes, unsigned line,
		      FILE *out)
{
	(void)fprintf(out, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\" points=\"",
		      colours[line]);
	for (unsigned k = 0; k < report->points; k++)
		(void)fprintf(out, "%.1f,%.1f ", x_of(axes, report->curve[line][k].peak_bytes),
			      y_of(axes, report->curve[line][k].flops));
	(void)fprintf(out, "\"/>\n");
	for (unsigned k = 0; k < report->points; k++) {
		double x = x_of(axes, report->curve[line][k].peak_bytes),
		       y = y_of(axes, report->curve[line][k].flops);

		(void)fprintf(out,
			      "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"%s\"/>"
			      "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\" "
			      "font-size=\"10\">%u</text>\n",
			      x, y, colours[line], x, y - 8, report->curve[line][k].micro_batch);
	}
	(void)fprintf(out,
		      "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"5\" fill=\"%s\"/><text x=\"%.1f\" "
		      "y=\"%.1f\">%s</text>\n",
		      WIDTH - RIGHT + 20, TOP + 10 + 22 * line, colours[line], WIDTH - RIGHT + 32,
		      TOP + 14 + 22 * line, curve_names[line]);
}

static void draw(const struct plan_report *report, FILE *out)
{
	struct axes axes = {.peak_min = INFINITY};

	for (unsigned line = 0; line < CURVE_LINES; line++)
		for (unsigned k = 0; k < report->points; k++) {
			axes.peak_min = fmin(axes.peak_min, report->curve[line][k].peak_bytes);
			axes.peak_max = fmax(axes.peak_max, report->curve[line][k].peak_bytes);
			axes.flops_max = fmax(axes.flops_max, report->curve[line][k].flops);
		}
	axes.peak_min = exp2(floor(log2(axes.peak_min)));
	axes.peak_max = exp2(ceil(log2(axes.peak_max * 1.001)));
	axes.flops_max *= 1.15;
	(void)fprintf(
		out,
		"<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" "
		"font-family=\"sans-serif\" "
		"font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
		WIDTH, HEIGHT);
	draw_axes(&axes, out);
	for (unsigned line = 0; line < CURVE_LINES; line++)
		draw_line(report, &axes, line, out);
	(void)fprintf(out, "</svg>\n");
}

int plan_report_svg(const struct plan_report *report, const char *path)
{
	FILE *out = fopen(path, "w");
	int failed;

	if (!out)
		return spw_error_errno(-errno, "cannot create the chart %s", path);
	draw(report, out);
	failed = ferror(out);
	if (fclose(out) != 0 || failed)
		return spw_error_errno(errno ? -errno : -EIO, "cannot write the chart %s", path);
	return 0;
}
