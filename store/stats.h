/* SPDX-License-Identifier: MIT */
/* store/stats.h - the counters of a store and of its drives */
#ifndef SPW_STORE_STATS_H
#define SPW_STORE_STATS_H

#include <spillway/store.h>

/* What spw_store_publish_steps() was given last; all 0: nothing */
void spw_store__published_steps(const struct spw_store *store, struct spw_cache_stats *steps);
/* Return: 0; -EINVAL. */
int spw_store__drive_exists(const struct spw_store *store, unsigned drive);

#endif
