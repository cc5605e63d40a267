/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_plan_host.c - plans with host memory between a device and the drives: what stays
 * there, that nothing is written without need, and that more of anything is never worse
 *
 * SPW_SEED repeats a run.
 */
#include <errno.h>

#include "tests/case.h"
#include "tests/gpu_step.h"
#include "tests/random.h"

#include <spillway/plan.h>

#include "util/util.h"

#define GB     UINT64_C(1000000000)
#define RANDOM 300u

static uint64_t seed;
static struct gpu_step gpu;
static struct spw_plan_reason reasons[GPU_LAYERS_MAX * GPU_PIECES];

static uint64_t random_between(uint64_t *random, uint64_t low, uint64_t high)
{
	return low + random_below(random, high - low + 1);
}

static struct spw_plan_result plan_of(const struct spw_plan_drives *drives, uint64_t budget)
{
	struct spw_plan_result result = {.size = sizeof(result)};
	struct spw_plan_opts opts;

	spw_plan_opts_init(&opts, sizeof(opts));
	if (budget > 0) {
		opts.mode = SPW_PLAN_BUDGET;
		opts.memory_bytes = budget;
	}
	assert_ok(spw_plan_scopes(&gpu.step, drives, &gpu.scopes, &opts, gpu.choices, &result));
	return result;
}

/* Of the peak of a step that keeps all, and discards nothing. */
static double of_keep(const struct gpu_model *model, const struct spw_plan_result *result)
{
	uint64_t bytes = 0;

	for (unsigned i = 0; i < model->saved; i++)
		bytes += model->layers * model->tensors[i].bytes;
	return (double)result->peak_bytes / (double)bytes;
}

/* ---- What stays ---- */

/* Three tensors of 100 bytes, used in reverse order; the bus takes 1 ns for a byte. */
static void make_three(void)
{
	memset(&gpu, 0, sizeof(gpu));
	for (uint32_t i = 0; i < 3; i++)
		gpu.tensors[i] = (struct spw_plan_tensor){.bytes = 100,
							  .pack_ns = 1000 * i,
							  .use_ns = 10000 - 1000 * i,
							  .release_ns = 10500 - 1000 * i,
							  .users = 1};
	gpu.step = (struct spw_plan_step){
		.tensors = gpu.tensors, .count = 3, .forward_ns = 5000, .backward_ns = 6000};
	spw_plan_scopes_init(&gpu.scopes, sizeof(gpu.scopes));
}

static struct spw_plan_drives drives_of_three(uint64_t host_bytes)
{
	return (struct spw_plan_drives){.write_bytes_per_second = GB,
					.read_bytes_per_second = GB,
					.staging_bytes = 100,
					.bus_out_bytes_per_second = GB,
					.bus_in_bytes_per_second = GB,
					.host_bytes = host_bytes};
}

static uint32_t count_of(enum spw_plan_choice choice)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < gpu.step.count; i++)
		count += gpu.choices[i] == choice;
	return count;
}

CASE(test_all_fits)
{
	struct spw_plan_drives drives = drives_of_three(300);
	struct spw_plan_result result;

	make_three();
	result = plan_of(&drives, 100);
	assert_true(result.feasible);
	assert_int_equal(0, result.bytes_written);
	assert_int_equal(0, count_of(SPW_PLAN_SPILL));
	assert_int_equal(result.tensors_host, count_of(SPW_PLAN_HOST));
	assert_true(result.tensors_host >= 2 && result.tensors_spilled == result.tensors_host);
	assert_int_equal(100 * result.tensors_host, result.bytes_host);
	assert_int_equal(result.bytes_host, result.host_peak_bytes);
}

