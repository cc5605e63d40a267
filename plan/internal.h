/* SPDX-License-Identifier: MIT */
/* plan/internal.h - shared by the planner's parts: the step in arrays, forecast, simulation */
#ifndef SPW_PLAN_INTERNAL_H
#define SPW_PLAN_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <spillway/plan.h>

/*
 * The forecast's and the simulation's times differ by rounding. Reads are planned to end this much
 * early, and may begin this much early; a shorter stall does not count.
 */
#define PLAN_TOLERANCE_NS 1.0
#define PLAN_NEVER_NS     1e300  /* later than everything */
#define PLAN_LONGEST_NS   0x1p62 /* 146 years: anything longer is forever */
/* By how much sums of sizes may differ from rounding. */
#define PLAN_TOLERANCE_BYTES 0.5
#define PLAN_ROUNDED_PART    1e-6 /* of the memory in use, where sums exceed 2^53 */

/*
 * What happens to tensors by compute time alone. At equal times in this order, so that memory is
 * never counted too low. After each of these the memory of what has been written is released.
 */
enum plan_event_kind {
	PLAN_PACK,
	PLAN_USE,
	PLAN_RELEASE,
	PLAN_CALL, /* no tensor: only releases the memory of what has been written */
	/* the field tensor has a flow or a scope instead: */
	PLAN_FLOW,            /* background traffic begins */
	PLAN_RECOMPUTE_BEGIN, /* a scope is recomputed */
	PLAN_RECOMPUTE_END,
};

struct plan_event {
	double ns;
	uint32_t tensor;
	enum plan_event_kind kind;
};

/*
 * The drives' bytes per nanosecond; how long after its last byte a tensor's transfer has ended; and
 * the bus's time for each byte, before it is written and after it has been read.
 */
struct plan_rates {
	double write, read;
	double write_delay_ns, read_delay_ns;
	double write_copy_ns, read_copy_ns;
};

enum plan_reads {
	PLAN_READS_ON_DEMAND, /* as late as the use: the lowest peak; stalls */
	PLAN_READS_IN_TIME,   /* as late as possible without a stall */
};

/*
 * The step with given choices, if writes run in the order of packing and reads in the order of use,
 * each at its own rate. Memory that has been written, or copied from a device, is released at the
 * next event.
 */
struct plan_forecast {
	double peak;
	uint32_t points;
	double *point_ns, *point_bytes; /* in use from there on */
	uint8_t *out;                   /* leaves memory between out_ns and read_begin_ns */
	uint8_t *written;               /* takes the drives' time, or staging memory */
	double *written_ns;    /* the end of its write; if it has not begun, of the one before it */
	double *out_ns;        /* of the event at which its memory is released */
	double *read_begin_ns; /* of tensors that are read */
	/* the points at which its write releases its memory, and at which it is used or released */
	uint32_t *point_out, *point_in;
};

/* Of the simulation: the tensors in the order of service, and when each has ended. */
struct plan_transfers {
	uint32_t *order;
	double *end_ns;
};

/* Arrays are of count elements, unless it says otherwise. */
struct plan_work {
	uint32_t count;
	double *bytes, *pack_ns, *use_ns, *release_ns;
	/* use, or release if there is none: a tensor still in memory then stays */
	double *wanted_ns;
	uint8_t *used;     /* has users */
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

	uint8_t *spill, *trial;        /* choices: the best, and the one being tried */
	uint32_t *order, *order_other; /* scratch of the choosers */
	uint64_t *keys, *keys_other;
	double *tree, *tree_added; /* over the points of the forecast: twice as many */

	uint8_t *state, *in_flight; /* of the simulation */
	double *copied_ns;          /* of a device: the end of its copy out */
	uint32_t *queue;
	struct plan_transfers writes, reads;
	void *memory; /* of all arrays */
};

/* What a plan leads to, in the simulation. */
struct plan_outcome {
	double peak, stall_ns, written, read, forwarded;
	bool forever;
	bool abandoned; /* beyond the bounds, and so not simulated to the end */
};

/* A simulation ends early above this peak or these bytes, or when the stall is as long. */
struct plan_bounds {
	double peak, written, stall_ns;
};

/* ---- work.c ---- */

int spw_plan__work_open(struct plan_work *work, const struct spw_plan_step *step,
			const struct spw_plan_drives *drives);

/* Memory for all of @pieces, zeroed, in one block. Return: the block; NULL. */
struct plan_piece {
	void *pointer; /* address of the pointer to set */
	size_t bytes;
};

void *spw_plan__allocate(const struct plan_piece pieces[], size_t count);
void spw_plan__work_close(struct plan_work *work);

