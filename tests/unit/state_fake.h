/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/state_fake.h - the scripted store in memory (simstore/simstore.h) under a state, one
 * at a time: requests that end by chance, drives that fail, and what is committed
 *
 * Requests end when they are waited for, or when a test asks for one that fake.lazy lets end.
 * Memory must not change meanwhile: that of a put is copied when it begins, that of a get filled
 * with other bytes until it ends. What is committed survives fake_reopen(), and nothing else.
 */
#ifndef SPW_TEST_STATE_FAKE_H
#define SPW_TEST_STATE_FAKE_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "simstore/simstore.h"
#include "state/ports.h"
#include "tests/case.h"
#include "tests/random.h"
#include "util/util.h"

#define COMING 0xA5 /* what a get has in memory until it ends */

struct fake_set {
	bool there;
	uint64_t number;
	uint8_t *record;
	size_t record_len;
	uint32_t count;
	uint8_t **bytes;
	uint64_t *lens;
};

static struct {
	struct spw_store *store;
	struct fake_set set;
	spw_object *restored;
	uint64_t capacity;
	bool uneven; /* the last drive has three quarters of it, else half */
	uint32_t drives, drives_missing;
	unsigned copies, flags; /* of the last put, and of the last commit */
	unsigned requests_used_max, commits;
	bool kept;

	uint64_t random;
	/* one in this many, or 0: a request ends when it is only asked for; fails */
	unsigned lazy, put_fails, get_fails, put_refused, get_refused;
	/* of the next requests, then 0: a negative errno of all that end, or are refused at once */
	int put_error, get_error, put_refusal, get_refusal, commit_error;
} fake;

static struct spw_state_ports fake_ports; /* its own are at the end, the rest is simstore's */

static inline void fake_open(void)
{
	memset(&fake, 0, sizeof(fake));
	fake_ports.chunk_bytes = simstore_ports.chunk_bytes;
	fake_ports.alloc = simstore_ports.alloc;
	fake_ports.release = simstore_ports.release;
	fake_ports.raise = simstore_ports.raise;
	fake.store = simstore_open(NULL, 65536);
	assert_non_null(fake.store);
	fake.store->wait_for_test = true;
	fake.capacity = UINT64_C(1) << 40;
	fake.drives = 4;
}

/* ---- Requests ---- */

/* How it ends, or begins: by a wish of the test, by chance, or well. */
static inline int fake_result(int *once, unsigned one_in, int error)
{
	int rc = *once;

	*once = 0;
	return rc || one_in == 0 || random_below(&fake.random, one_in) > 0 ? rc : error;
}

static inline int fake_refused(int *once, unsigned one_in)
{
	int rc = fake_result(once, one_in, -ENOBUFS);

	return rc ? spw_error(rc, "drive 2 refused") : 0;
}

static inline struct simstore_object *fake_object(spw_object id)
{
	struct simstore_object *object = &fake.store->objects[(uint32_t)id.value];

	return (uint32_t)id.value < fake.store->objects_max && object->exists &&
			       object->generation == id.value >> 32
		       ? object
		       : NULL;
}

static inline void fake_begun(void)
{
	fake.requests_used_max = SPW_MAX(fake.requests_used_max, fake.store->requests_used);
}

static inline int fake_begin_put(struct spw_store *store, const void *bytes, size_t len,
				 unsigned copies, const struct spw_notify *notify,
				 spw_object *object, struct spw_request **request)
{
	int rc = fake_refused(&fake.put_refusal, fake.put_refused);

	assert_null(notify);
	fake.copies = copies;
	*request = NULL;
	object->value = 0;
	if (rc)
		return rc;
	assert_ok(simstore_ports.put(store, bytes, len, NULL, object, request));
	memcpy(fake_object(*object)->bytes, bytes, len);
	fake_begun();
	return 0;
}

