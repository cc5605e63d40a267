/* SPDX-License-Identifier: MIT */
/* tensor/rules.c - which tensors are kept, spilled or discarded */
#include "tensor/internal.h"
#include "tensor/rules.h"
#include "tensor/write.h"

/* What the caller's hint says, or the plan, or else the fixed rule. */
static enum keep_reason rule_wish(const struct entry *entry, enum spw_cache_hint hint)
{
	const struct spw_cache *cache = entry->cache;
	enum spw_plan_choice choice;

	if (entry->len_bytes < cache->opts.min_bytes)
		return KEEP_SMALL;
	if (hint == SPW_HINT_PIN)
		return KEEP_HINT;
	if (spw_control__choice(control_of(cache), &entry->track, &choice))
		return spw_control__leaves(choice) ? KEEP_NOT
		       : hint == SPW_HINT_KEEP     ? KEEP_HINT
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

	if (cache->opts.mode == SPW_CACHE_OBSERVE)
		return reason == KEEP_SMALL ? KEEP_SMALL : KEEP_OBSERVED;
	return reason;
}

enum keep_reason spw_cache__rule_limit(const struct entry *entry)
{
	const struct spw_cache *cache = entry->cache;
	uint64_t len_bytes = entry->len_bytes;

	if (!cache->store)
		return entry->device && cache->host.count > 0 ? KEEP_NO_STAGING : KEEP_OBSERVED;
	/* A device's offer can wait for room: spw_cache__write_begin_copy(). */
	if (len_bytes > cache->opts.staging_bytes ||
	    (!entry->device && spw_cache__write_is_full(cache, len_bytes)))
		return KEEP_BACKPRESSURE;
	if (!spw_control__may_write(control_of(cache), cache->count.staging_bytes, len_bytes))
		return KEEP_WEAR;
	return KEEP_NOT;
}

bool spw_cache__rule_discards(const struct entry *entry, enum spw_cache_hint hint)
{
	const struct spw_cache *cache = entry->cache;
	enum spw_plan_choice choice;

	if (cache->stage != SPW_STAGE_FORWARD || entry->len_bytes < cache->opts.min_bytes ||
	    cache->opts.mode == SPW_CACHE_OBSERVE)
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
