/* SPDX-License-Identifier: MIT */
/* tensor/fetch.c - takes, reads and how they end, leases */
#include <errno.h>
#include <time.h>

#include "tensor/internal.h"

/* How long a take waits for others to let go of the store's requests: 10 s. */
#define REQUEST_LOOK_NS   100000
#define REQUEST_LOOKS_MAX 100000u

/* ---- Reads ---- */

static void read_ended(struct entry *entry, int res)
{
	struct spw_cache *cache = entry->cache;

	entry->read_in_flight = false;
	entry->read_request = NULL;
	spw_measure_ended(&cache->measure, DIRECTION_READ, entry->len_bytes, res == 0,
			  entry->io_began_ns, cache->ports.clock_ns());
	if (res == 0)
		cache->count.bytes_read += entry->len_bytes;
	if (entry->state == ENTRY_DEAD) {
		spw_entry_settle(entry);
	} else if (res == 0) {
		spw_entry_read_ended(entry);
	} else {
		spw_window_leave(entry);
		spw_entry_read_failed(entry);
	}
	spw_cache_io_ended(cache);
}

static void prefetch_done(void *context, int res)
{
	struct entry *entry = context;
	struct spw_cache *cache = entry->cache;

	spw_cache_lock(cache);
	if (res && res != -ECANCELED) {
		cache->count.prefetches_failed++;
		spw_cache_notice(cache, NOTICE_PREFETCH_FAILED,
				 "reading ahead failed, it is tried again on use: %s",
				 spw_last_error());
	}
	read_ended(entry, res);
	spw_spill_held(cache);
	spw_window_fill(cache);
	spw_cache_unlock(cache);
}

/* Begin to read. @notify: a prefetch; NULL: the caller waits for @request. */
static int read_begin(struct entry *entry, const struct spw_notify *notify,
		      struct spw_request **request)
{
	struct spw_cache *cache = entry->cache;
	int rc = spw_entry_get_memory(entry);

	if (rc)
		return rc;
	rc = cache->ports.get(cache->store, entry->object, 0, entry->memory, entry->len_bytes,
			      notify ? SPW_PREFETCH : SPW_URGENT_READ, notify, request);
	if (rc) {
		spw_entry_put_memory(entry);
		return rc;
	}
	spw_cache_io_began(cache);
	entry->io_began_ns = cache->ports.clock_ns();
	spw_measure_began(&cache->measure, DIRECTION_READ, entry->len_bytes, entry->io_began_ns);
	spw_entry_begin_read(entry);
	return 0;
}

/*
 * The taking thread waits by itself: so the failure's words, which the store gives to the thread
 * that waits, are those of its own read. Others that want the same bytes wait for io_ended.
 */
static int read_urgently(struct entry *entry)
{
	struct spw_cache *cache = entry->cache;
	struct spw_request *request;
	int rc = read_begin(entry, NULL, &request);

	if (rc)
		return rc;
	spw_cache_unlock_and_notify(cache);
	rc = cache->ports.wait(request);
	spw_cache_lock(cache);
	if (rc && rc != -ECANCELED)
		cache->count.reads_failed++;
	read_ended(entry, rc);
	return rc;
}

int spw_fetch_ahead(struct entry *entry)
{
	const struct spw_notify notify = {.done = prefetch_done, .context = entry};
	int rc = read_begin(entry, &notify, &entry->read_request);

	if (rc == 0)
		entry->cache->count.prefetches++;
	return rc;
}

/* ---- Takes ---- */

/*
 * How it stood with the bytes when they were asked for. They are not ahead of their use any more.
 */
static void take_count(struct entry *entry)
{
	struct spw_cache *cache = entry->cache;

	if (entry->state == ENTRY_STORED)
		cache->count.misses++;
	else if (entry->foreseen && entry->state == ENTRY_READING)
		cache->count.prefetch_late++;
	else if (entry->foreseen && entry->memory)
		cache->count.prefetch_hits++;
	entry->foreseen = false;
	spw_window_leave(entry);
}

/*
 * The store's requests are all in use: no reason to fail. Those of this cache end with an event; a
 * request is free again only a little after its end, and others may use the store too, which
 * nothing tells: then look again in a while.
 */
static bool take_wait_for_request(struct spw_cache *cache, unsigned *looks)
{
	const struct timespec pause = {.tv_nsec = REQUEST_LOOK_NS};

	if (cache->io_in_flight > 0) {
		spw_cache_wait_io(cache);
		return true;
	}
	if (++*looks > REQUEST_LOOKS_MAX)
		return false;
	spw_cache_unlock_and_notify(cache);
	(void)nanosleep(&pause, NULL);
	spw_cache_lock(cache);
	return true;
}

/*
 * See to it that the bytes are in memory. Unlocks while it waits; the entry may be dead afterwards.
 */
static int take_fetch(struct entry *entry)
{
	struct spw_cache *cache = entry->cache;
	unsigned looks = 0;
	int rc;

	while (entry->state == ENTRY_STORED || entry->state == ENTRY_READING) {
		if (entry->state == ENTRY_READING) {
			if (entry->read_request)
				cache->ports.raise(entry->read_request, SPW_URGENT_READ);
			spw_cache_wait_io(cache);
			continue;
		}
		rc = read_urgently(entry);
		if (rc && (rc != -ENOBUFS || !take_wait_for_request(cache, &looks)))
			return rc;
	}
	if (entry->state == ENTRY_QUEUED || entry->state == ENTRY_WRITING)
		spw_spill_forward(entry);
	return 0;
}

