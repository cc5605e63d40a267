/* SPDX-License-Identifier: MIT */
/* tensor/offer.c - offers: the same bytes again, or an entry that is kept or spilled; tokens */
#include <errno.h>

#include "tensor/entry.h"
#include "tensor/host.h"
#include "tensor/internal.h"
#include "tensor/lock.h"
#include "tensor/offer.h"
#include "tensor/recompute.h"
#include "tensor/rules.h"
#include "tensor/throttle.h"
#include "tensor/trace.h"
#include "tensor/window.h"
#include "tensor/write.h"

/* The longest element: on a device a part is looked at as elements where it lies in its storage. */
#define ELEMENT_BYTES_MAX 16
#define STORAGE_BYTES_MAX (UINT64_C(1) << 56)
#define HINT_SPILL        2u /* of earlier versions */

/* Which part of a storage is stored for an offer. */
static void offer_range(const struct spw_offer *offer, uint32_t device, uint64_t *offset_bytes,
			uint64_t *len_bytes)
{
	uint64_t before = device ? offer->offset_bytes % ELEMENT_BYTES_MAX : 0;

	/* Twice the part may not fit in 64 bits; the whole less the part does. */
	if (offer->len_bytes >= offer->storage_len_bytes - offer->len_bytes) {
		*offset_bytes = 0;
		*len_bytes = offer->storage_len_bytes;
	} else {
		*offset_bytes = offer->offset_bytes - before;
		*len_bytes = offer->len_bytes + before;
	}
	SPW_ASSERT(*offset_bytes <= offer->offset_bytes &&
		   *len_bytes <= offer->storage_len_bytes - *offset_bytes);
}

static int offer_check(const struct spw_offer *offer, enum spw_cache_hint hint,
		       const spw_tensor *tensor)
{
	if (!offer || !tensor)
		return spw_error(-EINVAL, "an offer needs a tensor to set");
	if (offer->reserved[0] != 0 || offer->reserved[1] != 0)
		return spw_error(-EINVAL, "an offer: reserved fields must be 0");
	if ((unsigned)hint == HINT_SPILL)
		return spw_error(-EINVAL, "there is no hint 2 any more, to spill in any case: "
					  "SPW_HINT_NONE leaves it to the mode, and min_bytes says "
					  "what is too small");
	if (hint > SPW_HINT_INPUT)
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

	SPW_ASSERT(offer->offset_bytes >= entry->offset_bytes &&
		   offer->offset_bytes + offer->len_bytes <=
			   entry->offset_bytes + entry->len_bytes);
	memory += offer->offset_bytes - entry->offset_bytes;
	return memory == bytes || memcmp(memory, bytes, offer->len_bytes) == 0;
}

/*
 * Compare with what was read back, or with what was written, without the lock: the entry has a
 * user, so that what it has read stays. Return: as spw_store_holds().
 */
static int entry_compare(struct entry *entry, const struct spw_offer *offer)
{
	struct spw_cache *cache = entry->cache;
	const uint8_t *memory = entry->state == ENTRY_RESIDENT ? entry->memory : NULL;
	spw_object object = entry->object;
	int rc;

	SPW_ASSERT(entry->users > 0 && (memory || entry->object_exists));
	spw_cache__unlock(cache);
	if (memory)
		rc = memory_has(memory, entry, offer);
	else
		rc = cache->ports.holds(cache->store, object,
					(const uint8_t *)offer->storage_bytes + entry->offset_bytes,
					offer->offset_bytes - entry->offset_bytes,
					offer->len_bytes);
	spw_cache__lock(cache);
	if (rc >= 0)
		cache->count.bytes_compared += offer->len_bytes;
	return rc;
}

/*
 * Memory of a device is not read: what the device still has is the same, anything else unknown. A
 * storage has the part that was discarded for as long as it can be offered.
 */
static bool device_has(const struct entry *entry, const struct spw_offer *offer)
{
	if (entry->state == ENTRY_DISCARDED)
		return true;
	return entry_at_owner(entry) &&
	       entry->bytes - entry->offset_bytes == (const uint8_t *)offer->storage_bytes;
}

