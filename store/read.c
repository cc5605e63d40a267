/* SPDX-License-Identifier: MIT */
/*
 * store/read.c - gets: queue pieces by drive, read and verify them, switch replicas
 *
 * Large pieces are verified by the checksum pool, after the drive has its next request, so that
 * drives do not wait for checksums (store/checksum_pool.h).
 *
 * Each chunk of a mirrored object is read from the drive that will probably deliver it first,
 * chosen when the worker receives the get. Urgent reads prefer a local drive, since a network may
 * be down for minutes. If a replica cannot be read or is corrupt, the other one is read.
 */
#include "store/read.h"

#include <errno.h>
#include <string.h>

#include "store/checksum_job.h"
#include "store/checksum_pool.h"
#include "store/copy.h"
#include "store/drive_health.h"
#include "store/object.h"
#include "store/open_store.h"
#include "store/priority.h"
#include "store/request.h"
#include "store/transfer.h"
#include "util/util.h"

/* ---- The lists: one per drive and class; a request is in at most one of each drive ---- */

static void list_append(struct read_list *list, struct drive_read *read)
{
	read->next = NULL;
	read->previous = list->last;
	*(list->last ? &list->last->next : &list->first) = read;
	list->last = read;
}

static void list_remove(struct read_list *list, struct drive_read *read)
{
	*(read->previous ? &read->previous->next : &list->first) = read->next;
	*(read->next ? &read->next->previous : &list->last) = read->previous;
}

static void link_by_class(struct spw_request *request, enum spw_class cls)
{
	struct spw_store *store = request->store;

	SPW_ASSERT(!request->linked && request->reads_left > 0);
	request->linked_class = cls;
	for (uint32_t drive = 0; drive < store->drive_count; drive++)
		if (request->drive_reads[drive].left > 0) {
			list_append(&store->drives[drive].waiting[cls],
				    &request->drive_reads[drive]);
			store->reads_waiting++;
		}
	request->linked = true;
}

static void unlink_all(struct spw_request *request)
{
	struct spw_store *store = request->store;

	if (!request->linked)
		return;
	for (uint32_t drive = 0; drive < store->drive_count; drive++)
		if (request->drive_reads[drive].left > 0) {
			list_remove(&store->drives[drive].waiting[request->linked_class],
				    &request->drive_reads[drive]);
			store->reads_waiting--;
		}
	request->linked = false;
}

void spw_store__read_raise(struct spw_request *request)
{
	int cls = atomic_load(&request->cls);

	/* Parts that were issued cannot be accelerated. */
	if (!request->linked || cls >= (int)request->linked_class)
		return;
	unlink_all(request);
	link_by_class(request, (enum spw_class)cls);
}

void spw_store__read_end_if_done(struct spw_request *request)
{
	/* After an error, do not issue the remaining pieces. */
	if (request->first_error) {
		unlink_all(request);
		request->reads_left = 0;
	}
	if (request->reads_left == 0 && request->in_flight == 0)
		spw_store__request_end(request);
}

/* ---- Submitting ---- */

static bool overlaps(const struct spw_request *request, const struct piece *piece)
{
	return piece->object_offset < request->offset_bytes + request->len_bytes &&
	       request->offset_bytes < piece->object_offset + piece->len_bytes;
}

/* ---- Choosing a replica ---- */

#define CHOICES 64u /* number of bits of second_copies */

static unsigned choice_of(const struct spw_store *store, uint32_t run)
{
	return (unsigned)(store->pieces[run].object_offset / store->chunk_bytes % CHOICES);
}

/* The replica of a chunk that was chosen for the request. */
static uint32_t chosen_copy(const struct spw_request *request, uint32_t run)
{
	const struct spw_store *store = request->store;
	uint32_t second;

	if (request->object->copies == 1)
		return run;
	second = store->pieces[run].next;
	return store->pieces[second].drive != DRIVE_NONE &&
			       request->second_copies >> choice_of(store, run) & 1
		       ? second
		       : run;
}

#define FAR_AWAY (UINT64_C(1) << 62) /* longer than any local drive takes */

