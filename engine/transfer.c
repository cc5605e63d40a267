/* SPDX-License-Identifier: MIT */
/*
 * engine/transfer.c - life of an io in a queue: prepare, cut into parts, issue, complete, reap,
 * cancel
 *
 *   WAITING    in the list from head to tail of its device, as not all of its bytes are cut into
 *              parts. Only the head may be cut partly.
 *   ISSUED     all its bytes are in parts, or the rest was dropped after a failure
 *   WHOLE      as ISSUED, on the fast path: one part, which is not filled in
 *   CANCELLED  as ISSUED; parts that end with a short transfer are not continued
 *   ENDED      done was called, or will be by the next reap
 *
 * Invariants, cited by asserts and tests
 *   QUEUE-1  An io is in its device's list if and only if its state is WAITING.
 *   QUEUE-2  engine_parts is the number of slots with this io; for a WHOLE io, which has one slot,
 *            it is not set. An io ends when it is 0 and the state is not WAITING.
 *   QUEUE-3  A slot in use is either with the backend or in the list to be issued again, never
 *            both; so a backend never completes a free slot.
 *   QUEUE-4  spw_engine__queue_ios() counts an io from prepare until just before done is called,
 *            which only a reap does. A queue is freed without ios and slots in use.
 *   QUEUE-5  A part has bytes, unless it is a flush, and the parts of an io have no more bytes than
 *            the io: so cutting and continuing terminate.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "engine/backend.h"
#include "engine/sanitize.h"
#include "util/probes.h"
#include "util/util.h"

#define COLD __attribute__((cold, noinline))
#define HOT  __attribute__((always_inline)) static inline

#define RETRIES_MAX 256

/* Remote targets that fail requests because of their length fail only longer ones. */
#define HALVED_BYTES_MIN (512u << 10)

static const char *const op_names[] = {
	[SPW_READ] = "read",
	[SPW_WRITE] = "write",
	[SPW_FLUSH] = "flush",
	[SPW_DISCARD] = "discard",
};

/* ---- Ending ---------------------------------------------------------------------------------- */

COLD static void report_failure(struct spw_queue *q, const struct spw_io *io)
{
	const char *path = q->devices[io->device].device->path;
	char said[96] = "";

	if (io->engine_error == -ECANCELED)
		return;
	q->stats.errors++;
	if (io->engine_status)
		(void)snprintf(said, sizeof(said), " (NVMe status %03xh: %s)", io->engine_status,
			       q->ops->status_text(io->engine_status));
	if (io->op == SPW_FLUSH)
		(void)spw_error_errno(io->engine_error, "%s: flush failed%s", path, said);
	else
		(void)spw_error_errno(io->engine_error, "%s: %s of %u bytes at byte %llu failed%s",
				      path, op_names[io->op], io->len_bytes,
				      (unsigned long long)io->offset_bytes, said);
	spw_log(&q->log, SPW_LOG_ERROR, "%s", spw_last_error());
}

HOT void call_done(struct spw_queue *q, struct spw_io *io)
{
	SPW_ASSERT(q->reaping); /* done is called only by a reap (QUEUE-4) */
	q->ios_ended_besides++;
	SPW_PROBE(complete, io, io->device, io->op, io->res);
	io->done(io);
}

/* Outside a reap, and inside the loop that issues, leave calling done to the next reap. */
COLD static void end_later(struct spw_queue *q, struct spw_io *io)
{
	io->engine_next = NULL;
	*(q->ended_tail ? &q->ended_tail->engine_next : &q->ended_head) = io;
	q->ended_tail = io;
}

HOT void end_io(struct spw_queue *q, struct spw_io *io)
{
	io->engine_state = IO_ENDED;
	if (unlikely(io->engine_error)) {
		report_failure(q, io);
		io->res = io->engine_error;
	} else if (likely(io->op <= SPW_WRITE)) {
		io->res = (int32_t)io->len_bytes;
		q->bytes[io->op] += io->len_bytes;
	} else {
		io->res = io->op == SPW_FLUSH ? 0 : (int32_t)io->len_bytes;
	}
	if (likely(q->reaping && !q->issuing))
		call_done(q, io);
	else
		end_later(q, io);
}

