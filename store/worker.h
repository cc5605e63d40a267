/* SPDX-License-Identifier: MIT */
/* store/worker.h - the I/O thread: receive messages, schedule drives, reap completions */
#ifndef SPW_STORE_WORKER_H
#define SPW_STORE_WORKER_H

#include <stdbool.h>
#include <stdint.h>

struct spw_store;

/*
 * One turn of the worker: receive, schedule, reap. @wait: sleep until there is work, at most for
 * @limit_ns (negative: no limit). Return: number of requests that ended; -errno.
 */
int spw_store__turn(struct spw_store *store, bool wait, int64_t limit_ns);
int spw_store__start(struct spw_store *store);
void spw_store__stop(struct spw_store *store);

#endif
