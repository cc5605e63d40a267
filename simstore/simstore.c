/* SPDX-License-Identifier: MIT */
/* simstore/simstore.c - a store in memory, timed or scripted: drives, clock, ports of the cache */
#include "simstore/simstore.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "util/util.h"

#define NEVER_NS     1e300
#define MEMORY_ALIGN 4096 /* as in a real store */

/* All timed stores share one clock and the same drives. */
static struct {
	pthread_mutex_t lock;
	double now_ns;
	struct spw_store *stores;
	unsigned running; /* threads with timed stores that do not wait; time moves when it is 0 */
	unsigned met;
} shared = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The timed store of this thread, whose clock its caches use; NULL: the system's clock. */
static _Thread_local struct spw_store *timed;

static void lock_shared(void)
{
	SPW_MUST(pthread_mutex_lock(&shared.lock));
}

static void unlock_shared(void)
{
	SPW_MUST(pthread_mutex_unlock(&shared.lock));
}

/* ---- Simulated time -------------------------------------------------------------------------- */

/* The request that the drives serve now in a direction: the most urgent, then the oldest. */
static struct spw_request *served_now(const struct spw_store *store, bool read)
{
	struct spw_request *first = NULL;

	for (struct spw_request *request = store->first; request; request = request->next)
		if (request->read == read &&
		    (request->state == SIMSTORE_QUEUED || request->state == SIMSTORE_ISSUED) &&
		    (!first || request->cls < first->cls))
			first = request;
	return first;
}

static struct spw_request *ends_next(const struct spw_store *store)
{
	struct spw_request *next = NULL;

	for (struct spw_request *request = store->first; request; request = request->next)
		if ((request->state == SIMSTORE_SERVED || request->state == SIMSTORE_CANCELLED) &&
		    (!next || request->end_ns < next->end_ns))
			next = request;
	return next;
}

static double serve_end_ns(const struct spw_request *request, double bytes_per_ns)
{
	return request && bytes_per_ns > 0 ? shared.now_ns + request->remaining_bytes / bytes_per_ns
					   : NEVER_NS;
}

static void serve(struct spw_request *request, double bytes_per_ns, double ns)
{
	if (!request)
		return;
	if (request->state == SIMSTORE_QUEUED)
		request->begin_ns = shared.now_ns;
	request->state = SIMSTORE_ISSUED;
	request->remaining_bytes = fmax(request->remaining_bytes - bytes_per_ns * ns, 0);
}

static void serve_ended(struct spw_request *request, double bytes_per_ns)
{
	struct spw_store *store = request->store;

	request->state = SIMSTORE_SERVED;
	request->end_ns = shared.now_ns + (double)store->drives.latency_ns +
			  (double)store->chunk_bytes / bytes_per_ns;
}

/*
 * Bytes in flight by direction, in all stores. A store gets bandwidth in proportion to its share.
 */
struct shares {
	double writing, reading; /* bytes */
};

static double under_way(const struct spw_store *store, bool read)
{
	double bytes = 0;

	for (const struct spw_request *request = store->first; request; request = request->next)
		if (request->read == read &&
		    (request->state == SIMSTORE_QUEUED || request->state == SIMSTORE_ISSUED))
			bytes += (double)request->len;
	return bytes;
}

static struct shares shares_now(void)
{
	struct shares shares = {0};

	for (const struct spw_store *store = shared.stores; store; store = store->next_timed) {
		shares.writing += under_way(store, false);
		shares.reading += under_way(store, true);
	}
	return shares;
}

static double rate_of(const struct spw_store *store, const struct shares *shares, bool read)
{
	double alone = read ? store->drives.read : store->drives.write;

	if (shares->writing > 0 && shares->reading > 0)
		alone = fmin(alone, store->drives.mixed / 2);
	return alone * under_way(store, read) / fmax(read ? shares->reading : shares->writing, 1);
}

static void serve_all(const struct shares *shares, double ns)
{
	for (struct spw_store *store = shared.stores; store; store = store->next_timed) {
		serve(served_now(store, false), rate_of(store, shares, false), ns);
		serve(served_now(store, true), rate_of(store, shares, true), ns);
	}
}

