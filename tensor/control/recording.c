/* SPDX-License-Identifier: MIT */
/* tensor/control/recording.c - a step's scopes and tensors, and the times of each */
#include <errno.h>
#include <stdlib.h>

#include "tensor/control/device_clock.h"
#include "tensor/control/internal.h"
#include "tensor/control/recording.h"

#define SCOPES_MIN 8192u
/* One between any two events of tensors, and two for each scope. */
#define DRAINS_MAX(tensors, scopes) (3 * (size_t)(tensors) + 2 * (size_t)(scopes))
/* Closer to a tensor's event it says nothing: the plan takes for granted that one follows. */
#define DRAIN_APART_NS 1000u

/* ---- Memory ---- */

static int recording_open(struct recording *recording, uint32_t tensors, uint32_t scopes)
{
	recording->tensors = calloc(tensors, sizeof(*recording->tensors));
	recording->scopes = calloc(scopes, sizeof(*recording->scopes));
	recording->members = calloc(tensors, sizeof(*recording->members));
	recording->drains_ns = calloc(DRAINS_MAX(tensors, scopes), sizeof(*recording->drains_ns));
	return recording->tensors && recording->scopes && recording->members && recording->drains_ns
		       ? 0
		       : -ENOMEM;
}

static void recording_close(struct recording *recording)
{
	free(recording->tensors);
	free(recording->scopes);
	free(recording->members);
	free(recording->drains_ns);
}

static int plan_open(struct plan *plan, uint32_t tensors)
{
	plan->choices = calloc(tensors, sizeof(*plan->choices));
	plan->read_from_ns = calloc(tensors, sizeof(*plan->read_from_ns));
	plan->throttle_ns = calloc(tensors, sizeof(*plan->throttle_ns));
	plan->copied_ns = calloc(tensors, sizeof(*plan->copied_ns));
	plan->use_ns = calloc(tensors, sizeof(*plan->use_ns));
	plan->use_order = calloc(tensors, sizeof(*plan->use_order));
	return plan->choices && plan->read_from_ns && plan->throttle_ns && plan->copied_ns &&
			       plan->use_ns && plan->use_order
		       ? 0
		       : -ENOMEM;
}

static void plan_close(struct plan *plan)
{
	free(plan->choices);
	free(plan->read_from_ns);
	free(plan->throttle_ns);
	free(plan->copied_ns);
	free(plan->use_ns);
	free(plan->use_order);
}

static int signature_open(struct signature *signature, uint32_t tensors, uint32_t scopes)
{
	int rc = plan_open(&signature->plan, tensors);

	return rc ? rc : recording_open(&signature->reference, tensors, scopes);
}

/* Of the planner. */
static int asked_open(struct asked *asked, uint32_t tensors, uint32_t scopes)
{
	asked->tensors = calloc(tensors, sizeof(*asked->tensors));
	asked->scopes = calloc(scopes, sizeof(*asked->scopes));
	return asked->tensors && asked->scopes ? 0 : -ENOMEM;
}

int spw_control__recording_open(struct control *control)
{
	uint32_t count = control->opts.cache.tensors_max;
	int rc;

	control->tensors_max = count;
	control->scopes_max = count > SCOPES_MIN ? count : SCOPES_MIN;
	control->slots = calloc(count, sizeof(*control->slots));
	rc = asked_open(&control->asked, count, control->scopes_max);
	if (rc == 0)
		rc = plan_open(&control->draft, count);
	if (rc == 0)
		rc = recording_open(&control->now, count, control->scopes_max);
	for (unsigned i = 0; i < SIGNATURES_MAX && rc == 0; i++)
		rc = signature_open(&control->signatures[i], count, control->scopes_max);
	control->skipping.tensors = calloc(count, sizeof(*control->skipping.tensors));
	control->skipping.here = calloc(count, sizeof(*control->skipping.here));
	if (rc || !control->slots || !control->skipping.tensors || !control->skipping.here)
		return spw_error(-ENOMEM, "no memory to record %u tensors: lower tensors_max",
				 count);
	return 0;
}

