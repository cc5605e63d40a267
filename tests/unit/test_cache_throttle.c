/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_cache_throttle.c - a forward pass that holds more than it may waits for writes,
 * in virtual time
 */
/* link: simstore libspillway */
#include <stdio.h>
#include <unistd.h>

#include <spillway/trace.h>

#include "tests/unit/cache_sim.h"

#define LARGEST    (2 * gpt.len) /* tensor */
#define FORWARD_NS (GPT_TENSORS * gpt.tensor_ns)

static void open_at(enum spw_cache_mode mode, double bandwidth, bool holds_back)
{
	sim_begin(mode);
	sim.store->drives.write = sim.store->drives.read = bandwidth;
	sim.store->drives.mixed = bandwidth;
	sim.opts.memory_bytes = GPT_LAYER_BYTES * gpt.layers * 6 / 10;
	sim.holds_back = holds_back;
	sim_start();
	sim_steps(&gpt, 6);
}

/* A step whose forward pass takes @percent of the time planned. Return: how long all takes. */
static uint64_t step_at(uint64_t percent)
{
	struct sim_model faster = gpt;
	uint64_t began_ns = sim_clock();

	faster.tensor_ns = gpt.tensor_ns * percent / 100;
	sim.compute_ns = 0;
	sim_forward_stage(&faster);
	sim_backward_stage(&gpt);
	began_ns = sim_clock() - began_ns;
	spw_cache_step(sim.cache);
	return began_ns;
}

static uint64_t planned_peak(void)
{
	struct spw_cache_stats stats = sim_stats();

	return SPW_MAX(stats.plan_peak_bytes, stats.plan_memory_bytes);
}

/* A fifth faster: at most a tensor more than planned, and no later; else several. */
CASE(test_a_faster_forward_pass_keeps_to_the_peak)
{
	static const struct {
		enum spw_cache_mode mode;
		double bandwidth;
	} cases[] = {{SPW_CACHE_FASTEST, 0.4},
		     {SPW_CACHE_FASTEST, 0.6},
		     {SPW_CACHE_FASTEST, 0.8},
		     {SPW_CACHE_BUDGET, 0.5}};
	unsigned higher = 0;

	for (unsigned i = 0; i < SPW_ARRAY_LEN(cases); i++) {
		uint64_t peak, planned_ns;

		open_at(cases[i].mode, cases[i].bandwidth, false);
		peak = planned_peak();
		(void)step_at(83);
		higher += sim_step_was().peak_bytes > peak + LARGEST;
		STAT_IS(holds, 0);
		sim_end();

		open_at(cases[i].mode, cases[i].bandwidth, true);
		peak = planned_peak();
		planned_ns = sim_stats().plan_wall_ns;
		STAT_IS(hold_ns, 0); /* what is as planned never waits */
		assert_true(step_at(83) <= planned_ns + planned_ns / 200);
		assert_true(sim_step_was().peak_bytes <= peak + LARGEST);
		sim_end();
	}
	assert_true(higher > 0);
}

/* What is read for the next step, which is not faster, is read in time all the same. */
CASE(test_the_step_after_a_faster_one_reads_in_time)
{
	static const double bandwidths[] = {0.8, 1.5, 3};

	for (unsigned i = 0; i < SPW_ARRAY_LEN(bandwidths); i++) {
		uint64_t peak;

		open_at(SPW_CACHE_FASTEST, bandwidths[i], true);
		peak = planned_peak();
		(void)step_at(83);
		(void)step_at(100);
		assert_true(sim_step_was().stall < STALL_TOLERANCE);
		assert_true(sim_step_was().peak_bytes <= peak + LARGEST);
		STAT_IS(steps_hurried, 0);
		sim_end();
	}
}

