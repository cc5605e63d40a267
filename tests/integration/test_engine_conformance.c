/* SPDX-License-Identifier: MIT */
/*
 * tests/integration/test_engine_conformance.c - what a queue promises, on real drives, for every
 * backend: every byte is compared
 */
/* layer: test and files-io_uring_off */
#include "tests/integration/engine_common.h"

#include <errno.h>
#include <pthread.h>

#include "util/util.h"

#define SPAN_BYTES  (40u << 20) /* of memory and of each drive that the large transfers use */
#define ARENA_BYTES (96u << 20)

static struct rig rig;
static char *arena_memory, *foreign, *wanted;

static uint64_t span_of(unsigned device)
{
	uint64_t size = spw_device_geometry(rig.devices[device])->size_bytes;

	return size < SPAN_BYTES ? size : SPAN_BYTES;
}

/* ---- One transfer at a time: every size around every limit, every kind of memory ------------- */

enum memory { IN_ARENA, IN_ARENA_SHIFTED, FOREIGN, FOREIGN_SHIFTED, MEMORY_KINDS };

static char *memory_of(enum memory kind, uint32_t shift)
{
	switch (kind) {
	case IN_ARENA: return arena_memory;
	case IN_ARENA_SHIFTED: return arena_memory + shift;
	case FOREIGN: return foreign;
	default: return foreign + shift;
	}
}

static void write_and_read(unsigned device, uint64_t len, uint64_t offset, enum memory from,
			   enum memory to)
{
	const struct spw_geometry *g = spw_device_geometry(rig.devices[device]);
	char *source = memory_of(from, g->memory_align_bytes),
	     *target = memory_of(to, g->memory_align_bytes);
	struct spw_io io = {.op = SPW_WRITE,
			    .device = device,
			    .buf = source,
			    .len_bytes = (uint32_t)len,
			    .offset_bytes = offset};
	char what[128];

	(void)snprintf(what, sizeof(what), "device %u, %llu bytes at %llu, memory %d to %d", device,
		       (unsigned long long)len, (unsigned long long)offset, from, to);
	rig_fill(wanted, len, rig_random());
	memcpy(source, wanted, len);
	assert_int_equal(rig_run(&rig, io), (int32_t)len);
	memset(target, 0x5a, len);
	io.op = SPW_READ;
	io.buf = target;
	assert_int_equal(rig_run(&rig, io), (int32_t)len);
	rig_assert_same(target, wanted, len, what);
}

static int open_at_depth_32(void **state)
{
	(void)state;
	rig_open_queue(&rig, 32);
	return 0;
}

static int close_queue(void **state)
{
	(void)state;
	if (rig.queue)
		rig_close_queue(&rig);
	return 0;
}

#define QUEUE_TEST(name) CASE_WITH(name, open_at_depth_32, close_queue)

QUEUE_TEST(test_sizes_around_every_limit)
{
	for (unsigned device = 0; device < rig.count; device++) {
		const struct spw_geometry *g = spw_device_geometry(rig.devices[device]);
		uint64_t block = g->logical_block_bytes, span = span_of(device) - 2 * block;
		uint64_t limits[] = {block,      4096,
				     65536,      504u << 10,
				     512u << 10, (1u << 20) - 4096,
				     1u << 20,   g->transfer_bytes_max,
				     2u << 20,   16u << 20,
				     32u << 20};

		write_and_read(device, block, g->size_bytes - block, IN_ARENA, FOREIGN);
		for (size_t i = 0; i < SPW_ARRAY_LEN(limits); i++) {
			for (int step = -1; step <= 1; step++) {
				uint64_t len = spw_round_up(limits[i], block) +
					       (uint64_t)(step * (int64_t)block);
				enum memory from = (enum memory)(rig_random() % MEMORY_KINDS);
				enum memory to = (enum memory)(rig_random() % MEMORY_KINDS);

				if (len == 0 || len > span)
					continue;
				write_and_read(device, len, block, from, to);
				if (len > 2u << 20)
					continue;
				for (int kind = 0; kind < MEMORY_KINDS; kind++)
					write_and_read(device, len, block, (enum memory)kind,
						       (enum memory)kind);
			}
		}
	}
}

/* ---- Vectors --------------------------------------------------------------------------------- */

