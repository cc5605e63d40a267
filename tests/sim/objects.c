/* SPDX-License-Identifier: MIT */
/*
 * tests/sim/objects.c - puts, gets and frees, and the model in plain memory that knows what each
 * must give
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tests/sim/sim.h"
#include "util/util.h"

#define OBJECTS    SIM_OBJECTS
#define REQUESTS   160
#define GUARD      64
#define GUARD_BYTE 0x6b
#define VECTOR_MAX 8
/* Of time in which the store could work, when nothing is slow or hangs. */
#define STARVED_NS UINT64_C(60000000000)
/* When something is or does. */
#define STARVED_NS_2 UINT64_C(14400000000000)

struct model_object {
	bool used, alive;
	spw_object id;
	uint8_t *expected;
	uint64_t len;
	unsigned copies;
	bool put_ended, put_cancelled;
	int put_res;
	uint8_t *source;
	bool in_arena;
	unsigned references; /* requests that have not ended */
	struct iovec vector[VECTOR_MAX];
};

enum model_kind { MODEL_PUT, MODEL_GET, MODEL_UPKEEP };

struct model_request {
	bool used, notified, cancelled;
	enum model_kind kind;
	struct spw_request *handle;
	struct model_object *object;
	uint8_t *to;
	bool in_arena;
	uint64_t offset, len;
	struct iovec vector[VECTOR_MAX];
	uint64_t begun_ns;
	uint64_t most_bytes; /* that all objects took together, at most, since it began */
	uint64_t then;       /* what its callback does */
	bool is_flush;
	uint64_t writes[SIM_DRIVES_MAX]; /* of a flush: what each drive had ended before */
	int res;
};

static struct model_object objects[OBJECTS];
static struct model_request requests[REQUESTS];
static bool closing;
static uint64_t content_seed;
static struct {
	uint64_t puts, gets, frees, bytes_put, bytes_got, cancelled, wrong, refused;
} counted; /* what the store must have counted */

void sim_objects_begin(void)
{
	memset(objects, 0, sizeof(objects));
	memset(requests, 0, sizeof(requests));
	memset(&counted, 0, sizeof(counted));
	closing = false;
	content_seed = 0;
}

/* ---- How requests end ---- */

static void free_object(struct model_object *object);

static void object_let_go(struct model_object *object)
{
	object->used = object->alive || object->references > 0;
}

/* On how many drives. */
static unsigned writes_may_fail(void)
{
	unsigned count = 0;

	for (unsigned i = 0; i < sim_drive_count; i++)
		count += sim_writes_may_fail(&sim_drives[i]);
	return count;
}

/* Has any taken long? */
static bool was_late(void)
{
	for (unsigned i = 0; i < sim_drive_count; i++)
		if (sim_drives[i].injected[SIM_HANG] || sim_drives[i].injected[SIM_SLOW])
			return true;
	return false;
}

/* Not when a cache has objects, too, or when blocks of writes that timed out are still taken. */
static bool space_is_known(void)
{
	return !was_late() && !sim_world.config->has_cache;
}

static uint64_t bytes_taken(void)
{
	uint64_t bytes = 0;

	for (unsigned i = 0; i < OBJECTS; i++)
		bytes += objects[i].used
				 ? objects[i].copies *
					   spw_round_up(objects[i].len, sim_inside_block_bytes())
				 : 0;
	return bytes + sim_commits_bytes();
}

/* As long as there is a drive that takes it, and room on it, a put does not fail. */
static void judge_put(const struct model_request *request, int res, const char *words)
{
	if (res == 0 && request->cancelled)
		sim_fail("a put that was cancelled has ended well");
	if (res == 0 || (res == -ECANCELED && (request->cancelled || closing)))
		return;
	if ((res == -EIO || res == -EAGAIN) && writes_may_fail() == sim_drive_count && words[0])
		return;
	if (res == -ENOSPC && writes_may_fail() > 0 && words[0] &&
	    (!space_is_known() || request->most_bytes > sim_inside_sound_bytes()))
		return;
	sim_fail("a put of %" PRIu64 " bytes failed although no drive has: %d, %s", request->len,
		 res, words);
}

static void put_ended(struct model_request *request, int res, const char *words)
{
	struct model_object *object = request->object;

	judge_put(request, res, words);
	object->put_ended = true;
	object->put_res = res;
	/* It is the caller's again. */
	memset(object->source, 0xa5, object->len);
	if (object->in_arena)
		spw_store_release(sim_world.store, object->source);
	object->source = NULL;
}

