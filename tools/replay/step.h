/* SPDX-License-Identifier: MIT */
/*
 * tools/replay/step.h - struct replay_step: a training step of a trace, to be replayed or planned
 *
 * Its times are compute time: time in the trace, minus waits for I/O, divided by the speed. A step
 * lasts from its step event to the next one, or to the end of the trace.
 */
#ifndef SPW_TOOLS_REPLAY_STEP_H
#define SPW_TOOLS_REPLAY_STEP_H

#include <stdbool.h>
#include <stdint.h>

#include <spillway/plan.h>
#include <spillway/trace.h>

/* One call of the cache. Tensors and contents are numbered from 0 on within the step. */
struct replay_op {
	uint64_t ns; /* since the step began */
	const struct spw_trace_event *event;
	uint32_t tensor, content;
	uint64_t offset_bytes, len_bytes; /* range of offers and takes, scaled */
	uint64_t kept_bytes;              /* in memory afterwards if all is kept */
};

/* The content of a storage between two modifications. */
struct replay_content {
	uint64_t version;   /* as in the trace */
	uint64_t len_bytes; /* scaled */
};

struct replay_tensor {
	uint32_t content;
	uint64_t bytes; /* bytes stored for it: of the offered part, or the whole storage */
	uint64_t pack_ns, use_ns, release_ns;
	uint32_t takes;
	uint32_t scope;   /* number of the interval between scope events in which it was offered */
	bool in_backward; /* offered in the backward pass: always kept */
	enum spw_trace_hint hint;
};

struct replay_step {
	uint32_t number; /* in the trace, from 1 on */
	struct replay_op *ops;
	uint32_t ops_count;
	struct replay_tensor *tensors;
	uint32_t tensors_count;
	struct replay_content *contents;
	uint32_t contents_count;
	uint64_t compute_ns; /* time of the whole step if I/O takes no time */
	/* begin of the first micro-batch's backward pass; compute_ns: there is none */
	uint64_t backward_ns;
	uint64_t saved_bytes;    /* of all tensors */
	uint64_t keep_all_bytes; /* peak if everything is kept */
	uint64_t scope_bytes;    /* bytes stored for the largest scope */
	uint64_t small_bytes;    /* sum of the tensors that are too small to be spilled */
};

struct replay_step_opts {
	uint32_t number;    /* which step of the trace; 0: the last */
	double speed;       /* compute is this many times faster */
	double scale;       /* tensors are this many times as large */
	uint64_t min_bytes; /* smaller tensors, before scaling, are never spilled */
};

/* Scale a size of the trace. */
uint64_t replay_scaled(uint64_t bytes, double scale);

/* Make a step. The trace must outlive it. Return: 0; -EINVAL nothing to replay; -ENOMEM. */
int replay_step_make(const struct spw_trace *trace, const struct replay_step_opts *opts,
		     struct replay_step *step);
void replay_step_free(struct replay_step *step);

/*
 * Make the planner's form of a step. @tensors: array of tensors_count. @min_bytes: least size of
 * spillable tensors, scaled
 */
void replay_step_plan(const struct replay_step *step, uint64_t min_bytes,
		      struct spw_plan_tensor tensors[], struct spw_plan_step *plan);

#endif