static uint32_t cut_into_vector(char *memory, uint64_t len, uint32_t block, struct iovec *iov,
				uint32_t max)
{
	uint32_t count = 0;

	while (len > 0) {
		uint64_t piece = (1 + rig_random() % 32) * block;

		if (rig_random() % 16 == 0)
			piece = (1u << 20) + (rig_random() % 300) * block;
		if (piece > len || count + 1 == max)
			piece = len;
		iov[count++] = (struct iovec){.iov_base = memory, .iov_len = piece};
		memory += piece;
		len -= piece;
	}
	/* Shuffled, so that memory is not in the order of the drive. */
	for (uint32_t i = count; i > 1; i--) {
		uint32_t other = (uint32_t)(rig_random() % i);
		struct iovec swap = iov[i - 1];

		iov[i - 1] = iov[other];
		iov[other] = swap;
	}
	return count;
}

QUEUE_TEST(test_vectors)
{
	static struct iovec iov[2048];

	for (int round = 0; round < 24; round++) {
		unsigned device = (unsigned)round % rig.count;
		uint32_t block = spw_device_geometry(rig.devices[device])->logical_block_bytes;
		uint64_t len = (1 + rig_random() % (span_of(device) / 2 / block)) * block;
		char *memory = round & 1 ? foreign : arena_memory;
		struct spw_io io = {
			.op = SPW_WRITE, .device = device, .iov = iov, .len_bytes = (uint32_t)len};
		uint64_t at = 0;

		if (len > 20u << 20)
			len = io.len_bytes = 20u << 20;
		io.iov_count = cut_into_vector(memory, len, block, iov, SPW_ARRAY_LEN(iov));
		rig_fill(memory, len, rig_random());
		for (uint32_t i = 0; i < io.iov_count; at += iov[i++].iov_len)
			memcpy(wanted + at, iov[i].iov_base, iov[i].iov_len);
		assert_int_equal(rig_run(&rig, io), (int32_t)len);
		assert_int_equal(rig_run(&rig, (struct spw_io){.op = SPW_READ,
							       .device = device,
							       .buf = foreign + SPAN_BYTES,
							       .len_bytes = (uint32_t)len}),
				 (int32_t)len);
		rig_assert_same(foreign + SPAN_BYTES, wanted, len, "written from a vector");
		memset(memory, 0x33, len);
		io.op = SPW_READ;
		assert_int_equal(rig_run(&rig, io), (int32_t)len);
		for (uint32_t i = 0, done = 0; i < io.iov_count; done += (uint32_t)iov[i++].iov_len)
			rig_assert_same(iov[i].iov_base, wanted + done, iov[i].iov_len,
					"read into a vector");
	}
}

/* ---- Many at once on all drives, against a model in memory ----------------------------------- */

#define LANES      96u
#define LANE_BYTES (384u << 10)

/*
 * A lane is one range of one drive with one io at a time: ranges in flight never overlap, and the
 * model stays exact.
 */
struct lane {
	struct spw_io io;
	unsigned device;
	uint64_t offset_bytes;
	char *memory;
	char *model;
	unsigned rounds;
	bool flushing;
};

static struct lane lanes[LANES];
static unsigned lanes_busy;

static void lane_done(struct spw_io *io);

static void lane_next(struct lane *lane)
{
	uint32_t block = spw_device_geometry(rig.devices[lane->device])->logical_block_bytes;
	uint32_t blocks = LANE_BYTES / block;
	uint32_t first = (uint32_t)(rig_random() % blocks);
	uint32_t count = 1 + (uint32_t)(rig_random() % (blocks - first));
	bool is_write = rig_random() % 2;

	lane->io = (struct spw_io){
		.op = is_write ? SPW_WRITE : SPW_READ,
		.device = lane->device,
		.buf = lane->memory + (uint64_t)first * block,
		.len_bytes = count * block,
		.offset_bytes = lane->offset_bytes + (uint64_t)first * block,
		.done = lane_done,
		.context = lane,
	};
	if (rig_random() % 20 == 0)
		lane->io.op = SPW_FLUSH;
	else if (is_write)
		rig_fill(lane->io.buf, lane->io.len_bytes, rig_random());
	else
		memset(lane->io.buf, 0xee, lane->io.len_bytes);
	rig_assert_ok(spw_queue_prepare(rig.queue, &lane->io), "prepare");
}