static void check_guards(const struct model_request *request)
{
	if (request->in_arena)
		return;
	for (unsigned i = 0; i < GUARD; i++)
		if (request->to[-1 - (int)i] != GUARD_BYTE ||
		    request->to[request->len + i] != GUARD_BYTE)
			sim_fail("a get of %" PRIu64 " bytes has written beside them",
				 request->len);
}

static void judge_get(const struct model_request *request, int res, const char *words)
{
	const struct model_object *object = request->object;

	if (request->cancelled && res != -ECANCELED)
		sim_fail("a get that was cancelled has ended with %d", res);
	if (res == 0) {
		const uint8_t *expected = object->expected + request->offset;
		uint64_t at = 0;

		if (memcmp(request->to, expected, request->len) == 0)
			return;
		while (request->to[at] == expected[at])
			at++;
		sim_fail("wrong bytes: byte %" PRIu64 " of an object of %" PRIu64,
			 request->offset + at, object->len);
	}
	if (res == -ECANCELED && (request->cancelled || closing || object->put_cancelled))
		return;
	if (object->put_ended && object->put_res == res)
		return;
	if (!object->put_ended && (res == -EIO || res == -ENOSPC || res == -EAGAIN) &&
	    writes_may_fail() > 0)
		return;
	sim_judge_read_error(res, words);
	if (object->alive)
		sim_judge_place(res, words, object->id);
}

static void get_ended(struct model_request *request, int res, const char *words)
{
	judge_get(request, res, words);
	check_guards(request);
	if (request->in_arena)
		spw_store_release(sim_world.store, request->to);
}

static void upkeep_ended(const struct model_request *request, int res, const char *words)
{
	if (res != 0 && !(res == -ECANCELED && (request->cancelled || closing)) &&
	    writes_may_fail() == 0)
		sim_fail("a flush or trim failed although no drive has: %d, %s", res, words);
	for (unsigned i = 0; res == 0 && request->is_flush && i < sim_drive_count; i++)
		if (sim_has_unflushed(&sim_drives[i], request->writes[i]))
			sim_fail("%s: was flushed, and what was written before is in its cache",
				 sim_drives[i].path);
}

static void count_end(const struct model_request *request, int res)
{
	counted.puts += request->kind == MODEL_PUT;
	counted.gets += request->kind == MODEL_GET;
	counted.bytes_put += request->kind == MODEL_PUT && res == 0 ? request->len : 0;
	counted.bytes_got += request->kind == MODEL_GET && res == 0 ? request->len : 0;
	counted.cancelled += res == -ECANCELED;
	counted.wrong += res == -EBADMSG;
}

static void ended(struct model_request *request, int res, const char *words)
{
	if (!request->used)
		sim_fail("a request was reported twice");
	request->used = false;
	count_end(request, res);
	if (request->kind == MODEL_PUT)
		put_ended(request, res, words);
	else if (request->kind == MODEL_GET)
		get_ended(request, res, words);
	else
		upkeep_ended(request, res, words);
	if (request->object) {
		request->object->references--;
		object_let_go(request->object);
	}
}

/* From within done a caller may free, and begin another request. */
static void go_on(struct model_object *object, uint64_t then)
{
	const struct sim_step get = {.kind = SIM_STEP_GET, .a = then, .b = then / 7, .c = then / 5};

	if (closing)
		return;
	if (then % 16 == 0 && object && object->used && object->alive)
		free_object(object);
	else if (then % 16 == 1)
		(void)sim_objects_step(&get);
}

static void notified(void *context, int res)
{
	struct model_request *request = context;
	struct model_object *object = request->object;
	uint64_t then = request->then;

	ended(request, res, spw_last_error());
	go_on(object, then);
}

static bool test(struct model_request *request)
{
	int rc = spw_request_test(request->handle);

	if (rc == -EINPROGRESS)
		return false;
	ended(request, rc, spw_last_error());
	return true;
}

/* ---- Beginning them ---- */

static struct model_request *request_new(enum model_kind kind, struct model_object *object,
					 bool notify)
{
	for (unsigned i = 0; i < REQUESTS; i++)
		if (!requests[i].used) {
			requests[i] = (struct model_request){.used = true,
							     .kind = kind,
							     .object = object,
							     .notified = notify,
							     .begun_ns = sim_worked_ns};
			if (object)
				object->references++;
			return &requests[i];
		}
	return NULL;
}

