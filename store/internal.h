/* SPDX-License-Identifier: MIT */
/*
 * store/internal.h - the store's own structures
 *
 * Who touches what
 *   caller     any thread: takes a request and an object slot, reserves space, pushes a message
 *              into the inbox.
 *   worker     one thread (inline mode: the polling one): everything else: placing, issuing,
 *              completing, freeing extents. What only the worker touches has no lock.
 *   helper     any number of threads, as a rule none: the bytes of the transfers that they are
 *              given (store/checksum_pool.h).
 *
 * How an object's life runs
 *   put        reserve blocks -> SUBMIT message -> cut chunk by chunk as drives have room; each
 *              chunk becomes a piece -> ended
 *   get        SUBMIT message -> the pieces of the range wait in the list of their drive -> ended
 *   free       alive cleared; when the last reference is gone: FREE message, then the reservation
 *              returns
 *
 * Rules, cited by asserts
 *   STORE-1    A request ends exactly once, and only when no transfer of it is in flight or posted.
 *   STORE-2    A piece's blocks are freed only when its object has no reference: no I/O on them is
 *              in flight or to come.
 *   STORE-3    A message that frees space is in the inbox before the reservation is given back, so
 *              that the worker frees the extents before it places what was reserved in their stead.
 *   STORE-4    Copy memory is held only by transfers in flight or posted, and by those of one drive
 *              never more than its share, so waiting for it ends even if a drive never answers.
 *   STORE-5    A write is cut only from a request that could not be cancelled any more (state
 *              ACTIVE).
 *   STORE-6    A transfer is in one place: free, with the queue, posted (store/checksum_pool.h:
 *              POOL-1), or among a drive's retries. But a write that is with the queue may be
 *              summed meanwhile (CHECKSUM-1).
 *   STORE-7    The pieces of an object follow each other without a gap, in order of offset, and
 *              when its put has ended well all of them are placed. Those of a mirrored object come
 *              in pairs, one run of bytes on two drives; the first of each is placed then, and the
 *              second, too, or it is a hole: there is one copy alone.
 *   STORE-8    reads_waiting counts what is in the drives' lists of reads and of retries.
 *   STORE-9    blocks_used of a drive is what its pieces and abandoned writes hold.
 *   STORE-10   A request's message is in the inbox once at most, and while it is there the request
 *              does not end: its slot is not used again.
 */
#ifndef SPW_STORE_INTERNAL_H
#define SPW_STORE_INTERNAL_H

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>

#include <spillway/store.h>

#include "alloc/alloc.h"
#include "layout/layout.h"
#include "drives/assemble.h"
#include "engine/device.h"
#include "engine/register.h"
#include "store/checksum_pool.h"
#include "store/slots.h"
#include "drives/status.h"
#include "util/histogram.h"
#include "util/probes.h"
#include "util/checksum.h"
#include "util/util.h"

#define PIECE_NONE   UINT32_MAX
#define HANDLE_HOLE  0  /* of a piece that is not placed, and will not be */
#define BYPASSES_MAX 8  /* how often a waiting priority may be overtaken on one drive */
#define RUNS_MAX     16 /* of the caller's memory in one transfer; a piece in more is copied */

/* In what order a drive serves. Reads come by the class of their request, writes last. */
enum priority {
	PRIORITY_URGENT = SPW_URGENT_READ,
	PRIORITY_PREFETCH = SPW_PREFETCH,
	PRIORITY_BACKGROUND = SPW_BACKGROUND,
	PRIORITY_WRITE = SPW_CLASSES,
	PRIORITIES,
};

/* Whether the worker has to be woken. */
enum asleep {
	AWAKE,
	ASLEEP,
	/* until a transfer ends: a put, behind those that wait, could not begin before */
	ASLEEP_WRITES_WAIT,
};

/* What a caller or helper tells the worker. Intrusive: pushing never fails, nor allocates. */
struct message {
	struct message *next;
	enum message_kind {
		MESSAGE_SUBMIT,  /* of a request */
		MESSAGE_CHANGED, /* of a request: it was cancelled, or raised */
		MESSAGE_FREE,    /* of an object */
		MESSAGE_MOVED,   /* of a transfer, from a helper */
	} kind;
};

/*
 * One contiguous run of blocks on one drive: a chunk, or a part of one that had to be split. A
 * store may hold millions: 28 bytes, beside the 32 of the allocator, which knows the extent.
 */