/* Whether the entry has the bytes that are offered now. */
static bool entry_has(struct entry *entry, const struct spw_offer *offer, uint32_t device,
		      enum spw_cache_hint hint)
{
	int rc;

	/* What is recomputed from an input is compared. */
	if (entry->device || device)
		return entry->device == device &&
		       (hint == SPW_HINT_INPUT || device_has(entry, offer));
	while (entry->state == ENTRY_DISCARDED) {
		bool same = spw_cache__recompute_holds(entry, offer);

		if (entry->state == ENTRY_DISCARDED)
			return same;
	}
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
	/* The drives get these bytes if the memory has not changed: that shows at the end. */
	entry->recheck = true;
	return memory_has(entry->bytes, entry, offer);
}

/* The entry that has the same bytes, with one user more; or NULL. Issues the deferred write. */
static struct entry *duplicate_of(struct spw_cache *cache, const struct spw_offer *offer,
				  uint32_t device, enum spw_cache_hint hint)
{
	struct entry *entry;

	for (;;) {
		spw_cache__write_deferred(cache);
		entry = spw_cache__entry_covering(cache, offer->storage_key, offer->storage_version,
						  offer->offset_bytes, offer->len_bytes);
		if (!entry)
			return NULL;
		entry->users++;
		if (entry_has(entry, offer, device, hint))
			return entry;
		entry->stale = true;
		cache->count.offers_changed++;
		spw_cache__entry_leave(entry);
	}
}

/*
 * Within its scope it stays discarded, and also where the offer is only the input of a scope that
 * may be recomputed: a plan that recomputes from it would not have discarded it. Any other offer
 * restores it, since its storage has the bytes.
 */
static int offer_discarded(struct entry *entry, const struct spw_offer *offer,
			   enum spw_cache_hint hint)
{
	bool may = hint == SPW_HINT_AGAIN || hint == SPW_HINT_GIVE_UP;

	if (hint == SPW_HINT_INPUT || (may && entry->scope == spw_cache__rule_scope(entry->cache)))
		return SPW_OFFER_AGAIN;
	spw_cache__recompute_restored(entry, offer);
	return SPW_OFFER_KEEP;
}

static int offer_duplicate(struct entry *entry, const struct spw_offer *offer,
			   enum spw_cache_hint hint)
{
	struct spw_cache *cache = entry->cache;

	spw_control__hinted(control_of(cache), &entry->track, hint);
	cache->count.bytes_deduplicated += offer->len_bytes;
	cache->count.tensors_deduplicated++;
	/* The last offer is the first use. In the backward pass the order stands. */
	if (cache->stage == SPW_STAGE_FORWARD)
		spw_cache__entry_offered_again(entry);
	if (entry->state == ENTRY_DISCARDED)
		return offer_discarded(entry, offer, hint);
	if (entry->copies == 0 || entry->state != ENTRY_LEAVING || hint == SPW_HINT_INPUT)
		return SPW_OFFER_DEDUP;
	/* The memory may have changed since the copy began, and its version may not tell. */
	entry->copies++;
	cache->copies_in_flight++;
	cache->count.bytes_copied_again += entry->len_bytes;
	return SPW_OFFER_COPY_AGAIN;
}

static void no_staging(struct entry *entry)
{
	struct spw_cache *cache = entry->cache;

	kept_add(cache, KEEP_NO_STAGING, entry->len_bytes);
	spw_notice(&cache->notices, NOTICE_STAGING,
		   "no staging memory for a tensor of %llu bytes, which stays on its device: "
		   "the store's arena is in use (arena_bytes)",
		   (unsigned long long)entry->len_bytes);
}

static void backpressure(struct entry *entry)
{
	struct spw_cache *cache = entry->cache;

	kept_add(cache, KEEP_BACKPRESSURE, entry->len_bytes);
	spw_notice(&cache->notices, NOTICE_BACKPRESSURE,
		   "the drives do not keep up: tensors stay in memory while more than %llu bytes "
		   "wait to be written (staging_bytes)",
		   (unsigned long long)cache->opts.staging_bytes);
}

