/* SPDX-License-Identifier: MIT */
/*
 * spillway/plan.h - which tensors of a training step to spill, from a measured step and measured
 * drives
 *
 * The planner simulates the step: compute, writes, reads, and the memory that tensors hold.
 * plan/plan.c begins with the model, what it assumes, and how it chooses.
 *
 * Contract
 *   Purity     No I/O, no clock, no threads, no state: the same input gives the same plan. The time
 *              is bounded by the number of tensors and calls: 10,000 are planned in a few
 *              milliseconds, with a bytes_written_max in about ten times as long.
 *   Threads    Any thread, any number at a time.
 *   Memory     The caller's arrays are read, never kept. All other memory is allocated and freed
 *              within a call.
 *   Time       Nanoseconds of compute since the step began, without waits for I/O, unless a comment
 *              says wall time.
 *   Errors     0, or a negative errno; spw_last_error() names the tensor and the field.
 */
#ifndef SPILLWAY_PLAN_H
#define SPILLWAY_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <spillway/error.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SPW_PLAN_TENSORS_MAX       (1u << 24)
#define SPW_PLAN_CALLS_MAX         (1u << 24)
#define SPW_PLAN_POINTS_PER_TENSOR 5u
/* Value of stall_ns: a read does not end within 100 years, or the read bandwidth is 0. */
#define SPW_PLAN_STALL_FOREVER UINT64_MAX

/* A tensor, stored as one object; views of the same bytes are one tensor with several users. */
struct spw_plan_tensor {
	uint64_t bytes;
	uint64_t pack_ns; /* the forward pass saves it: in memory from here on */
	uint64_t use_ns;  /* the backward pass first takes it; ignored if there are no users */
	/* the last user releases it, which frees its memory; not before use_ns */
	uint64_t release_ns;
	uint32_t users; /* number of takes expected; 0: saved and never taken */
	/* number of the scope that saved it; scopes are numbered in the order they ran */
	uint32_t scope;
	bool must_keep; /* never spilled: too small, excluded or pinned */
	/* not discarded if its scope is recomputed: another scope saves it too, for example */
	bool not_again;
	uint8_t reserved[6];
};
SPW_ABI(struct spw_plan_tensor, reserved, 42, 48);

struct spw_plan_step {
	const struct spw_plan_tensor *tensors; /* in any order */
	uint32_t count;
	uint64_t forward_ns, backward_ns; /* of the whole step, all micro-batches */
	/* further times, ascending, at which memory of written tensors is released; or NULL */
	const uint64_t *calls_ns;
	uint32_t calls;
	uint32_t reserved[3];
};
SPW_ABI(struct spw_plan_step, reserved, 44, 56);

/* All drives together. Bandwidth 0: the drives cannot read, or write, at all. */
struct spw_plan_drives {
	uint64_t write_bytes_per_second; /* when nothing is read */
	uint64_t read_bytes_per_second;  /* when nothing is written */
	/* sum of both when reading and writing; 0: not measured, the lower of the two is used */
	uint64_t mixed_bytes_per_second;
	uint64_t latency_ns; /* of one request on idle drives, without the transfer of its bytes */
	/* bytes of one request to every drive: chunk size x number of drives */
	uint64_t chunk_bytes;
	/* most bytes that may wait to be written: above it tensors are kept; 0: no limit */
	uint64_t staging_bytes;
	/*
	 * For tensors in device memory: bandwidth of the bus on which each is copied to the host
	 * before it is written, and back after it has been read; 0: tensors are in host memory. A
	 * tensor's device memory is free after the copy
	 */
	uint64_t bus_out_bytes_per_second, bus_in_bytes_per_second;
	/*
	 * Of tensors in device memory: host memory in which copies may stay until they are copied
	 * back, with nothing written; 0: none. There need not be drives then. What waits to be
	 * written takes part of it
	 */
	uint64_t host_bytes;
	uint64_t reserved[1];
};
SPW_ABI(struct spw_plan_drives, reserved, 72, 80);

enum spw_plan_mode {
	/* the lowest peak without a predicted stall, then the fewest bytes written */
	SPW_PLAN_FASTEST,
	/* the fewest bytes written such that the peak fits memory_bytes; may stall */
	SPW_PLAN_BUDGET,
	/* 2 was SSDTrain's rule, which plans by position: spw_plan_simulate() has any choices */
};