HOT void call_done_of_ended(struct spw_queue *q)
{
	struct spw_io *io;

	while (unlikely((io = q->ended_head) != NULL)) {
		q->ended_head = io->engine_next;
		if (!q->ended_head)
			q->ended_tail = NULL;
		call_done(q, io);
	}
}

HOT void leave_waiting(struct spw_queue *q, struct spw_queue_device *dev, struct spw_io *io,
		       struct spw_io *before)
{
	/* it is in the list (QUEUE-1) */
	SPW_ASSERT(io->engine_state == IO_WAITING && dev->waiting > 0);
	*(before ? &before->engine_next : &dev->head) = io->engine_next;
	if (dev->tail == io)
		dev->tail = before;
	dev->waiting--;
	if (!dev->head)
		q->waiting_mask &= ~(UINT64_C(1) << io->device);
	io->engine_state = IO_ISSUED;
}

COLD static void fail_io(struct spw_queue *q, struct spw_io *io, int error)
{
	struct spw_queue_device *dev = &q->devices[io->device];

	if (!io->engine_error) {
		io->engine_error = error;
		io->engine_status = q->drive_status;
	}
	if (io->engine_state != IO_WAITING)
		return;
	SPW_ASSERT(dev->head == io); /* only the head has parts (QUEUE-1) */
	leave_waiting(q, dev, io, NULL);
}

HOT void end_part(struct spw_queue *q, struct spw_part *part)
{
	struct spw_io *io = part->io;

	SPW_ASSERT(io->engine_parts > 0); /* this slot is counted (QUEUE-2) */
	spw_engine__slot_give(q, &q->devices[part->device], part);
	q->ios_ended_besides--;
	if (--io->engine_parts == 0 && io->engine_state != IO_WAITING)
		end_io(q, io);
}

/* ---- Completion ------------------------------------------------------------------------------ */

COLD static void issue_again(struct spw_queue *q, struct spw_part *part)
{
	part->next = NULL;
	*(q->again_tail ? &q->again_tail->next : &q->again_head) = part;
	q->again_tail = part;
	q->again++;
}

static void advance(struct spw_part *part, uint32_t bytes)
{
	SPW_ASSERT(bytes < part->rest_bytes); /* some are left (QUEUE-5) */
	part->offset_bytes += bytes;
	part->rest_bytes -= bytes;
	if (!part->iov) {
		part->buf += bytes;
		return;
	}
	bytes += part->iov_offset;
	while (part->rest_bytes > 0 && bytes >= part->iov->iov_len) {
		bytes -= (uint32_t)part->iov->iov_len;
		part->iov++;
	}
	part->iov_offset = bytes;
}

/* The drive rejects a placement that it accepted at open: write without, also the failed ones. */
static bool goes_without_placement(struct spw_queue *q, const struct spw_part *part, int64_t res)
{
	struct spw_queue_device *dev = &q->devices[part->device];

	if (part->op != SPW_WRITE || (res != -EINVAL && res != -EOPNOTSUPP))
		return false;
	if (dev->placements[0]) {
		memset(dev->placements, 0, sizeof(dev->placements));
		dev->refuses_placements = true;
		q->stats.drives_placing--;
		spw_log(&q->log, SPW_LOG_WARNING,
			"%s refuses writes that name a placement: from now on they name none",
			dev->device->path);
	}
	return dev->refuses_placements;
}

/*
 * Some network targets fail too long requests as if the drive had failed. So a failed part is tried
 * once more in two halves, one after the other, so that the block layer does not merge them. A bad
 * drive fails the halves too.
 */
static bool too_large(struct spw_part *part, int64_t res)
{
	if ((res != -EIO && res != -EREMOTEIO) || part->op > SPW_WRITE || part->limit_shift > 0 ||
	    part->len_bytes <= HALVED_BYTES_MIN)
		return false;
	part->limit_shift = (uint8_t)(31 - __builtin_clz(part->len_bytes - 1));
	return true;
}

