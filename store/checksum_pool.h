/* SPDX-License-Identifier: MIT */
/*
 * store/checksum_pool.h - helper threads that compute checksums and copy
 *
 * Only the worker touches the store: drives, extents, lists. A helper takes a posted transfer, runs
 * its job (store/checksum_job.c) and returns it through the inbox. Transfers are not assigned to
 * helpers: all helpers take them from shared rings, and so does the worker when it has time.
 *
 *   POOL-1  A posted transfer is on no list until it is returned to the worker (STORE-6). It counts
 *           as in flight, so its request cannot end. A write may also be in flight on its drive at
 *           the same time (store/checksums.c).
 *   POOL-2  A helper writes only to a transfer's job and to the memory of the transfer. Everything
 *           else that it reads does not change while the transfer is posted.
 *   POOL-3  The worker does not sleep while a transfer waits in a ring, so a helper that is not
 *           woken may delay a transfer, but not forever.
 *   POOL-4  A posted transfer is charged to its drive for what it occupies: a slot, if it is a
 *           write not issued yet; a bounce buffer, if it has one (STORE-4).
 *   POOL-5  Only as many writes that occupy a slot are posted as keep all threads busy. More would
 *           take slots from reads without giving a drive anything to do. (A mirrored chunk may
 *           exceed this by one.)
 */
#ifndef SPW_STORE_CHECKSUM_POOL_H
#define SPW_STORE_CHECKSUM_POOL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <spillway/store.h>

#define SPW_CACHE_LINE_BYTES 64

struct transfer;

/* A FIFO with one producer, the worker, and room for every transfer of the store. */
struct spw_ring {
	/* counted since the store was opened */
	_Atomic uint64_t put __attribute__((aligned(SPW_CACHE_LINE_BYTES)));
	_Atomic uint64_t taken __attribute__((aligned(SPW_CACHE_LINE_BYTES)));
	_Atomic(struct transfer *) *slots;
	uint64_t mask;
};

/* The urgent ring is served first, but at most BYPASSES_MAX times in a row. */
enum {
	RING_URGENT, /* reads that a thread waits for */
	RING_OTHERS,
	RINGS,
};

/* A thread that takes from the rings. No other thread writes to its cache line. */
struct spw_taker {
	uint32_t overtaken; /* how often in a row urgent transfers were taken while others waited */
	struct spw_store *store;
	pthread_t thread;
	_Atomic uint64_t bytes; /* bytes checksummed or copied; read by any thread */
} __attribute__((aligned(SPW_CACHE_LINE_BYTES)));

struct spw_checksum_pool {
	struct spw_ring rings[RINGS];
	_Atomic uint32_t wakes __attribute__((aligned(SPW_CACHE_LINE_BYTES))); /* futex */
	_Atomic uint32_t asleep;                                               /* helpers */
	_Atomic bool stopping;
	/* worker */
	uint32_t count;  /* helpers: constant while the store is open */
	uint32_t writes; /* posted writes that occupy a slot (POOL-4) */
	struct spw_taker worker;
	struct spw_taker each[SPW_WORKERS_MAX - 1];
};

/* Allocate rings with room for @transfers. Return: 0; -ENOMEM. */
int spw_store__pool_open(struct spw_store *store, uint32_t transfers);
/* Start as many helpers as wanted, or as possible. The queue must be open. Return: 0. */
int spw_store__pool_start(struct spw_store *store);
/*
 * Stop the helpers, with nothing posted, before closing the queue, by which they wake the worker.
 */
void spw_store__pool_stop(struct spw_store *store);
void spw_store__pool_close(struct spw_store *store);

/* Worker: may another write be posted that occupies a slot (POOL-5)? */
bool spw_store__pool_has_room(const struct spw_checksum_pool *pool);
/* Worker: will a thread run out of work soon? */
bool spw_store__pool_is_idle(const struct spw_store *store);
/* Worker: is the job large enough to post? Smaller ones are run at once. */
bool spw_store__pool_wanted(const struct transfer *transfer);
void spw_store__pool_post(struct transfer *transfer);
/* Worker: wake helpers for waiting transfers, except for one that the worker takes itself. */
void spw_store__pool_call(struct spw_store *store);
/* Worker: the job of a posted transfer has run. */
void spw_store__pool_end(struct transfer *transfer);

/* Any thread: is there a transfer in a ring? */
bool spw_store__pool_waits(const struct spw_checksum_pool *pool);
/* Take a transfer from the rings. Return: NULL: the rings are empty. */
struct transfer *spw_store__pool_take(struct spw_taker *taker);
/* Helper: run the job and return the transfer to the worker. */
void spw_store__pool_run(struct spw_taker *taker, struct transfer *transfer);

#endif