/* Estimated time to read another chunk, in sixteenths of the fastest drive's time for a chunk. */
static uint64_t wait_at(const struct spw_store *store, uint32_t drive, uint64_t given,
			uint64_t fastest, bool is_urgent)
{
	uint64_t way = is_urgent && spw_store__drive_is_far(&store->drives[drive]) ? FAR_AWAY : 0;
	int retired = atomic_load_explicit(&store->drives[drive].retired, memory_order_relaxed);
	uint64_t rate = atomic_load_explicit(
		&store->drives[drive].dir[SPW_READ].rate.bytes_per_second, memory_order_relaxed);
	uint64_t ones = store->drives[drive].in_flight + given + 1;

	/* A resting drive serves reads; a failed drive is read only if it has the only copy. */
	if (retired && !spw_store__drive_rests(retired))
		return UINT64_MAX;
	return way + (rate > 0 && rate < fastest ? 16 * ones * fastest / rate : 16 * ones);
}

static void choose_copies(struct spw_request *request)
{
	const struct spw_store *store = request->store;
	uint64_t given[SPW_DRIVES_MAX] = {0}, fastest = 0, decided = 0;
	bool is_urgent = atomic_load(&request->cls) == SPW_URGENT_READ;

	request->second_copies = 0;
	for (uint32_t i = 0; i < store->drive_count; i++)
		fastest = SPW_MAX(
			fastest,
			atomic_load_explicit(&store->drives[i].dir[SPW_READ].rate.bytes_per_second,
					     memory_order_relaxed));
	for (uint32_t run = request->object->piece_first; run != PIECE_NONE;
	     run = spw_store__run_next(store, request->object, run)) {
		const struct piece *first = &store->pieces[run];
		const struct piece *second = &store->pieces[first->next];
		uint64_t bit = UINT64_C(1) << choice_of(store, run);

		if (!overlaps(request, first) || second->drive == DRIVE_NONE)
			continue;
		if (!(decided & bit) &&
		    wait_at(store, second->drive, given[second->drive], fastest, is_urgent) <
			    wait_at(store, first->drive, given[first->drive], fastest, is_urgent))
			request->second_copies |= bit;
		decided |= bit;
		given[request->second_copies & bit ? second->drive : first->drive]++;
	}
}

/* Serve a get while the object's put has not ended, so that its bytes are still in memory. */
static void get_from_memory(struct spw_request *request)
{
	const struct spw_request *put = request->object->put;

	SPW_ASSERT(put && put->len_bytes == request->object->len_bytes);
	spw_store__regather(request->vector, put->vector, request->offset_bytes,
			    request->len_bytes);
	count_add(&request->store->count.bytes_from_memory, request->len_bytes);
	spw_store__request_end(request);
}

void spw_store__read_submit(struct spw_request *request)
{
	struct spw_store *store = request->store;
	struct object *object = request->object;

	if (object->put || object->error) {
		if (!spw_store__request_begin(request))
			spw_store__request_fail(request, -ECANCELED,
						"cancelled before anything was read");
		else if (object->error == -ENXIO)
			spw_store__request_fail(request, -ENXIO,
						"the object lies on a drive that is missing: %s",
						store->assembly.missing_words);
		else if (object->error)
			spw_store__request_fail(request, object->error,
						"the object was never stored: its put failed (%s)",
						spw_strerror(object->error));
		if (request->first_error)
			spw_store__request_end(request);
		else
			get_from_memory(request);
		return;
	}
	for (uint32_t drive = 0; drive < store->drive_count; drive++)
		request->drive_reads[drive].left = 0;
	if (object->copies == 2)
		choose_copies(request);
	for (uint32_t index = object->piece_first; index != PIECE_NONE;
	     index = spw_store__run_next(store, object, index)) {
		struct piece *piece = &store->pieces[chosen_copy(request, index)];
		struct drive_read *read = &request->drive_reads[piece->drive];

		SPW_ASSERT(piece->drive < store->drive_count); /* it is placed (STORE-7) */
		if (!overlaps(request, piece))
			continue;
		if (read->left++ == 0)
			read->piece = index;
		request->reads_left++;
	}
	link_by_class(request, (enum spw_class)atomic_load(&request->cls));
}

/* ---- Issuing ---- */

static void advance(struct spw_request *request, uint32_t drive)
{
	struct spw_store *store = request->store;
	struct drive_read *read = &request->drive_reads[drive];

	SPW_ASSERT(request->reads_left > 0 && read->left > 0 &&
		   store->reads_waiting > 0); /* it was counted (STORE-8) */
	request->reads_left--;
	if (--read->left == 0) {
		list_remove(&store->drives[drive].waiting[request->linked_class], read);
		store->reads_waiting--;
		request->linked = request->reads_left > 0;
		return;
	}
	do
		read->piece = spw_store__run_next(store, request->object, read->piece);
	while (store->pieces[chosen_copy(request, read->piece)].drive != drive);
}

