/* SPDX-License-Identifier: MIT */
/* store/replicas.h - the pieces of a mirrored object: two for each chunk */
#ifndef SPW_STORE_REPLICAS_H
#define SPW_STORE_REPLICAS_H

struct spw_request;

/* Set @unplaced to the first pair with a piece to be placed. */
void spw_store__replicas_look(struct spw_request *request);
/* The put ends: make the first piece of each pair the placed one (STORE-7). */
void spw_store__replicas_settle(struct spw_request *request);

#endif
