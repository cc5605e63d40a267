/* SPDX-License-Identifier: MIT */
/*
 * tests/bench/alloc_bench.c - what the extent allocator costs, and how long its extents stay on an
 * old, full drive
 *
 * Prints rows, asserts nothing. SPW_SEED repeats a run.
 */
#include "alloc/alloc.h"
#include "tests/bench/rows.h"
#include "tests/random.h"
#include "util/util.h"

#define BLOCK_BYTES   4096u
#define DRIVE_BLOCKS  (UINT64_C(1) << 24) /* 64 GiB */
#define LIVE_EXTENTS  1000000u
#define PAIRS         10000000u
#define OPS           10000000u
#define OBJECT_BLOCKS ((64u << 20) / BLOCK_BYTES)

/* What one layer of a GPT saves in a step, in blocks. */
static const uint32_t step_blocks[] = {1024, 2,    3072, 1024, 2048, 16, 1024,
				       1024, 4096, 4096, 1024, 245,  1};

static uint64_t random_state;

static struct spw_alloc *alloc;
static struct spw_extent *extents;
static uint32_t count;

static void drop(uint32_t which)
{
	spw_alloc__put(alloc, &extents[which]);
	extents[which] = extents[--count];
}

/* A cache miss: dependent reads through as much memory as the descriptors take. */
static uint64_t miss_ns(void)
{
	uint32_t slots = 2 * LIVE_EXTENTS, at = 0, *chain = calloc(slots, 8 * sizeof(*chain));
	uint64_t start_ns;

	if (!chain)
		must(-ENOMEM, "memory");
	for (uint32_t i = 0; i < slots; i++)
		chain[8 * i] = i;
	for (uint32_t i = slots - 1; i > 0; i--) { /* one cycle through all slots */
		uint32_t other = (uint32_t)(random_next(&random_state) % i), kept = chain[8 * i];
		chain[8 * i] = chain[8 * other];
		chain[8 * other] = kept;
	}
	start_ns = spw_clock_ns();
	for (uint32_t i = 0; i < slots; i++)
		at = chain[8 * (size_t)at];
	start_ns = spw_clock_ns() - start_ns +
		   (at != 0); /* one cycle: at is 0 again; the use keeps the loop */
	free(chain);
	return start_ns / slots;
}

enum order { NEWEST, OLDEST, RANDOM };

/* Which extent to free in turn i, of the @count in order of allocation. */
static uint32_t victim(enum order order, uint32_t i)
{
	if (order == RANDOM)
		return (uint32_t)(random_next(&random_state) % count);
	return order == OLDEST ? i % count : count - 1 - i % 1000;
}

static void bench_pairs(const char *name, enum order order)
{
	uint64_t start_ns;
	uint32_t which;

	must(spw_alloc__open(DRIVE_BLOCKS, 2 * LIVE_EXTENTS, &alloc), "allocator");
	for (count = 0; count < LIVE_EXTENTS; count++)
		must(spw_alloc__get(alloc, 1 + random_next(&random_state) % 24, &extents[count]),
		     "allocator");
	start_ns = spw_clock_ns();
	for (uint32_t i = 0; i < PAIRS; i++) {
		which = victim(order, i);
		spw_alloc__put(alloc, &extents[which]);
		must(spw_alloc__get(alloc, 1 + random_next(&random_state) % 24, &extents[which]),
		     "allocator");
	}
	bench_figure(name, (double)(spw_clock_ns() - start_ns) / PAIRS, "ns");
	spw_alloc__close(alloc);
}

/* Allocate steps until the drive is 95 % full. @vary: batches of varying length. */
static void fill(bool vary, uint32_t *step)
{
	while (spw_alloc__blocks_free(alloc) > DRIVE_BLOCKS / 20 && count < LIVE_EXTENTS) {
		uint64_t rest = step_blocks[(*step)++ % SPW_ARRAY_LEN(step_blocks)];
		if (vary)
			rest = rest / 2 + 1 + random_next(&random_state) % (rest + 1);
		while (rest > 0 && count < LIVE_EXTENTS) {
			if (spw_alloc__get_some(alloc, rest, &extents[count]))
				return;
			rest -= extents[count++].len_blocks;
		}
	}
}

/* 64 MiB objects into what is left: how long are their extents? */
static void report_large(const char *aging)
{
	uint64_t objects = 0, pieces = 0, rest, blocks_free = spw_alloc__blocks_free(alloc),
		 largest = 0;
	struct spw_extent extent;
	char name[128];

	for (uint64_t more = SPW_ALLOC_BLOCKS_MAX; more > 0; more /= 2) {
		if (spw_alloc__get(alloc, largest + more, &extent))
			continue;
		spw_alloc__put(alloc, &extent);
		largest += more;
	}
	(void)snprintf(name, sizeof(name), "%s: largest free extent", aging);
	bench_figure(name, (double)largest * BLOCK_BYTES / (1 << 20), "MiB");
	while (spw_alloc__blocks_free(alloc) > blocks_free / 2 + OBJECT_BLOCKS) {
		for (rest = OBJECT_BLOCKS; rest > 0; rest -= extent.len_blocks, pieces++)
			must(spw_alloc__get_some(alloc, rest, &extent), "allocator");
		objects++;
	}
	(void)snprintf(name, sizeof(name), "%s: extents of 64 MiB objects, mean", aging);
	bench_figure(name, pieces ? 64.0 * (double)objects / (double)pieces : 0, "MiB");
}

static void bench_aging(const char *name, uint64_t batch, bool vary)
{
	uint64_t start_ns = spw_clock_ns();
	uint32_t step = 0, ops = 0;
	char words[128];

	must(spw_alloc__open(DRIVE_BLOCKS, LIVE_EXTENTS + 100000, &alloc), "allocator");
	count = 0;
	fill(vary, &step);
	while (ops < OPS) {
		uint32_t before = count, which = (uint32_t)(random_next(&random_state) % count);
		/* One random extent, or a run, newest first, as in a backward pass. */
		for (uint64_t i = 0; i < batch && count > 1; i++, ops++)
			drop(batch == 1 ? which : (which + count - (uint32_t)i) % count);
		before = count;
		fill(vary, &step);
		ops += count - before;
	}
	(void)snprintf(words, sizeof(words), "95 %% full, %s: an operation", name);
	bench_figure(words, (double)(spw_clock_ns() - start_ns) / ops, "ns");
	if (spw_alloc__verify(alloc))
		must(-EUCLEAN, "allocator");
	report_large(name);
	spw_alloc__close(alloc);
}

int main(void)
{
	const char *seed = getenv("SPW_SEED");

	random_state = seed ? strtoull(seed, NULL, 0) : spw_clock_ns();
	(void)fprintf(stderr, "SPW_SEED=%llu\n", (unsigned long long)random_state);
	extents = calloc(LIVE_EXTENTS, sizeof(*extents));
	if (!extents)
		must(-ENOMEM, "memory");
	bench_figure("a cache miss", (double)miss_ns(), "ns");
	bench_pairs("1,000,000 extents, free and allocate: one of the 1000 newest", NEWEST);
	bench_pairs("1,000,000 extents, free and allocate: the oldest first", OLDEST);
	bench_pairs("1,000,000 extents, free and allocate: at random", RANDOM);
	bench_aging("random frees", 1, false);
	bench_aging("frees of whole layers", 13 * 12, false);
	bench_aging("random frees, varying lengths", 1, true);
	bench_aging("frees of whole layers, varying lengths", 13 * 12, true);
	free(extents);
	return 0;
}
