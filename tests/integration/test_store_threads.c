/* SPDX-License-Identifier: MIT */
/*
 * tests/integration/test_store_threads.c - one store, 64 threads: each object's content is its own,
 * whichever thread reads it, and when
 */
/* layer: test and files-workers */
#include "tests/integration/test_store.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

#define THREADS      64
#define SLOTS        48 /* objects that the threads share */
#define IN_FLIGHT    3  /* requests that a thread leaves open */
#define OBJECT_BYTES (600u * 1024)
#define BUFFER_BYTES (OBJECT_BYTES + 4096)
#define RUN_SECONDS  3

/* An object that any thread may read, free, or replace. */
struct slot {
	pthread_mutex_t lock;
	spw_object object; /* value 0: none */
	uint64_t seed;
	size_t len;
};

/* A request of a thread, with what is expected of it. */
struct flight {
	struct spw_request *request; /* NULL: none */
	uint8_t *bytes;
	bool is_put, cancelled;
	spw_object object;
	uint64_t seed, offset;
	size_t len;
};

struct worker {
	pthread_t thread;
	unsigned index;
	uint64_t random;
	struct flight flights[IN_FLIGHT];
	uint8_t *memory;
};

static struct spw_store *store;
static struct slot slots[SLOTS] = {[0 ... SLOTS - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}};
static struct worker workers[THREADS];
static _Atomic bool failed;
static _Atomic uint64_t next_seed;
static uint64_t end_ns;
static struct {
	_Atomic uint64_t puts, gets, frees, cancelled, refused, gone;
} counted; /* by all threads */

/* In no order, which would hide races. */
#define count(what, by) (void)atomic_fetch_add_explicit(&counted.what, (by), memory_order_relaxed)

