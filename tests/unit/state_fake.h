/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/state_fake.h - a store in memory under a state, one at a time: the functions of
 * spillway/store.h that state/ calls
 *
 * Requests end when they are waited for, or when a test asks for one that fake.lazy lets end. A put
 * takes the bytes when it ends, and fails the test if they have changed since it began; a get
 * leaves other bytes in the memory until it ends. Objects are freed once, and never while a request
 * is on them. What is committed survives fake_reopen(), and nothing else.
 */
#ifndef SPW_TEST_STATE_FAKE_H
#define SPW_TEST_STATE_FAKE_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <spillway/state.h>

#include "tests/case.h"
#include "tests/random.h"
#include "util/util.h"

#define FAKE_OBJECTS  8192u
#define FAKE_REQUESTS 128u

struct fake_object {
	uint8_t *bytes; /* NULL: free */
	size_t len;
	unsigned generation, users;
	bool put; /* has ended well */
};

struct spw_request {
	bool used, put;
	uint32_t object;
	const uint8_t *from;
	uint8_t *began; /* of a put: the bytes then */
	uint8_t *into;
	size_t len;
	unsigned age;
};

struct fake_set {
	bool there;
	uint64_t number;
	uint8_t *record;
	size_t record_len;
	uint32_t count;
	uint8_t **bytes;
	uint64_t *lens;
};

struct spw_store {
	struct fake_object objects[FAKE_OBJECTS];
	struct spw_request requests[FAKE_REQUESTS];
	struct fake_set set;
	spw_object *restored;
	uint64_t capacity;
	bool uneven; /* the last drive has three quarters of it, else half */
	uint32_t drives_missing;
	unsigned copies, flags; /* of the last put, and of the last commit */
	uint64_t chunk_bytes;
	unsigned drives;
	size_t arena_left;
	unsigned requests_used, requests_used_max, puts, gets, raises, allocated, clock, commits;
	bool kept;

	uint64_t random;
	/* one in this many, or 0: a request ends when it is only asked for; fails */
	unsigned lazy, put_fails, get_fails, put_refused, get_refused;
	/* of the next requests, then 0: a negative errno of all that end, or are refused at once */
	int put_error, get_error, put_refusal, get_refusal, commit_error;
};

static struct spw_store fake;

static inline void fake_open(void)
{
	memset(&fake, 0, sizeof(fake));
	fake.capacity = UINT64_C(1) << 40;
	fake.chunk_bytes = 65536;
	fake.drives = 4;
	fake.arena_left = SIZE_MAX;
}

static inline bool fake_chance(unsigned one_in)
{
	return one_in > 0 && random_below(&fake.random, one_in) == 0;
}

static inline struct fake_object *fake_object(spw_object id)
{
	uint32_t index = (uint32_t)id.value;
	struct fake_object *object;

	if (index >= FAKE_OBJECTS)
		return NULL;
	object = &fake.objects[index];
	return object->bytes && object->generation == id.value >> 32 ? object : NULL;
}

static inline spw_object fake_new_object(size_t len)
{
	for (uint32_t i = 0; i < FAKE_OBJECTS; i++) {
		struct fake_object *object = &fake.objects[i];

		if (object->bytes)
			continue;
		object->bytes = malloc(len);
		assert_non_null(object->bytes);
		object->len = len;
		object->put = false;
		return (spw_object){(uint64_t)++object->generation << 32 | i};
	}
	fail_msg("no object is left");
	return (spw_object){0};
}

static inline unsigned fake_objects(void)
{
	unsigned count = 0;

	for (uint32_t i = 0; i < FAKE_OBJECTS; i++)
		count += fake.objects[i].bytes != NULL;
	return count;
}

/* ---- Requests ---- */

static inline struct spw_request *fake_begin(bool put, spw_object id, size_t len)
{
	for (unsigned i = 0; i < FAKE_REQUESTS; i++) {
		struct spw_request *request = &fake.requests[i];

		if (request->used)
			continue;
		*request = (struct spw_request){.used = true,
						.put = put,
						.object = (uint32_t)id.value,
						.len = len,
						.age = fake.clock++};
		fake.objects[request->object].users++;
		fake.requests_used++;
		if (fake.requests_used > fake.requests_used_max)
			fake.requests_used_max = fake.requests_used;
		return request;
	}
	fail_msg("no request is left");
	return NULL;
}

static inline int fake_refused(int *once, unsigned one_in)
{
	int rc = *once;

	*once = 0;
	if (rc == 0 && fake_chance(one_in))
		rc = -ENOBUFS;
	return rc ? spw_error(rc, "drive 2 refused") : 0;
}

