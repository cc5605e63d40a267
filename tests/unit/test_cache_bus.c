/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_cache_bus.c - a device behind a bus that is slower than the drives, in virtual
 * time: what is planned for it, and what its steps are like
 *
 * The host keeps up with the device. Copies are served in order, each way by itself. The device
 * waits for a copy that it needs, and tells how long.
 */
/* link: simstore libspillway */
#include "tests/unit/cache_sim.h"

#define DEVICE      1u
#define STALL_MAX   0.02
#define DRIVES_RATE 3.0 /* bytes per nanosecond */

struct copy {
	uint64_t number; /* the tensor that is copied out; the lease from which one is copied in */
	uint64_t end_ns;
};

/* One way; the oldest copy first. */
struct bus {
	double rate;
	uint64_t free_ns;
	struct copy copies[SIM_TENSORS_MAX];
	unsigned first, count;
};

static struct far {
	struct bus out, in;
	uint64_t there_ns
		[SIM_TENSORS_MAX]; /* when its bytes are on the device again; 0: not known */
	bool tells;
} far;

static uint64_t bus_copies(struct bus *bus, uint64_t number, size_t len, bool out)
{
	uint64_t now_ns = sim_clock(), took_ns = (uint64_t)((double)len / bus->rate);
	uint64_t begin_ns = bus->free_ns > now_ns ? bus->free_ns : now_ns;
	struct spw_device_times times = {0};

	assert_true(bus->count < SIM_TENSORS_MAX);
	bus->free_ns = begin_ns + took_ns;
	bus->copies[(bus->first + bus->count++) % SIM_TENSORS_MAX] =
		(struct copy){.number = number, .end_ns = bus->free_ns};
	times.bytes_out = out ? len : 0;
	times.out_ns = out ? took_ns : 0;
	times.bytes_in = out ? 0 : len;
	times.in_ns = out ? 0 : took_ns;
	if (far.tells)
		assert_int_equal(spw_cache_device_times(sim.cache, &times), 0);
	return bus->free_ns;
}

/* The end of the oldest copy, by @until_ns. Return: whether there was one. */
static bool bus_ends(struct bus *bus, uint64_t until_ns, struct copy *copy)
{
	if (bus->count == 0 || bus->copies[bus->first].end_ns > until_ns)
		return false;
	*copy = bus->copies[bus->first];
	bus->first = (bus->first + 1) % SIM_TENSORS_MAX;
	bus->count--;
	return true;
}

static bool within_share(uint64_t measured, double bytes_per_ns, double share)
{
	double ratio = (double)measured / 1e9 / bytes_per_ns;

	return ratio > 1 - share && ratio < 1 + share;
}

static unsigned slot_of(spw_tensor tensor)
{
	unsigned slot = 0;

	while (sim.tensors[slot].tensor.value != tensor.value)
		slot++;
	return slot;
}

/* What the package does whenever it is called. */
static void far_goes_on(void)
{
	struct spw_taken taken;
	spw_tensor tensor;
	struct copy copy;
	uint64_t token;

	while (bus_ends(&far.out, sim_clock(), &copy))
		assert_int_equal(spw_cache_copied(sim.cache, (spw_tensor){copy.number}, 0), 0);
	while (bus_ends(&far.in, sim_clock(), &copy))
		spw_cache_return(sim.cache, copy.number);
	while (spw_cache_drain_device(sim.cache, &token, 1) == 1) {
	}
	while (spw_cache_ahead(sim.cache, &tensor, &taken) == 1)
		far.there_ns[slot_of(tensor)] =
			bus_copies(&far.in, taken.lease, taken.storage_bytes_total, false);
}

/* In small steps, as events of a device come while it computes. */
static void far_computes(uint64_t ns)
{
	for (unsigned i = 0; i < 4; i++) {
		sim_compute(ns / 4);
		far_goes_on();
	}
}

static void far_saves(unsigned slot, size_t len)
{
	struct sim_tensor *tensor = &sim.tensors[slot];
	struct spw_copy copy = {0};
	struct spw_offer offer;
	int rc;

	*tensor = (struct sim_tensor){.key = ++sim.next_key, .len = len};
	offer = (struct spw_offer){.storage_key = tensor->key,
				   .storage_bytes = (void *)(UINTPTR_MAX / 2 + (tensor->key << 20)),
				   .storage_len_bytes = len,
				   .len_bytes = len,
				   .owner = slot + 1};
	far.there_ns[slot] = 0;
	rc = spw_cache_offer_device(sim.cache, &offer, DEVICE, SPW_HINT_NONE, &tensor->tensor,
				    &copy);
	assert_true(rc == SPW_OFFER_KEEP || rc == SPW_OFFER_COPY);
	if (rc == SPW_OFFER_COPY) {
		memset(copy.staging, 1, copy.len_bytes);
		(void)bus_copies(&far.out, tensor->tensor.value, len, true);
	}
	far_goes_on();
}

/* The device waits until the bytes are there. */
static void far_waits(uint64_t until_ns)
{
	uint64_t now_ns = sim_clock();
	struct spw_device_times times = {.stall_ns = until_ns > now_ns ? until_ns - now_ns : 0};

	if (until_ns <= now_ns)
		return;
	sim_advance(until_ns);
	if (far.tells)
		assert_int_equal(spw_cache_device_times(sim.cache, &times), 0);
}

