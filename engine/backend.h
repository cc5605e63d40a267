/* SPDX-License-Identifier: MIT */
/*
 * engine/backend.h - between a queue, which knows ios, and a backend, one way to reach a drive
 *
 * The queue cuts ios into parts: one slot and one request in flight each. A backend hands each part
 * back exactly once, by spw_engine__part_completed(). Splitting, joining, continuing, retrying,
 * counting and reporting are the queue's; waiting and system calls the backend's.
 *
 * The thread that owns the queue calls all functions of a backend, but open: any, before first use.
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

/* Memory is registered in pieces of this from the arena's base: the most io_uring takes. */
#define SPW_PIECE_SHIFT 30

/* A backend is never asked to wait for more completions than this at once. */
#define SPW_WANT_MAX 64u

/* Of an io, see transfer.c. */
enum spw_io_state { IO_ENDED, IO_WAITING, IO_ISSUED, IO_CANCELLED, IO_WHOLE };

/* One request. While its io is whole only io, next and device hold, until
 * spw_engine__part_unfold(). */
struct spw_part {
	struct spw_io *io;     /* NULL: the slot is free */
	struct spw_part *next; /* among the free slots, or among those to be issued again */
	uint64_t offset_bytes; /* on the device */
	char *buf;             /* when iov_count is 0 */
	/* where the part stands in its io's vector; NULL: the io has none */
	const struct iovec *iov;
	uint32_t iov_count;  /* whole elements from iov on in this request; 0: buf */
	uint32_t iov_offset; /* bytes of iov[0] that are done */
	uint32_t len_bytes;  /* of this request; 0 for a flush */
	uint32_t rest_bytes; /* not transferred yet, len_bytes among them */
	int16_t piece;       /* buf lies in this registered piece of the arena; -1: in none */
	/* of -EAGAIN and the like; above 0 the backend lets the kernel wait where it can */
	uint16_t retries;
	uint8_t device;
	uint8_t op; /* enum spw_op; SPW_DISCARD only if the backend discards */
	/* above 0 a request has no more than 2^this bytes, as one of more has failed */
	uint8_t limit_shift;
} __attribute__((aligned(64)));

_Static_assert(sizeof(struct spw_part) == 64, "a part fills one cache line");

struct spw_backend_ops {
	const char *name;
	enum spw_backend backend;
	bool discards; /* takes SPW_DISCARD as a part without memory */

	/* Make the backend's state; set queue->pieces. Return: 0; -errno: not usable. */
	int (*open)(struct spw_queue *queue);
	/* Narrow part_bytes_max, segments_max, arena_page_bytes. NULL: as any block device. */
	void (*limits)(struct spw_queue *queue, struct spw_queue_device *device);
	/* Nothing is in flight. */
	void (*close)(struct spw_queue *queue);

	/* No system call. Return: 0, also when it completed at once; -EAGAIN full: submit. */
	int (*issue)(struct spw_queue *queue, struct spw_part *part);
	/* One system call for all that was issued; completes nothing. Return: 0; -errno. */
	int (*submit)(struct spw_queue *queue);
	/*
	 * Submit, wait for @want completions (0: none), complete what has ended. Returns early
	 * after a wake. @timeout_ns: negative: no limit. Return: 0; -EINTR a signal; -ETIME;
	 * another negative errno: the queue is broken.
	 */
	int (*wait)(struct spw_queue *queue, unsigned want, int64_t timeout_ns);
	/* Try to stop a part that was issued. It completes in any case. */
	void (*cancel)(struct spw_queue *queue, struct spw_part *part);
	/*
	 * Register a range's memory and set its pieces, in room that no other's take. NULL: the
	 * backend registers none. Return: 0; -errno, in words, and nothing is changed.
	 */
	int (*add_range)(struct spw_queue *queue, struct spw_range *range);
	/* Of what add_range registered; no part uses it. */
	void (*remove_range)(struct spw_queue *queue, struct spw_range *range);
	/* What queue->drive_status means. NULL: the backend never sets it. */
	const char *(*status_text)(uint32_t status);
};

