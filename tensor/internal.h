/* SPDX-License-Identifier: MIT */
/*
 * tensor/internal.h - the cache's own structures: the table of entries, the window of the backward
 * pass, the scopes
 *
 * The states of an entry (entry.c has the table of what is allowed); every one may end in DEAD, by
 * the last release.
 *
 * KEPT       The bytes stay in the owner's memory until the last user is gone.
 * QUEUED     The deferred write, which has not been issued.
 * LEAVING    A copy or a write is in flight, or has ended and the caller has not drained the token.
 *            The bytes are in the owner's memory; of a device, after the copy, in staging memory.
 * HOST       Of a device: the copy in host memory has the bytes, and is not written: the token has
 *            been drained.
 * STORED     The bytes are only on the drives: the token has been drained.
 * COMING     A read is in flight.
 * RESIDENT   In memory until the last user is gone: the owner's, or what was read into; of a
 *            device, staging memory, from which the caller copies.
 * DISCARDED  No memory and no drive has the bytes, only their checksum is kept; for a tensor of a
 *            device the caller keeps it. The caller recomputes them.
 *
 * A tensor of a device (entry->device > 0) passes through staging memory both ways: the caller
 * copies between that and the device, and says when a copy has ended. entry->memory is the staging
 * memory then, and counted apart from the activations; owner's memory is the device's. Of a hosted
 * entry it is host memory, in which the copy stays until the entry is gone: no write follows.
 *
 * Rules, cited by asserts
 *   CACHE-1    Everything here is touched under the cache's lock only. No I/O is waited for and no
 *              log function is called with it held.
 *   CACHE-2    A token is drained once, and never while a copy or a write from its memory is
 *              in flight; of a device, a copy that the caller ordered before all that follows.
 *   CACHE-3    An object is freed only when no I/O on it is in flight.
 *   CACHE-4    At most one read of an entry is in flight, and none while the owner's memory holds
 *              the bytes.
 *   CACHE-5    Memory of the cache is freed only when no lease is out, and no copy or read into it
 *              and no write from it is in flight.
 *   CACHE-6    A slot is used again only when it is DEAD and has no user, lease, waiter, I/O, copy,
 *              token, memory or object.
 *   CACHE-7    Nothing is read from memory of a device. A write begins from staging memory only
 *              when every copy into it has ended well. Of a hosted entry none begins.
 *   CACHE-8    Bytes are accepted as those of a discarded tensor only if they have its checksum; of
 *              a device, the caller compares.
 */
#ifndef SPW_TENSOR_INTERNAL_H
#define SPW_TENSOR_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

#include <spillway/cache.h>
#include <spillway/store.h>
#include <spillway/trace.h>

#include "tensor/control/control.h"
#include "tensor/ports.h"
#include "util/probes.h"
#include "util/util.h"

#define SCOPE_DEPTH_MAX    64 /* scopes nested deeper count as parts of the last one */
#define NO_ORDINAL         UINT32_MAX
#define STAGES_MAX         4096 /* stages of one step that are remembered for the next */
#define ENTRY_MEMORY_ALIGN 4096 /* outside the arena: meets every drive's DMA alignment */

enum entry_state {
	ENTRY_FREE, /* of the table: no tensor */
	ENTRY_KEPT,
	ENTRY_QUEUED,
	ENTRY_LEAVING,
	ENTRY_HOST,
	ENTRY_STORED,
	ENTRY_COMING,
	ENTRY_RESIDENT,
	ENTRY_DISCARDED,
	ENTRY_DEAD,
	ENTRY_STATES,
};

/* clang-format off */
/* Why a tensor is kept, and the counters of it: bytes_kept_*, tensors_kept_*. */
#define KEPT_COUNTERS(X) \
	X(KEEP_SMALL, small) X(KEEP_LAST_SCOPE, last_scope) X(KEEP_BACKPRESSURE, backpressure) \
	X(KEEP_NO_SPACE, no_space) X(KEEP_ERROR, error) X(KEEP_ENTRIES, entries) \
	X(KEEP_OBSERVED, observed) X(KEEP_BACKWARD, backward) X(KEEP_PLANNED, planned) \
	X(KEEP_HINT, hint) X(KEEP_CHANGED, changed) X(KEEP_NO_STAGING, no_staging) \
	X(KEEP_WEAR, wear)