static void far_uses(unsigned slot, uint64_t ns)
{
	struct sim_tensor *tensor = &sim.tensors[slot];
	uint64_t began_ns = sim_clock(), there_ns = 0;
	struct spw_device_times waited;
	struct spw_taken taken;

	assert_int_equal(spw_cache_take(sim.cache, tensor->tensor, 0, tensor->len, &taken), 0);
	waited = (struct spw_device_times){.stall_ns = sim_clock() - began_ns};
	if (far.tells)
		assert_int_equal(spw_cache_device_times(sim.cache, &waited), 0);
	if (taken.bytes)
		there_ns = bus_copies(&far.in, taken.lease, tensor->len, false);
	else if (!taken.owner)
		there_ns = far.there_ns[slot];
	far_waits(there_ns);
	far_computes(ns);
	assert_int_equal(spw_cache_release(sim.cache, tensor->tensor), 0);
	far_goes_on();
}

static struct sim_step far_step(void)
{
	spw_cache_stage(sim.cache, 0, SPW_STAGE_FORWARD);
	for (unsigned layer = 0; layer < gpt.layers; layer++) {
		spw_cache_scope_enter(sim.cache, 100 + layer);
		for (unsigned i = 0; i < gpt.tensors; i++) {
			far_computes(gpt.tensor_ns);
			far_saves(layer * gpt.tensors + i, sim_len(&gpt, i));
		}
		spw_cache_scope_leave(sim.cache);
	}
	spw_cache_stage(sim.cache, 0, SPW_STAGE_BACKWARD);
	for (unsigned i = GPT_TENSORS; i-- > 0;)
		far_uses(i, 2 * gpt.tensor_ns);
	far_computes(100000);
	spw_cache_step(sim.cache);
	return sim_step_was();
}

static void far_opened(enum spw_cache_mode mode, double bus_rate)
{
	sim_begin(mode);
	sim.store->drives.write = sim.store->drives.read = DRIVES_RATE;
	sim.store->drives.mixed = 1.1 * DRIVES_RATE;
	sim.opts.memory_bytes = GPT_LAYER_BYTES * gpt.layers / 2;
	far = (struct far){.out.rate = bus_rate, .in.rate = bus_rate, .tells = true};
	sim_start();
}

static void far_end(void)
{
	sim_advance(sim_clock() + 1000000000);
	far_goes_on();
	sim_end();
}

/* Soon nothing is waited for, the peak is the plan's, and the faster the bus the lower it is. */
CASE(test_a_plan_counts_on_the_bus)
{
	static const double rates[] = {0.2, 0.5, 1, 4};
	uint64_t last = UINT64_MAX;

	for (unsigned i = 0; i < SPW_ARRAY_LEN(rates); i++) {
		struct spw_cache_stats stats;
		struct sim_step step = {0};

		far_opened(SPW_CACHE_FASTEST, rates[i]);
		for (unsigned k = 0; k < 8; k++) {
			step = far_step();
			assert_true(k < 3 || step.stall <= STALL_MAX);
		}
		stats = sim_stats();
		assert_true(within_share(stats.bus_out_bytes_per_second, rates[i], 0.01));
		assert_true(within_share(stats.bus_in_bytes_per_second, rates[i], 0.01));
		assert_int_equal(stats.plan_mismatches, 0);
		assert_true(step.peak_bytes <= stats.plan_peak_bytes + GPT_LAYER_BYTES);
		assert_true(step.peak_bytes < stats.plan_keep_all_bytes);
		assert_true(stats.plan_peak_bytes <= last);
		last = stats.plan_peak_bytes;
		far_end();
	}
	assert_true(last <= 3 * GPT_LAYER_BYTES);
}

/*
 * Drives that take a quarter of what is saved while it is: memory is free once it has been copied,
 * what waits is in staging memory, and comes back from there.
 */
CASE(test_memory_is_free_once_it_is_copied)
{
	struct sim_step step = {0};
	struct spw_cache_stats stats;

	far_opened(SPW_CACHE_FASTEST, 4);
	sim.store->drives.write = sim.store->drives.read = sim.store->drives.mixed = 0.2;
	for (unsigned i = 0; i < 8; i++) {
		step = far_step();
		assert_true(i < 4 || step.stall <= STALL_MAX);
	}
	stats = sim_stats();
	assert_true(stats.plan_peak_bytes < stats.plan_keep_all_bytes / 2);
	assert_true(step.peak_bytes <= stats.plan_peak_bytes);
	assert_true(stats.bytes_forwarded > 0);
	far_end();
}

/* A bus that others use as well: slower from one step to the next, and back. */
CASE(test_the_bus_slows_down)
{
	uint64_t peak;

	far_opened(SPW_CACHE_FASTEST, 1);
	for (unsigned i = 0; i < 5; i++)
		(void)far_step();
	peak = sim_stats().plan_peak_bytes;
	far.out.rate = far.in.rate = 0.4;
	for (unsigned i = 0; i < 6; i++)
		assert_true(far_step().stall <= STALL_MAX || i < 3);
	assert_true(sim_stats().plan_peak_bytes > peak);
	assert_true(sim_stats().plans_bandwidth > 0);
	far_end();
}

/* A budget is met, whatever the bus takes. */
CASE(test_a_budget_behind_the_bus)
{
	far_opened(SPW_CACHE_BUDGET, 1);
	for (unsigned i = 0; i < 8; i++) {
		struct sim_step step = far_step();

		assert_true(i < 3 || step.peak_bytes <= sim.opts.memory_bytes);
	}
	STAT_IS(plans_failed, 0);
	far_end();
}

RUN_CASES(NULL, NULL)