/* Whether to retry after -EAGAIN and the like, up to RETRIES_MAX times. */
static bool asks_again(struct spw_queue *q, struct spw_part *part, int64_t res)
{
	if ((res != -EAGAIN && res != -EINTR && !goes_without_placement(q, part, res)) ||
	    part->retries == RETRIES_MAX)
		return false;
	part->retries++;
	return true;
}

/* Handle a short transfer or an error. Return: whether the part is to be issued again. */
COLD static bool go_on(struct spw_queue *q, struct spw_part *part, int64_t res)
{
	const struct spw_queue_device *dev = &q->devices[part->device];

	if (res > (int64_t)part->len_bytes)
		res = -EPROTO;
	if (res >= 0) {
		/*
		 * Round down a short transfer, so that offset and address stay aligned; a complete
		 * request ends at the end of an element.
		 */
		uint32_t mask = res == (int64_t)part->len_bytes ? 0 : dev->whole_mask;
		bool is_torn = (res & mask) != 0;

		res &= ~(int64_t)mask;
		if (res < (int64_t)part->len_bytes)
			q->stats.short_transfers++;
		if (res > 0) {
			advance(part, (uint32_t)res);
			return true;
		}
		/* A removed drive transfers nothing; others may transfer less than a block. */
		if (!is_torn)
			res = spw_engine__device_no_progress_error(dev->device);
		else
			res = part->retries < RETRIES_MAX ? -EAGAIN : -EIO;
	}
	if (asks_again(q, part, res) || too_large(part, res)) {
		q->stats.retries++;
		return true;
	}
	if (res == -EINTR)
		res = -EAGAIN;
	fail_io(q, part->io, spw_engine__device_translate_error(dev->device, (int)res));
	return false;
}

COLD void spw_engine__part_unfold(struct spw_queue *q, struct spw_part *part)
{
	struct spw_io *io = part->io;

	io->engine_state = IO_ISSUED;
	io->engine_parts = 1;
	io->engine_issued_bytes = io->len_bytes;
	io->engine_error = 0;
	part->offset_bytes = io->offset_bytes;
	part->buf = io->buf;
	part->iov = NULL;
	part->iov_count = 0;
	part->len_bytes = part->rest_bytes = io->len_bytes;
	part->piece = spw_engine__queue_piece(q, io->buf, io->len_bytes);
	part->retries = 0;
	part->limit_shift = 0;
	part->op = (uint8_t)io->op;
}

void spw_engine__part_completed(struct spw_queue *q, struct spw_part *part, int64_t res)
{
	SPW_ASSERT(part->io); /* the slot is in use (QUEUE-3) */
	if (spw_engine__io_is_whole(part->io))
		spw_engine__part_unfold(q, part);
	if (unlikely(res != (int64_t)part->len_bytes || part->len_bytes != part->rest_bytes) &&
	    go_on(q, part, res))
		issue_again(q, part);
	else
		end_part(q, part);
}

/* ---- Cutting --------------------------------------------------------------------------------- */

/* Bytes up to the next boundary at which the kernel splits requests; UINT64_MAX: none. */
static uint64_t boundary_rest(const struct spw_queue_device *dev, uint64_t offset_bytes)
{
	uint64_t rest;

	if (likely(dev->boundary_bytes == 0))
		return UINT64_MAX;
	rest = dev->boundary_bytes - (dev->start_bytes + offset_bytes) % dev->boundary_bytes;
	return rest > dev->block_mask ? rest : UINT64_MAX;
}

