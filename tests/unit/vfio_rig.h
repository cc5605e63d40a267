/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/vfio_rig.h - a device, an arena and a queue over the controller in memory of
 * vfio_fake.h
 */
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

/* On the queue's device of this place. */
static inline int32_t run_on(unsigned place, enum spw_op op, char *buf, uint32_t len,
			     uint64_t offset)
{
	struct spw_io *io = make_io(0, op, buf, len, offset);

	io->device = place;
	assert_int_equal(spw_queue_prepare(queue, io), 0);
	while (results[0] == INT32_MAX)
		assert_true(spw_queue_reap(queue, 1, -1) >= 0);
	return results[0];
}

static inline int32_t run(enum spw_op op, char *buf, uint32_t len, uint64_t offset)
{
	return run_on(0, op, buf, len, offset);
}

static inline void open_device(void)
{
	struct spw_device_opts opts;

	spw_device_opts_init(&opts, sizeof(opts));
	opts.log.write = collect;
	if (spw_device_open(PATH, &opts, &device))
		fail_msg("%s", spw_last_error());
}

static inline void open_queue_of(uint32_t depth, bool with_arena, uint32_t timeout_ms)
{
	struct spw_queue_opts opts;

	spw_queue_opts_init(&opts, sizeof(opts));
	opts.depth = depth;
	opts.arena = with_arena ? arena : NULL;
	opts.log.write = collect;
	opts.wait = SPW_WAIT_POLL;
	opts.timeout_ms = timeout_ms;
	opts.tune_path = "";
	if (spw_queue_open(&device, 1, &opts, &queue))
		fail_msg("%s", spw_last_error());
	assert_int_equal(spw_queue_backend(queue), SPW_BACKEND_VFIO);
}

static inline void begin_with(unsigned block_shift, uint32_t sgls)
{
	struct spw_arena_opts opts;
	void *at;

	fake_begin(block_shift);
	fake.sgls = sgls;
	spw_vfio_timeout_ms = 200;
	spw_vfio_idle_ms = 1000;
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

static inline int begin(void **state)
{
	(void)state;
	begin_with(9, 0);
	return 0;
}

static inline int begin_4k(void **state)
{
	(void)state;
	begin_with(12, 0);
	return 0;
}

static inline int begin_sgl(void **state)
{
	(void)state;
	begin_with(9, 1);
	return 0;
}

static inline int begin_sgl_4k(void **state)
{
	(void)state;
	begin_with(12, 2);
	return 0;
}

static inline int end(void **state)
{
	(void)state;
	spw_queue_close(queue);
	queue = NULL;
	spw_device_close(device);
	device = NULL;
	spw_arena_close(arena);
	free(foreign);
	assert_true(fake.closed);
	assert_int_equal(fake_mapped(), 0);
	assert_int_equal(fake.faults, 0);
	fake_end();
	return 0;
}

static inline void expect_said(const char *words)
{
	if (!strstr(said, words))
		fail_msg("not said: %s; but: %s", words, said);
}

static inline void expect_error(const char *words)
{
	if (!strstr(spw_last_error(), words))
		fail_msg("not said: %s; but: %s", words, spw_last_error());
}

#define TEST(function)    cmocka_unit_test_setup_teardown(function, begin, end)
#define TEST_4K(function) cmocka_unit_test_setup_teardown(function, begin_4k, end)
/* With a controller that takes scatter gather lists. */
#define TEST_SGL(function)    cmocka_unit_test_setup_teardown(function, begin_sgl, end)
#define TEST_SGL_4K(function) cmocka_unit_test_setup_teardown(function, begin_sgl_4k, end)

#endif
