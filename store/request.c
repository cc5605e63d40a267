/* SPDX-License-Identifier: MIT */
/* store/request.c - requests: from the caller to the worker, and back to whoever waits */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "store/internal.h"

static struct spw_request *request_take(struct spw_store *store, enum request_kind kind, struct object *object,
					const struct spw_notify *notify)
{
	uint32_t slot = spw_slots_take(&store->request_slots);
	struct spw_request *request;

	if (slot == SPW_SLOT_NONE) {
		(void)spw_error(-ENOBUFS,
				"all %u requests are in use: wait for one, or open the store with a larger "
				"requests_max",
				store->opts.requests_max);
		return NULL;
	}
	request = &store->requests[slot];
	request->message.kind = MESSAGE_SUBMIT;
	request->kind = kind;
	request->object = object;
	request->notify = notify ? *notify : (struct spw_notify){0};
	request->res = 0;
	request->error[0] = '\0';
	request->first_error = 0;
	request->in_flight = 0;
	request->cut_bytes = 0;
	request->unplaced = PIECE_NONE;
	request->reads_left = 0;
	request->linked = false;
	atomic_store_explicit(&request->state, REQUEST_QUEUED, memory_order_relaxed);
	atomic_store_explicit(&request->ended, ENDED_NOT, memory_order_relaxed);
	return request;
}

static void request_give(struct spw_request *request)
{
	spw_slots_give(&request->store->request_slots, (uint32_t)(request - request->store->requests));
}

static int put(struct spw_store *store, const void *bytes, const struct iovec *vector, uint64_t len,
	       const struct spw_notify *notify, spw_object *id, struct spw_request **out)
{
	struct spw_request *request;
	int rc;

	id->value = 0;
	if (out)
		*out = NULL;
	if (len == 0 || (!bytes && !vector) || (!notify && !out))
		return spw_error(-EINVAL, "put needs bytes, and a notify or a request to wait for");
	rc = spw_store_owned(store);
	if (!rc)
		rc = spw_object_create(store, len, id);
	if (rc)
		return rc;
	request = request_take(store, REQUEST_PUT, &store->objects[(uint32_t)id->value], notify);
	if (!request) {
		spw_object_drop(store, &store->objects[(uint32_t)id->value], false);
		(void)spw_store_free(store, *id);
		id->value = 0;
		return -ENOBUFS;
	}
	/* The worker only reads through it. */
	memcpy(&request->bytes, &bytes, sizeof(request->bytes));
	request->vector = vector;
	request->len_bytes = len;
	request->offset_bytes = 0;
	atomic_store_explicit(&request->cls, SPW_BACKGROUND, memory_order_relaxed);
	atomic_store_explicit(&request->object->put, request, memory_order_relaxed);
	if (out)
		*out = request;
	spw_store_push_put(store, &request->message);
	return 0;
}

int spw_store_put(struct spw_store *store, const void *bytes, size_t len, const struct spw_notify *notify,
		  spw_object *id, struct spw_request **out)
{
	return put(store, bytes, NULL, len, notify, id, out);
}

int spw_store_putv(struct spw_store *store, const struct iovec vector[], unsigned count,
		   const struct spw_notify *notify, spw_object *id, struct spw_request **out)
{
	uint64_t len = 0;

	for (unsigned i = 0; vector && i < count; i++) {
		if (vector[i].iov_len > 0 && !vector[i].iov_base)
			return spw_error(-EINVAL, "element %u of the vector has a length but no memory", i);
		if (__builtin_add_overflow(len, vector[i].iov_len, &len))
			return spw_error(-EINVAL, "the vector's lengths add up to more than 64 bits hold");
	}
	return put(store, NULL, vector, len, notify, id, out);
}