/* The longest part that may begin at this address and offset; a multiple of the logical block. */
HOT uint32_t part_limit(const struct spw_queue *q, const struct spw_queue_device *dev,
			uintptr_t address, uint64_t offset_bytes)
{
	uint64_t in_arena = address - q->arena_base;
	uintptr_t page = in_arena < q->arena_len_bytes ? q->arena_page_bytes : q->page_bytes;
	uint64_t limit = (uint64_t)dev->segments_max * page - (address & (page - 1));
	uint64_t rest = boundary_rest(dev, offset_bytes);

	limit = SPW_MIN(limit, dev->part_bytes_max);
	limit = SPW_MIN(limit, rest);
	if (in_arena < q->arena_len_bytes && q->pieces > 0) {
		uint64_t piece = UINT64_C(1) << q->piece_shift;
		uint64_t piece_rest = piece - (in_arena & (piece - 1));

		if (piece_rest < limit && piece_rest > dev->block_mask)
			limit = piece_rest;
	}
	return (uint32_t)(limit &
			  ~(uint64_t)(limit > dev->whole_mask ? dev->whole_mask : dev->block_mask));
}

/*
 * Must a request end after this element? NVMe allows gaps in pages only at both ends of a request,
 * and polled requests must not be split. Through vfio, one command must not use memory of different
 * mappings.
 */
static bool splits_after(const struct spw_queue *q, const struct iovec *iov)
{
	uintptr_t end = (uintptr_t)iov[0].iov_base + iov[0].iov_len;

	if (q->front_state && q->ranges.top > 0 &&
	    spw_engine__range_of(&q->ranges, iov[0].iov_base, 1) !=
		    spw_engine__range_of(&q->ranges, iov[1].iov_base, 1))
		return true;
	return q->polls && ((end | (uintptr_t)iov[1].iov_base) & (q->page_bytes - 1)) != 0;
}

/* Length of as many whole elements as fit in one request, by the pages that they touch. */
static uint32_t whole_elements(const struct spw_queue *q, const struct spw_queue_device *dev,
			       const struct spw_io *io)
{
	uint64_t rest = boundary_rest(dev, io->offset_bytes + io->engine_issued_bytes);
	uint64_t bytes_max = rest < dev->part_bytes_max ? rest : dev->part_bytes_max;
	uint64_t bytes = 0, segments = 0;

	for (uint32_t i = io->engine_iov_index;
	     i < io->iov_count && i - io->engine_iov_index < IOV_MAX; i++) {
		uintptr_t base = (uintptr_t)io->iov[i].iov_base;
		uintptr_t page = spw_engine__queue_arena_holds(q, (void *)base)
					 ? q->arena_page_bytes
					 : q->page_bytes;

		segments += ((base & (page - 1)) + io->iov[i].iov_len + page - 1) / page;
		if (segments > dev->segments_max || bytes + io->iov[i].iov_len > bytes_max)
			break;
		bytes += io->iov[i].iov_len;
		if (i + 1 < io->iov_count && splits_after(q, &io->iov[i]))
			break;
	}
	return (uint32_t)bytes;
}

/* Cut a part that has whole elements of the vector, or a piece of an element that is too long. */
COLD static void cut_vector(const struct spw_queue *q, const struct spw_queue_device *dev,
			    struct spw_io *io, struct spw_part *part)
{
	const struct iovec *iov = &io->iov[io->engine_iov_index];
	uint32_t offset = io->engine_iov_offset;
	uint32_t bytes = offset == 0 ? whole_elements(q, dev, io) : 0;

	part->iov = iov;
	part->iov_offset = offset;
	if (bytes == 0) {
		bytes = part_limit(q, dev, (uintptr_t)iov->iov_base + offset, part->offset_bytes);
		bytes = (uint32_t)SPW_MIN(bytes, iov->iov_len - offset);
	}
	part->rest_bytes = bytes;
	io->engine_issued_bytes += bytes;
	if (io->engine_issued_bytes == io->len_bytes)
		return;
	for (bytes += offset; bytes >= io->iov[io->engine_iov_index].iov_len;
	     io->engine_iov_index++)
		bytes -= (uint32_t)io->iov[io->engine_iov_index].iov_len;
	io->engine_iov_offset = bytes;
}