int spw_cache__offer_copy(struct entry *entry, bool waits)
{
	struct spw_cache *cache = entry->cache;
	bool waited = entry->wants_copy;
	int rc = spw_cache__write_begin_copy(entry);

	entry->wants_copy = rc == -ENOBUFS && waits &&
			    (cache->copies_in_flight > 0 || cache->device_writes_in_flight > 0);
	if (rc == 0) {
		spw_cache__rule_offered(cache, entry->len_bytes, true);
		return SPW_OFFER_COPY;
	}
	if (entry->state == ENTRY_FREE)
		spw_cache__entry_become(entry, ENTRY_KEPT);
	if (entry->wants_copy) {
		cache->count.staging_waits += !waited;
		return SPW_OFFER_WAIT;
	}
	if (rc == -ENOBUFS && spw_cache__write_is_full(cache, entry->len_bytes))
		backpressure(entry);
	else if (rc == -ENOBUFS)
		no_staging(entry);
	else
		spw_cache__write_failed(entry, rc, spw_last_error());
	spw_cache__rule_offered(cache, entry->len_bytes, false);
	return SPW_OFFER_KEEP;
}

static int offer_discard(struct entry *entry)
{
	struct spw_cache *cache = entry->cache;
	bool discarded = spw_cache__recompute_discard(entry);

	if (!discarded)
		kept_add(cache, KEEP_PLANNED, entry->len_bytes);
	spw_cache__rule_offered(cache, entry->len_bytes, false);
	return discarded ? SPW_OFFER_AGAIN : SPW_OFFER_KEEP;
}

/* The controller is told of a new entry. */
static void offer_told(struct entry *entry, enum spw_cache_hint hint, uint64_t number)
{
	struct spw_cache *cache = entry->cache;

	spw_control__offered(control_of(cache), &entry->track, (uint32_t)(entry - cache->entries),
			     entry->len_bytes, hint);
	spw_control__numbered(control_of(cache), &entry->track, number);
}

static int offer_new(struct entry *entry, enum spw_cache_hint hint)
{
	struct spw_cache *cache = entry->cache;
	enum keep_reason reason;
	int rc;

	spw_cache__window_follow(cache);
	if (spw_cache__rule_discards(entry, hint))
		return offer_discard(entry);
	reason = spw_cache__rule_keep(entry, hint);
	if (reason == KEEP_NOT && !spw_cache__host_hold(entry))
		reason = spw_cache__rule_limit(entry);
	if (reason == KEEP_NOT && entry->device)
		return spw_cache__offer_copy(entry, true);
	if (reason == KEEP_NOT) {
		rc = spw_cache__write_begin(entry);
		if (rc == 0) {
			spw_cache__rule_offered(cache, entry->len_bytes, true);
			return SPW_OFFER_SPILL;
		}
		spw_cache__entry_become(entry, ENTRY_KEPT);
		spw_cache__write_failed(entry, rc, spw_last_error());
	} else {
		spw_cache__entry_become(entry, ENTRY_KEPT);
		if (reason == KEEP_BACKPRESSURE)
			backpressure(entry);
		else
			kept_add(cache, reason, entry->len_bytes);
	}
	spw_cache__rule_offered(cache, entry->len_bytes, false);
	return SPW_OFFER_KEEP;
}

/*
 * A trace describes the model, on any machine: a copy to staging memory counts as a spill, and a
 * discarded tensor as kept.
 */
static enum spw_trace_result trace_result(int result, bool duplicate)
{
	if (duplicate)
		return SPW_TRACE_RESULT_DEDUP;
	if (result == SPW_OFFER_AGAIN)
		return SPW_TRACE_RESULT_KEEP;
	if (result == SPW_OFFER_COPY || result == SPW_OFFER_WAIT)
		return SPW_TRACE_RESULT_SPILL;
	return (enum spw_trace_result)result;
}

static void offer_trace(struct spw_cache *cache, const struct spw_offer *offer,
			enum spw_cache_hint hint, spw_tensor tensor, enum spw_trace_result result)
{
	CACHE_TRACE(cache, .kind = SPW_TRACE_OFFER, .tensor = tensor.value,
		    .storage_key = offer->storage_key, .storage_version = offer->storage_version,
		    .storage_len_bytes = offer->storage_len_bytes,
		    .hint = hint <= SPW_HINT_PIN ? (enum spw_trace_hint)hint : SPW_TRACE_HINT_NONE,
		    .result = result, .offset_bytes = offer->offset_bytes,
		    .len_bytes = offer->len_bytes);
}

