/* SPDX-License-Identifier: MIT */
/* tests/unit/cache_fake.h - short words for the requests of simstore/simstore.h */
#ifndef SPW_TEST_CACHE_FAKE_H
#define SPW_TEST_CACHE_FAKE_H

#include <errno.h>
#include <string.h>

#include "simstore/simstore.h"
#include "util/util.h"

enum fake_kind {
	FAKE_WRITE,
	FAKE_READ,
};

static inline struct spw_store *fake_open(void)
{
	struct spw_store *store = simstore_open(NULL, 1024);

	SPW_ASSERT(store);
	return store;
}

static inline int fake_open_cache(struct spw_store *store, const struct spw_cache_opts *opts,
				  struct spw_cache **cache)
{
	return spw_cache__open_with(store, opts, &simstore_ports, cache);
}

/* The @index-th oldest request of a kind that has not ended; NULL: there are fewer. */
static inline struct spw_request *fake_pending_locked(struct spw_store *store, enum fake_kind kind,
						      unsigned index)
{
	struct spw_request *request = store->first;

	while (request && (request->read != (kind == FAKE_READ) || index-- > 0))
		request = request->next;
	return request;
}

static inline struct spw_request *fake_pending(struct spw_store *store, enum fake_kind kind,
					       unsigned index)
{
	struct spw_request *request;

	simstore_lock(store);
	request = fake_pending_locked(store, kind, index);
	simstore_unlock(store);
	return request;
}

/* From here on it cannot be cancelled. */
static inline void fake_issue(struct spw_request *request)
{
	simstore_lock(request->store);
	if (request->state == SIMSTORE_QUEUED)
		request->state = SIMSTORE_ISSUED;
	simstore_unlock(request->store);
}

/* The drives have the bytes already, though the write goes on. */
static inline void fake_copy(struct spw_request *request)
{
	struct simstore_object *object = &request->store->objects[request->object];

	fake_issue(request);
	SPW_ASSERT(!request->read && !object->written);
	memcpy(object->bytes, request->from, request->len);
	object->written = true;
}

/* End the oldest one of a kind. */
static inline void fake_end_oldest(struct spw_store *store, enum fake_kind kind, int res)
{
	struct spw_request *request = fake_pending(store, kind, 0);

	SPW_ASSERT(request);
	fake_issue(request);
	simstore_end(request, res);
}

/* What ends may make room for what begins then. */
static inline void fake_end_all(struct spw_store *store)
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

#endif
