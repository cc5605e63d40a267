/* SPDX-License-Identifier: MIT */
/* tensor/external_traffic.h - the traffic of other users of the store, and of other ranks */
#ifndef SPW_TENSOR_EXTERNAL_TRAFFIC_H
#define SPW_TENSOR_EXTERNAL_TRAFFIC_H

#include "tensor/internal.h"

/* Tell the controller about the traffic of other users of the store. */
void spw_cache__traffic_note(struct spw_cache *cache);
/* A step ends: tell the controller what the other ranks have measured of the drives. */
void spw_cache__traffic_ranks(struct spw_cache *cache);
/* A request of the cache itself begins; has ended with @res. */
void spw_cache__traffic_io_began(struct entry *entry, enum direction direction);
void spw_cache__traffic_io_ended(struct entry *entry, enum direction direction, int res);

#endif
