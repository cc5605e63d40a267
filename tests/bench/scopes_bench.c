/* SPDX-License-Identifier: MIT */
/*
 * tests/bench/scopes_bench.c - a plan that may keep, spill and recompute, against plans that may do
 * only one of these
 *
 * usage: scopes_bench TRACE... Prints rows. Virtual time: the same on every machine, but for the
 * times of planning, which are the processor's.
 *
 * f is the bandwidth of the drives, over what it takes to spill all that a step saves in half of
 * it. Recomputing is done by whole layers from inputs that are kept; spilling is the same planner
 * without recomputing. Everything is held to the budget.
 */
#include <spillway/plan.h>
#include <spillway/trace.h>

#include <math.h>
#include <stdarg.h>
#include <time.h>

#include "tests/bench/rows.h"
#include "tools/replay/scopes.h"
#include "util/util.h"

#define MIN_BYTES   (64u << 10)
#define LATENCY_NS  100000u
#define CHUNK_BYTES (1u << 20)
#define REPEATS     5u
#define UNLIMITED   (UINT64_C(1) << 62)
#define MANY        10000u
#define MANY_SCOPE  10u

static struct model {
	char name[32];
	struct spw_trace *trace;
	struct replay_step step;
	struct replay_scopes halves, layers;
	enum spw_plan_choice *choices;
	double keep_ns, keep_bytes, recompute_ns, recompute_bytes;
	double need;            /* bytes per second: f of 1 */
	double state_share;     /* the optimizer's bytes in a step, of what is saved */
	double recompute_least; /* goal: peak at recompute's time, of recompute's */
	double ample_least;     /* goal: peak of what is kept if the drives are ample */
} model;

static double longest_ms; /* of planning a trace */

static void *zeroed(size_t count, size_t size)
{
	void *memory = calloc(count, size);

	if (memory)
		return memory;
	must(-ENOMEM, "memory");
	exit(1);
}

/* ---- Planning ---- */

