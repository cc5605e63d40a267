/* SPDX-License-Identifier: MIT */
/*
 * tensor/rules.c - what is kept and spilled, and what steps, stages and scopes mean for it
 *
 * The last scope. What the forward pass saves last the backward pass wants first. Which scope that
 * is shows when the backward stage begins: too late for this step, but not for the next. So
 * each forward stage remembers the last scope with no scope inside that offered tensors worth
 * spilling, by its number among the stage's scopes and its key; when the next step enters the same
 * scope at the same place, it and all that follows in the stage is kept. It is remembered only if
 * the backward stage of the same micro-batch came next: in a pipeline it does not. For a GPT whose
 * blocks are scopes this keeps the last block, the final norm, the head and the loss.
 */
#include "tensor/internal.h"

/* ---- What is kept ---- */

/* What the caller's hint says, or the plan, or else the fixed rule. */
static enum keep_reason rule_wish(const struct entry *entry, enum spw_cache_hint hint)
{
	const struct spw_cache *cache = entry->cache;
	enum spw_plan_choice choice;

	if (hint == SPW_HINT_SPILL && cache->stage == SPW_STAGE_FORWARD)
		return KEEP_NOT;
	if (entry->len_bytes < cache->opts.min_bytes)
		return KEEP_SMALL;
	if (hint == SPW_HINT_PIN)
		return KEEP_HINT;
	if (spw_control__choice(control_of(cache), &entry->track, &choice))
		return choice == SPW_PLAN_SPILL ? KEEP_NOT
		       : hint == SPW_HINT_KEEP  ? KEEP_HINT
						: KEEP_PLANNED;
	if (hint == SPW_HINT_KEEP)
		return KEEP_HINT;
	if (cache->stage == SPW_STAGE_BACKWARD)
		return KEEP_BACKWARD;
	if (cache->in_last_scope && !cache->opts.spill_last_scope &&
	    cache->stage_bytes + entry->len_bytes > cache->keep_from_bytes)
		return KEEP_LAST_SCOPE;
	return KEEP_NOT;
}

enum keep_reason spw_cache__rule_keep(const struct entry *entry, enum spw_cache_hint hint)
{
	const struct spw_cache *cache = entry->cache;
	enum keep_reason reason = rule_wish(entry, hint);
	uint64_t len_bytes = entry->len_bytes;

	if (cache->opts.mode == SPW_CACHE_OBSERVE)
		return reason == KEEP_SMALL ? KEEP_SMALL : KEEP_OBSERVED;
	if (reason != KEEP_NOT)
		return reason;
	if (!cache->store)
		return KEEP_OBSERVED;
	/* A device's offer can wait for room: spw_cache__write_begin_copy(). */
	if (len_bytes > cache->opts.staging_bytes ||
	    (!entry->device && spw_cache__write_is_full(cache, len_bytes)))
		return KEEP_BACKPRESSURE;
	if (!spw_control__may_write(control_of(cache), cache->count.staging_bytes, len_bytes))
		return KEEP_WEAR;
	return KEEP_NOT;
}

bool spw_cache__rule_gives_up(const struct entry *entry, enum spw_cache_hint hint)
{
	const struct spw_cache *cache = entry->cache;
	enum spw_plan_choice choice;

	if (cache->depth == 0 || cache->stage != SPW_STAGE_FORWARD ||
	    entry->len_bytes < cache->opts.min_bytes || cache->opts.mode == SPW_CACHE_OBSERVE)
		return false;
	if (hint == SPW_HINT_GIVE_UP)
		return true;
	return hint == SPW_HINT_AGAIN &&
	       spw_control__choice(control_of(cache), &entry->track, &choice) &&
	       choice == SPW_PLAN_AGAIN;
}

uint64_t spw_cache__rule_scope(const struct spw_cache *cache)
{
	uint32_t depth = SPW_MIN(cache->depth, SCOPE_DEPTH_MAX);

	return depth > 0 ? cache->scopes[depth - 1].serial : 0;
}

static struct scope *scope_innermost(struct spw_cache *cache)
{
	if (cache->depth == 0)
		return NULL;
	return &cache->scopes[cache->depth < SCOPE_DEPTH_MAX ? cache->depth - 1
							     : SCOPE_DEPTH_MAX - 1];
}

void spw_cache__rule_offered(struct spw_cache *cache, uint64_t len_bytes, bool spilled)
{
	struct scope *scope = scope_innermost(cache);

	if (spilled && len_bytes > cache->tensor_spilled_bytes_max)
		cache->tensor_spilled_bytes_max = len_bytes;
	if (len_bytes >= cache->opts.min_bytes)
		cache->stage_bytes += len_bytes;
	if (!scope)
		return;
	if (len_bytes >= cache->opts.min_bytes) {
		scope->has_tensors = true;
		scope->offered_bytes += len_bytes;
	}
	if (!spilled)
		return;
	scope->spilled_bytes += len_bytes;
	if (scope->spilled_bytes > cache->scope_spilled_bytes_max)
		cache->scope_spilled_bytes_max = scope->spilled_bytes;
}

/* ---- Where the caller is ---- */

static void stage_begin_forward(struct spw_cache *cache, uint32_t micro_batch)
{
	cache->stage = SPW_STAGE_FORWARD;
	cache->micro_batch = micro_batch;
	cache->scopes_entered = 0;
	cache->in_last_scope = false;
	cache->last_scope.valid = false;
	cache->stage_bytes = 0;
	cache->scope_bytes_max = 0;
	spw_control__stage(control_of(cache), micro_batch, SPW_STAGE_FORWARD);
	spw_cache__window_begin(cache);
}

static void scope_remember(struct spw_cache *cache, const struct scope *scope)
{
	if (scope->has_scopes || !scope->has_tensors)
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
	spw_cache__others_note(cache);
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

void spw_cache_step(struct spw_cache *cache)
{
	uint64_t began_ns = cache->ports.cpu_ns();

	spw_cache__enter(cache);
	spw_cache__others_note(cache);
	CACHE_TRACE(cache, .kind = SPW_TRACE_STEP);
	/* Who was interrupted may not have said that it has ended. */
	if (cache->again_depth > 0)
		spw_control__again(control_of(cache), false);
	cache->again_depth = 0;
	spw_cache__search_wait(cache);
	spw_cache__others_ranks(cache);
	if (spw_control__step_ended(control_of(cache)))
		spw_cache__search_begin(cache);
	spw_cache__window_forget(cache);
	cache->count.steps++;
	spw_cache__publish(cache);
	cache->step++;
	cache->stage_ordinal = 0;
	cache->depth = 0;
	cache->scope_spilled_bytes_max = 0;
	cache->tensor_spilled_bytes_max = 0;
	spw_notices_again(&cache->notices,
			  1u << NOTICE_MEMORY | 1u << NOTICE_HOLD | 1u << CONTROL_NOTICE_WEAR);
	cache->next_backward = false;
	spw_control__step_began(control_of(cache));
	stage_begin_forward(cache, 0);
	cache->count.step_cpu_ns_max = SPW_MAX(cache->count.step_cpu_ns_max,
					       spw_since_ns(began_ns, cache->ports.cpu_ns()));
	spw_cache__unlock_and_notify(cache);
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
	spw_cache__others_note(cache);
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
