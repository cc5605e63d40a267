/* SPDX-License-Identifier: MIT */
/*
 * tensor/control/skipped.c - scopes of the reference that a step skips, as layers dropped at random
 *
 * They are recorded as if they had run, and for as long as in the reference: what the step has
 * saved itself keeps its place, and the recording is as whole as the reference is. A scope that the
 * reference has not seen is recorded where it comes: then the recording becomes the reference, with
 * the scopes of both. So the reference of such steps soon has all scopes that any of them runs.
 *
 * A scope that runs may save less than in the reference: the first layer that is not dropped reads
 * the model's own input, which stays in memory and is not offered. What is missing is recorded in
 * the same way, before the next tensor of its scope that is as in the reference, or as the scope is
 * left.
 */
#include <stdlib.h>

#include "tensor/control/internal.h"
#include "tensor/control/plan_cursor.h"
#include "tensor/control/recording.h"
#include "tensor/control/reference_step.h"
#include "tensor/control/skipped.h"

/* Whether scopes of the reference may be missing in this step. */
static bool may_skip(const struct control *control)
{
	return control->recording && control->signature->varies && !control->skipping.off;
}

void spw_control__skipped_begin(struct control *control, bool off)
{
	struct skipping *skipping = &control->skipping;
	struct skipped *tensors = skipping->tensors;
	uint32_t *here = skipping->here;

	*skipping = (struct skipping){.tensors = tensors, .here = here, .off = off};
	for (uint32_t i = 0; control->signature->varies && i < control->signature->reference.count;
	     i++)
		here[i] = NO_TENSOR;
}

void spw_control__skipped_switched(struct control *control)
{
	struct recording *now = &control->now;

	spw_control__skipped_begin(control, false);
	if (!may_skip(control))
		return;
	for (uint32_t s = 0; s < now->scope_count; s++)
		now->scopes[s].matched = s;
	control->skipping.scope_next = now->scope_count;
	for (uint32_t i = 0; i < now->count; i++)
		if (now->tensors[i].matched != NO_TENSOR)
			control->skipping.here[now->tensors[i].matched] = i;
}

bool spw_control__skipped_differs(const struct control *control)
{
	return control->skipping.scopes > 0 || control->skipping.others > 0;
}

/* ---- Time ---- */

/*
 * When something would have been that the reference has at @reference_ns, before what comes next.
 */
static uint64_t moved_ns(const struct control *control, uint64_t reference_ns)
{
	return control->skipping.met_ns +
	       spw_since_ns(control->skipping.met_reference_ns, reference_ns);
}

/*
 * What comes now the reference has at @reference_ns. @skipped: something between this and what came
 * before is missing: it takes no less time than in the reference.
 */
static void meet(struct control *control, uint64_t reference_ns, bool skipped)
{
	struct skipping *skipping = &control->skipping;
	uint64_t now_ns = spw_control__recording_whole_ns(control), missing_ns;

	if (reference_ns < skipping->met_reference_ns)
		return;
	missing_ns = skipped ? spw_since_ns(now_ns, moved_ns(control, reference_ns)) : 0;
	skipping->added_ns += missing_ns;
	if (control->stage == SPW_STAGE_BACKWARD && control->scope != NO_SCOPE) {
		skipping->backward_ns += missing_ns;
		control->now.scopes[control->scope].compute_ns += missing_ns;
	}
	skipping->met_ns = now_ns + missing_ns;
	skipping->met_reference_ns = reference_ns;
}

/* ---- The forward pass ---- */

static void skip_tensor(struct control *control, uint32_t which, uint32_t scope)
{
	const struct recorded *was = &control->signature->reference.tensors[which];
	struct skipping *skipping = &control->skipping;
	struct recording *now = &control->now;
	struct recorded *recorded = &now->tensors[now->count];

	if (now->count == control->tensors_max) {
		now->is_truncated = true;
		return;
	}
	*recorded = *was;
	recorded->pack_ns = moved_ns(control, was->pack_ns);
	recorded->scope = scope;
	recorded->matched = which;
	recorded->slot = GONE_SLOT;
	recorded->released = recorded->skipped = true;
	recorded->stored = false;
	if (spw_control__has_place(recorded)) {
		now->scopes[scope].plannable++;
		now->plannable++;
	}
	skipping->tensors[skipping->count++] = (struct skipped){
		.ns = was->takes > 0 ? was->use_ns : was->release_ns, .which = now->count};
	skipping->here[which] = now->count++;
	spw_control__cursor_skipped(control, which);
}

