/* SPDX-License-Identifier: MIT */
/*
 * tensor/search.h - plans are searched for beside the step, in a thread that is there for as long
 */
#ifndef SPW_TENSOR_SEARCH_H
#define SPW_TENSOR_SEARCH_H

#include "tensor/internal.h"

/* spw_control__plan(), beside the step. Gives the lock up meanwhile. */
void spw_cache__search_begin(struct spw_cache *cache);
/* It has ended, if it was begun. */
void spw_cache__search_wait(struct spw_cache *cache);

#endif