/* The drives get what is used last; without drives it is kept. */
CASE(test_last_used_goes_to_the_drives)
{
	struct spw_plan_drives drives = drives_of_three(100);
	struct spw_plan_result result;

	make_three();
	gpu.scopes.slack = 0;
	result = plan_of(&drives, 100);
	assert_true(result.feasible);
	assert_int_equal(SPW_PLAN_SPILL, gpu.choices[0]);
	assert_int_equal(SPW_PLAN_HOST, gpu.choices[1]);
	assert_int_equal(SPW_PLAN_KEEP, gpu.choices[2]);
	assert_int_equal(100, result.bytes_written);

	drives.write_bytes_per_second = drives.read_bytes_per_second = 0;
	result = plan_of(&drives, 200);
	assert_true(result.feasible);
	assert_int_equal(0, result.bytes_written);
	assert_int_equal(1, count_of(SPW_PLAN_HOST));
	assert_int_equal(2, count_of(SPW_PLAN_KEEP));
}

/* Two that are never there at once both stay in room for one. */
CASE(test_room_is_used_again)
{
	struct spw_plan_drives drives = drives_of_three(100);
	struct spw_plan_result result;

	make_three();
	for (uint32_t i = 0; i < 4; i++) {
		uint64_t begin_ns = i / 2 * 5000 + i % 2 * 1000, ns = i % 2 ? 200 : 3000;

		gpu.tensors[i] = (struct spw_plan_tensor){.bytes = 100,
							  .pack_ns = begin_ns,
							  .use_ns = begin_ns + ns,
							  .release_ns = begin_ns + ns + 200,
							  .users = 1,
							  .must_keep = i % 2};
	}
	gpu.step.count = 4;
	drives.write_bytes_per_second = drives.read_bytes_per_second = 0;
	result = plan_of(&drives, 120);
	assert_true(result.feasible && result.peak_keep_all_bytes == 200);
	assert_int_equal(SPW_PLAN_HOST, gpu.choices[0]);
	assert_int_equal(SPW_PLAN_HOST, gpu.choices[2]);
	assert_int_equal(100, result.host_peak_bytes);
}

CASE(test_refused)
{
	struct spw_plan_drives drives = drives_of_three(100);
	struct spw_plan_result result = {.size = sizeof(result)};

	make_three();
	drives.bus_in_bytes_per_second = 0;
	expect_refusal(-EINVAL, "bandwidth of its bus",
		       spw_plan(&gpu.step, &drives, NULL, gpu.choices, &result));
	drives = drives_of_three(UINT64_MAX);
	expect_refusal(-EINVAL, "host_bytes is too large",
		       spw_plan(&gpu.step, &drives, NULL, gpu.choices, &result));
	drives = drives_of_three(0);
	gpu.choices[1] = SPW_PLAN_HOST;
	expect_refusal(
		-EINVAL, "tensor 1: there is no host memory",
		spw_plan_simulate(&gpu.step, &drives, UINT64_MAX, gpu.choices, NULL, 0, &result));
}

/* ---- Any step ---- */

static void make_random(uint64_t *random)
{
	uint64_t end_ns = 200000000;

	make_three();
	gpu.step.count = (uint32_t)random_between(random, 2, 60);
	for (uint32_t i = 0; i < gpu.step.count; i++) {
		struct spw_plan_tensor *tensor = &gpu.tensors[i];

		tensor->bytes = random_between(random, 1, 64) << 20;
		tensor->pack_ns = random_between(random, 0, end_ns);
		tensor->use_ns = random_between(random, tensor->pack_ns, end_ns);
		tensor->release_ns = random_between(random, tensor->use_ns, end_ns);
		tensor->users = random_next(random) % 8 > 0;
	}
	gpu.step.forward_ns = gpu.step.backward_ns = end_ns / 2;
}

static struct spw_plan_drives random_drives(uint64_t *random)
{
	struct spw_plan_drives drives =
		gpu_drives(random_between(random, 1, 50) * GB, random_next(random) % 3 * 2 * GB,
			   random_between(random, 16, 1000) << 20);

	drives.staging_bytes = random_next(random) % 2 ? random_between(random, 16, 500) << 20 : 0;
	return drives;
}

