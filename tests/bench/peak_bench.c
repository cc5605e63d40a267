/* SPDX-License-Identifier: MIT */
/*
 * tests/bench/peak_bench.c - what the engine alone costs: fio's t/io_uring, with the queue in place
 * of the ring
 *
 *   peak_bench DEVICE... [seconds=N | ios=N] [depth=64] [batch=16] [bs=4096]
 *              [order=random|sequential] [wait=interrupt|poll|sqpoll]
 *              [backend=io_uring|libaio|nvme] [memory=registered|own]
 *
 * Reads whole blocks at random places, or one after the other, with one thread, registered memory
 * (or the caller's own) and registered files, submits and collects `batch` of them with one system
 * call, and measures nothing else meanwhile. Each device has `depth` in flight: what ends on one
 * goes round on the same. With ios=N it ends after so many, for counting instructions: the
 * difference of two counts is the cost of the ios between them. Prints one line of JSON.
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
	bool own_memory, sequential;
	const char *paths[SPW_QUEUE_DEVICES_MAX];
	unsigned devices;
};

struct drive {
	struct spw_queue *queue;
	struct spw_io *ios;
	uint64_t blocks, block, random, failed, refused;
	uint32_t block_bytes;
};

struct loop {
	const struct setup *setup;
	struct spw_queue *queue;
	struct drive drives[SPW_QUEUE_DEVICES_MAX];
	uint64_t done;
	double seconds;
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
	if (strncmp(word, "order=", 6) == 0) {
		setup->sequential = strcmp(value, "sequential") == 0;
		return setup->sequential || strcmp(value, "random") == 0;
	}
	setup->own_memory = strcmp(word, "memory=own") == 0;
	return setup->own_memory || strcmp(word, "memory=registered") == 0;
}

static bool parse_all(struct setup *setup, int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		if (!strchr(argv[i], '=') && setup->devices < SPW_QUEUE_DEVICES_MAX)
			setup->paths[setup->devices++] = argv[i];
		else if (!parse(setup, argv[i]))
			return false;
	}
	return setup->devices > 0 && setup->depth > 0 && setup->depth <= SPW_QUEUE_DEPTH_MAX &&
	       setup->batch > 0;
}

/*
 * A linear congruential generator, whose high bits are as random as an address has to be.
 * t/io_uring takes fio's generator.
 */
static inline uint64_t next_block(struct drive *drive)
{
	drive->random =
		drive->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint64_t)((unsigned __int128)drive->random * drive->blocks >> 64);
}

static inline void go_round(struct drive *drive, struct spw_io *io)
{
	if (__builtin_expect(io->res < 0, 0))
		drive->failed += io->res != -ECANCELED;
	if (__builtin_expect(spw_queue_prepare(drive->queue, io) != 0, 0))
		drive->refused++;
}

/*
 * Goes round at once, and is issued with the others by the next reap; while the queue is being
 * closed that is refused.
 */
static void done_at_random(struct spw_io *io)
{
	struct drive *drive = io->context;

	io->offset_bytes = next_block(drive) * drive->block_bytes;
	go_round(drive, io);
}

static void done_in_order(struct spw_io *io)
{
	struct drive *drive = io->context;

	drive->block = drive->block + 1 < drive->blocks ? drive->block + 1 : 0;
	io->offset_bytes = drive->block * drive->block_bytes;
	go_round(drive, io);
}

static void fill_drive(struct loop *loop, unsigned index, const struct spw_device *device,
		       char *memory)
{
	const struct setup *setup = loop->setup;
	struct drive *drive = &loop->drives[index];

	drive->queue = loop->queue;
	drive->blocks = spw_device_geometry(device)->size_bytes / setup->block_bytes;
	drive->block_bytes = (uint32_t)setup->block_bytes;
	drive->random = 88172645463325252u + index;
	drive->ios = calloc(setup->depth, sizeof(*drive->ios));
	if (!drive->ios || drive->blocks < setup->depth)
		must(spw_error(-ENOMEM, "no memory, or the device is too small"),
		     setup->paths[index]);
	for (uint64_t i = 0; i < setup->depth; i++) {
		drive->block = setup->sequential ? i : next_block(drive);
		drive->ios[i] = (struct spw_io){
			.op = SPW_READ,
			.device = index,
			.offset_bytes = drive->block * setup->block_bytes,
			.buf = memory + i * setup->block_bytes,
			.len_bytes = drive->block_bytes,
			.done = setup->sequential ? done_in_order : done_at_random,
			.context = drive,
		};
	}
}

