/* SPDX-License-Identifier: MIT */
/* tensor/entry.c - the table of entries: how they are found, their states, what they hold */
#include <errno.h>
#include <stdlib.h>

#include "tensor/entry.h"
#include "tensor/internal.h"

/*
 * Why there are more arrows than the ideal course of things has:
 *   KEPT -> LEAVING            of a device: staging memory has come free;
 *   KEPT -> DISCARDED          while its checksum is computed it is like any other;
 *   DISCARDED -> KEPT          recomputed, or offered by another scope;
 *   QUEUED, LEAVING -> KEPT    a failed copy or write must not fail the training step;
 *   HOST -> RESIDENT           taken, or about to be: the caller may copy from it;
 *   LEAVING -> RESIDENT        forwarded; or a write from staging memory has failed;
 *   COMING -> STORED           a failed read fails that take alone: the next one reads again;
 *   RESIDENT -> STORED         of a device: what was handed out has been copied;
 *   all -> DEAD                the last user may go at any moment: a graph is dropped.
 */
static const bool allowed[ENTRY_STATES][ENTRY_STATES] = {
	[ENTRY_FREE] = {[ENTRY_KEPT] = true, [ENTRY_QUEUED] = true, [ENTRY_LEAVING] = true},
	[ENTRY_KEPT] = {[ENTRY_LEAVING] = true, [ENTRY_DISCARDED] = true, [ENTRY_DEAD] = true},
	[ENTRY_QUEUED] = {[ENTRY_LEAVING] = true,
			  [ENTRY_RESIDENT] = true,
			  [ENTRY_KEPT] = true,
			  [ENTRY_DEAD] = true},
	[ENTRY_LEAVING] = {[ENTRY_STORED] = true,
			   [ENTRY_HOST] = true,
			   [ENTRY_RESIDENT] = true,
			   [ENTRY_KEPT] = true,
			   [ENTRY_DEAD] = true},
	[ENTRY_HOST] = {[ENTRY_RESIDENT] = true, [ENTRY_DEAD] = true},
	[ENTRY_STORED] = {[ENTRY_COMING] = true, [ENTRY_DEAD] = true},
	[ENTRY_COMING] = {[ENTRY_RESIDENT] = true, [ENTRY_STORED] = true, [ENTRY_DEAD] = true},
	[ENTRY_RESIDENT] = {[ENTRY_STORED] = true, [ENTRY_DEAD] = true},
	[ENTRY_DISCARDED] = {[ENTRY_KEPT] = true, [ENTRY_DEAD] = true},
	[ENTRY_DEAD] = {[ENTRY_FREE] = true},
};

/* What is true in each state. */
static bool entry_holds(const struct entry *entry, enum entry_state state)
{
	bool writes = entry->write_in_flight;

	switch (state) {
	case ENTRY_FREE:
		return link_alone(&entry->drain) && link_alone(&entry->device_link) &&
		       !entry->in_window;
	case ENTRY_KEPT: return entry_at_owner(entry) && !writes && entry->copies == 0;
	case ENTRY_QUEUED: return entry->cache->deferred == entry;
	case ENTRY_LEAVING: return (writes && entry->object_exists) || entry->copies > 0;
	case ENTRY_HOST:
		return !entry->owner_held && entry->hosted && entry->memory && entry->copies == 0 &&
		       !entry->object_exists;
	case ENTRY_STORED:
		return !entry->owner_held && !entry->memory && !writes && entry->object_exists;
	case ENTRY_COMING: return !entry->owner_held && entry->memory; /* CACHE-4 */
	case ENTRY_RESIDENT:
		return entry_at_owner(entry) || (entry->memory && !entry->read_in_flight);
	case ENTRY_DISCARDED: return !entry->owner_held && !entry->memory && !entry->object_exists;
	case ENTRY_DEAD: return entry->users == 0;
	case ENTRY_STATES: break;
	}
	return false;
}

/* Neither its owner nor the caller has the bytes. */
static bool is_away(unsigned state)
{
	return state == ENTRY_STORED || state == ENTRY_HOST;
}

