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
 * is submitted again on the same one. With ios=N it ends after N, for counting instructions: the
 * difference of two counts is the cost of the ios between them. Prints one line of JSON.
 */
#include <pthread.h>

#include <spillway/engine.h>

#include "tests/bench/rows.h"
#include "util/util.h"

static struct setup {
	uint64_t seconds, ios, depth, batch, block_bytes;
	unsigned wait, backend, own_memory, sequential;
	const char *paths[SPW_QUEUE_DEVICES_MAX];
	unsigned devices;
} setup = {.seconds = 2,
	   .depth = 64,
	   .batch = 16,
	   .block_bytes = 4096,
	   .backend = SPW_BACKEND_IO_URING};

struct drive {
	struct spw_io *ios;
	uint64_t blocks, block, random, failed;
	uint32_t block_bytes;
};

static struct drive drives[SPW_QUEUE_DEVICES_MAX];
static struct spw_queue *queue;
static uint64_t done;
static double seconds;

static bool parse(const char *word)
{
	const struct {
		const char *name;
		uint64_t *value;
	} numbers[] = {
		{"seconds=", &setup.seconds}, {"ios=", &setup.ios},        {"depth=", &setup.depth},
		{"batch=", &setup.batch},     {"bs=", &setup.block_bytes},
	};
	const struct {
		const char *word;
		unsigned *field, value;
	} choices[] = {
		{"wait=interrupt", &setup.wait, SPW_WAIT_INTERRUPT},
		{"wait=poll", &setup.wait, SPW_WAIT_POLL},
		{"wait=sqpoll", &setup.wait, SPW_WAIT_SQPOLL},
		{"backend=io_uring", &setup.backend, SPW_BACKEND_IO_URING},
		{"backend=libaio", &setup.backend, SPW_BACKEND_LIBAIO},
		{"backend=nvme", &setup.backend, SPW_BACKEND_NVME},
		{"order=random", &setup.sequential, false},
		{"order=sequential", &setup.sequential, true},
		{"memory=registered", &setup.own_memory, false},
		{"memory=own", &setup.own_memory, true},
	};

	for (size_t i = 0; i < SPW_ARRAY_LEN(numbers); i++)
		if (strncmp(word, numbers[i].name, strlen(numbers[i].name)) == 0)
			return spw_size_parse(word + strlen(numbers[i].name), numbers[i].value) ==
			       0;
	for (size_t i = 0; i < SPW_ARRAY_LEN(choices); i++)
		if (strcmp(word, choices[i].word) == 0) {
			*choices[i].field = choices[i].value;
			return true;
		}
	return false;
}

static bool parse_all(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		if (!strchr(argv[i], '=') && setup.devices < SPW_QUEUE_DEVICES_MAX)
			setup.paths[setup.devices++] = argv[i];
		else if (!parse(argv[i]))
			return false;
	}
	return setup.devices > 0 && setup.depth > 0 && setup.depth <= SPW_QUEUE_DEPTH_MAX &&
	       setup.batch > 0;
}

/* A linear congruential generator: its high bits are random enough for addresses. */
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
	(void)spw_queue_prepare(queue, io);
}

/* Goes round at once, and is issued by the next reap. A queue that is being closed refuses. */
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

static void fill_drive(unsigned index, const struct spw_device *device, char *memory)
{
	struct drive *drive = &drives[index];

	drive->blocks = spw_device_geometry(device)->size_bytes / setup.block_bytes;
	drive->block_bytes = (uint32_t)setup.block_bytes;
	drive->random = 88172645463325252u + index;
	drive->ios = calloc(setup.depth, sizeof(*drive->ios));
	if (!drive->ios || drive->blocks < setup.depth)
		must(spw_error(-ENOMEM, "no memory, or the device is too small"),
		     setup.paths[index]);
	for (uint64_t i = 0; i < setup.depth; i++) {
		drive->block = setup.sequential ? i : next_block(drive);
		drive->ios[i] = (struct spw_io){
			.op = SPW_READ,
			.device = index,
			.offset_bytes = drive->block * setup.block_bytes,
			.buf = memory + i * setup.block_bytes,
			.len_bytes = drive->block_bytes,
			.done = setup.sequential ? done_in_order : done_at_random,
			.context = drive,
		};
	}
}