/* When the next write or read of a store is served, and its next event of any kind. */
struct next {
	double write_ns, read_ns, event_ns;
	struct spw_store *store;
};

static struct next next_of(struct spw_store *store, const struct shares *shares)
{
	const struct spw_request *ends = ends_next(store);
	struct next next = {
		.write_ns = serve_end_ns(served_now(store, false), rate_of(store, shares, false)),
		.read_ns = serve_end_ns(served_now(store, true), rate_of(store, shares, true)),
		.store = store,
	};

	next.event_ns = fmin(fmin(next.write_ns, next.read_ns), ends ? ends->end_ns : NEVER_NS);
	return next;
}

static void happen(const struct next *next)
{
	struct spw_store *store = next->store;

	store->happened = true;
	if (next->write_ns <= shared.now_ns)
		serve_ended(served_now(store, false), store->drives.write);
	else if (next->read_ns <= shared.now_ns)
		serve_ended(served_now(store, true), store->drives.read);
	else
		store->ending = ends_next(store);
}

static void wake(struct spw_store *store)
{
	store->waits = false;
	shared.running++;
	SPW_MUST(pthread_cond_signal(&store->goes_on));
}

/* All threads wait: advance the clock to the next event, or to the first waiter's deadline. */
static void go_on(void)
{
	struct shares shares = shares_now();
	struct next first = {.store = NULL};
	double first_ns = NEVER_NS;

	for (struct spw_store *store = shared.stores; store; store = store->next_timed) {
		struct next next = next_of(store, &shares);

		if (!first.store || fmin(next.event_ns, store->until_ns) < first_ns) {
			first = next;
			first_ns = fmin(next.event_ns, store->until_ns);
		}
	}
	if (!first.store)
		return;
	if (first_ns < NEVER_NS) {
		serve_all(&shares, first_ns - shared.now_ns);
		shared.now_ns = first_ns;
		if (first.event_ns <= first_ns)
			happen(&first);
	}
	wake(first.store);
}

static void stop_running(void)
{
	if (--shared.running == 0)
		go_on();
}

/* ---- Store, objects and requests ------------------------------------------------------------- */

struct spw_store *simstore_open(const struct simstore_drives *drives, uint64_t chunk_bytes)
{
	struct spw_store *store = malloc(sizeof(*store));

	if (!store)
		return NULL;
	*store = (struct spw_store){.lock = PTHREAD_MUTEX_INITIALIZER,
				    .changed = PTHREAD_COND_INITIALIZER,
				    .goes_on = PTHREAD_COND_INITIALIZER,
				    .chunk_bytes = chunk_bytes,
				    .end = &store->first,
				    .requests_max = UINT_MAX,
				    .capacity = UINT64_MAX,
				    .arena = UINT64_MAX};
	if (drives) {
		store->timed = true;
		store->drives = *drives;
		timed = store;
		lock_shared();
		if (!shared.stores)
			shared.now_ns = 0;
		store->next_timed = shared.stores;
		shared.stores = store;
		shared.running++;
		unlock_shared();
	}
	return store;
}

static void unlink_timed(struct spw_store *store)
{
	struct spw_store **link = &shared.stores;

	lock_shared();
	while (*link != store)
		link = &(*link)->next_timed;
	*link = store->next_timed;
	stop_running();
	unlock_shared();
	timed = NULL;
}

void simstore_close(struct spw_store *store)
{
	SPW_ASSERT(store->requests_used == 0 && store->objects_used == 0);
	SPW_ASSERT(store->used == 0 && store->arena_used == 0);
	if (store->timed)
		unlink_timed(store);
	for (struct spw_request *request = store->unused; request; request = store->unused) {
		store->unused = request->next;
		free(request);
	}
	free(store->objects);
	free(store);
}

void simstore_lock(struct spw_store *store)
{
	SPW_MUST(pthread_mutex_lock(&store->lock));
}

