/* SPDX-License-Identifier: MIT */
/*
 * tools/plan/model.c - the formulae of spillway plan for transformer models
 *
 * s sequence, b micro-batch, h hidden, a heads, L layers, v vocabulary, t tensor-parallel, p
 * pipeline-parallel, m micro-batches per step, d bytes per element.
 *
 * Activations of one layer, in bytes (Korthikanti et al., Reducing Activation Recomputation in
 * Large Transformer Models, 2022, equations 1 and 2, and section 5), for 16-bit elements and
 * one-byte dropout masks:
 *     one GPU            s b h (34 + 5 a s / h)
 *     tensor parallel    s b h (10 + 24 / t + 5 a s / (h t))
 *     selective, fused   without the last term
 *     full               2 s b h, and while a layer is being recomputed, all of that layer
 * Here 34 stands for 16 elements and 2 masks, 10 for 4 and 2, 24 for 12, and 5 for 2 and 1; the
 * code uses these numbers, so d can be any size.
 *
 * Operations of one step (the same, appendix A): forward 24 s b h^2 + 4 s^2 b h per layer, and 2 s
 * b h v for the logits; backward twice that. Selective recomputation and fused attention repeat
 * 4 s^2 b h, full recomputation the forward pass of the layers.
 *
 * Pipeline (1F1B): the first stage holds min(p, m) micro-batches at once; the step takes (m + p -
 * 1) / m of its compute.
 *
 * Bandwidth needed (Wu et al., SSDTrain): all bytes that a step saves, written in half of the step.
 * Drive life (the same): endurance x step time / bytes per step. A drive's rating assumes a
 * workload with a write amplification of 2.5; spilled activations are written once, in large
 * pieces, with an amplification of 1. The paper's further factor, 86 for cells that need keep data
 * for a day only, is left out: no drive has such a setting.
 */
#include "tools/plan/model.h"

#include <errno.h>
#include <stdlib.h>

#include <spillway/wear.h>

#include "util/util.h"

#define RATED_WRITE_AMPLIFICATION 2.5
#define LATENCY_NS                100000u
#define MASK_BYTES                1u
#define LOGIT_BYTES               4u /* the loss is computed in 32 bits */

int model_check(const struct model *model)
{
	const uint32_t values[] = {model->layers,          model->hidden,
				   model->heads,           model->sequence,
				   model->micro_batch,     model->micro_batches,
				   model->tensor_parallel, model->pipeline_parallel,
				   model->dtype_bytes};

	for (size_t i = 0; i < SPW_ARRAY_LEN(values); i++)
		if (values[i] == 0)
			return spw_error(-EINVAL,
					 "layers, hidden, heads, sequence, batches, parallelism "
					 "and bytes per element must not be 0");
	if (model->layers % model->pipeline_parallel != 0)
		return spw_error(-EINVAL, "%u layers cannot be cut into %u equal pipeline stages",
				 model->layers, model->pipeline_parallel);
	if (model->heads % model->tensor_parallel != 0)
		return spw_error(-EINVAL, "%u heads cannot be shared by %u GPUs", model->heads,
				 model->tensor_parallel);
	if (model->hidden % model->heads != 0)
		return spw_error(-EINVAL, "a hidden size of %u cannot be cut into %u heads",
				 model->hidden, model->heads);
	if (model->dtype_bytes > 8)
		return spw_error(-EINVAL, "%u bytes per element are more than 8",
				 model->dtype_bytes);
	if (model->micro_batches > MODEL_MICRO_BATCHES_MAX)
		return spw_error(-EINVAL, "%u micro-batches are more than %u", model->micro_batches,
				 MODEL_MICRO_BATCHES_MAX);
	return 0;
}

/* ---- What a layer saves, in order ---- */

struct saved {
	unsigned elements, masks; /* times s b h */
	bool shared;              /* divided among the tensor-parallel GPUs */
	bool scores;              /* times a s^2 b instead; recomputed in selective mode */
	bool input;               /* the only tensor saved in full mode */
};

