/* SPDX-License-Identifier: MIT */
/*
 * engine/backend_null.c - backend null: transfers that end without a drive, at once or at a set
 * rate
 *
 * It measures the cost of everything above the drives, and its limits with faster drives. Nothing
 * is written, and a read leaves the memory unchanged: a caller that verifies bytes puts the
 * expected ones there before.
 *
 *   NULL-1  A slot in use is in the line of its device exactly once, so that there is room for all.
 */
#include <errno.h>
#include <stdlib.h>

#include "engine/backend.h"
#include "util/util.h"

struct end {
	struct spw_part *part;
	uint64_t ns; /* when the part ends; 0: at once */
};

/* The parts of a device, in the order in which they end. */
struct line {
	struct end *ends; /* ring buffer; its size is the queue's depth */
	uint32_t first, count;
	uint64_t idle_ns; /* when the last part ends */
};

struct null {
	double ns_per_byte; /* 0: at once */
	struct end *ends;   /* memory of the rings of all lines */
	struct line lines[SPW_QUEUE_DEVICES_MAX];
};

static int null_prepare(struct spw_queue *q, struct spw_io *io);

static int null_open(struct spw_queue *q)
{
	struct null *n = calloc(1, sizeof(*n));

	if (n)
		n->ends = calloc((size_t)q->device_count * q->depth, sizeof(*n->ends));
	if (!n || !n->ends) {
		free(n);
		return spw_error(-ENOMEM, "null: no memory");
	}
	for (uint32_t i = 0; i < q->device_count; i++)
		n->lines[i].ends = n->ends + (size_t)i * q->depth;
	if (q->null_bytes_per_second > 0)
		n->ns_per_byte = 1e9 / (double)q->null_bytes_per_second;
	q->wait_mode = SPW_WAIT_INTERRUPT;
	spw_engine__queue_describe(q, " no drive is touched, transfers end %s",
				   q->null_bytes_per_second > 0 ? "at a set rate" : "at once");
	spw_log(&q->log, SPW_LOG_INFO,
		"null: nothing is written to the drives, nothing is read from them");
	q->prepare = null_prepare;
	q->state = n;
	return 0;
}

static void null_close(struct spw_queue *q)
{
	struct null *n = q->state;

	free(n->ends);
	free(n);
	q->state = NULL;
}

static inline void stand_in_line(struct spw_queue *q, struct spw_part *part, uint32_t len_bytes)
{
	struct null *n = q->state;
	struct line *line = &n->lines[part->device];
	uint32_t at = line->first + line->count++;
	struct end *end = &line->ends[at < q->depth ? at : at - q->depth];

	SPW_ASSERT(line->count <= q->depth); /* each slot is in the line once (NULL-1) */
	end->part = part;
	end->ns = 0;
	if (n->ns_per_byte > 0) {
		line->idle_ns = SPW_MAX(line->idle_ns, spw_clock_ns()) +
				(uint64_t)(len_bytes * n->ns_per_byte);
		end->ns = line->idle_ns;
	}
}

static int null_issue(struct spw_queue *q, struct spw_part *part)
{
	part->piece = -1;
	stand_in_line(q, part, part->op <= SPW_WRITE ? part->len_bytes : 0);
	return 0;
}

/* The fast path of plain transfers, as in other backends. */
static int null_prepare(struct spw_queue *q, struct spw_io *io)
{
	struct spw_queue_device *dev;
	struct spw_part *part = spw_engine__whole_unregistered_slot(q, io, &dev);

	if (unlikely(!part))
		return spw_engine__queue_prepare_any(q, io);
	spw_engine__whole_issued(q, dev, io);
	q->parts_unregistered++;
	stand_in_line(q, part, io->len_bytes);
	return 0;
}

static int null_submit(struct spw_queue *q)
{
	(void)q;
	return 0;
}

/* End the parts that are due, but not those that done prepares meanwhile. Return: how many. */
static unsigned end_those_due(struct spw_queue *q, struct line *line, uint64_t now_ns)
{
	uint32_t count = line->count, ended = 0;

	for (; ended < count && line->ends[line->first].ns <= now_ns; ended++) {
		struct spw_part *part = line->ends[line->first].part;

		line->first = line->first + 1 < q->depth ? line->first + 1 : 0;
		line->count--;
		SPW_ASSERT(part->io); /* a slot in the line is in use (NULL-1) */
		if (unlikely(!spw_engine__whole_completed(q, part, part->io->len_bytes)))
			spw_engine__part_completed(q, part, part->len_bytes);
	}
	return ended;
}

static unsigned end_all_due(struct spw_queue *q)
{
	struct null *n = q->state;
	uint64_t now_ns = n->ns_per_byte > 0 ? spw_clock_ns() : 0;
	unsigned ended = 0;

	for (uint32_t i = 0; i < q->device_count; i++)
		ended += end_those_due(q, &n->lines[i], now_ns);
	return ended;
}

/* Time until the next part ends; negative: no part is in a line. */
static int64_t next_end_ns(const struct spw_queue *q)
{
	const struct null *n = q->state;
	uint64_t first_ns = UINT64_MAX, now_ns;

	for (uint32_t i = 0; i < q->device_count; i++) {
		const struct line *line = &n->lines[i];

		if (line->count > 0)
			first_ns = SPW_MIN(first_ns, line->ends[line->first].ns);
	}
	if (first_ns == UINT64_MAX)
		return -1;
	now_ns = spw_clock_ns();
	return first_ns > now_ns ? (int64_t)(first_ns - now_ns) : 0;
}

static int null_wait(struct spw_queue *q, unsigned want, int64_t timeout_ns)
{
	uint64_t begun_ns = want > 0 && timeout_ns >= 0 ? spw_clock_ns() : 0;
	unsigned ended = end_all_due(q);

	while (ended < want) {
		int64_t next_ns = next_end_ns(q), left_ns = -1;
		int ret;

		if (timeout_ns >= 0)
			left_ns = timeout_ns - (int64_t)(spw_clock_ns() - begun_ns);
		if (timeout_ns >= 0 && left_ns <= 0)
			return -ETIME;
		if (next_ns < 0 || (left_ns >= 0 && left_ns < next_ns))
			next_ns = left_ns;
		ret = spw_engine__queue_sleep(q, next_ns);
		ended += end_all_due(q);
		if (ret != -ETIME)
			return ret;
	}
	return 0;
}

static void null_cancel(struct spw_queue *q, struct spw_part *part)
{
	/* The part ends at its time, as on a drive that has begun it. */
	(void)q;
	(void)part;
}

const struct spw_backend_ops spw_engine__backend_null = {
	.name = "null",
	.backend = SPW_BACKEND_NULL,
	.discards = true,
	.open = null_open,
	.close = null_close,
	.issue = null_issue,
	.submit = null_submit,
	.wait = null_wait,
	.cancel = null_cancel,
};
