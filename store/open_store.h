/* SPDX-License-Identifier: MIT */
/*
 * store/open_store.h - an open store and its drives; how its threads share it
 *
 * Threads
 *   caller     any thread: allocates request and object slots, reserves space, pushes messages.
 *   worker     one thread (in inline mode the polling thread): places, issues, completes, frees
 *              extents. Data that only the worker uses needs no lock.
 *   helper     any number of threads: copy and checksum the bytes of transfers
 *              (store/checksum_pool.h).
 *
 * Life of an object
 *   put        reserve blocks -> SUBMIT message -> cut into chunks as drives are ready; each chunk
 *              becomes a piece -> ended
 *   get        SUBMIT message -> the pieces of the range wait in the lists of their drives -> ended
 *   free       alive is cleared; after the last reference: FREE message, then the reservation is
 *              released
 *
 * Rules, cited by asserts
 *   STORE-1    A request ends exactly once, and only when no transfer of it is in flight or posted.
 *   STORE-2    A piece's blocks are freed only when its object has no reference, so that no I/O on
 *              them is in flight or will be issued.
 *   STORE-3    A FREE message is pushed before the reservation is released, so that the worker
 *              frees the extents before it places chunks with later reservations.
 *   STORE-4    Only transfers in flight or posted have bounce buffers, and those of one drive at
 *              most its share. So waiting for a bounce buffer ends, even if a drive never answers.
 *   STORE-5    Only puts that cannot be cancelled any more (REQUEST_ACTIVE) are cut into chunks.
 *   STORE-6    A transfer is free, in flight, posted (POOL-1), or in a drive's list of retries;
 *              only a write may be in flight and posted at the same time (CHECKSUM-1).
 *   STORE-7    The pieces of an object are in order of offset, without gaps; when its put has
 *              succeeded all are placed. Pieces of a mirrored object come in pairs, with the same
 *              bytes on two drives. After the put the first of a pair is placed; the second is
 *              placed, or a hole if the chunk has one copy.
 *   STORE-8    reads_waiting counts the entries of the drives' lists of reads and of retries.
 *   STORE-9    blocks_used of a drive counts the blocks of its pieces and of abandoned writes.
 *   STORE-10   A request's message is in the inbox at most once. While it is there the request does
 *              not end, so that its slot is not reused.
 */
#ifndef SPW_STORE_OPEN_STORE_H
#define SPW_STORE_OPEN_STORE_H

#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <spillway/store.h>

#include "drives/assemble.h"
#include "engine/device.h"
#include "layout/superblock.h"
#include "store/priority.h"
#include "store/slots.h"
#include "util/histogram.h"

struct drive_read;
struct message;
struct object;
struct piece;
struct spw_alloc;
struct spw_checksum_pool;
struct spw_commits;
struct spw_status_page;
struct transfer;

#define DRIVE_NONE UINT8_MAX

_Static_assert(SPW_DRIVES_MAX < DRIVE_NONE && SPW_DRIVES_MAX <= 64, "drives fit, also in a mask");

/* Long enough for dozens of chunks on a slow drive, short enough to follow changes in a step. */
#define SPW_RATE_WINDOW_NS 50000000u
/* Older rates are measured again; even on a slow drive this takes a 64th of the time. */
#define SPW_RATE_OLD_NS (UINT64_C(64) * SPW_RATE_WINDOW_NS)

/* Measures a rate in each window: bytes transferred while at least one transfer was in flight. */
struct rate {
	uint32_t in_flight;
	uint64_t bytes_in_flight;
	uint64_t busy_since_ns, busy_ns, bytes;
	uint64_t measured_ns; /* when the last window ended */
	_Atomic uint64_t bytes_per_second;
};

/* Statistics of a drive for reads, or for writes. */
struct dir_stats {
	struct rate rate;
	struct spw_histogram latency; /* since the last publication */
	_Atomic uint64_t bytes, transfers, errors, latency_ns_p50, latency_ns_p99;
	/* published values since the store was opened */
	_Atomic uint64_t latency_counts[SPW_LATENCY_COUNTS], latency_ns_sum;
};

_Static_assert(SPW_READ == 0 && SPW_WRITE == 1, "dir by enum spw_op");

struct read_list {
	struct drive_read *first, *last;
};

struct store_drive {
	struct spw_device *device;
	struct spw_alloc *alloc;
	uint64_t base_bytes; /* offset of the partition on the device */
	uint64_t blocks_total;
	/* worker */
	uint32_t in_flight;
	uint32_t bounces; /* bounce buffers of its transfers in flight or posted */
	uint64_t bytes_placed;
	uint32_t bypassed[PRIORITIES];
	struct read_list waiting[SPW_CLASSES];
	/* reads to be repeated when there is a slot; linked by next */
	struct transfer *retries;
	struct transfer *pending_first, *pending_last; /* store/checksums.c */
	struct dir_stats dir[2];                       /* by enum spw_op */
	/* the reason, a negative errno; 0: in service */
	_Atomic int retired;
	_Atomic uint32_t retirements; /* since the store was opened */
	uint64_t try_again_ns;        /* worker: valid while it rests */
	bool on_trial; /* worker: in service again after a rest, and no write has completed yet */
	bool unread;   /* worker: logged that other replicas are read instead of its own */
	/* counters */
	_Atomic uint64_t checksum_errors, timeouts, writes_no_space;
	_Atomic uint64_t blocks_used;
	_Atomic uint32_t in_flight_now, in_flight_max;
};

/* Is the drive accessed over a network? */
static inline bool spw_store__drive_is_far(const struct store_drive *drive)
{
	return drive->device->transport.far;
}

