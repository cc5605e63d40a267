/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_plan.c - the planner: its simulation against a naive one, its plans against all
 * plans of small steps
 *
 * SPW_SEED repeats a run. Under a sanitizer or valgrind there are fewer cases, and the run says so.
 */
/* link: tools/replay/positional libspillway */
#include <errno.h>

#include "tests/case.h"
#include "tests/random.h"

#include <spillway/plan.h>

#include "tests/unit/plan_naive.h"
#include "tools/replay/positional.h"
#include "util/util.h"

#define TENSORS_MAX 2048
#define MILLISECOND 1000000u

static uint64_t seed;
/*
 * How near the best a plan comes is a figure about many cases, with no bound that each of them
 * keeps: where it is required, the cases are always the same ones. SPW_SEED draws others.
 */
static uint64_t figures_seed = 20261119;

#define CASES 500 /* per random test; under a sanitizer or valgrind fewer */
static unsigned cases = CASES;

/* What a run under a sanitizer takes longer, about: so it takes as long. */
#if defined(__SANITIZE_THREAD__)
#define SLOWER 40u
#elif defined(__SANITIZE_ADDRESS__)
#define SLOWER 8u
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SLOWER 40u
#elif __has_feature(address_sanitizer) || __has_feature(memory_sanitizer)
#define SLOWER 8u
#endif
#endif
#ifndef SLOWER
#define SLOWER 1u
#endif

static uint64_t random_between(uint64_t *random, uint64_t low, uint64_t high)
{
	return low + random_next(random) % (high - low + 1);
}

/* ---- Steps ---- */

static struct world {
	struct spw_plan_tensor tensors[TENSORS_MAX];
	struct spw_plan_step step;
	uint64_t calls_ns[NAIVE_CALLS_MAX];
	struct spw_plan_drives drives;
	enum spw_plan_choice choices[TENSORS_MAX];
	struct spw_plan_result result;
} world;

static void begin_world(void)
{
	memset(&world, 0, sizeof(world));
	world.step.tensors = world.tensors;
	world.result.size = sizeof(world.result);
}

static void add_tensor(uint64_t bytes, uint64_t pack_ns, uint64_t use_ns, uint64_t release_ns)
{
	uint32_t i = world.step.count++;

	world.tensors[i] = (struct spw_plan_tensor){.bytes = bytes,
						    .pack_ns = pack_ns,
						    .use_ns = use_ns,
						    .release_ns = release_ns,
						    .users = 1,
						    .scope = i};
}

/* Forward and backward passes of @batches micro-batches, at most @ahead forward passes ahead. */
static void make_training(uint64_t *random, uint32_t each, uint32_t batches, uint32_t ahead,
			  bool vary)
{
	uint64_t packs[TENSORS_MAX], now_ns = 0;
	uint32_t forward = 0;

	begin_world();
	for (uint32_t back = 0; back < batches;) {
		if (forward < batches && forward < back + ahead) {
			for (uint32_t i = 0; i < each; i++) {
				packs[forward * each + i] = now_ns;
				now_ns += vary ? random_between(random, 50000, 3 * MILLISECOND)
					       : MILLISECOND;
			}
			forward++;
			continue;
		}
		for (uint32_t i = each; i-- > 0;) {
			uint64_t took_ns = vary ? random_between(random, 100000, 6 * MILLISECOND)
						: 2 * MILLISECOND;
			uint64_t bytes =
				vary ? random_between(random, 1, 64) << 20 : (1 + i % 5) << 22;

			add_tensor(bytes, packs[back * each + i], now_ns, now_ns + took_ns);
			now_ns += took_ns;
		}
		back++;
	}
	world.step.forward_ns = now_ns / 3;
	world.step.backward_ns = now_ns - now_ns / 3;
}

/* Uses in any order, some tensors never used, some pinned. */
static void make_disorder(uint64_t *random, uint32_t count)
{
	begin_world();
	for (uint32_t i = 0; i < count; i++) {
		uint64_t pack_ns = random_between(random, 0, 50 * MILLISECOND);
		uint64_t use_ns = pack_ns + random_between(random, 0, 80 * MILLISECOND);

		add_tensor(random_between(random, 1, 64) << 20, pack_ns, use_ns,
			   use_ns + random_between(random, 0, 20 * MILLISECOND));
		if (random_next(random) % 10 == 0)
			world.tensors[i].users = 0;
		if (random_next(random) % 12 == 0)
			world.tensors[i].must_keep = true;
	}
	world.step.forward_ns = 50 * MILLISECOND;
	world.step.backward_ns = 100 * MILLISECOND;
}

static int compare_times(const void *left, const void *right)
{
	uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;

	return a < b ? -1 : a > b;
}

static void add_calls(uint64_t *random)
{
	world.step.calls_ns = world.calls_ns;
	world.step.calls = (uint32_t)random_between(random, 0, NAIVE_CALLS_MAX);
	for (uint32_t i = 0; i < world.step.calls; i++)
		world.calls_ns[i] =
			random_between(random, 0, world.step.forward_ns + world.step.backward_ns);
	qsort(world.calls_ns, world.step.calls, sizeof(world.calls_ns[0]), compare_times);
}

static void make_any(uint64_t *random, uint32_t count)
{
	switch (random_next(random) % 3) {
	case 0: make_training(random, count, 1, 1, true); break;
	case 1:
		make_training(random, count / 2, 2, (uint32_t)random_between(random, 1, 2), true);
		break;
	default: make_disorder(random, count); break;
	}
	if (random_next(random) % 2)
		add_calls(random);
}

static void set_drives(uint64_t write, uint64_t read, uint64_t mixed)
{
	world.drives = (struct spw_plan_drives){.write_bytes_per_second = write,
						.read_bytes_per_second = read,
						.mixed_bytes_per_second = mixed};
}

