/* SPDX-License-Identifier: MIT */
/*
 * tests/bench/scopes_bench.c - one plan of what is kept, spilled and computed again, against the
 * pure ways
 *
 * usage: scopes_bench TRACE... Prints rows. Virtual time: the same on every machine, but for the
 * times of planning, which are the processor's.
 *
 * f is the bandwidth of the drives, over what it takes to spill all that a step saves in half of
 * it. Recomputing is done by whole layers from inputs that are kept; spilling is the same planner
 * without computing again. Everything is held to the budget.
 */
#include <spillway/plan.h>
#include <spillway/trace.h>

#include <math.h>
#include <time.h>

#include "tests/bench/rows.h"
#include "tools/plan/scopes.h"
#include "util/util.h"

#define MIN_BYTES   (64u << 10)
#define LATENCY_NS  100000u
#define CHUNK_BYTES (1u << 20)
#define REPEATS     3u
#define UNLIMITED   (UINT64_C(1) << 62)

static struct model {
	char name[32];
	struct spw_trace *trace;
	struct replay_step step;
	struct plan_scopes halves, layers;
	enum spw_plan_choice *choices;
	struct spw_plan_result keep, recompute;
	double need; /* bytes per second: f of 1 */
} model;

static struct spw_plan_drives drives_of(double f)
{
	uint64_t rate = (uint64_t)(model.need * f);

	return (struct spw_plan_drives){.write_bytes_per_second = rate,
					.read_bytes_per_second = rate,
					.latency_ns = LATENCY_NS,
					.chunk_bytes = CHUNK_BYTES};
}

static double used_ms;

static struct spw_plan_result plan(double f, enum spw_plan_mode mode, double memory, double slack,
				   bool again)
{
	struct spw_plan_drives drives = drives_of(f);
	struct spw_plan_result result = {.size = sizeof(result)};
	struct spw_plan_scopes scopes = model.halves.scopes;
	struct spw_plan_opts opts;

	spw_plan_opts_init(&opts, sizeof(opts));
	opts.mode = mode;
	opts.memory_bytes = (uint64_t)memory;
	scopes.slack = slack;
	if (!again)
		scopes.count = 0;
	used_ms = INFINITY;
	for (unsigned k = 0; k < REPEATS; k++) {
		struct timespec from, to;

		(void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
		must(spw_plan_scopes(&model.halves.step, &drives, &scopes, &opts, model.choices,
				     &result),
		     "plan");
		(void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
		used_ms = fmin(used_ms, (double)(to.tv_sec - from.tv_sec) * 1e3 +
						(double)(to.tv_nsec - from.tv_nsec) / 1e6);
	}
	return result;
}

static void load(const char *path)
{
	const struct replay_step_opts opts = {.speed = 1, .scale = 1, .min_bytes = MIN_BYTES};
	const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
	struct spw_plan_drives none = {0};

	(void)snprintf(model.name, sizeof(model.name), "%.*s", (int)strcspn(name, "."), name);
	must(spw_trace_read(path, &model.trace), path);
	must(replay_step_make(model.trace, &opts, &model.step), path);
	must(plan_scopes_make(&model.step, MIN_BYTES, PLAN_SCOPES_INNER, &model.halves), path);
	must(plan_scopes_make(&model.step, MIN_BYTES, PLAN_SCOPES_OUTER, &model.layers), path);
	model.choices = calloc(model.step.tensors_count, sizeof(*model.choices));
	model.keep.size = model.recompute.size = sizeof(model.keep);
	must(spw_plan_scopes_simulate(&model.halves.step, &none, &model.halves.scopes, UNLIMITED,
				      model.choices, NULL, &model.keep),
	     "keep");
	for (uint32_t i = 0; i < model.step.tensors_count; i++) {
		const struct spw_plan_tensor *tensor = &model.layers.tensors[i];

		if (tensor->scope < model.layers.scopes.count && !tensor->not_again &&
		    tensor->users > 0 && model.layers.own[tensor->scope].may_again &&
		    model.layers.own[tensor->scope].input != i)
			model.choices[i] = SPW_PLAN_AGAIN;
	}
	must(spw_plan_scopes_simulate(&model.layers.step, &none, &model.layers.scopes, UNLIMITED,
				      model.choices, NULL, &model.recompute),
	     "recompute");
	model.need = (double)model.step.saved_bytes / ((double)model.step.compute_ns / 2e9);
}

int main(int argc, char **argv)
{
	for (int k = 1; k < argc; k++) {
		double C, R, TR, K;
		load(argv[k]);
		C = (double)model.keep.wall_ns;
		K = (double)model.keep.peak_bytes;
		R = (double)model.recompute.peak_bytes;
		TR = (double)model.recompute.wall_ns;
		printf("%s tensors %u scopes %u keep %.0f MiB recompute %.3f of peak %.3f of "
		       "time\n",
		       model.name, model.step.tensors_count, model.halves.scopes.count, K / 1048576,
		       R / K, TR / C);
		static const double fs[] = {0.1, 0.2, 0.25, 0.5, 1, 1.5, 2};
		for (unsigned j = 0; j < 7; j++) {
			struct spw_plan_result r =
				plan(fs[j], SPW_PLAN_FASTEST, 0, TR / C * 1.02 - 1, true);
			double ms = used_ms;
			struct spw_plan_result b = plan(fs[j], SPW_PLAN_BUDGET, R, 0, true);
			double ms2 = used_ms;
			struct spw_plan_result s = plan(fs[j], SPW_PLAN_FASTEST, 0, 0.02, true);
			double ms3 = used_ms;
			struct spw_plan_result z = plan(fs[j], SPW_PLAN_FASTEST, 0, 0.02, false);
			printf("f %.2f: slack TR: peak %.3f of R (again %u, %.1f ms); at R: "
			       "time %.3f of TR feas %d (%.1f ms); slack 2%%: peak %.3f of K again "
			       "%u "
			       "(%.1f ms); pure spill %.3f\n",
			       fs[j], (double)r.peak_bytes / R, r.scopes_again, ms,
			       (double)b.wall_ns / TR, b.feasible, ms2, (double)s.peak_bytes / K,
			       s.scopes_again, ms3, (double)z.peak_bytes / K);
			for (unsigned p = 0; p < 5; p++) {
				static const double parts[] = {.1, .15, .25, .5, .75};
				double M = K * parts[p];
				struct spw_plan_result o = plan(fs[j], SPW_PLAN_BUDGET, M, 0, true);
				double mso = used_ms;
				struct spw_plan_result q =
					plan(fs[j], SPW_PLAN_BUDGET, M, 0, false);
				double better = INFINITY;
				if (q.feasible)
					better = (double)q.wall_ns;
				if (R <= M && TR < better)
					better = TR;
				printf("  budget %.2f: ours %.3f (feas %d, again %u, %.1f ms) "
				       "spill "
				       "%.3f (%d) faster %.3f\n",
				       parts[p], (double)o.wall_ns / C, o.feasible, o.scopes_again,
				       mso, (double)q.wall_ns / C, q.feasible,
				       1 - (double)o.wall_ns / better);
			}
		}
	}
	return 0;
}
