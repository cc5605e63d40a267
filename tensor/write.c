/* SPDX-License-Identifier: MIT */
/* tensor/write.c - writes: how they begin, are deferred or cancelled, and end */
#include <errno.h>

#include "tensor/entry.h"
#include "tensor/external_traffic.h"
#include "tensor/internal.h"
#include "tensor/lock.h"
#include "tensor/write.h"

static enum keep_reason reason_of(int error)
{
	switch (error) {
	case -ENOSPC: return KEEP_NO_SPACE;
	case -ENOBUFS: return KEEP_BACKPRESSURE; /* all the store's requests wait for the drives */
	case -ESTALE: return KEEP_CHANGED;
	default: return KEEP_ERROR;
	}
}

void spw_cache__write_failed(struct entry *entry, int error, const char *words)
{
	struct spw_cache *cache = entry->cache;
	enum keep_reason reason = reason_of(error);

	kept_add(cache, reason, entry->len_bytes);
	if (reason == KEEP_BACKPRESSURE)
		spw_notice(&cache->notices, NOTICE_BACKPRESSURE,
			   "the drives do not keep up: tensors stay in memory: %s", words);
	else if (reason == KEEP_CHANGED)
		spw_notice(&cache->notices, NOTICE_CHANGED,
			   "memory that was offered twice changed in between, and its "
			   "version did not: it stays in "
			   "memory");
	else if (reason == KEEP_NO_SPACE)
		spw_notice(&cache->notices, NOTICE_NO_SPACE,
			   "no space on the drives: tensors stay in memory: %s", words);
	else
		spw_notice(&cache->notices, NOTICE_WRITE_FAILED,
			   "a tensor of %llu bytes cannot be written and stays in memory: %s",
			   (unsigned long long)entry->len_bytes, words);
}

/*
 * Whether the memory still has the bytes that were written: compared without the lock, and again if
 * it is offered once more meanwhile.
 */
static bool write_holds(struct entry *entry)
{
	struct spw_cache *cache = entry->cache;
	bool holds = true;

	while (holds && entry->recheck && entry->state == ENTRY_LEAVING) {
		SPW_ASSERT(entry->object_exists && entry->bytes && !entry->device); /* CACHE-7 */
		entry->recheck = false;
		spw_cache__unlock(cache);
		holds = cache->ports.holds(cache->store, entry->object, entry->bytes, 0,
					   entry->len_bytes) == 1;
		spw_cache__lock(cache);
		cache->count.bytes_compared += entry->len_bytes;
	}
	return holds;
}

/* On the drives. Staging memory is for the next; of a device, the token may be back already. */
static void written(struct entry *entry)
{
	SPW_ASSERT(entry->state == ENTRY_LEAVING && entry->object_exists);
	if (!entry->device) {
		spw_cache__entry_make_drainable(entry);
		return;
	}
	spw_cache__entry_put_memory(entry);
	if (!entry->owner_held)
		spw_cache__entry_become(entry, ENTRY_STORED);
}

/* Not on the drives: the bytes stay in the memory that the write is from. */
static void not_written(struct entry *entry, int error, const char *words)
{
	SPW_ASSERT(error < 0 && !entry->object_exists && !entry->write_in_flight);
	spw_cache__entry_become(entry, entry->device ? ENTRY_RESIDENT : ENTRY_KEPT);
	spw_cache__write_failed(entry, error, words);
}

/* What becomes of the entry depends on what happened to it during the write. */
static void write_ended(struct entry *entry, int res, const char *words)
{
	struct spw_cache *cache = entry->cache;

	if (res == 0) {
		cache->count.bytes_spilled += entry->len_bytes;
		cache->count.tensors_spilled++;
	} else if (res != -ECANCELED && res != -ESTALE) {
		cache->count.writes_failed++;
	}
	if (entry->state == ENTRY_RESIDENT) {
		spw_cache__entry_free_object(entry); /* forwarded: the bytes stay */
		if (entry->memory && entry_at_owner(entry))
			spw_cache__entry_put_memory(entry);
	} else if (entry->state == ENTRY_DEAD) {
		spw_cache__entry_settle(entry);
	} else if (res == 0) {
		written(entry);
	} else {
		spw_cache__entry_free_object(entry);
		not_written(entry, res, words);
	}
}

/* How many there are of the entry's kind. */
static uint32_t *writes_in_flight(const struct entry *entry)
{
	struct spw_cache *cache = entry->cache;

	return entry->device ? &cache->device_writes_in_flight : &cache->owner_writes_in_flight;
}

/* @res: of the write, or -ESTALE. */
static void write_finished(struct entry *entry, int res)
{
	struct spw_cache *cache = entry->cache;
	uint32_t *writes = writes_in_flight(entry);

	SPW_ASSERT(entry->write_in_flight && *writes > 0);
	entry->write_in_flight = false;
	--*writes;
	gauge_sub(&cache->count.staging_bytes, entry->len_bytes);
	spw_cache__traffic_io_ended(entry, DIRECTION_WRITE, res == -ESTALE ? 0 : res);
	if (res != -ECANCELED)
		spw_control__written(control_of(cache), entry->len_bytes);
	write_ended(entry, res, spw_last_error());
	spw_cache__io_ended(entry);
	spw_cache__write_deferred(cache);
	cache->on_io_done(cache);
}

