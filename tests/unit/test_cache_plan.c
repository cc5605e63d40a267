/* SPDX-License-Identifier: MIT */
/* tests/unit/test_cache_plan.c - the cache that plans, in virtual time: what it makes of changes */
/* link: simstore libspillway */
#include "tensor/lock.h"
#include "tests/unit/cache_sim.h"

#define STALL_MAX 0.02

static void set_bandwidth(double bytes_per_ns)
{
	sim.store->drives.write = sim.store->drives.read = bytes_per_ns;
	sim.store->drives.mixed = 1.1 * bytes_per_ns;
}

static void open_at(enum spw_cache_mode mode, double bytes_per_ns)
{
	sim_begin(mode);
	set_bandwidth(bytes_per_ns);
	sim.jitter_percent = 3;
	sim_start();
}

static void open_with_budget(uint64_t bytes, double bytes_per_ns)
{
	sim_begin(SPW_CACHE_BUDGET);
	sim.opts.memory_bytes = bytes;
	set_bandwidth(bytes_per_ns);
	sim_start();
}

/* ---- Fastest ---- */

static uint64_t peak_at(double bytes_per_ns, unsigned jitter_percent)
{
	struct sim_step step;
	uint64_t peak = 0;

	open_at(SPW_CACHE_FASTEST, bytes_per_ns);
	sim.jitter_percent = jitter_percent;
	for (unsigned i = 0; i < 9; i++) {
		step = sim_step(&gpt);
		if (i < 3)
			continue;
		assert_true(step.stall <= STALL_MAX);
		peak = step.peak_bytes > peak ? step.peak_bytes : peak;
	}
	STAT_IS(steps_fixed, 2);
	STAT_IS(plan_mismatches, 0);
	/* The plan knows when memory is freed: it is what happens. */
	if (jitter_percent == 0)
		assert_in_range(sim_stats().step_peak_bytes, 1, sim_stats().plan_peak_bytes);
	sim_end();
	return peak;
}

/* Soon nothing is waited for, and the faster the drives the lower the peak. */
CASE(test_fastest_converges)
{
	static const double bandwidths[] = {0.1, 0.3, 0.6, 0.8, 1.5, 3};
	uint64_t last = UINT64_MAX;
	unsigned lower = 0;

	for (unsigned i = 0; i < SPW_ARRAY_LEN(bandwidths); i++) {
		uint64_t peak = peak_at(bandwidths[i], 0);

		/* No step is exactly like the last: a tensor or two more are in memory. */
		assert_true(peak_at(bandwidths[i], 3) <= peak + 2 * 2 * gpt.len);
		assert_true(peak <= last);
		lower += peak < last && i > 0;
		last = peak;
	}
	assert_true(lower > 0);
	assert_true(last <= GPT_LAYER_BYTES * 5 / 4);
}

/* The first three of these steps may stall: the second is by the plan of the first. */
static void settle(unsigned steps)
{
	for (unsigned i = 0; i < steps; i++)
		assert_true(sim_step(&gpt).stall <= STALL_MAX || i < 3);
}

static void calm_steps(const struct sim_model *model, unsigned steps)
{
	while (steps-- > 0)
		assert_true(sim_step(model).stall <= STALL_MAX);
}

CASE(test_bandwidth_halves_and_returns)
{
	static const double bandwidths[] = {0.3, 0.8, 1.5};

	for (unsigned i = 0; i < SPW_ARRAY_LEN(bandwidths); i++) {
		uint64_t plans, peak;

		open_at(SPW_CACHE_FASTEST, bandwidths[i]);
		settle(6);
		peak = sim_stats().plan_peak_bytes;
		plans = sim_stats().plans_bandwidth;
		set_bandwidth(bandwidths[i] / 2);
		settle(6);
		assert_true(sim_stats().plans_bandwidth > plans);
		assert_true(sim_stats().plan_peak_bytes > peak);
		set_bandwidth(bandwidths[i]);
		settle(6);
		/* but for one tensor */
		assert_true(sim_stats().plan_peak_bytes <= peak + peak / 8 + 2 * gpt.len);
		sim_end();
	}
}

static bool within(uint64_t measured, double bytes_per_ns, double share)
{
	double ratio = (double)measured / 1e9 / bytes_per_ns;

	return ratio > 1 - share && ratio < 1 + share;
}

