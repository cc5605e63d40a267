/* SPDX-License-Identifier: MIT */
/* store/deadlines.h - report, cancel or abandon transfers that miss their deadline */
#ifndef SPW_STORE_DEADLINES_H
#define SPW_STORE_DEADLINES_H

#include <stdint.h>

struct spw_store;

/* How long the worker may sleep; negative: nothing in flight has a deadline. */
int64_t spw_store__deadline_timeout_ns(const struct spw_store *store);
void spw_store__deadlines_check(struct spw_store *store);

#endif
