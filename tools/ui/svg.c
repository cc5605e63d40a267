/* SPDX-License-Identifier: MIT */
/* tools/ui/svg.c - draw a step as SVG: lanes of activities, a memory chart, axes */
#include "tools/ui/svg.h"

#include <math.h>

#include "util/util.h"

#define LANE_GAP          8.0
#define LANES_TOP         92.0
#define MEMORY_TOP        214.0
#define BOTTOM            36.0
#define DESCRIPTION_CHARS 140

double svg_x(const struct svg *svg, uint64_t ns)
{
	return SVG_LEFT + fmin((double)ns / svg->step_ns, 1) * (SVG_WIDTH - SVG_LEFT - SVG_RIGHT);
}

double svg_y(const struct svg *svg, double bytes)
{
	return SVG_HEIGHT - BOTTOM - bytes / svg->bytes_max * (SVG_HEIGHT - BOTTOM - MEMORY_TOP);
}

double svg_lane_y(unsigned lane)
{
	return LANES_TOP + lane * (SVG_LANE_HEIGHT + LANE_GAP);
}

void svg_text(const struct svg *svg, double x, double y, const char *style, const char *text)
{
	(void)fprintf(svg->out, "<text x=\"%.1f\" y=\"%.1f\" %s>%s</text>\n", x, y, style, text);
}

void svg_rect(const struct svg *svg, double x, double y, double width, double height,
	      const char *style)
{
	(void)fprintf(svg->out, "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" %s/>\n",
		      x, y, width, height, style);
}

void svg_line(const struct svg *svg, double x1, double y1, double x2, double y2, const char *style)
{
	(void)fprintf(svg->out, "<line x1=\"%.2f\" y1=\"%.1f\" x2=\"%.2f\" y2=\"%.1f\" %s/>\n", x1,
		      y1, x2, y2, style);
}

/* Draw a span in a lane. Spans too short to be seen are drawn a third of a point wide. */
void svg_span(const struct svg *svg, unsigned lane, uint64_t begin_ns, uint64_t end_ns,
	      const char *style)
{
	double x = svg_x(svg, begin_ns), width = svg_x(svg, end_ns) - x;

	svg_rect(svg, x, svg_lane_y(lane), fmax(width, 0.3), SVG_LANE_HEIGHT, style);
}

/* ---- Axes ---- */

/* The distance of marks: 1, 2 or 5 times a power of ten, for at most ten marks up to @most. */
static double mark_distance(double most)
{
	static const double factors[] = {1, 2, 5};
	double power = pow(10, floor(log10(most / 10)));

	for (unsigned i = 0; i < SPW_ARRAY_LEN(factors); i++)
		if (most / (power * factors[i]) <= 10)
			return power * factors[i];
	return power * 10;
}

static void draw_time_axis(const struct svg *svg)
{
	double distance_ns = mark_distance(svg->step_ns);
	char text[32];

	for (unsigned k = 0; k * distance_ns <= svg->step_ns; k++) {
		double ns = k * distance_ns, x = svg_x(svg, (uint64_t)ns);

		svg_line(svg, x, LANES_TOP, x, SVG_HEIGHT - BOTTOM + 4,
			 "stroke=\"" SVG_COLOUR_GRID "\"");
		(void)snprintf(text, sizeof(text), "%.6g", ns / 1e6);
		svg_text(svg, x, SVG_HEIGHT - BOTTOM + 18, "text-anchor=\"middle\"", text);
	}
	svg_text(svg, SVG_LEFT - 12, SVG_HEIGHT - BOTTOM + 18, "text-anchor=\"end\"", "ms");
}

/* Draw the memory axis. Marks are a power of two apart, so they are round numbers of MiB. */
static void draw_memory_axis(const struct svg *svg)
{
	double distance = exp2(ceil(log2(svg->bytes_max / 6)));
	char text[32];

	for (unsigned k = 0; k * distance <= svg->bytes_max; k++) {
		double bytes = k * distance, y = svg_y(svg, bytes);

		svg_line(svg, SVG_LEFT, y, SVG_WIDTH - SVG_RIGHT, y,
			 "stroke=\"" SVG_COLOUR_GRID "\"");
		svg_text(svg, SVG_LEFT - 8, y + 4, "text-anchor=\"end\"",
			 spw_size_format((uint64_t)bytes, text, sizeof(text)));
	}
	svg_text(svg, SVG_LEFT - 8, MEMORY_TOP - 12, "text-anchor=\"end\" font-weight=\"bold\"",
		 "memory");
}

/* ---- The picture ---- */

void svg_description(const struct svg *svg, const char *text)
{
	(void)fprintf(svg->out, "<text x=\"%.1f\" y=\"48\" fill=\"#555\">", SVG_LEFT);
	for (unsigned i = 0; i < DESCRIPTION_CHARS && text[i]; i++) {
		unsigned char c = (unsigned char)text[i];

		if (c < ' ' || c > '~')
			(void)fputc('?', svg->out);
		else if (c == '<' || c == '>' || c == '&')
			(void)fprintf(svg->out, "&#%u;", c);
		else
			(void)fputc(c, svg->out);
	}
	(void)fputs("</text>\n", svg->out);
}

void svg_legend(const struct svg *svg, const struct svg_legend *entries, unsigned count)
{
	double x = SVG_LEFT;

	for (unsigned i = 0; i < count; i++) {
		svg_rect(svg, x, 64, 12, 12, entries[i].style);
		svg_text(svg, x + 18, 74, "", entries[i].text);
		x += entries[i].width;
	}
}

void svg_begin(const struct svg *svg, const char *title, const char *const *lanes, unsigned count)
{
	(void)fprintf(
		svg->out,
		"<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" "
		"width=\"%.0f\" height=\"%.0f\" font-family=\"sans-serif\" font-size=\"12\">\n"
		"<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
		SVG_WIDTH, SVG_HEIGHT, SVG_WIDTH, SVG_HEIGHT);
	svg_text(svg, SVG_LEFT, 28, "font-size=\"15\" font-weight=\"bold\"", title);
	for (unsigned i = 0; i < count; i++) {
		svg_rect(svg, SVG_LEFT, svg_lane_y(i), SVG_WIDTH - SVG_LEFT - SVG_RIGHT,
			 SVG_LANE_HEIGHT, "fill=\"#f4f4f4\"");
		svg_text(svg, SVG_LEFT - 8, svg_lane_y(i) + SVG_LANE_HEIGHT / 2 + 4,
			 "text-anchor=\"end\" font-weight=\"bold\"", lanes[i]);
	}
	draw_time_axis(svg);
	draw_memory_axis(svg);
}

void svg_peak(const struct svg *svg, double bytes)
{
	double y = svg_y(svg, bytes);
	char size[32], text[96];

	svg_line(svg, SVG_LEFT, y, SVG_WIDTH - SVG_RIGHT, y,
		 "stroke=\"" SVG_COLOUR_FORWARD "\" stroke-dasharray=\"1 3\"");
	(void)snprintf(text, sizeof(text), "peak %s",
		       spw_size_format((uint64_t)bytes, size, sizeof(size)));
	svg_text(svg, SVG_WIDTH - SVG_RIGHT - 4, y - 5,
		 "text-anchor=\"end\" fill=\"" SVG_COLOUR_FORWARD "\"", text);
}

void svg_end(const struct svg *svg)
{
	(void)fputs("</svg>\n", svg->out);
}
