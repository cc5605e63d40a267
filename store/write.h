/* SPDX-License-Identifier: MIT */
/* store/write.h - puts: score drives, cut and place chunks, issue writes */
#ifndef SPW_STORE_WRITE_H
#define SPW_STORE_WRITE_H

#include <stdbool.h>
#include <stdint.h>

#include <spillway/store.h>

struct piece;
struct transfer;

void spw_store__write_submit(struct spw_request *request);

/* Of the drives at the begin of a round, in which each gets one chunk at most. */
struct drive_scores {
	uint64_t score[SPW_DRIVES_MAX]; /* the lowest is the best; UINT64_MAX: takes none */
	uint64_t slow[SPW_DRIVES_MAX];  /* score of a transfer in flight */
	uint64_t ahead[SPW_DRIVES_MAX]; /* score of its lead over others */
	uint32_t depth[SPW_DRIVES_MAX]; /* takes a chunk while it has fewer transfers in flight */
	uint64_t write_bytes_max;       /* and fewer bytes of writes */
};

void spw_store__write_score_drives(struct spw_store *store, struct drive_scores *scores);
/*
 * Place a chunk of the oldest put on the best drive of the mask @left, and remove that drive from
 * it. Return: false: a drive that is not in @left, or a completion, is needed first.
 */
bool spw_store__write_next(struct spw_store *store, struct drive_scores *scores, uint64_t *left);
/* All puts that wait: no drive is in service. */
void spw_store__write_fail_all(struct spw_store *store);
/* Its job has run. */
void spw_store__write_job_ended(struct transfer *transfer);
void spw_store__write_abandon(struct transfer *transfer);
/* End it if it has failed or is all placed, and nothing is in flight. */
void spw_store__write_end_if_done(struct spw_request *request);

/* The parts that store/mirror.c uses, too. */
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
