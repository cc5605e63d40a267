/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_cache_adapt.c - the cache that plans, in virtual time and from inside: what it
 * counts, dares and gives up
 *
 * What shows outside only as a little more memory or a step that now and then takes longer.
 */
/* link: tools/replay/simstore libspillway */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/cache_sim.h"

static const struct sim_model gpt = {.layers = 24, .tensors = 6, .len = 8192, .tensor_ns = 10000};
#define GPT_LAYER_BYTES ((8 + 1 + 16 + 4 + 8 + 12) * 1024u)

static struct sim sim;

static void open_at(enum spw_cache_mode mode, double write, double read)
{
	sim_begin(&sim, mode);
	sim.store->drives.write = write;
	sim.store->drives.read = read;
	sim.store->drives.mixed = write + read;
	sim.opts.memory_bytes = GPT_LAYER_BYTES * gpt.layers * 6 / 10;
	sim_open(&sim);
	spw_cache_step(sim.cache);
}

static void steps(unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		(void)sim_step(&sim, &gpt);
}

/* ---- Time that is waited ---- */

/* However many takes wait at once. */
static void test_waits_at_once_count_once(void **state)
{
	(void)state;
	open_at(SPW_CACHE_FASTEST, 1, 1);
	for (unsigned i = 0; i < 6; i++) {
		sim_advance(&sim, sim_clock() + 10);
		spw_cache_lock(sim.cache);
		if (i < 3)
			(void)spw_control_wait_began(sim.cache->control);
		else
			(void)spw_control_wait_ended(sim.cache->control);
		spw_cache_unlock(sim.cache);
	}
	assert_int_equal(sim.cache->control->waited_ns, 50);
	sim_end(&sim);
}

/* ---- Caution ---- */

/* A part of the bandwidth is counted on, in either direction. */
static void test_caution_plans_for_less(void **state)
{
	static const double rates[][2] = {{0.5, 3}, {3, 0.3}};

	(void)state;
	for (unsigned i = 0; i < SPW_ARRAY_LEN(rates); i++) {
		struct control *control;
		uint64_t peak;

		open_at(SPW_CACHE_FASTEST, rates[i][0], rates[i][1]);
		steps(4);
		control = sim.cache->control;
		assert_int_equal(spw_planning_plan(control), 0);
		peak = control->shape->result.peak_bytes;
		control->caution = 0.5;
		assert_int_equal(spw_planning_plan(control), 0);
		assert_true(control->shape->result.peak_bytes > peak * 5 / 4);
		sim_end(&sim);
	}
}

/*
 * A step in which takes waited for @percent of it, as far as the cache can tell; of a model that
 * computes for so long.
 */
static void step_of(const struct sim_model *model, unsigned percent)
{
	spw_cache_stage(sim.cache, 0, SPW_STAGE_FORWARD);
	sim_forward(&sim, model, 0);
	spw_cache_stage(sim.cache, 0, SPW_STAGE_BACKWARD);
	sim_backward(&sim, model, 0);
	spw_cache_lock(sim.cache);
	(void)spw_control_wait_began(sim.cache->control);
	spw_cache_unlock(sim.cache);
	sim_advance(&sim, sim_clock() + 3 * model->layers * model->tensors * model->tensor_ns *
						percent / 100);
	spw_cache_lock(sim.cache);
	(void)spw_control_wait_ended(sim.cache->control);
	spw_cache_unlock(sim.cache);
	spw_cache_step(sim.cache);
}

static void step_that_stalls(unsigned percent)
{
	step_of(&gpt, percent);
}

static unsigned steps_until_caution_is(unsigned percent)
{
	unsigned count = 0;

	for (; sim_stats(&sim).plan_caution_percent != percent; count++) {
		assert_true(count < 1000);
		steps(1);
	}
	return count;
}

/* More is dared after steps without a stall, and more seldom each time that it was too much. */
static void test_daring_too_much_makes_it_rarer(void **state)
{
	(void)state;
	open_at(SPW_CACHE_FASTEST, 0.8, 0.8);
	steps(4);
	for (unsigned needed = PATIENCE_STEPS; needed <= 4 * PATIENCE_STEPS; needed *= 2) {
		assert_int_equal(sim_stats(&sim).plan_caution_percent, 100);
		step_that_stalls(5);
		assert_int_equal(sim_stats(&sim).plan_caution_percent, 95);
		assert_int_equal(steps_until_caution_is(100), needed);
	}
	sim_end(&sim);
}

