/* SPDX-License-Identifier: MIT */
/* tests/unit/test_cache_rest.c - steps that rest, as their plan moves nothing; in virtual time */
/* link: simstore libspillway */
#include "tests/unit/cache_sim.h"

/* What each step begins with; the step that is begun. */
static bool may_rest;
static enum spw_step begun;

static void begin(void)
{
	int result = spw_cache_step_rest(sim.cache, may_rest);

	assert_in_range(result, SPW_STEP_SEEN, SPW_STEP_RESTS_LAST);
	begun = (enum spw_step)result;
}

/* The step that has begun: the model runs, unless it rests, and the next one begins. */
static void step(const struct sim_model *model)
{
	if (begun < SPW_STEP_RESTS) {
		sim_forward_stage(model);
		sim_backward_stage(model);
	}
	sim_advance(sim_clock() + 20000000);
	sim_drain();
	begin();
}

/* Until a step begins that rests. Return: how many were seen. */
static unsigned seen_until_rest(const struct sim_model *model, unsigned max)
{
	unsigned count = 0;

	while (begun < SPW_STEP_RESTS && count < max) {
		step(model);
		count++;
	}
	assert_true(begun >= SPW_STEP_RESTS);
	return count;
}

/* Return: how many rest, up to the next that is seen. */
static unsigned resting(const struct sim_model *model)
{
	unsigned count = 0;
	bool last = false;

	while (begun >= SPW_STEP_RESTS) {
		assert_false(last);
		last = begun == SPW_STEP_RESTS_LAST;
		step(model);
		count++;
	}
	assert_true(last);
	return count;
}

static struct sim_model few;

static void open_slow(enum spw_cache_mode mode, uint64_t memory_bytes)
{
	few = gpt;
	few.layers = 2;
	sim_begin(mode);
	sim.opts.memory_bytes = memory_bytes;
	sim.store->drives.write = sim.store->drives.read = 0.0121;
	sim.store->drives.mixed = 0.0121;
	may_rest = true;
	sim_open();
	begin();
}

SIM_CASE(test_steps_rest)
{
	struct spw_cache_stats before, after;

	open_slow(SPW_CACHE_FASTEST, 0);
	assert_true(seen_until_rest(&few, 40) >= 6);
	STAT_IS(plan_tensors_spilled, 0);
	STAT_IS(steps_resting, 1);
	before = sim_stats();
	assert_int_equal(resting(&few), 7);
	after = sim_stats();
	assert_int_equal(after.steps_resting, 7);
	assert_int_equal(after.steps, before.steps + 7);
	assert_int_equal(sim.store->published[1].steps, after.steps);
	/* What the last step was that was seen, stays. */
	assert_int_equal(after.offers, before.offers);
	assert_int_equal(after.step_peak_bytes, before.step_peak_bytes);
	assert_int_equal(after.step_compute_ns, before.step_compute_ns);
	assert_int_equal(after.steps_planned, before.steps_planned);
	assert_true(after.step_peak_bytes > 0);
	for (unsigned expected = 15; expected < 512; expected = 2 * expected + 1) {
		assert_int_equal(seen_until_rest(&few, 40), 1);
		assert_int_equal(resting(&few), SPW_MIN(expected, 255u));
	}
	/* They say nothing against the plan. */
	STAT_IS(plans, before.plans);
	STAT_IS(plan_mismatches, before.plan_mismatches);
}

SIM_CASE(test_another_step_ends_it)
{
	struct sim_model more;

	open_slow(SPW_CACHE_FASTEST, 0);
	(void)seen_until_rest(&few, 40);
	more = few;
	more.layers = 3;
	(void)resting(&more);
	step(&more);
	assert_int_equal(begun, SPW_STEP_SEEN);
	assert_true(seen_until_rest(&more, 40) >= 4);
	assert_int_equal(resting(&more), 7);
}

SIM_CASE(test_only_where_the_caller_says_so)
{
	open_slow(SPW_CACHE_FASTEST, 0);
	may_rest = false;
	for (unsigned i = 0; i < 20; i++)
		step(&few);
	assert_int_equal(begun, SPW_STEP_CALM);
	may_rest = true;
	step(&few);
	assert_int_equal(begun, SPW_STEP_RESTS);
	/* A step that the caller cannot vouch for is seen, and after it they rest again. */
	may_rest = false;
	step(&few);
	assert_int_equal(begun, SPW_STEP_CALM);
	may_rest = true;
	step(&few);
	assert_int_equal(begun, SPW_STEP_RESTS);
	STAT_IS(steps_resting, 2);
}

SIM_CASE(test_what_is_offered_in_it_is_kept)
{
	uint64_t spilled;

	open_slow(SPW_CACHE_FASTEST, 0);
	(void)seen_until_rest(&few, 40);
	spilled = sim_stats().tensors_spilled;
	assert_int_equal(sim_offer(0, 8192, SPW_HINT_NONE), SPW_OFFER_KEEP);
	sim_use(0, 10);
	STAT_IS(tensors_spilled, spilled);
	assert_int_equal(resting(&few), 7);
	assert_int_equal(seen_until_rest(&few, 2), 1);
}

/* Small tensors alone need no plan. */
SIM_CASE(test_small_tensors_alone)
{
	open_slow(SPW_CACHE_FASTEST, 0);
	sim_drain();
	spw_cache_close(sim.cache);
	sim.opts.min_bytes = 1 << 20;
	sim_open();
	begin();
	assert_int_equal(seen_until_rest(&few, 10), 4);
	assert_int_equal(resting(&few), 7);
	STAT_IS(plans, 0);
}

SIM_CASE(test_plans_that_move_something)
{
	open_slow(SPW_CACHE_FASTEST, 0);
	sim.store->drives.write = sim.store->drives.read = sim.store->drives.mixed = 1;
	for (unsigned i = 0; i < 20; i++)
		step(&gpt);
	assert_true(sim_stats().plan_tensors_spilled > 0);
	STAT_IS(steps_resting, 0);
}

/* A budget needs to be watched, unless twice as much as a step holds fits. */
SIM_CASE(test_a_budget)
{
	uint64_t all = GPT_LAYER_BYTES * 2;

	open_slow(SPW_CACHE_BUDGET, all * 3 / 2);
	for (unsigned i = 0; i < 20; i++)
		step(&few);
	STAT_IS(plan_tensors_spilled, 0);
	STAT_IS(steps_resting, 0);
	sim_end();
	open_slow(SPW_CACHE_BUDGET, all * 3);
	(void)seen_until_rest(&few, 40);
	assert_int_equal(resting(&few), 7);
}

RUN_CASES(NULL, NULL)
