/* SPDX-License-Identifier: MIT */
/*
 * tensor/host.c - host memory in which copies of a device's tensors stay
 *
 * What a plan or the fixed rule spills is copied there and not written, as long as there is room;
 * the rest goes to the drives. By the fixed rule those that come first stay: they are wanted last,
 * but nothing that is in this memory moves on to the drives.
 *
 * The memory is the caller's, who has pinned it, perhaps in several pieces: a copy lies in one.
 */
#include <errno.h>

#include "tensor/entry.h"
#include "tensor/host.h"
#include "tensor/internal.h"
#include "tensor/lock.h"

int spw_cache_host_memory(struct spw_cache *cache, struct spw_arena *arena)
{
	struct host *host = &cache->host;
	size_t len_bytes;
	int rc = 0;

	if (!arena)
		return spw_error(-EINVAL, "host memory needs an arena");
	(void)spw_arena_memory(arena, &len_bytes);
	spw_cache__lock(cache);
	if (host->count < SPW_CACHE_HOST_PIECES_MAX) {
		host->arenas[host->count++] = arena;
		cache->count.host_memory_bytes += len_bytes;
		spw_control__host(control_of(cache), cache->count.host_memory_bytes);
	} else {
		rc = spw_error(-ENOSPC, "the host memory of a cache has at most %u pieces",
			       SPW_CACHE_HOST_PIECES_MAX);
	}
	spw_cache__unlock(cache);
	return rc;
}

bool spw_cache__host_hold(struct entry *entry)
{
	struct spw_cache *cache = entry->cache;
	enum spw_plan_choice choice;

	SPW_ASSERT(!entry->memory && !entry->hosted);
	if (!entry->device || cache->host.count == 0)
		return false;
	if (cache->store && spw_control__choice(control_of(cache), &entry->track, &choice) &&
	    choice != SPW_PLAN_HOST && spw_control__plans_host(control_of(cache)))
		return false;
	return spw_cache__entry_get_host_memory(entry, true);
}
