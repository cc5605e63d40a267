/* SPDX-License-Identifier: MIT */
/*
 * tensor/adapt.h - how a step is recorded, and what the plan made from it says
 *
 * A tensor of a step is known by its place: the how-manyth tensor worth planning that was offered
 * in the how-manyth scope of the step. Stages count as scopes: what is offered outside all others
 * belongs to them.
 */
#ifndef SPW_TENSOR_ADAPT_H
#define SPW_TENSOR_ADAPT_H

#include <stdbool.h>
#include <stdint.h>

#include <spillway/cache.h>
#include <spillway/plan.h>

#define NO_TENSOR     UINT32_MAX
#define NO_SCOPE      UINT32_MAX
#define SHAPES_PARKED 3u /* besides the one in force */

struct entry;
struct spw_cache;

/* Times are of compute: since the step began, less all time in which some take waited for I/O. */
struct recorded {
	uint64_t bytes;
	uint64_t pack_ns, use_ns, release_ns;
	uint32_t takes;
	uint32_t scope;
	uint32_t place;   /* among the plannable ones of its scope */
	uint32_t matched; /* the tensor of the basis at the same place, or NO_TENSOR */
	uint8_t hint;
	bool plannable;
	bool released;
};

struct recorded_scope {
	uint64_t key;
	uint64_t enter_ns;
	uint64_t compute_ns; /* while it was the innermost */
	uint64_t planned_ns; /* what compute_ns was when the plan was made */
	uint32_t micro_batch;
	uint8_t stage;
	bool left;          /* no more tensors follow */
	uint32_t plannable; /* tensors */
	uint32_t first;     /* of its tensors in members */
};

struct recording {
	struct recorded *tensors;
	struct recorded_scope *scopes;
	uint32_t *members;   /* the plannable tensors by scope; made when it becomes the basis */
	uint64_t *drains_ns; /* that are not at the time of some tensor's event */
	uint32_t count, scope_count, plannable, drains;
	uint64_t forward_ns, backward_ns;
	uint64_t takes;
	bool is_short; /* not all of the step had room */
};

/* Why the next step gets a plan of its own. */
enum plan_reason {
	PLAN_REASON_NONE,
	PLAN_REASON_FIRST,
	PLAN_REASON_SHAPE,
	PLAN_REASON_TIMELINE,
	PLAN_REASON_BANDWIDTH,
	PLAN_REASON_STALL,
	PLAN_REASON_MEMORY,
	PLAN_REASONS,
};

/* A shape of step whose plan is not in force: what struct adapt has of the one that is. */
struct shape {
	struct recording basis;
	enum spw_plan_choice *choices;
	uint64_t *read_from_ns;
	uint32_t *use_order;
	uint32_t use_count;
	uint64_t lead_ns;
	struct spw_plan_result result;
	struct spw_plan_drives counted_on;
	uint64_t reserve_bytes;
	bool planned;
	uint32_t id, next_id;
	uint32_t parked_step;
};

struct adapt {
	bool records;   /* the mode plans */
	bool recording; /* a step is under way and is recorded */
	uint32_t tensors_max, scopes_max;

	/* this step */
	struct recording now;
	uint32_t scope;       /* the innermost, or NO_SCOPE */
	uint32_t stage_scope; /* of what is outside all scopes */
	uint64_t charged_ns;  /* compute time that scopes have been given */
	uint64_t event_ns;    /* of the last tensor packed, used or released */
	uint64_t began_ns;    /* wall */
	uint64_t waited_ns;   /* while at least one take waited for I/O */
	uint64_t waiting_since_ns;
	uint32_t waiting;               /* takes */
	uint64_t peak_bytes, old_bytes; /* in memory: the most; now, of tensors of earlier steps */

	/* the shapes of step that are known */
	struct shape parked[SHAPES_PARKED];
	uint32_t ids;       /* given to shapes so far; 0 is none */
	uint32_t id;        /* of the one in force */
	uint32_t next_id;   /* of the one that came after it the last time */
	uint32_t before_id; /* of the step before */

	/* the plan, and how far along it the step is */
	struct recording basis; /* what it was made from, smoothed */
	bool planned;           /* there is one in force */
	bool left;              /* this step is not like the basis */
	/* it began by the plan of another shape, and may have kept what this one spills */
	bool switched;
	bool stalled_now; /* it has stalled: memory does not count */
	uint32_t matched;
	uint64_t progress_ns;    /* compute time of the basis at the last event that matched, */
	uint64_t progress_at_ns; /* and in this step */
	enum spw_plan_choice *choices;
	uint64_t *read_from_ns;
	uint32_t *use_order; /* spilled tensors in the order of use */
	uint32_t use_count, use_next;
	/* reads begin when something happens: so they may be this early, or they would be late */
	uint64_t lead_ns;
	/* the entry of each tensor of the basis; NO_TENSOR: not offered yet, or gone */
	uint32_t *slots;
	bool *gone;
	/* kept by the plan, but spilled in this step to measure the drives; or NO_TENSOR */
	uint32_t probe;

