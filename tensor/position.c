/* SPDX-License-Identifier: MIT */
/*
 * tensor/position.c - steps, stages and scopes: where the caller is, and the last scope of a stage
 *
 * The last scope. The backward pass starts with what the forward pass saved last, so that is kept.
 * Which scope it is shows only when the backward stage begins: too late for this step, but in time
 * for the next. So each forward stage remembers its last scope that has no scope inside and offered
 * tensors worth spilling, by its number among the stage's scopes and its key. When the next step
 * enters the same scope at the same place, it and all that follows in the stage is kept. It is
 * remembered only if the backward stage of the same micro-batch came next: in a pipeline it does
 * not. For a GPT whose blocks are scopes this keeps the last block, the final norm, the head and
 * the loss.
 */
#include "tensor/external_traffic.h"
#include "tensor/internal.h"
#include "tensor/lock.h"
#include "tensor/position.h"
#include "tensor/publish.h"
#include "tensor/search.h"
#include "tensor/trace.h"
#include "tensor/window.h"
#include "tensor/write.h"

#define PUBLISH_NS UINT64_C(100000000)

/*
 * Scopes that are open when a stage begins were not entered in it: their counts and their place are
 * those of the stage before, so none of them is the last scope of this one.
 */
static void scopes_belong_to_stage_before(struct spw_cache *cache)
{
	for (uint32_t i = 0; i < cache->depth && i < SCOPE_DEPTH_MAX; i++) {
		cache->scopes[i].ordinal = NO_ORDINAL;
		cache->scopes[i].offered_bytes = 0;
		cache->scopes[i].spilled_bytes = 0;
	}
}

static void stage_begin_forward(struct spw_cache *cache, uint32_t micro_batch)
{
	/* The next backward pass reads much later: the forward pass needs the room meanwhile. */
	if (cache->stage == SPW_STAGE_BACKWARD && cache->store)
		cache->ports.give_back(cache->store);
	cache->stage = SPW_STAGE_FORWARD;
	cache->micro_batch = micro_batch;
	cache->scopes_entered = 0;
	cache->in_last_scope = false;
	cache->last_scope = (struct last_scope){0};
	cache->stage_bytes = 0;
	cache->scope_bytes_max = 0;
	scopes_belong_to_stage_before(cache);
	spw_control__stage(control_of(cache), micro_batch, SPW_STAGE_FORWARD);
	spw_cache__window_begin(cache);
}

static void scope_remember(struct spw_cache *cache, const struct scope *scope)
{
	if (scope->has_scopes || !scope->has_tensors || scope->ordinal == NO_ORDINAL)
		return;
	cache->scope_bytes_max = SPW_MAX(cache->scope_bytes_max, scope->offered_bytes);
	cache->last_scope = (struct last_scope){.key = scope->key,
						.began_bytes = scope->began_bytes,
						.ordinal = scope->ordinal,
						.valid = true};
}

static void stage_begin_backward(struct spw_cache *cache, uint32_t micro_batch)
{
	if (cache->stage == SPW_STAGE_FORWARD && cache->stage_ordinal < STAGES_MAX) {
		struct last_scope *record = &cache->records[cache->stage_ordinal];
		struct scope *open = scope_innermost(cache);

		if (open)
			scope_remember(cache, open);
		*record = cache->last_scope;
		record->valid = record->valid && micro_batch == cache->micro_batch;
		SPW_ASSERT(record->began_bytes <= cache->stage_bytes);
		record->bytes = cache->stage_bytes - record->began_bytes;
		record->scope_bytes_max = cache->scope_bytes_max;
	}
	cache->stage = SPW_STAGE_BACKWARD;
	cache->micro_batch = micro_batch;
	spw_control__stage(control_of(cache), micro_batch, SPW_STAGE_BACKWARD);
	spw_cache__window_begin(cache);
}

void spw_cache__rule_taken(struct spw_cache *cache)
{
	if (cache->stage == SPW_STAGE_FORWARD && !cache->backward_marked)
		stage_begin_backward(cache, cache->micro_batch);
}

/* As the recording has it. */
static void stage_begin(struct spw_cache *cache, const struct spw_trace_event *event)
{
	spw_cache__enter(cache);
	spw_cache__traffic_note(cache);
	if (cache->opts.trace)
		spw_trace_write(cache->opts.trace, event);
	cache->next_backward = event->next_backward;
	cache->next_micro_batch = event->next_micro_batch;
	if (event->backward) {
		cache->backward_marked = true;
		stage_begin_backward(cache, event->micro_batch);
	} else {
		stage_begin_forward(cache, event->micro_batch);
	}
	cache->stage_ordinal++;
	spw_cache__unlock_and_notify(cache);
}

/* The last step that was seen ends, if it has not ended yet. */
static void step_end(struct spw_cache *cache)
{
	/* A recompute that an exception interrupted may not have been ended. */
	if (cache->recompute_depth > 0)
		spw_control__recomputing(control_of(cache), false);
	cache->recompute_depth = 0;
	if (spw_control__rests(control_of(cache)))
		return;
	spw_cache__search_wait(cache);
	spw_cache__traffic_ranks(cache);
	if (spw_control__step_ended(control_of(cache)))
		spw_cache__search_begin(cache);
	spw_cache__window_forget(cache);
}

static void step_begin(struct spw_cache *cache)
{
	spw_control__rest_end(control_of(cache));
	cache->step++;
	cache->stage_ordinal = 0;
	cache->depth = 0;
	cache->scope_spilled_bytes_max = 0;
	cache->tensor_spilled_bytes_max = 0;
	spw_notices_again(&cache->notices,
			  1u << NOTICE_MEMORY | 1u << NOTICE_THROTTLE | 1u << CONTROL_NOTICE_WEAR);
	cache->next_backward = false;
	spw_control__step_began(control_of(cache));
	stage_begin_forward(cache, 0);
}

