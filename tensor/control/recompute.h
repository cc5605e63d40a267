/* SPDX-License-Identifier: MIT */
/*
 * tensor/control/recompute.h - plans of scopes: what the planner is asked, and what becomes of it
 */
#ifndef SPW_TENSOR_CONTROL_RECOMPUTE_H
#define SPW_TENSOR_CONTROL_RECOMPUTE_H

#include "tensor/control/internal.h"

/* Whether the scope can be recomputed, as far as the caller has said. */
bool spw_control__recompute_scope_may(const struct recorded_scope *scope);
/* Whether some scope of the reference can. */
bool spw_control__recompute_may(const struct recording *reference);
/* As the planner takes them, in asked->scopes. */
struct spw_plan_scopes spw_control__recompute_scopes(struct asked *asked);
/* Schedule the reads of what is spilled. */
int spw_control__recompute_schedule(struct asked *asked, const struct spw_plan_step *step,
				    struct plan *plan);

#endif
