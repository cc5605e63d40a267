/* SPDX-License-Identifier: MIT */
/* tools/replay/drive.c - the simulated drive, its time, and the record of transfers */
#include "tools/replay/drive.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/ports.h"
#include "tools/ui/stop.h"
#include "util/util.h"

#define MEMORY_ALIGN 4096
#define NEVER_NS     1e300

/* ---- The record ------------------------------------------------------------------------------ */

static struct {
	pthread_mutex_t lock;
	/* read without the lock, too: transfers begin on the store's thread as well */
	atomic_bool on;
	void (*ended)(void *context);
	void *context;
	struct replay_transfer *transfers;
	size_t count, max;
} record = {.lock = PTHREAD_MUTEX_INITIALIZER};

void replay_drive_watch(bool on, void (*ended)(void *context), void *context)
{
	(void)pthread_mutex_lock(&record.lock);
	record.on = on;
	record.ended = ended;
	record.context = context;
	(void)pthread_mutex_unlock(&record.lock);
}

const struct replay_transfer *replay_drive_transfers(size_t *count)
{
	*count = record.count;
	return record.transfers;
}

void replay_drive_forget(void)
{
	free(record.transfers);
	record.transfers = NULL;
	record.count = record.max = 0;
}

/* A picture with a transfer missing is still worth having: without memory, it is left out. */
static void record_transfer(const struct replay_transfer *transfer)
{
	/*
	 * The callback under the lock: who has stopped watching knows that nobody is in it any
	 * more.
	 */
	(void)pthread_mutex_lock(&record.lock);
	if (record.on && record.count == record.max) {
		size_t max = record.max ? 2 * record.max : 1024;
		struct replay_transfer *grown = realloc(record.transfers, max * sizeof(*grown));

		if (grown) {
			record.transfers = grown;
			record.max = max;
		}
	}
	if (record.on && record.count < record.max)
		record.transfers[record.count++] = *transfer;
	if (record.on && record.ended)
		record.ended(record.context);
	(void)pthread_mutex_unlock(&record.lock);
}

/* ---- The simulated drive --------------------------------------------------------------------- */

struct sim_object {
	uint8_t *bytes;
	size_t len;
	bool written;
};

struct sim_request {
	struct sim_request *next; /* of the same direction */
	struct sim_object *object;
	const uint8_t *from;
	uint8_t *into;
	size_t len;
	double remaining_bytes;
	double begin_ns, end_ns; /* of the end: when the last byte is served, and the delay over */
	bool begun, served, urgent, read, cancelled, waited_for, ended;
	struct spw_notify notify;
};

/* Requests in the order in which they came. */
struct sim_channel {
	struct sim_request *first, **end;
	double bytes_per_ns, delay_ns; /* alone */
};

static struct sim {
	bool on;
	struct sim_channel write, read;
	double mixed_bytes_per_ns;
	double now_ns;
	uint64_t chunk_bytes;
} sim;

static char sim_store; /* its address stands for the store */

static double delay_of(const struct spw_plan_drives *drives, uint64_t bytes_per_second,
		       uint64_t chunk_bytes)
{
	return (double)drives->latency_ns +
	       (bytes_per_second > 0 ? (double)chunk_bytes * 1e9 / (double)bytes_per_second : 0);
}

void replay_drive_change(const struct spw_plan_drives *drives)
{
	uint64_t write = drives->write_bytes_per_second, read = drives->read_bytes_per_second;
	uint64_t mixed = drives->mixed_bytes_per_second ? drives->mixed_bytes_per_second
			 : write < read                 ? write
							: read;

	sim.write.bytes_per_ns = (double)write / 1e9;
	sim.read.bytes_per_ns = (double)read / 1e9;
	sim.mixed_bytes_per_ns = (double)mixed / 1e9;
	sim.write.delay_ns = delay_of(drives, write, sim.chunk_bytes);
	sim.read.delay_ns = delay_of(drives, read, sim.chunk_bytes);
}

void replay_drive_begin(const struct spw_plan_drives *drives, uint64_t chunk_bytes)
{
	memset(&sim, 0, sizeof(sim));
	sim.on = true;
	sim.chunk_bytes = chunk_bytes;
	sim.write.end = &sim.write.first;
	sim.read.end = &sim.read.first;
	replay_drive_change(drives);
}

