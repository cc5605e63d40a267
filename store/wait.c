/* SPDX-License-Identifier: MIT */
/* store/wait.c - spw_request_wait(), _cancel(), _raise() etc.; runs the worker in inline mode */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "store/checksum_pool.h"
#include "store/inbox.h"
#include "store/open_store.h"
#include "store/request.h"
#include "store/worker.h"
#include "util/util.h"

static void futex_wait(_Atomic uint32_t *word, uint32_t expected, const struct timespec *timeout)
{
	/* Ignore the result: the caller checks the condition again. */
	(void)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, timeout, NULL, 0);
}

int spw_store_poll(struct spw_store *store, bool wait)
{
	int ended = spw_store__owned(store);

	if (ended)
		return ended;
	if (!store->opts.inline_mode)
		return spw_error(
			-EINVAL,
			"the store has an I/O thread: only a store in inline mode is polled");
	/* Keep the drives' queues full even if the caller polls rarely. */
	do
		ended = spw_store__turn(store, wait && spw_store__is_busy(store), -1);
	while (ended == 0 &&
	       (wait ? spw_store__is_busy(store) : spw_store__pool_waits(store->pool)));
	return ended;
}

static int request_result(struct spw_request *request)
{
	int res = request->first_error;

	SPW_ASSERT(atomic_load(&request->ended) == ENDED);
	if (res)
		(void)spw_error(res, "%s", request->error);
	spw_store__request_give(request);
	return res;
}

static bool has_ended(const struct spw_request *request)
{
	return atomic_load_explicit(&request->ended, memory_order_acquire) == ENDED;
}

/*
 * Inline mode: log an error of the queue. It does not end requests, since drives may still use
 * their buffers. Return: 0: keep waiting; -EEXIST: another thread polls the store, and ends the
 * request.
 */
static int log_turn(struct spw_store *store, int rc)
{
	if (rc < 0 && rc != -EEXIST)
		spw_log(&store->opts.log, SPW_LOG_ERROR, "the I/O queue failed: %s",
			spw_last_error());
	return rc == -EEXIST ? rc : 0;
}

static int turn_inline(struct spw_store *store, bool wait)
{
	return log_turn(store, spw_store_poll(store, wait));
}

int spw_request_test(struct spw_request *request)
{
	if (spw_store__owned(request->store))
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
	if (spw_store__owned(request->store))
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

struct time_left {
	int64_t limit_ns; /* -1: no limit */
	struct timespec time;
};

static struct time_left time_left_until(uint64_t deadline_ns)
{
	uint64_t now_ns = spw_clock_ns();
	uint64_t left_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;

	return (struct time_left){
		.limit_ns = deadline_ns == UINT64_MAX ? -1 : (int64_t)left_ns,
		.time = {.tv_sec = (time_t)(left_ns / 1000000000),
			 .tv_nsec = (long)(left_ns % 1000000000)},
	};
}

static int wait_for_next_end(struct spw_store *store, uint32_t sequence, uint64_t deadline_ns)
{
	const struct time_left left = time_left_until(deadline_ns);

	if (left.limit_ns == 0)
		return -ETIMEDOUT;
	if (store->opts.inline_mode)
		return log_turn(store,
				spw_store__turn(store, spw_store__is_busy(store), left.limit_ns));
	atomic_fetch_add(&store->any_waiters, 1);
	futex_wait(&store->ended_sequence, sequence, left.limit_ns < 0 ? NULL : &left.time);
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
	if (spw_store__owned(store))
		return -EPERM;
	for (;;) {
		/* Read the counter first: if a request ends after this, the futex does not wait. */
		uint32_t sequence = atomic_load(&store->ended_sequence);
		int rc;

		for (unsigned i = 0; i < count; i++)
			if (has_ended(requests[i]))
				return (int)i;
		rc = wait_for_next_end(store, sequence, deadline_ns);
		if (rc)
			return rc == -ETIMEDOUT
				       ? spw_error(rc, "none of %u requests ended in time", count)
				       : rc;
	}
}

/* Wait until a slot is returned. Return: 0: check again; -ETIMEDOUT. */
static int wait_for_given(struct spw_store *store, uint32_t given, uint64_t deadline_ns)
{
	const struct time_left left = time_left_until(deadline_ns);

	if (left.limit_ns == 0)
		return -ETIMEDOUT;
	if (store->opts.inline_mode) {
		if (!spw_store__is_busy(store) && !spw_store__pool_waits(store->pool) &&
		    !atomic_load(&store->inbox))
			return -ETIMEDOUT;
		if (!log_turn(store,
			      spw_store__turn(store, spw_store__is_busy(store), left.limit_ns)))
			return 0;
	}
	futex_wait(&store->request_slots.given, given, left.limit_ns < 0 ? NULL : &left.time);
	return 0;
}

int spw_store_wait_request(struct spw_store *store, int64_t timeout_ns)
{
	uint64_t deadline_ns = timeout_ns < 0 ? UINT64_MAX : spw_clock_ns() + (uint64_t)timeout_ns;
	int rc = spw_store__owned(store);
	uint32_t given;

	while (!rc && !spw_store__slots_watch(&store->request_slots, &given))
		rc = wait_for_given(store, given, deadline_ns);
	return rc == -ETIMEDOUT
		       ? spw_error(rc, "all %u requests are in use", store->opts.requests_max)
		       : rc;
}

int spw_store_eventfd(struct spw_store *store)
{
	int fd = atomic_load(&store->eventfd), none = -1;

	if (fd >= 0)
		return fd;
	fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (fd < 0)
		return spw_error_errno(-errno, "cannot make an eventfd");
	/* There is one per store: another thread has created it meanwhile. */
	if (!atomic_compare_exchange_strong(&store->eventfd, &none, fd)) {
		(void)close(fd);
		return none;
	}
	return fd;
}

/* Tell the worker that a request was changed. Harmless if it has ended, or was reused meanwhile. */
static void tell(struct spw_request *request)
{
	int received = INBOX_RECEIVED;

	if (!atomic_compare_exchange_strong(&request->inbox, &received, INBOX_POSTED))
		return;
	request->message.kind = MESSAGE_CHANGED;
	spw_store__push(request->store, &request->message);
}

int spw_request_cancel(struct spw_request *request)
{
	int queued = REQUEST_QUEUED;

	if (spw_store__owned(request->store))
		return -EPERM;
	if (!atomic_compare_exchange_strong(&request->state, &queued, REQUEST_CANCELLED))
		return spw_error(-EALREADY, "the request is under way or has ended");
	tell(request);
	return 0;
}

void spw_request_raise(struct spw_request *request, enum spw_class cls)
{
	int now = atomic_load_explicit(&request->cls, memory_order_relaxed);

	if (request->kind != REQUEST_GET || cls < SPW_URGENT_READ)
		return;
	do
		if (now <= (int)cls)
			return;
	while (!atomic_compare_exchange_weak(&request->cls, &now, (int)cls));
	tell(request);
}
