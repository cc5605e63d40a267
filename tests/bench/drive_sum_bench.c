/* SPDX-License-Identifier: MIT */
/*
 * tests/bench/drive_sum_bench.c - what a drive gives to a program that reads and sums, and does
 * nothing else: bytes a second, as one line of JSON
 *
 *   drive_sum_bench DRIVE BYTES sum|read
 *
 * Threads read chunk by chunk, each chunk to a place of its own as a store's gets do, and one more
 * sums what is there. No store on the same cores can be expected to do both sooner.
 */
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <unistd.h>

#include <spillway/spillway.h>

#include "store/internal.h"
#include "tests/bench/rows.h"

#define READERS     4 /* so that the drive has a request while another is issued */
#define CHUNK_BYTES (UINT64_C(4) << 20)
#define CHUNKS_MAX  4096

static int drive;
static uint8_t *memory;
static unsigned chunks;
static atomic_uint next_chunk;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of these two */
static unsigned done[CHUNKS_MAX], done_count;
static sem_t done_waits;
static volatile uint64_t sink;

static void *read_chunks(void *argument)
{
	unsigned chunk;

	while ((chunk = atomic_fetch_add(&next_chunk, 1)) < chunks) {
		uint64_t offset = chunk * CHUNK_BYTES;
		ssize_t len = pread(drive, memory + offset, CHUNK_BYTES, (off_t)offset);

		must(len == (ssize_t)CHUNK_BYTES ? 0 : -EIO, "read");
		must(-pthread_mutex_lock(&lock), "lock");
		done[done_count++] = chunk;
		must(-pthread_mutex_unlock(&lock), "lock");
		must(sem_post(&done_waits), "semaphore");
	}
	return argument;
}

/* The @index-th that was read. */
static void sum_chunk(unsigned index)
{
	unsigned chunk;

	must(-pthread_mutex_lock(&lock), "lock");
	chunk = done[index];
	must(-pthread_mutex_unlock(&lock), "lock");
	sink = spw_checksum(memory + chunk * CHUNK_BYTES, CHUNK_BYTES);
}

static void read_all(bool sum)
{
	pthread_t readers[READERS];

	must(sem_init(&done_waits, 0, 0), "semaphore");
	for (unsigned i = 0; i < READERS; i++)
		must(-pthread_create(&readers[i], NULL, read_chunks, NULL), "thread");
	for (unsigned i = 0; i < chunks; i++) {
		while (sem_wait(&done_waits))
			must(errno == EINTR ? 0 : -errno, "semaphore");
		if (sum)
			sum_chunk(i);
	}
	for (unsigned i = 0; i < READERS; i++)
		must(-pthread_join(readers[i], NULL), "thread");
}

int main(int argc, char **argv)
{
	struct spw_arena_opts opts;
	struct spw_arena *arena;
	uint64_t bytes, begun_ns;

	if (argc != 4 || spw_size_parse(argv[2], &bytes) || bytes < CHUNK_BYTES ||
	    bytes > CHUNKS_MAX * CHUNK_BYTES ||
	    (strcmp(argv[3], "sum") != 0 && strcmp(argv[3], "read") != 0)) {
		(void)fprintf(stderr, "usage: drive_sum_bench DRIVE BYTES sum|read (BYTES at least "
				      "4 MiB, at most 16 GiB)\n");
		return 2;
	}
	chunks = (unsigned)(bytes / CHUNK_BYTES);
	spw_arena_opts_init(&opts, sizeof(opts));
	opts.bytes = chunks * CHUNK_BYTES;
	must(spw_arena_open(&opts, &arena), "memory");
	must(spw_arena_alloc(arena, opts.bytes, (void **)&memory), "memory");
	memset(memory, 1, opts.bytes); /* so that all of it is there */
	drive = open(argv[1], O_RDONLY | O_DIRECT | O_CLOEXEC);
	must(drive < 0 ? -errno : 0, argv[1]);
	begun_ns = spw_clock_ns();
	read_all(strcmp(argv[3], "sum") == 0);
	(void)printf("{\"bytes_per_second\": %.0f}\n",
		     (double)opts.bytes * 1e9 / (double)(spw_clock_ns() - begun_ns));
	(void)close(drive);
	spw_arena_close(arena);
	return 0;
}
