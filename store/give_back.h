/* SPDX-License-Identifier: MIT */
/* store/give_back.h - give idle memory of the arena back to the system, but not too often */
#ifndef SPW_STORE_GIVE_BACK_H
#define SPW_STORE_GIVE_BACK_H

struct spw_store;

/* What spw_store_give_back() asked for. Called by the worker, whose the queue is. */
void spw_store__give_back_if_asked(struct spw_store *store);

#endif
