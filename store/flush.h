/* SPDX-License-Identifier: MIT */
/* store/flush.h - flushes of drives' caches, one after the other */
#ifndef SPW_STORE_FLUSH_H
#define SPW_STORE_FLUSH_H

struct spw_request;
struct spw_store;

void spw_store__flush_submit(struct spw_request *request);
/* Flushes that have not begun end with -ECANCELED. */
void spw_store__flush_cancel(struct spw_store *store);

#endif
