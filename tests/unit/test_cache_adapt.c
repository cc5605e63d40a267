/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_cache_adapt.c - the cache that plans, in virtual time and from inside: what it
 * counts, dares and gives up
 *
 * What shows outside only as a little more memory or a step that now and then takes longer.
 */
/* link: simstore libspillway */
#include "tensor/control/planning.h"
#include "tensor/control/reference_step.h"
#include "tensor/entry.h"
#include "tensor/lock.h"
#include "tensor/window.h"
#include "tests/unit/cache_sim.h"

static void open_at(enum spw_cache_mode mode, double write, double read)
{
	sim_begin(mode);
	sim.store->drives.write = write;
	sim.store->drives.read = read;
	sim.store->drives.mixed = write + read;
	sim.opts.memory_bytes = GPT_LAYER_BYTES * gpt.layers * 6 / 10;
	sim_start();
}

/* A take waits, or waits no more. */
static void wait_changes(bool begins)
{
	spw_cache__lock(sim.cache);
	if (begins)
		(void)spw_control__wait_began(sim.cache->control);
	else
		(void)spw_control__wait_ended(sim.cache->control);
	spw_cache__unlock(sim.cache);
}

static unsigned steps_until(bool (*there)(uint64_t), uint64_t figure)
{
	unsigned count = 0;

	for (; !there(figure); count++) {
		assert_true(count < 1000);
		(void)sim_step(&gpt);
	}
	return count;
}

/* ---- Time that is waited ---- */

/* However many takes wait at once. */
SIM_CASE(test_waits_at_once_count_once)
{
	open_at(SPW_CACHE_FASTEST, 1, 1);
	for (unsigned i = 0; i < 6; i++) {
		sim_advance(sim_clock() + 10);
		wait_changes(i < 3);
	}
	assert_int_equal(sim.cache->control->waited_ns, 50);
}

/* ---- Caution ---- */

/* The peak of the plan that would be searched for now. */
static uint64_t peak_now(struct control *control)
{
	spw_control__planning_ask(control);
	assert_int_equal(spw_control__planning_plan(&control->asked, &control->draft), 0);
	return control->draft.result.peak_bytes;
}

/* A part of the bandwidth is counted on, in either direction. */
CASE(test_caution_plans_for_less)
{
	static const double rates[][2] = {{0.5, 3}, {3, 0.3}};

	for (unsigned i = 0; i < SPW_ARRAY_LEN(rates); i++) {
		struct control *control;
		uint64_t peak;

		open_at(SPW_CACHE_FASTEST, rates[i][0], rates[i][1]);
		sim_steps(&gpt, 4);
		control = sim.cache->control;
		peak = peak_now(control);
		control->time.share = 1;
		assert_true(peak_now(control) > peak * 5 / 4);
		sim_end();
	}
}

/* A step of a model in which takes waited for @percent of it, as far as the cache can tell. */
static void step_of(const struct sim_model *model, unsigned percent)
{
	sim_forward_stage(model);
	sim_backward_stage(model);
	wait_changes(true);
	sim_advance(sim_clock() +
		    3 * model->layers * model->tensors * model->tensor_ns * percent / 100);
	wait_changes(false);
	spw_cache_step(sim.cache);
}

/* The same, and one by the plan before: what the first said is in force after it. */
static void late_step(const struct sim_model *model, unsigned percent)
{
	step_of(model, percent);
	step_of(model, 0);
}

static unsigned caution(void)
{
	return (unsigned)sim_stats().plan_caution_percent;
}

static bool caution_is(uint64_t percent)
{
	return caution() == percent;
}

static bool caution_is_not(uint64_t percent)
{
	return caution() != percent;
}

