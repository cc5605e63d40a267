/* SPDX-License-Identifier: MIT */
/*
 * store/write.c - puts: cut into chunks, choose a drive for each, place, issue, abandon
 *
 * The list of writes has every put with chunks to place, oldest first. If the write of a chunk
 * fails, the drive is retired, the chunk is placed again, and its put goes to the head of the list.
 * The chunks of mirrored objects are placed by store/mirror.c, with functions of this file.
 *
 * Checksums of large chunks are computed by the checksum pool. The worker itself computes at most
 * one between two checks of messages and completions, so that a get waits for one checksum, not for
 * those of all chunks that have a slot. A chunk that needs a bounce buffer is copied and
 * checksummed in one pass, then issued. Other chunks are issued at once and checksummed while their
 * drives write them (store/checksums.c): if the caller changes the memory of a put meanwhile,
 * checksum and bytes differ, which is detected when the object is read or compared.
 */
#include "store/write.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "alloc/alloc.h"
#include "store/checksum_job.h"
#include "store/checksum_pool.h"
#include "store/checksums.h"
#include "store/drive_health.h"
#include "store/object.h"
#include "store/open_store.h"
#include "store/priority.h"
#include "store/replicas.h"
#include "store/request.h"
#include "store/transfer.h"
#include "util/probes.h"
#include "util/util.h"

#define ONE              UINT64_C(16) /* score of one transfer in flight */
#define LEAD_COUNTED_MAX 4u /* half chunks: do not wait for a drive that only seems equal */
/* A sixth of the queue depth keeps a drive busy: at 10 GB/s 4 chunks are as fast as 24. */
#define BUSY_PARTS 6u
/* About a training step: if another urgent read comes soon, then within a step. */
#define URGENT_AGAIN_NS UINT64_C(1000000000)

/* Insert into the list of writes, before @next; NULL: at the end. */
static void link_before(struct spw_request *request, struct spw_request *next)
{
	struct spw_store *store = request->store;
	struct spw_request *previous = next ? next->previous : store->writes_last;

	SPW_ASSERT(!request->linked);
	request->next = next;
	request->previous = previous;
	*(previous ? &previous->next : &store->writes_first) = request;
	*(next ? &next->previous : &store->writes_last) = request;
	request->linked = true;
}

static void unlink_write(struct spw_request *request)
{
	struct spw_store *store = request->store;

	if (!request->linked)
		return;
	*(request->previous ? &request->previous->next : &store->writes_first) = request->next;
	*(request->next ? &request->next->previous : &store->writes_last) = request->previous;
	request->linked = false;
}

void spw_store__write_submit(struct spw_request *request)
{
	SPW_ASSERT(request->kind == REQUEST_PUT && request->cut_bytes == 0);
	link_before(request, NULL);
}

void spw_store__write_end_if_done(struct spw_request *request)
{
	bool placed = request->cut_bytes == request->len_bytes && request->unplaced == PIECE_NONE;

	if (placed || request->first_error)
		unlink_write(request);
	if (request->linked || request->in_flight > 0)
		return;
	if (request->object->copies == 2)
		spw_store__replicas_settle(request);
	spw_store__request_end(request);
}

/* ---- Choosing a drive ---- */

/* Relative time for a chunk: ONE for drives at least half as fast as the fastest. */
static uint64_t slowness(uint64_t rate, uint64_t fastest)
{
	return rate != 0 && rate < fastest / 2 ? ONE * fastest / rate : ONE;
}

/*
 * Is the drive idle, and its rate old? If puts come one at a time, the fastest drives take them
 * all, and a drive that was slow once would never be measured again.
 */
static bool may_have_changed(const struct store_drive *drive)
{
	const struct rate *rate = &drive->dir[SPW_WRITE].rate;

	return rate->in_flight == 0 && spw_clock_ns() - rate->measured_ns > SPW_RATE_OLD_NS;
}

