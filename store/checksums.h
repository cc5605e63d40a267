/* SPDX-License-Identifier: MIT */
/* store/checksums.h - compute checksums of large chunks of puts while their drives write them */
#ifndef SPW_STORE_CHECKSUMS_H
#define SPW_STORE_CHECKSUMS_H

struct spw_store;
struct transfer;

/* Remember a write that was issued, to post it for its checksum when its turn has come. */
void spw_store__checksum_later(struct transfer *transfer);
/* Remove a write from that list: the caller has its checksum computed. */
void spw_store__checksum_take(struct transfer *transfer);
/* Post the writes whose turn has come. */
void spw_store__checksums_post(struct spw_store *store);

#endif
