/* SPDX-License-Identifier: MIT */
/* tensor/spill.c - offers, writes and how they end, tokens that go back */
#include <errno.h>

#include "tensor/internal.h"

#define STORAGE_BYTES_MAX (UINT64_C(1) << 56)

/* ---- Writes ---- */

static enum keep_reason reason_of(int error)
{
	switch (error) {
	case -ENOSPC: return KEEP_NO_SPACE;
	case -ENOBUFS: return KEEP_BACKPRESSURE; /* all the store's requests wait for the drives */
	case -ESTALE: return KEEP_CHANGED;
	default: return KEEP_ERROR;
	}
}

static void write_failed(struct entry *entry, int error, const char *words)
{
	struct spw_cache *cache = entry->cache;
	enum keep_reason reason = reason_of(error);

	spw_rule_kept(cache, reason, entry->len_bytes);
	if (reason == KEEP_BACKPRESSURE)
		spw_cache_notice(cache, NOTICE_BACKPRESSURE,
				 "the drives do not keep up: tensors stay in memory: %s", words);
	else if (reason == KEEP_CHANGED)
		spw_cache_notice(cache, NOTICE_CHANGED,
				 "memory that was offered twice changed in between, and its "
				 "version did not: it stays in "
				 "memory");
	else if (reason == KEEP_NO_SPACE)
		spw_cache_notice(cache, NOTICE_NO_SPACE,
				 "no space on the drives: tensors stay in memory: %s", words);
	else
		spw_cache_notice(cache, NOTICE_WRITE_FAILED,
				 "a tensor of %llu bytes cannot be written and stays in memory: %s",
				 (unsigned long long)entry->len_bytes, words);
}

/*
 * Whether the memory still has the bytes that were written. It is compared without the lock, and
 * again if it is offered once more meanwhile; it is the cache's until the write is said to have
 * ended.
 */
static bool write_holds(struct entry *entry)
{
	struct spw_cache *cache = entry->cache;
	bool holds = true;

	while (holds && entry->recheck &&
	       (entry->state == ENTRY_QUEUED || entry->state == ENTRY_WRITING)) {
		entry->recheck = false;
		spw_cache_unlock(cache);
		holds = cache->ports.holds(cache->store, entry->object, entry->bytes, 0,
					   entry->len_bytes) == 1;
		spw_cache_lock(cache);
		cache->count.bytes_compared += entry->len_bytes;
	}
	return holds;
}

/*
 * The object has been written, or not: what becomes of the entry depends on what happened to it
 * meanwhile.
 */
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
		spw_entry_free_object(entry); /* forwarded: the memory stays */
	} else if (entry->state == ENTRY_DEAD) {
		spw_entry_settle(entry);
	} else if (res == 0) {
		spw_entry_issued(entry);
		spw_entry_make_drainable(entry);
	} else {
		spw_entry_free_object(entry);
		spw_entry_keep(entry);
		write_failed(entry, res, words);
	}
}

static void write_done(void *context, int res)
{
	struct entry *entry = context;
	struct spw_cache *cache = entry->cache;
	bool changed;

	spw_cache_lock(cache);
	changed = res == 0 && !write_holds(entry);
	entry->write_in_flight = false;
	entry->write_request = NULL;
	gauge_sub(&cache->count.staging_bytes, entry->len_bytes);
	spw_measure_ended(&cache->measure, DIRECTION_WRITE, entry->len_bytes, res == 0,
			  entry->io_began_ns, cache->ports.clock_ns());
	write_ended(entry, changed ? -ESTALE : res, spw_last_error());
	spw_cache_io_ended(cache);
	spw_spill_held(cache);
	spw_window_fill(cache);
	spw_cache_unlock(cache);
}