static inline int fake_begin_get(struct spw_store *store, spw_object id, uint64_t offset,
				 void *bytes, size_t len, enum spw_class cls,
				 const struct spw_notify *notify, struct spw_request **request)
{
	const struct simstore_object *object = fake_object(id);
	int rc;

	assert_null(notify);
	assert_true(cls == SPW_PREFETCH || cls == SPW_URGENT_READ);
	*request = NULL;
	if (!object)
		return spw_error(-ENOENT, "no such object");
	if (offset + len > object->len)
		return spw_error(-ERANGE, "beyond the end");
	rc = fake_refused(&fake.get_refusal, fake.get_refused);
	if (rc)
		return rc;
	assert_true(object->written && offset == 0 && len == object->len);
	memset(bytes, COMING, len);
	assert_ok(simstore_ports.get(store, id, 0, bytes, len, cls, NULL, request));
	fake_begun();
	return 0;
}

static inline void fake_end(struct spw_request *request)
{
	const uint8_t *bytes = fake.store->objects[request->object].bytes;

	if (!request->read && memcmp(request->from, bytes, request->len) != 0)
		fail_msg("memory has changed while a put was under way");
	for (size_t i = 0; request->read && i < request->len; i++)
		if (request->into[i] != COMING)
			fail_msg("memory has changed while a get was under way");
	simstore_end(request, request->read ? fake_result(&fake.get_error, fake.get_fails, -EIO)
					    : fake_result(&fake.put_error, fake.put_fails, -EIO));
}

static inline int fake_test(struct spw_request *request)
{
	assert_true(request->state != SIMSTORE_UNUSED);
	if (request->state != SIMSTORE_ENDED) {
		if (fake.lazy == 0 || random_below(&fake.random, fake.lazy) > 0)
			return -EINPROGRESS;
		fake_end(request);
	}
	return simstore_ports.wait(request);
}

/* The oldest; with fake.lazy any one. */
static inline int fake_wait_any(struct spw_request *const requests[], unsigned count,
				int64_t timeout_ns)
{
	unsigned found = 0;

	assert_true(count > 0 && timeout_ns < 0);
	if (fake.lazy > 0)
		found = (unsigned)random_below(&fake.random, count);
	else
		while (requests[found] != fake.store->first)
			assert_true(++found < count);
	fake_end(requests[found]);
	return (int)found;
}

static inline int fake_free(struct spw_store *store, spw_object id)
{
	return fake_object(id) ? simstore_ports.free(store, id)
			       : spw_error(-ENOENT, "no such object");
}

/* An object as a put leaves it that went well. */
static inline spw_object fake_put(const void *bytes, size_t len)
{
	struct spw_request *request;
	spw_object object;

	assert_ok(simstore_ports.put(fake.store, bytes, len, NULL, &object, &request));
	simstore_end(request, 0);
	assert_ok(simstore_ports.wait(request));
	return object;
}

/* ---- Numbers ---- */

static inline void fake_stats(struct spw_store *store, struct spw_store_stats *stats, size_t size)
{
	struct spw_store_stats all = {.size = size,
				      .drives = fake.drives,
				      .capacity_bytes = fake.capacity,
				      .drives_missing = fake.drives_missing};

	(void)store;
	memcpy(stats, &all, size);
}

/* The last is as large as the others together, or three times as large, if there are others. */
static inline int fake_drive_stats(struct spw_store *store, unsigned drive,
				   struct spw_drive_stats *stats, size_t size)
{
	struct spw_drive_stats all = {.size = size};
	unsigned others = fake.drives - 1;
	uint64_t rest = 0;

	(void)store;
	assert_true(drive < fake.drives);
	if (others > 0)
		rest = fake.capacity / (fake.uneven ? 4 : 2) / others;
	all.capacity_bytes = drive == others ? fake.capacity - others * rest : rest;
	memcpy(stats, &all, size);
	return 0;
}

/* ---- What is committed ---- */

static inline void fake_forget_set(struct fake_set *set)
{
	for (uint32_t i = 0; i < set->count; i++)
		free(set->bytes[i]);
	free(set->bytes);
	free(set->lens);
	free(set->record);
	memset(set, 0, sizeof(*set));
}

