/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/cache_sim.h - training steps in virtual time: a timed store (simstore/simstore.h),
 * and a model whose layers save, compute and use
 *
 * No test waits, and none depends on the machine.
 */
#ifndef SPW_TEST_CACHE_SIM_H
#define SPW_TEST_CACHE_SIM_H

#include <errno.h>

#include "tests/case.h"
#include "tests/random.h"

#include <spillway/cache.h>

#include "tensor/control/internal.h"
#include "tensor/internal.h"
#include "simstore/simstore.h"

#define SIM_TENSORS_MAX 1024u

static uint64_t sim_clock(void)
{
	return simstore_ports.clock_ns();
}

/* Its token is its place, plus 1. */
struct sim_tensor {
	spw_tensor tensor;
	uint64_t key;
	uint8_t *memory; /* NULL: the cache does not hold the token */
	size_t len;
};

static _Thread_local struct sim {
	struct spw_store *store;
	struct spw_cache *cache;
	struct spw_cache_opts opts;
	struct sim_tensor tensors[SIM_TENSORS_MAX];
	uint64_t next_key;
	uint64_t random;
	unsigned jitter_percent;
	unsigned logged;
	uint64_t compute_ns; /* of the present step */
	uint64_t pause_ns;   /* after the backward pass */
	bool holds_back;     /* the trainer waits when it is told to */
} sim;

static void sim_advance(uint64_t until_ns)
{
	simstore_advance(sim.store, until_ns);
}

/* ---- The trainer ---- */

static void sim_log(void *context, enum spw_log_level level, const char *message)
{
	(void)context;
	(void)level;
	(void)message;
	sim.logged++;
}

static void sim_begin(enum spw_cache_mode mode)
{
	static const struct simstore_drives drives = {
		.write = 1, .read = 1, .mixed = 1, .latency_ns = 2000};

	sim = (struct sim){.store = simstore_open(&drives, 1024), .random = 1};
	assert_non_null(sim.store);
	sim_advance(1000000);
	spw_cache_opts_init(&sim.opts, sizeof(sim.opts));
	sim.opts.mode = mode;
	sim.opts.min_bytes = 64;
	sim.opts.tensors_max = 2 * SIM_TENSORS_MAX;
	sim.opts.log = (struct spw_log){.write = sim_log};
}

static void sim_open(void)
{
	assert_int_equal(spw_cache__open_with(sim.store, &sim.opts, &simstore_ports, &sim.cache),
			 0);
}

static inline void sim_start(void)
{
	sim_open();
	spw_cache_step(sim.cache);
}

static struct spw_cache_stats sim_stats(void)
{
	struct spw_cache_stats stats;

	spw_cache_stats(sim.cache, &stats, sizeof(stats));
	return stats;
}

/* A figure of the cache's is this one. */
#define STAT_IS(figure, value) assert_int_equal(sim_stats().figure, value)

static void sim_drain(void)
{
	uint64_t token;

	while (spw_cache_drain(sim.cache, &token, 1) == 1) {
		struct sim_tensor *tensor = &sim.tensors[token - 1];

		assert_non_null(tensor->memory);
		memset(tensor->memory, 0xdd, tensor->len);
		free(tensor->memory);
		tensor->memory = NULL;
	}
}

static void sim_end(void)
{
	sim_advance(sim_clock() + 1000000000);
	sim_drain();
	STAT_IS(entries, 0);
	STAT_IS(activation_bytes, 0);
	spw_cache_close(sim.cache);
	simstore_close(sim.store);
}

static inline int sim_tear_down(void **state)
{
	(void)state;
	sim_end();
	return 0;
}

#define SIM_CASE(name) CASE_WITH(name, NULL, sim_tear_down) /* which begins and opens */

static void sim_compute(uint64_t ns)
{
	ns = ns *
	     (100 - sim.jitter_percent + random_below(&sim.random, 2 * sim.jitter_percent + 1)) /
	     100;
	sim.compute_ns += ns;
	sim_advance(sim_clock() + ns);
	sim_drain();
}

