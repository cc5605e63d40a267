/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/cache_sim.h - training steps in virtual time: a timed store (tools/replay/simstore.h),
 * and a model whose layers save, compute and use
 *
 * No test waits, and none depends on the machine.
 */
#ifndef SPW_TEST_CACHE_SIM_H
#define SPW_TEST_CACHE_SIM_H

#include <stdio.h>

#include <spillway/cache.h>

#include "tensor/control/internal.h"
#include "tensor/internal.h"
#include "tools/replay/simstore.h"

#define SIM_TENSORS_MAX 1024u

static uint64_t sim_clock(void)
{
	return simstore_ports.clock_ns();
}

struct sim_tensor {
	spw_tensor tensor;
	uint64_t token, key;
	uint8_t *memory;
	size_t len;
	bool held; /* the token is with the cache */
};

struct sim {
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
};

static void sim_advance(struct sim *sim, uint64_t until_ns)
{
	simstore_advance(sim->store, until_ns);
}

/* ---- The trainer ---- */

static void sim_log(void *context, enum spw_log_level level, const char *message)
{
	(void)level;
	(void)message;
	((struct sim *)context)->logged++;
}

static void sim_begin(struct sim *sim, enum spw_cache_mode mode)
{
	static const struct simstore_drives drives = {
		.write = 1, .read = 1, .mixed = 1, .latency_ns = 2000};

	*sim = (struct sim){.store = simstore_open(&drives, 1024), .random = 1};
	assert_non_null(sim->store);
	sim_advance(sim, 1000000);
	spw_cache_opts_init(&sim->opts, sizeof(sim->opts));
	sim->opts.mode = mode;
	sim->opts.min_bytes = 64;
	sim->opts.tensors_max = 2 * SIM_TENSORS_MAX;
	sim->opts.log = (struct spw_log){.write = sim_log, .context = sim};
}

static void sim_open(struct sim *sim)
{
	assert_int_equal(spw_cache_open_with(sim->store, &sim->opts, &simstore_ports, &sim->cache),
			 0);
}

static struct spw_cache_stats sim_stats(struct sim *sim)
{
	struct spw_cache_stats stats;

	spw_cache_stats(sim->cache, &stats, sizeof(stats));
	return stats;
}

static void sim_drain(struct sim *sim)
{
	uint64_t token;

	while (spw_cache_drain(sim->cache, &token, 1) == 1) {
		struct sim_tensor *tensor = &sim->tensors[token - 1];

		assert_true(tensor->held);
		memset(tensor->memory, 0xdd, tensor->len);
		free(tensor->memory);
		tensor->memory = NULL;
		tensor->held = false;
	}
}

static void sim_end(struct sim *sim)
{
	struct spw_cache_stats stats;

	sim_advance(sim, sim_clock() + 1000000000);
	sim_drain(sim);
	stats = sim_stats(sim);
	assert_int_equal(stats.entries, 0);
	assert_int_equal(stats.activation_bytes, 0);
	spw_cache_close(sim->cache);
	simstore_close(sim->store);
}

static void sim_compute(struct sim *sim, uint64_t ns)
{
	if (sim->jitter_percent > 0) {
		sim->random = sim->random * UINT64_C(6364136223846793005) + 1442695040888963407u;
		ns = ns *
		     (100 - sim->jitter_percent +
		      (sim->random >> 33) % (2 * sim->jitter_percent + 1)) /
		     100;
	}
	sim->compute_ns += ns;
	sim_advance(sim, sim_clock() + ns);
	sim_drain(sim);
}