/* It is neither compute nor stall, and the next plan is for what the step could do. */
SIM_CASE(test_what_is_waited_is_counted_apart)
{
	struct spw_cache_stats stats;
	unsigned logged;

	open_at(SPW_CACHE_FASTEST, 0.6, true);
	logged = sim.logged;
	(void)step_at(83);
	stats = sim_stats();
	assert_true(stats.holds > 0);
	assert_true(stats.step_hold_ns > 0);
	assert_int_equal(stats.step_hold_ns, stats.hold_ns);
	assert_in_range(stats.step_compute_ns, sim.compute_ns, sim.compute_ns + 1000);
	assert_in_range(stats.step_stall_ns, 0, sim.compute_ns / 100);
	assert_int_equal(sim.logged, logged + 1); /* once */
	(void)step_at(70);
	assert_true(sim_stats().holds > stats.holds);
	assert_int_equal(sim.logged, logged + 1);
	for (unsigned i = 0; i < 6; i++)
		(void)step_at(70);
	/* the plan is as fast now */
	assert_in_range(sim_stats().step_hold_ns, 0, sim.compute_ns / 500);
}

/* However slow the drives are meanwhile. */
SIM_CASE(test_nothing_waits_for_longer_than_planned)
{
	struct sim_model faster = gpt;
	uint64_t began_ns;

	open_at(SPW_CACHE_FASTEST, 0.8, true);
	faster.tensor_ns = gpt.tensor_ns * 8 / 10;
	sim.store->drives.write /= 1000;
	began_ns = sim_clock();
	sim_forward_stage(&faster);
	assert_in_range(sim_clock() - began_ns, FORWARD_NS * 9 / 10, FORWARD_NS);
	sim.store->drives.write *= 1000;
	sim_backward_stage(&gpt);
	spw_cache_step(sim.cache);
}

/*
 * Drives that have become slower make a step of a budget longer, not larger: by at most a tensor.
 * Without waiting it is larger by more.
 */
SIM_CASE(test_a_budget_is_waited_for)
{
	uint64_t planned_ns, peak;

	open_at(SPW_CACHE_BUDGET, 0.5, false);
	sim.store->drives.write /= 3;
	(void)step_at(100);
	peak = sim_step_was().peak_bytes;
	STAT_IS(holds, 0);
	sim_end();

	open_at(SPW_CACHE_BUDGET, 0.5, true);
	planned_ns = sim_stats().plan_wall_ns;
	STAT_IS(holds, 0);
	sim.store->drives.write /= 3;
	assert_true(step_at(100) > planned_ns + planned_ns / 20);
	assert_true(sim_step_was().peak_bytes <= sim.opts.memory_bytes + LARGEST);
	assert_true(sim_step_was().peak_bytes + LARGEST < peak);
	assert_true(sim_stats().hold_ns > 0);
	assert_int_equal(sim.cache->notices.times[NOTICE_BUDGET], 1);
}

/* Drives so slow that no step fits which never waits for them: it waits, as planned. */
SIM_CASE(test_a_budget_is_met_by_slow_drives)
{
	open_at(SPW_CACHE_BUDGET, 0.05, true);
	for (unsigned i = 0; i < 6; i++) {
		(void)step_at(100);
		assert_true(sim_step_was().peak_bytes <= sim.opts.memory_bytes + LARGEST);
	}
	STAT_IS(plans_failed, 0);
	assert_true(sim_stats().hold_ns > 0);
}

/* Offers as sim_forward_stage() does, but stands still before the tensor @pause. */
static void forward_that_pauses(unsigned pause, uint64_t pause_ns)
{
	spw_cache_stage(sim.cache, 0, SPW_STAGE_FORWARD);
	for (unsigned slot = 0; slot < GPT_TENSORS; slot++) {
		if (slot % gpt.tensors == 0)
			spw_cache_scope_enter(sim.cache, 100 + slot / gpt.tensors);
		sim_compute(gpt.tensor_ns + (slot == pause ? pause_ns : 0));
		(void)sim_offer(slot, sim_len(&gpt, slot % gpt.tensors), SPW_HINT_NONE);
		(void)spw_cache_hold_back(sim.cache, true);
		if (slot % gpt.tensors == gpt.tensors - 1)
			spw_cache_scope_leave(sim.cache);
	}
}

