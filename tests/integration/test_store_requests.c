/* SPDX-License-Identifier: MIT */
/*
 * tests/integration/test_store_requests.c - how requests end: waited for, tested, notified,
 * cancelled, raised, cut off by close
 */
/* layer: test and files-workers */
#include "tests/integration/store_case.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

static uint8_t memory[192 * MIB];

static struct spw_store *open_mode(bool inline_mode)
{
	struct spw_store_opts opts = default_opts();

	opts.inline_mode = inline_mode;
	return open_drives(4, &opts);
}

/* ---- Test ------------------------------------------------------------------------------------ */

FORMATTED_CASE(test_request_test)
{
	struct spw_request *requests[20];
	spw_object objects[20];
	unsigned left;
	int result;

	for (unsigned mode = 0; mode < 2; mode++) {
		store = open_mode(mode == 1);
		for (unsigned i = 0; i < 20; i++) {
			content_fill(memory + i * MIB, MIB, i);
			assert_ok(spw_store_put(store, memory + i * MIB, MIB, NULL, &objects[i],
						&requests[i]));
		}
		for (left = 20; left > 0;)
			for (unsigned i = 0; i < 20; i++) {
				if (!requests[i])
					continue;
				result = spw_request_test(requests[i]);
				if (result == -EINPROGRESS)
					continue;
				assert_int_equal(result, 0);
				requests[i] = NULL;
				left--;
			}
		assert_int_equal(stats_of(store).requests, 0);
		for (unsigned i = 0; i < 20; i++)
			get_check(store, objects[i], 0, memory, MIB, i);
		close_store(store);
	}
}

/*
 * There is room for one object: the put succeeds the moment the worker has let go of the one
 * before, and thus just when it goes back to sleep. A lost wake-up shows as a hang here.
 */
FORMATTED_CASE(test_no_wake_is_lost)
{
	struct spw_store_opts opts = default_opts();
	struct spw_request *request;
	spw_object object;
	int result;

	opts.objects_max = 1;
	store = open_drives(4, &opts);
	object = put_wait(store, memory, 512);
	for (unsigned i = 0; i < 4000; i++) {
		assert_ok(spw_store_free(store, object));
		while ((result = spw_store_put(store, memory, 512, NULL, &object, &request)) ==
		       -ENOBUFS)
			continue;
		assert_ok(result);
		assert_ok(spw_request_wait(request));
	}
}

/* ---- Notify ---------------------------------------------------------------------------------- */

struct ending {
	_Atomic unsigned calls;
	_Atomic int result;
};

static void note_end(void *context, int result)
{
	struct ending *ending = context;

	atomic_store(&ending->result, result);
	atomic_fetch_add(&ending->calls, 1);
}

/* Until @ending was noted. Inline mode works meanwhile; else another thread does. */
static void until(bool inline_mode, struct ending *ending)
{
	while (atomic_load(&ending->calls) == 0)
		if (inline_mode)
			(void)spw_store_poll(store, true);
}

FORMATTED_CASE(test_notify_once)
{
	static struct ending endings[100];
	struct spw_notify notify = {.done = note_end};
	static spw_object objects[100];

	for (unsigned mode = 0; mode < 2; mode++) {
		memset(endings, 0, sizeof(endings));
		store = open_mode(mode == 1);
		content_fill(memory, MIB, 3);
		for (unsigned i = 0; i < 100; i++) {
			notify.context = &endings[i]; /* copied: the struct is used again */
			assert_ok(spw_store_put(store, memory, 10000 + i, &notify, &objects[i],
						NULL));
		}
		for (unsigned i = 0; i < 100; i++)
			until(mode == 1, &endings[i]);
		for (unsigned i = 0; i < 100; i++) {
			assert_int_equal(atomic_load(&endings[i].result), 0);
			memset(&endings[i], 0, sizeof(endings[i]));
			notify.context = &endings[i];
			assert_ok(spw_store_get(store, objects[i], 0, memory + MIB + i * 20000,
						10000 + i, SPW_PREFETCH, &notify, NULL));
		}
		for (unsigned i = 0; i < 100; i++) {
			until(mode == 1, &endings[i]);
			assert_content(memory + MIB + i * 20000, 10000 + i, 3, 0);
		}
		close_store(store);
		for (unsigned i = 0; i < 100; i++)
			assert_int_equal(atomic_load(&endings[i].calls), 1);
	}
}

/* Each end begins the next: put, get, free, put, ... all from the done function. */
struct chain {
	spw_object object;
	unsigned links_left;
	bool reading;
	int error;
	struct ending ending;
};

