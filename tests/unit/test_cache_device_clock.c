/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_cache_device_clock.c - a host that is ahead of its device: the step's times, and
 * so its plans, are the device's
 *
 * The host takes a tenth of the device's time, then waits for it.
 */
/* link: simstore libspillway */
#include "tests/unit/cache_sim.h"

#define AHEAD      10u
#define STEP_MARKS (1u + 24 + 24)
#define FORWARD_NS (GPT_TENSORS * gpt.tensor_ns)

static struct device {
	uint64_t marks[64 * STEP_MARKS], at_ns[64 * STEP_MARKS];
	unsigned given, told;
	uint64_t now_ns;
} device;

static void computes(uint64_t device_ns)
{
	device.now_ns += device_ns;
	sim_compute(device_ns / AHEAD);
}

static void give_mark(void)
{
	uint64_t mark = spw_cache_device_mark(sim.cache);

	assert_true(mark != 0 && device.given < SPW_ARRAY_LEN(device.marks));
	device.marks[device.given] = mark;
	device.at_ns[device.given++] = device.now_ns;
}

/* The device has come to all marks but the last @behind ones. */
static void tell_marks(unsigned behind)
{
	for (; device.told + behind < device.given; device.told++)
		spw_cache_device_marked(sim.cache, device.marks[device.told],
					device.at_ns[device.told]);
}

static void ahead_step_of(unsigned layers)
{
	uint64_t began_ns = device.now_ns;

	give_mark();
	spw_cache_stage(sim.cache, 0, SPW_STAGE_FORWARD);
	for (unsigned layer = 0; layer < layers; layer++) {
		spw_cache_scope_enter(sim.cache, 100 + layer);
		give_mark();
		for (unsigned i = 0; i < gpt.tensors; i++) {
			computes(gpt.tensor_ns);
			(void)sim_offer(layer * gpt.tensors + i, sim_len(&gpt, i), SPW_HINT_NONE);
		}
		spw_cache_scope_leave(sim.cache);
	}
	spw_cache_stage(sim.cache, 0, SPW_STAGE_BACKWARD);
	for (unsigned i = layers * gpt.tensors; i-- > 0;) {
		if (i % gpt.tensors == gpt.tensors - 1)
			give_mark();
		device.now_ns += 2 * gpt.tensor_ns;
		sim_use(i, 2 * gpt.tensor_ns / AHEAD);
	}
	sim_advance(sim_clock() + (device.now_ns - began_ns));
	sim_drain();
	spw_cache_step(sim.cache);
}

static void ahead_step(void)
{
	ahead_step_of(gpt.layers);
}

static void ahead_steps(unsigned count, unsigned behind)
{
	while (count-- > 0) {
		ahead_step();
		tell_marks(behind);
	}
}

static void ahead_opened(void)
{
	sim_begin(SPW_CACHE_FASTEST);
	device = (struct device){0};
	sim_start();
}

static bool near(uint64_t ns, uint64_t expected_ns)
{
	return ns + expected_ns / 100 >= expected_ns && ns <= expected_ns + expected_ns / 100;
}

static bool times_are_the_devices(void)
{
	struct spw_cache_stats stats = sim_stats();

	return near(stats.step_forward_ns, FORWARD_NS) &&
	       near(stats.step_backward_ns, 2 * FORWARD_NS) &&
	       near(stats.step_compute_ns, 3 * FORWARD_NS);
}

static bool forward_is_the_hosts(void)
{
	return near(sim_stats().step_forward_ns, FORWARD_NS / AHEAD);
}

SIM_CASE(test_times_are_the_devices)
{
	const struct recording *basis;

	ahead_opened();
	assert_int_equal(spw_cache_device_mark(sim.cache) >> 32, 1); /* of the first step */
	spw_cache_step(sim.cache);
	ahead_steps(2, 0);
	assert_true(forward_is_the_hosts());
	ahead_steps(4, 0);
	assert_true(times_are_the_devices());
	basis = &sim.cache->control->signature->reference;
	for (unsigned i = 6; i < GPT_TENSORS; i++) {
		assert_true(near(basis->tensors[i].pack_ns, (i + 1) * gpt.tensor_ns));
		assert_true(near(basis->tensors[i].use_ns,
				 FORWARD_NS + 2 * (GPT_TENSORS - 1 - i) * gpt.tensor_ns));
	}
}

/* The device is a whole step behind when the next one ends. */
SIM_CASE(test_marks_that_come_late)
{
	ahead_opened();
	ahead_steps(8, STEP_MARKS);
	assert_true(times_are_the_devices());
}