struct spw_plan_opts {
	size_t size;
	enum spw_plan_mode mode; /* default SPW_PLAN_FASTEST */
	uint64_t memory_bytes;   /* SPW_PLAN_BUDGET: most bytes of activations in memory */
	/* most bytes that the step may write; 0: no limit */
	uint64_t bytes_written_max;
};
SPW_ABI(struct spw_plan_opts, bytes_written_max, 24, 32);

enum spw_plan_choice {
	SPW_PLAN_KEEP,
	SPW_PLAN_SPILL,
	SPW_PLAN_AGAIN, /* discard, and recompute with its scope; spw_plan_scopes() only */
	SPW_PLAN_HOST,  /* copy to host memory, and do not write; with host_bytes only */
};

struct spw_plan_result {
	size_t size;
	/* false: the budget of SPW_PLAN_BUDGET cannot be met, the plan has the lowest peak found */
	bool feasible;
	/* most bytes of activations in memory at any time, as simulated */
	uint64_t peak_bytes;
	uint64_t peak_keep_all_bytes; /* peak_bytes if nothing were spilled */
	/* memory up to which the cache, or spw_plan_simulate(), prefetches */
	uint64_t memory_bytes;
	/* time that the backward pass waits for reads; or SPW_PLAN_STALL_FOREVER */
	uint64_t stall_ns;
	uint64_t wall_ns; /* length of the step: compute and stall */
	uint64_t bytes_written, bytes_read;
	/* marked to be spilled, but used while still in memory, or while being written */
	uint64_t bytes_forwarded;
	uint32_t tensors_spilled; /* marked to be spilled, or to stay in host memory */
	uint32_t points;          /* of the profile; spw_plan_simulate() only */
	/* without bytes_written_max the plan would be a different one */
	bool limited;
	/* spw_plan_scopes() only: number of scopes that are recomputed, and the time for that */
	uint32_t scopes_again;
	uint64_t again_ns;
	uint32_t spans;        /* spw_plan_scopes_simulate() only */
	uint32_t tensors_host; /* how many of tensors_spilled stay in host memory, not written */
	uint64_t bytes_host;   /* of these: copied to host memory */
	/* the most host memory in use, with the bytes that wait there to be written */
	uint64_t host_peak_bytes;
};
SPW_ABI(struct spw_plan_result, host_peak_bytes, 120, 128);

/* The memory in use from @ns, wall time, until the next point. */
struct spw_plan_point {
	uint64_t ns, bytes;
};
SPW_ABI(struct spw_plan_point, bytes, 8, 16);

/**
 * spw_plan_opts_init - set the defaults
 * @opts:  set
 * @size:  sizeof *@opts
 */
SPW_EXPORT void spw_plan_opts_init(struct spw_plan_opts *opts, size_t size);

/**
 * spw_plan - choose for each tensor whether to keep or to spill it
 * @step:     the measured step
 * @drives:   the measured drives
 * @opts:     or NULL for the defaults
 * @choices:  step->count of them, set on success
 * @result:   set to the simulated result; its size field must be set
 *
 * A budget that cannot be met is not an error: result->feasible is false, and the plan is for the
 * lowest peak that was found (result->memory_bytes). A plan of SPW_PLAN_FASTEST never stalls in the
 * simulation. No plan writes more than bytes_written_max, even if the peak gets higher for that.
 *
 * Return: 0; -EINVAL a tensor's times are out of order, a figure is too large, or there is host
 * memory without a bus; -ENOMEM.
 */
SPW_EXPORT int spw_plan(const struct spw_plan_step *step, const struct spw_plan_drives *drives,
			const struct spw_plan_opts *opts, enum spw_plan_choice choices[],
			struct spw_plan_result *result);

/**
 * spw_plan_simulate - simulate given choices
 * @step:          the measured step
 * @drives:        the measured drives
 * @memory_bytes:  prefetching stops at this use of memory; UINT64_MAX: no limit
 * @choices:       step->count of them
 * @points:        set to the memory in use over time; or NULL
 * @points_max:    room in @points; SPW_PLAN_POINTS_PER_TENSOR x step->count suffices, further
 *                 points are dropped
 * @result:        set; its size field must be set. feasible: whether the peak is within
 *                 @memory_bytes
 *
 * Return: 0; -EINVAL; -ENOMEM.
 */
