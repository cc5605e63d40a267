/* SPDX-License-Identifier: MIT */
/*
 * tensor/control/internal.h - the controller's state: the step, its signatures, the plan in force
 *
 * A tensor is known by its place: its number among those worth planning in its scope of a step.
 * Stages count as scopes: what is offered outside all others belongs to them.
 *
 * Rules, cited by asserts
 *   CONTROL-1  Takes that wait at once count as one wait.
 *   CONTROL-2  Memory of earlier steps is part of the memory in use.
 *   CONTROL-3  A tensor that is matched is worth planning, and so is what it is matched with.
 *   CONTROL-4  Transfers that end have begun.
 */
#ifndef SPW_TENSOR_CONTROL_INTERNAL_H
#define SPW_TENSOR_CONTROL_INTERNAL_H

#include "tensor/control/control.h"
#include "tensor/control/measure.h"
#include "util/util.h"

#define NO_TENSOR      UINT32_MAX
#define GONE_SLOT      (NO_SLOT - 1)
#define SIGNATURES_MAX 4u

/* Of a step's time, which may be so much longer than without spillway: its goal; or of a budget. */
#define STALL_TOLERANCE 0.01

/*
 * Steps before a headroom is halved, at first. Of time: at most one in twenty is late because of
 * that. Of memory sooner: the first plans, which know least, exceed the budget most, and the
 * headroom that they leave behind is memory that stays unused. As the number doubles, log2(n / 4)
 * of n steps are above.
 */
#define TIME_PATIENCE_STEPS   20u
#define MEMORY_PATIENCE_STEPS 4u

/*
 * Times are compute time: since the step began, less all time in which some take waited for I/O or
 * the caller recomputed something.
 */
struct recorded {
	uint64_t bytes;
	uint64_t pack_ns, use_ns, release_ns;
	/* what these were when the plan was made: it is carried out by its own clock */
	uint64_t planned_pack_ns, planned_use_ns, planned_release_ns;
	uint64_t number; /* of its offer, among the saves of the step; 0: not told */
	uint32_t takes;
	uint32_t scope;
	uint32_t place;   /* among those of its scope that have one */
	uint32_t matched; /* the tensor of the reference at the same place, or NO_TENSOR */
	uint32_t slot;    /* of its entry, until it is released */
	uint8_t hint;
	bool plannable;
	bool released;
	bool stored;          /* the drives alone have its bytes, or host memory a device's */
	bool skipped;         /* with its scope: this step has no such tensor */
	bool no_recompute;    /* another scope saves or needs it, too */
	bool is_input;        /* of a scope that may be recomputed */
	bool only_input;      /* and none has saved it: it has no place */
	bool decided;         /* the caller has discarded it, whatever the plan says */
	bool planned_decided; /* the same when the plan was made */
};

struct recorded_scope {
	uint64_t key;
	uint64_t enter_ns;
	uint64_t compute_ns; /* while it was the innermost */
	/* what compute_ns and enter_ns were when the plan was made */
	uint64_t planned_ns, planned_enter_ns;
	uint32_t micro_batch;
	uint32_t depth; /* of stages 0 */
	uint8_t stage;
	bool left;          /* no more tensors follow */
	uint32_t plannable; /* tensors that have a place */
	uint64_t bytes;     /* of these */
	uint32_t first;     /* of its tensors in members */
	uint32_t matched;   /* the scope of a reference that varies, or NO_SCOPE */
	uint32_t input;     /* that it is recomputed from; NO_TENSOR: it cannot be recomputed */
	uint64_t saved_ns;  /* something was saved in it for the last time */
	bool has_scopes;    /* inside */
	bool skipped;       /* in this step: recorded as in the reference */
};

struct recording {
	struct recorded *tensors;
	struct recorded_scope *scopes;
	uint32_t *members; /* the tensors by scope and place; made when it becomes the reference */
	uint64_t *drains_ns; /* that are not at the time of some tensor's event */
	uint32_t count, scope_count, plannable, drains;
	uint64_t forward_ns, backward_ns;
	uint64_t takes;
	bool is_truncated; /* not all of the step had room */
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
};

/* What is left out of a plan, in parts of the whole. */
struct headroom {
	double share;
	uint32_t steps, needed; /* within the plan; until less is tried */
	bool tried;             /* less, and nothing has shown since that it was too little */
};

#define HEADROOM_NONE(patience) ((struct headroom){.needed = (patience)})

/* Of the memory in use in a step; see profile.c. */
struct profile {
	unsigned width_shift; /* each bin is 2^width_shift ns wide */
	uint32_t used;
	struct spw_memory_point now;
	struct spw_memory_point bins[SPW_MEMORY_POINTS_MAX];
};