static void open_all(struct loop *loop)
{
	const struct setup *setup = loop->setup;
	uint64_t bytes_each = setup->depth * setup->block_bytes,
		 bytes = bytes_each * setup->devices;
	struct spw_device *devices[SPW_QUEUE_DEVICES_MAX];
	struct spw_arena *arena;
	struct spw_arena_opts arena_opts;
	struct spw_queue_opts opts;
	void *memory;

	for (unsigned i = 0; i < setup->devices; i++)
		must(spw_device_open(setup->paths[i], NULL, &devices[i]), setup->paths[i]);
	spw_arena_opts_init(&arena_opts, sizeof(arena_opts));
	arena_opts.bytes = bytes;
	must(spw_arena_open(&arena_opts, &arena), "memory");
	must(spw_arena_alloc(arena, bytes, &memory), "memory");
	memset(memory, 0, bytes);
	spw_queue_opts_init(&opts, sizeof(opts));
	opts.backend = setup->backend;
	opts.depth = (uint32_t)setup->depth;
	opts.arena = setup->own_memory ? NULL : arena;
	opts.wait = setup->wait;
	must(spw_queue_open(devices, setup->devices, &opts, &loop->queue), "queue");
	for (unsigned i = 0; i < setup->devices; i++)
		fill_drive(loop, i, devices[i], (char *)memory + i * bytes_each);
}

/* The drives by turns, so that each batch is for all of them. */
static void fill_depth(struct loop *loop)
{
	const struct setup *setup = loop->setup;

	for (uint64_t i = 0; i < setup->depth * setup->devices; i++) {
		struct spw_io *io = &loop->drives[i % setup->devices].ios[i / setup->devices];

		must(spw_queue_prepare(loop->queue, io), "prepare");
		if ((i + 1) % setup->batch == 0)
			must(spw_queue_submit(loop->queue), "submit");
	}
}

/*
 * As t/io_uring: the depth is filled in batches; from then on each system call submits a batch and
 * waits for one.
 */
static void run(struct loop *loop)
{
	const struct setup *setup = loop->setup;
	uint64_t end_ns = setup->ios ? UINT64_MAX : spw_clock_ns() + setup->seconds * 1000000000u;
	unsigned batch = (unsigned)setup->batch;

	fill_depth(loop);
	for (uint64_t calls = 0; setup->ios == 0 || loop->done < setup->ios; calls++) {
		int ended = spw_queue_reap(loop->queue, batch, -1);

		must(ended, "reap");
		loop->done += (unsigned)ended;
		if (calls % 64 == 0 && spw_clock_ns() >= end_ns)
			break;
	}
}

/*
 * In a thread of its own, as all tools that make bench compares: what the main thread does is not
 * counted.
 */
static void *measure(void *context)
{
	struct loop *loop = context;
	uint64_t begin_ns;

	if (spw_queue_short_slice() != 0)
		(void)fprintf(stderr, "peak_bench: %s\n", spw_last_error());
	begin_ns = spw_clock_ns();
	run(loop);
	loop->seconds = (double)(spw_clock_ns() - begin_ns) / 1e9;
	spw_queue_close(loop->queue);
	return NULL;
}

int main(int argc, char **argv)
{
	struct setup setup = {.seconds = 2,
			      .depth = 64,
			      .batch = 16,
			      .block_bytes = 4096,
			      .backend = SPW_BACKEND_IO_URING};
	struct loop loop = {.setup = &setup};
	uint64_t failed = 0;
	pthread_t thread;
	int error;

	if (!parse_all(&setup, argc, argv)) {
		(void)fprintf(stderr, "usage: peak_bench DEVICE... [seconds=N | ios=N] [depth=N] "
				      "[batch=N] [bs=BYTES] "
				      "[order=random|sequential] [wait=interrupt|poll|sqpoll] "
				      "[backend=io_uring|libaio|nvme] "
				      "[memory=registered|own]\n");
		return 2;
	}
	open_all(&loop);
	error = pthread_create(&thread, NULL, measure, &loop);
	if (error)
		must(spw_error_errno(-error, "no thread"), setup.paths[0]);
	(void)pthread_join(thread, NULL);
	for (unsigned i = 0; i < setup.devices; i++)
		failed += loop.drives[i].failed;
	(void)printf("{\"ios\": %ju, \"failed\": %ju, \"seconds\": %.6f, \"block_bytes\": %u}\n",
		     (uintmax_t)loop.done, (uintmax_t)failed, loop.seconds,
		     (unsigned)setup.block_bytes);
	return failed > 0;
}
