/* SPDX-License-Identifier: MIT */
/*
 * engine/nvme/backend_nvme.c - backend nvme: passthrough of NVMe commands, by io_uring_cmd on the
 * character nodes of namespaces, bypassing the block layer
 *
 * Limits of length, retries and the errno of a status are those of the block layer. Commands in
 * flight cannot be cancelled. While the kernel resets a controller it rejects passthrough: then
 * parts are transferred through the block node.
 *
 * Invariants, cited by asserts and tests
 *   NVME-1  A command has at most SPW_NVME_BLOCKS_MAX blocks, the maximum of its field.
 *   NVME-2  The range of a deallocation is stored with its slot, so that it exists until the
 *           command has ended.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/arena.h"
#include "engine/nvme/admin.h"
#include "engine/nvme/probe.h"
#include "engine/uring.h"
#include "util/util.h"

/* If the kernel does not tell: one page of PRP list, less one entry. */
#define SEGMENTS_ASSUMED 127u

struct nvme_device {
	struct spw_nvme_namespace ns;
	uint32_t command_bytes_max;
	uint32_t segments_max;
	bool read_only;
	bool reset_logged;
};

struct nvme {
	struct spw_uring uring; /* first: see engine/uring.h */
	bool fixed;             /* use registered memory; cleared when the kernel refuses it */
	int fds[SPW_QUEUE_DEVICES_MAX];
	struct nvme_device devices[SPW_QUEUE_DEVICES_MAX];
	struct spw_nvme_range *ranges; /* ranges of deallocations in flight, one per slot */
};

/* ---- Opening --------------------------------------------------------------------------------- */

static int check_namespace(const struct spw_device *device, const struct spw_nvme_namespace *ns)
{
	const struct spw_geometry *g = &device->geometry;

	if (ns->metadata_bytes > 0 && !ns->protects)
		return spw_error(
			-EOPNOTSUPP,
			"nvme refused: %s is formatted with %u bytes of metadata per block",
			device->path, ns->metadata_bytes);
	if (1u << ns->block_shift != g->logical_block_bytes ||
	    ns->blocks << ns->block_shift != g->size_bytes)
		return spw_error(-ESTALE,
				 "nvme refused: %s has %llu blocks of %u bytes, which is not the "
				 "size of its block node",
				 device->path, (unsigned long long)ns->blocks,
				 1u << ns->block_shift);
	return 0;
}

/* A user who may write may lack the right to admin commands: then write without placements. */
static void place(struct spw_queue *q, const struct nvme *n, unsigned index)
{
	const char *path = q->devices[index].device->path;
	uint16_t ids[SPW_NVME_PLACEMENTS_MAX];
	int ret = 0;

	if (q->placement > 0)
		ret = spw_nvme__find_placements(spw_nvme__system_ioctl, n->fds[index], path,
						n->devices[index].ns.id, ids);
	if (ret < 0)
		spw_log(&q->log, SPW_LOG_WARNING, "%s", spw_last_error());
	spw_engine__queue_place(q, index, ids, ret > 0 ? (unsigned)ret : 0);
}

static int open_device(struct spw_queue *q, struct nvme *n, unsigned index)
{
	const struct spw_device *device = q->devices[index].device;
	struct nvme_device *d = &n->devices[index];
	uint64_t bytes_max;
	int ret = spw_nvme__open_char(device);

	if (ret < 0)
		return ret;
	n->fds[index] = ret;
	ret = spw_nvme__ask_namespace(spw_nvme__system_ioctl, n->fds[index], device->path, &d->ns);
	if (ret == 0)
		ret = check_namespace(device, &d->ns);
	if (ret)
		return ret;
	place(q, n, index);
	d->read_only = device->read_only;
	bytes_max = (uint64_t)SPW_NVME_BLOCKS_MAX << d->ns.block_shift;
	d->command_bytes_max = (uint32_t)SPW_MIN(device->passthrough_bytes, bytes_max);
	d->segments_max =
		device->geometry.segments_max ? device->geometry.segments_max : SEGMENTS_ASSUMED;
	return 0;
}