void spw_control__recording_close(struct control *control)
{
	for (unsigned i = 0; i < SIGNATURES_MAX; i++) {
		struct signature *signature = &control->signatures[i];

		recording_close(&signature->reference);
		plan_close(&signature->plan);
	}
	recording_close(&control->now);
	plan_close(&control->draft);
	free(control->asked.tensors);
	free(control->asked.scopes);
	free(control->slots);
	free(control->skipping.tensors);
	free(control->skipping.here);
}

/* ---- Time ---- */

uint64_t spw_control__recording_host_ns(const struct control *control)
{
	uint64_t until_ns = control->away > 0 ? control->away_since_ns : control_clock_ns(control);
	uint64_t wall_ns = until_ns - control->began_ns;

	if (wall_ns < control->compute_ns_min + control->away_ns)
		return control->compute_ns_min;
	return wall_ns - control->away_ns;
}

uint64_t spw_control__recording_compute_ns(const struct control *control)
{
	uint64_t now_ns =
		spw_control__device_clock_ns(control, spw_control__recording_host_ns(control));

	/* Another signature, to which the step has turned out to belong, may be faster. */
	return SPW_MAX(now_ns, control->charged_ns);
}

uint64_t spw_control__recording_whole_ns(const struct control *control)
{
	return spw_control__recording_compute_ns(control) + control->skipping.added_ns;
}

void spw_control__recording_away(struct control *control, bool away, uint64_t now_ns)
{
	SPW_ASSERT(away || control->away > 0);
	if (away && control->away++ == 0)
		control->away_since_ns = now_ns;
	if (!away && --control->away == 0)
		control->away_ns += now_ns - control->away_since_ns;
}

uint64_t spw_control__recording_event_ns(struct control *control)
{
	uint64_t now_ns = spw_control__recording_whole_ns(control);

	if (now_ns <= control->event_ns)
		now_ns = control->event_ns + 1;
	control->event_ns = now_ns;
	return now_ns;
}

void spw_control__drained(struct control *control)
{
	struct recording *now = &control->now;

	/* Without one that has no room the plan expects memory back a little later. */
	if (control->recording &&
	    now->drains < DRAINS_MAX(control->tensors_max, control->scopes_max) &&
	    spw_control__recording_whole_ns(control) >= control->event_ns + DRAIN_APART_NS)
		now->drains_ns[now->drains++] = spw_control__recording_event_ns(control);
}

/* The time since this was last called goes to the scope that was the innermost. */
static void charge(struct control *control, uint64_t now_ns)
{
	uint64_t ns = now_ns - control->charged_ns;

	control->charged_ns = now_ns;
	if (control->scope == NO_SCOPE)
		return;
	control->now.scopes[control->scope].compute_ns += ns;
	if (control->now.scopes[control->scope].stage == SPW_STAGE_FORWARD)
		control->now.forward_ns += ns;
	else
		control->now.backward_ns += ns;
}

void spw_control__recording_begin(struct control *control)
{
	struct recording *now = &control->now;

	control->began_ns = control->opts.clock_ns();
	control->waited_ns = control->throttled_ns = control->compute_ns_min = 0;
	control->out_ns = 0;
	control->recompute_ns = control->away_ns = 0;
	/* of what is still at it */
	control->waiting_since_ns = control->began_ns;
	control->recompute_since_ns = control->away_since_ns = control->began_ns;
	control->charged_ns = control->event_ns = 0;
	spw_control__device_clock_begin(control);
	control->scope = control->stage_scope = NO_SCOPE;
	control->peak_bytes = control->old_bytes = control->memory_bytes;
	control->peak_writing_bytes = 0;
	control->recording = control->records;
	now->count = now->scope_count = now->plannable = now->drains = 0;
	now->forward_ns = now->backward_ns = now->takes = 0;
	now->is_truncated = false;
}

void spw_control__recording_end(struct control *control)
{
	uint64_t now_ns;

	if (!control->recording)
		return;
	spw_control__device_clock_end(control, spw_control__recording_host_ns(control));
	charge(control, spw_control__recording_compute_ns(control));
	now_ns = spw_control__recording_event_ns(control);
	for (uint32_t i = 0; i < control->now.count; i++)
		if (!control->now.tensors[i].released)
			control->now.tensors[i].release_ns = now_ns;
	control->recording = false;
}

