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

/* Scores of the drives at the beginning of a round, in which each gets at most one chunk. */
struct drive_scores {
	uint64_t score[SPW_DRIVES_MAX]; /* the lowest is the best; UINT64_MAX: accepts no chunk */
	uint64_t slow[SPW_DRIVES_MAX];  /* score of a transfer in flight */
	uint64_t ahead[SPW_DRIVES_MAX]; /* score of its lead over others */
	uint32_t depth[SPW_DRIVES_MAX]; /* accepts a chunk while it has fewer transfers in flight */
	uint64_t write_bytes_max;       /* and fewer bytes of writes in flight */
};

void spw_store__write_score_drives(struct spw_store *store, struct drive_scores *scores);
/*
 * Place a chunk of the oldest put on the best drive, and remove that drive from the mask @left.
 * Return: false: wait for a completion, or for a drive that is not in @left.
 */
bool spw_store__write_next(struct spw_store *store, struct drive_scores *scores, uint64_t *left);
/* Fail all waiting puts, because no drive is in service. */
void spw_store__write_fail_all(struct spw_store *store);
/* A write's checksum job has run. */
void spw_store__write_job_ended(struct transfer *transfer);
void spw_store__write_abandon(struct transfer *transfer);
/* End a put if it has failed or is completely placed, and nothing is in flight. */
void spw_store__write_end_if_done(struct spw_request *request);

/* Functions that store/mirror.c uses too. */
/* Begin a put. Return: false: it was cancelled, and has ended. */
bool spw_store__put_begin(struct spw_request *request);
/* Remove drives without a free bounce buffer from @willing, if the put needs one. */
uint64_t spw_store__put_willing(const struct spw_request *request, uint64_t willing);
/*
 * Can drives use the put's memory directly? One range can that begins at a multiple of the block,
 * as all its chunks do then.
 */
bool spw_store__write_is_aligned(const struct spw_store *store, const struct spw_request *request);
/* The best drive that is not in the mask @but; SPW_DRIVES_MAX: the best one is not in @willing. */
uint32_t spw_store__write_pull(const struct spw_store *store, const struct drive_scores *scores,
			       uint64_t willing, uint64_t but);
/* Is there space on a drive in service that is not in the mask @but? */
bool spw_store__write_space_left(const struct spw_store *store, uint64_t but);
/* Place a piece. Return: number of blocks, on @chosen or another drive of @willing; 0: no space. */
uint64_t spw_store__write_place(struct spw_store *store, struct piece *piece, uint32_t chosen,
				uint64_t willing);
/* Issue the write of a placed piece. @summed: its checksum is known already. */
void spw_store__write_issue(struct spw_request *request, struct transfer *transfer, uint32_t piece,
			    bool summed);
void spw_store__write_fail_no_space(struct spw_request *request);

#endif