/* The cap on what is written; see wear.c. */
struct wear {
	double bytes_per_ns; /* 0: none */
	double left_bytes;   /* may be written, as of then: */
	uint64_t since_ns;
	/* by others, with a cap: since the last step ended, and in the step before */
	double external_bytes, external_step_bytes;
};

/* How many bytes others have moved, and until when; see background_traffic.c. */
#define FLOW_POINTS 256u
/* The planner gets a step in this number of equal parts. */
#define FLOW_PARTS 32u

struct background_point {
	uint64_t ns, bytes[DIRECTIONS];
};

struct background_record {
	uint64_t width_ns;  /* the least between two points that differ */
	uint64_t looked_ns; /* at what they have moved, for the last time */
	uint32_t used;
	struct background_point points[FLOW_POINTS];
};

/* Of one figure, of the other ranks that know it. */
struct rank_sum {
	double bytes_per_second;
	uint32_t count;
};

/* What other ranks have measured of the drives that they share with this one; see ranks.c. */
struct ranks {
	struct rank_sum write, read, mixed;
};

/* When the host gave a device a mark, compute time of its own, and when the device came to it. */
struct mark {
	uint64_t host_ns, device_ns;
};

#define PACE_MARKS_MAX 1024u
/* Steps by which a host may be ahead, and its marks still count. */
#define PACES 4u

/* The marks of a step; see device_clock.c. */
struct device_clock {
	uint32_t step, signature; /* 0: of none */
	uint32_t count, known;
	bool over;     /* the step is; */
	bool complete; /* and all is known of it */
	struct mark end;
	struct mark marks[PACE_MARKS_MAX];
};

/* What steps of a signature do. */
struct plan {
	enum spw_plan_choice *choices;
	uint64_t *read_from_ns;
	uint64_t *throttle_ns; /* of each tensor: what compute is to wait before it is saved */
	/* when each has been copied from a device, with those waits; 0: the bus is not measured */
	uint64_t *copied_ns;
	/*
	 * when each tensor is first needed, by a take or a recompute; those needed, in that order
	 */
	uint64_t *use_ns;
	uint32_t *use_order;
	uint32_t use_count;
	/* reads begin when something happens: so they may be this early, or they would be late */
	uint64_t lead_ns;
	struct spw_plan_result result;
	struct spw_plan_drives counted_on; /* measured, when the plan was wanted */
	uint64_t wear_step_bytes;          /* that it may write; 0: no limit */
	uint64_t written_max;              /* that it was allowed to, for wear and after a stall */
	double flows_share; /* of others, that it was made for, of the drives' time */
	double time_share;  /* the headroom of time, in parts of the backward pass */
	bool overrules;     /* keep hints: else its budget cannot be met */
};

/* A signature of step, and its plan. */
struct signature {
	struct recording reference;       /* what the plan was made from, smoothed */
	struct device_clock device_clock; /* of the last step whose marks are all known */
	struct plan plan;
	struct headroom memory; /* of the budget */
	uint64_t stalled_bytes; /* written by the last plan that stalled; 0: none recently */
	uint32_t calm_steps;    /* since then */
	double flows[FLOW_PARTS][DIRECTIONS]; /* bytes of others, smoothed */
	bool planned;
	bool varies;              /* each step skips other scopes of the reference */
	uint32_t unplanned_steps; /* of it, until it is planned */
	uint32_t id;              /* 0: none */
	uint32_t next_id;         /* of the signature that came after it the last time */
	uint32_t step;            /* when another one was last put in its stead */
};

/* A tensor of this step's that is skipped, and when the reference uses it. */
struct skipped {
	uint64_t ns;
	uint32_t which;
};

/* What a step skips of a reference that varies; see skipped.c. */
struct skipping {
	bool off;             /* not in this step */
	uint32_t scopes;      /* skipped */
	uint32_t others;      /* scopes, and tensors of scopes, that the reference does not have */
	uint32_t scope_next;  /* of the reference: those before it have been met, */
	uint32_t tensor_next; /* or skipped with their tensors */
	struct skipped *tensors;
	uint32_t count, passed; /* of tensors: those whose use is over */
	uint32_t *here; /* of each tensor of the reference: that of this step, or NO_TENSOR */
	/* added to all times of this step; and to what its passes took, when it has ended */
	uint64_t added_ns, forward_ns, backward_ns;
	uint64_t met_ns, met_reference_ns; /* the last thing that the reference has, too */
};

/* Steps that need not be seen; see rest.c. */
struct rest {
	uint32_t calm;  /* steps in a row that moved nothing, at most REST_AFTER */
	uint32_t steps; /* that rest before one is seen again; 0: none have yet */
	uint32_t left;  /* of them */
	bool now;
	bool only_small; /* tensors were in the last step that was seen */
	/* when the last step that was seen had ended: counters, and sums of such */
	uint64_t moved, takes, others, small;
};