/* ---- Scopes ---- */

uint32_t spw_control__recording_scope(struct control *control, uint64_t key)
{
	struct recording *now = &control->now;
	uint64_t enter_ns;
	uint32_t depth;

	if (!control->recording)
		return NO_SCOPE;
	charge(control, spw_control__recording_compute_ns(control));
	enter_ns = spw_control__recording_whole_ns(control);
	if (control->scope != NO_SCOPE && control->scope != control->stage_scope)
		now->scopes[control->scope].has_scopes = true;
	if (now->scope_count == control->scopes_max) {
		now->is_truncated = true;
		return NO_SCOPE;
	}
	depth = key == 0 || control->scope == NO_SCOPE ? 0 : now->scopes[control->scope].depth + 1;
	now->scopes[now->scope_count] = (struct recorded_scope){.key = key,
								.depth = depth,
								.enter_ns = enter_ns,
								.saved_ns = enter_ns,
								.input = NO_TENSOR,
								.matched = NO_SCOPE,
								.micro_batch = control->micro_batch,
								.stage = (uint8_t)control->stage};
	control->scope = now->scope_count++;
	return control->scope;
}

uint32_t spw_control__recording_leave(struct control *control, uint32_t outer)
{
	uint32_t left = NO_SCOPE;

	if (!control->recording)
		return NO_SCOPE;
	charge(control, spw_control__recording_compute_ns(control));
	if (control->scope != NO_SCOPE && control->scope != control->stage_scope) {
		left = control->scope;
		control->now.scopes[left].left = true;
	}
	control->scope = outer != NO_SCOPE ? outer : control->stage_scope;
	return left;
}

/* ---- Tensors ---- */

struct recorded *spw_control__recording_offer(struct control *control, struct track *track,
					      uint32_t slot, uint64_t bytes,
					      enum spw_cache_hint hint)
{
	struct recording *now = &control->now;
	struct recorded *recorded;

	track->recorded = NO_TENSOR;
	if (!control->recording)
		return NULL;
	if (now->count == control->tensors_max || control->scope == NO_SCOPE) {
		now->is_truncated = true;
		return NULL;
	}
	recorded = &now->tensors[now->count];
	*recorded =
		(struct recorded){.bytes = bytes,
				  .pack_ns = spw_control__recording_event_ns(control),
				  .scope = control->scope,
				  .matched = NO_TENSOR,
				  .slot = slot,
				  .hint = (uint8_t)(hint <= SPW_HINT_PIN ? hint : SPW_HINT_NONE),
				  .plannable = spw_control__may_plan(control, bytes),
				  .only_input = hint == SPW_HINT_INPUT};
	recorded->decided = recorded->plannable && hint == SPW_HINT_GIVE_UP;
	track->recorded = now->count++;
	return recorded;
}

void spw_control__recording_take(struct control *control, struct recorded *recorded)
{
	if (recorded->takes++ == 0)
		recorded->use_ns = spw_control__recording_event_ns(control);
	control->now.takes++;
}

void spw_control__recording_release(struct control *control, struct recorded *recorded)
{
	recorded->released = true;
	recorded->release_ns = spw_control__recording_event_ns(control);
}

/* ---- Recompute ---- */

void spw_control__recording_saved(struct control *control)
{
	if (control->recording && control->scope != NO_SCOPE)
		control->now.scopes[control->scope].saved_ns =
			spw_control__recording_whole_ns(control);
}

/* The largest is what the plan knows of; the others it must not give up. */
void spw_control__recording_input(struct control *control, struct recorded *recorded)
{
	struct recorded *tensors = control->now.tensors;
	struct recorded_scope *scope;
	uint32_t which = (uint32_t)(recorded - tensors);

	if (control->scope == NO_SCOPE || control->scope == control->stage_scope)
		return;
	scope = &control->now.scopes[control->scope];
	recorded->is_input = true;
	if (scope->input == NO_TENSOR || tensors[scope->input].bytes < recorded->bytes) {
		if (scope->input != NO_TENSOR)
			tensors[scope->input].no_recompute = true;
		scope->input = which;
	} else if (scope->input != which) {
		recorded->no_recompute = true;
	}
}
