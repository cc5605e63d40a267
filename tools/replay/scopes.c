/* SPDX-License-Identifier: MIT */
/* tools/replay/scopes.c - make the planner's scopes from a recorded step's events */
#include "tools/replay/scopes.h"

#include <errno.h>
#include <stdlib.h>

#include "util/util.h"

/* Special values of a tensor or scope index. */
#define NONE     UINT32_MAX
#define NOT_SEEN (UINT32_MAX - 1)
#define NESTED   (UINT32_MAX - 1)

struct making {
	const struct replay_step *step;
	struct replay_scopes *made;
	uint64_t min_bytes;
	enum replay_scopes_level level;
	/* the open scopes; NONE: a scope that counts as part of the enclosing one */
	uint32_t *open;
	uint32_t depth;
	bool backward;
	uint32_t micro_batch;
};

static uint32_t innermost(const struct making *making)
{
	return making->depth > 0 ? making->open[making->depth - 1] : NONE;
}

static void enter(struct making *making, uint64_t ns)
{
	struct replay_scopes *made = making->made;
	uint32_t around = innermost(making), s = around;

	if (!making->backward && (making->level == REPLAY_SCOPES_INNER || making->depth == 0)) {
		s = made->scopes.count++;
		made->own[s] = (struct spw_plan_scope){.enter_ns = ns, .input = NONE};
		made->micro_batch[s] = making->micro_batch;
		/* A scope with inner scopes is not recomputed itself. */
		if (around != NONE)
			made->own[around].input = NESTED;
	}
	making->open[making->depth++] = s;
}

static void leave(struct making *making, uint64_t ns)
{
	struct replay_scopes *made = making->made;
	uint32_t s = innermost(making);

	if (making->depth == 0)
		return;
	making->depth--;
	if (s == NONE || innermost(making) == s)
		return;
	made->leave_ns[s] = ns;
	if (making->level == REPLAY_SCOPES_OUTER)
		made->own[s].again_ns = ns - made->own[s].enter_ns;
}

static void offer(struct making *making, const struct replay_op *op)
{
	struct replay_scopes *made = making->made;
	struct spw_plan_tensor *tensor = &made->tensors[op->tensor];
	uint32_t s = innermost(making);

	if (!making->step->tensors[op->tensor].in_backward && tensor->pack_ns == op->ns &&
	    tensor->scope == NOT_SEEN) {
		tensor->scope = s;
		if (s != NONE)
			made->saved_bytes[s] += tensor->bytes;
	} else if (tensor->scope != s) {
		tensor->not_again = true;
	}
	if (s == NONE || making->backward)
		return;
	if (made->own[s].input == NONE && tensor->bytes >= making->min_bytes)
		made->own[s].input = op->tensor;
	if (making->level == REPLAY_SCOPES_INNER)
		made->own[s].again_ns = op->ns - made->own[s].enter_ns;
}

static void go_through(struct making *making)
{
	const struct replay_step *step = making->step;

	for (uint32_t k = 0; k < step->ops_count; k++) {
		const struct replay_op *op = &step->ops[k];

		switch (op->event->kind) {
		case SPW_TRACE_STAGE:
			making->backward = op->event->backward;
			making->micro_batch = op->event->micro_batch;
			break;
		case SPW_TRACE_SCOPE_ENTER: enter(making, op->ns); break;
		case SPW_TRACE_SCOPE_LEAVE: leave(making, op->ns); break;
		case SPW_TRACE_OFFER: offer(making, op); break;
		case SPW_TRACE_TAKE:
		case SPW_TRACE_STEP:
		case SPW_TRACE_RETURN:
		case SPW_TRACE_RELEASE:
		case SPW_TRACE_HOLD:
		case SPW_TRACE_AGAIN: break;
		}
	}
}

int replay_scopes_make(const struct replay_step *step, uint64_t min_bytes,
		       enum replay_scopes_level level, struct replay_scopes *made)
{
	struct making making = {.step = step, .made = made, .min_bytes = min_bytes, .level = level};
	size_t count = step->ops_count;

	*made = (struct replay_scopes){0};
	spw_plan_scopes_init(&made->scopes, sizeof(made->scopes));
	made->tensors = calloc(step->tensors_count, sizeof(*made->tensors));
	made->own = calloc(count, sizeof(*made->own));
	made->leave_ns = calloc(count, sizeof(*made->leave_ns));
	made->saved_bytes = calloc(count, sizeof(*made->saved_bytes));
	made->micro_batch = calloc(count, sizeof(*made->micro_batch));
	making.open = calloc(count, sizeof(*making.open));
	if (!made->tensors || !made->own || !made->leave_ns || !made->saved_bytes ||
	    !made->micro_batch || !making.open) {
		free(making.open);
		replay_scopes_free(made);
		return spw_error(-ENOMEM, "no memory for the scopes of %zu events", count);
	}
	replay_step_plan(step, min_bytes, made->tensors, &made->step);
	for (uint32_t i = 0; i < step->tensors_count; i++)
		made->tensors[i].scope = NOT_SEEN;
	go_through(&making);
	free(making.open);
	made->scopes.scopes = made->own;
	for (uint32_t s = 0; s < made->scopes.count; s++)
		made->own[s].may_again = made->own[s].input < step->tensors_count;
	return 0;
}

void replay_scopes_free(struct replay_scopes *made)
{
	free(made->tensors);
	free(made->own);
	free(made->leave_ns);
	free(made->saved_bytes);
	free(made->micro_batch);
	*made = (struct replay_scopes){0};
}
