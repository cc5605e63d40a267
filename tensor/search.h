/* SPDX-License-Identifier: MIT */
/*
 * tensor/search.h - plans are searched for beside the step, in a thread that is there for as long
 */
#ifndef SPW_TENSOR_SEARCH_H
#define SPW_TENSOR_SEARCH_H

#include "tensor/internal.h"

/* Run spw_control__plan() in a thread of its own, or in this one if there is none. Unlocks. */
void spw_cache__search_begin(struct spw_cache *cache);
/* Wait until it has ended, if it was begun. Unlocks. */
void spw_cache__search_wait(struct spw_cache *cache);

#endif
