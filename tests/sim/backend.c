/* SPDX-License-Identifier: MIT */
/*
 * tests/sim/backend.c - the engine's backend over simulated drives, and its clock
 *
 * Nothing of this is in the library. A program that is linked with the flags of sim.mk gets this
 * backend from spw_queue_open(), and simulated time from every clock; all that lies above the
 * backend is the library's own.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/backend.h"
#include "tests/sim/sim.h"
#include "util/util.h"

#define HUNG_NS_MAX UINT64_C(1000000000000) /* no drive hangs so long */
#define LATE_NS     UINT64_C(1000000000)    /* more than any drive needs that is not slow */
#define CALL_NS     1000 /* what a call costs that does not wait: so that polling gets anywhere */

uint64_t sim_glances;

struct sim_backend {
	struct sim_io *ios; /* one per slot, in the same order */
	struct spw_part **pending;
	unsigned pending_count, in_flight;
	unsigned slots;
	uint64_t last_ended_ns; /* or when nothing was in flight */
};

WRAP(uint64_t, spw_clock_ns, (void))
{
	return sim_now_ns;
}

WRAP(int, nanosleep, (const struct timespec *interval, struct timespec *rest))
{
	(void)rest;
	sim_now_ns += (uint64_t)interval->tv_sec * 1000000000 + (uint64_t)interval->tv_nsec;
	sim_others_run();
	return 0;
}

static int backend_open(struct spw_queue *q)
{
	struct sim_backend *b = calloc(1, sizeof(*b));

	if (!b)
		return spw_error(-ENOMEM, "sim: no memory");
	b->last_ended_ns = sim_now_ns;
	b->slots = q->depth * q->device_count;
	b->ios = calloc(b->slots, sizeof(*b->ios));
	b->pending = calloc(b->slots, sizeof(struct spw_part *));
	if (!b->ios || !b->pending) {
		free(b->ios);
		free(b->pending);
		free(b);
		return spw_error(-ENOMEM, "sim: no memory");
	}
	q->wait_mode = SPW_WAIT_INTERRUPT;
	/* A queue that polls cuts transfers to what the drive takes at once: many small parts. */
	q->polls = q->devices[0].device->geometry.polls;
	spw_engine__queue_describe(q, " %u simulated drives", q->device_count);
	q->state = b;
	return 0;
}

static void backend_close(struct spw_queue *q)
{
	struct sim_backend *b = q->state;

	if (b->pending_count || b->in_flight)
		sim_fail("the queue was closed with %u requests in flight", b->in_flight);
	free(b->ios);
	free(b->pending);
	free(b);
}

static int backend_issue(struct spw_queue *q, struct spw_part *part)
{
	struct sim_backend *b = q->state;
	struct sim_drive *drive = &sim_drives[q->devices[part->device].fd];

	if (b->pending_count > 0 && drive->armed[SIM_FULL].times > 0) {
		drive->armed[SIM_FULL].times--;
		drive->injected[SIM_FULL]++;
		if (sim_mutation == SIM_MUTATION_FULL_TAKES_ALL)
			b->pending[b->pending_count++] = part;
		return -EAGAIN;
	}
	if (b->pending_count == b->slots)
		sim_fail("more requests were issued than there are slots");
	b->pending[b->pending_count++] = part;
	return 0;
}

static void begin(struct spw_queue *q, struct sim_backend *b, struct spw_part *part)
{
	struct sim_io *io = &b->ios[part - q->parts];

	if (io->active)
		sim_fail("a slot was issued twice");
	*io = (struct sim_io){.drive = &sim_drives[q->devices[part->device].fd],
			      .op = (enum spw_op)part->op,
			      .offset_bytes = part->offset_bytes,
			      .len_bytes = part->len_bytes,
			      .vector = part->iov_count ? part->iov : &io->one,
			      .one = {.iov_base = part->buf, .iov_len = part->len_bytes}};
	sim_io_begin(io);
	if (sim_cuts_queues)
		sim_event(io->op);
	if (sim_mutation == SIM_MUTATION_NO_FLUSH && io->op == SPW_FLUSH)
		io->fault = SIM_LOST;
	b->in_flight++;
}

static int backend_submit(struct spw_queue *q)
{
	struct sim_backend *b = q->state;

	for (unsigned i = 0; i < b->pending_count; i++)
		begin(q, b, b->pending[i]);
	b->pending_count = 0;
	return 0;
}

static struct sim_io *first_to_finish(struct sim_backend *b)
{
	struct sim_io *first = NULL;

	for (unsigned i = 0; i < b->slots; i++) {
		struct sim_io *io = &b->ios[i];

		if (io->active &&
		    (!first || io->finish_ns < first->finish_ns ||
		     (io->finish_ns == first->finish_ns && io->sequence < first->sequence)))
			first = io;
	}
	return first;
}