static int write_submit(struct entry *entry)
{
	struct spw_cache *cache = entry->cache;
	const struct spw_notify notify = {.done = write_done, .context = entry};
	int rc = cache->ports.put(cache->store, entry->bytes, entry->len_bytes, &notify,
				  &entry->object, &entry->write_request);

	if (rc)
		return rc;
	entry->object_exists = true;
	entry->write_in_flight = true;
	SPW_PROBE(spill, cache, entry, entry->len_bytes);
	spw_cache_io_began(cache);
	entry->io_began_ns = cache->ports.clock_ns();
	spw_measure_began(&cache->measure, DIRECTION_WRITE, entry->len_bytes, entry->io_began_ns);
	return 0;
}

/*
 * A put wakes the store's thread, and cancelling it does once more: for nothing, if the tensor is
 * taken next. So the last write is held back until the next call of the cache, or until some I/O
 * ends, whichever is first: while the drives are busy that costs no time, and of small tensors next
 * to none.
 */
static int write_begin(struct entry *entry)
{
	struct spw_cache *cache = entry->cache;
	int rc = 0;

	SPW_ASSERT(!cache->held);
	if (cache->hold_bytes > 0 &&
	    (entry->len_bytes <= cache->hold_bytes || cache->count.staging_bytes > 0))
		cache->held = entry;
	else
		rc = write_submit(entry);
	if (rc)
		return rc;
	gauge_add(&cache->count.staging_bytes, &cache->count.staging_bytes_max, entry->len_bytes);
	spw_entry_queue(entry);
	return 0;
}

void spw_spill_held(struct spw_cache *cache)
{
	struct entry *entry = cache->held;
	int rc;

	if (!entry)
		return;
	cache->held = NULL;
	rc = write_submit(entry);
	if (rc == 0)
		return;
	gauge_sub(&cache->count.staging_bytes, entry->len_bytes);
	spw_entry_keep(entry);
	write_failed(entry, rc, spw_last_error());
}

void spw_spill_cancel(struct entry *entry)
{
	struct spw_cache *cache = entry->cache;

	if (entry->state != ENTRY_QUEUED)
		return;
	if (cache->held == entry) {
		cache->held = NULL;
		gauge_sub(&cache->count.staging_bytes, entry->len_bytes);
	} else if (entry->cache->ports.cancel(entry->write_request)) {
		spw_entry_issued(entry);
		return;
	}
	cache->count.writes_cancelled++;
	cache->count.bytes_writes_cancelled += entry->len_bytes;
}

void spw_spill_forward(struct entry *entry)
{
	if (entry->write_in_flight || entry->cache->held == entry) {
		spw_spill_cancel(entry);
	} else {
		spw_entry_not_drainable(entry);
		spw_entry_free_object(entry);
	}
	spw_entry_forward(entry);
}

/* ---- Offers ---- */

static int offer_check(const struct spw_offer *offer, enum spw_cache_hint hint,
		       const spw_tensor *tensor)
{
	if (!offer || !tensor)
		return spw_error(-EINVAL, "an offer needs a tensor to set");
	if (hint > SPW_HINT_PIN)
		return spw_error(-EINVAL, "no such hint: %u", (unsigned)hint);
	if (offer->owner == 0 || !offer->storage_bytes)
		return spw_error(
			-EINVAL,
			"an offer needs the storage's memory and an owner token that is not 0");
	/* So that sums of sizes, and the entry's end, stay within 64 bits. */
	if (offer->storage_len_bytes > STORAGE_BYTES_MAX)
		return spw_error(-EINVAL, "a storage of %llu bytes is larger than any memory",
				 (unsigned long long)offer->storage_len_bytes);
	if (offer->len_bytes == 0 || offer->offset_bytes > offer->storage_len_bytes ||
	    offer->len_bytes > offer->storage_len_bytes - offer->offset_bytes)
		return spw_error(-EINVAL, "bytes %llu + %llu are not within a storage of %llu",
				 (unsigned long long)offer->offset_bytes,
				 (unsigned long long)offer->len_bytes,
				 (unsigned long long)offer->storage_len_bytes);
	return 0;
}

