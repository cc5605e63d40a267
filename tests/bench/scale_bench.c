/* SPDX-License-Identifier: MIT */
/*
 * tests/bench/scale_bench.c - what passes over memory cost here, as one line of JSON
 *
 *   scale_bench THREADS BYTES GIB
 *
 * Each thread goes over BYTES of its own, on pages as the store's, chunk by chunk, until it has
 * moved GIB, with each pass: read it (the least that a checksum can do), sum it, copy it, copy and
 * sum it. Then one thread writes an object and it is summed, by itself or by another thread: what
 * it is worth to sum bytes where they were made.
 */
#include <pthread.h>
#include <semaphore.h>
#include <time.h>

#include <spillway/spillway.h>

#include "store/copy.h"
#include "tests/bench/rows.h"
#include "util/checksum.h"
#include "util/util.h"

#define THREADS_MAX 64u
#define CHUNK_BYTES (1u << 20)
#define WARM_ROUNDS 64u

typedef uint64_t words __attribute__((vector_size(32)));

static volatile uint64_t sink;

/* As wide as the CPU can, four sums at a time. */
__attribute__((target_clones("default", "avx2"))) static uint64_t read_all(const uint8_t *from,
									   size_t len)
{
	const words *at = (const words *)(const void *)from;
	const words *end = at + len / sizeof(words);
	words a = {0}, b = {0}, c = {0}, d = {0};
	uint64_t sum = 0;

	for (; at < end; at += 4) {
		a ^= at[0];
		b ^= at[1];
		c ^= at[2];
		d ^= at[3];
	}
	a ^= b ^ c ^ d;
	for (unsigned i = 0; i < sizeof(words) / sizeof(a[0]); i++)
		sum ^= a[i];
	return sum;
}

static uint64_t pass_read(uint8_t *to, const uint8_t *from, size_t len)
{
	(void)to;
	return read_all(from, len);
}

static uint64_t pass_sum(uint8_t *to, const uint8_t *from, size_t len)
{
	(void)to;
	return spw_checksum(from, len);
}

static uint64_t pass_copy(uint8_t *to, const uint8_t *from, size_t len)
{
	memcpy(to, from, len);
	return to[len - 1];
}

static uint64_t pass_copy_and_sum(uint8_t *to, const uint8_t *from, size_t len)
{
	return spw_store__copy_and_checksum(to, from, len);
}

static const struct {
	const char *name;
	uint64_t (*run)(uint8_t *to, const uint8_t *from, size_t len);
} passes[] = {
	{"read", pass_read},
	{"sum", pass_sum},
	{"copy", pass_copy},
	{"copy_and_sum", pass_copy_and_sum},
};

struct runner {
	pthread_t thread;
	uint8_t *from, *to;
	uint64_t done_bytes, cpu_ns, wall_ns;
};

static struct runner runners[THREADS_MAX];
static unsigned threads, pass;
static uint64_t bytes, total_bytes;
static pthread_barrier_t barrier;

