/* SPDX-License-Identifier: MIT */
/*
 * engine/backend_libaio.c - backend libaio: parts by Linux native asynchronous I/O, if io_uring is
 * not available
 *
 * Invariants, cited by asserts
 *   AIO-1  Each slot, and each poll of the eventfd, is at most once in pending, which has room for
 *          all of them.
 *   AIO-2  wake.polls polls of the eventfd are pending or in the kernel. Parts in flight that are
 *          neither pending nor to be issued again are in the kernel.
 */
#include <errno.h>
#include <libaio.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "engine/backend.h"
#include "util/util.h"

#define EVENTS_MAX 256u

/* After as many refusals in a row, with no request in the kernel, io_submit(2) has failed. */
#define REFUSALS_MAX 10000u

struct aio {
	io_context_t context;
	/* one per slot, in the same order; then the polls of the eventfd */
	struct iocb *iocbs;
	struct iocb **pending; /* issued and not submitted */
	unsigned capacity;
	unsigned pending_count;
	unsigned refusals; /* results -EAGAIN in a row, with no request in the kernel */
	struct io_event events[EVENTS_MAX];
};

static struct iocb *next_poll(struct spw_queue *q, struct aio *a)
{
	struct iocb *iocb = &a->iocbs[q->depth * q->device_count + q->wake.polls++];

	io_prep_poll(iocb, q->wake.watched, POLLIN);
	iocb->data = NULL;
	return iocb;
}

static int probe_poll(struct spw_queue *q, struct aio *a)
{
	struct iocb *iocb = next_poll(q, a);
	int ret = io_submit(a->context, 1, &iocb);

	if (ret == 1)
		return 0;
	q->wake.polls = 0;
	return spw_error(ret < 0 ? ret : -EIO, "libaio refused: it cannot poll (needs Linux 4.19)");
}

static void free_state(struct aio *a)
{
	if (a->context)
		(void)io_destroy(a->context);
	free(a->iocbs);
	free(a->pending);
	free(a);
}

static int aio_prepare(struct spw_queue *q, struct spw_io *io);

static int aio_open(struct spw_queue *q)
{
	unsigned slots = q->depth * q->device_count;
	struct aio *a = calloc(1, sizeof(*a));
	int ret = -ENOMEM;

	if (!a)
		return spw_error(-ENOMEM, "libaio: no memory");
	a->capacity = slots + SPW_WANT_MAX;
	a->iocbs = calloc(a->capacity, sizeof(*a->iocbs));
	a->pending = calloc(a->capacity, sizeof(struct iocb *));
	if (!a->iocbs || !a->pending) {
		(void)spw_error(ret, "libaio: no memory");
		goto fail;
	}
	ret = io_setup((int)a->capacity, &a->context);
	if (ret) {
		(void)spw_error(ret, "libaio refused: %s%s", spw_strerror(ret),
				ret == -EAGAIN ? " (see fs.aio-max-nr)" : "");
		goto fail;
	}
	ret = probe_poll(q, a);
	if (ret)
		goto fail;
	if (q->wait_mode != SPW_WAIT_INTERRUPT)
		spw_log(&q->log, SPW_LOG_WARNING,
			"libaio neither polls nor submits from a kernel thread; using interrupts");
	q->wait_mode = SPW_WAIT_INTERRUPT;
	spw_engine__queue_describe(q, " interrupt");
	/* No placements: an iocb has no field for a write stream. */
	for (unsigned i = 0; i < q->device_count; i++)
		if (q->devices[i].device->geometry.kind != SPW_DEVICE_VFIO)
			spw_engine__queue_place(q, i, NULL, 0);
	q->prepare = aio_prepare;
	q->state = a;
	return 0;
fail:
	free_state(a);
	return ret;
}

static void aio_close(struct spw_queue *q)
{
	free_state(q->state);
	q->state = NULL;
}

static inline void put_among_pending(struct aio *a, struct iocb *iocb)
{
	SPW_ASSERT(a->pending_count < a->capacity); /* no entry is pending twice (AIO-1) */
	a->pending[a->pending_count++] = iocb;
}

