/* SPDX-License-Identifier: MIT */
/* engine/uring.h - the io_uring of two backends, whose q->state begins with a struct spw_uring */
#ifndef SPW_ENGINE_URING_H
#define SPW_ENGINE_URING_H

#include <liburing.h>
#include <pthread.h>

#include "engine/backend.h"
#include "util/util.h"

/* user_data of what is not a part; parts are addresses and multiples of 64. */
#define SPW_URING_TAG_WAKE   1u
#define SPW_URING_TAG_CANCEL 2u

struct spw_uring {
	struct io_uring ring;
	unsigned setup_flags;
	unsigned extra_flags; /* setup flags that the backend cannot do without */
	unsigned shift;       /* 1: entries and completions of twice the usual size */
	/* Complete what has ended, by spw_uring_take(). */
	void (*take)(struct spw_queue *queue, struct spw_uring *uring);
	bool enabled;
	uint64_t growable_bytes; /* registered memory may grow to this many; 0: it does not */
	pthread_t owner;         /* once enabled */
	unsigned enter_flags;    /* IORING_ENTER_REGISTERED_RING or 0 */
	int enter_fd;

	/* Of entries of the usual size, to take the next one in few instructions. */
	struct io_uring_sqe *entries;
	unsigned entries_mask;
	/* the kernel has taken at least this less the ring's entries */
	unsigned tail_limit;
};

/*
 * Make the ring with q->wait_mode; register @fds, one per device, and at most @pieces_max pieces of
 * the arena. The caller has zeroed @uring and set extra_flags, shift, take. Return: 0; -errno.
 */
int spw_engine__uring_set_up(struct spw_queue *queue, struct spw_uring *uring, const int fds[],
			     uint64_t pieces_max);

/*
 * Register more of the arena if that is where @io's memory lies. Return: whether it is registered
 * now and was not before.
 */
bool spw_engine__uring_grow(struct spw_queue *queue, struct spw_uring *uring,
			    const struct spw_io *io);

/* Give registrations and ring back; frees nothing of the backend's. */
void spw_engine__uring_tear_down(struct spw_queue *queue, struct spw_uring *uring);

/* As of struct spw_backend_ops. */
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
			SPW_ASSERT(queue->wake.polls > 0); /* URING-2 */
			queue->wake.polls--;
			queue->wake.fired = true;
		}
	}
	/* The entries are read before the kernel may write over them. */
	io_uring_smp_store_release(cq->khead, head);
}

#endif