int spw_store_put_copies(struct spw_store *store, const void *bytes, size_t len, unsigned copies,
			 const struct spw_notify *notify, spw_object *object,
			 struct spw_request **request)
{
	int rc = fake_refused(&store->put_refusal, store->put_refused);

	assert_null(notify);
	store->copies = copies;
	*request = NULL;
	object->value = 0;
	if (rc)
		return rc;
	*object = fake_new_object(len);
	*request = fake_begin(true, *object, len);
	(*request)->from = bytes;
	(*request)->began = malloc(len);
	assert_non_null((*request)->began);
	memcpy((*request)->began, bytes, len);
	store->puts++;
	return 0;
}

int spw_store_put(struct spw_store *store, const void *bytes, size_t len,
		  const struct spw_notify *notify, spw_object *object, struct spw_request **request)
{
	return spw_store_put_copies(store, bytes, len, 1, notify, object, request);
}

int spw_store_get(struct spw_store *store, spw_object id, uint64_t offset, void *bytes, size_t len,
		  enum spw_class cls, const struct spw_notify *notify, struct spw_request **request)
{
	const struct fake_object *object = fake_object(id);
	int rc;

	assert_null(notify);
	assert_true(cls == SPW_PREFETCH || cls == SPW_URGENT_READ);
	*request = NULL;
	if (!object)
		return spw_error(-ENOENT, "no such object");
	if (offset + len > object->len)
		return spw_error(-ERANGE, "beyond the end");
	rc = fake_refused(&store->get_refusal, store->get_refused);
	if (rc)
		return rc;
	assert_true(object->put && offset == 0 && len == object->len);
	memset(bytes, 0xA5, len);
	*request = fake_begin(false, id, len);
	(*request)->into = bytes;
	store->gets++;
	return 0;
}

/* How it ends: by a wish of the test, by chance, or well. */
static inline int fake_result(int *once, unsigned one_in)
{
	int rc = *once;

	*once = 0;
	return rc ? rc : fake_chance(one_in) ? -EIO : 0;
}

static inline int fake_end(struct spw_request *request)
{
	struct fake_object *object = &fake.objects[request->object];
	int rc = request->put ? fake_result(&fake.put_error, fake.put_fails)
			      : fake_result(&fake.get_error, fake.get_fails);

	if (request->put) {
		if (memcmp(request->from, request->began, request->len) != 0)
			fail_msg("memory has changed while a put was under way");
		memcpy(object->bytes, request->from, request->len);
		object->put = rc == 0;
		free(request->began);
	} else {
		for (size_t i = 0; i < request->len; i++)
			if (request->into[i] != 0xA5)
				fail_msg("memory has changed while a get was under way");
		if (rc == 0)
			memcpy(request->into, object->bytes, request->len);
	}
	object->users--;
	fake.requests_used--;
	request->used = false;
	return rc ? spw_error(rc, "drive 2 gave up") : 0;
}

/* Those waited for end first, so that what is asked for next finds one that has ended. */
static struct spw_request *fake_ended;

int spw_request_test(struct spw_request *request)
{
	assert_true(request->used);
	if (request != fake_ended && !fake_chance(fake.lazy))
		return -EINPROGRESS;
	fake_ended = NULL;
	return fake_end(request);
}

int spw_request_wait_any(struct spw_request *const requests[], unsigned count, int64_t timeout_ns)
{
	unsigned first = 0;

	assert_true(count > 0 && timeout_ns < 0);
	if (fake.lazy > 0)
		first = (unsigned)random_below(&fake.random, count);
	else /* the oldest */
		for (unsigned i = 1; i < count; i++)
			if (requests[i]->age < requests[first]->age)
				first = i;
	fake_ended = requests[first];
	return (int)first;
}

void spw_request_raise(struct spw_request *request, enum spw_class cls)
{
	assert_true(request->used && !request->put && cls == SPW_URGENT_READ);
	fake.raises++;
}

int spw_store_free(struct spw_store *store, spw_object id)
{
	struct fake_object *object = fake_object(id);

	(void)store;
	if (!object)
		return spw_error(-ENOENT, "no such object");
	assert_int_equal(object->users, 0);
	free(object->bytes);
	object->bytes = NULL;
	return 0;
}

/* ---- Memory, numbers ---- */