void spw_cache__entry_become(struct entry *entry, enum entry_state to)
{
	SPW_ASSERT(cache_is_locked(entry->cache)); /* CACHE-1 */
	SPW_ASSERT(entry_holds(entry, to));
	SPW_ASSERT(entry->state < ENTRY_STATES && allowed[entry->state][to]);
	if (is_away(to) != is_away(entry->state))
		spw_control__stored(control_of(entry->cache), &entry->track, is_away(to));
	entry->state = (uint8_t)to;
}

/* ---- The table ---- */

/*
 * Each look-up touches another bucket: few stay in the caches, and untouched memory faults. So as
 * many are used as there are entries; the rest is only reserved.
 */
#define BUCKETS_FIRST UINT64_C(1024)

int spw_cache__entries_open(struct spw_cache *cache)
{
	uint32_t count = cache->opts.tensors_max;
	uint64_t buckets = BUCKETS_FIRST;

	while (buckets < count)
		buckets *= 2;
	cache->entries = calloc(count, sizeof(*cache->entries));
	cache->buckets = calloc(buckets, sizeof(struct entry *));
	if (!cache->entries || !cache->buckets)
		return spw_error(-ENOMEM, "no memory for %u tensors: lower tensors_max", count);
	cache->bucket_mask = BUCKETS_FIRST - 1;
	link_begin(&cache->order);
	link_begin(&cache->drain);
	link_begin(&cache->drain_device);
	link_begin(&cache->to_compare);
	link_begin(&cache->copying.head);
	link_begin(&cache->coming.head);
	return 0;
}

/* One that was used before, else a fresh one: what is never needed is never touched. */
static struct entry *entry_take(struct spw_cache *cache)
{
	struct entry *entry = cache->free;

	if (entry) {
		SPW_ASSERT(entry->state == ENTRY_FREE && entry->generation > 0);
		cache->free = entry->next;
		return entry;
	}
	if (cache->entries_touched == cache->opts.tensors_max)
		return NULL;
	entry = &cache->entries[cache->entries_touched++];
	entry->generation = 1;
	return entry;
}

void spw_cache__entries_close(struct spw_cache *cache)
{
	free(cache->buckets);
	free(cache->entries);
}

spw_tensor spw_cache__entry_id(const struct entry *entry)
{
	return (spw_tensor){(uint64_t)entry->generation << 32 |
			    (uint32_t)(entry - entry->cache->entries)};
}

struct entry *spw_cache__entry_of_id(struct spw_cache *cache, uint64_t id)
{
	uint32_t slot = (uint32_t)id;
	struct entry *entry;

	if (slot >= cache->entries_touched)
		return NULL;
	entry = &cache->entries[slot];
	if (entry->state == ENTRY_FREE || entry->generation != id >> 32)
		return NULL;
	return entry;
}

/* Keys are often addresses or small numbers: spread them over all bits. */
static struct entry **entry_bucket(struct spw_cache *cache, uint64_t key, uint64_t version)
{
	uint64_t hash = key * UINT64_C(0x9e3779b97f4a7c15) + version * UINT64_C(0xc2b2ae3d27d4eb4f);

	hash ^= hash >> 32;
	hash *= UINT64_C(0xff51afd7ed558ccd);
	return &cache->buckets[(hash >> 32) & cache->bucket_mask];
}

/* Twice as many buckets, of those reserved: entries stay, or move to the new twin. */
static void buckets_double(struct spw_cache *cache)
{
	uint64_t before = cache->bucket_mask + 1;

	cache->bucket_mask = 2 * before - 1;
	for (uint64_t i = 0; i < before; i++) {
		struct entry *next, *entry = cache->buckets[i];

		cache->buckets[i] = NULL;
		for (; entry; entry = next) {
			struct entry **bucket = entry_bucket(cache, entry->key, entry->version);

			next = entry->next;
			entry->next = *bucket;
			*bucket = entry;
		}
	}
}

struct entry *spw_cache__entry_covering(struct spw_cache *cache, uint64_t key, uint64_t version,
					uint64_t offset_bytes, uint64_t len_bytes)
{
	struct entry *entry = *entry_bucket(cache, key, version);

	for (; entry; entry = entry->next)
		if (entry->key == key && entry->version == version && !entry->stale &&
		    offset_bytes >= entry->offset_bytes &&
		    offset_bytes + len_bytes <= entry->offset_bytes + entry->len_bytes)
			return entry;
	return NULL;
}

