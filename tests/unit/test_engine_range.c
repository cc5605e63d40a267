/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_engine_range.c - memory of others registered with a real ring, over a file, and
 * each way in which that is refused
 *
 * The backend's source is included with the calls that the kernel may refuse replaced.
 */
#include <errno.h>
#include <liburing.h>
#include <sys/mman.h>

#include "engine/register.h"
#include "tests/unit/engine_file.h"
#include "tests/unit/resident.h"

static int buffers_error, update_error, update_limit;
static unsigned registrations, forgotten;
static size_t pin_max, pinned; /* what the system pins; 0: all */
static bool limit_is_said;     /* a process may ask for pin_max */

static bool pins(const struct iovec *iovecs, unsigned count)
{
	size_t more = 0;

	for (unsigned i = 0; i < count; i++)
		more += iovecs[i].iov_len;
	if (pin_max > 0 && pinned + more > pin_max)
		return false;
	pinned += more;
	return true;
}

static int stub_register_buffers(struct io_uring *ring, const struct iovec *iovecs, unsigned count)
{
	registrations++;
	if (buffers_error && registrations == 1)
		return buffers_error;
	if (!pins(iovecs, count))
		return -ENOMEM;
	return io_uring_register_buffers(ring, iovecs, count);
}

static int stub_update(struct io_uring *ring, unsigned first, const struct iovec *iovecs,
		       const __u64 *tags, unsigned count)
{
	if (update_error && iovecs->iov_base)
		return update_error;
	if (!pins(iovecs, count))
		return -ENOMEM;
	if (update_limit && count > (unsigned)update_limit)
		count = (unsigned)update_limit;
	forgotten += iovecs->iov_base == NULL;
	return io_uring_register_buffers_update_tag(ring, first, iovecs, tags, count);
}

static uint64_t stub_memlock_bytes(void)
{
	return limit_is_said ? pin_max : UINT64_MAX;
}

#define spw_memlock_bytes                    stub_memlock_bytes
#define io_uring_register_buffers            stub_register_buffers
#define io_uring_register_buffers_update_tag stub_update
#include "engine/backend_io_uring.c"

#define LEN (1u << 20)

static char *foreign; /* LEN bytes, at a page */
static unsigned ended;

static int open_ring(void **state)
{
	(void)state;
	buffers_error = update_error = update_limit = 0;
	registrations = forgotten = ended = 0;
	pin_max = pinned = 0;
	limit_is_said = false;
	foreign = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(foreign, MAP_FAILED);
	return open_drive_queue(SPW_BACKEND_IO_URING, SPW_WAIT_INTERRUPT);
}

static int close_ring(void **state)
{
	(void)state;
	spw_queue_close(drive_queue);
	drive_queue = NULL;
	return munmap(foreign, LEN);
}

#define RANGE_CASE(name) CASE_WITH(name, open_ring, close_ring)

static struct spw_queue_stats queue_stats(void)
{
	struct spw_queue_stats stats;

	spw_queue_stats(drive_queue, &stats, sizeof(stats));
	return stats;
}

static struct spw_io an_io(enum spw_op op, void *buf, uint32_t len)
{
	return (struct spw_io){
		.op = op, .buf = buf, .len_bytes = len, .done = count_done, .context = &ended};
}

static void run_io(enum spw_op op, void *buf, uint32_t len)
{
	struct spw_io io = an_io(op, buf, len);
	unsigned before = ended;

	assert_ok(spw_queue_prepare(drive_queue, &io));
	while (ended == before)
		assert_true(spw_queue_reap(drive_queue, 1, -1) >= 0);
	assert_int_equal(io.res, (int)len);
}

/* Written from registered memory, read back into it: whole, in parts, and at its very end. */
static void expect_fixed(char *at, uint32_t len, bool fixed)
{
	uint64_t before = queue_stats().parts_fixed, parts = queue_stats().parts;

	for (uint32_t i = 0; i < len; i++)
		at[i] = (char)(i * 7 + len);
	run_io(SPW_WRITE, at, len);
	memset(at, 0, len);
	run_io(SPW_READ, at, len);
	for (uint32_t i = 0; i < len; i++)
		assert_true(at[i] == (char)(i * 7 + len));
	assert_int_equal(queue_stats().parts_fixed - before,
			 fixed ? queue_stats().parts - parts : 0);
}

