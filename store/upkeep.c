/* SPDX-License-Identifier: MIT */
/* store/upkeep.c - flush, trim, deadlines, drives that come back */
#include <errno.h>
#include <stdio.h>

#include "layout/commit.h"
#include "store/internal.h"

#define CHECK_INTERVAL_NS_MAX 1000000000u

/* Batches that are worth a discard, and so few that the worker is soon back. */
#define TRIM_BLOCKS_MIN  256u
#define TRIM_EXTENTS_MAX 256u

/* ---- Flush ---- */

static void flush_next(struct spw_store *store);

static void flush_done(struct spw_io *io)
{
	struct spw_store *store = io->context;
	struct spw_request *request = store->flushing;

	SPW_ASSERT(request && request->in_flight > 0); /* STORE-1 */
	if (io->res < 0)
		spw_store__request_fail(request, io->res, "%s: cannot flush: %s",
					spw_device_path(store->drives[io->device].device),
					spw_strerror(io->res));
	/* Not as full: what it has not flushed it had taken before. */
	if (io->res < 0 && request->len_bytes)
		spw_store__drive_retire(store, io->device, io->res == -ENOSPC ? -EIO : io->res);
	store->transfers_in_flight--;
	if (--request->in_flight > 0)
		return;
	store->flushing = NULL;
	spw_store__request_end(request);
	flush_next(store);
}

static void flush_begin(struct spw_store *store, struct spw_request *request)
{
	SPW_ASSERT(!store->flushing && request->in_flight == 0);
	store->flushing = request;
	if (store->transfers_in_flight == 0)
		store->looked_ns = spw_clock_ns();
	for (uint32_t i = 0; i < store->drive_count; i++) {
		struct spw_io *io = &store->flush_ios[i];
		int rc;

		if (!(request->offset_bytes >> i & 1))
			continue;
		request->in_flight++;
		*io = (struct spw_io){
			.op = SPW_FLUSH, .device = i, .done = flush_done, .context = store};
		store->transfers_in_flight++;
		rc = spw_queue_prepare(store->queue, io);
		SPW_ASSERT(rc == 0);
	}
	SPW_ASSERT(request->in_flight > 0); /* STORE-1: else nobody would end it */
}

static void flush_next(struct spw_store *store)
{
	struct spw_request *request = store->flush_first;

	if (!request || store->flushing)
		return;
	store->flush_first = request->next;
	if (spw_store__request_begin(request)) {
		flush_begin(store, request);
		return;
	}
	spw_store__request_fail(request, -ECANCELED,
				"cancelled before the drives were asked to flush");
	spw_store__request_end(request);
	flush_next(store);
}

static void flush_submit(struct spw_request *request)
{
	struct spw_store *store = request->store;

	request->next = NULL;
	*(store->flush_first ? &store->flush_last->next : &store->flush_first) = request;
	store->flush_last = request;
	flush_next(store);
}

void spw_store__upkeep_cancel(struct spw_store *store)
{
	while (store->flush_first) {
		struct spw_request *request = store->flush_first;

		store->flush_first = request->next;
		spw_store__request_fail(request, -ECANCELED, "the store was closed");
		spw_store__request_end(request);
	}
}

/* ---- Trim ---- */

static int trim_extent(struct spw_store *store, struct store_drive *drive,
		       const struct spw_extent *extent)
{
	uint64_t offset_bytes = drive->base_bytes + extent->start_block * store->block_bytes;
	uint64_t len_bytes = extent->len_blocks * store->block_bytes;
	int rc = spw_device_discard(drive->device, offset_bytes, len_bytes);

	if (rc == 0)
		count_add(&store->count.bytes_trimmed, len_bytes);
	return rc;
}

/* Free space is taken from the allocator meanwhile: nothing can be placed on it. */
static int trim_drive(struct spw_store *store, struct store_drive *drive)
{
	struct spw_extent extents[TRIM_EXTENTS_MAX];
	unsigned count = 0;
	int rc = 0;

	while (count < TRIM_EXTENTS_MAX && rc == 0) {
		if (spw_alloc__get_some(drive->alloc, UINT64_MAX >> 1, &extents[count]))
			break;
		count++;
		/* The largest comes first: what follows is smaller still. */
		if (extents[count - 1].len_blocks < TRIM_BLOCKS_MIN)
			break;
		rc = trim_extent(store, drive, &extents[count - 1]);
	}
	while (count > 0)
		spw_alloc__put(drive->alloc, &extents[--count]);
	return rc;
}