static bool memory_has(const uint8_t *memory, const struct entry *entry,
		       const struct spw_offer *offer)
{
	const uint8_t *bytes = (const uint8_t *)offer->storage_bytes + offer->offset_bytes;

	memory += offer->offset_bytes - entry->offset_bytes;
	return memory == bytes || memcmp(memory, bytes, offer->len_bytes) == 0;
}

/*
 * Compare with what was read back, or with what was written. Without the lock, for as long as
 * reading memory takes: the entry has a user, so that what it has read stays. Return: as
 * spw_store_holds().
 */
static int entry_compare(struct entry *entry, const struct spw_offer *offer)
{
	struct spw_cache *cache = entry->cache;
	const uint8_t *memory = entry->state == ENTRY_RESIDENT ? entry->memory : NULL;
	spw_object object = entry->object;
	int rc;

	spw_cache_unlock(cache);
	if (memory)
		rc = memory_has(memory, entry, offer);
	else
		rc = cache->ports.holds(cache->store, object,
					(const uint8_t *)offer->storage_bytes + entry->offset_bytes,
					offer->offset_bytes - entry->offset_bytes,
					offer->len_bytes);
	spw_cache_lock(cache);
	if (rc >= 0)
		cache->count.bytes_compared += offer->len_bytes;
	return rc;
}

/* Whether the entry has the bytes that are offered now. */
static bool entry_has(struct entry *entry, const struct spw_offer *offer)
{
	int rc;

	for (;;) {
		if (entry->state == ENTRY_KEPT ||
		    (entry->state == ENTRY_RESIDENT && !entry->memory))
			return memory_has(entry->bytes, entry, offer);
		rc = entry_compare(entry, offer);
		if (rc != -EINPROGRESS)
			return rc == 1;
		if (entry->write_in_flight)
			break;
	}
	/*
	 * The drives have these bytes, or will have, if the memory has not changed since: that
	 * shows at the end.
	 */
	entry->recheck = true;
	return memory_has(entry->bytes, entry, offer);
}

/*
 * The entry that has the same bytes, with one user more; or NULL. No write is held back afterwards.
 */
static struct entry *duplicate_of(struct spw_cache *cache, const struct spw_offer *offer)
{
	struct entry *entry;

	for (;;) {
		spw_spill_held(cache);
		entry = spw_entry_covering(cache, offer->storage_key, offer->storage_version,
					   offer->offset_bytes, offer->len_bytes);
		if (!entry)
			return NULL;
		entry->users++;
		if (entry_has(entry, offer))
			return entry;
		entry->stale = true;
		cache->count.offers_changed++;
		spw_entry_leave(entry);
	}
}

static int offer_duplicate(struct entry *entry, const struct spw_offer *offer,
			   enum spw_cache_hint hint)
{
	struct spw_cache *cache = entry->cache;

	spw_record_hint(entry, hint);
	cache->count.bytes_deduplicated += offer->len_bytes;
	cache->count.tensors_deduplicated++;
	/*
	 * The last offer is the first use. In the backward pass the order is being used, not made.
	 */
	if (cache->stage == SPW_STAGE_FORWARD)
		spw_entry_offered_again(entry);
	return SPW_OFFER_DEDUP;
}

static int offer_new(struct entry *entry, enum spw_cache_hint hint)
{
	struct spw_cache *cache = entry->cache;
	enum keep_reason reason;
	int rc;

	spw_record_offer(entry, hint);
	reason = spw_rule_keep(entry, hint);
	if (reason == KEEP_NOT) {
		rc = write_begin(entry);
		if (rc == 0) {
			spw_rule_offered(cache, entry->len_bytes, true);
			return SPW_OFFER_SPILL;
		}
		spw_entry_keep(entry);
		write_failed(entry, rc, spw_last_error());
	} else {
		spw_entry_keep(entry);
		spw_rule_kept(cache, reason, entry->len_bytes);
		if (reason == KEEP_BACKPRESSURE)
			spw_cache_notice(cache, NOTICE_BACKPRESSURE,
					 "the drives do not keep up: tensors stay in memory while "
					 "more than %llu bytes "
					 "wait to be written (staging_bytes)",
					 (unsigned long long)cache->opts.staging_bytes);
	}
	spw_rule_offered(cache, entry->len_bytes, false);
	return SPW_OFFER_KEEP;
}