/* clang-format on */

enum keep_reason {
	KEEP_NOT, /* spill it */
#define REASON(reason, counter) reason,
	KEPT_COUNTERS(REASON)
#undef REASON
};

/* Noted once per step; NOTICE_MEMORY and NOTICE_THROTTLE, which only inform, once in all. */
enum notice {
	NOTICE_BACKPRESSURE = CONTROL_NOTICES,
	NOTICE_NO_SPACE,
	NOTICE_WRITE_FAILED,
	NOTICE_PREFETCH_FAILED,
	NOTICE_ENTRIES,
	NOTICE_MEMORY,
	NOTICE_LEASE,
	NOTICE_CHANGED,
	NOTICE_STAGING,
	NOTICE_THROTTLE,
	NOTICE_BUDGET,
	NOTICE_SEARCH,
	NOTICE_COMPARE,
	NOTICES,
};

_Static_assert(NOTICES <= SPW_NOTICES_MAX, "each kind has its text");

/* A circular list with a head, or a member of one. */
struct link {
	struct link *next, *previous;
};

/* Entries of devices, by their device_link, and the bytes of all. */
struct queue {
	struct link head;
	uint64_t bytes;
};

struct entry {
	struct spw_cache *cache;
	struct entry *next; /* of the hash chain, or of the free slots */
	/* of the offers; the last one is the first that the backward pass wants */
	struct link order;
	struct link drain; /* tokens that go back; or writes to be compared */
	/* of a device: in copying, or in coming */
	struct link device_link;
	uint64_t key, version;
	uint64_t offset_bytes, len_bytes; /* of what is stored, in the caller's storage */
	/* of that, in the owner's memory; of a device an address that is only compared */
	const uint8_t *bytes;
	uint64_t owner;
	uint8_t *memory;         /* the cache's, to copy or read into; or NULL */
	struct spw_arena *piece; /* of the host memory, where it lies there; or NULL */
	spw_object object;
	/* valid while the store has the write; NULL while its bytes are compared */
	struct spw_request *write_request;
	/* valid while a prefetch is in flight; NULL for an urgent read */
	struct spw_request *read_request;
	uint64_t io_began_ns; /* of the last request */
	uint64_t scope;       /* of the caller, when it was discarded */
	uint64_t checksum;    /* of the bytes, then */
	uint32_t generation;
	uint32_t users;
	uint32_t leases;
	uint32_t waiters;  /* threads inside take */
	uint64_t sleepers; /* of these, those that wait for the end of its read */
	uint32_t device;   /* 0: host memory */
	uint32_t copies;   /* into memory, in flight */
	uint32_t step, micro_batch;
	struct track track; /* the controller's */
	uint8_t state;
	bool owner_held; /* the caller holds the token */
	bool drainable;  /* in the drain list */
	bool object_exists;
	bool write_in_flight;
	bool read_in_flight;
	bool memory_in_arena; /* the store's */
	bool hosted;          /* memory is where the copy stays */
	bool in_window;       /* counted as prefetched, in this step */
	/* has been in the window, in this step or before, and was not taken since */
	bool prefetched;
	bool forwarded;
	bool taken;
	/* offered again during its write: its memory may have changed since */
	bool recheck;
	bool stale; /* its storage has other bytes now, so later offers do not match it */
	bool copy_failed;
	bool handed_out;   /* of a device: a lease was given, so the device has the bytes again */
	bool copied_ahead; /* by spw_cache_ahead(), and not taken since */
	bool wants_copy;   /* the caller was told to wait for staging memory */
};

/* Memory in which copies of devices' tensors stay, in the order in which it is used. */
struct host {
	struct spw_arena *arenas[SPW_CACHE_HOST_PIECES_MAX];
	uint32_t count;
};

struct scope {
	uint64_t key;
	uint64_t began_bytes;   /* offered in this stage before it was entered */
	uint64_t offered_bytes; /* but for small ones, as all that is offered below */
	uint64_t spilled_bytes;
	uint32_t ordinal; /* of the scopes entered in this stage; NO_ORDINAL: in an earlier one */
	bool has_scopes;  /* not a leaf */
	bool has_tensors;
	uint32_t recorded; /* its number in the recording, or NO_SCOPE */
	uint64_t serial;
};

