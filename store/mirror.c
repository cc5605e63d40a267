/* SPDX-License-Identifier: MIT */
/*
 * store/mirror.c - mirrored puts: place and write each chunk on two drives
 *
 * Both replicas of a chunk are placed together, when two drives are ready; each drive is chosen as
 * for a chunk without a mirror. A replica whose write fails is written to another drive, but not to
 * that of the other replica. If there is no such drive the chunk has one copy, and the second piece
 * is a hole.
 *
 *   MIRROR-1  The two pieces of a pair are on different drives, and have the same length.
 *   MIRROR-2  A pair is split only while neither of its pieces is placed.
 */
#include "store/mirror.h"

#include "alloc/alloc.h"
#include "store/drive_health.h"
#include "store/object.h"
#include "store/open_store.h"
#include "store/replicas.h"
#include "store/request.h"
#include "store/transfer.h"
#include "store/write.h"
#include "util/util.h"

static uint64_t bit_of(const struct piece *piece)
{
	return spw_store__piece_is_placed(piece) ? UINT64_C(1) << piece->drive : 0;
}

/* ---- Chunks with one copy ---- */

void spw_store__single_note(struct spw_store *store, uint64_t len_bytes)
{
	uint64_t chunks = (len_bytes + store->chunk_bytes - 1) / store->chunk_bytes;
	char advice[SPW_ADVICE_BYTES];

	atomic_fetch_add_explicit(&store->count.chunks_single, chunks, memory_order_relaxed);
	if (atomic_exchange(&store->mirrors_short, true))
		return;
	spw_log(&store->opts.log, SPW_LOG_WARNING,
		"no second drive in service has room for copies: what is put has one copy alone, "
		"until that changes: %s",
		spw_store__health_advice(store, "free objects, or use more drives", advice));
}

/* ---- Pairs of pieces ---- */

/* Take a pair of pieces. Return: the first, linked to the second; or PIECE_NONE. */
static uint32_t take_run(struct spw_store *store, uint64_t offset_bytes, uint32_t len_bytes)
{
	uint32_t run = spw_store__piece_take(store), second = spw_store__piece_take(store);

	if (run == PIECE_NONE || second == PIECE_NONE) {
		if (run != PIECE_NONE) {
			store->pieces[run].next = store->piece_free;
			store->piece_free = run;
		}
		return PIECE_NONE;
	}
	store->pieces[run].next = second;
	for (uint32_t i = 0; i < 2; i++) {
		struct piece *piece = &store->pieces[i == 0 ? run : second];

		piece->object_offset = offset_bytes & OBJECT_BYTES_MAX;
		piece->len_bytes = len_bytes;
	}
	return run;
}

/* The next pair to place: one that has to be placed again, else a new one for the next chunk. */
static uint32_t next_run(struct spw_request *request)
{
	struct spw_store *store = request->store;
	uint64_t left = request->len_bytes - request->cut_bytes;
	uint32_t run = request->unplaced;

	if (run != PIECE_NONE)
		return run;
	run = take_run(store, request->cut_bytes, (uint32_t)SPW_MIN(left, store->chunk_bytes));
	if (run == PIECE_NONE)
		return PIECE_NONE;
	spw_store__piece_append(store, request->object, run);
	request->cut_bytes += store->pieces[run].len_bytes;
	return run;
}

/* The bytes after @blocks become a pair of their own, not placed yet. */
static bool split(struct spw_request *request, uint32_t run, uint64_t blocks)
{
	struct spw_store *store = request->store;
	struct piece *first = &store->pieces[run], *second = &store->pieces[first->next];
	uint32_t len_bytes = (uint32_t)(blocks * store->block_bytes), rest;

	if (blocks == spw_store__blocks_of(store, first->len_bytes))
		return true;
	rest = take_run(store, first->object_offset + len_bytes, first->len_bytes - len_bytes);
	if (rest == PIECE_NONE)
		return false;
	store->pieces[store->pieces[rest].next].next = second->next;
	second->next = rest;
	first->len_bytes = second->len_bytes = len_bytes;
	if (store->pieces[store->pieces[rest].next].next == PIECE_NONE)
		request->object->piece_last = store->pieces[rest].next;
	if (second->handle == HANDLE_HOLE)
		store->pieces[store->pieces[rest].next].handle = HANDLE_HOLE;
	count_add(&store->count.chunks_split, 1);
	return true;
}