/* Open all devices; *all: the features that all of them have. */
static int open_devices(struct spw_queue *q, struct nvme *n, struct spw_nvme_abilities *all)
{
	struct spw_nvme_probed probed[SPW_QUEUE_DEVICES_MAX];

	for (unsigned i = 0; i < q->device_count; i++) {
		const struct nvme_device *d = &n->devices[i];
		int ret = open_device(q, n, i);

		if (ret)
			return ret;
		probed[i] = (struct spw_nvme_probed){
			.fd = n->fds[i],
			.path = q->devices[i].device->path,
			.ns = &d->ns,
			.segments_max = d->segments_max,
		};
	}
	return spw_nvme__probe(probed, q->device_count, q->wait_mode == SPW_WAIT_POLL, all);
}

/*
 * How many pieces of memory to register. Linux 6.1 accepts only pieces of up to a command's number
 * of pages, and processes all of these for each command: that is slower than pinning the command's
 * memory, so nothing is registered.
 */
static uint64_t choose_pieces(struct spw_queue *q, const struct spw_nvme_abilities *all)
{
	if (all->fixed)
		return INT16_MAX;
	if (q->arena_len_bytes > 0)
		spw_log(&q->log, SPW_LOG_INFO,
			"nvme: the kernel takes no large pieces of registered memory for "
			"passthrough; each command pins its own pages");
	return 0;
}

static int nvme_prepare(struct spw_queue *q, struct spw_io *io);
static void nvme_take(struct spw_queue *q, struct spw_uring *u);

static int set_up(struct spw_queue *q, struct nvme *n)
{
	struct spw_nvme_abilities all;
	int ret = open_devices(q, n, &all);

	if (ret)
		return ret;
	if (q->wait_mode == SPW_WAIT_POLL && !all.polled) {
		spw_log(&q->log, SPW_LOG_WARNING,
			"nvme: the kernel does not poll passthrough; using interrupts");
		q->wait_mode = SPW_WAIT_INTERRUPT;
	}
	n->uring.extra_flags = IORING_SETUP_SQE128 | IORING_SETUP_CQE32;
	n->uring.shift = 1;
	n->uring.take = nvme_take;
	ret = spw_engine__uring_set_up(q, &n->uring, n->fds, choose_pieces(q, &all));
	if (ret)
		return ret;
	n->fixed = q->pieces > 0;
	q->prepare = nvme_prepare;
	return 0;
}

static void free_state(struct spw_queue *q, struct nvme *n)
{
	for (unsigned i = 0; i < q->device_count; i++)
		if (n->fds[i] >= 0)
			(void)close(n->fds[i]);
	free(n->ranges);
	free(n);
}

static int nvme_open(struct spw_queue *q)
{
	struct nvme *n = calloc(1, sizeof(*n));
	int ret;

	if (n)
		n->ranges = calloc((size_t)q->depth * q->device_count, sizeof(*n->ranges));
	if (!n || !n->ranges) {
		free(n);
		return spw_error(-ENOMEM, "nvme: no memory");
	}
	for (unsigned i = 0; i < q->device_count; i++)
		n->fds[i] = -1;
	ret = set_up(q, n);
	if (ret)
		free_state(q, n);
	else
		q->state = n;
	return ret;
}

static void nvme_close(struct spw_queue *q)
{
	struct nvme *n = q->state;

	spw_engine__uring_tear_down(q, &n->uring);
	free_state(q, n);
	q->state = NULL;
}

static void nvme_limits(struct spw_queue *q, struct spw_queue_device *dev)
{
	const struct nvme *n = q->state;
	const struct nvme_device *d = &n->devices[dev - q->devices];

	/* the field NLB has 16 bits (NVME-1) */
	SPW_ASSERT(d->command_bytes_max >> d->ns.block_shift <= SPW_NVME_BLOCKS_MAX);
	dev->part_bytes_max = d->command_bytes_max;
	dev->segments_max = d->segments_max;
	dev->boundary_bytes = 0; /* the block layer's boundary does not apply */
	/* No layer splits requests: without huge pages, each registered page may be a segment. */
	if (q->pieces > 0 || (q->arena && q->arena->pages != SPW_PAGES_HUGETLB))
		q->arena_page_bytes = q->page_bytes;
}

/* ---- Issuing --------------------------------------------------------------------------------- */

static void fill_transfer(const struct spw_queue *q, const struct nvme_device *d,
			  struct spw_part *part, struct io_uring_sqe *sqe,
			  struct nvme_uring_cmd *cmd)
{
	const struct nvme *n = q->state;

