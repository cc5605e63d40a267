/* SPDX-License-Identifier: MIT */
/*
 * tests/fuzz/fuzz_model.c - any description of a model for spillway plan: a refusal, or
 * finite figures that fit each other
 */
/* link: tools/plan/model libspillway */
#include <errno.h>
#include <math.h>

#include "tests/fuzz/fuzz.h"
#include "util/util.h"
#include "tools/plan/model.h"

#define PLANNED_MAX 80u /* tensors: larger steps take too long for a fuzzer */

static void read_model(struct fuzz_bytes *bytes, struct model *model)
{
	uint32_t *const numbers[] = {&model->layers,          &model->hidden,
				     &model->heads,           &model->sequence,
				     &model->micro_batch,     &model->micro_batches,
				     &model->tensor_parallel, &model->pipeline_parallel,
				     &model->dtype_bytes,     &model->vocabulary};

	memset(model, 0, sizeof(*model));
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		*numbers[i] = (uint32_t)fuzz_number(bytes);
	/* Divisors are rarely met by chance. */
	if (fuzz_byte(bytes) % 4) {
		model->layers *= model->pipeline_parallel % 16;
		model->heads *= model->tensor_parallel % 16;
		model->hidden *= model->heads;
		model->dtype_bytes = 1 + model->dtype_bytes % 8;
	}
	model->recompute = (enum model_recompute)(fuzz_byte(bytes) % 3);
	model->gpu_flops = (double)(1 + fuzz_number(bytes) % 1000000000) * 1e7;
}

static void check_step(const struct model *model, const struct model_step *step)
{
	const double figures[] = {
		step->layer_bytes,          step->step_bytes,     step->forward_seconds,
		step->backward_seconds,     step->seconds,        step->model_flops,
		step->outside_layers_bytes, step->recompute_bytes};

	for (size_t i = 0; i < sizeof(figures) / sizeof(figures[0]); i++)
		FUZZ_REQUIRE(isfinite(figures[i]) && figures[i] >= 0);
	FUZZ_REQUIRE(step->layers * model->pipeline_parallel == model->layers);
	FUZZ_REQUIRE(step->layer_bytes > 0 && step->step_bytes >= step->layer_bytes &&
		     step->seconds > 0);
	FUZZ_REQUIRE(step->backward_seconds >= step->forward_seconds);
	FUZZ_REQUIRE(model_bandwidth_needed(step) > 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_bytes bytes = {data, size};
	struct spw_plan_result kept = {0}, result = {0};
	struct model_drives drives;
	struct model_step step;
	struct model model;
	int rc;

	read_model(&bytes, &model);
	drives = (struct model_drives){.write = (double)(fuzz_number(&bytes) >> 14),
				       .read = (double)(fuzz_number(&bytes) >> 14),
				       .endurance_bytes = 1e15};
	(void)spw_error(-EIO, "nothing");
	rc = model_check(&model);
	FUZZ_REQUIRE(rc == 0 || (rc == -EINVAL && strcmp(spw_last_error(), "nothing") != 0));
	if (rc != 0)
		return 0;
	model_step_of(&model, &step);
	check_step(&model, &step);
	if (13.0 * step.layers * model.micro_batches > PLANNED_MAX)
		return 0;
	rc = model_plan(&model, NULL, &kept);
	FUZZ_REQUIRE(rc == 0 || (rc == -EINVAL && strcmp(spw_last_error(), "nothing") != 0));
	rc = model_plan(&model, &drives, &result);
	FUZZ_REQUIRE(rc == 0 || rc == -EINVAL);
	if (rc == 0)
		FUZZ_REQUIRE(result.stall_ns == 0 && result.peak_bytes <= kept.peak_bytes &&
			     (double)result.bytes_written <= step.step_bytes + 1);
	return 0;
}