SPW_EXPORT int spw_plan_simulate(const struct spw_plan_step *step,
				 const struct spw_plan_drives *drives, uint64_t memory_bytes,
				 const enum spw_plan_choice choices[],
				 struct spw_plan_point points[], size_t points_max,
				 struct spw_plan_result *result);

/* ---- Recomputing ---- */

/*
 * A part of the forward pass that can run a second time: in a transformer the two halves of each
 * layer, attention and MLP. A tensor's scope is in its field scope.
 *
 * A recomputed scope discards the tensors that it saves, except for its input and those marked
 * not_again. When the backward pass first needs a discarded tensor, the scope runs again from its
 * input, up to its last save.
 */
struct spw_plan_scope {
	uint64_t enter_ns; /* its forward pass begins */
	uint64_t again_ns; /* the time to recompute it, up to its last save */
	/*
	 * The tensor that recomputing starts from: kept or spilled like others, but not discarded
	 * while it is needed, whichever scope saved it. An input that is not saved has 0 users.
	 */
	uint32_t input;
	bool may_again;
	uint8_t reserved[3];
};
SPW_ABI(struct spw_plan_scope, reserved, 21, 24);

/*
 * Background traffic on the same drives, such as the optimizer's state or other ranks: these bytes,
 * evenly over @ns of wall time from when compute reaches @from_ns. It has priority on the drives.
 */
struct spw_plan_flow {
	uint64_t from_ns, ns;
	uint64_t bytes_read, bytes_written;
	uint64_t reserved[2];
};
SPW_ABI(struct spw_plan_flow, reserved, 32, 48);

#define SPW_PLAN_FLOWS_MAX 64u

struct spw_plan_scopes {
	size_t size;
	const struct spw_plan_scope *scopes;
	uint32_t count;
	const struct spw_plan_flow *flows;
	uint32_t flows_count;
	/*
	 * SPW_PLAN_FASTEST: how much longer the step may be than without waits and recomputing, as
	 * a fraction; default 0.02. 0: nothing is recomputed.
	 */
	double slack;
	/*
	 * spw_plan_scopes_simulate() only: by tensor, the wall time until which compute may be
	 * throttled before it saves the tensor. With the times of a plan (saved_ns of struct
	 * spw_plan_record) a step that is faster than planned waits for memory, and ends no later
	 * than planned. Or NULL.
	 */
	const uint64_t *hold_until_ns;
	/*
	 * compute never waits for memory, as in spw_plan(); only prefetches keep to the limit. Then
	 * spw_plan_scopes() recomputes nothing, and meets a budget with the fewest bytes written
	 */
	bool unthrottled;
};
SPW_ABI(struct spw_plan_scopes, unthrottled, 56, 64);

enum spw_plan_span_kind {
	SPW_PLAN_SPAN_WRITE,
	SPW_PLAN_SPAN_READ,
	SPW_PLAN_SPAN_AGAIN,
	SPW_PLAN_SPAN_WAIT, /* compute waits for a read, or for memory */
};

/* Times are wall time; which: index of the tensor, or of the recomputed scope. */
struct spw_plan_span {
	uint64_t begin_ns, end_ns;
	enum spw_plan_span_kind kind;
	uint32_t which;
	uint32_t reserved[2];
};
SPW_ABI(struct spw_plan_span, reserved, 24, 32);

/* What a simulation records over time. Set pointers to NULL for parts that are not needed. */
struct spw_plan_record {
	struct spw_plan_point *points;
	size_t points_max;
	struct spw_plan_span *spans; /* SPW_PLAN_SPANS_PER_TENSOR x tensors + scopes suffice */
	size_t spans_max;
	/* wall time at which each tensor was saved, for the last time if it is recomputed */
	uint64_t *saved_ns;
	uint64_t reserved[3];
};
SPW_ABI(struct spw_plan_record, reserved, 40, 64);

#define SPW_PLAN_SPANS_PER_TENSOR 5u

/**
 * spw_plan_scopes_init - set the defaults
 * @scopes:  set
 * @size:    sizeof *@scopes
 */
SPW_EXPORT void spw_plan_scopes_init(struct spw_plan_scopes *scopes, size_t size);

