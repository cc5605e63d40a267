/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/cache_fake.h - a store for the cache's tests: in memory, and every request ends when
 * the test says so, as it says
 *
 * It defines what the cache calls of the store, so that a test program links no real one. It is
 * stricter than the real one: it checks that an object is freed when no request is on it, that
 * never two reads of one object are in flight, and that nothing is left at the end. A write copies
 * the bytes when it ends, not when it begins: memory that changed or was freed too early shows.
 */
#ifndef SPW_TEST_CACHE_FAKE_H
#define SPW_TEST_CACHE_FAKE_H

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <spillway/store.h>

#include "util/util.h"

#ifndef FAKE_OBJECTS /* a test that makes many stores wants small ones */
#define FAKE_OBJECTS  8192
#define FAKE_REQUESTS 512
#endif
#define FAKE_WORDS "drive 2 gave up"

enum fake_kind {
	FAKE_WRITE,
	FAKE_READ,
};

enum fake_state {
	FAKE_UNUSED,
	FAKE_QUEUED,
	FAKE_ISSUED,
	FAKE_CANCELLED,
	FAKE_ENDING, /* its done function runs, or its waiter has not seen it yet */
};

struct spw_request {
	struct spw_store *store;
	enum fake_kind kind;
	enum fake_state state;
	uint64_t sequence;
	struct fake_object *object;
	uint8_t *into;
	const uint8_t *from;
	size_t len;
	uint64_t offset;
	enum spw_class cls;
	bool raised;
	struct spw_notify notify;
	int res;
	/* of cache_sim.h */
	bool seen;
	uint64_t ready_ns;
	double remaining;
};

struct fake_object {
	uint64_t generation;
	bool exists;
	uint8_t *data; /* NULL: not written */
	size_t len;
	unsigned writes, reads;
};

struct spw_store {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct fake_object objects[FAKE_OBJECTS];
	struct spw_request requests[FAKE_REQUESTS];
	unsigned requests_max, requests_used, objects_used;
	uint64_t sequence;
	uint64_t capacity, used;    /* bytes of objects */
	uint64_t arena, arena_used; /* bytes of memory */
	int put_error;              /* of the next put, then 0 */
	int wait_res;               /* how a read ends that is waited for */
	bool no_checksums;          /* nothing can be compared */
	bool wait_for_test;         /* ... but only when the test ends it */
	unsigned urgent_refused;    /* gets refused for want of a request */
	unsigned puts, gets, cancels, raises;
	/* Ends a read that is waited for, in time; NULL: at once. */
	void (*serve)(struct spw_store *store, struct spw_request *request);
};

static struct spw_store *fake_open(void)
{
	struct spw_store *store = calloc(1, sizeof(*store));

	SPW_ASSERT(store);
	SPW_ASSERT(pthread_mutex_init(&store->lock, NULL) == 0 &&
		   pthread_cond_init(&store->changed, NULL) == 0);
	store->requests_max = FAKE_REQUESTS;
	store->capacity = store->arena = UINT64_MAX;
	return store;
}

/* Nothing may be left. */
static void fake_close(struct spw_store *store)
{
	SPW_ASSERT(store->requests_used == 0 && store->objects_used == 0);
	SPW_ASSERT(store->used == 0 && store->arena_used == 0);
	SPW_ASSERT(pthread_cond_destroy(&store->changed) == 0 &&
		   pthread_mutex_destroy(&store->lock) == 0);
	free(store);
}

static void fake_lock(struct spw_store *store)
{
	SPW_ASSERT(pthread_mutex_lock(&store->lock) == 0);
}

static void fake_unlock(struct spw_store *store)
{
	SPW_ASSERT(pthread_cond_broadcast(&store->changed) == 0);
	SPW_ASSERT(pthread_mutex_unlock(&store->lock) == 0);
}

static struct spw_request *fake_request(struct spw_store *store, enum fake_kind kind,
					const struct spw_notify *notify)
{
	struct spw_request *request = store->requests;

	if (store->requests_used == store->requests_max)
		return NULL;
	while (request->state != FAKE_UNUSED)
		request++;
	*request = (struct spw_request){.store = store, .kind = kind, .state = FAKE_QUEUED};
	request->sequence = ++store->sequence;
	if (notify)
		request->notify = *notify;
	store->requests_used++;
	return request;
}

static struct fake_object *fake_object(struct spw_store *store, spw_object id)
{
	struct fake_object *object = &store->objects[(uint32_t)id.value % FAKE_OBJECTS];

	return object->exists && object->generation == id.value >> 32 ? object : NULL;
}

/* ---- What the cache calls ---- */