struct spw_store *replay_drive_store(void)
{
	return (struct spw_store *)&sim_store;
}

void replay_drive_end(void)
{
	SPW_ASSERT(!sim.write.first && !sim.read.first);
	sim.on = false;
}

/* The one that is being served: of reads, the first that somebody waits for. */
static struct sim_request *served_now(const struct sim_channel *channel)
{
	struct sim_request *first = NULL;

	for (struct sim_request *request = channel->first; request; request = request->next) {
		if (request->served)
			continue;
		if (request->urgent)
			return request;
		if (!first)
			first = request;
	}
	return first;
}

static struct sim_request *ends_next(const struct sim_channel *channel)
{
	struct sim_request *next = NULL;

	for (struct sim_request *request = channel->first; request; request = request->next)
		if (request->served && (!next || request->end_ns < next->end_ns))
			next = request;
	return next;
}

static void unlink_request(struct sim_channel *channel, const struct sim_request *request)
{
	struct sim_request **link = &channel->first;

	while (*link != request)
		link = &(*link)->next;
	*link = request->next;
	for (channel->end = link; *channel->end;)
		channel->end = &(*channel->end)->next;
}

static void end_request(struct sim_channel *channel, struct sim_request *request)
{
	struct replay_transfer transfer = {.begin_ns = (uint64_t)request->begin_ns,
					   .end_ns = (uint64_t)sim.now_ns,
					   .bytes = request->len,
					   .read = request->read};

	unlink_request(channel, request);
	request->ended = true;
	if (!request->cancelled) {
		memcpy(request->read ? request->into : request->object->bytes,
		       request->read ? request->object->bytes : request->from, request->len);
		request->object->written = true;
	}
	if (request->notify.done)
		request->notify.done(request->notify.context, request->cancelled ? -ECANCELED : 0);
	if (!request->cancelled)
		record_transfer(&transfer);
	if (request->notify.done)
		free(request);
}

static void serve(struct sim_request *request, double bytes_per_ns, double ns)
{
	if (!request)
		return;
	if (!request->begun)
		request->begin_ns = sim.now_ns;
	request->begun = true;
	request->remaining_bytes = fmax(request->remaining_bytes - bytes_per_ns * ns, 0);
}

static void serve_ended(struct sim_channel *channel, struct sim_request *request)
{
	request->remaining_bytes = 0;
	request->served = true;
	request->end_ns = sim.now_ns + channel->delay_ns;
}

static double serve_end_ns(const struct sim_request *request, double bytes_per_ns)
{
	return request && bytes_per_ns > 0 ? sim.now_ns + request->remaining_bytes / bytes_per_ns
					   : NEVER_NS;
}

/*
 * The next thing that happens on the drive, unless it is after @until_ns. Return: whether there was
 * one.
 */
static bool advance(double until_ns)
{
	struct sim_request *write = served_now(&sim.write), *read = served_now(&sim.read);
	struct sim_request *written = ends_next(&sim.write), *have_read = ends_next(&sim.read);
	double write_rate = sim.write.bytes_per_ns, read_rate = sim.read.bytes_per_ns;
	double write_ns, read_ns, next_ns;

	if (write && read) {
		write_rate = fmin(write_rate, sim.mixed_bytes_per_ns / 2);
		read_rate = fmin(read_rate, sim.mixed_bytes_per_ns / 2);
	}
	write_ns = serve_end_ns(write, write_rate);
	read_ns = serve_end_ns(read, read_rate);
	next_ns = fmin(fmin(write_ns, read_ns), fmin(written ? written->end_ns : NEVER_NS,
						     have_read ? have_read->end_ns : NEVER_NS));
	if (next_ns >= NEVER_NS && until_ns >= NEVER_NS)
		return false;
	serve(write, write_rate, fmin(next_ns, until_ns) - sim.now_ns);
	serve(read, read_rate, fmin(next_ns, until_ns) - sim.now_ns);
	sim.now_ns = fmin(next_ns, until_ns);
	if (next_ns > until_ns)
		return false;
	if (write && write_ns <= next_ns)
		serve_ended(&sim.write, write);
	else if (read && read_ns <= next_ns)
		serve_ended(&sim.read, read);
	else if (written && written->end_ns <= next_ns)
		end_request(&sim.write, written);
	else if (have_read)
		end_request(&sim.read, have_read);
	return true;
}

