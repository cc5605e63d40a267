/* SPDX-License-Identifier: MIT */
/* store/request.c - the life of a request: take, begin, fail, end, notify waiters */
#include "store/request.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "store/inbox.h"
#include "store/object.h"
#include "store/open_store.h"
#include "store/pressure.h"
#include "store/slots.h"
#include "util/probes.h"
#include "util/util.h"

struct spw_request *spw_store__request_take(struct spw_store *store, enum request_kind kind,
					    struct object *object, const struct spw_notify *notify,
					    struct spw_request **out)
{
	uint32_t slot = spw_store__slots_take(&store->request_slots);
	struct spw_request *request;

	if (slot == SPW_SLOT_NONE) {
		(void)spw_error(
			-ENOBUFS,
			"all %u requests are in use: wait for one, or open the store with a larger "
			"requests_max",
			store->opts.requests_max);
		if (object)
			spw_store__object_drop(store, object, false);
		return NULL;
	}
	request = &store->requests[slot];
	/* the slot's last request has ended (STORE-1) */
	SPW_ASSERT(request->in_flight == 0 && !request->linked);
	SPW_ASSERT(!object == (kind != REQUEST_PUT && kind != REQUEST_GET));
	request->message.kind = MESSAGE_SUBMIT;
	request->kind = kind;
	request->object = object;
	request->notify = notify ? *notify : (struct spw_notify){0};
	request->error[0] = '\0';
	request->first_error = 0;
	request->in_flight = 0;
	request->cut_bytes = 0;
	request->unplaced = PIECE_NONE;
	request->reads_left = 0;
	request->linked = request->ends_on_receipt = false;
	atomic_store_explicit(&request->inbox, INBOX_POSTED, memory_order_relaxed);
	atomic_store_explicit(&request->state, REQUEST_QUEUED, memory_order_relaxed);
	atomic_store_explicit(&request->ended, ENDED_NOT, memory_order_relaxed);
	if (out)
		*out = request;
	return request;
}

void spw_store__request_give(struct spw_request *request)
{
	SPW_ASSERT(request->in_flight == 0); /* it has ended (STORE-1) */
	spw_store__slots_give(&request->store->request_slots,
			      (uint32_t)(request - request->store->requests));
}

bool spw_store__request_begin(struct spw_request *request)
{
	int queued = REQUEST_QUEUED;

	if (atomic_load_explicit(&request->state, memory_order_relaxed) == REQUEST_ACTIVE)
		return true;
	return atomic_compare_exchange_strong_explicit(&request->state, &queued, REQUEST_ACTIVE,
						       memory_order_acq_rel, memory_order_acquire);
}

void spw_store__request_fail(struct spw_request *request, int error, const char *format, ...)
{
	va_list args;

	SPW_ASSERT(error < 0);
	if (request->first_error)
		return;
	request->first_error = error;
	va_start(args, format);
	(void)vsnprintf(request->error, sizeof(request->error), format, args);
	va_end(args);
	if (error != -ECANCELED)
		spw_log(&request->store->opts.log, SPW_LOG_ERROR, "%s", request->error);
}

static void futex_wake_all(_Atomic uint32_t *word)
{
	(void)syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static void count_end(struct spw_request *request, int res)
{
	struct store_counters *count = &request->store->count;

	if (request->kind == REQUEST_PUT) {
		count_add(&count->puts, 1);
		count_add(&count->bytes_put, res ? 0 : request->len_bytes);
		spw_store__pressure_end(request);
	} else if (request->kind == REQUEST_GET) {
		count_add(&count->gets, 1);
		count_add(&count->bytes_got, res ? 0 : request->len_bytes);
		spw_store__pressure_end(request);
	}
	if (res == -ECANCELED)
		count_add(&count->cancelled, 1);
}

/* Wake spw_request_wait_any(), signal the eventfd. The request itself may have been reused. */
static void notify_waiters_of_any(struct spw_store *store)
{
	uint64_t one = 1;
	int fd = atomic_load(&store->eventfd);

	atomic_fetch_add(&store->ended_sequence, 1);
	if (atomic_load(&store->any_waiters) > 0)
		futex_wake_all(&store->ended_sequence);
	/* EAGAIN: the counter is full, so the descriptor is readable anyway. */
	if (fd >= 0 && write(fd, &one, sizeof(one)) < 0 && errno != EAGAIN)
		spw_log(&store->opts.log, SPW_LOG_ERROR,
			"cannot signal the store's eventfd: errno %d", errno);
}

/* End a request, once, with nothing in flight (STORE-1). */
void spw_store__request_end(struct spw_request *request)
{
	struct spw_store *store = request->store;
	int res = request->first_error, received = INBOX_RECEIVED;

	SPW_ASSERT(request->in_flight == 0 && !request->linked);
	if (!atomic_compare_exchange_strong(&request->inbox, &received, INBOX_CLOSED)) {
		request->ends_on_receipt = true; /* its message is in the inbox (STORE-10) */
		return;
	}
	SPW_ASSERT(atomic_load_explicit(&request->ended, memory_order_relaxed) != ENDED);
	/* it is on no list (STORE-8) */
	SPW_ASSERT(request->kind != REQUEST_GET || request->reads_left == 0);
	if (request->kind == REQUEST_PUT) {
		SPW_ASSERT(atomic_load(&request->object->put) == request);
		SPW_ASSERT(res || (request->cut_bytes == request->len_bytes &&
				   request->unplaced == PIECE_NONE)); /* all is placed (STORE-7) */
		request->object->error = res;
		/* Release: a thread that sees NULL also sees the object's pieces. */
		atomic_store_explicit(&request->object->put, NULL, memory_order_release);
	}
	count_end(request, res);
	if (request->kind == REQUEST_PUT)
		SPW_PROBE(put_end, request, request->len_bytes, res);
	else if (request->kind == REQUEST_GET)
		SPW_PROBE(get_end, request, request->len_bytes, res);
	store->ended++;
	if (request->object)
		spw_store__object_drop(store, request->object, true);
	if (request->notify.done) {
		if (res)
			(void)spw_error(res, "%s", request->error);
		request->notify.done(request->notify.context, res);
		/* Only now: the caller may cancel the request until done has returned. */
		spw_store__request_give(request);
		return;
	}
	/* Release: the waiter must see bytes and result. It may reuse the request immediately. */
	if (atomic_exchange_explicit(&request->ended, ENDED, memory_order_acq_rel) ==
	    ENDED_WAITED_FOR)
		futex_wake_all(&request->ended);
	notify_waiters_of_any(store);
}