/* Whatever the clock says: what is prefetched meanwhile leaves room for what it has yet to save. */
CASE(test_a_forward_pass_that_stood_still_has_its_room)
{
	for (unsigned part = 1; part < 8; part++) {
		open_at(SPW_CACHE_BUDGET, 2, true);
		forward_that_pauses(GPT_TENSORS * part / 8, 4 * FORWARD_NS);
		sim_backward_stage(&gpt);
		spw_cache_step(sim.cache);
		assert_true(sim_step_was().peak_bytes <= sim.opts.memory_bytes + LARGEST);
		STAT_IS(plan_mismatches, 0);
		sim_end();
	}
}

/* Who is above the budget because he is early is not told that the drives are slow. */
SIM_CASE(test_an_early_pass_blames_no_drives)
{
	open_at(SPW_CACHE_BUDGET, 0.5, true);
	(void)step_at(20);
	assert_int_equal(sim.cache->notices.times[NOTICE_THROTTLE], 1);
	assert_int_equal(sim.cache->notices.times[NOTICE_BUDGET], 0);
}

/* Above the budget since the drives are late, and no longer when they are not. */
SIM_CASE(test_a_budget_that_drives_exceed_is_a_state)
{
	unsigned said = CONTROL_NOTICE_BUDGET + SPW_BUDGET_DRIVES - 1;
	uint64_t over;

	open_at(SPW_CACHE_BUDGET, 0.5, false);
	STAT_IS(budget_bytes, sim.opts.memory_bytes);
	STAT_IS(budget_cause, SPW_BUDGET_MET);
	STAT_IS(budget_over_bytes, 0);
	over = sim_stats().budget_steps_over;
	sim.store->drives.write /= 3;
	(void)step_at(100);
	STAT_IS(budget_cause, SPW_BUDGET_DRIVES);
	STAT_IS(budget_over_bytes, sim_step_was().peak_bytes - sim.opts.memory_bytes);
	STAT_IS(budget_steps_over, over + 1);
	assert_int_equal(sim.cache->notices.times[said], 1);
	sim.store->drives.write *= 3;
	sim_steps(&gpt, 6);
	STAT_IS(budget_cause, SPW_BUDGET_MET);
	STAT_IS(budget_over_bytes, 0);
	assert_true(sim_stats().budget_over_bytes_max > 0);
}

/* What cannot be met is not waited for: all would wait for nothing, in each step. */
SIM_CASE(test_a_budget_that_cannot_be_met_is_not_waited_for)
{
	sim_begin(SPW_CACHE_BUDGET);
	sim.opts.memory_bytes = gpt.len;
	sim.holds_back = true;
	sim_start();
	sim_steps(&gpt, 6);
	assert_true(sim_stats().plans_failed > 0);
	(void)step_at(100);
	assert_in_range(sim_stats().step_hold_ns, 0, sim.compute_ns / 500);
}

/* Who is told that there is something to wait for has not waited. */
SIM_CASE(test_asking_does_not_wait)
{
	unsigned told = 0;

	open_at(SPW_CACHE_FASTEST, 0.6, false);
	spw_cache_stage(sim.cache, 0, SPW_STAGE_FORWARD);
	for (unsigned slot = 0; slot < GPT_TENSORS; slot++) {
		uint64_t now_ns;

		if (slot % gpt.tensors == 0)
			spw_cache_scope_enter(sim.cache, 100 + slot / gpt.tensors);
		sim_compute(gpt.tensor_ns * 8 / 10);
		(void)sim_offer(slot, sim_len(&gpt, slot % gpt.tensors), SPW_HINT_NONE);
		now_ns = sim_clock();
		if (spw_cache_hold_back(sim.cache, false) == 1) {
			told++;
			/* Nor is there anything to wait for if only the caller has not drained. */
			sim.cache->returned_bytes += planned_peak();
			assert_int_equal(spw_cache_hold_back(sim.cache, true), 0);
			sim.cache->returned_bytes -= planned_peak();
		}
		assert_int_equal(sim_clock(), now_ns);
		if (slot % gpt.tensors == gpt.tensors - 1)
			spw_cache_scope_leave(sim.cache);
	}
	assert_true(told > 0);
	STAT_IS(holds, 0);
	sim_backward_stage(&gpt);
	spw_cache_step(sim.cache);
}

