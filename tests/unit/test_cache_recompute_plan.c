/* SPDX-License-Identifier: MIT */
/* tests/unit/test_cache_recompute_plan.c - the cache that plans to recompute, in virtual time */
/* link: simstore libspillway */
#include "tests/unit/cache_sim.h"

#define LAYERS   12u
#define TENSORS  6u
#define LEN      8192u
#define COUNT    (LAYERS * TENSORS)
#define LAYER_NS (TENSORS * 10000u)
#define PAUSE_NS (4 * LAYERS * LAYER_NS)

/* A token for what is recomputed: other memory, and another place of the caller's. */
#define AGAIN_SLOT(slot) ((slot) + COUNT)
/* And for what all layers share. */
#define SHARED_SLOT(layer) (2 * COUNT + (layer))
#define SHARED_LEN         (2 * LEN)
#define SHARED_KEY         UINT64_C(1000000)

static unsigned again; /* layers recomputed in this step */
/* Layers are recomputed from what they share; this one saves it, too, if there is one. */
static bool shares;
static unsigned sharer_that_saves;
static bool gave_up;                /* something of this layer */
static uint64_t tensor_ns = 10000;  /* until the next is saved */
static unsigned pause_slot = COUNT; /* the backward pass stands still before it is used */

static void begin(uint64_t memory_bytes, double bytes_per_ns)
{
	sim_begin(memory_bytes > 0 ? SPW_CACHE_BUDGET : SPW_CACHE_FASTEST);
	sim.opts.memory_bytes = memory_bytes;
	sim.store->drives.write = sim.store->drives.read = sim.store->drives.mixed = bytes_per_ns;
	sim_start();
}

/* The first tensor of a layer is what it is recomputed from. */
static void offer_one(unsigned slot)
{
	struct sim_tensor *tensor = &sim.tensors[slot];
	struct spw_offer offer;
	int rc;

	assert_null(tensor->memory);
	*tensor = (struct sim_tensor){.key = ++sim.next_key, .memory = malloc(LEN), .len = LEN};
	assert_non_null(tensor->memory);
	memset(tensor->memory, (int)(tensor->key & 0x7f), LEN);
	offer = (struct spw_offer){.storage_key = tensor->key,
				   .storage_bytes = tensor->memory,
				   .storage_len_bytes = LEN,
				   .len_bytes = LEN,
				   .owner = slot + 1};
	rc = spw_cache_offer_hint(sim.cache, &offer, SPW_HINT_AGAIN, &tensor->tensor);
	assert_true(rc == SPW_OFFER_KEEP || rc == SPW_OFFER_SPILL || rc == SPW_OFFER_AGAIN);
	if (rc == SPW_OFFER_AGAIN) {
		gave_up = true;
		free(tensor->memory);
		tensor->memory = NULL;
	}
	sim_drain();
}

/* The model has it all the time: this is a copy for the cache. */
static spw_tensor offer_shared(unsigned slot, enum spw_cache_hint hint)
{
	struct sim_tensor *tensor = &sim.tensors[slot];
	struct spw_offer offer;
	int rc;

	assert_null(tensor->memory);
	*tensor = (struct sim_tensor){.memory = malloc(SHARED_LEN), .len = SHARED_LEN};
	assert_non_null(tensor->memory);
	memset(tensor->memory, 1, SHARED_LEN);
	offer = (struct spw_offer){.storage_key = SHARED_KEY,
				   .storage_version = sim_stats().steps,
				   .storage_bytes = tensor->memory,
				   .storage_len_bytes = SHARED_LEN,
				   .len_bytes = SHARED_LEN,
				   .owner = slot + 1};
	rc = spw_cache_offer_hint(sim.cache, &offer, hint, &tensor->tensor);
	assert_true(rc == SPW_OFFER_KEEP || rc == SPW_OFFER_SPILL || rc == SPW_OFFER_DEDUP);
	if (rc == SPW_OFFER_DEDUP) {
		free(tensor->memory);
		tensor->memory = NULL;
	}
	sim_drain();
	return tensor->tensor;
}