/*
 * Another step rests. That is all that it costs, so what others read of it, such as the command,
 * comes from time to time.
 */
static bool rests_on(struct spw_cache *cache, enum spw_step *result)
{
	bool rests, last;
	uint64_t now_ns;

	if (cache->opts.trace || cache->recompute_depth > 0 ||
	    !spw_control__rests_on(control_of(cache)))
		return false;
	rests = spw_control__rest_begin(control_of(cache), &last);
	SPW_ASSERT(rests);
	*result = last ? SPW_STEP_RESTS_LAST : SPW_STEP_RESTS;
	cache->count.steps++;
	cache->count.steps_resting++;
	now_ns = cache->ports.clock_ns();
	if (last || now_ns - cache->published_ns >= PUBLISH_NS) {
		cache->published_ns = now_ns;
		spw_cache__publish(cache);
	}
	return true;
}

static enum spw_step step(struct spw_cache *cache, bool may_rest)
{
	uint64_t began_ns;
	enum spw_step result = SPW_STEP_SEEN;
	bool last;

	spw_cache__enter(cache);
	if (may_rest && rests_on(cache, &result)) {
		spw_cache__unlock_and_notify(cache);
		return result;
	}
	began_ns = cache->ports.cpu_ns();
	spw_cache__traffic_note(cache);
	CACHE_TRACE(cache, .kind = SPW_TRACE_STEP);
	step_end(cache);
	cache->count.steps++;
	spw_cache__publish(cache);
	if (spw_control__is_calm(control_of(cache)))
		result = SPW_STEP_CALM;
	/* A recording has every step. */
	if (may_rest && !cache->opts.trace && spw_control__rest_begin(control_of(cache), &last))
		result = last ? SPW_STEP_RESTS_LAST : SPW_STEP_RESTS;
	if (result >= SPW_STEP_RESTS)
		cache->count.steps_resting++;
	else
		step_begin(cache);
	cache->count.step_cpu_ns_max = SPW_MAX(cache->count.step_cpu_ns_max,
					       spw_since_ns(began_ns, cache->ports.cpu_ns()));
	spw_cache__unlock_and_notify(cache);
	return result;
}

void spw_cache_step(struct spw_cache *cache)
{
	(void)step(cache, false);
}

int spw_cache_step_rest(struct spw_cache *cache, bool may_rest)
{
	return (int)step(cache, may_rest);
}

void spw_cache_stage(struct spw_cache *cache, uint32_t micro_batch, enum spw_stage stage)
{
	stage_begin(cache, &(struct spw_trace_event){.kind = SPW_TRACE_STAGE,
						     .micro_batch = micro_batch,
						     .backward = stage == SPW_STAGE_BACKWARD});
}

void spw_cache_stage_next(struct spw_cache *cache, uint32_t micro_batch, enum spw_stage stage,
			  uint32_t next_micro_batch, enum spw_stage next_stage)
{
	stage_begin(cache,
		    &(struct spw_trace_event){.kind = SPW_TRACE_STAGE,
					      .micro_batch = micro_batch,
					      .backward = stage == SPW_STAGE_BACKWARD,
					      .has_next = true,
					      .next_micro_batch = next_micro_batch,
					      .next_backward = next_stage == SPW_STAGE_BACKWARD});
}

/* Three times the largest scope: this one, and as much each for a head and a loss. */
static void last_scope_began(struct spw_cache *cache, const struct last_scope *record)
{
	uint64_t kept = SPW_MIN(record->bytes, 3 * record->scope_bytes_max);

	cache->in_last_scope = true;
	cache->keep_from_bytes = cache->stage_bytes + record->bytes - kept;
}

void spw_cache_scope_enter(struct spw_cache *cache, uint64_t scope_key)
{
	const struct last_scope *record;
	struct scope *scope;

	spw_cache__enter(cache);
	spw_cache__traffic_note(cache);
	scope = scope_innermost(cache);
	if (scope)
		scope->has_scopes = true;
	cache->depth++;
	if (cache->depth <= SCOPE_DEPTH_MAX)
		*scope_innermost(cache) = (struct scope){
			.key = scope_key,
			.began_bytes = cache->stage_bytes,
			.ordinal = cache->scopes_entered,
			.serial = ++cache->scopes_serial,
			.recorded = spw_control__scope_enter(control_of(cache), scope_key)};
	spw_cache__window_follow(cache);
	if (cache->stage == SPW_STAGE_FORWARD && cache->stage_ordinal < STAGES_MAX) {
		record = &cache->records[cache->stage_ordinal];
		if (record->valid && record->ordinal == cache->scopes_entered &&
		    record->key == scope_key)
			last_scope_began(cache, record);
		cache->scopes_entered++;
	}
	CACHE_TRACE(cache, .kind = SPW_TRACE_SCOPE_ENTER, .scope_key = scope_key);
	spw_cache__unlock_and_notify(cache);
}

void spw_cache_scope_leave(struct spw_cache *cache)
{
	spw_cache__enter(cache);
	if (cache->depth > 0) {
		if (cache->stage == SPW_STAGE_FORWARD && cache->depth <= SCOPE_DEPTH_MAX)
			scope_remember(cache, scope_innermost(cache));
		cache->depth--;
		if (cache->depth < SCOPE_DEPTH_MAX)
			spw_control__scope_leave(control_of(cache),
						 cache->depth > 0 ? scope_innermost(cache)->recorded
								  : NO_SCOPE);
		spw_cache__window_follow(cache);
	}
	CACHE_TRACE(cache, .kind = SPW_TRACE_SCOPE_LEAVE);
	spw_cache__unlock_and_notify(cache);
}