/* Flush, trim, revive: requests without an object. */
static int submit_upkeep(struct spw_store *store, enum request_kind kind, uint64_t drive,
			 const struct spw_notify *notify, struct spw_request **out)
{
	struct spw_request *request;

	if (out)
		*out = NULL;
	if (!notify && !out)
		return spw_error(-EINVAL, "a notify or a request to wait for is needed");
	if (spw_store_owned(store))
		return -EPERM;
	request = request_take(store, kind, NULL, notify);
	if (!request)
		return -ENOBUFS;
	request->offset_bytes = drive;
	if (out)
		*out = request;
	spw_store_push(store, &request->message);
	return 0;
}

int spw_store_flush(struct spw_store *store, const struct spw_notify *notify, struct spw_request **out)
{
	return submit_upkeep(store, REQUEST_FLUSH, 0, notify, out);
}

int spw_store_trim(struct spw_store *store, const struct spw_notify *notify, struct spw_request **out)
{
	return submit_upkeep(store, REQUEST_TRIM, 0, notify, out);
}

int spw_store_revive(struct spw_store *store, unsigned drive)
{
	struct spw_request *request;
	int rc;

	if (drive >= store->drive_count)
		return spw_error(-EINVAL, "the store has %u drives, numbered from 0", store->drive_count);
	rc = submit_upkeep(store, REQUEST_REVIVE, drive, NULL, &request);
	return rc ? rc : spw_request_wait(request);
}

int spw_store_get(struct spw_store *store, spw_object id, uint64_t offset, void *bytes, size_t len, enum spw_class cls,
		  const struct spw_notify *notify, struct spw_request **out)
{
	struct spw_request *request;
	struct object *object;

	if (out)
		*out = NULL;
	if (len == 0 || !bytes || (!notify && !out) || cls < SPW_URGENT_READ || cls >= SPW_CLASSES)
		return spw_error(-EINVAL, "get needs memory, a class, and a notify or a request to wait for");
	if (spw_store_owned(store))
		return -EPERM;
	object = spw_object_acquire(store, id);
	if (!object)
		return spw_error(-ENOENT, "no such object: it was freed, or never was");
	if (offset >= object->len_bytes || len > object->len_bytes - offset) {
		uint64_t object_len = object->len_bytes;

		spw_object_drop(store, object, false);
		return spw_error(-ERANGE, "bytes %llu to %llu lie beyond the object's %llu", (unsigned long long)offset,
				 (unsigned long long)offset + len, (unsigned long long)object_len);
	}
	request = request_take(store, REQUEST_GET, object, notify);
	if (!request) {
		spw_object_drop(store, object, false);
		return -ENOBUFS;
	}
	request->bytes = bytes;
	request->len_bytes = len;
	request->offset_bytes = offset;
	atomic_store_explicit(&request->cls, cls, memory_order_relaxed);
	if (out)
		*out = request;
	spw_store_push(store, &request->message);
	return 0;
}

/* ---- Worker ---- */

/* The first part is about to be issued. False: the request was cancelled before. */
bool spw_request_begin(struct spw_request *request)
{
	int queued = REQUEST_QUEUED;

	if (atomic_load_explicit(&request->state, memory_order_relaxed) == REQUEST_ACTIVE)
		return true;
	return atomic_compare_exchange_strong_explicit(&request->state, &queued, REQUEST_ACTIVE, memory_order_acq_rel,
						       memory_order_acquire);
}

/* Remember the first failure; the request ends when nothing of it is in flight any more. */
void spw_request_fail(struct spw_request *request, int error, const char *format, ...)
{
	va_list args;

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

static void futex_wait(_Atomic uint32_t *word, uint32_t expected, const struct timespec *timeout)
{
	/* EAGAIN: the word has changed; EINTR: a signal; ETIMEDOUT. In each case the caller looks again. */
	(void)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, timeout, NULL, 0);
}