static const struct saved layer[] = {
	{.elements = 1, .input = true}, /* input of the first norm */
	/* input of the projection to queries, keys, values */
	{.elements = 1},
	{.elements = 3, .shared = true},                 /* queries, keys, values */
	{.elements = 1, .shared = true, .scores = true}, /* softmax */
	{.masks = 1, .shared = true, .scores = true},    /* mask of its dropout */
	{.elements = 1, .shared = true, .scores = true}, /* what multiplies the values */
	{.elements = 1, .shared = true},                 /* input of the output projection */
	{.masks = 1},                                    /* mask of its dropout */
	{.elements = 1},                                 /* input of the second norm */
	{.elements = 1},                                 /* input of the feed-forward part */
	{.elements = 4, .shared = true},                 /* input of its nonlinearity */
	{.elements = 4, .shared = true},                 /* input of its second matrix */
	{.masks = 1},                                    /* mask of its dropout */
};

enum { LAYER_PARTS = SPW_ARRAY_LEN(layer) };

static double saved_bytes(const struct model *model, const struct saved *saved,
			  enum model_recompute recompute)
{
	double bytes = (double)model->sequence * model->micro_batch *
		       (saved->scores ? (double)model->heads * model->sequence : model->hidden);

	if ((saved->scores && (!model->unfused || recompute == MODEL_RECOMPUTE_SELECTIVE)) ||
	    (recompute == MODEL_RECOMPUTE_FULL && !saved->input))
		return 0;
	bytes *= saved->elements * model->dtype_bytes + saved->masks * MASK_BYTES;
	return saved->shared ? bytes / model->tensor_parallel : bytes;
}

double model_layer_bytes(const struct model *model, enum model_recompute recompute)
{
	double bytes = 0;

	for (size_t i = 0; i < LAYER_PARTS; i++)
		bytes += saved_bytes(model, &layer[i], recompute);
	return bytes;
}

/* ---- The step ---- */

void model_step_of(const struct model *model, struct model_step *step)
{
	double s = model->sequence, b = model->micro_batch, h = model->hidden,
	       t = model->tensor_parallel;
	double m = model->micro_batches, p = model->pipeline_parallel;
	double attention = 4 * s * s * b * h, logits = 2 * s * b * h * model->vocabulary;
	double forward, again = 0;

	*step = (struct model_step){.layers = model->layers / model->pipeline_parallel};
	step->layer_bytes = model_layer_bytes(model, model->recompute);
	step->step_bytes = step->layer_bytes * step->layers * m;
	forward = (24 * s * b * h * h + attention) * step->layers;
	if (!model->unfused || model->recompute == MODEL_RECOMPUTE_SELECTIVE)
		again = attention * step->layers;
	if (model->recompute == MODEL_RECOMPUTE_FULL)
		again += forward;
	forward += logits / p; /* divided evenly, as the stages' work should be balanced */
	step->forward_seconds = forward / t / model->gpu_flops;
	step->backward_seconds = (2 * forward + again) / t / model->gpu_flops;
	step->seconds = (m + p - 1) * (step->forward_seconds + step->backward_seconds);
	step->model_flops = 3 * forward * m / t;
	if (model->pipeline_parallel == 1 && model->vocabulary > 0)
		step->outside_layers_bytes =
			s * b *
			(2 * h * model->dtype_bytes + (double)LOGIT_BYTES * model->vocabulary / t);
	if (model->recompute == MODEL_RECOMPUTE_FULL)
		step->recompute_bytes =
			model_layer_bytes(model, MODEL_RECOMPUTE_NONE) - step->layer_bytes;
}

double model_bandwidth_needed(const struct model_step *step)
{
	return step->step_bytes / (step->seconds / 2);
}

struct model_life model_life_of(double endurance_bytes, double bytes, double seconds)
{
	struct model_life life = {0};
	struct spw_wear wear;

	/* How long a new drive lasts at this rate. */
	if (spw_wear(NULL, endurance_bytes, bytes, seconds, &wear, sizeof(wear)) || wear.years < 0)
		return life;
	life.bytes_per_day = wear.bytes_per_day;
	life.rated_seconds = wear.years * SPW_DAYS_PER_YEAR * SPW_SECONDS_PER_DAY;
	life.sequential_seconds = life.rated_seconds * RATED_WRITE_AMPLIFICATION;
	return life;
}

/* ---- The step for the planner ---- */