static uint64_t lead_half_chunks(const struct spw_store *store, const struct store_drive *drive,
				 uint64_t least)
{
	return drive->bytes_placed > least ? 2 * (drive->bytes_placed - least) / store->chunk_bytes
					   : 0;
}

/*
 * Score: how late a drive would probably finish another chunk. It is the number of transfers in
 * flight, weighted by slowness, so that a slow drive gets no more than its share, even of a short
 * put.
 */
static void score(const struct spw_store *store, struct drive_scores *scores, uint32_t index)
{
	const struct store_drive *drive = &store->drives[index];
	bool takes = drive->in_flight < scores->depth[index] && !drive->retired &&
		     drive->dir[SPW_WRITE].rate.bytes_in_flight < scores->write_bytes_max;

	scores->score[index] = takes ? (drive->in_flight + UINT64_C(1)) * scores->slow[index] +
					       scores->ahead[index]
				     : UINT64_MAX;
}

static uint32_t busy_depth(const struct spw_store *store)
{
	return (store->opts.queue_depth + BUSY_PARTS - 1) / BUSY_PARTS;
}

/*
 * Limit of writes in flight per drive. An urgent read waits behind them, so a drive gets only as
 * many as keep it busy, if there was an urgent read lately: there will be another, since steps are
 * alike.
 */
static uint64_t write_bytes_max(struct spw_store *store)
{
	if (store->urgent_ns > 0 && spw_clock_ns() - store->urgent_ns > URGENT_AGAIN_NS)
		store->urgent_ns = 0;
	return store->urgent_ns > 0 ? SPW_MAX(busy_depth(store), 2u) * store->chunk_bytes
				    : UINT64_MAX;
}

/*
 * Score all drives. Among equally fast drives, one that got more chunks than the others counts as
 * busier by its lead, up to a limit, and is only kept busy: otherwise the distribution would be
 * random.
 */
void spw_store__write_score_drives(struct spw_store *store, struct drive_scores *scores)
{
	uint64_t rates[SPW_DRIVES_MAX], fastest = 0, least = UINT64_MAX;

	scores->write_bytes_max = write_bytes_max(store);
	for (uint32_t i = 0; i < store->drive_count; i++) {
		const struct rate *rate = &store->drives[i].dir[SPW_WRITE].rate;

		rates[i] = atomic_load_explicit(&rate->bytes_per_second, memory_order_relaxed);
		if (!store->drives[i].retired)
			fastest = SPW_MAX(fastest, rates[i]);
	}
	for (uint32_t i = 0; i < store->drive_count; i++) {
		const struct store_drive *drive = &store->drives[i];
		bool takes = !drive->retired && spw_alloc__blocks_free(drive->alloc) > 0;

		scores->slow[i] = slowness(rates[i], fastest);
		scores->depth[i] = takes ? store->opts.queue_depth : 0;
		if (takes && scores->slow[i] == ONE)
			least = SPW_MIN(least, drive->bytes_placed);
	}
	for (uint32_t i = 0; i < store->drive_count; i++) {
		struct store_drive *drive = &store->drives[i];
		uint64_t lead = lead_half_chunks(store, drive, least);

		/* Otherwise a slow drive would get all chunks once it is fast again. */
		if (scores->slow[i] > ONE && least != UINT64_MAX)
			drive->bytes_placed = SPW_MAX(drive->bytes_placed, least);
		if (scores->slow[i] > ONE && may_have_changed(drive))
			scores->slow[i] = ONE;
		scores->ahead[i] = ONE * SPW_MIN(lead, LEAD_COUNTED_MAX);
		if (lead >= 2)
			scores->depth[i] = SPW_MIN(scores->depth[i], busy_depth(store));
		score(store, scores, i);
	}
}