RANGE_CASE(test_registered_and_unregistered)
{
	expect_fixed(foreign, 65536, false);
	assert_int_equal(spw_engine__queue_register(drive_queue, foreign, LEN), 1);
	assert_int_equal(spw_engine__queue_ranges_bytes(drive_queue), LEN);
	expect_fixed(foreign, 65536, true);
	expect_fixed(foreign, LEN, true);
	expect_fixed(foreign + LEN - 4096, 4096, true);
	assert_true(spw_engine__queue_knows(drive_queue, foreign + LEN - 1, 1));
	assert_false(spw_engine__queue_knows(drive_queue, foreign + LEN - 1, 2));
	assert_ok(spw_engine__queue_unregister(drive_queue, foreign));
	assert_int_equal(spw_engine__queue_ranges_bytes(drive_queue), 0);
	expect_fixed(foreign, 65536, false);
	assert_int_equal(spw_engine__queue_unregister(drive_queue, foreign), -ENOENT);
	/* The arena's is registered as before. */
	expect_fixed(drive_memory, 65536, true);
}

/* A part of the range only, at odd addresses: what lies across its ends is not taken for it. */
RANGE_CASE(test_ends_of_a_range)
{
	assert_int_equal(spw_engine__queue_register(drive_queue, foreign + 4097, 3 * 4096), 1);
	expect_fixed(foreign + 8192, 4096, true);
	expect_fixed(foreign + 4096, 4096, false);
	expect_fixed(foreign + 12288, 8192, false);
	expect_fixed(foreign, 65536, false);
}

/* RANGE-1 */
RANGE_CASE(test_many_ranges)
{
	for (unsigned i = 0; i < SPW_RANGES_MAX; i++)
		assert_int_equal(spw_engine__queue_register(drive_queue, foreign + i * 8192, 4096),
				 1);
	assert_int_equal(
		spw_engine__queue_register(drive_queue, foreign + SPW_RANGES_MAX * 8192ul, 4096),
		-ENOBUFS);
	for (unsigned i = 0; i < SPW_RANGES_MAX; i++)
		expect_fixed(foreign + i * 8192, 4096, true);
	for (unsigned i = 0; i < SPW_RANGES_MAX; i += 2)
		assert_ok(spw_engine__queue_unregister(drive_queue, foreign + i * 8192));
	for (unsigned i = 0; i < SPW_RANGES_MAX; i++)
		expect_fixed(foreign + i * 8192, 4096, i % 2 != 0);
	/* Their places are taken again. */
	for (unsigned i = 0; i < SPW_RANGES_MAX; i += 2)
		assert_int_equal(spw_engine__queue_register(drive_queue, foreign + i * 8192, 4096),
				 1);
	for (unsigned i = 0; i < SPW_RANGES_MAX; i++)
		expect_fixed(foreign + i * 8192, 4096, true);
}

RANGE_CASE(test_what_cannot_be_registered)
{
	size_t arena_len;
	char *arena = spw_arena_memory(drive_arena, &arena_len);

	assert_int_equal(spw_engine__queue_register(drive_queue, NULL, 4096), -EINVAL);
	assert_int_equal(spw_engine__queue_register(drive_queue, foreign, 0), -EINVAL);
	assert_int_equal(spw_engine__queue_register(drive_queue, foreign, SIZE_MAX), -EINVAL);
	assert_int_equal(spw_engine__queue_register(drive_queue, arena + 4096, 4096), -EEXIST);
	assert_int_equal(spw_engine__queue_register(drive_queue, arena + arena_len - 1, 2),
			 -EEXIST);
	assert_int_equal(spw_engine__queue_register(drive_queue, foreign + 8192, 8192), 1);
	assert_int_equal(spw_engine__queue_register(drive_queue, foreign, 8193), -EEXIST);
	assert_int_equal(spw_engine__queue_register(drive_queue, foreign + 16383, 1), -EEXIST);
	assert_int_equal(spw_engine__queue_register(drive_queue, foreign + 16384, 1), 1);
	assert_int_equal(spw_engine__queue_unregister(drive_queue, foreign + 8193), -ENOENT);
}

