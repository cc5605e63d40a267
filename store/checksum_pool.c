/* SPDX-License-Identifier: MIT */
/* store/checksum_pool.c - helper threads and their rings: see store/checksum_pool.h */
#include "store/checksum_pool.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "store/checksum_job.h"
#include "store/cpus.h"
#include "store/inbox.h"
#include "store/object.h"
#include "store/open_store.h"
#include "store/priority.h"
#include "store/request.h"
#include "store/transfer.h"
#include "util/util.h"

/*
 * One thread can checksum what two of the fastest drives transfer. At most one thread for every
 * four CPUs, to leave the others to the program.
 */
#define DRIVES_PER_WORKER 2u
#define CPUS_PER_WORKER   4u

#define POSTED_PER_WORKER 2u /* one job running, one waiting */

/* ---- Rings ---- */

static bool ring_waits(const struct spw_ring *ring)
{
	return atomic_load(&ring->put) != atomic_load(&ring->taken);
}

/* The store of ring->put is sequentially consistent, like the load of pool->asleep that follows. */
static void ring_put(struct spw_ring *ring, struct transfer *transfer)
{
	uint64_t put = atomic_load_explicit(&ring->put, memory_order_relaxed);

	/* the ring has room for all transfers (POOL-1) */
	SPW_ASSERT(put - atomic_load(&ring->taken) <= ring->mask);
	atomic_store_explicit(&ring->slots[put & ring->mask], transfer, memory_order_relaxed);
	atomic_store(&ring->put, put + 1);
}

static struct transfer *ring_take(struct spw_ring *ring)
{
	/* Acquire: the load of ring->put below must not return an older value. */
	uint64_t taken = atomic_load_explicit(&ring->taken, memory_order_acquire);
	struct transfer *transfer;

	do {
		if (taken == atomic_load_explicit(&ring->put, memory_order_acquire))
			return NULL;
		/* If another thread has taken this transfer meanwhile, the exchange fails. */
		transfer = atomic_load_explicit(&ring->slots[taken & ring->mask],
						memory_order_relaxed);
	} while (!atomic_compare_exchange_weak_explicit(
		&ring->taken, &taken, taken + 1, memory_order_acq_rel, memory_order_acquire));
	return transfer;
}

static uint64_t ring_count(const struct spw_ring *ring)
{
	uint64_t taken = atomic_load_explicit(&ring->taken, memory_order_acquire);

	return atomic_load_explicit(&ring->put, memory_order_acquire) - taken;
}

bool spw_store__pool_waits(const struct spw_checksum_pool *pool)
{
	return ring_waits(&pool->rings[RING_URGENT]) || ring_waits(&pool->rings[RING_OTHERS]);
}

struct transfer *spw_store__pool_take(struct spw_taker *taker)
{
	struct spw_checksum_pool *pool = taker->store->pool;
	bool others = ring_waits(&pool->rings[RING_OTHERS]);
	unsigned first = others && taker->overtaken >= BYPASSES_MAX ? RING_OTHERS : RING_URGENT;
	struct transfer *transfer = ring_take(&pool->rings[first]);

	if (transfer && first == RING_URGENT) {
		taker->overtaken += others;
		return transfer;
	}
	taker->overtaken = 0;
	return transfer ? transfer : ring_take(&pool->rings[first ^ RING_OTHERS]);
}

/* ---- The worker's side ---- */

static bool keeps_busy(const struct spw_checksum_pool *pool, uint32_t transfers)
{
	return transfers >= POSTED_PER_WORKER * (pool->count + 1);
}

bool spw_store__pool_has_room(const struct spw_checksum_pool *pool)
{
	return !keeps_busy(pool, pool->writes);
}

bool spw_store__pool_is_idle(const struct spw_store *store)
{
	return !keeps_busy(store->pool, store->transfers_posted);
}

