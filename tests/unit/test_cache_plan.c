/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_cache_plan.c - the cache that plans, in virtual time: what it measures, what it
 * makes of it, what it does when things change
 */
/* link: tools/replay/simstore libspillway */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/cache_sim.h"

#define STALL_MAX 0.02

/*
 * 24 layers; what is saved needs about 0.84 bytes per nanosecond to leave within the forward pass.
 */
static const struct sim_model gpt = {.layers = 24, .tensors = 6, .len = 8192, .tensor_ns = 10000};
#define GPT_LAYER_BYTES ((8 + 1 + 16 + 4 + 8 + 12) * 1024u)

static struct sim sim;

static void set_bandwidth(double bytes_per_ns)
{
	sim.store->drives.write = sim.store->drives.read = bytes_per_ns;
	sim.store->drives.mixed = 1.1 * bytes_per_ns;
}

static void open_at(enum spw_cache_mode mode, double bytes_per_ns)
{
	sim_begin(&sim, mode);
	set_bandwidth(bytes_per_ns);
	sim.jitter_percent = 3;
	sim_open(&sim);
	spw_cache_step(sim.cache);
}

/* ---- Fastest ---- */

static uint64_t peak_at(enum spw_cache_mode mode, double bytes_per_ns, unsigned jitter_percent)
{
	struct sim_step step;
	uint64_t peak = 0;

	open_at(mode, bytes_per_ns);
	sim.jitter_percent = jitter_percent;
	for (unsigned i = 0; i < 8; i++) {
		step = sim_step(&sim, &gpt);
		if (i >= 2)
			assert_true(step.stall <= STALL_MAX);
		if (i >= 2 && step.peak_bytes > peak)
			peak = step.peak_bytes;
	}
	assert_int_equal(sim_stats(&sim).steps_fixed, mode == SPW_CACHE_POSITIONAL ? 2 : 1);
	assert_int_equal(sim_stats(&sim).plan_mismatches, 0);
	/* The plan knows when memory is given back: it is what happens. */
	if (mode == SPW_CACHE_FASTEST && jitter_percent == 0)
		assert_in_range(sim_stats(&sim).step_peak_bytes, 1,
				sim_stats(&sim).plan_peak_bytes);
	sim_end(&sim);
	return peak;
}

/*
 * From the second step after the first plan nothing is waited for, and the faster the drives the
 * lower the peak.
 */
static void test_fastest_converges(void **state)
{
	static const double bandwidths[] = {0.1, 0.3, 0.6, 0.8, 1.5, 3};
	uint64_t last = UINT64_MAX;
	unsigned lower = 0;

	(void)state;
	for (unsigned i = 0; i < SPW_ARRAY_LEN(bandwidths); i++) {
		uint64_t peak = peak_at(SPW_CACHE_FASTEST, bandwidths[i], 0);
		uint64_t positional = peak_at(SPW_CACHE_POSITIONAL, bandwidths[i], 0);

		/*
		 * A step is never exactly like the last: then a tensor or two are still in memory.
		 */
		assert_true(peak_at(SPW_CACHE_FASTEST, bandwidths[i], 3) <= peak + 2 * 2 * gpt.len);
		assert_true(peak <= last);
		assert_true(peak <= positional);
		lower += peak < positional;
		last = peak;
	}
	assert_true(lower > 0);
	assert_true(last <= GPT_LAYER_BYTES * 5 / 4);
}

static unsigned stalled_steps(unsigned steps)
{
	unsigned stalled = 0;

	for (unsigned i = 0; i < steps; i++) {
		struct sim_step step = sim_step(&sim, &gpt);

		if (step.stall > STALL_MAX) {
			stalled++;
			assert_true(i < 2);
		}
	}
	return stalled;
}

static void test_bandwidth_halves_and_returns(void **state)
{
	static const double bandwidths[] = {0.3, 0.8, 1.5};

	(void)state;
	for (unsigned i = 0; i < SPW_ARRAY_LEN(bandwidths); i++) {
		uint64_t plans, peak;

		open_at(SPW_CACHE_FASTEST, bandwidths[i]);
		(void)stalled_steps(6);
		peak = sim_stats(&sim).plan_peak_bytes;
		plans = sim_stats(&sim).plans_bandwidth;
		set_bandwidth(bandwidths[i] / 2);
		assert_true(stalled_steps(6) <= 2);
		assert_true(sim_stats(&sim).plans_bandwidth > plans);
		assert_true(sim_stats(&sim).plan_peak_bytes > peak);
		set_bandwidth(bandwidths[i]);
		assert_true(stalled_steps(6) <= 2);
		/* but for one tensor */
		assert_true(sim_stats(&sim).plan_peak_bytes <= peak + peak / 8 + 2 * gpt.len);
		sim_end(&sim);
	}
}

static bool within(uint64_t measured, double bytes_per_ns, double share)
{
	double ratio = (double)measured / 1e9 / bytes_per_ns;

	return ratio > 1 - share && ratio < 1 + share;
}

/*
 * While drives are busy: idle time counts for nothing, whether transfers follow each other or not.
 */
