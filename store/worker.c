/* SPDX-License-Identifier: MIT */
/* store/worker.c - the I/O thread: receive messages, schedule drives, reap completions */
#include "store/worker.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "store/control_request.h"
#include "store/checksum_job.h"
#include "store/checksum_pool.h"
#include "store/checksums.h"
#include "store/cpus.h"
#include "store/deadlines.h"
#include "store/drive_health.h"
#include "store/flush.h"
#include "store/give_back.h"
#include "store/inbox.h"
#include "store/mirror.h"
#include "store/object.h"
#include "store/open_store.h"
#include "store/priority.h"
#include "store/publish.h"
#include "store/read.h"
#include "store/request.h"
#include "store/transfer.h"
#include "store/write.h"
#include "util/util.h"

/* ---- Messages ---- */

/* The job of a posted transfer has run. */
static void take_back(struct transfer *transfer)
{
	spw_store__pool_end(transfer);
	if (transfer->job.op == SPW_WRITE)
		spw_store__write_job_ended(transfer);
	else
		spw_store__read_job_ended(transfer);
}

static void cancel(struct spw_request *request, const char *why)
{
	spw_store__request_fail(request, -ECANCELED, "%s", why);
	if (request->kind == REQUEST_PUT)
		spw_store__write_end_if_done(request);
	else
		spw_store__read_end_if_done(request);
}

/* End a put or get that was cancelled; other requests check at their begin. Return: was it? */
static bool was_cancelled(struct spw_request *request)
{
	if (request->kind > REQUEST_GET || atomic_load(&request->state) != REQUEST_CANCELLED)
		return false;
	cancel(request, "cancelled");
	return true;
}

static void submitted(struct spw_request *request)
{
	SPW_ASSERT(!request->linked && request->in_flight == 0);
	if (was_cancelled(request))
		return;
	if (request->kind == REQUEST_PUT)
		spw_store__write_submit(request);
	else if (request->kind == REQUEST_GET)
		spw_store__read_submit(request);
	else
		spw_store__control_submit(request);
}

static void changed(struct spw_request *request)
{
	if (request->ends_on_receipt)
		spw_store__request_end(request);
	else if (!was_cancelled(request) && request->kind == REQUEST_GET)
		spw_store__read_raise(request);
}

static void receive(struct spw_store *store, struct message *message)
{
	struct spw_request *request = (struct spw_request *)message;

	switch (message->kind) {
	case MESSAGE_MOVED: take_back((struct transfer *)message); return;
	case MESSAGE_FREE: spw_store__object_reclaim(store, (struct object *)message); return;
	case MESSAGE_SUBMIT:
		atomic_store(&request->inbox, INBOX_RECEIVED); /* now it may end (STORE-10) */
		submitted(request);
		return;
	case MESSAGE_CHANGED:
		atomic_store(&request->inbox, INBOX_RECEIVED); /* now it may end (STORE-10) */
		changed(request);
		return;
	}
}

_Static_assert(offsetof(struct object, message) == 0, "a message is the object it frees");
_Static_assert(offsetof(struct spw_request, message) == 0, "a message is the request it submits");
_Static_assert(offsetof(struct transfer, message) == 0, "a message is the transfer it is of");

static void drain_inbox(struct spw_store *store)
{
	struct message *newest =
		atomic_exchange_explicit(&store->inbox, NULL, memory_order_acquire);
	struct message *oldest = NULL;

	while (newest) {
		struct message *next = newest->next;

		newest->next = oldest;
		oldest = newest;
		newest = next;
	}
	while (oldest) {
		struct message *next = oldest->next;

		receive(store, oldest);
		oldest = next;
	}
}

/* ---- Scheduling ---- */

/* Masks of drives that are skipped until a transfer completes. */
struct lack {
	uint64_t reads;  /* no bounce buffer for their next read */
	uint64_t writes; /* the next chunk cannot be written there now */
};

/* The lowest priority that the drive may serve now; negative: no slot is free. */
static int lowest_priority(const struct spw_store *store, const struct store_drive *drive,
			   bool writes_lack)
{
	if (drive->in_flight >= store->slots_per_drive)
		return -1;
	if (drive->in_flight >= store->opts.queue_depth)
		return PRIORITY_URGENT;
	return writes_lack ? PRIORITY_BACKGROUND : PRIORITY_WRITE;
}