static void chain_next(void *context, int result)
{
	struct chain *chain = context;
	struct spw_notify notify = {.done = chain_next, .context = chain};

	if (!result && chain->reading) {
		if (content_differs(memory + MIB, 70001, chain->links_left, 0) != 70001)
			result = -EBADMSG;
		if (!result)
			result = spw_store_free(store, chain->object);
		chain->links_left--;
	}
	if (result || chain->links_left == 0) {
		note_end(&chain->ending, result);
		return;
	}
	if (chain->reading) {
		content_fill(memory, 70001, chain->links_left);
		result = spw_store_put(store, memory, 70001, &notify, &chain->object, NULL);
	} else {
		result = spw_store_get(store, chain->object, 0, memory + MIB, 70001,
				       SPW_URGENT_READ, &notify, NULL);
	}
	chain->reading = !chain->reading;
	if (result)
		note_end(&chain->ending, result);
}

FORMATTED_CASE(test_notify_submits)
{
	struct spw_store_opts opts = default_opts();
	struct chain chain;

	for (unsigned mode = 0; mode < 2; mode++) {
		opts.inline_mode = mode == 1;
		opts.requests_max = 2; /* one is released as its end is told, one begins */
		chain = (struct chain){.links_left = 200};
		store = open_drives(4, &opts);
		content_fill(memory, 70001, chain.links_left);
		assert_ok(spw_store_put(store, memory, 70001,
					&(struct spw_notify){.done = chain_next, .context = &chain},
					&chain.object, NULL));
		until(mode == 1, &chain.ending);
		assert_int_equal(atomic_load(&chain.ending.result), 0);
		assert_int_equal(stats_of(store).used_bytes, 0);
		close_store(store);
	}
}

/* ---- All in use ---- */

static void *wait_for_request(void *result)
{
	*(int *)result = spw_store_wait_request(store, -1);
	return NULL;
}

FORMATTED_CASE(test_wait_for_a_free_request)
{
	struct spw_store_opts opts = default_opts();
	struct spw_request *request, *other;
	pthread_t thread;
	spw_object object;
	int result;

	opts.requests_max = 1;
	store = open_drives(4, &opts);
	object = put_wait(store, memory, MIB);
	assert_ok(spw_store_wait_request(store, 0));
	assert_ok(spw_store_get(store, object, 0, memory, MIB, SPW_PREFETCH, NULL, &request));
	assert_int_equal(spw_store_get(store, object, 0, memory, MIB, SPW_PREFETCH, NULL, &other),
			 -ENOBUFS);
	assert_int_equal(spw_store_wait_request(store, 1000000), -ETIMEDOUT);
	assert_ok(pthread_create(&thread, NULL, wait_for_request, &result));
	assert_ok(spw_request_wait(request));
	assert_ok(pthread_join(thread, NULL));
	assert_ok(result);
	assert_int_equal(stats_of(store).requests, 0);
	close_store(store);
}

/* Without an I/O thread: it does the work, and does not wait for what no thread will do. */
FORMATTED_CASE(test_wait_for_a_free_request_inline)
{
	struct spw_store_opts opts = default_opts();
	struct ending ending = {0};
	struct spw_request *request;
	spw_object object;

	opts.requests_max = 1;
	opts.inline_mode = true;
	store = open_drives(4, &opts);
	assert_ok(spw_store_put(store, memory, MIB,
				&(struct spw_notify){.done = note_end, .context = &ending}, &object,
				NULL));
	assert_ok(spw_store_wait_request(store, -1));
	assert_int_equal(atomic_load(&ending.result), 0);
	assert_ok(spw_store_get(store, object, 0, memory, MIB, SPW_PREFETCH, NULL, &request));
	assert_int_equal(spw_store_wait_request(store, -1), -ETIMEDOUT);
	assert_ok(spw_request_wait(request));
	close_store(store);
}

#define SHARERS 6u

static void *share(void *context)
{
	struct spw_request *request;

	(void)context;
	for (unsigned i = 0; i < 200; i++) {
		spw_object object;
		int rc;

		while ((rc = spw_store_put(store, memory, 4096, NULL, &object, &request)) ==
		       -ENOBUFS)
			if (spw_store_wait_request(store, -1))
				return store;
		if (rc || spw_request_wait(request) || spw_store_free(store, object))
			return store;
	}
	return NULL;
}

/* More threads than requests: each goes on in the end, as no wake-up is lost. */
FORMATTED_CASE(test_few_requests_of_many_threads)
{
	struct spw_store_opts opts = default_opts();
	pthread_t threads[SHARERS];
	void *failed;

	opts.requests_max = 2;
	store = open_drives(4, &opts);
	for (unsigned i = 0; i < SHARERS; i++)
		assert_ok(pthread_create(&threads[i], NULL, share, NULL));
	for (unsigned i = 0; i < SHARERS; i++) {
		assert_ok(pthread_join(threads[i], &failed));
		assert_null(failed);
	}
	close_store(store);
}

