/* SPDX-License-Identifier: MIT */
/*
 * store/internal.h - the store's own structures
 *
 * Threads
 *   caller     any thread: takes request and object slots, reserves space, pushes messages.
 *   worker     one thread (inline mode: the polling one): places, issues, completes, frees extents.
 *              What only the worker touches has no lock.
 *   helper     any number, by default none: copies and sums the bytes of transfers
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
 *   STORE-2    A piece's blocks are freed only when its object has no reference: no I/O on them is
 *              in flight or to come.
 *   STORE-3    A FREE message is pushed before the reservation is released, so that the worker
 *              frees the extents before it places what was reserved after them.
 *   STORE-4    Only transfers in flight or posted have bounce buffers, those of one drive at most
 *              its share. So waiting for one ends, even if a drive never answers.
 *   STORE-5    Chunks are cut only from a put that cannot be cancelled any more (REQUEST_ACTIVE).
 *   STORE-6    A transfer is free, with the queue, posted (POOL-1), or in a drive's list of
 *              retries; only a write may be with the queue and posted at the same time
 *              (CHECKSUM-1).
 *   STORE-7    The pieces of an object are in order of offset, without gaps; when its put has
 *              succeeded all are placed. Those of a mirrored object come in pairs, with the same
 *              bytes on two drives. After the put the first of a pair is placed, and the second is
 *              placed or a hole: the chunk has one copy.
 *   STORE-8    reads_waiting counts what is in the drives' lists of reads and of retries.
 *   STORE-9    blocks_used of a drive are the blocks of its pieces and of abandoned writes.
 *   STORE-10   A request's message is in the inbox once at most. While it is there the request does
 *              not end, so its slot is not used again.
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
#define HANDLE_HOLE  0  /* not placed, and will not be */
#define BYPASSES_MAX 8  /* how often a waiting priority may be overtaken on one drive */
#define RUNS_MAX     16 /* elements of a transfer's vector; a piece in more runs is copied */

/* A drive serves reads by the class of their request, and writes last. */
enum priority {
	PRIORITY_URGENT = SPW_URGENT_READ,
	PRIORITY_PREFETCH = SPW_PREFETCH,
	PRIORITY_BACKGROUND = SPW_BACKGROUND,
	PRIORITY_WRITE = SPW_CLASSES,
	PRIORITIES,
};

enum asleep {
	AWAKE,
	ASLEEP,
	/* puts wait for a completion: another put does not have to wake the worker */
	ASLEEP_WRITES_WAIT,
};

/* To the worker, embedded in what it is about: pushing one never fails and never allocates. */
struct message {
	struct message *next;
	enum message_kind {
		MESSAGE_SUBMIT,  /* a request */
		MESSAGE_CHANGED, /* a request that was cancelled or raised */
		MESSAGE_FREE,    /* an object */
		MESSAGE_MOVED,   /* a transfer whose job a helper has run */
	} kind;
};

/*
 * A chunk, or a part of one that was split, in one extent. A store may have millions, so a piece
 * has 28 bytes, besides the 32 of the allocator, which knows the extent.
 */