/* From a tenth of what the steps above need to ten times that. */
static void random_drives(uint64_t *random)
{
	uint64_t scale = UINT64_C(1) << random_between(random, 0, 6);

	set_drives(random_between(random, 1, 1000) * scale << 20,
		   random_between(random, 1, 1000) * scale << 20, 0);
	if (random_next(random) % 2)
		world.drives.mixed_bytes_per_second = random_between(random, 1, 1500) * scale << 20;
	if (random_next(random) % 2)
		world.drives.latency_ns = random_between(random, 0, 500000);
	if (random_next(random) % 2)
		world.drives.chunk_bytes = random_between(random, 0, 4) << 20;
	if (random_next(random) % 4 == 0)
		world.drives.staging_bytes = random_between(random, 16, 512) << 20;
}

/* The profile of the last simulation. */
static struct spw_plan_point points[TENSORS_MAX * SPW_PLAN_POINTS_PER_TENSOR];

static struct spw_plan_result result_of(const enum spw_plan_choice *choices, uint64_t memory)
{
	struct spw_plan_result result = {.size = sizeof(result)};

	assert_int_equal(0, spw_plan_simulate(&world.step, &world.drives, memory, choices, points,
					      SPW_ARRAY_LEN(points), &result));
	return result;
}

static void simulate(uint64_t memory)
{
	world.result = result_of(world.choices, memory);
}

static void plan_within(enum spw_plan_mode mode, uint64_t memory, uint64_t written_max)
{
	struct spw_plan_opts opts;

	spw_plan_opts_init(&opts, sizeof(opts));
	opts.mode = mode;
	opts.memory_bytes = memory;
	opts.bytes_written_max = written_max;
	assert_int_equal(0,
			 spw_plan(&world.step, &world.drives, &opts, world.choices, &world.result));
}

static void plan(enum spw_plan_mode mode, uint64_t memory)
{
	plan_within(mode, memory, 0);
}

/* ---- The simulation ---- */

static void check_profile(void)
{
	uint64_t peak = 0, last_ns = 0;

	for (uint32_t k = 0; k < world.result.points; k++) {
		assert_true(points[k].ns >= last_ns);
		last_ns = points[k].ns;
		peak = points[k].bytes > peak ? points[k].bytes : peak;
	}
	assert_true(peak == world.result.peak_bytes);
	assert_true(world.result.points == 0 || world.step.count > 0);
}

/* From a tenth of what the drives may have, to twice as much. */
static void random_bus(uint64_t *random)
{
	world.drives.bus_out_bytes_per_second = random_between(random, 100, 128000) << 20;
	world.drives.bus_in_bytes_per_second = random_between(random, 100, 128000) << 20;
}

static void simulate_cases(uint64_t random, bool behind_bus)
{
	const struct spw_plan_result *result = &world.result;
	static struct naive naive;
	unsigned stalled = 0, forwarded = 0;

	for (unsigned k = 0; k < cases; k++) {
		make_any(&random, (uint32_t)random_between(&random, 2, NAIVE_TENSORS_MAX));
		random_drives(&random);
		if (behind_bus)
			random_bus(&random);
		for (uint32_t i = 0; i < world.step.count; i++)
			world.choices[i] =
				random_next(&random) % 4 ? SPW_PLAN_SPILL : SPW_PLAN_KEEP;
		uint64_t memory = random_next(&random) % 4 ? random_between(&random, 32, 2000) << 20
							   : UINT64_MAX;

		naive_open(&naive, &world.step, &world.drives, (double)memory, world.choices);
		assert_true(naive_simulate(&naive));
		simulate(memory);
		assert_true(result->peak_bytes == (uint64_t)naive.peak);
		assert_true(result->bytes_written == (uint64_t)naive.written);
		assert_true(result->bytes_read == (uint64_t)naive.bytes_read);
		assert_true((double)result->stall_ns <= naive.stall + 2 &&
			    (double)result->stall_ns >= naive.stall - 2);
		assert_true(result->feasible == (result->peak_bytes <= memory));
		check_profile();
		stalled += result->stall_ns > 0;
		forwarded += result->bytes_forwarded > 0;
	}
	/* The cases are worth something. */
	assert_true(stalled > cases / 10 && stalled < cases);
	assert_true(forwarded > cases / 10);
}

/* Also with host memory, in which some of what is spilled stays, and without drives. */
static void simulate_with_host(uint64_t random)
{
	const struct spw_plan_result *result = &world.result;
	static struct naive naive;
	unsigned stalled = 0, hosted = 0, refused = 0;

	for (unsigned k = 0; k < cases; k++) {
		double marked = 0;

		make_any(&random, (uint32_t)random_between(&random, 2, NAIVE_TENSORS_MAX));
		random_drives(&random);
		if (random_next(&random) % 4 == 0)
			set_drives(0, 0, 0);
		random_bus(&random);
		world.drives.host_bytes = random_between(&random, 1, 2000) << 20;
		for (uint32_t i = 0; i < world.step.count; i++) {
			enum spw_plan_choice spill = world.drives.write_bytes_per_second > 0
							     ? SPW_PLAN_SPILL
							     : SPW_PLAN_KEEP;

			world.choices[i] = random_next(&random) % 2   ? SPW_PLAN_HOST
					   : random_next(&random) % 2 ? spill
								      : SPW_PLAN_KEEP;
			if (world.choices[i] == SPW_PLAN_HOST)
				marked += (double)world.tensors[i].bytes;
		}
		uint64_t memory = random_next(&random) % 4 ? random_between(&random, 32, 2000) << 20
							   : UINT64_MAX;

		naive_open(&naive, &world.step, &world.drives, (double)memory, world.choices);
		assert_true(naive_simulate(&naive));
		simulate(memory);
		assert_true(result->peak_bytes == (uint64_t)naive.peak);
		assert_true(result->bytes_written == (uint64_t)naive.written);
		assert_true(result->bytes_read == (uint64_t)naive.bytes_read);
		assert_true(result->bytes_host == (uint64_t)naive.hosted);
		assert_true((double)result->stall_ns <= naive.stall + 2 &&
			    (double)result->stall_ns >= naive.stall - 2);
		assert_true(world.drives.write_bytes_per_second > 0 || result->bytes_written == 0);
		stalled += result->stall_ns > 0;
		hosted += result->bytes_host > 0;
		refused += (double)result->bytes_host < marked;
	}
	assert_true(stalled > cases / 10 && stalled < cases);
	assert_true(hosted > cases / 2 && refused > cases / 10);
}