static void request_refused(struct model_request *request, int rc)
{
	if (rc == -ENOBUFS && !sim_inside_no_requests() && !sim_inside_no_objects())
		sim_fail("-ENOBUFS although there are requests and objects: %s", spw_last_error());
	if (rc != -ENOBUFS && rc != -ENOSPC)
		sim_fail("a request was refused: %d, %s", rc, spw_last_error());
	counted.refused++;
	request->used = false;
	if (request->object)
		request->object->references--;
}

/* Memory as callers have it. @mode: from the arena; aligned for drives; at any address. */
static uint8_t *memory_of(uint64_t mode, size_t len, bool *in_arena)
{
	void *memory = NULL;
	uint8_t *at;

	*in_arena = mode % 4 == 0 && spw_store_alloc(sim_world.store, len, &memory) == 0;
	if (*in_arena)
		return memory;
	at = sim_memory(len + 2 * 4096 + GUARD, 4096);
	if (!at)
		return NULL;
	/* The guard before it lies in the first page. */
	at += 4096 + (mode % 4 == 2   ? 512 * (mode / 4 % 8)
		      : mode % 4 == 3 ? mode / 4 % 512
				      : 0) %
			     4096;
	return at;
}

/* @memory of @len bytes, in pieces. Return: how many. */
static unsigned cut_vector(struct iovec vector[VECTOR_MAX], uint8_t *memory, uint64_t len,
			   uint64_t random)
{
	unsigned count = 1 + (unsigned)sim_below(&random, VECTOR_MAX);
	uint64_t at = 0;

	for (unsigned i = 0; i < count; i++) {
		uint64_t part = i + 1 == count ? len - at : sim_below(&random, len - at + 1);

		if (i + 1 < count && sim_below(&random, 2))
			part = spw_round_down(part, 4096);
		vector[i] = (struct iovec){.iov_base = memory + at, .iov_len = part};
		at += part;
	}
	return count;
}

static int put_begin(struct model_object *object, struct model_request *request, uint64_t mode)
{
	const struct spw_notify notify = {.done = notified, .context = request};
	const struct spw_notify *how = request->notified ? &notify : NULL;
	unsigned count;

	if (mode / 64 % 4)
		return spw_store_put_copies(sim_world.store, object->source, object->len,
					    object->copies, how, &object->id, &request->handle);
	count = cut_vector(object->vector, object->source, object->len, mode);
	return spw_store_putv(sim_world.store, object->vector, count, how, &object->id,
			      &request->handle);
}

/* It grows with puts alone. */
static void note_taken(void)
{
	uint64_t bytes = bytes_taken();

	for (unsigned i = 0; i < REQUESTS; i++)
		if (requests[i].used && requests[i].most_bytes < bytes)
			requests[i].most_bytes = bytes;
}

/* a: length; b: kind of memory; c: notified */
static bool do_put(const struct sim_step *step)
{
	struct model_object *object = NULL;
	struct model_request *request;
	uint64_t block = sim_inside_block_bytes();
	int rc;

	for (unsigned i = 0; i < OBJECTS && !object; i++)
		object = objects[i].used ? NULL : &objects[i];
	if (!object)
		return false;
	*object = (struct model_object){.used = true, .alive = true, .len = step->a};
	object->copies = step->b / 64 % 4 == 1 ? 2 : 1;
	object->expected = sim_memory(step->a, 64);
	object->source = memory_of(step->b, step->a, &object->in_arena);
	request = object->expected && object->source ? request_new(MODEL_PUT, object, step->c % 2)
						     : NULL;
	if (!request) {
		if (object->in_arena)
			spw_store_release(sim_world.store, object->source);
		object->used = false;
		return false;
	}
	sim_fill(object->expected, object->len, ++content_seed);
	memcpy(object->source, object->expected, object->len);
	request->len = object->len;
	request->then = step->c / 2;
	rc = put_begin(object, request, step->b);
	if (rc) {
		if (rc == -ENOSPC && sim_inside_has_space((step->a + block - 1) / block))
			sim_fail("-ENOSPC for %" PRIu64 " bytes although there is space", step->a);
		request_refused(request, rc);
		if (object->in_arena)
			spw_store_release(sim_world.store, object->source);
		object->used = false;
	}
	note_taken();
	return true;
}

