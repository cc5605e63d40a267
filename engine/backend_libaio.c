/* SPDX-License-Identifier: MIT */
/*
 * engine/backend_libaio.c - parts over Linux native asynchronous I/O, for where io_uring is refused
 */
#include <errno.h>
#include <libaio.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "engine/backend.h"
#include "util/util.h"

#define EVENTS_MAX 256u

/* The kernel has no memory for a single request: so often in a row, and it is an error. */
#define REFUSALS_MAX 10000u

struct aio {
	io_context_t context;
	/* one per slot, in the same order; then those that poll the eventfd */
	struct iocb *iocbs;
	struct iocb **pending; /* issued and not submitted */
	unsigned capacity;
	unsigned pending_count;
	unsigned in_kernel;   /* parts */
	unsigned wakes_armed; /* polls of the eventfd under way */
	unsigned wakes_queued;
	bool wake_fired;
	unsigned refusals; /* -EAGAIN in a row with nothing of ours in the kernel */
	struct io_event events[EVENTS_MAX];
};

static int probe_poll(struct spw_queue *q, struct aio *a)
{
	struct iocb *iocb = &a->iocbs[q->depth * q->device_count];
	int ret;

	io_prep_poll(iocb, q->wake.watched, POLLIN);
	iocb->data = NULL;
	ret = io_submit(a->context, 1, &iocb);
	if (ret != 1)
		return spw_error(ret < 0 ? ret : -EIO,
				 "libaio refused: it cannot poll (needs Linux 4.19)");
	a->wakes_armed = 1;
	return 0;
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
	if (ret) {
		(void)io_destroy(a->context);
		goto fail;
	}
	if (q->wait_mode != SPW_WAIT_INTERRUPT)
		spw_log(&q->log, SPW_LOG_WARNING,
			"libaio neither polls nor submits from a kernel thread; using interrupts");
	q->wait_mode = SPW_WAIT_INTERRUPT;
	spw_queue_describe(q, " interrupt");
	q->prepare = aio_prepare;
	q->state = a;
	return 0;
fail:
	free(a->iocbs);
	free(a->pending);
	free(a);
	return ret;
}

static void aio_close(struct spw_queue *q)
{
	struct aio *a = q->state;

	(void)io_destroy(a->context);
	free(a->iocbs);
	free(a->pending);
	free(a);
	q->state = NULL;
}

static int aio_issue(struct spw_queue *q, struct spw_part *part)
{
	struct aio *a = q->state;
	struct iocb *iocb = &a->iocbs[part - q->parts];
	bool is_read = part->op == SPW_READ;
	int fd = q->devices[part->device].fd;
	long long offset = (long long)part->offset_bytes;

	if (part->op == SPW_FLUSH)
		io_prep_fdsync(iocb, fd);
	else if (part->iov_count && is_read)
		io_prep_preadv(iocb, fd, part->iov, (int)part->iov_count, offset);
	else if (part->iov_count)
		io_prep_pwritev(iocb, fd, part->iov, (int)part->iov_count, offset);
	else if (is_read)
		io_prep_pread(iocb, fd, part->buf, part->len_bytes, offset);
	else
		io_prep_pwrite(iocb, fd, part->buf, part->len_bytes, offset);
	iocb->data = part;
	part->piece = -1;
	a->pending[a->pending_count++] = iocb;
	return 0;
}

/*
 * A plain transfer from the caller's io straight among those to be submitted; what is not plain
 * takes the long way.
 */
static int aio_prepare(struct spw_queue *q, struct spw_io *io)
{
	struct aio *a = q->state;
	struct spw_queue_device *dev;
	struct spw_part *part = spw_whole_unregistered_slot(q, io, &dev);
	struct iocb *iocb;

	if (__builtin_expect(!part, 0))
		return spw_queue_prepare_any(q, io);
	spw_whole_unregistered_issued(q, dev, io);
	iocb = &a->iocbs[part - q->parts];
	if (io->op == SPW_READ)
		io_prep_pread(iocb, dev->fd, io->buf, io->len_bytes, (long long)io->offset_bytes);
	else
		io_prep_pwrite(iocb, dev->fd, io->buf, io->len_bytes, (long long)io->offset_bytes);
	iocb->data = part;
	a->pending[a->pending_count++] = iocb;
	return 0;
}

/*
 * The kernel refused the first pending request, and that alone. Its io ends when the others are
 * submitted: it may be prepared again, and there is room for each slot once.
 */
static void complete_refused(struct spw_queue *q, struct aio *a, struct spw_part *part, int error)
{
	bool was_issuing = q->issuing;

	if (!part) {
		a->wakes_queued--;
		return;
	}
	if (spw_io_is_whole(part->io))
		spw_part_unfold(q, part);
	if (part->op == SPW_FLUSH && error == -EINVAL) {
		/* No asynchronous flush here. */
		q->stats.system_calls++;
		q->stats.sleeps++;
		error = spw_device_sync(q->devices[part->device].device);
	}
	q->issuing = true;
	spw_part_completed(q, part, error);
	q->issuing = was_issuing;
}

