/* SPDX-License-Identifier: MIT */
/*
 * tests/bench/host_bench.c - what plans for a GPU's tensors are worth with host memory between the
 * device and the drives
 *
 * Prints rows, asserts nothing. Virtual time: the same on every machine, but for the times of
 * planning, which are the processor's. Peaks are of activations, over those if all are kept; steps
 * are over one that keeps all.
 */
#include <spillway/plan.h>

#include <time.h>

#include "tests/bench/rows.h"
#include "tests/gpu_step.h"

#define GB UINT64_C(1000000000)

static struct gpu_step gpu, layers;
static double longest_ms;

static double processor_ms(void)
{
	struct timespec used;

	(void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
	return (double)used.tv_sec * 1e3 + (double)used.tv_nsec / 1e6;
}

static struct spw_plan_result plan(const struct spw_plan_drives *drives, uint64_t budget)
{
	struct spw_plan_result result = {.size = sizeof(result)};
	double before_ms = processor_ms(), ms;
	struct spw_plan_opts opts;

	spw_plan_opts_init(&opts, sizeof(opts));
	if (budget > 0) {
		opts.mode = SPW_PLAN_BUDGET;
		opts.memory_bytes = budget;
	}
	must(spw_plan_scopes(&gpu.step, drives, &gpu.scopes, &opts, gpu.choices, &result), "plan");
	ms = processor_ms() - before_ms;
	longest_ms = ms > longest_ms ? ms : longest_ms;
	return result;
}

/* The peak if each layer is recomputed from its input. */
static uint64_t recompute_peak(const struct gpu_model *model)
{
	const struct spw_plan_drives none = {0};
	struct spw_plan_result result = {.size = sizeof(result)};

	gpu_step_make(model, GPU_LAYERS, &layers);
	for (uint32_t i = 0; i < layers.step.count; i++)
		layers.choices[i] = i % model->saved == 0 ? SPW_PLAN_KEEP : SPW_PLAN_AGAIN;
	must(spw_plan_scopes_simulate(&layers.step, &none, &layers.scopes, UINT64_MAX,
				      layers.choices, NULL, &result),
	     "simulation");
	return result.peak_bytes;
}

static uint64_t keep_ns(const struct gpu_model *model)
{
	gpu_step_make(model, GPU_HALVES, &layers);
	return layers.step.forward_ns + layers.step.backward_ns;
}

static uint64_t keep_peak(const struct gpu_model *model)
{
	const struct spw_plan_drives none = {0};
	struct spw_plan_result result = {.size = sizeof(result)};

	gpu_step_make(model, GPU_HALVES, &layers);
	must(spw_plan_simulate(&layers.step, &none, UINT64_MAX, layers.choices, NULL, 0, &result),
	     "simulation");
	return result.peak_bytes;
}

struct given {
	unsigned model;
	enum gpu_way way;
	uint64_t host, rate; /* GB, and GB/s of all drives */
	/* goals, over keeping all; 0: none */
	double peak, step;
};

static const struct given given[] = {
	{0, GPU_HALVES, 0, 6, 0, 0},
	{0, GPU_HALVES, 4, 0, 0.45, 0},
	{0, GPU_HALVES, 4, 6, 0.45, 0},
	{0, GPU_CHEAP_MADE_AGAIN, 0, 6, 0, 0},
	{0, GPU_CHEAP_MADE_AGAIN, 4, 0, 0.16, 1.03},
	{0, GPU_CHEAP_MADE_AGAIN, 4, 6, 0.16, 1.03},
	{1, GPU_CHEAP_MADE_AGAIN, 0, 6, 0, 0},
	{1, GPU_CHEAP_MADE_AGAIN, 8, 0, 0.40, 1.15},
	{1, GPU_CHEAP_MADE_AGAIN, 16, 0, 0.21, 1.09},
	{1, GPU_CHEAP_MADE_AGAIN, 32, 0, 0.10, 1.04},
	{2, GPU_CHEAP_MADE_AGAIN, 0, 6, 0, 0},
	{2, GPU_CHEAP_MADE_AGAIN, 4, 0, 0, 0},
	{2, GPU_CHEAP_MADE_AGAIN, 4, 6, 0.20, 0},
	{2, GPU_CHEAP_MADE_AGAIN, 8, 0, 0.08, 0},
};

static void row(const struct given *now, const char *what, double value, const char *unit,
		double at_most)
{
	char words[200], drives[48] = "no drives";

	if (now->rate > 0)
		(void)snprintf(drives, sizeof(drives), "drives of %llu GB/s",
			       (unsigned long long)now->rate);
	(void)snprintf(words, sizeof(words), "%s, %s, %llu GB of host memory, %s: %s",
		       gpu_models[now->model].name,
		       now->way == GPU_HALVES ? "halves" : "halves and operations",
		       (unsigned long long)now->host, drives, what);
	bench_row_print(&(struct bench_row){words, unit, value, value, value, at_most});
}

static void bench(const struct given *now)
{
	const struct gpu_model *model = &gpu_models[now->model];
	struct spw_plan_drives drives = gpu_drives(model->bus, now->rate * GB, now->host * GB);
	double all_ns = (double)keep_ns(model), all = (double)keep_peak(model);
	struct spw_plan_result lowest, within;

	gpu_step_make(model, now->way, &gpu);
	lowest = plan(&drives, 0);
	within = plan(&drives, recompute_peak(model));
	row(now, "lowest peak at 1.02 of the step", (double)lowest.peak_bytes / all, "of keep",
	    now->peak);
	row(now, "written for it", (double)lowest.bytes_written / 1e9, "GB", 0);
	row(now, "host memory for it", (double)lowest.host_peak_bytes / 1e9, "GB", 0);
	row(now,
	    within.feasible ? "step at recompute's peak"
			    : "step near recompute's peak, which is not met",
	    (double)within.wall_ns / all_ns, "of keep", now->step);
}

int main(void)
{
	for (unsigned k = 0; k < SPW_ARRAY_LEN(given); k++)
		bench(&given[k]);
	bench_figure("plans with host memory: longest CPU time of one", longest_ms, "ms");
	return 0;
}
