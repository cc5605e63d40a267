/* SPDX-License-Identifier: MIT */
/*
 * tensor/keep.c - what the plan keeps, known before it is offered: it needs no entry
 *
 * Most saved tensors of most steps stay in memory. What the plan says of one is known by its place
 * in the step; its number among the step's saves, and its length, tell that it is the tensor that
 * was planned for there. So the caller need not know its storage and content, nor hand over its
 * memory.
 */
#include <errno.h>

#include "tensor/internal.h"
#include "tensor/lock.h"
#include "tensor/position.h"
#include "tensor/rules.h"
#include "tensor/throttle.h"
#include "tensor/window.h"
#include "tensor/write.h"

static uint64_t id_of(const struct track *track)
{
	return (uint64_t)track->step << 32 | track->recorded;
}

static struct track track_of(const struct spw_kept *kept)
{
	return (struct track){.recorded = (uint32_t)kept->id, .step = (uint32_t)(kept->id >> 32)};
}

static void keep(struct spw_cache *cache, const struct track *track, uint64_t len_bytes,
		 enum spw_cache_hint hint)
{
	bool is_asked = hint == SPW_HINT_KEEP || hint == SPW_HINT_PIN;

	cache->count.offers++;
	cache->count.bytes_offered += len_bytes;
	kept_add(cache, is_asked ? KEEP_HINT : KEEP_PLANNED, len_bytes);
	gauge_add(&cache->count.activation_bytes, &cache->count.activation_bytes_max, len_bytes);
	spw_control__saved(control_of(cache), len_bytes);
	spw_control__memory_add(control_of(cache), track, len_bytes);
	spw_cache__rule_offered(cache, len_bytes, false);
}

int spw_cache_keep(struct spw_cache *cache, uint64_t number, uint64_t len_bytes,
		   struct spw_kept *kept)
{
	enum spw_cache_hint hint;
	struct track track;
	int result = 0;

	*kept = (struct spw_kept){0};

	spw_cache__enter(cache);
	spw_control__hold_clock(control_of(cache), true);
	/* A recording has every offer, with its storage. */
	if (cache->opts.trace || !spw_control__follows_plan(control_of(cache))) {
		result = -ESRCH;
	} else if (cache->recompute_depth == 0 &&
		   spw_control__keeps(control_of(cache), number, len_bytes, &track, &hint)) {
		*kept = (struct spw_kept){.id = id_of(&track), .len_bytes = len_bytes};
		keep(cache, &track, len_bytes, hint);
		result = link_alone(&cache->drain) ? 1 : 2;
	}
	spw_control__hold_clock(control_of(cache), false);
	if (result > 0) {
		spw_cache__window_fill(cache);
		spw_cache__throttle_note(cache);
	}
	spw_cache__unlock_and_notify(cache);
	return result;
}

void spw_cache_kept_again(struct spw_cache *cache, const struct spw_kept *kept)
{
	const struct track track = track_of(kept);

	spw_cache__enter(cache);
	cache->count.offers++;
	cache->count.bytes_offered += kept->len_bytes;
	cache->count.tensors_deduplicated++;
	cache->count.bytes_deduplicated += kept->len_bytes;
	spw_control__hinted(control_of(cache), &track, SPW_HINT_NONE);
	spw_cache__unlock_and_notify(cache);
}

int spw_cache_kept_used(struct spw_cache *cache, const struct spw_kept *kept)
{
	const struct track track = track_of(kept);
	bool drains;

	spw_cache__enter(cache);
	cache->count.takes++;
	spw_cache__rule_taken(cache);
	spw_control__hold_clock(control_of(cache), true);
	spw_control__taken(control_of(cache), &track);
	spw_control__hold_clock(control_of(cache), false);
	spw_cache__window_fill(cache);
	drains = !link_alone(&cache->drain);
	spw_cache__unlock_and_notify(cache);
	return drains;
}

void spw_cache_kept_gone(struct spw_cache *cache, const struct spw_kept *kept)
{
	const struct track track = track_of(kept);

	spw_cache__enter(cache);
	cache->count.releases++;
	spw_control__hold_clock(control_of(cache), true);
	spw_control__gone(control_of(cache), kept->len_bytes);
	spw_control__released(control_of(cache), &track, false);
	gauge_sub(&cache->count.activation_bytes, kept->len_bytes);
	spw_control__memory_sub(control_of(cache), &track, kept->len_bytes);
	spw_control__hold_clock(control_of(cache), false);
	spw_cache__window_fill(cache);
	spw_cache__unlock_and_notify(cache);
}
