/* SPDX-License-Identifier: MIT */
/* store/checksum_job.h - checksum and copy the bytes of one transfer */
#ifndef SPW_STORE_CHECKSUM_JOB_H
#define SPW_STORE_CHECKSUM_JOB_H

#include <stdbool.h>
#include <stdint.h>

#include <spillway/engine.h>

struct transfer;

/* A job: checksum and copy the bytes of a piece. While posted it belongs to a helper (POOL-2). */
struct checksum_job {
	enum spw_op op;
	bool wants_checksum;
	uint32_t len_bytes;
	uint64_t offset_bytes; /* of the piece in its object */
	uint64_t checksum;
	uint32_t copied_bytes;
};

/* Set up the job for the whole piece of the transfer. */
void spw_store__job_set(struct transfer *transfer, enum spw_op op, bool wants_checksum);
/* Copy the last, partly filled block of a write without bounce buffer. */
void spw_store__job_lay_tail(struct transfer *transfer);
void spw_store__job_run(struct transfer *transfer);
/* Worker: count the bytes copied, and why. */
void spw_store__job_count(const struct transfer *transfer);

#endif