static void test_bandwidths_are_measured(void **state)
{
	static const double bandwidths[] = {0.2, 0.7, 4};

	(void)state;
	for (unsigned i = 0; i < SPW_ARRAY_LEN(bandwidths); i++) {
		uint64_t chunk_ns = (uint64_t)(1024 / bandwidths[i]);
		struct spw_cache_stats stats;

		open_at(SPW_CACHE_SPILL, bandwidths[i]);
		sim.store->drives.read *= 1.5;
		for (unsigned k = 0; k < 8; k++)
			(void)sim_step(&sim, &gpt);
		stats = sim_stats(&sim);
		assert_true(within(stats.write_bytes_per_second, bandwidths[i], 0.1));
		assert_true(within(stats.read_bytes_per_second, 1.5 * bandwidths[i], 0.1));
		assert_in_range(stats.drive_latency_ns, 1000 + chunk_ns / 2, 3000 + chunk_ns);
		assert_int_equal(stats.plans, 0);
		sim_end(&sim);
	}
}

static void test_mixed_bandwidth_is_measured(void **state)
{
	struct measure measure = {0};
	uint64_t now_ns = 0, began_ns = 0;

	(void)state;
	spw_measure_began(&measure, DIRECTION_WRITE, 100, now_ns);
	spw_measure_began(&measure, DIRECTION_READ, 100, now_ns);
	for (unsigned i = 0; i < 10; i++) {
		spw_measure_began(&measure, DIRECTION_WRITE, 100, now_ns);
		spw_measure_began(&measure, DIRECTION_READ, 100, now_ns);
		now_ns += 50;
		spw_measure_ended(&measure, DIRECTION_WRITE, 100, true, began_ns, now_ns);
		spw_measure_ended(&measure, DIRECTION_READ, 100, true, began_ns, now_ns);
		began_ns = now_ns - 50;
	}
	spw_measure_step(&measure);
	assert_int_equal(measure.drives.mixed_bytes_per_second, 4000000000);
	assert_int_equal(measure.drives.read_bytes_per_second, 0); /* never alone */
	/* What is cancelled took the drives no time. */
	spw_measure_began(&measure, DIRECTION_WRITE, 1000000, now_ns);
	spw_measure_ended(&measure, DIRECTION_WRITE, 1000000, false, now_ns, now_ns);
	assert_int_equal(measure.flows[DIRECTION_WRITE].bytes_in_flight, 100);
	spw_measure_step(&measure);
	assert_int_equal(measure.drives.mixed_bytes_per_second, 4000000000);
}

/*
 * A step that stalls shows no faster drives, whatever was measured in it: they may have let a
 * little at a time through.
 */
static void test_a_stall_shows_no_faster_drives(void **state)
{
	struct sim_step step;
	uint64_t counted_on, measured;

	(void)state;
	open_at(SPW_CACHE_FASTEST, 0.5);
	sim.store->drives.read /= 2;
	(void)stalled_steps(5);
	counted_on = sim.cache->control->shape->counted_on.read_bytes_per_second;
	measured = sim_stats(&sim).read_bytes_per_second;
	sim.store->drives.read *= 1.19;
	sim.store->drives.latency_ns *= 15;
	step = sim_step(&sim, &gpt);
	assert_true(step.stall > STALL_MAX);
	assert_true(sim_stats(&sim).read_bytes_per_second > measured + measured / 20);
	assert_true(sim.cache->control->shape->counted_on.read_bytes_per_second <= counted_on);
	/* It does when the plan has room for it. */
	sim.store->drives.latency_ns /= 15;
	(void)stalled_steps(2);
	assert_true(sim.cache->control->shape->counted_on.read_bytes_per_second > counted_on);
	sim_end(&sim);
}

static void test_timeline_changes(void **state)
{
	struct sim_model slow = gpt;
	uint64_t peak;

	(void)state;
	slow.tensor_ns *= 2;
	open_at(SPW_CACHE_FASTEST, 0.5);
	(void)stalled_steps(5);
	peak = sim_stats(&sim).plan_peak_bytes;
	for (unsigned i = 0; i < 4; i++)
		assert_true(sim_step(&sim, &slow).stall <= STALL_MAX);
	assert_true(sim_stats(&sim).plans_timeline > 0);
	assert_true(sim_stats(&sim).plan_peak_bytes < peak); /* more time for the drives */
	assert_true(stalled_steps(5) <= 2);
	assert_int_equal(sim_stats(&sim).plan_mismatches, 0);
	sim_end(&sim);
}

/* A step that saves something small, and @len bytes in its backward stage. */
static struct sim_step step_with(const struct sim_model *model, size_t len)
{
	spw_cache_stage(sim.cache, 0, SPW_STAGE_FORWARD);
	sim_forward(&sim, model, 0);
	(void)sim_offer(&sim, 1000, 32, SPW_HINT_NONE);
	spw_cache_stage(sim.cache, 0, SPW_STAGE_BACKWARD);
	(void)sim_offer(&sim, 1001, len, SPW_HINT_NONE);
	sim_compute(&sim, model->tensor_ns);
	sim_use(&sim, 1001, model->tensor_ns);
	sim_backward(&sim, model, 0);
	sim_use(&sim, 1000, 10);
	spw_cache_step(sim.cache);
	return sim_step_was(&sim);
}

/*
 * What no plan says anything of moves with the rest of the step: a first one that warms up takes
 * many times as long.
 */
