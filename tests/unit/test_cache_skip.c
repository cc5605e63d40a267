/* SPDX-License-Identifier: MIT */
/* tests/unit/test_cache_skip.c - steps that skip layers at random, in virtual time */
/* link: simstore libspillway */
#include "tests/unit/cache_sim.h"

#define LAYERS  16u
#define TENSORS 6u
#define LEN     8192u
#define COUNT   (LAYERS * TENSORS)
#define ALL     ((COUNT + 1) * LEN)
#define BUDGET  (ALL / 2)
#define STEPS   30u
#define SETTLE  14u /* until all layers have been seen, and are planned */

/* Tokens of what is recomputed, and of what all layers save. */
#define AGAIN_SLOT(slot)   ((slot) + COUNT)
#define SHARED_SLOT(layer) (2 * COUNT + (layer))

static const struct way {
	enum spw_cache_mode mode;
	double bandwidth;
	unsigned percent; /* of the layers that are skipped */
	bool recomputes;  /* layers can be recomputed from their first tensor */
	bool shares;      /* the first layer that runs saves something that all others save, too */
	bool in_parts;    /* the second half of a layer is a scope inside, skipped by itself */
	bool reads_input; /* the first tensor of the first layer that runs is not offered */
} ways[] = {
	{.mode = SPW_CACHE_BUDGET, .bandwidth = 0.5, .percent = 10},
	{.mode = SPW_CACHE_BUDGET, .bandwidth = 1, .percent = 30},
	{.mode = SPW_CACHE_BUDGET, .bandwidth = 0.5, .percent = 50},
	{.mode = SPW_CACHE_BUDGET, .bandwidth = 0.5, .percent = 30, .shares = true},
	{.mode = SPW_CACHE_BUDGET, .bandwidth = 0.5, .percent = 20, .in_parts = true},
	{.mode = SPW_CACHE_FASTEST, .bandwidth = 0.8, .percent = 30},
	{.mode = SPW_CACHE_BUDGET, .bandwidth = 0.05, .percent = 30, .recomputes = true},
	{.mode = SPW_CACHE_BUDGET,
	 .bandwidth = 0.2,
	 .percent = 30,
	 .recomputes = true,
	 .shares = true},
	{.mode = SPW_CACHE_BUDGET,
	 .bandwidth = 0.1,
	 .percent = 20,
	 .recomputes = true,
	 .in_parts = true},
	{.mode = SPW_CACHE_BUDGET, .bandwidth = 0.5, .percent = 50, .reads_input = true},
	{.mode = SPW_CACHE_BUDGET,
	 .bandwidth = 0.2,
	 .percent = 50,
	 .reads_input = true,
	 .recomputes = true},
	{.mode = SPW_CACHE_BUDGET,
	 .bandwidth = 0.5,
	 .percent = 40,
	 .reads_input = true,
	 .in_parts = true},
};

static const struct way *way;
static uint64_t draw;
static unsigned computed_again;
static bool has_run; /* a layer, in this step */
static bool runs[COUNT];
static spw_tensor inputs[LAYERS];

static bool chance(void)
{
	return random_below(&draw, 100) >= way->percent;
}

static struct spw_offer memory_of(unsigned slot, uint64_t key)
{
	struct sim_tensor *tensor = &sim.tensors[slot];

	assert_null(tensor->memory);
	*tensor = (struct sim_tensor){.key = key, .memory = malloc(LEN), .len = LEN};
	assert_non_null(tensor->memory);
	memset(tensor->memory, (int)(key & 0x7f), LEN);
	return (struct spw_offer){.storage_key = key,
				  .storage_bytes = tensor->memory,
				  .storage_len_bytes = LEN,
				  .len_bytes = LEN,
				  .owner = slot + 1};
}

static void offer(unsigned slot, uint64_t key)
{
	struct sim_tensor *tensor = &sim.tensors[slot];
	struct spw_offer offered = memory_of(slot, key);
	int rc = spw_cache_offer_hint(sim.cache, &offered,
				      way->recomputes ? SPW_HINT_AGAIN : SPW_HINT_NONE,
				      &tensor->tensor);

	assert_true(rc >= 0);
	if (rc == SPW_OFFER_AGAIN || rc == SPW_OFFER_DEDUP) {
		free(tensor->memory);
		tensor->memory = NULL;
	}
	sim_drain();
	(void)spw_cache_hold_back(sim.cache, true);
	sim_drain();
}

