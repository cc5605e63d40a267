/* SPDX-License-Identifier: MIT */
/*
 * tensor/control/reference_step.c - the step that plans are made from, smoothed over equal steps
 *
 * Figures that change little are averaged; what changes much replaces what was.
 */
#include "tensor/control/internal.h"
#include "tensor/control/recording.h"
#include "tensor/control/reference_step.h"

double spw_control__reference_drift(const struct recording *recording,
				    const struct recording *reference, bool from_plan)
{
	double now = 0, was = 0, most = 0;

	for (uint32_t i = 0; i < recording->scope_count && i < reference->scope_count; i++) {
		now += (double)recording->scopes[i].compute_ns;
		was += (double)(from_plan ? reference->scopes[i].planned_ns
					  : reference->scopes[i].compute_ns);
		if (now - was > most || was - now > most)
			most = now > was ? now - was : was - now;
	}
	return was > 0 ? most / was : 0;
}

static uint64_t mix(uint64_t was, uint64_t now, bool replace)
{
	return replace ? now : was / 2 + now / 2;
}

static void merge_tensor(struct recorded *to, const struct recorded *from, bool replace)
{
	bool all = replace || (to->takes == 0) != (from->takes == 0);
	uint64_t throttled_ns = to->release_ns - to->pack_ns;

	to->pack_ns = mix(to->pack_ns, from->pack_ns, all);
	to->use_ns = mix(to->use_ns, from->use_ns, all);
	/* The input of a recompute is kept for that alone: by the plan, not by the step. */
	if (!from->is_input || from->takes > 0)
		to->release_ns = mix(to->release_ns, from->release_ns, all);
	else
		to->release_ns = to->pack_ns + throttled_ns;
	to->takes = from->takes;
	to->hint = from->hint;
	to->number = from->number;
	to->decided = from->decided;
	to->no_recompute |= from->no_recompute;
}

/*
 * What is not planned has no place, but holds memory: what the backward stage saves. It is known by
 * its order, as long as the step has as much of it.
 */
static void merge_unplanned(struct recording *reference, const struct recording *now, bool replace)
{
	uint32_t k = 0;

	for (uint32_t i = 0; i < now->count; i++) {
		const struct recorded *from = &now->tensors[i];

		if (from->plannable)
			continue;
		while (k < reference->count && reference->tensors[k].plannable)
			k++;
		if (k == reference->count)
			return;
		if (reference->tensors[k].scope == from->scope &&
		    reference->tensors[k].bytes == from->bytes)
			merge_tensor(&reference->tensors[k], from, replace);
		k++;
	}
}

/* The input that a scope is recomputed from, as the reference numbers tensors. */
static void merge_input(struct recorded_scope *to, const struct recording *now, uint32_t input)
{
	if (input == NO_TENSOR)
		to->input = NO_TENSOR;
	else if (now->tensors[input].matched != NO_TENSOR)
		to->input = now->tensors[input].matched;
}

void spw_control__reference_merge(struct recording *reference, const struct recording *now)
{
	bool replace = spw_control__reference_drift(now, reference, false) > RATE_DRIFT;

	for (uint32_t i = 0; i < now->scope_count && i < reference->scope_count; i++) {
		struct recorded_scope *to = &reference->scopes[i];

		to->enter_ns = mix(to->enter_ns, now->scopes[i].enter_ns, replace);
		to->compute_ns = mix(to->compute_ns, now->scopes[i].compute_ns, replace);
		to->saved_ns = mix(to->saved_ns, now->scopes[i].saved_ns, replace);
		if (!now->scopes[i].skipped)
			merge_input(to, now, now->scopes[i].input);
	}
	for (uint32_t i = 0; i < now->count; i++) {
		const struct recorded *from = &now->tensors[i];

		/* A tensor that another scope offers now says nothing about when it was offered. */
		if (from->matched != NO_TENSOR &&
		    from->scope == reference->tensors[from->matched].scope)
			merge_tensor(&reference->tensors[from->matched], from, replace);
	}
	merge_unplanned(reference, now, replace);
	for (uint32_t i = 0; i < now->drains; i++)
		reference->drains_ns[i] = mix(reference->drains_ns[i], now->drains_ns[i],
					      replace || now->drains != reference->drains);
	reference->drains = now->drains;
	reference->forward_ns = mix(reference->forward_ns, now->forward_ns, replace);
	reference->backward_ns = mix(reference->backward_ns, now->backward_ns, replace);
}

