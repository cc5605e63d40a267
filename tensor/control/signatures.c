/* SPDX-License-Identifier: MIT */
/*
 * tensor/control/signatures.c - several signatures of step, each with a plan
 *
 * A step that shows not to be of the signature in force goes on by the plan of another one that is
 * like all of it so far, if nothing that this one would keep has left memory. Each signature
 * remembers which one came next. The one that was not in force for the longest time makes room for
 * a new one.
 *
 * Steps that skip scopes of one model, each others, are of no end of signatures: the third becomes
 * one that varies, together with those before it (see skipped.c).
 */
#include "tensor/control/internal.h"
#include "tensor/control/plan_cursor.h"
#include "tensor/control/recording.h"
#include "tensor/control/reference_step.h"
#include "tensor/control/signatures.h"
#include "tensor/control/skipped.h"

/* Of one model, before they become one. */
#define KIN_SHAPES 2u

/* This one is in force from here on. */
static void put_in_force(struct control *control, struct signature *signature)
{
	control->probe = NO_TENSOR; /* of the signature that was in force */
	control->signature->step = control->step;
	control->signature = signature;
}

/* Whether all that the plan keeps is in memory, or may stay there. */
static bool keeps_what_it_wants(const struct recording *now, const struct signature *signature)
{
	for (uint32_t i = 0; i < now->count; i++) {
		const struct recorded *recorded = &now->tensors[i];

		if (spw_control__has_place(recorded) && recorded->stored && !recorded->released &&
		    signature->plan.choices[spw_control__reference_place(
			    &signature->reference, recorded)] == SPW_PLAN_KEEP)
			return false;
	}
	return true;
}

/* The tensors of this step so far are those of the plan that is in force now. */
static void match_again(struct control *control)
{
	const struct recording *reference = &control->signature->reference;

	for (uint32_t i = 0; i < control->now.count; i++) {
		struct recorded *recorded = &control->now.tensors[i];

		if (!recorded->plannable)
			continue;
		recorded->matched = spw_control__reference_place(reference, recorded);
		if (recorded->matched == NO_TENSOR)
			continue;
		control->matched += spw_control__has_place(recorded);
		control->slots[recorded->matched] = recorded->released ? GONE_SLOT : recorded->slot;
	}
	spw_control__cursor_progress(
		control, reference->scopes[control->now.scope_count - 1].planned_enter_ns);
}

/* The next signature from @from on, other than the one in force, that has a plan; or NULL. */
static struct signature *other_planned(struct control *control, struct signature *from)
{
	for (; from < control->signatures + SIGNATURES_MAX; from++)
		if (from != control->signature && from->planned)
			return from;
	return NULL;
}

bool spw_control__signature_switch(struct control *control)
{
	struct signature *signature = other_planned(control, control->signatures);

	/* What was recorded is of the signature that was in force. */
	if (spw_control__skipped_differs(control))
		return false;
	for (; signature; signature = other_planned(control, signature + 1)) {
		if (!spw_control__reference_begins_like(&control->now, &signature->reference) ||
		    !keeps_what_it_wants(&control->now, signature))
			continue;
		put_in_force(control, signature);
		spw_control__cursor_begin(control);
		match_again(control);
		spw_control__skipped_switched(control);
		control->switched = true;
		control->opts.count->plan_switches++;
		return true;
	}
	return false;
}

/* ---- Between steps ---- */

bool spw_control__signature_known(struct control *control)
{
	struct signature *signature = other_planned(control, control->signatures);

	if (control->signature->planned &&
	    spw_control__reference_is_like(&control->now, &control->signature->reference))
		return true;
	if (spw_control__skipped_differs(control)) {
		control->skips_off = !spw_control__skipped_fits(control);
		return control->skips_off;
	}
	while (signature && !spw_control__reference_is_like(&control->now, &signature->reference))
		signature = other_planned(control, signature + 1);
	if (signature)
		put_in_force(control, signature);
	return signature != NULL;
}

