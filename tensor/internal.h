/* SPDX-License-Identifier: MIT */
/*
 * tensor/internal.h - the cache's own structures: the table of entries, the window of the backward
 * pass, the scopes
 *
 * How an entry's life runs, and which function makes each step (entry.c holds the table of what is
 * allowed). Every state may end in DEAD, by the last release: spw_entry_die.
 *
 *   FREE --- offer: spw_entry_keep ------------> KEPT
 *   FREE --- offer: spw_entry_queue -----------> QUEUED
 *   QUEUED --- refused: spw_entry_keep --------> KEPT
 *   QUEUED --- issued: spw_entry_issued -------> WRITING
 *   QUEUED --- forwarded: spw_entry_forward ---> RESIDENT
 *   WRITING --- failed: spw_entry_keep --------> KEPT
 *   WRITING --- forwarded: spw_entry_forward --> RESIDENT
 *   WRITING --- drained: spw_entry_stored -----> STORED
 *   STORED --- spw_entry_begin_read -----------> READING
 *   READING --- failed: spw_entry_read_failed -> STORED
 *   READING --- ended: spw_entry_read_ended ---> RESIDENT
 *   DEAD --- nothing refers to the slot any more: spw_entry_recycle ---> FREE
 *
 * An entry whose write has ended stays WRITING until the caller has drained its token: until then
 * the memory is in use, and whoever asks for the bytes gets them from there. STORED therefore means
 * that the memory is given back.
 *
 * Rules, cited by asserts
 *   CACHE-1    Everything here is touched under the cache's lock only. No I/O is waited for and no
 *              log function is called with it held.
 *   CACHE-2    A token is given back once, and never while a write from its memory is in flight.
 *   CACHE-3    An object is freed only when no I/O on it is in flight.
 *   CACHE-4    At most one read of an entry is in flight, and none while the owner's memory holds
 *              the bytes.
 *   CACHE-5    Memory that was read into is freed only when no lease is out and no read into it is
 *              in flight.
 *   CACHE-6    A slot is used again only when it is DEAD and has no user, lease, waiter, I/O,
 *              token, memory or object.
 */
#ifndef SPW_TENSOR_INTERNAL_H
#define SPW_TENSOR_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <spillway/cache.h>
#include <spillway/store.h>
#include <spillway/trace.h>

#include "tensor/adapt.h"
#include "tensor/measure.h"
#include "tensor/ports.h"
#include "util/probes.h"
#include "util/util.h"

#define SCOPE_DEPTH_MAX       64   /* scopes nested deeper count as parts of the last one */
#define STAGES_MAX            4096 /* stages of one step that are remembered for the next */
#define ENTRY_MEMORY_ALIGN    4096 /* outside the arena: meets every drive's DMA alignment */
#define NOTICE_TEXT_BYTES_MAX 320

enum entry_state {
	ENTRY_FREE, /* of the table: no tensor */
	ENTRY_KEPT,
	ENTRY_QUEUED,
	ENTRY_WRITING,
	ENTRY_STORED,
	ENTRY_READING,
	ENTRY_RESIDENT,
	ENTRY_DEAD,
	ENTRY_STATES,
};

enum keep_reason {
	KEEP_NOT, /* spill it */
	KEEP_SMALL,
	KEEP_LAST_SCOPE,
	KEEP_BACKPRESSURE,
	KEEP_NO_SPACE,
	KEEP_ERROR,
	KEEP_ENTRIES,
	KEEP_OBSERVED,
	KEEP_BACKWARD,
	KEEP_PLANNED,
	KEEP_HINT,
	KEEP_CHANGED,
	KEEP_REASONS,
};

/*
 * What is logged once per step; NOTICE_MEMORY once, as it is no trouble, and so in every step or in
 * none.
 */
enum notice {
	NOTICE_BACKPRESSURE,
	NOTICE_NO_SPACE,
	NOTICE_WRITE_FAILED,
	NOTICE_PREFETCH_FAILED,
	NOTICE_ENTRIES,
	NOTICE_MEMORY,
	NOTICE_LEASE,
	NOTICE_SHAPE,
	NOTICE_SHORT,
	NOTICE_PLAN,
	NOTICE_CHANGED,
	NOTICES,
};

/* A circular list with a head, or a member of one. */
struct link {
	struct link *next, *previous;
};