static void test_what_is_not_planned_moves_too(void **state)
{
	struct sim_model slow = gpt;
	struct spw_cache_stats stats;

	(void)state;
	slow.tensor_ns *= 10;
	open_at(SPW_CACHE_FASTEST, 0.8);
	for (unsigned i = 0; i < 6; i++)
		(void)step_with(i == 0 ? &slow : &gpt, 65536);
	stats = sim_stats(&sim);
	assert_true(stats.plans_timeline > 0);
	assert_in_range(stats.plan_wall_ns, stats.step_compute_ns * 9 / 10,
			stats.step_compute_ns * 11 / 10);
	sim_end(&sim);
}

static void test_shape_changes(void **state)
{
	struct sim_model other = gpt, longer = gpt, shorter = gpt;
	struct spw_cache_stats stats;
	const struct sim_model *models[3] = {&other, &longer, &shorter};

	(void)state;
	other.len = 6144;
	longer.layers += 2;
	shorter.tensors--;
	for (unsigned i = 0; i < 3; i++) {
		open_at(SPW_CACHE_FASTEST, 0.8);
		(void)stalled_steps(3);
		(void)sim_step(&sim, models[i]);
		stats = sim_stats(&sim);
		assert_int_equal(stats.plan_mismatches, 1);
		assert_int_equal(stats.plans_shape, 1);
		assert_int_equal(stats.steps_fixed, 2);
		assert_int_equal(sim.logged, 1);
		for (unsigned k = 0; k < 4; k++)
			assert_true(sim_step(&sim, models[i]).stall <= STALL_MAX);
		stats = sim_stats(&sim);
		assert_int_equal(stats.plan_mismatches, 1);
		assert_int_equal(stats.steps_planned, 2 + 4);
		sim_end(&sim);
	}
}

/*
 * Sequences of ever other lengths: no step is like one before, and drives too slow for all of it
 * are not waited for.
 */
static void test_shapes_that_never_come_again(void **state)
{
	static const double bandwidths[] = {0.05, 0.2, 0.4};

	(void)state;
	for (unsigned k = 0; k < 2 * SPW_ARRAY_LEN(bandwidths); k++) {
		sim_begin(&sim, k % 2 ? SPW_CACHE_BUDGET : SPW_CACHE_FASTEST);
		sim.opts.memory_bytes = GPT_LAYER_BYTES * gpt.layers / 2;
		set_bandwidth(bandwidths[k / 2]);
		sim_open(&sim);
		spw_cache_step(sim.cache);
		for (unsigned i = 0; i < 30; i++) {
			struct sim_model model = gpt;
			struct sim_step step;

			model.len = 4096 + 8 * (i * 337 % 512);
			model.tensor_ns = gpt.tensor_ns * model.len / gpt.len;
			step = sim_step(&sim, &model);
			assert_true(step.stall <= STALL_MAX);
			assert_true(k % 2 ||
				    step.peak_bytes <= sim_stats(&sim).plan_peak_bytes * 11 / 10);
		}
		assert_int_equal(sim_stats(&sim).steps_planned, 0);
		sim_end(&sim);
	}
}

/* Steps of several shapes in turn: each has its plan, and soon it is known which one comes next. */
static void test_shapes_alternate(void **state)
{
	struct sim_model shorter = gpt, longer = gpt, wider = gpt;
	const struct sim_model *models[4] = {&gpt, &shorter, &longer, &wider};
	struct spw_cache_stats stats = {0};

	(void)state;
	shorter.len = 6144;
	longer.layers += 2; /* differs at its end only */
	wider.tensors++;    /* differs in the first layer */
	for (unsigned count = 2; count <= 4; count++) {
		struct spw_cache_stats known = {0};

		open_at(SPW_CACHE_FASTEST, 0.8);
		for (unsigned i = 0; i < 6 * count; i++) {
			struct sim_step step = sim_step(&sim, models[i % count]);

			stats = sim_stats(&sim);
			if (i >= 3 * count)
				assert_true(step.stall <= STALL_MAX);
			if (i + 1 == 3 * count)
				known = stats;
		}
		assert_int_equal(stats.plans_shape, count - 1);
		/* the beginning of one may be that of another */
		assert_in_range(stats.steps_fixed, count, 2 * count);
		assert_int_equal(stats.steps_fixed, known.steps_fixed);
		assert_int_equal(stats.steps_planned, known.steps_planned + 3 * count);
		assert_int_equal(stats.plan_mismatches, known.plan_mismatches);
		assert_int_equal(stats.plan_switches, known.plan_switches);
		assert_true(stats.plan_peak_bytes < stats.plan_keep_all_bytes);
		sim_end(&sim);
	}
}

/* Which one comes next is not always known: then its first tensors tell. */
static void test_shapes_by_chance(void **state)
{
	struct sim_model shorter = gpt;
	struct spw_cache_stats stats;
	uint64_t random = 1;

	(void)state;
	shorter.len = 6144;
	open_at(SPW_CACHE_FASTEST, 0.8);
	(void)sim_step(&sim, &gpt);
	(void)sim_step(&sim, &shorter);
	for (unsigned i = 0; i < 30; i++) {
		random = random * UINT64_C(6364136223846793005) + 1442695040888963407u;
		(void)sim_step(&sim, random >> 33 & 1 ? &gpt : &shorter);
	}
	stats = sim_stats(&sim);
	assert_int_equal(stats.steps_fixed, 2);
	assert_int_equal(stats.steps_planned, 30);
	assert_int_equal(stats.plan_mismatches, 1);
	assert_in_range(stats.plan_switches, 5, 25);
	sim_end(&sim);
}