static void trim_submit(struct spw_request *request)
{
	struct spw_store *store = request->store;

	if (!spw_store__request_begin(request))
		spw_store__request_fail(request, -ECANCELED,
					"cancelled before anything was trimmed");
	for (uint32_t i = 0; !request->first_error && i < store->drive_count; i++) {
		struct store_drive *drive = &store->drives[i];
		int rc = spw_device_geometry(drive->device)->discards && !drive->retired
				 ? trim_drive(store, drive)
				 : 0;

		if (rc)
			spw_store__request_fail(request, rc, "%s", spw_last_error());
	}
	spw_store__request_end(request);
}

/* ---- Locate ---- */

/* What each piece's start_block is: until now the handle of its drive's allocator. */
static void locate_submit(struct spw_request *request)
{
	struct spw_store *store = request->store;
	struct spw_commit_piece *pieces = (struct spw_commit_piece *)request->run.iov_base;

	if (!spw_store__request_begin(request))
		spw_store__request_fail(request, -ECANCELED, "cancelled before it was begun");
	for (uint64_t i = 0; !request->first_error && i < request->len_bytes; i++) {
		struct spw_extent extent;

		if (pieces[i].drive == SPW_COMMIT_NO_DRIVE)
			continue;
		spw_alloc__extent(store->drives[pieces[i].drive].alloc,
				  (uint32_t)pieces[i].start_block, &extent);
		pieces[i].start_block = extent.start_block;
	}
	spw_store__request_end(request);
}

/* ---- Revive and retire ---- */

static void revive_submit(struct spw_request *request)
{
	struct spw_store *store = request->store;
	uint32_t drive = (uint32_t)request->offset_bytes;

	SPW_ASSERT(drive < store->drive_count);
	(void)spw_store__request_begin(request);
	if (store->drives[drive].retired)
		spw_store__drive_revive(store, drive);
	else
		spw_store__request_fail(request, -EALREADY, "%s: is in service",
					spw_device_path(store->drives[drive].device));
	spw_store__request_end(request);
}

static void retire_submit(struct spw_request *request)
{
	(void)spw_store__request_begin(request);
	spw_store__drive_retire(request->store, (uint32_t)request->offset_bytes,
				-(int)request->len_bytes);
	spw_store__request_end(request);
}

/* ---- Memory of others ---- */

static void register_submit(struct spw_request *request)
{
	struct spw_store *store = request->store;
	int rc = request->kind == REQUEST_REGISTER
			 ? spw_engine__queue_register(store->queue, request->run.iov_base,
						      request->len_bytes)
			 : spw_engine__queue_unregister(store->queue, request->run.iov_base);

	(void)spw_store__request_begin(request);
	if (rc < 0)
		spw_store__request_fail(request, rc, "%s", spw_last_error());
	else if (rc == 0 && request->kind == REQUEST_REGISTER)
		count_add(&store->count.registrations_refused, 1);
	atomic_store_explicit(&store->count.registered_bytes,
			      spw_engine__queue_ranges_bytes(store->queue), memory_order_relaxed);
	spw_store__request_end(request);
}

void spw_store__upkeep_submit(struct spw_request *request)
{
	SPW_ASSERT(request->kind != REQUEST_PUT && request->kind != REQUEST_GET);
	if (request->kind == REQUEST_FLUSH)
		flush_submit(request);
	else if (request->kind == REQUEST_TRIM)
		trim_submit(request);
	else if (request->kind == REQUEST_LOCATE)
		locate_submit(request);
	else if (request->kind == REQUEST_RETIRE)
		retire_submit(request);
	else if (request->kind == REQUEST_REGISTER || request->kind == REQUEST_UNREGISTER)
		register_submit(request);
	else
		revive_submit(request);
}

/* ---- Deadlines ---- */

