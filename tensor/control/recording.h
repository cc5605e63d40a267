/* SPDX-License-Identifier: MIT */
/* tensor/control/recording.h - a step's scopes and tensors, and the times of each */
#ifndef SPW_TENSOR_CONTROL_RECORDING_H
#define SPW_TENSOR_CONTROL_RECORDING_H

#include "tensor/control/internal.h"

int spw_control__recording_open(struct control *control);
void spw_control__recording_close(struct control *control);
/* Compute time of this step: a device's, where that is known, and else the host's. */
uint64_t spw_control__recording_compute_ns(const struct control *control);
uint64_t spw_control__recording_host_ns(const struct control *control);
/* The same if nothing had been skipped: recorded times are of this kind. */
uint64_t spw_control__recording_whole_ns(const struct control *control);
void spw_control__recording_begin(struct control *control);
void spw_control__recording_end(struct control *control);
/* The time of an event: later than that of the one before, so that the planner sees their order. */
uint64_t spw_control__recording_event_ns(struct control *control);
/* Return: its number, or NO_SCOPE. */
uint32_t spw_control__recording_scope(struct control *control, uint64_t key);
/* Return: the scope that has been left, or NO_SCOPE. */
uint32_t spw_control__recording_leave(struct control *control, uint32_t outer);
/*
 * Whether the tensor helps to recognize the step. The input of a recompute does not: whether it is
 * offered depends on how long the plan has other entries keep it.
 */
static inline bool spw_control__has_place(const struct recorded *recorded)
{
	return recorded->plannable && !recorded->only_input;
}

/* The tensor's record in this step, or NULL. */
static inline struct recorded *spw_control__recording_of(const struct control *control,
							 const struct track *track)
{
	if (!control->recording || track->recorded == NO_TENSOR || track->step != control->step)
		return NULL;
	return &control->now.tensors[track->recorded];
}
/* Time of this step that takes have waited for I/O. */
static inline uint64_t spw_control__stalled_ns(const struct control *control)
{
	/* A wait for writes may have begun in the step before. */
	return control->waited_ns - SPW_MIN(control->throttled_ns, control->waited_ns);
}
/* Whether a plan may spill a tensor that is offered now. */
static inline bool spw_control__may_plan(const struct control *control, uint64_t bytes)
{
	return control->stage == SPW_STAGE_FORWARD && bytes >= control->opts.cache.min_bytes;
}
struct recorded *spw_control__recording_offer(struct control *control, struct track *track,
					      uint32_t slot, uint64_t bytes,
					      enum spw_cache_hint hint);
void spw_control__recording_take(struct control *control, struct recorded *recorded);
void spw_control__recording_release(struct control *control, struct recorded *recorded);
/* Something was saved in the present scope; @recorded as the input that it is recomputed from. */
void spw_control__recording_saved(struct control *control);
void spw_control__recording_input(struct control *control, struct recorded *recorded);
/* Compute time stands still from now; runs again, if no other reason is left. */
void spw_control__recording_away(struct control *control, bool away, uint64_t now_ns);

#endif
