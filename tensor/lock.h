/* SPDX-License-Identifier: MIT */
/* tensor/lock.h - the cache's lock: what an unlock has to do, and waiting for I/O */
#ifndef SPW_TENSOR_LOCK_H
#define SPW_TENSOR_LOCK_H

#include "tensor/internal.h"

void spw_cache__lock_open(struct spw_cache *cache);
void spw_cache__lock_close(struct spw_cache *cache);
void spw_cache__lock(struct spw_cache *cache);
/*
 * Also wakes threads that wait for I/O that has ended, and frees memory. Afterwards the cache may
 * be gone, if another thread closes it.
 */
void spw_cache__unlock(struct spw_cache *cache);
/* The same, and write the notices to the log. */
void spw_cache__unlock_and_notify(struct spw_cache *cache);
/* Wait until any I/O of the cache ends. Unlocks. */
void spw_cache__wait_io(struct spw_cache *cache);
void spw_cache__wait_io_until(struct spw_cache *cache, uint64_t until_ns);
/* Wait until the entry's read ends; the end of other I/O does not wake this thread. Unlocks. */
void spw_cache__wait_read(struct entry *entry);
/* A request of the entry has ended in the store. The entry may be free by now. */
void spw_cache__io_ended(const struct entry *entry);

#endif
