/* SPDX-License-Identifier: MIT */
/* store/checksums.h - sum large chunks of puts while their drives write them */
#ifndef SPW_STORE_CHECKSUMS_H
#define SPW_STORE_CHECKSUMS_H

struct spw_store;
struct transfer;

/* It has been issued; post it for its checksum when its turn has come. */
void spw_store__checksum_later(struct transfer *transfer);
/* Remove it: the caller has it summed. */
void spw_store__checksum_take(struct transfer *transfer);
/* Post those whose turn has come. */
void spw_store__checksums_post(struct spw_store *store);

#endif
