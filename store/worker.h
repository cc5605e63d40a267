/* SPDX-License-Identifier: MIT */
/* store/worker.h - the I/O thread: receive messages, schedule drives, reap completions */
#ifndef SPW_STORE_WORKER_H
#define SPW_STORE_WORKER_H

#include <stdbool.h>
#include <stdint.h>

#include "store/checksum_pool.h"
#include "store/store.h"

/* A completion or a message of a helper will come without a further request. */
static inline bool spw_store__is_busy(const struct spw_store *store)
{
	return store->transfers_in_flight > 0 || store->pool->posted > 0;
}

/*
 * Receive, schedule, reap. @wait: sleep until there is work, at most for @limit_ns (negative: no
 * limit). Return: requests that ended; -errno.
 */
int spw_store__turn(struct spw_store *store, bool wait, int64_t limit_ns);
int spw_store__start(struct spw_store *store);
void spw_store__stop(struct spw_store *store);

#endif
