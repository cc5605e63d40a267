/* SPDX-License-Identifier: MIT */
/*
 * tests/integration/test_store_requests.c - how requests end: waited for, tested, notified,
 * cancelled, raised, cut off by close
 */
#include "tests/integration/test_store.h"

#include <stdatomic.h>
#include <stdbool.h>

static uint8_t *memory;
static const size_t memory_bytes = (size_t)192 * MIB;

static int setup(void **state)
{
	memory = malloc(memory_bytes);
	if (!memory)
		quit("no memory for the test's buffers");
	return drives_from_environment(state);
}

static int teardown(void **state)
{
	(void)state;
	free(memory);
	return 0;
}

static struct spw_store *open_mode(bool inline_mode)
{
	struct spw_store_opts opts = default_opts();

	opts.inline_mode = inline_mode;
	return open_drives(4, &opts);
}

/* ---- Test ------------------------------------------------------------------------------------ */

static void test_request_test(void **state)
{
	struct spw_request *requests[20];
	spw_object objects[20];
	struct spw_store *store;
	unsigned left;
	int result;

	(void)state;
	format_drives(4, 1, 0);
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
 * before, and thus just when it goes back to sleep. Whoever loses a wake then hangs here.
 */
static void test_no_wake_is_lost(void **state)
{
	struct spw_store_opts opts = default_opts();
	struct spw_request *request;
	struct spw_store *store;
	spw_object object;
	int result;

	(void)state;
	format_drives(4, 1, 0);
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
	close_store(store);
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
static void until(struct spw_store *store, bool inline_mode, struct ending *ending)
{
	while (atomic_load(&ending->calls) == 0)
		if (inline_mode)
			(void)spw_store_poll(store, true);
}

static void test_notify_once(void **state)
{
	static struct ending endings[100];
	struct spw_notify notify = {.done = note_end};
	static spw_object objects[100];
	struct spw_store *store;

	(void)state;
	format_drives(4, 1, 0);
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
			until(store, mode == 1, &endings[i]);
		for (unsigned i = 0; i < 100; i++) {
			assert_int_equal(atomic_load(&endings[i].result), 0);
			memset(&endings[i], 0, sizeof(endings[i]));
			notify.context = &endings[i];
			assert_ok(spw_store_get(store, objects[i], 0, memory + MIB + i * 20000,
						10000 + i, SPW_PREFETCH, &notify, NULL));
		}
		for (unsigned i = 0; i < 100; i++) {
			until(store, mode == 1, &endings[i]);
			assert_content(memory + MIB + i * 20000, 10000 + i, 3, 0);
		}
		close_store(store);
		for (unsigned i = 0; i < 100; i++)
			assert_int_equal(atomic_load(&endings[i].calls), 1);
	}
}

/* Each end begins the next: put, get, free, put, ... all from the done function. */
struct chain {
	struct spw_store *store;
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
			result = spw_store_free(chain->store, chain->object);
		chain->links_left--;
	}
	if (result || chain->links_left == 0) {
		note_end(&chain->ending, result);
		return;
	}
	if (chain->reading) {
		content_fill(memory, 70001, chain->links_left);
		result = spw_store_put(chain->store, memory, 70001, &notify, &chain->object, NULL);
	} else {
		result = spw_store_get(chain->store, chain->object, 0, memory + MIB, 70001,
				       SPW_URGENT_READ, &notify, NULL);
	}
	chain->reading = !chain->reading;
	if (result)
		note_end(&chain->ending, result);
}

