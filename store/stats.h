/* SPDX-License-Identifier: MIT */
/* store/stats.h - the counters of a store and of its drives */
#ifndef SPW_STORE_STATS_H
#define SPW_STORE_STATS_H

#include <spillway/store.h>

/* Get the last counters given to spw_store_publish_steps(); all 0: there are none. */
void spw_store__published_steps(const struct spw_store *store, struct spw_cache_stats *steps);
/* Check a drive's index. Return: 0; -EINVAL. */
int spw_store__drive_exists(const struct spw_store *store, unsigned drive);

#endif
