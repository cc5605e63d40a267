/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_engine_queue.c - splitting, joining, continuing, trying again, cancelling: the
 * queue over a backend in memory
 *
 * The backend keeps the drive's bytes in memory and can be told to complete late, in another order,
 * short, torn or not at all.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/case.h"
#include "tests/random.h"

#include "engine/arena.h"
#include "engine/backend.h"
#include "util/util.h"

#define BLOCK        512u
#define DRIVE_BYTES  (64u << 20)
#define DRIVES       3u
#define ISSUED_MAX   4096u
#define FAKE_HISTORY 4096u

struct issued {
	uint64_t offset_bytes;
	uint32_t len_bytes, iov_count;
	int16_t piece;
	uint8_t device, op;
};

static struct fake {
	char *bytes[DRIVES]; /* NULL: nothing is copied */
	struct spw_part *issued[ISSUED_MAX];
	unsigned count;    /* issued and not completed */
	unsigned capacity; /* issue refuses more until submitted */
	unsigned unsubmitted;
	struct issued history[FAKE_HISTORY];
	unsigned history_count, submits, waits, cancels;
	int open_result, wait_result;
	unsigned pieces;
	bool polls;
	bool random;                    /* order and outcome */
	bool hold;                      /* complete nothing */
	bool ends_at_once;              /* inside issue */
	struct spw_queue_device limits; /* what of them is not 0 */
	int64_t answer;                 /* to the next parts, */
	unsigned answers;               /* this many of them */
	uint32_t at_most;               /* a part transfers no more; 0: all of it */
	uint64_t bad_offset;            /* the part that begins here fails; 0: none */
	uint32_t too_long;              /* a part of more bytes fails; 0: none does */
} fake;

static struct spw_device devices[DRIVES];
static uint64_t seed;

static uint64_t draw(void)
{
	return random_next(&seed);
}

/* ---- The backend ----------------------------------------------------------------------------- */

static int fake_open(struct spw_queue *q)
{
	if (fake.open_result)
		return spw_error(fake.open_result, "fake refused: %s",
				 spw_strerror(fake.open_result));
	q->pieces = fake.pieces;
	q->registered_bytes = (uint64_t)fake.pieces << q->piece_shift;
	q->polls = fake.polls;
	q->state = &fake;
	return 0;
}

static void fake_close(struct spw_queue *q)
{
	assert_int_equal(fake.count, 0);
	q->state = NULL;
}

static void fake_limits(struct spw_queue *q, struct spw_queue_device *dev)
{
	(void)q;
	if (fake.limits.part_bytes_max)
		dev->part_bytes_max = fake.limits.part_bytes_max;
	if (fake.limits.segments_max)
		dev->segments_max = fake.limits.segments_max;
	dev->boundary_bytes = fake.limits.boundary_bytes;
	dev->start_bytes = fake.limits.start_bytes;
}

static int fake_issue(struct spw_queue *q, struct spw_part *part)
{
	if (fake.unsubmitted == fake.capacity)
		return -EAGAIN;
	assert_true(fake.count < ISSUED_MAX);
	for (unsigned i = 0; i < fake.count; i++)
		assert_ptr_not_equal(fake.issued[i], part);
	assert_int_equal(part->offset_bytes % BLOCK, 0);
	assert_int_equal(part->len_bytes % BLOCK, 0);
	if (!part->iov_count)
		assert_int_equal((uintptr_t)part->buf & q->devices[part->device].align_mask, 0);
	if (fake.ends_at_once) {
		spw_engine__part_completed(q, part, part->len_bytes);
		return 0;
	}
	fake.issued[fake.count++] = part;
	fake.unsubmitted++;
	if (fake.history_count < FAKE_HISTORY)
		fake.history[fake.history_count++] =
			(struct issued){.offset_bytes = part->offset_bytes,
					.len_bytes = part->len_bytes,
					.iov_count = part->iov_count,
					.piece = part->piece,
					.device = part->device,
					.op = part->op};
	return 0;
}

static int fake_submit(struct spw_queue *q)
{
	(void)q;
	fake.submits++;
	fake.unsubmitted = 0;
	return 0;
}

static void copy(char *drive, char *memory, uint64_t len, bool is_read)
{
	if (is_read)
		memcpy(memory, drive, len);
	else
		memcpy(drive, memory, len);
}

/* The first @bytes of the request. */
static void perform(const struct spw_part *part, int64_t bytes)
{
	char *drive = fake.bytes[part->device];

	if (!drive || bytes <= 0)
		return;
	drive += part->offset_bytes;
	if (part->iov_count == 0)
		copy(drive, part->buf, (uint64_t)bytes, part->op == SPW_READ);
	for (uint32_t i = 0; i < part->iov_count && bytes > 0; i++) {
		int64_t len = (int64_t)part->iov[i].iov_len < bytes ? (int64_t)part->iov[i].iov_len
								    : bytes;

		copy(drive, part->iov[i].iov_base, (uint64_t)len, part->op == SPW_READ);
		drive += len;
		bytes -= len;
	}
}

static int64_t random_outcome(const struct spw_part *part)
{
	switch (draw() % 8) {
	case 0: return -EAGAIN;
	case 1: return -EINTR;
	case 2: return 1 + (int64_t)(draw() % part->len_bytes);
	default: return part->len_bytes;
	}
}