void spw_control__reference_replace(struct recording *reference, struct recording *now)
{
	struct recording recording = *now;
	uint32_t first = 0;

	*now = *reference;
	for (uint32_t i = 0; i < recording.scope_count; i++) {
		recording.scopes[i].first = first;
		first += recording.scopes[i].plannable;
		recording.scopes[i].plannable = 0; /* counted again below */
	}
	for (uint32_t i = 0; i < recording.count; i++) {
		struct recorded_scope *scope = &recording.scopes[recording.tensors[i].scope];

		if (spw_control__has_place(&recording.tensors[i]))
			recording.members[scope->first + scope->plannable++] = i;
	}
	*reference = recording;
}

void spw_control__reference_planned(struct recording *reference)
{
	for (uint32_t i = 0; i < reference->scope_count; i++) {
		struct recorded_scope *scope = &reference->scopes[i];

		scope->planned_ns = scope->compute_ns;
		scope->planned_enter_ns = scope->enter_ns;
	}
	for (uint32_t i = 0; i < reference->count; i++) {
		struct recorded *recorded = &reference->tensors[i];

		recorded->planned_pack_ns = recorded->pack_ns;
		recorded->planned_use_ns = recorded->use_ns;
		recorded->planned_release_ns = recorded->release_ns;
		recorded->planned_decided = recorded->decided;
	}
}

bool spw_control__reference_redecided(const struct recording *reference)
{
	for (uint32_t i = 0; i < reference->count; i++)
		if (reference->tensors[i].decided != reference->tensors[i].planned_decided)
			return true;
	return false;
}

/* ---- Is it this signature? ---- */

uint32_t spw_control__reference_place(const struct recording *reference,
				      const struct recorded *recorded)
{
	const struct recorded_scope *scope = &reference->scopes[recorded->scope];

	if (recorded->only_input)
		return scope->input != NO_TENSOR &&
				       reference->tensors[scope->input].bytes == recorded->bytes
			       ? scope->input
			       : NO_TENSOR;
	SPW_ASSERT(recorded->plannable && recorded->place < scope->plannable); /* CONTROL-3 */
	return reference->members[scope->first + recorded->place];
}

static bool same_scope(const struct recorded_scope *now, const struct recorded_scope *was)
{
	return now->key == was->key && now->stage == was->stage &&
	       now->micro_batch == was->micro_batch &&
	       (!now->left || now->plannable >= was->plannable);
}

bool spw_control__reference_begins_like(const struct recording *now,
					const struct recording *reference)
{
	if (now->scope_count > reference->scope_count)
		return false;
	for (uint32_t i = 0; i < now->scope_count; i++)
		if (!same_scope(&now->scopes[i], &reference->scopes[i]))
			return false;
	for (uint32_t i = 0; i < now->count; i++) {
		const struct recorded *recorded = &now->tensors[i];

		if (!spw_control__has_place(recorded))
			continue;
		if (recorded->place >= reference->scopes[recorded->scope].plannable ||
		    reference->tensors[spw_control__reference_place(reference, recorded)].bytes !=
			    recorded->bytes)
			return false;
	}
	return true;
}

bool spw_control__reference_is_like(const struct recording *now, const struct recording *reference)
{
	return now->scope_count == reference->scope_count &&
	       now->plannable == reference->plannable &&
	       spw_control__reference_begins_like(now, reference);
}

/* ---- Is it a step of the same model? ---- */

uint32_t spw_control__reference_find(const struct recording *reference, uint32_t from,
				     const struct recorded_scope *scope)
{
	for (uint32_t s = from; s < reference->scope_count; s++) {
		const struct recorded_scope *was = &reference->scopes[s];

		if (was->key == scope->key && was->stage == scope->stage &&
		    was->micro_batch == scope->micro_batch)
			return s;
		if (was->key == 0)
			break;
	}
	return NO_SCOPE;
}

bool spw_control__reference_is_kin(const struct recording *now, const struct recording *reference)
{
	uint32_t next = 0, ran = 0, same = 0;

	for (uint32_t s = 0; s < now->scope_count; s++) {
		const struct recorded_scope *scope = &now->scopes[s];
		uint32_t found = spw_control__reference_find(reference, next, scope);

		if (found == NO_SCOPE && scope->key == 0)
			return false;
		ran += scope->key != 0;
		same += found != NO_SCOPE && scope->key != 0 &&
			scope->plannable == reference->scopes[found].plannable &&
			scope->bytes == reference->scopes[found].bytes;
		next = found == NO_SCOPE ? next : found + 1;
	}
	for (; next < reference->scope_count; next++)
		if (reference->scopes[next].key == 0)
			return false;
	return ran > 0 && 2 * same >= ran;
}