static uint64_t deadline_ns(const struct spw_store *store, enum spw_op op)
{
	return 1000000ull *
	       (op == SPW_READ ? store->opts.read_deadline_ms : store->opts.write_deadline_ms);
}

/* How long the worker may sleep: for ever when nothing is in flight that has a deadline. */
int64_t spw_store__deadline_timeout_ns(const struct spw_store *store)
{
	uint64_t read_ns = deadline_ns(store, SPW_READ), write_ns = deadline_ns(store, SPW_WRITE);
	uint64_t least_ns =
		read_ns == 0 || (write_ns != 0 && write_ns < read_ns) ? write_ns : read_ns;

	if (store->transfers_in_flight == 0 || least_ns == 0)
		return -1;
	return (int64_t)SPW_MIN(least_ns / 4, CHECK_INTERVAL_NS_MAX);
}

/* However late this look is, no more counts than the time that the worker may sleep. */
static void watch(struct spw_store *store, uint64_t now_ns, uint64_t interval_ns)
{
	uint64_t since_ns = now_ns - store->looked_ns;

	store->looked_ns = now_ns;
	store->watched_ns += since_ns < interval_ns ? since_ns : interval_ns;
}

/* "; the kernel keeps it for 600 s", as fast_io_fail_tmo and ctrl_loss_tmo say; "": a near one. */
static const char *how_long_kept(const struct store_drive *drive, char *text, size_t len)
{
	text[0] = '\0';
	if (!spw_store__drive_is_far(drive))
		return text;
	if (drive->device->transport.kept_s == UINT32_MAX)
		(void)snprintf(text, len, "; the kernel keeps it until the drive is reached again");
	else
		(void)snprintf(text, len,
			       "; if the drive is not reached again the kernel gives up after %u s",
			       drive->device->transport.kept_s);
	return text;
}

/*
 * A read of the only copy: when a network is gone, waiting for it is better than to fail. Where the
 * kernel gives up is the administrator's choice.
 */
static bool is_worth_waiting_for(const struct transfer *transfer)
{
	return transfer->io.op == SPW_READ && transfer->request->object->copies == 1 &&
	       spw_store__drive_is_far(&transfer->store->drives[transfer->io.device]);
}

static void time_out(struct transfer *transfer, uint64_t now_ns)
{
	struct spw_store *store = transfer->store;
	struct store_drive *drive = &store->drives[transfer->io.device];
	const struct spw_io *io = &transfer->io;
	char kept[96];

	transfer->timed_out = true;
	count_add(&drive->timeouts, 1);
	spw_log(&store->opts.log, SPW_LOG_ERROR,
		"%s%s: a %s of %u bytes at byte %llu has not ended after %llu ms%s",
		spw_device_path(drive->device), drive->device->transport.words,
		io->op == SPW_READ ? "read" : "write", io->len_bytes,
		(unsigned long long)io->offset_bytes,
		(unsigned long long)(now_ns - transfer->issued_ns) / 1000000,
		how_long_kept(drive, kept, sizeof(kept)));
	/* It ends by itself, cancelled or not; a read's memory is the drive's until then. */
	if (!is_worth_waiting_for(transfer))
		(void)spw_queue_cancel(store->queue, &transfer->io);
	if (io->op == SPW_WRITE)
		spw_store__write_abandon(transfer);
}

void spw_store__deadlines_check(struct spw_store *store)
{
	int64_t interval_ns = spw_store__deadline_timeout_ns(store);
	uint64_t now_ns;

	if (interval_ns < 0)
		return;
	now_ns = spw_clock_ns();
	watch(store, now_ns, (uint64_t)interval_ns);
	if (now_ns < store->next_deadline_check_ns)
		return;
	store->next_deadline_check_ns = now_ns + (uint64_t)interval_ns;
	for (uint32_t i = 0; i < store->transfers_total; i++) {
		struct transfer *transfer = &store->transfers[i];
		uint64_t limit_ns;

		/* One that is being summed is looked at next time (SUM-1). */
		if (!transfer->in_flight || transfer->timed_out || transfer->posted)
			continue;
		limit_ns = deadline_ns(store, transfer->io.op);
		if (limit_ns != 0 && store->watched_ns - transfer->watched_from_ns > limit_ns)
			time_out(transfer, now_ns);
	}
}