int spw_cache_offer(struct spw_cache *cache, const struct spw_offer *offer, spw_tensor *tensor)
{
	return spw_cache_offer_hint(cache, offer, SPW_HINT_NONE, tensor);
}

static void offer_trace(struct spw_cache *cache, const struct spw_offer *offer,
			enum spw_cache_hint hint, spw_tensor tensor, int result)
{
	if (!cache->opts.trace)
		return;
	spw_trace_write(cache->opts.trace,
			&(struct spw_trace_event){.kind = SPW_TRACE_OFFER,
						  .tensor = tensor.value,
						  .storage_key = offer->storage_key,
						  .storage_version = offer->storage_version,
						  .storage_len_bytes = offer->storage_len_bytes,
						  .hint = (enum spw_trace_hint)hint,
						  .result = (enum spw_trace_result)result,
						  .offset_bytes = offer->offset_bytes,
						  .len_bytes = offer->len_bytes});
}

int spw_cache_offer_hint(struct spw_cache *cache, const struct spw_offer *offer,
			 enum spw_cache_hint hint, spw_tensor *tensor)
{
	uint64_t offset_bytes, len_bytes;
	struct entry *entry;
	int rc;

	/* A caller that overlooks the error must not hold the id of another tensor. */
	if (tensor)
		tensor->value = 0;
	rc = offer_check(offer, hint, tensor);
	if (rc)
		return rc;
	spw_rule_range(offer, &offset_bytes, &len_bytes);
	spw_cache_lock(cache);
	cache->count.offers++;
	cache->count.bytes_offered += offer->len_bytes;
	entry = duplicate_of(cache, offer);
	if (entry) {
		rc = offer_duplicate(entry, offer, hint);
	} else {
		entry = spw_entry_begin(cache, offer, offset_bytes, len_bytes);
		if (entry) {
			rc = offer_new(entry, hint);
		} else {
			spw_rule_kept(cache, KEEP_ENTRIES, len_bytes);
			spw_cache_notice(cache, NOTICE_ENTRIES,
					 "all %u entries are in use: tensors stay in memory; raise "
					 "tensors_max",
					 cache->opts.tensors_max);
			rc = -ENOBUFS;
		}
	}
	if (entry) {
		*tensor = spw_entry_id(entry);
		offer_trace(cache, offer, hint, *tensor, rc);
		spw_window_fill(cache);
	}
	spw_cache_unlock_and_notify(cache);
	if (rc == -ENOBUFS)
		(void)spw_error(rc, "all %u entries are in use: raise tensors_max",
				cache->opts.tensors_max);
	return rc;
}

/* ---- Tokens ---- */

int spw_cache_drain(struct spw_cache *cache, uint64_t owners[], unsigned count)
{
	unsigned drained = 0;

	if (!owners && count > 0)
		return spw_error(-EINVAL, "drain needs an array for the tokens");
	spw_cache_lock(cache);
	spw_spill_held(cache);
	spw_record_drain(cache);
	while (drained < count && drained < INT32_MAX && !link_alone(&cache->drain)) {
		struct entry *entry = ENTRY_OF(cache->drain.next, drain);

		owners[drained++] = entry->owner;
		spw_entry_drained(entry);
	}
	/* What has been given back may be wanted soon. */
	spw_window_fill(cache);
	spw_cache_unlock_and_notify(cache);
	return (int)drained;
}