/*
 * One stall may be an accident. Two in a row say what the drives can do: two thirds of a step are
 * its backward pass.
 */
static void test_a_second_stall_is_believed(void **state)
{
	(void)state;
	open_at(SPW_CACHE_FASTEST, 0.8, 0.8);
	steps(4);
	step_that_stalls(40);
	assert_int_equal(sim_stats(&sim).plan_caution_percent, 95);
	step_that_stalls(20);
	assert_in_range(sim_stats(&sim).plan_caution_percent, 95 * 100 / 132, 95 * 100 / 128);
	step_that_stalls(5);
	assert_in_range(sim_stats(&sim).plan_caution_percent, 65, 70);
	step_that_stalls(2);
	step_that_stalls(300);
	assert_int_equal(sim_stats(&sim).plan_caution_percent, 30);
	step_that_stalls(300);
	assert_int_equal(sim_stats(&sim).plan_caution_percent, 30);
	assert_true(steps_until_caution_is(100) >= PATIENCE_STEPS);
	sim_end(&sim);
}

/*
 * A machine that is faster and slower from step to step: the timeline explains each stall, and no
 * plan fits the next step.
 */
static void test_stalls_that_come_back_are_believed(void **state)
{
	struct sim_model slower = gpt;
	unsigned caution;

	(void)state;
	slower.tensor_ns = gpt.tensor_ns * 13 / 10;
	open_at(SPW_CACHE_FASTEST, 0.8, 0.8);
	steps(4);
	step_of(&slower, 20);
	assert_int_equal(sim_stats(&sim).plan_caution_percent, 100); /* the timeline changed */
	for (unsigned i = 0; i < 6; i++)
		step_of(&gpt, 0);
	/* to be so much faster made it stall a little */
	caution = (unsigned)sim_stats(&sim).plan_caution_percent;
	assert_in_range(caution, 90, 100);
	step_of(&slower, 20);
	assert_in_range(sim_stats(&sim).plan_caution_percent, caution * 100 / 132,
			caution * 100 / 128);
	caution = (unsigned)sim_stats(&sim).plan_caution_percent;
	for (unsigned i = 0; i < RECENT_STEPS; i++)
		step_of(&slower, 0);
	step_of(&gpt, 20); /* after so long it is the first again */
	assert_int_equal(sim_stats(&sim).plan_caution_percent, caution);
	sim_end(&sim);
}

/* ---- Budgets ---- */

/* Nothing is read for which the budget has no room, however late it is. */
static void test_a_budget_has_no_slack(void **state)
{
	struct control *control;
	uint64_t room;

	(void)state;
	open_at(SPW_CACHE_BUDGET, 1, 1);
	steps(3);
	control = sim.cache->control;
	assert_int_equal(control->shape->result.memory_bytes, sim.opts.memory_bytes);
	assert_int_equal(spw_control_memory_bytes(control), sim.opts.memory_bytes);
	spw_cache_stage(sim.cache, 0, SPW_STAGE_FORWARD);
	sim_forward(&sim, &gpt, 0);
	sim_advance(&sim, sim_clock() + 1000000); /* idle drives, and all reads are late */
	spw_cache_lock(sim.cache);
	control->use_next = 0;
	room = sim.opts.memory_bytes - control->memory_bytes;
	assert_true(spw_control_next_has_room(control, room));
	assert_false(spw_control_next_has_room(control, room + 1));
	spw_cache_unlock(sim.cache);
	spw_cache_stage(sim.cache, 0, SPW_STAGE_BACKWARD);
	sim_backward(&sim, &gpt, 0);
	spw_cache_step(sim.cache);
	sim_end(&sim);
}

/* With memory in use that no plan knows of. */
static void step_above_the_budget(void)
{
	spw_cache_stage(sim.cache, 0, SPW_STAGE_FORWARD);
	sim_forward(&sim, &gpt, 0);
	spw_cache_stage(sim.cache, 0, SPW_STAGE_BACKWARD);
	(void)sim_offer(&sim, 1000, 128 << 10, SPW_HINT_NONE);
	sim_use(&sim, 1000, 10);
	sim_backward(&sim, &gpt, 0);
	spw_cache_step(sim.cache);
}

