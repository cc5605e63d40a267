/* SPDX-License-Identifier: MIT */
/*
 * tests/gpu_step.h - training steps of GPUs, from the arithmetic of three models
 *
 * Matrix products at the card's rate, attention at less, all else by the bytes that it moves; bf16
 * with fused attention, norms and loss. The backward of an operation takes twice its forward,
 * attention 2.5 times. A tensor is saved when its operation has ended, and freed by the last
 * operation of the backward that uses it. Only the layers: no embedding, head or optimizer.
 */
#ifndef SPW_TESTS_GPU_STEP_H
#define SPW_TESTS_GPU_STEP_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <spillway/plan.h>

#include "util/util.h"

#define GPU_OPERATIONS_MAX 9u
#define GPU_SAVED_MAX      10u
#define GPU_PIECES         4u
#define GPU_LAYERS_MAX     32u
#define GPU_TENSORS_MAX    (GPU_LAYERS_MAX * GPU_SAVED_MAX)

/* Of one layer; operations are numbered in forward order. */
struct gpu_saved {
	uint64_t bytes;
	double recompute_us; /* its operation alone */
	unsigned saved_by, used_by, freed_by;
	unsigned piece; /* of GPU_PIECES */
	/* made by a norm, an activation function or a product: of other saved tensors, cheaply */
	bool cheap;
	bool not_again; /* two pieces need it */
};

struct gpu_model {
	const char *name;
	unsigned layers, operations, saved;
	uint64_t bus;
	double forward_us[GPU_OPERATIONS_MAX], backward_us[GPU_OPERATIONS_MAX];
	struct gpu_saved tensors[GPU_SAVED_MAX];
	unsigned inputs[GPU_PIECES]; /* the tensor that each piece is recomputed from */
};

static const struct gpu_model gpu_models[] = {
	{"GPT, 12 layers of 4096, H200",
	 12,
	 8,
	 8,
	 55000000000,
	 {32.833, 1277.579, 266.162, 475.109, 32.833, 1703.439, 131.33, 1752.688},
	 {65.665, 2555.159, 665.406, 950.217, 65.665, 3406.878, 196.995, 3505.376},
	 {{40099840, 0, 0, 0, 0, 0, false, false},
	  {40099840, 32.833, 0, 1, 1, 0, true, false},
	  {120299520, 1277.579, 1, 2, 2, 0, false, false},
	  {40099840, 266.162, 2, 3, 2, 1, false, false},
	  {40099840, 475.109, 4, 4, 4, 2, false, false},
	  {40099840, 32.833, 4, 5, 5, 2, true, false},
	  {160399360, 1703.439, 5, 6, 6, 2, false, false},
	  {160399360, 131.33, 6, 7, 7, 3, true, false}},
	 {0, 2, 4, 6}},
	{"Llama of 8B, 8192 tokens, H100",
	 32,
	 9,
	 10,
	 55000000000,
	 {51.622, 1108.225, 2290.649, 764.628, 51.622, 4810.363, 180.678, 271.017, 2482.615},
	 {103.244, 2216.451, 5726.623, 1529.256, 103.244, 9620.727, 271.017, 433.627, 4965.23},
	 {{67108864, 0, 0, 0, 0, 0, false, false},
	  {67108864, 51.622, 0, 1, 1, 0, true, false},
	  {100663296, 1108.225, 1, 2, 2, 0, false, false},
	  {67108864, 2290.649, 2, 3, 2, 1, false, false},
	  {67108864, 764.628, 4, 4, 4, 2, false, false},
	  {67108864, 51.622, 4, 5, 5, 2, true, false},
	  {234881024, 2405.182, 5, 6, 6, 2, false, false},
	  {234881024, 2405.182, 5, 7, 7, 2, false, true},
	  {234881024, 180.678, 6, 7, 7, 3, true, false},
	  {234881024, 271.017, 7, 8, 8, 3, true, false}},
	 {0, 2, 4, 6}},
	{"Llama of 3B, 4096 tokens, 24 GB card",
	 28,
	 9,
	 10,
	 25000000000,
	 {62.915, 1276.212, 780.903, 797.185, 62.915, 3748.335, 167.772, 251.658, 1968.539},
	 {125.829, 2552.425, 1952.258, 1594.369, 125.829, 7496.67, 251.658, 402.653, 3937.079},
	 {{25165824, 0, 0, 0, 0, 0, false, false},
	  {25165824, 62.915, 0, 1, 1, 0, true, false},
	  {41943040, 1276.212, 1, 2, 2, 0, false, false},
	  {25165824, 780.903, 2, 3, 2, 1, false, false},
	  {25165824, 797.185, 4, 4, 4, 2, false, false},
	  {25165824, 62.915, 4, 5, 5, 2, true, false},
	  {67108864, 1874.168, 5, 6, 6, 2, false, false},
	  {67108864, 1874.168, 5, 7, 7, 2, false, true},
	  {67108864, 167.772, 6, 7, 7, 3, true, false},
	  {67108864, 251.658, 7, 8, 8, 3, true, false}},
	 {0, 2, 4, 6}},
};

