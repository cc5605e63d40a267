/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/nvme_drive.h - an NVMe namespace in memory behind the backend: a ring that no kernel
 * serves, a drive that obeys commands
 *
 * Included after engine/nvme/backend_nvme.c. What a kernel would refuse with -EINVAL is refused
 * here as well: commands longer than the controller takes, of more pages than the kernel maps, with
 * registered memory that crosses a piece.
 */
#ifndef SPW_TESTS_NVME_DRIVE_H
#define SPW_TESTS_NVME_DRIVE_H

#include "tests/unit/engine_file.h"
#include "tests/unit/nvme_tags.h"

#define NVME_ENTRIES       64u
#define NVME_COMMAND_BYTES 131072u
#define NVME_SEGMENTS      17u
#define NVME_PIECE_SHIFT   16u

struct nvme_drive {
	char *bytes; /* DRIVE_BYTES */
	unsigned block_shift;
	struct block_tags *tags; /* of all blocks, where it protects; NULL: has none */
	unsigned commands, fixed, vectors, flushes, ranges; /* seen */
	struct nvme_uring_cmd last;
	struct spw_nvme_range last_range;
	int answer;         /* to the next commands: a status or a negative errno */
	unsigned answers;   /* how many commands get it */
	bool refuses_fixed; /* as some kernels */
	bool read_only;
	bool long_way;      /* every io is prepared by the queue */
	uint32_t placement; /* of the queue, and what the drive has */
	uint16_t ids[3];
	unsigned id_count;

	char *entries; /* of 128 bytes */
	struct io_uring_cqe *completions;
	unsigned khead, ktail, mask, count, cq_head, cq_tail, cq_mask;
};

static struct nvme_drive nvme_drive;

static uint64_t pages_of(const void *memory, uint64_t len)
{
	return (((uintptr_t)memory & 4095) + len + 4095) / 4096;
}

static void move(const struct iovec iov[], uint32_t count, uint64_t at, bool to_host)
{
	for (uint32_t i = 0; i < count; at += iov[i++].iov_len)
		memcpy(to_host ? iov[i].iov_base : nvme_drive.bytes + at,
		       to_host ? nvme_drive.bytes + at : iov[i].iov_base, iov[i].iov_len);
}

static int obey_tags(const struct nvme_uring_cmd *cmd, uint64_t at, uint64_t len)
{
	const struct nvme_drive *d = &nvme_drive;

	if (!d->tags)
		return cmd->cdw12 & (TAGS_PRACT | TAGS_CHECKS) || cmd->cdw14 ? 0x4002 : 0;
	return tags_obey(d->tags, cmd->opcode == SPW_NVME_READ ? TAGS_READ : TAGS_WRITE, cmd->cdw12,
			 cmd->cdw14, at >> d->block_shift, len >> d->block_shift, d->bytes + at,
			 (size_t)1 << d->block_shift);
}

/* One command; return what the kernel would put into the completion. */
static int obey_transfer(const struct io_uring_sqe *sqe, const struct nvme_uring_cmd *cmd,
			 struct spw_queue *q)
{
	struct nvme_drive *d = &nvme_drive;
	struct iovec one = {.iov_base = (void *)(uintptr_t)cmd->addr, .iov_len = cmd->data_len},
		     *iov = &one;
	uint64_t at = ((uint64_t)cmd->cdw11 << 32 | cmd->cdw10) << d->block_shift;
	uint64_t len = ((uint64_t)(cmd->cdw12 & 0xffff) + 1) << d->block_shift, memory = 0,
		 pages = 0;
	uint32_t count = 1;
	int status;

	if (sqe->cmd_op == NVME_URING_CMD_IO_VEC) {
		iov = (struct iovec *)(uintptr_t)cmd->addr;
		count = cmd->data_len;
		d->vectors++;
	}
	for (uint32_t i = 0; i < count; i++) {
		memory += iov[i].iov_len;
		pages += pages_of(iov[i].iov_base, iov[i].iov_len);
	}
	if (memory != len || len > NVME_COMMAND_BYTES || pages > NVME_SEGMENTS)
		return -EINVAL;
	if (sqe->uring_cmd_flags & IORING_URING_CMD_FIXED) {
		uint64_t first = (uintptr_t)one.iov_base - (uintptr_t)q->arena->base;

		d->fixed++;
		if (d->refuses_fixed || count != 1 || first >> NVME_PIECE_SHIFT != sqe->buf_index ||
		    (first + len - 1) >> NVME_PIECE_SHIFT != sqe->buf_index)
			return -EINVAL;
	}
	if (at + len > DRIVE_BYTES)
		return 0x4080; /* LBA Out of Range, final */
	if (cmd->opcode == SPW_NVME_WRITE)
		move(iov, count, at, false);
	status = obey_tags(cmd, at, len);
	if (cmd->opcode == SPW_NVME_READ && status == 0)
		move(iov, count, at, true);
	return status;
}

static int obey(const struct io_uring_sqe *sqe, const struct nvme_uring_cmd *cmd,
		struct spw_queue *q)
{
	struct nvme_drive *d = &nvme_drive;