struct piece {
	/* XXH3-64 of the len_bytes, kept apart from them: stale, torn, misdirected blocks show */
	uint64_t checksum;
	uint64_t object_offset : 56; /* bytes */
	uint64_t drive : 8;          /* DRIVE_NONE: not placed, or to be placed again */
	union {
		uint32_t handle;        /* placed: of the drive's allocator */
		uint32_t next_unplaced; /* not placed: of the put that has to write it elsewhere */
	};
	uint32_t len_bytes;
	uint32_t next; /* of the object, in order of offset; or of the free list */
} __attribute__((packed, aligned(4)));

_Static_assert(sizeof(struct piece) == 28, "pieces are many");

#define DRIVE_NONE UINT8_MAX
/* No store is that large: an allocator has at most 2^40 blocks. */
#define OBJECT_BYTES_MAX ((UINT64_C(1) << 56) - 1)

_Static_assert(SPW_DRIVES_MAX < DRIVE_NONE && SPW_DRIVES_MAX <= 64, "drives fit, also in a mask");

static inline bool spw_store__piece_is_placed(const struct piece *piece)
{
	return piece->drive != DRIVE_NONE;
}

/* To be placed yet, or again. */
static inline bool spw_store__piece_is_wanting(const struct piece *piece)
{
	return !spw_store__piece_is_placed(piece) && piece->handle != HANDLE_HOLE;
}

struct object {
	struct message message;
	/* generation << 32 | alive << 31 | references: one for existing, one for each request */
	_Atomic uint64_t state;
	uint64_t len_bytes;
	uint64_t reserved_blocks;
	/* in progress, its bytes are still in memory; else NULL */
	_Atomic(struct spw_request *) put;
	/* worker; of others once @put is NULL, while they have a reference */
	uint32_t piece_first, piece_last;
	int error;      /* how its put failed */
	uint8_t copies; /* 1; 2: mirrored */
};

enum request_state {
	REQUEST_QUEUED,    /* nothing issued: may be cancelled */
	REQUEST_ACTIVE,    /* something issued */
	REQUEST_CANCELLED, /* never was issued, will end with -ECANCELED */
};

/*
 * Where a request's message is. Whoever changes the request first sets what has changed, then
 * posts; the worker first notes the receipt, then looks: no change is overlooked (STORE-10).
 */
enum inbox_state {
	INBOX_POSTED,   /* not received yet: the request cannot end before */
	INBOX_RECEIVED, /* may be posted again */
	INBOX_CLOSED,   /* the request has ended */
};

enum request_kind {
	REQUEST_PUT,
	REQUEST_GET,
	REQUEST_FLUSH,
	REQUEST_TRIM,
	REQUEST_REVIVE,
	REQUEST_RETIRE,
	REQUEST_LOCATE,
	REQUEST_REGISTER,
	REQUEST_UNREGISTER,
};

/*
 * What drives that place data keep apart: it dies at different times. All that nobody names, as
 * superblocks, lies where drives put what names nothing, which is where the first one is, too.
 */
enum placement {
	PLACEMENT_OF_QUEUE,
	PLACEMENT_LASTING, /* training state, commits */
	PLACEMENT_STEP,    /* activations: gone when the step is */
};

/* A get's pieces on one drive, waiting in that drive's list. */
struct drive_read {
	struct spw_request *request;
	struct drive_read *next, *previous;
	uint32_t piece; /* the next to issue */
	uint32_t left;  /* how many */
};

struct spw_request {
	struct message message;
	struct spw_store *store;
	enum request_kind kind;
	_Atomic int state;        /* enum request_state */
	_Atomic int cls;          /* enum spw_class; only becomes more urgent */
	enum priority asked;      /* which of queued_bytes counts it */
	enum placement placement; /* put */
	_Atomic int inbox;        /* enum inbox_state: its message */
	_Atomic uint32_t ended;   /* futex: ENDED_NOT, ENDED_WAITED_FOR, ENDED */
	/* put, get: the caller's memory; NULL for others */
	const struct iovec *vector;
	/* all of that memory, where it is one run; what else a request is given to work on */
	struct iovec run;
	/* locate: pieces; retire: a positive errno; flush: whether drives that fail are retired */
	uint64_t len_bytes;
	/* in the object; revive, retire: the drive's index; flush: a mask of drives */
	uint64_t offset_bytes;
	struct object *object;
	struct spw_notify notify;
	char error[512]; /* the failure in words */
	/* worker */
	int first_error;    /* how it ends; the caller's once it has ended */
	uint32_t in_flight; /* transfers */
	union {
		uint64_t cut_bytes; /* put: given to drives so far */
		/* get: of chunks i, i + 64, ... of a mirrored object bit i says: the second copy */
		uint64_t second_copies;
	};
	/* put: list of pieces whose write failed; of a mirrored object the first such run */
	uint32_t unplaced;
	enum spw_class linked_class;         /* get: which lists its drive_reads are in */
	uint64_t reads_left;                 /* get: pieces not yet issued */
	struct spw_request *next, *previous; /* put: list of writes */
	bool linked;                         /* something of it waits in a list */
	bool ends_on_receipt;                /* has ended, but for its message in the inbox */
	struct drive_read *drive_reads;      /* get: one per drive */
};