/* Choose the best drive. If it has reads first, or has its chunk of this round, the chunk waits. */
uint32_t spw_store__write_pull(const struct spw_store *store, const struct drive_scores *scores,
			       uint64_t willing, uint64_t but)
{
	uint64_t best_score = UINT64_MAX;
	uint32_t best = SPW_DRIVES_MAX;

	for (uint32_t i = 0; i < store->drive_count; i++) {
		if (scores->score[i] > best_score || scores->score[i] == UINT64_MAX || but >> i & 1)
			continue;
		if (scores->score[i] < best_score ||
		    store->drives[i].bytes_placed < store->drives[best].bytes_placed) {
			best = i;
			best_score = scores->score[i];
		}
	}
	return best < SPW_DRIVES_MAX && willing >> best & 1 ? best : SPW_DRIVES_MAX;
}

bool spw_store__write_space_left(const struct spw_store *store, uint64_t but)
{
	for (uint32_t i = 0; i < store->drive_count; i++)
		if (!store->drives[i].retired && !(but >> i & 1) &&
		    spw_alloc__blocks_free(store->drives[i].alloc) > 0)
			return true;
	return false;
}

/*
 * Place a piece contiguously on the chosen drive, else contiguously on another one of @willing,
 * else in the longest extent of the chosen drive.
 */
uint64_t spw_store__write_place(struct spw_store *store, struct piece *piece, uint32_t chosen,
				uint64_t willing)
{
	uint64_t blocks = spw_store__blocks_of(store, piece->len_bytes);
	uint32_t drive = chosen;
	struct spw_extent extent;
	int rc = spw_alloc__get(store->drives[chosen].alloc, blocks, &extent);

	SPW_ASSERT(!spw_store__piece_is_placed(piece) && blocks > 0);
	for (uint32_t i = 0; rc && i < store->drive_count; i++)
		if (willing >> i & 1) {
			drive = i;
			rc = spw_alloc__get(store->drives[i].alloc, blocks, &extent);
		}
	if (rc) {
		drive = chosen;
		rc = spw_alloc__get_some(store->drives[chosen].alloc, blocks, &extent);
	}
	if (rc)
		return 0;
	piece->drive = (uint8_t)drive;
	piece->handle = extent.handle;
	SPW_PROBE(place, store, drive, extent.start_block, extent.len_blocks, piece->len_bytes);
	store->drives[drive].bytes_placed += extent.len_blocks * store->block_bytes;
	count_add(&store->drives[drive].blocks_used, extent.len_blocks);
	return extent.len_blocks;
}

/* ---- One piece ---- */

static uint32_t next_piece(struct spw_request *request)
{
	struct spw_store *store = request->store;
	uint64_t left = request->len_bytes - request->cut_bytes;
	uint32_t index = request->unplaced;

	SPW_ASSERT(atomic_load_explicit(&request->state, memory_order_relaxed) ==
		   REQUEST_ACTIVE); /* not cancelled (STORE-5) */
	if (index != PIECE_NONE) {
		request->unplaced = store->pieces[index].next_unplaced;
		return index;
	}
	index = spw_store__piece_take(store);
	if (index == PIECE_NONE)
		return PIECE_NONE;
	store->pieces[index].object_offset = request->cut_bytes & OBJECT_BYTES_MAX;
	store->pieces[index].len_bytes =
		(uint32_t)(left < store->chunk_bytes ? left : store->chunk_bytes);
	spw_store__piece_append(store, request->object, index);
	request->cut_bytes += store->pieces[index].len_bytes;
	return index;
}

static void put_back_piece(struct spw_request *request, uint32_t index)
{
	request->store->pieces[index].next_unplaced = request->unplaced;
	request->unplaced = index;
}

/* The bytes after @placed_blocks become a piece of their own, not placed yet. */
static bool split(struct spw_request *request, uint32_t index, uint64_t placed_blocks)
{
	struct spw_store *store = request->store;
	struct piece *piece = &store->pieces[index], *rest;
	uint64_t placed_bytes = placed_blocks * store->block_bytes;
	uint32_t rest_index;

	SPW_ASSERT(placed_blocks > 0 && piece->drive != DRIVE_NONE);
	if (piece->len_bytes <= placed_bytes)
		return true;
	rest_index = spw_store__piece_take(store);
	if (rest_index == PIECE_NONE)
		return false;
	rest = &store->pieces[rest_index];
	rest->object_offset = (piece->object_offset + placed_bytes) & OBJECT_BYTES_MAX;
	rest->len_bytes = piece->len_bytes - (uint32_t)placed_bytes;
	rest->next = piece->next;
	piece->next = rest_index;
	piece->len_bytes = (uint32_t)placed_bytes;
	if (request->object->piece_last == index)
		request->object->piece_last = rest_index;
	put_back_piece(request, rest_index);
	count_add(&store->count.chunks_split, 1);
	return true;
}

