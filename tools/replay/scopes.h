/* SPDX-License-Identifier: MIT */
/*
 * tools/replay/scopes.h - the scopes of a recorded step, in the planner's form
 *
 * A scope of the forward pass may be recomputed from its first large tensor, up to its last save.
 * Tensors that other scopes save too stay in memory.
 */
#ifndef SPW_TOOLS_REPLAY_SCOPES_H
#define SPW_TOOLS_REPLAY_SCOPES_H

#include <stdint.h>

#include <spillway/plan.h>

#include "tools/replay/step.h"

enum replay_scopes_level {
	REPLAY_SCOPES_INNER, /* scopes without inner scopes, such as the halves of layers */
	/* outermost scopes, such as layers; recomputed as a whole, to their end */
	REPLAY_SCOPES_OUTER,
};

struct replay_scopes {
	struct spw_plan_step step;
	struct spw_plan_tensor *tensors;
	struct spw_plan_scopes scopes;
	struct spw_plan_scope *own;
	uint64_t *leave_ns;    /* by scope: its end in the forward pass */
	uint64_t *saved_bytes; /* by scope */
	uint32_t *micro_batch; /* by scope */
};

/* Make the scopes. @min_bytes: smaller tensors always stay in memory. Return: 0; -ENOMEM. */
int replay_scopes_make(const struct replay_step *step, uint64_t min_bytes,
		       enum replay_scopes_level level, struct replay_scopes *made);
void replay_scopes_free(struct replay_scopes *made);

#endif
