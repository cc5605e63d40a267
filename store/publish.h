/* SPDX-License-Identifier: MIT */
/* store/publish.h - publish the store's process and counters on its status page */
#ifndef SPW_STORE_PUBLISH_H
#define SPW_STORE_PUBLISH_H

#include <stdbool.h>
#include <stdint.h>

struct spw_store;

int spw_store__publish_open(struct spw_store *store);
void spw_store__publish_close(struct spw_store *store);
/* Refresh the page. @now: even if it was refreshed a moment ago, and nothing has changed. */
void spw_store__publish(struct spw_store *store, bool now);
/* How long the worker may sleep; negative: no limit, since nothing has changed. */
int64_t spw_store__publish_timeout_ns(const struct spw_store *store);

#endif