enum {
	ENDED_NOT,
	ENDED_WAITED_FOR,
	ENDED,
};

/* What of a piece is to be read, and what was found: a helper's while it is posted (POOL-2). */
struct checksum_job {
	enum spw_op op;
	bool wants_checksum;
	uint32_t len_bytes;
	uint64_t offset_bytes; /* in its object */
	uint64_t checksum;
	uint32_t copied_bytes;
};

/* One piece on its way to or from a drive. */
struct transfer {
	struct message message;
	struct spw_io io;
	struct checksum_job job;
	/* the caller's memory, and the tail, as the drive takes them, if not through bounce */
	struct iovec vector[RUNS_MAX + 1];
	uint32_t elements;
	struct spw_store *store;
	struct spw_request *request;
	struct transfer *next; /* of the list it is in: free, retries, or checksum_pending */
	uint8_t *bounce;       /* copy memory of a chunk, or NULL */
	uint8_t *tail;         /* its own block, for the last, partly filled one of an object */
	uint32_t piece;
	bool retried;
	bool in_flight;
	bool posted; /* POOL-1 */
	/* of a write: store/checksums.c */
	bool checksum_pending;     /* in its drive's list */
	uint64_t turn;             /* its number among the writes that its drive was given */
	struct transfer *previous; /* in that list */
	bool timed_out;
	bool switched; /* a read of the other copy: the first did not serve */
	/* a write that timed out: its chunk was given to another transfer */
	bool abandoned;
	struct spw_extent orphan; /* the blocks that an abandoned write may still change */
	uint64_t issued_ns;
	uint64_t watched_from_ns; /* of the store's watched_ns */
};

struct read_list {
	struct drive_read *first, *last;
};

/* Long enough for dozens of chunks on a slow drive, short enough to follow a step. */
#define SPW_RATE_WINDOW_NS 50000000u
/* What is older says nothing of now: to measure a slow drive anew takes a 64th of the time. */
#define SPW_RATE_OLD_NS (UINT64_C(64) * SPW_RATE_WINDOW_NS)

/* Bytes moved while at least one transfer of that kind was in flight; a rate every window. */
struct rate {
	uint32_t in_flight;
	uint64_t bytes_in_flight;
	uint64_t busy_since_ns, busy_ns, bytes;
	uint64_t measured_ns; /* when the last window was full */
	_Atomic uint64_t bytes_per_second;
};

/* What a drive did in one direction. */
struct dir_stats {
	struct rate rate;
	struct spw_histogram latency; /* since it was last published */
	_Atomic uint64_t bytes, transfers, errors, latency_ns_p50, latency_ns_p99;
	/* what was published, all of it */
	_Atomic uint64_t latency_counts[SPW_LATENCY_COUNTS], latency_ns_sum;
};

_Static_assert(SPW_READ == 0 && SPW_WRITE == 1, "dir by enum spw_op");

struct store_drive {
	struct spw_device *device;
	struct spw_alloc *alloc;
	uint64_t base_bytes; /* of the partition on the device */
	uint64_t blocks_total;
	/* worker */
	uint32_t in_flight;
	uint32_t bounces; /* copy memory of its transfers in flight or posted */
	uint64_t bytes_placed;
	uint32_t bypassed[PRIORITIES];
	struct read_list waiting[SPW_CLASSES];
	/* reads to be done once more, when there is a slot for them; linked by next */
	struct transfer *retries;
	struct transfer *pending_first, *pending_last; /* store/checksums.c */
	struct dir_stats dir[2];                       /* by enum spw_op */
	_Atomic int retired;                           /* why, a negative errno; 0: in service */
	_Atomic uint32_t retirements;                  /* how often it was */
	uint64_t try_again_ns;                         /* worker: when, if it was full */
	bool on_trial; /* worker: in service again since, and nothing was written yet */
	bool unread;   /* worker: it was logged that other copies serve for this drive's */
	/* counters */
	_Atomic uint64_t checksum_errors, timeouts, writes_no_space;
	_Atomic uint64_t blocks_used;
	_Atomic uint32_t in_flight_now, in_flight_max;
};

