/* SPDX-License-Identifier: MIT */
/* tensor/recompute.h - tensors that are discarded and recomputed */
#ifndef SPW_TENSOR_RECOMPUTE_H
#define SPW_TENSOR_RECOMPUTE_H

#include "tensor/internal.h"

/*
 * Discards the entry, or keeps it if it was offered or taken again meanwhile. Unlocks. Return:
 * whether it was discarded.
 */
bool spw_cache__recompute_discard(struct entry *entry);
/* Whether the offer's storage has the bytes that were discarded. Unlocks. */
bool spw_cache__recompute_holds(struct entry *entry, const struct spw_offer *offer);
/* The offer's memory has the bytes: the entry is kept there, with the offer's token. */
void spw_cache__recompute_restored(struct entry *entry, const struct spw_offer *offer);

#endif