struct timeline {
	const struct model *model;
	struct model_step step;
	struct spw_plan_tensor *tensors;
	uint32_t count;
};

/* Add the tensors of a micro-batch, spread evenly over each layer's time. */
static void add_micro_batch(struct timeline *timeline, double forward_begin, double backward_begin,
			    uint32_t scope)
{
	const struct model *model = timeline->model;
	const struct model_step *step = &timeline->step;
	double forward = step->forward_seconds / step->layers / LAYER_PARTS;
	double backward = step->backward_seconds / step->layers / LAYER_PARTS;
	uint32_t parts = step->layers * LAYER_PARTS;

	for (uint32_t part = 0; part < parts; part++) {
		double bytes = saved_bytes(model, &layer[part % LAYER_PARTS], model->recompute);
		double use = backward_begin + (parts - 1 - part) * backward;

		if (bytes <= 0)
			continue;
		timeline->tensors[timeline->count++] = (struct spw_plan_tensor){
			.bytes = (uint64_t)bytes,
			.pack_ns = (uint64_t)((forward_begin + part * forward) * 1e9),
			.use_ns = (uint64_t)(use * 1e9),
			.release_ns = (uint64_t)((use + backward) * 1e9),
			.users = 1,
			.scope = scope + part / LAYER_PARTS,
		};
	}
}

/* Add the first stage's step: p forward passes, then backward and forward alternate. */
static void add_step(struct timeline *timeline)
{
	const struct model_step *step = &timeline->step;
	uint32_t stages = timeline->model->pipeline_parallel,
		 batches = timeline->model->micro_batches;
	double both = step->forward_seconds + step->backward_seconds;
	double first_back = stages * step->forward_seconds + (stages - 1) * step->backward_seconds;

	for (uint32_t i = 0; i < batches; i++) {
		double back = first_back + i * both;
		double forward =
			i < stages ? i * step->forward_seconds
				   : first_back + (i - stages) * both + step->backward_seconds;

		add_micro_batch(timeline, forward, back, i * step->layers);
	}
}

static int check_size(const struct timeline *timeline)
{
	const struct model_step *step = &timeline->step;
	double tensors = (double)LAYER_PARTS * step->layers * timeline->model->micro_batches;

	if (tensors > MODEL_TENSORS_MAX)
		return spw_error(-EINVAL,
				 "%.0f tensors per step and GPU are more than %u: fewer layers or "
				 "micro-batches",
				 tensors, MODEL_TENSORS_MAX);
	/* Check the planner's limits before anything is converted to its integers. */
	if (step->step_bytes >= 0x1p62 || step->seconds >= 0x1p50 / 1e9)
		return spw_error(-EINVAL,
				 "the model is too large, or the GPU too slow: a step saves %.3g "
				 "bytes and takes %.3g s",
				 step->step_bytes, step->seconds);
	return 0;
}

int model_plan(const struct model *model, const struct model_drives *drives,
	       struct spw_plan_result *result)
{
	struct timeline timeline = {.model = model};
	struct spw_plan_drives bandwidths = {.latency_ns = LATENCY_NS};
	enum spw_plan_choice *choices = NULL;
	struct spw_plan_step step = {0};
	size_t tensors;
	int rc;

	model_step_of(model, &timeline.step);
	rc = check_size(&timeline);
	if (rc)
		return rc;
	tensors = (size_t)LAYER_PARTS * timeline.step.layers * model->micro_batches;
	timeline.tensors = calloc(tensors, sizeof(*timeline.tensors));
	choices = calloc(tensors, sizeof(*choices));
	if (!timeline.tensors || !choices) {
		rc = spw_error(-ENOMEM, "no memory to plan a step of %zu tensors", tensors);
		goto out;
	}
	add_step(&timeline);
	step = (struct spw_plan_step){.tensors = timeline.tensors, .count = timeline.count};
	if (drives) {
		bandwidths.write_bytes_per_second = (uint64_t)drives->write;
		bandwidths.read_bytes_per_second = (uint64_t)drives->read;
	}
	result->size = sizeof(*result);
	rc = spw_plan(&step, &bandwidths, NULL, choices, result);
out:
	free(timeline.tensors);
	free(choices);
	return rc;
}