/* What can be recomputed. */
enum gpu_way {
	GPU_LAYERS, /* whole layers */
	GPU_HALVES, /* attention and MLP */
	GPU_PIECES_OF_HALVES,
	/* halves; and what is cheap never stays: the caller makes it when it is used */
	GPU_CHEAP_MADE_AGAIN,
};

struct gpu_step {
	struct spw_plan_step step;
	struct spw_plan_scopes scopes;
	struct spw_plan_tensor tensors[GPU_TENSORS_MAX];
	struct spw_plan_scope own[GPU_LAYERS_MAX * GPU_PIECES];
	enum spw_plan_choice choices[GPU_TENSORS_MAX];
};

static inline uint64_t gpu_ns(double us)
{
	return (uint64_t)(us * 1e3 + 0.5);
}

/* Which scope of its layer a piece belongs to. */
static inline unsigned gpu_scope_of(enum gpu_way way, unsigned piece)
{
	if (way == GPU_LAYERS)
		return 0;
	return way == GPU_PIECES_OF_HALVES ? piece : piece / 2;
}

static inline unsigned gpu_scopes_each(enum gpu_way way)
{
	return gpu_scope_of(way, GPU_PIECES - 1) + 1;
}

/* How much longer the backward of operation @k is, for what is made again for it. */
static inline double gpu_made_us(const struct gpu_model *model, enum gpu_way way, unsigned k)
{
	double us = 0;

	for (unsigned i = 0; way == GPU_CHEAP_MADE_AGAIN && i < model->saved; i++)
		if (model->tensors[i].cheap && model->tensors[i].used_by == k)
			us += model->tensors[i].recompute_us;
	return us;
}

/* Up to the last save, if one is to come; what is cheap is not among them if it is made again. */
static inline void gpu_add_scopes(const struct gpu_model *model, enum gpu_way way, unsigned layer,
				  const uint64_t *begins_ns, const uint64_t *ends_ns,
				  struct gpu_step *gpu)
{
	unsigned each = gpu_scopes_each(way);

	for (unsigned s = 0; s < each; s++) {
		struct spw_plan_scope *scope = &gpu->own[layer * each + s];

		*scope = (struct spw_plan_scope){.enter_ns = UINT64_MAX, .may_again = true};
		for (unsigned i = 0; i < model->saved; i++) {
			const struct gpu_saved *saved = &model->tensors[i];

			if (gpu_scope_of(way, saved->piece) != s)
				continue;
			if (scope->enter_ns == UINT64_MAX) {
				scope->enter_ns = begins_ns[saved->saved_by];
				scope->input = layer * model->saved + model->inputs[saved->piece];
			}
			if (way != GPU_CHEAP_MADE_AGAIN || !saved->cheap)
				scope->again_ns = ends_ns[saved->saved_by] - scope->enter_ns;
		}
	}
}

static inline void gpu_add_forward(const struct gpu_model *model, enum gpu_way way,
				   struct gpu_step *gpu)
{
	uint64_t ns = 0;

