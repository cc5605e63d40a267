/* SPDX-License-Identifier: MIT */
/*
 * store/checksum_job.c - checksum the bytes of one transfer, and copy them where the drive cannot
 * use the caller's memory; runs on the worker or on a helper thread (POOL-2)
 */
#include "store/checksum_job.h"

#include <string.h>

#include "store/copy.h"
#include "store/object.h"
#include "store/open_store.h"
#include "store/request.h"
#include "store/transfer.h"
#include "util/checksum.h"
#include "util/util.h"

void spw_store__job_set(struct transfer *transfer, enum spw_op op, bool wants_checksum)
{
	const struct piece *piece = &transfer->store->pieces[transfer->piece];

	SPW_ASSERT(!transfer->posted); /* no helper has it (POOL-2) */
	transfer->job = (struct checksum_job){.op = op,
					      .wants_checksum = wants_checksum,
					      .len_bytes = piece->len_bytes,
					      .offset_bytes = piece->object_offset};
}

/* Copy a write to the bounce buffer; checksums in the same pass if the source is contiguous. */
static void copy_out(struct transfer *transfer)
{
	struct checksum_job *job = &transfer->job;
	const struct iovec *vector = transfer->request->vector;
	const void *run = spw_store__run_of(vector, job->offset_bytes, job->len_bytes);

	if (run && job->wants_checksum) {
		job->checksum = spw_store__copy_and_checksum(transfer->bounce, run, job->len_bytes);
	} else {
		spw_store__gather(transfer->bounce, vector, job->offset_bytes, job->len_bytes);
		if (job->wants_checksum)
			job->checksum = spw_checksum(transfer->bounce, job->len_bytes);
	}
	job->copied_bytes = job->len_bytes;
}

/* Zero the rest of the last block: stale memory must not reach the drive. */
static void zero_rest(uint8_t *tail, uint32_t tail_bytes, uint32_t block_bytes)
{
	if (tail_bytes)
		memset(tail + tail_bytes, 0, block_bytes - tail_bytes);
}

void spw_store__job_lay_tail(struct transfer *transfer)
{
	struct checksum_job *job = &transfer->job;
	uint32_t block_bytes = transfer->store->block_bytes;
	uint32_t tail_bytes = job->len_bytes % block_bytes;
	uint64_t offset = job->offset_bytes + job->len_bytes - tail_bytes;

	if (transfer->bounce || !tail_bytes)
		return;
	spw_store__gather(transfer->tail, transfer->request->vector, offset, tail_bytes);
	zero_rest(transfer->tail, tail_bytes, block_bytes);
	job->copied_bytes = tail_bytes;
}

static void move_out(struct transfer *transfer)
{
	struct checksum_job *job = &transfer->job;
	uint32_t block_bytes = transfer->store->block_bytes;
	uint32_t tail_bytes = job->len_bytes % block_bytes;

	SPW_ASSERT(job->len_bytes <= transfer->store->chunk_bytes); /* fits in a bounce buffer */
	if (transfer->bounce) {
		copy_out(transfer);
		zero_rest(transfer->bounce + job->len_bytes - tail_bytes, tail_bytes, block_bytes);
	} else if (job->wants_checksum) {
		job->checksum = spw_store__checksum_vector(transfer->request->vector,
							   job->offset_bytes, job->len_bytes);
	}
}

/* Copy a read to the caller's memory: the part of the piece that the request covers. */
static void move_in(struct transfer *transfer)
{
	const struct spw_request *request = transfer->request;
	struct checksum_job *job = &transfer->job;
	uint32_t tail_bytes = job->len_bytes % transfer->store->block_bytes;
	uint64_t from = SPW_MAX(request->offset_bytes, job->offset_bytes);
	uint64_t piece_end = job->offset_bytes + job->len_bytes;
	uint64_t request_end = request->offset_bytes + request->len_bytes;
	uint64_t len = SPW_MIN(piece_end, request_end) - from;
	uint64_t offset = from - request->offset_bytes;
	uint8_t *to;

	/* the request covers a part of the piece */
	SPW_ASSERT(from < piece_end && from < request_end);
	if (!transfer->bounce) {
		if (tail_bytes)
			spw_store__scatter(request->vector, offset + len - tail_bytes,
					   transfer->tail, tail_bytes);
		job->copied_bytes = tail_bytes;
		if (job->wants_checksum)
			job->checksum = spw_store__checksum_vector(request->vector, offset, len);
		return;
	}
	job->copied_bytes = (uint32_t)len;
	to = spw_store__run_of(request->vector, offset, len);
	if (job->wants_checksum && len == job->len_bytes && to) {
		job->checksum = spw_store__copy_and_checksum(to, transfer->bounce, len);
		return;
	}
	spw_store__scatter(request->vector, offset, transfer->bounce + (from - job->offset_bytes),
			   len);
	if (job->wants_checksum)
		job->checksum = spw_checksum(transfer->bounce, job->len_bytes);
}

void spw_store__job_run(struct transfer *transfer)
{
	if (transfer->job.op == SPW_WRITE)
		move_out(transfer);
	else
		move_in(transfer);
}

void spw_store__job_count(const struct transfer *transfer)
{
	struct store_counters *count = &transfer->store->count;
	const struct checksum_job *job = &transfer->job;

	if (job->copied_bytes == 0)
		return;
	count_add(&count->bytes_copied, job->copied_bytes);
	if (!transfer->bounce)
		count_add(&count->copies_unaligned_length, 1);
	else if (job->op == SPW_WRITE)
		count_add(&count->copies_unaligned_address, 1);
}