/* Write a chunk to each drive of @willing, while the best drive is one of them (POOL-5). */
static bool write_to(struct spw_store *store, uint64_t willing)
{
	uint64_t left = willing;
	bool issued = false, went;
	struct drive_scores scores;

	spw_store__write_score_drives(store, &scores);
	do {
		went = store->writes_first->object->copies == 2
			       ? spw_store__mirror_next(store, &scores, &left)
			       : spw_store__write_next(store, &scores, &left);
		issued = issued || went;
	} while (went && left && store->writes_first && store->transfer_free &&
		 spw_store__pool_has_room(store->pool));
	return issued;
}

/* Issue one read or write for each drive that is ready. Return: whether to try another round. */
static bool schedule_round(struct spw_store *store, struct lack *lack)
{
	uint64_t no_writes = spw_store__pool_has_room(store->pool) ? lack->writes : UINT64_MAX;
	uint64_t willing = 0;
	bool issued = false;

	for (uint32_t i = 0; i < store->drive_count; i++) {
		uint32_t index = (store->first_drive + i) % store->drive_count;
		struct store_drive *drive = &store->drives[index];
		uint64_t bit = UINT64_C(1) << index;
		int lowest = lowest_priority(store, drive, no_writes & bit);
		int priority;

		if (lack->reads & bit || lowest < 0)
			continue;
		if (drive->retries && lowest > PRIORITY_URGENT) {
			if (spw_store__read_retry_next(store, index))
				issued = true;
			else
				lack->reads |= bit;
			continue;
		}
		/* All are in use only while pieces wait for checksums; each turn frees one. */
		if (!store->transfer_free)
			break;
		priority = spw_store__priority_choose(store, drive, lowest);
		if (priority == PRIORITY_WRITE) {
			willing |= bit;
		} else if (priority < PRIORITY_WRITE) {
			if (!spw_store__read_next(store, index, (enum spw_class)priority)) {
				lack->reads |= bit;
				continue;
			}
			/* Urgent reads in their reserved slots do not overtake others. */
			if (lowest > PRIORITY_URGENT)
				spw_store__priority_served(store, drive, priority);
			issued = true;
		}
	}
	if (willing && store->writes_first && store->transfer_free) {
		if (write_to(store, willing))
			return true;
		/* These drives continue with reads. */
		lack->writes |= willing;
		return issued || store->reads_waiting > 0;
	}
	return issued;
}

static void schedule(struct spw_store *store)
{
	struct lack lack = {0};

	if (store->writes_first && store->drives_retired == store->drive_count)
		spw_store__write_fail_all(store);
	while ((store->writes_first || store->reads_waiting) && schedule_round(store, &lack))
		store->first_drive = (store->first_drive + 1) % store->drive_count;
}

/* ---- The loop ---- */

/* Run one posted job, unless helpers have taken them all. */
static void move_next(struct spw_store *store)
{
	struct transfer *transfer = spw_store__pool_take(&store->pool->worker);

	if (!transfer)
		return;
	spw_store__job_run(transfer);
	take_back(transfer);
}

/*
 * Reap. @sleep: until a completion or message (spw_store__wake()), or @timeout_ns (< 0: no limit).
 */
static int reap(struct spw_store *store, bool sleep, int64_t timeout_ns)
{
	unsigned min = 0;
	int rc;

	if (sleep) {
		atomic_store(&store->asleep, store->writes_first && store->transfers_in_flight > 0
						     ? ASLEEP_WRITES_WAIT
						     : ASLEEP);
		if (!atomic_load(&store->inbox) &&
		    (store->winding_down || !atomic_load(&store->stopping)))
			min = 1;
	}
	rc = spw_queue_reap(store->queue, min, timeout_ns);
	atomic_store(&store->asleep, AWAKE);
	return rc;
}

/* Time until the next deadline, publication, or trial of a resting drive; negative: no limit. */
static int64_t sleep_limit_ns(const struct spw_store *store)
{
	const int64_t limits_ns[] = {spw_store__deadline_timeout_ns(store),
				     spw_store__publish_timeout_ns(store),
				     spw_store__try_again_timeout_ns(store)};
	int64_t least_ns = -1;

	for (size_t i = 0; i < SPW_ARRAY_LEN(limits_ns); i++)
		if (limits_ns[i] >= 0 && (least_ns < 0 || limits_ns[i] < least_ns))
			least_ns = limits_ns[i];
	return least_ns;
}

