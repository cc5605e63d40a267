/* SPDX-License-Identifier: MIT */
/* plan/internal.h - the planner's structures: step in arrays, forecast, simulation, search */
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
/* How far rounding may change sums of sizes. */
#define PLAN_TOLERANCE_BYTES 0.5
#define PLAN_ROUNDED_PART    1e-6 /* a part of the memory in use, for sums above 2^53 */

/*
 * The events of a step, in compute time. Events at equal times are in this order, so that memory is
 * never counted too low. After each event the memory of tensors written by then is released.
 */
enum plan_event_kind {
	PLAN_PACK,
	PLAN_USE,
	PLAN_RELEASE,
	PLAN_CALL, /* no tensor: only releases the memory of written tensors */
	/* for these the member tensor is the index of a flow or scope: */
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
 * The drives' bytes per nanosecond; the delay from a transfer's last byte to its end; and the bus's
 * time per byte, before the write and after the read.
 */
struct plan_rates {
	double write, read;
	double write_delay_ns, read_delay_ns;
	double write_copy_ns, read_copy_ns;
};

enum plan_reads {
	PLAN_READS_ON_DEMAND, /* at the use: the lowest peak, but stalls */
	PLAN_READS_IN_TIME,   /* as late as possible without a stall */
};

/*
 * The forecast for given choices: writes run in the order of packing and reads in the order of use,
 * each at its own rate. The memory of a tensor that was written, or copied from a device, is
 * released at the next event.
 */
struct plan_forecast {
	double peak;
	uint32_t points;
	double *point_ns, *point_bytes; /* bytes in use from this point on */
	uint8_t *out;                   /* leaves memory between out_ns and read_begin_ns */
	uint8_t *written;               /* its write takes time of the drives, or staging memory */
	double *written_ns;             /* end of its write; if not begun, of the one before */
	double *out_ns;                 /* time of the event that releases its memory */
	double *read_begin_ns;          /* begin of its read */
	/* the points at which its write releases its memory, and of its use or release */
	uint32_t *point_out, *point_in;
};

/* Transfers in the simulation: tensors in the order of service, and the end of each transfer. */
struct plan_transfers {
	uint32_t *order;
	double *end_ns;
};

/* A step in arrays of count elements, unless noted otherwise. */
struct plan_work {
	uint32_t count;
	double *bytes, *pack_ns, *use_ns, *release_ns;
	/* time of use, or of release if unused: a tensor still in memory then stays there */
	double *wanted_ns;
	uint8_t *used;     /* has users */
	uint8_t *eligible; /* may be spilled */
	uint32_t *by_pack, *by_use;
	uint32_t *by_gap;          /* by the time from pack to wanted, shortest first */
	uint32_t *by_wanted;       /* only if there is host memory */
	struct plan_event *events; /* in order */
	uint32_t event_count;
	double mixed;            /* bytes per nanosecond */
	double staging;          /* most bytes that wait to be written, or are in host memory */
	double host;             /* most bytes that stay in host memory */
	struct plan_rates alone; /* when only one direction runs */
	double keep_all_peak;

	struct plan_forecast forecast;

	uint8_t *spill, *trial; /* choices: the best, and the one being tried */
	uint8_t *in_host;       /* of what is spilled: it stays in host memory */
	uint32_t *host_rank, *host_heap, *host_out; /* scratch of plan/host.c */
	uint32_t *order, *order_other;              /* scratch of the choosers */
	uint64_t *keys, *keys_other;
	double *tree, *tree_added; /* over the points of the forecast: twice as many */

