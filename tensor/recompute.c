/* SPDX-License-Identifier: MIT */
/*
 * tensor/recompute.c - tensors that are discarded and recomputed
 *
 * The caller frees the memory at once; only a checksum stays. Recomputed bytes, or bytes that
 * another scope offers, are accepted only if they have the same checksum, so that a take returns
 * what was saved. For a tensor of a device the caller keeps the checksum, and compares.
 */
#include <errno.h>

#include "tensor/entry.h"
#include "tensor/internal.h"
#include "tensor/lock.h"
#include "tensor/recompute.h"
#include "tensor/rules.h"
#include "tensor/search.h"
#include "tensor/trace.h"
#include "tensor/window.h"
#include "tensor/write.h"
#include "util/checksum.h"

/* ---- Giving up ---- */

bool spw_cache__recompute_discard(struct entry *entry)
{
	struct spw_cache *cache = entry->cache;
	const uint8_t *bytes = entry->bytes;
	uint64_t checksum = 0;

	entry->scope = spw_cache__rule_scope(cache);
	spw_cache__entry_become(entry, ENTRY_KEPT);
	if (!entry->device) {
		spw_cache__unlock(cache);
		checksum = spw_checksum(bytes, entry->len_bytes);
		spw_cache__lock(cache);
	}
	cache->count.bytes_checked += entry->len_bytes;
	/* Another thread's offer of the same bytes counts on this memory. */
	if (entry->users > 1)
		return false;
	SPW_ASSERT(entry_at_owner(entry) && entry->users == 1);
	entry->checksum = checksum;
	entry->owner_held = false;
	entry->bytes = NULL;
	activation_sub(entry);
	spw_cache__entry_become(entry, ENTRY_DISCARDED);
	cache->count.bytes_given_up += entry->len_bytes;
	cache->count.tensors_given_up++;
	return true;
}

/* ---- The same bytes ---- */

/* The part of the offer's storage that the entry is of; NULL: it ends before. */
static const uint8_t *part_of(const struct entry *entry, const struct spw_offer *offer)
{
	if (entry->offset_bytes > offer->storage_len_bytes ||
	    entry->len_bytes > offer->storage_len_bytes - entry->offset_bytes)
		return NULL;
	return (const uint8_t *)offer->storage_bytes + entry->offset_bytes;
}

bool spw_cache__recompute_holds(struct entry *entry, const struct spw_offer *offer)
{
	struct spw_cache *cache = entry->cache;
	const uint8_t *bytes = part_of(entry, offer);
	uint64_t expected = entry->checksum;
	bool same;

	if (!bytes)
		return false;
	if (entry->device) {
		same = true; /* as the caller says, or will */
	} else {
		spw_cache__unlock(cache);
		same = spw_checksum(bytes, entry->len_bytes) == expected;
		spw_cache__lock(cache);
	}
	cache->count.bytes_checked += entry->len_bytes;
	return same;
}

void spw_cache__recompute_restored(struct entry *entry, const struct spw_offer *offer)
{
	struct spw_cache *cache = entry->cache;

	SPW_ASSERT(entry->state == ENTRY_DISCARDED); /* CACHE-8 */
	entry->owner = offer->owner;
	entry->owner_held = true;
	entry->bytes = part_of(entry, offer);
	SPW_ASSERT(entry->owner != 0 && (entry->bytes || entry->device));
	activation_add(entry);
	spw_cache__entry_become(entry, ENTRY_KEPT);
	cache->count.bytes_restored += entry->len_bytes;
	cache->count.tensors_restored++;
}

static int restore(struct entry *entry, const struct spw_offer *offer)
{
	bool same = spw_cache__recompute_holds(entry, offer);

	/* Another thread may have been first. */
	if (entry->state != ENTRY_DISCARDED)
		return 1;
	if (!same) {
		entry->cache->count.restores_refused++;
		return spw_error(-ESTALE,
				 "a recomputed tensor of %llu bytes is not the same "
				 "as in the forward pass",
				 (unsigned long long)entry->len_bytes);
	}
	spw_cache__recompute_restored(entry, offer);
	return 0;
}

int spw_cache_restore(struct spw_cache *cache, spw_tensor tensor, const struct spw_offer *offer)
{
	struct entry *entry;
	int rc;

	if (!offer || offer->owner == 0 || !offer->storage_bytes)
		return spw_error(-EINVAL, "what is restored needs the storage's memory and an "
					  "owner token that is not 0");
	spw_cache__enter(cache);
	entry = spw_cache__entry_of_id(cache, tensor.value);
	if (!entry || entry->users == 0) {
		rc = spw_error(-ENOENT, "no such tensor: it was released, or never was");
	} else if (entry->state != ENTRY_DISCARDED) {
		rc = 1;
	} else if (!part_of(entry, offer)) {
		rc = spw_error(-ERANGE, "bytes %llu + %llu are not within a storage of %llu",
			       (unsigned long long)entry->offset_bytes,
			       (unsigned long long)entry->len_bytes,
			       (unsigned long long)offer->storage_len_bytes);
	} else {
		entry->users++; /* it stays while it is looked at without the lock */
		rc = restore(entry, offer);
		spw_cache__entry_leave(entry);
	}
	spw_cache__unlock_and_notify(cache);
	return rc;
}

/* ---- The time that it takes ---- */

void spw_cache_again_begin(struct spw_cache *cache)
{
	spw_cache__enter(cache);
	if (cache->recompute_depth++ == 0) {
		cache->recompute_began_ns = cache->recompute_traced_ns = cache->ports.clock_ns();
		spw_control__recomputing(control_of(cache), true);
	}
	spw_cache__unlock_and_notify(cache);
}

void spw_cache_again_end(struct spw_cache *cache)
{
	uint64_t now_ns;

	spw_cache__enter(cache);
	if (cache->recompute_depth > 0 && --cache->recompute_depth == 0) {
		spw_control__recomputing(control_of(cache), false);
		now_ns = cache->ports.clock_ns();
		if (cache->opts.trace)
			spw_cache__trace_recompute(cache, now_ns);
		cache->count.again_ns += now_ns - cache->recompute_began_ns;
		if (cache->stage == SPW_STAGE_BACKWARD)
			cache->count.scopes_again++;
		spw_cache__window_fill(cache);
	}
	spw_cache__unlock_and_notify(cache);
}

int spw_cache_explain(struct spw_cache *cache, struct spw_cache_reason reasons[], unsigned count,
		      struct spw_plan_result *result)
{
	int rc;

	if (!reasons && count > 0)
		return spw_error(-EINVAL, "explaining needs an array for the reasons");
	spw_cache__enter(cache);
	spw_cache__search_wait(cache); /* whose memory is needed */
	rc = spw_control__explain(control_of(cache), reasons, count, result);
	spw_cache__unlock_and_notify(cache);
	return rc;
}