extern const struct spw_backend_ops spw_engine__backend_io_uring;
extern const struct spw_backend_ops spw_engine__backend_libaio;
extern const struct spw_backend_ops spw_engine__backend_null;
extern const struct spw_backend_ops spw_nvme__backend_nvme; /* engine/nvme/ */
extern const struct spw_backend_ops spw_vfio__backend_vfio; /* engine/vfio/ */

/* Of a drive that places data: what its writes name, in the low 16 bits. */
#define SPW_PLACED (1u << 16)

struct spw_queue_device {
	struct spw_io *head, *tail; /* ios with bytes that are not cut into parts yet, in order */
	struct spw_part *free;
	struct spw_part *parts; /* the slots: queue->depth of them */
	uint32_t in_flight;     /* slots in use */
	uint32_t waiting;       /* ios between head and tail */
	int fd;
	uint32_t block_mask;     /* logical block - 1 */
	uint32_t align_mask;     /* of buffers */
	uint32_t part_bytes_max; /* a part is never longer, */
	uint32_t segments_max;   /* nor has it more pages */
	uint32_t uncut_bytes;    /* this much is one part, wherever the memory is, */
	uint32_t whole_bytes;    /* and this much in registered memory, */
	uint32_t whole_mask;     /* where address, offset and length are multiples of this + 1 */
	/* polled: no part goes over a multiple of this, counted on the whole drive; 0: anywhere */
	uint64_t boundary_bytes;
	uint64_t start_bytes; /* of the device on that drive */
	uint64_t size_bytes;
	const struct spw_device *device;
	/* what a write names by its io's placement: SPW_PLACED and it; 0: nothing */
	uint32_t placements[SPW_PLACEMENT_MAX + 1];
	bool refuses_placements;
} __attribute__((aligned(128))); /* an index becomes an address by a shift */

struct spw_queue {
	/* spw_engine__queue_prepare_any(), or a shorter way for plain transfers that the backend
	 * sets */
	int (*prepare)(struct spw_queue *queue, struct spw_io *io);
	const struct spw_backend_ops *ops;
	void *state; /* the backend's */
	/* of vfio, which shares a queue with another backend: state is that one's */
	void *front_state;

	uint64_t waiting_mask; /* devices with waiting ios */
	uint32_t depth;
	uint32_t device_count;
	bool reaping;
	/* an io that ends now is ended by the reap, not inside the loop that issues */
	bool issuing;
	bool closing;
	bool polls; /* SPW_WAIT_POLL is in force */

	uintptr_t arena_base;
	uint64_t arena_len_bytes;   /* 0: no arena */
	uintptr_t arena_page_bytes; /* how much of the arena one segment covers */
	unsigned pieces;            /* registered; 0: none */
	unsigned pieces_room;       /* theirs, and what is left for ranges; 0: none */
	/* from the arena's base; grows as more of it is used */
	uint64_t registered_bytes;

	/*
	 * COUNT: nearly every io takes one slot once. So slots are counted, and of ios and parts
	 * only how many more there are; differences may be below 0, modulo 2^64.
	 */
	uint64_t slots_taken, slots_given;
	uint64_t ios_prepared_besides; /* + slots_taken: ios prepared */
	uint64_t ios_ended_besides;    /* + slots_given: ios ended */
	uint64_t parts_besides;        /* + slots_taken: parts given to the backend */
	uint64_t parts_unregistered;   /* of these, from memory that is not registered */
	uint64_t ios_reaped;           /* ios ended when the last reap returned */
	uint64_t bytes[2];             /* transferred: SPW_READ, SPW_WRITE */
	/* a piece has 2^this many bytes: SPW_PIECE_SHIFT unless the backend takes less */
	unsigned piece_shift;
	uintptr_t page_bytes;

	/* slots to be issued again: continued or retried */
	struct spw_part *again_head, *again_tail;
	uint32_t again; /* how many */
	/* ended outside a reap: done is called by the next */
	struct spw_io *ended_head, *ended_tail;