void replay_drive_sleep_until(uint64_t ns)
{
	if (!sim.on) {
		tool_stop_sleep_until(ns);
		return;
	}
	while (sim.now_ns < (double)ns && advance((double)ns))
		;
}

static void append(struct sim_channel *channel, struct sim_request *request)
{
	request->next = NULL;
	*channel->end = request;
	channel->end = &request->next;
}

static int sim_put(struct spw_store *store, const void *bytes, size_t len,
		   const struct spw_notify *notify, spw_object *object,
		   struct spw_request **request)
{
	struct sim_object *stored = calloc(1, sizeof(*stored));
	struct sim_request *write = calloc(1, sizeof(*write));

	(void)store;
	if (stored)
		stored->bytes = malloc(len);
	if (!stored || !stored->bytes || !write) {
		free(write);
		if (stored)
			free(stored->bytes);
		free(stored);
		return spw_error(-ENOMEM, "no memory for the simulated drive");
	}
	stored->len = len;
	*write = (struct sim_request){
		.object = stored, .from = bytes, .len = len, .remaining_bytes = (double)len};
	if (notify)
		write->notify = *notify;
	append(&sim.write, write);
	object->value = (uint64_t)(uintptr_t)stored;
	if (request)
		*request = (struct spw_request *)write;
	return 0;
}

static int sim_get(struct spw_store *store, spw_object object, uint64_t offset, void *bytes,
		   size_t len, enum spw_class cls, const struct spw_notify *notify,
		   struct spw_request **request)
{
	struct sim_object *stored = (struct sim_object *)(uintptr_t)object.value;
	struct sim_request *read = calloc(1, sizeof(*read));

	(void)store;
	SPW_ASSERT(offset == 0 && len <= stored->len);
	if (!read)
		return spw_error(-ENOMEM, "no memory for the simulated drive");
	*read = (struct sim_request){.object = stored,
				     .into = bytes,
				     .len = len,
				     .remaining_bytes = (double)len,
				     .urgent = cls == SPW_URGENT_READ,
				     .read = true};
	if (notify)
		read->notify = *notify;
	append(&sim.read, read);
	if (request)
		*request = (struct spw_request *)read;
	return 0;
}

static int sim_wait(struct spw_request *waited_for)
{
	struct sim_request *request = (struct sim_request *)waited_for;
	int res;

	while (!request->ended)
		SPW_ASSERT(advance(NEVER_NS));
	res = request->cancelled ? -ECANCELED : 0;
	free(request);
	return res;
}

/* A cancelled request still ends by itself: now, but not within this call. */
static int sim_cancel(struct spw_request *cancelled)
{
	struct sim_request *request = (struct sim_request *)cancelled;

	if (request->begun)
		return -EALREADY;
	request->cancelled = true;
	request->served = true;
	request->end_ns = sim.now_ns;
	return 0;
}

static uint64_t sim_chunk_bytes(const struct spw_store *store)
{
	(void)store;
	return sim.chunk_bytes;
}

/* One drive, and nothing that it could count better than the cache does. */
static void sim_stats(struct spw_store *store, struct spw_store_stats *stats, size_t size)
{
	const struct spw_store_stats simulated = {.size = size, .drives = 1};

	(void)store;
	spw_opts_merge(stats, size, &simulated, sizeof(simulated));
}

static int sim_holds(struct spw_store *store, spw_object object, const void *bytes, uint64_t offset,
		     size_t len)
{
	const struct sim_object *stored = (const struct sim_object *)(uintptr_t)object.value;

	(void)store;
	if (!stored->written)
		return -EINPROGRESS;
	return memcmp((const uint8_t *)bytes + offset, stored->bytes + offset, len) == 0;
}

static int sim_free(struct spw_store *store, spw_object object)
{
	struct sim_object *stored = (struct sim_object *)(uintptr_t)object.value;

	(void)store;
	free(stored->bytes);
	free(stored);
	return 0;
}

static int sim_alloc(struct spw_store *store, size_t len, void **memory)
{
	(void)store;
	*memory = aligned_alloc(MEMORY_ALIGN, spw_round_up(len, MEMORY_ALIGN));
	return *memory ? 0 : spw_error(-ENOBUFS, "no memory");
}

static void sim_release(struct spw_store *store, void *memory)
{
	(void)store;
	free(memory);
}

