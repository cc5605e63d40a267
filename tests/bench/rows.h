/* SPDX-License-Identifier: MIT */
/*
 * tests/bench/rows.h - a figure of a bench as a line of JSON, for `results.py run`
 */
#ifndef TESTS_BENCH_ROWS_H
#define TESTS_BENCH_ROWS_H

#include <stdio.h>

struct bench_row {
	const char *name, *unit;
	double value, low, high;
	double at_most; /* the goal; 0: none */
};

/* The name must not need an escape in JSON. */
static inline void bench_row_print(const struct bench_row *row)
{
	printf("{\"name\": \"%s\", \"value\": %.6g, \"low\": %.6g, \"high\": %.6g, \"unit\": "
	       "\"%s\", ",
	       row->name, row->value, row->low, row->high, row->unit);
	if (row->at_most > 0)
		printf("\"goal\": \"at most %g\", \"met\": %s}\n", row->at_most,
		       row->value <= row->at_most ? "true" : "false");
	else
		printf("\"goal\": null, \"met\": null}\n");
}

/* A figure that was measured once. */
static inline void bench_figure(const char *name, double value, const char *unit)
{
	bench_row_print(&(struct bench_row){name, unit, value, value, value, 0});
}

#endif
