/* SPDX-License-Identifier: MIT */
/* tensor/control/budget.h - whether steps meet their budget, and why not */
#ifndef SPW_TENSOR_CONTROL_BUDGET_H
#define SPW_TENSOR_CONTROL_BUDGET_H

#include "tensor/control/internal.h"

/* A plan is within the budget; a headroom may have asked for less, and not have got that. */
bool spw_control__budget_fits(const struct control *control, const struct plan *plan);
/* A step has ended. @planned: a plan was in force when it began; @followed: to the end */
void spw_control__budget_step_ended(struct control *control, bool planned, bool followed);

#endif
