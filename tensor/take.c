/* SPDX-License-Identifier: MIT */
/* tensor/take.c - takes, leases and releases */
#include <errno.h>

#include "tensor/entry.h"
#include "tensor/external_traffic.h"
#include "tensor/internal.h"
#include "tensor/lock.h"
#include "tensor/position.h"
#include "tensor/read.h"
#include "tensor/take.h"
#include "tensor/trace.h"
#include "tensor/window.h"
#include "tensor/write.h"

/* How long a take waits for a request of the store, each time that it finds none: 10 s. */
#define REQUEST_WAIT_NS INT64_C(10000000000)

/* Where the bytes were when they were taken. The entry leaves the prefetch window. */
static void take_count(struct entry *entry)
{
	struct spw_cache *cache = entry->cache;

	if (entry->state == ENTRY_STORED && !entry->copied_ahead)
		cache->count.misses++;
	else if (entry->prefetched && entry->state == ENTRY_COMING)
		cache->count.prefetch_late++;
	else if (entry->copied_ahead || (entry->prefetched && entry->memory && !entry->forwarded))
		cache->count.prefetch_hits++;
	entry->prefetched = false;
	spw_cache__entry_leave_window(entry);
}

/*
 * The store's requests are all in use, of this cache and of other users: no reason to fail yet.
 * Unlocks while it waits. Return: whether one became free in time.
 */
static bool take_wait_for_request(struct spw_cache *cache)
{
	int rc;

	spw_cache__unlock_and_notify(cache);
	rc = cache->ports.wait_request(cache->store, REQUEST_WAIT_NS);
	spw_cache__lock(cache);
	return rc == 0;
}

/* The bytes are in memory, or a copy of them failed: leave them there. */
static inline int take_from_memory(struct entry *entry)
{
	if (entry->state == ENTRY_QUEUED || entry->state == ENTRY_LEAVING)
		spw_cache__write_forward(entry);
	else if (entry->state == ENTRY_HOST)
		spw_cache__entry_become(entry, ENTRY_RESIDENT);
	if (entry->copy_failed && !entry_at_owner(entry))
		return spw_error(-EIO, "the copy of the tensor from its device failed");
	return 0;
}

/* Bring the bytes into memory. Unlocks while it waits; the entry may be dead afterwards. */
static int take_fetch(struct entry *entry)
{
	struct spw_cache *cache = entry->cache;
	bool in_time = true;
	int rc;

	while (entry->state == ENTRY_STORED || entry->state == ENTRY_COMING) {
		if (entry->state == ENTRY_COMING) {
			if (entry->read_request)
				cache->ports.raise(entry->read_request, SPW_URGENT_READ);
			spw_cache__wait_read(entry);
			continue;
		}
		rc = spw_cache__read_urgently(entry);
		if (rc && (rc != -ENOBUFS || !in_time))
			return rc;
		/* If it was not in time, once more, which tells why. */
		if (rc)
			in_time = take_wait_for_request(cache);
	}
	return take_from_memory(entry);
}
void spw_cache__take_lease(struct entry *entry, uint64_t offset_bytes, struct spw_taken *taken)
{
	SPW_ASSERT(offset_bytes >= entry->offset_bytes &&
		   offset_bytes - entry->offset_bytes < entry->len_bytes);
	spw_cache__entry_hand_out(entry);
	taken->lease = spw_cache__entry_id(entry).value;
	taken->storage_bytes_before = offset_bytes - entry->offset_bytes;
	taken->storage_bytes_total = entry->len_bytes;
	taken->bytes = entry->memory + taken->storage_bytes_before;
}

static void take_hand_out(struct entry *entry, uint64_t offset_bytes, struct spw_taken *taken)
{
	struct spw_cache_stats *count = &entry->cache->count;

	count->takes++;
	if (entry->forwarded && !entry->taken) {
		entry->taken = true;
		count->bytes_forwarded += entry->len_bytes;
		count->tensors_forwarded++;
	}
	if (entry->copied_ahead) {
		entry->copied_ahead = false;
		count->host_hits += entry->hosted;
		return;
	}
	SPW_ASSERT(entry->state == ENTRY_KEPT || entry->state == ENTRY_RESIDENT);
	if (entry_at_owner(entry)) {
		taken->owner = entry->owner;
		return;
	}
	count->host_hits += entry->hosted;
	spw_cache__take_lease(entry, offset_bytes, taken);
}

static int take_check(const struct entry *entry, uint64_t offset_bytes, uint64_t len_bytes)
{
	if (!entry || entry->users == 0)
		return spw_error(-ENOENT, "no such tensor: it was released, or never was");
	if (len_bytes == 0 || offset_bytes < entry->offset_bytes ||
	    offset_bytes - entry->offset_bytes > entry->len_bytes ||
	    len_bytes > entry->len_bytes - (offset_bytes - entry->offset_bytes))
		return spw_error(
			-ERANGE,
			"bytes %llu + %llu of the storage were not offered: %llu + %llu were",
			(unsigned long long)offset_bytes, (unsigned long long)len_bytes,
			(unsigned long long)entry->offset_bytes,
			(unsigned long long)entry->len_bytes);
	return 0;
}

/* take_fetch(), and the time that it takes. Return: as take_fetch(). */
static int take_wait(struct entry *entry, uint64_t *wait_ns)
{
	struct spw_cache *cache = entry->cache;
	uint64_t began_ns = spw_control__wait_began(control_of(cache));
	int rc = take_fetch(entry);

	*wait_ns = spw_control__wait_ended(control_of(cache)) - began_ns;
	cache->count.stall_ns += *wait_ns;
	return rc;
}