static void test_notify_submits(void **state)
{
	struct spw_store_opts opts = default_opts();
	struct chain chain;

	(void)state;
	format_drives(4, 1, 0);
	for (unsigned mode = 0; mode < 2; mode++) {
		opts.inline_mode = mode == 1;
		opts.requests_max = 2; /* one is released as its end is told, one begins */
		chain = (struct chain){.links_left = 200};
		chain.store = open_drives(4, &opts);
		content_fill(memory, 70001, chain.links_left);
		assert_ok(spw_store_put(chain.store, memory, 70001,
					&(struct spw_notify){.done = chain_next, .context = &chain},
					&chain.object, NULL));
		until(chain.store, mode == 1, &chain.ending);
		assert_int_equal(atomic_load(&chain.ending.result), 0);
		assert_int_equal(stats_of(chain.store).used_bytes, 0);
		close_store(chain.store);
	}
}

/* ---- Cancel ---------------------------------------------------------------------------------- */

/*
 * Inline mode: nothing is issued before the first poll, so what is cancelled before it never
 * touches a drive.
 */
static void test_cancel_before_issue(void **state)
{
	struct spw_store *store;
	struct spw_request *put, *get;
	struct spw_store_stats stats;
	spw_object object, stored;

	(void)state;
	format_drives(4, 1, 0);
	store = open_mode(true);
	content_fill(memory, MIB, 1);
	stored = put_wait(store, memory, MIB);
	stats = stats_of(store);

	assert_ok(spw_store_put(store, memory, 10 * MIB, NULL, &object, &put));
	assert_ok(spw_store_get(store, stored, 0, memory + MIB, MIB, SPW_PREFETCH, NULL, &get));
	assert_int_equal(spw_request_cancel(put), 0);
	assert_int_equal(spw_request_cancel(get), 0);
	assert_true(spw_request_cancel(put) <= 0); /* twice does no harm */
	assert_int_equal(spw_request_wait(put), -ECANCELED);
	assert_int_equal(spw_request_wait(get), -ECANCELED);
	assert_int_equal(stats_of(store).bytes_written, stats.bytes_written);
	assert_int_equal(stats_of(store).bytes_read, stats.bytes_read);
	assert_int_equal(stats_of(store).cancelled, 2);

	assert_true(get_wait(store, object, 0, memory + MIB, 1) < 0); /* never stored */
	assert_ok(spw_store_free(store, object));                     /* but has to be freed */
	assert_int_equal(spw_store_free(store, object), -ENOENT);
	assert_int_equal(stats_of(store).used_bytes, MIB);
	get_check(store, stored, 0, memory + MIB, MIB, 1);

	/* A get of what is cancelled ends with an error, never with other bytes. */
	assert_ok(spw_store_put(store, memory, 10 * MIB, NULL, &object, &put));
	assert_ok(spw_store_get(store, object, 0, memory + MIB, MIB, SPW_PREFETCH, NULL, &get));
	if (spw_request_cancel(put) == 0) {
		int result = spw_request_wait(get);

		assert_true(result < 0 || content_differs(memory + MIB, MIB, 1, 0) == MIB);
		assert_int_equal(spw_request_wait(put), -ECANCELED);
	}
	assert_ok(spw_store_free(store, object));
	assert_int_equal(stats_of(store).used_bytes, MIB);
	close_store(store);
}

/* Against the worker thread: whatever cancel says is how it ends. */
static void test_cancel_races(void **state)
{
	enum { COUNT = 64 };
	struct spw_request *requests[COUNT];
	spw_object objects[COUNT];
	unsigned cancelled = 0;
	struct spw_store *store;
	int results[COUNT];

	(void)state;
	format_drives(4, 1, 0);
	store = open_mode(false);
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
	close_store(store);
}

static void test_cancel_after_end(void **state)
{
	struct spw_request *request;
	struct spw_store *store;
	spw_object object;

	(void)state;
	format_drives(4, 1, 0);
	store = open_mode(false);
	assert_ok(spw_store_put(store, memory, MIB, NULL, &object, &request));
	while (stats_of(store).puts == 0)
		continue;
	assert_int_equal(spw_request_cancel(request), -EALREADY);
	assert_ok(spw_request_wait(request));

	/* With notify: cancelled, and told so. */
	struct ending ending = {0};
	struct spw_notify notify = {.done = note_end, .context = &ending};
	close_store(store);
	store = open_mode(true);
	assert_ok(spw_store_put(store, memory, MIB, &notify, &object, &request));
	assert_int_equal(spw_request_cancel(request), 0);
	until(store, true, &ending);
	assert_int_equal(atomic_load(&ending.result), -ECANCELED);
	close_store(store);
	assert_int_equal(atomic_load(&ending.calls), 1);
}