/* ---- Cancel ---------------------------------------------------------------------------------- */

/* Against the worker thread: whatever cancel says is how it ends. */
OPEN_CASE(test_cancel_races)
{
	enum { COUNT = 64 };
	struct spw_request *requests[COUNT];
	spw_object objects[COUNT];
	unsigned cancelled = 0;
	int results[COUNT];

	for (unsigned i = 0; i < COUNT; i++)
		content_fill(memory + i * 2 * MIB, 2 * MIB, i);
	for (unsigned round = 0; round < 4; round++) {
		for (unsigned i = 0; i < COUNT; i++)
			assert_ok(spw_store_put(store, memory + i * 2 * MIB, 2 * MIB, NULL,
						&objects[i], &requests[i]));
		for (unsigned i = COUNT; i-- > 0;) {
			results[i] = spw_request_cancel(requests[i]);
			assert_true(results[i] == 0 || results[i] == -EALREADY);
			cancelled += results[i] == 0;
		}
		for (unsigned i = 0; i < COUNT; i++)
			assert_int_equal(spw_request_wait(requests[i]),
					 results[i] == 0 ? -ECANCELED : 0);
		for (unsigned i = 0; i < COUNT; i++) {
			if (results[i])
				get_check(store, objects[i], 0, memory + COUNT * 2 * MIB, 2 * MIB,
					  i);
			assert_ok(spw_store_free(store, objects[i]));
		}
		assert_int_equal(stats_of(store).used_bytes, 0);
	}
	assert_int_equal(stats_of(store).cancelled, cancelled);
	assert_true(cancelled > 0);
}

OPEN_CASE(test_cancel_after_end)
{
	struct spw_request *request;
	spw_object object;

	assert_ok(spw_store_put(store, memory, MIB, NULL, &object, &request));
	while (stats_of(store).puts == 0)
		continue;
	assert_int_equal(spw_request_cancel(request), -EALREADY);
	assert_ok(spw_request_wait(request));
}

/* ---- Close ----------------------------------------------------------------------------------- */

static void close_in_flight(bool inline_mode, unsigned polls)
{
	enum { COUNT = 48 };
	static struct ending endings[2 * COUNT];
	struct spw_notify notify = {.done = note_end};
	uint8_t *from = malloc(COUNT * (size_t)MIB), *to = malloc(COUNT * (size_t)MIB);
	struct spw_request *unwaited;
	spw_object stored, object;

	assert_true(from && to);
	store = open_mode(inline_mode);
	memset(endings, 0, sizeof(endings));
	content_fill(from, COUNT * (size_t)MIB, 2);
	stored = put_wait(store, from, MIB);
	for (unsigned i = 0; i < COUNT; i++) {
		notify.context = &endings[2 * i];
		assert_ok(spw_store_put(store, from + i * MIB, MIB - 3, &notify, &object, NULL));
		notify.context = &endings[2 * i + 1];
		assert_ok(spw_store_get(store, stored, 0, to + i * MIB, MIB, SPW_PREFETCH, &notify,
					NULL));
	}
	assert_ok(spw_store_put(store, from, MIB, NULL, &object, &unwaited));
	while (polls-- > 0)
		(void)spw_store_poll(store, false);
	close_store(store);
	free(from); /* nothing reads or writes them any more */
	free(to);
	for (unsigned i = 0; i < 2 * COUNT; i++) {
		assert_int_equal(atomic_load(&endings[i].calls), 1);
		assert_true(atomic_load(&endings[i].result) == 0 ||
			    atomic_load(&endings[i].result) == -ECANCELED);
	}
}

FORMATTED_CASE(test_close_in_flight)
{
	for (unsigned round = 0; round < 5; round++) {
		close_in_flight(false, 0);
		close_in_flight(true, round);
	}
	store = open_mode(false); /* and the drives are free again */
	assert_int_equal(stats_of(store).objects, 0);
	assert_int_equal(stats_of(store).used_bytes, 0);
}

/* Nothing survives close: an id from before does not name an object now. */
FORMATTED_CASE(test_nothing_survives_close)
{
	spw_object object;
	int result;

	store = open_mode(false);
	content_fill(memory, MIB, 1);
	object = put_wait(store, memory, MIB);
	close_store(store);
	store = open_mode(false);
	result = get_wait(store, object, 0, memory, MIB);
	assert_int_equal(result, -ENOENT);
}

RUN_CASES(drives_from_environment, NULL)