struct entry *spw_cache__entry_begin(struct spw_cache *cache, const struct spw_offer *offer,
				     uint32_t device, uint64_t offset_bytes, uint64_t len_bytes)
{
	struct entry *entry = entry_take(cache), **bucket;

	if (!entry)
		return NULL;
	if (cache->count.entries > cache->bucket_mask)
		buckets_double(cache);
	SPW_ASSERT(!entry->memory && !entry->object_exists && !entry->owner_held); /* CACHE-6 */
	bucket = entry_bucket(cache, offer->storage_key, offer->storage_version);
	*entry = (struct entry){
		.cache = cache,
		.next = *bucket,
		.key = offer->storage_key,
		.version = offer->storage_version,
		.offset_bytes = offset_bytes,
		.len_bytes = len_bytes,
		.bytes = (const uint8_t *)offer->storage_bytes + offset_bytes,
		.owner = offer->owner,
		.owner_held = true,
		.device = device,
		.generation = entry->generation,
		.users = 1,
		.step = cache->step,
		.micro_batch = cache->micro_batch,
		.track = spw_control__track(control_of(cache)),
		.state = ENTRY_FREE,
	};
	*bucket = entry;
	link_append(&cache->order, &entry->order);
	link_begin(&entry->drain);
	link_begin(&entry->device_link);
	cache->count.entries++;
	SPW_ASSERT(cache->count.entries <= cache->opts.tensors_max);
	spw_control__saved(control_of(cache), len_bytes);
	activation_add(entry);
	return entry;
}

/* No offer finds it any more, and the backward pass does not come by it. */
static void entry_hide(struct entry *entry)
{
	struct spw_cache *cache = entry->cache;
	struct entry **link = entry_bucket(cache, entry->key, entry->version);

	while (*link != entry) {
		SPW_ASSERT(*link);
		link = &(*link)->next;
	}
	*link = entry->next;
	entry->next = NULL;
	if (cache->cursor == &entry->order)
		cache->cursor = entry->order.previous;
	link_remove(&entry->order);
}

void spw_cache__entry_offered_again(struct entry *entry)
{
	struct spw_cache *cache = entry->cache;

	SPW_ASSERT(entry->users > 0 && !link_alone(&entry->order));
	/* The window may be on its way through the order, for the stage that comes next. */
	if (cache->cursor == &entry->order)
		cache->cursor = entry->order.previous;
	link_remove(&entry->order);
	link_append(&cache->order, &entry->order);
	entry->step = cache->step;
	entry->micro_batch = cache->micro_batch;
}

/* ---- What becomes of an entry ---- */

/* A write is not needed any more, or not needed yet: cancel it if that is still possible. */
void spw_cache__entry_cancel_write(struct entry *entry)
{
	struct spw_cache *cache = entry->cache;

	if (entry->state == ENTRY_QUEUED) {
		SPW_ASSERT(cache->deferred == entry);
		cache->deferred = NULL;
		gauge_sub(&cache->count.staging_bytes, entry->len_bytes);
	} else if (entry->state != ENTRY_LEAVING || !entry->write_request ||
		   cache->ports.cancel(entry->write_request)) {
		return;
	}
	cache->count.writes_cancelled++;
	cache->count.bytes_writes_cancelled += entry->len_bytes;
}

void spw_cache__entry_leave_window(struct entry *entry)
{
	if (!entry->in_window)
		return;
	if (!link_alone(&entry->device_link))
		queue_quit(&entry->cache->coming, entry);
	entry->in_window = false;
	gauge_sub(&entry->cache->count.prefetched_bytes, entry->len_bytes);
}

/* The last user is gone. What is under way comes to its end first. */
static void entry_die(struct entry *entry)
{
	if (entry->write_in_flight || entry->cache->deferred == entry)
		spw_cache__entry_cancel_write(entry);
	if (entry->read_request)
		(void)entry->cache->ports.cancel(entry->read_request);
	spw_cache__entry_leave_window(entry);
	if (entry->handed_out)
		activation_sub(entry);
	entry_hide(entry);
	spw_cache__entry_become(entry, ENTRY_DEAD);
	spw_cache__entry_settle(entry);
}

