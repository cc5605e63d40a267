/* SPDX-License-Identifier: MIT */
/* tensor/device.c - tensors in memory of a device, which the caller copies */
#include <errno.h>

#include "tensor/internal.h"

int spw_cache_offer_device(struct spw_cache *cache, const struct spw_offer *offer, uint32_t device,
			   enum spw_cache_hint hint, spw_tensor *tensor, struct spw_copy *copy)
{
	if (tensor)
		tensor->value = 0;
	if (device == 0 || !copy)
		return spw_error(-EINVAL, "an offer of a device's tensor needs the device's "
					  "number, from 1 on, and a copy to set");
	return spw_offer_any(cache, offer, device, hint, tensor, copy);
}

int spw_cache_copied(struct spw_cache *cache, spw_tensor tensor, int rc)
{
	struct entry *entry;
	bool under_way;

	if (rc > 0)
		return spw_error(-EINVAL, "a copy ends with 0 or a negative errno, not %d", rc);
	spw_cache_lock(cache);
	spw_write_held(cache);
	entry = spw_entry_of_id(cache, tensor.value);
	under_way = entry && entry->copies > 0;
	if (under_way) {
		if (rc == 0) {
			cache->count.copies++;
			cache->count.bytes_copied += entry->len_bytes;
		} else {
			cache->count.copies_failed++;
			entry->copy_failed = true;
		}
		if (--entry->copies == 0)
			spw_write_copied(entry);
		spw_window_fill(cache);
	}
	spw_cache_unlock_and_notify(cache);
	return under_way ? 0 : spw_error(-ENOENT, "no copy of this tensor is under way");
}

int spw_cache_drain_device(struct spw_cache *cache, uint64_t owners[], unsigned count)
{
	return spw_offer_drain(cache, &cache->drain_device, owners, count);
}