/* The caller holds the first tensor of the layer until that has been used. */
static void offer_input(unsigned layer)
{
	const struct sim_tensor *tensor = &sim.tensors[layer * TENSORS];
	struct spw_offer offered = {.storage_key = tensor->key,
				    .storage_bytes = tensor->memory,
				    .storage_len_bytes = LEN,
				    .len_bytes = LEN,
				    .owner = 3 * COUNT + layer + 1};

	assert_non_null(tensor->memory);
	assert_int_equal(spw_cache_offer_hint(sim.cache, &offered, SPW_HINT_INPUT, &inputs[layer]),
			 SPW_OFFER_DEDUP);
}

static void forward_layer(unsigned layer, uint64_t shared_key)
{
	bool second = !way->in_parts || chance();

	spw_cache_scope_enter(sim.cache, 1 + layer);
	for (unsigned i = 0; i < TENSORS; i++) {
		unsigned slot = layer * TENSORS + i;

		runs[slot] = i < TENSORS / 2 || second;
		if (!runs[slot])
			break;
		if (i == 0 && way->reads_input && !has_run) {
			runs[slot] = false;
			sim_compute(10000);
			continue;
		}
		if (way->in_parts && i == TENSORS / 2)
			spw_cache_scope_enter(sim.cache, 1 + LAYERS + layer);
		sim_compute(10000);
		offer(slot, ++sim.next_key);
		if (i == 0 && way->recomputes)
			offer_input(layer);
		if (i == 0 && way->shares)
			offer(SHARED_SLOT(layer), shared_key);
	}
	if (way->in_parts && second)
		spw_cache_scope_leave(sim.cache);
	spw_cache_scope_leave(sim.cache);
	has_run = true;
}

static void compute_again(unsigned layer)
{
	struct spw_taken taken = {0};

	computed_again++;
	spw_cache_again_begin(sim.cache);
	if (runs[layer * TENSORS])
		assert_int_equal(spw_cache_take(sim.cache, inputs[layer], 0, LEN, &taken), 0);
	for (unsigned i = 1; i < TENSORS; i++) {
		unsigned slot = layer * TENSORS + i;
		struct spw_offer offered;

		if (!runs[slot])
			break;
		sim_advance(sim_clock() + 10000);
		offered = memory_of(AGAIN_SLOT(slot), sim.tensors[slot].key);
		if (spw_cache_restore(sim.cache, sim.tensors[slot].tensor, &offered) != 0) {
			free(sim.tensors[AGAIN_SLOT(slot)].memory);
			sim.tensors[AGAIN_SLOT(slot)].memory = NULL;
		}
		sim_drain();
	}
	if (taken.lease)
		spw_cache_return(sim.cache, taken.lease);
	spw_cache_again_end(sim.cache);
}

static void use(unsigned slot, unsigned layer, uint64_t ns)
{
	struct spw_taken taken;

	if (spw_cache_take(sim.cache, sim.tensors[slot].tensor, 0, LEN, &taken) == SPW_TAKE_AGAIN)
		compute_again(layer);
	else if (taken.lease)
		spw_cache_return(sim.cache, taken.lease);
	sim_use(slot, ns);
}

static void backward_layer(unsigned layer)
{
	for (unsigned i = TENSORS; i-- > 0;)
		if (runs[layer * TENSORS + i])
			use(layer * TENSORS + i, layer, 20000);
	if (way->shares)
		use(SHARED_SLOT(layer), layer, 1000);
	if (way->recomputes && runs[layer * TENSORS])
		assert_int_equal(spw_cache_release(sim.cache, inputs[layer]), 0);
	sim_drain();
}

static struct sim_step step(void)
{
	uint64_t shared_key = ++sim.next_key;

	sim.compute_ns = 0;
	computed_again = 0;
	has_run = false;
	memset(runs, 0, sizeof(runs));
	spw_cache_stage(sim.cache, 0, SPW_STAGE_FORWARD);
	for (unsigned layer = 0; layer < LAYERS; layer++)
		if (chance())
			forward_layer(layer, shared_key);
	spw_cache_stage(sim.cache, 0, SPW_STAGE_BACKWARD);
	for (unsigned layer = LAYERS; layer-- > 0;)
		if (runs[layer * TENSORS + 1])
			backward_layer(layer);
	spw_cache_step(sim.cache);
	return sim_step_was();
}