static void lane_done(struct spw_io *io)
{
	struct lane *lane = io->context;
	uint64_t at = io->offset_bytes - lane->offset_bytes;

	if (io->op == SPW_FLUSH)
		assert_int_equal(io->res, 0);
	else
		assert_int_equal(io->res, (int32_t)io->len_bytes);
	if (io->op == SPW_WRITE)
		memcpy(lane->model + at, io->buf, io->len_bytes);
	else if (io->op == SPW_READ)
		rig_assert_same(io->buf, lane->model + at, io->len_bytes,
				"read while others write");
	if (--lane->rounds > 0)
		lane_next(lane);
	else
		lanes_busy--;
}

static void *wake_often(void *context)
{
	for (unsigned i = 0; i < 2000; i++)
		spw_queue_wake(context);
	return NULL;
}

static void run_lanes(uint32_t depth, unsigned rounds, bool is_woken)
{
	char *models = rig_foreign((size_t)LANES * LANE_BYTES);
	struct spw_queue_stats stats;
	pthread_t waker;

	rig_close_queue(&rig);
	rig_open_queue(&rig, depth);
	if (is_woken)
		assert_int_equal(pthread_create(&waker, NULL, wake_often, rig.queue), 0);
	lanes_busy = 0;
	for (unsigned i = 0; i < LANES; i++) {
		struct lane *lane = &lanes[i];

		lane->device = i % rig.count;
		lane->offset_bytes = (uint64_t)(i / rig.count) * LANE_BYTES;
		if (lane->offset_bytes + LANE_BYTES >
		    spw_device_geometry(rig.devices[lane->device])->size_bytes)
			continue;
		lane->memory = (i & 1 ? foreign : arena_memory) + (size_t)(i / 2) * LANE_BYTES;
		lane->model = models + (size_t)i * LANE_BYTES;
		rig_fill(lane->model, LANE_BYTES, i);
		memcpy(lane->memory, lane->model, LANE_BYTES);
		rig_assert_ok(spw_device_pwrite(rig.devices[lane->device], lane->memory, LANE_BYTES,
						lane->offset_bytes),
			      "pwrite");
		lane->rounds = rounds;
		lanes_busy++;
		lane_next(lane);
	}
	while (lanes_busy > 0)
		rig_assert_ok(spw_queue_reap(rig.queue, 1 + (unsigned)(rig_random() % 40), -1),
			      "reap");
	if (is_woken)
		assert_int_equal(pthread_join(waker, NULL), 0);
	spw_queue_stats(rig.queue, &stats, sizeof(stats));
	assert_int_equal(stats.errors, 0);
	assert_true(stats.ios >= (uint64_t)rounds);
	assert_true(stats.in_flight_max <= depth * rig.count);
	assert_true(stats.in_flight_max >= rig.count);
	assert_int_equal(munmap(models, (size_t)LANES * LANE_BYTES), 0);
}

QUEUE_TEST(test_many_at_depth_1)
{
	run_lanes(1, 8, false);
}

QUEUE_TEST(test_many_at_depth_32)
{
	run_lanes(32, 40, false);
}

/* ---- Flush, discard, refusals ---------------------------------------------------------------- */

QUEUE_TEST(test_discard_leaves_the_neighbours)
{
	for (unsigned device = 0; device < rig.count; device++) {
		const struct spw_geometry *g = spw_device_geometry(rig.devices[device]);
		struct spw_io io = {.op = SPW_WRITE,
				    .device = device,
				    .buf = arena_memory,
				    .len_bytes = 3u << 20};

		rig_fill(wanted, io.len_bytes, rig_random());
		memcpy(arena_memory, wanted, io.len_bytes);
		assert_int_equal(rig_run(&rig, io), (int32_t)io.len_bytes);
		assert_int_equal(rig_run(&rig, (struct spw_io){.op = SPW_DISCARD,
							       .device = device,
							       .len_bytes = 1u << 20,
							       .offset_bytes = 1u << 20}),
				 g->discards ? 1 << 20 : -EOPNOTSUPP);
		assert_int_equal(rig_run(&rig, (struct spw_io){.op = SPW_FLUSH, .device = device}),
				 0);
		io.op = SPW_READ;
		memset(arena_memory, 0, io.len_bytes);
		assert_int_equal(rig_run(&rig, io), (int32_t)io.len_bytes);
		rig_assert_same(arena_memory, wanted, 1u << 20, "before a discarded range");
		rig_assert_same(arena_memory + (2u << 20), wanted + (2u << 20), 1u << 20,
				"after a discarded range");
	}
}