	/* set by the backend around spw_engine__part_completed(): what the drive said of a
	 * failure */
	uint32_t drive_status;
	uint32_t placement;             /* of struct spw_queue_opts */
	uint32_t timeout_ms;            /* of struct spw_queue_opts */
	uint64_t null_bytes_per_second; /* of struct spw_queue_opts */

	struct spw_ranges ranges; /* of others' memory */

	struct spw_queue_stats stats;
	struct spw_queue_device *devices;
	struct spw_part *parts; /* all slots: depth for each device, in order */
	struct spw_wake wake;
	enum spw_wait wait_mode;
	struct spw_arena *arena;
	struct spw_log log;
	char description[512];
};

/* From wait, cancel or issue: a part has ended. @res: bytes, or a negative errno. */
void spw_engine__part_completed(struct spw_queue *queue, struct spw_part *part, int64_t res);

/* spw_queue_prepare() for every io: it is issued by the next submit or wait. */
int spw_engine__queue_prepare_any(struct spw_queue *queue, struct spw_io *io);

/* Fill in a part whose io is whole from that io, which is IO_ISSUED from then on. */
void spw_engine__part_unfold(struct spw_queue *queue, struct spw_part *part);

/* Set the limits of requests to a device, by its geometry and the backend that is open. */
void spw_engine__queue_limit(struct spw_queue *queue, struct spw_queue_device *device);

/* spw_queue_open() with the backends to try, in order. */
int spw_engine__queue_open_with(struct spw_device *const devices[], unsigned count,
				const struct spw_queue_opts *opts,
				const struct spw_backend_ops *const candidates[],
				unsigned candidate_count, struct spw_queue **queue);

/* Sleep until what is watched is readable; negative: no limit. Return: 0; -ETIME; -errno. */
int spw_engine__queue_sleep(struct spw_queue *queue, int64_t timeout_ns);

void spw_engine__queue_describe(struct spw_queue *queue, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* Slots in use, of all devices. */
static inline uint32_t spw_engine__queue_in_flight(const struct spw_queue *queue)
{
	return (uint32_t)(queue->slots_taken - queue->slots_given);
}

/* Prepared and not ended. */
static inline uint32_t spw_engine__queue_ios(const struct spw_queue *queue)
{
	return spw_engine__queue_in_flight(queue) +
	       (uint32_t)(queue->ios_prepared_besides - queue->ios_ended_besides);
}

/* By the reap under way. */
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
 * From open: @ids are what writes to a device may name, if queue->placement asks for it.
 */
void spw_engine__queue_place(struct spw_queue *queue, unsigned device, const uint16_t ids[],
			     unsigned count);
/* No device places data: as before the backend's open. */
void spw_engine__queue_unplace(struct spw_queue *queue);

/* What an io, or a part of it, names; 0: nothing. */
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

/* The registered piece that holds all of a buffer; -1 when none does. */
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

/* Can it go in one piece, of up to @bytes_max? Where its memory lies is not looked at. */
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
 * The slot for an io in one piece from registered memory, which is nearly all of them; nothing is
 * changed. Return: NULL: it takes a closer look.
 */
static inline struct spw_part *spw_engine__whole_slot(const struct spw_queue *queue,
						      const struct spw_io *io, unsigned piece_shift,
						      struct spw_queue_device **device,
						      uint64_t *piece)
{
	struct spw_queue_device *dev = &queue->devices[io->device];
	uint64_t first = (uintptr_t)io->buf - queue->arena_base;
	uint64_t last = first + io->len_bytes - 1; /* below the arena both are far beyond it */

	*device = dev;
	*piece = first >> piece_shift;
	if (io->device >= queue->device_count || !spw_engine__is_whole(dev, io, dev->whole_bytes) ||
	    last >= queue->registered_bytes || last >> piece_shift != *piece || dev->head)
		return NULL;
	return dev->free;
}

/* The same from memory that is not registered, the caller's or the arena's. */
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

/* The backend has issued @io in the slot that it was given above, the next free one. */
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

/* As spw_engine__part_completed(), for what was issued and ended whole; else false, and no
 * change. */
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
