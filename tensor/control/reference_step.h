/* SPDX-License-Identifier: MIT */
/* tensor/control/reference_step.h - the step that plans are made from, smoothed over equal steps */
#ifndef SPW_TENSOR_CONTROL_REFERENCE_STEP_H
#define SPW_TENSOR_CONTROL_REFERENCE_STEP_H

#include "tensor/control/internal.h"

/*
 * How far the end of any scope has moved at most, as a part of the step. @from_plan: since the
 * plan.
 */
double spw_control__reference_drift(const struct recording *now, const struct recording *reference,
				    bool from_plan);
/* The step was like the reference: smooth its figures into it. */
void spw_control__reference_merge(struct recording *reference, const struct recording *now);
/* It was different: it becomes the reference. */
void spw_control__reference_replace(struct recording *reference, struct recording *now);
/* A plan has been made from it. */
void spw_control__reference_planned(struct recording *reference);
/* Whether the caller discards other tensors than when the plan was made. */
bool spw_control__reference_redecided(const struct recording *reference);
/*
 * The tensor of the reference at the same place; for one without a place, the input that the scope
 * is recomputed from. Or NO_TENSOR.
 */
uint32_t spw_control__reference_place(const struct recording *reference,
				      const struct recorded *recorded);
/* Whether all that has been recorded so far is as in the reference. */
bool spw_control__reference_begins_like(const struct recording *now,
					const struct recording *reference);
/* Whether the whole step is. */
bool spw_control__reference_is_like(const struct recording *now, const struct recording *reference);

/*
 * Find a scope in the reference, from @from, in the current stage. A stage is a scope with key 0.
 */
uint32_t spw_control__reference_find(const struct recording *reference, uint32_t from,
				     const struct recorded_scope *scope);
/*
 * Whether both steps skip scopes of one model: most of what this one ran is in the reference.
 */
bool spw_control__reference_is_kin(const struct recording *now, const struct recording *reference);

#endif