static int64_t outcome_of(const struct spw_part *part)
{
	if (fake.answers > 0) {
		fake.answers--;
		return fake.answer;
	}
	if (fake.bad_offset > 0 && part->offset_bytes == fake.bad_offset)
		return -EIO;
	if (fake.too_long > 0 && part->len_bytes > fake.too_long)
		return -EIO;
	if (fake.at_most > 0 && part->len_bytes > fake.at_most)
		return fake.at_most;
	return fake.random ? random_outcome(part) : (int64_t)part->len_bytes;
}

static int fake_wait(struct spw_queue *q, unsigned want, int64_t timeout_ns)
{
	unsigned todo = fake.count;

	(void)timeout_ns;
	fake.waits++;
	fake.unsubmitted = 0;
	if (fake.wait_result)
		return fake.wait_result;
	if (want > 0 && todo == 0)
		return -ETIME;
	assert_true(want <= todo);
	if (fake.random && todo > want)
		todo = want + (unsigned)(draw() % (todo - want + 1));
	while (todo-- > 0 && !fake.hold) {
		unsigned pick = fake.random ? (unsigned)(draw() % fake.count) : 0;
		struct spw_part *part = fake.issued[pick];
		int64_t res = outcome_of(part);

		memmove(&fake.issued[pick], &fake.issued[pick + 1],
			(--fake.count - pick) * sizeof(fake.issued[0]));
		perform(part, res);
		spw_engine__part_completed(q, part, res);
	}
	return fake.hold ? -ETIME : 0;
}

static void fake_cancel(struct spw_queue *q, struct spw_part *part)
{
	(void)q;
	(void)part;
	fake.cancels++;
}

static const struct spw_backend_ops fake_ops = {
	.name = "fake",
	.backend = SPW_BACKEND_LIBAIO,
	.open = fake_open,
	.limits = fake_limits,
	.close = fake_close,
	.issue = fake_issue,
	.submit = fake_submit,
	.wait = fake_wait,
	.cancel = fake_cancel,
};

static const struct spw_backend_ops *const only_fake[] = {&fake_ops};

/* ---- Setting up ------------------------------------------------------------------------------ */

static char *memory; /* DRIVE_BYTES, page-aligned */
static struct spw_queue *queue;

static void open_queue(uint32_t depth, struct spw_arena *arena)
{
	struct spw_device *list[DRIVES];
	struct spw_queue_opts opts;

	for (unsigned i = 0; i < DRIVES; i++)
		list[i] = &devices[i];
	spw_queue_opts_init(&opts, sizeof(opts));
	opts.depth = depth;
	opts.arena = arena;
	assert_int_equal(spw_engine__queue_open_with(list, DRIVES, &opts, only_fake, 1, &queue), 0);
}

static int set_up(void **state)
{
	(void)state;
	memset(&fake, 0, sizeof(fake));
	fake.capacity = ISSUED_MAX;
	for (unsigned i = 0; i < DRIVES; i++) {
		static char names[DRIVES][16];

		(void)snprintf(names[i], sizeof(names[i]), "drive%u", i);
		devices[i] = (struct spw_device){
			.path = names[i],
			.fd = -1,
			.geometry = {.kind = SPW_DEVICE_FILE,
				     .size_bytes = DRIVE_BYTES,
				     .logical_block_bytes = BLOCK,
				     .memory_align_bytes = BLOCK,
				     .transfer_bytes_max = 512u << 10,
				     .segments_max = 127,
				     .polls = true},
		};
	}
	memory = aligned_alloc(4096, DRIVE_BYTES);
	assert_non_null(memory);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	fake.hold = false;
	fake.wait_result = 0;
	spw_queue_close(queue);
	queue = NULL;
	for (unsigned i = 0; i < DRIVES; i++)
		free(fake.bytes[i]);
	free(memory);
	return 0;
}

struct counted {
	struct spw_io io;
	unsigned done;
};

static void count(struct spw_io *io)
{
	((struct counted *)io->context)->done++;
}

static void prepare(struct counted *counted, enum spw_op op, unsigned device, char *buf,
		    uint64_t len, uint64_t offset)
{
	counted->done = 0;
	counted->io = (struct spw_io){
		.op = op,
		.device = device,
		.buf = buf,
		.len_bytes = (uint32_t)len,
		.offset_bytes = offset,
		.done = count,
		.context = counted,
	};
	assert_int_equal(spw_queue_prepare(queue, &counted->io), 0);
}

static void reap_until_empty(void)
{
	while (spw_engine__queue_ios(queue) > 0)
		assert_true(spw_queue_reap(queue, 1, -1) >= 0);
}

/* One io from prepare to done. Return: its result. */
static int32_t run(enum spw_op op, unsigned device, char *buf, uint64_t len, uint64_t offset)
{
	struct counted one;

	fake.history_count = 0;
	prepare(&one, op, device, buf, len, offset);
	reap_until_empty();
	assert_int_equal(one.done, 1);
	return one.io.res;
}

static void run_vector(enum spw_op op, const struct iovec *iov, uint32_t count_of_elements,
		       uint64_t offset)
{
	struct counted one = {.io = {.op = op,
				     .iov = iov,
				     .iov_count = count_of_elements,
				     .offset_bytes = offset,
				     .done = count,
				     .context = &one}};

	for (uint32_t i = 0; i < count_of_elements; i++)
		one.io.len_bytes += (uint32_t)iov[i].iov_len;
	fake.history_count = 0;
	assert_int_equal(spw_queue_prepare(queue, &one.io), 0);
	reap_until_empty();
	assert_int_equal(one.io.res, (int)one.io.len_bytes);
}

