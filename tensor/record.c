/* SPDX-License-Identifier: MIT */
/*
 * tensor/record.c - what a step is like: its scopes, its tensors, and when each was packed, used
 * and released
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/internal.h"

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

static int shape_open(struct shape *shape, uint32_t tensors, uint32_t scopes)
{
	shape->choices = calloc(tensors, sizeof(*shape->choices));
	shape->read_from_ns = calloc(tensors, sizeof(*shape->read_from_ns));
	shape->use_order = calloc(tensors, sizeof(*shape->use_order));
	if (!shape->choices || !shape->read_from_ns || !shape->use_order)
		return -ENOMEM;
	return recording_open(&shape->basis, tensors, scopes);
}

static int shapes_open(struct adapt *adapt)
{
	int rc = 0;

	for (unsigned i = 0; i < SHAPES_PARKED && rc == 0; i++)
		rc = shape_open(&adapt->parked[i], adapt->tensors_max, adapt->scopes_max);
	return rc;
}

static void shapes_close(struct adapt *adapt)
{
	for (unsigned i = 0; i < SHAPES_PARKED; i++) {
		struct shape *shape = &adapt->parked[i];

		recording_close(&shape->basis);
		free(shape->choices);
		free(shape->read_from_ns);
		free(shape->use_order);
	}
}

int spw_record_open(struct spw_cache *cache)
{
	struct adapt *adapt = &cache->adapt;
	uint32_t count = cache->opts.tensors_max;

	adapt->scope = adapt->stage_scope = NO_SCOPE;
	adapt->probe = NO_TENSOR;
	spw_adapt_open(adapt);
	spw_record_begin(cache);
	adapt->recording = false; /* the first step has not begun */
	adapt->records = cache->opts.mode >= SPW_CACHE_FASTEST;
	if (!adapt->records)
		return 0;
	adapt->tensors_max = count;
	adapt->scopes_max = count > SCOPES_MIN ? count : SCOPES_MIN;
	adapt->choices = calloc(count, sizeof(*adapt->choices));
	adapt->read_from_ns = calloc(count, sizeof(*adapt->read_from_ns));
	adapt->use_order = calloc(count, sizeof(*adapt->use_order));
	adapt->slots = calloc(count, sizeof(*adapt->slots));
	adapt->gone = calloc(count, sizeof(*adapt->gone));
	adapt->tensors = calloc(count, sizeof(*adapt->tensors));
	if (recording_open(&adapt->now, count, adapt->scopes_max) ||
	    recording_open(&adapt->basis, count, adapt->scopes_max) || !adapt->choices ||
	    !adapt->read_from_ns || !adapt->use_order || !adapt->slots || !adapt->gone ||
	    !adapt->tensors || shapes_open(adapt))
		return spw_error(-ENOMEM, "no memory to record %u tensors: lower tensors_max",
				 count);
	return 0;
}

void spw_record_close(struct spw_cache *cache)
{
	struct adapt *adapt = &cache->adapt;

	shapes_close(adapt);
	recording_close(&adapt->now);
	recording_close(&adapt->basis);
	free(adapt->choices);
	free(adapt->read_from_ns);
	free(adapt->use_order);
	free(adapt->slots);
	free(adapt->gone);
	free(adapt->tensors);
}

/* ---- Time ---- */

uint64_t spw_record_compute_ns(const struct spw_cache *cache)
{
	const struct adapt *adapt = &cache->adapt;
	uint64_t until_ns = adapt->waiting > 0 ? adapt->waiting_since_ns : cache->ports.clock_ns();

	return until_ns - adapt->began_ns - adapt->waited_ns;
}

void spw_record_wait_began(struct spw_cache *cache, uint64_t now_ns)
{
	if (cache->adapt.waiting++ == 0)
		cache->adapt.waiting_since_ns = now_ns;
}