/* Only a network leads to it. */
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
	/* what a drive has at once: the queue depth, and beside it urgent reads alone */
	uint32_t slots_per_drive;
	uint32_t block_bytes;
	uint32_t memory_align_bytes; /* the strictest of the drives, as tried (alignment.c) */
	uint64_t chunk_bytes;
	struct store_drive *drives;
	struct spw_arena *arena;
	struct spw_queue *queue;

	struct spw_slots request_slots, object_slots;
	struct spw_request *requests;
	struct object *objects;
	/* not freed; a freed one's slot is taken until its last request has ended */
	_Atomic uint32_t objects_alive;
	struct drive_read *drive_reads;
	/* not reserved; below zero after a drive was retired under reserved space */
	_Atomic int64_t blocks_available;
	_Atomic uint64_t blocks_used_max;
	uint64_t blocks_total;

	/* caller -> worker */
	_Atomic(struct message *) inbox; /* newest first */
	_Atomic int asleep;              /* enum asleep: the worker */
	_Atomic bool stopping;
	/* futex: counts requests that ended for whoever waits for any of several */
	_Atomic uint32_t ended_sequence;
	_Atomic uint32_t any_waiters;
	_Atomic int eventfd; /* -1 until somebody asks for it */
	pthread_t worker;
	bool worker_started;
	/* that all drives lie on and that the worker and the arena are on, too; -1: none */
	int numa_node;
	cpu_set_t worker_cpus; /* of that node, as far as whoever opened the store may run there */
	char uuid[SPW_UUID_TEXT_BYTES];
	char description[512];
	uint32_t *own; /* reads 0 in a child of fork(2); NULL: the kernel does not see to that */
	/* who closes the store has woken the worker and touches the queue no more */
	sem_t stop_woken;

	/* worker */
	struct piece *pieces;
	size_t pieces_bytes;
	/* fresh: never used yet, beyond the free list */
	uint32_t pieces_max, pieces_fresh, piece_free;
	struct transfer *transfers, *transfer_free;
	uint32_t transfers_total, transfers_in_flight;
	struct spw_checksum_pool *pool;
	uint32_t overlap_bytes_min; /* of a piece that is posted */
	uint8_t *tails;             /* block_bytes for each transfer */
	uint8_t **bounces;          /* free copy buffers of chunk_bytes, the last used on top */
	uint32_t bounces_free, bounces_total;
	uint32_t bounces_per_drive; /* held for one at once, at most */
	struct spw_request *writes_first, *writes_last;
	bool winding_down;      /* closing: the worker sleeps until all has ended */
	uint64_t reads_waiting; /* in the drives' lists, retries included */
	uint32_t first_drive;   /* where the next round over the drives begins */
	uint64_t static_turn;   /* chunks placed in RAID 0 order */
	_Atomic uint32_t drives_retired;
	_Atomic bool mirrors_short; /* it was logged that second copies find no drive */
	uint32_t drives_full;       /* of these, for want of space below them */
	uint32_t drives_resting;    /* of these, see spw_store__drive_rests() */
	uint64_t ended;
	uint64_t next_deadline_check_ns;
	uint64_t urgent_ns; /* the last urgent read; 0: none, or long ago */
	/* Deadlines count only time in which an end could be seen: since something is in flight. */
	uint64_t looked_ns, watched_ns;
	struct spw_status_page *page; /* NULL: could not be made */
	int page_fd;                  /* -1: the same */
	uint64_t next_publish_ns, published_ended;
	struct spw_io *flush_ios;                     /* one per drive */
	struct spw_request *flushing;                 /* the flush under way */
	struct spw_request *flush_first, *flush_last; /* those that wait for it, linked by next */
	struct spw_commits *commits;                  /* store/commit.h: of whoever commits */
	struct store_counters count;
	/* of puts and gets that have not ended, as they were asked for; added to by any thread */
	_Atomic uint64_t queued_bytes[PRIORITIES];
	/* spw_cache_stats, without its size, as was last told: written by any thread */
	_Atomic uint64_t
		steps[(sizeof(struct spw_cache_stats) - sizeof(size_t)) / sizeof(uint64_t)];
};