static unsigned parts_of(char *buf, uint64_t len)
{
	uint64_t at = 0;

	assert_int_equal(run(SPW_READ, 0, buf, len, 0), len);
	for (unsigned i = 0; i < fake.history_count; i++) {
		assert_int_equal(fake.history[i].offset_bytes, at);
		at += fake.history[i].len_bytes;
	}
	assert_int_equal(at, len);
	return fake.history_count;
}

#define QUEUE_TEST(name) CASE_WITH(name, set_up, tear_down)

/* ---- Cutting --------------------------------------------------------------------------------- */

QUEUE_TEST(test_foreign_memory_is_cut_at_256_pages)
{
	open_queue(8, NULL);
	assert_int_equal(parts_of(memory, BLOCK), 1);
	assert_int_equal(parts_of(memory, 1u << 20), 1);
	assert_int_equal(parts_of(memory, (1u << 20) + BLOCK), 2);
	/* Not at a page's start: the same pages hold one page less. */
	assert_int_equal(parts_of(memory + BLOCK, (1u << 20) - BLOCK), 1);
	assert_int_equal(parts_of(memory + BLOCK, 1u << 20), 2);
	assert_int_equal(parts_of(memory, 10u << 20), 10);
}

QUEUE_TEST(test_a_large_block_stays_whole)
{
	devices[0].geometry.logical_block_bytes = 16384;
	open_queue(2, NULL);
	assert_int_equal(parts_of(memory + BLOCK, 16384), 1);
	assert_int_equal(parts_of(memory + BLOCK, 1u << 20), 2);
	assert_int_equal(fake.history[0].len_bytes % 16384, 0);
}

QUEUE_TEST(test_polled_transfers_are_never_split_by_the_kernel)
{
	fake.polls = true;
	open_queue(8, NULL);
	assert_int_equal(parts_of(memory, 504u << 10), 1);
	assert_int_equal(parts_of(memory, (504u << 10) + BLOCK), 2);
	spw_queue_close(queue);
	devices[0].geometry.segments_max = 0;
	devices[0].geometry.transfer_bytes_max = 128u << 10;
	open_queue(8, NULL);
	assert_int_equal(parts_of(memory, 128u << 10), 1);
	assert_int_equal(parts_of(memory, 256u << 10), 2);
}

#define PIECE (UINT64_C(1) << SPW_PIECE_SHIFT)

QUEUE_TEST(test_arena_memory_is_cut_at_16_mib_and_at_pieces)
{
	static const struct {
		unsigned pieces;
		uint32_t block_bytes, align_bytes;
		uint64_t offset, len;
		unsigned parts;
		uint32_t first_bytes;
		int16_t first_piece, last_piece;
	} cases[] = {
		{3, BLOCK, BLOCK, 0, 16u << 20, 1, 16u << 20, 0, 0},
		{3, BLOCK, BLOCK, 0, (16u << 20) + BLOCK, 2, 16u << 20, 0, 0},
		{3, BLOCK, BLOCK, PIECE - BLOCK, 2u << 20, 2, BLOCK, 0, 1},
		/* What is small is not worth two requests: it goes whole, unregistered. */
		{3, BLOCK, BLOCK, PIECE - BLOCK, 2 * BLOCK, 1, 2 * BLOCK, -1, -1},
		{3, BLOCK, BLOCK, 2 * PIECE, 64u << 20, 4, 16u << 20, 2, 2},
		/* What does not begin with a block: its pages would not end with one. */
		{3, BLOCK, 4, 4, 4096, 1, 4096, -1, -1},
		/* A block that lies across two pieces goes whole, unregistered. */
		{3, 4096, BLOCK, PIECE - BLOCK, 4096, 1, 4096, -1, -1},
		{0, BLOCK, BLOCK, PIECE - 4096, 16u << 20, 1, 16u << 20, -1, -1},
	};
	struct spw_arena_opts opts;
	struct spw_arena *arena;
	void *all;

	spw_arena_opts_init(&opts, sizeof(opts));
	opts.bytes = 2 * PIECE + (64u << 20);
	opts.no_hugetlb = true;
	assert_int_equal(spw_arena_open(&opts, &arena), 0);
	/* What this machine's transparent pages are set to does not matter here. */
	arena->pages = SPW_PAGES_TRANSPARENT;
	/* Nothing is touched, but the address sanitizer wants it allocated. */
	assert_int_equal(spw_arena_alloc(arena, opts.bytes, &all), 0);
	for (size_t i = 0; i < SPW_ARRAY_LEN(cases); i++) {
		print_message("arena case %zu\n", i);
		fake.pieces = cases[i].pieces;
		devices[0].geometry.logical_block_bytes = cases[i].block_bytes;
		devices[0].geometry.memory_align_bytes = cases[i].align_bytes;
		open_queue(8, arena);
		assert_int_equal(parts_of(arena->base + cases[i].offset, cases[i].len),
				 cases[i].parts);
		assert_int_equal(fake.history[0].len_bytes, cases[i].first_bytes);
		assert_int_equal(fake.history[0].piece, cases[i].first_piece);
		assert_int_equal(fake.history[cases[i].parts - 1].piece, cases[i].last_piece);
		spw_queue_close(queue);
		queue = NULL;
	}
	spw_arena_close(arena);
}