CASE(test_simulation_with_host_memory)
{
	simulate_with_host(seed);
}

CASE(test_simulation)
{
	simulate_cases(seed, false);
}

CASE(test_simulation_behind_a_bus)
{
	simulate_cases(seed, true);
}

/* In one of these a read and a write are served at the same time, but for rounding. */
CASE(test_simulation_at_once)
{
	simulate_cases(UINT64_C(13172861365677311085), false);
}

/*
 * One tensor whose figures can be worked out by hand: 100 bytes, written at 1 byte/ns, read at 2, 5
 * ns of latency. That it has been written shows when another is packed.
 */
CASE(test_one_tensor)
{
	begin_world();
	add_tensor(100, 1000, 2000, 2500);
	add_tensor(1, 1200, 1300, 1300);
	world.tensors[1].must_keep = true;
	world.step.forward_ns = 1500;
	world.step.backward_ns = 1000;
	set_drives(1000000000, 2000000000, 1000000000);
	world.drives.latency_ns = 5;
	world.choices[0] = SPW_PLAN_SPILL;
	world.choices[1] = SPW_PLAN_KEEP;

	/* No memory for prefetching: the use waits for 50 ns of transfer and 5 ns of latency. */
	simulate(0);
	assert_int_equal(55, world.result.stall_ns);
	assert_int_equal(2555, world.result.wall_ns);
	assert_int_equal(100, world.result.bytes_written);
	assert_int_equal(100, world.result.bytes_read);
	/* the second is packed before the first is freed */
	assert_int_equal(101, world.result.peak_bytes);
	assert_int_equal(6, world.result.points);
	assert_int_equal(1000, points[0].ns);
	assert_int_equal(1200, points[1].ns);
	assert_int_equal(1200, points[2].ns);
	assert_int_equal(1, points[2].bytes);
	assert_int_equal(1300, points[3].ns);
	assert_int_equal(2000, points[4].ns);
	assert_int_equal(2555, points[5].ns);

	/* Nothing happens until its use: it is still in memory. */
	world.tensors[1].pack_ns = world.tensors[1].use_ns = world.tensors[1].release_ns = 1100;
	simulate(100);
	assert_int_equal(0, world.result.bytes_read);
	assert_int_equal(100, world.result.bytes_forwarded);
	world.tensors[1].pack_ns = world.tensors[1].use_ns = world.tensors[1].release_ns = 1200;

	/* It does not fit where writes wait: kept. */
	world.drives.staging_bytes = 99;
	simulate(0);
	assert_int_equal(0, world.result.bytes_written);
	assert_int_equal(0, world.result.bytes_forwarded);
	assert_int_equal(0, world.result.stall_ns);
	world.drives.staging_bytes = 0;

	/* Used while its write is under way: nothing to read, and the bytes count as written. */
	world.tensors[0].use_ns = world.tensors[0].release_ns = 1050;
	simulate(100);
	assert_int_equal(0, world.result.stall_ns);
	assert_int_equal(0, world.result.bytes_read);
	assert_int_equal(100, world.result.bytes_forwarded);

	/* Nothing is gained by spilling it: the peak is at the pack of the second. */
	world.tensors[0].use_ns = world.tensors[0].release_ns = 2000;
	plan(SPW_PLAN_FASTEST, 0);
	assert_int_equal(SPW_PLAN_KEEP, world.choices[0]);
	plan(SPW_PLAN_BUDGET, 99);
	assert_false(world.result.feasible);
	assert_int_equal(101, world.result.peak_bytes);
}

/*
 * The same tensor of a device, whose bus copies 0.5 bytes/ns out and 4 in: out of its memory in 200
 * ns, and back in time if the read begins 50 + 25 + 5 ns before the use.
 */
CASE(test_one_tensor_of_a_device)
{
	begin_world();
	add_tensor(100, 1000, 2000, 2500);
	add_tensor(1, 1200, 1300, 1300);
	add_tensor(1, 1500, 1600, 1600);
	world.tensors[1].must_keep = world.tensors[2].must_keep = true;
	world.step.forward_ns = 1500;
	world.step.backward_ns = 1000;
	set_drives(1000000000, 2000000000, 1000000000);
	world.drives.latency_ns = 5;
	world.drives.bus_out_bytes_per_second = 500000000;
	world.drives.bus_in_bytes_per_second = 4000000000;
	world.choices[0] = SPW_PLAN_SPILL;
	world.choices[1] = world.choices[2] = SPW_PLAN_KEEP;

	/* Its copy has ended, and its write has not: the second tensor's packing gives it back. */
	simulate(0);
	assert_int_equal(1200, points[2].ns);
	assert_int_equal(1, points[2].bytes);
	assert_int_equal(100, world.result.bytes_read);
	assert_int_equal(80, world.result.stall_ns);

	/* A slower bus: the third one's. */
	world.drives.bus_out_bytes_per_second = 400000000;
	simulate(0);
	assert_int_equal(1500, points[4].ns);
	assert_int_equal(1, points[4].bytes);
	world.drives.bus_out_bytes_per_second = 500000000;

	/* Used while it is written: copied back from where it is written from. */
	world.tensors[0].use_ns = 1250;
	simulate(0);
	assert_int_equal(30, world.result.stall_ns);
	assert_int_equal(0, world.result.bytes_read);
	assert_int_equal(100, world.result.bytes_written);
	assert_int_equal(100, world.result.bytes_forwarded);

	/* Behind another that is still written: its own write does not begin. */
	world.tensors[1].must_keep = false;
	world.tensors[1].bytes = 100;
	world.choices[1] = SPW_PLAN_SPILL;
	world.tensors[1].use_ns = 1650;
	world.tensors[1].release_ns = 1660;
	world.drives.write_bytes_per_second = 100000000;
	simulate(0);
	assert_int_equal(60, world.result.stall_ns);
	assert_int_equal(0, world.result.bytes_read);
	assert_int_equal(100, world.result.bytes_written);
	assert_int_equal(200, world.result.bytes_forwarded);
}