static void open_all(void)
{
	uint64_t bytes_each = setup.depth * setup.block_bytes, bytes = bytes_each * setup.devices;
	struct spw_device *devices[SPW_QUEUE_DEVICES_MAX];
	struct spw_arena *arena;
	struct spw_arena_opts arena_opts;
	struct spw_queue_opts opts;
	void *memory;

	for (unsigned i = 0; i < setup.devices; i++)
		must(spw_device_open(setup.paths[i], NULL, &devices[i]), setup.paths[i]);
	spw_arena_opts_init(&arena_opts, sizeof(arena_opts));
	arena_opts.bytes = bytes;
	must(spw_arena_open(&arena_opts, &arena), "memory");
	must(spw_arena_alloc(arena, bytes, &memory), "memory");
	memset(memory, 0, bytes);
	spw_queue_opts_init(&opts, sizeof(opts));
	opts.backend = (enum spw_backend)setup.backend;
	opts.depth = (uint32_t)setup.depth;
	opts.arena = setup.own_memory ? NULL : arena;
	opts.wait = (enum spw_wait)setup.wait;
	must(spw_queue_open(devices, setup.devices, &opts, &queue), "queue");
	for (unsigned i = 0; i < setup.devices; i++)
		fill_drive(i, devices[i], (char *)memory + i * bytes_each);
}

/* The drives by turns, so that each batch is for all of them. */
static void fill_depth(void)
{
	for (uint64_t i = 0; i < setup.depth * setup.devices; i++) {
		struct spw_io *io = &drives[i % setup.devices].ios[i / setup.devices];

		must(spw_queue_prepare(queue, io), "prepare");
		if ((i + 1) % setup.batch == 0)
			must(spw_queue_submit(queue), "submit");
	}
}

/*
 * As t/io_uring: the depth is filled in batches; from then on each system call submits a batch and
 * waits for one.
 */
static void run(void)
{
	uint64_t end_ns = setup.ios ? UINT64_MAX : spw_clock_ns() + setup.seconds * 1000000000u;
	unsigned batch = (unsigned)setup.batch;

	fill_depth();
	for (uint64_t calls = 0; setup.ios == 0 || done < setup.ios; calls++) {
		int ended = spw_queue_reap(queue, batch, -1);

		must(ended, "reap");
		done += (unsigned)ended;
		if (calls % 64 == 0 && spw_clock_ns() >= end_ns)
			break;
	}
}

/* The main thread is not counted, as with all tools that make bench compares. */
static void *measure(void *context)
{
	uint64_t begin_ns;

	(void)context;
	if (spw_queue_short_slice() != 0)
		(void)fprintf(stderr, "peak_bench: %s\n", spw_last_error());
	begin_ns = spw_clock_ns();
	run();
	seconds = (double)(spw_clock_ns() - begin_ns) / 1e9;
	spw_queue_close(queue);
	return NULL;
}

int main(int argc, char **argv)
{
	uint64_t failed = 0;
	pthread_t thread;
	int error;

	if (!parse_all(argc, argv)) {
		(void)fprintf(stderr, "usage: peak_bench DEVICE... [seconds=N | ios=N] [depth=N] "
				      "[batch=N] [bs=BYTES] "
				      "[order=random|sequential] [wait=interrupt|poll|sqpoll] "
				      "[backend=io_uring|libaio|nvme] "
				      "[memory=registered|own]\n");
		return 2;
	}
	open_all();
	error = pthread_create(&thread, NULL, measure, NULL);
	if (error)
		must(spw_error_errno(-error, "no thread"), setup.paths[0]);
	(void)pthread_join(thread, NULL);
	for (unsigned i = 0; i < setup.devices; i++)
		failed += drives[i].failed;
	(void)printf("{\"ios\": %ju, \"failed\": %ju, \"seconds\": %.6f, \"block_bytes\": %u}\n",
		     (uintmax_t)done, (uintmax_t)failed, seconds, (unsigned)setup.block_bytes);
	return failed > 0;
}
