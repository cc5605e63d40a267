/* SPDX-License-Identifier: MIT */
/* tensor/cache.c - opening and closing, counters */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <spillway/wear.h>

#include "tensor/entry.h"
#include "tensor/external_traffic.h"
#include "tensor/internal.h"
#include "tensor/lock.h"
#include "tensor/publish.h"
#include "tensor/search.h"
#include "tensor/window.h"

/* To wake the store's thread takes microseconds: little of the time to write so much. */
#define DEFER_BYTES (UINT64_C(256) << 10)

#define WEAR_YEARS_MAX  1e6
#define MODE_POSITIONAL 4u /* of earlier versions */

/* ---- Opening and closing ---- */

void spw_cache_opts_init(struct spw_cache_opts *opts, size_t size)
{
	const struct spw_cache_opts defaults = {
		.size = sizeof(defaults),
		.mode = SPW_CACHE_FASTEST,
		.min_bytes = UINT64_C(64) << 10,
		.staging_bytes = UINT64_C(1) << 30,
		.tensors_max = 65536,
	};

	memset(opts, 0, size);
	spw_opts_merge(opts, size, &defaults, sizeof(defaults));
}

static int opts_check(const struct spw_store *store, const struct spw_cache_opts *opts)
{
	if ((unsigned)opts->mode == MODE_POSITIONAL)
		return spw_error(-EINVAL, "there is no cache mode 4 any more, the positional rule: "
					  "use SPW_CACHE_FASTEST");
	if (opts->mode > SPW_CACHE_BUDGET)
		return spw_error(-EINVAL, "no such cache mode: %d", (int)opts->mode);
	if (!store && opts->mode != SPW_CACHE_OBSERVE && opts->mode != SPW_CACHE_BUDGET &&
	    opts->mode != SPW_CACHE_FASTEST)
		return spw_error(-EINVAL, "a cache that spills needs a store");
	if (opts->mode == SPW_CACHE_BUDGET && opts->memory_bytes == 0)
		return spw_error(-EINVAL,
				 "a cache with a budget needs to know it: memory_bytes is 0");
	if (opts->tensors_max == 0 || opts->tensors_max > INT32_MAX)
		return spw_error(-EINVAL, "tensors_max is %u: 1 to %d", opts->tensors_max,
				 INT32_MAX);
	if (opts->wear_years != 0 && !(opts->wear_years > 0 && opts->wear_years <= WEAR_YEARS_MAX))
		return spw_error(-EINVAL, "wear_years is %g: above 0, and up to %g",
				 opts->wear_years, WEAR_YEARS_MAX);
	if (opts->wear_years != 0 && opts->wear_bytes_per_day != 0)
		return spw_error(-EINVAL,
				 "wear is limited by bytes per day or by years, not by both");
	return 0;
}

/* Years become bytes per day. Drives that are used up get next to nothing. */
static int wear_find(struct spw_cache *cache)
{
	struct spw_cache_opts *opts = &cache->opts;
	double left_bytes, per_day;
	int rc;

	if (opts->wear_years == 0 || !cache->store)
		return 0;
	rc = cache->ports.left(cache->store, (double)opts->endurance_bytes, &left_bytes);
	if (rc)
		return rc;
	per_day = left_bytes / opts->wear_years / SPW_DAYS_PER_YEAR;
	opts->wear_bytes_per_day = per_day < 1 ? 1 : per_day < 0x1p63 ? (uint64_t)per_day : 0;
	spw_log(&opts->log, SPW_LOG_INFO,
		"for the drives to last %g years, no more than %.4g GB a day are written",
		opts->wear_years, (double)opts->wear_bytes_per_day / 1e9);
	return 0;
}

static int control_open(struct spw_cache *cache)
{
	struct spw_store_stats stats = {0};
	struct control_opts opts = {.cache = cache->opts,
				    .clock_ns = cache->ports.clock_ns,
				    .count = &cache->count,
				    .notices = &cache->notices};

	if (cache->store) {
		cache->ports.stats(cache->store, &stats, sizeof(stats));
		cache->chunk_bytes = cache->ports.chunk_bytes(cache->store);
		opts.arena_bytes = cache->ports.arena_bytes(cache->store);
	}
	opts.chunk_bytes = cache->chunk_bytes;
	opts.drives = stats.drives;
	return spw_control__open(&opts, &cache->control);
}

int spw_cache_open(struct spw_store *store, const struct spw_cache_opts *opts,
		   struct spw_cache **cache)
{
	return spw_cache__open_with(store, opts, &spw_cache__ports_real, cache);
}

int spw_cache__open_with(struct spw_store *store, const struct spw_cache_opts *user_opts,
			 const struct spw_cache_ports *ports, struct spw_cache **out)
{
	struct spw_cache_opts opts;
	struct spw_cache *cache;
	int rc;

	if (!out)
		return spw_error(-EINVAL, "open needs a place for the cache");
	*out = NULL;
	spw_cache_opts_init(&opts, sizeof(opts));
	if (user_opts)
		spw_opts_merge(&opts, sizeof(opts), user_opts, user_opts->size);
	rc = opts_check(store, &opts);
	if (rc)
		return rc;
	cache = calloc(1, sizeof(*cache));
	if (!cache)
		return spw_error(-ENOMEM, "no memory for a cache");
	cache->store = store;
	cache->ports = *ports;
	cache->opts = opts;
	cache->cursor = &cache->order;
	cache->on_io_done = spw_cache__window_fill;
	cache->defer_bytes = DEFER_BYTES;
	rc = wear_find(cache);
	if (rc == 0)
		rc = spw_cache__entries_open(cache);
	if (rc == 0)
		rc = control_open(cache);
	if (rc) {
		spw_control__close(cache->control);
		spw_cache__entries_close(cache);
		free(cache);
		return rc;
	}
	spw_cache__lock_open(cache);
	spw_cache__lock(cache);
	spw_cache__traffic_note(cache);
	spw_cache__unlock(cache);
	*out = cache;
	return 0;
}

void spw_cache_close(struct spw_cache *cache)
{
	if (!cache)
		return;
	spw_cache__lock(cache);
	spw_cache__entries_abandon(cache);
	while (cache->io_in_flight > 0)
		spw_cache__wait_io(cache);
	spw_cache__search_wait(cache);
	SPW_ASSERT(!cache->deferred && link_alone(&cache->copying.head));
	SPW_ASSERT(cache->owner_writes_in_flight == 0 && cache->device_writes_in_flight == 0);
	spw_cache__unlock_and_notify(cache);
	spw_cache__lock_close(cache);
	spw_control__close(cache->control);
	spw_cache__entries_close(cache);
	free(cache);
}

/* ---- Counters ---- */

void spw_cache_stats(struct spw_cache *cache, struct spw_cache_stats *stats, size_t size)
{
	struct spw_cache_stats now;

	spw_cache__lock(cache);
	spw_cache__count(cache, &now);
	spw_cache__unlock(cache);
	memset(stats, 0, size);
	spw_opts_merge(stats, size, &now, sizeof(now));
}

void spw_cache_reset_peak(struct spw_cache *cache)
{
	spw_cache__lock(cache);
	cache->count.activation_bytes_max = cache->count.activation_bytes;
	cache->count.staging_bytes_max = cache->count.staging_bytes;
	cache->count.device_bytes_max = cache->count.device_bytes;
	cache->count.device_staging_bytes_max = cache->count.device_staging_bytes;
	cache->count.host_bytes_max = cache->count.host_bytes;
	cache->count.prefetched_bytes_max = cache->count.prefetched_bytes;
	spw_cache__unlock(cache);
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