void spw_record_wait_ended(struct spw_cache *cache, uint64_t now_ns)
{
	struct adapt *adapt = &cache->adapt;

	SPW_ASSERT(adapt->waiting > 0);
	if (--adapt->waiting == 0)
		adapt->waited_ns += now_ns - adapt->waiting_since_ns;
}

/* Of an event: later than that of the one before, so that the planner sees them in their order. */
static uint64_t event_ns(struct spw_cache *cache)
{
	uint64_t now_ns = spw_record_compute_ns(cache);

	if (now_ns <= cache->adapt.event_ns)
		now_ns = cache->adapt.event_ns + 1;
	cache->adapt.event_ns = now_ns;
	return now_ns;
}

void spw_record_drain(struct spw_cache *cache)
{
	const struct adapt *adapt = &cache->adapt;
	struct recording *now = &cache->adapt.now;

	/*
	 * What has no room is not known to the plan, which then expects memory to be given back a
	 * little later.
	 */
	if (adapt->recording && now->drains < DRAINS_MAX(adapt->tensors_max, adapt->scopes_max) &&
	    spw_record_compute_ns(cache) >= adapt->event_ns + DRAIN_APART_NS)
		now->drains_ns[now->drains++] = event_ns(cache);
}

/* The time since this was last called goes to the scope that was the innermost. */
static void charge(struct spw_cache *cache, uint64_t now_ns)
{
	struct adapt *adapt = &cache->adapt;
	uint64_t ns = now_ns - adapt->charged_ns;

	adapt->charged_ns = now_ns;
	if (adapt->scope == NO_SCOPE)
		return;
	adapt->now.scopes[adapt->scope].compute_ns += ns;
	if (adapt->now.scopes[adapt->scope].stage == SPW_STAGE_FORWARD)
		adapt->now.forward_ns += ns;
	else
		adapt->now.backward_ns += ns;
}

void spw_record_begin(struct spw_cache *cache)
{
	struct adapt *adapt = &cache->adapt;

	adapt->began_ns = cache->ports.clock_ns();
	adapt->waited_ns = 0;
	adapt->waiting_since_ns = adapt->began_ns; /* of takes that are still at it */
	adapt->charged_ns = adapt->event_ns = 0;
	adapt->scope = adapt->stage_scope = NO_SCOPE;
	adapt->peak_bytes = adapt->old_bytes = cache->count.activation_bytes;
	adapt->recording = adapt->records;
	adapt->now.count = adapt->now.scope_count = adapt->now.plannable = adapt->now.drains = 0;
	adapt->now.forward_ns = adapt->now.backward_ns = adapt->now.takes = 0;
	adapt->now.is_short = false;
}

/* ---- Scopes ---- */

static uint32_t scope_new(struct spw_cache *cache, uint64_t key)
{
	struct adapt *adapt = &cache->adapt;
	struct recording *now = &adapt->now;
	uint64_t enter_ns;

	if (!adapt->recording)
		return NO_SCOPE;
	enter_ns = spw_record_compute_ns(cache);
	charge(cache, enter_ns);
	if (now->scope_count == adapt->scopes_max) {
		now->is_short = true;
		return NO_SCOPE;
	}
	now->scopes[now->scope_count] = (struct recorded_scope){.key = key,
								.enter_ns = enter_ns,
								.micro_batch = cache->micro_batch,
								.stage = (uint8_t)cache->stage};
	adapt->scope = now->scope_count++;
	spw_adapt_scope(cache, adapt->scope);
	return adapt->scope;
}

void spw_record_stage(struct spw_cache *cache)
{
	cache->adapt.stage_scope = scope_new(cache, 0);
}

uint32_t spw_record_scope_enter(struct spw_cache *cache, uint64_t key)
{
	return scope_new(cache, key);
}

void spw_record_scope_leave(struct spw_cache *cache, uint32_t outer)
{
	struct adapt *adapt = &cache->adapt;

	if (!adapt->recording)
		return;
	charge(cache, spw_record_compute_ns(cache));
	if (adapt->scope != NO_SCOPE && adapt->scope != adapt->stage_scope) {
		adapt->now.scopes[adapt->scope].left = true;
		spw_adapt_scope_left(cache, adapt->scope);
	}
	adapt->scope = outer != NO_SCOPE ? outer : adapt->stage_scope;
}

