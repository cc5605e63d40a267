/* SPDX-License-Identifier: MIT */
/* tensor/publish.h - the counters as they are now, which the store publishes */
#ifndef SPW_TENSOR_PUBLISH_H
#define SPW_TENSOR_PUBLISH_H

#include "tensor/internal.h"

/* All of the counters, as they are now; under the lock. */
void spw_cache__count(const struct spw_cache *cache, struct spw_cache_stats *stats);
/* The store publishes how the cache is doing. */
void spw_cache__publish(struct spw_cache *cache);

#endif
