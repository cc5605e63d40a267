/* SPDX-License-Identifier: MIT */
/* tensor/publish.c - how the cache is doing: for the store to publish, and over the last step */
#include "tensor/internal.h"
#include "tensor/lock.h"
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

unsigned spw_cache_profile(struct spw_cache *cache, struct spw_memory_point points[],
			   unsigned count)
{
	struct spw_memory_point all[SPW_MEMORY_POINTS_MAX];
	unsigned found;

	spw_cache__lock(cache);
	found = spw_control__profile(control_of(cache), all);
	spw_cache__unlock(cache);
	memcpy(points, all, SPW_MIN(found, count) * sizeof(*points));
	return found;
}
