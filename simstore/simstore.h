/* SPDX-License-Identifier: MIT */
/*
 * simstore/simstore.h - a store in memory below the cache or a state, for replays and tests
 *
 * A cache that is opened with simstore_ports (tensor/ports.h) uses it as its store. It is either
 * timed or scripted. Timed, requests are served at the bandwidths of simulated drives, and time
 * moves only while a thread waits, sleeps or calls simstore_advance(). The cache's own code runs
 * unchanged, and gives the same result on any machine and under any load. A thread has one timed
 * store at a time, because the cache does not ask a store for the time. The stores of several
 * threads share one time, which moves when all of them wait for it, and the same drives, which
 * serve all requests in flight alike: a store with more of them gets more. Scripted, time is the
 * system's, any thread may call, and a request ends when simstore_end() is called, with its result.
 *
 * The drives are the planner's model (plan/plan.c): writes and reads each at their bandwidth, both
 * at once at half of the mixed bandwidth each; a request ends a latency and a chunk's time after
 * its last byte. Of each direction the most urgent request goes first, then the oldest.
 *
 * It is stricter than the real store: an object must not be freed while a request uses it, at most
 * one read of an object may be in flight, and nothing may be left at the end. A write copies the
 * bytes when it ends, not when it begins: memory that changed or was freed too early shows.
 */
#ifndef SPW_SIMSTORE_H
#define SPW_SIMSTORE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <spillway/store.h>

#include "tensor/ports.h"

#define SIMSTORE_ERROR_TEXT "drive 2 gave up" /* of every request that fails */

struct simstore_drives {
	double write, read, mixed; /* bytes per nanosecond; 0: nothing is served */
	uint64_t latency_ns;
};

enum simstore_state {
	SIMSTORE_UNUSED,
	SIMSTORE_QUEUED, /* may be cancelled */
	SIMSTORE_ISSUED,
	SIMSTORE_SERVED, /* timed: all bytes are transferred, but the request has not ended */
	SIMSTORE_CANCELLED,
	SIMSTORE_ENDED, /* its callback is running, or its waiter has not seen it yet */
};

struct spw_request {
	struct spw_store *store;
	/* in the list of requests that have not ended, or of unused ones */
	struct spw_request *next;
	enum simstore_state state;
	bool read, raised;
	uint32_t object;
	const uint8_t *from;
	uint8_t *into;
	uint64_t offset;
	size_t len;
	enum spw_class cls;
	struct spw_notify notify;
	int res;
	/* timed: when the first byte was served, when the request ends, bytes still to serve */
	double begin_ns, end_ns, remaining_bytes;
};

struct simstore_object {
	uint64_t generation;
	bool exists, written;
	uint8_t *bytes;
	size_t len;
	unsigned writes, reads; /* in flight */
};

struct spw_store {
	pthread_mutex_t lock;   /* protects what follows */
	pthread_cond_t changed; /* signalled after every change */
	bool timed;             /* constant */

	/* timed: under shared.lock. The thread waits for time, up to until_ns. */
	struct spw_store *next_timed;
	bool waits, meets;
	struct spw_cache_stats published[2]; /* [1]: at published_ns; [0]: before that */
	double published_ns;
	pthread_cond_t goes_on;
	double until_ns;
	bool happened;
	struct spw_request *ending;

	uint64_t chunk_bytes; /* constant */

	/* for the owner to read */
	struct spw_request *first, **end; /* requests that have not ended, oldest first */
	struct spw_request *unused;
	struct simstore_object *objects;
	uint32_t objects_max, objects_used;
	unsigned requests_used;
	uint64_t used, arena_used; /* bytes of objects; of memory allocated */
	struct spw_store_traffic traffic;
	unsigned puts, gets, cancels, raises, urgent_refused, request_waits;

	/* for the owner to set, at any time */
	struct simstore_drives drives;
	unsigned requests_max;    /* further requests are refused */
	uint64_t capacity, arena; /* limits of used and arena_used */
	double left;              /* bytes that may still be written to the drives; 0: unknown */
	int put_error;            /* the next put fails with it; then 0 */
	int wait_res;             /* scripted: result of a read that is waited for */
	bool wait_for_test;       /* scripted: waits end only by simstore_end() */
	bool no_checksums;        /* objects cannot be compared with bytes */
	/* called after each request; or NULL */
	void (*ended)(void *context, const struct spw_request *request);
	void *context;
};

extern const struct spw_cache_ports simstore_ports;

/*
 * Open a store: timed if @drives is given, with the clock at 0 if it is the only timed one. Return:
 * NULL: out of memory.
 */
struct spw_store *simstore_open(const struct simstore_drives *drives, uint64_t chunk_bytes);
/* Close a store, which must have no objects, requests or memory left (asserted). */
void simstore_close(struct spw_store *store);

/* Let the clock of a timed store run until @ns. */
void simstore_advance(struct spw_store *store, uint64_t ns);

/*
 * A barrier: returns when @count threads, each with a timed store of its own, have called it. The
 * clock that they share runs while they wait.
 */
void simstore_barrier(struct spw_store *store, unsigned count);

/* End a request. A cancelled request ends with -ECANCELED, whatever @res is. */
void simstore_end(struct spw_request *request, int res);

void simstore_lock(struct spw_store *store);
void simstore_unlock(struct spw_store *store);

#endif