/* More than this would be cut into parts of no bytes, without an end. */
QUEUE_TEST(test_a_block_is_one_part_whatever_the_limits)
{
	devices[0].geometry.logical_block_bytes = 16384;
	fake.limits = (struct spw_queue_device){.part_bytes_max = 8192, .segments_max = 2};
	open_queue(2, NULL);
	assert_int_equal(parts_of(memory, 65536), 4);
}

/*
 * The kernel splits what goes over a boundary, and a polled transfer that is split never completes
 * on some.
 */
QUEUE_TEST(test_no_part_goes_over_a_boundary)
{
	struct iovec iov[40];

	/* The drive's boundaries; the device begins 3 blocks before one. */
	fake.limits = (struct spw_queue_device){.boundary_bytes = 64u << 10,
						.start_bytes = (64u << 10) - 3 * BLOCK};
	open_queue(8, NULL);
	assert_int_equal(parts_of(memory, 3 * BLOCK), 1);
	assert_int_equal(parts_of(memory, 4 * BLOCK), 2);
	assert_int_equal(fake.history[0].len_bytes, 3 * BLOCK);
	assert_int_equal(parts_of(memory, (256u << 10) + 4 * BLOCK), 6);
	for (unsigned i = 1; i < fake.history_count; i++)
		assert_int_equal(fake.history[i].offset_bytes % (64u << 10), 3 * BLOCK);
	for (unsigned i = 0; i < SPW_ARRAY_LEN(iov); i++)
		iov[i] = (struct iovec){memory + (size_t)i * 65536, (1 + i % 9) * 3 * BLOCK};
	run_vector(SPW_READ, iov, SPW_ARRAY_LEN(iov), 7 * BLOCK);
	for (unsigned i = 0; i < fake.history_count; i++) {
		uint64_t first = fake.history[i].offset_bytes + fake.limits.start_bytes;

		assert_int_equal(first >> 16, (first + fake.history[i].len_bytes - 1) >> 16);
	}
}

QUEUE_TEST(test_no_vector_is_longer_than_a_system_call_takes)
{
	static struct iovec iov[2500];

	fake.limits.segments_max = 65535;
	open_queue(8, NULL);
	for (unsigned i = 0; i < SPW_ARRAY_LEN(iov); i++)
		iov[i] = (struct iovec){memory + (size_t)i * 2 * BLOCK, BLOCK};
	run_vector(SPW_WRITE, iov, SPW_ARRAY_LEN(iov), 0);
	assert_int_equal(fake.history_count, 3);
	for (unsigned i = 0; i < fake.history_count; i++)
		assert_true(fake.history[i].iov_count <= IOV_MAX);
}

QUEUE_TEST(test_vectors_are_cut_between_elements)
{
	struct iovec iov[300];

	open_queue(16, NULL);
	for (unsigned i = 0; i < 300; i++)
		iov[i] = (struct iovec){memory + (size_t)i * 8192, BLOCK};
	iov[299].iov_len = 3u << 20;
	run_vector(SPW_READ, iov, SPW_ARRAY_LEN(iov), 0);
	assert_int_equal(fake.history_count, 5);
	assert_int_equal(fake.history[0].iov_count, 256);
	assert_int_equal(fake.history[1].iov_count, 43);
	assert_int_equal(fake.history[2].iov_count, 0);
	assert_int_equal(fake.history[2].len_bytes, 1u << 20);
	assert_int_equal(fake.history[4].offset_bytes, 299 * BLOCK + (2u << 20));
}

QUEUE_TEST(test_polled_vectors_are_cut_at_gaps)
{
	/*
	 * A gap between pages after the second and after the third; the others meet at a page's end
	 * and begin.
	 */
	struct iovec iov[5] = {{memory + 512, 3584},
			       {memory + 8192, 1024},
			       {memory + 16384, 4096},
			       {memory + 32768 + 512, 3584},
			       {memory + 4096, 512}};

	fake.polls = true;
	open_queue(16, NULL);
	run_vector(SPW_READ, iov, SPW_ARRAY_LEN(iov), 0);
	assert_int_equal(fake.history_count, 3);
	assert_int_equal(fake.history[0].iov_count, 2);
	assert_int_equal(fake.history[1].len_bytes, 4096);
	assert_int_equal(fake.history[2].iov_count, 2);
}

/* ---- Joining, continuing, trying again ------------------------------------------------------- */

#define LANES      24u
#define LANE_BYTES (DRIVE_BYTES / LANES / 2 / 4096 * 4096)