/* Idle time counts for nothing, whether transfers follow each other or not. */
CASE(test_bandwidths_are_measured)
{
	static const double bandwidths[] = {0.2, 0.7, 4};

	for (unsigned i = 0; i < SPW_ARRAY_LEN(bandwidths); i++) {
		uint64_t chunk_ns = (uint64_t)(1024 / bandwidths[i]);
		struct spw_cache_stats stats;

		open_at(SPW_CACHE_SPILL, bandwidths[i]);
		sim.store->drives.read *= 1.5;
		sim_steps(&gpt, 8);
		stats = sim_stats();
		assert_true(within(stats.write_bytes_per_second, bandwidths[i], 0.1));
		assert_true(within(stats.read_bytes_per_second, 1.5 * bandwidths[i], 0.1));
		assert_in_range(stats.drive_latency_ns, 1000 + chunk_ns / 2, 3000 + chunk_ns);
		STAT_IS(plans, 0);
		sim_end();
	}
}

CASE(test_mixed_bandwidth_is_measured)
{
	struct measure measure = {0};
	uint64_t now_ns = 0, began_ns = 0;

	spw_control__measure_began(&measure, DIRECTION_WRITE, 100, now_ns);
	spw_control__measure_began(&measure, DIRECTION_READ, 100, now_ns);
	for (unsigned i = 0; i < 10; i++) {
		spw_control__measure_began(&measure, DIRECTION_WRITE, 100, now_ns);
		spw_control__measure_began(&measure, DIRECTION_READ, 100, now_ns);
		now_ns += 50;
		spw_control__measure_ended(&measure, DIRECTION_WRITE, 100, true, began_ns, now_ns);
		spw_control__measure_ended(&measure, DIRECTION_READ, 100, true, began_ns, now_ns);
		began_ns = now_ns - 50;
	}
	spw_control__measure_step(&measure);
	assert_int_equal(measure.drives.mixed_bytes_per_second, 4000000000);
	assert_int_equal(measure.drives.read_bytes_per_second, 0); /* never alone */
	/* What is cancelled took the drives no time. */
	spw_control__measure_began(&measure, DIRECTION_WRITE, 1000000, now_ns);
	spw_control__measure_ended(&measure, DIRECTION_WRITE, 1000000, false, now_ns, now_ns);
	assert_int_equal(measure.flows[DIRECTION_WRITE].bytes_in_flight, 100);
	spw_control__measure_step(&measure);
	assert_int_equal(measure.drives.mixed_bytes_per_second, 4000000000);
}

/* Drives are not taken for faster after a stall: it may have let little through at a time. */
SIM_CASE(test_a_stall_shows_no_faster_drives)
{
	uint64_t counted_on, measured;

	open_at(SPW_CACHE_FASTEST, 0.5);
	sim.store->drives.read /= 2;
	settle(5);
	counted_on = sim.cache->control->signature->plan.counted_on.read_bytes_per_second;
	measured = sim_stats().read_bytes_per_second;
	sim.store->drives.read *= 1.19;
	sim.store->drives.latency_ns *= 15;
	assert_true(sim_step(&gpt).stall > STALL_MAX);
	assert_true(sim_stats().read_bytes_per_second > measured + measured / 20);
	sim.store->drives.latency_ns /= 15;
	(void)sim_step(&gpt);
	assert_true(sim.cache->control->signature->plan.counted_on.read_bytes_per_second <=
		    counted_on);
	/* They are when the plan has room for it. */
	settle(3);
	assert_true(sim.cache->control->signature->plan.counted_on.read_bytes_per_second >
		    counted_on);
}

SIM_CASE(test_timeline_changes)
{
	struct sim_model slow = gpt;
	uint64_t peak;

	slow.tensor_ns *= 2;
	open_at(SPW_CACHE_FASTEST, 0.5);
	settle(5);
	peak = sim_stats().plan_peak_bytes;
	calm_steps(&slow, 4);
	assert_true(sim_stats().plans_timeline > 0);
	assert_true(sim_stats().plan_peak_bytes < peak); /* more time for the drives */
	settle(5);
	STAT_IS(plan_mismatches, 0);
}

/* A step that saves something small, and @len bytes in its backward stage. */
static struct sim_step step_with(const struct sim_model *model, size_t len)
{
	sim_forward_stage(model);
	(void)sim_offer(1000, 32, SPW_HINT_NONE);
	spw_cache_stage(sim.cache, 0, SPW_STAGE_BACKWARD);
	(void)sim_offer(1001, len, SPW_HINT_NONE);
	sim_compute(model->tensor_ns);
	sim_use(1001, model->tensor_ns);
	sim_backward(model, 0);
	sim_use(1000, 10);
	spw_cache_step(sim.cache);
	return sim_step_was();
}