bool spw_store__pool_wanted(const struct transfer *transfer)
{
	const struct checksum_job *job = &transfer->job;

	return job->len_bytes >= transfer->store->overlap_bytes_min &&
	       (job->wants_checksum || transfer->bounce);
}

/* A write that is issued only after its copy keeps a slot of its drive until then (POOL-4). */
static bool holds_slot(const struct transfer *transfer)
{
	return transfer->job.op == SPW_WRITE && transfer->bounce;
}

void spw_store__pool_post(struct transfer *transfer)
{
	struct spw_store *store = transfer->store;
	struct store_drive *drive = &store->drives[store->pieces[transfer->piece].drive];
	bool urgent = transfer->job.op == SPW_READ &&
		      atomic_load_explicit(&transfer->request->cls, memory_order_relaxed) ==
			      SPW_URGENT_READ;

	SPW_ASSERT(!transfer->posted && !transfer->checksum_pending); /* on no list (POOL-1) */
	SPW_ASSERT(!transfer->in_flight || (transfer->job.op == SPW_WRITE && !transfer->bounce));
	transfer->posted = true;
	transfer->request->in_flight++;
	store->transfers_posted++;
	store->pool->writes += holds_slot(transfer);
	/* charge the drive for slot and bounce buffer (POOL-4) */
	drive->in_flight += holds_slot(transfer);
	drive->bounces += transfer->bounce != NULL;
	ring_put(&store->pool->rings[urgent ? RING_URGENT : RING_OTHERS], transfer);
}

void spw_store__pool_end(struct transfer *transfer)
{
	struct spw_store *store = transfer->store;
	struct store_drive *drive = &store->drives[store->pieces[transfer->piece].drive];

	/* it counts as in flight (POOL-1) */
	SPW_ASSERT(transfer->posted && transfer->request->in_flight > 0);
	SPW_ASSERT(store->transfers_posted > 0);
	SPW_ASSERT(!holds_slot(transfer) ||
		   (store->pool->writes > 0 && drive->in_flight > 0)); /* charged (POOL-4) */
	SPW_ASSERT(!transfer->bounce || drive->bounces > 0);
	transfer->posted = false;
	transfer->request->in_flight--;
	store->transfers_posted--;
	store->pool->writes -= holds_slot(transfer);
	drive->in_flight -= holds_slot(transfer);
	drive->bounces -= transfer->bounce != NULL;
}

/* Leave one job to the worker, which runs it sooner than a helper wakes up. */
void spw_store__pool_call(struct spw_store *store)
{
	struct spw_checksum_pool *pool = store->pool;
	uint64_t waiting =
		ring_count(&pool->rings[RING_URGENT]) + ring_count(&pool->rings[RING_OTHERS]);
	uint64_t wanted = SPW_MIN(waiting, atomic_load(&pool->asleep) + UINT64_C(1));

	if (wanted < 2)
		return;
	(void)atomic_fetch_add(&pool->wakes, 1);
	(void)syscall(SYS_futex, &pool->wakes, FUTEX_WAKE_PRIVATE, (int)wanted - 1, NULL, NULL, 0);
}

/* ---- The helpers' side ---- */

void spw_store__pool_run(struct spw_taker *taker, struct transfer *transfer)
{
	SPW_ASSERT(transfer->posted); /* the helper owns it (POOL-1) */
	spw_store__job_run(transfer);
	count_add(&taker->bytes, transfer->job.len_bytes);
	transfer->message.kind = MESSAGE_MOVED;
	spw_store__push(transfer->store, &transfer->message);
}

/* Raise pool->asleep before checking the rings: the worker posts first, then reads it. */
static void sleep_until_called(struct spw_checksum_pool *pool)
{
	uint32_t wakes = atomic_load(&pool->wakes);

	(void)atomic_fetch_add(&pool->asleep, 1);
	if (!spw_store__pool_waits(pool) && !atomic_load(&pool->stopping))
		(void)syscall(SYS_futex, &pool->wakes, FUTEX_WAIT_PRIVATE, wakes, NULL, NULL, 0);
	(void)atomic_fetch_sub(&pool->asleep, 1);
}