/* A step without a backward pass is no training step. */
static void test_evaluation_between_steps(void **state)
{
	(void)state;
	open_at(SPW_CACHE_FASTEST, 0.8);
	(void)stalled_steps(3);
	for (unsigned i = 0; i < 2; i++) {
		spw_cache_stage(sim.cache, 0, SPW_STAGE_FORWARD);
		sim_forward(&sim, &gpt, 0);
		for (unsigned k = 0; k < gpt.layers * gpt.tensors; k++)
			assert_int_equal(spw_cache_release(sim.cache, sim.tensors[k].tensor), 0);
		sim_compute(&sim, 100000);
		spw_cache_step(sim.cache);
		spw_cache_step(sim.cache);
	}
	assert_int_equal(stalled_steps(3), 0);
	assert_int_equal(sim_stats(&sim).plan_mismatches, 0);
	assert_int_equal(sim_stats(&sim).steps_planned, 2 + 3);
	assert_int_equal(sim_stats(&sim).steps_fixed, 1);
	sim_end(&sim);
}

/*
 * An error in the backward pass: what is left of the tensors is dropped, and the next step begins.
 */
static void step_that_breaks_off(unsigned used)
{
	unsigned all = gpt.layers * gpt.tensors;

	spw_cache_stage(sim.cache, 0, SPW_STAGE_FORWARD);
	sim_forward(&sim, &gpt, 0);
	spw_cache_stage(sim.cache, 0, SPW_STAGE_BACKWARD);
	for (unsigned i = all; i-- > all - used;)
		sim_use(&sim, i, 2 * gpt.tensor_ns);
	for (unsigned i = all - used; i-- > 0;)
		assert_int_equal(spw_cache_release(sim.cache, sim.tensors[i].tensor), 0);
	sim_advance(&sim, sim_clock() + 10000000);
	sim_drain(&sim);
	spw_cache_step(sim.cache);
}

/* One such step changes nothing for the next. */
static void test_backward_pass_breaks_off(void **state)
{
	struct spw_cache_stats before, after;

	(void)state;
	open_at(SPW_CACHE_FASTEST, 0.8);
	(void)stalled_steps(5);
	before = sim_stats(&sim);
	step_that_breaks_off(gpt.layers * gpt.tensors / 3);
	after = sim_stats(&sim);
	assert_int_equal(after.plans, before.plans);
	assert_int_equal(after.plan_mismatches, before.plan_mismatches);
	assert_int_equal(after.plan_peak_bytes, before.plan_peak_bytes);
	assert_true(sim_step(&sim, &gpt).stall <= STALL_MAX);
	assert_int_equal(sim_stats(&sim).misses, after.misses);
	/* Two in a row: so are steps from now on. */
	before = sim_stats(&sim);
	step_that_breaks_off(gpt.layers * gpt.tensors / 3);
	step_that_breaks_off(gpt.layers * gpt.tensors / 3);
	assert_int_equal(sim_stats(&sim).plans, before.plans + 1);
	sim_end(&sim);
}

/*
 * Drives too slow for anything: all is kept, and now and then a tensor tells whether they still
 * are.
 */
static void test_probes_when_nothing_is_spilled(void **state)
{
	struct sim_model few = gpt;
	struct spw_cache_stats stats;
	unsigned steps = 0;

	(void)state;
	few.layers = 2;
	sim_begin(&sim, SPW_CACHE_FASTEST);
	set_bandwidth(0.0121); /* the smallest tensor would be back just too late */
	sim.pause_ns = 20000000;
	sim_open(&sim);
	spw_cache_step(sim.cache);
	for (unsigned i = 0; i < 20; i++)
		(void)sim_step(&sim, &few);
	stats = sim_stats(&sim);
	assert_int_equal(stats.plan_tensors_spilled, 0);
	assert_true(stats.plan_probes >= 1);
	set_bandwidth(0.6);
	while (sim_stats(&sim).plan_tensors_spilled == 0 && steps++ < 200)
		(void)sim_step(&sim, &few);
	assert_true(steps < 200);
	/* The plan that a probe has led to is read ahead by, from its first step on. */
	stats = sim_stats(&sim);
	(void)sim_step(&sim, &few);
	assert_true(sim_stats(&sim).prefetches > stats.prefetches);
	assert_int_equal(sim_stats(&sim).misses, stats.misses);
	sim_end(&sim);
}

static uint64_t spilled_by_plan(void)
{
	return sim_stats(&sim).plan_tensors_spilled;
}

/* A write that the step did not need, and that took so long. */
static void hang(uint64_t ns)
{
	spw_cache_lock(sim.cache);
	spw_measure_began(&sim.cache->control->measure, DIRECTION_WRITE, 1024, sim_clock());
	spw_measure_ended(&sim.cache->control->measure, DIRECTION_WRITE, 1024, true, sim_clock(),
			  sim_clock() + ns);
	spw_cache_unlock(sim.cache);
}

