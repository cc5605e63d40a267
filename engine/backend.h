/* SPDX-License-Identifier: MIT */
/*
 * engine/backend.h - interface between a queue and its backend (io_uring, libaio, nvme, vfio, null)
 *
 * The queue cuts ios into parts: each has a slot and is one request in flight. A backend completes
 * each part exactly once, with spw_engine__part_completed(). The queue splits, joins, continues,
 * retries, counts and reports; the backend waits and makes system calls.
 *
 * Only the thread that owns the queue calls a backend's functions, except for open, which any
 * thread may call.
 */
#ifndef SPW_ENGINE_BACKEND_H
#define SPW_ENGINE_BACKEND_H

#include <stdatomic.h>

#include "engine/device.h"
#include "engine/range.h"
#include "engine/sanitize.h"
#include "engine/wake.h"
#include "util/probes.h"

struct spw_queue;
struct spw_queue_device;

/* Memory is registered in pieces of 2^this bytes from the arena's base: io_uring's maximum. */
#define SPW_PIECE_SHIFT 30

/* A backend is never asked to wait for more completions than this at once. */
#define SPW_WANT_MAX 64u

/* State of an io, see transfer.c. */
enum spw_io_state { IO_ENDED, IO_WAITING, IO_ISSUED, IO_CANCELLED, IO_WHOLE };

/*
 * A part of an io: one slot, one request in flight. While the io's state is IO_WHOLE (the fast
 * path), only io, next and device are valid; spw_engine__part_unfold() fills in the rest.
 */
struct spw_part {
	struct spw_io *io;     /* NULL: the slot is free */
	struct spw_part *next; /* in the list of free slots, or of slots to be issued again */
	uint64_t offset_bytes; /* on the device */
	char *buf;             /* memory of the request if iov_count is 0 */
	/* current element of the io's vector; NULL: the io has no vector */
	const struct iovec *iov;
	/* number of whole elements, from iov on, in this request; 0: it uses buf */
	uint32_t iov_count;
	uint32_t iov_offset; /* bytes of iov[0] that are transferred */
	uint32_t len_bytes;  /* bytes of this request; 0 for a flush */
	uint32_t rest_bytes; /* bytes not transferred yet, including len_bytes */
	int16_t piece;       /* registered piece of the arena that holds buf; -1: not registered */
	/* retries after -EAGAIN and -EINTR; if above 0, the backend lets the kernel block */
	uint16_t retries;
	uint8_t device;
	uint8_t op; /* enum spw_op; SPW_DISCARD only if the backend discards */
	/* if above 0: at most 2^this bytes per request, because a longer one has failed */
	uint8_t limit_shift;
} __attribute__((aligned(64)));

_Static_assert(sizeof(struct spw_part) == 64, "a part fills one cache line");

struct spw_backend_ops {
	const char *name;
	enum spw_backend backend;
	bool discards; /* accepts SPW_DISCARD, as a part without memory */

	/* Create the backend's state; set queue->pieces. Return: 0; -errno: not usable here. */
	int (*open)(struct spw_queue *queue);
	/* Reduce part_bytes_max, segments_max, arena_page_bytes. NULL: keep the defaults. */
	void (*limits)(struct spw_queue *queue, struct spw_queue_device *device);
	/* Free the backend's state. Called when nothing is in flight. */
	void (*close)(struct spw_queue *queue);

	/*
	 * Queue a part, without a system call; it may complete at once. Return: 0; -EAGAIN: full.
	 */
	int (*issue)(struct spw_queue *queue, struct spw_part *part);
	/* Submit all issued parts with one system call; completes nothing. Return: 0; -errno. */
	int (*submit)(struct spw_queue *queue);
	/*
	 * Submit, wait for @want completions (0: do not wait), complete parts that have ended.
	 * Returns early after a wake. @timeout_ns: negative: no limit. Return: 0; -EINTR a signal;
	 * -ETIME; another negative errno: the queue is broken.
	 */
	int (*wait)(struct spw_queue *queue, unsigned want, int64_t timeout_ns);
	/* Try to stop a part that was issued. The part still completes, sooner or later. */
	void (*cancel)(struct spw_queue *queue, struct spw_part *part);
	/*
	 * Register a range's memory and set its pieces, which must not overlap other ranges'
	 * pieces. NULL: the backend cannot register. Return: 0; -errno with a message, and nothing
	 * changes.
	 */
	int (*add_range)(struct spw_queue *queue, struct spw_range *range);
	/* Undo add_range, when no part uses the range's memory. */
	void (*remove_range)(struct spw_queue *queue, struct spw_range *range);
	/*
	 * Register no more than the arena's first @len_bytes, if that can be: registered_bytes says
	 * how many are left. NULL: the arena's pages must stay where they are.
	 */
	void (*shrink)(struct spw_queue *queue, uint64_t len_bytes);
	/* Text of queue->drive_status. NULL: the backend never sets it. */
	const char *(*status_text)(uint32_t status);
};

