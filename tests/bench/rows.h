/* SPDX-License-Identifier: MIT */
/* tests/bench/rows.h - how benches print a figure for `results.py run`, or fail */
#ifndef TESTS_BENCH_ROWS_H
#define TESTS_BENCH_ROWS_H

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <spillway/error.h>

static inline void must(int rc, const char *what)
{
	if (__builtin_expect(rc >= 0, 1))
		return;
	(void)fprintf(stderr, "%s: %s: %s: %s\n", program_invocation_short_name, what,
		      spw_strerror(rc), spw_last_error());
	exit(1);
}

/* For qsort(). */
static inline int compare_ns(const void *one, const void *other)
{
	uint64_t left = *(const uint64_t *)one, right = *(const uint64_t *)other;

	return (left > right) - (left < right);
}

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