/* ---- Classes --------------------------------------------------------------------------------- */

/* Of many reads that wait, one is raised: it overtakes, and all are right. */
static void test_raise(void **state)
{
	enum { COUNT = 64 };
	struct spw_store_opts opts = default_opts();
	static struct ending endings[COUNT];
	struct spw_request *raised = NULL;
	struct spw_notify notify = {.done = note_end};
	unsigned ended_before = 0;
	struct spw_store *store;
	spw_object object;

	(void)state;
	format_drives(4, 1, 0);
	opts.inline_mode = true;
	opts.queue_depth = 1;
	store = open_drives(4, &opts);
	content_fill(memory, MIB, 1);
	object = put_wait(store, memory, MIB);
	for (unsigned i = 0; i < COUNT; i++) {
		notify.context = &endings[i];
		assert_ok(spw_store_get(store, object, 0, memory + (1 + i) * MIB, MIB,
					SPW_BACKGROUND, &notify, i == COUNT - 1 ? &raised : NULL));
	}
	spw_request_raise(raised, SPW_URGENT_READ);
	until(store, true, &endings[COUNT - 1]);
	for (unsigned i = 0; i < COUNT; i++)
		ended_before += atomic_load(&endings[i].calls);
	assert_true(ended_before < COUNT / 2); /* not all the others came first */
	for (unsigned i = 0; i < COUNT; i++) {
		until(store, true, &endings[i]);
		assert_int_equal(atomic_load(&endings[i].result), 0);
		assert_content(memory + (1 + i) * MIB, MIB, 1, 0);
	}
	close_store(store);
}

/* ---- Close ----------------------------------------------------------------------------------- */

static void close_in_flight(bool inline_mode, unsigned polls)
{
	enum { COUNT = 48 };
	static struct ending endings[2 * COUNT];
	struct spw_notify notify = {.done = note_end};
	uint8_t *from = malloc(COUNT * (size_t)MIB), *to = malloc(COUNT * (size_t)MIB);
	struct spw_store *store = open_mode(inline_mode);
	struct spw_request *unwaited;
	spw_object stored, object;

	assert_true(from && to);
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

static void test_close_in_flight(void **state)
{
	struct spw_store *store;

	(void)state;
	format_drives(4, 1, 0);
	for (unsigned round = 0; round < 5; round++) {
		close_in_flight(false, 0);
		close_in_flight(true, round);
	}
	store = open_mode(false); /* and the drives are free again */
	assert_int_equal(stats_of(store).objects, 0);
	assert_int_equal(stats_of(store).used_bytes, 0);
	close_store(store);
}

/* Nothing survives close: an id of before is no object of now. */
static void test_nothing_survives_close(void **state)
{
	struct spw_store *store;
	spw_object object;
	int result;

	(void)state;
	format_drives(4, 1, 0);
	store = open_mode(false);
	content_fill(memory, MIB, 1);
	object = put_wait(store, memory, MIB);
	close_store(store);
	store = open_mode(false);
	result = get_wait(store, object, 0, memory, MIB);
	assert_int_equal(result, -ENOENT);
	close_store(store);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		test_case(test_request_test),        test_case(test_no_wake_is_lost),
		test_case(test_notify_once),         test_case(test_notify_submits),
		test_case(test_cancel_before_issue), test_case(test_cancel_races),
		test_case(test_cancel_after_end),    test_case(test_raise),
		test_case(test_close_in_flight),     test_case(test_nothing_survives_close),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