static int aio_submit(struct spw_queue *q)
{
	struct aio *a = q->state;
	unsigned done = 0;
	int result = 0;

	while (done < a->pending_count) {
		int ret = io_submit(a->context, (long)(a->pending_count - done), a->pending + done);

		q->stats.system_calls++;
		if (a->wakes_queued == 0 && ret > 0) {
			a->in_kernel += (unsigned)ret;
			done += (unsigned)ret;
			a->refusals = 0;
			continue;
		}
		for (int i = 0; i < ret; i++, done++) {
			bool is_wake = !a->pending[done]->data;

			a->wakes_armed += is_wake;
			a->wakes_queued -= is_wake;
			a->in_kernel += !is_wake;
		}
		if (ret > 0)
			a->refusals = 0;
		if (ret > 0 || ret == -EINTR)
			continue;
		/* The kernel has no room: the rest goes when something has completed. */
		if (ret == -EAGAIN || ret == 0) {
			a->refusals = a->in_kernel > 0 ? 0 : a->refusals + 1;
			result = a->refusals > REFUSALS_MAX ? -EAGAIN : 0;
			break;
		}
		complete_refused(q, a, a->pending[done++]->data, ret);
	}
	a->pending_count -= done;
	memmove(a->pending, a->pending + done, a->pending_count * sizeof(struct iocb *));
	return result;
}

static void aio_cancel(struct spw_queue *q, struct spw_part *part)
{
	struct aio *a = q->state;
	struct io_event event;

	/* What was not submitted yet the kernel never sees. */
	for (unsigned i = 0; i < a->pending_count; i++) {
		if (a->pending[i]->data != part)
			continue;
		a->pending_count--;
		memmove(&a->pending[i], &a->pending[i + 1],
			(a->pending_count - i) * sizeof(struct iocb *));
		spw_part_completed(q, part, -ECANCELED);
		return;
	}
	/* No drive's driver supports it today: a refusal means that the part ends by itself. */
	if (io_cancel(a->context, &a->iocbs[part - q->parts], &event) == 0) {
		a->in_kernel--;
		spw_part_completed(q, part, -ECANCELED);
	}
}

/*
 * As many polls of the eventfd as completions are waited for: a wake then ends the wait by itself,
 * whatever the drives do. Return: how many completions may be waited for.
 */
static unsigned arm_wakes(struct spw_queue *q, struct aio *a, unsigned want)
{
	struct iocb *polls = a->iocbs + q->depth * q->device_count;
	unsigned armed = a->wakes_armed + a->wakes_queued;

	if (a->wake_fired && armed == 0) {
		spw_wake_drain(&q->wake);
		a->wake_fired = false;
	}
	/* After a wake the rest of the polls end on their own. */
	for (; armed < want && !a->wake_fired; armed++) {
		io_prep_poll(&polls[armed], q->wake.watched, POLLIN);
		polls[armed].data = NULL;
		a->pending[a->pending_count++] = &polls[armed];
		a->wakes_queued++;
	}
	return want <= armed ? want : armed;
}

static void take_events(struct spw_queue *q, struct aio *a, int count)
{
	for (int i = 0; i < count; i++) {
		struct spw_part *part = a->events[i].data;

		if (!part) {
			a->wakes_armed--;
			a->wake_fired = true;
			continue;
		}
		a->in_kernel--;
		if (__builtin_expect(!spw_whole_completed(q, part, (int64_t)(long)a->events[i].res),
				     0))
			spw_part_completed(q, part, (int64_t)(long)a->events[i].res);
	}
}

/* How many events to sleep for after submitting: never for what did not get into the kernel. */
static unsigned events_to_wait_for(const struct spw_queue *q, const struct aio *a, unsigned want,
				   unsigned in_flight_before)
{
	/* A part that was refused has ended or is to be issued again. */
	if (spw_queue_in_flight(q) != in_flight_before || q->again > 0)
		return 0;
	if (a->pending_count > 0)
		return want > 0 && a->in_kernel > 0;
	return a->in_kernel > 0 && want > a->in_kernel ? a->in_kernel : want;
}

static int aio_wait(struct spw_queue *q, unsigned want, int64_t timeout_ns)
{
	struct aio *a = q->state;
	struct timespec timeout = {.tv_sec = timeout_ns / 1000000000,
				   .tv_nsec = timeout_ns % 1000000000};
	struct timespec none = {0};
	unsigned in_flight = spw_queue_in_flight(q);
	int ret;

	if (want > 0)
		want = arm_wakes(q, a, want);
	ret = aio_submit(q);
	if (ret)
		return ret;
	want = events_to_wait_for(q, a, want, in_flight);
	if (want == 0 && a->in_kernel == 0)
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

const struct spw_backend_ops spw_backend_libaio = {
	.name = "libaio",
	.backend = SPW_BACKEND_LIBAIO,
	.open = aio_open,
	.close = aio_close,
	.issue = aio_issue,
	.submit = aio_submit,
	.wait = aio_wait,
	.cancel = aio_cancel,
};
