/* SPDX-License-Identifier: MIT */
/*
 * tools/bench/backlog.h - verify_backlog: what was written and is to be read back while writing
 * goes on
 *
 * As in fio: after every verify_backlog writes, verify_backlog_batch of them (by default as many)
 * are read back, the oldest first, between the writes; what is left is read back at the end. A
 * block is never read before its write has ended.
 */
#ifndef SPW_BENCH_BACKLOG_H
#define SPW_BENCH_BACKLOG_H

#include "tools/bench/bench.h"

struct bench_written {
	uint64_t offset_bytes, generation;
	uint32_t len_bytes, device;
	bool ended;
};

struct bench_backlog {
	struct bench_written *writes; /* a ring; numbered from the first of the job on */
	uint64_t capacity, head, tail;
	uint64_t every, batch; /* every is 0: not asked for */
	uint64_t since;        /* writes since the last batch became due */
	uint64_t due;          /* to be read back now */
	/* the ring was full: writes were forgotten that were not read back */
	bool left_out;
};

/* Return: 0, also when @job has no backlog; -ENOMEM. */
int bench_backlog_init(struct bench_backlog *backlog, const struct bench_job *job);
void bench_backlog_free(struct bench_backlog *backlog);

/* Return: whether there is room for one more write; else reap first. */
bool bench_backlog_takes(const struct bench_backlog *backlog);

/* A write is issued. Return: its number, for bench_backlog_ended(). */
uint64_t bench_backlog_add(struct bench_backlog *backlog, const struct spw_io *io,
			   uint64_t generation);
void bench_backlog_ended(struct bench_backlog *backlog, uint64_t number);

/* All that is left is due. */
void bench_backlog_flush(struct bench_backlog *backlog);

/* Return: whether a block is to be read back before the next write. */
bool bench_backlog_is_due(struct bench_backlog *backlog);

/*
 * The block to be read back, valid until the next write is added. Return: NULL when its write has
 * not ended: reap first.
 */
const struct bench_written *bench_backlog_next(struct bench_backlog *backlog);

#endif
