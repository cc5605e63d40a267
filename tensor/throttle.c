/* SPDX-License-Identifier: MIT */
/*
 * tensor/throttle.c - a forward pass that holds more than it may waits for writes
 *
 * A forward pass that is faster than planned saves more than the drives have written, and would use
 * more memory than planned. So compute waits for writes, at most until the plan has come as far:
 * the step ends no later than planned. For a budget it waits as long as anything is being written:
 * drives that are slower than planned make such a step longer, not larger. The caller waits in a
 * call of its own, not in the offer, so that it can release its locks before and drain after.
 */
#include <inttypes.h>

#include "tensor/internal.h"
#include "tensor/lock.h"
#include "tensor/throttle.h"
#include "tensor/trace.h"
#include "tensor/write.h"

/* Until when to wait, if a write that frees memory is in flight or deferred; 0: not at all. */
static uint64_t wait_until_ns(const struct spw_cache *cache)
{
	uint64_t until_ns = 0;

	if (cache->owner_writes_in_flight > 0 || cache->deferred)
		until_ns = spw_control__throttle_until_ns(control_of(cache), cache->returned_bytes);
	return until_ns > 0 && until_ns > cache->ports.clock_ns() ? until_ns : 0;
}

static void throttle(struct spw_cache *cache)
{
	uint64_t ns = spw_control__wait_began(control_of(cache)), until_ns;
	bool late = false;

	spw_cache__write_deferred(cache);
	while ((until_ns = wait_until_ns(cache)) > 0) {
		late |= until_ns == UINT64_MAX;
		spw_cache__wait_io_until(cache, until_ns);
	}
	ns = spw_control__throttle_ended(control_of(cache), ns);
	cache->count.holds++;
	cache->count.hold_ns += ns;
	CACHE_TRACE(cache, .kind = SPW_TRACE_HOLD, .wait_ns = ns);
	if (late)
		spw_notice(&cache->notices, NOTICE_BUDGET,
			   "the drives are slower than planned: a forward pass waits for them at "
			   "the budget of %" PRIu64 " bytes, and takes longer (see hold_ns)",
			   cache->opts.memory_bytes);
	else
		spw_notice(&cache->notices, NOTICE_THROTTLE,
			   "a forward pass is ahead of its plan: it waits while it holds "
			   "more than the %" PRIu64 " bytes that are planned, and ends no later "
			   "for it (see hold_ns)",
			   spw_control__memory_bytes(control_of(cache)));
}

void spw_cache__throttle_note(struct spw_cache *cache)
{
	atomic_store_explicit(&cache->may_throttle, wait_until_ns(cache) > 0, memory_order_relaxed);
}

/*
 * Only an offer makes a forward pass exceed its plan, so most calls find the answer in what the
 * last one noted. Relaxed: a thread sees what its own offer noted, or something newer.
 */
int spw_cache_hold_back(struct spw_cache *cache, bool wait)
{
	bool held;

	if (!atomic_load_explicit(&cache->may_throttle, memory_order_relaxed))
		return 0;
	spw_cache__lock(cache);
	held = wait_until_ns(cache) > 0;
	if (held && wait)
		throttle(cache);
	spw_cache__unlock_and_notify(cache);
	return held;
}