/* So late that they are of no use. */
SIM_CASE(test_marks_that_come_too_late)
{
	ahead_opened();
	ahead_steps(12, 5 * STEP_MARKS);
	assert_true(forward_is_the_hosts());
}

/* One mark in the middle is never told, or goes back in time: that step tells nothing. */
SIM_CASE(test_marks_that_are_wrong)
{
	ahead_opened();
	for (unsigned step = 0; step < 8; step++) {
		ahead_step();
		tell_marks(STEP_MARKS / 2);
		if (step % 2)
			device.told++;
		else
			device.at_ns[device.told] = 0;
		tell_marks(0);
	}
	assert_true(forward_is_the_hosts());
	spw_cache_device_marked(sim.cache, 0, 0);
	spw_cache_device_marked(sim.cache, UINT64_MAX, 0);
	ahead_steps(4, 0);
	assert_true(times_are_the_devices());
}

/* By its own pace the drives would be too slow; the device's leaves them ten times as long. */
SIM_CASE(test_a_plan_for_the_devices_time)
{
	uint64_t peak, keep_all;

	ahead_opened();
	ahead_steps(8, 100000); /* none is told */
	peak = sim_stats().plan_peak_bytes;
	keep_all = sim_stats().plan_keep_all_bytes;
	assert_true(peak > keep_all / 2);
	device.told = device.given;
	ahead_steps(8, 0);
	assert_true(sim_stats().plan_peak_bytes < keep_all / 3);
}

/* Else steps would go by a plan of the host's times until another one is found. */
SIM_CASE(test_no_plan_before_the_devices_times)
{
	ahead_opened();
	while (sim_stats().steps_planned == 0) {
		assert_true(sim_stats().steps < PACES + 5);
		ahead_steps(1, STEP_MARKS);
	}
	assert_true(sim.cache->control->signature->device_clock.complete);
	assert_true(sim_stats().plan_peak_bytes < sim_stats().plan_keep_all_bytes / 3);
}

/* All plans are by the device's times, within a layer; the first tensor of a step is used last. */
static bool plans_are_by_the_device(void)
{
	for (unsigned i = 0; i < SIGNATURES_MAX; i++) {
		const struct signature *signature = &sim.cache->control->signatures[i];
		uint64_t count = signature->reference.count;
		uint64_t used_ns = (count + 2 * (count - 1)) * gpt.tensor_ns;
		uint64_t layer_ns = 2 * gpt.tensors * gpt.tensor_ns;

		if (signature->planned &&
		    (signature->reference.tensors[0].use_ns + layer_ns < used_ns ||
		     signature->reference.tensors[0].use_ns > used_ns + layer_ns))
			return false;
	}
	return true;
}

/* Each of two kinds of steps that take turns waits for its own. */
SIM_CASE(test_signatures_that_wait_for_their_times)
{
	ahead_opened();
	for (unsigned step = 0; step < 20; step++) {
		ahead_step_of(step % 2 ? gpt.layers : gpt.layers / 2);
		tell_marks(STEP_MARKS);
		assert_true(plans_are_by_the_device());
	}
	assert_int_equal(sim_stats().plans_failed, 0);
	assert_true(sim_stats().plans >= 2 && sim_stats().steps_planned >= 4);
}

/* Its first step goes by the marks of the one before. */
SIM_CASE(test_a_signature_that_comes_later)
{
	ahead_opened();
	ahead_steps(8, 0);
	for (unsigned step = 0; step < 8; step++) {
		ahead_step_of(gpt.layers / 2);
		tell_marks(0);
		assert_true(plans_are_by_the_device());
	}
	assert_int_equal(sim_stats().plans_failed, 0);
	assert_int_equal(sim.cache->control->signature->reference.count, GPT_TENSORS / 2);
	assert_true(sim.cache->control->signature->planned);
}

/* A device that never tells: after as many steps as a host may be ahead there is a plan. */
SIM_CASE(test_a_plan_without_the_devices_times)
{
	ahead_opened();
	ahead_steps(PACES + 2, 100000);
	assert_int_equal(sim_stats().plans, 0);
	ahead_steps(1, 100000);
	assert_true(sim_stats().plans == 1 && sim_stats().steps_planned == 0);
	ahead_steps(1, 100000);
	assert_int_equal(sim_stats().steps_planned, 1);
}

RUN_CASES(NULL, NULL)