HOT void cut(const struct spw_queue *q, const struct spw_queue_device *dev, struct spw_io *io,
	     struct spw_part *part)
{
	part->io = io;
	part->offset_bytes = io->offset_bytes + io->engine_issued_bytes;
	part->retries = 0;
	part->limit_shift = 0;
	part->op = (uint8_t)io->op;
	part->iov = NULL;
	if (likely(io->op <= SPW_WRITE && io->buf)) {
		uint32_t rest = io->len_bytes - io->engine_issued_bytes;
		uint32_t limit;

		part->buf = (char *)io->buf + io->engine_issued_bytes;
		limit = rest <= dev->uncut_bytes
				? rest
				: part_limit(q, dev, (uintptr_t)part->buf, part->offset_bytes);
		part->rest_bytes = rest < limit ? rest : limit;
		io->engine_issued_bytes += part->rest_bytes;
	} else if (io->op <= SPW_WRITE) {
		cut_vector(q, dev, io, part);
	} else {
		part->buf = NULL;
		part->rest_bytes = io->op == SPW_DISCARD ? io->len_bytes : 0;
		io->engine_issued_bytes = io->len_bytes;
	}
	SPW_ASSERT((part->rest_bytes > 0 || io->op == SPW_FLUSH) &&
		   io->engine_issued_bytes <= io->len_bytes); /* cutting ends (QUEUE-5) */
	io->engine_parts++;
}

/* The next request has as many whole elements as @limit allows, or the rest of the first one. */
COLD static void shape_vector(struct spw_part *part, uint32_t limit)
{
	uint64_t first = part->iov->iov_len - part->iov_offset;

	part->buf = (char *)part->iov->iov_base + part->iov_offset;
	part->len_bytes = (uint32_t)SPW_MIN(first, limit);
	if (part->iov_offset > 0 || first >= limit)
		return;
	for (part->iov_count = 1; part->len_bytes < part->rest_bytes; part->iov_count++) {
		size_t len = part->iov[part->iov_count].iov_len;

		if (part->len_bytes + len > limit)
			break;
		part->len_bytes += (uint32_t)len;
	}
	part->piece = -1;
}

/* Set up the part's next request, of all its remaining bytes if limit and vector allow. */
HOT void shape(const struct spw_queue *q, struct spw_part *part)
{
	part->iov_count = 0;
	part->len_bytes = part->rest_bytes;
	if (unlikely(part->limit_shift > 0))
		part->len_bytes = SPW_MIN(part->rest_bytes, 1u << part->limit_shift);
	if (unlikely(part->iov)) {
		shape_vector(part, part->len_bytes);
		if (part->iov_count > 0)
			return;
	}
	/* Some kernels refuse registered memory that is not aligned to a block. */
	if (likely(((uintptr_t)part->buf & q->devices[part->device].block_mask) == 0))
		part->piece = spw_engine__queue_piece(q, part->buf, part->len_bytes);
	else
		part->piece = -1;
}

/* ---- Issuing --------------------------------------------------------------------------------- */

/* The backend is full: submit, and try again. The next submit or wait reports a failure. */
COLD static bool issue_to_full(struct spw_queue *q, struct spw_part *part)
{
	(void)q->ops->submit(q);
	if (q->ops->issue(q, part) == 0)
		return true;
	q->parts_besides--;
	issue_again(q, part);
	return false;
}

HOT void issue(struct spw_queue *q, struct spw_part *part)
{
	shape(q, part);
	if (unlikely(q->ops->issue(q, part) != 0) && !issue_to_full(q, part))
		return;
	q->parts_unregistered += part->piece < 0;
}

COLD static void issue_those_again(struct spw_queue *q)
{
	struct spw_part *part = q->again_head;

	q->again_head = NULL;
	q->again_tail = NULL;
	q->again = 0;
	while (part) {
		struct spw_part *next = part->next;

		SPW_ASSERT(part->io); /* the slot is in use (QUEUE-3) */
		if (part->io->engine_error || part->io->engine_state == IO_CANCELLED) {
			fail_io(q, part->io, -ECANCELED);
			end_part(q, part);
		} else {
			q->parts_besides++;
			issue(q, part);
		}
		part = next;
	}
}