/* What is not planned moves with the rest of the step, after a slow first one. */
SIM_CASE(test_what_is_not_planned_moves_too)
{
	struct sim_model slow = gpt;
	struct spw_cache_stats stats;

	slow.tensor_ns *= 10;
	open_at(SPW_CACHE_FASTEST, 0.8);
	for (unsigned i = 0; i < 6; i++)
		(void)step_with(i == 0 ? &slow : &gpt, 65536);
	stats = sim_stats();
	assert_true(stats.plans_timeline > 0);
	assert_in_range(stats.plan_wall_ns, stats.step_compute_ns * 9 / 10,
			stats.step_compute_ns * 11 / 10);
}

CASE(test_the_signature_changes)
{
	struct sim_model other = gpt, longer = gpt, shorter = gpt;
	const struct sim_model *models[3] = {&other, &longer, &shorter};

	other.len = 6144;
	longer.layers += 2;
	shorter.tensors--;
	for (unsigned i = 0; i < 3; i++) {
		open_at(SPW_CACHE_FASTEST, 0.8);
		settle(4);
		(void)sim_step(models[i]);
		STAT_IS(plan_mismatches, 1);
		STAT_IS(steps_fixed, 3);
		assert_int_equal(sim.logged, 1);
		calm_steps(models[i], 5);
		STAT_IS(plan_mismatches, 1);
		STAT_IS(plans_shape, 1);
		STAT_IS(steps_fixed, 4);
		STAT_IS(steps_planned, 2 + 4);
		sim_end();
	}
}

/* Sequences of ever other lengths: no step has a plan, and slow drives are not waited for. */
CASE(test_signatures_that_never_come_again)
{
	static const double bandwidths[] = {0.05, 0.2, 0.4};

	for (unsigned k = 0; k < 2 * SPW_ARRAY_LEN(bandwidths); k++) {
		sim_begin(k % 2 ? SPW_CACHE_BUDGET : SPW_CACHE_FASTEST);
		sim.opts.memory_bytes = GPT_LAYER_BYTES * gpt.layers / 2;
		set_bandwidth(bandwidths[k / 2]);
		sim_start();
		for (unsigned i = 0; i < 30; i++) {
			struct sim_model model = gpt;
			struct sim_step step;
			uint64_t peak;
			/* searched for in no time, but for no step that comes */
			const struct spw_plan_result *plan;

			model.len = 4096 + 8 * (i * 337 % 512);
			model.tensor_ns = gpt.tensor_ns * model.len / gpt.len;
			sim_forward_stage(&model);
			peak = sim.cache->control->peak_bytes;
			sim_backward_stage(&model);
			/* reads go no further than there is room below the step's own peak */
			assert_int_equal(sim.cache->control->peak_bytes, peak);
			spw_cache_step(sim.cache);
			step = sim_step_was();
			assert_true(step.stall <= STALL_MAX);
			plan = &sim.cache->control->draft.result;
			assert_true(k % 2 || step.peak_bytes <= plan->peak_bytes * 11 / 10);
		}
		STAT_IS(steps_planned, 0);
		sim_end();
	}
}

/*
 * Steps of several signatures in turn: each has its plan, and soon it is known which one comes
 * next.
 */
CASE(test_signatures_alternate)
{
	struct sim_model shorter = gpt, longer = gpt, wider = gpt;
	const struct sim_model *models[4] = {&gpt, &shorter, &longer, &wider};
	struct spw_cache_stats stats = {0};

	shorter.len = 6144;
	longer.layers += 2; /* differs at its end only */
	wider.tensors++;    /* differs in the first layer */
	for (unsigned count = 2; count <= 4; count++) {
		struct spw_cache_stats known = {0};

		open_at(SPW_CACHE_FASTEST, 0.8);
		for (unsigned i = 0; i < 6 * count; i++) {
			struct sim_step step = sim_step(models[i % count]);

			stats = sim_stats();
			if (i >= 3 * count)
				assert_true(step.stall <= STALL_MAX);
			if (i + 1 == 3 * count)
				known = stats;
		}
		STAT_IS(plans_shape, count - 1);
		/* the beginning of one may be that of another */
		assert_in_range(stats.steps_fixed, count, 3 * count);
		STAT_IS(steps_fixed, known.steps_fixed);
		STAT_IS(steps_planned, known.steps_planned + 3 * count);
		STAT_IS(plan_mismatches, known.plan_mismatches);
		STAT_IS(plan_switches, known.plan_switches);
		assert_true(stats.plan_peak_bytes < stats.plan_keep_all_bytes);
		sim_end();
	}
}