extern const struct spw_backend_ops spw_engine__backend_io_uring;
extern const struct spw_backend_ops spw_engine__backend_libaio;
extern const struct spw_backend_ops spw_engine__backend_null;
extern const struct spw_backend_ops spw_nvme__backend_nvme; /* engine/nvme/ */
extern const struct spw_backend_ops spw_vfio__backend_vfio; /* engine/vfio/ */

/* Flag of a placement: the low 16 bits are the identifier that writes to the drive carry. */
#define SPW_PLACED (1u << 16)

struct spw_queue_device {
	/* waiting ios, in order: not all of their bytes are cut into parts yet */
	struct spw_io *head, *tail;
	struct spw_part *free;
	struct spw_part *parts; /* this device's queue->depth slots */
	uint32_t in_flight;     /* slots in use */
	uint32_t waiting;       /* ios between head and tail */
	int fd;
	uint32_t block_mask;     /* logical block - 1 */
	uint32_t align_mask;     /* alignment of buffers - 1 */
	uint32_t part_bytes_max; /* a part is never longer than this */
	uint32_t segments_max;   /* and never has more segments than this */
	uint32_t uncut_bytes;    /* up to this length an io is one part, wherever its memory is */
	uint32_t whole_bytes;    /* up to this length in registered memory, */
	uint32_t whole_mask;     /* if address, offset and length are multiples of this + 1 */
	/* no part crosses a multiple of this, counted from the drive's start; 0: no boundary */
	uint64_t boundary_bytes;
	uint64_t start_bytes; /* start of this device on its drive */
	uint64_t size_bytes;
	const struct spw_device *device;
	/* by io's placement: SPW_PLACED plus the identifier for its writes; 0: no placement */
	uint32_t placements[SPW_PLACEMENT_MAX + 1];
	bool refuses_placements;
} __attribute__((aligned(128))); /* so that indexing is a shift */

struct spw_queue {
	/* spw_engine__queue_prepare_any(), or the backend's fast path for plain transfers */
	int (*prepare)(struct spw_queue *queue, struct spw_io *io);
	const struct spw_backend_ops *ops;
	void *state; /* the backend's */
	/* state of vfio if it shares the queue with another backend, which has state */
	void *front_state;

	uint64_t waiting_mask; /* devices with waiting ios */
	uint32_t depth;
	uint32_t device_count;
	bool reaping;
	/* inside the loop that issues: ios that end now are completed by the next reap */
	bool issuing;
	bool closing;
	bool polls; /* SPW_WAIT_POLL is in force */

	uintptr_t arena_base;
	uint64_t arena_len_bytes;   /* 0: no arena */
	uintptr_t arena_page_bytes; /* bytes of the arena that one segment covers */
	unsigned pieces;            /* pieces of the arena that are registered */
	/* room for pieces, including ranges; 0: nothing can be registered */
	unsigned pieces_room;
	/* bytes registered from the arena's base; grows as more of the arena is used */
	uint64_t registered_bytes;

	/*
	 * Counters. Nearly every io takes one slot once, so only slots are counted for each io. The
	 * counters *_besides are corrections for all other ios; they may be negative, modulo 2^64.
	 */
	uint64_t slots_taken, slots_given;
	uint64_t ios_prepared_besides; /* ios prepared - slots_taken */
	uint64_t ios_ended_besides;    /* ios ended - slots_given */
	uint64_t parts_besides;        /* parts issued to the backend - slots_taken */
	uint64_t parts_unregistered;   /* issued parts whose memory is not registered */
	uint64_t ios_reaped;           /* value of "ios ended" when the last reap returned */
	uint64_t bytes[2];             /* transferred, by SPW_READ and SPW_WRITE */
	/* a piece has 2^this bytes: SPW_PIECE_SHIFT unless the backend needs smaller ones */
	unsigned piece_shift;
	uintptr_t page_bytes;