static void *helper_main(void *argument)
{
	struct spw_taker *self = argument;
	struct spw_checksum_pool *pool = self->store->pool;

	(void)pthread_setname_np(pthread_self(), "spillway-sum");
	spw_store__short_slice(self->store);
	while (!atomic_load(&pool->stopping)) {
		struct transfer *transfer = spw_store__pool_take(self);

		if (transfer)
			spw_store__pool_run(self, transfer);
		else
			sleep_until_called(pool);
	}
	return NULL;
}

/* ---- Open and close ---- */

int spw_store__pool_open(struct spw_store *store, uint32_t transfers)
{
	struct spw_checksum_pool *pool =
		aligned_alloc(_Alignof(struct spw_checksum_pool), sizeof(struct spw_checksum_pool));
	uint64_t slots = 1;

	if (!pool)
		return -ENOMEM;
	memset(pool, 0, sizeof(*pool));
	store->pool = pool;
	pool->worker.store = store;
	while (slots < transfers)
		slots *= 2;
	for (unsigned i = 0; i < RINGS; i++) {
		pool->rings[i].mask = slots - 1;
		pool->rings[i].slots = calloc(slots, sizeof(*pool->rings[i].slots));
		if (!pool->rings[i].slots)
			return -ENOMEM;
	}
	return 0;
}

void spw_store__pool_close(struct spw_store *store)
{
	if (!store->pool)
		return;
	SPW_ASSERT(store->transfers_posted == 0);
	for (unsigned i = 0; i < RINGS; i++)
		free(store->pool->rings[i].slots);
	free(store->pool);
	store->pool = NULL;
}

/* In inline mode, start no helper threads unless the caller asks for them. */
static uint32_t workers_wanted(const struct spw_store *store)
{
	const struct spw_store_opts *opts = &store->opts;
	uint32_t partitions = store->assembly.superblocks[0].partition_count;
	uint32_t per_worker = DRIVES_PER_WORKER * partitions;
	cpu_set_t allowed = store->worker_cpus;
	uint32_t wanted;

	if (opts->workers > 0 || opts->inline_mode || opts->no_checksums)
		return SPW_MAX(opts->workers, 1u);
	if (store->numa_node < 0 && sched_getaffinity(0, sizeof(allowed), &allowed))
		return 1;
	wanted = (store->drive_count + per_worker - 1) / per_worker;
	wanted = SPW_MIN(wanted, (uint32_t)CPU_COUNT(&allowed) / CPUS_PER_WORKER);
	return SPW_MIN(SPW_MAX(wanted, 1u), SPW_WORKERS_MAX);
}

int spw_store__pool_start(struct spw_store *store)
{
	struct spw_checksum_pool *pool = store->pool;
	uint32_t wanted = workers_wanted(store) - 1;
	int rc = 0;

	while (rc == 0 && pool->count < wanted) {
		struct spw_taker *taker = &pool->each[pool->count];

		taker->store = store;
		rc = spw_store__thread(store, &taker->thread, helper_main, taker);
		pool->count += rc == 0;
	}
	if (rc)
		spw_log(&store->opts.log, SPW_LOG_WARNING,
			"%u of %u workers: no more can be started (%s); see ulimit -u",
			pool->count + 1, wanted + 1, spw_strerror(-rc));
	return 0;
}

void spw_store__pool_stop(struct spw_store *store)
{
	struct spw_checksum_pool *pool = store->pool;

	SPW_ASSERT(store->transfers_posted == 0);
	atomic_store(&pool->stopping, true);
	(void)atomic_fetch_add(&pool->wakes, 1);
	(void)syscall(SYS_futex, &pool->wakes, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
	while (pool->count > 0)
		(void)pthread_join(pool->each[--pool->count].thread, NULL);
}
