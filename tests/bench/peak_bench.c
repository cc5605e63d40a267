/* SPDX-License-Identifier: MIT */
/*
 * tests/bench/peak_bench.c - what the engine alone costs: fio's t/io_uring, with the queue in place of the ring
 *
 *   peak_bench DEVICE [seconds=N | ios=N] [depth=64] [batch=16] [bs=4096] [wait=interrupt|poll|sqpoll]
 *              [backend=io_uring|libaio|nvme] [memory=registered|own]
 *
 * Reads whole blocks at random places with one thread, registered memory (or the caller's own) and registered files, submits and
 * collects `batch` of them with one system call, and measures nothing else meanwhile. With ios=N it ends after so many, for
 * counting instructions: the difference of two counts is the cost of the ios between them. Prints one line of JSON.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <spillway/engine.h>

#include "util/util.h"

struct setup {
	uint64_t seconds, ios, depth, batch, block_bytes;
	enum spw_wait wait;
	enum spw_backend backend;
	bool own_memory;
};

struct loop {
	const struct setup *setup;
	struct spw_queue *queue;
	struct spw_io *ios;
	uint64_t blocks, random, done, failed, refused;
	double seconds;
	uint32_t block_bytes;
};

static inline void must(int rc, const char *what)
{
	if (__builtin_expect(rc >= 0, 1))
		return;
	(void)fprintf(stderr, "peak_bench: %s: %s\n", what, spw_last_error());
	exit(1);
}

static bool parse(struct setup *setup, const char *word)
{
	static const char *const waits[] = {"interrupt", "poll", "sqpoll"};
	static const char *const backends[] = {"io_uring", "libaio", "nvme"};
	struct {
		const char *name;
		uint64_t *value;
	} numbers[] = {
		{"seconds", &setup->seconds}, {"ios", &setup->ios},        {"depth", &setup->depth},
		{"batch", &setup->batch},     {"bs", &setup->block_bytes},
	};
	const char *value = strchr(word, '=');
	size_t len = value ? (size_t)(value - word) : 0;

	if (!value)
		return false;
	value++;
	for (size_t i = 0; i < SPW_ARRAY_LEN(numbers); i++)
		if (strlen(numbers[i].name) == len && strncmp(word, numbers[i].name, len) == 0)
			return spw_size_parse(value, numbers[i].value) == 0;
	for (unsigned i = 0; strncmp(word, "wait=", 5) == 0 && i < SPW_ARRAY_LEN(waits); i++)
		if (strcmp(value, waits[i]) == 0) {
			setup->wait = (enum spw_wait)i;
			return true;
		}
	for (unsigned i = 0; strncmp(word, "backend=", 8) == 0 && i < SPW_ARRAY_LEN(backends); i++)
		if (strcmp(value, backends[i]) == 0) {
			setup->backend = (enum spw_backend)(SPW_BACKEND_IO_URING + i);
			return true;
		}
	setup->own_memory = strcmp(word, "memory=own") == 0;
	return setup->own_memory || strcmp(word, "memory=registered") == 0;
}

/* A linear congruential generator, whose high bits are as random as an address has to be. t/io_uring takes fio's generator. */
static inline uint64_t next_block(struct loop *loop)
{
	loop->random = loop->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint64_t)((unsigned __int128)loop->random * loop->blocks >> 64);
}

static inline int prepare(struct loop *loop, struct spw_io *io)
{
	io->offset_bytes = next_block(loop) * loop->block_bytes;
	return spw_queue_prepare(loop->queue, io);
}

/* Goes round at once, and is issued with the others by the next reap; while the queue is being closed that is refused. */
static void io_done(struct spw_io *io)
{
	struct loop *loop = io->context;

	if (__builtin_expect(io->res < 0, 0))
		loop->failed += io->res != -ECANCELED;
	if (__builtin_expect(prepare(loop, io) != 0, 0))
		loop->refused++;
}