static void random_lane(struct counted *lane, unsigned index, struct iovec *iov)
{
	uint64_t len = (1 + draw() % (LANE_BYTES / BLOCK)) * BLOCK, left = len;
	char *buf = memory + (size_t)index * LANE_BYTES;
	uint64_t offset = (uint64_t)index * LANE_BYTES;

	if (draw() % 2) {
		prepare(lane, draw() % 2 ? SPW_READ : SPW_WRITE, index % DRIVES, buf, len, offset);
		return;
	}
	*lane = (struct counted){.io = {.op = draw() % 2 ? SPW_READ : SPW_WRITE,
					.device = index % DRIVES,
					.iov = iov,
					.len_bytes = (uint32_t)len,
					.offset_bytes = offset,
					.done = count,
					.context = lane}};
	/* In order, so that the expected bytes are where a plain buffer has them. */
	for (; left > 0; lane->io.iov_count++) {
		uint64_t piece = lane->io.iov_count == 63 ? left : (1 + draw() % 64) * BLOCK;

		piece = piece < left ? piece : left;
		iov[lane->io.iov_count] = (struct iovec){buf, piece};
		buf += piece;
		left -= piece;
	}
	assert_int_equal(spw_queue_prepare(queue, &lane->io), 0);
}

/* QUEUE-5 */
QUEUE_TEST(test_any_outcome_ends_with_the_right_bytes)
{
	static struct counted lanes[LANES];
	static struct iovec iovs[LANES][64];
	struct spw_queue_stats stats;

	fake.random = true;
	for (unsigned i = 0; i < DRIVES; i++) {
		fake.bytes[i] = malloc(DRIVE_BYTES);
		assert_non_null(fake.bytes[i]);
		for (uint64_t w = 0; w < DRIVE_BYTES / 8; w++)
			((uint64_t *)fake.bytes[i])[w] = draw();
	}
	for (uint64_t w = 0; w < DRIVE_BYTES / 8; w++)
		((uint64_t *)memory)[w] = draw();
	for (unsigned round = 0; round < 60; round++) {
		fake.capacity = 1 + (unsigned)(draw() % 8);
		open_queue(1 + (uint32_t)(draw() % 8), NULL);
		for (unsigned i = 0; i < LANES; i++)
			random_lane(&lanes[i], i, iovs[i]);
		while (spw_engine__queue_ios(queue) > 0)
			assert_true(spw_queue_reap(queue, 1 + (unsigned)(draw() % 8), -1) >= 0);
		spw_queue_stats(queue, &stats, sizeof(stats));
		assert_true(stats.in_flight_max <= queue->depth * DRIVES);
		for (unsigned i = 0; i < LANES; i++) {
			const struct spw_io *io = &lanes[i].io;

			assert_int_equal(lanes[i].done, 1);
			assert_int_equal(io->res, (int)io->len_bytes);
			/* Read or written, memory and drive agree now. */
			assert_memory_equal(memory + (size_t)i * LANE_BYTES,
					    fake.bytes[i % DRIVES] + io->offset_bytes,
					    io->len_bytes);
		}
		spw_queue_close(queue);
		queue = NULL;
	}
}

QUEUE_TEST(test_a_short_transfer_is_continued_where_it_ended)
{
	struct spw_queue_stats stats;

	open_queue(4, NULL);
	fake.at_most = 3 * BLOCK + 17;
	assert_int_equal(run(SPW_READ, 0, memory, 8 * BLOCK, 5 * BLOCK), 8 * BLOCK);
	assert_int_equal(fake.history_count, 3);
	assert_int_equal(fake.history[1].offset_bytes, 8 * BLOCK);
	assert_int_equal(fake.history[1].len_bytes, 5 * BLOCK);
	assert_int_equal(fake.history[2].offset_bytes, 11 * BLOCK);
	assert_int_equal(fake.history[2].len_bytes, 2 * BLOCK);
	spw_queue_stats(queue, &stats, sizeof(stats));
	assert_int_equal(stats.short_transfers, 2);
}

/* Memory that has to be aligned by more than a block is so where a transfer is continued. */
QUEUE_TEST(test_a_short_transfer_is_continued_in_aligned_memory)
{
	devices[0].geometry.memory_align_bytes = 4 * BLOCK;
	open_queue(4, NULL);
	fake.at_most = 5 * BLOCK;
	assert_int_equal(run(SPW_READ, 0, memory, 11 * BLOCK, BLOCK), 11 * BLOCK);
	assert_int_equal(fake.history_count, 3);
	assert_int_equal(fake.history[1].offset_bytes, 5 * BLOCK);
	assert_int_equal(fake.history[2].len_bytes, 3 * BLOCK);
}

static void answer(int64_t what, unsigned times)
{
	fake.answer = what;
	fake.answers = times;
}

/* -ENODEV would have a store give up the drive, which answers. */
QUEUE_TEST(test_less_than_a_block_is_tried_again_and_no_missing_device)
{
	struct spw_queue_stats stats;

	devices[0].geometry.kind = SPW_DEVICE_BLOCK;
	open_queue(4, NULL);
	answer(BLOCK - 1, 3);
	assert_int_equal(run(SPW_READ, 0, memory, 2 * BLOCK, BLOCK), 2 * BLOCK);
	spw_queue_stats(queue, &stats, sizeof(stats));
	assert_int_equal(stats.short_transfers, 3);
	assert_int_equal(stats.retries, 3);
	answer(BLOCK / 2 + 1, UINT_MAX);
	assert_int_equal(run(SPW_WRITE, 1, memory, 2 * BLOCK, BLOCK), -EIO);
	assert_int_equal(fake.history_count, 257);
}