/* The caller holds it until the layer has been recomputed. Return: its tensor. */
static spw_tensor offer_input(unsigned slot)
{
	const struct sim_tensor *tensor = &sim.tensors[slot];
	spw_tensor input;
	struct spw_offer offer = {.storage_key = tensor->key,
				  .storage_bytes = tensor->memory,
				  .storage_len_bytes = LEN,
				  .len_bytes = LEN,
				  .owner = 2 * COUNT + slot + 1};

	/* What has left memory already is not offered again in this test. */
	assert_non_null(tensor->memory);
	assert_int_equal(spw_cache_offer_hint(sim.cache, &offer, SPW_HINT_INPUT, &input),
			 SPW_OFFER_DEDUP);
	return input;
}

static void compute_again(unsigned layer, spw_tensor input)
{
	struct spw_taken taken;

	again++;
	spw_cache_again_begin(sim.cache);
	assert_int_equal(spw_cache_take(sim.cache, input, 0, LEN, &taken), 0);
	for (unsigned i = shares ? 0 : 1; i < TENSORS; i++) {
		unsigned slot = layer * TENSORS + i, copy = AGAIN_SLOT(slot);
		struct sim_tensor *tensor = &sim.tensors[copy];
		struct spw_offer offer;

		sim_advance(sim_clock() + 10000);
		*tensor = (struct sim_tensor){.memory = malloc(LEN), .len = LEN};
		assert_non_null(tensor->memory);
		memset(tensor->memory, (int)(sim.tensors[slot].key & 0x7f), LEN);
		offer = (struct spw_offer){.storage_bytes = tensor->memory,
					   .storage_len_bytes = LEN,
					   .len_bytes = LEN,
					   .owner = copy + 1};
		assert_int_equal(spw_cache_restore(sim.cache, sim.tensors[slot].tensor, &offer), 0);
		sim_drain();
	}
	if (taken.lease)
		spw_cache_return(sim.cache, taken.lease);
	spw_cache_again_end(sim.cache);
}

/* If nothing of the layer was discarded, it is released at once. */
static void end_sharer(unsigned layer, spw_tensor inputs[])
{
	if (layer == sharer_that_saves)
		(void)offer_shared(SHARED_SLOT(LAYERS), SPW_HINT_AGAIN);
	inputs[layer] = offer_shared(SHARED_SLOT(layer), SPW_HINT_INPUT);
	if (gave_up)
		return;
	assert_int_equal(spw_cache_release(sim.cache, inputs[layer]), 0);
	inputs[layer].value = 0;
	sim_drain();
}

static void forward(spw_tensor inputs[])
{
	spw_cache_stage(sim.cache, 0, SPW_STAGE_FORWARD);
	for (unsigned layer = 0; layer < LAYERS; layer++) {
		spw_cache_scope_enter(sim.cache, 100 + layer);
		gave_up = false;
		offer_one(layer * TENSORS);
		if (!shares)
			inputs[layer] = offer_input(layer * TENSORS);
		for (unsigned i = 1; i < TENSORS; i++) {
			sim_compute(tensor_ns);
			offer_one(layer * TENSORS + i);
		}
		if (shares)
			end_sharer(layer, inputs);
		spw_cache_scope_leave(sim.cache);
	}
}