static void assert_refused(struct spw_io io, const char *word)
{
	unsigned done = 0;

	io.done = rig_count_done;
	io.context = &done;
	expect_refusal(-EINVAL, word, spw_queue_prepare(rig.queue, &io));
	assert_int_equal(spw_queue_reap(rig.queue, 0, 0), 0);
	assert_int_equal(done, 0);
}

/* Of memory that a ring may know, and of the caller's own: each goes its own short way. */
QUEUE_TEST(test_refusals)
{
	for (unsigned i = 0; i < 2 * rig.count; i++) {
		const struct spw_geometry *g = spw_device_geometry(rig.devices[i / 2]);
		uint32_t block = g->logical_block_bytes;
		char *memory = i % 2 ? foreign : arena_memory;
		struct spw_io good = {.op = SPW_READ,
				      .device = i / 2,
				      .buf = memory,
				      .len_bytes = block,
				      .offset_bytes = g->size_bytes - block},
			      io;
		struct iovec iov[2] = {{memory, block}, {memory + block, block}};

		assert_refused((io = good, io.len_bytes = 0, io), "no bytes");
		assert_refused((io = good, io.len_bytes = block + 1, io), "length");
		assert_refused((io = good, io.len_bytes = 2 * block, io), "beyond");
		assert_refused((io = good, io.offset_bytes -= block / 2, io), "offset");
		assert_refused((io = good, io.offset_bytes += block, io), "beyond");
		/* the sum is 0 */
		assert_refused((io = good, io.offset_bytes = UINT64_MAX - block + 1, io), "beyond");
		assert_refused((io = good, io.device = rig.count, io), "device");
		assert_refused((io = good, io.device = UINT32_MAX, io), "device");
		assert_refused((io = good, io.op = (enum spw_op)9, io), "operation");
		if (g->memory_align_bytes > 1)
			assert_refused((io = good, io.buf = memory + 1, io), "aligned");
		io = good;
		io.buf = NULL;
		assert_refused(io, "vector");
		io.iov = iov;
		io.iov_count = 2;
		assert_refused((io.offset_bytes -= block, io), "vector");
		iov[1].iov_len = 1;
		assert_refused(io, "element 1");
		assert_int_equal(rig_run(&rig, good), (int32_t)block);
	}
}

/* ---- Wake, timeout, cancel, close ------------------------------------------------------------ */

static void *wake_it(void *context)
{
	spw_queue_wake(context);
	return NULL;
}

QUEUE_TEST(test_wake_ends_an_endless_wait)
{
	for (int round = 0; round < 50; round++) {
		pthread_t thread;

		assert_int_equal(pthread_create(&thread, NULL, wake_it, rig.queue), 0);
		assert_int_equal(spw_queue_reap(rig.queue, 1 + (unsigned)round % 8, -1), 0);
		assert_int_equal(pthread_join(thread, NULL), 0);
	}
}

/* URING-2, AIO-2 */
QUEUE_TEST(test_wakes_lose_no_io)
{
	for (unsigned i = 0; i < 5; i++)
		run_lanes(8, 8, true);
	/* A wake without a sleeper ends the next reap, and only that. */
	assert_int_equal(spw_queue_reap(rig.queue, 0, 0), 0);
	spw_queue_wake(rig.queue);
	assert_int_equal(spw_queue_reap(rig.queue, 1, -1), 0);
	assert_int_equal(spw_queue_reap(rig.queue, 1, 1000000), 0);
}

QUEUE_TEST(test_timeout)
{
	uint64_t start_ns = spw_clock_ns();

	assert_int_equal(spw_queue_reap(rig.queue, 1, 20000000), 0);
	assert_true(spw_clock_ns() - start_ns >= 20000000);
}

