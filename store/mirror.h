/* SPDX-License-Identifier: MIT */
/* store/mirror.h - mirrored puts, and the parts of store/write.c that they share */
#ifndef SPW_STORE_MIRROR_H
#define SPW_STORE_MIRROR_H

#include "store/internal.h"

/* store/write.c */
/* False: the put was cancelled, and has ended. */
bool spw_store__put_begin(struct spw_request *request);
/* @willing without the drives that have no bounce buffer left, if the put needs one. */
uint64_t spw_store__put_willing(const struct spw_request *request, uint64_t willing);
/* Can drives use the put's memory directly? Chunks begin at multiples of the block. */
bool spw_store__write_is_aligned(const struct spw_store *store, const struct spw_request *request);
/* The best drive that is not in the mask @but; SPW_DRIVES_MAX: it is not in @willing either. */
uint32_t spw_store__write_pull(const struct spw_store *store, const struct drive_scores *scores,
			       uint64_t willing, uint64_t but);
/* Is there space on a drive in service that is not in the mask @but? */
bool spw_store__write_space_left(const struct spw_store *store, uint64_t but);
/* Return: the blocks it got, on @chosen or on another of @willing; 0: no space. */
uint64_t spw_store__write_place(struct spw_store *store, struct piece *piece, uint32_t chosen,
				uint64_t willing);
/* @piece is placed. @summed: its checksum is known already. */
void spw_store__write_issue(struct spw_request *request, struct transfer *transfer, uint32_t piece,
			    bool summed);
void spw_store__write_fail_no_space(struct spw_request *request);

#endif
