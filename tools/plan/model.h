/* SPDX-License-Identifier: MIT */
/* tools/plan/model.h - a transformer's saved bytes and step time, and what spilling needs */
#ifndef SPW_TOOLS_PLAN_MODEL_H
#define SPW_TOOLS_PLAN_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include <spillway/plan.h>

#define MODEL_MICRO_BATCHES_MAX 65536u
#define MODEL_TENSORS_MAX       (1u << 21)

enum model_recompute {
	MODEL_RECOMPUTE_NONE,
	MODEL_RECOMPUTE_SELECTIVE, /* recompute the core of attention, if it is not fused */
	MODEL_RECOMPUTE_FULL,      /* recompute all but the input of each layer */
};

struct model {
	uint32_t layers, hidden, heads, sequence, micro_batch, micro_batches, vocabulary;
	uint32_t tensor_parallel, pipeline_parallel, dtype_bytes;
	enum model_recompute recompute;
	bool unfused;     /* attention saves its matrices of scores; fused kernels recompute them */
	double gpu_flops; /* achieved operations per second and GPU */
};

/* The step of one GPU of the first pipeline stage, whose activations live longest. */
struct model_step {
	uint32_t layers;         /* in the stage */
	double layer_bytes;      /* saved by one layer for one micro-batch */
	double step_bytes;       /* saved in one step */
	double forward_seconds;  /* of one micro-batch, all layers of the stage */
	double backward_seconds; /* with recomputation */
	double seconds;          /* the whole step, with the pipeline's bubble */
	double model_flops;      /* per GPU and step, without recomputation */
	/* bytes of the output layer, if on this stage: saved last, used first, never spilled */
	double outside_layers_bytes;
	double recompute_bytes; /* bytes of the layer that is being recomputed */
};

/* All drives of one GPU together. */
struct model_drives {
	double write, read; /* bytes per second */
	double endurance_bytes;
};

struct model_life {
	double bytes_per_day; /* written to all drives */
	double rated_seconds; /* if the rating counts bytes written by the host */
	/* if the rating assumes a write amplification of 2.5, as spilling has 1 */
	double sequential_seconds;
};

/* Check the model's parameters. Return: 0; -EINVAL with a message. */
int model_check(const struct model *model);

/* Bytes that one layer saves for one micro-batch on each GPU. */
double model_layer_bytes(const struct model *model, enum model_recompute recompute);

void model_step_of(const struct model *model, struct model_step *step);

/* Bytes per second that each GPU writes if it spills everything in half of the step. */
double model_bandwidth_needed(const struct model_step *step);

/* The life of drives to which @bytes are written every @seconds. */
struct model_life model_life_of(double endurance_bytes, double bytes, double seconds);

/* Peak if all is kept; with @drives, the lowest without a stall. Return: 0; -EINVAL; -ENOMEM. */
int model_plan(const struct model *model, const struct model_drives *drives,
	       struct spw_plan_result *result);

#endif