int spw_store_put(struct spw_store *store, const void *bytes, size_t len,
		  const struct spw_notify *notify, spw_object *id, struct spw_request **out)
{
	struct fake_object *object = store->objects;
	struct spw_request *request = NULL;
	int rc;

	fake_lock(store);
	rc = store->put_error;
	store->put_error = 0;
	if (!rc && len > store->capacity - store->used)
		rc = -ENOSPC;
	if (!rc) {
		request = fake_request(store, FAKE_WRITE, notify);
		rc = request ? 0 : -ENOBUFS;
	}
	if (!rc) {
		while (object->exists)
			object++;
		object->exists = true;
		object->generation++;
		object->len = len;
		object->writes = 1;
		store->used += len;
		store->objects_used++;
		store->puts++;
		*id = (spw_object){object->generation << 32 | (uint32_t)(object - store->objects)};
		request->object = object;
		request->from = bytes;
		request->len = len;
		request->cls = SPW_BACKGROUND;
		*out = request;
	}
	fake_unlock(store);
	return rc ? spw_error(rc, FAKE_WORDS) : 0;
}

int spw_store_get(struct spw_store *store, spw_object id, uint64_t offset, void *bytes, size_t len,
		  enum spw_class cls, const struct spw_notify *notify, struct spw_request **out)
{
	struct fake_object *object;
	struct spw_request *request;

	fake_lock(store);
	object = fake_object(store, id);
	SPW_ASSERT(object && object->reads == 0 && offset + len <= object->len);
	request = fake_request(store, FAKE_READ, notify);
	if (request) {
		request->object = object;
		request->into = bytes;
		request->offset = offset;
		request->len = len;
		request->cls = cls;
		object->reads++;
		store->gets++;
		*out = request;
	} else if (cls == SPW_URGENT_READ) {
		store->urgent_refused++;
	}
	fake_unlock(store);
	return request ? 0 : spw_error(-ENOBUFS, "no request");
}

int spw_store_free(struct spw_store *store, spw_object id)
{
	struct fake_object *object;

	fake_lock(store);
	object = fake_object(store, id);
	SPW_ASSERT(object && object->writes == 0 && object->reads == 0);
	free(object->data);
	object->data = NULL;
	object->exists = false;
	store->used -= object->len;
	store->objects_used--;
	fake_unlock(store);
	return 0;
}

int spw_store_holds(struct spw_store *store, spw_object id, const void *bytes, uint64_t offset,
		    size_t len)
{
	struct fake_object *object;
	int rc;

	fake_lock(store);
	object = fake_object(store, id);
	SPW_ASSERT(!object || offset + len <= object->len);
	if (!object)
		rc = -ENOENT;
	else if (store->no_checksums)
		rc = -EOPNOTSUPP;
	else if (object->writes > 0)
		rc = -EINPROGRESS;
	else if (!object->data)
		rc = -EIO;
	else
		rc = memcmp((const uint8_t *)bytes + offset, object->data + offset, len) == 0;
	fake_unlock(store);
	return rc;
}

/* The length lies in front of the memory. */
int spw_store_alloc(struct spw_store *store, size_t len, void **memory)
{
	uint8_t *block = NULL;

	fake_lock(store);
	if (len <= store->arena - store->arena_used) {
		block = aligned_alloc(64, (size_t)spw_round_up(len, 64) + 64);
		SPW_ASSERT(block);
		memcpy(block, &len, sizeof(len));
		store->arena_used += len;
	}
	fake_unlock(store);
	if (!block)
		return spw_error(-ENOBUFS, "the arena is full");
	*memory = block + 64;
	return 0;
}

void spw_store_release(struct spw_store *store, void *memory)
{
	uint8_t *block = (uint8_t *)memory - 64;
	size_t len;

	memcpy(&len, block, sizeof(len));
	fake_lock(store);
	store->arena_used -= len;
	fake_unlock(store);
	memset(memory, 0xdd, len);
	free(block);
}

void spw_store_stats(struct spw_store *store, struct spw_store_stats *stats, size_t size)
{
	(void)store;
	SPW_ASSERT(size == sizeof(*stats));
	*stats = (struct spw_store_stats){.size = size, .drives = 1};
}

uint64_t spw_store_chunk_bytes(const struct spw_store *store)
{
	(void)store;
	return 1024;
}

int spw_request_cancel(struct spw_request *request)
{
	struct spw_store *store = request->store;
	int rc = -EALREADY;

	fake_lock(store);
	SPW_ASSERT(request->state != FAKE_UNUSED);
	if (request->state == FAKE_QUEUED) {
		request->state = FAKE_CANCELLED;
		store->cancels++;
		rc = 0;
	}
	fake_unlock(store);
	return rc;
}