/* cmocka's asserts are for its own thread: the first failure is noted, and all threads end. */
#define check(worker, condition)                                                                \
	do {                                                                                    \
		if (!(condition) && !atomic_exchange(&failed, true))                            \
			print_error("thread %u, line %d: %s (%s)\n", (worker)->index, __LINE__, \
				    #condition, spw_last_error());                              \
	} while (0)

static uint64_t now_ns(void)
{
	struct timespec now;

	(void)clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* ---- Ends ------------------------------------------------------------------------------------ */

/* A put that has ended is shared if its slot is empty; otherwise, or if it failed, it is freed. */
static void share(struct worker *worker, const struct flight *flight, int result)
{
	struct slot *slot = &slots[random_below(&worker->random, SLOTS)];
	bool shared = false;

	if (result == 0) {
		(void)pthread_mutex_lock(&slot->lock);
		shared = slot->object.value == 0;
		if (shared) {
			slot->object = flight->object;
			slot->seed = flight->seed;
			slot->len = flight->len;
		}
		(void)pthread_mutex_unlock(&slot->lock);
	}
	if (!shared) {
		check(worker, spw_store_free(store, flight->object) == 0);
		check(worker, spw_store_free(store, flight->object) == -ENOENT);
		count(frees, 1);
	}
}

static void finish(struct worker *worker, struct flight *flight)
{
	int result = -EINPROGRESS;

	if (!flight->request)
		return;
	if (random_below(&worker->random, 2))
		result = spw_request_test(flight->request);
	if (result == -EINPROGRESS)
		result = spw_request_wait(flight->request);
	flight->request = NULL;
	check(worker, result == (flight->cancelled ? -ECANCELED : 0));
	count(cancelled, result == -ECANCELED);
	if (flight->is_put)
		share(worker, flight, result);
	else if (result == 0)
		check(worker, content_differs(flight->bytes, flight->len, flight->seed,
					      flight->offset) == flight->len);
}

/* ---- Operations ------------------------------------------------------------------------------ */

static void maybe_cancel(struct worker *worker, struct flight *flight)
{
	int result;

	flight->cancelled = false;
	if (random_below(&worker->random, 8))
		return;
	result = spw_request_cancel(flight->request);
	check(worker, result == 0 || result == -EALREADY);
	flight->cancelled = result == 0;
}

static void begin_put(struct worker *worker, struct flight *flight)
{
	int result;

	flight->is_put = true;
	flight->seed = atomic_fetch_add(&next_seed, 1);
	flight->len = 1 + random_below(&worker->random,
				       UINT64_C(1) << (1 + random_below(&worker->random, 20)));
	flight->len = flight->len > OBJECT_BYTES ? OBJECT_BYTES : flight->len;
	content_fill(flight->bytes, flight->len, flight->seed);
	result = spw_store_put(store, flight->bytes, flight->len, NULL, &flight->object,
			       &flight->request);
	check(worker, result == 0 || result == -ENOSPC || result == -ENOBUFS);
	count(puts, result == 0);
	count(refused, result != 0);
	if (result == 0)
		maybe_cancel(worker, flight);
}

static void begin_get(struct worker *worker, struct flight *flight)
{
	struct slot *slot = &slots[random_below(&worker->random, SLOTS)];
	enum spw_class cls = (enum spw_class)random_below(&worker->random, SPW_CLASSES);
	struct slot seen;
	int result;

	(void)pthread_mutex_lock(&slot->lock);
	seen.object = slot->object;
	seen.seed = slot->seed;
	seen.len = slot->len;
	(void)pthread_mutex_unlock(&slot->lock);
	if (seen.object.value == 0)
		return;
	flight->is_put = false;
	flight->seed = seen.seed;
	flight->offset =
		random_below(&worker->random, 3) ? random_below(&worker->random, seen.len) : 0;
	flight->len = 1 + random_below(&worker->random, seen.len - flight->offset);
	memset(flight->bytes, 0xA5, flight->len);
	/* Another thread may have freed it by now; never may it be another object. */
	result = spw_store_get(store, seen.object, flight->offset, flight->bytes, flight->len, cls,
			       NULL, &flight->request);
	check(worker, result == 0 || result == -ENOENT || result == -ENOBUFS);
	count(gets, result == 0);
	count(gone, result == -ENOENT);
	if (result)
		return;
	maybe_cancel(worker, flight);
	if (random_below(&worker->random, 4) == 0)
		spw_request_raise(flight->request, SPW_URGENT_READ);
}

static void free_one(struct worker *worker)
{
	struct slot *slot = &slots[random_below(&worker->random, SLOTS)];
	spw_object object;

	(void)pthread_mutex_lock(&slot->lock);
	object = slot->object;
	slot->object.value = 0;
	(void)pthread_mutex_unlock(&slot->lock);
	if (object.value == 0)
		return;
	check(worker, spw_store_free(store, object) == 0);
	count(frees, 1);
}

static void *work(void *context)
{
	struct worker *worker = context;

	while (!atomic_load(&failed) && now_ns() < end_ns) {
		struct flight *flight = &worker->flights[random_below(&worker->random, IN_FLIGHT)];

		finish(worker, flight);
		switch (random_below(&worker->random, 8)) {
		case 0:
		case 1: free_one(worker); break;
		case 2:
		case 3:
		case 4: begin_put(worker, flight); break;
		default: begin_get(worker, flight); break;
		}
	}
	for (unsigned i = 0; i < IN_FLIGHT; i++)
		finish(worker, &worker->flights[i]);
	return NULL;
}

/* ---- The test -------------------------------------------------------------------------------- */

static void begin_worker(unsigned index, uint64_t seed)
{
	struct worker *worker = &workers[index];

	*worker = (struct worker){.index = index, .random = random_mix(seed + index)};
	worker->memory = aligned_alloc(4096, IN_FLIGHT * (size_t)BUFFER_BYTES);
	assert_non_null(worker->memory);
	for (unsigned i = 0; i < IN_FLIGHT; i++) /* half of the buffers at odd addresses */
		worker->flights[i].bytes = worker->memory + i * BUFFER_BYTES + i % 2 * (i + 16);
	assert_int_equal(pthread_create(&worker->thread, NULL, work, worker), 0);
}

static void free_what_is_left(void)
{
	for (unsigned i = 0; i < SLOTS; i++) {
		if (slots[i].object.value)
			assert_ok(spw_store_free(store, slots[i].object));
		slots[i].object.value = 0;
	}
}

static void run(const struct spw_store_opts *opts, uint64_t seed)
{
	struct spw_store_stats stats;

	memset(&counted, 0, sizeof(counted));
	store = open_drives(4, opts);
	end_ns = now_ns() + RUN_SECONDS * UINT64_C(1000000000);
	for (unsigned i = 0; i < THREADS; i++)
		begin_worker(i, seed);
	for (unsigned i = 0; i < THREADS; i++) {
		assert_int_equal(pthread_join(workers[i].thread, NULL), 0);
		free(workers[i].memory);
	}
	assert_false(atomic_load(&failed));
	print_message("%" PRIu64 " puts, %" PRIu64 " gets, %" PRIu64 " frees, %" PRIu64
		      " cancelled, %" PRIu64 " refused, %" PRIu64 " too late\n",
		      counted.puts, counted.gets, counted.frees, counted.cancelled, counted.refused,
		      counted.gone);
	assert_true(counted.puts > 0 && counted.gets > 0 && counted.frees > 0);
	stats = stats_of(store);
	assert_int_equal(stats.requests, 0);
	assert_int_equal(stats.puts, counted.puts);
	assert_int_equal(stats.gets, counted.gets);
	assert_int_equal(stats.cancelled, counted.cancelled);
	free_what_is_left();
	assert_int_equal(stats_of(store).used_bytes, 0);
	close_store(store);
}

STORE_CASE(test_threads)
{
	struct spw_store_opts opts = default_opts();

	format_drives(4, 1, 0);
	run(&opts, random_seed());
}

/* Space, requests, copy memory and room on the drives run out all the time. */
STORE_CASE(test_threads_in_want)
{
	struct spw_store_opts opts = default_opts();

	(void)format_small(12 * MIB, SPW_CHUNK_BYTES_MIN);
	opts.queue_depth = 2;
	opts.requests_max = THREADS * IN_FLIGHT - 16;
	opts.objects_max = SLOTS + 16;
	opts.arena_bytes = 4 * MIB;
	run(&opts, random_seed());
}

RUN_CASES(drives_from_environment, NULL)