/* Counters have one writer, the worker; others read them at any time. */
static inline void count_add(_Atomic uint64_t *counter, uint64_t amount)
{
	atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + amount,
			      memory_order_relaxed);
}

static inline void count_sub(_Atomic uint64_t *counter, uint64_t amount)
{
	count_add(counter, -amount);
}

/* Something will end, or come back, without a further request. */
static inline bool spw_store__is_busy(const struct spw_store *store)
{
	return store->transfers_in_flight > 0 || store->pool->posted > 0;
}

/* store/object.c: references, pieces, space */
/*
 * @blocks: of all its copies; they are reserved. It has two references: the second is the put's,
 * or the commit's.
 */
int spw_store__object_create(struct spw_store *store, uint64_t len, unsigned copies,
			     uint64_t blocks, spw_object *id);
/* A reference to a live object that has these bytes. Return: 0; -ENOENT; -ERANGE, in words. */
int spw_store__object_acquire(struct spw_store *store, spw_object id, uint64_t offset, uint64_t len,
			      struct object **object);
void spw_store__object_drop(struct spw_store *store, struct object *object, bool on_worker);
void spw_store__object_reclaim(struct spw_store *store, struct object *object);
uint32_t spw_store__piece_take(struct spw_store *store);
void spw_store__piece_unplace(struct spw_store *store, struct piece *piece);
void spw_store__extent_give(struct spw_store *store, uint32_t drive,
			    const struct spw_extent *extent);
struct spw_extent spw_store__piece_extent(const struct spw_store *store, const struct piece *piece);
/* @piece: of a mirrored object the first of two, linked already. */
void spw_store__piece_append(struct spw_store *store, struct object *object, uint32_t piece);
/* A copy that will not be: what was reserved for it is free. */
void spw_store__piece_make_hole(struct spw_store *store, struct object *object,
				struct piece *piece);

/* Without rounding up, which might overflow. */
static inline uint64_t spw_store__blocks_of(const struct spw_store *store, uint64_t len_bytes)
{
	return len_bytes / store->block_bytes + (len_bytes % store->block_bytes != 0);
}

/* The run behind this one. */
static inline uint32_t spw_store__run_next(const struct spw_store *store,
					   const struct object *object, uint32_t run)
{
	if (object->copies == 2)
		run = store->pieces[run].next;
	return store->pieces[run].next;
}

/* store/request.c */
/* @out: set to it, if given. NULL: all are in use, in words; @object's reference is dropped. */
struct spw_request *spw_store__request_take(struct spw_store *store, enum request_kind kind,
					    struct object *object, const struct spw_notify *notify,
					    struct spw_request **out);
void spw_store__request_give(struct spw_request *request);
bool spw_store__request_begin(struct spw_request *request);
void spw_store__request_fail(struct spw_request *request, int error, const char *format, ...)
	SPW_PRINTF(3, 4);
void spw_store__request_end(struct spw_request *request);

/* store/pressure.c: a put or a get, whose length and class are set, begins, ends */
void spw_store__pressure_begin(struct spw_request *request);
void spw_store__pressure_end(struct spw_request *request);
uint64_t spw_store__pressure_all(const struct spw_store *store);

/* store/inbox.c: from any thread to the worker */
/* Return: 0; -EPERM in a child of fork(2): the store is its parent's. */
int spw_store__owned(const struct spw_store *store);
void spw_store__push(struct spw_store *store, struct message *message);
/* The same, of a put. */
void spw_store__push_put(struct spw_store *store, struct message *message);
void spw_store__wake(struct spw_store *store);

/* store/partition.c: own the partition, until spw_store__publish_close(),
 * spw_drives__assembly_close() */
int spw_store__partition_take(struct spw_store *store);

/* store/commit.c, store/restore.c: what is durable */
int spw_store__restore(struct spw_store *store);
void spw_store__commits_close(struct spw_store *store);

/* store/submit.c: have the worker do it, and wait. Return: how it ended. */
int spw_store__admin_run(struct spw_store *store, enum request_kind kind, uint64_t what,
			 void *bytes, uint64_t len);