_Static_assert(IO_CMD_PWRITE == IO_CMD_PREAD + (SPW_WRITE - SPW_READ) &&
		       IO_CMD_PWRITEV == IO_CMD_PREADV + (SPW_WRITE - SPW_READ),
	       "an opcode is a sum");

static inline void prepare_transfer(struct iocb *iocb, enum spw_op op, int fd, void *buf,
				    uint32_t len, uint64_t offset_bytes)
{
	io_prep_pread(iocb, fd, buf, len, (long long)offset_bytes);
	iocb->aio_lio_opcode = (short)(iocb->aio_lio_opcode + (int)op);
}

static int aio_issue(struct spw_queue *q, struct spw_part *part)
{
	struct aio *a = q->state;
	struct iocb *iocb = &a->iocbs[part - q->parts];
	int fd = q->devices[part->device].fd;

	if (part->op == SPW_FLUSH) {
		io_prep_fdsync(iocb, fd);
	} else if (part->iov_count) {
		io_prep_preadv(iocb, fd, part->iov, (int)part->iov_count,
			       (long long)part->offset_bytes);
		iocb->aio_lio_opcode = (short)(iocb->aio_lio_opcode + part->op);
	} else {
		prepare_transfer(iocb, part->op, fd, part->buf, part->len_bytes,
				 part->offset_bytes);
	}
	iocb->data = part;
	part->piece = -1;
	put_among_pending(a, iocb);
	return 0;
}

/* Fast path: a plain transfer becomes pending at once; others take the slow path. */
static int aio_prepare(struct spw_queue *q, struct spw_io *io)
{
	struct aio *a = q->state;
	struct spw_queue_device *dev;
	struct spw_part *part = spw_engine__whole_unregistered_slot(q, io, &dev);
	struct iocb *iocb;

	if (unlikely(!part))
		return spw_engine__queue_prepare_any(q, io);
	spw_engine__whole_issued(q, dev, io);
	q->parts_unregistered++;
	iocb = &a->iocbs[part - q->parts];
	prepare_transfer(iocb, io->op, dev->fd, io->buf, io->len_bytes, io->offset_bytes);
	iocb->data = part;
	put_among_pending(a, iocb);
	return 0;
}

/* io_submit(2) refused the first entry. done is left to the next reap: it may prepare ios. */
static void complete_refused(struct spw_queue *q, struct spw_part *part, int error)
{
	bool was_issuing = q->issuing;

	if (!part) {
		q->wake.polls--;
		return;
	}
	if (spw_engine__io_is_whole(part->io))
		spw_engine__part_unfold(q, part);
	q->issuing = true;
	spw_engine__part_completed(q, part, error);
	q->issuing = was_issuing;
}

/* Number of parts in the kernel (AIO-2). If vfio shares the queue, its parts are included. */
static unsigned in_kernel(const struct spw_queue *q, const struct aio *a)
{
	unsigned count = spw_engine__queue_in_flight(q) - q->again;

	for (unsigned i = 0; i < a->pending_count; i++)
		count -= a->pending[i]->data != NULL;
	return count;
}

static int aio_submit(struct spw_queue *q)
{
	struct aio *a = q->state;
	unsigned done = 0;
	int ret = 1;

	while (done < a->pending_count && ret != -EAGAIN && ret != 0) {
		ret = io_submit(a->context, (long)(a->pending_count - done), a->pending + done);
		q->stats.system_calls++;
		if (ret > 0)
			done += (unsigned)ret;
		else if (ret != 0 && ret != -EINTR && ret != -EAGAIN)
			complete_refused(q, a->pending[done++]->data, ret);
	}
	a->pending_count -= done;
	memmove(a->pending, a->pending + done, a->pending_count * sizeof(struct iocb *));
	/* The kernel has no room: the rest is submitted after the next completion. */
	a->refusals =
		done > 0 || a->pending_count == 0 || in_kernel(q, a) > 0 ? 0 : a->refusals + 1;
	return a->refusals > REFUSALS_MAX ? -EAGAIN : 0;
}