/* Less is left out after steps without a stall, later each time that it was too little. */
SIM_CASE(test_a_margin_that_was_needed_is_given_back_later)
{
	open_at(SPW_CACHE_FASTEST, 0.8, 0.8);
	sim_steps(&gpt, 4);
	for (unsigned needed = TIME_PATIENCE_STEPS; needed <= 4 * TIME_PATIENCE_STEPS;
	     needed *= 2) {
		unsigned before = caution();

		late_step(&gpt, 5);
		assert_true(caution() < before - 3);
		/* but for those that a plan was searched for meanwhile */
		assert_in_range(steps_until(caution_is_not, caution()), needed + 1, needed + 2);
	}
	(void)steps_until(caution_is, 100);
}

/* One may be an accident, the second says what is missing: two thirds are backward pass. */
SIM_CASE(test_a_second_stall_is_believed)
{
	static const struct {
		unsigned stall, caution; /* percent */
	} cases[] = {{40, 95}, {20, 74}, {5, 70}, {300, 17}};

	open_at(SPW_CACHE_FASTEST, 0.8, 0.8);
	sim_steps(&gpt, 4);
	for (unsigned i = 0; i < SPW_ARRAY_LEN(cases); i++) {
		late_step(&gpt, cases[i].stall);
		assert_in_range(caution(), cases[i].caution - 1, cases[i].caution + 1);
	}
	assert_int_equal(steps_until(caution_is_not, caution()), TIME_PATIENCE_STEPS + 1);
}

/* A machine of changing speed: the timeline explains each stall, and no plan fits. */
SIM_CASE(test_stalls_that_come_back_are_believed)
{
	struct sim_model slower = gpt;
	unsigned before;

	slower.tensor_ns = gpt.tensor_ns * 13 / 10;
	open_at(SPW_CACHE_FASTEST, 0.8, 0.8);
	sim_steps(&gpt, 4);
	late_step(&slower, 20);
	assert_int_equal(caution(), 100);
	for (unsigned i = 0; i < 6; i++)
		step_of(&gpt, 0);
	/* to be so much faster made it stall a little */
	before = caution();
	assert_in_range(before, 90, 100);
	late_step(&slower, 20);
	assert_true(caution() < before);
	for (unsigned i = 0; i < TIME_PATIENCE_STEPS + 1; i++)
		step_of(&slower, 0);
	before = caution();
	late_step(&gpt, 20); /* after so long it is the first again */
	assert_int_equal(caution(), before);
}

/* Whatever the drives seem to be able to do: for some steps that did not. */
SIM_CASE(test_no_plan_writes_more_than_one_that_stalled)
{
	uint64_t written;

	open_at(SPW_CACHE_FASTEST, 0.4, 0.4);
	sim_steps(&gpt, 4);
	written = sim_stats().plan_bytes_written;
	step_of(&gpt, 5);
	sim.store->drives = (struct simstore_drives){.write = 2, .read = 2, .mixed = 4};
	for (unsigned i = 0; i < 3; i++) {
		assert_in_range(sim_stats().plan_bytes_written, 1, written);
		(void)sim_step(&gpt);
	}
	sim_steps(&gpt, 6);
	assert_true(sim_stats().plan_bytes_written > written);
}

/* ---- Budgets ---- */

/* Nothing is read for which the budget has no room, however late it is. */
SIM_CASE(test_a_budget_has_no_slack)
{
	struct control *control;
	uint64_t room;

	open_at(SPW_CACHE_BUDGET, 1, 1);
	sim_steps(&gpt, 3);
	control = sim.cache->control;
	assert_int_equal(control->signature->plan.result.memory_bytes, sim.opts.memory_bytes);
	assert_int_equal(spw_control__memory_bytes(control), sim.opts.memory_bytes);
	sim_forward_stage(&gpt);
	sim_advance(sim_clock() + 1000000); /* idle drives, and all reads are late */
	spw_cache__lock(sim.cache);
	control->read_next = 0;
	room = sim.opts.memory_bytes - control->memory_bytes;
	assert_true(spw_control__next_has_room(control, room));
	assert_false(spw_control__next_has_room(control, room + 1));
	spw_cache__unlock(sim.cache);
	sim_backward_stage(&gpt);
	spw_cache_step(sim.cache);
}

