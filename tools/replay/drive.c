/* SPDX-License-Identifier: MIT */
/* tools/replay/drive.c - the simulated store, and the record of transfers of it or a real one */
#include "tools/replay/drive.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "simstore/simstore.h"
#include "tools/ui/stop.h"
#include "util/util.h"

/* ---- The record ------------------------------------------------------------------------------ */

static struct {
	pthread_mutex_t lock;
	/* also read without the lock, as transfers begin on the store's thread too */
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

/* Record a transfer. Without memory it is left out: a picture without it is still useful. */
static void record_transfer(const struct replay_transfer *transfer)
{
	/* Call back under the lock: no thread is in the callback after watching has stopped. */
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

/* ---- The simulated store --------------------------------------------------------------------- */

static struct spw_store *simulated;

static struct simstore_drives drives_of(const struct spw_plan_drives *drives)
{
	uint64_t write = drives->write_bytes_per_second, read = drives->read_bytes_per_second;
	uint64_t mixed = drives->mixed_bytes_per_second ? drives->mixed_bytes_per_second
			 : write < read                 ? write
							: read;

	return (struct simstore_drives){.write = (double)write / 1e9,
					.read = (double)read / 1e9,
					.mixed = (double)mixed / 1e9,
					.latency_ns = drives->latency_ns};
}

static void simulated_ended(void *context, const struct spw_request *request)
{
	const struct replay_transfer transfer = {.begin_ns = (uint64_t)request->begin_ns,
						 .end_ns = replay_drive_now_ns(),
						 .bytes = request->len,
						 .read = request->read};

	(void)context;
	if (request->res != -ECANCELED)
		record_transfer(&transfer);
}

struct spw_store *replay_drive_begin(const struct spw_plan_drives *drives, uint64_t chunk_bytes)
{
	const struct simstore_drives simstore = drives_of(drives);

	simulated = simstore_open(&simstore, chunk_bytes);
	if (simulated)
		simulated->ended = simulated_ended;
	return simulated;
}

void replay_drive_change(const struct spw_plan_drives *drives)
{
	simulated->drives = drives_of(drives);
}

void replay_drive_end(void)
{
	simstore_close(simulated);
	simulated = NULL;
}

void replay_drive_sleep_until(uint64_t ns)
{
	if (simulated)
		simstore_advance(simulated, ns);
	else
		tool_stop_sleep_until(ns);
}

/* ---- Watching a real store ------------------------------------------------------------------- */

struct watched {
	struct spw_notify notify;
	struct replay_transfer transfer;
};

/* The read for which the replaying thread waits. */
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

/* Watch a transfer. Return: what to submit instead of @notify; NULL: submit @notify itself. */
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

/* ---- The cache on these stores ----------------------------------------------------------- */

int replay_drive_open_cache(struct spw_store *store, const struct spw_cache_opts *opts,
			    struct spw_cache **cache)
{
	struct spw_cache_ports real = spw_cache__ports_real;

	real.put = watched_put;
	real.get = watched_get;
	real.wait = watched_wait;
	return spw_cache__open_with(store, opts, simulated ? &simstore_ports : &real, cache);
}

uint64_t replay_drive_now_ns(void)
{
	return simulated ? simstore_ports.clock_ns() : spw_clock_ns();
}
