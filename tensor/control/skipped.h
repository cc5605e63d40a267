/* SPDX-License-Identifier: MIT */
/*
 * tensor/control/skipped.h - scopes of the reference that a step skips, as layers dropped at random
 */
#ifndef SPW_TENSOR_CONTROL_SKIPPED_H
#define SPW_TENSOR_CONTROL_SKIPPED_H

#include "tensor/control/internal.h"

/* A step begins. @off: record it as it is, without what it skips. */
void spw_control__skipped_begin(struct control *control, bool off);
/* The step has switched to another signature: find what it has skipped of that so far. */
void spw_control__skipped_switched(struct control *control);
/* Whether it has skipped scopes of the reference, or has run others. */
bool spw_control__skipped_differs(const struct control *control);
/* A scope is entered: skip those before it in the reference. Return: its number there. */
uint32_t spw_control__skipped_before(struct control *control, uint64_t key);
/* A tensor of @bytes with a place is about to be offered: skip what the scope lacks before it. */
void spw_control__skipped_missing(struct control *control, uint64_t bytes);
/* The scope, or stage, is about to be left: skip what it lacks. */
void spw_control__skipped_rest(struct control *control, uint32_t scope);
/* A tensor with a place has been offered; is about to be taken. */
void spw_control__skipped_offered(struct control *control, struct recorded *recorded);
void spw_control__skipped_taken(struct control *control, const struct recorded *recorded);
/* Return: the skipped one that @recorded, the last one so far, turns out to be; or NULL. */
struct recorded *spw_control__skipped_shared(struct control *control, struct track *track,
					     struct recorded *recorded);
void spw_control__skipped_end(struct control *control);
/* Add the time that the passes would have taken with what was skipped. */
void spw_control__skipped_fill(struct control *control);
/* At the end of a step: whether most of what it ran is as in the reference. */
bool spw_control__skipped_fits(const struct control *control);

#endif