/* Needs a blocking call: kernels cannot queue discards, and polled rings cannot flush. */
static bool has_no_queue(const struct spw_queue *q, const struct spw_queue_device *dev,
			 const struct spw_io *io)
{
	return io->op == SPW_FLUSH ? q->polls && dev->fd >= 0
				   : !q->ops->discards || !dev->device->geometry.discards;
}

COLD static void do_now(struct spw_queue *q, struct spw_queue_device *dev, struct spw_io *io)
{
	leave_waiting(q, dev, io, NULL);
	q->stats.system_calls++;
	q->stats.sleeps++;
	io->engine_error = io->op == SPW_FLUSH ? spw_device_sync(dev->device)
					       : spw_device_discard(dev->device, io->offset_bytes,
								    io->len_bytes);
	io->engine_status = 0;
	end_io(q, io);
}

static void issue_device(struct spw_queue *q, struct spw_queue_device *dev)
{
	struct spw_io *io;

	while ((io = dev->head) != NULL) {
		struct spw_part *part;

		if (unlikely(io->op > SPW_WRITE) && has_no_queue(q, dev, io)) {
			do_now(q, dev, io);
			continue;
		}
		if (!dev->free)
			return;
		part = spw_engine__slot_take(q, dev);
		q->ios_prepared_besides--;
		cut(q, dev, io, part);
		if (likely(io->engine_issued_bytes == io->len_bytes))
			leave_waiting(q, dev, io, NULL);
		issue(q, part);
	}
}

static void issue_waiting(struct spw_queue *q)
{
	bool was_issuing = q->issuing;

	q->issuing = true;
	if (unlikely(q->again_head))
		issue_those_again(q);
	for (uint64_t mask = q->waiting_mask; mask; mask &= mask - 1)
		issue_device(q, &q->devices[__builtin_ctzll(mask)]);
	q->issuing = was_issuing;
}

HOT void issue_all(struct spw_queue *q)
{
	uint32_t in_flight;

	if (q->waiting_mask || unlikely(q->again_head))
		issue_waiting(q);
	in_flight = spw_engine__queue_in_flight(q);
	if (unlikely(in_flight > q->stats.in_flight_max))
		q->stats.in_flight_max = in_flight;
}

/* ---- The public side ------------------------------------------------------------------------- */

static int check_vector(const struct spw_queue *q, const struct spw_io *io)
{
	const struct spw_queue_device *dev = &q->devices[io->device];
	const char *path = dev->device->path;
	uint64_t bytes = 0;

	if (!io->iov || io->iov_count == 0)
		return spw_error(-EINVAL, "%s: neither a buffer nor a vector", path);
	for (uint32_t i = 0; i < io->iov_count; i++) {
		const struct iovec *iov = &io->iov[i];

		if (((uintptr_t)iov->iov_base & dev->align_mask) != 0)
			return spw_error(
				-EINVAL,
				"%s: element %u of the vector at %p is not aligned to %u bytes",
				path, i, iov->iov_base, dev->align_mask + 1);
		if (iov->iov_len == 0 || (iov->iov_len & dev->block_mask) != 0 ||
		    iov->iov_len > SPW_IO_BYTES_MAX)
			return spw_error(-EINVAL,
					 "%s: element %u of the vector has %zu bytes, not a "
					 "multiple of the logical block of %u",
					 path, i, iov->iov_len, dev->block_mask + 1);
		if (SPW_IS_POISONED(iov->iov_base, iov->iov_len))
			return spw_error(-EFAULT, "%s: element %u of the vector is not allocated",
					 path, i);
		bytes += iov->iov_len;
		if (bytes > io->len_bytes)
			break;
	}
	if (bytes != io->len_bytes)
		return spw_error(-EINVAL, "%s: a vector of %llu bytes for a transfer of %u", path,
				 (unsigned long long)bytes, io->len_bytes);
	return 0;
}

