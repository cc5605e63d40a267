/* SPDX-License-Identifier: MIT */
/* store/flush.c - spw_store_flush(): flush the drives' caches, one request at a time */
#include "store/flush.h"

#include <errno.h>

#include "store/drive_health.h"
#include "store/open_store.h"
#include "store/request.h"
#include "util/util.h"

static void flush_next(struct spw_store *store);

static void flush_done(struct spw_io *io)
{
	struct spw_store *store = io->context;
	struct spw_request *request = store->flushing;

	SPW_ASSERT(request && request->in_flight > 0); /* it has not ended (STORE-1) */
	if (io->res < 0)
		spw_store__request_fail(request, io->res, "%s: cannot flush: %s",
					spw_device_path(store->drives[io->device].device),
					spw_strerror(io->res));
	/* Not with -ENOSPC, or the drive would return: it has lost accepted writes. */
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
	SPW_ASSERT(request->in_flight > 0); /* otherwise it would never end (STORE-1) */
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

void spw_store__flush_submit(struct spw_request *request)
{
	struct spw_store *store = request->store;

	request->next = NULL;
	*(store->flush_first ? &store->flush_last->next : &store->flush_first) = request;
	store->flush_last = request;
	flush_next(store);
}

void spw_store__flush_cancel(struct spw_store *store)
{
	while (store->flush_first) {
		struct spw_request *request = store->flush_first;

		store->flush_first = request->next;
		spw_store__request_fail(request, -ECANCELED, "the store was closed");
		spw_store__request_end(request);
	}
}
