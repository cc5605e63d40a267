/* SPDX-License-Identifier: MIT */
/*
 * tensor/window.c - what is read ahead, in which order and how far
 *
 * By a plan: strictly in the order in which the last step used what is spilled, over all stages;
 * each as soon as the planner's rule for reading ahead (plan/reads.c) and the memory in use now
 * allow. Without one: the backward stage's tensors in the reverse order of their last offers, then
 * those of the backward stage that the caller says comes next, within a fixed budget.
 *
 * What is still in memory when its turn comes is not given back only to be read again: its write is
 * cancelled if it can be. So the window is always what comes next, wherever it is.
 */
#include <errno.h>

#include "tensor/internal.h"

/*
 * Enough in flight that no drive is idle between two requests; what is begun later takes memory
 * later.
 */
#define CHUNKS_IN_FLIGHT 4u /* of each drive */
#define READS_IN_FLIGHT  2u

static void window_enter(struct entry *entry)
{
	struct spw_cache *cache = entry->cache;

	SPW_ASSERT(!entry->in_window);
	entry->in_window = entry->foreseen = true;
	gauge_add(&cache->count.prefetched_bytes, &cache->count.prefetched_bytes_max,
		  entry->len_bytes);
	if (cache->stage != SPW_STAGE_BACKWARD || entry->micro_batch != cache->micro_batch)
		cache->count.prefetches_across++;
}

void spw_window_leave(struct entry *entry)
{
	if (!entry->in_window)
		return;
	entry->in_window = false;
	gauge_sub(&entry->cache->count.prefetched_bytes, entry->len_bytes);
}

/* Return: 0; or why not now: again when something has ended. */
static int window_take_in(struct entry *entry)
{
	int rc = 0;

	if (entry->state != ENTRY_STORED)
		spw_spill_forward(entry);
	else
		rc = spw_fetch_ahead(entry);
	if (rc == 0)
		window_enter(entry);
	return rc;
}

/* Whether the drives would be idle soon. */
static bool reads_wanted(const struct spw_cache *cache)
{
	const struct flow *reads = &cache->measure.flows[DIRECTION_READ];

	return reads->in_flight < READS_IN_FLIGHT ||
	       reads->bytes_in_flight < CHUNKS_IN_FLIGHT * cache->chunk_bytes * cache->drives;
}

/* ---- Without a plan ---- */

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
	/* Too large for the budget at any time; or a take is at it already. */
	if (entry->len_bytes > cache->count.prefetch_budget_bytes || entry->waiters > 0)
		return false;
	return entry->state == ENTRY_STORED || entry->state == ENTRY_QUEUED ||
	       entry->state == ENTRY_LEAVING;
}

/*
 * What this step has held already it may hold again: the peak stays as it is, and the drives may be
 * slow.
 */
static bool fits_below_peak(const struct spw_cache *cache, const struct entry *entry)
{
	bool plans = cache->opts.mode == SPW_CACHE_FASTEST || cache->opts.mode == SPW_CACHE_BUDGET;

	return plans && cache->opts.prefetch_bytes == 0 && cache->stage == SPW_STAGE_BACKWARD &&
	       reads_wanted(cache) &&
	       cache->count.activation_bytes + entry->len_bytes <= cache->adapt.peak_bytes;
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
			    !fits_below_peak(cache, entry))
				return;
			if (window_take_in(entry))
				return;
		}
		cache->cursor = cache->cursor->previous;
	}
}

/* ---- By the plan ---- */

/*
 * @late: the plan would have begun it by now. So as to keep reads going, it may then take a little
 * more memory.
 */
static bool room_now(const struct spw_cache *cache, const struct entry *entry, bool late)
{
	bool idle = cache->measure.flows[DIRECTION_READ].in_flight == 0;
	uint64_t held_bytes = cache->count.activation_bytes - cache->adapt.old_bytes;

	return held_bytes + entry->len_bytes <= spw_adapt_memory_bytes(cache, late && idle) &&
	       reads_wanted(cache);
}

/* The turn of one tensor. Return: whether that of the next has come. */
static bool fill_one(struct spw_cache *cache, uint32_t which, uint64_t now_ns)
{
	struct adapt *adapt = &cache->adapt;
	struct entry *entry;

	if (adapt->gone[which])
		return true;
	if (adapt->slots[which] ==
	    NO_TENSOR) /* not offered: it comes yet, or it should have by now */
		return adapt->progress_ns > adapt->basis.tensors[which].pack_ns;
	entry = &cache->entries[adapt->slots[which]];
	if (entry->waiters > 0 || (entry->state != ENTRY_STORED && entry->state != ENTRY_QUEUED &&
				   entry->state != ENTRY_LEAVING))
		return true;
	if (now_ns + adapt->lead_ns < adapt->read_from_ns[which] && !adapt->stalled_now)
		return false;
	if (entry->state == ENTRY_STORED &&
	    !room_now(cache, entry, now_ns > adapt->read_from_ns[which] + adapt->lead_ns))
		return false;
	return window_take_in(entry) == 0;
}

static void fill_by_plan(struct spw_cache *cache)
{
	struct adapt *adapt = &cache->adapt;
	uint64_t now_ns;

	if (adapt->use_next == adapt->use_count)
		return;
	now_ns = spw_adapt_now_ns(cache);
	while (adapt->use_next < adapt->use_count &&
	       fill_one(cache, adapt->use_order[adapt->use_next], now_ns))
		adapt->use_next++;
}

/* ---- Both ---- */

void spw_window_forget(struct spw_cache *cache)
{
	if (cache->count.prefetched_bytes == 0)
		return;
	for (struct link *link = cache->order.next; link != &cache->order; link = link->next)
		spw_window_leave(ENTRY_OF(link, order));
}

void spw_window_begin(struct spw_cache *cache)
{
	bool planned = spw_adapt_in_force(cache);

	cache->window_next = false;
	cache->window_micro_batch = cache->micro_batch;
	cache->cursor = &cache->order;
	if (planned && cache->stage == SPW_STAGE_BACKWARD) {
		cache->count.prefetch_budget_bytes = spw_adapt_memory_bytes(cache, false);
	} else if (!planned && cache->stage == SPW_STAGE_BACKWARD) {
		cache->count.prefetch_budget_bytes = spw_rule_window_bytes(cache);
		cache->cursor = cache->order.previous;
	} else if (!planned && window_go_on(cache)) {
		cache->count.prefetch_budget_bytes = spw_rule_window_bytes(cache);
	}
	spw_window_fill(cache);
}

void spw_window_fill(struct spw_cache *cache)
{
	if (spw_adapt_in_force(cache))
		fill_by_plan(cache);
	else
		fill_in_reverse(cache);
}