static void backward(const spw_tensor inputs[])
{
	spw_cache_stage(sim.cache, 0, SPW_STAGE_BACKWARD);
	for (unsigned slot = COUNT; slot-- > 0;) {
		unsigned layer = slot / TENSORS;
		struct spw_taken taken;

		if (slot == pause_slot)
			sim_compute(PAUSE_NS);
		if (spw_cache_take(sim.cache, sim.tensors[slot].tensor, 0, LEN, &taken) ==
		    SPW_TAKE_AGAIN)
			compute_again(layer, inputs[layer]);
		else if (taken.lease)
			spw_cache_return(sim.cache, taken.lease);
		sim_use(slot, 20000);
		if (slot % TENSORS == 0 && inputs[layer].value > 0)
			assert_int_equal(spw_cache_release(sim.cache, inputs[layer]), 0);
		if (slot % TENSORS == 0 && shares && layer == sharer_that_saves)
			assert_int_equal(spw_cache_release(sim.cache,
							   sim.tensors[SHARED_SLOT(LAYERS)].tensor),
					 0);
	}
}

static struct sim_step step(void)
{
	spw_tensor inputs[LAYERS];

	sim.compute_ns = 0;
	again = 0;
	forward(inputs);
	backward(inputs);
	sim_drain();
	spw_cache_step(sim.cache);
	return sim_step_was();
}

/* Drives that take a tenth of what is saved, and a budget that they cannot meet. */
SIM_CASE(test_a_budget_is_met)
{
	uint64_t budget = COUNT * LEN * 2 / 5;
	struct sim_step was = {0};

	begin(budget, 0.05);
	for (unsigned i = 0; i < 7; i++)
		was = step();
	assert_true(again > 0);
	STAT_IS(scopes_again, 5 * again);
	STAT_IS(plan_scopes_again, again);
	assert_true(was.peak_bytes <= budget);
	assert_true(sim_stats().plan_peak_bytes <= budget);
	STAT_IS(steps_fixed, 2);
	STAT_IS(plan_mismatches, 0);
	/* That the backward pass takes longer for it is no other timeline. */
	STAT_IS(plans_timeline, 0);
	STAT_IS(step_compute_ns, sim.compute_ns);
	STAT_IS(step_again_ns, (uint64_t)again * (TENSORS - 1) * 10000);
	assert_int_equal(sim_stats().bytes_given_up, sim_stats().bytes_restored);
	/* The step itself takes each tensor once or twice, also those that others are made from. */
	for (unsigned i = 0; i < COUNT; i++)
		assert_in_range(sim.cache->control->signature->reference.tensors[i].takes, 1, 2);
}

/*
 * Whatever the clock says: what is prefetched before a layer is recomputed leaves room for what
 * that saves.
 */
CASE(test_a_backward_pass_that_stood_still_has_its_room)
{
	static const double bandwidths[] = {0.1, 0.3};
	unsigned exceeded = 0, left = 0, recomputed = 0;
	uint64_t budget = COUNT * LEN * 3 / 10;

	for (unsigned i = 0; i < 2 * LAYERS; i++) {
		begin(budget, bandwidths[i % 2]);
		for (unsigned k = 0; k < 7; k++)
			(void)step();
		pause_slot = i / 2 * TENSORS + TENSORS - 1;
		exceeded += step().peak_bytes > budget;
		pause_slot = COUNT;
		recomputed += again > 0;
		left += sim_stats().plan_mismatches > 0;
		sim_end();
	}
	assert_int_equal(exceeded, 0);
	assert_int_equal(left, 0);
	assert_int_equal(recomputed, 2 * LAYERS);
}

static void share(unsigned that_saves)
{
	struct sim_step was = {0};
	uint64_t budget = COUNT * LEN * 2 / 5;

	shares = true;
	sharer_that_saves = that_saves;
	begin(budget, 0.05);
	for (unsigned i = 0; i < 12; i++) {
		was = step();
		STAT_IS(plan_mismatches, 0);
		STAT_IS(plans_failed, 0);
		tensor_ns += 100; /* a part of the times is of the steps before */
	}
	assert_true(again > 0);
	STAT_IS(plan_scopes_again, again);
	STAT_IS(steps_fixed, 2);
	assert_true(was.peak_bytes <= budget + SHARED_LEN);
	shares = false;
	tensor_ns = 10000;
}