/* Stable, ascending by work->keys: that of order[i] is keys[i]. Overwrites the keys. */
void spw_plan__sort(struct plan_work *work, uint32_t *order);

/* ---- forecast.c ---- */

/* Unmarks in @spill what does not leave memory. */
void spw_plan__forecast_choose(struct plan_work *work, const struct plan_rates *rates,
			       enum plan_reads reads, uint8_t *spill);

/* Only forecast.out and forecast.out_ns, for writes at full rate. */
void spw_plan__forecast_out(struct plan_work *work, const uint8_t *spill);

/* ---- simulate.c ---- */

struct plan_profile {
	struct spw_plan_point *points;
	size_t points_max, count;
};

/* Background traffic on the drives. */
struct plan_flow {
	double share; /* of the drives' time */
	double ns;    /* how long, wall time */
};

/* A timeline of transfers, waits and recomputation, wall time. */
struct plan_spans {
	struct spw_plan_span *spans;
	size_t spans_max, count;
};

/*
 * A step throttled to a memory limit: compute waits before it packs what does not fit, as long as
 * something is still leaving memory; and a read, even one that compute waits for, begins once it
 * fits together with everything packed before its use.
 */
struct plan_held {
	double limit;
	bool throttled; /* false: only prefetches are held to the limit */
	/* by tensor, wall time: how long compute waits at most before it packs it; or NULL */
	const uint64_t *until_ns;
	uint64_t *packed_ns; /* set by tensor, wall time: when it was packed; or NULL */
	uint32_t *use_event; /* by tensor that is used */
	/*
	 * After each event, bytes packed minus bytes released. Unthrottled, what the forecast has
	 * leave memory is subtracted, too: at most, and at the end of the event
	 */
	double *most, *net;
	uint32_t *window; /* scratch, as many as events */
	const struct plan_flow *flows;
	double *flow_end_ns; /* PLAN_NEVER_NS: it is not running */
	uint32_t flows_count;
	struct plan_spans *spans; /* or NULL */
};

/* @bounds and @profile may be NULL. */
void spw_plan__simulate(struct plan_work *work, const uint8_t *spill, const struct plan_held *held,
			const struct plan_bounds *bounds, struct plan_profile *profile,
			struct plan_outcome *outcome);

/* ---- recompute.c ---- */

/* The step with some of its scopes recomputed. */
struct plan_recompute {
	const struct spw_plan_step *step;
	const struct spw_plan_scopes *scopes;
	struct plan_work base; /* the step as measured */
	struct plan_work work; /* as set: with events and uses of its own */
	struct plan_held held; /* of that */
	double compute_ns;     /* of the step as measured */
	double again_ns;       /* added by recomputing */
	/* by scope: its tensors, in the order of packing, from members[first[s]] on */
	uint32_t *members, *first;
	uint8_t *may;       /* by scope: recomputing it discards something */
	uint8_t *giving;    /* by tensor: discarded if its scope is recomputed */
	uint8_t *stays;     /* by tensor: the input of a scope that is recomputed */
	uint8_t *can_spill; /* by tensor: eligible, and not discarded, as set */
	uint8_t *recompute; /* by scope: recomputed, as set */
	uint8_t *done;      /* scratch by scope: has been recomputed */
	uint32_t *needed;   /* scratch by tensor: scopes still to be recomputed from it */
	uint8_t *gone;      /* scratch by tensor: released */
	size_t events_max;
	void *memory;
};

int spw_plan__recompute_open(struct plan_recompute *recompute, const struct spw_plan_step *step,
			     const struct spw_plan_drives *drives,
			     const struct spw_plan_scopes *scopes);
void spw_plan__recompute_close(struct plan_recompute *recompute);

/* Recompute the scopes marked in @scopes, one byte each. */
void spw_plan__recompute_set(struct plan_recompute *recompute, const uint8_t *scopes);

/* A caller's choices: recomputes, and in base.spill what is spilled. Return: 0; -EINVAL. */
int spw_plan__recompute_choose(struct plan_recompute *recompute,
			       const enum spw_plan_choice choices[]);

/* Tensor @i is discarded, as the scopes are set. */
bool spw_plan__recompute_gives(const struct plan_recompute *recompute, uint32_t i);

/* The step as it is set. No tensor marked in @spill may be discarded. */
void spw_plan__recompute_simulate(struct plan_recompute *recompute, const uint8_t *spill,
				  double limit, const struct plan_bounds *bounds,
				  struct plan_profile *profile, struct plan_outcome *outcome);

/* ---- seek.c ---- */

