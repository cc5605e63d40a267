/* SPDX-License-Identifier: MIT */
/* tensor/device.c - tensors in memory of a device, which the caller copies */
#include <errno.h>

#include "tensor/entry.h"
#include "tensor/host.h"
#include "tensor/internal.h"
#include "tensor/lock.h"
#include "tensor/offer.h"
#include "tensor/rules.h"
#include "tensor/take.h"
#include "tensor/window.h"
#include "tensor/write.h"

int spw_cache_offer_device(struct spw_cache *cache, const struct spw_offer *offer, uint32_t device,
			   enum spw_cache_hint hint, spw_tensor *tensor, struct spw_copy *copy)
{
	if (tensor)
		tensor->value = 0;
	if (device == 0 || !copy)
		return spw_error(-EINVAL, "an offer of a device's tensor needs the device's "
					  "number, 1 or more, and a copy to set");
	return spw_cache__offer_any(cache, offer, device, hint, tensor, copy);
}

int spw_cache_copied(struct spw_cache *cache, spw_tensor tensor, int rc)
{
	struct entry *entry;
	bool under_way;

	if (rc > 0)
		return spw_error(-EINVAL, "a copy ends with 0 or a negative errno, not %d", rc);
	spw_cache__enter(cache);
	entry = spw_cache__entry_of_id(cache, tensor.value);
	under_way = entry && entry->copies > 0;
	if (under_way) {
		if (rc == 0) {
			cache->count.copies++;
			cache->count.bytes_copied += entry->len_bytes;
		} else {
			cache->count.copies_failed++;
			entry->copy_failed = true;
			/* The owner still has the bytes, unless the token was drained. */
			if (entry_is_copying(entry))
				queue_quit(&cache->copying, entry);
			else if (entry->drainable && entry->state == ENTRY_LEAVING)
				spw_cache__entry_not_drainable(entry);
		}
		SPW_ASSERT(cache->copies_in_flight > 0);
		cache->copies_in_flight--;
		if (--entry->copies == 0)
			spw_cache__write_copied(entry);
		spw_cache__window_fill(cache);
	}
	spw_cache__unlock_and_notify(cache);
	return under_way ? 0 : spw_error(-ENOENT, "no copy of this tensor is under way");
}

int spw_cache_drain_device(struct spw_cache *cache, uint64_t owners[], unsigned count)
{
	return spw_cache__offer_drain(cache, &cache->drain_device, owners, count);
}

int spw_cache_ordered(struct spw_cache *cache, spw_tensor tensor, spw_tensor *next)
{
	struct entry *entry;
	bool held;

	if (!next)
		return spw_error(-EINVAL, "an order needs a tensor to set");
	next->value = 0;
	spw_cache__enter(cache);
	entry = spw_cache__entry_of_id(cache, tensor.value);
	held = entry && entry_is_copying(entry);
	if (held) {
		cache->count.copies_ordered++;
		queue_quit(&cache->copying, entry);
		spw_cache__entry_make_drainable(entry);
	}
	*next = spw_cache__write_order(cache);
	spw_cache__unlock_and_notify(cache);
	return held || tensor.value == 0
		       ? 0
		       : spw_error(-ENOENT, "no copy of this tensor holds its memory");
}

/* While it waited others may have used up what the cap on wear allows. */
static int copy_again(struct entry *entry, bool waits)
{
	struct spw_cache *cache = entry->cache;

	if (spw_cache__host_hold(entry) ||
	    spw_control__may_write(control_of(cache), cache->count.staging_bytes, entry->len_bytes))
		return spw_cache__offer_copy(entry, waits);
	entry->wants_copy = false;
	kept_add(cache, KEEP_WEAR, entry->len_bytes);
	spw_cache__rule_offered(cache, entry->len_bytes, false);
	return SPW_OFFER_KEEP;
}

/* @waits: the caller may wait for more memory. */
static int copy_retry(struct spw_cache *cache, spw_tensor tensor, struct spw_copy *copy, bool waits)
{
	struct entry *entry;
	int rc = SPW_OFFER_KEEP;

	if (!copy)
		return spw_error(-EINVAL, "a copy to set is needed");
	spw_cache__enter(cache);
	entry = spw_cache__entry_of_id(cache, tensor.value);
	if (!entry || entry->users == 0)
		rc = spw_error(-ENOENT, "no such tensor: it was released, or never was");
	else if (entry->state == ENTRY_KEPT && entry->wants_copy)
		rc = copy_again(entry, waits);
	if (rc == SPW_OFFER_COPY)
		*copy = spw_cache__write_copy_of(entry);
	spw_cache__unlock_and_notify(cache);
	return rc;
}

int spw_cache_copy_retry(struct spw_cache *cache, spw_tensor tensor, struct spw_copy *copy)
{
	return copy_retry(cache, tensor, copy, true);
}

int spw_cache_copy_last(struct spw_cache *cache, spw_tensor tensor, struct spw_copy *copy)
{
	return copy_retry(cache, tensor, copy, false);
}

int spw_cache_wait_write(struct spw_cache *cache)
{
	bool again;

	spw_cache__enter(cache);
	if (cache->device_writes_in_flight > 0) {
		again = cache->opts.mode != SPW_CACHE_FASTEST;
		if (again)
			spw_cache__wait_io(cache);
	} else {
		/* All have ended since: there is memory, or none will come. */
		again = cache->copies_in_flight == 0;
	}
	spw_cache__unlock_and_notify(cache);
	return again;
}

int spw_cache_ahead(struct spw_cache *cache, spw_tensor *tensor, struct spw_taken *taken)
{
	struct entry *entry = NULL;

	if (!tensor || !taken)
		return spw_error(-EINVAL, "a tensor and a place for the result are needed");
	*tensor = (spw_tensor){0};
	*taken = (struct spw_taken){0};
	spw_cache__enter(cache);
	if (!link_alone(&cache->coming.head))
		entry = ENTRY_OF(cache->coming.head.next, device_link);
	SPW_ASSERT(!entry || (entry->in_window && !entry_at_owner(entry)));
	if (entry && entry->state == ENTRY_RESIDENT && !entry->copy_failed) {
		cache->count.tensors_ahead++;
		entry->copied_ahead = true;
		*tensor = spw_cache__entry_id(entry);
		spw_cache__take_lease(entry, entry->offset_bytes, taken);
		spw_cache__window_fill(cache);
	}
	spw_cache__unlock_and_notify(cache);
	return tensor->value != 0;
}

uint64_t spw_cache_device_mark(struct spw_cache *cache)
{
	uint64_t mark;

	spw_cache__lock(cache);
	mark = spw_control__mark(control_of(cache));
	spw_cache__unlock(cache);
	return mark;
}

void spw_cache_device_marked(struct spw_cache *cache, uint64_t mark, uint64_t ns)
{
	spw_cache__lock(cache);
	spw_control__marked(control_of(cache), mark, ns);
	spw_cache__unlock(cache);
}

int spw_cache_device_times(struct spw_cache *cache, const struct spw_device_times *times)
{
	if (!times)
		return spw_error(-EINVAL, "times of a device are needed");
	if (spw_reserved_check(times->reserved, sizeof(times->reserved), "times of a device"))
		return -EINVAL;
	spw_cache__lock(cache);
	cache->devices_tell = true;
	cache->count.device_stall_ns += times->stall_ns;
	cache->count.stall_ns += times->stall_ns;
	spw_control__device(control_of(cache), times);
	spw_cache__unlock(cache);
	return 0;
}