/* ---- Budget ---- */

/* One of all choices. Return: it spills nothing that must stay. */
static bool choose(uint32_t mask, enum spw_plan_choice *choices)
{
	bool allowed = true;

	for (uint32_t i = 0; i < world.step.count; i++) {
		choices[i] = mask >> i & 1 ? SPW_PLAN_SPILL : SPW_PLAN_KEEP;
		allowed &= !(mask >> i & 1) || !world.tensors[i].must_keep;
	}
	return allowed;
}

/* The fewest bytes, and the lowest peak, of all choices. */
static bool best_of_all(uint64_t memory, uint64_t *bytes, uint64_t *peak)
{
	enum spw_plan_choice choices[16];
	bool feasible = false;

	*bytes = *peak = UINT64_MAX;
	for (uint32_t mask = 0; mask < 1u << world.step.count; mask++) {
		struct spw_plan_result result;

		if (!choose(mask, choices))
			continue;
		result = result_of(choices, memory);
		*peak = result.peak_bytes < *peak ? result.peak_bytes : *peak;
		if (result.peak_bytes > memory)
			continue;
		feasible = true;
		*bytes = result.bytes_written < *bytes ? result.bytes_written : *bytes;
	}
	return feasible;
}

/* The plan of a budget that cannot be met is one for the peak that it has. */
static void require_nearest(void)
{
	struct spw_plan_result same = result_of(world.choices, world.result.memory_bytes);

	assert_true(same.peak_bytes == world.result.peak_bytes &&
		    same.stall_ns == world.result.stall_ns);
}

CASE(test_budget_against_all)
{
	uint64_t random = figures_seed;
	unsigned feasible = 0, near = 0, exact = 0, infeasible = 0;

	while (feasible < cases) {
		uint64_t bytes, peak, memory;

		make_any(&random, (uint32_t)random_between(&random, 2, 10));
		random_drives(&random);
		plan(SPW_PLAN_FASTEST, 0);
		memory = world.result.peak_keep_all_bytes * random_between(&random, 50, 98) / 100;
		plan(SPW_PLAN_BUDGET, memory);
		if (!best_of_all(memory, &bytes, &peak)) {
			assert_true(!world.result.feasible);
			assert_true(world.result.peak_bytes >= peak);
			require_nearest();
			infeasible++;
			continue;
		}
		feasible++;
		assert_true(world.result.feasible);
		assert_true(world.result.peak_bytes <= memory);
		assert_true(world.result.bytes_written >= bytes);
		exact += world.result.bytes_written == bytes;
		near += (double)world.result.bytes_written <= 1.05 * (double)bytes;
	}
	print_message("budget: %u feasible cases, %u within 5 %%, %u exact; %u infeasible\n",
		      feasible, near, exact, infeasible);
	assert_true(near >= cases * 95 / 100);
}

/* It prefetches into memory that it takes anyway: no stall, but for a peak below fastest's. */
CASE(test_budget_out_of_reach)
{
	static const uint64_t gib_per_second[] = {1, 5, 10};
	uint64_t random = seed;

	for (unsigned i = 0; i < SPW_ARRAY_LEN(gib_per_second); i++) {
		struct spw_plan_result fastest;

		make_training(&random, 100, 1, 1, false);
		set_drives(gib_per_second[i] << 30, gib_per_second[i] << 30, 0);
		plan(SPW_PLAN_FASTEST, 0);
		fastest = world.result;
		plan(SPW_PLAN_BUDGET, 1);
		assert_true(!world.result.feasible);
		assert_true(world.result.peak_bytes <= fastest.peak_bytes);
		assert_true(world.result.memory_bytes == world.result.peak_bytes);
		assert_true(world.result.peak_bytes < fastest.peak_bytes ||
			    world.result.stall_ns == 0);
		require_nearest();
	}
}

CASE(test_budget_of_everything)
{
	uint64_t random = figures_seed;

	make_training(&random, 200, 1, 1, true);
	set_drives(UINT64_C(64) << 30, UINT64_C(64) << 30, 0);
	plan(SPW_PLAN_BUDGET, UINT64_MAX);
	assert_true(world.result.feasible && world.result.tensors_spilled == 0 &&
		    world.result.bytes_written == 0);
	for (unsigned percent = 90; percent >= 20; percent -= 10) {
		uint64_t all = world.result.peak_keep_all_bytes, memory = all / 100 * percent;

		plan(SPW_PLAN_BUDGET, memory);
		assert_true(world.result.feasible && world.result.peak_bytes <= memory);
		/* What is above the budget at the peak must be written; one tensor more may be. */
		assert_true(world.result.bytes_written >= all - memory);
		assert_true(world.result.bytes_written <= all - memory + (UINT64_C(64) << 20));
	}
	plan(SPW_PLAN_BUDGET, 0);
	assert_true(!world.result.feasible && world.result.peak_bytes > 0);
	assert_true(world.result.peak_bytes < world.result.peak_keep_all_bytes / 4);
}

