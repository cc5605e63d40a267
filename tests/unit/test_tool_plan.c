/* SPDX-License-Identifier: MIT */
/* tests/unit/test_tool_plan.c - spillway plan: its formulae against published figures */

#include "tests/case.h"

#include <errno.h>

#include "tools/plan/model.c"

#define DAY  86400.0
#define YEAR (365.25 * DAY)

/* GPT-3 on 8 x 8 GPUs. */
static const struct model gpt3 = {
	.unfused = true,
	.layers = 96,
	.hidden = 12288,
	.heads = 96,
	.sequence = 2048,
	.micro_batch = 1,
	.micro_batches = 64,
	.vocabulary = 51200,
	.tensor_parallel = 8,
	.pipeline_parallel = 8,
	.dtype_bytes = 2,
	.gpu_flops = 150e12,
};

static void near(double expected, double found, double share)
{
	if (found < expected * (1 - share) || found > expected * (1 + share))
		fail_msg("%g expected, %g found", expected, found);
}

CASE(activations_of_a_layer)
{
	struct model model = gpt3;
	double s = model.sequence, b = 3, h = model.hidden, a = model.heads,
	       t = model.tensor_parallel;

	model.micro_batch = 3;
	near(s * b * h * (10 + 24 / t + 5 * a * s / (h * t)),
	     model_layer_bytes(&model, MODEL_RECOMPUTE_NONE), 1e-12);
	near(s * b * h * (10 + 24 / t), model_layer_bytes(&model, MODEL_RECOMPUTE_SELECTIVE),
	     1e-12);
	near(2 * s * b * h, model_layer_bytes(&model, MODEL_RECOMPUTE_FULL), 1e-12);
	model.tensor_parallel = 1;
	near(s * b * h * (34 + 5 * a * s / h), model_layer_bytes(&model, MODEL_RECOMPUTE_NONE),
	     1e-12);
	/* Elements of 4 bytes: twice as much, but for the masks. */
	model.dtype_bytes = 4;
	near(s * b * h * (66 + 9 * a * s / h), model_layer_bytes(&model, MODEL_RECOMPUTE_NONE),
	     1e-12);
}

/* Of GPT-3, the core of attention holds 5 a s / h = 80 of 34 + 80, which is 70 %. */
CASE(selective_recomputation_saves_70_percent)
{
	struct model model = gpt3;

	model.tensor_parallel = 1;
	near(0.70,
	     1 - model_layer_bytes(&model, MODEL_RECOMPUTE_SELECTIVE) /
			     model_layer_bytes(&model, MODEL_RECOMPUTE_NONE),
	     0.01);
}

CASE(operations_of_a_step)
{
	struct model model = gpt3;
	struct model_step step, full, selective;
	double s = model.sequence, h = model.hidden, layers = model.layers, v = model.vocabulary,
	       m = 64;

	model_step_of(&model, &step);
	/* 72 B L s h^2 (1 + s / 6h + v / 12hL), by 64 GPUs */
	near(72 * m * layers * s * h * h * (1 + s / (6 * h) + v / (12 * h * layers)) / 64,
	     step.model_flops, 1e-9);
	near(step.model_flops / model.gpu_flops * (64 + 7) / 64., step.seconds, 1e-9);
	model.recompute = MODEL_RECOMPUTE_FULL;
	model_step_of(&model, &full);
	near(step.seconds * 4 / 3, full.seconds, 0.01);
	model.recompute = MODEL_RECOMPUTE_SELECTIVE;
	model_step_of(&model, &selective);
	near(s / (18 * h) / (1 + s / (6 * h) + v / (12 * h * layers)),
	     selective.seconds / step.seconds - 1, 1e-9);
	near(step.model_flops, full.model_flops, 1e-12);
}

CASE(peak_of_the_first_stage)
{
	struct spw_plan_result result;
	struct model model = gpt3;
	struct model_step step;

	model_step_of(&model, &step);
	assert_int_equal(0, model_plan(&model, NULL, &result));
	/* Eight micro-batches of a stage's layers at once: as much as one of all layers. */
	near(step.layer_bytes * model.layers, (double)result.peak_keep_all_bytes, 1e-6);
	assert_int_equal(result.peak_bytes, result.peak_keep_all_bytes);
	assert_int_equal(0, result.bytes_written);
	model.micro_batches = 3;
	assert_int_equal(0, model_plan(&model, NULL, &result));
	near(step.layer_bytes * step.layers * 3, (double)result.peak_keep_all_bytes, 1e-6);
}

CASE(more_bandwidth_lowers_the_peak)
{
	struct spw_plan_result result = {0};
	struct model model = gpt3;
	struct model_step step;
	uint64_t last = UINT64_MAX;

	model.pipeline_parallel = 1;
	model.micro_batches = 1;
	model.layers = 12;
	model.recompute = MODEL_RECOMPUTE_SELECTIVE;
	model_step_of(&model, &step);
	for (double share = 0.25; share <= 2; share *= 2) {
		struct model_drives drives = {.write = share * step.step_bytes /
						       step.forward_seconds};

		drives.read = drives.write;
		assert_int_equal(0, model_plan(&model, &drives, &result));
		assert_int_equal(0, result.stall_ns);
		assert_true(result.peak_bytes < last);
		last = result.peak_bytes;
		/* What was not written by the end of the forward pass is in memory then. */
		if (share < 1)
			near((1 - share) * step.step_bytes, (double)result.peak_bytes, 0.05);
	}
	assert_true((double)result.peak_bytes < 2 * step.layer_bytes);
}

/* Four drives of 600 TBW, 12.1 GB/s for half of each step. */
CASE(life_of_four_consumer_drives)
{
	struct model_life life = model_life_of(4 * 600e12, 12.1e9 / 2, 1);

	near(4.6 * DAY, life.rated_seconds, 0.01);
	near(11.5 * DAY, life.sequential_seconds, 0.01);
}

/* Four drives of 1.6 TB, 100 drive writes per day for 5 years, at the same rate. */
CASE(life_of_four_durable_drives)
{
	near(6 * YEAR, model_life_of(4 * 1.6e12 * 100 * 365 * 5, 12.1e9 / 2, 1).rated_seconds,
	     0.03);
}

CASE(bandwidth_is_all_in_half_of_the_step)
{
	struct model_step step = {.step_bytes = 1e12, .seconds = 100};

	near(20e9, model_bandwidth_needed(&step), 1e-12);
}

CASE(nonsense_is_refused)
{
	static struct model model;
	static const struct {
		uint32_t *field, value;
		const char *words;
	} rows[] = {
		{&model.layers, 97, "pipeline stages"},
		{&model.tensor_parallel, 7, "shared by 7"},
		{&model.hidden, 12289, "heads"},
		{&model.sequence, 0, "must not be 0"},
		{&model.dtype_bytes, 9, "more than 8"},
		{&model.micro_batches, UINT32_MAX, "micro-batches are more"},
	};
	struct spw_plan_result result;

	assert_int_equal(0, model_check(&gpt3));
	for (size_t i = 0; i < SPW_ARRAY_LEN(rows); i++) {
		model = gpt3;
		*rows[i].field = rows[i].value;
		assert_int_equal(-EINVAL, model_check(&model));
		expect_words(rows[i].words);
	}
	model.micro_batches = MODEL_MICRO_BATCHES_MAX;
	assert_int_equal(-EINVAL, model_plan(&model, NULL, &result));
	model = gpt3;
	model.sequence = model.micro_batch = UINT32_MAX;
	assert_int_equal(-EINVAL, model_plan(&model, NULL, &result));
}

RUN_CASES(NULL, NULL)