/* RANGE-2: prepared, whole or in parts of a vector, it is in use until it has ended. */
RANGE_CASE(test_in_use)
{
	struct iovec vector[2] = {{drive_memory, 4096}, {foreign + 4096, 4096}};
	struct spw_io io = an_io(SPW_WRITE, foreign, 4096);

	assert_int_equal(spw_engine__queue_register(drive_queue, foreign, LEN), 1);
	for (unsigned round = 0; round < 3; round++) {
		assert_ok(spw_queue_prepare(drive_queue, &io));
		assert_ok(spw_queue_submit(drive_queue));
		/* Only a reap ends it. */
		expect_refusal(-EBUSY, drive_path,
			       spw_engine__queue_unregister(drive_queue, foreign));
		while (ended <= round)
			assert_true(spw_queue_reap(drive_queue, 1, -1) >= 0);
		io = an_io(SPW_WRITE, round == 0 ? NULL : foreign, round == 0 ? 8192 : LEN);
		io.iov = round == 0 ? vector : NULL;
		io.iov_count = round == 0 ? 2 : 0;
	}
	assert_ok(spw_engine__queue_unregister(drive_queue, foreign));
}

RANGE_CASE(test_no_locked_memory)
{
	update_error = -ENOMEM;
	assert_int_equal(spw_engine__queue_register(drive_queue, foreign, LEN), 0);
	assert_logged("1 MiB of a caller's memory are not registered: io_uring");
	assert_logged("ulimit -l");
	assert_int_equal(spw_engine__queue_ranges_bytes(drive_queue), 0);
	expect_fixed(foreign, 65536, false);
	/* It is known all the same. */
	assert_int_equal(spw_engine__queue_register(drive_queue, foreign, 4096), -EEXIST);
	assert_ok(spw_engine__queue_unregister(drive_queue, foreign));
	update_error = 0;
	assert_int_equal(spw_engine__queue_register(drive_queue, foreign, LEN), 1);
}

/* As much of the arena as the system pins; transfers beyond it go as from any memory. */
RANGE_CASE(test_arena_pinned_in_part)
{
	struct spw_queue_stats stats;
	struct spw_io io = {
		.op = SPW_READ, .len_bytes = 65536, .done = count_done, .context = &ended};
	size_t len;
	char *arena = spw_arena_memory(drive_arena, &len);

	spw_queue_close(drive_queue);
	pinned = 0;
	pin_max = 20u << 20;
	limit_is_said = true;
	assert_int_equal(open_drive_queue(SPW_BACKEND_IO_URING, SPW_WAIT_INTERRUPT), 0);
	assert_logged("only the first 16 of 34 MiB of memory are registered");
	assert_logged("ulimit -l");
	assert_int_equal(drive_queue->registered_bytes, 16u << 20);
	/* Within; across the end, and beyond. */
	for (unsigned i = 0; i < 3; i++) {
		io.buf = arena + (16u << 20) - 65536 + i * 32768;
		assert_int_equal(spw_queue_prepare(drive_queue, &io), 0);
		assert_int_equal(spw_queue_reap(drive_queue, 1, -1), 1);
		assert_int_equal(io.res, 65536);
		spw_queue_stats(drive_queue, &stats, sizeof(stats));
		assert_int_equal(stats.parts_fixed, 1);
	}
	/* Nothing at all is pinned: as before, in words. */
	spw_queue_close(drive_queue);
	pinned = 0;
	pin_max = 1;
	assert_int_equal(open_drive_queue(SPW_BACKEND_IO_URING, SPW_WAIT_INTERRUPT), 0);
	assert_logged("memory cannot be registered");
	assert_int_equal(drive_queue->registered_bytes, 0);
}

/* A transfer of two parts of registered memory is in flight while the registration grows. */
RANGE_CASE(test_arena_is_registered_as_it_is_used)
{
	size_t len;
	char *arena = spw_arena_memory(drive_arena, &len);
	struct spw_io early = an_io(SPW_WRITE, arena, 65536);
	struct spw_io across = an_io(SPW_READ, arena + (8u << 20) - 4096, 65536);

	assert_int_equal(drive_queue->registered_bytes, 8u << 20);
	assert_in_range(resident_bytes(arena, len), 8u << 20, len - (8u << 20));
	expect_fixed(arena + (8u << 20) - 65536, 65536, true);
	assert_int_equal(drive_queue->registered_bytes, 8u << 20);
	/* Across its end: a quarter more. */
	assert_ok(spw_queue_prepare(drive_queue, &early));
	assert_ok(spw_queue_prepare(drive_queue, &across));
	assert_int_equal(drive_queue->registered_bytes, 10u << 20);
	for (ended = 0; ended < 2;)
		assert_true(spw_queue_reap(drive_queue, 1, -1) >= 0);
	assert_int_equal(early.res, 65536);
	assert_int_equal(across.res, 65536);
	expect_fixed(arena + (8u << 20) - 4096, 65536, true);
	assert_int_equal(drive_queue->registered_bytes, 10u << 20);
	/* Far beyond: as much as it takes; then all that there is, and no more. */
	expect_fixed(arena + (32u << 20), 65536, true);
	expect_fixed(arena + len - 65536, 65536, true);
	assert_int_equal(drive_queue->registered_bytes, len);
	expect_fixed(arena, 65536, true);
	run_io(SPW_READ, foreign, 65536);
	assert_int_equal(drive_queue->registered_bytes, len);
	assert_int_equal(registrations, 1);
}