/**
 * spw_plan_scopes - choose for each tensor whether to keep, spill or recompute it
 * @step:     the measured step
 * @drives:   the measured drives
 * @scopes:   what may be recomputed, and other traffic on the drives
 * @opts:     SPW_PLAN_FASTEST: the lowest peak within the slack; SPW_PLAN_BUDGET: the shortest step
 *            whose peak fits memory_bytes; neither writes more than bytes_written_max. NULL for the
 *            defaults
 * @choices:  step->count of them, set on success
 * @result:   set to the simulated result; its size field must be set
 *
 * Unlike in spw_plan(), compute is throttled, unless @scopes says otherwise: before it saves a
 * tensor that would exceed result->memory_bytes it waits, as long as bytes are leaving memory. Thus
 * a budget can be met even if the drives are slower than compute, and a forward pass that is faster
 * than planned keeps to the plan (hold_until_ns).
 *
 * If nothing may be recomputed and the drives have no other traffic, the peak of SPW_PLAN_FASTEST
 * is at most that of spw_plan().
 *
 * Return: 0; -EINVAL as spw_plan(), or a scope or a flow is invalid; -ENOMEM.
 */
SPW_EXPORT int spw_plan_scopes(const struct spw_plan_step *step,
			       const struct spw_plan_drives *drives,
			       const struct spw_plan_scopes *scopes,
			       const struct spw_plan_opts *opts, enum spw_plan_choice choices[],
			       struct spw_plan_result *result);

/**
 * spw_plan_scopes_simulate - simulate given choices
 * @step:          the measured step
 * @drives:        the measured drives
 * @scopes:        what may be recomputed, and other traffic on the drives
 * @memory_bytes:  the limit for compute and prefetching
 * @choices:       step->count of them
 * @record:        what happens over time; or NULL
 * @result:        set; its size field must be set
 *
 * A scope is recomputed if the choice of one of its tensors is SPW_PLAN_AGAIN; then all of its
 * tensors that may be discarded are.
 *
 * Return: 0; -EINVAL; -ENOMEM.
 */
SPW_EXPORT int spw_plan_scopes_simulate(const struct spw_plan_step *step,
					const struct spw_plan_drives *drives,
					const struct spw_plan_scopes *scopes, uint64_t memory_bytes,
					const enum spw_plan_choice choices[],
					const struct spw_plan_record *record,
					struct spw_plan_result *result);

enum spw_plan_way {
	SPW_PLAN_WAY_KEEP,
	SPW_PLAN_WAY_SPILL,
	SPW_PLAN_WAY_AGAIN,         /* recomputed, its input kept */
	SPW_PLAN_WAY_AGAIN_SPILLED, /* recomputed, its input spilled */
	SPW_PLAN_WAYS,
};

/* The step if one scope were handled in another way, and all others as planned. */
struct spw_plan_other_way {
	bool possible;
	bool fits; /* peak_bytes is within the memory limit */
	uint64_t wall_ns, peak_bytes;
	uint64_t reserved[1];
};
SPW_ABI(struct spw_plan_other_way, reserved, 24, 32);

struct spw_plan_reason {
	enum spw_plan_way way; /* as planned */
	/* of the scope's tensors and its input, as planned */
	uint64_t bytes_kept, bytes_spilled, bytes_again;
	enum spw_plan_way next; /* the best alternative; SPW_PLAN_WAYS: there is none */
	/*
	 * the step with all of the scope handled in each way; for the planned way, the step as
	 * planned
	 */
	struct spw_plan_other_way ways[SPW_PLAN_WAYS];
	uint64_t bytes_host; /* of those spilled: they stay in host memory */
	uint64_t reserved[1];
};
SPW_ABI(struct spw_plan_reason, reserved, 176, 184);

/**
 * spw_plan_explain - explain for each scope what the plan does and what the alternatives would cost
 * @step:          the measured step
 * @drives:        the measured drives
 * @scopes:        as for spw_plan_scopes()
 * @memory_bytes:  result->memory_bytes of the plan
 * @choices:       of the plan
 * @reasons:       scopes->count of them, set on success
 *
 * Simulates up to four steps for each scope. The step may have been measured again since it was
 * planned: a tensor that it can no longer recompute, or spill, counts as kept.
 *
 * Return: 0; -EINVAL; -ENOMEM.
 */
SPW_EXPORT int spw_plan_explain(const struct spw_plan_step *step,
				const struct spw_plan_drives *drives,
				const struct spw_plan_scopes *scopes, uint64_t memory_bytes,
				const enum spw_plan_choice choices[],
				struct spw_plan_reason reasons[]);

#ifdef __cplusplus
}
#endif
#endif
