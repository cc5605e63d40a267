/* SPDX-License-Identifier: MIT */
/*
 * tests/bench/plan_bench.c - how long planning takes, and what the plans are worth
 *
 * Prints rows, asserts nothing. Times are the processor's, which a busy machine changes least. A
 * step of one micro-batch and one of eight in the order 1F1B, with as many tensors as the first
 * argument says (default 10000).
 */
#include <time.h>

#include <spillway/plan.h>

#include "tests/bench/rows.h"
#include "util/util.h"

#define REPEATS 7u
#define LAYER   10u /* tensors */

static const uint64_t layer_mib[LAYER] = {16, 1, 48, 16, 16, 1, 16, 64, 64, 16};

static uint64_t processor_ns(void)
{
	struct timespec used;

	(void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
	return (uint64_t)used.tv_sec * 1000000000 + (uint64_t)used.tv_nsec;
}

/* Saved from @forward_ns on, used in reverse order from @backward_ns on, twice as slowly. */
static void add_micro_batch(struct spw_plan_tensor *tensors, uint32_t count, uint32_t scope,
			    uint64_t forward_ns, uint64_t backward_ns, uint64_t each_ns)
{
	for (uint32_t i = 0; i < count; i++) {
		struct spw_plan_tensor *tensor = &tensors[i];

		tensor->bytes = layer_mib[i % LAYER] << 20;
		tensor->pack_ns = forward_ns + i * each_ns;
		tensor->use_ns = backward_ns + (count - 1 - i) * 2 * each_ns;
		tensor->release_ns = tensor->use_ns + 2 * each_ns;
		tensor->users = 1;
		tensor->scope = scope + i / LAYER;
	}
}

/* 1F1B on the first of four stages: four forward passes, then both kinds in turn. */
static struct spw_plan_step make_step(uint32_t count, uint32_t micro_batches,
				      struct spw_plan_tensor *tensors)
{
	uint32_t each = count / micro_batches, ahead = micro_batches < 4 ? micro_batches : 4;
	uint64_t each_ns = 200000, now_ns = 0, forward_begin_ns[64] = {0};
	struct spw_plan_step step = {.tensors = tensors, .count = each * micro_batches};

	for (uint32_t batch = 0, back = 0; back < micro_batches;) {
		if (batch < micro_batches && batch < back + ahead) {
			forward_begin_ns[batch++] = now_ns;
			now_ns += each * each_ns;
			continue;
		}
		add_micro_batch(tensors + back * each, each, back * (each / LAYER + 1),
				forward_begin_ns[back], now_ns, each_ns);
		back++;
		now_ns += 2 * each * each_ns;
	}
	step.forward_ns = (uint64_t)step.count * each_ns;
	step.backward_ns = 2 * step.forward_ns;
	return step;
}

static void report(const char *name, uint32_t micro_batches, double drive_share,
		   const struct spw_plan_step *step, const struct spw_plan_result *result,
		   double used_ms)
{
	double peak = 100 * (double)result->peak_bytes / (double)result->peak_keep_all_bytes;
	double stall =
		100 * (double)result->stall_ns / (double)(step->forward_ns + step->backward_ns);
	struct {
		const char *what, *unit;
		double value;
	} figures[] = {
		{"CPU time, least", "ms", used_ms},
		{"peak, of all kept", "%", peak},
		{"stall, of the step", "%", stall},
	};
	char words[160];

	for (size_t i = 0; i < SPW_ARRAY_LEN(figures); i++) {
		(void)snprintf(
			words, sizeof(words),
			"%u tensors, %u micro-batches, %s, drives of %g times the need%s: %s",
			step->count, micro_batches, name, drive_share,
			result->feasible ? "" : " (infeasible)", figures[i].what);
		bench_figure(words, figures[i].value, figures[i].unit);
	}
}

static void bench(const struct spw_plan_step *step, uint32_t micro_batches, double drive_share,
		  const char *name, const struct spw_plan_opts *opts, enum spw_plan_choice *choices)
{
	/* All that is saved, written within the forward pass, would take this much. */
	double need = 25.8 * (1 << 20) / 200e-6;
	struct spw_plan_drives drives = {
		.write_bytes_per_second = (uint64_t)(need * drive_share),
		.read_bytes_per_second = (uint64_t)(need * drive_share * 1.2),
		.mixed_bytes_per_second = (uint64_t)(need * drive_share * 1.1),
		.latency_ns = 100000,
		.chunk_bytes = 4u << 20,
	};
	struct spw_plan_result result = {.size = sizeof(result)};
	uint64_t best_used_ns = UINT64_MAX;

	for (unsigned i = 0; i < REPEATS; i++) {
		uint64_t before_ns = processor_ns(), used_ns;

		must(spw_plan(step, &drives, opts, choices, &result), "plan");
		used_ns = processor_ns() - before_ns;
		best_used_ns = used_ns < best_used_ns ? used_ns : best_used_ns;
	}
	report(name, micro_batches, drive_share, step, &result, (double)best_used_ns / 1e6);
}

static void bench_step(uint32_t count, uint32_t micro_batches)
{
	static const double shares[] = {0.1, 0.5, 1, 2};
	struct spw_plan_tensor *tensors = calloc(count, sizeof(*tensors));
	enum spw_plan_choice *choices = calloc(count, sizeof(*choices));
	struct spw_plan_result result = {.size = sizeof(result)};
	struct spw_plan_opts opts;
	struct spw_plan_step step;

	if (!tensors || !choices)
		must(-ENOMEM, "memory");
	step = make_step(count, micro_batches, tensors);
	must(spw_plan_simulate(&step, &(struct spw_plan_drives){0}, UINT64_MAX, choices, NULL, 0,
			       &result),
	     "simulation");
	for (size_t i = 0; i < SPW_ARRAY_LEN(shares); i++) {
		spw_plan_opts_init(&opts, sizeof(opts));
		bench(&step, micro_batches, shares[i], "fastest", &opts, choices);
		opts.mode = SPW_PLAN_BUDGET;
		opts.memory_bytes = result.peak_bytes * 7 / 10;
		bench(&step, micro_batches, shares[i], "budget 70 %", &opts, choices);
	}
	free(tensors);
	free(choices);
}

int main(int argc, char **argv)
{
	uint32_t count = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 10000;

	if (count < 64 || count > SPW_PLAN_TENSORS_MAX) {
		(void)fprintf(stderr, "usage: plan_bench [TENSORS], from 64 to %u\n",
			      SPW_PLAN_TENSORS_MAX);
		return 2;
	}
	bench_step(count, 1);
	bench_step(count, 8);
	return 0;
}