/* As if another thread had the lock: taking it fails an assert. Return: is there a wait? */
static int ask_without_lock(void)
{
	int rc;

	assert_null(sim.cache->holder);
	sim.cache->holder = sim.cache;
	rc = spw_cache_hold_back(sim.cache, true);
	sim.cache->holder = NULL;
	return rc;
}

/* What each saved tensor pays where nothing is throttled: no lock. */
SIM_CASE(test_a_pass_as_planned_asks_without_the_lock)
{
	open_at(SPW_CACHE_FASTEST, 0.6, true);
	STAT_IS(holds, 0);
	spw_cache_stage(sim.cache, 0, SPW_STAGE_FORWARD);
	for (unsigned slot = 0; slot < GPT_TENSORS; slot++) {
		if (slot % gpt.tensors == 0)
			spw_cache_scope_enter(sim.cache, 100 + slot / gpt.tensors);
		sim_compute(gpt.tensor_ns);
		(void)sim_offer(slot, sim_len(&gpt, slot % gpt.tensors), SPW_HINT_NONE);
		assert_int_equal(ask_without_lock(), 0);
		if (slot % gpt.tensors == gpt.tensors - 1)
			spw_cache_scope_leave(sim.cache);
	}
	sim_backward_stage(&gpt);
	spw_cache_step(sim.cache);
	STAT_IS(plan_mismatches, 0);
}

/* Not without a plan, nor in modes that have none, nor of a step that is another one. */
CASE(test_without_a_plan_nothing_waits)
{
	static const enum spw_cache_mode modes[] = {SPW_CACHE_SPILL, SPW_CACHE_OBSERVE,
						    SPW_CACHE_FASTEST};

	for (unsigned i = 0; i < SPW_ARRAY_LEN(modes); i++) {
		struct sim_model other = gpt;

		open_at(modes[i], 0.5, true);
		other.len += 1024;
		other.tensor_ns /= 2;
		sim_forward_stage(&other);
		sim_backward_stage(&other);
		spw_cache_step(sim.cache);
		STAT_IS(holds, 0);
		if (modes[i] != SPW_CACHE_FASTEST)
			(void)step_at(20);
		STAT_IS(holds, 0);
		sim_end();
	}
}

/* A recording has the time, so that it does not count as compute time. */
SIM_CASE(test_a_trace_tells_what_was_waited)
{
	const char *folder = getenv("TMPDIR");
	struct spw_trace *trace;
	uint64_t wait_ns = 0;
	unsigned holds = 0;
	char path[256];

	(void)snprintf(path, sizeof(path), "%s/hold-%d.jsonl", folder ? folder : "/tmp",
		       (int)getpid());
	open_at(SPW_CACHE_FASTEST, 0.6, true);
	assert_int_equal(spw_trace_create(path, NULL, &sim.cache->opts.trace), 0);
	(void)step_at(83);
	assert_int_equal(spw_trace_finish(sim.cache->opts.trace), 0);
	sim.cache->opts.trace = NULL;
	assert_int_equal(spw_trace_read(path, &trace), 0);
	for (uint32_t i = 0; i < trace->count; i++) {
		holds += trace->events[i].kind == SPW_TRACE_HOLD;
		wait_ns += trace->events[i].kind == SPW_TRACE_HOLD ? trace->events[i].wait_ns : 0;
	}
	STAT_IS(holds, holds);
	STAT_IS(hold_ns, wait_ns);
	spw_trace_free(trace);
	assert_int_equal(unlink(path), 0);
}

/* ---- The system's time ---- */

/* Without a wake-up: it is back at its time, and not before. */
CASE(test_sleeping_ends_by_itself)
{
	pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	pthread_cond_t ended = PTHREAD_COND_INITIALIZER;
	uint64_t until_ns = spw_clock_ns() + 2000000;

	assert_int_equal(pthread_mutex_lock(&lock), 0);
	while (spw_clock_ns() < until_ns)
		assert_int_equal(spw_cache__ports_real.sleep_until(&ended, &lock, until_ns), 0);
	assert_int_equal(spw_cache__ports_real.sleep_until(&ended, &lock, 0), 0);
	assert_int_equal(pthread_mutex_unlock(&lock), 0);
}

RUN_CASES(NULL, NULL)