/* Which one comes next is not always known: then its first tensors tell. */
SIM_CASE(test_signatures_by_chance)
{
	struct sim_model shorter = gpt;
	struct spw_cache_stats stats;
	uint64_t random = 1;

	shorter.len = 6144;
	open_at(SPW_CACHE_FASTEST, 0.8);
	(void)sim_step(&gpt);
	(void)sim_step(&shorter);
	(void)sim_step(&gpt);
	for (unsigned i = 0; i < 30; i++) {
		(void)sim_step(random_below(&random, 2) ? &gpt : &shorter);
	}
	stats = sim_stats();
	STAT_IS(steps_fixed, 3); /* each the first time, and while the second was planned */
	STAT_IS(steps_planned, 30);
	STAT_IS(plan_mismatches, 0);
	assert_in_range(stats.plan_switches, 5, 25);
}

/* A step without a backward pass is not a training step. */
SIM_CASE(test_evaluation_between_steps)
{
	open_at(SPW_CACHE_FASTEST, 0.8);
	settle(4);
	for (unsigned i = 0; i < 2; i++) {
		sim_forward_stage(&gpt);
		for (unsigned k = 0; k < GPT_TENSORS; k++)
			assert_int_equal(spw_cache_release(sim.cache, sim.tensors[k].tensor), 0);
		sim_compute(100000);
		spw_cache_step(sim.cache);
		spw_cache_step(sim.cache);
	}
	calm_steps(&gpt, 3);
	STAT_IS(plan_mismatches, 0);
	STAT_IS(steps_planned, 2 + 3);
	STAT_IS(steps_fixed, 2);
}

/* An error in the backward pass: tensors that are left are dropped, the next step begins. */
static void step_that_breaks_off(unsigned used)
{
	unsigned all = GPT_TENSORS;

	sim_forward_stage(&gpt);
	spw_cache_stage(sim.cache, 0, SPW_STAGE_BACKWARD);
	for (unsigned i = all; i-- > all - used;)
		sim_use(i, 2 * gpt.tensor_ns);
	for (unsigned i = all - used; i-- > 0;)
		assert_int_equal(spw_cache_release(sim.cache, sim.tensors[i].tensor), 0);
	sim_advance(sim_clock() + 10000000);
	sim_drain();
	spw_cache_step(sim.cache);
}

/* One such step changes nothing for the next. */
SIM_CASE(test_backward_pass_breaks_off)
{
	struct spw_cache_stats before, after;

	open_at(SPW_CACHE_FASTEST, 0.8);
	settle(5);
	before = sim_stats();
	step_that_breaks_off(GPT_TENSORS / 3);
	after = sim_stats();
	assert_int_equal(after.plans, before.plans);
	assert_int_equal(after.plan_mismatches, before.plan_mismatches);
	assert_int_equal(after.plan_peak_bytes, before.plan_peak_bytes);
	assert_true(sim_step(&gpt).stall <= STALL_MAX);
	STAT_IS(misses, after.misses);
	/* Two in a row: so are steps from now on. */
	before = sim_stats();
	step_that_breaks_off(GPT_TENSORS / 3);
	step_that_breaks_off(GPT_TENSORS / 3);
	step_that_breaks_off(GPT_TENSORS / 3);
	STAT_IS(plans, before.plans + 1);
}

/* Drives too slow for anything: all is kept, and at times a tensor is spilled to see. */
SIM_CASE(test_probes_when_nothing_is_spilled)
{
	struct sim_model few = gpt;
	struct spw_cache_stats stats;
	unsigned steps = 0;

	few.layers = 2;
	sim_begin(SPW_CACHE_FASTEST);
	set_bandwidth(0.0121); /* the smallest tensor would be back just too late */
	sim.pause_ns = 20000000;
	sim_start();
	sim_steps(&few, 20);
	stats = sim_stats();
	STAT_IS(plan_tensors_spilled, 0);
	assert_true(stats.plan_probes >= 1);
	set_bandwidth(0.6);
	while (sim_stats().plan_tensors_spilled == 0 && steps++ < 200)
		(void)sim_step(&few);
	assert_true(steps < 200);
	/* Prefetching follows the plan that a probe has led to, in its first step already. */
	stats = sim_stats();
	(void)sim_step(&few);
	assert_true(sim_stats().prefetches > stats.prefetches);
	STAT_IS(misses, stats.misses);
}

static uint64_t spilled_by_plan(void)
{
	return sim_stats().plan_tensors_spilled;
}

/* A write that the step did not need, and that took so long. */
static void hang(uint64_t ns)
{
	spw_cache__lock(sim.cache);
	spw_control__measure_began(&sim.cache->control->measure, DIRECTION_WRITE, 1024,
				   sim_clock());
	spw_control__measure_ended(&sim.cache->control->measure, DIRECTION_WRITE, 1024, true,
				   sim_clock(), sim_clock() + ns);
	spw_cache__unlock(sim.cache);
}