void spw_request_raise(struct spw_request *request, enum spw_class cls)
{
	struct spw_store *store = request->store;

	fake_lock(store);
	SPW_ASSERT(request->state != FAKE_UNUSED && request->kind == FAKE_READ);
	if (cls < request->cls)
		request->cls = cls;
	request->raised = true;
	store->raises++;
	fake_unlock(store);
}

/* ---- What the test calls ---- */

/*
 * The @index-th of the requests of a kind that have not ended, the oldest first; NULL: so many are
 * not there.
 */
static struct spw_request *fake_pending_locked(struct spw_store *store, enum fake_kind kind,
					       unsigned index)
{
	uint64_t after = 0;

	for (;;) {
		struct spw_request *oldest = NULL;

		for (unsigned i = 0; i < FAKE_REQUESTS; i++) {
			struct spw_request *request = &store->requests[i];

			if (request->state != FAKE_UNUSED && request->state != FAKE_ENDING &&
			    request->kind == kind && request->sequence > after &&
			    (!oldest || request->sequence < oldest->sequence))
				oldest = request;
		}
		if (!oldest || index-- == 0)
			return oldest;
		after = oldest->sequence;
	}
}

__attribute__((unused)) static struct spw_request *fake_pending(struct spw_store *store,
								enum fake_kind kind, unsigned index)
{
	struct spw_request *request;

	fake_lock(store);
	request = fake_pending_locked(store, kind, index);
	fake_unlock(store);
	return request;
}

/* From here on it cannot be cancelled. */
static void fake_issue(struct spw_request *request)
{
	fake_lock(request->store);
	if (request->state == FAKE_QUEUED)
		request->state = FAKE_ISSUED;
	fake_unlock(request->store);
}

/* The drives have the bytes already, though the write goes on. */
__attribute__((unused)) static void fake_copy(struct spw_request *request)
{
	fake_issue(request);
	SPW_ASSERT(request->kind == FAKE_WRITE && !request->object->data);
	request->object->data = malloc(request->len);
	SPW_ASSERT(request->object->data);
	memcpy(request->object->data, request->from, request->len);
}

static int fake_transfer(struct spw_request *request, int res)
{
	struct fake_object *object = request->object;

	if (request->state == FAKE_CANCELLED)
		res = -ECANCELED;
	if (request->kind == FAKE_WRITE) {
		object->writes--;
		if (res == 0 && !object->data) {
			object->data = malloc(request->len);
			SPW_ASSERT(object->data);
			memcpy(object->data, request->from, request->len);
		}
		return res;
	}
	object->reads--;
	SPW_ASSERT(object->data);
	if (res == 0)
		memcpy(request->into, object->data + request->offset, request->len);
	else
		memset(request->into, 0xee, request->len);
	return res;
}

/*
 * End it. Without a notify its waiter releases it, else it is released when its done function has
 * returned.
 */
static void fake_end(struct spw_request *request, int res)
{
	struct spw_store *store = request->store;
	struct spw_notify notify;

	fake_lock(store);
	SPW_ASSERT(request->state != FAKE_UNUSED && request->state != FAKE_ENDING);
	res = fake_transfer(request, res);
	request->res = res;
	request->state = FAKE_ENDING;
	notify = request->notify;
	fake_unlock(store);
	if (!notify.done)
		return;
	if (res)
		(void)spw_error(res, FAKE_WORDS);
	notify.done(notify.context, res);
	fake_lock(store);
	request->state = FAKE_UNUSED;
	store->requests_used--;
	fake_unlock(store);
}

/* End the oldest one of a kind. */
__attribute__((unused)) static void fake_end_oldest(struct spw_store *store, enum fake_kind kind,
						    int res)
{
	struct spw_request *request = fake_pending(store, kind, 0);

	SPW_ASSERT(request);
	fake_issue(request);
	fake_end(request, res);
}

/* What ends may make room for what begins then. */
__attribute__((unused)) static void fake_end_all(struct spw_store *store)
{
	bool reads = true;

	while (reads) {
		while (fake_pending(store, FAKE_WRITE, 0))
			fake_end_oldest(store, FAKE_WRITE, 0);
		reads = fake_pending(store, FAKE_READ, 0) != NULL;
		while (fake_pending(store, FAKE_READ, 0))
			fake_end_oldest(store, FAKE_READ, 0);
	}
}

int spw_request_wait(struct spw_request *request)
{
	struct spw_store *store = request->store;
	int res;

	if (store->serve)
		store->serve(store, request);
	else if (!store->wait_for_test)
		fake_end(request, store->wait_res);
	fake_lock(store);
	while (request->state != FAKE_ENDING)
		SPW_ASSERT(pthread_cond_wait(&store->changed, &store->lock) == 0);
	res = request->res;
	request->state = FAKE_UNUSED;
	store->requests_used--;
	fake_unlock(store);
	return res ? spw_error(res, FAKE_WORDS) : 0;
}

#endif
