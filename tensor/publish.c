/* SPDX-License-Identifier: MIT */
/* tensor/publish.c - the counters as they are now, which the store publishes */
#include "tensor/internal.h"
#include "tensor/publish.h"

void spw_cache__count(const struct spw_cache *cache, struct spw_cache_stats *stats)
{
	*stats = cache->count;
	stats->size = sizeof(*stats);
	spw_control__stats(control_of(cache), stats);
	stats->waits = stats->prefetch_late + stats->misses;
#define ADD_KEPT(reason, counter) stats->bytes_kept += stats->bytes_kept_##counter;
	KEPT_COUNTERS(ADD_KEPT)
#undef ADD_KEPT
}

void spw_cache__publish(struct spw_cache *cache)
{
	struct spw_cache_stats stats;

	if (!cache->store)
		return;
	spw_cache__count(cache, &stats);
	cache->ports.publish_steps(cache->store, &stats);
}