static unsigned steps_until_reserve_is_below(uint64_t bytes)
{
	unsigned count = 0;

	for (; sim.cache->control->shape->reserve_bytes >= bytes; count++) {
		assert_true(count < 1000);
		steps(1);
	}
	return count;
}

/*
 * What was left out of the budget is used again, and more seldom each time that it was too early.
 */
static void test_using_a_budget_again_too_early_makes_it_rarer(void **state)
{
	(void)state;
	open_at(SPW_CACHE_BUDGET, 1, 1);
	steps(4);
	for (unsigned needed = PATIENCE_STEPS; needed <= 4 * PATIENCE_STEPS; needed *= 2) {
		uint64_t before = sim.cache->control->shape->reserve_bytes;

		step_above_the_budget();
		assert_true(sim.cache->control->shape->reserve_bytes > before);
		assert_int_equal(
			steps_until_reserve_is_below(sim.cache->control->shape->reserve_bytes),
			needed);
	}
	sim_end(&sim);
}

/* ---- When a step leaves its plan ---- */

/* In its backward stage: what is on the drives is read ahead all the same. */
static void test_left_in_the_backward_stage(void **state)
{
	struct spw_cache_stats before, after;

	(void)state;
	open_at(SPW_CACHE_FASTEST, 0.8, 0.8);
	steps(3);
	spw_cache_stage(sim.cache, 0, SPW_STAGE_FORWARD);
	sim_forward(&sim, &gpt, 0);
	spw_cache_stage(sim.cache, 0, SPW_STAGE_BACKWARD);
	before = sim_stats(&sim);
	spw_cache_scope_enter(sim.cache, 999);
	spw_cache_scope_leave(sim.cache);
	assert_int_equal(sim_stats(&sim).plan_mismatches, 1);
	sim_backward(&sim, &gpt, 0);
	after = sim_stats(&sim);
	assert_true(after.prefetches > before.prefetches + gpt.layers);
	assert_in_range(after.misses - before.misses, 0, 2);
	spw_cache_step(sim.cache);
	sim_end(&sim);
}

/* Once a step has stalled memory counts for less than time. */
static void test_hurried_reads_do_not_wait_for_their_time(void **state)
{
	struct control *control;
	struct shape *shape;
	uint64_t prefetches;

	(void)state;
	open_at(SPW_CACHE_FASTEST, 0.8, 0.8);
	steps(4);
	control = sim.cache->control;
	shape = control->shape;
	spw_cache_stage(sim.cache, 0, SPW_STAGE_FORWARD);
	sim_forward(&sim, &gpt, 0);
	/* nothing is under way, and nothing has happened since */
	sim_advance(&sim, sim_clock() + 1000000);
	sim_drain(&sim);
	spw_cache_lock(sim.cache);
	for (unsigned i = control->use_next; i < shape->use_count; i++)
		shape->read_from_ns[shape->use_order[i]] = UINT64_MAX / 2;
	prefetches = sim.cache->count.prefetches;
	spw_window_fill(sim.cache);
	assert_int_equal(sim.cache->count.prefetches, prefetches);
	control->stalled_now = true;
	spw_window_fill(sim.cache);
	assert_true(sim.cache->count.prefetches > prefetches);
	spw_cache_unlock(sim.cache);
	spw_cache_stage(sim.cache, 0, SPW_STAGE_BACKWARD);
	sim_backward(&sim, &gpt, 0);
	spw_cache_step(sim.cache);
	sim_end(&sim);
}

/* ---- When it goes on by the plan of another shape ---- */

static const struct sim_model longer = {
	.layers = 26, .tensors = 6, .len = 8192, .tensor_ns = 10000};

/*
 * Both are known; the present step goes by the plan of gpt, and has come to its end in the forward
 * stage. Return: the other.
 */
static struct shape *at_the_fork(void)
{
	struct control *control;
	struct shape *other = NULL;