struct piece {
	/* XXH3-64 of the len_bytes; apart from them, so it detects stale and misdirected blocks */
	uint64_t checksum;
	uint64_t object_offset : 56; /* bytes */
	uint64_t drive : 8;          /* DRIVE_NONE: not placed */
	union {
		uint32_t handle;        /* placed: of the drive's allocator; or HANDLE_HOLE */
		uint32_t next_unplaced; /* to be placed: list of the put */
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

/* It has to be placed, for the first time or again. */
static inline bool spw_store__piece_is_wanting(const struct piece *piece)
{
	return !spw_store__piece_is_placed(piece) && piece->handle != HANDLE_HOLE;
}

struct object {
	struct message message;
	/* generation << 32 | alive << 31 | references: one until freed, one for each request */
	_Atomic uint64_t state;
	uint64_t len_bytes;
	uint64_t reserved_blocks;
	/* until it ends, and the bytes are in the caller's memory; then NULL */
	_Atomic(struct spw_request *) put;
	/* the worker's; once @put is NULL others with a reference may read them */
	uint32_t piece_first, piece_last;
	int error;      /* of its put */
	uint8_t copies; /* 1; 2: mirrored */
};

enum request_state {
	REQUEST_QUEUED,    /* nothing issued: may be cancelled */
	REQUEST_ACTIVE,    /* something issued */
	REQUEST_CANCELLED, /* will end with -ECANCELED */
};

/*
 * Of a request's message (STORE-10). A caller changes the request, then posts; the worker marks the
 * message as received, then looks at the request. So no change is missed.
 */
enum inbox_state {
	INBOX_POSTED,   /* the request cannot end before the worker has received it */
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
 * Lifetimes of data, which drives with placement (FDP, streams) keep apart. Writes that name none,
 * as those of superblocks, go to the drive's default, which is that of PLACEMENT_LASTING, too.
 */
enum placement {
	PLACEMENT_OF_QUEUE,
	PLACEMENT_LASTING, /* training state, commits */
	PLACEMENT_STEP,    /* activations: freed within the step */
};

/* A get's pieces on one drive, waiting in that drive's list. */
struct drive_read {
	struct spw_request *request;
	struct drive_read *next, *previous;
	uint32_t piece; /* the next to issue */
	uint32_t left;  /* pieces */
};

struct spw_request {
	struct message message;
	struct spw_store *store;
	enum request_kind kind;
	_Atomic int state;        /* enum request_state */
	_Atomic int cls;          /* enum spw_class; only becomes more urgent */
	enum priority asked;      /* index in queued_bytes */
	enum placement placement; /* put */
	_Atomic int inbox;        /* enum inbox_state */
	_Atomic uint32_t ended;   /* futex: ENDED_NOT, ENDED_WAITED_FOR, ENDED */
	/* put, get: the caller's memory; NULL for others */
	const struct iovec *vector;
	/* put, get: the vector, if it has one element; locate: pieces; register: the memory */
	struct iovec run;
	/* locate: pieces; retire: a positive errno; flush: whether drives that fail are retired */
	uint64_t len_bytes;
	/* in the object; revive, retire: the drive's index; flush: a mask of drives */
	uint64_t offset_bytes;
	struct object *object;
	struct spw_notify notify;
	char error[512]; /* the text of the failure */
	/* worker */
	int first_error;    /* the result; the caller's once the request has ended */
	uint32_t in_flight; /* transfers */
	union {
		uint64_t cut_bytes; /* put: cut into pieces so far */
		/* get: bit i: read the second replica of chunks i, i + 64, ... */
		uint64_t second_copies;
	};
	/* put: list of pieces whose write failed; if mirrored, the first of such a pair */
	uint32_t unplaced;
	enum spw_class linked_class;         /* get: of the lists with its drive_reads */
	uint64_t reads_left;                 /* get: pieces not yet issued */
	struct spw_request *next, *previous; /* put: list of writes */
	bool linked;                         /* in a list of writes or reads */
	bool ends_on_receipt;                /* ends as soon as its message is received */
	struct drive_read *drive_reads;      /* get: one per drive */
};

enum {
	ENDED_NOT,
	ENDED_WAITED_FOR,
	ENDED,
};

/* Sum and copy the bytes of a piece. While it is posted it belongs to a helper (POOL-2). */
struct checksum_job {
	enum spw_op op;
	bool wants_checksum;
	uint32_t len_bytes;
	uint64_t offset_bytes; /* in its object */
	uint64_t checksum;
	uint32_t copied_bytes;
};

/* The transfer of a piece to or from its drive. */
struct transfer {
	struct message message;
	struct spw_io io;
	struct checksum_job job;
	/* without bounce buffer: the caller's memory and the tail */
	struct iovec vector[RUNS_MAX + 1];
	uint32_t elements;
	struct spw_store *store;
	struct spw_request *request;
	struct transfer *next; /* of its list: free, retries, or checksum_pending */
	uint8_t *bounce;       /* chunk_bytes, or NULL */
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
	bool switched; /* reads the other replica: the first was bad */
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
/* Older rates are measured again, which takes a 64th of the time even if the drive is slow. */
#define SPW_RATE_OLD_NS (UINT64_C(64) * SPW_RATE_WINDOW_NS)

/* Bytes moved while at least one transfer of that kind was in flight; a rate every window. */
struct rate {
	uint32_t in_flight;
	uint64_t bytes_in_flight;
	uint64_t busy_since_ns, busy_ns, bytes;
	uint64_t measured_ns; /* when the last window was full */
	_Atomic uint64_t bytes_per_second;
};

/* Of one drive, for reads or for writes. */
struct dir_stats {
	struct rate rate;
	struct spw_histogram latency; /* since it was last published */
	_Atomic uint64_t bytes, transfers, errors, latency_ns_p50, latency_ns_p99;
	/* published: since the store was opened */
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
	uint32_t bounces; /* of its transfers in flight or posted */
	uint64_t bytes_placed;
	uint32_t bypassed[PRIORITIES];
	struct read_list waiting[SPW_CLASSES];
	/* reads to repeat when there is a slot; linked by next */
	struct transfer *retries;
	struct transfer *pending_first, *pending_last; /* store/checksums.c */
	struct dir_stats dir[2];                       /* by enum spw_op */
	_Atomic int retired;                           /* -errno: the reason; 0: in service */
	_Atomic uint32_t retirements;                  /* since the store was opened */
	uint64_t try_again_ns;                         /* worker: if it rests */
	bool on_trial; /* worker: in service after a rest, and no write has completed yet */
	bool unread;   /* worker: it was logged that other replicas are read instead of its own */
	/* counters */
	_Atomic uint64_t checksum_errors, timeouts, writes_no_space;
	_Atomic uint64_t blocks_used;
	_Atomic uint32_t in_flight_now, in_flight_max;
};

/* Reached over a network. */
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
	uint32_t memory_align_bytes; /* of the strictest drive, tested (alignment.c) */
	uint64_t chunk_bytes;
	struct store_drive *drives;
	struct spw_arena *arena;
	struct spw_queue *queue;