	/* between steps */
	struct spw_plan_tensor *tensors; /* the planner's input */
	struct spw_plan_result result;
	struct spw_plan_drives counted_on; /* measured, when the plan was made */
	double caution;                    /* share of that which the plan uses */
	uint32_t calm, calm_needed;        /* steps without a stall; until more is dared */
	/* of the budget, left unplanned because earlier peaks were above it */
	uint64_t reserve_bytes;
	/* steps within the budget; until less is left unplanned */
	uint32_t below, below_needed;
	bool reserve_lowered; /* since then no peak has been above the budget */
	uint64_t unmeasured;  /* steps in a row of plans that spill nothing */
	/* steps by plans since one stalled; 0: the last did; at most STALLS_RECENT */
	uint32_t stalled_ago;
	bool caution_lowered; /* caution was lowered since it was last raised */
	/* the last step that followed its plan did not take all that the plan has taken */
	bool broke_off;
};

/* ---- record.c ---- */

int spw_record_open(struct spw_cache *cache);
void spw_record_close(struct spw_cache *cache);
uint64_t spw_record_compute_ns(const struct spw_cache *cache);
void spw_record_begin(struct spw_cache *cache);
/* A stage begins, or a scope: its number, or NO_SCOPE. */
void spw_record_stage(struct spw_cache *cache);
uint32_t spw_record_scope_enter(struct spw_cache *cache, uint64_t key);
/* Left: @outer is the innermost again; NO_SCOPE: none is. */
void spw_record_scope_leave(struct spw_cache *cache, uint32_t outer);
/* The caller asks for tokens. */
void spw_record_drain(struct spw_cache *cache);
void spw_record_offer(struct entry *entry, enum spw_cache_hint hint);
void spw_record_hint(struct entry *entry, enum spw_cache_hint hint);
void spw_record_take(struct entry *entry);
void spw_record_release(struct entry *entry);
void spw_record_wait_began(struct spw_cache *cache, uint64_t now_ns);
void spw_record_wait_ended(struct spw_cache *cache, uint64_t now_ns);
void spw_record_end(struct spw_cache *cache);

/* ---- shapes.c ---- */

/*
 * Go on by the plan of another shape that is like this step so far. Return: whether there is one.
 */
bool spw_shape_switch(struct spw_cache *cache);
/*
 * The step that has ended, not followed by its plan, is of a shape that has one. Return: whether;
 * it is in force.
 */
bool spw_shape_known(struct spw_cache *cache);
/* Make room for a new one. */
void spw_shape_park(struct spw_cache *cache);
/* A step of the one in force has ended; the next begins, and may be of another. */
void spw_shape_ended(struct adapt *adapt);
void spw_shape_predict(struct spw_cache *cache);

/* ---- adapt.c ---- */

void spw_adapt_open(struct adapt *adapt);
/* What the plan in force says of a tensor of this step. Return: whether it says something. */
bool spw_adapt_choice(const struct entry *entry, enum spw_plan_choice *choice);
bool spw_adapt_in_force(const struct spw_cache *cache);
/* This step is not the one that was planned for. Return: whether it goes on by another plan. */
bool spw_adapt_leave(struct spw_cache *cache, const char *what);
/* The plan is followed from its beginning. */
void spw_adapt_follow(struct spw_cache *cache);
/* The basis at its number of scope is as the one that begins now. */
void spw_adapt_scope(struct spw_cache *cache, uint32_t number);
/* The scope of that number has been left. */
void spw_adapt_scope_left(struct spw_cache *cache, uint32_t number);
/* The tensor of the basis that one offered now is. */
uint32_t spw_adapt_match(struct spw_cache *cache, const struct recorded *recorded);
void spw_adapt_progress(struct spw_cache *cache, uint64_t basis_ns);
/* Compute time of the basis that this step has come to. */
uint64_t spw_adapt_now_ns(const struct spw_cache *cache);
/*
 * How much of this step's tensors may be in memory for something to be read ahead; @late: it should
 * have begun.
 */
uint64_t spw_adapt_memory_bytes(const struct spw_cache *cache, bool late);
/* A take has waited for I/O. */
void spw_adapt_waited(struct spw_cache *cache);
/* The step has ended. Return: whether, and why, to plan now. */
enum plan_reason spw_adapt_step_ended(struct spw_cache *cache);
/* Without the lock, by the thread that calls spw_cache_step(). */
int spw_adapt_plan(struct spw_cache *cache);
/* With it: the plan is in force from now on. */
void spw_adapt_planned(struct spw_cache *cache, enum plan_reason reason, int rc, uint64_t cost_ns);
void spw_adapt_step_began(struct spw_cache *cache);
void spw_adapt_stats(const struct spw_cache *cache, struct spw_cache_stats *stats);

#endif