QUEUE_TEST(test_trying_again_has_a_bound)
{
	struct spw_queue_stats stats;

	open_queue(4, NULL);
	answer(-EAGAIN, UINT_MAX);
	assert_int_equal(run(SPW_WRITE, 1, memory, BLOCK, 0), -EAGAIN);
	spw_queue_stats(queue, &stats, sizeof(stats));
	assert_int_equal(stats.retries, 256);
	assert_int_equal(stats.parts, 257);
	assert_int_equal(stats.errors, 1);
}

QUEUE_TEST(test_no_progress_is_a_lost_device)
{
	devices[1].geometry.kind = SPW_DEVICE_BLOCK;
	open_queue(4, NULL);
	answer(0, UINT_MAX);
	assert_int_equal(run(SPW_READ, 0, memory, BLOCK, 0), -EIO);
	expect_refusal(-ENODEV, "drive1: read of 4096 bytes at byte 2048 failed",
		       run(SPW_READ, 1, memory, 8 * BLOCK, 4 * BLOCK));
}

QUEUE_TEST(test_more_bytes_than_asked_for_is_an_error)
{
	open_queue(4, NULL);
	answer(2 * BLOCK, 1);
	assert_int_equal(run(SPW_READ, 0, memory, BLOCK, 0), -EPROTO);
}

/* QUEUE-2 */
QUEUE_TEST(test_after_a_failure_nothing_more_is_issued)
{
	struct counted bad, good;

	open_queue(1, NULL);
	fake.bad_offset = 1u << 20;
	prepare(&bad, SPW_READ, 0, memory, 4u << 20, 0);
	prepare(&good, SPW_READ, 0, memory, BLOCK, 0);
	reap_until_empty();
	assert_int_equal(bad.done, 1);
	assert_int_equal(bad.io.res, -EIO);
	assert_int_equal(good.io.res, BLOCK);
	/* The bad part once more, in halves. */
	assert_int_equal(fake.history_count, 4);
}

/* ---- What is too long for a target ----------------------------------------------------------- */

QUEUE_TEST(test_transfers_over_a_network_are_of_1_mib_at_most)
{
	devices[1].transport.far = true;
	open_queue(8, NULL);
	assert_int_equal(queue->devices[1].part_bytes_max, 1u << 20);
	assert_true(queue->devices[0].part_bytes_max > 1u << 20);
}

/* The drive's memory, so that each byte is seen to have moved. */
static void give_bytes(unsigned device)
{
	fake.bytes[device] = calloc(1, DRIVE_BYTES);
	assert_non_null(fake.bytes[device]);
	for (unsigned i = 0; i < DRIVE_BYTES; i++)
		memory[i] = (char)draw();
}

QUEUE_TEST(test_a_large_transfer_that_fails_is_tried_in_halves)
{
	const uint32_t len = 1u << 20;

	open_queue(8, NULL);
	give_bytes(0);
	fake.too_long = len / 2;
	assert_int_equal(run(SPW_WRITE, 0, memory, len - BLOCK, BLOCK), len - BLOCK);
	assert_int_equal(fake.history_count, 3);
	/* One after the other, and whole blocks. */
	assert_int_equal(fake.history[1].offset_bytes, BLOCK);
	assert_int_equal(fake.history[1].len_bytes, len / 2);
	assert_int_equal(fake.history[2].offset_bytes, len / 2 + BLOCK);
	assert_int_equal(fake.history[2].len_bytes, len / 2 - BLOCK);
	assert_memory_equal(fake.bytes[0] + BLOCK, memory, len - BLOCK);
}

/* And is continued so, when a half ends early. */
QUEUE_TEST(test_no_request_is_long_again_after_a_short_half)
{
	const uint32_t len = 1u << 20;

	open_queue(8, NULL);
	give_bytes(0);
	fake.too_long = len / 2;
	fake.at_most = len / 4;
	assert_int_equal(run(SPW_WRITE, 0, memory, len, 0), len);
	assert_memory_equal(fake.bytes[0], memory, len);
	for (unsigned i = 1; i < fake.history_count; i++)
		assert_true(fake.history[i].len_bytes <= len / 2);
}

QUEUE_TEST(test_the_halves_of_a_vector)
{
	const uint32_t third = 300u << 10;
	struct iovec iov[] = {{.iov_base = memory, .iov_len = third},
			      {.iov_base = memory + 2 * third, .iov_len = third},
			      {.iov_base = memory + 4 * third, .iov_len = third}};

	open_queue(8, NULL);
	give_bytes(0);
	fake.too_long = 2 * third;
	run_vector(SPW_WRITE, iov, 3, 0);
	for (unsigned i = 0; i < 3; i++)
		assert_memory_equal(fake.bytes[0] + i * third, iov[i].iov_base, third);
}

/* Once: one that is bad ends a transfer with few more requests than its parts. */
QUEUE_TEST(test_a_drive_that_is_bad_fails_the_halves_too)
{
	struct spw_queue_stats stats;

	open_queue(8, NULL);
	fake.bad_offset = BLOCK;
	assert_int_equal(run(SPW_READ, 0, memory, 1u << 20, BLOCK), -EIO);
	assert_int_equal(fake.history_count, 2);
	/* And what is short enough is not tried so. */
	assert_int_equal(run(SPW_READ, 0, memory, 512u << 10, BLOCK), -EIO);
	assert_int_equal(fake.history_count, 1);
	spw_queue_stats(queue, &stats, sizeof(stats));
	assert_int_equal(stats.retries, 1);
	assert_int_equal(stats.errors, 2);
}