/* Drives that hung are not used from the second time on; but not for ever. */
SIM_CASE(test_drives_hang_no_more)
{
	uint64_t spilled;

	open_at(SPW_CACHE_FASTEST, 0.8);
	settle(5);
	spilled = spilled_by_plan();
	assert_true(spilled > 0);
	for (unsigned i = 0; i < 4; i++) {
		hang(UINT64_C(100000000000));
		if (i == 2)
			set_bandwidth(0.6); /* a new plan */
		(void)sim_step(&gpt);
	}
	assert_int_equal(spilled_by_plan(), 0);
	set_bandwidth(0.8);
	for (unsigned i = 0; spilled_by_plan() < spilled * 3 / 4 && i < 200; i++)
		assert_true(sim_step(&gpt).stall <= STALL_MAX);
	assert_in_range(sim_stats().plan_probes, 1, 10);
	assert_true(spilled_by_plan() >= spilled * 3 / 4);
}

/* ---- Budget ---- */

CASE(test_budget_fits_and_writes_little)
{
	static const unsigned percents[] = {80, 60, 40};
	uint64_t all = GPT_LAYER_BYTES * gpt.layers, written = 0;

	for (unsigned i = 0; i < SPW_ARRAY_LEN(percents); i++) {
		struct spw_cache_stats before, after;

		open_with_budget(all * percents[i] / 100, 1);
		sim.jitter_percent = 3;
		sim_steps(&gpt, 3);
		before = sim_stats();
		for (unsigned k = 0; k < 5; k++) {
			struct sim_step step = sim_step(&gpt);

			assert_true(step.peak_bytes <= sim.opts.memory_bytes);
			assert_true(step.stall <= STALL_MAX);
		}
		after = sim_stats();
		assert_int_equal(after.plans_failed, 0);
		assert_true((after.bytes_spilled - before.bytes_spilled) / 5 > written);
		written = (after.bytes_spilled - before.bytes_spilled) / 5;
		/* Not much more than what has to leave. */
		assert_true(written <= (all - sim.opts.memory_bytes) * 13 / 10);
		sim_end();
	}
}

/* Some steps hold more than planned: the budget left out for them is used again later. */
SIM_CASE(test_budget_after_steps_that_held_more)
{
	uint64_t before, spilled;

	open_with_budget(GPT_LAYER_BYTES * gpt.layers * 6 / 10, 1);
	for (unsigned i = 0; i < 6; i++)
		(void)step_with(&gpt, 64);
	before = sim_stats().bytes_spilled;
	assert_true(step_with(&gpt, 64).peak_bytes <= sim.opts.memory_bytes);
	before = sim_stats().bytes_spilled - before;
	assert_true(step_with(&gpt, 128 << 10).peak_bytes > sim.opts.memory_bytes);
	(void)step_with(&gpt, 64);
	assert_true(sim_stats().plans_memory > 0);
	spilled = sim_stats().bytes_spilled;
	(void)step_with(&gpt, 64);
	assert_true(sim_stats().bytes_spilled - spilled > before + before / 10);
	for (unsigned i = 0; i < 120; i++)
		assert_true(step_with(&gpt, 64).peak_bytes <= sim.opts.memory_bytes);
	spilled = sim_stats().bytes_spilled;
	(void)step_with(&gpt, 64);
	assert_in_range(sim_stats().bytes_spilled - spilled, 1, before + before / 50);
}

SIM_CASE(test_budget_that_cannot_be_met)
{
	open_with_budget(1000, 0.5);
	sim_steps(&gpt, 5);
	assert_true(sim_stats().plans_failed > 0);
	assert_true(sim.logged > 0);
	assert_true(sim_stats().steps_planned >= 3);
	STAT_IS(budget_cause, SPW_BUDGET_INFEASIBLE);
	STAT_IS(budget_steps_over, sim_stats().steps - 1); /* the last has not ended */
	assert_int_equal(sim.cache->notices.times[CONTROL_NOTICE_BUDGET], 1);
}

/* A margin that asks for less than is possible does not mean that the budget cannot be met. */
SIM_CASE(test_budget_whose_margin_cannot_be_met)
{
	uint64_t lowest;

	open_with_budget(1000, 0.5);
	sim_steps(&gpt, 5);
	lowest = sim_stats().plan_peak_bytes;
	sim_end();
	open_with_budget(lowest + lowest / 50, 0.5);
	sim_steps(&gpt, 5);
	STAT_IS(plans_failed, 0);
	for (unsigned i = 0; i < 4; i++)
		(void)step_with(&gpt, lowest / 4);
	assert_true(sim_stats().plans_memory > 0);
	assert_true(sim_stats().plan_peak_bytes <= sim.opts.memory_bytes);
	/* Of what is above it, some is under way to the drives at any time. */
	assert_in_range(sim_stats().budget_cause, SPW_BUDGET_DRIVES, SPW_BUDGET_HELD);
	STAT_IS(plans_failed, 0);
}