/*
 * Where in a stage the last leaf scope began, and what was offered from there on: as a rule that
 * scope's tensors and few of what follows it. But heads of a detector, which are in no scope, may
 * save more than all before them.
 */
struct last_scope {
	uint64_t key;
	uint64_t began_bytes; /* offered in the stage before */
	uint64_t bytes;       /* offered from there on */
	uint64_t scope_bytes_max;
	uint32_t ordinal;
	bool valid;
};

struct spw_cache {
	pthread_mutex_t lock;
	const void *holder; /* of the lock, as spw_thread_self(); NULL: it is free */
	pthread_cond_t io_ended;
	struct spw_store *store;
	struct spw_cache_ports ports;
	struct control *control;
	uint32_t plan_number; /* of the controller's, as it was when it was last asked */
	pid_t searcher;       /* the process in which a plan is searched for; 0: none is */
	struct spw_cache_opts opts;
	uint64_t chunk_bytes;

	/* entries */
	struct entry *entries;
	struct entry *free;
	uint32_t entries_touched; /* those behind were never used */
	struct entry **buckets;
	uint64_t bucket_mask;
	struct link order;
	struct link drain, drain_device; /* tokens that go back: of host memory, of devices */
	/* of host memory: written, and offered again during the write */
	struct link to_compare;
	bool comparing;        /* a thread does that */
	uint64_t published_ns; /* when a step that rests has published the counters last */
	/* of devices: copies out that need the device's memory, the oldest first */
	struct queue copying;
	/* of devices: in the window and not on the device, in the order of use */
	struct queue coming;
	uint32_t copies_in_flight; /* out of devices */
	uint32_t device_writes_in_flight;
	struct host host;
	bool devices_tell;                /* how long they stalled, by spw_cache_device_times() */
	uint32_t owner_writes_in_flight;  /* all others: from memory of the host's owners */
	uint64_t returned_bytes;          /* of the tokens in drain */
	uint64_t io_in_flight;            /* requests given to the store */
	uint64_t moved_bytes[DIRECTIONS]; /* by those that have ended well */
	uint64_t waiters;                 /* threads that wait for the end of any I/O */
	bool io_has_ended;                /* waiters are notified after the unlock */
	atomic_uint notifiers;            /* threads that do so now */
	/* called when a transfer has ended: transfers know nothing of the window above them */
	void (*on_io_done)(struct spw_cache *cache);
	/* what the last offer found: spw_cache_hold_back() reads it without the lock */
	atomic_bool may_throttle;
	struct entry *deferred; /* queued, but not given to the store yet; or NULL */
	/* a larger write is only deferred while others are in flight; 0: none is deferred */
	uint64_t defer_bytes;
	void *doomed; /* memory to free outside the lock, linked through its first bytes */

	/* where the caller is */
	uint32_t step, micro_batch;
	uint32_t stage_ordinal; /* of the stages of this step */
	enum spw_stage stage;
	bool backward_marked; /* the caller says when a backward stage begins */

	/* rules */
	uint32_t depth;
	uint64_t scopes_serial;  /* entered so far */
	uint32_t scopes_entered; /* in this stage */
	struct last_scope last_scope;
	bool in_last_scope;               /* it was entered: what follows is kept, but: */
	uint64_t keep_from_bytes;         /* no more than the last of the stage */
	uint64_t stage_bytes;             /* offered in this stage */
	uint64_t scope_bytes_max;         /* in one leaf scope of it */
	uint64_t scope_spilled_bytes_max; /* in this step */
	uint64_t tensor_spilled_bytes_max;

	/* the window: what is in memory, or being read, ahead of its use */
	/* the next to look at, towards the first offer; the head of order: none */
	struct link *cursor;
	uint32_t window_micro_batch;
	/* it has come to next_micro_batch, whose backward stage has not begun */
	bool window_next;
	bool next_backward; /* the caller says that the next stage is a backward stage, */
	uint32_t next_micro_batch;

	/* recompute */
	uint32_t recompute_depth;
	uint64_t recompute_began_ns;
	uint64_t recompute_traced_ns; /* the trace knows of it until then */

	struct spw_cache_stats count;

