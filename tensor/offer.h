/* SPDX-License-Identifier: MIT */
/* tensor/offer.h - offers: the same bytes again, or an entry that is kept or spilled; tokens */
#ifndef SPW_TENSOR_OFFER_H
#define SPW_TENSOR_OFFER_H

#include "tensor/internal.h"

/* As spw_cache_offer_hint(); @device, @copy: as spw_cache_offer_device(), or 0 and NULL. */
int spw_cache__offer_any(struct spw_cache *cache, const struct spw_offer *offer, uint32_t device,
			 enum spw_cache_hint hint, spw_tensor *tensor, struct spw_copy *copy);
/*
 * Get staging memory to write a device's tensor from. @waits: the caller may wait for it. Return:
 * as spw_cache_copy_retry().
 */
int spw_cache__offer_copy(struct entry *entry, bool waits);
/* As spw_cache_drain(), of one of the lists. */
int spw_cache__offer_drain(struct spw_cache *cache, struct link *tokens, uint64_t owners[],
			   unsigned count);

#endif