/* ---- Order, system calls --------------------------------------------------------------------- */

/* QUEUE-1 */
QUEUE_TEST(test_ios_wait_in_order)
{
	struct counted ios[6];

	open_queue(4, NULL);
	fake.hold = true;
	for (unsigned i = 0; i < 6; i++)
		prepare(&ios[i], SPW_READ, 2, memory, BLOCK, i * BLOCK);
	assert_int_equal(fake.history_count, 0);
	assert_int_equal(spw_queue_submit(queue), 0);
	assert_int_equal(fake.history_count, 4);
	assert_int_equal(fake.submits, 1);
	fake.hold = false;
	while (!ios[5].done)
		assert_true(spw_queue_reap(queue, 6, -1) > 0);
	for (unsigned i = 0; i < 6; i++)
		assert_int_equal(fake.history[i].offset_bytes, i * BLOCK);
}

QUEUE_TEST(test_one_call_submits_and_one_reaps)
{
	struct counted ios[12];

	open_queue(4, NULL);
	for (unsigned i = 0; i < 12; i++)
		prepare(&ios[i], SPW_WRITE, i % DRIVES, memory, BLOCK, i * BLOCK);
	assert_int_equal(spw_queue_reap(queue, 12, -1), 12);
	assert_int_equal(fake.waits, 1);
	assert_int_equal(fake.submits, 0);
}

/* QUEUE-3 */
QUEUE_TEST(test_a_full_backend_loses_nothing)
{
	struct counted ios[30];

	fake.capacity = 3;
	open_queue(8, NULL);
	for (unsigned i = 0; i < 30; i++)
		prepare(&ios[i], SPW_WRITE, i % DRIVES, memory, BLOCK, i * BLOCK);
	reap_until_empty();
	for (unsigned i = 0; i < 30; i++)
		assert_int_equal(ios[i].io.res, BLOCK);
}

