/* SPDX-License-Identifier: MIT */
/*
 * tools/bench/backlog.c - verify_backlog: what was written and is to be read back while writing
 * goes on
 */
#include "tools/bench/backlog.h"

#include <errno.h>
#include <stdlib.h>

#include "util/util.h"

/*
 * What small batches leave for the end; of more than this, all is read back at the end once more.
 */
#define LEFT_MAX (UINT64_C(1) << 20)

int bench_backlog_init(struct bench_backlog *backlog, const struct bench_job *job)
{
	uint32_t batch =
		job->verify_backlog_batch > 0 ? job->verify_backlog_batch : job->verify_backlog;

	if (job->verify_backlog == 0)
		return 0;
	backlog->every = job->verify_backlog;
	backlog->batch = batch;
	backlog->capacity = (uint64_t)job->verify_backlog + batch + job->iodepth;
	if (batch < job->verify_backlog)
		backlog->capacity += LEFT_MAX;
	backlog->writes = calloc(backlog->capacity, sizeof(*backlog->writes));
	return backlog->writes ? 0 : spw_error(-ENOMEM, "out of memory");
}

void bench_backlog_free(struct bench_backlog *backlog)
{
	free(backlog->writes);
}

static struct bench_written *entry(const struct bench_backlog *backlog, uint64_t number)
{
	return &backlog->writes[number % backlog->capacity];
}

bool bench_backlog_takes(const struct bench_backlog *backlog)
{
	return backlog->tail - backlog->head < backlog->capacity ||
	       entry(backlog, backlog->head)->ended;
}

uint64_t bench_backlog_add(struct bench_backlog *backlog, const struct spw_io *io,
			   uint64_t generation)
{
	if (backlog->tail - backlog->head == backlog->capacity) {
		backlog->head++;
		backlog->left_out = true;
	}
	*entry(backlog, backlog->tail) = (struct bench_written){
		.offset_bytes = io->offset_bytes,
		.generation = generation,
		.len_bytes = io->len_bytes,
		.device = io->device,
	};
	if (++backlog->since == backlog->every) {
		backlog->since = 0;
		backlog->due = backlog->batch;
	}
	return backlog->tail++;
}

void bench_backlog_ended(struct bench_backlog *backlog, uint64_t number)
{
	entry(backlog, number)->ended = true;
}

void bench_backlog_flush(struct bench_backlog *backlog)
{
	backlog->due = backlog->tail - backlog->head;
	backlog->since = 0;
}

bool bench_backlog_is_due(struct bench_backlog *backlog)
{
	if (backlog->head == backlog->tail)
		backlog->due = 0;
	return backlog->due > 0;
}

const struct bench_written *bench_backlog_next(struct bench_backlog *backlog)
{
	const struct bench_written *oldest = entry(backlog, backlog->head);

	if (!oldest->ended)
		return NULL;
	backlog->head++;
	backlog->due--;
	return oldest;
}