	uint8_t *state, *in_flight; /* for the simulation */
	double *copied_ns;          /* for a device: end of its copy out */
	uint32_t *queue;
	struct plan_transfers writes, reads;
	void *memory;
};

/* What a plan leads to, in the simulation. */
struct plan_outcome {
	double peak, stall_ns, written, read, forwarded;
	double hosted;    /* bytes that stay in host memory */
	double host_peak; /* most host memory in use, with bytes on their way to the drives */
	bool forever;     /* it waits for what never happens */
	bool abandoned;   /* exceeded the bounds: the simulation ended early */
};

/* Bounds at which a simulation ends early: above this peak or these bytes, or at this stall. */
struct plan_bounds {
	double peak, written, stall_ns;
};

/* ---- work.c ---- */

int spw_plan__work_open(struct plan_work *work, const struct spw_plan_step *step,
			const struct spw_plan_drives *drives);

/* Allocate all of @pieces in one block, zeroed. Return: the block; NULL. */
struct plan_piece {
	void *pointer; /* address of the pointer to set */
	size_t bytes;
};

void *spw_plan__allocate(const struct plan_piece pieces[], size_t count);
void spw_plan__work_close(struct plan_work *work);

/* Stable, ascending by work->keys: that of order[i] is keys[i]. Overwrites the keys. */
void spw_plan__sort(struct plan_work *work, uint32_t *order);

/* ---- host.c ---- */

/* Whether the drives can write tensor @i, and read it if it is used. */
static inline bool spw_plan__drives_take(const struct plan_work *work, uint32_t i)
{
	return work->alone.write > 0 && (!work->used[i] || work->alone.read > 0);
}

/*
 * Which of the spilled stay in host memory: sets work->in_host, and unmarks in @spill what neither
 * it nor the drives have room for. The same again if it is called with what it has left.
 */
void spw_plan__host_assign(struct plan_work *work, uint8_t *spill);

/* ---- forecast.c ---- */

/* Forecast the choices in @spill, and unmark tensors that would not leave memory. */
void spw_plan__forecast_choose(struct plan_work *work, const struct plan_rates *rates,
			       enum plan_reads reads, uint8_t *spill);

/* Forecast only out and out_ns, for writes at full rate. */
void spw_plan__forecast_out(struct plan_work *work, const uint8_t *spill);

/* ---- simulate.c ---- */

struct plan_profile {
	struct spw_plan_point *points;
	size_t points_max, count;
};

/* Background traffic on the drives. */
struct plan_flow {
	double share; /* of the drives' time */
	double ns;    /* duration in wall time */
};

/* A timeline of transfers, waits and recomputation, wall time. */
struct plan_spans {
	struct spw_plan_span *spans;
	size_t spans_max, count;
};

/*
 * A step held to a memory limit. If throttled, compute waits before it packs a tensor that does not
 * fit, as long as other tensors are leaving memory; and a read, even one that compute waits for,
 * begins once it fits together with everything packed before its use.
 */
struct plan_held {
	double limit;
	bool throttled; /* false: only prefetches are held to the limit */
	/* by tensor: wall time until which compute waits at most before the pack; or NULL */
	const uint64_t *until_ns;
	uint64_t *packed_ns; /* by tensor, set to the wall time at which it was packed; or NULL */
	uint32_t *use_event; /* by tensor: the event of its use */
	/*
	 * bytes packed minus bytes released: the most during each event, and after it. If
	 * unthrottled, tensors that leave memory in the forecast are subtracted too
	 */
	double *most, *net;
	uint32_t *window; /* scratch, as many as events */
	const struct plan_flow *flows;
	double *flow_end_ns; /* PLAN_NEVER_NS: the flow is not running */
	uint32_t flows_count;
	struct plan_spans *spans; /* or NULL */
};

/* @bounds and @profile may be NULL. */
void spw_plan__simulate(struct plan_work *work, const uint8_t *spill, const struct plan_held *held,
			const struct plan_bounds *bounds, struct plan_profile *profile,
			struct plan_outcome *outcome);

/* ---- recompute.c ---- */

/* A step in which some scopes are recomputed. */
struct plan_recompute {
	const struct spw_plan_step *step;
	const struct spw_plan_scopes *scopes;
	struct plan_work base; /* the step as measured */
	struct plan_work work; /* with the recomputed scopes, in own events and uses */
	struct plan_held held; /* for work */
	double compute_ns;     /* of the step as measured */
	double again_ns;       /* added by recomputing */
	/* the tensors of scope s, in the order of packing, begin at members[first[s]] */
	uint32_t *members, *first;
	uint8_t *may;       /* by scope: recomputing it discards something */
	uint8_t *giving;    /* by tensor: discarded if its scope is recomputed */
	uint8_t *stays;     /* by tensor: the input of a scope that is recomputed */
	uint8_t *can_spill; /* by tensor: eligible and not discarded */
	uint8_t *recompute; /* by scope: it is recomputed */
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

/*
 * Set a caller's choices: the recomputed scopes; spills in base.spill. @is_earlier: they were made
 * for an earlier measurement; what can no longer be recomputed, or spilled, is kept.
 * Return: 0; -EINVAL.
 */
int spw_plan__recompute_choose(struct plan_recompute *recompute,
			       const enum spw_plan_choice choices[], bool is_earlier);

/* Whether tensor @i is discarded by a scope that is set to be recomputed. */
bool spw_plan__recompute_gives(const struct plan_recompute *recompute, uint32_t i);

/* Simulate the step as it is set. No tensor marked in @spill may be discarded. */
void spw_plan__recompute_simulate(struct plan_recompute *recompute, const uint8_t *spill,
				  double limit, const struct plan_bounds *bounds,
				  struct plan_profile *profile, struct plan_outcome *outcome);

/* ---- seek.c ---- */

/* What makes one of two plans better. A plan within the limits is better than one beyond them. */
enum plan_goal {
	PLAN_GOAL_STEP,  /* within the limit: the shorter step, then fewer bytes written */
	PLAN_GOAL_BYTES, /* within the limit: fewer bytes written, then the shorter step */
	PLAN_GOAL_PEAK,  /* in time: the lower peak, then fewer bytes written */
};

struct plan_worth {
	uint64_t key;
	uint32_t scope;
};

#define PLAN_FLIPS_MAX 3u /* most tensors that are changed at a time */

/* The search for what to recompute and to spill. All arrays belong to the caller. */
struct plan_seek {
	struct plan_recompute *recompute;
	enum plan_goal goal;
	double limit; /* memory limit; for PLAN_GOAL_PEAK only of prefetches, set per try */
	/* a step not longer than this is in time, and ends the search for a shorter one; 0: none */
	double enough_ns;
	double written_max;
	uint32_t tries_left;