COLD static int refuse(const struct spw_queue *q, const struct spw_io *io)
{
	int ret;

	if (q->closing)
		return spw_error(-ESHUTDOWN, "the queue is being closed");
	if (io->device >= q->device_count)
		return spw_error(-EINVAL, "device %u of a queue over %u", io->device,
				 q->device_count);
	if ((unsigned)io->op > SPW_DISCARD)
		return spw_error(-EINVAL, "%s: no such operation as %d",
				 q->devices[io->device].device->path, (int)io->op);
	if (io->op == SPW_FLUSH)
		return 0;
	ret = spw_engine__device_check_transfer(q->devices[io->device].device,
						io->op == SPW_DISCARD ? NULL : io->buf,
						io->len_bytes, io->offset_bytes);
	if (ret)
		return ret;
	if (io->len_bytes > SPW_IO_BYTES_MAX)
		return spw_error(-EINVAL, "%s: %u bytes in one transfer; at most %u",
				 q->devices[io->device].device->path, io->len_bytes,
				 SPW_IO_BYTES_MAX);
	if (io->op == SPW_DISCARD)
		return 0;
	if (!io->buf)
		return check_vector(q, io);
	if (SPW_IS_POISONED(io->buf, io->len_bytes))
		return spw_error(-EFAULT, "%s: the %u bytes at %p are not allocated",
				 q->devices[io->device].device->path, io->len_bytes, io->buf);
	return 0;
}

/* The checks of refuse() on the fast path, without messages. */
HOT bool is_plain(const struct spw_queue *q, const struct spw_io *io)
{
	const struct spw_queue_device *dev = &q->devices[io->device];

	return io->device < q->device_count && (unsigned)io->op <= SPW_WRITE && io->buf &&
	       !q->closing && !SPW_IS_POISONED(io->buf, io->len_bytes) &&
	       ((io->offset_bytes | io->len_bytes) & dev->block_mask) == 0 &&
	       ((uintptr_t)io->buf & dev->align_mask) == 0 &&
	       io->len_bytes - 1 < SPW_IO_BYTES_MAX && io->len_bytes <= dev->size_bytes &&
	       io->offset_bytes <= dev->size_bytes - io->len_bytes;
}

int spw_queue_prepare(struct spw_queue *q, struct spw_io *io)
{
	SPW_PROBE(submit, io, io->device, io->op, io->offset_bytes, io->len_bytes);
	return q->prepare(q, io);
}

int spw_engine__queue_prepare_any(struct spw_queue *q, struct spw_io *io)
{
	struct spw_queue_device *dev;

	if (unlikely(!is_plain(q, io))) {
		int ret = refuse(q, io);

		if (ret)
			return ret;
	}
	dev = &q->devices[io->device];
	io->engine_next = NULL;
	io->engine_state = IO_WAITING;
	io->engine_parts = 0;
	io->engine_issued_bytes = 0;
	io->engine_error = 0;
	io->engine_iov_index = 0;
	io->engine_iov_offset = 0;
	*(dev->head ? &dev->tail->engine_next : &dev->head) = io;
	dev->tail = io;
	dev->waiting++;
	q->waiting_mask |= UINT64_C(1) << io->device;
	q->ios_prepared_besides++;
	return 0;
}

int spw_queue_submit(struct spw_queue *q)
{
	issue_all(q);
	return q->ops->submit(q);
}

/* How many completions to wait for; while ios wait, at most 1/4 of the depth may become idle. */
static unsigned completions_to_wait_for(const struct spw_queue *q, unsigned min)
{
	unsigned want = min - spw_engine__queue_ended(q);
	uint32_t ios = spw_engine__queue_ios(q);
	uint32_t in_flight = spw_engine__queue_in_flight(q);

	SPW_ASSERT(q->again <= in_flight); /* they are slots in use (QUEUE-3) */
	if (ios == 0)
		return 1; /* only a wake or the timeout can end the wait */
	want = SPW_MIN(want, ios);
	if (q->waiting_mask && want > q->depth / 4)
		want = q->depth >= 4 ? q->depth / 4 : 1;
	want = SPW_MIN(want, in_flight - q->again);
	return SPW_MIN(want, SPW_WANT_MAX);
}