void simstore_unlock(struct spw_store *store)
{
	SPW_MUST(pthread_cond_broadcast(&store->changed));
	SPW_MUST(pthread_mutex_unlock(&store->lock));
}

/* Make an object. Return: NULL: out of memory. */
static struct simstore_object *new_object(struct spw_store *store, size_t len)
{
	struct simstore_object *object;
	uint32_t slot = 0;

	while (slot < store->objects_max && store->objects[slot].exists)
		slot++;
	if (slot == store->objects_max) {
		uint32_t max = slot ? 2 * slot : 64;

		object = realloc(store->objects, max * sizeof(*object));
		if (!object)
			return NULL;
		memset(object + slot, 0, (max - slot) * sizeof(*object));
		store->objects = object;
		store->objects_max = max;
	}
	object = &store->objects[slot];
	object->bytes = malloc(len);
	if (!object->bytes)
		return NULL;
	object->generation++;
	object->exists = true;
	object->written = false;
	object->len = len;
	store->used += len;
	store->objects_used++;
	return object;
}

/* Find an object by its id. Return: NULL: it does not exist (any more). */
static struct simstore_object *object_of(struct spw_store *store, spw_object id)
{
	uint32_t slot = (uint32_t)id.value;
	struct simstore_object *object = &store->objects[slot];

	return slot < store->objects_max && object->exists && object->generation == id.value >> 32
		       ? object
		       : NULL;
}

static void drop_object(struct spw_store *store, struct simstore_object *object)
{
	free(object->bytes);
	object->bytes = NULL;
	object->exists = false;
	store->used -= object->len;
	store->objects_used--;
}

/* Make a request. Return: NULL: requests_max is reached, or out of memory. */
static struct spw_request *new_request(struct spw_store *store, const struct spw_notify *notify,
				       size_t len)
{
	struct spw_request *request = store->unused;

	if (store->requests_used >= store->requests_max)
		return NULL;
	if (request)
		store->unused = request->next;
	else
		request = malloc(sizeof(*request));
	if (!request)
		return NULL;
	*request = (struct spw_request){.store = store,
					.state = SIMSTORE_QUEUED,
					.len = len,
					.remaining_bytes = (double)len};
	if (notify)
		request->notify = *notify;
	store->requests_used++;
	*store->end = request;
	store->end = &request->next;
	return request;
}

static void unlink_request(struct spw_store *store, struct spw_request *request)
{
	struct spw_request **link = &store->first;

	while (*link != request)
		link = &(*link)->next;
	*link = request->next;
	if (!*link)
		store->end = link;
}

static void drop_request(struct spw_store *store, struct spw_request *request)
{
	simstore_lock(store);
	request->state = SIMSTORE_UNUSED;
	request->next = store->unused;
	store->unused = request;
	store->requests_used--;
	simstore_unlock(store);
}

static int transfer(struct spw_store *store, const struct spw_request *request, int res)
{
	struct simstore_object *object = &store->objects[request->object];

	if (request->state == SIMSTORE_CANCELLED)
		res = -ECANCELED;
	if (!request->read) {
		object->writes--;
		if (res == 0 && !object->written) {
			memcpy(object->bytes, request->from, request->len);
			object->written = true;
		}
		return res;
	}
	object->reads--;
	SPW_ASSERT(object->written);
	if (res == 0)
		memcpy(request->into, object->bytes + request->offset, request->len);
	else
		memset(request->into, 0xee, request->len);
	return res;
}

static void count_end(struct spw_store *store, const struct spw_request *request)
{
	struct spw_store_traffic *traffic = &store->traffic;

	traffic->bytes_in_flight -= request->len;
	*(request->read ? &traffic->bytes_got : &traffic->bytes_put) +=
		request->res ? 0 : request->len;
}