static uint64_t spilled_by_steps(const struct sim_model *model, unsigned steps)
{
	uint64_t before = sim_stats().bytes_spilled;

	sim_steps(model, steps);
	return sim_stats().bytes_spilled - before;
}

/* Steps that begin by the plan of another signature do not change what either writes. */
SIM_CASE(test_budget_of_signatures_by_chance)
{
	struct sim_model longer = gpt;
	uint64_t random = 1, alone, after, replans;

	longer.layers++; /* differs at its end only */
	open_with_budget(GPT_LAYER_BYTES * gpt.layers * 6 / 10, 1);
	(void)sim_step(&gpt);
	(void)sim_step(&longer);
	(void)spilled_by_steps(&gpt, 4);
	alone = spilled_by_steps(&gpt, 4);
	for (unsigned i = 0; i < 30; i++) {
		(void)sim_step(random_below(&random, 2) ? &gpt : &longer);
	}
	assert_in_range(sim_stats().plan_switches, 5, 25);
	set_bandwidth(2); /* a new plan each */
	replans = sim_stats().plans_bandwidth;
	(void)spilled_by_steps(&gpt, 8);
	assert_true(sim_stats().plans_bandwidth > replans);
	after = spilled_by_steps(&gpt, 4);
	assert_in_range(after, alone - alone / 20, alone + alone / 20);
}

/* ---- Pipelines ---- */

struct stage {
	uint32_t micro_batch;
	enum spw_stage stage;
};

#define STAGES_LIMIT 64u

/* 1F1B; GPipe; two chunks of the model on this rank, each micro-batch of which is two here. */
static const struct schedule {
	unsigned micro_batches, ahead;
	bool chunks;
} schedules[] = {{8, 4, false}, {8, 8, false}, {16, 5, true}};

/* Chunks go in groups of two micro-batches. */
static uint32_t micro_batch_of(const struct schedule *schedule, unsigned turn, bool backward)
{
	unsigned chunk = turn / 2 % 2, batch = turn / 4 * 2 + turn % 2;

	return schedule->chunks ? 2 * batch + (backward ? 1 - chunk : chunk) : turn;
}

static unsigned make_schedule(const struct schedule *schedule, struct stage *stages)
{
	unsigned count = 0, forward = 0, back = 0;

	while (back < schedule->micro_batches)
		if (forward < schedule->micro_batches && forward < back + schedule->ahead)
			stages[count++] = (struct stage){micro_batch_of(schedule, forward++, false),
							 SPW_STAGE_FORWARD};
		else
			stages[count++] = (struct stage){micro_batch_of(schedule, back++, true),
							 SPW_STAGE_BACKWARD};
	return count;
}

static const struct sim_model chunk = {.layers = 6, .tensors = 6, .len = 4096, .tensor_ns = 10000};

static struct sim_step run_schedule(const struct stage *stages, unsigned count, bool tell_next)
{
	struct spw_cache_stats before = sim_stats(), after;

	for (unsigned i = 0; i < count; i++) {
		unsigned slot = stages[i].micro_batch * chunk.layers * chunk.tensors;

		if (tell_next && i + 1 < count)
			spw_cache_stage_next(sim.cache, stages[i].micro_batch, stages[i].stage,
					     stages[i + 1].micro_batch, stages[i + 1].stage);
		else
			spw_cache_stage(sim.cache, stages[i].micro_batch, stages[i].stage);
		if (stages[i].stage == SPW_STAGE_FORWARD)
			sim_forward(&chunk, slot);
		else
			sim_backward(&chunk, slot);
	}
	sim_advance(sim_clock() + 1000);
	sim_drain();
	after = sim_stats();
	/* No bytes twice: what was read had been written in this step. */
	assert_true(after.bytes_read - before.bytes_read <=
		    after.bytes_spilled - before.bytes_spilled);
	spw_cache_step(sim.cache);
	return sim_step_was();
}