/* QUEUE-3: to go on would end another io. */
QUEUE_TEST(test_a_slot_that_is_completed_twice_ends_the_process)
{
	struct counted one;
	int status;
	pid_t child;

	open_queue(8, NULL);
	prepare(&one, SPW_WRITE, 0, memory, BLOCK, 0);
	assert_int_equal(spw_queue_reap(queue, 1, -1), 1);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		(void)close(STDERR_FILENO);
		spw_engine__part_completed(queue, queue->devices[0].free, BLOCK);
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

QUEUE_TEST(test_a_broken_backend_is_reported)
{
	struct counted one;

	open_queue(8, NULL);
	prepare(&one, SPW_WRITE, 0, memory, BLOCK, 0);
	fake.wait_result = -EBADF;
	assert_int_equal(spw_queue_reap(queue, 1, -1), -EBADF);
	assert_int_equal(one.done, 0);
	fake.wait_result = 0;
	assert_int_equal(spw_queue_reap(queue, 1, -1), 1);
}

/* ---- Cancelling ------------------------------------------------------------------------------ */

QUEUE_TEST(test_cancel)
{
	struct counted ios[4], half;

	open_queue(2, NULL);
	fake.hold = true;
	for (unsigned i = 0; i < 4; i++)
		prepare(&ios[i], SPW_READ, 0, memory, BLOCK, i * BLOCK);
	prepare(&half, SPW_WRITE, 1, memory, 8u << 20, 0);
	assert_int_equal(spw_queue_submit(queue), 0);
	assert_int_equal(spw_queue_cancel(queue, &ios[0].io), 0); /* issued */
	assert_int_equal(spw_queue_cancel(queue, &ios[3].io), 0); /* waiting, the last */
	assert_int_equal(spw_queue_cancel(queue, &ios[3].io), 0); /* ended, not yet told */
	assert_int_equal(spw_queue_cancel(queue, &half.io), 0);   /* issued in part */
	assert_int_equal(fake.cancels, 3);
	assert_int_equal(ios[3].done, 0);
	fake.hold = false;
	reap_until_empty();
	/* The backend could not stop what it had: it ended well. */
	assert_int_equal(ios[0].io.res, BLOCK);
	assert_int_equal(ios[1].io.res, BLOCK);
	assert_int_equal(ios[2].io.res, BLOCK);
	assert_int_equal(ios[3].io.res, -ECANCELED);
	assert_int_equal(half.io.res, -ECANCELED);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(ios[i].done, 1);
	assert_int_equal(half.done, 1);
	assert_int_equal(spw_queue_cancel(queue, &half.io), -ENOENT);
	/* Two parts of eight had been issued. */
	assert_int_equal(fake.history_count, 2 + 2 + 1);
}

QUEUE_TEST(test_a_cancelled_io_is_not_tried_again)
{
	struct counted one;

	open_queue(2, NULL);
	fake.hold = true;
	prepare(&one, SPW_READ, 0, memory, BLOCK, 0);
	assert_int_equal(spw_queue_submit(queue), 0);
	assert_int_equal(spw_queue_cancel(queue, &one.io), 0);
	fake.hold = false;
	answer(-EINTR, 1);
	assert_int_equal(spw_queue_reap(queue, 1, -1), 1);
	assert_int_equal(one.io.res, -ECANCELED);
}

QUEUE_TEST(test_an_io_cancelled_before_it_is_tried_again)
{
	struct counted one;

	open_queue(2, NULL);
	answer(-EINTR, 1);
	prepare(&one, SPW_READ, 0, memory, BLOCK, 0);
	assert_int_equal(spw_queue_submit(queue), 0);
	assert_int_equal(spw_queue_reap(queue, 0, 0), 0);
	assert_int_equal(spw_queue_cancel(queue, &one.io), 0);
	assert_int_equal(spw_queue_reap(queue, 1, -1), 1);
	assert_int_equal(one.io.res, -ECANCELED);
	assert_int_equal(fake.history_count, 1);
}

/* QUEUE-4 */
QUEUE_TEST(test_close_ends_everything)
{
	struct counted ios[40];

	open_queue(2, NULL);
	for (unsigned i = 0; i < 40; i++)
		prepare(&ios[i], SPW_READ, i % DRIVES, memory, (i % 5 + 1) * (400u << 10), 0);
	assert_int_equal(spw_queue_submit(queue), 0);
	spw_queue_close(queue);
	queue = NULL;
	for (unsigned i = 0; i < 40; i++) {
		assert_int_equal(ios[i].done, 1);
		assert_true(ios[i].io.res == -ECANCELED ||
			    ios[i].io.res == (int)ios[i].io.len_bytes);
	}
}

/* ---- Inside done ----------------------------------------------------------------------------- */

static unsigned chain, chain_max;

static void prepare_next(struct spw_io *io)
{
	assert_int_equal(io->res, (int)io->len_bytes);
	assert_int_equal(spw_queue_reap(queue, 0, 0), -EDEADLK);
	if (++chain == chain_max)
		return;
	assert_int_equal(spw_queue_prepare(queue, io), 0);
	if (chain % 2 || fake.ends_at_once)
		assert_int_equal(spw_queue_submit(queue), 0);
}

static void run_chain(struct spw_io io, unsigned len)
{
	open_queue(1, NULL);
	io.done = prepare_next;
	chain = 0;
	chain_max = len;
	assert_int_equal(spw_queue_prepare(queue, &io), 0);
	reap_until_empty();
	assert_int_equal(chain, len);
}

QUEUE_TEST(test_done_may_prepare_and_submit)
{
	run_chain((struct spw_io){.op = SPW_READ, .buf = memory, .len_bytes = BLOCK}, 100);
}

/* What ends while it is issued must not call done from there: the chain would eat the stack. */
QUEUE_TEST(test_ending_at_once_does_not_nest)
{
	fake.ends_at_once = true;
	run_chain((struct spw_io){.op = SPW_FLUSH}, 1000000);
}

QUEUE_TEST(test_discard_without_support)
{
	struct counted one;

	open_queue(1, NULL);
	prepare(&one, SPW_DISCARD, 0, NULL, BLOCK, 0);
	assert_int_equal(spw_queue_submit(queue), 0);
	assert_int_equal(one.done, 0);
	assert_int_equal(spw_queue_reap(queue, 1, -1), 1);
	assert_int_equal(one.io.res, -EOPNOTSUPP);
}

/* ---- Choosing -------------------------------------------------------------------------------- */

/* As one that has settled for interrupts before. */
static int refuse_to_open(struct spw_queue *q)
{
	q->wait_mode = SPW_WAIT_INTERRUPT;
	return spw_error(-EPERM, "first refused: Operation not permitted");
}

static void collect(void *context, enum spw_log_level level, const char *message)
{
	if (level == SPW_LOG_WARNING)
		(void)snprintf(context, 128, "%s", message);
}

QUEUE_TEST(test_fallback_in_order_with_the_reason)
{
	struct spw_backend_ops first = fake_ops;
	const struct spw_backend_ops *const both[] = {&first, &fake_ops};
	struct spw_device *one_device[] = {&devices[0]};
	struct spw_queue_opts opts;
	char warning[128] = "";

	first.name = "first";
	first.open = refuse_to_open;
	spw_queue_opts_init(&opts, sizeof(opts));
	opts.log = (struct spw_log){collect, warning};
	opts.wait = SPW_WAIT_POLL;
	assert_int_equal(spw_engine__queue_open_with(one_device, 1, &opts, both, 2, &queue), 0);
	assert_string_equal(warning, "first refused: Operation not permitted; using fake");
	assert_string_equal(spw_queue_description(queue),
			    "fake:; first refused: Operation not permitted");
	/* What the first made do with does not bind the next. */
	assert_int_equal(queue->wait_mode, SPW_WAIT_POLL);
	spw_queue_close(queue);
	fake.open_result = -ENOMEM;
	assert_int_equal(spw_engine__queue_open_with(one_device, 1, &opts, both, 2, &queue),
			 -ENOMEM);
	assert_null(queue);
	assert_int_equal(spw_engine__queue_open_with(one_device, 0, &opts, both, 2, &queue),
			 -EINVAL);
	opts.depth = 0;
	assert_int_equal(spw_engine__queue_open_with(one_device, 1, &opts, both, 2, &queue),
			 -EINVAL);
	opts.depth = SPW_QUEUE_DEPTH_MAX + 1;
	assert_int_equal(spw_engine__queue_open_with(one_device, 1, &opts, both, 2, &queue),
			 -EINVAL);
}

int main(void)
{
	seed = random_seed();
	return cmocka_run_group_tests(test_cases, NULL, NULL);
}