int spw_store__turn(struct spw_store *store, bool wait, int64_t limit_ns)
{
	uint64_t ended_before = store->ended;
	int64_t timeout_ns;
	bool waits;
	int rc;

	drain_inbox(store);
	spw_store__give_back_if_asked(store);
	spw_store__drives_try_again(store);
	schedule(store);
	spw_store__checksums_post(store);
	waits = spw_store__pool_waits(store->pool);
	if (waits) {
		spw_store__pool_call(store);
		rc = spw_queue_submit(store->queue); /* the drives work during the job */
		if (rc < 0)
			return rc;
		move_next(store);
	}
	timeout_ns = sleep_limit_ns(store);
	if (limit_ns >= 0 && (timeout_ns < 0 || limit_ns < timeout_ns))
		timeout_ns = limit_ns;
	/* no sleep while jobs wait (POOL-3) */
	rc = reap(store, wait && !waits && store->ended == ended_before, timeout_ns);
	if (rc < 0)
		return rc;
	spw_store__deadlines_check(store);
	spw_store__publish(store, false);
	return (int)(store->ended - ended_before);
}

static void cancel_waiting(struct spw_store *store)
{
	struct spw_request *next;

	for (struct spw_request *request = store->writes_first; request; request = next) {
		next = request->next;
		cancel(request, "the store was closed");
	}
	for (uint32_t i = 0; i < store->drive_count * (uint32_t)SPW_CLASSES; i++) {
		struct read_list *list = &store->drives[i / SPW_CLASSES].waiting[i % SPW_CLASSES];

		while (list->first)
			cancel(list->first->request, "the store was closed");
	}
}

/*
 * Cancel requests, and wait for all transfers, however long: drives may use the buffers until then.
 */
static void wind_down(struct spw_store *store)
{
	store->winding_down = true;
	do {
		drain_inbox(store);
		cancel_waiting(store);
		spw_store__read_cancel_retries(store);
		spw_store__flush_cancel(store);
		spw_store__checksums_post(store);
		while (spw_store__pool_waits(store->pool))
			move_next(store);
		if (spw_store__is_busy(store))
			(void)reap(store, true, -1);
		/* A failed write puts its request on the list again, to end in the next round. */
	} while (spw_store__is_busy(store) || store->writes_first || store->reads_waiting ||
		 atomic_load(&store->inbox));
	spw_store__pool_stop(store);
	for (uint32_t i = 0; i < store->drive_count; i++)
		SPW_ASSERT(store->drives[i].in_flight == 0 && store->drives[i].bounces == 0 &&
			   store->drives[i].dir[SPW_READ].rate.bytes_in_flight == 0 &&
			   store->drives[i].dir[SPW_WRITE].rate.bytes_in_flight == 0);
	/* In the thread that used the queue: otherwise the kernel releases devices later. */
	spw_queue_close(store->queue);
	store->queue = NULL;
}

static void *worker_main(void *argument)
{
	struct spw_store *store = argument;

	(void)pthread_setname_np(pthread_self(), "spillway-io");
	spw_store__short_slice(store);
	while (!atomic_load(&store->stopping)) {
		int rc = spw_store__turn(store, true, -1);

		if (rc < 0)
			spw_log(&store->opts.log, SPW_LOG_ERROR, "the I/O queue failed: %s",
				spw_last_error());
	}
	/* Wait until spw_store__stop() no longer uses the queue, which wind_down() closes. */
	while (sem_wait(&store->stop_woken) && errno == EINTR)
		;
	wind_down(store);
	return NULL;
}

int spw_store__start(struct spw_store *store)
{
	int rc;

	if (store->opts.inline_mode)
		return 0;
	(void)sem_init(&store->stop_woken, 0, 0);
	rc = spw_store__thread(store, &store->worker, worker_main, store);
	if (rc)
		return spw_error_errno(-rc, "cannot start the I/O worker");
	store->worker_started = true;
	return 0;
}

void spw_store__stop(struct spw_store *store)
{
	atomic_store(&store->stopping, true);
	if (store->worker_started) {
		spw_store__wake(store);
		(void)sem_post(&store->stop_woken);
		(void)pthread_join(store->worker, NULL);
		(void)sem_destroy(&store->stop_woken);
	} else if (store->queue) {
		wind_down(store);
	}
}
