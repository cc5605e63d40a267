/* SPDX-License-Identifier: MIT */
/* tensor/read.c - prefetches, urgent reads, and how both end */
#include <errno.h>

#include "tensor/entry.h"
#include "tensor/external_traffic.h"
#include "tensor/internal.h"
#include "tensor/lock.h"
#include "tensor/read.h"
#include "tensor/write.h"

static void read_ended(struct entry *entry, int res)
{
	struct spw_cache *cache = entry->cache;

	SPW_ASSERT(entry->state == ENTRY_COMING || entry->state == ENTRY_DEAD);
	SPW_ASSERT(entry->read_in_flight && entry->memory);
	entry->read_in_flight = false;
	entry->read_request = NULL;
	spw_cache__traffic_io_ended(entry, DIRECTION_READ, res);
	if (res == 0)
		cache->count.bytes_read += entry->len_bytes;
	if (entry->state == ENTRY_DEAD) {
		spw_cache__entry_settle(entry);
	} else if (res == 0) {
		spw_cache__entry_become(entry, ENTRY_RESIDENT);
	} else {
		spw_cache__entry_leave_window(entry);
		spw_cache__entry_put_memory(entry);
		spw_cache__entry_become(entry, ENTRY_STORED);
	}
	spw_cache__io_ended(entry);
}

static void prefetch_done(void *context, int res)
{
	struct entry *entry = context;
	struct spw_cache *cache = entry->cache;

	spw_cache__lock(cache);
	if (res && res != -ECANCELED) {
		cache->count.prefetches_failed++;
		spw_notice(&cache->notices, NOTICE_PREFETCH_FAILED,
			   "a prefetch failed, the tensor is read on use: %s", spw_last_error());
	}
	read_ended(entry, res);
	spw_cache__write_deferred(cache);
	cache->on_io_done(cache);
	spw_cache__unlock(cache);
}

/* Begin to read. @notify: a prefetch; NULL: the caller waits for @request. */
static int read_begin(struct entry *entry, const struct spw_notify *notify,
		      struct spw_request **request)
{
	struct spw_cache *cache = entry->cache;
	int rc;

	SPW_ASSERT(entry->state == ENTRY_STORED && !entry->read_in_flight); /* CACHE-4 */
	/* A prefetch for a device can wait until staging memory is free. */
	rc = entry->device && notify ? spw_cache__entry_get_arena_memory(entry)
				     : spw_cache__entry_get_memory(entry);
	if (rc)
		return rc;
	rc = cache->ports.get(cache->store, entry->object, 0, entry->memory, entry->len_bytes,
			      notify ? SPW_PREFETCH : SPW_URGENT_READ, notify, request);
	if (rc) {
		spw_cache__entry_put_memory(entry);
		return rc;
	}
	cache->io_in_flight++;
	spw_cache__traffic_io_began(entry, DIRECTION_READ);
	spw_cache__entry_become(entry, ENTRY_COMING);
	entry->read_in_flight = true;
	return 0;
}

int spw_cache__read_urgently(struct entry *entry)
{
	struct spw_cache *cache = entry->cache;
	struct spw_request *request;
	int rc = read_begin(entry, NULL, &request);

	if (rc)
		return rc;
	spw_cache__unlock_and_notify(cache);
	rc = cache->ports.wait(request);
	spw_cache__lock(cache);
	if (rc && rc != -ECANCELED)
		cache->count.reads_failed++;
	read_ended(entry, rc);
	return rc;
}

int spw_cache__read_prefetch(struct entry *entry)
{
	const struct spw_notify notify = {.done = prefetch_done, .context = entry};
	int rc = read_begin(entry, &notify, &entry->read_request);

	if (rc == 0)
		entry->cache->count.prefetches++;
	return rc;
}