/* The planner's input. */
struct asked {
	const struct recording *reference;
	struct spw_plan_tensor *tensors;
	struct spw_plan_scope *scopes;
	struct spw_plan_flow flows[FLOW_PARTS];
	uint32_t flows_count;
	struct spw_plan_drives drives;
	struct spw_plan_opts opts;
	bool unthrottled; /* nothing is recomputed, no others use the drives, compute never waits */
};

struct control {
	struct control_opts opts;
	bool records;   /* the mode plans */
	bool recording; /* a step is under way and is recorded */
	uint32_t tensors_max, scopes_max;

	/* this step */
	uint32_t step;
	uint32_t micro_batch;
	enum spw_stage stage;
	struct recording now;
	uint32_t scope;       /* the innermost, or NO_SCOPE */
	uint32_t stage_scope; /* of what is outside all scopes */
	uint64_t charged_ns;  /* compute time that scopes have been given */
	uint64_t event_ns;    /* of the last tensor packed, used or released */
	uint64_t began_ns;    /* wall */
	bool is_held;         /* the clock, until all of an event is noted */
	uint64_t held_ns;     /* if it is: where it stands */
	uint64_t waited_ns;   /* some take waited for I/O, a device did, or compute was throttled */
	uint64_t compute_ns_min; /* when a device told how long: compute time never goes back */
	uint64_t marked_ns;      /* of the host, at the last mark */
	uint64_t waiting_since_ns;
	uint32_t waiting;      /* takes, and throttled threads */
	uint64_t throttled_ns; /* of waited_ns: throttled */
	uint64_t out_ns;       /* of waited_ns: a device did, for what leaves it */
	bool recomputing;      /* the caller does */
	uint64_t recompute_since_ns, recompute_ns;
	/* reasons why compute time stands still: takes that wait, a recompute */
	uint32_t away;
	uint64_t away_since_ns, away_ns;
	/* in memory: now; the most in this step; now, of tensors of earlier steps */
	uint64_t memory_bytes, peak_bytes, old_bytes;
	uint64_t peak_writing_bytes; /* of the peak: under way to the drives */

	struct signature signatures[SIGNATURES_MAX];
	struct signature *signature; /* in force, if it is planned */
	uint32_t ids;                /* given to signatures so far */
	uint32_t before_id;          /* of the step before */

	/* how far along the plan the step is */
	uint32_t plan_number;
	bool left;        /* this step is not like the reference */
	bool switched;    /* it began by the plan of another signature: its memory proves nothing */
	bool stalled_now; /* it has stalled: memory does not count */
	uint32_t matched;
	uint64_t progress_ns;     /* compute time of the plan at the last event that matched, */
	uint64_t progress_at_ns;  /* and in this step */
	uint64_t due_ns;          /* of steps like this one when they last offered something, */
	uint64_t due_throttle_ns; /* and how long compute is to wait until then */
	uint32_t read_next;       /* of the plan's order of use: all before it need not be read */
	uint32_t recompute_next;  /* and no scope is recomputed for any before it */
	uint32_t offer_next;      /* of the reference: all before it have been offered */
	uint32_t *slots; /* of each tensor of the reference; NO_SLOT: not offered yet; GONE_SLOT */
	/* kept by the plan, but spilled in this step to measure the drives; or NO_TENSOR */
	uint32_t probe;

	struct rest rest;
	struct skipping skipping;
	bool skips_off; /* in the next step: what this one has recorded is of no use */

	uint64_t keep_all_bytes; /* offered and not released: in memory, if all were kept */
	struct profile profile, profile_before; /* of this step, and of the one before */
	struct device_clock paces[PACES];       /* of the last steps */
	struct background_record background_record;
	uint64_t external[DIRECTIONS]; /* bytes of others so far */
	bool external_known;           /* before: they may have moved any number */
	struct wear wear;

	uint64_t host_bytes; /* for copies of devices' tensors */

	/* between steps */
	struct measure measure;
	struct ranks ranks;   /* as the step ended */
	struct headroom time; /* of the backward pass */
	bool late_before;     /* a step was, not long ago */
	bool was_late;        /* the last step was */
	uint64_t unmeasured;  /* steps in a row of plans that spill nothing */
	bool broke_off; /* the last step by its plan did not take all that the plan has taken */

	/*
	 * The plan that is being made, from the end of one step to the end of the next, and of
	 * which signature, whose reference stays as it is; NULL: none. It is spw_control__plan()'s.
	 */
	struct signature *draft_of;
	struct plan draft;
	struct asked asked;
	enum plan_reason draft_reason;
	int draft_rc; /* how the search went, in words, and how long it took */
	char draft_words[SPW_NOTICE_BYTES_MAX / 2];
	uint64_t draft_cost_ns;
};

static inline uint64_t control_clock_ns(const struct control *control)
{
	return control->is_held ? control->held_ns : control->opts.clock_ns();
}

#endif
