/* SPDX-License-Identifier: MIT */
/*
 * tensor/measure.h - what the drives do, from when the cache's own transfers began and ended
 *
 * One transfer's end follows the end before, or the beginning of the first: that is how long the drives took for its
 * bytes, as they serve transfers of one direction in order. Idle time counts for nothing. What was served while the
 * other direction was under way too is kept apart. The first transfer after a pause takes a latency longer than its
 * bytes do; the difference to those that follow it is the latency. If none follow, sizes differ: a line through them.
 */
#ifndef SPW_TENSOR_MEASURE_H
#define SPW_TENSOR_MEASURE_H

#include <stdbool.h>
#include <stdint.h>

#include <spillway/plan.h>

enum direction {
	DIRECTION_WRITE,
	DIRECTION_READ,
	DIRECTIONS,
};

struct service {
	double bytes, ns; /* sums */
	uint32_t count;
};

/* The same, for a line through the samples: time over bytes. */
struct line {
	struct service sum;
	double bytes_square, bytes_ns;
};

struct flow {
	uint32_t in_flight;
	uint64_t bytes_in_flight;
	uint64_t since_ns;      /* the drives began with what ends next */
	uint64_t other_busy_ns; /* busy_ns of the other direction at that time */
	uint64_t busy_ns, busy_since_ns;
	bool fresh; /* nothing has ended since the flow began */
	/* in this step */
	struct service alone, mixed;
	struct line first; /* alone, after a pause */
};

struct measure {
	struct flow flows[DIRECTIONS];
	struct spw_plan_drives drives; /* smoothed over the steps; 0: not known; chunk_bytes is the owner's */
};

void spw_measure_began(struct measure *measure, enum direction direction, uint64_t bytes, uint64_t now_ns);
/* @served: the drives have moved the bytes; else it failed, or was cancelled and never reached them. */
void spw_measure_ended(struct measure *measure, enum direction direction, uint64_t bytes, bool served, uint64_t now_ns);
/* A step ends: what it has shown goes into the smoothed figures. */
void spw_measure_step(struct measure *measure);

#endif
