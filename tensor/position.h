/* SPDX-License-Identifier: MIT */
/*
 * tensor/position.h - steps, stages and scopes: where the caller is, and the last scope of a stage
 */
#ifndef SPW_TENSOR_POSITION_H
#define SPW_TENSOR_POSITION_H

#include "tensor/internal.h"

/* An entry is taken: if the caller does not say when the backward stage begins, it is now. */
void spw_cache__rule_taken(struct spw_cache *cache);

#endif