static void aio_cancel(struct spw_queue *q, struct spw_part *part)
{
	struct aio *a = q->state;
	struct io_event event;

	/* A part that was not submitted yet is just removed. */
	for (unsigned i = 0; i < a->pending_count; i++) {
		if (a->pending[i]->data != part)
			continue;
		a->pending_count--;
		memmove(&a->pending[i], &a->pending[i + 1],
			(a->pending_count - i) * sizeof(struct iocb *));
		spw_engine__part_completed(q, part, -ECANCELED);
		return;
	}
	/* No block driver supports io_cancel(2) today. If it fails, the part ends by itself. */
	if (io_cancel(a->context, &a->iocbs[part - q->parts], &event) == 0)
		spw_engine__part_completed(q, part, -ECANCELED);
}

/* Poll the eventfd @want times. Return: how many completions may be waited for. */
static unsigned arm_wakes(struct spw_queue *q, struct aio *a, unsigned want)
{
	SPW_ASSERT(want <= SPW_WANT_MAX); /* there is room for the polls (AIO-1) */
	for (unsigned missing = spw_engine__wake_polls_missing(&q->wake, want); missing > 0;
	     missing--)
		put_among_pending(a, next_poll(q, a));
	return want <= q->wake.polls ? want : q->wake.polls;
}

static void take_events(struct spw_queue *q, struct aio *a, int count)
{
	for (int i = 0; i < count; i++) {
		struct spw_part *part = a->events[i].data;
		int64_t res = (int64_t)(long)a->events[i].res;

		if (!part) {
			SPW_ASSERT(q->wake.polls > 0); /* this event is one of the polls (AIO-2) */
			q->wake.polls--;
			q->wake.fired = true;
		} else if (unlikely(!spw_engine__whole_completed(q, part, res))) {
			spw_engine__part_completed(q, part, res);
		}
	}
}

/* How many events to wait for after submitting: never for parts that are not in the kernel. */
static unsigned events_to_wait_for(const struct spw_queue *q, const struct aio *a, unsigned want,
				   unsigned in_flight_before)
{
	unsigned parts = in_kernel(q, a);

	/* A part was refused: it has ended or is to be issued again, so do not wait. */
	if (spw_engine__queue_in_flight(q) != in_flight_before || q->again > 0)
		return 0;
	if (a->pending_count > 0)
		return want > 0 && parts > 0;
	return parts > 0 && want > parts ? parts : want;
}

static int aio_wait(struct spw_queue *q, unsigned want, int64_t timeout_ns)
{
	struct aio *a = q->state;
	struct timespec timeout = {.tv_sec = timeout_ns / 1000000000,
				   .tv_nsec = timeout_ns % 1000000000};
	struct timespec none = {0};
	unsigned in_flight = spw_engine__queue_in_flight(q);
	int ret;

	if (want > 0)
		want = arm_wakes(q, a, want);
	ret = aio_submit(q);
	if (ret)
		return ret;
	want = events_to_wait_for(q, a, want, in_flight);
	if (want == 0 && in_kernel(q, a) == 0)
		return 0;
	q->stats.system_calls++;
	if (want > 0)
		q->stats.sleeps++;
	ret = io_getevents(a->context, want, EVENTS_MAX, a->events,
			   want == 0         ? &none
			   : timeout_ns >= 0 ? &timeout
					     : NULL);
	if (ret < 0)
		return ret;
	take_events(q, a, ret);
	return (unsigned)ret < want ? -ETIME : 0;
}

/* Each transfer pins its own memory, until it ends. */
static void aio_shrink(struct spw_queue *q, uint64_t len_bytes)
{
	(void)q;
	(void)len_bytes;
}

const struct spw_backend_ops spw_engine__backend_libaio = {
	.name = "libaio",
	.backend = SPW_BACKEND_LIBAIO,
	.open = aio_open,
	.close = aio_close,
	.issue = aio_issue,
	.submit = aio_submit,
	.wait = aio_wait,
	.cancel = aio_cancel,
	.shrink = aio_shrink,
};