struct entry {
	struct spw_cache *cache;
	struct entry *next; /* of the hash chain, or of the free slots */
	/* of the offers; the last one is the first that the backward pass wants */
	struct link order;
	struct link drain; /* tokens that go back */
	uint64_t key, version;
	uint64_t offset_bytes, len_bytes; /* of what is stored, in the caller's storage */
	const uint8_t *bytes;             /* of that, in the owner's memory */
	uint64_t owner;
	uint8_t *memory; /* read from the drives into here, or NULL */
	spw_object object;
	struct spw_request *write_request; /* valid while the write is in flight */
	/* valid while a prefetch is in flight; NULL for an urgent read */
	struct spw_request *read_request;
	uint64_t io_began_ns; /* of the last request */
	uint32_t generation;
	uint32_t users;
	uint32_t leases;
	uint32_t waiters; /* threads inside take */
	uint32_t step, micro_batch;
	uint32_t recorded, recorded_step; /* its record in that step, or NO_TENSOR */
	uint32_t matched;                 /* its tensor of the basis in that step, or NO_TENSOR */
	uint8_t state;
	bool owner_held; /* the caller holds the token */
	bool drainable;  /* in the drain list */
	bool object_exists;
	bool write_in_flight;
	bool read_in_flight;
	bool memory_in_arena;
	bool in_window; /* counted as ahead of its use in this step */
	/* has been in the window, in this step or before, and was not taken since */
	bool foreseen;
	bool forwarded;
	bool taken;
	/*
	 * was offered again during its write: its memory may have changed after the drives had it
	 */
	bool recheck;
	bool stale; /* its storage has other bytes now: is no duplicate of what is offered */
};

struct scope {
	uint64_t key;
	uint64_t spilled_bytes;
	uint32_t ordinal; /* of the scopes entered in this stage */
	bool has_scopes;  /* not a leaf */
	bool has_tensors;
	uint32_t recorded; /* its number in the recording, or NO_SCOPE */
};

/* Where in a stage the last leaf scope began. */
struct last_scope {
	uint64_t key;
	uint32_t ordinal;
	bool valid;
};

struct spw_cache {
	pthread_mutex_t lock;
	pthread_cond_t io_ended;
	struct spw_store *store;
	struct spw_cache_ports ports;
	struct spw_cache_opts opts;
	uint64_t chunk_bytes;
	uint32_t drives;

	/* entries */
	struct entry *entries;
	struct entry *free;
	uint32_t entries_touched; /* those behind were never used */
	struct entry **buckets;
	uint64_t bucket_mask;
	struct link order, drain;
	uint64_t io_in_flight; /* requests given to the store */
	uint64_t waiters;      /* takes that wait for io_ended, and close */
	bool io_has_ended;     /* waiters are notified when the lock has been given up, */
	atomic_uint notifiers; /* by so many threads now */
	struct entry *held;    /* queued, but not given to the store yet; or NULL */
	/* most bytes of one that is held back though the drives are idle; 0: none ever is */
	uint64_t hold_bytes;
	void *doomed; /* memory to free outside the lock, linked through its first bytes */

	/* where the caller is */
	uint32_t step, micro_batch;
	uint32_t stage_ordinal; /* of the stages of this step */
	enum spw_stage stage;
	bool backward_marked; /* the caller says when a backward stage begins */

	/* rules */
	uint32_t depth;
	uint32_t scopes_entered; /* in this stage */
	struct last_scope last_scope;
	bool in_last_scope;               /* it was entered: what follows is kept */
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

	struct adapt adapt;
	struct measure measure;

	struct spw_cache_stats count;
	uint64_t kept_bytes[KEEP_REASONS], kept_tensors[KEEP_REASONS];
	uint32_t notices_logged, notices_pending; /* bits of enum notice */

	/* Long, and last: what every call touches lies together. */
	struct scope scopes[SCOPE_DEPTH_MAX];
	/* by stage ordinal: of the step before, overwritten in this one */
	struct last_scope records[STAGES_MAX];
	char notices[NOTICES][NOTICE_TEXT_BYTES_MAX];
};

/* ---- cache.c ---- */

void spw_cache_lock(struct spw_cache *cache);
/*
 * Also frees what was doomed. The cache may be gone afterwards, if its closer only waited for the
 * caller of this.
 */
void spw_cache_unlock(struct spw_cache *cache);
/* The same, and writes the notices to the log. */
void spw_cache_unlock_and_notify(struct spw_cache *cache);
/* Tell the log, once per step and kind, when the lock is given up. */
SPW_COLD void spw_cache_notice(struct spw_cache *cache, enum notice notice, const char *format, ...)
	SPW_PRINTF(3, 4);
void spw_cache_wait_io(struct spw_cache *cache);
/* A request has been given to the store; it has ended. */
void spw_cache_io_began(struct spw_cache *cache);
void spw_cache_io_ended(struct spw_cache *cache);

/* ---- entry.c ---- */

int spw_entries_open(struct spw_cache *cache);
void spw_entries_abandon(struct spw_cache *cache);
void spw_entries_close(struct spw_cache *cache);