/* Does the request cover all of the piece, in memory that the drive can use directly? */
static bool fits_directly(struct transfer *transfer, const struct piece *piece)
{
	const struct spw_request *request = transfer->request;
	struct spw_store *store = transfer->store;

	if (piece->object_offset < request->offset_bytes ||
	    piece->object_offset + piece->len_bytes > request->offset_bytes + request->len_bytes) {
		count_add(&store->count.copies_partial_chunk, 1);
		return false;
	}
	if (!spw_store__transfer_lay(transfer, piece)) {
		count_add(&store->count.copies_unaligned_address, 1);
		return false;
	}
	return true;
}

static void read_done(struct spw_io *io);

bool spw_store__read_next(struct spw_store *store, uint32_t drive, enum spw_class cls)
{
	struct drive_read *read = store->drives[drive].waiting[cls].first;
	struct spw_request *request = read->request;
	struct piece *piece = &store->pieces[read->piece];
	struct transfer *transfer;

	SPW_ASSERT(read->left > 0 && request->linked && request->linked_class == cls);
	if (!spw_store__request_begin(request)) {
		spw_store__request_fail(request, -ECANCELED, "cancelled before anything was read");
		spw_store__read_end_if_done(request);
		return true;
	}
	transfer = spw_store__transfer_take(store);
	transfer->request = request;
	transfer->piece = chosen_copy(request, read->piece);
	if (!fits_directly(transfer, piece) && (!spw_store__bounce_allowed(store, drive) ||
						!spw_store__bounce_take(store, transfer))) {
		count_add(&store->count.waits_for_copy_memory, 1);
		spw_store__transfer_give(transfer);
		return false;
	}
	advance(request, drive);
	spw_store__transfer_issue(transfer, SPW_READ, read_done);
	return true;
}

/* ---- Completing ---- */

/* Bounce buffers in flight are limited by drive (STORE-4). */
static bool may_issue(const struct transfer *transfer, uint32_t drive)
{
	return !transfer->bounce || spw_store__bounce_allowed(transfer->store, drive);
}

static void issue_again(struct transfer *transfer)
{
	struct spw_store *store = transfer->store;
	uint32_t index = store->pieces[transfer->piece].drive;
	struct store_drive *drive = &store->drives[index];

	if (drive->in_flight < store->opts.queue_depth && may_issue(transfer, index)) {
		spw_store__transfer_issue(transfer, SPW_READ, read_done);
		return;
	}
	/* No slot: the other drive's are in use, or its own slot was taken by another transfer. */
	transfer->copied = transfer->bounce != NULL;
	if (transfer->bounce) /* it may wait for long (STORE-4) */
		spw_store__bounce_give(transfer);
	transfer->next = drive->retries;
	drive->retries = transfer;
	transfer->request->in_flight++;
	store->reads_waiting++;
}

/* Retry once: the transfer may be at fault, not the stored bytes. */
static bool retry(struct transfer *transfer)
{
	if (transfer->retried || transfer->timed_out)
		return false;
	transfer->retried = true;
	issue_again(transfer);
	return true;
}

/* The other piece of a pair, with the same bytes. Return: PIECE_NONE: it is a hole. */
static uint32_t other_copy(const struct spw_store *store, const struct object *object,
			   uint32_t piece)
{
	uint32_t run = object->piece_first, other;

	while (run != piece && store->pieces[run].next != piece)
		run = spw_store__run_next(store, object, run);
	other = run == piece ? store->pieces[run].next : run;
	return store->pieces[other].drive == DRIVE_NONE ? PIECE_NONE : other;
}

/* Read the other replica. @words: why this one cannot be used. */
static bool switch_copy(struct transfer *transfer, const char *words)
{
	struct spw_store *store = transfer->store;
	const struct object *object = transfer->request->object;
	struct store_drive *drive = &store->drives[transfer->io.device];
	uint32_t other;

	if (object->copies == 1 || transfer->switched)
		return false;
	other = other_copy(store, object, transfer->piece);
	if (other == PIECE_NONE)
		return false;
	SPW_ASSERT(spw_store__piece_is_placed(&store->pieces[other]));
	count_add(&store->count.reads_switched, 1);
	if (!drive->unread)
		spw_log(&store->opts.log, SPW_LOG_WARNING,
			"%s: %u bytes at byte %llu do not serve (%s): read from their copy on %s, "
			"as all such from now on; spillway check --scrub finds what is bad",
			spw_device_path(drive->device), transfer->io.len_bytes,
			(unsigned long long)transfer->io.offset_bytes, words,
			spw_device_path(store->drives[store->pieces[other].drive].device));
	drive->unread = true;
	transfer->piece = other;
	transfer->switched = true;
	transfer->retried = transfer->timed_out = false;
	issue_again(transfer);
	return true;
}

