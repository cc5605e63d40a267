/* SPDX-License-Identifier: MIT */
/* tests/unit/test_cache_keep.c - what the plan keeps is known before it is offered */
/* link: simstore libspillway */
#include "tests/unit/cache_sim.h"

#define LAYERS  4u
#define TENSORS 6u
#define COUNT   (LAYERS * TENSORS)
#define LEN     4096u

/* How a step saves: what differs from the step before is told by these. */
static struct {
	unsigned offset; /* of the numbers of its saves */
	unsigned longer; /* the tensor, + 1, that is longer; 0: none */
	bool offers;     /* all, without asking */
	bool has_input;  /* the first scope is recomputed from its first tensor */
	enum spw_stage stage;
	int answers[COUNT];
	struct spw_kept kept[COUNT];
} way;

static size_t len_of(unsigned slot)
{
	return way.longer == slot + 1 ? 2 * LEN : LEN;
}

static void offer(unsigned slot, size_t len)
{
	struct sim_tensor *tensor = &sim.tensors[slot];
	const struct spw_offer offer = {.storage_key = ++sim.next_key,
					.storage_bytes = malloc(len),
					.storage_len_bytes = len,
					.len_bytes = len,
					.owner = slot + 1,
					.number = slot + 1 + way.offset};

	*tensor = (struct sim_tensor){
		.key = sim.next_key, .memory = (uint8_t *)offer.storage_bytes, .len = len};
	assert_non_null(tensor->memory);
	memset(tensor->memory, (int)(tensor->key & 0x7f), len);
	assert_true(spw_cache_offer(sim.cache, &offer, &tensor->tensor) >= 0);
	sim_drain();
}

static void save(unsigned slot)
{
	way.answers[slot] = way.offers ? 0
				       : spw_cache_keep(sim.cache, slot + 1 + way.offset,
							len_of(slot), &way.kept[slot]);
	if (way.answers[slot] > 0)
		sim_drain();
	else
		offer(slot, len_of(slot));
}

static void offer_input(void)
{
	const struct sim_tensor *tensor = &sim.tensors[0];
	const struct spw_offer offer = {.storage_key = tensor->key,
					.storage_bytes = tensor->memory,
					.storage_len_bytes = tensor->len,
					.len_bytes = tensor->len,
					.owner = COUNT + 1};
	spw_tensor input;

	assert_int_equal(spw_cache_offer_hint(sim.cache, &offer, SPW_HINT_INPUT, &input),
			 SPW_OFFER_DEDUP);
	assert_int_equal(spw_cache_release(sim.cache, input), 0);
}

static void use(unsigned slot)
{
	if (way.answers[slot] <= 0) {
		sim_use(slot, 20000);
		return;
	}
	(void)spw_cache_kept_used(sim.cache, &way.kept[slot]);
	sim_compute(20000);
	spw_cache_kept_gone(sim.cache, &way.kept[slot]);
	sim_drain();
}

/* A step. Return: how many of its tensors were kept at once. The next one begins. */
static unsigned step(void)
{
	unsigned kept = 0;

	spw_cache_stage(sim.cache, 0, way.stage);
	for (unsigned slot = 0; slot < COUNT; slot++) {
		if (slot % TENSORS == 0)
			spw_cache_scope_enter(sim.cache, 100 + slot);
		sim_compute(10000);
		save(slot);
		kept += way.answers[slot] > 0;
		if (slot == 0 && way.has_input && way.answers[slot] <= 0)
			offer_input();
		if (slot % TENSORS == TENSORS - 1)
			spw_cache_scope_leave(sim.cache);
	}
	spw_cache_stage(sim.cache, 0, SPW_STAGE_BACKWARD);
	for (unsigned slot = COUNT; slot-- > 0;)
		use(slot);
	spw_cache_step(sim.cache);
	return kept;
}

static void start(uint64_t memory_bytes)
{
	memset(&way, 0, sizeof(way));
	sim_begin(SPW_CACHE_BUDGET);
	sim.opts.memory_bytes = memory_bytes;
	sim_start();
}

/* Until the plan is in force. */
static void learn(void)
{
	for (unsigned i = 0; i < 4; i++)
		(void)step();
	assert_true(sim_stats().plans > 0);
}

SIM_CASE(test_without_a_plan)
{
	start(2 * COUNT * LEN);
	assert_int_equal(step(), 0);
	for (unsigned slot = 0; slot < COUNT; slot++)
		assert_int_equal(way.answers[slot], -ESRCH);
}

SIM_CASE(test_all_is_kept)
{
	struct spw_cache_stats before, after;

	start(2 * COUNT * LEN);
	learn();
	before = sim_stats();
	assert_int_equal(step(), COUNT);
	after = sim_stats();
	assert_int_equal(after.offers - before.offers, COUNT);
	assert_int_equal(after.bytes_offered - before.bytes_offered, COUNT * LEN);
	assert_int_equal(after.tensors_kept_planned - before.tensors_kept_planned, COUNT);
	assert_int_equal(after.takes - before.takes, COUNT);
	assert_int_equal(after.releases - before.releases, COUNT);
	assert_int_equal(after.steps_planned - before.steps_planned, 1);
	assert_int_equal(after.plan_mismatches, 0);
	assert_int_equal(after.step_peak_bytes, COUNT * LEN);
	assert_int_equal(after.activation_bytes, 0);
	/* They are recognized in the step after it, too. */
	assert_int_equal(step(), COUNT);
}