	/* Long, and last: what every call touches lies together. */
	struct scope scopes[SCOPE_DEPTH_MAX];
	/* by stage ordinal: of the step before, overwritten in this one */
	struct last_scope records[STAGES_MAX];
	struct spw_notices notices; /* of enum control_notice and enum notice */
};

/* CACHE-1, as asserts ask: by this thread. */
static inline bool cache_is_locked(const struct spw_cache *cache)
{
	return cache->holder == spw_thread_self();
}

/* The scope that the caller is in; NULL: none. */
static inline struct scope *scope_innermost(struct spw_cache *cache)
{
	uint32_t known = SPW_MIN(cache->depth, SCOPE_DEPTH_MAX);

	return known > 0 ? &cache->scopes[known - 1] : NULL;
}

/* The controller, which is told and asked under the cache's lock. */
static inline struct control *control_of(const struct spw_cache *cache)
{
	SPW_ASSERT(cache_is_locked(cache)); /* CACHE-1 */
	return cache->control;
}

static inline void link_begin(struct link *link)
{
	link->next = link->previous = link;
}

static inline bool link_alone(const struct link *link)
{
	return link->next == link;
}

static inline void link_append(struct link *head, struct link *link)
{
	SPW_ASSERT(head->previous->next == head);
	link->previous = head->previous;
	link->next = head;
	head->previous->next = link;
	head->previous = link;
}

static inline void link_remove(struct link *link)
{
	SPW_ASSERT(link->previous->next == link && link->next->previous == link);
	link->previous->next = link->next;
	link->next->previous = link->previous;
	link_begin(link);
}

#define ENTRY_OF(link, member) ((struct entry *)((char *)(link)-offsetof(struct entry, member)))

static inline void gauge_add(uint64_t *now, uint64_t *max, uint64_t amount)
{
	*now += amount;
	if (*now > *max)
		*max = *now;
}

static inline void kept_add(struct spw_cache *cache, enum keep_reason reason, uint64_t bytes)
{
	SPW_ASSERT(reason > KEEP_NOT && reason <= KEEP_WEAR);
	switch (reason) {
#define COUNT(which, counter)                               \
	case which:                                         \
		cache->count.bytes_kept_##counter += bytes; \
		cache->count.tensors_kept_##counter++;      \
		break;
		KEPT_COUNTERS(COUNT)
#undef COUNT
	case KEEP_NOT: break;
	}
}

static inline void gauge_sub(uint64_t *now, uint64_t amount)
{
	SPW_ASSERT(*now >= amount);
	*now -= amount;
}

static inline void queue_join(struct queue *queue, struct entry *entry)
{
	SPW_ASSERT(entry->device > 0 && link_alone(&entry->device_link)); /* in one queue at most */
	link_append(&queue->head, &entry->device_link);
	queue->bytes += entry->len_bytes;
}

static inline void queue_quit(struct queue *queue, struct entry *entry)
{
	SPW_ASSERT(!link_alone(&entry->device_link));
	link_remove(&entry->device_link);
	gauge_sub(&queue->bytes, entry->len_bytes);
}

/* The owner's memory has the bytes, and will have them. */
static inline bool entry_at_owner(const struct entry *entry)
{
	return entry->owner_held && !entry->drainable;
}

/* Copies out of the owner's memory are under way, which the caller has not ordered. */
static inline bool entry_is_copying(const struct entry *entry)
{
	return entry_at_owner(entry) && !link_alone(&entry->device_link);
}

/* The entry's bytes are once more, or once less, in memory of the host or of the device. */
static inline void activation_add(struct entry *entry)
{
	struct spw_cache *cache = entry->cache;

	if (entry->device)
		gauge_add(&cache->count.device_bytes, &cache->count.device_bytes_max,
			  entry->len_bytes);
	gauge_add(&cache->count.activation_bytes, &cache->count.activation_bytes_max,
		  entry->len_bytes);
	spw_control__memory_add(control_of(cache), &entry->track, entry->len_bytes);
}

static inline void activation_sub(struct entry *entry)
{
	struct spw_cache *cache = entry->cache;

	if (entry->device)
		gauge_sub(&cache->count.device_bytes, entry->len_bytes);
	gauge_sub(&cache->count.activation_bytes, entry->len_bytes);
	spw_control__memory_sub(control_of(cache), &entry->track, entry->len_bytes);
}

#endif
