/* SPDX-License-Identifier: MIT */
/* plan/internal.h - what the planner's parts share: the step in arrays, forecast, simulation */
#ifndef SPW_PLAN_INTERNAL_H
#define SPW_PLAN_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <spillway/plan.h>

/*
 * Times of the forecast and of the simulation differ by rounding. Reads are planned to end this
 * much early, and are let in this much early; a shorter stall is none.
 */
#define PLAN_TOLERANCE_NS 1.0
#define PLAN_NEVER_NS     1e300  /* later than everything */
#define PLAN_LONGEST_NS   0x1p62 /* 146 years: what takes longer is for ever */

/*
 * What happens to tensors by compute time alone. At one time in this order: memory is never counted
 * too low. After each of these, what has been written is given back.
 */
enum plan_event_kind {
	PLAN_PACK,
	PLAN_USE,
	PLAN_RELEASE,
	PLAN_CALL, /* of no tensor: what has been written is given back */
};

struct plan_event {
	double ns;
	uint32_t tensor;
	enum plan_event_kind kind;
};

/* Bytes per nanosecond, and how long after its last byte a tensor's transfer has ended. */
struct plan_rates {
	double write, read;
	double write_delay_ns, read_delay_ns;
};

enum plan_reads {
	PLAN_READS_ON_DEMAND, /* as late as the use: the lowest peak; stalls */
	PLAN_READS_IN_TIME,   /* as late as possible without a stall */
};

/*
 * The step with given choices, if writes run in the order of packing and reads in the order of use,
 * each at its own rate. What has been written is given back at the next event.
 */
struct plan_forecast {
	double peak;
	uint32_t points;
	double *point_ns, *point_bytes; /* in use from there on */
	uint8_t *out;                   /* leaves memory between out_ns and read_begin_ns */
	uint8_t *written;               /* takes the drives' time */
	double *written_ns;             /* the end of its write */
	double *out_ns;                 /* of the event at which its memory is given back */
	double *read_begin_ns;          /* of what is read */
	uint32_t *point_out;            /* the point at which the tensor's memory is given back, */
	/* and the one at which it is needed again, or would have been released */
	uint32_t *point_in;
};

/* Of the simulation: who is served, and until when. */
struct plan_transfers {
	uint32_t *order;
	double *end_ns;
};

/* Arrays are of count elements, unless it says otherwise. */
struct plan_work {
	uint32_t count;
	double *bytes, *pack_ns, *use_ns, *release_ns;
	/* use, or release if nobody uses it: what is in memory until then stays */
	double *wanted_ns;
	uint8_t *used;     /* somebody takes it */
	uint8_t *eligible; /* may be spilled */
	uint32_t *by_pack, *by_use;
	uint32_t *by_gap;          /* by the time from pack to wanted, shortest first */
	struct plan_event *events; /* in order */
	uint32_t event_count;
	double mixed;            /* bytes per nanosecond */
	double staging;          /* most bytes that wait to be written */
	struct plan_rates alone; /* when only one direction runs */
	double keep_all_peak;

	struct plan_forecast forecast;
	/* by the planner's rule for reading ahead; of what is spilled and used */
	double *read_from_ns;
	uint32_t *stack; /* of points of the forecast */

	uint8_t *spill, *trial;        /* choices: the best, and what is tried */
	uint32_t *order, *order_other; /* scratch of the choosers */
	uint64_t *keys, *keys_other;
	double *tree, *tree_added; /* over the points of the forecast: twice as many */

	uint8_t *state, *in_flight; /* of the simulation */
	uint32_t *queue;
	struct plan_transfers writes, reads;
	void *memory; /* of all arrays */
};

/* What a plan leads to, in the simulation. */
struct plan_outcome {
	double peak, stall_ns, written, read, forwarded;
	bool forever;
	bool given_up; /* beyond the bounds, and so not simulated to the end */
};

/* A simulation ends early once the peak or what is written is above, or the stall as long. */
struct plan_bounds {
	double peak, written, stall_ns;
};

/* ---- work.c ---- */

int spw_planner_work_open(struct plan_work *work, const struct spw_plan_step *step,
			  const struct spw_plan_drives *drives);
void spw_planner_work_close(struct plan_work *work);

/* Stable, ascending by work->keys: that of order[i] is keys[i]. Overwrites the keys. */
void spw_planner_sort(struct plan_work *work, uint32_t *order);

/* ---- forecast.c ---- */

/* Who is marked in @spill but does not leave memory is unmarked. */
void spw_planner_forecast_choose(struct plan_work *work, const struct plan_rates *rates,
				 enum plan_reads reads, uint8_t *spill);

/*
 * The memory over time if all of @spill is written that can begin in time, and nothing is read:
 * from its use on, what is out of memory counts only by its release, as negative.
 */
void spw_planner_forecast_needs(struct plan_work *work, const uint8_t *spill);

/* ---- reads.c ---- */

/* Sets work->read_from_ns, of a forecast of what has to be in memory in any case. */
void spw_planner_time_reads(struct plan_work *work, const uint8_t *spill, double memory);

struct plan_schedule {
	/* of each tensor, compute time; 0: at any time, or it stays in memory until its use */
	uint64_t *from_ns;
	uint32_t *order; /* of those that are spilled and used, by use */
	uint32_t count;
};

/* The caller's arrays are of as many elements as the step has tensors. */
int spw_planner_schedule(const struct spw_plan_step *step, const struct spw_plan_drives *drives,
			 uint64_t memory_bytes, const enum spw_plan_choice choices[],
			 struct plan_schedule *schedule);

/* ---- simulate.c ---- */

struct plan_profile {
	struct spw_plan_point *points;
	size_t points_max, count;
};

/* Overwrites the forecast. @bounds and @profile may be NULL. */
void spw_planner_simulate(struct plan_work *work, const uint8_t *spill, double memory,
			  const struct plan_bounds *bounds, struct plan_profile *profile,
			  struct plan_outcome *outcome);

/* ---- choose.c ---- */

/* What has been chosen is in work->spill. */
struct plan_found {
	uint8_t *spill;
	double memory; /* to which reading ahead may fill */
	struct plan_outcome outcome;
	bool feasible, limited;
};

void spw_planner_choose(struct plan_work *work, const struct spw_plan_step *step,
			const struct spw_plan_drives *drives, const struct spw_plan_opts *opts,
			struct plan_found *found);

#endif