	if (sqe->opcode == IORING_OP_NOP)
		return 0;
	d->last = *cmd;
	d->commands++;
	if (sqe->opcode != IORING_OP_URING_CMD || cmd->nsid != 7)
		return -EINVAL;
	if (d->answers > 0) {
		d->answers--;
		return d->answer;
	}
	switch (cmd->opcode) {
	case SPW_NVME_READ:
	case SPW_NVME_WRITE: return obey_transfer(sqe, cmd, q);
	case SPW_NVME_FLUSH: d->flushes++; return 0;
	case SPW_NVME_DATASET_MANAGEMENT:
		d->ranges++;
		d->last_range = *(struct spw_nvme_range *)(uintptr_t)cmd->addr;
		memset(d->bytes + (d->last_range.first_block << d->block_shift), 0,
		       (size_t)d->last_range.blocks << d->block_shift);
		if (d->tags)
			tags_forget(d->tags + d->last_range.first_block, d->last_range.blocks);
		return 0;
	default: return 0x4001;
	}
}

static int nvme_drive_submit(struct spw_queue *q)
{
	struct nvme *n = q->state;
	struct nvme_drive *d = &nvme_drive;

	for (; d->khead != n->uring.ring.sq.sqe_tail; d->khead++) {
		const struct io_uring_sqe *sqe =
			(void *)(d->entries + (size_t)(d->khead & d->mask) * 128);
		struct io_uring_cqe *cqe = &d->completions[(size_t)(d->cq_tail++ & d->cq_mask) * 2];

		cqe->user_data = sqe->user_data;
		cqe->res = obey(sqe, (const void *)sqe->cmd, q);
	}
	n->uring.ring.sq.sqe_head = n->uring.ring.sq.sqe_tail;
	return 0;
}

static int nvme_drive_wait(struct spw_queue *q, unsigned want, int64_t timeout_ns)
{
	struct nvme *n = q->state;

	(void)want;
	(void)timeout_ns;
	(void)nvme_drive_submit(q);
	nvme_take(q, &n->uring);
	return 0;
}

/* liburing takes entries from here as from a ring of the kernel's. */
static void make_ring(struct io_uring *ring)
{
	struct nvme_drive *d = &nvme_drive;

	d->entries = calloc(NVME_ENTRIES, 128);
	d->completions = calloc((size_t)NVME_ENTRIES * 8, sizeof(*d->completions) * 2);
	d->khead = d->ktail = d->cq_head = d->cq_tail = 0;
	d->count = NVME_ENTRIES;
	d->mask = NVME_ENTRIES - 1;
	d->cq_mask = NVME_ENTRIES * 8 - 1;
	ring->flags = IORING_SETUP_SQE128 | IORING_SETUP_CQE32;
	ring->sq.khead = &d->khead;
	ring->sq.ktail = &d->ktail;
	ring->sq.kring_mask = &d->mask;
	ring->sq.kring_entries = &d->count;
	ring->sq.ring_mask = d->mask;
	ring->sq.ring_entries = d->count;
	ring->sq.sqes = (void *)d->entries;
	ring->cq.khead = &d->cq_head;
	ring->cq.ktail = &d->cq_tail;
	ring->cq.kring_mask = &d->cq_mask;
	ring->cq.cqes = d->completions;
}

static int nvme_drive_open(struct spw_queue *q)
{
	struct nvme_drive *d = &nvme_drive;
	struct nvme *n = calloc(1, sizeof(*n));

	assert_non_null(n);
	n->ranges = calloc(q->depth, sizeof(*n->ranges));
	n->fds[0] = -1;
	n->devices[0] = (struct nvme_device){
		.ns = {.id = 7,
		       .block_shift = d->block_shift,
		       .protects = d->tags != NULL,
		       .blocks = DRIVE_BYTES >> d->block_shift},
		.command_bytes_max = NVME_COMMAND_BYTES,
		.segments_max = NVME_SEGMENTS,
		.read_only = d->read_only,
	};
	make_ring(&n->uring.ring);
	n->uring.shift = 1;
	q->piece_shift = NVME_PIECE_SHIFT;
	/* Not the last ones: a kernel takes this many pieces and no more. */
	q->pieces = (unsigned)(q->arena_len_bytes >> NVME_PIECE_SHIFT) - 2;
	q->registered_bytes = (uint64_t)q->pieces << NVME_PIECE_SHIFT;
	q->polls = q->wait_mode == SPW_WAIT_POLL;
	q->prepare = nvme_drive.long_way ? spw_engine__queue_prepare_any : nvme_prepare;
	n->fixed = true;
	q->state = n;
	spw_engine__queue_place(q, 0, d->ids, d->id_count);
	return 0;
}

static void nvme_drive_close(struct spw_queue *q)
{
	free(nvme_drive.entries);
	free(nvme_drive.completions);
	free_state(q, q->state);
}

/* drive_queue over the drive in memory. */
static void open_nvme_queue(void)
{
	static struct spw_backend_ops ops;
	const struct spw_backend_ops *candidates[] = {&ops};
	struct spw_queue_opts opts;

	ops = spw_nvme__backend_nvme;
	ops.open = nvme_drive_open;
	ops.close = nvme_drive_close;
	ops.submit = nvme_drive_submit;
	ops.wait = nvme_drive_wait;
	drive_log[0] = '\0';
	spw_queue_opts_init(&opts, sizeof(opts));
	opts.backend = SPW_BACKEND_NVME;
	opts.depth = 8;
	opts.arena = drive_arena;
	opts.log.write = collect;
	opts.placement = nvme_drive.placement;
	assert_int_equal(spw_engine__queue_open_with(&drive, 1, &opts, candidates, 1, &drive_queue),
			 0);
}

#endif
