/* SPDX-License-Identifier: MIT */
/* tools/bench/latency.h - fio's coarse classes of latency */
#ifndef SPW_BENCH_LATENCY_H
#define SPW_BENCH_LATENCY_H

#include "tools/bench/bench.h"

#define BENCH_LATENCY_UNITS   3 /* ns, us, ms */
#define BENCH_LATENCY_CLASSES 10

struct bench_latency {
	uint64_t count;
	uint64_t classes[BENCH_LATENCY_UNITS][BENCH_LATENCY_CLASSES];
	uint64_t up_to_2s, above_2s;
};

void bench_latency_classes(const struct bench_stats *stats, struct bench_latency *latency);

/* 2, 4, 10 ... 1000: the upper end of class @index, in its unit. */
uint64_t bench_latency_limit(unsigned index);

#endif