/* ---- Fastest ---- */

static void check_fastest(void)
{
	struct spw_plan_result again;

	plan(SPW_PLAN_FASTEST, 0);
	assert_true(world.result.feasible && world.result.stall_ns == 0);
	assert_true(world.result.peak_bytes <= world.result.peak_keep_all_bytes);
	for (uint32_t i = 0; i < world.step.count; i++)
		assert_true(!world.tensors[i].must_keep || world.choices[i] == SPW_PLAN_KEEP);
	again = result_of(world.choices, world.result.memory_bytes);
	assert_true(again.stall_ns == 0 && again.peak_bytes == world.result.peak_bytes);
	assert_true(again.bytes_written == world.result.bytes_written &&
		    again.bytes_read == world.result.bytes_read);
}

CASE(test_fastest_never_stalls)
{
	uint64_t random = seed;
	unsigned lower = 0;

	for (unsigned k = 0; k < cases / 4; k++) {
		make_any(&random, (uint32_t)random_between(&random, 1, 100));
		random_drives(&random);
		check_fastest();
		lower += world.result.peak_bytes < world.result.peak_keep_all_bytes;
	}
	assert_true(lower > cases / 16);
}

/* The lowest peak without a stall of all choices that write so much, and all depths of reading. */
static uint64_t lowest_of_all(uint64_t written_max)
{
	uint64_t lowest = world.result.peak_keep_all_bytes;
	enum spw_plan_choice choices[16];

	for (uint32_t mask = 1; mask < 1u << world.step.count; mask++) {
		bool allowed = choose(mask, choices);

		/* Memory is a sum of sizes, all of which are multiples of 1 MiB. */
		for (uint64_t memory = lowest; allowed && memory > 0 && memory <= lowest;
		     memory -= 1u << 20) {
			struct spw_plan_result result = result_of(choices, memory);

			if (result.stall_ns > 0 || result.bytes_written > written_max)
				break;
			lowest = result.peak_bytes < lowest ? result.peak_bytes : lowest;
			memory = result.peak_bytes < memory ? result.peak_bytes : memory;
		}
	}
	return lowest;
}

CASE(test_fastest_against_all)
{
	uint64_t random = figures_seed;
	unsigned lower = 0, near = 0, exact = 0;

	while (lower < cases / 8) {
		uint64_t lowest;

		make_any(&random, (uint32_t)random_between(&random, 2, 7));
		random_drives(&random);
		plan(SPW_PLAN_FASTEST, 0);
		lowest = lowest_of_all(UINT64_MAX);
		if (lowest == world.result.peak_keep_all_bytes)
			continue;
		lower++;
		exact += world.result.peak_bytes <= lowest;
		near += (double)world.result.peak_bytes <= 1.05 * (double)lowest;
	}
	print_message(
		"fastest: %u cases that can be lowered, %u within 5 %% of the lowest, %u exact\n",
		lower, near, exact);
	assert_true(near >= lower * 95 / 100);
}

/*
 * The same step on drives from far too slow to far too fast: the peak only falls. What is left when
 * no tensor more fits depends on the sizes, and may rise by less than one tensor: @slack_bytes.
 */
static void check_monotone(uint64_t slack_bytes)
{
	/* about what is saved in a second of the forward pass */
	const double need = 20.0 * (1 << 30);
	uint64_t last = UINT64_MAX, first = 0;

	for (double factor = 0.02; factor < 50; factor *= cases < CASES ? 1.6 : 1.09) {
		uint64_t bandwidth = (uint64_t)(factor * need);

		set_drives(bandwidth, bandwidth + bandwidth / 5, bandwidth + bandwidth / 10);
		world.drives.latency_ns = 20000;
		check_fastest();
		if (first == 0)
			first = last = world.result.peak_bytes;
		assert_true(world.result.peak_bytes <= last + slack_bytes);
		last = world.result.peak_bytes < last ? world.result.peak_bytes : last;
	}
	assert_true(last < first);
}

#define LARGEST_BYTES (UINT64_C(64) << 20) /* of make_training() */

CASE(test_fastest_is_monotone)
{
	uint64_t random = figures_seed;

	make_training(&random, 100, 1, 1, false);
	check_monotone(0);
	for (unsigned k = 0; k < cases / 200; k++) {
		bool single = k % 2;
		uint32_t batches = single ? 1 : (uint32_t)random_between(&random, 2, 8);

		make_training(&random, (uint32_t)random_between(&random, 20, single ? 150 : 40),
			      batches, (uint32_t)random_between(&random, 1, 4), single || k % 4);
		check_monotone(LARGEST_BYTES);
	}
}

CASE(test_fastest_keeps_the_last)
{
	uint64_t random = seed;
	uint64_t early = 0, late = 0;

	make_training(&random, 100, 1, 1, false);
	set_drives(UINT64_C(5) << 30, UINT64_C(20) << 30, 0);
	check_fastest();
	/* The tensors are in the order of use: the first ones were packed last. */
	for (uint32_t i = 0; i < 20; i++) {
		late += world.choices[i] == SPW_PLAN_SPILL;
		early += world.choices[99 - i] == SPW_PLAN_SPILL;
	}
	assert_in_range(late, 0, 1); /* but for one that happens to have the size that fits */
	assert_int_equal(20, early);
}

/* ---- A limit of what is written ---- */

