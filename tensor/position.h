/* SPDX-License-Identifier: MIT */
/*
 * tensor/position.h - steps, stages and scopes: where the caller is, and the last scope of a stage
 */
#ifndef SPW_TENSOR_POSITION_H
#define SPW_TENSOR_POSITION_H

#include "tensor/internal.h"

/* A take: if the caller does not mark backward stages, one begins with the first take. */
void spw_cache__rule_taken(struct spw_cache *cache);

#endif