void simstore_end(struct spw_request *request, int res)
{
	struct spw_store *store = request->store;
	struct spw_request ended;

	simstore_lock(store);
	SPW_ASSERT(request->state != SIMSTORE_UNUSED && request->state != SIMSTORE_ENDED);
	request->res = transfer(store, request, res);
	count_end(store, request);
	request->state = SIMSTORE_ENDED;
	unlink_request(store, request);
	ended = *request; /* a waiter may drop the request as soon as the lock is released */
	simstore_unlock(store);
	if (ended.notify.done) {
		if (ended.res)
			(void)spw_error(ended.res, SIMSTORE_ERROR_TEXT);
		ended.notify.done(ended.notify.context, ended.res);
		drop_request(store, request);
	}
	if (store->ended)
		store->ended(store->context, &ended);
}

/*
 * Wait until the next event of @store, or until @until_ns. Called with shared.lock held, and
 * releases it. Return: whether there was an event.
 */
static bool advance_locked(struct spw_store *store, double until_ns)
{
	struct spw_request *ended;
	bool happened;

	store->waits = true;
	store->until_ns = until_ns;
	store->happened = false;
	store->ending = NULL;
	stop_running();
	while (store->waits)
		SPW_MUST(pthread_cond_wait(&store->goes_on, &shared.lock));
	ended = store->ending;
	happened = store->happened;
	unlock_shared();
	if (ended)
		simstore_end(ended, 0);
	return happened;
}

static bool advance(struct spw_store *store, double until_ns)
{
	lock_shared();
	return advance_locked(store, until_ns);
}

void simstore_advance(struct spw_store *store, uint64_t ns)
{
	SPW_ASSERT(store->timed);
	while (shared.now_ns < (double)ns && advance(store, (double)ns))
		;
}

void simstore_barrier(struct spw_store *store, unsigned count)
{
	lock_shared();
	store->meets = true;
	if (++shared.met == count) {
		shared.met = 0;
		for (struct spw_store *each = shared.stores; each; each = each->next_timed) {
			if (!each->meets)
				continue;
			each->meets = false;
			if (each->waits)
				wake(each);
		}
	}
	while (store->meets) {
		(void)advance_locked(store, NEVER_NS);
		lock_shared();
	}
	unlock_shared();
}

/* ---- What the cache calls -------------------------------------------------------------------- */

static int put(struct spw_store *store, const void *bytes, size_t len,
	       const struct spw_notify *notify, spw_object *id, struct spw_request **out)
{
	struct simstore_object *object = NULL;
	struct spw_request *request = NULL;
	int rc;

	simstore_lock(store);
	rc = store->put_error;
	store->put_error = 0;
	if (!rc && len > store->capacity - store->used)
		rc = -ENOSPC;
	if (!rc) {
		object = new_object(store, len);
		rc = object ? 0 : -ENOMEM;
	}
	if (!rc) {
		request = new_request(store, notify, len);
		rc = request ? 0 : -ENOBUFS;
		if (rc)
			drop_object(store, object);
	}
	if (!rc) {
		request->object = (uint32_t)(object - store->objects);
		request->from = bytes;
		request->cls = SPW_BACKGROUND;
		object->writes = 1;
		store->puts++;
		store->traffic.bytes_in_flight += len;
		*id = (spw_object){object->generation << 32 | request->object};
		*out = request;
	}
	simstore_unlock(store);
	return rc ? spw_error(rc, SIMSTORE_ERROR_TEXT) : 0;
}

static int get(struct spw_store *store, spw_object id, uint64_t offset, void *bytes, size_t len,
	       enum spw_class cls, const struct spw_notify *notify, struct spw_request **out)
{
	struct simstore_object *object;
	struct spw_request *request;

	simstore_lock(store);
	object = object_of(store, id);
	SPW_ASSERT(object && object->reads == 0 && offset + len <= object->len);
	request = new_request(store, notify, len);
	if (request) {
		request->read = true;
		request->object = (uint32_t)(object - store->objects);
		request->into = bytes;
		request->offset = offset;
		request->cls = cls;
		object->reads++;
		store->gets++;
		store->traffic.bytes_in_flight += len;
		*out = request;
	} else if (cls == SPW_URGENT_READ) {
		store->urgent_refused++;
	}
	simstore_unlock(store);
	return request ? 0 : spw_error(-ENOBUFS, "no request");
}

