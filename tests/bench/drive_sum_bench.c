/* SPDX-License-Identifier: MIT */
/*
 * tests/bench/drive_sum_bench.c - what drives give to a program that writes and reads, sums its
 * bytes if asked to, and does nothing else: bytes a second of both, as one line of JSON
 *
 *   drive_sum_bench BYTES sum|plain DEPTH DRIVE...
 *
 * Chunk by chunk, each with a place of its own in memory as a store's objects have, on all drives
 * in turn. DEPTH threads of each drive move what is ready; one more sums: what will be written,
 * before, and what was read, after. As in a store, a drive has at most DEPTH chunks that were
 * summed and are not written: the fewer, the more of them are still in a cache when they are.
 *
 * It overwrites the drives, and so takes only loop devices that nothing else uses.
 */
#include <fcntl.h>
#include <linux/major.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <spillway/spillway.h>

#include "tests/bench/rows.h"
#include "util/checksum.h"
#include "util/util.h"

#define DRIVES_MAX  8
#define DEPTH_MAX   32u
#define CHUNK_BYTES (UINT64_C(1) << 20) /* a store's, unless it was formatted otherwise */
#define CHUNKS_MAX  16384u

static struct drive {
	int fd;
	atomic_uint next; /* its chunk that the next thread moves */
	sem_t ready;      /* chunks that may be moved */
	sem_t room;       /* how many more may be summed before they are written */
} drives[DRIVES_MAX];

static unsigned drive_count, chunks, depth;
static uint8_t *memory;
static bool writes;                                      /* what the threads do */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of these two */
static unsigned moved[CHUNKS_MAX], moved_count;
static sem_t moved_waits;
static volatile uint64_t sink;

/* Return: the file descriptor; else the program ends. */
static int open_drive(const char *path)
{
	int fd = open(path, O_RDWR | O_DIRECT | O_EXCL | O_CLOEXEC);
	struct stat found;

	must(fd < 0 || fstat(fd, &found) ? -errno : 0, path);
	if (S_ISBLK(found.st_mode) && major(found.st_rdev) == LOOP_MAJOR)
		return fd;
	(void)fprintf(stderr,
		      "drive_sum_bench: %s is not a loop device, and its contents would be "
		      "overwritten\n",
		      path);
	exit(3);
}

static unsigned chunks_of(unsigned drive)
{
	return chunks / drive_count + (drive < chunks % drive_count);
}

static void wait_for(sem_t *semaphore)
{
	while (sem_wait(semaphore))
		must(errno == EINTR ? 0 : -errno, "semaphore");
}

static void *move_chunks(void *argument)
{
	struct drive *drive = argument;
	unsigned row, index = (unsigned)(drive - drives);

	while ((row = atomic_fetch_add(&drive->next, 1)) < chunks_of(index)) {
		unsigned chunk = row * drive_count + index;
		uint8_t *at = memory + chunk * CHUNK_BYTES;
		off_t offset = (off_t)(row * CHUNK_BYTES);
		ssize_t len;

		wait_for(&drive->ready);
		len = writes ? pwrite(drive->fd, at, CHUNK_BYTES, offset)
			     : pread(drive->fd, at, CHUNK_BYTES, offset);
		must(len == (ssize_t)CHUNK_BYTES ? 0 : len < 0 ? -errno : -EIO, "transfer");
		must(sem_post(&drive->room), "semaphore");
		must(-pthread_mutex_lock(&lock), "lock");
		moved[moved_count++] = chunk;
		must(-pthread_mutex_unlock(&lock), "lock");
		must(sem_post(&moved_waits), "semaphore");
	}
	return NULL;
}

static void sum(unsigned chunk)
{
	sink = spw_checksum(memory + chunk * CHUNK_BYTES, CHUNK_BYTES);
}

static unsigned moved_at(unsigned index)
{
	unsigned chunk;

	must(-pthread_mutex_lock(&lock), "lock");
	chunk = moved[index];
	must(-pthread_mutex_unlock(&lock), "lock");
	return chunk;
}

/* Return: bytes a second. */
static double move_all(bool write, bool sums)
{
	pthread_t threads[DRIVES_MAX * DEPTH_MAX];
	uint64_t begun_ns = spw_clock_ns();

	writes = write;
	moved_count = 0;
	must(sem_init(&moved_waits, 0, 0), "semaphore");
	for (unsigned i = 0; i < drive_count; i++) {
		atomic_store(&drives[i].next, 0);
		must(sem_init(&drives[i].ready, 0, 0), "semaphore");
		must(sem_init(&drives[i].room, 0, depth), "semaphore");
	}
	for (unsigned i = 0; i < drive_count * depth; i++)
		must(-pthread_create(&threads[i], NULL, move_chunks, &drives[i % drive_count]),
		     "thread");
	for (unsigned chunk = 0; chunk < chunks; chunk++) {
		struct drive *drive = &drives[chunk % drive_count];

		if (write && sums) {
			wait_for(&drive->room);
			sum(chunk);
		}
		must(sem_post(&drive->ready), "semaphore");
	}
	for (unsigned i = 0; i < chunks; i++) {
		wait_for(&moved_waits);
		if (!write && sums)
			sum(moved_at(i));
	}
	for (unsigned i = 0; i < drive_count * depth; i++)
		must(-pthread_join(threads[i], NULL), "thread");
	return (double)(chunks * CHUNK_BYTES) * 1e9 / (double)(spw_clock_ns() - begun_ns);
}

int main(int argc, char **argv)
{
	struct spw_arena_opts opts;
	struct spw_arena *arena;
	uint64_t bytes;
	double put, get;
	bool sums;

	if (argc < 5 || argc > 4 + DRIVES_MAX || spw_size_parse(argv[1], &bytes) ||
	    bytes < CHUNK_BYTES || bytes > CHUNKS_MAX * CHUNK_BYTES ||
	    (strcmp(argv[2], "sum") != 0 && strcmp(argv[2], "plain") != 0) ||
	    sscanf(argv[3], "%u", &depth) != 1 || depth < 1 || depth > DEPTH_MAX) {
		(void)fprintf(stderr, "usage: drive_sum_bench BYTES sum|plain DEPTH DRIVE... "
				      "(BYTES at least 1 MiB, at most 16 GiB; DEPTH at most 32; "
				      "at most 8 drives)\n");
		return 2;
	}
	sums = strcmp(argv[2], "sum") == 0;
	chunks = (unsigned)(bytes / CHUNK_BYTES);
	spw_arena_opts_init(&opts, sizeof(opts));
	opts.bytes = chunks * CHUNK_BYTES;
	must(spw_arena_open(&opts, &arena), "memory");
	must(spw_arena_alloc(arena, opts.bytes, (void **)&memory), "memory");
	memset(memory, 1, opts.bytes);
	for (drive_count = 0; drive_count < (unsigned)argc - 4; drive_count++)
		drives[drive_count].fd = open_drive(argv[4 + drive_count]);
	(void)move_all(true, false); /* the drives' blocks are written once, unmeasured */
	put = move_all(true, sums);
	get = move_all(false, sums);
	(void)printf("{\"put_bytes_per_second\": %.0f, \"get_bytes_per_second\": %.0f}\n", put,
		     get);
	for (unsigned i = 0; i < drive_count; i++)
		(void)close(drives[i].fd);
	spw_arena_close(arena);
	return 0;
}