/* Never more, in any mode, whatever the step; and no plan changes that writes no more anyway. */
CASE(test_limit_is_kept)
{
	uint64_t random = seed;
	unsigned limited = 0;

	for (unsigned k = 0; k < cases / 2; k++) {
		enum spw_plan_mode mode = k % 2 ? SPW_PLAN_BUDGET : SPW_PLAN_FASTEST;
		struct spw_plan_result free_plan, again;
		uint64_t memory, max;

		make_any(&random, (uint32_t)random_between(&random, 1, 60));
		random_drives(&random);
		plan(SPW_PLAN_FASTEST, 0);
		memory = world.result.peak_keep_all_bytes * random_between(&random, 10, 98) / 100;
		plan(mode, memory);
		free_plan = world.result;
		assert_true(!free_plan.limited);
		max = free_plan.bytes_written * random_between(&random, 0, 120) / 100 + 1;
		plan_within(mode, memory, max);
		assert_true(world.result.bytes_written <= max);
		assert_true(world.result.peak_bytes <= world.result.peak_keep_all_bytes);
		assert_true(mode == SPW_PLAN_BUDGET || world.result.stall_ns == 0);
		again = result_of(world.choices, world.result.memory_bytes);
		assert_true(again.bytes_written == world.result.bytes_written &&
			    again.peak_bytes == world.result.peak_bytes);
		if (free_plan.bytes_written > max)
			assert_true(world.result.limited);
		limited += world.result.limited;
	}
	assert_true(limited > cases / 20);
	plan_within(SPW_PLAN_FASTEST, 0, 1);
	assert_int_equal(0, world.result.tensors_spilled);
}

CASE(test_limit_against_all)
{
	uint64_t random = figures_seed;
	unsigned limited = 0, near = 0, exact = 0;

	while (limited < cases / 8) {
		uint64_t lowest, max;

		make_any(&random, (uint32_t)random_between(&random, 2, 7));
		random_drives(&random);
		plan(SPW_PLAN_FASTEST, 0);
		if (world.result.bytes_written == 0)
			continue;
		max = world.result.bytes_written * random_between(&random, 30, 99) / 100;
		plan_within(SPW_PLAN_FASTEST, 0, max);
		lowest = lowest_of_all(max);
		limited++;
		exact += world.result.peak_bytes <= lowest;
		near += (double)world.result.peak_bytes <= 1.05 * (double)lowest;
	}
	print_message("limit: %u cases, %u within 5 %% of the lowest, %u exact\n", limited, near,
		      exact);
	assert_true(near >= limited * 95 / 100);
}

/* The more may be written the lower the peak; half of it takes about half of what falls. */
CASE(test_limit_of_many_tensors)
{
	uint64_t random = figures_seed, lowest, all, highest, last = UINT64_MAX;

	make_training(&random, 1000, 1, 1, true);
	set_drives(UINT64_C(50) << 30, UINT64_C(50) << 30, 0);
	plan(SPW_PLAN_FASTEST, 0);
	lowest = world.result.peak_bytes;
	highest = world.result.peak_keep_all_bytes;
	all = world.result.bytes_written;
	for (uint64_t percent = 10; percent <= 100; percent += 10) {
		uint64_t max = all * percent / 100, share = (highest - lowest) * percent / 100;

		plan_within(SPW_PLAN_FASTEST, 0, max);
		assert_true(world.result.bytes_written <= max);
		assert_true(world.result.bytes_written >= max - max / 20);
		assert_true(world.result.peak_bytes <= last);
		assert_true(world.result.peak_bytes <= highest - share + (highest - lowest) / 20);
		last = world.result.peak_bytes;
	}
	assert_true(last == lowest);
}

/* ---- SSDTrain's rule ---- */

/* Four scopes of 100 bytes and 10 s each, backward twice as long. */
static void make_four_scopes(void)
{
	const uint64_t second = UINT64_C(1000000000);

	begin_world();
	for (uint64_t i = 0; i < 4; i++)
		add_tensor(100, 10 * i * second, (40 + 20 * (3 - i)) * second,
			   (60 + 20 * (3 - i)) * second);
	world.step.forward_ns = 40 * second;
	world.step.backward_ns = 80 * second;
}

static unsigned positional_spills(uint64_t bandwidth)
{
	set_drives(bandwidth, bandwidth, 0);
	assert_ok(replay_positional_simulate(&world.step, &world.drives, world.choices,
					     &world.result));
	for (uint32_t i = 0; i < world.result.tensors_spilled; i++)
		assert_int_equal(SPW_PLAN_SPILL, world.choices[i]);
	return world.result.tensors_spilled;
}

CASE(test_positional_rule)
{
	static const unsigned rates[][2] = {{1, 0}, {2, 1}, {3, 2}, {4, 2}, {5, 3}, {8, 3}, {9, 4}};

	make_four_scopes();
	/* V / T for each scope as the first one kept: 200/120, 300/100, 400/80, 500/60 bytes/s. */
	for (uint64_t i = 0; i < SPW_ARRAY_LEN(rates); i++)
		assert_int_equal(positional_spills(rates[i][0]), rates[i][1]);
}

CASE(test_fastest_beats_positional)
{
	uint64_t random = seed;
	unsigned compared = 0, lower = 0, higher = 0;

	for (unsigned k = 0; k < cases / 4; k++) {
		uint64_t peak;

		make_training(&random, (uint32_t)random_between(&random, 10, 60),
			      (uint32_t)random_between(&random, 1, 4),
			      (uint32_t)random_between(&random, 1, 4), true);
		random_drives(&random);
		assert_ok(replay_positional_simulate(&world.step, &world.drives, world.choices,
						     &world.result));
		if (world.result.stall_ns > 0)
			continue;
		peak = world.result.peak_bytes;
		plan(SPW_PLAN_FASTEST, 0);
		compared++;
		higher += world.result.peak_bytes > peak;
		lower += world.result.peak_bytes < peak;
	}
	print_message("of %u steps on which the positional rule does not stall, the peak is lower "
		      "on %u\n",
		      compared, lower);
	assert_true(compared > cases / 40);
	/* The search is greedy: a cut by position is better now and then. */
	assert_true(10 * higher <= compared && 2 * lower > compared);
}