static double processor_ms(void)
{
	struct timespec used;

	(void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
	return (double)used.tv_sec * 1e3 + (double)used.tv_nsec / 1e6;
}

static struct spw_plan_drives drives_of(double f)
{
	uint64_t rate = (uint64_t)(model.need * f);

	return (struct spw_plan_drives){.write_bytes_per_second = rate,
					.read_bytes_per_second = rate,
					.latency_ns = LATENCY_NS,
					.chunk_bytes = CHUNK_BYTES};
}

/* @memory: the budget; 0: the lowest peak within @slack. */
static struct spw_plan_result plan(const struct spw_plan_step *step,
				   const struct spw_plan_drives *drives,
				   const struct spw_plan_scopes *given, double memory, double slack,
				   double *used_ms)
{
	struct spw_plan_result result = {.size = sizeof(result)};
	struct spw_plan_scopes scopes = *given;
	struct spw_plan_opts opts;
	double best_ms = INFINITY;

	spw_plan_opts_init(&opts, sizeof(opts));
	opts.mode = memory > 0 ? SPW_PLAN_BUDGET : SPW_PLAN_FASTEST;
	opts.memory_bytes = (uint64_t)memory;
	scopes.slack = slack;
	for (unsigned k = 0; k < REPEATS; k++) {
		double before_ms = processor_ms();

		must(spw_plan_scopes(step, drives, &scopes, &opts, model.choices, &result), "plan");
		best_ms = fmin(best_ms, processor_ms() - before_ms);
	}
	if (used_ms)
		*used_ms = fmax(*used_ms, best_ms);
	return result;
}

static struct spw_plan_result plan_model(double f, double memory, double slack)
{
	struct spw_plan_drives drives = drives_of(f);

	return plan(&model.halves.step, &drives, &model.halves.scopes, memory, slack, &longest_ms);
}

/* The choices of the last plan. @saved_ns: to be set for each tensor; or NULL. */
static struct spw_plan_result simulate_times(const struct spw_plan_step *step, double f,
					     const struct spw_plan_scopes *scopes, uint64_t memory,
					     uint64_t *saved_ns)
{
	const struct spw_plan_record record = {.saved_ns = saved_ns};
	struct spw_plan_drives drives = drives_of(f);
	struct spw_plan_result result = {.size = sizeof(result)};

	must(spw_plan_scopes_simulate(step, &drives, scopes, memory, model.choices, &record,
				      &result),
	     "simulate");
	return result;
}

static struct spw_plan_result simulate(const struct spw_plan_step *step, double f,
				       const struct spw_plan_scopes *scopes, uint64_t memory)
{
	return simulate_times(step, f, scopes, memory, NULL);
}

/* ---- Rows ---- */

__attribute__((format(printf, 3, 4))) static void row(double value, double at_most,
						      const char *format, ...)
{
	char words[160];
	va_list arguments;

	va_start(arguments, format);
	(void)vsnprintf(words, sizeof(words), format, arguments);
	va_end(arguments);
	bench_row_print(&(struct bench_row){words, "", value, value, value, at_most});
}

static void against_recompute(void)
{
	static const struct {
		double f, at_most;
	} goals[] = {{0.2, 0.95}, {0.25, 0.93}, {0.5, 0.88}, {1, 0.80}};
	double slack = model.recompute_ns / model.keep_ns - 1;
	struct spw_plan_result result = plan_model(0.2, 0, slack);

	row((double)result.peak_bytes / model.recompute_bytes, model.recompute_least,
	    "%s, f = 0.2: peak at no more than recompute's time, of recompute's", model.name);
	result = plan_model(0.2, 0, 1.02 * (slack + 1) - 1);
	row((double)result.peak_bytes / model.recompute_bytes, 0,
	    "%s, f = 0.2: peak at no more than 1.02 of recompute's time, of recompute's",
	    model.name);
	for (size_t i = 0; i < SPW_ARRAY_LEN(goals); i++) {
		result = plan_model(goals[i].f, model.recompute_bytes, 0);
		row(result.feasible ? (double)result.wall_ns / model.recompute_ns : INFINITY,
		    goals[i].at_most, "%s, f = %g: time at recompute's peak, of recompute's",
		    model.name, goals[i].f);
	}
}

/* Budgets are parts of what keeping takes: how much of the better pure way's time is wanted. */
static double wanted(double f, double part)
{
	if (part == 0.1 && f >= 0.2 && f <= 0.5)
		return 0.70;
	if (f == 0.5 && part == 0.25)
		return 0.90;
	if ((f == 0.25 && part >= 0.25) || (f == 0.5 && part == 0.5))
		return 0.95;
	return 1.01;
}

static void against_pure(double f, double part)
{
	double memory = part * model.keep_bytes, better_ns = INFINITY;
	struct spw_plan_drives drives = drives_of(f);
	struct spw_plan_scopes none = model.halves.scopes;
	struct spw_plan_result spilled, ours;

	none.count = 0;
	spilled = plan(&model.halves.step, &drives, &none, memory, 0, NULL);
	if (spilled.feasible)
		better_ns = (double)spilled.wall_ns;
	if (model.recompute_bytes <= memory)
		better_ns = fmin(better_ns, model.recompute_ns);
	ours = plan_model(f, memory, 0);
	row(ours.feasible ? (double)ours.wall_ns / better_ns : INFINITY, wanted(f, part),
	    "%s, f = %g, %g %% of keep: time, of the better pure way's", model.name, f, 100 * part);
}

/* What `recompute` is worth where no budget is given. */
static void within_slack(double f)
{
	struct spw_plan_drives drives = drives_of(f);
	struct spw_plan_scopes none = model.halves.scopes;
	struct spw_plan_result spilled, ours;

	none.count = 0;
	spilled = plan(&model.halves.step, &drives, &none, 0, 0, NULL);
	ours = plan_model(f, 0, 0.02);
	row((double)ours.peak_bytes / (double)spilled.peak_bytes, 1,
	    "%s, f = %g: lowest peak at no more than 1.02 of keep's time, of spilling's alone",
	    model.name, f);
}

/*
 * No plan that only spills holds less than this, if compute stalls for @stall_ns in all: what is
 * saved from one moment to another and still needed then, less what drives can write meanwhile.
 */
static double least_bytes(double f, double stall_ns)
{
	const struct spw_plan_tensor *tensors = model.halves.step.tensors;
	uint32_t count = model.halves.step.count;
	double least = 0;

	for (uint32_t from = 0; from < count; from++) {
		for (uint32_t to = 0; to < count; to++) {
			uint64_t begin_ns = tensors[from].pack_ns, end_ns = tensors[to].pack_ns;
			double bytes = 0;

			if (end_ns < begin_ns)
				continue;
			for (uint32_t i = 0; i < count; i++) {
				if (tensors[i].pack_ns >= begin_ns &&
				    tensors[i].pack_ns <= end_ns && tensors[i].release_ns > end_ns)
					bytes += (double)tensors[i].bytes;
			}
			bytes -= f * model.need * ((double)(end_ns - begin_ns) + stall_ns) / 1e9;
			least = fmax(least, bytes);
		}
	}
	return least;
}

static void with_ample_drives(double f)
{
	const double slack = 0.02;
	struct spw_plan_result result = plan_model(f, 0, slack);

	row((double)result.peak_bytes / model.keep_bytes, model.ample_least,
	    "%s, f = %g: lowest peak at no more than 1.02 of keep's time, of keep's", model.name,
	    f);
	row(least_bytes(f, 0) / model.keep_bytes, 0,
	    "%s, f = %g: what no plan without stalls is below, of keep's peak", model.name, f);
	row(least_bytes(f, slack * model.keep_ns) / model.keep_bytes, 0,
	    "%s, f = %g: the same, with all stalls where the drives lack most", model.name, f);
	/* The goal is zero. */
	row(result.scopes_again, 0.5, "%s, f = %g: scopes recomputed for it", model.name, f);
	result = plan_model(f, model.ample_least * model.keep_bytes, 0);
	row((double)result.wall_ns / model.keep_ns, 0,
	    "%s, f = %g: time at a peak of %g, of keep's", model.name, f, model.ample_least);
}

static void without_drives(double part)
{
	const struct spw_plan_drives none = {0};
	struct spw_plan_result result = plan(&model.halves.step, &none, &model.halves.scopes,
					     part * model.keep_bytes, 0, &longest_ms);

	row(result.feasible ? (double)result.wall_ns / model.recompute_ns : INFINITY, 1,
	    "%s, no drives, %g %% of keep: time, of recompute's", model.name, 100 * part);
}

/*
 * An optimizer's state is read during the backward pass and written during the next forward pass.
 * Planned together, planned as if it were not there, and planned on what is left on average: all
 * three carried out with it there.
 */
static void with_state(double f, double part)
{
	double memory = part * model.keep_bytes,
	       bytes = model.state_share * (double)model.step.saved_bytes;
	uint64_t forward_ns = model.step.backward_ns, step_ns = model.step.compute_ns;
	const struct spw_plan_flow flows[] = {
		{.ns = forward_ns, .bytes_written = (uint64_t)(bytes / 2)},
		{.from_ns = forward_ns,
		 .ns = step_ns - forward_ns,
		 .bytes_read = (uint64_t)(bytes / 2)},
	};
	double left = 1 - bytes / (f * model.need * (double)step_ns / 1e9);
	struct spw_plan_scopes scopes = model.halves.scopes;
	struct spw_plan_drives drives = drives_of(f);
	struct spw_plan_result together, apart, average;

	(void)plan_model(f, memory, 0);
	scopes.flows = flows;
	scopes.flows_count = SPW_ARRAY_LEN(flows);
	apart = simulate(&model.halves.step, f, &scopes, (uint64_t)memory);
	(void)plan_model(left > 0 ? f * left : 0, memory, 0);
	average = simulate(&model.halves.step, f, &scopes, (uint64_t)memory);
	together = plan(&model.halves.step, &drives, &scopes, memory, 0, &longest_ms);
	row((double)together.wall_ns / (double)apart.wall_ns, 0.90,
	    "%s, f = %g, %g %% of keep, with an optimizer's state: time, of planned apart",
	    model.name, f, 100 * part);
	row((double)together.wall_ns / (double)average.wall_ns, 1.00,
	    "%s, f = %g, %g %% of keep, with an optimizer's state: time, of planned on the average",
	    model.name, f, 100 * part);
}

/* ---- A forward pass that is a fifth faster than planned ---- */

static uint64_t faster(uint64_t ns)
{
	uint64_t forward_ns = model.step.backward_ns;

	if (ns < forward_ns)
		return (uint64_t)((double)ns / 1.2);
	return ns - forward_ns + (uint64_t)((double)forward_ns / 1.2);
}

static void with_faster_forward(double f, double part)
{
	struct spw_plan_result planned = plan_model(f, part * model.keep_bytes, 0), held, free_run;
	uint32_t count = model.step.tensors_count, scopes_count = model.halves.scopes.count;
	struct spw_plan_tensor *tensors = zeroed(count, sizeof(*tensors));
	struct spw_plan_scope *own = zeroed(scopes_count, sizeof(*own));
	uint64_t largest = 1, *saved_ns = zeroed(count, sizeof(*saved_ns));
	struct spw_plan_scopes scopes = model.halves.scopes;
	struct spw_plan_step step = model.halves.step;

	(void)simulate_times(&step, f, &scopes, planned.memory_bytes, saved_ns);
	for (uint32_t i = 0; i < count; i++) {
		tensors[i] = model.halves.tensors[i];
		tensors[i].pack_ns = faster(tensors[i].pack_ns);
		tensors[i].use_ns = faster(tensors[i].use_ns);
		tensors[i].release_ns = faster(tensors[i].release_ns);
		largest = tensors[i].bytes > largest ? tensors[i].bytes : largest;
	}
	for (uint32_t s = 0; s < scopes_count; s++) {
		own[s] = model.halves.own[s];
		own[s].enter_ns = faster(own[s].enter_ns);
	}
	step.tensors = tensors;
	step.forward_ns = faster(step.forward_ns);
	scopes.scopes = own;
	free_run = simulate(&step, f, &scopes, UNLIMITED);
	scopes.hold_until_ns = saved_ns;
	held = simulate(&step, f, &scopes, planned.memory_bytes);
	row((double)held.peak_bytes > (double)planned.peak_bytes
		    ? (double)(held.peak_bytes - planned.peak_bytes) / (double)largest
		    : 0,
	    1,
	    "%s, f = %g, %g %% of keep, forward a fifth faster: over the planned peak, of a tensor",
	    model.name, f, 100 * part);
	row((double)held.wall_ns / (double)planned.wall_ns, 1,
	    "%s, f = %g, %g %% of keep, forward a fifth faster: time, of the planned", model.name,
	    f, 100 * part);
	row((double)free_run.peak_bytes / (double)planned.peak_bytes, 0,
	    "%s, f = %g, %g %% of keep, not held to it: peak, of the planned", model.name, f,
	    100 * part);
	free(saved_ns);
	free(tensors);
	free(own);
}

/* ---- Models ---- */

static struct spw_plan_result all_again(const struct replay_scopes *scopes)
{
	for (uint32_t i = 0; i < model.step.tensors_count; i++) {
		const struct spw_plan_tensor *tensor = &scopes->tensors[i];

		model.choices[i] = tensor->scope < scopes->scopes.count && !tensor->not_again &&
						   tensor->users > 0 &&
						   scopes->own[tensor->scope].may_again &&
						   scopes->own[tensor->scope].input != i
					   ? SPW_PLAN_AGAIN
					   : SPW_PLAN_KEEP;
	}
	return simulate(&scopes->step, 0, &scopes->scopes, UNLIMITED);
}

static void load(const char *path)
{
	const struct replay_step_opts opts = {.speed = 1, .scale = 1, .min_bytes = MIN_BYTES};
	const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
	struct spw_plan_result result;

	memset(&model, 0, sizeof(model));
	(void)snprintf(model.name, sizeof(model.name), "%.*s", (int)strcspn(name, "."), name);
	must(spw_trace_read(path, &model.trace), path);
	must(replay_step_make(model.trace, &opts, &model.step), path);
	must(replay_scopes_make(&model.step, MIN_BYTES, REPLAY_SCOPES_INNER, &model.halves), path);
	must(replay_scopes_make(&model.step, MIN_BYTES, REPLAY_SCOPES_OUTER, &model.layers), path);
	model.choices = zeroed(model.step.tensors_count, sizeof(*model.choices));
	result = simulate(&model.halves.step, 0, &model.halves.scopes, UNLIMITED);
	model.keep_ns = (double)result.wall_ns;
	model.keep_bytes = (double)result.peak_bytes;
	result = all_again(&model.layers);
	model.recompute_ns = (double)result.wall_ns;
	model.recompute_bytes = (double)result.peak_bytes;
	model.need = (double)model.step.saved_bytes / ((double)model.step.compute_ns / 2e9);
	/* 16 bytes for each parameter of the layers; BERT's step has two micro-batches. */
	model.state_share = 0.75;
	model.recompute_least = 0.45;
	model.ample_least = 0.05;
	if (strcmp(model.name, "bert") == 0)
		model.state_share = 0.5;
	if (strcmp(model.name, "t5") == 0) {
		model.state_share = 1.26;
		model.recompute_least = 0.60;
		model.ample_least = 0.075;
	}
}

static void unload(void)
{
	replay_scopes_free(&model.halves);
	replay_scopes_free(&model.layers);
	replay_step_free(&model.step);
	spw_trace_free(model.trace);
	free(model.choices);
}

static void bench_trace(const char *path)
{
	static const double fs[] = {0.1, 0.2, 0.25, 0.5, 1, 1.5}, parts[] = {.1, .15, .25, .5, .75};

	load(path);
	longest_ms = 0;
	row(model.recompute_ns / model.keep_ns, 0,
	    "%s, recomputing by whole layers: time, of keep's", model.name);
	row(model.recompute_bytes / model.keep_bytes, 0,
	    "%s, recomputing by whole layers: peak, of keep's", model.name);
	row((double)all_again(&model.halves).wall_ns / model.keep_ns, 0,
	    "%s, recomputing by halves, to the last save: time, of keep's", model.name);
	against_recompute();
	for (size_t i = 0; i < SPW_ARRAY_LEN(fs); i++)
		for (size_t k = 0; k < SPW_ARRAY_LEN(parts); k++)
			against_pure(fs[i], parts[k]);
	within_slack(0.2);
	within_slack(0.5);
	within_slack(1);
	with_ample_drives(1.5);
	with_ample_drives(2);
	without_drives(0.5);
	without_drives(0.25);
	with_state(0.5, 0.25);
	with_state(0.5, 0.5);
	with_faster_forward(0.5, 0.25);
	with_faster_forward(0.2, 0.5);
	/* The goal is for 250 tensors. */
	row(longest_ms, model.step.tensors_count <= 300 ? 15 : 0,
	    "%s, %u tensors in %u scopes: CPU time of planning in ms, longest of all above",
	    model.name, model.step.tensors_count, model.halves.scopes.count);
	unload();
}

/* ---- A step of many tensors ---- */

static void bench_many(void)
{
	struct spw_plan_tensor *tensors = zeroed(MANY, sizeof(*tensors));
	struct spw_plan_scope *own = zeroed(MANY / MANY_SCOPE, sizeof(*own));
	struct spw_plan_step step = {.tensors = tensors, .count = MANY};
	struct spw_plan_scopes scopes;
	const uint64_t each_ns = 100000;
	double used_ms[2] = {0};

	model.choices = zeroed(MANY, sizeof(*model.choices));
	spw_plan_scopes_init(&scopes, sizeof(scopes));
	scopes.scopes = own;
	scopes.count = MANY / MANY_SCOPE;
	for (uint32_t i = 0; i < MANY; i++) {
		uint64_t use_ns = (3ul * MANY - 2ul * i) * each_ns;

		tensors[i] = (struct spw_plan_tensor){.bytes = (1 + i % 7) * (4ul << 20),
						      .pack_ns = i * each_ns,
						      .use_ns = use_ns,
						      .release_ns = use_ns + each_ns,
						      .users = 1,
						      .scope = i / MANY_SCOPE};
		if (i % MANY_SCOPE == 0)
			own[i / MANY_SCOPE] =
				(struct spw_plan_scope){.enter_ns = i * each_ns,
							.again_ns = MANY_SCOPE * each_ns,
							.input = i,
							.may_again = true};
	}
	step.forward_ns = MANY * each_ns;
	step.backward_ns = 2 * step.forward_ns + each_ns;
	for (unsigned k = 1; k <= 4; k++) {
		uint64_t rate = (uint64_t)(16. * (1 << 20) * 1e9 / (1.5 * (double)each_ns) * k / 4);
		struct spw_plan_drives drives = {.write_bytes_per_second = rate,
						 .read_bytes_per_second = rate};

		(void)plan(&step, &drives, &scopes, 0, 0.02, &used_ms[0]);
		(void)plan(&step, &drives, &scopes, 40e9, 0, &used_ms[1]);
	}
	row(used_ms[0], 40, "%u tensors in %u scopes, lowest peak: CPU time in ms, longest of 4",
	    MANY, scopes.count);
	row(used_ms[1], 40, "%u tensors in %u scopes, budget: CPU time in ms, longest of 4", MANY,
	    scopes.count);
	free(tensors);
	free(own);
	free(model.choices);
}

int main(int argc, char **argv)
{
	if (argc < 2) {
		(void)fprintf(stderr, "usage: scopes_bench TRACE...\n");
		return 2;
	}
	for (int k = 1; k < argc; k++)
		bench_trace(argv[k]);
	bench_many();
	return 0;
}