static int sim_offer(struct sim *sim, unsigned slot, size_t len, enum spw_cache_hint hint)
{
	struct sim_tensor *tensor = &sim->tensors[slot];
	struct spw_offer offer;
	int rc;

	assert_true(slot < SIM_TENSORS_MAX && !tensor->held);
	*tensor = (struct sim_tensor){
		.token = slot + 1, .key = ++sim->next_key, .memory = malloc(len), .len = len};
	assert_non_null(tensor->memory);
	memset(tensor->memory, (int)(tensor->key & 0x7f), len);
	offer = (struct spw_offer){.storage_key = tensor->key,
				   .storage_bytes = tensor->memory,
				   .storage_len_bytes = len,
				   .len_bytes = len,
				   .owner = tensor->token};
	rc = spw_cache_offer_hint(sim->cache, &offer, hint, &tensor->tensor);
	assert_true(rc == SPW_OFFER_KEEP || rc == SPW_OFFER_SPILL);
	tensor->held = true;
	sim_drain(sim);
	return rc;
}

/* Use it for @ns, then let go of it. */
static void sim_use(struct sim *sim, unsigned slot, uint64_t ns)
{
	struct sim_tensor *tensor = &sim->tensors[slot];
	struct spw_taken taken;
	const uint8_t *bytes;

	assert_int_equal(spw_cache_take(sim->cache, tensor->tensor, 0, tensor->len, &taken), 0);
	bytes = taken.bytes ? taken.bytes : sim->tensors[taken.owner - 1].memory;
	assert_int_equal(bytes[0], tensor->key & 0x7f);
	assert_int_equal(bytes[tensor->len - 1], tensor->key & 0x7f);
	sim_compute(sim, ns);
	assert_int_equal(spw_cache_release(sim->cache, tensor->tensor), 0);
	if (taken.lease)
		spw_cache_return(sim->cache, taken.lease);
	sim_drain(sim);
}

/* ---- A model ---- */

struct sim_model {
	unsigned layers, tensors; /* of each layer */
	size_t len;               /* of the first tensor of a layer; the others vary around it */
	/* of the forward pass, for each; the backward pass takes twice as long */
	uint64_t tensor_ns;
};

static size_t sim_len(const struct sim_model *model, unsigned tensor)
{
	static const unsigned eighths[] = {8, 1, 16, 4, 8, 12};

	return model->len * eighths[tensor % 6] / 8;
}

static void sim_forward(struct sim *sim, const struct sim_model *model, unsigned slot)
{
	for (unsigned layer = 0; layer < model->layers; layer++) {
		spw_cache_scope_enter(sim->cache, 100 + layer);
		for (unsigned i = 0; i < model->tensors; i++) {
			sim_compute(sim, model->tensor_ns);
			(void)sim_offer(sim, slot + layer * model->tensors + i, sim_len(model, i),
					SPW_HINT_NONE);
		}
		spw_cache_scope_leave(sim->cache);
	}
}

static void sim_backward(struct sim *sim, const struct sim_model *model, unsigned slot)
{
	for (unsigned i = model->layers * model->tensors; i-- > 0;)
		sim_use(sim, slot + i, 2 * model->tensor_ns);
}

struct sim_step {
	double stall; /* share of compute */
	uint64_t peak_bytes;
};

/* How the step that has ended was. Call after spw_cache_step(). */
static struct sim_step sim_step_was(struct sim *sim)
{
	struct spw_cache_stats stats = sim_stats(sim);
	struct sim_step step = {.peak_bytes = stats.step_peak_bytes};

	if (stats.step_compute_ns > 0)
		step.stall = (double)stats.step_stall_ns / (double)stats.step_compute_ns;
	return step;
}

/* A step of one micro-batch, and how it was. The next begins. */
static struct sim_step sim_step(struct sim *sim, const struct sim_model *model)
{
	sim->compute_ns = 0;
	spw_cache_stage(sim->cache, 0, SPW_STAGE_FORWARD);
	sim_forward(sim, model, 0);
	spw_cache_stage(sim->cache, 0, SPW_STAGE_BACKWARD);
	sim_backward(sim, model, 0);
	sim_advance(sim, sim_clock() + sim->pause_ns);
	sim_drain(sim);
	spw_cache_step(sim->cache);
	return sim_step_was(sim);
}

#endif