static uint64_t cpu_now_ns(void)
{
	struct timespec now;

	(void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void *run(void *argument)
{
	struct runner *runner = argument;
	uint64_t begun_ns, cpu_ns, at = 0;

	runner->done_bytes = 0;
	(void)pthread_barrier_wait(&barrier);
	begun_ns = spw_clock_ns();
	cpu_ns = cpu_now_ns();
	do {
		sink ^= passes[pass].run(runner->to + at, runner->from + at, CHUNK_BYTES);
		runner->done_bytes += CHUNK_BYTES;
		at = (at + CHUNK_BYTES) % bytes;
	} while (runner->done_bytes < total_bytes);
	runner->wall_ns = spw_clock_ns() - begun_ns;
	runner->cpu_ns = cpu_now_ns() - cpu_ns;
	return NULL;
}

static double per_gib(uint64_t ns, uint64_t of_bytes)
{
	return (double)ns / 1e9 / ((double)of_bytes / (1u << 30));
}

static void measure_pass(void)
{
	double bytes_per_second = 0;
	uint64_t cpu_ns = 0, done_bytes = 0;

	(void)pthread_barrier_init(&barrier, NULL, threads);
	for (unsigned i = 0; i < threads; i++)
		must(-pthread_create(&runners[i].thread, NULL, run, &runners[i]), "thread");
	for (unsigned i = 0; i < threads; i++) {
		(void)pthread_join(runners[i].thread, NULL);
		cpu_ns += runners[i].cpu_ns;
		done_bytes += runners[i].done_bytes;
		bytes_per_second +=
			(double)runners[i].done_bytes * 1e9 / (double)runners[i].wall_ns;
	}
	(void)pthread_barrier_destroy(&barrier);
	(void)printf("\"%s_seconds_per_gib\": %.6g, \"%s_bytes_per_second\": %.6g, ",
		     passes[pass].name, per_gib(cpu_ns, done_bytes), passes[pass].name,
		     bytes_per_second);
}

/* ---- Where the bytes are warm ---- */

static struct warm {
	uint8_t *object;
	size_t len;
	uint64_t cpu_ns;
	sem_t made, summed;
} warm;

static void make_object(unsigned round)
{
	memset(warm.object, (int)round, warm.len);
}

static void sum_object(void)
{
	uint64_t cpu_ns = cpu_now_ns();

	sink ^= spw_checksum(warm.object, warm.len);
	warm.cpu_ns += cpu_now_ns() - cpu_ns;
}

static void *sum_what_is_made(void *unused)
{
	(void)unused;
	for (unsigned round = 0; round < WARM_ROUNDS; round++) {
		(void)sem_wait(&warm.made);
		sum_object();
		(void)sem_post(&warm.summed);
	}
	return NULL;
}

/* Every object lies elsewhere, so that each was out of the caches before it was written. */
static void measure_warm(size_t len, bool by_another)
{
	pthread_t thread;

	warm.len = len;
	warm.cpu_ns = 0;
	(void)sem_init(&warm.made, 0, 0);
	(void)sem_init(&warm.summed, 0, 0);
	if (by_another)
		must(-pthread_create(&thread, NULL, sum_what_is_made, NULL), "thread");
	for (unsigned round = 0; round < WARM_ROUNDS; round++) {
		warm.object = runners[0].from + round * len % bytes;
		make_object(round);
		if (by_another) {
			(void)sem_post(&warm.made);
			(void)sem_wait(&warm.summed);
		} else {
			sum_object();
		}
	}
	if (by_another)
		(void)pthread_join(thread, NULL);
	(void)printf("\"sum_of_%zu_mib_by_%s_seconds_per_gib\": %.6g, ", len >> 20,
		     by_another ? "another" : "its_maker", per_gib(warm.cpu_ns, WARM_ROUNDS * len));
}

int main(int argc, char **argv)
{
	struct spw_arena_opts opts;
	struct spw_arena *arena;
	uint8_t *memory;

	if (argc != 4 || (threads = (unsigned)atoi(argv[1])) < 1 || threads > THREADS_MAX ||
	    spw_size_parse(argv[2], &bytes) || bytes < 16 * CHUNK_BYTES ||
	    bytes % (16 * CHUNK_BYTES) != 0 || (total_bytes = (uint64_t)atoi(argv[3]) << 30) == 0) {
		(void)fprintf(stderr, "usage: scale_bench THREADS BYTES GIB (BYTES a multiple "
				      "of 16 MiB)\n");
		return 2;
	}
	spw_arena_opts_init(&opts, sizeof(opts));
	opts.bytes = 2 * threads * bytes;
	must(spw_arena_open(&opts, &arena), "memory");
	must(spw_arena_alloc(arena, opts.bytes, (void **)&memory), "memory");
	for (uint64_t i = 0; i < opts.bytes / 8; i++)
		((uint64_t *)(void *)memory)[i] = i * UINT64_C(0x9e3779b97f4a7c15);
	for (unsigned i = 0; i < threads; i++) {
		runners[i].from = memory + 2 * i * bytes;
		runners[i].to = runners[i].from + bytes;
	}
	(void)printf("{");
	for (pass = 0; pass < SPW_ARRAY_LEN(passes); pass++)
		measure_pass();
	for (size_t len = 1u << 20; len <= 16u << 20; len *= 16)
		for (unsigned by_another = 0; by_another < 2; by_another++)
			measure_warm(len, by_another);
	(void)printf("\"threads\": %u}\n", threads);
	spw_arena_close(arena);
	return 0;
}