static bool is_dropped(const struct sim_io *io)
{
	if (sim_mutation == SIM_MUTATION_COMPLETION_IS_LOST)
		return io->sequence % 50 == 49;
	return sim_mutation == SIM_MUTATION_LATE_IS_LOST && io->finish_ns - io->begun_ns > LATE_NS;
}

static int64_t mutated(const struct spw_part *part, int64_t res)
{
	bool again = res == -EAGAIN || res == -EINTR;

	if (sim_mutation == SIM_MUTATION_SHORT_IS_WHOLE && res > 0)
		return part->len_bytes;
	if (sim_mutation == SIM_MUTATION_ERROR_IS_LOST && res <= 0 && !again)
		return part->len_bytes;
	if (sim_mutation == SIM_MUTATION_AGAIN_IS_ERROR && again)
		return -EIO;
	return res;
}

static void complete(struct spw_queue *q, struct sim_backend *b, struct sim_io *io)
{
	struct spw_part *part = &q->parts[io - b->ios];
	int64_t res = sim_io_end(io);

	b->in_flight--;
	if (is_dropped(io)) {
		b->in_flight++;
		io->active = false;
		return;
	}
	spw_engine__part_completed(q, part, mutated(part, res));
}

static int backend_wait(struct spw_queue *q, unsigned want, int64_t timeout_ns)
{
	struct sim_backend *b = q->state;
	uint64_t deadline_ns = timeout_ns < 0 ? UINT64_MAX : sim_now_ns + (uint64_t)timeout_ns;
	unsigned completed = 0;
	struct sim_io *io;

	(void)backend_submit(q);
	sim_glances += want == 0 || timeout_ns == 0;
	q->stats.system_calls++;
	sim_now_ns += CALL_NS;
	while ((io = first_to_finish(b)) != NULL &&
	       (io->finish_ns <= sim_now_ns || completed < want)) {
		if (io->finish_ns > deadline_ns)
			break;
		if (io->finish_ns > sim_now_ns)
			sim_now_ns = io->finish_ns;
		complete(q, b, io);
		completed++;
	}
	if (completed > 0 || b->in_flight == 0)
		b->last_ended_ns = sim_now_ns;
	if (sim_now_ns - b->last_ended_ns > HUNG_NS_MAX)
		sim_fail("the worker waits for %u requests that do not end", b->in_flight);
	if (completed >= want)
		return 0;
	if (timeout_ns < 0)
		sim_fail("the worker sleeps for ever: nothing is in flight");
	if (deadline_ns > sim_now_ns)
		sim_now_ns = deadline_ns;
	return -ETIME;
}

/* A drive that hears it ends the request at once. */
static void backend_cancel(struct spw_queue *q, struct spw_part *part)
{
	struct sim_backend *b = q->state;
	struct sim_io *io = &b->ios[part - q->parts];

	if (!io->active || !io->drive->cancels)
		return;
	io->forced = -ECANCELED;
	io->finish_ns = sim_now_ns;
}

/* Nothing has to be done for it: who unregisters what is in use is found. */
static int backend_add_range(struct spw_queue *q, struct spw_range *range)
{
	(void)q;
	range->first_piece = 0;
	range->pieces = 1;
	return 0;
}

static void backend_remove_range(struct spw_queue *q, struct spw_range *range)
{
	const struct sim_backend *b = q->state;

	for (unsigned i = 0; i < b->slots; i++)
		if (b->ios[i].active &&
		    (uintptr_t)b->ios[i].vector->iov_base - range->base < range->len_bytes)
			sim_fail("memory is unregistered while a drive uses it");
}

/* No page goes while a drive has it. */
static void backend_shrink(struct spw_queue *q, uint64_t len_bytes)
{
	const struct sim_backend *b = q->state;

	for (unsigned i = 0; i < b->slots; i++) {
		uint64_t at = (uintptr_t)b->ios[i].vector->iov_base - q->arena_base;

		if (b->ios[i].active && at < q->arena_len_bytes && at >= len_bytes)
			sim_fail("memory is returned while a drive uses it");
	}
}

static const struct spw_backend_ops sim_backend = {
	.name = "sim",
	.backend = SPW_BACKEND_IO_URING,
	.open = backend_open,
	.close = backend_close,
	.issue = backend_issue,
	.submit = backend_submit,
	.wait = backend_wait,
	.cancel = backend_cancel,
	.add_range = backend_add_range,
	.remove_range = backend_remove_range,
	.shrink = backend_shrink,
};

WRAP(int, spw_queue_open,
     (struct spw_device *const devices[], unsigned count, const struct spw_queue_opts *opts,
      struct spw_queue **queue))
{
	static const struct spw_backend_ops *const only[] = {&sim_backend};

	return spw_engine__queue_open_with(devices, count, opts, only, 1, queue);
}
