/* SPDX-License-Identifier: MIT */
/*
 * tensor/external_traffic.c - the traffic of other users of the store, and of other ranks
 *
 * Other users are, for example, an optimizer with its state: what the store counts, less the
 * cache's own requests.
 *
 * A request of the cache's may have ended for the store and not for the cache yet: for that moment
 * its bytes are taken for another's.
 */
#include "tensor/external_traffic.h"
#include "tensor/internal.h"

/* A rank with traffic has refreshed its page by then. */
#define RANK_AGE_NS UINT64_C(1000000000)

static uint64_t less(uint64_t all, uint64_t part)
{
	return all > part ? all - part : 0;
}

/* Only plans and a cap on what is written depend on it. */
static inline bool is_wanted(const struct spw_cache *cache)
{
	return cache->store &&
	       (cache->opts.mode >= SPW_CACHE_FASTEST || cache->opts.wear_bytes_per_day > 0);
}

/* @begun_bytes, @ended_bytes: of the cache's requests, not reported to the controller yet. */
static void note(struct spw_cache *cache, uint64_t begun_bytes, uint64_t ended_bytes)
{
	const uint64_t *moved = cache->moved_bytes;
	struct spw_store_traffic all;
	struct external_traffic others;

	cache->ports.traffic(cache->store, &all);
	others = (struct external_traffic){
		.bytes = {[DIRECTION_WRITE] = less(all.bytes_put, moved[DIRECTION_WRITE]),
			  [DIRECTION_READ] = less(all.bytes_got, moved[DIRECTION_READ])},
		.in_flight_bytes = less(all.bytes_in_flight + ended_bytes, begun_bytes),
	};
	spw_control__external_traffic(control_of(cache), &others);
}

void spw_cache__traffic_note(struct spw_cache *cache)
{
	if (is_wanted(cache))
		note(cache, 0, 0);
}

void spw_cache__traffic_io_began(struct entry *entry, enum direction direction)
{
	if (is_wanted(entry->cache))
		note(entry->cache, entry->len_bytes, 0);
	entry->io_began_ns =
		spw_control__io_began(control_of(entry->cache), direction, entry->len_bytes);
}

void spw_cache__traffic_io_ended(struct entry *entry, enum direction direction, int res)
{
	struct spw_cache *cache = entry->cache;

	if (res == 0)
		cache->moved_bytes[direction] += entry->len_bytes;
	if (is_wanted(cache))
		note(cache, 0, entry->len_bytes);
	spw_control__io_ended(control_of(cache), direction, entry->len_bytes, res == 0,
			      entry->io_began_ns);
}

static void rank_seen(void *context, const struct spw_cache_stats *steps)
{
	struct spw_cache *cache = context;
	const struct spw_plan_drives drives = {
		.write_bytes_per_second = steps->write_bytes_per_second,
		.read_bytes_per_second = steps->read_bytes_per_second,
		.mixed_bytes_per_second = steps->mixed_bytes_per_second,
	};

	spw_control__rank(control_of(cache), &drives);
}

/* A rank without traffic in this step takes no share of the drives. */
void spw_cache__traffic_ranks(struct spw_cache *cache)
{
	spw_control__ranks_forget(control_of(cache));
	if (cache->store && cache->opts.mode >= SPW_CACHE_FASTEST)
		cache->ports.ranks(cache->store,
				   spw_control__step_ns(control_of(cache)) + RANK_AGE_NS, rank_seen,
				   cache);
}