static int free_object(struct spw_store *store, spw_object id)
{
	struct simstore_object *object;

	simstore_lock(store);
	object = object_of(store, id);
	SPW_ASSERT(object && object->writes == 0 && object->reads == 0);
	drop_object(store, object);
	simstore_unlock(store);
	return 0;
}

static int holds(struct spw_store *store, spw_object id, const void *bytes, uint64_t offset,
		 size_t len)
{
	struct simstore_object *object;
	int rc;

	simstore_lock(store);
	object = object_of(store, id);
	SPW_ASSERT(!object || offset + len <= object->len);
	if (!object)
		rc = -ENOENT;
	else if (store->no_checksums)
		rc = -EOPNOTSUPP;
	else if (object->writes > 0)
		rc = -EINPROGRESS;
	else if (!object->written)
		rc = -EIO;
	else
		rc = memcmp((const uint8_t *)bytes + offset, object->bytes + offset, len) == 0;
	simstore_unlock(store);
	return rc;
}

static uint64_t arena_bytes(struct spw_store *store)
{
	return store->arena;
}

/* Allocate memory; its length is stored in front of it. */
static int alloc_memory(struct spw_store *store, size_t len, void **memory)
{
	uint8_t *block = NULL;

	simstore_lock(store);
	if (len <= store->arena - store->arena_used)
		block = aligned_alloc(MEMORY_ALIGN, spw_round_up(len, MEMORY_ALIGN) + MEMORY_ALIGN);
	if (block) {
		memcpy(block, &len, sizeof(len));
		store->arena_used += len;
	}
	simstore_unlock(store);
	if (!block)
		return spw_error(-ENOBUFS, "the arena is full");
	*memory = block + MEMORY_ALIGN;
	return 0;
}

static void release_memory(struct spw_store *store, void *memory)
{
	uint8_t *block = (uint8_t *)memory - MEMORY_ALIGN;
	size_t len;

	memcpy(&len, block, sizeof(len));
	simstore_lock(store);
	store->arena_used -= len;
	simstore_unlock(store);
	memset(memory, 0xdd, len);
	free(block);
}

static int wait_for(struct spw_request *request)
{
	struct spw_store *store = request->store;
	int res;

	while (store->timed && request->state != SIMSTORE_ENDED)
		SPW_MUST(!advance(store, NEVER_NS));
	if (!store->timed && !store->wait_for_test)
		simstore_end(request, store->wait_res);
	simstore_lock(store);
	while (request->state != SIMSTORE_ENDED)
		SPW_MUST(pthread_cond_wait(&store->changed, &store->lock));
	res = request->res;
	simstore_unlock(store);
	drop_request(store, request);
	return res ? spw_error(res, SIMSTORE_ERROR_TEXT) : 0;
}

/*
 * Wait until a request can be made; in a timed store, until the next event. The timeout is only for
 * real stores: simulated ones always make progress.
 */
static int wait_request(struct spw_store *store, int64_t timeout_ns)
{
	(void)timeout_ns;
	simstore_lock(store);
	store->request_waits++;
	SPW_MUST(pthread_cond_broadcast(&store->changed));
	while (store->requests_used >= store->requests_max) {
		if (!store->timed) {
			SPW_MUST(pthread_cond_wait(&store->changed, &store->lock));
			continue;
		}
		simstore_unlock(store);
		SPW_MUST(!advance(store, NEVER_NS));
		simstore_lock(store);
	}
	simstore_unlock(store);
	return 0;
}

/* A cancelled request still has to end: in a timed store it ends now, but after this call. */
static int cancel(struct spw_request *request)
{
	struct spw_store *store = request->store;
	int rc = -EALREADY;

	simstore_lock(store);
	SPW_ASSERT(request->state != SIMSTORE_UNUSED);
	if (request->state == SIMSTORE_QUEUED) {
		request->state = SIMSTORE_CANCELLED;
		request->end_ns = shared.now_ns;
		store->cancels++;
		rc = 0;
	}
	simstore_unlock(store);
	return rc;
}