/* By how long a plan has layers hold it, more or fewer offers of it are new. */
SIM_CASE(test_what_layers_share)
{
	share(LAYERS);
}

SIM_CASE(test_what_layers_share_and_one_saves)
{
	share(LAYERS - 2);
}

/* Fast drives: nothing is recomputed. */
SIM_CASE(test_drives_that_keep_up)
{
	begin(0, 5);
	for (unsigned i = 0; i < 4; i++)
		(void)step();
	STAT_IS(plan_scopes_again, 0);
	STAT_IS(tensors_given_up, 0);
	assert_true(sim_stats().plan_tensors_spilled > 0);
}

/* Within the slack of the step's time memory is lower than by spilling alone. */
SIM_CASE(test_fastest_on_slow_drives)
{
	struct sim_step was = {0};

	begin(0, 0.1);
	for (unsigned i = 0; i < 6; i++)
		was = step();
	assert_true(was.peak_bytes <= sim_stats().plan_peak_bytes + 2 * LEN);
	assert_true(sim_stats().plan_wall_ns <= sim_stats().step_compute_ns * 103 / 100);
	STAT_IS(plan_mismatches, 0);
}

SIM_CASE(test_explained)
{
	struct spw_plan_result planned = {.size = sizeof(planned)};
	struct spw_cache_reason reasons[LAYERS];
	unsigned recomputed = 0;

	begin(COUNT * LEN * 2 / 5, 0.05);
	assert_int_equal(spw_cache_explain(sim.cache, reasons, LAYERS, NULL), 0);
	for (unsigned i = 0; i < 3; i++)
		(void)step();
	assert_int_equal(spw_cache_explain(sim.cache, NULL, 1, NULL), -EINVAL);
	assert_int_equal(spw_cache_explain(sim.cache, NULL, 0, NULL), LAYERS);
	assert_int_equal(spw_cache_explain(sim.cache, reasons, LAYERS, &planned), LAYERS);
	assert_int_equal(planned.scopes_again, sim_stats().plan_scopes_again);
	for (unsigned i = 0; i < LAYERS; i++) {
		assert_int_equal(reasons[i].scope_key, 100 + i);
		assert_true(reasons[i].may_again);
		assert_int_equal(reasons[i].saved_bytes, TENSORS * LEN);
		assert_in_range(reasons[i].again_ns, LAYER_NS / 2, LAYER_NS);
		recomputed += reasons[i].reason.way >= SPW_PLAN_WAY_AGAIN;
	}
	assert_int_equal(recomputed, planned.scopes_again);
}

/* What is inside of it would be computed twice. */
SIM_CASE(test_a_scope_around_others)
{
	struct spw_cache_reason reasons[2];

	begin(COUNT * LEN, 1);
	for (unsigned i = 0; i < 3; i++) {
		spw_tensor inputs[2];

		spw_cache_stage(sim.cache, 0, SPW_STAGE_FORWARD);
		spw_cache_scope_enter(sim.cache, 1);
		offer_one(0);
		spw_cache_scope_enter(sim.cache, 2);
		sim_compute(10000);
		offer_one(1);
		inputs[1] = offer_input(1);
		spw_cache_scope_leave(sim.cache);
		inputs[0] = offer_input(0);
		spw_cache_scope_leave(sim.cache);
		spw_cache_stage(sim.cache, 0, SPW_STAGE_BACKWARD);
		for (unsigned slot = 2; slot-- > 0;) {
			sim_use(slot, 100000);
			assert_int_equal(spw_cache_release(sim.cache, inputs[slot]), 0);
		}
		sim_advance(sim_clock() + 1000000);
		sim_drain();
		spw_cache_step(sim.cache);
	}
	assert_int_equal(spw_cache_explain(sim.cache, reasons, 2, NULL), 2);
	assert_true(!reasons[0].may_again && reasons[1].may_again);
}

RUN_CASES(NULL, NULL)