	struct spw_slots request_slots, object_slots;
	struct spw_request *requests;
	struct object *objects;
	/* not freed; the slot of a freed one is in use until its last request has ended */
	_Atomic uint32_t objects_alive;
	struct drive_read *drive_reads;
	/* not reserved; negative if a drive was retired whose space had been reserved */
	_Atomic int64_t blocks_available;
	_Atomic uint64_t blocks_used_max;
	uint64_t blocks_total;

	/* caller -> worker */
	_Atomic(struct message *) inbox; /* newest first */
	_Atomic int asleep;              /* enum asleep: the worker */
	_Atomic bool stopping;
	_Atomic uint32_t ended_sequence; /* futex: counts requests that ended */
	_Atomic uint32_t any_waiters;
	_Atomic int eventfd; /* -1 until the caller asks for it */
	pthread_t worker;
	bool worker_started;
	int numa_node;         /* of all drives, the worker and the arena; -1: none */
	cpu_set_t worker_cpus; /* of that node, as far as the process may run there */
	char uuid[SPW_UUID_TEXT_BYTES];
	char description[512];
	uint32_t *own;    /* reads 0 in a child of fork(2); NULL: not supported by the kernel */
	sem_t stop_woken; /* the closing thread has woken the worker, and is done with the queue */

	/* worker */
	struct piece *pieces;
	size_t pieces_bytes;
	/* from pieces_fresh on they have never been used, and are in no free list */
	uint32_t pieces_max, pieces_fresh, piece_free;
	struct transfer *transfers, *transfer_free;
	uint32_t transfers_total, transfers_in_flight;
	struct spw_checksum_pool *pool;
	uint32_t overlap_bytes_min; /* smaller jobs are not posted */
	uint8_t *tails;             /* block_bytes for each transfer */
	uint8_t **bounces;          /* free ones, of chunk_bytes each, the last used on top */
	uint32_t bounces_free, bounces_total;
	uint32_t bounces_per_drive; /* at most in use for one (STORE-4) */
	struct spw_request *writes_first, *writes_last;
	bool winding_down;      /* closing: the worker sleeps until all has completed */
	uint64_t reads_waiting; /* in the drives' lists, retries included */
	uint32_t first_drive;   /* the next round over the drives begins here */
	uint64_t static_turn;   /* chunks placed in RAID 0 order */
	_Atomic uint32_t drives_retired;
	_Atomic bool mirrors_short; /* it was logged that there is no drive for second copies */
	uint32_t drives_full;       /* of the retired ones, with -ENOSPC */
	uint32_t drives_resting;    /* of the retired ones, see spw_store__drive_rests() */
	uint64_t ended;
	uint64_t next_deadline_check_ns;
	uint64_t urgent_ns; /* the last urgent read; 0: none, or long ago */
	/* Deadlines count only time in which a completion would have been seen. */
	uint64_t looked_ns, watched_ns;
	struct spw_status_page *page; /* NULL: could not be created */
	int page_fd;                  /* -1: could not be created */
	uint64_t next_publish_ns, published_ended;
	struct spw_io *flush_ios;                     /* one per drive */
	struct spw_request *flushing;                 /* the flush in flight */
	struct spw_request *flush_first, *flush_last; /* waiting for it, linked by next */
	struct spw_commits *commits;                  /* store/commit.h: of the committing thread */
	struct store_counters count;
	/* of puts and gets not ended, by the priority they were submitted with; any thread */
	_Atomic uint64_t queued_bytes[PRIORITIES];
	/* the last spw_cache_stats published, without its size; any thread */
	_Atomic uint64_t
		steps[(sizeof(struct spw_cache_stats) - sizeof(size_t)) / sizeof(uint64_t)];
};

/* One thread writes a counter, as a rule the worker; any thread reads it. */
static inline void count_add(_Atomic uint64_t *counter, uint64_t amount)
{
	atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + amount,
			      memory_order_relaxed);
}

static inline void count_sub(_Atomic uint64_t *counter, uint64_t amount)
{
	count_add(counter, -amount);
}

/* A completion or a message of a helper will come without a further request. */
static inline bool spw_store__is_busy(const struct spw_store *store)
{
	return store->transfers_in_flight > 0 || store->pool->posted > 0;
}

/* store/object.c: references, pieces, space */
/*
 * @blocks: of all its replicas; they are reserved. It has two references, the second for the put or
 * the commit that creates it. Return: 0; -ENOSPC; -ENOBUFS.
 */
int spw_store__object_create(struct spw_store *store, uint64_t len, unsigned copies,
			     uint64_t blocks, spw_object *id);
/* Take a reference to a live object that has these bytes. Return: 0; -ENOENT; -ERANGE. */
int spw_store__object_acquire(struct spw_store *store, spw_object id, uint64_t offset, uint64_t len,
			      struct object **object);
void spw_store__object_drop(struct spw_store *store, struct object *object, bool on_worker);
void spw_store__object_reclaim(struct spw_store *store, struct object *object);
uint32_t spw_store__piece_take(struct spw_store *store);
void spw_store__piece_unplace(struct spw_store *store, struct piece *piece);
void spw_store__extent_give(struct spw_store *store, uint32_t drive,
			    const struct spw_extent *extent);
struct spw_extent spw_store__piece_extent(const struct spw_store *store, const struct piece *piece);
/* @piece: if mirrored the first of a pair, linked to the second already. */
void spw_store__piece_append(struct spw_store *store, struct object *object, uint32_t piece);
/* The chunk will have one copy: release what was reserved for the second. */
void spw_store__piece_make_hole(struct spw_store *store, struct object *object,
				struct piece *piece);

/* Without rounding up, which might overflow. */
static inline uint64_t spw_store__blocks_of(const struct spw_store *store, uint64_t len_bytes)
{
	return len_bytes / store->block_bytes + (len_bytes % store->block_bytes != 0);
}

/* The next chunk of the object: past both pieces of a pair. */
static inline uint32_t spw_store__run_next(const struct spw_store *store,
					   const struct object *object, uint32_t run)
{
	if (object->copies == 2)
		run = store->pieces[run].next;
	return store->pieces[run].next;
}

/* store/request.c */
/* @out: set to it, if given. Return: NULL: all are in use; @object's reference is dropped. */
struct spw_request *spw_store__request_take(struct spw_store *store, enum request_kind kind,
					    struct object *object, const struct spw_notify *notify,
					    struct spw_request **out);
void spw_store__request_give(struct spw_request *request);
/* A transfer of it is about to be issued. False: the request was cancelled before. */
bool spw_store__request_begin(struct spw_request *request);
/* Keep the first failure; the request ends when nothing of it is in flight any more. */
void spw_store__request_fail(struct spw_request *request, int error, const char *format, ...)
	SPW_PRINTF(3, 4);
void spw_store__request_end(struct spw_request *request);

/* store/pressure.c: a put or a get, with length and class set, begins, ends */
void spw_store__pressure_begin(struct spw_request *request);
void spw_store__pressure_end(struct spw_request *request);
uint64_t spw_store__pressure_all(const struct spw_store *store);

/* store/inbox.c: from any thread to the worker */
/* Return: 0; -EPERM in a child of fork(2): the store is its parent's. */
int spw_store__owned(const struct spw_store *store);
void spw_store__push(struct spw_store *store, struct message *message);
/* Does not wake the worker while other puts wait for a completion. */
void spw_store__push_put(struct spw_store *store, struct message *message);
void spw_store__wake(struct spw_store *store);

/*
 * store/partition.c: own the partition, until spw_store__publish_close() and
 * spw_drives__assembly_close(). Return: 0; -EBUSY; -EINVAL.
 */
int spw_store__partition_take(struct spw_store *store);

/* store/restore.c, store/commit.c: commits */
int spw_store__restore(struct spw_store *store);
void spw_store__commits_close(struct spw_store *store);

/*
 * store/submit.c: submit a request that is neither a put nor a get, and wait. Return: its result.
 */
int spw_store__admin_run(struct spw_store *store, enum request_kind kind, uint64_t what,
			 void *bytes, uint64_t len);

/* store/alignment.c: sets memory_align_bytes, by a test. After spw_store__restore(). Return: 0. */
int spw_store__align(struct spw_store *store);

/* store/cpus.c: choose the NUMA node, if all drives share one and the process may run there */
int spw_store__settle(struct spw_store *store);
/* pthread_create() on the CPUs of that node. */
int spw_store__thread(const struct spw_store *store, pthread_t *thread, void *(*main)(void *),
		      void *argument);

/*
 * Called by each thread of the store: it then runs soon after a completion, and other threads do
 * not have to wait until it has summed all that there is.
 */
void spw_store__short_slice(const struct spw_store *store);

/* store/checksum_job.c */
/* The job is for the whole piece of the transfer. */
void spw_store__job_set(struct transfer *transfer, enum spw_op op, bool wants_checksum);
/* Copy the last, partly filled block of a write without bounce buffer. */
void spw_store__job_lay_tail(struct transfer *transfer);
void spw_store__job_run(struct transfer *transfer);
/* Worker: count the bytes copied, and why. */
void spw_store__job_count(const struct transfer *transfer);

/* store/worker.c */
/*
 * Receive, schedule, reap. @wait: sleep until there is work, at most for @limit_ns (negative: no
 * limit). Return: requests that ended; -errno.
 */
int spw_store__turn(struct spw_store *store, bool wait, int64_t limit_ns);
int spw_store__start(struct spw_store *store);
void spw_store__stop(struct spw_store *store);

/* store/priority.c: what a drive serves next */
/*
 * The highest priority that waits, unless a lower one was overtaken BYPASSES_MAX times. @lowest:
 * lower ones cannot be served now. Return: PRIORITIES: nothing waits.
 */
int spw_store__priority_choose(const struct spw_store *store, const struct store_drive *drive,
			       int lowest);
void spw_store__priority_served(struct spw_store *store, struct store_drive *drive, int priority);

/* store/transfer.c: the transfer of one piece */
struct transfer *spw_store__transfer_take(struct spw_store *store);
/*
 * Use the request's memory for the piece, without copying. Return: false: the drive cannot, because
 * of an address, a length in the middle, or too many elements.
 */
bool spw_store__transfer_lay(struct transfer *transfer, const struct piece *piece);
void spw_store__transfer_give(struct transfer *transfer);
void spw_store__transfer_issue(struct transfer *transfer, enum spw_op op,
			       void (*done)(struct spw_io *io));
void spw_store__transfer_ended(struct transfer *transfer);
void spw_store__latency_refresh(struct store_drive *drive);
/* store/stats.c: what spw_store_publish_steps() was given last; all 0: nothing */
void spw_store__published_steps(const struct spw_store *store, struct spw_cache_stats *steps);
/* May another transfer of the drive have a bounce buffer (STORE-4)? */
bool spw_store__bounce_allowed(const struct spw_store *store, uint32_t drive);
/* False: all are in use; a completion will free one (STORE-4). */
bool spw_store__bounce_take(struct spw_store *store, struct transfer *transfer);
void spw_store__bounce_give(struct transfer *transfer);

/* store/publish.c: the status page */
int spw_store__publish_open(struct spw_store *store);
void spw_store__publish_close(struct spw_store *store);
/* @now: even if it was published a moment ago, and nothing has changed. */
void spw_store__publish(struct spw_store *store, bool now);
/* How long the worker may sleep; negative: no limit, since nothing has changed. */
int64_t spw_store__publish_timeout_ns(const struct spw_store *store);

/* store/stats.c. Return: 0; -EINVAL. */
int spw_store__drive_exists(const struct spw_store *store, unsigned drive);

/* store/drive_health.c: drives out of service */
/*
 * A drive retired with this error has not failed: it rests. It takes no chunks for now, serves
 * reads, and is tried again.
 */
static inline bool spw_store__drive_rests(int error)
{
	return error == -ENOSPC || error == -EAGAIN;
}
/* @error: of the transfer; -ETIMEDOUT: it missed its deadline */
void spw_store__drive_retire(struct spw_store *store, uint32_t drive, int error);
/* An abandoned write has succeeded after all. */
void spw_store__drive_answered(struct spw_store *store, uint32_t drive);
void spw_store__drive_revive(struct spw_store *store, uint32_t drive);
/* Put drives that have rested for a while in service: the next chunk shows whether they work. */
void spw_store__drives_try_again(struct spw_store *store);
/* How long the worker may sleep; negative: no limit, since no drive rests. */
int64_t spw_store__try_again_timeout_ns(const struct spw_store *store);
/* Drives out of service, why, and what to do, in @buf; @advice if there are none. Any thread. */
#define SPW_ADVICE_BYTES 448
const char *spw_store__health_advice(const struct spw_store *store, const char *advice,
				     char buf[SPW_ADVICE_BYTES]);

/* store/admin.c: requests that are neither a put nor a get */
void spw_store__admin_submit(struct spw_request *request);

/* store/flush.c */
void spw_store__flush_submit(struct spw_request *request);
/* Flushes that have not begun end with -ECANCELED. */
void spw_store__flush_cancel(struct spw_store *store);

/* store/trim.c */
void spw_store__trim_submit(struct spw_request *request);

/* store/deadlines.c. How long the worker may sleep; negative: nothing in flight has a deadline. */
int64_t spw_store__deadline_timeout_ns(const struct spw_store *store);
void spw_store__deadlines_check(struct spw_store *store);

/* store/checksums.c: large chunks of puts */
/* It has been issued; post it for its checksum when its turn has come. */
void spw_store__checksum_later(struct transfer *transfer);
/* Remove it: the caller has it summed. */
void spw_store__checksum_take(struct transfer *transfer);
/* Post those whose turn has come. */
void spw_store__checksums_post(struct spw_store *store);

/* store/replicas.c */
/* Set @unplaced to the first pair with a piece to be placed. */
void spw_store__replicas_look(struct spw_request *request);
/* The put ends: make the first piece of each pair the placed one (STORE-7). */
void spw_store__replicas_settle(struct spw_request *request);

/* store/mirror.c: count @len_bytes that have one copy only; log the first time. Any thread. */
void spw_store__single_note(struct spw_store *store, uint64_t len_bytes);

/* store/write.c */
void spw_store__write_abandon(struct transfer *transfer);
void spw_store__write_submit(struct spw_request *request);
/* Its job has run. */
void spw_store__write_job_ended(struct transfer *transfer);
/* End it if it has failed or is all placed, and nothing is in flight. */
void spw_store__write_end_if_done(struct spw_request *request);
/* Of the drives at the begin of a round, in which each gets one chunk at most. */
struct drive_scores {
	uint64_t score[SPW_DRIVES_MAX]; /* the lowest is the best; UINT64_MAX: takes none */
	uint64_t slow[SPW_DRIVES_MAX];  /* score of a transfer in flight */
	uint64_t ahead[SPW_DRIVES_MAX]; /* score of its lead over others */
	uint32_t depth[SPW_DRIVES_MAX]; /* takes a chunk while it has fewer transfers in flight */
	uint64_t write_bytes_max;       /* and fewer bytes of writes */
};

void spw_store__write_score_drives(struct spw_store *store, struct drive_scores *scores);
/*
 * Place a chunk of the oldest put on the best drive of the mask @left, and remove that drive from
 * it. Return: false: a drive that is not in @left, or a completion, is needed first.
 */
bool spw_store__write_next(struct spw_store *store, struct drive_scores *scores, uint64_t *left);
/* store/mirror.c: the same if the oldest put is mirrored; @left is empty afterwards. */
bool spw_store__mirror_next(struct spw_store *store, const struct drive_scores *scores,
			    uint64_t *left);
/* All puts that wait: no drive is in service. */
void spw_store__write_fail_all(struct spw_store *store);

/* store/read.c */
void spw_store__read_submit(struct spw_request *request);
void spw_store__read_end_if_done(struct spw_request *request);
/* Its class has changed. */
void spw_store__read_raise(struct spw_request *request);
/* Issue the drive's next read of this class. Return: false: no bounce buffer is free for it. */
bool spw_store__read_next(struct spw_store *store, uint32_t drive, enum spw_class cls);
/* Return: false: the drive has its share of bounce buffers in flight. */
bool spw_store__read_retry_next(struct spw_store *store, uint32_t drive);
void spw_store__read_cancel_retries(struct spw_store *store);
/* Its job has run. */
void spw_store__read_job_ended(struct transfer *transfer);

/* store/copy.c */
uint64_t spw_store__copy_and_checksum(void *to, const void *from, size_t len);
/* Copy @len bytes of a vector, from @offset on, to or from contiguous memory; checksum them. */
void spw_store__gather(void *to, const struct iovec *vector, uint64_t offset, size_t len);
void spw_store__scatter(const struct iovec *vector, uint64_t offset, const void *from, size_t len);
uint64_t spw_store__checksum_vector(const struct iovec *vector, uint64_t offset, size_t len);
/* Return: NULL: they are not contiguous. */
void *spw_store__run_of(const struct iovec *vector, uint64_t offset, size_t len);
/* Copy @len bytes from @offset on in @from to the beginning of @to. */
void spw_store__regather(const struct iovec *to, const struct iovec *from, uint64_t offset,
			 size_t len);

#endif