int spw_store_alloc(struct spw_store *store, size_t len, void **memory)
{
	if (len > store->arena_left)
		return spw_error(-ENOBUFS, "the arena is used up");
	*memory = aligned_alloc(4096, spw_round_up(len, 4096));
	assert_non_null(*memory);
	store->arena_left -= len;
	store->allocated++;
	return 0;
}

void spw_store_release(struct spw_store *store, void *memory)
{
	free(memory);
	store->allocated--;
}

void spw_store_stats(struct spw_store *store, struct spw_store_stats *stats, size_t size)
{
	struct spw_store_stats all = {.size = size,
				      .drives = store->drives,
				      .capacity_bytes = store->capacity,
				      .drives_missing = store->drives_missing};

	memcpy(stats, &all, size);
}

/* The last is as large as the others together, or three times as large, if there are others. */
int spw_store_drive_stats(struct spw_store *store, unsigned drive, struct spw_drive_stats *stats,
			  size_t size)
{
	struct spw_drive_stats all = {.size = size};
	unsigned others = store->drives - 1;
	uint64_t rest = 0;

	assert_true(drive < store->drives);
	if (others > 0)
		rest = store->capacity / (store->uneven ? 4 : 2) / others;
	all.capacity_bytes = drive == others ? store->capacity - others * rest : rest;
	memcpy(stats, &all, size);
	return 0;
}

uint64_t spw_store_chunk_bytes(const struct spw_store *store)
{
	return store->chunk_bytes;
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

int spw_store_commit(struct spw_store *store, const spw_object objects[], uint32_t count,
		     uint64_t number, const void *record, size_t len, unsigned flags)
{
	struct fake_set *set = &store->set;
	int rc = store->commit_error;

	store->commit_error = 0;
	store->flags = flags;
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
		const struct fake_object *object = fake_object(objects[set->count]);

		assert_true(object && object->put);
		set->lens[set->count] = object->len;
		set->bytes[set->count] = malloc(object->len);
		assert_non_null(set->bytes[set->count]);
		memcpy(set->bytes[set->count], object->bytes, object->len);
	}
	store->kept = flags & SPW_COMMIT_KEEP_PREVIOUS;
	store->commits++;
	return 0;
}

int spw_store_commit_release(struct spw_store *store)
{
	store->kept = false;
	return 0;
}

int spw_store_committed(struct spw_store *store, struct spw_commit_info *info, size_t size)
{
	struct spw_commit_info all = {.size = size,
				      .number = store->set.number,
				      .record_bytes = store->set.record_len,
				      .objects = store->set.count};

	if (!store->set.there)
		return spw_error(-ENODATA, "nothing is committed");
	memcpy(info, &all, size);
	return 0;
}

int spw_store_committed_record(struct spw_store *store, void *record, size_t len)
{
	assert_int_equal(len, store->set.record_len);
	memcpy(record, store->set.record, len);
	return 0;
}

int spw_store_committed_objects(struct spw_store *store, spw_object objects[], uint64_t lens[],
				uint32_t count)
{
	if (!store->restored)
		return spw_error(-ENODATA, "nothing was restored");
	assert_int_equal(count, store->set.count);
	memcpy(objects, store->restored, count * sizeof(*objects));
	memcpy(lens, store->set.lens, count * sizeof(*lens));
	return 0;
}

/* Nothing is left behind by a state that was closed. */
static inline void fake_check_empty(void)
{
	assert_int_equal(fake_objects(), 0);
	assert_int_equal(fake.requests_used, 0);
	assert_int_equal(fake.allocated, 0);
}

static inline void fake_close(void)
{
	fake_forget_set(&fake.set);
	for (uint32_t i = 0; i < FAKE_OBJECTS; i++)
		free(fake.objects[i].bytes);
	free(fake.restored);
	memset(&fake, 0, sizeof(fake));
}

/* Closed, or crashed, and opened: what is committed is there again. */
static inline void fake_reopen(void)
{
	for (uint32_t i = 0; i < FAKE_OBJECTS; i++) {
		free(fake.objects[i].bytes);
		fake.objects[i].bytes = NULL;
	}
	free(fake.restored);
	fake.restored = calloc(fake.set.count + 1, sizeof(*fake.restored));
	assert_non_null(fake.restored);
	for (uint32_t i = 0; i < fake.set.count; i++) {
		fake.restored[i] = fake_new_object(fake.set.lens[i]);
		fake_object(fake.restored[i])->put = true;
		memcpy(fake_object(fake.restored[i])->bytes, fake.set.bytes[i], fake.set.lens[i]);
	}
}

#endif