/* After the last entry the cache may be closed as soon as the lock is free. */
static void compare_all(struct spw_cache *cache)
{
	spw_cache__lock(cache);
	while (!link_alone(&cache->to_compare)) {
		struct entry *entry = ENTRY_OF(cache->to_compare.next, drain);
		bool same = write_holds(entry);

		link_remove(&entry->drain);
		write_finished(entry, same ? 0 : -ESTALE);
	}
	cache->comparing = false;
	spw_cache__unlock(cache);
}

/* A thread that is there while something is to be compared. */
static void *compare_main(void *argument)
{
	(void)pthread_setname_np(pthread_self(), "spillway-check");
	compare_all(argument);
	return NULL;
}

/*
 * Written, and offered again meanwhile. This is the store's thread: it does not compare, since that
 * takes as long as many transfers, which would all wait. Unlocks.
 */
static void compare_elsewhere(struct entry *entry)
{
	struct spw_cache *cache = entry->cache;
	bool start = !cache->comparing;
	int rc;

	cache->comparing = true;
	link_append(&cache->to_compare, &entry->drain);
	spw_cache__unlock(cache);
	/* The entry's write counts as in flight, so the cache stays open. */
	rc = start ? cache->ports.start(compare_main, cache) : 0;
	if (rc == 0)
		return;
	spw_cache__lock(cache);
	spw_notice(&cache->notices, NOTICE_COMPARE,
		   "no thread to compare tensors in that were saved again (%s): drives wait for it",
		   spw_strerror(rc));
	spw_cache__unlock(cache);
	compare_all(cache);
}

static void write_done(void *context, int res)
{
	struct entry *entry = context;
	struct spw_cache *cache = entry->cache;

	spw_cache__lock(cache);
	entry->write_request = NULL;
	if (res == 0 && entry->recheck && entry->state == ENTRY_LEAVING) {
		compare_elsewhere(entry);
		return;
	}
	write_finished(entry, res);
	spw_cache__unlock(cache);
}

static int write_submit(struct entry *entry)
{
	struct spw_cache *cache = entry->cache;
	const struct spw_notify notify = {.done = write_done, .context = entry};
	const uint8_t *bytes = entry->device ? entry->memory : entry->bytes;
	int rc;

	SPW_ASSERT(bytes && entry->copies == 0 && !entry->copy_failed); /* CACHE-7 */
	SPW_ASSERT(!entry->write_in_flight && !entry->object_exists);
	rc = cache->ports.put(cache->store, bytes, entry->len_bytes, &notify, &entry->object,
			      &entry->write_request);
	if (rc)
		return rc;
	entry->object_exists = true;
	entry->write_in_flight = true;
	++*writes_in_flight(entry);
	cache->io_in_flight++;
	spw_cache__traffic_io_began(entry, DIRECTION_WRITE);
	if (!entry->device) /* else the copy was the beginning */
		spw_cache__entry_become(entry, ENTRY_LEAVING);
	SPW_PROBE(spill, cache, entry, entry->len_bytes);
	return 0;
}

bool spw_cache__write_is_full(const struct spw_cache *cache, uint64_t len_bytes)
{
	SPW_ASSERT(len_bytes <= cache->opts.staging_bytes);
	return cache->count.staging_bytes > cache->opts.staging_bytes - len_bytes;
}

/*
 * A put wakes the store's thread, and so does its cancellation: in vain, if the tensor is taken
 * next. So the last write is deferred until the next call of the cache, or until some I/O ends.
 */
int spw_cache__write_begin(struct entry *entry)
{
	struct spw_cache *cache = entry->cache;
	int rc = 0;

	SPW_ASSERT(!cache->deferred && !entry->device && entry->state == ENTRY_FREE);
	if (cache->defer_bytes > 0 &&
	    (entry->len_bytes <= cache->defer_bytes || cache->count.staging_bytes > 0)) {
		cache->deferred = entry;
		spw_cache__entry_become(entry, ENTRY_QUEUED);
	} else {
		rc = write_submit(entry);
	}
	if (rc == 0)
		gauge_add(&cache->count.staging_bytes, &cache->count.staging_bytes_max,
			  entry->len_bytes);
	return rc;
}

/*
 * Until it has been copied and written, it waits to be written. Return: 0; -ENOBUFS as much waits
 * as may, or the arena is full; or why not.
 */
static int begin_to_stage(struct entry *entry)
{
	struct spw_cache *cache = entry->cache;
	int rc;

	if (spw_cache__write_is_full(cache, entry->len_bytes))
		return -ENOBUFS; /* spw_cache__offer_copy() has the words */
	rc = spw_cache__entry_get_arena_memory(entry);
	if (rc == 0)
		gauge_add(&cache->count.staging_bytes, &cache->count.staging_bytes_max,
			  entry->len_bytes);
	return rc;
}

