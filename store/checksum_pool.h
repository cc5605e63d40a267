/* SPDX-License-Identifier: MIT */
/*
 * store/checksum_pool.h - helper threads that compute checksums and copy
 *
 * The worker alone knows the store: drives, places, lists. A helper is given a transfer, moves its
 * bytes (store/checksum_job.c), and gives it back by the inbox. Transfers are not assigned: all
 * helpers pull from shared rings, and so does the worker when it has time.
 *
 *   POOL-1  A transfer that was posted is in no other place until it is back with the worker
 *           (STORE-6), and its request cannot end: it counts as in flight there. A write may be
 *           with its drive meanwhile (store/checksums.c).
 *   POOL-2  A helper changes of a transfer what is in @job, and the memory that the transfer is
 *           for. What it reads beside that does not change meanwhile.
 *   POOL-3  The worker does not sleep while a transfer waits in a ring: a helper that was not woken
 *           delays nothing for ever.
 *   POOL-4  What keeps its drive's slot or copy memory while it is posted counts as the drive's:
 *           a write that is not issued yet its slot, any transfer its copy memory (STORE-4).
 *   POOL-5  No more of such writes are posted than keep all busy: else slots that reads could have
 *           are taken by what no drive has yet. (Of two copies one more may be.)
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

/* First in, first out: the worker puts in, any thread takes out. As long as there are transfers. */
struct spw_ring {
	_Atomic uint64_t put __attribute__((aligned(SPW_CACHE_LINE_BYTES))); /* so many, ever */
	_Atomic uint64_t taken __attribute__((aligned(SPW_CACHE_LINE_BYTES)));
	_Atomic(struct transfer *) *slots;
	uint64_t mask;
};

/* In what order they are taken: the first go first, but overtake BYPASSES_MAX times at most. */
enum {
	RING_URGENT, /* reads that somebody waits for */
	RING_OTHERS,
	RINGS,
};

/* Whoever takes from the rings. Nobody else writes to its cache line. */
struct spw_taker {
	uint32_t overtaken; /* how often in a row the others waited for urgent ones */
	struct spw_store *store;
	pthread_t thread;
	_Atomic uint64_t bytes; /* that it summed or copied; read by any thread */
} __attribute__((aligned(SPW_CACHE_LINE_BYTES)));

struct spw_checksum_pool {
	struct spw_ring rings[RINGS];
	_Atomic uint32_t wakes __attribute__((aligned(SPW_CACHE_LINE_BYTES))); /* futex */
	_Atomic uint32_t asleep;                                               /* helpers */
	_Atomic bool stopping;
	/* worker */
	uint32_t count;  /* helpers: constant while the store is open */
	uint32_t posted; /* transfers that are not back yet */
	uint32_t writes; /* of these, those that hold a slot (POOL-4) */
	struct spw_taker worker;
	struct spw_taker each[SPW_WORKERS_MAX - 1];
};

/* The rings, for so many transfers. Return: 0; -ENOMEM. */
int spw_store__pool_open(struct spw_store *store, uint32_t transfers);
/* As many as are wanted, or can be started; the queue is open. Return: 0. */
int spw_store__pool_start(struct spw_store *store);
/* Nothing is posted. Before the queue is closed, by which they wake the worker. */
void spw_store__pool_stop(struct spw_store *store);
void spw_store__pool_close(struct spw_store *store);

/* Worker: may a further write be posted that is not issued yet? */
bool spw_store__pool_has_room(const struct spw_checksum_pool *pool);
/* Worker: has somebody nothing to do soon? */
bool spw_store__pool_is_idle(const struct spw_checksum_pool *pool);
/* Worker: is it better left to others, or until the drives have enough to do? */
bool spw_store__pool_wanted(const struct transfer *transfer);
void spw_store__pool_post(struct transfer *transfer);
/* Worker: helpers that sleep take what it will not itself. */
void spw_store__pool_call(struct spw_store *store);
/* Worker: what was posted is back. */
void spw_store__pool_end(struct transfer *transfer);

/* Any taker. Something waits in a ring. */
bool spw_store__pool_waits(const struct spw_checksum_pool *pool);
/* Return: NULL: nothing waits. */
struct transfer *spw_store__pool_take(struct spw_taker *taker);
/* Of a helper: moved, and back to the worker. */
void spw_store__pool_give(struct spw_taker *taker, struct transfer *transfer);

#endif