static int wait_once(struct spw_queue *q, unsigned want, int64_t timeout_ns)
{
	int ret;

	if (want > 0 && !spw_engine__wake_sleep(&q->wake))
		want = 0;
	ret = q->ops->wait(q, want, timeout_ns);
	if (want > 0)
		spw_engine__wake_up(&q->wake);
	return ret;
}

static bool reaped_enough(const struct spw_queue *q, unsigned min)
{
	uint32_t ended = spw_engine__queue_ended(q);

	return ended >= min || (ended > 0 && spw_engine__queue_ios(q) == 0);
}

static int reap(struct spw_queue *q, unsigned min, int64_t timeout_ns)
{
	uint64_t deadline_ns =
		min > 0 && timeout_ns > 0 ? spw_clock_ns() + (uint64_t)timeout_ns : 0;

	for (;;) {
		bool woken = spw_engine__wake_taken(&q->wake);
		unsigned want;
		int ret;

		issue_all(q);
		call_done_of_ended(q);
		want = woken || timeout_ns == 0 || reaped_enough(q, min)
			       ? 0
			       : completions_to_wait_for(q, min);
		ret = wait_once(q, want, timeout_ns);
		call_done_of_ended(q);
		if (ret == -EINTR || ret == -ETIME)
			return 0;
		if (ret || woken || timeout_ns == 0 || reaped_enough(q, min) ||
		    spw_engine__wake_taken(&q->wake))
			return ret;
		if (deadline_ns) {
			uint64_t now_ns = spw_clock_ns();

			if (now_ns >= deadline_ns)
				return 0;
			timeout_ns = (int64_t)(deadline_ns - now_ns);
		}
	}
}

int spw_queue_reap(struct spw_queue *q, unsigned min, int64_t timeout_ns)
{
	uint32_t ended;
	int ret;

	if (q->reaping)
		return spw_error(-EDEADLK, "spw_queue_reap() called from inside a done function");
	q->reaping = true;
	ret = reap(q, min, timeout_ns);
	ended = spw_engine__queue_ended(q);
	q->ios_reaped += ended;
	q->reaping = false;
	return ended > 0 ? (int)ended : ret;
}

void spw_queue_wake(struct spw_queue *q)
{
	spw_engine__wake_ask(&q->wake);
}

static bool is_among_ended(const struct spw_queue *q, const struct spw_io *io)
{
	for (const struct spw_io *ended = q->ended_head; ended; ended = ended->engine_next)
		if (ended == io)
			return true;
	return false;
}

static bool cancel_waiting(struct spw_queue *q, struct spw_queue_device *dev, struct spw_io *io)
{
	struct spw_io *before = NULL;

	for (struct spw_io *at = dev->head; at; before = at, at = at->engine_next) {
		if (at != io)
			continue;
		leave_waiting(q, dev, io, before);
		io->engine_error = -ECANCELED;
		if (io->engine_parts == 0)
			end_io(q, io);
		return true;
	}
	return false;
}

int spw_queue_cancel(struct spw_queue *q, struct spw_io *io)
{
	bool was_issuing = q->issuing;
	struct spw_queue_device *dev;
	bool found;

	if (io->device >= q->device_count)
		return spw_error(-ENOENT, "cancel: device %u of a queue over %u", io->device,
				 q->device_count);
	dev = &q->devices[io->device];
	if (is_among_ended(q, io))
		return 0;
	/* done is called by the next reap, never from here. */
	q->issuing = true;
	found = cancel_waiting(q, dev, io);
	for (struct spw_part *part = dev->parts; part < dev->parts + q->depth; part++) {
		if (part->io != io)
			continue;
		found = true;
		if (spw_engine__io_is_whole(io))
			spw_engine__part_unfold(q, part);
		io->engine_state = IO_CANCELLED;
		q->ops->cancel(q, part);
	}
	q->issuing = was_issuing;
	return found ? 0 : spw_error(-ENOENT, "cancel: the io is not in the queue");
}