/* This step skipped the reference's scopes from @from up to @to: record them as skipped. */
static void skip_scopes(struct control *control, uint32_t from, uint32_t to)
{
	const struct recording *reference = &control->signature->reference;
	struct skipping *skipping = &control->skipping;
	struct recording *now = &control->now;
	uint32_t first = now->scope_count;

	if (to - from > control->scopes_max - first) {
		now->is_truncated = true;
		return;
	}
	for (uint32_t s = from; s < to; s++) {
		struct recorded_scope *scope = &now->scopes[now->scope_count++];

		*scope = reference->scopes[s];
		scope->enter_ns = moved_ns(control, reference->scopes[s].enter_ns);
		scope->saved_ns = moved_ns(control, reference->scopes[s].saved_ns);
		scope->plannable = 0;
		scope->matched = s;
		scope->left = scope->skipped = true;
		skipping->forward_ns += scope->compute_ns;
	}
	for (; skipping->tensor_next < reference->count; skipping->tensor_next++) {
		uint32_t scope = reference->tensors[skipping->tensor_next].scope;

		if (scope >= to)
			break;
		if (scope >= from)
			skip_tensor(control, skipping->tensor_next, first + scope - from);
	}
	for (uint32_t s = first; s < now->scope_count; s++)
		if (now->scopes[s].input != NO_TENSOR)
			now->scopes[s].input = skipping->here[now->scopes[s].input];
	skipping->scopes += to - from;
}

static int by_ns(const void *a, const void *b)
{
	const struct skipped *one = a, *other = b;

	return (one->ns > other->ns) - (one->ns < other->ns);
}

/*
 * A scope is entered that the reference does not have. Return: the number there of the first one
 * that comes after it, where keys go up in the order of a model's layers.
 */
static uint32_t place_of_other(const struct control *control, uint64_t key)
{
	const struct recording *reference = &control->signature->reference;
	uint32_t outer = control->scope, depth, s = control->skipping.scope_next;

	depth = outer == NO_SCOPE ? 0 : control->now.scopes[outer].depth + 1;
	while (s < reference->scope_count && reference->scopes[s].key != 0 &&
	       (reference->scopes[s].depth > depth ||
		(reference->scopes[s].depth == depth && reference->scopes[s].key < key)))
		s++;
	return s;
}

/* The scopes of the reference before @to are skipped: what comes now is there where that begins. */
static void skip_until(struct control *control, uint32_t to)
{
	const struct recording *reference = &control->signature->reference;
	uint32_t from = control->skipping.scope_next;

	skip_scopes(control, from, to);
	if (to < reference->scope_count)
		meet(control, reference->scopes[to].enter_ns, to > from);
	control->skipping.scope_next = to;
}

uint32_t spw_control__skipped_before(struct control *control, uint64_t key)
{
	struct skipping *skipping = &control->skipping;
	uint32_t found;

	if (!may_skip(control))
		return NO_SCOPE;
	found = spw_control__reference_find(
		&control->signature->reference, skipping->scope_next,
		&(struct recorded_scope){.key = key,
					 .stage = (uint8_t)control->stage,
					 .micro_batch = control->micro_batch});
	if (found == NO_SCOPE) {
		skipping->others++;
		skip_until(control, place_of_other(control, key));
		return NO_SCOPE;
	}
	skip_until(control, found);
	skipping->scope_next++;
	if (key == 0 && control->stage == SPW_STAGE_BACKWARD)
		qsort(skipping->tensors + skipping->passed, skipping->count - skipping->passed,
		      sizeof(skipping->tensors[0]), by_ns);
	return found;
}

/* ---- Tensors that a scope does not save in this step ---- */

/* Of the scope, or NULL: the scope of the reference that it is. */
static const struct recorded_scope *scope_was(const struct control *control, uint32_t scope)
{
	if (!may_skip(control) || scope == NO_SCOPE ||
	    control->now.scopes[scope].matched == NO_SCOPE)
		return NULL;
	return &control->signature->reference.scopes[control->now.scopes[scope].matched];
}

/* The scope lacks its next places in the reference, before @until. */
static void skip_places(struct control *control, uint32_t scope, uint32_t until)
{
	const struct recorded_scope *was = scope_was(control, scope);
	const struct recording *reference = &control->signature->reference;
	struct recording *now = &control->now;

	for (uint32_t place = now->scopes[scope].plannable; place < until; place++) {
		uint32_t which = reference->members[was->first + place];

		skip_tensor(control, which, scope);
		if (now->is_truncated)
			return;
		now->tensors[now->count - 1].pack_ns = spw_control__recording_event_ns(control);
		now->scopes[scope].bytes += reference->tensors[which].bytes;
	}
}

void spw_control__skipped_missing(struct control *control, uint64_t bytes)
{
	const struct recorded_scope *was = scope_was(control, control->scope);
	const struct recording *reference = &control->signature->reference;

	if (!was)
		return;
	for (uint32_t place = control->now.scopes[control->scope].plannable; place < was->plannable;
	     place++)
		if (reference->tensors[reference->members[was->first + place]].bytes == bytes) {
			skip_places(control, control->scope, place);
			return;
		}
}