/* ---- The edges ---- */

CASE(test_no_tensors)
{
	begin_world();
	set_drives(1 << 30, 1 << 30, 0);
	for (unsigned mode = SPW_PLAN_FASTEST; mode <= SPW_PLAN_BUDGET; mode++) {
		plan(mode, 0);
		assert_true(world.result.feasible);
		assert_int_equal(0, world.result.peak_bytes);
		assert_int_equal(0, world.result.stall_ns);
	}
	world.step.forward_ns = 5;
	world.step.backward_ns = 6;
	world.result = result_of(NULL, 0);
	assert_int_equal(11, world.result.wall_ns);
}

CASE(test_no_bandwidth)
{
	uint64_t random = seed;

	make_training(&random, 30, 1, 1, true);
	for (unsigned which = 0; which < 3; which++) {
		set_drives(which == 1 ? 1 << 30 : 0, which == 2 ? 1 << 30 : 0, 0);
		for (unsigned mode = SPW_PLAN_FASTEST; mode <= SPW_PLAN_BUDGET; mode++) {
			plan(mode, 1);
			assert_int_equal(0, world.result.tensors_spilled);
			assert_int_equal(world.result.peak_keep_all_bytes, world.result.peak_bytes);
			assert_int_equal(mode != SPW_PLAN_BUDGET, world.result.feasible);
		}
		for (uint32_t i = 0; i < world.step.count; i++)
			world.choices[i] = SPW_PLAN_SPILL;
		simulate(0);
		/* What was written can never be read; what could not be written is forwarded. */
		if (which == 1) {
			assert_true(world.result.stall_ns == SPW_PLAN_STALL_FOREVER);
			continue;
		}
		assert_int_equal(0, world.result.stall_ns);
		assert_int_equal(0, world.result.bytes_written);
		assert_int_equal(world.result.peak_keep_all_bytes, world.result.peak_bytes);
	}
}

CASE(test_equal_times)
{
	begin_world();
	for (unsigned i = 0; i < 50; i++)
		add_tensor(1 << 20, 1000, 1000, 1000);
	set_drives(UINT64_C(1) << 50, UINT64_C(1) << 50, 0);
	check_fastest();
	assert_int_equal(50 << 20, world.result.peak_bytes);
	for (unsigned i = 0; i < 50; i++) {
		world.tensors[i].use_ns = 1000 * MILLISECOND;
		world.tensors[i].release_ns = 2000 * MILLISECOND;
	}
	check_fastest();
	assert_int_equal(50 << 20, world.result.peak_bytes);
	plan(SPW_PLAN_BUDGET, (50 << 20) - 1);
	assert_false(world.result.feasible);
}

CASE(test_never_used)
{
	begin_world();
	for (unsigned i = 0; i < 20; i++) {
		add_tensor(1 << 20, i * MILLISECOND, 0, 1000 * MILLISECOND);
		world.tensors[i].users = 0;
	}
	/* Written as fast as they come, and never read, also by drives that cannot read. */
	set_drives(UINT64_C(4) << 30, 0, 1);
	world.drives.mixed_bytes_per_second = UINT64_C(4) << 30;
	check_fastest();
	/* one is packed before the last is freed */
	assert_int_equal(2 << 20, world.result.peak_bytes);
	assert_int_equal(0, world.result.bytes_read);
	assert_in_range(world.result.bytes_written, 18 << 20, 20 << 20);
}

CASE(test_huge)
{
	begin_world();
	for (uint64_t i = 0; i < 4; i++)
		add_tensor(UINT64_C(1) << 60, i << 46, (10 - i) << 46, (11 - i) << 46);
	set_drives(UINT64_C(1) << 60, UINT64_C(1) << 60, UINT64_C(1) << 60);
	check_fastest();
	assert_true(world.result.peak_bytes < world.result.peak_keep_all_bytes);
	set_drives(1, 1, 1);
	check_fastest();
	assert_true(world.result.peak_bytes == world.result.peak_keep_all_bytes);
}

/* Longer than 64 bits of nanoseconds: for ever, not a number that is left of it. */
CASE(test_centuries)
{
	begin_world();
	add_tensor(UINT64_C(1) << 60, 0, UINT64_C(1) << 46, (UINT64_C(1) << 46) + 1000);
	add_tensor(1, UINT64_C(1) << 45, UINT64_C(1) << 45, UINT64_C(1) << 45);
	world.choices[0] = SPW_PLAN_SPILL;
	world.choices[1] = SPW_PLAN_KEEP;
	set_drives(UINT64_C(1) << 60, 1, UINT64_C(1) << 60);
	simulate(0);
	assert_true(world.result.bytes_read == UINT64_C(1) << 60);
	assert_true(world.result.stall_ns == SPW_PLAN_STALL_FOREVER);
	assert_true(world.result.wall_ns == SPW_PLAN_STALL_FOREVER);
	check_profile();
	world.drives.read_bytes_per_second = UINT64_C(1) << 30; /* 34 years */
	simulate(0);
	assert_in_range(world.result.stall_ns, (UINT64_C(1000000000) << 30) - 1000,
			(UINT64_C(1000000000) << 30) + 1000);
	assert_true(world.result.wall_ns == world.result.stall_ns + (UINT64_C(1) << 46) + 1000);
}

/* In a double one byte beside them is nothing: the rest may be below 0, and must not show. */
CASE(test_huge_and_tiny)
{
	begin_world(); /* all is kept */
	add_tensor(UINT64_C(1) << 60, 0, 1000, 2000);
	add_tensor(1, 10, 3000, 4000);
	set_drives(1, 1, 1);
	simulate(UINT64_MAX);
	assert_true(world.result.points > 0);
	for (uint32_t i = 0; i < world.result.points; i++)
		assert_true(points[i].bytes <= world.result.peak_bytes);
}