static void count_end(struct spw_request *request, int res)
{
	struct store_counters *count = &request->store->count;

	if (request->kind == REQUEST_PUT) {
		count_add(&count->puts, 1);
		count_add(&count->bytes_put, res ? 0 : request->len_bytes);
	} else if (request->kind == REQUEST_GET) {
		count_add(&count->gets, 1);
		count_add(&count->bytes_got, res ? 0 : request->len_bytes);
	}
	if (res == -ECANCELED)
		count_add(&count->cancelled, 1);
}

/* Tell those who wait for any of several requests. The request itself may be gone by now. */
static void tell_any(struct spw_store *store)
{
	uint64_t one = 1;
	int fd = atomic_load(&store->eventfd);

	atomic_fetch_add(&store->ended_sequence, 1);
	if (atomic_load(&store->any_waiters) > 0)
		futex_wake_all(&store->ended_sequence);
	/* Fails only when the counter is full, and then it is readable anyway. */
	if (fd >= 0 && write(fd, &one, sizeof(one)) < 0 && errno != EAGAIN)
		spw_log(&store->opts.log, SPW_LOG_ERROR, "cannot signal the store's eventfd: errno %d", errno);
}

/* STORE-1 */
void spw_request_end(struct spw_request *request)
{
	struct spw_store *store = request->store;
	int res = request->first_error;

	SPW_ASSERT(request->in_flight == 0 && !request->linked);
	if (request->kind == REQUEST_PUT) {
		request->object->error = res;
		/* Release: who sees that it has ended sees where its bytes are. */
		atomic_store_explicit(&request->object->put, NULL, memory_order_release);
	}
	count_end(request, res);
	request->res = res;
	store->ended++;
	if (request->object)
		spw_object_drop(store, request->object, true);
	if (request->notify.done) {
		if (res)
			(void)spw_error(res, "%s", request->error);
		request->notify.done(request->notify.context, res);
		/* Not before: until done has been called the caller may cancel the request. */
		request_give(request);
		return;
	}
	/* Release: the waiter sees the bytes and the result. The request may be gone right after. */
	if (atomic_exchange_explicit(&request->ended, ENDED, memory_order_acq_rel) == ENDED_WAITED_FOR)
		futex_wake_all(&request->ended);
	tell_any(store);
}

/* ---- Waiting ---- */

static int request_result(struct spw_request *request)
{
	int res = request->res;

	if (res)
		(void)spw_error(res, "%s", request->error);
	request_give(request);
	return res;
}

static bool has_ended(const struct spw_request *request)
{
	return atomic_load_explicit(&request->ended, memory_order_acquire) == ENDED;
}

/*
 * Inline mode: after one turn for whoever waits. A queue that fails for a moment ends no request: its buffer may still be a drive's, and
 * only its own end gives it back. So the caller goes on waiting, as the I/O thread would.
 *
 * Return: 0; -EEXIST the store belongs to another thread, whose turns end the request.
 */
static int log_turn(struct spw_store *store, int rc)
{
	if (rc < 0 && rc != -EEXIST)
		spw_log(&store->opts.log, SPW_LOG_ERROR, "the I/O queue failed: %s", spw_last_error());
	return rc == -EEXIST ? rc : 0;
}

static int turn_inline(struct spw_store *store, bool wait)
{
	return log_turn(store, spw_store_poll(store, wait));
}

int spw_request_test(struct spw_request *request)
{
	if (spw_store_owned(request->store))
		return -EPERM;
	if (request->store->opts.inline_mode && !has_ended(request)) {
		int rc = turn_inline(request->store, false);

		if (rc)
			return rc;
	}
	if (!has_ended(request))
		return -EINPROGRESS;
	return request_result(request);
}

int spw_request_wait(struct spw_request *request)
{
	if (spw_store_owned(request->store))
		return -EPERM;
	while (!has_ended(request)) {
		uint32_t not_ended = ENDED_NOT;

		if (request->store->opts.inline_mode) {
			int rc = turn_inline(request->store, true);

			if (rc)
				return rc;
			continue;
		}
		if (atomic_compare_exchange_strong(&request->ended, &not_ended, ENDED_WAITED_FOR) ||
		    not_ended == ENDED_WAITED_FOR)
			futex_wait(&request->ended, ENDED_WAITED_FOR, NULL);
	}
	return request_result(request);
}