/* By compute time no more stays at once than there is room for. */
static void check_room(uint64_t host_bytes)
{
	for (uint32_t i = 0; i < gpu.step.count; i++) {
		uint64_t ns = gpu.tensors[i].pack_ns, bytes = 0;

		for (uint32_t j = 0; j < gpu.step.count; j++) {
			const struct spw_plan_tensor *tensor = &gpu.tensors[j];
			uint64_t until_ns = tensor->users > 0 ? tensor->use_ns : tensor->release_ns;

			if (gpu.choices[j] == SPW_PLAN_HOST && tensor->pack_ns <= ns &&
			    until_ns > ns)
				bytes += tensor->bytes;
		}
		assert_true(bytes <= host_bytes);
	}
}

static void check_any(uint64_t *random, unsigned *written, unsigned *hosted)
{
	struct spw_plan_result result, again = {.size = sizeof(again)};
	struct spw_plan_drives drives;

	make_random(random);
	drives = random_drives(random);
	gpu.scopes.unthrottled = random_next(random) % 2;
	result = plan_of(&drives,
			 random_next(random) % 2 ? random_between(random, 64, 900) << 20 : 0);
	check_room(drives.host_bytes);
	assert_true(result.peak_bytes <= result.peak_keep_all_bytes);
	if (drives.write_bytes_per_second == 0)
		assert_int_equal(0, count_of(SPW_PLAN_SPILL));
	if (drives.staging_bytes > 0)
		assert_true(result.host_peak_bytes <=
			    SPW_MAX(drives.host_bytes, drives.staging_bytes));
	assert_int_equal(result.tensors_host, count_of(SPW_PLAN_HOST));
	assert_ok(spw_plan_scopes_simulate(&gpu.step, &drives, &gpu.scopes, result.memory_bytes,
					   gpu.choices, NULL, &again));
	assert_true(again.peak_bytes == result.peak_bytes && again.wall_ns == result.wall_ns);
	assert_true(again.bytes_written == result.bytes_written &&
		    again.bytes_host == result.bytes_host);
	*written += result.bytes_written > 0;
	*hosted += result.bytes_host > 0;
}

CASE(test_any_step)
{
	uint64_t random = seed;
	unsigned written = 0, hosted = 0, cases = getenv("SPW_TEST_VALGRIND") ? 10 : RANDOM;

	for (unsigned k = 0; k < cases; k++)
		check_any(&random, &written, &hosted);
	assert_true(written > cases / 20 && hosted > cases / 3);
}

/* ---- Steps of GPUs ---- */

/* The peaks that plans are known to reach at 1.02 of the time, and what they write. */
CASE(test_known_plans)
{
	static const struct {
		unsigned model;
		enum gpu_way way;
		uint64_t host, rate;
		double peak, written; /* of keep; GB */
	} known[] = {
		{0, GPU_HALVES, 4, 0, 0.45, 0},
		{0, GPU_CHEAP_MADE_AGAIN, 4, 0, 0.16, 0},
		{0, GPU_CHEAP_MADE_AGAIN, 4, 6, 0.16, 0},
		{2, GPU_CHEAP_MADE_AGAIN, 8, 6, 0.08, 0},
		{2, GPU_CHEAP_MADE_AGAIN, 4, 6, 0.20, 1.45},
	};

	for (unsigned k = 0; k < SPW_ARRAY_LEN(known); k++) {
		const struct gpu_model *model = &gpu_models[known[k].model];
		struct spw_plan_drives drives =
			gpu_drives(model->bus, known[k].rate * GB, known[k].host * GB);
		struct spw_plan_result result;

		gpu_step_make(model, known[k].way, &gpu);
		result = plan_of(&drives, 0);
		assert_true(of_keep(model, &result) <= known[k].peak);
		assert_true((double)result.bytes_written <= known[k].written * 1e9);
		/* Little more than what does not fit. */
		if (result.bytes_written > 0)
			assert_true((double)result.bytes_written <=
				    1.1 * (double)(result.bytes_written + result.bytes_host -
						   drives.host_bytes));
	}
}