/*
 * Drives that hung in two steps in a row: as far as is known nothing would come back in time. But
 * not for ever.
 */
static void test_drives_hang_no_more(void **state)
{
	uint64_t spilled;

	(void)state;
	open_at(SPW_CACHE_FASTEST, 0.8);
	(void)stalled_steps(5);
	spilled = spilled_by_plan();
	assert_true(spilled > 0);
	for (unsigned i = 0; i < 2; i++) {
		hang(UINT64_C(100000000000));
		if (i == 1)
			set_bandwidth(0.6); /* planned anew */
		(void)sim_step(&sim, &gpt);
	}
	assert_int_equal(spilled_by_plan(), 0);
	set_bandwidth(0.8);
	for (unsigned i = 0; spilled_by_plan() < spilled * 3 / 4 && i < 200; i++)
		assert_true(sim_step(&sim, &gpt).stall <= STALL_MAX);
	assert_in_range(sim_stats(&sim).plan_probes, 1, 10);
	assert_true(spilled_by_plan() >= spilled * 3 / 4);
	sim_end(&sim);
}

/* ---- Budget ---- */

static void test_budget_fits_and_writes_little(void **state)
{
	static const unsigned percents[] = {80, 60, 40};
	uint64_t all = GPT_LAYER_BYTES * gpt.layers, written = 0;

	(void)state;
	for (unsigned i = 0; i < SPW_ARRAY_LEN(percents); i++) {
		struct spw_cache_stats before, after;

		sim_begin(&sim, SPW_CACHE_BUDGET);
		sim.opts.memory_bytes = all * percents[i] / 100;
		set_bandwidth(1);
		sim.jitter_percent = 3;
		sim_open(&sim);
		spw_cache_step(sim.cache);
		for (unsigned k = 0; k < 3; k++)
			(void)sim_step(&sim, &gpt);
		before = sim_stats(&sim);
		for (unsigned k = 0; k < 5; k++) {
			struct sim_step step = sim_step(&sim, &gpt);

			assert_true(step.peak_bytes <= sim.opts.memory_bytes);
			assert_true(step.stall <= STALL_MAX);
		}
		after = sim_stats(&sim);
		assert_int_equal(after.plans_failed, 0);
		assert_true((after.bytes_spilled - before.bytes_spilled) / 5 > written);
		written = (after.bytes_spilled - before.bytes_spilled) / 5;
		/* Not much more than what has to leave. */
		assert_true(written <= (all - sim.opts.memory_bytes) * 13 / 10);
		sim_end(&sim);
	}
}

/*
 * Some steps hold more than the plan knows of: what is left out of the budget for them is used
 * again later.
 */
static void test_budget_after_steps_that_held_more(void **state)
{
	uint64_t before, spilled;

	(void)state;
	sim_begin(&sim, SPW_CACHE_BUDGET);
	sim.opts.memory_bytes = GPT_LAYER_BYTES * gpt.layers * 6 / 10;
	set_bandwidth(1);
	sim_open(&sim);
	spw_cache_step(sim.cache);
	for (unsigned i = 0; i < 6; i++)
		(void)step_with(&gpt, 64);
	before = sim_stats(&sim).bytes_spilled;
	assert_true(step_with(&gpt, 64).peak_bytes <= sim.opts.memory_bytes);
	before = sim_stats(&sim).bytes_spilled - before;
	assert_true(step_with(&gpt, 128 << 10).peak_bytes > sim.opts.memory_bytes);
	assert_true(sim_stats(&sim).plans_memory > 0);
	spilled = sim_stats(&sim).bytes_spilled;
	(void)step_with(&gpt, 64);
	assert_true(sim_stats(&sim).bytes_spilled - spilled > before + before / 10);
	for (unsigned i = 0; i < 120; i++)
		assert_true(step_with(&gpt, 64).peak_bytes <= sim.opts.memory_bytes);
	spilled = sim_stats(&sim).bytes_spilled;
	(void)step_with(&gpt, 64);
	assert_in_range(sim_stats(&sim).bytes_spilled - spilled, 1, before + before / 50);
	sim_end(&sim);
}

static void test_budget_that_cannot_be_met(void **state)
{
	(void)state;
	sim_begin(&sim, SPW_CACHE_BUDGET);
	sim.opts.memory_bytes = 1000;
	set_bandwidth(0.5);
	sim_open(&sim);
	spw_cache_step(sim.cache);
	for (unsigned i = 0; i < 4; i++)
		(void)sim_step(&sim, &gpt);
	assert_true(sim_stats(&sim).plans_failed > 0);
	assert_true(sim.logged > 0);
	assert_true(sim_stats(&sim).steps_planned >= 3);
	sim_end(&sim);
}

static uint64_t spilled_by_steps(const struct sim_model *model, unsigned steps)
{
	uint64_t before = sim_stats(&sim).bytes_spilled;

	for (unsigned i = 0; i < steps; i++)
		(void)sim_step(&sim, model);
	return sim_stats(&sim).bytes_spilled - before;
}

/*
 * A step that began by another shape's plan may be above the budget: what either shape writes when
 * it is known does not change.
 */
