/* SPDX-License-Identifier: MIT */
/*
 * tensor/control/plan_cursor.h - a plan is carried out: how far the step is, and what is read next
 */
#ifndef SPW_TENSOR_CONTROL_PLAN_CURSOR_H
#define SPW_TENSOR_CONTROL_PLAN_CURSOR_H

#include "tensor/control/internal.h"

/* A step begins: follow the plan from its beginning. */
void spw_control__cursor_begin(struct control *control);
/* The tensor is only the input of a scope. */
void spw_control__cursor_input(struct control *control, struct recorded *recorded);
/* Return: how the step differs from the planned one; NULL: it does not, or there is no plan. */
const char *spw_control__cursor_scope(struct control *control, uint32_t number);
const char *spw_control__cursor_scope_left(const struct control *control, uint32_t number);
const char *spw_control__cursor_offer(struct control *control, struct recorded *recorded);
void spw_control__cursor_progress(struct control *control, uint64_t planned_ns);
/* A tensor of the reference is skipped; one that was skipped is offered by another scope. */
void spw_control__cursor_skipped(struct control *control, uint32_t which);
void spw_control__cursor_shared(struct control *control, const struct recorded *recorded);

/* The next tensor of this scope, if it was this save and as long, and the plan keeps it. */
uint32_t spw_control__cursor_kept(const struct control *control, uint64_t number,
				  uint64_t len_bytes);

#endif