static inline int fake_commit(struct spw_store *store, const spw_object objects[], uint32_t count,
			      uint64_t number, const void *record, size_t len, unsigned flags)
{
	struct fake_set *set = &fake.set;
	int rc = fake.commit_error;

	(void)store;
	fake.commit_error = 0;
	fake.flags = flags;
	if (rc)
		return spw_error(rc, "drive 2 could not flush");
	if (set->there && number <= set->number)
		return spw_error(-EINVAL, "commit %llu: the last is %llu",
				 (unsigned long long)number, (unsigned long long)set->number);
	fake_forget_set(set);
	*set = (struct fake_set){.there = true, .number = number, .record_len = len};
	set->record = malloc(len);
	set->bytes = calloc(count + 1, sizeof(*set->bytes));
	set->lens = calloc(count + 1, sizeof(*set->lens));
	assert_true(set->record && set->bytes && set->lens);
	memcpy(set->record, record, len);
	for (set->count = 0; set->count < count; set->count++) {
		const struct simstore_object *object = fake_object(objects[set->count]);

		assert_true(object && object->written);
		set->lens[set->count] = object->len;
		set->bytes[set->count] = malloc(object->len);
		assert_non_null(set->bytes[set->count]);
		memcpy(set->bytes[set->count], object->bytes, object->len);
	}
	fake.kept = flags & SPW_COMMIT_KEEP_PREVIOUS;
	fake.commits++;
	return 0;
}

static inline int fake_commit_release(struct spw_store *store)
{
	(void)store;
	fake.kept = false;
	return 0;
}

static inline int fake_committed(struct spw_store *store, struct spw_commit_info *info, size_t size)
{
	struct spw_commit_info all = {.size = size,
				      .number = fake.set.number,
				      .record_bytes = fake.set.record_len,
				      .objects = fake.set.count};

	(void)store;
	if (!fake.set.there)
		return spw_error(-ENODATA, "nothing is committed");
	memcpy(info, &all, size);
	return 0;
}

static inline int fake_committed_record(struct spw_store *store, void *record, size_t len)
{
	(void)store;
	assert_int_equal(len, fake.set.record_len);
	memcpy(record, fake.set.record, len);
	return 0;
}

static inline int fake_committed_objects(struct spw_store *store, spw_object objects[],
					 uint64_t lens[], uint32_t count)
{
	(void)store;
	if (!fake.restored)
		return spw_error(-ENODATA, "nothing was restored");
	assert_int_equal(count, fake.set.count);
	memcpy(objects, fake.restored, count * sizeof(*objects));
	memcpy(lens, fake.set.lens, count * sizeof(*lens));
	return 0;
}

static inline void fake_free_all(void)
{
	for (uint32_t i = 0; i < fake.store->objects_max; i++)
		if (fake.store->objects[i].exists)
			(void)simstore_ports.free(
				fake.store,
				(spw_object){fake.store->objects[i].generation << 32 | i});
	free(fake.restored);
	fake.restored = NULL;
}

/* Closed, or crashed, and opened: what is committed is there again. */
static inline void fake_reopen(void)
{
	fake_free_all();
	fake.restored = calloc(fake.set.count + 1, sizeof(*fake.restored));
	assert_non_null(fake.restored);
	for (uint32_t i = 0; i < fake.set.count; i++)
		fake.restored[i] = fake_put(fake.set.bytes[i], fake.set.lens[i]);
}

/* Nothing is left behind by a state that was closed. */
static inline void fake_check_empty(void)
{
	assert_int_equal(fake.store->objects_used, 0);
	assert_int_equal(fake.store->requests_used, 0);
	assert_int_equal(fake.store->arena_used, 0);
}

static inline void fake_close(void)
{
	fake_free_all();
	fake_forget_set(&fake.set);
	simstore_close(fake.store);
}

static struct spw_state_ports fake_ports = {
	.stats = fake_stats,
	.drive_stats = fake_drive_stats,
	.put = fake_begin_put,
	.get = fake_begin_get,
	.free = fake_free,
	.test = fake_test,
	.wait_any = fake_wait_any,
	.commit = fake_commit,
	.commit_release = fake_commit_release,
	.committed = fake_committed,
	.committed_record = fake_committed_record,
	.committed_objects = fake_committed_objects,
};

#endif