static void test_budget_of_shapes_by_chance(void **state)
{
	struct sim_model longer = gpt;
	uint64_t random = 1, alone, after, replans;

	(void)state;
	longer.layers++; /* differs at its end only */
	sim_begin(&sim, SPW_CACHE_BUDGET);
	sim.opts.memory_bytes = GPT_LAYER_BYTES * gpt.layers * 6 / 10;
	set_bandwidth(1);
	sim_open(&sim);
	spw_cache_step(sim.cache);
	(void)sim_step(&sim, &gpt);
	(void)sim_step(&sim, &longer);
	(void)spilled_by_steps(&gpt, 4);
	alone = spilled_by_steps(&gpt, 4);
	for (unsigned i = 0; i < 30; i++) {
		random = random * UINT64_C(6364136223846793005) + 1442695040888963407u;
		(void)sim_step(&sim, random >> 33 & 1 ? &gpt : &longer);
	}
	assert_in_range(sim_stats(&sim).plan_switches, 5, 25);
	set_bandwidth(2); /* each is planned anew */
	replans = sim_stats(&sim).plans_bandwidth;
	(void)spilled_by_steps(&gpt, 8);
	assert_true(sim_stats(&sim).plans_bandwidth > replans);
	after = spilled_by_steps(&gpt, 4);
	assert_in_range(after, alone - alone / 20, alone + alone / 20);
	sim_end(&sim);
}

/* ---- Pipelines ---- */

struct stage {
	uint32_t micro_batch;
	enum spw_stage stage;
};

#define STAGES_LIMIT 64u

static unsigned schedule_1f1b(struct stage *stages, unsigned micro_batches, unsigned ahead)
{
	unsigned count = 0, forward = 0;

	for (unsigned back = 0; back < micro_batches;) {
		if (forward < micro_batches && forward < back + ahead)
			stages[count++] = (struct stage){forward++, SPW_STAGE_FORWARD};
		else
			stages[count++] = (struct stage){back++, SPW_STAGE_BACKWARD};
	}
	return count;
}

static unsigned schedule_gpipe(struct stage *stages, unsigned micro_batches)
{
	return schedule_1f1b(stages, micro_batches, micro_batches);
}

/*
 * Two chunks of the model on this rank: pairs of micro-batch and chunk, in groups of two
 * micro-batches.
 */
static unsigned schedule_interleaved(struct stage *stages, unsigned micro_batches)
{
	unsigned order[STAGES_LIMIT], back[STAGES_LIMIT], total = 2 * micro_batches, count = 0,
							  f = 0;

	for (unsigned i = 0; i < total; i++) {
		unsigned group = i / 4, chunk = i / 2 % 2, batch = 2 * group + i % 2;

		order[i] = 2 * batch + chunk;
		back[i] = 2 * batch + (1 - chunk);
	}
	for (unsigned b = 0; b < total;) {
		if (f < total && f < b + 5)
			stages[count++] = (struct stage){order[f++], SPW_STAGE_FORWARD};
		else
			stages[count++] = (struct stage){back[b++], SPW_STAGE_BACKWARD};
	}
	return count;
}

static const struct sim_model chunk = {.layers = 6, .tensors = 6, .len = 4096, .tensor_ns = 10000};

static struct sim_step run_schedule(const struct stage *stages, unsigned count, bool tell_next)
{
	struct spw_cache_stats before = sim_stats(&sim), after;

	for (unsigned i = 0; i < count; i++) {
		unsigned slot = stages[i].micro_batch * chunk.layers * chunk.tensors;

		if (tell_next && i + 1 < count)
			spw_cache_stage_next(sim.cache, stages[i].micro_batch, stages[i].stage,
					     stages[i + 1].micro_batch, stages[i + 1].stage);
		else
			spw_cache_stage(sim.cache, stages[i].micro_batch, stages[i].stage);
		if (stages[i].stage == SPW_STAGE_FORWARD)
			sim_forward(&sim, &chunk, slot);
		else
			sim_backward(&sim, &chunk, slot);
	}
	sim_advance(&sim, sim_clock() + 1000);
	sim_drain(&sim);
	after = sim_stats(&sim);
	/*
	 * No bytes twice: what was read had been written in this step, and each tensor is used
	 * once.
	 */
	assert_true(after.bytes_read - before.bytes_read <=
		    after.bytes_spilled - before.bytes_spilled);
	spw_cache_step(sim.cache);
	return sim_step_was(&sim);
}

static unsigned schedule(unsigned which, struct stage *stages)
{
	switch (which) {
	case 0: return schedule_1f1b(stages, 8, 4);
	case 1: return schedule_gpipe(stages, 8);
	default: return schedule_interleaved(stages, 8);
	}
}

static void test_plans_across_stages(void **state)
{
	static const double bandwidths[] = {0.2, 0.6, 2};
	struct stage stages[STAGES_LIMIT];

	(void)state;
	for (unsigned which = 0; which < 3; which++) {
		unsigned count = schedule(which, stages);

		for (unsigned k = 0; k < SPW_ARRAY_LEN(bandwidths); k++) {
			open_at(SPW_CACHE_FASTEST, bandwidths[k]);
			for (unsigned i = 0; i < 6; i++) {
				struct sim_step step = run_schedule(stages, count, false);

				assert_true(i < 2 || step.stall <= STALL_MAX);
			}
			assert_true(sim_stats(&sim).prefetches_across > 0);
			assert_int_equal(sim_stats(&sim).steps_planned, 5);
			assert_true(sim_stats(&sim).plan_peak_bytes <
				    sim_stats(&sim).plan_keep_all_bytes);
			assert_true(sim_stats(&sim).step_peak_bytes <
				    sim_stats(&sim).plan_keep_all_bytes);
			sim_end(&sim);
		}
	}
}

