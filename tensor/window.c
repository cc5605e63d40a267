/* SPDX-License-Identifier: MIT */
/*
 * tensor/window.c - what is prefetched, in which order and how far
 *
 * By a plan: in the order in which the last step used what is spilled, over all stages; each as
 * soon as the plan and the memory in use now allow. Without one: the backward stage's
 * tensors in the reverse order of their last offers, then those of the stage said to come next,
 * within a budget.
 *
 * What is still in memory when its turn comes stays there: its write is cancelled if it can be.
 */
#include <errno.h>

#include "tensor/entry.h"
#include "tensor/internal.h"
#include "tensor/read.h"
#include "tensor/window.h"
#include "tensor/write.h"

static void window_enter(struct entry *entry)
{
	struct spw_cache *cache = entry->cache;

	SPW_ASSERT(!entry->in_window && entry->users > 0);
	entry->in_window = entry->prefetched = true;
	if (entry->device && !entry_at_owner(entry))
		queue_join(&cache->coming, entry);
	gauge_add(&cache->count.prefetched_bytes, &cache->count.prefetched_bytes_max,
		  entry->len_bytes);
	if (cache->stage != SPW_STAGE_BACKWARD || entry->micro_batch != cache->micro_batch)
		cache->count.prefetches_across++;
}

/* Return: 0; or why not now: again when something has ended. */
static int window_take_in(struct entry *entry)
{
	int rc = 0;

	if (entry->state == ENTRY_HOST)
		spw_cache__entry_become(entry, ENTRY_RESIDENT);
	else if (entry->state != ENTRY_STORED)
		spw_cache__write_forward(entry);
	else
		rc = spw_cache__read_prefetch(entry);
	if (rc == 0)
		window_enter(entry);
	return rc;
}

/* On the drives or in host memory, or on its way there; and no take is at it already. */
static bool is_on_its_way(const struct entry *entry)
{
	return entry->waiters == 0 && !entry->copied_ahead &&
	       (entry->state == ENTRY_STORED || entry->state == ENTRY_HOST ||
		entry->state == ENTRY_QUEUED || entry->state == ENTRY_LEAVING);
}

/* ---- Without a plan ---- */

/*
 * Automatic: one scope ahead, so that the drives have the time of its backward pass; never less
 * than a tensor or two chunks. Without scopes, two tensors of the largest size.
 */
static uint64_t window_bytes(const struct spw_cache *cache)
{
	uint64_t bytes = 2 * cache->chunk_bytes;

	if (cache->opts.prefetch_bytes > 0)
		return cache->opts.prefetch_bytes;
	if (bytes < cache->scope_spilled_bytes_max)
		bytes = cache->scope_spilled_bytes_max;
	if (bytes < 2 * cache->tensor_spilled_bytes_max)
		bytes = 2 * cache->tensor_spilled_bytes_max;
	return bytes;
}

/* Go on to the backward stage that comes next, if it is known. Return: whether. */
static bool window_go_on(struct spw_cache *cache)
{
	if (cache->window_next || !cache->next_backward)
		return false;
	cache->window_next = true;
	cache->window_micro_batch = cache->next_micro_batch;
	cache->cursor = cache->order.previous;
	return true;
}

static bool window_wants(const struct spw_cache *cache, const struct entry *entry)
{
	if (entry->step != cache->step || entry->micro_batch != cache->window_micro_batch)
		return false;
	/* Too large for the budget at any time? */
	return entry->len_bytes <= cache->count.prefetch_budget_bytes && is_on_its_way(entry);
}

static void fill_in_reverse(struct spw_cache *cache)
{
	while (cache->cursor != &cache->order || window_go_on(cache)) {
		struct entry *entry = ENTRY_OF(cache->cursor, order);

		if (cache->cursor == &cache->order)
			return;
		if (window_wants(cache, entry)) {
			if (cache->count.prefetched_bytes + entry->len_bytes >
				    cache->count.prefetch_budget_bytes &&
			    !spw_control__fits_below_peak(control_of(cache),
							  entry->len_bytes + cache->coming.bytes))
				return;
			if (window_take_in(entry))
				return;
		}
		cache->cursor = cache->cursor->previous;
	}
}

/* ---- By the plan ---- */

/* Its token is drained: for a device also while the write from staging memory is in flight. */
static bool is_out(const struct entry *entry)
{
	return entry->state == ENTRY_STORED || (entry->device && !entry->owner_held);
}

static void fill_by_plan(struct spw_cache *cache)
{
	uint32_t slot;

	for (; (slot = spw_control__next(control_of(cache))) != NO_SLOT;
	     spw_control__next_done(control_of(cache))) {
		struct entry *entry = &cache->entries[slot];

		SPW_ASSERT(slot < cache->entries_touched);
		if (!is_on_its_way(entry))
			continue;
		if (!spw_control__next_is_due(control_of(cache)) ||
		    (is_out(entry) &&
		     !spw_control__next_has_room(control_of(cache),
						 entry->len_bytes + cache->coming.bytes)) ||
		    window_take_in(entry))
			return;
	}
}

/* What was decided by another plan and has not been carried out yet: the new one may keep it. */
static void keep_what_is_planned(struct spw_cache *cache)
{
	enum spw_plan_choice choice;

	for (struct link *link = cache->order.next; link != &cache->order; link = link->next) {
		struct entry *entry = ENTRY_OF(link, order);

		if ((entry->state == ENTRY_QUEUED || entry->state == ENTRY_LEAVING) &&
		    spw_control__choice(control_of(cache), &entry->track, &choice) &&
		    choice == SPW_PLAN_KEEP)
			spw_cache__write_forward(entry);
	}
}

/* ---- Both ---- */

void spw_cache__window_forget(struct spw_cache *cache)
{
	if (cache->count.prefetched_bytes == 0)
		return;
	for (struct link *link = cache->order.next; link != &cache->order; link = link->next)
		spw_cache__entry_leave_window(ENTRY_OF(link, order));
}

void spw_cache__window_begin(struct spw_cache *cache)
{
	bool planned = spw_control__follows_plan(control_of(cache));

	cache->plan_number = spw_control__plan_number(control_of(cache));
	cache->window_next = false;
	cache->window_micro_batch = cache->micro_batch;
	cache->cursor = &cache->order;
	if (planned && cache->stage == SPW_STAGE_BACKWARD) {
		cache->count.prefetch_budget_bytes = spw_control__memory_bytes(control_of(cache));
	} else if (!planned && cache->stage == SPW_STAGE_BACKWARD) {
		cache->count.prefetch_budget_bytes = window_bytes(cache);
		cache->cursor = cache->order.previous;
	} else if (!planned && window_go_on(cache)) {
		cache->count.prefetch_budget_bytes = window_bytes(cache);
	}
	spw_cache__window_fill(cache);
}

void spw_cache__window_fill(struct spw_cache *cache)
{
	if (spw_control__follows_plan(control_of(cache)))
		fill_by_plan(cache);
	else
		fill_in_reverse(cache);
}

void spw_cache__window_follow(struct spw_cache *cache)
{
	uint32_t number = spw_control__plan_number(control_of(cache));

	if (number == cache->plan_number)
		return;
	cache->plan_number = number;
	if (spw_control__follows_plan(control_of(cache)))
		keep_what_is_planned(cache);
	else
		spw_cache__window_begin(cache);
}