void spw_control__skipped_rest(struct control *control, uint32_t scope)
{
	const struct recorded_scope *was = scope_was(control, scope);
	uint32_t saved;

	if (!was)
		return;
	/* With less than half of it, this is not the scope of the reference. */
	saved = control->now.scopes[scope].plannable;
	if (was->plannable <= saved + SPW_MAX(saved, 1u))
		skip_places(control, scope, was->plannable);
}

/* ---- Tensors of the step itself ---- */

/* Its place in the reference; NO_TENSOR: it has none there. */
static uint32_t place_of(const struct control *control, const struct recorded *recorded)
{
	const struct recording *reference = &control->signature->reference;
	uint32_t scope = control->now.scopes[recorded->scope].matched, which;

	if (scope == NO_SCOPE || !spw_control__has_place(recorded) ||
	    recorded->place >= reference->scopes[scope].plannable)
		return NO_TENSOR;
	which = reference->members[reference->scopes[scope].first + recorded->place];
	return reference->tensors[which].bytes == recorded->bytes ? which : NO_TENSOR;
}

void spw_control__skipped_offered(struct control *control, struct recorded *recorded)
{
	const struct recorded_scope *was;
	uint32_t which;

	if (!may_skip(control))
		return;
	which = recorded->matched = place_of(control, recorded);
	if (which == NO_TENSOR) {
		was = scope_was(control, recorded->scope);
		control->skipping.others += was && recorded->place >= was->plannable;
		return;
	}
	control->slots[which] = recorded->slot;
	control->skipping.here[which] = (uint32_t)(recorded - control->now.tensors);
	meet(control, control->signature->reference.tensors[which].pack_ns, false);
}

/*
 * What several scopes save belongs to the first of them. If that is skipped, the next one that
 * runs saves it in its stead: it is the tensor that was recorded as skipped.
 */
struct recorded *spw_control__skipped_shared(struct control *control, struct track *track,
					     struct recorded *recorded)
{
	struct skipping *skipping = &control->skipping;
	struct recorded *shared;

	recorded->place = control->now.scopes[recorded->scope].plannable;
	if (!may_skip(control) || place_of(control, recorded) != NO_TENSOR)
		return NULL;
	for (uint32_t i = skipping->passed; i < skipping->count; i++) {
		shared = &control->now.tensors[skipping->tensors[i].which];
		if (!shared->skipped || !shared->no_recompute || !spw_control__has_place(shared) ||
		    shared->bytes != recorded->bytes ||
		    control->slots[shared->matched] != GONE_SLOT)
			continue;
		shared->slot = recorded->slot;
		shared->hint = recorded->hint;
		shared->takes = 0;
		shared->released = shared->skipped = false;
		track->recorded = skipping->tensors[i].which;
		control->now.count--; /* @recorded was the last one */
		return shared;
	}
	return NULL;
}

/* ---- The backward pass ---- */

/* Uses of the reference up to @reference_ns are over. */
static void pass(struct control *control, uint64_t reference_ns)
{
	struct skipping *skipping = &control->skipping;
	bool skipped = false;

	for (; skipping->passed < skipping->count; skipping->passed++) {
		const struct skipped *next = &skipping->tensors[skipping->passed];
		struct recorded *recorded = &control->now.tensors[next->which];
		const struct recorded *was =
			&control->signature->reference.tensors[recorded->matched];

		if (next->ns > reference_ns)
			break;
		if (!recorded->skipped)
			continue;
		skipped = true;
		recorded->use_ns = moved_ns(control, was->use_ns);
		recorded->release_ns = moved_ns(control, was->release_ns);
	}
	meet(control, reference_ns, skipped);
}

void spw_control__skipped_taken(struct control *control, const struct recorded *recorded)
{
	if (may_skip(control) && recorded->matched != NO_TENSOR && recorded->takes == 0)
		pass(control, control->signature->reference.tensors[recorded->matched].use_ns);
}

/* ---- The step has ended ---- */

void spw_control__skipped_end(struct control *control)
{
	const struct recording *reference = &control->signature->reference;

	if (may_skip(control) && control->skipping.count > 0)
		pass(control, SPW_MAX(reference->forward_ns + reference->backward_ns,
				      control->skipping.tensors[control->skipping.count - 1].ns));
}

void spw_control__skipped_fill(struct control *control)
{
	control->now.forward_ns += control->skipping.forward_ns;
	control->now.backward_ns += control->skipping.backward_ns;
}

bool spw_control__skipped_fits(const struct control *control)
{
	const struct recording *now = &control->now, *reference = &control->signature->reference;
	uint32_t ran = 0, same = 0;

	for (uint32_t s = 0; s < now->scope_count; s++) {
		const struct recorded_scope *scope = &now->scopes[s];

		ran += !scope->skipped;
		same += !scope->skipped && scope->matched != NO_SCOPE &&
			scope->plannable == reference->scopes[scope->matched].plannable &&
			scope->bytes == reference->scopes[scope->matched].bytes;
	}
	return 2 * same >= ran;
}