/* Without a plan, who says what comes next waits less at the beginning of each backward stage. */
static void test_next_stage_without_a_plan(void **state)
{
	struct stage stages[STAGES_LIMIT];

	(void)state;
	for (unsigned which = 0; which < 3; which++) {
		unsigned count = schedule(which, stages);
		uint64_t stall_ns[2], waits[2];

		for (unsigned tell = 0; tell < 2; tell++) {
			struct spw_cache_stats stats;

			sim_begin(&sim, SPW_CACHE_SPILL);
			set_bandwidth(2);
			sim.opts.spill_last_scope = true;
			sim_open(&sim);
			spw_cache_step(sim.cache);
			for (unsigned i = 0; i < 3; i++)
				(void)run_schedule(stages, count, tell);
			stats = sim_stats(&sim);
			stall_ns[tell] = stats.stall_ns;
			waits[tell] = stats.misses + stats.prefetch_late;
			assert_int_equal(stats.prefetches_across > 0, tell);
			sim_end(&sim);
		}
		assert_true(waits[1] < waits[0]);
		assert_true(stall_ns[1] < stall_ns[0]);
	}
}

/* ---- Hints ---- */

static void test_hints(void **state)
{
	struct spw_cache_stats stats;
	spw_tensor none;

	(void)state;
	sim_begin(&sim, SPW_CACHE_FASTEST);
	sim_open(&sim);
	assert_int_equal(spw_cache_offer_hint(sim.cache, &(struct spw_offer){0},
					      (enum spw_cache_hint)4, &none),
			 -EINVAL);
	spw_cache_step(sim.cache);
	for (unsigned i = 0; i < 5; i++) {
		spw_cache_scope_enter(sim.cache, 1);
		assert_int_equal(sim_offer(&sim, 0, 4096, SPW_HINT_PIN), SPW_OFFER_KEEP);
		assert_int_equal(sim_offer(&sim, 1, 4096, SPW_HINT_KEEP), SPW_OFFER_KEEP);
		assert_int_equal(sim_offer(&sim, 2, 32, SPW_HINT_SPILL), SPW_OFFER_SPILL);
		(void)sim_offer(&sim, 3, 4096, SPW_HINT_NONE);
		spw_cache_scope_leave(sim.cache);
		spw_cache_scope_enter(sim.cache, 2);
		sim_compute(&sim, 100000);
		/* Used at once: neither the fixed rule nor a plan would spill it. */
		assert_int_equal(sim_offer(&sim, 4, 4096, SPW_HINT_SPILL), SPW_OFFER_SPILL);
		spw_cache_scope_leave(sim.cache);
		spw_cache_stage(sim.cache, 0, SPW_STAGE_BACKWARD);
		for (unsigned slot = 5; slot-- > 0;)
			sim_use(&sim, slot, 20000);
		spw_cache_step(sim.cache);
	}
	stats = sim_stats(&sim);
	assert_int_equal(stats.steps_planned, 4);
	assert_int_equal(stats.tensors_kept_hint, 10);
	assert_int_equal(stats.bytes_kept_hint, 10 * 4096);
	assert_in_range(stats.plan_tensors_spilled, 2, 3);
	sim_end(&sim);
}

/* A budget that cannot be met otherwise overrules keep, but not pin. */
static void test_hints_and_a_budget(void **state)
{
	(void)state;
	sim_begin(&sim, SPW_CACHE_BUDGET);
	sim.opts.memory_bytes = 10000;
	sim_open(&sim);
	spw_cache_step(sim.cache);
	for (unsigned i = 0; i < 5; i++) {
		/* One write a step: two steps until the drives are known. */
		int expected = i < 2 ? SPW_OFFER_KEEP : SPW_OFFER_SPILL;

		assert_int_equal(sim_offer(&sim, 0, 4096, SPW_HINT_PIN), SPW_OFFER_KEEP);
		sim_compute(&sim, 20000);
		assert_int_equal(sim_offer(&sim, 1, 4096, SPW_HINT_KEEP), expected);
		sim_compute(&sim, 20000);
		(void)sim_offer(&sim, 2, 4096, SPW_HINT_NONE);
		sim_compute(&sim, 20000);
		spw_cache_stage(sim.cache, 0, SPW_STAGE_BACKWARD);
		for (unsigned slot = 3; slot-- > 0;)
			sim_use(&sim, slot, 20000);
		spw_cache_step(sim.cache);
	}
	assert_int_equal(sim_stats(&sim).plans_failed, 0);
	sim_end(&sim);
}

/* ---- Limits ---- */

