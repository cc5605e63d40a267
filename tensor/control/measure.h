/* SPDX-License-Identifier: MIT */
/*
 * tensor/control/measure.h - what the drives do, from when the cache's transfers began and ended
 *
 * One transfer's end follows the end before, or the beginning of the first: that is how long the
 * drives took for its bytes, as they serve transfers of one direction in order: if it had been
 * waiting by the time they were done with the bytes of the one before, which they are some time
 * before that one's end. The shortest of those that found the drives idle bounds that time; what
 * waited less says nothing. Idle time counts for nothing. What was served while the other direction
 * was under way too is kept apart. The first transfer after a pause takes a latency longer than its
 * bytes do; the difference to those that follow it is the latency. If none follow, sizes differ: a
 * line through them.
 *
 * Drives are faster for a while than they can be for long: caches, and throttles that let bursts
 * through. So a figure that is much higher than it was is believed, up to a factor, when it has
 * been for several steps, and later the next time if it then falls again. One that is much lower is
 * believed at once.
 *
 * A drive that hangs for once makes a latency that no plan could hide anything behind: it is
 * believed if the next step has it too, and no longer than until a whole transfer takes less.
 *
 * A device times its copies itself: bytes over time is what the bus does.
 *
 * What the drives did while they served others too says how much these have left. It counts only
 * for as long as nothing else is known: what others take is a part of the plan
 * (background_traffic.c).
 */
#ifndef SPW_TENSOR_CONTROL_MEASURE_H
#define SPW_TENSOR_CONTROL_MEASURE_H

#include <stdbool.h>
#include <stdint.h>

#include <spillway/plan.h>

#include "tensor/control/control.h"

/* A figure that differs by more has changed; what differs by less is noise, and is averaged. */
#define RATE_DRIFT 0.2

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
	bool fresh;     /* nothing has ended since the flow began */
	bool disturbed; /* others were served meanwhile */
	/* the shortest that found the drives idle: in this step, the one before */
	uint64_t idle_ns, idle_ns_before;
	/* in this step */
	struct service alone, mixed;
	struct line first; /* alone, after a pause */
};

/* How far a bandwidth is believed. */
struct trust {
	double lowest;   /* of the steps in which it was much higher, */
	uint32_t higher; /* their number, in a row */
	uint32_t needed; /* until it is believed; 0: as many as at first */
	uint32_t held;   /* steps since it was; 0: long ago, or it fell again */
	bool low;        /* the last step was far below, and not believed */
};

struct measure {
	struct flow flows[DIRECTIONS];
	/* smoothed over the steps; 0: not known; chunk_bytes is the owner's */
	struct spw_plan_drives drives;
	struct trust trust[DIRECTIONS], trust_mixed;
	/* copies of a device, out as what is written and in as what is read; in this step */
	struct service bus[DIRECTIONS];
	double bus_fastest[DIRECTIONS]; /* of these, in bytes per nanosecond */
	struct trust trust_bus[DIRECTIONS];
	bool late;     /* the latency of the last step was far above the figure */
	bool external; /* have something under way */
};

void spw_control__measure_began(struct measure *measure, enum direction direction, uint64_t bytes,
				uint64_t now_ns);
/* @served: the drives have moved the bytes; else it failed, or was cancelled before. */
void spw_control__measure_ended(struct measure *measure, enum direction direction, uint64_t bytes,
				bool served, uint64_t began_ns, uint64_t now_ns);
/* Copies between a device and the host that took @ns, each on its own. */
void spw_control__measure_copied(struct measure *measure, enum direction direction, uint64_t bytes,
				 uint64_t ns);
/* Others are served by the same drives, now; @moved: or were since this was last called. */
void spw_control__measure_external(struct measure *measure, bool now, bool moved);
/* A step ends: what it has shown goes into the smoothed figures. */
void spw_control__measure_step(struct measure *measure);

#endif
