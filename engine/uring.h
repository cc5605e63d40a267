/* SPDX-License-Identifier: MIT */
/*
 * engine/uring.h - the io_uring under two backends: plain transfers (backend_io_uring.c) and NVMe
 * passthrough (backend_nvme.c)
 *
 * A backend's state begins with a struct spw_uring, and q->state points to it. What goes into an
 * entry and what a completion means is the backend's; the ring, its registrations and the system
 * calls are here.
 */
#ifndef SPW_ENGINE_URING_H
#define SPW_ENGINE_URING_H

#include <liburing.h>
#include <pthread.h>

#include "engine/backend.h"

/* user_data of what is not a part; parts are addresses and multiples of 64. */
#define SPW_URING_TAG_WAKE   1u
#define SPW_URING_TAG_CANCEL 2u

struct spw_uring {
	struct io_uring ring;
	unsigned setup_flags;
	unsigned extra_flags; /* setup flags that the backend cannot do without */
	/* Complete what has ended. NULL: the result of a completion is that of its part. */
	void (*take)(struct spw_queue *queue, struct spw_uring *uring);
	bool enabled;
	pthread_t owner;      /* once enabled */
	unsigned enter_flags; /* IORING_ENTER_REGISTERED_RING or 0 */
	int enter_fd;
	/* polls of the eventfd under way: as many as completions were ever waited for at once */
	unsigned wakes_armed;
	bool wake_fired;

	/* Of entries of the usual size, to take the next one in few instructions. */
	struct io_uring_sqe *entries;
	unsigned entries_mask;
	/* the kernel has taken so many less the ring's entries, and may have taken more */
	unsigned tail_limit;
};

/*
 * Make the ring with q->wait_mode and register @fds, one per device, and the arena (in pieces of 1
 * << q->piece_shift, at most @pieces_max). The caller has zeroed @uring and set extra_flags and
 * take. Return: 0; a negative errno with the reason.
 */
int spw_uring_set_up(struct spw_queue *queue, struct spw_uring *uring, const int fds[],
		     uint64_t pieces_max);

/* Give registrations and ring back; frees nothing of the backend's. */
void spw_uring_tear_down(struct spw_queue *queue, struct spw_uring *uring);

/* As of struct spw_backend_ops. */
int spw_uring_submit(struct spw_queue *queue);
int spw_uring_wait(struct spw_queue *queue, unsigned want, int64_t timeout_ns);

/* A poll of the eventfd has fired. */
static inline void spw_uring_wake_completed(struct spw_uring *uring)
{
	uring->wakes_armed--;
	uring->wake_fired = true;
}

#endif