static void expect_registered_anew(void)
{
	void *low, *high;
	size_t len;
	char *arena = spw_arena_memory(drive_arena, &len);
	struct spw_io early;

	assert_ok(spw_arena_alloc(drive_arena, LEN, &low));
	assert_ok(spw_arena_alloc(drive_arena, 20 * LEN, &high));
	expect_fixed((char *)high + 19 * LEN, 65536, true);
	assert_int_equal(drive_queue->registered_bytes, 22u << 20);
	spw_arena_free(drive_arena, high);
	early = an_io(SPW_WRITE, low, 65536);
	assert_ok(spw_queue_prepare(drive_queue, &early));
	(void)spw_engine__queue_give_back(drive_queue);
	for (ended = 0; ended < 1;)
		assert_true(spw_queue_reap(drive_queue, 1, -1) >= 0);
	assert_int_equal(early.res, 65536);
	assert_int_equal(drive_queue->registered_bytes, 8u << 20);
	assert_int_equal(resident_bytes(arena + (8u << 20), len - (8u << 20)), 0);
	expect_fixed(low, 65536, true);
	/* In the same place, with other pages. */
	assert_ok(spw_arena_alloc(drive_arena, 20 * LEN, &high));
	expect_fixed((char *)high + 19 * LEN, 65536, true);
	expect_fixed((char *)high + 7 * LEN - 4096, 65536, true);
	assert_int_equal(drive_queue->registered_bytes, 22u << 20);
	spw_arena_free(drive_arena, high);
	spw_arena_free(drive_arena, low);
}

/* The drives must not know the pages that are gone: what is allocated there again has others. */
RANGE_CASE(test_memory_that_was_given_back_is_registered_anew)
{
	expect_registered_anew();
}

/* As that of NVMe passthrough, whose pieces are smaller. */
static int grow_and_prepare(struct spw_queue *queue, struct spw_io *io)
{
	(void)spw_engine__uring_grow(queue, queue->state, io);
	return spw_engine__queue_prepare_any(queue, io);
}

/* The same where the arena is many pieces. */
RANGE_CASE(test_pieces_that_were_given_back_are_registered_anew)
{
	struct spw_uring *u = drive_queue->state;

	assert_ok(io_uring_unregister_buffers(&u->ring));
	drive_queue->piece_shift = 20;
	drive_queue->prepare = grow_and_prepare;
	register_memory(drive_queue, u, 1024);
	forgotten = 0;
	expect_registered_anew();
	assert_int_equal(forgotten, 14); /* of 22 pieces */
}

/* Growing pins twice for a moment, which a limit might not allow: all is registered at once. */
static void open_below_twice_the_arena(void)
{
	spw_queue_close(drive_queue);
	pinned = 0;
	pin_max = 40u << 20;
	limit_is_said = true;
	assert_ok(open_drive_queue(SPW_BACKEND_IO_URING, SPW_WAIT_INTERRUPT));
	assert_int_equal(drive_queue->registered_bytes, drive_arena->len_bytes);
}

/* What the kernel does not let go of stays, with its pages. */
RANGE_CASE(test_memory_that_stays_registered_is_not_given_back)
{
	void *high;

	(void)spw_engine__queue_give_back(drive_queue); /* of earlier cases */
	assert_ok(spw_arena_alloc(drive_arena, 20 * LEN - 65536, &high));
	expect_fixed((char *)high + 19 * LEN, 65536, true);
	spw_arena_free(drive_arena, high);
	update_error = -ENOMEM;
	assert_int_equal(spw_engine__queue_give_back(drive_queue), 0);
	assert_int_equal(drive_queue->registered_bytes, 20u << 20);
	update_error = 0;
	expect_fixed((char *)high + 19 * LEN, 65536, true);
	/* Nor what was registered at once. */
	open_below_twice_the_arena();
	assert_int_equal(spw_engine__queue_give_back(drive_queue), 0);
	assert_int_equal(drive_queue->registered_bytes, drive_arena->len_bytes);
}