	bool fits; /* the best plan so far is within the limits */
	bool limited;
	double best_ns;    /* time of the step with the best plan */
	double best_limit; /* limit for which the best plan was found */
	struct plan_outcome best;
	uint8_t *recompute_best, *spill_best;
	uint8_t *recompute_trial, *spill_trial;
	uint8_t *recompute_now, *spill_now; /* the state of the annealing */
	uint64_t random;                    /* with a fixed seed */
	uint32_t flipped[PLAN_FLIPS_MAX];

	/* scopes in the order of trying; least time of the step with the first k recomputed */
	uint32_t *order, order_count;
	double *least_ns;
	struct plan_worth *worth;
};

/* Begin a search, with the plan that keeps everything. */
void spw_plan__seek_begin(struct plan_seek *seek, enum plan_goal goal, double limit);

/* Begin a search for the shortest step within @limit, with these choices. */
void spw_plan__seek_within(struct plan_seek *seek, double limit, const uint8_t *scopes,
			   const uint8_t *spill);

/* The highest peak that a better plan may have. */
double spw_plan__seek_highest(const struct plan_seek *seek);

/* Try a plan; if it is better, it becomes the best. Return: whether it is better. */
bool spw_plan__seek_try(struct plan_seek *seek, const uint8_t *scopes, const uint8_t *spill);
/* Try seek->spill_trial with nothing recomputed. Return: whether it is better. */
bool spw_plan__seek_try_spills(struct plan_seek *seek);

/* Search for the shortest step within the limit. */
void spw_plan__seek(struct plan_seek *seek, uint32_t tries);
void spw_plan__seek_refine(struct plan_seek *seek, uint32_t tries);

/* Keep tensors that need not be spilled. The best plan must fit and be in time. */
void spw_plan__seek_spare(struct plan_seek *seek, uint32_t tries);

/* ---- choose.c ---- */

/* Search without recomputation, with compute not throttled. The search has begun. */
void spw_plan__choose(struct plan_seek *seek);

/* ---- groups.c ---- */

/* A step in which tensors of one scope and kind are merged into groups. */
struct plan_groups {
	struct spw_plan_step step;
	struct spw_plan_scopes scopes;
	uint32_t *group_of; /* by tensor */
	struct spw_plan_tensor *tensors;
	struct spw_plan_scope *own; /* scopes, whose inputs are groups */
	void *memory;
};

/* Make groups. A group is full at 1 / @most of all bytes. Return: 0; -ENOMEM. */
int spw_plan__groups_open(struct plan_groups *groups, const struct plan_recompute *recompute,
			  uint32_t most);
void spw_plan__groups_close(struct plan_groups *groups);

/* ---- call.c ---- */

/*
 * Checks an invariant of sums, times or states. If it does not hold, the call fails, and training
 * goes on without a plan. Array bounds are asserted instead.
 */
#define PLAN_HOLDS(condition) \
	(likely(condition) || spw_plan__broken(#condition, __FILE__, __LINE__))
bool spw_plan__broken(const char *condition, const char *file, int line);
/* Return: 0 if all invariants held since this call's arguments were checked; -ENOTRECOVERABLE. */
int spw_plan__check_whole(void);

int spw_plan__check_arguments(const struct spw_plan_step *step,
			      const struct spw_plan_drives *drives, const void *choices,
			      const struct spw_plan_result *result);
/* Check and copy options. @caller: may be NULL, or another version's */
int spw_plan__check_opts(const struct spw_plan_opts *caller, struct spw_plan_opts *opts);
void spw_plan__fill_result(struct spw_plan_result *result, const struct plan_work *work,
			   double compute_ns, const struct plan_outcome *outcome,
			   const uint8_t *spill);
void spw_plan__set_result(struct spw_plan_result *result, const struct spw_plan_result *from);

/* ---- scopes.c ---- */

int spw_plan__check_scopes(const struct spw_plan_scopes *caller, struct spw_plan_scopes *scopes);

#endif
