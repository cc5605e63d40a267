/* SPDX-License-Identifier: MIT */
/*
 * engine/uring.h - struct spw_uring: the ring of backends io_uring and nvme; q->state begins with
 * it
 */
#ifndef SPW_ENGINE_URING_H
#define SPW_ENGINE_URING_H

#include <liburing.h>
#include <pthread.h>

#include "engine/backend.h"
#include "util/util.h"

/* user_data of entries that are not parts; a part's is its address, a multiple of 64. */
#define SPW_URING_TAG_WAKE   1u
#define SPW_URING_TAG_CANCEL 2u

struct spw_uring {
	struct io_uring ring;
	unsigned setup_flags;
	unsigned extra_flags; /* setup flags that the backend cannot do without */
	unsigned shift;       /* 1: entries and completions have twice the usual size */
	/* Complete parts that have ended, by spw_uring_take(). */
	void (*take)(struct spw_queue *queue, struct spw_uring *uring);
	bool enabled;
	uint64_t growable_bytes; /* registered memory may grow to this many; 0: it does not */
	pthread_t owner;         /* valid once enabled */
	unsigned enter_flags;    /* IORING_ENTER_REGISTERED_RING or 0 */
	int enter_fd;

	/* If entries have the usual size: to get the next one in few instructions. */
	struct io_uring_sqe *entries;
	unsigned entries_mask;
	/* the tail may advance up to this before the kernel's head has to be read again */
	unsigned tail_limit;
};

/*
 * Create the ring with q->wait_mode; register @fds, one per device, and at most @pieces_max pieces
 * of the arena. The caller has zeroed @uring and set extra_flags, shift, take. Return: 0; -errno.
 */
int spw_engine__uring_set_up(struct spw_queue *queue, struct spw_uring *uring, const int fds[],
			     uint64_t pieces_max);

/*
 * Register more of the arena if @io's memory lies in its unregistered part. Return: whether that
 * memory was registered by this call.
 */
bool spw_engine__uring_grow(struct spw_queue *queue, struct spw_uring *uring,
			    const struct spw_io *io);

/* See struct spw_backend_ops. Not where all was registered at once: that cannot be changed. */
void spw_engine__uring_shrink(struct spw_queue *queue, uint64_t len_bytes);

/* Unregister everything and close the ring; does not free the backend's state. */
void spw_engine__uring_tear_down(struct spw_queue *queue, struct spw_uring *uring);

/* See struct spw_backend_ops. */
int spw_engine__uring_submit(struct spw_queue *queue);
int spw_engine__uring_wait(struct spw_queue *queue, unsigned want, int64_t timeout_ns);
void spw_engine__uring_cancel(struct spw_queue *queue, struct spw_part *part);
int spw_engine__uring_add_range(struct spw_queue *queue, struct spw_range *range);
void spw_engine__uring_remove_range(struct spw_queue *queue, struct spw_range *range);

/* Call @end for each part that has ended, with the result of its completion. */
__attribute__((always_inline)) static inline void spw_uring_take(
	struct spw_queue *queue, struct spw_uring *uring, unsigned shift,
	void (*end)(struct spw_queue *queue, struct spw_part *part, int res))
{
	struct io_uring_cq *cq = &uring->ring.cq;
	unsigned mask = *cq->kring_mask;
	unsigned tail = io_uring_smp_load_acquire(cq->ktail);
	unsigned head = *cq->khead;

	while (head != tail) {
		const struct io_uring_cqe *cqe = &cq->cqes[(head & mask) << shift];
		uint64_t tag = cqe->user_data;
		int res = cqe->res;

		head++;
		if (likely(tag > SPW_URING_TAG_CANCEL)) {
			end(queue, (struct spw_part *)(uintptr_t)tag, res);
		} else if (tag == SPW_URING_TAG_WAKE) {
			/* this completion is one of the polls in flight (URING-2) */
			SPW_ASSERT(queue->wake.polls > 0);
			queue->wake.polls--;
			queue->wake.fired = true;
		}
	}
	/* Release: read the entries before the kernel may overwrite them. */
	io_uring_smp_store_release(cq->khead, head);
}

#endif
