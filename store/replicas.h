/* SPDX-License-Identifier: MIT */
/* store/replicas.h - pairs of pieces of a mirrored object */
#ifndef SPW_STORE_REPLICAS_H
#define SPW_STORE_REPLICAS_H

struct spw_request;

/* Set request->unplaced to the first pair with a piece that has to be placed. */
void spw_store__replicas_look(struct spw_request *request);
/* At the end of a put: make the placed piece the first of each pair (STORE-7). */
void spw_store__replicas_settle(struct spw_request *request);

#endif
