/* SPDX-License-Identifier: MIT */
/*
 * tensor/hold.c - a forward pass that is ahead of its plan is held back
 *
 * One that is faster than planned saves more than the drives have taken, and would hold more than
 * is planned. So compute waits for writes to end, but no longer than until the plan is as far: then
 * the step ends no later than planned. What waits is the caller, and not an offer: so it can let go
 * of its own locks, and give back what has been written.
 */
#include <inttypes.h>

#include "tensor/internal.h"

/* Room is wanted, and a write that makes it is under way, or is about to be. */
static bool is_to_wait(const struct spw_cache *cache)
{
	return (cache->owner_writes_in_flight > 0 || cache->held) &&
	       spw_control_is_ahead(cache->control, cache->returned_bytes);
}

static void hold(struct spw_cache *cache)
{
	uint64_t ns = spw_control_wait_began(cache->control);

	spw_write_held(cache);
	while (is_to_wait(cache))
		spw_cache_wait_io_until(cache, spw_control_hold_until_ns(cache->control));
	ns = spw_control_hold_ended(cache->control, ns);
	cache->count.holds++;
	cache->count.hold_ns += ns;
	CACHE_TRACE(cache, .kind = SPW_TRACE_HOLD, .wait_ns = ns);
	spw_notice(&cache->notices, NOTICE_HOLD,
		   "a forward pass is ahead of its plan: it is held back while it holds more than "
		   "the %" PRIu64 " bytes that are planned, and ends no later for it (see hold_ns)",
		   spw_control_memory_bytes(cache->control));
}

int spw_cache_hold_back(struct spw_cache *cache, bool wait)
{
	bool held;

	spw_cache_lock(cache);
	held = is_to_wait(cache);
	if (held && wait)
		hold(cache);
	spw_cache_unlock_and_notify(cache);
	return held;
}