spw_tensor spw_entry_id(const struct entry *entry);
/* The slot of an id, alive or dead; NULL if it has been used again, or never was. */
struct entry *spw_entry_of_id(struct spw_cache *cache, uint64_t id);
struct entry *spw_entry_covering(struct spw_cache *cache, uint64_t key, uint64_t version,
				 uint64_t offset_bytes, uint64_t len_bytes);
/* A free slot, filled in and findable, still in state FREE: to be kept or queued. NULL: none. */
struct entry *spw_entry_begin(struct spw_cache *cache, const struct spw_offer *offer,
			      uint64_t offset_bytes, uint64_t len_bytes);

void spw_entry_keep(struct entry *entry);
void spw_entry_queue(struct entry *entry);
void spw_entry_issued(struct entry *entry);
void spw_entry_stored(struct entry *entry);
void spw_entry_forward(struct entry *entry);
void spw_entry_begin_read(struct entry *entry);
void spw_entry_read_ended(struct entry *entry);
void spw_entry_read_failed(struct entry *entry);
void spw_entry_die(struct entry *entry);
/* One user less; the last one. */
void spw_entry_leave(struct entry *entry);
/* Of a dead entry: give up what nothing needs any more, and the slot if nothing is left. */
void spw_entry_settle(struct entry *entry);

/* The last in the order of offers again. */
void spw_entry_offered_again(struct entry *entry);
void spw_entry_make_drainable(struct entry *entry);
void spw_entry_not_drainable(struct entry *entry);
void spw_entry_drained(struct entry *entry);
void spw_entry_free_object(struct entry *entry);
int spw_entry_get_memory(struct entry *entry);
void spw_entry_put_memory(struct entry *entry);

/* ---- spill.c ---- */

/* The write that is held back goes to the store. */
void spw_spill_held(struct spw_cache *cache);
/* A write is not needed any more, or not needed yet. Cancels it if it can. */
void spw_spill_cancel(struct entry *entry);
/* The bytes are still in the owner's memory: leave them there. */
void spw_spill_forward(struct entry *entry);

/* ---- fetch.c ---- */

/* Read it ahead of its use. Return: 0; or a negative errno: not now. */
int spw_fetch_ahead(struct entry *entry);

/* ---- window.c ---- */

void spw_window_leave(struct entry *entry);
/*
 * A step begins: what was read ahead for the last one and never taken is ahead of nothing that
 * comes now.
 */
void spw_window_forget(struct spw_cache *cache);
/*
 * A stage begins, and maybe it is said which comes next: start at the last offer of a backward one.
 */
void spw_window_begin(struct spw_cache *cache);
/* As far as the budget allows: read, or hold back, what will be taken next. */
void spw_window_fill(struct spw_cache *cache);

/* ---- rules.c ---- */

enum keep_reason spw_rule_keep(const struct entry *entry, enum spw_cache_hint hint);
/* Which part of a storage is stored for an offer. */
void spw_rule_range(const struct spw_offer *offer, uint64_t *offset_bytes, uint64_t *len_bytes);
uint64_t spw_rule_window_bytes(const struct spw_cache *cache);
void spw_rule_offered(struct spw_cache *cache, uint64_t len_bytes, bool spilled);
void spw_rule_kept(struct spw_cache *cache, enum keep_reason reason, uint64_t len_bytes);
/* An entry is taken: if the caller does not say when the backward stage begins, it is now. */
void spw_rule_taken(struct spw_cache *cache);

/* ---- helpers ---- */

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
	link->previous = head->previous;
	link->next = head;
	head->previous->next = link;
	head->previous = link;
}

static inline void link_remove(struct link *link)
{
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

static inline void gauge_sub(uint64_t *now, uint64_t amount)
{
	SPW_ASSERT(*now >= amount);
	*now -= amount;
}

/* The entry's bytes are in memory once more, or once less. */
static inline void memory_add(struct entry *entry)
{
	struct spw_cache *cache = entry->cache;

	gauge_add(&cache->count.activation_bytes, &cache->count.activation_bytes_max,
		  entry->len_bytes);
	if (cache->count.activation_bytes > cache->adapt.peak_bytes)
		cache->adapt.peak_bytes = cache->count.activation_bytes;
	if (entry->recorded_step != cache->step)
		cache->adapt.old_bytes += entry->len_bytes;
}

static inline void memory_sub(struct entry *entry)
{
	struct spw_cache *cache = entry->cache;

	gauge_sub(&cache->count.activation_bytes, entry->len_bytes);
	if (entry->recorded_step != cache->step)
		gauge_sub(&cache->adapt.old_bytes, entry->len_bytes);
}

#endif