static struct signature *oldest_of(struct control *control)
{
	struct signature *oldest = NULL;

	for (unsigned i = 0; i < SIGNATURES_MAX; i++) {
		struct signature *signature = &control->signatures[i];

		if (signature != control->signature && (!oldest || signature->step < oldest->step))
			oldest = signature;
	}
	return oldest;
}

/* The signature of this step, if it is known and has no plan; or NULL. */
static struct signature *met_before(struct control *control)
{
	for (unsigned i = 0; i < SIGNATURES_MAX; i++) {
		struct signature *signature = &control->signatures[i];

		if (!signature->planned && signature->id > 0 &&
		    spw_control__reference_is_like(&control->now, &signature->reference))
			return signature;
	}
	return NULL;
}

/* Signatures of the same model, other than those that are like this step: how many; the fullest. */
static uint32_t kin_of(const struct control *control, uint32_t *fullest)
{
	uint32_t count = 0, most = 0;

	for (uint32_t i = 0; i < SIGNATURES_MAX; i++) {
		const struct signature *signature = &control->signatures[i];

		if (signature->id == 0 ||
		    !spw_control__reference_is_kin(&control->now, &signature->reference))
			continue;
		count++;
		if (signature->varies)
			most = UINT32_MAX;
		else if (signature->reference.scope_count <= most)
			continue;
		else
			most = signature->reference.scope_count;
		*fullest = i;
	}
	return count;
}

/*
 * The signatures of one model become one that varies. Return: whether its reference is to be this
 * step.
 */
static bool join_kin(struct control *control, uint32_t fullest)
{
	struct signature *signature = &control->signatures[fullest];
	bool fuller =
		!signature->varies && control->now.scope_count > signature->reference.scope_count;

	for (uint32_t i = 0; i < SIGNATURES_MAX; i++) {
		struct signature *other = &control->signatures[i];

		if (other == signature || other->id == 0 ||
		    !spw_control__reference_is_kin(&control->now, &other->reference))
			continue;
		other->planned = other->device_clock.complete = false;
		other->id = 0;
	}
	put_in_force(control, signature);
	signature->varies = true;
	signature->planned &= !fuller;
	return fuller;
}

bool spw_control__signature_new(struct control *control)
{
	struct signature *met = met_before(control);
	uint32_t kin, fullest = 0;

	/* The reference gets what it did not have. */
	if (spw_control__skipped_differs(control)) {
		control->signature->planned = false;
		return true;
	}
	if (met) {
		put_in_force(control, met);
		met->unplanned_steps++;
		return true;
	}
	kin = kin_of(control, &fullest);
	if (kin >= KIN_SHAPES || (kin > 0 && control->signatures[fullest].varies))
		return join_kin(control, fullest);
	if (control->signature->id > 0)
		put_in_force(control, oldest_of(control));
	control->signature->planned = control->signature->varies = false;
	control->signature->memory = HEADROOM_NONE(MEMORY_PATIENCE_STEPS);
	control->signature->device_clock.complete = false;
	control->signature->stalled_bytes = 0;
	control->signature->id = ++control->ids;
	control->signature->next_id = 0;
	control->signature->unplanned_steps = 1;
	return true;
}

void spw_control__signature_ended(struct control *control)
{
	for (unsigned i = 0; i < SIGNATURES_MAX; i++)
		if (control->signatures[i].id == control->before_id)
			control->signatures[i].next_id = control->signature->id;
	control->before_id = control->signature->id;
}

void spw_control__signature_predict(struct control *control)
{
	uint32_t next_id = control->signature->next_id;

	for (struct signature *signature = control->signatures;
	     signature < control->signatures + SIGNATURES_MAX; signature++)
		if (signature != control->signature && signature->id == next_id &&
		    (signature->planned || signature->device_clock.complete)) {
			put_in_force(control, signature);
			return;
		}
}