static void write_done(struct spw_io *io);

void spw_store__write_fail_no_space(struct spw_request *request)
{
	struct spw_store *store = request->store;
	char advice[SPW_ADVICE_BYTES];

	if (spw_store__write_space_left(store, 0))
		spw_store__request_fail(
			request, -ENOBUFS,
			"no chunk descriptor is left for %llu bytes: store fewer or larger objects",
			(unsigned long long)request->len_bytes);
	else
		spw_store__request_fail(
			request, -ENOSPC, "no drive in service has room for %llu bytes: %s",
			(unsigned long long)request->len_bytes,
			spw_store__health_advice(store, "free objects, or add drives", advice));
	spw_store__write_end_if_done(request);
}

/* The transfer of the first replica computes the checksum of both. */
static void note_sum(const struct transfer *transfer)
{
	struct spw_store *store = transfer->store;
	struct piece *piece = &store->pieces[transfer->piece];

	spw_store__job_count(transfer);
	if (!transfer->job.wants_checksum)
		return;
	piece->checksum = transfer->job.checksum;
	if (transfer->request->object->copies == 2)
		store->pieces[piece->next].checksum = transfer->job.checksum;
}

void spw_store__write_issue(struct spw_request *request, struct transfer *transfer, uint32_t index,
			    bool summed)
{
	struct spw_store *store = request->store;
	struct piece *piece = &store->pieces[index];

	SPW_ASSERT(spw_store__piece_is_placed(piece) && !request->first_error);
	transfer->request = request;
	transfer->piece = index;
	if (spw_store__transfer_lay(transfer, piece) && transfer->bounce)
		spw_store__bounce_give(transfer);
	spw_store__job_set(transfer, SPW_WRITE, !summed && !store->opts.no_checksums);
	spw_store__job_lay_tail(transfer);
	if (!spw_store__pool_wanted(transfer)) {
		spw_store__job_run(transfer);
		note_sum(transfer);
		spw_store__transfer_issue(transfer, SPW_WRITE, write_done);
	} else if (transfer->bounce) {
		spw_store__pool_post(transfer);
	} else {
		spw_store__transfer_issue(transfer, SPW_WRITE, write_done);
		spw_store__checksum_later(transfer);
	}
	spw_store__priority_served(store, &store->drives[piece->drive], PRIORITY_WRITE);
	if (request->cut_bytes == request->len_bytes && request->unplaced == PIECE_NONE)
		unlink_write(request);
}

/* Place the next piece, and write it. Return: its drive; SPW_DRIVES_MAX: the request has failed. */
static uint32_t place_next(struct spw_request *request, struct transfer *transfer, uint32_t drive,
			   uint64_t willing)
{
	struct spw_store *store = request->store;
	uint32_t index = next_piece(request);
	uint64_t placed_blocks = 0;

	if (index != PIECE_NONE)
		placed_blocks =
			spw_store__write_place(store, &store->pieces[index], drive, willing);
	if (placed_blocks == 0 || !split(request, index, placed_blocks)) {
		spw_store__transfer_give(transfer);
		spw_store__write_fail_no_space(request);
		return SPW_DRIVES_MAX;
	}
	drive = store->pieces[index].drive;
	spw_store__write_issue(request, transfer, index, false);
	return drive;
}

bool spw_store__write_is_aligned(const struct spw_store *store, const struct spw_request *request)
{
	return request->vector == &request->run &&
	       (uintptr_t)request->run.iov_base % store->memory_align_bytes == 0;
}