/* With memory in use that no plan knows of. */
static void step_above_the_budget(void)
{
	sim_forward_stage(&gpt);
	spw_cache_stage(sim.cache, 0, SPW_STAGE_BACKWARD);
	(void)sim_offer(1000, 128 << 10, SPW_HINT_NONE);
	sim_use(1000, 10);
	sim_backward(&gpt, 0);
	spw_cache_step(sim.cache);
}

static double reserve; /* shares need not be whole numbers */

static bool reserve_is_less(uint64_t unused)
{
	(void)unused;
	return sim.cache->control->signature->memory.share < reserve;
}

/* What was left out of the budget is tried again, less often each time it was too early. */
SIM_CASE(test_using_a_budget_again_too_early_makes_it_rarer)
{
	open_at(SPW_CACHE_BUDGET, 1, 1);
	sim_steps(&gpt, 4);
	for (unsigned needed = MEMORY_PATIENCE_STEPS; needed <= 4 * MEMORY_PATIENCE_STEPS;
	     needed *= 2) {
		double before = sim.cache->control->signature->memory.share;

		step_above_the_budget();
		assert_true(sim.cache->control->signature->memory.share > before);
		reserve = sim.cache->control->signature->memory.share;
		/* the first, and the one after them, are by the plan before */
		assert_int_equal(steps_until(reserve_is_less, 0), needed + 1);
		(void)sim_step(&gpt);
	}
}

/* ---- When a step leaves its plan ---- */

/* In its backward stage: what is on the drives is prefetched all the same. */
SIM_CASE(test_left_in_the_backward_stage)
{
	struct spw_cache_stats before, after;

	open_at(SPW_CACHE_FASTEST, 0.8, 0.8);
	sim_steps(&gpt, 3);
	sim_forward_stage(&gpt);
	spw_cache_stage(sim.cache, 0, SPW_STAGE_BACKWARD);
	before = sim_stats();
	spw_cache_scope_enter(sim.cache, 999);
	spw_cache_scope_leave(sim.cache);
	STAT_IS(plan_mismatches, 1);
	sim_backward(&gpt, 0);
	after = sim_stats();
	assert_true(after.prefetches > before.prefetches + gpt.layers);
	assert_in_range(after.misses - before.misses, 0, 2);
	spw_cache_step(sim.cache);
}

/* Once a step has stalled memory counts for less than time. */
SIM_CASE(test_hurried_reads_do_not_wait_for_their_time)
{
	struct control *control;
	struct signature *signature;
	uint64_t prefetches;

	open_at(SPW_CACHE_FASTEST, 0.8, 0.8);
	sim_steps(&gpt, 4);
	control = sim.cache->control;
	signature = control->signature;
	sim_forward_stage(&gpt);
	/* nothing is under way, and nothing has happened since */
	sim_advance(sim_clock() + 1000000);
	sim_drain();
	spw_cache__lock(sim.cache);
	for (unsigned i = control->read_next; i < signature->plan.use_count; i++)
		signature->plan.read_from_ns[signature->plan.use_order[i]] = UINT64_MAX / 2;
	prefetches = sim.cache->count.prefetches;
	spw_cache__window_fill(sim.cache);
	assert_int_equal(sim.cache->count.prefetches, prefetches);
	control->stalled_now = true;
	spw_cache__window_fill(sim.cache);
	assert_true(sim.cache->count.prefetches > prefetches);
	spw_cache__unlock(sim.cache);
	sim_backward_stage(&gpt);
	spw_cache_step(sim.cache);
}

/* ---- When it goes on by the plan of another signature ---- */

/* Two plans are known; a step of gpt is at the end of its forward stage. Return: the other. */
static struct signature *at_the_fork(void)
{
	struct sim_model longer = gpt;
	struct control *control;
	struct signature *other = NULL;