/* take_fetch() while a device may still be busy: it tells if it was not. */
static int take_wait_for_device(struct entry *entry, uint64_t *wait_ns)
{
	struct spw_cache *cache = entry->cache;
	uint64_t began_ns = cache->ports.clock_ns();
	int rc = take_fetch(entry);

	*wait_ns = cache->ports.clock_ns() - began_ns;
	cache->count.host_wait_ns += *wait_ns;
	return rc;
}

static int take_locked(struct entry *entry, uint64_t offset_bytes, struct spw_taken *taken,
		       uint64_t *wait_ns)
{
	struct spw_cache *cache = entry->cache;
	int rc;

	if (entry->state == ENTRY_DISCARDED) {
		spw_cache__rule_taken(cache);
		return SPW_TAKE_AGAIN;
	}
	take_count(entry);
	spw_cache__traffic_note(cache);
	entry->waiters++;
	spw_cache__rule_taken(cache);
	spw_control__taken(control_of(cache), &entry->track);
	if (entry->copied_ahead)
		rc = 0;
	else if (entry->state == ENTRY_STORED || entry->state == ENTRY_COMING)
		rc = entry->device && cache->devices_tell ? take_wait_for_device(entry, wait_ns)
							  : take_wait(entry, wait_ns);
	else
		rc = take_from_memory(entry);
	SPW_ASSERT(entry->waiters > 0);
	entry->waiters--;
	if (entry->state == ENTRY_DEAD) {
		spw_cache__entry_settle(entry);
		return spw_error(-ENOENT, "the tensor was released while it was read");
	}
	if (rc)
		return rc;
	/* Another thread's take may have waited for the same prefetch. */
	spw_cache__entry_leave_window(entry);
	take_hand_out(entry, offset_bytes, taken);
	/* Only now: it must not disturb the words of a failure. */
	spw_cache__window_fill(cache);
	return 0;
}

/* A trace describes the model, without what a recompute takes. */
static void take_trace(struct spw_cache *cache, spw_tensor tensor, uint64_t offset_bytes,
		       uint64_t len_bytes, uint64_t wait_ns)
{
	if (cache->recompute_depth > 0)
		return;
	CACHE_TRACE(cache, .kind = SPW_TRACE_TAKE, .tensor = tensor.value,
		    .offset_bytes = offset_bytes, .len_bytes = len_bytes, .wait_ns = wait_ns);
}

int spw_cache_take(struct spw_cache *cache, spw_tensor tensor, uint64_t offset_bytes,
		   uint64_t len_bytes, struct spw_taken *taken)
{
	uint64_t wait_ns = 0;
	struct entry *entry;
	int rc;

	if (!taken)
		return spw_error(-EINVAL, "take needs a place for the result");
	*taken = (struct spw_taken){0};
	spw_cache__lock(cache);
	entry = spw_cache__entry_of_id(cache, tensor.value);
	if (entry != cache->deferred)
		spw_cache__write_deferred(cache);
	rc = take_check(entry, offset_bytes, len_bytes);
	if (rc == 0)
		rc = take_locked(entry, offset_bytes, taken, &wait_ns);
	if (rc == 0)
		take_trace(cache, tensor, offset_bytes, len_bytes, wait_ns);
	SPW_PROBE(take, cache, tensor.value, len_bytes, wait_ns, rc);
	spw_cache__unlock_and_notify(cache);
	return rc;
}

void spw_cache_return(struct spw_cache *cache, uint64_t lease)
{
	struct entry *entry;

	spw_cache__enter(cache);
	entry = spw_cache__entry_of_id(cache, lease);
	if (entry && entry->leases > 0) {
		SPW_ASSERT(entry->memory); /* CACHE-5 */
		entry->leases--;
		CACHE_TRACE(cache, .kind = SPW_TRACE_RETURN, .tensor = lease);
		if (entry->users == 0 && entry->leases == 0)
			spw_control__released(control_of(cache), &entry->track, false);
		if (entry->state == ENTRY_DEAD) {
			spw_cache__entry_settle(entry);
		} else if (entry->device && entry->leases == 0 && entry->object_exists &&
			   !entry->write_in_flight) {
			/* Staging memory is for what comes next. */
			spw_cache__entry_put_memory(entry);
			spw_cache__entry_become(entry, ENTRY_STORED);
		}
		spw_cache__window_fill(cache);
	} else {
		spw_notice(&cache->notices, NOTICE_LEASE,
			   "a lease was returned more often than it was given");
	}
	spw_cache__unlock_and_notify(cache);
}

int spw_cache_release(struct spw_cache *cache, spw_tensor tensor)
{
	struct entry *entry;
	int rc = 0;

	spw_cache__lock(cache);
	entry = spw_cache__entry_of_id(cache, tensor.value);
	if (entry != cache->deferred)
		spw_cache__write_deferred(cache);
	if (entry && entry->users > 0) {
		cache->count.releases++;
		CACHE_TRACE(cache, .kind = SPW_TRACE_RELEASE, .tensor = tensor.value);
		spw_cache__entry_leave(entry);
		spw_cache__window_fill(cache);
	} else {
		rc = spw_error(-ENOENT, "no such tensor: it was released before, or never was");
	}
	spw_cache__unlock_and_notify(cache);
	return rc;
}