bool spw_store__put_begin(struct spw_request *request)
{
	if (spw_store__request_begin(request))
		return true;
	spw_store__request_fail(request, -ECANCELED, "cancelled before anything was written");
	spw_store__write_end_if_done(request);
	return false;
}

uint64_t spw_store__put_willing(const struct spw_request *request, uint64_t willing)
{
	const struct spw_store *store = request->store;

	for (uint32_t i = 0; !spw_store__write_is_aligned(store, request) && i < store->drive_count;
	     i++)
		if (!spw_store__bounce_allowed(store, i))
			willing &= ~(UINT64_C(1) << i);
	return willing;
}

bool spw_store__write_next(struct spw_store *store, struct drive_scores *scores, uint64_t *left)
{
	struct spw_request *request = store->writes_first;
	bool copies = !spw_store__write_is_aligned(store, request);
	struct transfer *transfer;
	uint64_t willing;
	uint32_t drive;

	if (!spw_store__put_begin(request))
		return true;
	willing = spw_store__put_willing(request, *left);
	transfer = spw_store__transfer_take(store);
	if (!willing || (copies && !spw_store__bounce_take(store, transfer))) {
		count_add(&store->count.waits_for_copy_memory, 1);
		spw_store__transfer_give(transfer);
		return false;
	}
	drive = spw_store__write_pull(store, scores, willing, 0);
	if (drive == SPW_DRIVES_MAX) {
		spw_store__transfer_give(transfer);
		if (spw_store__write_space_left(store, 0))
			return false;
		spw_store__write_fail_no_space(request);
		return true;
	}
	drive = place_next(request, transfer, drive, willing);
	if (drive < SPW_DRIVES_MAX) {
		*left &= ~(UINT64_C(1) << drive);
		score(store, scores, drive);
	}
	return true;
}

/* Fail all waiting puts: no drive is in service, so no completion will make room for them. */
void spw_store__write_fail_all(struct spw_store *store)
{
	int error = store->drives_full == store->drive_count      ? -ENOSPC
		    : store->drives_resting == store->drive_count ? -EAGAIN
								  : -EIO;

	SPW_ASSERT(store->drives_retired == store->drive_count);
	while (store->writes_first) {
		struct spw_request *request = store->writes_first;
		char advice[SPW_ADVICE_BYTES];

		(void)spw_store__request_begin(request);
		spw_store__request_fail(
			request, error, "no drive of the store takes writes: %s",
			spw_store__health_advice(store, "one has come back since", advice));
		spw_store__write_end_if_done(request);
	}
}

/* Have a piece placed again, before the chunks of other puts. */
static void place_again(struct spw_request *request, uint32_t index)
{
	if (request->object->copies == 2)
		spw_store__replicas_look(request);
	else
		put_back_piece(request, index);
	if (!request->linked)
		link_before(request, request->store->writes_first);
	count_add(&request->store->count.chunks_moved, 1);
}

/* Issue a write after its copy to the bounce buffer. Put or drive may have failed meanwhile. */
static void issue_moved(struct transfer *transfer)
{
	struct spw_store *store = transfer->store;
	struct spw_request *request = transfer->request;
	uint32_t index = transfer->piece;
	struct piece *piece = &store->pieces[index];

	SPW_ASSERT(transfer->bounce && !transfer->in_flight && !transfer->abandoned);
	if (!request->first_error && !store->drives[piece->drive].retired) {
		spw_store__transfer_issue(transfer, SPW_WRITE, write_done);
		return;
	}
	spw_store__transfer_give(transfer);
	spw_store__piece_unplace(store, piece);
	if (!request->first_error)
		place_again(request, index);
	spw_store__write_end_if_done(request);
}

static void end_write(struct transfer *transfer);

void spw_store__write_job_ended(struct transfer *transfer)
{
	note_sum(transfer);
	if (transfer->bounce)
		issue_moved(transfer);
	else if (!transfer->in_flight)
		end_write(transfer);
}

