/* SPDX-License-Identifier: MIT */
/* tensor/take.h - takes, leases and releases */
#ifndef SPW_TENSOR_TAKE_H
#define SPW_TENSOR_TAKE_H

#include "tensor/internal.h"

/* Give out a lease of the entry's memory. @taken: begins at @offset_bytes of the storage. */
void spw_cache__take_lease(struct entry *entry, uint64_t offset_bytes, struct spw_taken *taken);

#endif
