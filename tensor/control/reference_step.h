/* SPDX-License-Identifier: MIT */
/* tensor/control/reference_step.h - the step that plans are made from, smoothed over equal steps */
#ifndef SPW_TENSOR_CONTROL_REFERENCE_STEP_H
#define SPW_TENSOR_CONTROL_REFERENCE_STEP_H

#include "tensor/control/internal.h"

/* The most that the end of any scope has moved, in parts of all. @from_plan: since the plan. */
double spw_control__reference_drift(const struct recording *now, const struct recording *reference,
				    bool from_plan);
/* The step was like the reference: its figures are smoothed into it. */
void spw_control__reference_merge(struct recording *reference, const struct recording *now);
/* It was another: it becomes the reference itself. */
void spw_control__reference_replace(struct recording *reference, struct recording *now);
/* A plan has been made of it. */
void spw_control__reference_planned(struct recording *reference);
/*
 * The tensor of the reference at the same place; for one without a place, the input that the scope
 * is recomputed from. Or NO_TENSOR.
 */
uint32_t spw_control__reference_place(const struct recording *reference,
				      const struct recorded *recorded);
/* All that has been recorded so far is as in the reference. */
bool spw_control__reference_begins_like(const struct recording *now,
					const struct recording *reference);
/* And it is all of it. */
bool spw_control__reference_is_like(const struct recording *now, const struct recording *reference);

/*
 * The scope of the reference from @from on, in the present stage; a stage itself is one with key 0.
 */
uint32_t spw_control__reference_find(const struct recording *reference, uint32_t from,
				     const struct recorded_scope *scope);
/*
 * Both are of steps that skip scopes of one model: most of what this one ran is in the reference.
 */
bool spw_control__reference_is_kin(const struct recording *now, const struct recording *reference);

#endif