static void sim_raise(struct spw_request *request, enum spw_class cls)
{
	if (cls == SPW_URGENT_READ)
		((struct sim_request *)request)->urgent = true;
}

static uint64_t sim_clock_ns(void)
{
	return (uint64_t)sim.now_ns;
}

/* Nobody else is there who could make it true: the drive goes on, and the waiter looks again. */
static int sim_sleep(pthread_cond_t *io_ended, pthread_mutex_t *lock)
{
	(void)io_ended;
	(void)pthread_mutex_unlock(lock);
	SPW_ASSERT(advance(NEVER_NS));
	return pthread_mutex_lock(lock);
}

static const struct spw_cache_ports simulated = {
	.chunk_bytes = sim_chunk_bytes,
	.stats = sim_stats,
	.put = sim_put,
	.get = sim_get,
	.holds = sim_holds,
	.free = sim_free,
	.alloc = sim_alloc,
	.release = sim_release,
	.wait = sim_wait,
	.cancel = sim_cancel,
	.raise = sim_raise,
	.clock_ns = sim_clock_ns,
	.sleep = sim_sleep,
};

/* ---- Watching a real store ------------------------------------------------------------------- */

struct watched {
	struct spw_notify notify;
	struct replay_transfer transfer;
};

/* The read that the replaying thread waits for. */
static struct {
	const struct spw_request *request;
	struct replay_transfer transfer;
} waited;

static void watched_done(void *context, int res)
{
	struct watched *watched = context;

	watched->transfer.end_ns = spw_clock_ns();
	watched->transfer.failed = res != 0;
	watched->notify.done(watched->notify.context, res);
	if (res != -ECANCELED)
		record_transfer(&watched->transfer);
	free(watched);
}

/* Return: what to submit with instead of @notify; NULL: @notify itself. */
static struct watched *watch(const struct spw_notify *notify, struct spw_notify *ours, size_t len,
			     bool read)
{
	struct watched *watched = notify ? malloc(sizeof(*watched)) : NULL;

	if (!watched)
		return NULL;
	*watched = (struct watched){
		.notify = *notify,
		.transfer = {.begin_ns = spw_clock_ns(), .bytes = len, .read = read},
	};
	*ours = (struct spw_notify){.done = watched_done, .context = watched};
	return watched;
}

static int watched_put(struct spw_store *store, const void *bytes, size_t len,
		       const struct spw_notify *notify, spw_object *object,
		       struct spw_request **request)
{
	struct spw_notify ours;
	struct watched *watched = record.on ? watch(notify, &ours, len, false) : NULL;
	int rc = spw_store_put(store, bytes, len, watched ? &ours : notify, object, request);

	if (rc)
		free(watched);
	return rc;
}

static int watched_get(struct spw_store *store, spw_object object, uint64_t offset, void *bytes,
		       size_t len, enum spw_class cls, const struct spw_notify *notify,
		       struct spw_request **request)
{
	struct spw_notify ours;
	struct watched *watched = record.on ? watch(notify, &ours, len, true) : NULL;
	int rc = spw_store_get(store, object, offset, bytes, len, cls, watched ? &ours : notify,
			       request);

	if (rc) {
		free(watched);
	} else if (!notify && request) {
		waited.request = *request;
		waited.transfer = (struct replay_transfer){
			.begin_ns = spw_clock_ns(), .bytes = len, .read = true};
	}
	return rc;
}

static int watched_wait(struct spw_request *request)
{
	bool ours = request == waited.request;
	int rc = spw_request_wait(request);

	if (ours) {
		waited.request = NULL;
		waited.transfer.end_ns = spw_clock_ns();
		waited.transfer.failed = rc != 0;
		record_transfer(&waited.transfer);
	}
	return rc;
}

/* ---- What the cache is opened with ----------------------------------------------------------- */

int replay_drive_open_cache(struct spw_store *store, const struct spw_cache_opts *opts,
			    struct spw_cache **cache)
{
	struct spw_cache_ports real = spw_cache_ports_real;

	real.put = watched_put;
	real.get = watched_get;
	real.wait = watched_wait;
	return spw_cache_open_with(store, opts, sim.on ? &simulated : &real, cache);
}

uint64_t replay_drive_now_ns(void)
{
	return sim.on ? sim_clock_ns() : spw_clock_ns();
}