	/* the field NLB has 16 bits (NVME-1) */
	SPW_ASSERT(part->len_bytes >> d->ns.block_shift <= SPW_NVME_BLOCKS_MAX);
	spw_nvme__encode_transfer(cmd, &d->ns, part->op == SPW_READ, part->offset_bytes,
				  part->len_bytes,
				  spw_engine__placement_of(&q->devices[part->device], part->io));
	if (part->iov_count) {
		sqe->cmd_op = NVME_URING_CMD_IO_VEC;
		cmd->addr = (uintptr_t)part->iov;
		cmd->data_len = part->iov_count;
		return;
	}
	cmd->addr = (uintptr_t)part->buf;
	cmd->data_len = part->len_bytes;
	if (part->piece >= 0 && likely(n->fixed))
		spw_nvme__entry_use_registered(sqe, (uint16_t)part->piece);
	else
		part->piece = -1;
}

static int nvme_issue(struct spw_queue *q, struct spw_part *part)
{
	struct nvme *n = q->state;
	const struct nvme_device *d = &n->devices[part->device];
	struct nvme_uring_cmd *cmd;
	struct io_uring_sqe *sqe;

	/* The kernel does not check whether the node was opened for writing. */
	if (unlikely(d->read_only) && part->op != SPW_READ && part->op != SPW_FLUSH) {
		spw_engine__part_completed(q, part, -EBADF);
		return 0;
	}
	sqe = io_uring_get_sqe(&n->uring.ring);
	if (!sqe)
		return -EAGAIN;
	cmd = spw_nvme__entry(sqe, part->device, NVME_URING_CMD_IO, (uintptr_t)part);
	sqe->flags = IOSQE_FIXED_FILE;
	if (likely(part->op <= SPW_WRITE))
		fill_transfer(q, d, part, sqe, cmd);
	else if (part->op == SPW_FLUSH)
		spw_nvme__encode_flush(cmd, &d->ns);
	else {
		SPW_ASSERT((size_t)(part - q->parts) <
			   (size_t)q->depth * q->device_count); /* each slot has a range (NVME-2) */
		spw_nvme__encode_deallocate(cmd, &d->ns, part->offset_bytes, part->len_bytes,
					    &n->ranges[part - q->parts]);
	}
	return 0;
}

/* Fast path: put a plain transfer into the ring at once; others take the slow path. */
static int nvme_prepare(struct spw_queue *q, struct spw_io *io)
{
	struct nvme *n = q->state;
	struct spw_queue_device *dev;
	uint64_t piece;
	struct spw_part *part = spw_engine__whole_slot(q, io, q->piece_shift, &dev, &piece);
	bool is_registered = part != NULL;
	const struct nvme_device *d;
	struct nvme_uring_cmd *cmd;
	struct io_uring_sqe *sqe;

	if (!part) {
		if (unlikely(n->uring.growable_bytes > 0) &&
		    spw_engine__uring_grow(q, &n->uring, io))
			return nvme_prepare(q, io);
		part = spw_engine__whole_unregistered_slot(q, io, &dev);
		if (part && unlikely(q->ranges.top > 0) && n->fixed) {
			int16_t of_range = spw_engine__range_piece(&q->ranges, io->buf,
								   io->len_bytes, q->piece_shift);

			is_registered = of_range >= 0;
			piece = (uint64_t)of_range;
		}
	}
	if (unlikely(!part))
		return spw_engine__queue_prepare_any(q, io);
	d = &n->devices[io->device];
	sqe = unlikely(d->read_only) ? NULL : io_uring_get_sqe(&n->uring.ring);
	if (unlikely(!sqe))
		return spw_engine__queue_prepare_any(q, io);
	cmd = spw_nvme__entry(sqe, (int)io->device, NVME_URING_CMD_IO, (uintptr_t)part);
	sqe->flags = IOSQE_FIXED_FILE;
	spw_nvme__encode_transfer(cmd, &d->ns, io->op == SPW_READ, io->offset_bytes, io->len_bytes,
				  spw_engine__placement_of(dev, io));
	cmd->addr = (uintptr_t)io->buf;
	cmd->data_len = io->len_bytes;
	if (likely(is_registered))
		spw_nvme__entry_use_registered(sqe, (uint16_t)piece);
	else
		q->parts_unregistered++;
	spw_engine__whole_issued(q, dev, io);
	return 0;
}

/* ---- While a controller is reset ------------------------------------------------------------- */

/*
 * Whether the kernel aborted or rejected the command because of a reset. -EFAULT: Linux 6.1 loses
 * the memory of a command that has to wait; if the memory really is bad, the block node fails too.
 */
