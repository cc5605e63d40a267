/* SPDX-License-Identifier: MIT */
/*
 * plan/internal.h - what the planner's parts share: the step in sorted arrays, the forecast, the
 * simulation
 */
#ifndef SPW_PLAN_INTERNAL_H
#define SPW_PLAN_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <spillway/plan.h>

/*
 * Times of the forecast and of the simulation are computed from opposite ends and differ by
 * rounding. Reads are planned to end this much early, and are let in this much early; what a step
 * stalls less than that is no stall.
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
 * each at its own rate: when each tensor is out of memory, and the memory in use over time. What
 * has been written is given back at the next event, after what the event itself changes.
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
	uint32_t *order, *order_other; /* scratch of the choosers, count each */
	uint64_t *keys, *keys_other;
	/* over blocks of the points of the forecast: as many as points suffice */
	double *tree, *tree_added;
	void *simulation; /* arrays of the simulator */
	void *memory;
};

/* What a plan leads to, in the simulation. */
struct plan_outcome {
	double peak, stall_ns, written, read, forwarded;
	bool forever;
	bool given_up; /* beyond the bounds, and so not simulated to the end */
};

/*
 * A simulation is of no use once the peak or what is written is above, or the stall as long as
 * this.
 */
struct plan_bounds {
	double peak, written, stall_ns;
};

/* ---- plan_work.c ---- */

int spw_planner_work_open(struct plan_work *work, const struct spw_plan_step *step,
			  const struct spw_plan_drives *drives);
void spw_planner_work_close(struct plan_work *work);

/* Stable, ascending. @keys[i] belongs to @order[i]; the other two arrays are scratch. */
void spw_planner_sort(uint64_t *keys, uint32_t *order, uint64_t *keys_other, uint32_t *order_other,
		      uint32_t count);

/* ---- plan_forecast.c ---- */

/* Who is marked in @spill but does not leave memory is unmarked. */
void spw_planner_forecast_choose(struct plan_work *work, const struct plan_rates *rates,
				 enum plan_reads reads, uint8_t *spill);

/*
 * What the simulation reads ahead by: the memory over time if everything in @spill is written that
 * there is time to begin with, and nothing is read; so from its use on, what is out of memory
 * counts only by its release, as negative.
 */
void spw_planner_forecast_needs(struct plan_work *work, const uint8_t *spill);

/* ---- plan_simulate.c ---- */

size_t spw_planner_simulation_bytes(uint32_t count);

struct plan_profile {
	struct spw_plan_point *points;
	size_t points_max, count;
};

/* Overwrites the forecast. @bounds and @profile may be NULL. */
void spw_planner_simulate(struct plan_work *work, const uint8_t *spill, double memory,
			  const struct plan_bounds *bounds, struct plan_profile *profile,
			  struct plan_outcome *outcome);

/* ---- plan_reads.c ---- */

struct plan_schedule {
	/* of each tensor, compute time; 0: at any time, or it stays in memory until its use */
	uint64_t *from_ns;
	uint32_t *order; /* of those that are spilled and used, by use */
	uint32_t count;
};

/* The caller's arrays are of as many elements as the step has tensors. */
int spw_planner_read_times(const struct spw_plan_step *step, const struct spw_plan_drives *drives,
			   uint64_t memory_bytes, const enum spw_plan_choice choices[],
			   struct plan_schedule *schedule);

/* ---- plan_choose.c ---- */

struct plan_found {
	uint8_t *spill;
	double memory; /* to which reading ahead may fill */
	struct plan_outcome outcome;
	bool feasible;
};

/* @found->spill and @scratch: count bytes each, @found's is set. */
/* @scratch: for fastest and budget twice as long as the choices. */
void spw_planner_choose_fastest(struct plan_work *work, const struct spw_plan_step *step,
				const struct spw_plan_drives *drives, struct plan_found *found,
				uint8_t *scratch);
void spw_planner_choose_budget(struct plan_work *work, double memory, struct plan_found *found,
			       uint8_t *scratch);
/* With @bounds, unless NULL, what is found may have been given up. */
void spw_planner_choose_positional(struct plan_work *work, const struct spw_plan_step *step,
				   const struct spw_plan_drives *drives,
				   const struct plan_bounds *bounds, struct plan_found *found,
				   uint8_t *scratch);

#endif