void spw_cache__entry_leave(struct entry *entry)
{
	SPW_ASSERT(entry->users > 0);
	if (--entry->users > 0)
		return;
	spw_control__gone(control_of(entry->cache), entry->len_bytes);
	spw_control__released(control_of(entry->cache), &entry->track, entry->leases > 0);
	entry_die(entry);
}

/* The cache is closing: no user, lease or copy counts any more. I/O in flight ends first. */
void spw_cache__entries_abandon(struct spw_cache *cache)
{
	for (uint32_t i = 0; i < cache->entries_touched; i++) {
		struct entry *entry = &cache->entries[i];

		if (entry->state == ENTRY_FREE)
			continue;
		entry->leases = 0;
		entry->users = 0;
		entry->copies = 0;
		link_remove(&entry->device_link);
		if (entry->state == ENTRY_DEAD)
			spw_cache__entry_settle(entry);
		else
			entry_die(entry);
	}
}

/* CACHE-6. An id is not given out again for 2^32 - 1 uses of its slot. */
static void entry_recycle(struct entry *entry)
{
	struct spw_cache *cache = entry->cache;

	SPW_ASSERT(entry->users == 0 && entry->leases == 0);
	SPW_ASSERT(!entry->object_exists && link_alone(&entry->order));
	spw_cache__entry_become(entry, ENTRY_FREE);
	entry->generation++;
	if (entry->generation == 0)
		entry->generation = 1;
	entry->next = cache->free;
	cache->free = entry;
	SPW_ASSERT(cache->count.entries > 0);
	cache->count.entries--;
}

void spw_cache__entry_settle(struct entry *entry)
{
	SPW_ASSERT(entry->state == ENTRY_DEAD);
	if (entry->write_in_flight || entry->read_in_flight || entry->copies > 0)
		return;
	if (entry->object_exists)
		spw_cache__entry_free_object(entry);
	if (entry->owner_held && !entry->drainable)
		spw_cache__entry_make_drainable(entry);
	if (entry->memory && entry->leases == 0)
		spw_cache__entry_put_memory(entry);
	if (!entry->owner_held && !entry->memory && entry->waiters == 0)
		entry_recycle(entry);
}

/* ---- What an entry holds ---- */

void spw_cache__entry_make_drainable(struct entry *entry)
{
	SPW_ASSERT(entry_at_owner(entry) && link_alone(&entry->device_link)); /* CACHE-2 */
	SPW_ASSERT(!entry->write_in_flight || entry->device);                 /* CACHE-2 */
	entry->drainable = true;
	if (!entry->device)
		entry->cache->returned_bytes += entry->len_bytes;
	link_append(entry->device ? &entry->cache->drain_device : &entry->cache->drain,
		    &entry->drain);
}

void spw_cache__entry_not_drainable(struct entry *entry)
{
	SPW_ASSERT(entry->drainable);
	entry->drainable = false;
	if (!entry->device)
		gauge_sub(&entry->cache->returned_bytes, entry->len_bytes);
	link_remove(&entry->drain);
}

/* The caller has its token back and may free the memory. */
void spw_cache__entry_drained(struct entry *entry)
{
	SPW_ASSERT(entry->owner_held);
	spw_cache__entry_not_drainable(entry);
	entry->owner_held = false;
	entry->bytes = NULL;
	activation_sub(entry);
	if (entry->state == ENTRY_DEAD)
		spw_cache__entry_settle(entry);
	else if (entry->state == ENTRY_LEAVING && !entry->write_in_flight && entry->copies == 0)
		spw_cache__entry_become(entry, entry->hosted ? ENTRY_HOST : ENTRY_STORED);
}

void spw_cache__entry_free_object(struct entry *entry)
{
	int rc;

	/* CACHE-3 */
	SPW_ASSERT(entry->object_exists && !entry->write_in_flight && !entry->read_in_flight);
	entry->object_exists = false;
	rc = entry->cache->ports.free(entry->cache->store, entry->object);
	SPW_ASSERT(rc == 0);
}