int spw_cache__offer_any(struct spw_cache *cache, const struct spw_offer *offer, uint32_t device,
			 enum spw_cache_hint hint, spw_tensor *tensor, struct spw_copy *copy)
{
	uint64_t offset_bytes, len_bytes;
	struct entry *entry;
	bool duplicate;
	int rc;

	/* A caller that overlooks the error must not hold the id of another tensor. */
	if (tensor)
		tensor->value = 0;
	rc = offer_check(offer, hint, tensor);
	if (rc)
		return rc;
	offer_range(offer, device, &offset_bytes, &len_bytes);
	spw_cache__lock(cache);
	cache->count.offers++;
	cache->count.bytes_offered += offer->len_bytes;
	entry = duplicate_of(cache, offer, device, hint);
	duplicate = entry != NULL;
	if (entry) {
		rc = offer_duplicate(entry, offer, hint);
	} else {
		spw_control__hold_clock(control_of(cache), true);
		entry = spw_cache__entry_begin(cache, offer, device, offset_bytes, len_bytes);
		if (entry)
			offer_told(entry, hint, offer->number);
		spw_control__hold_clock(control_of(cache), false);
		if (entry) {
			rc = offer_new(entry, hint);
		} else {
			kept_add(cache, KEEP_ENTRIES, len_bytes);
			spw_notice(&cache->notices, NOTICE_ENTRIES,
				   "all %u entries are in use: tensors stay in memory; raise "
				   "tensors_max",
				   cache->opts.tensors_max);
			rc = -ENOBUFS;
		}
	}
	if (entry) {
		*tensor = spw_cache__entry_id(entry);
		offer_trace(cache, offer, hint, *tensor, trace_result(rc, duplicate));
		if (copy && (rc == SPW_OFFER_COPY || rc == SPW_OFFER_COPY_AGAIN))
			*copy = spw_cache__write_copy_of(entry);
		else if (copy && rc == SPW_OFFER_AGAIN)
			*copy = (struct spw_copy){.offset_bytes = entry->offset_bytes,
						  .len_bytes = entry->len_bytes,
						  .order = spw_cache__write_order(cache)};
		else if (copy)
			copy->order = spw_cache__write_order(cache);
		spw_cache__window_fill(cache);
	}
	spw_cache__throttle_note(cache);
	spw_cache__unlock_and_notify(cache);
	if (rc == -ENOBUFS)
		(void)spw_error(rc, "all %u entries are in use: raise tensors_max",
				cache->opts.tensors_max);
	return rc;
}

int spw_cache_offer(struct spw_cache *cache, const struct spw_offer *offer, spw_tensor *tensor)
{
	return spw_cache__offer_any(cache, offer, 0, SPW_HINT_NONE, tensor, NULL);
}

int spw_cache_offer_hint(struct spw_cache *cache, const struct spw_offer *offer,
			 enum spw_cache_hint hint, spw_tensor *tensor)
{
	return spw_cache__offer_any(cache, offer, 0, hint, tensor, NULL);
}

/* ---- Tokens ---- */

int spw_cache__offer_drain(struct spw_cache *cache, struct link *tokens, uint64_t owners[],
			   unsigned count)
{
	unsigned drained = 0;

	if (!owners && count > 0)
		return spw_error(-EINVAL, "drain needs an array for the tokens");
	spw_cache__enter(cache);
	spw_control__drained(control_of(cache));
	while (drained < count && drained < INT32_MAX && !link_alone(tokens)) {
		struct entry *entry = ENTRY_OF(tokens->next, drain);

		owners[drained++] = entry->owner;
		spw_cache__entry_drained(entry);
	}
	/* The drained tensors are on the drives now, and may be due for a prefetch. */
	spw_cache__window_fill(cache);
	spw_cache__unlock_and_notify(cache);
	return (int)drained;
}

int spw_cache_drain(struct spw_cache *cache, uint64_t owners[], unsigned count)
{
	return spw_cache__offer_drain(cache, &cache->drain, owners, count);
}
