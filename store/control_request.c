/* SPDX-License-Identifier: MIT */
/* store/control_request.c - requests that move no object: locate, revive, retire, register */
#include "store/control_request.h"

#include <errno.h>

#include "alloc/alloc.h"
#include "engine/register.h"
#include "layout/commit.h"
#include "store/drive_health.h"
#include "store/flush.h"
#include "store/open_store.h"
#include "store/request.h"
#include "store/trim.h"
#include "util/util.h"

/* ---- Locate ---- */

/* Replace the allocator's handle in each piece by the piece's start block. */
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
		SPW_ASSERT(pieces[i].drive < store->drive_count);
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
	SPW_ASSERT(request->offset_bytes < request->store->drive_count && request->len_bytes > 0);
	(void)spw_store__request_begin(request);
	spw_store__drive_retire(request->store, (uint32_t)request->offset_bytes,
				-(int)request->len_bytes);
	spw_store__request_end(request);
}

/* ---- The caller's memory, registered with the queue ---- */

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

void spw_store__control_submit(struct spw_request *request)
{
	SPW_ASSERT(request->kind != REQUEST_PUT && request->kind != REQUEST_GET);
	if (request->kind == REQUEST_FLUSH)
		spw_store__flush_submit(request);
	else if (request->kind == REQUEST_TRIM)
		spw_store__trim_submit(request);
	else if (request->kind == REQUEST_LOCATE)
		locate_submit(request);
	else if (request->kind == REQUEST_RETIRE)
		retire_submit(request);
	else if (request->kind == REQUEST_REGISTER || request->kind == REQUEST_UNREGISTER)
		register_submit(request);
	else
		revive_submit(request);
}