static void raise_class(struct spw_request *request, enum spw_class cls)
{
	struct spw_store *store = request->store;

	simstore_lock(store);
	SPW_ASSERT(request->state != SIMSTORE_UNUSED && request->read);
	if (cls < request->cls)
		request->cls = cls;
	request->raised = true;
	store->raises++;
	simstore_unlock(store);
}

static uint64_t chunk_bytes(const struct spw_store *store)
{
	return store->chunk_bytes;
}

/* One drive. All other counters are 0: the cache does not use them. */
static void stats(struct spw_store *store, struct spw_store_stats *out, size_t size)
{
	(void)store;
	SPW_ASSERT(size == sizeof(*out));
	*out = (struct spw_store_stats){.size = size, .drives = 1};
}

static void traffic(struct spw_store *store, struct spw_store_traffic *out)
{
	simstore_lock(store);
	*out = store->traffic;
	simstore_unlock(store);
}

static uint64_t clock_ns(void)
{
	return timed ? (uint64_t)shared.now_ns : spw_clock_ns();
}

/* If timed, no other thread signals: let the drives serve, and the caller checks its condition. */
static int sleep_for_io(pthread_cond_t *io_ended, pthread_mutex_t *lock)
{
	if (!timed)
		return pthread_cond_wait(io_ended, lock);
	(void)pthread_mutex_unlock(lock);
	SPW_MUST(!advance(timed, NEVER_NS));
	return pthread_mutex_lock(lock);
}

static int sleep_for_io_until(pthread_cond_t *io_ended, pthread_mutex_t *lock, uint64_t until_ns)
{
	if (!timed)
		return spw_cache__ports_real.sleep_until(io_ended, lock, until_ns);
	(void)pthread_mutex_unlock(lock);
	(void)advance(timed, (double)until_ns);
	return pthread_mutex_lock(lock);
}

static uint64_t cpu_ns(void)
{
	return 0;
}

/* Run the thread's work at once, in the caller: it takes no simulated time. */
static int start(void *(*main)(void *), void *argument)
{
	(void)main(argument);
	return 0;
}

static int left(struct spw_store *store, double rated, double *bytes)
{
	*bytes = rated > 0 ? rated : store->left;
	return *bytes > 0 ? 0 : spw_error(-ENODATA, "how long drive 1 lasts is not known");
}

/*
 * Other ranks see these counters only after time has moved, so that the result does not depend on
 * the order of threads at one time.
 */
static void publish_steps(struct spw_store *store, const struct spw_cache_stats *steps)
{
	if (!store->timed)
		return;
	lock_shared();
	if (store->published_ns < shared.now_ns)
		store->published[0] = store->published[1];
	store->published[1] = *steps;
	store->published_ns = shared.now_ns;
	unlock_shared();
}

static void ranks(struct spw_store *store, uint64_t age_max_ns,
		  void (*see)(void *context, const struct spw_cache_stats *steps), void *context)
{
	if (!store->timed)
		return;
	lock_shared();
	for (const struct spw_store *each = shared.stores; each; each = each->next_timed)
		if (each != store && each->published_ns + (double)age_max_ns >= shared.now_ns)
			see(context, &each->published[each->published_ns < shared.now_ns]);
	unlock_shared();
}

static void give_back(struct spw_store *store)
{
	(void)store;
}

const struct spw_cache_ports simstore_ports = {
	.chunk_bytes = chunk_bytes,
	.arena_bytes = arena_bytes,
	.stats = stats,
	.traffic = traffic,
	.left = left,
	.publish_steps = publish_steps,
	.ranks = ranks,
	.put = put,
	.get = get,
	.holds = holds,
	.free = free_object,
	.alloc = alloc_memory,
	.release = release_memory,
	.give_back = give_back,
	.wait = wait_for,
	.cancel = cancel,
	.raise = raise_class,
	.wait_request = wait_request,
	.clock_ns = clock_ns,
	.cpu_ns = cpu_ns,
	.start = start,
	.sleep = sleep_for_io,
	.sleep_until = sleep_for_io_until,
};