/* Of two plans, which is better; before all else one that is allowed. */
enum plan_goal {
	PLAN_GOAL_STEP,  /* within the limit: the shorter step, then fewer bytes written */
	PLAN_GOAL_BYTES, /* within the limit: fewer bytes written, then the shorter step */
	PLAN_GOAL_PEAK,  /* in time: the lower peak, then fewer bytes written */
};

struct plan_worth {
	uint64_t key;
	uint32_t scope;
};

#define PLAN_FLIPS_MAX 3u /* tensors that are changed at a time */

/* The search for what to recompute and to spill. All arrays are the caller's. */
struct plan_seek {
	struct plan_recompute *recompute;
	enum plan_goal goal;
	double limit; /* of memory; PLAN_GOAL_PEAK: only of prefetches, and each try has its own */
	/* a step this short is in time, and ends the search for a shorter one; 0: no such */
	double enough_ns;
	double written_max;
	uint32_t tries_left;

	bool fits; /* the best so far is allowed */
	bool limited;
	double best_ns;    /* of the step */
	double best_limit; /* that it was found for */
	struct plan_outcome best;
	uint8_t *recompute_best, *spill_best;
	uint8_t *recompute_trial, *spill_trial;
	uint8_t *recompute_now, *spill_now; /* the state of the annealing */
	uint64_t random;                    /* with a fixed seed */
	uint32_t flipped[PLAN_FLIPS_MAX];

	/* scopes in the order of trying; the time of the step with the first k recomputed */
	uint32_t *order, order_count;
	double *least_ns;
	struct plan_worth *worth;
};

/* Begin, with all kept. */
void spw_plan__seek_begin(struct plan_seek *seek, enum plan_goal goal, double limit);

/* Begin for a shortest step within @limit, with these. */
void spw_plan__seek_within(struct plan_seek *seek, double limit, const uint8_t *scopes,
			   const uint8_t *spill);

/* No plan with a higher peak is better than the best. */
double spw_plan__seek_highest(const struct plan_seek *seek);

/* Try this; it becomes the best if it is better. Return: whether it is. */
bool spw_plan__seek_try(struct plan_seek *seek, const uint8_t *scopes, const uint8_t *spill);
/* The same of seek->spill_trial, with nothing recomputed. */
bool spw_plan__seek_try_spills(struct plan_seek *seek);

/* The shortest step within the limit. */
void spw_plan__seek(struct plan_seek *seek, uint32_t tries);
void spw_plan__seek_refine(struct plan_seek *seek, uint32_t tries);

/* The best must fit, and take no longer than is enough. */
void spw_plan__seek_spare(struct plan_seek *seek, uint32_t tries);

/* ---- choose.c ---- */

/* The search without recomputing, where compute is not throttled; begun. */
void spw_plan__choose(struct plan_seek *seek);

/* ---- groups.c ---- */

/* The step with tensors of one scope and kind merged. */
struct plan_groups {
	struct spw_plan_step step;
	struct spw_plan_scopes scopes;
	uint32_t *group_of; /* by tensor */
	struct spw_plan_tensor *tensors;
	struct spw_plan_scope *own; /* scopes, with inputs of the groups */
	void *memory;
};

/* Groups are closed at 1 / @most of all bytes. Return: 0; -ENOMEM. */
int spw_plan__groups_open(struct plan_groups *groups, const struct plan_recompute *recompute,
			  uint32_t most);
void spw_plan__groups_close(struct plan_groups *groups);

/* ---- call.c ---- */

/*
 * For what must hold of sums, times and states, whatever the step. Where it does not, the call
 * fails, and training goes on without a plan; the bounds of arrays are asserted instead.
 */
#define PLAN_HOLDS(condition) \
	(likely(condition) || spw_plan__broken(#condition, __FILE__, __LINE__))
bool spw_plan__broken(const char *condition, const char *file, int line);
/* Return: 0: all has held since this call's arguments were checked; -ENOTRECOVERABLE. */
int spw_plan__check_whole(void);

int spw_plan__check_arguments(const struct spw_plan_step *step,
			      const struct spw_plan_drives *drives, const void *choices,
			      const struct spw_plan_result *result);
/* @caller may be NULL, or of another version. */
int spw_plan__check_opts(const struct spw_plan_opts *caller, struct spw_plan_opts *opts);
void spw_plan__fill_result(struct spw_plan_result *result, const struct plan_work *work,
			   double compute_ns, const struct plan_outcome *outcome,
			   const uint8_t *spill);
void spw_plan__set_result(struct spw_plan_result *result, const struct spw_plan_result *from);

/* ---- scopes.c ---- */

int spw_plan__check_scopes(const struct spw_plan_scopes *caller, struct spw_plan_scopes *scopes);

#endif