CASE(test_plans_across_stages)
{
	static const double bandwidths[] = {0.2, 0.6, 2};
	struct stage stages[STAGES_LIMIT];

	for (unsigned which = 0; which < SPW_ARRAY_LEN(schedules); which++) {
		unsigned count = make_schedule(&schedules[which], stages);

		for (unsigned k = 0; k < SPW_ARRAY_LEN(bandwidths); k++) {
			open_at(SPW_CACHE_FASTEST, bandwidths[k]);
			for (unsigned i = 0; i < 6; i++) {
				struct sim_step step = run_schedule(stages, count, false);

				assert_true(i < 2 || step.stall <= STALL_MAX);
			}
			assert_true(sim_stats().prefetches_across > 0);
			STAT_IS(steps_planned, 4);
			assert_true(sim_stats().plan_peak_bytes < sim_stats().plan_keep_all_bytes);
			assert_true(sim_stats().step_peak_bytes < sim_stats().plan_keep_all_bytes);
			sim_end();
		}
	}
}

/* Without a plan, who says what comes next waits less at the beginning of each backward stage. */
CASE(test_next_stage_without_a_plan)
{
	struct stage stages[STAGES_LIMIT];

	for (unsigned which = 0; which < SPW_ARRAY_LEN(schedules); which++) {
		unsigned count = make_schedule(&schedules[which], stages);
		uint64_t stall_ns[2], waits[2];

		for (unsigned tell = 0; tell < 2; tell++) {
			struct spw_cache_stats stats;

			sim_begin(SPW_CACHE_SPILL);
			set_bandwidth(2);
			sim.opts.spill_last_scope = true;
			sim_start();
			for (unsigned i = 0; i < 3; i++)
				(void)run_schedule(stages, count, tell);
			stats = sim_stats();
			stall_ns[tell] = stats.stall_ns;
			waits[tell] = stats.misses + stats.prefetch_late;
			assert_int_equal(stats.prefetches_across > 0, tell);
			sim_end();
		}
		assert_true(waits[1] < waits[0]);
		assert_true(stall_ns[1] < stall_ns[0]);
	}
}

/* ---- Hints ---- */

SIM_CASE(test_hints)
{
	spw_tensor none;

	sim_begin(SPW_CACHE_FASTEST);
	sim_open();
	assert_int_equal(spw_cache_offer_hint(sim.cache, &(struct spw_offer){0},
					      (enum spw_cache_hint)4, &none),
			 -EINVAL);
	assert_int_equal(spw_cache_offer_hint(sim.cache, &(struct spw_offer){0},
					      (enum spw_cache_hint)2, &none),
			 -EINVAL);
	assert_non_null(strstr(spw_last_error(), "min_bytes"));
	spw_cache_step(sim.cache);
	for (unsigned i = 0; i < 5; i++) {
		spw_cache_scope_enter(sim.cache, 1);
		assert_int_equal(sim_offer(0, 4096, SPW_HINT_PIN), SPW_OFFER_KEEP);
		assert_int_equal(sim_offer(1, 4096, SPW_HINT_KEEP), SPW_OFFER_KEEP);
		assert_int_equal(sim_offer(2, 32, SPW_HINT_NONE), SPW_OFFER_KEEP);
		(void)sim_offer(3, 4096, SPW_HINT_NONE);
		spw_cache_scope_leave(sim.cache);
		spw_cache_scope_enter(sim.cache, 2);
		sim_compute(100000);
		(void)sim_offer(4, 4096, SPW_HINT_NONE);
		spw_cache_scope_leave(sim.cache);
		spw_cache_stage(sim.cache, 0, SPW_STAGE_BACKWARD);
		for (unsigned slot = 5; slot-- > 0;)
			sim_use(slot, 20000);
		spw_cache_step(sim.cache);
	}
	STAT_IS(steps_planned, 2); /* a write a step measures the drives in two */
	STAT_IS(tensors_kept_hint, 10);
	STAT_IS(bytes_kept_hint, 10 * 4096);
}

/* A budget that cannot be met otherwise overrules keep, but not pin. */
SIM_CASE(test_hints_and_a_budget)
{
	sim_begin(SPW_CACHE_BUDGET);
	sim.opts.memory_bytes = 10000;
	sim_start();
	for (unsigned i = 0; i < 5; i++) {
		/* One write a step: two steps until the drives are known, and a third to plan. */
		int expected = i < 3 ? SPW_OFFER_KEEP : SPW_OFFER_SPILL;

		assert_int_equal(sim_offer(0, 4096, SPW_HINT_PIN), SPW_OFFER_KEEP);
		sim_compute(20000);
		assert_int_equal(sim_offer(1, 4096, SPW_HINT_KEEP), expected);
		sim_compute(20000);
		(void)sim_offer(2, 4096, SPW_HINT_NONE);
		sim_compute(20000);
		spw_cache_stage(sim.cache, 0, SPW_STAGE_BACKWARD);
		for (unsigned slot = 3; slot-- > 0;)
			sim_use(slot, 20000);
		spw_cache_step(sim.cache);
	}
	STAT_IS(plans_failed, 0);
}