	open_at(SPW_CACHE_FASTEST, 0.8, 0.8);
	(void)sim_step(&sim, &longer);
	steps(4);
	control = sim.cache->control;
	for (unsigned i = 0; i < SHAPES_MAX; i++)
		if (control->shapes[i].planned && &control->shapes[i] != control->shape)
			other = &control->shapes[i];
	assert_non_null(other);
	assert_int_equal(control->shape->basis.plannable, gpt.layers * gpt.tensors);
	/* still to be written at the end */
	control->shape->choices[gpt.layers * gpt.tensors - 1] = SPW_PLAN_SPILL;
	spw_cache_stage(sim.cache, 0, SPW_STAGE_FORWARD);
	sim_forward(&sim, &gpt, 0);
	return other;
}

/* One more tensor than gpt has, and the backward stage. */
static void end_fork(void)
{
	unsigned slot = gpt.layers * gpt.tensors;

	spw_cache_scope_enter(sim.cache, 100 + gpt.layers);
	(void)sim_offer(&sim, slot, sim_len(&gpt, 0), SPW_HINT_NONE);
	spw_cache_scope_leave(sim.cache);
	spw_cache_stage(sim.cache, 0, SPW_STAGE_BACKWARD);
	sim_use(&sim, slot, gpt.tensor_ns);
	sim_backward(&sim, &gpt, 0);
	spw_cache_step(sim.cache);
	sim_end(&sim);
}

static struct entry *entry_of_slot(unsigned slot)
{
	return spw_entry_of_id(sim.cache, sim.tensors[slot].tensor.value);
}

/* What the shape's plan says of a tensor of this step. */
static enum spw_plan_choice *choice_of(const struct shape *shape, const struct entry *entry)
{
	const struct recorded *recorded = &sim.cache->control->now.tensors[entry->track.recorded];

	return &shape->choices[spw_basis_place(&shape->basis, recorded)];
}

/* What that plan keeps must be in memory: it is no plan for a step that has given it away. */
static void test_no_switch_to_what_is_gone(void **state)
{
	struct shape *other = at_the_fork();
	unsigned gone = 0;

	(void)state;
	while (entry_of_slot(gone)->state != ENTRY_STORED)
		gone++;
	*choice_of(other, entry_of_slot(gone)) = SPW_PLAN_KEEP;
	spw_cache_scope_enter(sim.cache, 100 + gpt.layers);
	assert_int_equal(sim_stats(&sim).plan_switches, 0);
	assert_int_equal(sim_stats(&sim).plan_mismatches, 2);
	spw_cache_scope_leave(sim.cache);
	end_fork();
}

/* What that plan keeps and is not written yet stays. */
static void test_a_switch_keeps_what_is_not_written(void **state)
{
	struct shape *other = at_the_fork();
	struct entry *entry = entry_of_slot(gpt.layers * gpt.tensors - 1);

	(void)state;
	assert_int_equal(entry->state, ENTRY_LEAVING);
	for (unsigned i = 0; i < gpt.layers * gpt.tensors; i++)
		*choice_of(other, entry_of_slot(i)) =
			entry_of_slot(i)->state == ENTRY_STORED ? SPW_PLAN_SPILL : SPW_PLAN_KEEP;
	spw_cache_scope_enter(sim.cache, 100 + gpt.layers);
	assert_int_equal(sim_stats(&sim).plan_switches, 1);
	assert_int_equal(entry->state, ENTRY_RESIDENT);
	assert_true(entry->owner_held && entry->forwarded);
	spw_cache_scope_leave(sim.cache);
	end_fork();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_waits_at_once_count_once),
		cmocka_unit_test(test_caution_plans_for_less),
		cmocka_unit_test(test_daring_too_much_makes_it_rarer),
		cmocka_unit_test(test_a_second_stall_is_believed),
		cmocka_unit_test(test_stalls_that_come_back_are_believed),
		cmocka_unit_test(test_a_budget_has_no_slack),
		cmocka_unit_test(test_using_a_budget_again_too_early_makes_it_rarer),
		cmocka_unit_test(test_left_in_the_backward_stage),
		cmocka_unit_test(test_hurried_reads_do_not_wait_for_their_time),
		cmocka_unit_test(test_no_switch_to_what_is_gone),
		cmocka_unit_test(test_a_switch_keeps_what_is_not_written),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