	longer.layers += 2;
	open_at(SPW_CACHE_FASTEST, 0.8, 0.8);
	(void)sim_step(&longer);
	sim_steps(&gpt, 4);
	control = sim.cache->control;
	for (unsigned i = 0; i < SIGNATURES_MAX; i++)
		if (control->signatures[i].planned && &control->signatures[i] != control->signature)
			other = &control->signatures[i];
	assert_non_null(other);
	assert_int_equal(control->signature->reference.plannable, GPT_TENSORS);
	/* still to be written at the end */
	control->signature->plan.choices[GPT_TENSORS - 1] = SPW_PLAN_SPILL;
	sim_forward_stage(&gpt);
	return other;
}

/* One more tensor than gpt has, and the backward stage. */
static void end_fork(void)
{
	unsigned slot = GPT_TENSORS;

	spw_cache_scope_enter(sim.cache, 100 + gpt.layers);
	(void)sim_offer(slot, sim_len(&gpt, 0), SPW_HINT_NONE);
	spw_cache_scope_leave(sim.cache);
	spw_cache_stage(sim.cache, 0, SPW_STAGE_BACKWARD);
	sim_use(slot, gpt.tensor_ns);
	sim_backward(&gpt, 0);
	spw_cache_step(sim.cache);
}

static struct entry *entry_of_slot(unsigned slot)
{
	return spw_cache__entry_of_id(sim.cache, sim.tensors[slot].tensor.value);
}

/* What the signature's plan says of a tensor of this step. */
static enum spw_plan_choice *choice_of(const struct signature *signature, const struct entry *entry)
{
	const struct recorded *recorded = &sim.cache->control->now.tensors[entry->track.recorded];

	return &signature->plan
			.choices[spw_control__reference_place(&signature->reference, recorded)];
}

/* What that plan keeps must be in memory: a step that has dropped it cannot follow the plan. */
SIM_CASE(test_no_switch_to_what_is_gone)
{
	struct signature *other = at_the_fork();
	unsigned gone = 0;

	while (entry_of_slot(gone)->state != ENTRY_STORED)
		gone++;
	*choice_of(other, entry_of_slot(gone)) = SPW_PLAN_KEEP;
	spw_cache_scope_enter(sim.cache, 100 + gpt.layers);
	STAT_IS(plan_switches, 0);
	STAT_IS(plan_mismatches, 1);
	spw_cache_scope_leave(sim.cache);
	end_fork();
}

/* What that plan keeps and is not written yet stays. */
SIM_CASE(test_a_switch_keeps_what_is_not_written)
{
	struct signature *other = at_the_fork();
	struct entry *entry = entry_of_slot(GPT_TENSORS - 1);

	assert_int_equal(entry->state, ENTRY_LEAVING);
	for (unsigned i = 0; i < GPT_TENSORS; i++)
		*choice_of(other, entry_of_slot(i)) =
			entry_of_slot(i)->state == ENTRY_STORED ? SPW_PLAN_SPILL : SPW_PLAN_KEEP;
	spw_cache_scope_enter(sim.cache, 100 + gpt.layers);
	STAT_IS(plan_switches, 1);
	assert_int_equal(entry->state, ENTRY_RESIDENT);
	assert_true(entry->owner_held && entry->forwarded);
	spw_cache_scope_leave(sim.cache);
	end_fork();
}

/* A step in which nothing was used, such as an evaluation, says nothing of the one before. */
SIM_CASE(test_a_late_step_is_remembered_over_an_idle_one)
{
	sim_begin(SPW_CACHE_FASTEST);
	sim.store->drives.write = sim.store->drives.read = sim.store->drives.mixed = 1;
	sim_start();
	sim_steps(&gpt, 5);
	assert_false(sim.cache->control->late_before);
	sim.store->drives.read = sim.store->drives.mixed = 0.25;
	assert_true(sim_step(&gpt).stall > 0.02);
	assert_true(sim.cache->control->late_before);
	spw_cache_step(sim.cache);
	assert_true(sim.cache->control->late_before);
}

RUN_CASES(NULL, NULL)
