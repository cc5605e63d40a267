/* SPDX-License-Identifier: MIT */
/*
 * tensor/ports.h - what the cache needs from outside: a store, and time
 *
 * A simulation opens a cache with ports of its own. The store is then a handle that only they know.
 * Each function has the contract of the one that is named beside it. All may be called by any
 * thread that calls the cache, some with the cache's lock held: they must not call it back, but for
 * the done functions of requests, which the store calls from elsewhere.
 */
#ifndef SPW_TENSOR_PORTS_H
#define SPW_TENSOR_PORTS_H

#include <pthread.h>

#include <spillway/cache.h>

struct spw_cache_ports {
	uint64_t (*chunk_bytes)(const struct spw_store *store); /* spw_store_chunk_bytes() */
	uint64_t (*arena_bytes)(struct spw_store *store);       /* spw_store_alloc_max() */
	/* spw_store_stats() */
	void (*stats)(struct spw_store *store, struct spw_store_stats *stats, size_t size);
	void (*traffic)(struct spw_store *store,
			struct spw_store_traffic *traffic); /* spw_store_traffic() */
	/* spw_wear(), of all drives: how much they may still be written together */
	int (*left)(struct spw_store *store, double rated, double *bytes);
	void (*publish_steps)(struct spw_store *store,
			      const struct spw_cache_stats *steps); /* spw_store_publish_steps() */
	/* spw_store_ranks() */
	void (*ranks)(struct spw_store *store, uint64_t age_max_ns,
		      void (*see)(void *context, const struct spw_cache_stats *steps),
		      void *context);
	int (*put)(struct spw_store *store, const void *bytes, size_t len,
		   const struct spw_notify *notify, spw_object *object,
		   struct spw_request **request); /* spw_store_put() */
	int (*get)(struct spw_store *store, spw_object object, uint64_t offset, void *bytes,
		   size_t len, enum spw_class cls, const struct spw_notify *notify,
		   struct spw_request **request); /* spw_store_get() */
	int (*holds)(struct spw_store *store, spw_object object, const void *bytes, uint64_t offset,
		     size_t len);                                         /* spw_store_holds() */
	int (*free)(struct spw_store *store, spw_object object);          /* spw_store_free() */
	int (*alloc)(struct spw_store *store, size_t len, void **memory); /* spw_store_alloc() */
	void (*release)(struct spw_store *store, void *memory);           /* spw_store_release() */
	void (*give_back)(struct spw_store *store);                     /* spw_store_give_back() */
	int (*wait)(struct spw_request *request);                       /* spw_request_wait() */
	int (*cancel)(struct spw_request *request);                     /* spw_request_cancel() */
	void (*raise)(struct spw_request *request, enum spw_class cls); /* spw_request_raise() */
	int (*wait_request)(struct spw_store *store,
			    int64_t timeout_ns); /* spw_store_wait_request() */
	uint64_t (*clock_ns)(void);              /* monotonic */
	uint64_t (*cpu_ns)(void);                /* that the calling thread has used */
	/* runs @main(@argument) beside the caller. Return: 0; -errno there is no thread for it */
	int (*start)(void *(*main)(void *), void *argument);
	int (*sleep)(pthread_cond_t *io_ended, pthread_mutex_t *lock); /* pthread_cond_wait() */
	/* the same, but no longer than until clock_ns() is @until_ns. Return: 0 */
	int (*sleep_until)(pthread_cond_t *io_ended, pthread_mutex_t *lock, uint64_t until_ns);
};

/* The store of spillway/store.h, and the system's time. */
extern const struct spw_cache_ports spw_cache__ports_real;

/* spw_cache_open() with ports, which are copied. */
int spw_cache__open_with(struct spw_store *store, const struct spw_cache_opts *opts,
			 const struct spw_cache_ports *ports, struct spw_cache **cache);

#endif
