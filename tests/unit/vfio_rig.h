/* SPDX-License-Identifier: MIT */
/* tests/unit/vfio_rig.h - a device, an arena and a queue over the controller of vfio_fake.h */
#ifndef SPW_TESTS_VFIO_RIG_H
#define SPW_TESTS_VFIO_RIG_H

#include "engine/vfio/namespace.h"
#include "tests/unit/vfio_fake.h"

#include <spillway/engine.h>

#include "engine/arena.h"
#include "engine/device.h"

#define PATH         "pci:" FAKE_ADDRESS "/1"
#define ARENA_BYTES  (4u << 20)
#define COMMAND_MAX  (4096u << FAKE_MDTS)
#define FOREIGN_SIZE (2u << 20)
#define PATIENCE_NS  20000000000

static struct spw_device *device;
static struct spw_arena *arena;
static struct spw_queue *queue;
static char *memory, *foreign;
static char said[8192];
static unsigned ended, failed;

static inline void collect(void *context, enum spw_log_level level, const char *message)
{
	size_t used = strlen(said);

	(void)context;
	(void)level;
	(void)snprintf(said + used, sizeof(said) - used, "%s\n", message);
}

static inline void done(struct spw_io *io)
{
	ended++;
	failed += io->res < 0;
	*(int32_t *)io->context = io->res;
}

static int32_t results[2048];

static struct spw_io ios[2048];

static inline struct spw_io *make_io(unsigned i, enum spw_op op, char *buf, uint32_t len,
				     uint64_t offset)
{
	results[i] = INT32_MAX;
	ios[i] = (struct spw_io){.op = op,
				 .buf = buf,
				 .len_bytes = len,
				 .offset_bytes = offset,
				 .done = done,
				 .context = &results[i]};
	return &ios[i];
}

/* Prepared for the queue, as number @i. */
static inline void start(unsigned i, enum spw_op op, char *buf, uint32_t len, uint64_t offset)
{
	assert_int_equal(spw_queue_prepare(queue, make_io(i, op, buf, len, offset)), 0);
}

static inline void reap_until(unsigned count)
{
	while (ended < count)
		assert_true(spw_queue_reap(queue, 1, -1) >= 0);
}

/* @io is the first, for the queue's device of this place. */
static inline int32_t run_io(struct spw_io *io, unsigned place)
{
	io->device = place;
	assert_int_equal(spw_queue_prepare(queue, io), 0);
	while (results[0] == INT32_MAX)
		assert_true(spw_queue_reap(queue, 1, -1) >= 0);
	return results[0];
}

static inline int32_t run(enum spw_op op, char *buf, uint32_t len, uint64_t offset)
{
	return run_io(make_io(0, op, buf, len, offset), 0);
}

/* The same bytes are there and on the drive then. */
static inline void transfer(enum spw_op op, char *buf, uint32_t len, uint64_t offset)
{
	assert_int_equal(run(op, buf, len, offset), len);
	assert_memory_equal(fake.drives[0] + offset, buf, len);
}

static inline struct spw_queue_stats queue_stats(void)
{
	struct spw_queue_stats stats;

	spw_queue_stats(queue, &stats, sizeof(stats));
	return stats;
}

static inline void open_device(void)
{
	struct spw_device_opts opts;

	spw_device_opts_init(&opts, sizeof(opts));
	opts.log.write = collect;
	if (spw_device_open(PATH, &opts, &device))
		fail_msg("%s", spw_last_error());
}

static inline void close_device(void)
{
	spw_device_close(device);
	device = NULL;
	assert_true(fake.closed);
}

static inline void reopen_device(void)
{
	close_device();
	open_device();
}

static inline struct spw_device *open_file(void)
{
	const char *base = getenv("TMPDIR");
	struct spw_device *file;
	char path[256];
	int fd;

	(void)snprintf(path, sizeof(path), "%s/spillway-vfio.XXXXXX", base ? base : "/var/tmp");
	fd = mkstemp(path);
	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, 4 << 20), 0);
	assert_int_equal(close(fd), 0);
	assert_int_equal(spw_device_open(path, NULL, &file), 0);
	assert_int_equal(unlink(path), 0);
	return file;
}

static inline void open_queue_over(struct spw_device *const devices[], unsigned count,
				   uint32_t depth, uint32_t timeout_ms)
{
	struct spw_queue_opts opts;

	spw_queue_opts_init(&opts, sizeof(opts));
	opts.depth = depth;
	opts.arena = arena;
	opts.log.write = collect;
	opts.wait = SPW_WAIT_POLL;
	opts.timeout_ms = timeout_ms;
	if (spw_queue_open(devices, count, &opts, &queue))
		fail_msg("%s", spw_last_error());
	assert_int_equal(spw_queue_backend(queue), SPW_BACKEND_VFIO);
}

/* @timeout_ms 0: the controller's. */
static inline void open_queue_of(uint32_t depth, uint32_t timeout_ms)
{
	open_queue_over(&device, 1, depth, timeout_ms);
}

static inline void close_queue(void)
{
	spw_queue_close(queue);
	queue = NULL;
}

static inline void begin_with(unsigned block_shift, uint32_t sgls)
{
	struct spw_arena_opts opts;
	void *at;

	fake_begin(block_shift);
	fake.sgls = sgls;
	fake.link.timeout_ms = 200;
	said[0] = '\0';
	ended = failed = 0;
	spw_arena_opts_init(&opts, sizeof(opts));
	opts.bytes = ARENA_BYTES;
	opts.no_hugetlb = true;
	assert_int_equal(spw_arena_open(&opts, &arena), 0);
	assert_int_equal(spw_arena_alloc(arena, ARENA_BYTES, &at), 0);
	memory = at;
	foreign = calloc(1, FOREIGN_SIZE + 64);
	assert_non_null(foreign);
	open_device();
}

#define BEGIN(name, block_shift, sgls)         \
	static inline int name(void **state)   \
	{                                      \
		(void)state;                   \
		begin_with(block_shift, sgls); \
		return 0;                      \
	}
BEGIN(begin, 9, 0)
BEGIN(begin_4k, 12, 0)
BEGIN(begin_sgl, 9, 1)
BEGIN(begin_sgl_4k, 12, 2)

static inline int end(void **state)
{
	(void)state;
	close_queue();
	close_device();
	spw_arena_close(arena);
	free(foreign);
	assert_int_equal(fake_mapped(), 0);
	assert_int_equal(fake.faults, 0);
	fake_end();
	return 0;
}

static inline void expect_in(const char *words, const char *text)
{
	if (!strstr(text, words))
		fail_msg("not said: %s; but: %s", words, text);
}

static inline void expect_said(const char *words)
{
	expect_in(words, said);
}

#define TEST(name) CASE_WITH(name, begin, end)
/* Also with blocks of 4096 bytes. */
#define TEST_BLOCKS(name)               \
	CASE_ENTRY(name, begin_4k, end) \
	TEST(name)
/* With a controller that takes scatter gather lists. */
#define TEST_SGL(name) CASE_WITH(name, begin_sgl, end)
/* All of that. */
#define TEST_EACH(name)                     \
	CASE_ENTRY(name, begin_sgl_4k, end) \
	CASE_ENTRY(name, begin_sgl, end)    \
	TEST_BLOCKS(name)

#endif