/* ---- Placing ---- */

static void leave_hole(struct spw_request *request, struct piece *piece)
{
	spw_store__piece_unplace(request->store, piece);
	spw_store__piece_make_hole(request->store, request->object, piece);
	spw_store__single_note(request->store, piece->len_bytes);
}

/* Place all of a piece or nothing, since the other replica keeps its length (MIRROR-1). */
static bool place_whole(struct spw_store *store, struct piece *piece, uint32_t drive,
			uint64_t willing)
{
	uint64_t blocks = spw_store__write_place(store, piece, drive, willing);

	if (blocks > 0 && blocks < spw_store__blocks_of(store, piece->len_bytes))
		spw_store__piece_unplace(store, piece);
	return spw_store__piece_is_placed(piece);
}

/* Choose a drive. *drive: SPW_DRIVES_MAX: no space. Return: false: wait for a completion. */
static bool choose(const struct spw_store *store, const struct drive_scores *scores,
		   uint64_t willing, uint64_t but, uint32_t *drive)
{
	*drive = spw_store__write_pull(store, scores, willing, but);
	return *drive < SPW_DRIVES_MAX || !spw_store__write_space_left(store, but);
}

/* Take a transfer. Return: false: none is free, or no bounce buffer for it. */
static bool take_transfer(struct spw_request *request, struct transfer **transfer)
{
	struct spw_store *store = request->store;

	*transfer = NULL;
	if (!store->transfer_free)
		return false;
	*transfer = spw_store__transfer_take(store);
	if (spw_store__write_is_aligned(store, request) || spw_store__bounce_take(store, *transfer))
		return true;
	count_add(&store->count.waits_for_copy_memory, 1);
	spw_store__transfer_give(*transfer);
	*transfer = NULL;
	return false;
}

/* Place one replica again; the other replica stays where it is. */
static bool mend(struct spw_request *request, const struct drive_scores *scores, uint32_t run,
		 uint64_t willing)
{
	struct spw_store *store = request->store;
	struct piece *first = &store->pieces[run], *second = &store->pieces[first->next];
	struct piece *lost = spw_store__piece_is_wanting(first) ? first : second;
	struct piece *kept = lost == first ? second : first;
	struct transfer *transfer;
	uint32_t drive;

	SPW_ASSERT(spw_store__piece_is_placed(kept) && !spw_store__piece_is_placed(lost));
	if (!choose(store, scores, willing, bit_of(kept), &drive))
		return false;
	if (drive < SPW_DRIVES_MAX && !take_transfer(request, &transfer))
		return false;
	if (drive < SPW_DRIVES_MAX && !place_whole(store, lost, drive, willing & ~bit_of(kept))) {
		spw_store__transfer_give(transfer);
		drive = SPW_DRIVES_MAX;
	}
	/* a pair (MIRROR-1) */
	SPW_ASSERT(lost->drive != kept->drive && lost->len_bytes == kept->len_bytes);
	if (drive == SPW_DRIVES_MAX)
		leave_hole(request, lost);
	else
		lost->checksum = kept->checksum;
	spw_store__replicas_look(request);
	if (drive < SPW_DRIVES_MAX)
		spw_store__write_issue(request, transfer, (uint32_t)(lost - store->pieces), true);
	else
		spw_store__write_end_if_done(request);
	return true;
}

/* Free all but the first @blocks of a placed piece. */
static void shrink(struct spw_store *store, struct piece *piece, uint64_t blocks)
{
	struct store_drive *drive = &store->drives[piece->drive];
	struct spw_extent extent = spw_store__piece_extent(store, piece);
	int rc;

	if (extent.len_blocks == blocks)
		return;
	SPW_ASSERT(blocks < extent.len_blocks);
	spw_store__extent_give(store, piece->drive, &extent);
	rc = spw_alloc__get_at(drive->alloc, extent.start_block, blocks, &extent);
	SPW_ASSERT(rc == 0);
	piece->handle = extent.handle;
	count_add(&drive->blocks_used, blocks);
}

