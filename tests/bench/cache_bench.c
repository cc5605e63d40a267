/* SPDX-License-Identifier: MIT */
/*
 * tests/bench/cache_bench.c - what the tensor cache costs for each tensor, and planning for each
 * step
 *
 *   cache_bench FOLDER
 *
 * Over a real store on a file in FOLDER. Prints a row per case. Only offers and takes are timed; a
 * round is a step of TENSORS, and the median of all rounds counts. Nothing is asserted.
 */
#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <spillway/spillway.h>

#include "tests/bench/rows.h"
#include "util/util.h"

#define TENSORS      1000u
#define TENSORS_PLAN 10000u
#define ROUNDS       41u
#define BATCH        200u
#define KEPT_BYTES   (1u << 20)
#define SMALL_BYTES  64u
#define DRIVE_BYTES  (UINT64_C(256) << 20)

static struct spw_store *store;
static uint8_t *memory;
static spw_tensor tensors[TENSORS_PLAN];
static uint64_t next_key;
static uint64_t small_bytes;

static void open_store(const char *path)
{
	struct spw_format_opts format;
	struct spw_store_opts opts;
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	if (fd < 0 || ftruncate(fd, (off_t)DRIVE_BYTES) || close(fd))
		must(spw_error_errno(-errno, "no drive"), path);
	spw_format_opts_init(&format, sizeof(format));
	must(spw_format(&path, 1, &format, NULL), "format");
	spw_store_opts_init(&opts, sizeof(opts));
	must(spw_store_open(&path, 1, &opts, &store), "open");
	must(spw_store_alloc(store, KEPT_BYTES, (void **)&memory), "memory");
	memset(memory, 1, KEPT_BYTES);
}

static struct spw_cache *open_cache(enum spw_cache_mode mode)
{
	struct spw_cache_opts opts;
	struct spw_cache *cache;

	spw_cache_opts_init(&opts, sizeof(opts));
	opts.mode = mode;
	opts.min_bytes = SMALL_BYTES;
	must(spw_cache_open(store, &opts, &cache), "cache");
	return cache;
}

static void offer(struct spw_cache *cache, unsigned which, uint64_t bytes, enum spw_cache_hint hint)
{
	struct spw_offer offer = {.storage_key = ++next_key,
				  .storage_bytes = memory,
				  .storage_len_bytes = bytes,
				  .len_bytes = bytes,
				  .owner = which + 1};

	must(spw_cache_offer_hint(cache, &offer, hint, &tensors[which]), "offer");
}

static void take(struct spw_cache *cache, unsigned which, uint64_t bytes)
{
	struct spw_taken taken;

	must(spw_cache_take(cache, tensors[which], 0, bytes, &taken), "take");
	if (taken.lease)
		spw_cache_return(cache, taken.lease);
}

static void release_all(struct spw_cache *cache, unsigned count)
{
	uint64_t owners[64];

	for (unsigned i = 0; i < count; i++)
		must(spw_cache_release(cache, tensors[i]), "release");
	while (spw_cache_drain(cache, owners, 64) > 0)
		;
}

static void report(const char *name, uint64_t *ns, unsigned count, double at_most_us)
{
	struct bench_row row = {.name = name, .unit = "us", .at_most = at_most_us};

	qsort(ns, count, sizeof(*ns), compare_ns);
	row.value = (double)ns[count / 2] / 1e3;
	row.low = (double)ns[0] / 1e3;
	row.high = (double)ns[count - 1] / 1e3;
	bench_row_print(&row);
}

/* A whole step's offers, then its takes in reverse order, as a training step does. */
static uint64_t step_kept(struct spw_cache *cache)
{
	uint64_t began_ns = spw_clock_ns();

	for (unsigned i = 0; i < TENSORS; i++)
		offer(cache, i, KEPT_BYTES, SPW_HINT_PIN);
	for (unsigned i = TENSORS; i-- > 0;)
		take(cache, i, KEPT_BYTES);
	return spw_clock_ns() - began_ns;
}

/* Cancelled writes have left the store: it has requests for the next ones. */
static void settle(void)
{
	struct spw_store_stats stats;

	do {
		(void)sched_yield();
		spw_store_stats(store, &stats, sizeof(stats));
	} while (stats.requests > 0);
}

