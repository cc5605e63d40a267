/* SPDX-License-Identifier: MIT */
/* store/mirror.h - puts of mirrored objects, and what of store/write.c they are made of */
#ifndef SPW_STORE_MIRROR_H
#define SPW_STORE_MIRROR_H

#include "store/internal.h"

/* store/write.c */
/* False: it was cancelled, and has ended. */
bool spw_store__put_begin(struct spw_request *request);
/* Of the drives that are willing, those whose copy memory it may have, if it needs any. */
uint64_t spw_store__put_willing(const struct spw_request *request, uint64_t willing);
/* Can drives take all of its memory as it lies? Pieces begin at multiples of the block. */
bool spw_store__write_is_aligned(const struct spw_store *store, const struct spw_request *request);
/* The best of all drives but those of the mask @but, if it is willing; SPW_DRIVES_MAX: none. */
uint32_t spw_store__write_pull(const struct spw_store *store, const struct drive_scores *scores,
			       uint64_t willing, uint64_t but);
/* On a drive in service that is not of the mask @but? */
bool spw_store__write_space_left(const struct spw_store *store, uint64_t but);
/* Return: how many blocks it got, on @chosen or another that is willing; 0: none. */
uint64_t spw_store__write_place(struct spw_store *store, struct piece *piece, uint32_t chosen,
				uint64_t willing);
/* Of a piece that is placed. @summed: its checksum is known */
void spw_store__write_issue(struct spw_request *request, struct transfer *transfer, uint32_t piece,
			    bool summed);
void spw_store__write_fail_no_space(struct spw_request *request);

#endif