static void take_forwarded(struct entry *entry)
{
	struct spw_cache *cache = entry->cache;

	if (!entry->forwarded || entry->taken)
		return;
	entry->taken = true;
	cache->count.bytes_forwarded += entry->len_bytes;
	cache->count.tensors_forwarded++;
}

static void take_hand_out(struct entry *entry, uint64_t offset_bytes, struct spw_taken *taken)
{
	entry->cache->count.takes++;
	if (!entry->memory) {
		SPW_ASSERT(entry->owner_held && !entry->drainable);
		take_forwarded(entry);
		taken->owner = entry->owner;
		return;
	}
	SPW_ASSERT(entry->state == ENTRY_RESIDENT);
	entry->leases++;
	taken->lease = spw_entry_id(entry).value;
	taken->storage_bytes_before = offset_bytes - entry->offset_bytes;
	taken->storage_bytes_total = entry->len_bytes;
	taken->bytes = entry->memory + taken->storage_bytes_before;
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
	uint64_t began_ns = cache->ports.clock_ns(), ended_ns;
	int rc;

	spw_record_wait_began(cache, began_ns);
	rc = take_fetch(entry);
	ended_ns = cache->ports.clock_ns();
	spw_record_wait_ended(cache, ended_ns);
	spw_adapt_waited(cache);
	*wait_ns = ended_ns - began_ns;
	cache->count.stall_ns += *wait_ns;
	return rc;
}

static int take_locked(struct entry *entry, uint64_t offset_bytes, struct spw_taken *taken,
		       uint64_t *wait_ns)
{
	struct spw_cache *cache = entry->cache;
	int rc;

	take_count(entry);
	entry->waiters++;
	spw_rule_taken(cache);
	spw_record_take(entry);
	if (entry->state == ENTRY_STORED || entry->state == ENTRY_READING)
		rc = take_wait(entry, wait_ns);
	else
		rc = take_fetch(entry);
	entry->waiters--;
	if (entry->state == ENTRY_DEAD) {
		spw_entry_settle(entry);
		return spw_error(-ENOENT, "the tensor was released while it was read");
	}
	if (rc)
		return rc;
	/* Another thread's take may have waited for the same prefetch. */
	spw_window_leave(entry);
	take_hand_out(entry, offset_bytes, taken);
	/* Only now: it must not disturb the words of a failure. */
	spw_window_fill(cache);
	return 0;
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
	spw_cache_lock(cache);
	entry = spw_entry_of_id(cache, tensor.value);
	if (entry != cache->held)
		spw_spill_held(cache);
	rc = take_check(entry, offset_bytes, len_bytes);
	if (rc == 0)
		rc = take_locked(entry, offset_bytes, taken, &wait_ns);
	if (rc == 0 && cache->opts.trace)
		spw_trace_write(cache->opts.trace,
				&(struct spw_trace_event){.kind = SPW_TRACE_TAKE,
							  .tensor = tensor.value,
							  .offset_bytes = offset_bytes,
							  .len_bytes = len_bytes,
							  .wait_ns = wait_ns});
	SPW_PROBE(take, cache, tensor.value, len_bytes, wait_ns, rc);
	spw_cache_unlock_and_notify(cache);
	return rc;
}

void spw_cache_return(struct spw_cache *cache, uint64_t lease)
{
	struct entry *entry;

	spw_cache_lock(cache);
	spw_spill_held(cache);
	entry = spw_entry_of_id(cache, lease);
	if (entry && entry->leases > 0) {
		entry->leases--;
		if (cache->opts.trace)
			spw_trace_write(cache->opts.trace,
					&(struct spw_trace_event){.kind = SPW_TRACE_RETURN,
								  .tensor = lease});
		if (entry->users == 0 && entry->leases == 0)
			spw_record_release(entry);
		if (entry->state == ENTRY_DEAD)
			spw_entry_settle(entry);
		spw_window_fill(cache);
	} else {
		spw_cache_notice(cache, NOTICE_LEASE,
				 "a lease was returned more often than it was given");
	}
	spw_cache_unlock_and_notify(cache);
}

int spw_cache_release(struct spw_cache *cache, spw_tensor tensor)
{
	struct entry *entry;
	int rc = 0;

	spw_cache_lock(cache);
	entry = spw_entry_of_id(cache, tensor.value);
	if (entry != cache->held)
		spw_spill_held(cache);
	if (entry && entry->users > 0) {
		cache->count.releases++;
		if (cache->opts.trace)
			spw_trace_write(cache->opts.trace,
					&(struct spw_trace_event){.kind = SPW_TRACE_RELEASE,
								  .tensor = tensor.value});
		spw_entry_leave(entry);
		spw_window_fill(cache);
	} else {
		rc = spw_error(-ENOENT, "no such tensor: it was released before, or never was");
	}
	spw_cache_unlock_and_notify(cache);
	return rc;
}
