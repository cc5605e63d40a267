/* SPDX-License-Identifier: MIT */
/* tensor/throttle.h - a forward pass that holds more than it may waits for writes */
#ifndef SPW_TENSOR_THROTTLE_H
#define SPW_TENSOR_THROTTLE_H

#include "tensor/internal.h"

/* At the end of an offer: note whether the caller has to wait after it. */
void spw_cache__throttle_note(struct spw_cache *cache);

#endif