struct store_counters {
	_Atomic uint64_t puts, gets, frees, bytes_put, bytes_got, bytes_from_memory, bytes_copied;
	_Atomic uint64_t copies_unaligned_address, copies_unaligned_length, copies_partial_chunk,
		waits_for_copy_memory;
	_Atomic uint64_t chunks_split, chunks_moved, cancelled, bypasses, bytes_trimmed;
	_Atomic uint64_t registered_bytes, registrations_refused, transfers_registered;
	_Atomic uint64_t chunks_single, reads_switched;
};

struct spw_store {
	struct spw_store_opts opts;
	struct spw_assembly assembly;
	uint32_t partition;
	uint32_t drive_count;
	uint32_t slots_per_drive; /* queue depth, and slots reserved for urgent reads */
	uint32_t block_bytes;
	uint32_t memory_align_bytes; /* the largest of all drives, as tested (alignment.c) */
	uint64_t chunk_bytes;
	struct store_drive *drives;
	struct spw_arena *arena;
	uint64_t alloc_max_bytes; /* of it, what is not the store's own */
	struct spw_queue *queue;

	struct spw_slots request_slots, object_slots;
	struct spw_request *requests;
	struct object *objects;
	/* objects not freed; the slot of a freed object is in use until its last request ends */
	_Atomic uint32_t objects_alive;
	struct drive_read *drive_reads;
	/* blocks not reserved; negative if a drive with reserved space was retired */
	_Atomic int64_t blocks_available;
	_Atomic uint64_t blocks_used_max;
	uint64_t blocks_total;

	/* caller -> worker */
	_Atomic(struct message *) inbox; /* newest first */
	_Atomic int asleep;              /* enum asleep: the worker */
	_Atomic bool stopping;
	_Atomic bool gives_back;         /* asked to, see give_back.c */
	_Atomic uint32_t ended_sequence; /* futex: counts requests that ended */
	_Atomic uint32_t any_waiters;
	_Atomic int eventfd; /* -1 until the caller asks for it */
	pthread_t worker;
	bool worker_started;
	int numa_node;         /* of the drives, the worker and the arena; -1: none */
	cpu_set_t worker_cpus; /* CPUs of that node on which the process may run */
	char uuid[SPW_UUID_TEXT_BYTES];
	char description[512];
	uint32_t *own; /* *own is 0 in a child of fork(2); NULL: not supported by the kernel */
	/* posted when the closing thread has woken the worker, and no longer uses the queue */
	sem_t stop_woken;

	/* worker */
	struct piece *pieces;
	size_t pieces_bytes;
	/* pieces from pieces_fresh on have never been used, and are not in the free list */
	uint32_t pieces_max, pieces_fresh, piece_free;
	struct transfer *transfers, *transfer_free;
	uint32_t transfers_total, transfers_in_flight;
	uint32_t transfers_posted; /* posted to helpers (POOL-1), until spw_store__pool_end() */
	struct spw_checksum_pool *pool;
	uint32_t overlap_bytes_min; /* smaller jobs are not posted */
	uint8_t *tails;             /* block_bytes for each transfer */
	uint8_t **bounces;          /* stack of free bounce buffers, of chunk_bytes each */
	uint32_t bounces_free, bounces_total;
	uint32_t bounces_per_drive; /* most that one drive may use (STORE-4) */
	struct spw_request *writes_first, *writes_last;
	bool winding_down;      /* closing: the worker sleeps until everything has completed */
	uint64_t reads_waiting; /* reads in the drives' lists, including retries */
	uint32_t first_drive;   /* the next round over the drives begins here */
	_Atomic uint32_t drives_retired;
	_Atomic bool mirrors_short; /* logged that there is no drive for second copies */
	uint32_t drives_full;       /* drives retired with -ENOSPC */
	uint32_t drives_resting;    /* retired drives that rest, see spw_store__drive_rests() */
	uint64_t ended;
	uint64_t next_deadline_check_ns;
	uint64_t urgent_ns;            /* time of the last urgent read; 0: none, or long ago */
	_Atomic uint64_t gave_back_ns; /* when; 0: never */
	/* For deadlines: watched_ns counts only time in which the worker looked for completions. */
	uint64_t looked_ns, watched_ns;
	struct spw_status_page *page; /* NULL: could not be created */
	int page_fd;                  /* -1: could not be created */
	uint64_t next_publish_ns, published_ended;
	struct spw_io *flush_ios;                     /* one per drive */
	struct spw_request *flushing;                 /* the flush in flight */
	struct spw_request *flush_first, *flush_last; /* flushes that wait for it, linked by next */
	/* see store/commit.h; used by the committing thread */
	struct spw_commits *commits;
	struct store_counters count;
	/* bytes of puts and gets in progress, by the priority of their submission; any thread */
	_Atomic uint64_t queued_bytes[PRIORITIES];
	/* the last published spw_cache_stats, without the size field; any thread */
	_Atomic uint64_t
		steps[(sizeof(struct spw_cache_stats) - sizeof(size_t)) / sizeof(uint64_t)];
};

/* Will a completion or a message of a helper come, even without a further request? */
static inline bool spw_store__is_busy(const struct spw_store *store)
{
	return store->transfers_in_flight > 0 || store->transfers_posted > 0;
}

/* Counters have one writing thread, usually the worker, and may be read by any thread. */
static inline void count_add(_Atomic uint64_t *counter, uint64_t amount)
{
	atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + amount,
			      memory_order_relaxed);
}

static inline void count_sub(_Atomic uint64_t *counter, uint64_t amount)
{
	count_add(counter, -amount);
}

#endif
