/* SPDX-License-Identifier: MIT */
/*
 * tensor/shapes.c - several shapes of step, each with a plan: training and evaluation, sequences of
 * several lengths
 *
 * The shape in force lies in struct adapt itself, the others are parked. When a step shows not to
 * be like the one in force, it goes on by the plan of a parked one that is like all of it so far,
 * if there is one, and if nothing that this one would keep has left memory. Each shape remembers
 * which one came after it: so the plan is mostly right from the beginning. The one that was not in
 * force for the longest time makes room for a new one.
 */
#include "tensor/internal.h"

static void swap_bytes(void *left, void *right, size_t bytes)
{
	uint8_t other[sizeof(struct recording) + sizeof(struct spw_plan_result)];

	SPW_ASSERT(bytes <= sizeof(other));
	memcpy(other, left, bytes);
	memcpy(left, right, bytes);
	memcpy(right, other, bytes);
}

#define SWAP(left, right)                                                           \
	do {                                                                        \
		_Static_assert(sizeof(left) == sizeof(right), "they are the same"); \
		swap_bytes(&(left), &(right), sizeof(left));                        \
	} while (0)

/* What is in force is parked, and the other way round. */
static void exchange(struct adapt *adapt, struct shape *shape)
{
	/* it was the only one to be read, and is of the shape that is parked */
	if (adapt->probe != NO_TENSOR) {
		adapt->probe = NO_TENSOR;
		adapt->use_count = 0;
	}
	SWAP(adapt->basis, shape->basis);
	SWAP(adapt->choices, shape->choices);
	SWAP(adapt->read_from_ns, shape->read_from_ns);
	SWAP(adapt->use_order, shape->use_order);
	SWAP(adapt->use_count, shape->use_count);
	SWAP(adapt->lead_ns, shape->lead_ns);
	SWAP(adapt->result, shape->result);
	SWAP(adapt->counted_on, shape->counted_on);
	SWAP(adapt->reserve_bytes, shape->reserve_bytes);
	SWAP(adapt->planned, shape->planned);
	SWAP(adapt->id, shape->id);
	SWAP(adapt->next_id, shape->next_id);
}

/* ---- Is it this shape? ---- */

static bool same_scope(const struct recorded_scope *now, const struct recorded_scope *was)
{
	return now->key == was->key && now->stage == was->stage &&
	       now->micro_batch == was->micro_batch;
}

/* Of all that has been recorded in this step so far. */
static bool begins_like(const struct recording *now, const struct recording *basis)
{
	if (now->scope_count > basis->scope_count)
		return false;
	for (uint32_t i = 0; i < now->scope_count; i++)
		if (!same_scope(&now->scopes[i], &basis->scopes[i]) ||
		    (now->scopes[i].left && now->scopes[i].plannable < basis->scopes[i].plannable))
			return false;
	for (uint32_t i = 0; i < now->count; i++) {
		const struct recorded *recorded = &now->tensors[i];
		const struct recorded_scope *was = &basis->scopes[recorded->scope];

		if (!recorded->plannable)
			continue;
		if (recorded->place >= was->plannable ||
		    basis->tensors[basis->members[was->first + recorded->place]].bytes !=
			    recorded->bytes)
			return false;
	}
	return true;
}

static bool is_like(const struct recording *now, const struct recording *basis)
{
	return now->scope_count == basis->scope_count && now->plannable == basis->plannable &&
	       begins_like(now, basis);
}

/* ---- To go on by its plan ---- */

static uint32_t place_in(const struct recording *basis, const struct recorded *recorded)
{
	return basis->members[basis->scopes[recorded->scope].first + recorded->place];
}

static bool of_this_step(const struct spw_cache *cache, const struct entry *entry)
{
	return entry->recorded_step == cache->step && entry->recorded != NO_TENSOR &&
	       cache->adapt.now.tensors[entry->recorded].plannable;
}