	/* slots to be issued again, because they are continued or retried */
	struct spw_part *again_head, *again_tail;
	uint32_t again; /* length of that list */
	/* ios that ended outside a reap: the next reap calls done */
	struct spw_io *ended_head, *ended_tail;

	/*
	 * set by the backend around spw_engine__part_completed(): the drive's status of a failure
	 */
	uint32_t drive_status;
	uint32_t placement;             /* see struct spw_queue_opts */
	uint32_t timeout_ms;            /* see struct spw_queue_opts */
	uint64_t null_bytes_per_second; /* see struct spw_queue_opts */

	struct spw_ranges ranges; /* registered memory outside the arena */

	struct spw_queue_stats stats;
	struct spw_queue_device *devices;
	struct spw_part *parts; /* slots of all devices: depth for each, in order */
	struct spw_wake wake;
	enum spw_wait wait_mode;
	struct spw_arena *arena;
	struct spw_log log;
	char description[512];
};

/* A backend calls this in wait, cancel or issue when a part has ended. @res: bytes, or -errno. */
void spw_engine__part_completed(struct spw_queue *queue, struct spw_part *part, int64_t res);

/* The slow path of spw_queue_prepare(), for any io; the next submit or wait issues it. */
int spw_engine__queue_prepare_any(struct spw_queue *queue, struct spw_io *io);

/* Fill in the part of an io in state IO_WHOLE, whose state becomes IO_ISSUED. */
void spw_engine__part_unfold(struct spw_queue *queue, struct spw_part *part);

/* Set the limits of requests to a device, from its geometry and the open backend. */
void spw_engine__queue_limit(struct spw_queue *queue, struct spw_queue_device *device);

/* spw_queue_open() with the backends to try, in order. */
int spw_engine__queue_open_with(struct spw_device *const devices[], unsigned count,
				const struct spw_queue_opts *opts,
				const struct spw_backend_ops *const candidates[],
				unsigned candidate_count, struct spw_queue **queue);

/* Sleep until wake.watched is readable; negative timeout: no limit. Return: 0; -ETIME; -errno. */
int spw_engine__queue_sleep(struct spw_queue *queue, int64_t timeout_ns);

