/* SPDX-License-Identifier: MIT */
/*
 * tools/ui/svg.h - draw a step as SVG: lanes of activities, and memory, over one time axis
 */
#ifndef SPW_TOOLS_UI_SVG_H
#define SPW_TOOLS_UI_SVG_H

#include <stdint.h>
#include <stdio.h>

#define SVG_WIDTH       1000.0
#define SVG_HEIGHT      540.0
#define SVG_LEFT        90.0
#define SVG_RIGHT       24.0
#define SVG_LANE_HEIGHT 26.0

#define SVG_COLOUR_FORWARD  "#4c72b0"
#define SVG_COLOUR_BACKWARD "#8172b2"
#define SVG_COLOUR_WAITING  "#d62728"
#define SVG_COLOUR_WRITE    "#dd8452"
#define SVG_COLOUR_READ     "#2a9d5c"
#define SVG_COLOUR_GRID     "#e4e4e4"
#define SVG_COLOUR_KEPT     "#777777"

struct svg {
	FILE *out;
	double step_ns, bytes_max;
};

double svg_x(const struct svg *svg, uint64_t ns);
double svg_y(const struct svg *svg, double bytes);
double svg_lane_y(unsigned lane);

void svg_text(const struct svg *svg, double x, double y, const char *style, const char *text);
void svg_rect(const struct svg *svg, double x, double y, double width, double height,
	      const char *style);
void svg_line(const struct svg *svg, double x1, double y1, double x2, double y2, const char *style);
/* Draw a span in a lane. Spans too short to be seen are drawn a third of a point wide. */
void svg_span(const struct svg *svg, unsigned lane, uint64_t begin_ns, uint64_t end_ns,
	      const char *style);

/* Write a file's description, as much as fits. It may contain any bytes. */
void svg_description(const struct svg *svg, const char *text);

struct svg_legend {
	const char *style, *text;
	double width;
};

void svg_legend(const struct svg *svg, const struct svg_legend *entries, unsigned count);

/* Begin the picture: title, empty lanes with their names, both axes. */
void svg_begin(const struct svg *svg, const char *title, const char *const *lanes, unsigned count);
void svg_peak(const struct svg *svg, double bytes);
void svg_end(const struct svg *svg);

#endif