/* Memory that ends where the arena begins, and memory that reaches into it. */
RANGE_CASE(test_memory_just_below_the_arena)
{
	uintptr_t base = drive_queue->arena_base;
	struct spw_io io = an_io(SPW_WRITE, foreign, 65536);
	struct spw_queue_device *dev;
	uint64_t piece;

	for (uintptr_t reach = 0; reach <= 4096; reach += 4096) {
		drive_queue->arena_base = (uintptr_t)foreign + 65536 - reach;
		assert_null(
			spw_engine__whole_slot(drive_queue, &io, SPW_PIECE_SHIFT, &dev, &piece));
		assert_int_equal(spw_engine__queue_piece(drive_queue, foreign, 65536), -1);
	}
	drive_queue->arena_base = (uintptr_t)foreign;
	assert_non_null(spw_engine__whole_slot(drive_queue, &io, SPW_PIECE_SHIFT, &dev, &piece));
	drive_queue->arena_base = base;
}

/* What the system refuses then is pinned by each transfer, which is said once. */
RANGE_CASE(test_growth_that_is_refused)
{
	size_t len;
	char *arena = spw_arena_memory(drive_arena, &len);

	pin_max = 16u << 20;
	expect_fixed(arena + (8u << 20), 65536, false);
	assert_logged("only the first 8 of 34 MiB of memory are registered");
	assert_logged("ulimit -l");
	pin_max = 0;
	drive_log[0] = '\0';
	expect_fixed(arena + (8u << 20), 65536, false);
	expect_fixed(arena, 65536, true);
	assert_string_equal(drive_log, "");
}

/* Some of the pieces are registered, and a call that takes some does not say why it stopped. */
RANGE_CASE(test_growth_in_part)
{
	size_t len;
	char *arena = spw_arena_memory(drive_arena, &len);
	struct spw_io io = an_io(SPW_READ, arena + (8u << 20), 65536);
	char range[64];

	drive_queue->piece_shift = 20;
	update_limit = 1;
	pinned = 0;
	pin_max = 2u << 20;
	assert_true(spw_engine__uring_grow(drive_queue, drive_queue->state, &io));
	assert_int_equal(drive_queue->registered_bytes, 9u << 20);
	assert_logged("only the first 9 of 34 MiB of memory are registered");
	(void)snprintf(range, sizeof(range), "1024 KiB from %p on: Cannot allocate memory",
		       (void *)(arena + (9u << 20)));
	assert_logged(range);
}

RANGE_CASE(test_a_limit_below_twice_the_arena)
{
	open_below_twice_the_arena();
}

/* The kernel takes one of two pieces: neither stays. */
RANGE_CASE(test_half_registered)
{
	drive_queue->piece_shift = 16;
	update_limit = 1;
	assert_int_equal(spw_engine__queue_register(drive_queue, foreign, 2 * 65536), 0);
	assert_int_equal(forgotten, 1);
	assert_ok(spw_engine__queue_unregister(drive_queue, foreign));
	update_limit = 0;
	assert_int_equal(spw_engine__queue_register(drive_queue, foreign, 2 * 65536), 1);
	expect_fixed(foreign + 65536, 65536, true);
	assert_ok(spw_engine__queue_unregister(drive_queue, foreign));
	assert_int_equal(forgotten, 3);
}

/* Before Linux 5.13: no empty places. */
RANGE_CASE(test_a_kernel_without_empty_places)
{
	spw_queue_close(drive_queue);
	buffers_error = -EFAULT;
	registrations = 0;
	assert_ok(open_drive_queue(SPW_BACKEND_IO_URING, SPW_WAIT_INTERRUPT));
	assert_int_equal(registrations, 2);
	expect_fixed(drive_memory, 65536, true);
	assert_int_equal(spw_engine__queue_register(drive_queue, foreign, LEN), 0);
	assert_logged("the ring knows no memory");
	expect_fixed(foreign, 65536, false);
	assert_ok(spw_engine__queue_unregister(drive_queue, foreign));
}

RANGE_CASE(test_libaio_registers_nothing)
{
	spw_queue_close(drive_queue);
	assert_ok(open_drive_queue(SPW_BACKEND_LIBAIO, SPW_WAIT_INTERRUPT));
	assert_int_equal(spw_engine__queue_register(drive_queue, foreign, LEN), 0);
	assert_logged("libaio registers no memory");
	expect_fixed(foreign, 65536, false);
	assert_ok(spw_engine__queue_unregister(drive_queue, foreign));
}

RUN_CASES(make_drive, remove_drive)