CASE(test_explained)
{
	struct spw_plan_drives drives = gpu_drives(gpu_models[0].bus, 3 * GB, 2 * GB);
	struct spw_plan_result result;
	uint64_t spilled = 0, host = 0;

	gpu_step_make(&gpu_models[0], GPU_HALVES, &gpu);
	result = plan_of(&drives, 0);
	assert_ok(spw_plan_explain(&gpu.step, &drives, &gpu.scopes, result.memory_bytes,
				   gpu.choices, reasons));
	for (uint32_t s = 0; s < gpu.scopes.count; s++) {
		const struct spw_plan_other_way *way = &reasons[s].ways[reasons[s].way];

		assert_true(reasons[s].bytes_host <= reasons[s].bytes_spilled);
		assert_true(way->possible && way->peak_bytes == result.peak_bytes);
		spilled += reasons[s].bytes_spilled;
		host += reasons[s].bytes_host;
	}
	assert_true(host > 0 && host == result.bytes_host && spilled > host);
}

/* ---- Never worse ---- */

#define HOSTS  5u
#define RATES  4u
#define BUSES  2u
#define BUDGET 0.45 /* of keep */

static const uint64_t hosts[HOSTS] = {0, 1, 2, 4, 8}, rates[RATES] = {0, 3, 6, 14},
		      buses[BUSES] = {25, 55};

/* Of each mode. */
struct found {
	struct spw_plan_result lowest, within;
};

static struct found found[HOSTS][RATES][BUSES];

static uint64_t largest_bytes(void)
{
	uint64_t largest = 0;

	for (uint32_t i = 0; i < gpu.step.count; i++)
		largest = SPW_MAX(largest, gpu.tensors[i].bytes);
	return largest;
}

/* The search is a heuristic: a peak within one tensor is as good, and a hundredth of the step. */
static void check_no_worse(const struct found *less, const struct found *more)
{
	uint64_t step_ns = gpu.step.forward_ns + gpu.step.backward_ns;

	assert_true(more->lowest.peak_bytes <= less->lowest.peak_bytes + largest_bytes());
	if (more->within.feasible && less->within.feasible)
		assert_true(more->within.wall_ns <= less->within.wall_ns + step_ns / 100);
	else if (!more->within.feasible)
		assert_true(more->within.peak_bytes <= less->within.peak_bytes + largest_bytes());
}

static void check_grid(const struct gpu_model *model, enum gpu_way way)
{
	gpu_step_make(model, way, &gpu);
	for (unsigned h = 0; h < HOSTS; h++)
		for (unsigned r = 0; r < RATES; r++)
			for (unsigned b = 0; b < BUSES; b++) {
				struct spw_plan_drives drives =
					gpu_drives(buses[b] * GB, rates[r] * GB, hosts[h] * GB);
				struct found *here = &found[h][r][b];

				here->lowest = plan_of(&drives, 0);
				here->within = plan_of(
					&drives,
					(uint64_t)(BUDGET *
						   (double)here->lowest.peak_keep_all_bytes));
				if (h > 0)
					check_no_worse(&found[h - 1][r][b], here);
				if (r > 0)
					check_no_worse(&found[h][r - 1][b], here);
				if (b > 0)
					check_no_worse(&found[h][r][b - 1], here);
				/* A plan without it is always tried beside so little. */
				if (hosts[h] == 1 && rates[r] > 0)
					assert_true(here->lowest.peak_bytes <=
						    found[h - 1][r][b].lowest.peak_bytes);
			}
}

CASE(test_more_is_never_worse)
{
	check_grid(&gpu_models[0], GPU_HALVES);
	if (getenv("SPW_TEST_VALGRIND"))
		return;
	check_grid(&gpu_models[0], GPU_CHEAP_MADE_AGAIN);
	check_grid(&gpu_models[2], GPU_CHEAP_MADE_AGAIN);
}

static int set_up(void **state)
{
	(void)state;
	seed = random_seed();
	return 0;
}

RUN_CASES(set_up, NULL)