static void open_way(const struct way *which)
{
	way = which;
	draw = 1;
	sim_begin(way->mode);
	sim.store->drives.write = sim.store->drives.read = way->bandwidth;
	sim.store->drives.mixed = way->bandwidth;
	if (way->mode == SPW_CACHE_BUDGET)
		sim.opts.memory_bytes = BUDGET;
	sim_start();
}

/* Soon each step goes by the plan, whatever it skips; and keeps to the budget. */
CASE(test_plans_hold)
{
	for (unsigned k = 0; k < SPW_ARRAY_LEN(ways); k++) {
		unsigned above = 0, again = 0;
		uint64_t planned, left;

		open_way(&ways[k]);
		for (unsigned i = 0; i < SETTLE; i++)
			(void)step();
		planned = sim_stats().steps_planned;
		left = sim_stats().plan_mismatches;
		for (unsigned i = 0; i < STEPS; i++) {
			above += step().peak_bytes > BUDGET + LEN;
			again += computed_again;
		}
		planned = sim_stats().steps_planned - planned;
		left = sim_stats().plan_mismatches - left;
		sim_end();
		assert_int_equal(planned, STEPS);
		assert_int_equal(left, 0);
		assert_true(way->mode != SPW_CACHE_BUDGET || above <= 1);
		assert_int_equal(again > 0, way->recomputes);
	}
}

/* What was planned for is the step that skips nothing, in its order and its time. */
SIM_CASE(test_the_basis_is_the_whole_step)
{
	const struct recording *basis;
	uint32_t layers = 0;

	open_way(&ways[1]);
	for (unsigned i = 0; i < SETTLE; i++)
		(void)step();
	basis = &sim.cache->control->signature->reference;
	assert_int_equal(basis->plannable, COUNT);
	for (uint32_t s = 0; s < basis->scope_count; s++) {
		const struct recorded_scope *scope = &basis->scopes[s];

		assert_true(s == 0 || scope->enter_ns >= scope[-1].enter_ns);
		if (scope->key == 0)
			continue;
		assert_int_equal(scope->key, ++layers);
		assert_int_equal(scope->plannable, TENSORS);
	}
	assert_int_equal(layers, LAYERS);
	assert_in_range(basis->forward_ns, COUNT * 10000, COUNT * 10000 * 102 / 100);
	assert_in_range(basis->backward_ns, COUNT * 20000 * 98 / 100, COUNT * 20000 * 105 / 100);
	for (uint32_t i = 0; i < basis->count; i++)
		assert_true(basis->tensors[i].pack_ns < basis->tensors[i].use_ns &&
			    basis->tensors[i].use_ns < basis->tensors[i].release_ns);
}

/* Figures of a step are those of what it ran. */
SIM_CASE(test_a_step_takes_what_it_takes)
{
	struct spw_cache_stats stats;

	open_way(&ways[1]);
	for (unsigned i = 0; i < SETTLE; i++) {
		(void)step();
		stats = sim_stats();
		assert_int_equal(stats.step_compute_ns, sim.compute_ns);
		assert_in_range(stats.step_forward_ns + stats.step_backward_ns,
				sim.compute_ns - 1000, sim.compute_ns);
	}
}

/* Layers of other sizes, as of longer texts, are another step: it gets a plan of its own. */
SIM_CASE(test_other_sizes_are_another_signature)
{
	unsigned skipping = 0;
	uint64_t planned;

	open_way(&ways[1]);
	for (unsigned i = 0; i < SETTLE; i++)
		(void)step();
	assert_true(sim.cache->control->signature->varies);
	for (unsigned i = 0; i < 4; i++)
		sim_steps(&gpt, 1);
	planned = sim_stats().steps_planned;
	sim_steps(&gpt, 4);
	assert_int_equal(sim_stats().steps_planned, planned + 4);
	assert_false(sim.cache->control->signature->varies);
	for (unsigned i = 0; i < SIGNATURES_MAX; i++)
		skipping += sim.cache->control->signatures[i].varies;
	assert_int_equal(skipping, 1); /* is remembered */
}

RUN_CASES(NULL, NULL)