void spw_engine__queue_describe(struct spw_queue *queue, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* Number of slots in use, of all devices. */
static inline uint32_t spw_engine__queue_in_flight(const struct spw_queue *queue)
{
	return (uint32_t)(queue->slots_taken - queue->slots_given);
}

/* Number of ios that are prepared and have not ended. */
static inline uint32_t spw_engine__queue_ios(const struct spw_queue *queue)
{
	return spw_engine__queue_in_flight(queue) +
	       (uint32_t)(queue->ios_prepared_besides - queue->ios_ended_besides);
}

/* Number of ios that have ended since the last reap returned. */
static inline uint32_t spw_engine__queue_ended(const struct spw_queue *queue)
{
	return (uint32_t)(queue->slots_given + queue->ios_ended_besides - queue->ios_reaped);
}

static inline struct spw_part *spw_engine__slot_take(struct spw_queue *queue,
						     struct spw_queue_device *dev)
{
	struct spw_part *part = dev->free;

	dev->free = part->next;
	dev->in_flight++;
	queue->slots_taken++;
	return part;
}

static inline void spw_engine__slot_give(struct spw_queue *queue, struct spw_queue_device *dev,
					 struct spw_part *part)
{
	part->io = NULL;
	part->next = dev->free;
	dev->free = part;
	dev->in_flight--;
	queue->slots_given++;
}

/*
 * Called by a backend's open: set the placement identifiers for writes to a device, if
 * queue->placement is set.
 */
void spw_engine__queue_place(struct spw_queue *queue, unsigned device, const uint16_t ids[],
			     unsigned count);
/* Remove all placement identifiers, as before the backend's open. */
void spw_engine__queue_unplace(struct spw_queue *queue);

/* The placement identifier that an io's writes carry; 0: no placement. */
static inline uint32_t spw_engine__placement_of(const struct spw_queue_device *dev,
						const struct spw_io *io)
{
	uint32_t placed = dev->placements[io->placement & SPW_PLACEMENT_MAX];

	return io->op == SPW_WRITE ? placed : 0;
}

static inline bool spw_engine__queue_arena_holds(const struct spw_queue *queue, const void *memory)
{
	return (uintptr_t)memory - queue->arena_base < queue->arena_len_bytes;
}

/* The registered piece that holds all of a buffer; -1: there is none. */
static inline int16_t spw_engine__queue_piece(const struct spw_queue *queue, const void *memory,
					      uint32_t len_bytes)
{
	uint64_t first = (uintptr_t)memory - queue->arena_base;
	uint64_t piece = first >> queue->piece_shift;

	if (first >= queue->arena_len_bytes && queue->ranges.top > 0 && len_bytes > 0)
		return spw_engine__range_piece(&queue->ranges, memory, len_bytes,
					       queue->piece_shift);
	if (first >= queue->registered_bytes || len_bytes == 0 ||
	    len_bytes > queue->registered_bytes - first)
		return -1;
	return (first + len_bytes - 1) >> queue->piece_shift == piece ? (int16_t)piece : -1;
}

/* Can the io be one part, of up to @bytes_max? Whether its memory is registered is not checked. */
static inline bool spw_engine__is_whole(const struct spw_queue_device *dev, const struct spw_io *io,
					uint32_t bytes_max)
{
	uint64_t end_bytes;

	return (unsigned)io->op <= SPW_WRITE && io->len_bytes - 1 < bytes_max &&
	       !__builtin_add_overflow(io->offset_bytes, io->len_bytes, &end_bytes) &&
	       end_bytes <= dev->size_bytes &&
	       ((io->offset_bytes | io->len_bytes | (uintptr_t)io->buf) & dev->whole_mask) == 0 &&
	       !SPW_IS_POISONED(io->buf, io->len_bytes);
}

/*
 * Find a slot for an io that is one part in registered memory, as nearly all are (the fast path);
 * changes nothing. Return: NULL: use the slow path.
 */
static inline struct spw_part *spw_engine__whole_slot(const struct spw_queue *queue,
						      const struct spw_io *io, unsigned piece_shift,
						      struct spw_queue_device **device,
						      uint64_t *piece)
{
	struct spw_queue_device *dev = &queue->devices[io->device];
	uint64_t first = (uintptr_t)io->buf - queue->arena_base;
	/* below the arena's base, both wrap around to huge values */
	uint64_t last = first + io->len_bytes - 1;

	*device = dev;
	*piece = first >> piece_shift;
	if (io->device >= queue->device_count || !spw_engine__is_whole(dev, io, dev->whole_bytes) ||
	    last >= queue->registered_bytes || last >> piece_shift != *piece || dev->head)
		return NULL;
	return dev->free;
}

/* The same for memory that is not registered, the caller's or the arena's. */
static inline struct spw_part *spw_engine__whole_unregistered_slot(const struct spw_queue *queue,
								   const struct spw_io *io,
								   struct spw_queue_device **device)
{
	struct spw_queue_device *dev = &queue->devices[io->device];

	*device = dev;
	if (io->device >= queue->device_count || !spw_engine__is_whole(dev, io, dev->uncut_bytes) ||
	    !io->buf || (uintptr_t)io->buf - queue->arena_base < queue->registered_bytes ||
	    dev->head)
		return NULL;
	return dev->free;
}

/* Take the slot that was found above, for an io that the backend has issued. */
static inline void spw_engine__whole_issued(struct spw_queue *queue, struct spw_queue_device *dev,
					    struct spw_io *io)
{
	spw_engine__slot_take(queue, dev)->io = io;
	io->engine_state = IO_WHOLE;
}

static inline bool spw_engine__io_is_whole(const struct spw_io *io)
{
	return io->engine_state == IO_WHOLE;
}

/*
 * Fast path of spw_engine__part_completed(): the io is one part and was transferred completely.
 * Return: false: nothing was changed, use the slow path.
 */
static inline bool spw_engine__whole_completed(struct spw_queue *queue, struct spw_part *part,
					       int64_t res)
{
	struct spw_io *io = part->io;

	if (!spw_engine__io_is_whole(io) || res != (int64_t)io->len_bytes)
		return false;
	spw_engine__slot_give(queue, &queue->devices[part->device], part);
	queue->bytes[io->op] += io->len_bytes;
	io->engine_state = IO_ENDED;
	io->res = (int32_t)io->len_bytes;
	SPW_PROBE(complete, io, io->device, io->op, io->res);
	io->done(io);
	return true;
}

#endif