/* ---- Tensors ---- */

/* Its record in this step, or NULL. */
static struct recorded *recorded_of(const struct entry *entry)
{
	struct adapt *adapt = &entry->cache->adapt;

	if (!adapt->recording || entry->recorded == NO_TENSOR ||
	    entry->recorded_step != entry->cache->step)
		return NULL;
	return &adapt->now.tensors[entry->recorded];
}

void spw_record_offer(struct entry *entry, enum spw_cache_hint hint)
{
	struct spw_cache *cache = entry->cache;
	struct adapt *adapt = &cache->adapt;
	struct recording *now = &adapt->now;
	struct recorded *recorded;
	bool worth = entry->len_bytes >= cache->opts.min_bytes || hint == SPW_HINT_SPILL;

	entry->recorded = entry->matched = NO_TENSOR;
	entry->recorded_step = cache->step;
	if (!adapt->recording)
		return;
	if (now->count == adapt->tensors_max || adapt->scope == NO_SCOPE) {
		now->is_short = true;
		return;
	}
	recorded = &now->tensors[now->count];
	*recorded = (struct recorded){.bytes = entry->len_bytes,
				      .pack_ns = event_ns(cache),
				      .scope = adapt->scope,
				      .place = now->scopes[adapt->scope].plannable,
				      .matched = NO_TENSOR,
				      .hint = (uint8_t)hint,
				      .plannable = worth && cache->stage == SPW_STAGE_FORWARD};
	entry->recorded = now->count++;
	if (!recorded->plannable)
		return;
	entry->matched = recorded->matched = spw_adapt_match(cache, recorded);
	now->scopes[recorded->scope].plannable++;
	now->plannable++;
	if (entry->matched != NO_TENSOR)
		adapt->slots[entry->matched] = (uint32_t)(entry - cache->entries);
}

void spw_record_hint(struct entry *entry, enum spw_cache_hint hint)
{
	struct recorded *recorded = recorded_of(entry);

	if (recorded &&
	    (hint == SPW_HINT_PIN || (hint == SPW_HINT_KEEP && recorded->hint != SPW_HINT_PIN)))
		recorded->hint = (uint8_t)hint;
}

void spw_record_take(struct entry *entry)
{
	struct recorded *recorded = recorded_of(entry);

	if (!recorded)
		return;
	if (recorded->takes++ == 0)
		recorded->use_ns = event_ns(entry->cache);
	entry->cache->adapt.now.takes++;
	if (recorded->matched != NO_TENSOR && recorded->takes == 1)
		spw_adapt_progress(entry->cache,
				   entry->cache->adapt.basis.tensors[recorded->matched].use_ns);
}

/* The last user is gone; called again when the last lease is. */
void spw_record_release(struct entry *entry)
{
	struct recorded *recorded = recorded_of(entry);

	if (!recorded)
		return;
	recorded->released = true;
	recorded->release_ns = event_ns(entry->cache);
	if (recorded->matched == NO_TENSOR)
		return;
	if (entry->leases == 0)
		spw_adapt_progress(entry->cache,
				   entry->cache->adapt.basis.tensors[recorded->matched].release_ns);
	entry->cache->adapt.slots[recorded->matched] = NO_TENSOR;
	entry->cache->adapt.gone[recorded->matched] = true;
}

void spw_record_end(struct spw_cache *cache)
{
	struct adapt *adapt = &cache->adapt;
	uint64_t now_ns;

	if (!adapt->recording)
		return;
	charge(cache, spw_record_compute_ns(cache));
	now_ns = event_ns(cache);
	for (uint32_t i = 0; i < adapt->now.count; i++)
		if (!adapt->now.tensors[i].released)
			adapt->now.tensors[i].release_ns = now_ns;
	adapt->recording = false;
}