static int sim_offer(unsigned slot, size_t len, enum spw_cache_hint hint)
{
	struct sim_tensor *tensor = &sim.tensors[slot];
	struct spw_offer offer;
	int rc;

	assert_true(slot < SIM_TENSORS_MAX && !tensor->memory);
	*tensor = (struct sim_tensor){.key = ++sim.next_key, .memory = malloc(len), .len = len};
	assert_non_null(tensor->memory);
	memset(tensor->memory, (int)(tensor->key & 0x7f), len);
	offer = (struct spw_offer){.storage_key = tensor->key,
				   .storage_bytes = tensor->memory,
				   .storage_len_bytes = len,
				   .len_bytes = len,
				   .owner = slot + 1};
	rc = spw_cache_offer_hint(sim.cache, &offer, hint, &tensor->tensor);
	assert_true(rc == SPW_OFFER_KEEP || rc == SPW_OFFER_SPILL);
	sim_drain();
	if (sim.holds_back && spw_cache_hold_back(sim.cache, true) == 1)
		sim_drain();
	return rc;
}

/* Use it for @ns, then let go of it. */
static void sim_use(unsigned slot, uint64_t ns)
{
	struct sim_tensor *tensor = &sim.tensors[slot];
	struct spw_taken taken;
	const uint8_t *bytes;

	assert_int_equal(spw_cache_take(sim.cache, tensor->tensor, 0, tensor->len, &taken), 0);
	bytes = taken.bytes ? taken.bytes : sim.tensors[taken.owner - 1].memory;
	assert_int_equal(bytes[0], tensor->key & 0x7f);
	assert_int_equal(bytes[tensor->len - 1], tensor->key & 0x7f);
	sim_compute(ns);
	assert_int_equal(spw_cache_release(sim.cache, tensor->tensor), 0);
	if (taken.lease)
		spw_cache_return(sim.cache, taken.lease);
	sim_drain();
}

/* ---- A model ---- */

struct sim_model {
	unsigned layers, tensors; /* of each layer */
	size_t len;               /* of the first tensor of a layer; the others vary around it */
	/* of the forward pass, for each; the backward pass takes twice as long */
	uint64_t tensor_ns;
};

/* What is saved needs about 0.84 bytes per nanosecond to leave within the forward pass. */
static const struct sim_model gpt = {.layers = 24, .tensors = 6, .len = 8192, .tensor_ns = 10000};
#define GPT_TENSORS     (24u * 6)
#define GPT_LAYER_BYTES ((8 + 1 + 16 + 4 + 8 + 12) * 1024u)

static size_t sim_len(const struct sim_model *model, unsigned tensor)
{
	static const unsigned eighths[] = {8, 1, 16, 4, 8, 12};

	return model->len * eighths[tensor % 6] / 8;
}

static void sim_forward(const struct sim_model *model, unsigned slot)
{
	for (unsigned layer = 0; layer < model->layers; layer++) {
		spw_cache_scope_enter(sim.cache, 100 + layer);
		for (unsigned i = 0; i < model->tensors; i++) {
			sim_compute(model->tensor_ns);
			(void)sim_offer(slot + layer * model->tensors + i, sim_len(model, i),
					SPW_HINT_NONE);
		}
		spw_cache_scope_leave(sim.cache);
	}
}

static void sim_backward(const struct sim_model *model, unsigned slot)
{
	for (unsigned i = model->layers * model->tensors; i-- > 0;)
		sim_use(slot + i, 2 * model->tensor_ns);
}

static void sim_forward_stage(const struct sim_model *model)
{
	spw_cache_stage(sim.cache, 0, SPW_STAGE_FORWARD);
	sim_forward(model, 0);
}

static void sim_backward_stage(const struct sim_model *model)
{
	spw_cache_stage(sim.cache, 0, SPW_STAGE_BACKWARD);
	sim_backward(model, 0);
}

struct sim_step {
	double stall; /* share of compute */
	uint64_t peak_bytes;
};

/* How the step that has ended was. Call after spw_cache_step(). */
static struct sim_step sim_step_was(void)
{
	struct spw_cache_stats stats = sim_stats();
	struct sim_step step = {.peak_bytes = stats.step_peak_bytes};

	if (stats.step_compute_ns > 0)
		step.stall = (double)stats.step_stall_ns / (double)stats.step_compute_ns;
	return step;
}

/* A step of one micro-batch, and how it was. The next begins. */
static struct sim_step sim_step(const struct sim_model *model)
{
	sim.compute_ns = 0;
	sim_forward_stage(model);
	sim_backward_stage(model);
	sim_advance(sim_clock() + sim.pause_ns);
	sim_drain();
	spw_cache_step(sim.cache);
	return sim_step_was();
}

static inline void sim_steps(const struct sim_model *model, unsigned count)
{
	while (count-- > 0)
		(void)sim_step(model);
}

#endif