/* The caller is to copy. */
int spw_cache__write_begin_copy(struct entry *entry)
{
	struct spw_cache *cache = entry->cache;
	int rc;

	SPW_ASSERT(entry->device && entry->copies == 0 && entry_at_owner(entry));
	rc = entry->hosted ? 0 : begin_to_stage(entry);
	if (rc)
		return rc;
	entry->copies++;
	cache->copies_in_flight++;
	queue_join(&cache->copying, entry);
	spw_cache__entry_become(entry, ENTRY_LEAVING);
	return 0;
}

/*
 * A stream that is ordered after a copy waits for it. By the plan it has ended and nothing waits;
 * earlier compute would. Without a plan: the bus is busy while one is copied and the next is ready,
 * and what is copied beyond that only holds memory of the device.
 */
static struct entry *to_order(struct spw_cache *cache)
{
	struct entry *oldest;
	bool ended;

	if (link_alone(&cache->copying.head))
		return NULL;
	oldest = ENTRY_OF(cache->copying.head.next, device_link);
	if (!spw_control__copy_ends(control_of(cache), &oldest->track, &ended))
		ended = cache->copying.bytes > 2 * cache->tensor_spilled_bytes_max;
	return ended ? oldest : NULL;
}

spw_tensor spw_cache__write_order(struct spw_cache *cache)
{
	const struct entry *oldest = to_order(cache);

	return oldest ? spw_cache__entry_id(oldest) : (spw_tensor){0};
}

struct spw_copy spw_cache__write_copy_of(const struct entry *entry)
{
	return (struct spw_copy){.staging = entry->memory,
				 .offset_bytes = entry->offset_bytes,
				 .len_bytes = entry->len_bytes,
				 .order = spw_cache__write_order(entry->cache)};
}

/* The copy is there, and stays. */
static void hosted(struct entry *entry)
{
	struct spw_cache *cache = entry->cache;

	cache->count.tensors_to_host++;
	cache->count.bytes_to_host += entry->len_bytes;
	if (!entry->owner_held)
		spw_cache__entry_become(entry, ENTRY_HOST);
}

static void write_copy(struct entry *entry)
{
	int rc = write_submit(entry);

	if (rc == 0)
		return;
	gauge_sub(&entry->cache->count.staging_bytes, entry->len_bytes);
	not_written(entry, rc, spw_last_error());
}

void spw_cache__write_copied(struct entry *entry)
{
	struct spw_cache *cache = entry->cache;
	bool ordered = !entry_is_copying(entry);

	SPW_ASSERT(entry->device && entry->memory && entry->copies == 0);
	if (!ordered)
		queue_quit(&cache->copying, entry);
	if (entry->state == ENTRY_LEAVING && !entry->copy_failed) {
		if (!ordered)
			spw_cache__entry_make_drainable(entry);
		if (entry->hosted)
			hosted(entry);
		else
			write_copy(entry);
		return;
	}
	if (!entry->hosted)
		gauge_sub(&cache->count.staging_bytes, entry->len_bytes);
	if (entry->state == ENTRY_DEAD) {
		spw_cache__entry_settle(entry);
	} else if (!entry_at_owner(entry)) {
		if (entry->state == ENTRY_LEAVING) /* the bytes are lost: takes say so */
			spw_cache__entry_become(entry, ENTRY_RESIDENT);
	} else {
		spw_cache__entry_put_memory(entry);
		if (entry->state != ENTRY_LEAVING)
			return;
		spw_cache__entry_become(entry, ENTRY_KEPT);
		kept_add(cache, KEEP_ERROR, entry->len_bytes);
	}
}

void spw_cache__write_issue(struct spw_cache *cache)
{
	struct entry *entry = cache->deferred;
	int rc;

	SPW_ASSERT(entry && entry->state == ENTRY_QUEUED);
	cache->deferred = NULL;
	rc = write_submit(entry);
	if (rc == 0)
		return;
	gauge_sub(&cache->count.staging_bytes, entry->len_bytes);
	not_written(entry, rc, spw_last_error());
}

void spw_cache__enter(struct spw_cache *cache)
{
	spw_cache__lock(cache);
	spw_cache__write_deferred(cache);
}

void spw_cache__write_forward(struct entry *entry)
{
	spw_cache__entry_cancel_write(entry);
	if (entry->object_exists && !entry->write_in_flight)
		spw_cache__entry_free_object(entry);
	if (entry->drainable)
		spw_cache__entry_not_drainable(entry);
	if (entry_is_copying(entry))
		queue_quit(&entry->cache->copying, entry);
	spw_cache__entry_become(entry, ENTRY_RESIDENT);
	entry->forwarded = true;
	/* Of others the end of the write does this. */
	if (entry->hosted && entry->copies == 0 && entry_at_owner(entry))
		spw_cache__entry_put_memory(entry);
}