static struct model_object *pick_object(uint64_t pick)
{
	unsigned alive = sim_objects_alive();

	if (alive == 0)
		return NULL;
	pick %= alive;
	for (unsigned i = 0;; i++)
		if (objects[i].used && objects[i].alive && pick-- == 0)
			return &objects[i];
}

static int get_begin(struct model_request *request, uint64_t mode, enum spw_class cls,
		     const struct spw_notify *how)
{
	const struct model_object *object = request->object;
	unsigned count;

	if (mode % 4)
		return spw_store_get(sim_world.store, object->id, request->offset, request->to,
				     request->len, cls, how, &request->handle);
	count = cut_vector(request->vector, request->to, request->len, mode);
	return spw_store_getv(sim_world.store, object->id, request->offset, request->vector, count,
			      cls, how, &request->handle);
}

/* a: which, and from where; b: how much, and what memory; c: class, notified */
static bool do_get(const struct sim_step *step)
{
	struct model_object *object = pick_object(step->a);
	struct model_request *request;
	struct spw_notify notify = {.done = notified};
	uint64_t random = step->a ^ step->b << 20;
	int rc;

	if (!object)
		return false;
	request = request_new(MODEL_GET, object, step->c / 4 % 2);
	if (!request)
		return false;
	request->len = object->len;
	if (step->b % 3 == 0) {
		request->offset = sim_below(&random, object->len);
		request->len = 1 + sim_below(&random, object->len - request->offset);
	}
	request->to = memory_of(step->b / 3, request->len, &request->in_arena);
	if (!request->to) {
		request->used = false;
		object->references--;
		return false;
	}
	if (request->in_arena)
		memset(request->to, GUARD_BYTE, request->len);
	else
		memset(request->to - GUARD, GUARD_BYTE, request->len + 2 * (size_t)GUARD);
	notify.context = request;
	request->then = step->c / 8;
	rc = get_begin(request, step->b / 12, (enum spw_class)(step->c % SPW_CLASSES),
		       request->notified ? &notify : NULL);
	if (rc) {
		request_refused(request, rc);
		if (request->in_arena)
			spw_store_release(sim_world.store, request->to);
	}
	return true;
}

static void free_object(struct model_object *object)
{
	uint8_t byte;
	struct spw_request *request;

	if (spw_store_free(sim_world.store, object->id))
		sim_fail("an object that exists cannot be freed: %s", spw_last_error());
	object->alive = false;
	counted.frees++;
	object_let_go(object);
	if (spw_store_free(sim_world.store, object->id) != -ENOENT ||
	    spw_store_get(sim_world.store, object->id, 0, &byte, 1, SPW_PREFETCH, NULL, &request) !=
		    -ENOENT)
		sim_fail("an object that was freed still exists");
}

static bool do_free(const struct sim_step *step)
{
	struct model_object *object = pick_object(step->a);

	if (object)
		free_object(object);
	return object != NULL;
}

static struct model_request *pick_request(uint64_t pick)
{
	unsigned count = 0;

	for (unsigned i = 0; i < REQUESTS; i++)
		count += requests[i].used;
	if (count == 0)
		return NULL;
	pick %= count;
	for (unsigned i = 0;; i++)
		if (requests[i].used && pick-- == 0)
			return &requests[i];
}

static bool do_cancel(const struct sim_step *step)
{
	struct model_request *request = pick_request(step->a);
	int rc;

	if (!request)
		return false;
	rc = spw_request_cancel(request->handle);
	if (rc && rc != -EALREADY)
		sim_fail("cancel: %d, %s", rc, spw_last_error());
	if (rc == 0) {
		request->cancelled = true;
		if (request->kind == MODEL_PUT)
			request->object->put_cancelled = true;
	}
	return true;
}

static bool do_upkeep(const struct sim_step *step)
{
	struct model_request *request = request_new(MODEL_UPKEEP, NULL, step->c % 2);
	struct spw_notify notify = {.done = notified, .context = request};
	const struct spw_notify *how = request && request->notified ? &notify : NULL;
	int rc;

	if (!request)
		return false;
	request->is_flush = step->kind == SIM_STEP_FLUSH;
	for (unsigned i = 0; i < sim_drive_count; i++)
		request->writes[i] = sim_drives[i].writes;
	rc = step->kind == SIM_STEP_FLUSH ? spw_store_flush(sim_world.store, how, &request->handle)
					  : spw_store_trim(sim_world.store, how, &request->handle);
	if (rc)
		request_refused(request, rc);
	return true;
}

