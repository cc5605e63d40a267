/* SPDX-License-Identifier: MIT */
/* tensor/read.h - prefetches, urgent reads, and how both end */
#ifndef SPW_TENSOR_READ_H
#define SPW_TENSOR_READ_H

#include "tensor/internal.h"

/* Begin a prefetch. Return: 0; or a negative errno: not now. */
int spw_cache__read_prefetch(struct entry *entry);
/*
 * Read it, and wait without the lock. So the failure's words, which the store gives to the thread
 * that waits, are those of its own read. Others that want the same bytes wait for io_ended.
 */
int spw_cache__read_urgently(struct entry *entry);

#endif