/*
 * Abandon a write that missed its deadline. The chunk, which is still in memory, is written to
 * another drive. Its blocks stay allocated until the write completes, since the drive may still
 * write to them.
 */
void spw_store__write_abandon(struct transfer *transfer)
{
	struct spw_store *store = transfer->store;
	struct spw_request *request = transfer->request;
	struct piece *piece = &store->pieces[transfer->piece];

	SPW_ASSERT(!transfer->posted); /* no thread sums it (CHECKSUM-1) */
	SPW_ASSERT(transfer->in_flight && transfer->io.op == SPW_WRITE && !transfer->abandoned);
	/* Compute the checksum now: no other transfer does, and the other replica needs it too. */
	if (transfer->checksum_pending) {
		spw_store__checksum_take(transfer);
		spw_store__job_run(transfer);
		note_sum(transfer);
	}
	spw_store__drive_retire(store, piece->drive, -ETIMEDOUT);
	transfer->abandoned = true;
	transfer->orphan = spw_store__piece_extent(store, piece);
	piece->drive = DRIVE_NONE;
	/* The object's reservation is used for its new blocks. */
	atomic_fetch_sub(&store->blocks_available, (int64_t)transfer->orphan.len_blocks);
	SPW_ASSERT(request->in_flight > 0); /* the put has not ended (STORE-1) */
	request->in_flight--;
	if (!request->first_error)
		place_again(request, transfer->piece);
	spw_store__write_end_if_done(request);
}

static void abandoned_write_done(struct transfer *transfer)
{
	struct spw_store *store = transfer->store;
	uint64_t blocks = transfer->orphan.len_blocks;

	spw_store__extent_give(store, transfer->io.device, &transfer->orphan);
	/* spw_store__write_abandon() has subtracted them. */
	atomic_fetch_add(&store->blocks_available, (int64_t)blocks);
	if (transfer->io.res >= 0)
		spw_store__drive_answered(store, transfer->io.device);
	spw_store__transfer_give(transfer);
}

/* A write has completed; it ends when its checksum is computed too (CHECKSUM-1). */
static void write_done(struct spw_io *io)
{
	struct transfer *transfer = io->context;

	spw_store__transfer_ended(transfer);
	if (transfer->checksum_pending) {
		spw_store__checksum_take(transfer);
		spw_store__pool_post(transfer);
	}
	if (transfer->abandoned)
		abandoned_write_done(transfer);
	else if (!transfer->posted)
		end_write(transfer);
}

/* End a write that has completed or failed, and whose checksum is computed. */
static void end_write(struct transfer *transfer)
{
	const struct spw_io *io = &transfer->io;
	struct spw_request *request = transfer->request;
	struct spw_store *store = transfer->store;
	uint32_t index = transfer->piece;

	spw_store__transfer_give(transfer);
	if (io->res == -EFAULT || io->res == -ENOMEM) {
		/* The memory is at fault: another drive would fail in the same way. */
		spw_store__request_fail(request, io->res,
					"%s: cannot write %u bytes from the memory given: %s",
					spw_device_path(store->drives[io->device].device),
					io->len_bytes, spw_strerror(io->res));
		spw_store__piece_unplace(store, &store->pieces[index]);
	} else if (io->res < 0) {
		struct piece *piece = &store->pieces[index];

		count_add(&store->drives[piece->drive].dir[SPW_WRITE].errors, 1);
		if (io->res == -ENOSPC)
			count_add(&store->drives[piece->drive].writes_no_space, 1);
		spw_store__drive_retire(store, piece->drive, io->res);
		spw_store__piece_unplace(store, piece);
		if (!request->first_error)
			place_again(request, index);
	} else if (store->drives[io->device].on_trial) {
		store->drives[io->device].on_trial = false;
		spw_log(&store->opts.log, SPW_LOG_INFO, "%s: takes chunks again: in service",
			spw_device_path(store->drives[io->device].device));
	}
	spw_store__write_end_if_done(request);
}
