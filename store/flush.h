/* SPDX-License-Identifier: MIT */
/* store/flush.h - flush the drives' caches, one request at a time */
#ifndef SPW_STORE_FLUSH_H
#define SPW_STORE_FLUSH_H

struct spw_request;
struct spw_store;

void spw_store__flush_submit(struct spw_request *request);
/* End flushes that have not begun with -ECANCELED. */
void spw_store__flush_cancel(struct spw_store *store);

#endif