static bool do_wait(const struct sim_step *step)
{
	struct model_request *request = pick_request(step->a);

	if (!request)
		return false;
	if (!request->notified && step->b % 4 == 1) {
		int index = spw_request_wait_any(&request->handle, 1,
						 step->c % 2 ? -1 : (int64_t)(step->c % 1000000));

		if (index != 0 && index != -ETIMEDOUT)
			sim_fail("waiting for any: %d, %s", index, spw_last_error());
		return index != 0 || test(request);
	}
	if (!request->notified && step->b % 2) {
		int rc = spw_request_wait(request->handle);

		ended(request, rc, spw_last_error());
		return true;
	}
	while (request->used) {
		sim_turn_or_fail("a request does not end");
		if (request->used && !request->notified)
			(void)test(request);
	}
	return true;
}

bool sim_objects_step(const struct sim_step *step)
{
	struct model_request *request;

	switch (step->kind) {
	case SIM_STEP_PUT: return do_put(step);
	case SIM_STEP_GET: return do_get(step);
	case SIM_STEP_FREE: return do_free(step);
	case SIM_STEP_CANCEL: return do_cancel(step);
	case SIM_STEP_RAISE:
		request = pick_request(step->a);
		if (request)
			spw_request_raise(request->handle, (enum spw_class)(step->b % SPW_CLASSES));
		return request != NULL;
	case SIM_STEP_WAIT: return do_wait(step);
	case SIM_STEP_FLUSH:
	case SIM_STEP_TRIM: return do_upkeep(step);
	default: return false;
	}
}

/* ---- What is durable ---- */

unsigned sim_objects_committable(spw_object ids[], struct sim_kept kept[], unsigned most)
{
	unsigned count = 0;

	for (unsigned i = 0; i < OBJECTS && count < most; i++) {
		const struct model_object *object = &objects[i];

		if (!object->used || !object->alive || !object->put_ended || object->put_res)
			continue;
		ids[count] = object->id;
		kept[count++] = (struct sim_kept){object->expected, object->len, object->copies};
	}
	return count;
}

void sim_objects_restored(spw_object id, const struct sim_kept *kept)
{
	struct model_object *object = objects;

	while (object->used)
		object++;
	*object = (struct model_object){
		.used = true, .alive = true, .id = id, .len = kept->len, .copies = kept->copies};
	object->put_ended = true;
	/* It is only read. */
	memcpy(&object->expected, &kept->expected, sizeof(object->expected));
}

/* ---- All of them ---- */

static void check_starved(const struct model_request *request)
{
	uint64_t limit_ns = was_late() ? STARVED_NS_2 : STARVED_NS;

	if (sim_worked_ns - request->begun_ns > limit_ns)
		sim_fail("a request has not ended after %" PRIu64 " s", limit_ns / 1000000000);
}

/* Those that are not waited for are looked at once in a while. */
unsigned sim_objects_look(void)
{
	unsigned left = 0;

	for (unsigned i = 0; i < REQUESTS; i++) {
		struct model_request *request = &requests[i];

		if (!request->used)
			continue;
		check_starved(request);
		if (request->notified || !test(request))
			left++;
	}
	return left;
}

void sim_objects_settle(bool free_all)
{
	struct sim_step step = {.kind = SIM_STEP_FREE};

	while (free_all && do_free(&step))
		;
	while (sim_objects_look() > 0)
		sim_turn_or_fail("requests do not end");
}

void sim_objects_closing(void)
{
	closing = true;
}

/* The store is closed: notified requests have ended, other requests and objects are void. */
void sim_objects_forget(void)
{
	for (unsigned i = 0; i < REQUESTS; i++)
		if (requests[i].used && requests[i].notified)
			sim_fail("the store was closed and a request was not reported");
	memset(objects, 0, sizeof(objects));
	memset(requests, 0, sizeof(requests));
	closing = false;
}

unsigned sim_objects_alive(void)
{
	unsigned alive = 0;

	for (unsigned i = 0; i < OBJECTS; i++)
		alive += objects[i].used && objects[i].alive;
	return alive;
}