static struct transfer *take_retry(struct spw_store *store, uint32_t drive)
{
	struct transfer *transfer = store->drives[drive].retries;

	/* counted (STORE-8, 1) */
	SPW_ASSERT(store->reads_waiting > 0 && transfer->request->in_flight > 0);
	store->drives[drive].retries = transfer->next;
	transfer->request->in_flight--;
	store->reads_waiting--;
	return transfer;
}

bool spw_store__read_retry_next(struct spw_store *store, uint32_t drive)
{
	struct transfer *transfer = store->drives[drive].retries;

	if (transfer->copied &&
	    (!spw_store__bounce_allowed(store, drive) || !spw_store__bounce_take(store, transfer)))
		return false;
	spw_store__transfer_issue(take_retry(store, drive), SPW_READ, read_done);
	return true;
}

/* ---- Verifying ---- */

static void end_transfer(struct transfer *transfer)
{
	struct spw_request *request = transfer->request;

	spw_store__transfer_give(transfer);
	spw_store__read_end_if_done(request);
}

void spw_store__read_cancel_retries(struct spw_store *store)
{
	for (uint32_t drive = 0; drive < store->drive_count; drive++)
		while (store->drives[drive].retries) {
			struct transfer *transfer = take_retry(store, drive);

			spw_store__request_fail(transfer->request, -ECANCELED,
						"the store was closed");
			end_transfer(transfer);
		}
}

void spw_store__read_job_ended(struct transfer *transfer)
{
	struct spw_store *store = transfer->store;
	const struct piece *piece = &store->pieces[transfer->piece];
	struct store_drive *drive = &store->drives[piece->drive];
	uint64_t checksum = transfer->job.checksum;

	SPW_ASSERT(!transfer->posted && !transfer->in_flight && transfer->io.res >= 0);
	spw_store__job_count(transfer);
	if (transfer->job.wants_checksum && checksum != piece->checksum) {
		count_add(&drive->checksum_errors, 1);
		if (switch_copy(transfer, "other bytes than were written") || retry(transfer))
			return;
		spw_store__request_fail(
			transfer->request, -EBADMSG,
			"%s: block %llu (byte %llu, %u bytes) holds other bytes than were written: "
			"checksum %016llx, expected %016llx",
			spw_device_path(drive->device),
			(unsigned long long)spw_store__piece_extent(store, piece).start_block,
			(unsigned long long)transfer->io.offset_bytes, piece->len_bytes,
			(unsigned long long)checksum, (unsigned long long)piece->checksum);
	}
	end_transfer(transfer);
}

static void read_failed(struct transfer *transfer)
{
	struct spw_store *store = transfer->store;
	const struct piece *piece = &store->pieces[transfer->piece];
	struct store_drive *drive = &store->drives[piece->drive];
	struct spw_io *io = &transfer->io;

	count_add(&drive->dir[SPW_READ].errors, 1);
	/* The drive was removed: retire it now, not after a failed write. */
	if (io->res == -ENODEV)
		spw_store__drive_retire(store, piece->drive, -ENODEV);
	if (transfer->timed_out && io->res == -ECANCELED)
		io->res = -ETIMEDOUT;
	if (switch_copy(transfer, spw_strerror(io->res)))
		return;
	if (io->res != -ENODEV && retry(transfer))
		return;
	spw_store__request_fail(
		transfer->request, io->res,
		"%s: cannot read %u bytes at block %llu (byte %llu): %s",
		spw_device_path(drive->device), io->len_bytes,
		(unsigned long long)spw_store__piece_extent(store, piece).start_block,
		(unsigned long long)io->offset_bytes, spw_strerror(io->res));
	end_transfer(transfer);
}

static void read_done(struct spw_io *io)
{
	struct transfer *transfer = io->context;
	struct spw_store *store = transfer->store;

	spw_store__transfer_ended(transfer);
	if (io->res < 0) {
		read_failed(transfer);
		return;
	}
	spw_store__job_set(transfer, SPW_READ, !store->opts.no_checksums);
	if (spw_store__pool_wanted(transfer)) {
		spw_store__pool_post(transfer);
	} else {
		spw_store__job_run(transfer);
		spw_store__read_job_ended(transfer);
	}
}