/* Its bytes are counted while it is kept, with those of entries. */
SIM_CASE(test_they_count)
{
	start(2 * COUNT * LEN);
	learn();
	spw_cache_stage(sim.cache, 0, SPW_STAGE_FORWARD);
	spw_cache_scope_enter(sim.cache, 100);
	assert_int_equal(spw_cache_keep(sim.cache, 1, LEN, &way.kept[0]), 1);
	STAT_IS(activation_bytes, LEN);
	spw_cache_kept_again(sim.cache, &way.kept[0]);
	STAT_IS(activation_bytes, LEN);
	STAT_IS(tensors_deduplicated, 1);
	/* The next place is another one. */
	assert_int_equal(spw_cache_keep(sim.cache, 2, LEN, &way.kept[1]), 1);
	assert_int_not_equal(way.kept[0].id, way.kept[1].id);
	STAT_IS(activation_bytes, 2 * LEN);
	spw_cache_kept_gone(sim.cache, &way.kept[0]);
	/* A step later as well. */
	spw_cache_step(sim.cache);
	STAT_IS(activation_bytes, LEN);
	(void)spw_cache_kept_used(sim.cache, &way.kept[1]);
	spw_cache_kept_gone(sim.cache, &way.kept[1]);
	STAT_IS(activation_bytes, 0);
}

/* Other saves, of which the step has one more: places are not what they seem. */
SIM_CASE(test_another_save)
{
	start(2 * COUNT * LEN);
	learn();
	way.offset = 1;
	assert_int_equal(step(), 0);
	for (unsigned slot = 0; slot < COUNT; slot++)
		assert_int_equal(way.answers[slot], 0);
	STAT_IS(plan_mismatches, 0);
	/* Since then they have these numbers. */
	assert_int_equal(step(), COUNT);
}

/* A tensor of another length is offered, and shows that the step is another one. */
SIM_CASE(test_another_length)
{
	start(2 * COUNT * LEN);
	learn();
	way.longer = COUNT / 2 + 1;
	assert_int_equal(step(), COUNT / 2);
	assert_int_equal(way.answers[COUNT / 2], 0);
	assert_int_equal(way.answers[COUNT / 2 + 1], -ESRCH);
	STAT_IS(plan_mismatches, 1);
	assert_int_equal(sim_stats().step_peak_bytes >= (COUNT + 1) * LEN / 2, 1);
}

/* Some leave, others stay: what leaves is offered, whatever was kept before it. */
SIM_CASE(test_some_leave)
{
	unsigned kept;

	start(COUNT * LEN / 2);
	learn();
	for (unsigned i = 0; i < 4; i++)
		kept = step();
	assert_true(sim_stats().plan_tensors_spilled > 0);
	assert_int_equal(kept, COUNT - sim_stats().plan_tensors_spilled);
	STAT_IS(plan_mismatches, 0);
	assert_true(sim_stats().step_peak_bytes < COUNT * LEN);
}

/* The same plan follows whether they are asked about or offered. */
SIM_CASE(test_asked_or_offered)
{
	uint64_t plans;

	start(COUNT * LEN / 2);
	learn();
	for (unsigned i = 0; i < 8; i++)
		(void)step();
	plans = sim_stats().plans;
	for (unsigned i = 0; i < 8; i++) {
		way.offers = i % 2;
		(void)step();
	}
	STAT_IS(plan_mismatches, 0);
	assert_int_equal(sim_stats().plans, plans);
}

/* What is saved in the backward pass has no place in the plan. */
SIM_CASE(test_backward)
{
	start(2 * COUNT * LEN);
	learn();
	way.stage = SPW_STAGE_BACKWARD;
	assert_int_equal(step(), 0);
}

/* The first tensor's scope has another in it, in which the backward pass begins. */
static int nested(bool saves_before)
{
	int after = 0;

	spw_cache_stage(sim.cache, 0, SPW_STAGE_FORWARD);
	for (unsigned slot = 1; slot < COUNT; slot++) {
		sim_compute(10000);
		save(slot);
	}
	spw_cache_scope_enter(sim.cache, 100);
	if (saves_before)
		save(0);
	spw_cache_scope_enter(sim.cache, 101);
	spw_cache_stage(sim.cache, 0, SPW_STAGE_BACKWARD);
	spw_cache_scope_leave(sim.cache);
	if (!saves_before)
		after = spw_cache_keep(sim.cache, 1, LEN, &way.kept[0]);
	for (unsigned slot = COUNT; slot-- > (saves_before ? 0u : 1u);)
		use(slot);
	spw_cache_scope_leave(sim.cache);
	spw_cache_step(sim.cache);
	return after;
}

SIM_CASE(test_backward_in_a_scope)
{
	start(2 * COUNT * LEN);
	for (unsigned i = 0; i < 5; i++)
		assert_int_equal(nested(true), 0);
	assert_true(way.answers[0] > 0);
	assert_int_equal(nested(false), 0);
}

/* The input that a scope is recomputed from is offered again, as that. */
SIM_CASE(test_the_input_of_a_scope)
{
	start(2 * COUNT * LEN);
	way.has_input = true;
	learn();
	assert_int_equal(step(), COUNT - 1);
	assert_int_equal(way.answers[0], 0);
}

RUN_CASES(NULL, NULL)