/* ---- Limits ---- */

SIM_CASE(test_step_too_large_to_record)
{
	sim_begin(SPW_CACHE_FASTEST);
	sim.opts.tensors_max = 16;
	sim_start();
	for (unsigned i = 0; i < 3; i++) {
		for (unsigned k = 0; k < 20; k++) { /* never more than one at a time */
			spw_cache_stage(sim.cache, 0, SPW_STAGE_FORWARD);
			(void)sim_offer(0, 4096, SPW_HINT_NONE);
			sim_compute(20000);
			spw_cache_stage(sim.cache, 0, SPW_STAGE_BACKWARD);
			sim_use(0, 20000);
		}
		spw_cache_step(sim.cache);
	}
	STAT_IS(recordings_short, 3);
	STAT_IS(plans, 0);
	STAT_IS(steps_fixed, 3);
	assert_int_equal(sim.logged, 2); /* the first and the second time */
}

/* One such step among others costs none of them its plan. */
SIM_CASE(test_step_too_large_between_steps)
{
	sim_begin(SPW_CACHE_FASTEST);
	sim.opts.tensors_max = GPT_TENSORS + 1;
	set_bandwidth(0.8);
	sim_start();
	settle(4);
	STAT_IS(steps_planned, 2);
	for (unsigned i = 0; i < 2; i++) {
		spw_cache_stage(sim.cache, i, SPW_STAGE_FORWARD);
		sim_forward(&gpt, 0);
		spw_cache_stage(sim.cache, i, SPW_STAGE_BACKWARD);
		sim_backward(&gpt, 0);
	}
	spw_cache_step(sim.cache);
	STAT_IS(recordings_short, 1);
	calm_steps(&gpt, 3);
	STAT_IS(steps_planned, 2 + 3);
}

/* Nothing is said of the last step until one has ended: setting up may take long. */
SIM_CASE(test_no_step_has_ended)
{
	sim_begin(SPW_CACHE_FASTEST);
	sim_open();
	sim_compute(5000000);
	spw_cache_step(sim.cache);
	STAT_IS(steps, 1);
	STAT_IS(step_compute_ns, 0);
	STAT_IS(step_forward_ns, 0);
	(void)sim_step(&gpt);
	assert_in_range(sim_stats().step_compute_ns, sim.compute_ns, sim.compute_ns + 1000);
}

/* ---- The memory over a step ---- */

/* However long it was: the highest of all is the peak, and what keeping takes rises and falls. */
CASE(test_the_profile_of_a_step)
{
	static struct spw_memory_point points[SPW_MEMORY_POINTS_MAX];
	const uint64_t all = 24 * GPT_LAYER_BYTES;

	for (uint64_t tensor_ns = 10000; tensor_ns < UINT64_C(1000000000); tensor_ns *= 100) {
		struct sim_model model = gpt;
		uint64_t highest = 0, keep_all = 0;
		struct sim_step step;
		unsigned count, top = 0;

		model.tensor_ns = tensor_ns;
		open_at(SPW_CACHE_FASTEST, 3);
		sim.jitter_percent = 0;
		assert_int_equal(spw_cache_profile(sim.cache, points, SPW_MEMORY_POINTS_MAX), 0);
		sim_steps(&model, 3);
		step = sim_step(&model);
		count = spw_cache_profile(sim.cache, points, SPW_MEMORY_POINTS_MAX);
		assert_in_range(count, 2, SPW_MEMORY_POINTS_MAX);
		for (unsigned i = 0; i < count; i++) {
			assert_true(i == 0 ? points[i].ns == 0 : points[i].ns > points[i - 1].ns);
			highest = SPW_MAX(highest, points[i].bytes);
			top = points[i].keep_all_bytes > keep_all ? i : top;
			keep_all = SPW_MAX(keep_all, points[i].keep_all_bytes);
		}
		assert_int_equal(highest, step.peak_bytes);
		assert_int_equal(keep_all, all);
		/* The forward pass is a third of it. */
		assert_in_range(3 * points[top].ns, sim.compute_ns - sim.compute_ns / 20,
				sim.compute_ns + sim.compute_ns / 20);
		assert_true(points[count - 1].ns <= sim.compute_ns + sim_stats().step_stall_ns);
		assert_true(count > SPW_MEMORY_POINTS_MAX / 4);
		sim_end();
	}
}

RUN_CASES(NULL, NULL)