static void open_all(struct loop *loop, const char *path)
{
	const struct setup *setup = loop->setup;
	struct spw_device *device;
	struct spw_arena *arena;
	struct spw_arena_opts arena_opts;
	struct spw_queue_opts opts;
	void *memory;

	must(spw_device_open(path, NULL, &device), path);
	spw_arena_opts_init(&arena_opts, sizeof(arena_opts));
	arena_opts.bytes = setup->depth * setup->block_bytes;
	must(spw_arena_open(&arena_opts, &arena), "memory");
	must(spw_arena_alloc(arena, setup->depth * setup->block_bytes, &memory), "memory");
	memset(memory, 0, setup->depth * setup->block_bytes);
	spw_queue_opts_init(&opts, sizeof(opts));
	opts.backend = setup->backend;
	opts.depth = (uint32_t)setup->depth;
	opts.arena = setup->own_memory ? NULL : arena;
	opts.wait = setup->wait;
	must(spw_queue_open(&device, 1, &opts, &loop->queue), "queue");
	loop->blocks = spw_device_geometry(device)->size_bytes / setup->block_bytes;
	loop->block_bytes = (uint32_t)setup->block_bytes;
	loop->random = 88172645463325252u;
	loop->ios = calloc(setup->depth, sizeof(*loop->ios));
	if (!loop->ios || loop->blocks == 0)
		must(spw_error(-ENOMEM, "no memory, or the device is too small"), path);
	for (uint64_t i = 0; i < setup->depth; i++) {
		loop->ios[i] = (struct spw_io){
			.op = SPW_READ,
			.buf = (char *)memory + i * setup->block_bytes,
			.len_bytes = loop->block_bytes,
			.done = io_done,
			.context = loop,
		};
	}
}

/* As t/io_uring: the depth is filled in batches; from then on each system call submits a batch and waits for one. */
static void run(struct loop *loop)
{
	const struct setup *setup = loop->setup;
	uint64_t end_ns = setup->ios ? UINT64_MAX : spw_clock_ns() + setup->seconds * 1000000000u;
	unsigned batch = (unsigned)setup->batch;

	for (uint64_t i = 0; i < setup->depth; i++) {
		must(prepare(loop, &loop->ios[i]), "prepare");
		if ((i + 1) % batch == 0)
			must(spw_queue_submit(loop->queue), "submit");
	}
	for (uint64_t calls = 0; setup->ios == 0 || loop->done < setup->ios; calls++) {
		int ended = spw_queue_reap(loop->queue, batch, -1);

		must(ended, "reap");
		loop->done += (unsigned)ended;
		if (calls % 64 == 0 && spw_clock_ns() >= end_ns)
			break;
	}
}

/* In a thread of its own, as all tools that make bench compares: what the main thread does is not counted. */
static void *measure(void *context)
{
	struct loop *loop = context;
	uint64_t begin_ns = spw_clock_ns();

	run(loop);
	loop->seconds = (double)(spw_clock_ns() - begin_ns) / 1e9;
	spw_queue_close(loop->queue);
	return NULL;
}

int main(int argc, char **argv)
{
	struct setup setup = {
		.seconds = 2, .depth = 64, .batch = 16, .block_bytes = 4096, .backend = SPW_BACKEND_IO_URING};
	struct loop loop = {.setup = &setup};
	pthread_t thread;
	int error;

	for (int i = 2; i < argc; i++)
		if (!parse(&setup, argv[i]))
			argc = 1;
	if (argc < 2 || setup.depth == 0 || setup.depth > SPW_QUEUE_DEPTH_MAX || setup.batch == 0) {
		(void)fprintf(stderr,
			      "usage: peak_bench DEVICE [seconds=N | ios=N] [depth=N] [batch=N] [bs=BYTES] "
			      "[wait=interrupt|poll|sqpoll] [backend=io_uring|libaio|nvme] [memory=registered|own]\n");
		return 2;
	}
	open_all(&loop, argv[1]);
	error = pthread_create(&thread, NULL, measure, &loop);
	if (error)
		must(spw_error_errno(-error, "no thread"), argv[1]);
	(void)pthread_join(thread, NULL);
	(void)printf("{\"ios\": %ju, \"failed\": %ju, \"seconds\": %.6f, \"block_bytes\": %u}\n", (uintmax_t)loop.done,
		     (uintmax_t)loop.failed, loop.seconds, loop.block_bytes);
	return loop.failed > 0;
}