CASE(test_determinism)
{
	static enum spw_plan_choice first[TENSORS_MAX];
	uint64_t random = seed;

	for (unsigned k = 0; k < (cases + 19) / 20; k++) {
		struct spw_plan_result result;
		uint64_t memory;

		make_any(&random, 100);
		random_drives(&random);
		for (unsigned mode = SPW_PLAN_FASTEST; mode <= SPW_PLAN_BUDGET; mode++) {
			plan(SPW_PLAN_FASTEST, 0);
			memory = world.result.peak_keep_all_bytes / 2;
			plan(mode, memory);
			memcpy(first, world.choices, sizeof(first));
			result = world.result;
			memset(world.choices, 0, sizeof(world.choices));
			plan(mode, memory);
			assert_true(memcmp(first, world.choices,
					   world.step.count * sizeof(first[0])) == 0);
			assert_true(memcmp(&result, &world.result, sizeof(result)) == 0);
		}
	}
}

static void expect_refused(const char *words)
{
	struct spw_plan_result result = {.size = sizeof(result), .peak_bytes = 7};

	assert_int_equal(-EINVAL,
			 spw_plan(&world.step, &world.drives, NULL, world.choices, &result));
	assert_non_null(strstr(spw_last_error(), words));
	assert_int_equal(7, result.peak_bytes);
	assert_int_equal(-EINVAL, spw_plan_simulate(&world.step, &world.drives, 0, world.choices,
						    NULL, 0, &result));
	make_four_scopes();
	set_drives(1, 1, 1);
}

CASE(test_refused)
{
	struct spw_plan_opts opts;

	make_four_scopes();
	set_drives(1, 1, 1);
	world.tensors[2].use_ns = world.tensors[2].pack_ns - 1;
	expect_refused("tensor 2: use_ns");
	world.tensors[3].use_ns = world.tensors[3].release_ns + 1;
	expect_refused("tensor 3: use_ns");
	world.tensors[1].release_ns = world.tensors[1].pack_ns - 1;
	expect_refused("tensor 1: pack_ns");
	world.tensors[0].release_ns = UINT64_MAX;
	expect_refused("tensor 0: its size or its times");
	world.tensors[0].bytes = UINT64_MAX;
	expect_refused("tensor 0: its size or its times");
	world.tensors[0].bytes = world.tensors[1].bytes = UINT64_C(1) << 62;
	expect_refused("tensor 1: all sizes");
	world.step.count = SPW_PLAN_TENSORS_MAX + 1;
	expect_refused("are more than");
	world.step.tensors = NULL;
	expect_refused("no array");
	world.step.forward_ns = UINT64_MAX;
	expect_refused("forward_ns");
	world.drives.read_bytes_per_second = UINT64_MAX;
	expect_refused("bandwidth");
	world.drives.latency_ns = UINT64_MAX;
	expect_refused("latency");
	world.tensors[0].reserved[5] = 1;
	expect_refused("a tensor: reserved fields must be 0");
	world.step.reserved[2] = 1;
	expect_refused("the step: reserved fields must be 0");
	world.drives.reserved[0] = 1;
	expect_refused("the drives: reserved fields must be 0");

	spw_plan_opts_init(&opts, sizeof(opts));
	for (unsigned mode = SPW_PLAN_BUDGET + 1; mode <= SPW_PLAN_BUDGET + 2; mode++) {
		opts.mode = (enum spw_plan_mode)mode;
		assert_int_equal(-EINVAL, spw_plan(&world.step, &world.drives, &opts, world.choices,
						   &world.result));
		/* 2 was the positional rule, which is told what to use instead. */
		assert_int_equal(mode == 2, strstr(spw_last_error(), "spw_plan_simulate") != NULL);
	}
	opts.mode = SPW_PLAN_FASTEST;
	opts.size = 0;
	assert_int_equal(-EINVAL,
			 spw_plan(&world.step, &world.drives, &opts, world.choices, &world.result));
	assert_int_equal(-EINVAL, spw_plan(&world.step, &world.drives, NULL, NULL, &world.result));
	assert_int_equal(-EINVAL,
			 spw_plan(NULL, &world.drives, NULL, world.choices, &world.result));
	world.result.size = 0;
	assert_int_equal(-EINVAL,
			 spw_plan(&world.step, &world.drives, NULL, world.choices, &world.result));
}

/* A caller that knows fewer fields gets those, and nothing beyond them is touched. */
CASE(test_older_caller)
{
	struct {
		struct spw_plan_result result;
		uint64_t after;
	} older;

	make_four_scopes();
	set_drives(100, 100, 0);
	memset(&older, 0xa5, sizeof(older));
	older.result.size = offsetof(struct spw_plan_result, memory_bytes);
	assert_int_equal(0,
			 spw_plan(&world.step, &world.drives, NULL, world.choices, &older.result));
	assert_int_equal(400, older.result.peak_keep_all_bytes);
	assert_true(older.result.memory_bytes == UINT64_C(0xa5a5a5a5a5a5a5a5));
	assert_int_equal(offsetof(struct spw_plan_result, memory_bytes), older.result.size);
}

static int set_up(void **state)
{
	(void)state;
	seed = random_seed();
	if (getenv("SPW_SEED"))
		figures_seed = seed;
	cases /= getenv("SPW_TEST_VALGRIND") ? 40 : SLOWER;
	if (cases < CASES)
		print_message("%u cases per random test instead of %u: a sanitizer is at work\n",
			      cases, CASES);
	return 0;
}

RUN_CASES(set_up, NULL)