/* Whether all that the plan keeps is in memory, or may stay there. */
static bool keeps_what_it_wants(const struct spw_cache *cache, const struct shape *shape)
{
	for (struct link *link = cache->order.next; link != &cache->order; link = link->next) {
		const struct entry *entry = ENTRY_OF(link, order);
		const struct recorded *recorded;

		if (!of_this_step(cache, entry) || entry->state != ENTRY_STORED)
			continue;
		recorded = &cache->adapt.now.tensors[entry->recorded];
		if (shape->choices[place_in(&shape->basis, recorded)] == SPW_PLAN_KEEP)
			return false;
	}
	return true;
}

/* The tensors of this step so far are those of the plan that is in force now. */
static void match_again(struct spw_cache *cache)
{
	struct adapt *adapt = &cache->adapt;

	for (uint32_t i = 0; i < adapt->now.count; i++) {
		struct recorded *recorded = &adapt->now.tensors[i];

		if (!recorded->plannable)
			continue;
		recorded->matched = place_in(&adapt->basis, recorded);
		adapt->gone[recorded->matched] = true; /* but for those below */
		adapt->matched++;
	}
	for (struct link *link = cache->order.next; link != &cache->order; link = link->next) {
		struct entry *entry = ENTRY_OF(link, order);

		if (!of_this_step(cache, entry))
			continue;
		entry->matched = adapt->now.tensors[entry->recorded].matched;
		adapt->slots[entry->matched] = (uint32_t)(entry - cache->entries);
		adapt->gone[entry->matched] = false;
		if (adapt->choices[entry->matched] == SPW_PLAN_KEEP &&
		    (entry->state == ENTRY_QUEUED || entry->state == ENTRY_LEAVING))
			spw_spill_forward(entry);
	}
}

bool spw_shape_switch(struct spw_cache *cache)
{
	struct adapt *adapt = &cache->adapt;

	for (unsigned i = 0; i < SHAPES_PARKED; i++) {
		struct shape *shape = &adapt->parked[i];

		if (!shape->planned || !begins_like(&adapt->now, &shape->basis) ||
		    !keeps_what_it_wants(cache, shape))
			continue;
		shape->parked_step = cache->step;
		exchange(adapt, shape);
		spw_adapt_follow(cache);
		match_again(cache);
		spw_adapt_progress(cache, adapt->basis.scopes[adapt->now.scope_count - 1].enter_ns);
		adapt->switched = true;
		cache->count.plan_switches++;
		return true;
	}
	return false;
}

/* ---- Between steps ---- */

bool spw_shape_known(struct spw_cache *cache)
{
	struct adapt *adapt = &cache->adapt;

	if (adapt->planned && is_like(&adapt->now, &adapt->basis))
		return true;
	for (unsigned i = 0; i < SHAPES_PARKED; i++) {
		struct shape *shape = &adapt->parked[i];

		if (!shape->planned || !is_like(&adapt->now, &shape->basis))
			continue;
		shape->parked_step = cache->step;
		exchange(adapt, shape);
		return true;
	}
	return false;
}

void spw_shape_park(struct spw_cache *cache)
{
	struct adapt *adapt = &cache->adapt;
	struct shape *oldest = &adapt->parked[0];

	if (adapt->planned) {
		for (unsigned i = 1; i < SHAPES_PARKED; i++)
			if (adapt->parked[i].parked_step < oldest->parked_step)
				oldest = &adapt->parked[i];
		oldest->parked_step = cache->step;
		exchange(adapt, oldest);
	}
	adapt->planned = false;
	adapt->reserve_bytes = 0;
	adapt->id = ++adapt->ids;
	adapt->next_id = 0;
}

void spw_shape_ended(struct adapt *adapt)
{
	if (adapt->before_id == adapt->id)
		adapt->next_id = adapt->id;
	for (unsigned i = 0; i < SHAPES_PARKED; i++)
		if (adapt->parked[i].id == adapt->before_id)
			adapt->parked[i].next_id = adapt->id;
	adapt->before_id = adapt->id;
}

void spw_shape_predict(struct spw_cache *cache)
{
	struct adapt *adapt = &cache->adapt;

	for (unsigned i = 0; i < SHAPES_PARKED; i++) {
		struct shape *shape = &adapt->parked[i];

		if (!shape->planned || shape->id != adapt->next_id)
			continue;
		shape->parked_step = cache->step;
		exchange(adapt, shape);
		return;
	}
}