	for (unsigned layer = 0; layer < model->layers; layer++) {
		uint64_t begins_ns[GPU_OPERATIONS_MAX], ends_ns[GPU_OPERATIONS_MAX] = {0};

		for (unsigned k = 0; k < model->operations; k++) {
			begins_ns[k] = ns;
			ends_ns[k] = ns += gpu_ns(model->forward_us[k]);
		}
		for (unsigned i = 0; i < model->saved; i++) {
			const struct gpu_saved *saved = &model->tensors[i];
			bool decided = way == GPU_CHEAP_MADE_AGAIN && saved->cheap;

			gpu->tensors[layer * model->saved + i] = (struct spw_plan_tensor){
				.bytes = saved->bytes,
				.pack_ns = ends_ns[saved->saved_by],
				.users = 1,
				.scope = layer * gpu_scopes_each(way) +
					 gpu_scope_of(way, saved->piece),
				.must_keep = decided,
				.not_again = decided ||
					     (way == GPU_PIECES_OF_HALVES && saved->not_again),
			};
		}
		gpu_add_scopes(model, way, layer, begins_ns, ends_ns, gpu);
	}
	gpu->step.forward_ns = ns;
}

static inline void gpu_add_backward(const struct gpu_model *model, enum gpu_way way,
				    struct gpu_step *gpu)
{
	uint64_t ns = gpu->step.forward_ns;

	for (unsigned layer = model->layers; layer-- > 0;)
		for (unsigned k = model->operations; k-- > 0;) {
			uint64_t begin_ns = ns;

			ns += gpu_ns(model->backward_us[k] + gpu_made_us(model, way, k));
			for (unsigned i = 0; i < model->saved; i++) {
				const struct gpu_saved *saved = &model->tensors[i];
				struct spw_plan_tensor *tensor =
					&gpu->tensors[layer * model->saved + i];

				if (saved->used_by == k)
					tensor->use_ns = begin_ns;
				if (saved->freed_by == k)
					tensor->release_ns = ns;
				if (way == GPU_CHEAP_MADE_AGAIN && saved->cheap)
					tensor->pack_ns = tensor->use_ns;
			}
		}
	gpu->step.backward_ns = ns - gpu->step.forward_ns;
}

/* So that the step is at most 1.02 of one that keeps all and makes nothing again. */
static inline double gpu_slack(const struct gpu_model *model, const struct gpu_step *gpu)
{
	double keep_ns = 0, ns = (double)(gpu->step.forward_ns + gpu->step.backward_ns);

	for (unsigned k = 0; k < model->operations; k++)
		keep_ns += (double)model->layers *
			   (double)(gpu_ns(model->forward_us[k]) + gpu_ns(model->backward_us[k]));
	return 1.02 * keep_ns > ns ? 1.02 * keep_ns / ns - 1 : 0;
}

static inline void gpu_step_make(const struct gpu_model *model, enum gpu_way way,
				 struct gpu_step *gpu)
{
	memset(gpu, 0, sizeof(*gpu));
	gpu->step.tensors = gpu->tensors;
	gpu->step.count = model->layers * model->saved;
	gpu_add_forward(model, way, gpu);
	gpu_add_backward(model, way, gpu);
	spw_plan_scopes_init(&gpu->scopes, sizeof(gpu->scopes));
	gpu->scopes.scopes = gpu->own;
	gpu->scopes.count = model->layers * gpu_scopes_each(way);
	gpu->scopes.slack = gpu_slack(model, gpu);
}

/* @rate: bytes per second of all drives, each way; 0: there are none. */
static inline struct spw_plan_drives gpu_drives(uint64_t bus, uint64_t rate, uint64_t host_bytes)
{
	return (struct spw_plan_drives){
		.write_bytes_per_second = rate,
		.read_bytes_per_second = rate,
		.mixed_bytes_per_second = rate,
		.latency_ns = 100000,
		.chunk_bytes = 4u << 20,
		.staging_bytes = 1u << 30,
		.bus_out_bytes_per_second = bus,
		.bus_in_bytes_per_second = bus,
		.host_bytes = host_bytes,
	};
}

#endif