/* Each is taken before its write is issued: forwarded, and the write cancelled. */
static uint64_t step_forwarded(struct spw_cache *cache)
{
	uint64_t began_ns, spent_ns = 0;

	spw_cache_stage(cache, 0, SPW_STAGE_FORWARD);
	for (unsigned i = 0; i < TENSORS; i += BATCH) {
		settle();
		began_ns = spw_clock_ns();
		for (unsigned k = i; k < i + BATCH; k++) {
			offer(cache, k, small_bytes, SPW_HINT_NONE);
			take(cache, k, small_bytes);
			/* The first take began a backward stage: offers would be kept. */
			if (k == 0) {
				spw_cache_stage(cache, 0, SPW_STAGE_BACKWARD);
				spw_cache_stage(cache, 1, SPW_STAGE_FORWARD);
			}
		}
		spent_ns += spw_clock_ns() - began_ns;
	}
	return spent_ns;
}

static void bench_steps(enum spw_cache_mode mode, uint64_t (*step)(struct spw_cache *cache),
			const char *name, double at_most_us)
{
	struct spw_cache *cache = open_cache(mode);
	struct spw_cache_stats stats;
	uint64_t ns[ROUNDS];

	for (unsigned round = 0; round < ROUNDS; round++) {
		/* Unlike any step before: a plan would keep what is taken at once. */
		small_bytes = SMALL_BYTES + round;
		spw_cache_step(cache);
		ns[round] = step(cache) / TENSORS;
		release_all(cache, TENSORS);
	}
	spw_cache_stats(cache, &stats, sizeof(stats));
	if (step == step_forwarded && stats.tensors_forwarded < (uint64_t)TENSORS * ROUNDS * 9 / 10)
		(void)fprintf(stderr, "cache_bench: only %llu of %u tensors were forwarded\n",
			      (unsigned long long)stats.tensors_forwarded, TENSORS * ROUNDS);
	report(name, ns, ROUNDS, at_most_us);
	spw_cache_close(cache);
}

/*
 * Steps of tensors of changing sizes, so that each needs a new plan: how long a search takes
 * beside a step, and what is left to do for it, and for all else, between two steps.
 */
static void bench_planning(void)
{
	struct spw_cache *cache = open_cache(SPW_CACHE_FASTEST);
	struct spw_cache_stats stats = {0};
	uint64_t ns[ROUNDS], plans = 0;
	unsigned count = 0;

	for (unsigned round = 0; round < 9; round++) {
		uint64_t bytes = (64 << 10) + round;

		spw_cache_step(cache);
		spw_cache_stats(cache, &stats, sizeof(stats));
		if (stats.plans > plans)
			ns[count++] = stats.plan_cost_ns;
		plans = stats.plans;
		spw_cache_stage(cache, 0, SPW_STAGE_FORWARD);
		for (unsigned i = 0; i < TENSORS_PLAN; i++)
			offer(cache, i, bytes, SPW_HINT_NONE);
		spw_cache_stage(cache, 0, SPW_STAGE_BACKWARD);
		for (unsigned i = TENSORS_PLAN; i-- > 0;)
			take(cache, i, bytes);
		release_all(cache, TENSORS_PLAN);
	}
	if (count > 0)
		report("planning a step of 10,000 tensors, beside another", ns, count, 10000);
	ns[0] = stats.step_cpu_ns_max;
	report("CPU time of the caller between two such steps, at most", ns, 1, 1000);
	spw_cache_close(cache);
}

int main(int argc, char **argv)
{
	char path[4096];

	if (argc != 2) {
		(void)fprintf(stderr, "usage: cache_bench FOLDER\n");
		return 2;
	}
	(void)snprintf(path, sizeof(path), "%s/cache-bench.drive", argv[1]);
	open_store(path);
	bench_steps(SPW_CACHE_SPILL, step_kept, "offer + take, kept, fixed rule", 0.5);
	bench_steps(SPW_CACHE_FASTEST, step_kept, "offer + take, kept, planning", 0.5);
	bench_steps(SPW_CACHE_SPILL, step_forwarded, "offer + take, forwarded, fixed rule", 1);
	bench_steps(SPW_CACHE_FASTEST, step_forwarded, "offer + take, forwarded, planning", 1);
	bench_planning();
	spw_store_release(store, memory);
	spw_store_close(store);
	if (unlink(path))
		perror(path);
	return 0;
}
