/* SPDX-License-Identifier: MIT */
/*
 * tests/integration/engine_common.h - drives, queues and patterns for the tests of the engine
 *
 * The drives come from SPW_TEST_DEVICES, the backend from SPW_TEST_BACKEND, the way to wait from
 * SPW_TEST_WAIT (interrupt, poll or sqpoll), the seed from SPW_SEED.
 */
#ifndef SPW_TESTS_ENGINE_COMMON_H
#define SPW_TESTS_ENGINE_COMMON_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/case.h"
#include "tests/random.h"

#include <spillway/engine.h>

#define RIG_DEVICES_MAX 8u

struct rig {
	struct spw_device *devices[RIG_DEVICES_MAX];
	unsigned count;
	enum spw_backend backend;
	enum spw_wait wait;
	struct spw_arena *arena;
	struct spw_queue *queue;
};

static uint64_t rig_seed;

static inline void rig_print(void *context, enum spw_log_level level, const char *message)
{
	(void)context;
	if (level >= SPW_LOG_WARNING || getenv("SPW_TEST_VERBOSE"))
		fprintf(stderr, "# %s\n", message);
}

static inline uint64_t rig_random(void)
{
	return random_next(&rig_seed);
}

/* Bytes that differ at every place and for every @salt. */
static inline void rig_fill(void *memory, size_t len, uint64_t salt)
{
	uint64_t *words = memory;

	for (size_t i = 0; i < len / sizeof(*words); i++)
		words[i] = (salt + i) * 0x9e3779b97f4a7c15u;
}

static inline void rig_assert_ok(int ret, const char *what)
{
	if (ret < 0)
		fail_msg("%s: %d (%s): %s", what, ret, spw_strerror(ret), spw_last_error());
}

static inline void rig_start_seed(void)
{
	rig_seed = random_seed();
}

static inline enum spw_wait rig_wait(void)
{
	const char *wait = getenv("SPW_TEST_WAIT");

	if (wait && strcmp(wait, "poll") == 0)
		return SPW_WAIT_POLL;
	return wait && strcmp(wait, "sqpoll") == 0 ? SPW_WAIT_SQPOLL : SPW_WAIT_INTERRUPT;
}

/* The drives of SPW_TEST_DEVICES; false (and a note) without any. */
static inline bool rig_open_devices(struct rig *rig)
{
	static const char *const backends[] = {[SPW_BACKEND_AUTO] = "auto",
					       [SPW_BACKEND_IO_URING] = "io_uring",
					       [SPW_BACKEND_LIBAIO] = "libaio",
					       [SPW_BACKEND_NVME] = "nvme",
					       [SPW_BACKEND_VFIO] = "vfio"};
	const char *list = getenv("SPW_TEST_DEVICES");
	const char *backend = getenv("SPW_TEST_BACKEND");
	struct spw_device_opts opts;
	char *copy, *path, *rest;

	memset(rig, 0, sizeof(*rig));
	for (unsigned i = 0; backend && i < sizeof(backends) / sizeof(backends[0]); i++)
		if (strcmp(backend, backends[i]) == 0)
			rig->backend = (enum spw_backend)i;
	rig->wait = rig_wait();
	if (!list || !*list) {
		fprintf(stderr, "# SPW_TEST_DEVICES names no drives\n");
		return false;
	}
	spw_device_opts_init(&opts, sizeof(opts));
	opts.log.write = rig_print;
	copy = rest = strdup(list);
	while ((path = strtok_r(rest, " ", &rest)) != NULL && rig->count < RIG_DEVICES_MAX)
		rig_assert_ok(spw_device_open(path, &opts, &rig->devices[rig->count++]), path);
	free(copy);
	return true;
}

static inline void rig_open_arena(struct rig *rig, uint64_t bytes)
{
	struct spw_arena_opts opts;

	spw_arena_opts_init(&opts, sizeof(opts));
	opts.bytes = bytes;
	opts.log.write = rig_print;
	rig_assert_ok(spw_arena_open(&opts, &rig->arena), "arena");
}

static inline void rig_open_queue(struct rig *rig, uint32_t depth)
{
	struct spw_queue_opts opts;

	spw_queue_opts_init(&opts, sizeof(opts));
	opts.backend = rig->backend;
	opts.wait = rig->wait;
	opts.depth = depth;
	opts.arena = rig->arena;
	opts.log.write = rig_print;
	rig_assert_ok(spw_queue_open(rig->devices, rig->count, &opts, &rig->queue), "queue");
}

static inline void rig_close_queue(struct rig *rig)
{
	spw_queue_close(rig->queue);
	rig->queue = NULL;
}

static inline void rig_close(struct rig *rig)
{
	spw_queue_close(rig->queue);
	spw_arena_close(rig->arena);
	for (unsigned i = 0; i < rig->count; i++)
		spw_device_close(rig->devices[i]);
	memset(rig, 0, sizeof(*rig));
}

/* Page-aligned memory that no queue knows. */
static inline char *rig_foreign(size_t len)
{
	void *memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_true(memory != MAP_FAILED);
	(void)madvise(memory, len, MADV_NOHUGEPAGE);
	return memory;
}

static inline void rig_count_done(struct spw_io *io)
{
	unsigned *done = io->context;

	(*done)++;
}

/* One io from prepare to done. */
static inline int32_t rig_run(struct rig *rig, struct spw_io io)
{
	unsigned done = 0;

	io.done = rig_count_done;
	io.context = &done;
	rig_assert_ok(spw_queue_prepare(rig->queue, &io), "prepare");
	while (!done)
		rig_assert_ok(spw_queue_reap(rig->queue, 1, -1), "reap");
	assert_int_equal(done, 1);
	return io.res;
}

static inline void rig_assert_same(const void *got, const void *wanted, size_t len,
				   const char *what)
{
	const unsigned char *a = got, *b = wanted;

	if (memcmp(a, b, len) == 0)
		return;
	for (size_t i = 0; i < len; i++)
		if (a[i] != b[i])
			fail_msg("%s: byte %zu of %zu is %02x, not %02x", what, i, len, a[i], b[i]);
}

#endif