static void test_step_too_large_to_record(void **state)
{
	(void)state;
	sim_begin(&sim, SPW_CACHE_FASTEST);
	sim.opts.tensors_max = 16;
	sim_open(&sim);
	spw_cache_step(sim.cache);
	for (unsigned i = 0; i < 3; i++) {
		for (unsigned k = 0; k < 20; k++) { /* never more than one at a time */
			spw_cache_stage(sim.cache, 0, SPW_STAGE_FORWARD);
			(void)sim_offer(&sim, 0, 4096, SPW_HINT_NONE);
			sim_compute(&sim, 20000);
			spw_cache_stage(sim.cache, 0, SPW_STAGE_BACKWARD);
			sim_use(&sim, 0, 20000);
		}
		spw_cache_step(sim.cache);
	}
	assert_int_equal(sim_stats(&sim).recordings_short, 3);
	assert_int_equal(sim_stats(&sim).plans, 0);
	assert_int_equal(sim_stats(&sim).steps_fixed, 3);
	assert_int_equal(sim.logged, 3);
	sim_end(&sim);
}

/* One such step among others costs none of them its plan. */
static void test_step_too_large_between_steps(void **state)
{
	(void)state;
	sim_begin(&sim, SPW_CACHE_FASTEST);
	sim.opts.tensors_max = gpt.layers * gpt.tensors + 1;
	set_bandwidth(0.8);
	sim_open(&sim);
	spw_cache_step(sim.cache);
	(void)stalled_steps(3);
	assert_int_equal(sim_stats(&sim).steps_planned, 2);
	for (unsigned i = 0; i < 2; i++) {
		spw_cache_stage(sim.cache, i, SPW_STAGE_FORWARD);
		sim_forward(&sim, &gpt, 0);
		spw_cache_stage(sim.cache, i, SPW_STAGE_BACKWARD);
		sim_backward(&sim, &gpt, 0);
	}
	spw_cache_step(sim.cache);
	assert_int_equal(sim_stats(&sim).recordings_short, 1);
	assert_int_equal(stalled_steps(3), 0);
	assert_int_equal(sim_stats(&sim).steps_planned, 2 + 3);
	sim_end(&sim);
}

/*
 * Until a step has ended there is nothing to say of the last one: to set up a model may take long.
 */
static void test_no_step_has_ended(void **state)
{
	struct spw_cache_stats stats;

	(void)state;
	sim_begin(&sim, SPW_CACHE_FASTEST);
	sim_open(&sim);
	sim_compute(&sim, 5000000);
	spw_cache_step(sim.cache);
	stats = sim_stats(&sim);
	assert_int_equal(stats.steps, 1);
	assert_int_equal(stats.step_compute_ns, 0);
	assert_int_equal(stats.step_forward_ns, 0);
	(void)sim_step(&sim, &gpt);
	assert_in_range(sim_stats(&sim).step_compute_ns, sim.compute_ns, sim.compute_ns + 1000);
	sim_end(&sim);
}

static void test_bad_options(void **state)
{
	struct spw_cache_opts opts;
	struct spw_cache *cache;
	struct spw_store *store = simstore_open(NULL, 1024);

	(void)state;
	spw_cache_opts_init(&opts, sizeof(opts));
	opts.mode = SPW_CACHE_BUDGET;
	assert_int_equal(spw_cache_open_with(store, &opts, &simstore_ports, &cache), -EINVAL);
	assert_non_null(strstr(spw_last_error(), "memory_bytes"));
	opts.memory_bytes = 1;
	assert_int_equal(spw_cache_open(NULL, &opts, &cache), -EINVAL);
	assert_int_equal(spw_cache_open_with(store, &opts, &simstore_ports, &cache), 0);
	spw_cache_close(cache);
	opts.mode = SPW_CACHE_POSITIONAL + 1;
	assert_int_equal(spw_cache_open_with(store, &opts, &simstore_ports, &cache), -EINVAL);
	simstore_close(store);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_fastest_converges),
		cmocka_unit_test(test_bandwidth_halves_and_returns),
		cmocka_unit_test(test_bandwidths_are_measured),
		cmocka_unit_test(test_mixed_bandwidth_is_measured),
		cmocka_unit_test(test_a_stall_shows_no_faster_drives),
		cmocka_unit_test(test_timeline_changes),
		cmocka_unit_test(test_what_is_not_planned_moves_too),
		cmocka_unit_test(test_shape_changes),
		cmocka_unit_test(test_shapes_that_never_come_again),
		cmocka_unit_test(test_shapes_alternate),
		cmocka_unit_test(test_shapes_by_chance),
		cmocka_unit_test(test_evaluation_between_steps),
		cmocka_unit_test(test_backward_pass_breaks_off),
		cmocka_unit_test(test_probes_when_nothing_is_spilled),
		cmocka_unit_test(test_drives_hang_no_more),
		cmocka_unit_test(test_budget_fits_and_writes_little),
		cmocka_unit_test(test_budget_after_steps_that_held_more),
		cmocka_unit_test(test_budget_that_cannot_be_met),
		cmocka_unit_test(test_budget_of_shapes_by_chance),
		cmocka_unit_test(test_plans_across_stages),
		cmocka_unit_test(test_next_stage_without_a_plan),
		cmocka_unit_test(test_hints),
		cmocka_unit_test(test_hints_and_a_budget),
		cmocka_unit_test(test_step_too_large_to_record),
		cmocka_unit_test(test_step_too_large_between_steps),
		cmocka_unit_test(test_no_step_has_ended),
		cmocka_unit_test(test_bad_options),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