/* store/alignment.c: how memory must be aligned, by a trial. After spw_store__restore(). Return:
 * 0. */
int spw_store__align(struct spw_store *store);

/* store/cpus.c */
int spw_store__settle(struct spw_store *store);
/* pthread_create() on those CPUs. */
int spw_store__thread(const struct spw_store *store, pthread_t *thread, void *(*main)(void *),
		      void *argument);

/*
 * By each thread of the store: it runs soon after a transfer has ended, and whoever else is woken
 * need not wait until it has summed all that there is.
 */
void spw_store__short_slice(const struct spw_store *store);

/* store/checksum_job.c */
/* What is to be moved: the whole piece of the transfer. */
void spw_store__job_set(struct transfer *transfer, enum spw_op op, bool wants_checksum);
/* Of a write that is not copied: its last, partly filled block. */
void spw_store__job_lay_tail(struct transfer *transfer);
void spw_store__job_run(struct transfer *transfer);
/* Worker: what was copied, with its reason. */
void spw_store__job_count(const struct transfer *transfer);

/* store/worker.c */
/* Do what can be done. Return: how many requests ended; -errno. */
int spw_store__turn(struct spw_store *store, bool wait, int64_t limit_ns);
int spw_store__start(struct spw_store *store);
void spw_store__stop(struct spw_store *store);

/* store/priority.c: who goes next on a drive */
/* @lowest: none below it can be served now. Return: the priority, or PRIORITIES when nothing
 * waits. */
int spw_store__priority_choose(const struct spw_store *store, const struct store_drive *drive,
			       int lowest);
void spw_store__priority_served(struct spw_store *store, struct store_drive *drive, int priority);

/* store/transfer.c: one piece to or from a drive */
struct transfer *spw_store__transfer_take(struct spw_store *store);
/*
 * Have the drive use the memory that the request has for the piece, all of it, as it lies. Return:
 * false: it cannot, for an address, a length between two runs, or too many of them: to be copied.
 */
bool spw_store__transfer_lay(struct transfer *transfer, const struct piece *piece);
void spw_store__transfer_give(struct transfer *transfer);
void spw_store__transfer_issue(struct transfer *transfer, enum spw_op op,
			       void (*done)(struct spw_io *io));
void spw_store__transfer_ended(struct transfer *transfer);
void spw_store__latency_refresh(struct store_drive *drive);
/* store/stats.c: what spw_store_publish_steps() was given last; all 0: nothing */
void spw_store__published_steps(const struct spw_store *store, struct spw_cache_stats *steps);
bool spw_store__bounce_allowed(const struct spw_store *store, uint32_t drive);
bool spw_store__bounce_take(struct spw_store *store, struct transfer *transfer);
void spw_store__bounce_give(struct transfer *transfer);

/* store/publish.c: the shared page */
int spw_store__publish_open(struct spw_store *store);
void spw_store__publish_close(struct spw_store *store);
void spw_store__publish(struct spw_store *store, bool now);
int64_t spw_store__publish_timeout_ns(const struct spw_store *store);

/* store/stats.c. Return: 0; -EINVAL, in words. */
int spw_store__drive_exists(const struct spw_store *store, unsigned drive);

/* store/drive_health.c: drives out of service */
/*
 * Of a drive that was retired: it takes no chunks for now, is read as well as ever, and is tried
 * again by itself, since nothing says that it has failed.
 */
static inline bool spw_store__drive_rests(int error)
{
	return error == -ENOSPC || error == -EAGAIN;
}
/* @error: of the transfer; -ETIMEDOUT: it did not end in time */
void spw_store__drive_retire(struct spw_store *store, uint32_t drive, int error);
/* A write that was given up as late has ended well after all. */
void spw_store__drive_answered(struct spw_store *store, uint32_t drive);
void spw_store__drive_revive(struct spw_store *store, uint32_t drive);
/* A drive that rests is tried again from time to time, by whatever is put next. */
void spw_store__drives_try_again(struct spw_store *store);
int64_t spw_store__try_again_timeout_ns(const struct spw_store *store);
/* If drives are out of service: which, why and what to do, in @buf; else @advice. Any thread. */
#define SPW_ADVICE_BYTES 448
const char *spw_store__health_advice(const struct spw_store *store, const char *advice,
				     char buf[SPW_ADVICE_BYTES]);