/*
 * Place both replicas, shortened to a length that is contiguous on both drives. @drives: the second
 * may be SPW_DRIVES_MAX. Return: false: no space for the first, or no free piece.
 */
static bool place_both(struct spw_request *request, uint32_t run, const uint32_t drives[2],
		       uint64_t willing)
{
	struct spw_store *store = request->store;
	struct piece *first = &store->pieces[run], *second = &store->pieces[first->next];
	uint64_t blocks, more = 0;

	/* Neither is placed. If one has become a hole, make it the second. */
	if (!spw_store__piece_is_wanting(first)) {
		first->next_unplaced = PIECE_NONE;
		second->handle = HANDLE_HOLE;
	}
	blocks = spw_store__write_place(store, first, drives[0], willing);
	if (blocks == 0)
		return false;
	if (drives[1] < SPW_DRIVES_MAX && spw_store__piece_is_wanting(second))
		/* the first replica may be on that drive (MIRROR-1) */
		more = spw_store__write_place(store, second,
					      first->drive == drives[1] ? drives[0] : drives[1],
					      willing & ~bit_of(first));
	if (more > 0) {
		blocks = SPW_MIN(blocks, more);
		shrink(store, first, blocks);
		shrink(store, second, blocks);
	}
	SPW_ASSERT(more == 0 || (first->drive != second->drive &&
				 first->len_bytes == second->len_bytes)); /* a pair (MIRROR-1) */
	if (!split(request, run, blocks))
		return false;
	if (spw_store__piece_is_wanting(second))
		leave_hole(request, second);
	return true;
}

static void write_both(struct spw_request *request, const uint32_t drives[2], uint64_t willing,
		       struct transfer *transfers[2])
{
	struct spw_store *store = request->store;
	uint32_t run = next_run(request);
	struct piece *first = &store->pieces[run];
	bool placed = run != PIECE_NONE && place_both(request, run, drives, willing);

	if (transfers[1] && !(placed && spw_store__piece_is_placed(&store->pieces[first->next]))) {
		spw_store__transfer_give(transfers[1]);
		transfers[1] = NULL;
	}
	if (!placed) {
		spw_store__transfer_give(transfers[0]);
		spw_store__write_fail_no_space(request);
		return;
	}
	spw_store__replicas_look(request);
	spw_store__write_issue(request, transfers[0], run, false);
	if (!transfers[1])
		return;
	if (atomic_load_explicit(&store->mirrors_short, memory_order_relaxed))
		atomic_store(&store->mirrors_short, false);
	spw_store__write_issue(request, transfers[1], first->next, true);
}

bool spw_store__mirror_next(struct spw_store *store, const struct drive_scores *scores,
			    uint64_t *left)
{
	struct spw_request *request = store->writes_first;
	uint64_t willing = spw_store__put_willing(request, *left);
	uint32_t run = request->unplaced, drives[2];
	struct transfer *transfers[2] = {NULL, NULL};

	SPW_ASSERT(request->object->copies == 2);
	*left = 0;
	if (!spw_store__put_begin(request))
		return true;
	if (run != PIECE_NONE &&
	    (spw_store__piece_is_placed(&store->pieces[run]) ||
	     spw_store__piece_is_placed(&store->pieces[store->pieces[run].next])))
		return mend(request, scores, run, willing);
	if (!choose(store, scores, willing, 0, &drives[0]))
		return false;
	if (drives[0] == SPW_DRIVES_MAX) {
		spw_store__write_fail_no_space(request);
		return true;
	}
	if (!choose(store, scores, willing, UINT64_C(1) << drives[0], &drives[1]) ||
	    !take_transfer(request, &transfers[0]))
		return false;
	if (drives[1] < SPW_DRIVES_MAX && !take_transfer(request, &transfers[1])) {
		spw_store__transfer_give(transfers[0]);
		return false;
	}
	write_both(request, drives, willing, transfers);
	return true;
}
