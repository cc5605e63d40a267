/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_cache_bus.c - a device behind a bus that is slower than the drives, in virtual
 * time: what is planned for it, and what its steps are like
 *
 * The host keeps up with the device. Copies are served in order, each way by itself. The device
 * waits for a copy that it needs, and tells how long.
 */
/* link: simstore libspillway */
#include "tests/unit/cache_host.h"
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
	/* of this step: orders after copies, and how long streams would have waited for these */
	unsigned orders;
	uint64_t order_ns;
	unsigned copying_least; /* when such an order came */
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

/* This host sees copies end, so that it orders no stream. */
static void far_ordered(spw_tensor order)
{
	const struct copy *copy;

	far.orders += order.value != 0;
	for (unsigned i = 0; order.value != 0 && i < far.out.count; i++) {
		copy = &far.out.copies[(far.out.first + i) % SIM_TENSORS_MAX];
		if (copy->number == order.value && copy->end_ns > sim_clock())
			far.order_ns += copy->end_ns - sim_clock();
	}
	if (order.value != 0 && far.out.count < far.copying_least)
		far.copying_least = far.out.count;
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
	far_ordered(copy.order);
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

static struct sim_step far_step_of(const struct sim_model *model)
{
	far.orders = 0;
	far.order_ns = 0;
	far.copying_least = UINT_MAX;
	spw_cache_stage(sim.cache, 0, SPW_STAGE_FORWARD);
	for (unsigned layer = 0; layer < model->layers; layer++) {
		spw_cache_scope_enter(sim.cache, 100 + layer);
		for (unsigned i = 0; i < model->tensors; i++) {
			far_computes(model->tensor_ns);
			far_saves(layer * model->tensors + i, sim_len(model, i));
		}
		spw_cache_scope_leave(sim.cache);
	}
	spw_cache_stage(sim.cache, 0, SPW_STAGE_BACKWARD);
	for (unsigned i = model->layers * model->tensors; i-- > 0;)
		far_uses(i, 2 * model->tensor_ns);
	far_computes(100000);
	spw_cache_step(sim.cache);
	return sim_step_was();
}

static struct sim_step far_step(void)
{
	return far_step_of(&gpt);
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

/*
 * By a plan when a copy has ended; without the rate of the bus, a plan does not know, and streams
 * are ordered after the oldest of three.
 */
CASE(test_streams_are_ordered_after_copies)
{
	for (unsigned known = 0; known <= 1; known++) {
		far_opened(SPW_CACHE_FASTEST, 0.5);
		far.tells = known;
		for (unsigned i = 0; i < 8; i++)
			(void)far_step();
		assert_true(sim_stats().plan_tensors_spilled > 0);
		if (known)
			assert_true((double)far.order_ns <=
				    STALL_MAX * (double)sim_stats().step_compute_ns);
		else
			assert_true(far.orders > 0 && far.copying_least >= 2);
		far_end();
	}
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

/* ---- Host memory ---- */

/* As gpt with tensors that are large beside the granules of an arena: 49 MiB / 8 a layer. */
static const struct sim_model large = {
	.layers = 8, .tensors = 6, .len = UINT64_C(1) << 20, .tensor_ns = 1280000};
#define LARGE_LAYER_BYTES (49 * (UINT64_C(1) << 20) / 8)

static struct spw_arena *host_opened(bool has_drives, double bus_rate, uint64_t host_bytes)
{
	sim_begin(SPW_CACHE_FASTEST);
	sim.store->drives.write = sim.store->drives.read = sim.store->drives.mixed = 0.2;
	far = (struct far){.out.rate = bus_rate, .in.rate = bus_rate, .tells = true};
	assert_int_equal(spw_cache__open_with(has_drives ? sim.store : NULL, &sim.opts,
					      &simstore_ports, &sim.cache),
			 0);
	spw_cache_step(sim.cache);
	return host_given(sim.cache, host_bytes);
}

/* Half of what is saved has room in host memory; without drives the rest stays on the device. */
CASE(test_a_plan_for_host_memory_alone)
{
	struct spw_arena *host = host_opened(false, 4, 4 * LARGE_LAYER_BYTES);
	struct sim_step step = {0};
	struct spw_cache_stats stats;

	for (unsigned i = 0; i < 8; i++) {
		step = far_step_of(&large);
		assert_true(i < 3 || step.stall <= STALL_MAX);
		assert_true(sim_stats().host_bytes_max <= sim_stats().host_memory_bytes);
		STAT_IS(host_bytes, 0);
	}
	stats = sim_stats();
	assert_true(stats.steps_planned >= 4);
	assert_int_equal(stats.plan_mismatches, 0);
	assert_true(stats.plan_tensors_host > 0);
	assert_int_equal(stats.plan_tensors_host, stats.plan_tensors_spilled);
	assert_true(stats.plan_peak_bytes <= stats.plan_keep_all_bytes * 5 / 8);
	assert_true(step.peak_bytes <= stats.plan_peak_bytes + LARGE_LAYER_BYTES / 2);
	assert_int_equal(stats.bytes_spilled, 0);
	assert_true(stats.host_hits > 0 && stats.misses == 0);
	far_end();
	spw_arena_close(host);
}

/* What has room is not written, whatever the drives: nothing of it, half, all. */
CASE(test_what_has_room_in_host_memory_is_not_written)
{
	uint64_t peak_bytes = UINT64_MAX;

	for (unsigned part = 0; part <= 8; part += 4) {
		uint64_t room_bytes = (part == 8 ? 9 : part) * LARGE_LAYER_BYTES;
		struct spw_arena *host = NULL;
		struct sim_step step = {0};
		struct spw_cache_stats stats, before;

		host = host_opened(true, 4, room_bytes > 0 ? room_bytes : 1);
		for (unsigned i = 0; i < 7; i++)
			step = far_step_of(&large);
		before = sim_stats();
		step = far_step_of(&large);
		stats = sim_stats();
		assert_true(step.stall <= STALL_MAX);
		assert_true(stats.plan_peak_bytes <= peak_bytes);
		assert_true(step.peak_bytes <= stats.plan_peak_bytes + LARGE_LAYER_BYTES / 2);
		if (part == 8)
			assert_int_equal(stats.bytes_spilled, before.bytes_spilled);
		else
			assert_true(stats.bytes_spilled > before.bytes_spilled);
		/* Those stay that the plan has chosen. */
		assert_int_equal(stats.tensors_to_host - before.tensors_to_host,
				 before.plan_tensors_host);
		peak_bytes = stats.plan_peak_bytes;
		far_end();
		spw_arena_close(host);
	}
	assert_true(peak_bytes <= 2 * LARGE_LAYER_BYTES);
}

/* Plans are for the drives alone then, and what they spill still stays where there is room. */
CASE(test_host_memory_behind_a_bus_that_is_not_known)
{
	for (unsigned layers = 4; layers <= 9; layers += 5) {
		struct spw_arena *host = host_opened(true, 4, layers * LARGE_LAYER_BYTES);
		struct spw_cache_stats before, stats;

		far.tells = false;
		for (unsigned i = 0; i < 7; i++)
			(void)far_step_of(&large);
		before = sim_stats();
		(void)far_step_of(&large);
		stats = sim_stats();
		assert_int_equal(stats.plan_tensors_host, 0);
		assert_true(stats.tensors_to_host > before.tensors_to_host);
		if (layers == 9)
			assert_int_equal(stats.bytes_spilled, 0);
		else
			assert_true(stats.plan_tensors_spilled > 0);
		far_end();
		spw_arena_close(host);
	}
}

RUN_CASES(NULL, NULL)