/* store/admin.c: requests that are neither a put nor a get */
void spw_store__admin_submit(struct spw_request *request);

/* store/flush.c */
void spw_store__flush_submit(struct spw_request *request);
/* Those that have not begun end with -ECANCELED. */
void spw_store__flush_cancel(struct spw_store *store);

/* store/trim.c */
void spw_store__trim_submit(struct spw_request *request);

/* store/deadlines.c */
int64_t spw_store__deadline_timeout_ns(const struct spw_store *store);
void spw_store__deadlines_check(struct spw_store *store);

/* store/checksums.c: large chunks of puts */
/* It was issued, and is to be posted for its sum when its turn has come. */
void spw_store__checksum_later(struct transfer *transfer);
/* The caller sees to its sum now. */
void spw_store__checksum_take(struct transfer *transfer);
/* Post those whose turn has come. */
void spw_store__checksums_post(struct spw_store *store);

/* store/replicas.c */
/* Some of its pieces lost their place: find which is to be placed next. */
void spw_store__replicas_look(struct spw_request *request);
/* Nothing of it is in flight, or will be: the placed copy of each run comes first (STORE-7). */
void spw_store__replicas_settle(struct spw_request *request);

/* store/mirror.c: @len_bytes of a mirrored object have one copy alone. Logged once. Any thread. */
void spw_store__single_note(struct spw_store *store, uint64_t len_bytes);

/* store/write.c */
void spw_store__write_abandon(struct transfer *transfer);
void spw_store__write_submit(struct spw_request *request);
/* Its bytes are as the drive is to have them, and summed. */
void spw_store__write_job_ended(struct transfer *transfer);
/* When nothing more of it is to be issued, because it failed too, and nothing is in flight. */
void spw_store__write_end_if_done(struct spw_request *request);
/* What the drives are like as a round begins, in which each gets one chunk at most. */
struct drive_scores {
	uint64_t score[SPW_DRIVES_MAX]; /* the least is the best; UINT64_MAX: it takes none */
	uint64_t slow[SPW_DRIVES_MAX];  /* what a transfer in flight counts, and */
	uint64_t ahead[SPW_DRIVES_MAX]; /* what it has had more than others does */
	uint32_t depth[SPW_DRIVES_MAX]; /* it takes one while it has fewer in flight, and */
	uint64_t write_bytes_max;       /* fewer bytes of writes */
};

void spw_store__write_score_drives(struct spw_store *store, struct drive_scores *scores);
/*
 * A chunk of the oldest put, to the best drive of the mask @left, which is none of it then.
 * Return: false: only the end of a transfer brings what lacks, or a drive that is not in @left.
 */
bool spw_store__write_next(struct spw_store *store, struct drive_scores *scores, uint64_t *left);
/* store/mirror.c: the same, where the oldest put is of a mirrored object; nobody is left then */
bool spw_store__mirror_next(struct spw_store *store, const struct drive_scores *scores,
			    uint64_t *left);
void spw_store__write_fail_all(struct spw_store *store);

/* store/read.c */
void spw_store__read_submit(struct spw_request *request);
void spw_store__read_end_if_done(struct spw_request *request);
/* Its class has changed. */
void spw_store__read_raise(struct spw_request *request);
bool spw_store__read_next(struct spw_store *store, uint32_t drive, enum spw_class cls);
/* Return: false when the drive has its share of copy memory in flight. */
bool spw_store__read_retry_next(struct spw_store *store, uint32_t drive);
void spw_store__read_cancel_retries(struct spw_store *store);
/* Its bytes are where the caller wants them, and summed. */
void spw_store__read_job_ended(struct transfer *transfer);

/* store/copy.c */
uint64_t spw_store__copy_and_checksum(void *to, const void *from, size_t len);
/* @len bytes of what a vector describes, from @offset on: to and from one run, and their sum. */
void spw_store__gather(void *to, const struct iovec *vector, uint64_t offset, size_t len);
void spw_store__scatter(const struct iovec *vector, uint64_t offset, const void *from, size_t len);
uint64_t spw_store__checksum_vector(const struct iovec *vector, uint64_t offset, size_t len);
/* NULL: they are not in one run. */
void *spw_store__run_of(const struct iovec *vector, uint64_t offset, size_t len);
/* From one vector to another, @len bytes from @offset on to its beginning. */
void spw_store__regather(const struct iovec *to, const struct iovec *from, uint64_t offset,
			 size_t len);

#endif