/* Wait for the next end of any request, or until @deadline_ns. */
static int wait_for_next_end(struct spw_store *store, uint32_t sequence, uint64_t deadline_ns)
{
	uint64_t now_ns = spw_clock_ns();
	uint64_t left_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
	struct timespec left = {.tv_sec = (time_t)(left_ns / 1000000000), .tv_nsec = (long)(left_ns % 1000000000)};
	int64_t limit_ns = deadline_ns == UINT64_MAX ? -1 : (int64_t)left_ns;

	if (left_ns == 0)
		return -ETIMEDOUT;
	if (store->opts.inline_mode)
		return log_turn(store, spw_store_turn(store, store->transfers_in_flight > 0, limit_ns));
	atomic_fetch_add(&store->any_waiters, 1);
	futex_wait(&store->ended_sequence, sequence, deadline_ns == UINT64_MAX ? NULL : &left);
	atomic_fetch_sub(&store->any_waiters, 1);
	return 0;
}

int spw_request_wait_any(struct spw_request *const requests[], unsigned count, int64_t timeout_ns)
{
	uint64_t deadline_ns = timeout_ns < 0 ? UINT64_MAX : spw_clock_ns() + (uint64_t)timeout_ns;
	struct spw_store *store;

	if (count == 0 || count > INT_MAX)
		return spw_error(-EINVAL, "there is no request to wait for");
	store = requests[0]->store;
	if (spw_store_owned(store))
		return -EPERM;
	for (;;) {
		/* Read before the requests: an end after this changes it, and the wait returns at once. */
		uint32_t sequence = atomic_load(&store->ended_sequence);
		int rc;

		for (unsigned i = 0; i < count; i++)
			if (has_ended(requests[i]))
				return (int)i;
		rc = wait_for_next_end(store, sequence, deadline_ns);
		if (rc)
			return rc == -ETIMEDOUT ? spw_error(rc, "none of %u requests ended in time", count) : rc;
	}
}

int spw_store_eventfd(struct spw_store *store)
{
	int fd = atomic_load(&store->eventfd), none = -1;

	if (fd >= 0)
		return fd;
	fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (fd < 0)
		return spw_error_errno(-errno, "cannot make an eventfd");
	/* Another thread was faster: there is one per store. */
	if (!atomic_compare_exchange_strong(&store->eventfd, &none, fd)) {
		(void)close(fd);
		return none;
	}
	return fd;
}

int spw_request_cancel(struct spw_request *request)
{
	struct spw_store *store = request->store;
	int queued = REQUEST_QUEUED;

	if (spw_store_owned(store))
		return -EPERM;
	if (!atomic_compare_exchange_strong_explicit(&request->state, &queued, REQUEST_CANCELLED, memory_order_acq_rel,
						     memory_order_acquire))
		return spw_error(-EALREADY, "the request is under way or has ended");
	/* The request may end from here on; only the store is touched. */
	atomic_store(&store->attention, true);
	spw_store_wake(store);
	return 0;
}

void spw_request_raise(struct spw_request *request, enum spw_class cls)
{
	struct spw_store *store = request->store;
	int now = atomic_load_explicit(&request->cls, memory_order_relaxed);

	if (request->kind != REQUEST_GET || cls < SPW_URGENT_READ)
		return;
	do
		if (now <= (int)cls)
			return;
	while (!atomic_compare_exchange_weak(&request->cls, &now, (int)cls));
	/* What is under way cannot be hurried; what the worker has not seen yet comes with its class: link_all(). */
	if (!atomic_load(&request->linked))
		return;
	atomic_store(&store->attention, true);
	spw_store_wake(store);
}
