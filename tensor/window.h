/* SPDX-License-Identifier: MIT */
/* tensor/window.h - what is prefetched, in which order and how far */
#ifndef SPW_TENSOR_WINDOW_H
#define SPW_TENSOR_WINDOW_H

#include "tensor/internal.h"

/* After an event: begin again if the controller has left its plan or follows another one. */
void spw_cache__window_follow(struct spw_cache *cache);
/* A step begins: what was prefetched for the last one and never taken is no longer counted. */
void spw_cache__window_forget(struct spw_cache *cache);
/* A stage begins: for a backward one, prefetch from its last offer to its first. */
void spw_cache__window_begin(struct spw_cache *cache);
/* As far as the budget allows: prefetch, or keep in memory, what will be taken next. */
void spw_cache__window_fill(struct spw_cache *cache);

#endif