/* @in_arena: the store's; @piece: or that of the host memory, or NULL */
static void set_memory(struct entry *entry, void *memory, bool in_arena, struct spw_arena *piece)
{
	struct spw_cache_stats *count = &entry->cache->count;

	SPW_ASSERT(!entry->memory && (entry->device || !piece));
	entry->memory = memory;
	entry->memory_in_arena = in_arena;
	entry->piece = piece;
	if (entry->hosted)
		gauge_add(&count->host_bytes, &count->host_bytes_max, entry->len_bytes);
	else if (entry->device)
		gauge_add(&count->device_staging_bytes, &count->device_staging_bytes_max,
			  entry->len_bytes);
	else
		activation_add(entry);
}

bool spw_cache__entry_get_host_memory(struct entry *entry, bool to_stay)
{
	struct host *host = &entry->cache->host;
	void *memory = NULL;

	for (uint32_t i = 0; i < host->count; i++) {
		if (spw_arena_alloc(host->arenas[i], entry->len_bytes, &memory))
			continue;
		entry->hosted = to_stay;
		set_memory(entry, memory, false, host->arenas[i]);
		return true;
	}
	return false;
}

/* Where the arena is full, host memory stages as well: it is pinned, too. */
int spw_cache__entry_get_arena_memory(struct entry *entry)
{
	struct spw_cache *cache = entry->cache;
	void *memory = NULL;
	int rc = cache->ports.alloc(cache->store, entry->len_bytes, &memory);

	if (rc == 0)
		set_memory(entry, memory, true, NULL);
	else if (rc == -ENOBUFS && entry->device && spw_cache__entry_get_host_memory(entry, false))
		rc = 0;
	return rc;
}

/* Memory to read into, ordinary memory where the arena has none: then the read may be copied. */
int spw_cache__entry_get_memory(struct entry *entry)
{
	struct spw_cache *cache = entry->cache;
	void *memory;
	int rc = spw_cache__entry_get_arena_memory(entry);

	if (rc != -ENOBUFS)
		return rc;
	memory = aligned_alloc(ENTRY_MEMORY_ALIGN,
			       (size_t)spw_round_up(entry->len_bytes, ENTRY_MEMORY_ALIGN));
	if (!memory)
		return spw_error(-ENOMEM, "no memory for %llu bytes to read into",
				 (unsigned long long)entry->len_bytes);
	cache->count.read_memory_outside_arena_bytes += entry->len_bytes;
	spw_notice(&cache->notices, NOTICE_MEMORY,
		   "the store's arena is full: more activations are read into ordinary "
		   "memory, whose pages are taken from the system each time (arena_bytes; "
		   "see read_memory_outside_arena_bytes)");
	set_memory(entry, memory, false, NULL);
	return 0;
}

void spw_cache__entry_put_memory(struct entry *entry)
{
	struct spw_cache *cache = entry->cache;

	SPW_ASSERT(entry->memory && entry->leases == 0 && entry->copies == 0); /* CACHE-5 */
	SPW_ASSERT(!entry->read_in_flight && !entry->write_in_flight);         /* CACHE-5 */
	if (entry->hosted)
		gauge_sub(&cache->count.host_bytes, entry->len_bytes);
	else if (entry->device)
		gauge_sub(&cache->count.device_staging_bytes, entry->len_bytes);
	else
		activation_sub(entry);
	if (entry->piece) {
		spw_arena_free(entry->piece, entry->memory);
	} else if (entry->memory_in_arena) {
		cache->ports.release(cache->store, entry->memory);
	} else {
		/* Giving pages back takes long: spw_cache__unlock() does it, from this list. */
		*(void **)(void *)entry->memory = cache->doomed;
		cache->doomed = entry->memory;
	}
	entry->memory = NULL;
	entry->hosted = false;
}

void spw_cache__entry_hand_out(struct entry *entry)
{
	SPW_ASSERT(entry->state == ENTRY_RESIDENT && entry->memory);
	if (!link_alone(&entry->device_link))
		queue_quit(&entry->cache->coming, entry);
	entry->leases++;
	if (!entry->device || entry->handed_out)
		return;
	entry->handed_out = true;
	activation_add(entry);
}