QUEUE_TEST(test_cancel_ends_each_io_once)
{
	enum { COUNT = 64 };
	static struct spw_io ios[COUNT];
	unsigned done[COUNT] = {0}, total = 0;

	for (unsigned i = 0; i < COUNT; i++) {
		ios[i] = (struct spw_io){
			.op = SPW_READ,
			.device = i % rig.count,
			.buf = foreign + (size_t)i * (256u << 10),
			.len_bytes = 256u << 10,
			.done = rig_count_done,
			.context = &done[i],
		};
		rig_assert_ok(spw_queue_prepare(rig.queue, &ios[i]), "prepare");
		if (i == COUNT / 2)
			rig_assert_ok(spw_queue_submit(rig.queue), "submit");
	}
	for (unsigned i = 0; i < COUNT; i += 1 + (unsigned)(rig_random() % 3)) {
		rig_assert_ok(spw_queue_cancel(rig.queue, &ios[i]), "cancel");
		assert_int_equal(done[i], 0);
	}
	while (total < COUNT) {
		int ret = spw_queue_reap(rig.queue, COUNT, -1);

		rig_assert_ok(ret, "reap");
		total += (unsigned)ret;
	}
	for (unsigned i = 0; i < COUNT; i++) {
		assert_int_equal(done[i], 1);
		assert_true(ios[i].res == -ECANCELED || ios[i].res == (int32_t)ios[i].len_bytes);
		assert_int_equal(spw_queue_cancel(rig.queue, &ios[i]), -ENOENT);
	}
}

QUEUE_TEST(test_close_with_ios_in_flight)
{
	enum { COUNT = 200 };
	static struct spw_io ios[COUNT];
	unsigned done[COUNT] = {0};

	for (unsigned i = 0; i < COUNT; i++) {
		ios[i] = (struct spw_io){
			.op = i % 2 ? SPW_READ : SPW_WRITE,
			.device = i % rig.count,
			.buf = (i % 3 ? foreign : arena_memory) + (size_t)i * (128u << 10),
			.len_bytes = 128u << 10,
			.offset_bytes = (uint64_t)(i / rig.count) * (128u << 10),
			.done = rig_count_done,
			.context = &done[i],
		};
		rig_assert_ok(spw_queue_prepare(rig.queue, &ios[i]), "prepare");
	}
	rig_assert_ok(spw_queue_submit(rig.queue), "submit");
	rig_close_queue(&rig);
	for (unsigned i = 0; i < COUNT; i++) {
		assert_int_equal(done[i], 1);
		assert_true(ios[i].res == -ECANCELED || ios[i].res == (int32_t)ios[i].len_bytes);
	}
}

/* ---- The way to wait that was asked for ------------------------------------------------------ */

QUEUE_TEST(test_waits_as_asked)
{
	static const char *const names[] = {
		[SPW_WAIT_INTERRUPT] = " interrupt",
		[SPW_WAIT_POLL] = " poll",
		[SPW_WAIT_SQPOLL] = " sqpoll",
	};

	/* libaio has one way, and must not claim another. */
	if (spw_queue_backend(rig.queue) == SPW_BACKEND_LIBAIO) {
		assert_null(strstr(spw_queue_description(rig.queue), names[SPW_WAIT_POLL]));
		assert_null(strstr(spw_queue_description(rig.queue), names[SPW_WAIT_SQPOLL]));
		return;
	}
	/* vfio polls, and says so. */
	if (spw_queue_backend(rig.queue) == SPW_BACKEND_VFIO)
		rig.wait = SPW_WAIT_POLL;
	if (!strstr(spw_queue_description(rig.queue), names[rig.wait]))
		fail_msg("not%s: %s", names[rig.wait], spw_queue_description(rig.queue));
}

/* ---- Opened by one thread, used by another --------------------------------------------------- */

static void *use_queue(void *context)
{
	(void)context;
	write_and_read(0, 3u << 20, 0, IN_ARENA, FOREIGN);
	return NULL;
}

QUEUE_TEST(test_used_by_another_thread_than_its_opener)
{
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, use_queue, NULL), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
}

int main(void)
{
	void *memory = NULL;
	int failed;

	rig_start_seed();
	if (!rig_open_devices(&rig))
		return 77;
	rig_open_arena(&rig, ARENA_BYTES);
	rig_assert_ok(spw_arena_alloc(rig.arena, SPAN_BYTES + (1u << 20), &memory), "arena memory");
	arena_memory = memory;
	foreign = rig_foreign(2 * SPAN_BYTES + (1u << 20));
	wanted = rig_foreign(SPAN_BYTES + (1u << 20));
	failed = cmocka_run_group_tests(test_cases, NULL, NULL);
	rig_close(&rig);
	assert_int_equal(munmap(foreign, 2 * SPAN_BYTES + (1u << 20)), 0);
	assert_int_equal(munmap(wanted, SPAN_BYTES + (1u << 20)), 0);
	return failed;
}