static bool is_reset(int res)
{
	uint32_t code = (uint32_t)res & SPW_NVME_STATUS_CODE;

	if (res < 0)
		return res == -EINTR || res == -EFAULT;
	return !((uint32_t)res & SPW_NVME_STATUS_DNR) &&
	       (code == SPW_NVME_HOST_PATHING_ERROR || code == SPW_NVME_ABORTED_BY_HOST);
}

static int transfer_by_block_node(const struct spw_device *device, const struct spw_part *part)
{
	const struct iovec one = {.iov_base = part->buf, .iov_len = part->len_bytes};
	const struct iovec *iov = part->iov_count > 0 ? part->iov : &one;
	uint64_t offset_bytes = part->offset_bytes;
	uint32_t count = part->iov_count > 0 ? part->iov_count : 1;
	int ret = 0;

	for (uint32_t i = 0; i < count && ret == 0; offset_bytes += iov[i++].iov_len)
		ret = part->op == SPW_READ ? spw_device_pread(device, iov[i].iov_base,
							      iov[i].iov_len, offset_bytes)
					   : spw_device_pwrite(device, iov[i].iov_base,
							       iov[i].iov_len, offset_bytes);
	return ret;
}

/* Transfer a part through the block node, which waits until the controller is back or removed. */
static int64_t go_by_block_node(struct spw_queue *q, struct nvme_device *d, struct spw_part *part)
{
	const struct spw_device *device = q->devices[part->device].device;
	int ret;

	if (!d->reset_logged)
		spw_log(&q->log, SPW_LOG_WARNING,
			"%s: the kernel takes no commands past the block layer (is the controller "
			"being reset?); the block node is used instead",
			device->path);
	d->reset_logged = true;
	q->stats.system_calls++;
	q->stats.sleeps++;
	if (part->op == SPW_FLUSH)
		ret = spw_device_sync(device);
	else if (part->op == SPW_DISCARD)
		ret = spw_device_discard(device, part->offset_bytes, part->len_bytes);
	else
		ret = transfer_by_block_node(device, part);
	return ret ? ret : (int64_t)part->len_bytes;
}

/* ---- Completions ----------------------------------------------------------------------------- */

/* @res: a negative errno of the kernel, or the drive's status. Return: the part's result. */
__attribute__((cold, noinline)) static int64_t part_result(struct spw_queue *q,
							   struct spw_part *part, int res)
{
	struct nvme *n = q->state;

	if (res == -EINVAL && part->piece >= 0) {
		if (n->fixed)
			spw_log(&q->log, SPW_LOG_WARNING,
				"nvme: the kernel refuses registered memory; from now on each "
				"command pins its own");
		n->fixed = false;
		q->registered_bytes = 0;
		return -EAGAIN;
	}
	if (is_reset(res) && part->io->engine_state != IO_CANCELLED)
		return part->retries < SPW_NVME_RETRIES_MAX
			       ? -EAGAIN
			       : go_by_block_node(q, &n->devices[part->device], part);
	if (res < 0)
		return res;
	return spw_nvme__part_result(q, part, (uint32_t)res, part->len_bytes);
}

/* Slow path of completions: errors, and parts that were not issued by nvme_prepare(). */
static void complete(struct spw_queue *q, struct spw_part *part, int res)
{
	if (spw_engine__io_is_whole(part->io))
		spw_engine__part_unfold(q, part);
	spw_engine__part_completed(q, part,
				   likely(res == 0) ? part->len_bytes : part_result(q, part, res));
	q->drive_status = 0;
}

static inline void end_part(struct spw_queue *q, struct spw_part *part, int res)
{
	if (unlikely(res != 0 || !spw_engine__whole_completed(q, part, part->io->len_bytes)))
		complete(q, part, res);
}

static void nvme_take(struct spw_queue *q, struct spw_uring *u)
{
	spw_uring_take(q, u, 1, end_part);
}

const struct spw_backend_ops spw_nvme__backend_nvme = {
	.name = "nvme",
	.backend = SPW_BACKEND_NVME,
	.discards = true,
	.open = nvme_open,
	.close = nvme_close,
	.limits = nvme_limits,
	.issue = nvme_issue,
	.submit = spw_engine__uring_submit,
	.wait = spw_engine__uring_wait,
	.cancel = spw_engine__uring_cancel,
	.add_range = spw_engine__uring_add_range,
	.remove_range = spw_engine__uring_remove_range,
	.shrink = spw_engine__uring_shrink,
	.status_text = spw_nvme_status_text,
};
