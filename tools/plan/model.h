/* SPDX-License-Identifier: MIT */
/* tools/plan/model.h - what a transformer saves, its step's time, and what spilling takes */
#ifndef SPW_TOOLS_PLAN_MODEL_H
#define SPW_TOOLS_PLAN_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include <spillway/plan.h>

#define MODEL_MICRO_BATCHES_MAX 65536u
#define MODEL_TENSORS_MAX       (1u << 21)

enum model_recompute {
	MODEL_RECOMPUTE_NONE,
	/* the core of attention; also what fused attention kernels save */
	MODEL_RECOMPUTE_SELECTIVE,
	MODEL_RECOMPUTE_FULL, /* all but the input of each layer */
};

struct model {
	uint32_t layers, hidden, heads, sequence, micro_batch, micro_batches, vocabulary;
	uint32_t tensor_parallel, pipeline_parallel, dtype_bytes;
	enum model_recompute recompute;
	double gpu_flops; /* per second and GPU, as achieved */
};

/* Of one GPU of the first pipeline stage, whose activations live longest. */
struct model_step {
	uint32_t layers;         /* of the stage */
	double layer_bytes;      /* saved by one layer for one micro-batch */
	double step_bytes;       /* saved in one step */
	double forward_seconds;  /* of one micro-batch, all layers of the stage */
	double backward_seconds; /* with what is recomputed */
	double seconds;          /* the step, with the bubble of the pipeline */
	double model_flops;      /* of one GPU and step; what is recomputed does not count */
	/* of the output layer, if it is on this stage: saved last, used first, never spilled */
	double outside_layers_bytes;
	double recompute_bytes; /* of the layer that is being recomputed */
};

/* Drives of one GPU together. */
struct model_drives {
	double write, read; /* bytes per second */
	double endurance_bytes;
};

struct model_life {
	double bytes_per_day; /* written to all of them */
	double rated_seconds; /* the rating taken as bytes that the host may write */
	/* the rating assumes a write amplification of 2.5, spilling has 1 */
	double sequential_seconds;
	/* and data lasts a day, not 3 years: the paper's assumption, no drive's setting */
	double retention_seconds;
};

/* Return: 0; -EINVAL with words. */
int model_check(const struct model *model);

/* Bytes that one layer saves for one micro-batch on each GPU. */
double model_layer_bytes(const struct model *model, enum model_recompute recompute);

void model_step_of(const struct model *model, struct model_step *step);

/* Bytes per second that every GPU writes: all that is saved, within half of the step. */
double model_bandwidth_needed(const struct model_step *step);

/* @bytes are written in every @seconds. */
struct model_life model_life_of(double endurance_bytes, double bytes, double seconds);

/* Peak if all is kept, or with @drives, lowest without a stall. Return: 0; -EINVAL; -ENOMEM. */
int model_plan(const struct model *model, const struct model_drives *drives,
	       struct spw_plan_result *result);

#endif