/* What it says of its drives: nothing that was not done to them. */
static void check_drive_stats(void)
{
	for (unsigned i = 0; i < sim_drive_count; i++) {
		const struct sim_drive *drive = &sim_drives[i];
		bool may_be_wrong = drive->wrong_count > 0 || drive->injected[SIM_FLIP] > 0 ||
				    drive->injected[SIM_STALE] > 0 || sim_commits_overwritten();
		bool may_be_late = drive->injected[SIM_HANG] > 0 || drive->injected[SIM_SLOW] > 0;
		struct spw_drive_stats stats;

		if (spw_store_drive_stats(sim_world.store, i, &stats, sizeof(stats)))
			sim_fail("no counters of a drive: %s", spw_last_error());
		if (stats.timeouts > 0 && !may_be_late)
			sim_fail("%s: is said to have missed a deadline, and was never late",
				 drive->path);
		if (stats.checksum_errors > 0 && !may_be_wrong)
			sim_fail("%s: is said to have given wrong bytes, and has not", drive->path);
		if (stats.write_errors > 0 && !sim_writes_may_fail(drive))
			sim_fail("%s: is said to have failed a write, and has not", drive->path);
		if (stats.read_errors > 0 && !sim_reads_may_fail(drive) &&
		    !drive->injected[SIM_EIO])
			sim_fail("%s: is said to have failed a read, and has not", drive->path);
		if (strcmp(stats.path, drive->path) != 0)
			sim_fail("%s: its counters are called %s", drive->path, stats.path);
	}
}

/* At the end, when nothing is under way: each counter of what callers do. */
void sim_objects_check_counts(void)
{
	struct spw_store_stats stats;

	/* Nor when commits have put what describes them. */
	if (sim_world.config->has_cache || sim_commits_attempted())
		return;
	spw_store_stats(sim_world.store, &stats, sizeof(stats));
	if (stats.puts != counted.puts || stats.gets != counted.gets ||
	    stats.bytes_put != counted.bytes_put || stats.bytes_got != counted.bytes_got ||
	    stats.cancelled != counted.cancelled)
		sim_fail("the store counts %" PRIu64 " puts of %" PRIu64 " bytes, %" PRIu64
			 " gets of %" PRIu64 ", %" PRIu64 " cancelled; there were %" PRIu64
			 " of %" PRIu64 ", %" PRIu64 " of %" PRIu64 ", %" PRIu64,
			 stats.puts, stats.bytes_put, stats.gets, stats.bytes_got, stats.cancelled,
			 counted.puts, counted.bytes_put, counted.gets, counted.bytes_got,
			 counted.cancelled);
	/* A put that got no request has freed the object that it had by then. */
	if (stats.frees < counted.frees || stats.frees > counted.frees + counted.refused)
		sim_fail("the store counts %" PRIu64 " frees; there were %" PRIu64, stats.frees,
			 counted.frees);
	if (stats.requests != 0 || stats.objects != 0)
		sim_fail("the store counts requests or objects, and there are none");
	if (stats.checksum_errors < counted.wrong)
		sim_fail("%" PRIu64 " gets found wrong bytes, and the store counts %" PRIu64,
			 counted.wrong, stats.checksum_errors);
}

/* What the store must say of itself. */
void sim_objects_check_stats(void)
{
	struct spw_store_stats stats;
	uint64_t block = sim_inside_block_bytes(), least = 0, most = 0;

	check_drive_stats();
	/* The cache has objects of its own, and what is committed is held after it was freed. */
	if (sim_world.config->has_cache || sim_commits_attempted())
		return;
	spw_store_stats(sim_world.store, &stats, sizeof(stats));
	for (unsigned i = 0; i < OBJECTS; i++) {
		uint64_t bytes = spw_round_up(objects[i].len, block);

		/* Where drives have no room for a second copy there is one. */
		most += objects[i].used ? objects[i].copies * bytes : 0;
		least += objects[i].used && objects[i].alive ? bytes : 0;
	}
	if (stats.objects != sim_objects_alive())
		sim_fail("the store says that there are %u objects; there are %u", stats.objects,
			 sim_objects_alive());
	if (writes_may_fail() == 0 && (stats.used_bytes < least || stats.used_bytes > most))
		sim_fail("the store says that %" PRIu64 " bytes are used; it is %" PRIu64
			 " to %" PRIu64,
			 stats.used_bytes, least, most);
}
