/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_cache_background.c - another user of the store of a cache, in virtual time: what
 * is measured of the drives, and what plans know of it
 */
/* link: simstore libspillway */
#include "tests/unit/cache_sim.h"

#define RECORDS   6u
#define RECORD    (256u << 10)
#define STEP_NS   (3 * 24u * 6 * 10000) /* of gpt */
#define HALF_PART (FLOW_PARTS / 2)

/* Records as an optimizer has them: written in the forward pass, read after the backward one. */
static struct record {
	spw_object object;
	bool exists;
	uint8_t bytes[RECORD];
} records[RECORDS];

static unsigned under_way;

static void record_done(void *context, int res)
{
	(void)context;
	assert_int_equal(res, 0);
	under_way--;
}

static const struct spw_notify notify = {.done = record_done};

static void put_records(void)
{
	for (unsigned i = 0; i < RECORDS; i++) {
		struct spw_request *request;
		struct record *record = &records[i];

		if (record->exists)
			assert_int_equal(simstore_ports.free(sim.store, record->object), 0);
		assert_int_equal(simstore_ports.put(sim.store, record->bytes, RECORD, &notify,
						    &record->object, &request),
				 0);
		record->exists = true;
		under_way++;
	}
}

static void get_records(void)
{
	for (unsigned i = 0; i < RECORDS; i++) {
		struct spw_request *request;

		assert_int_equal(simstore_ports.get(sim.store, records[i].object, 0,
						    records[i].bytes, RECORD, SPW_PREFETCH, &notify,
						    &request),
				 0);
		under_way++;
	}
	while (under_way > 0)
		sim_compute(1000);
}

static void open_at(double bandwidth)
{
	memset(records, 0, sizeof(records));
	under_way = 0;
	sim_begin(SPW_CACHE_FASTEST);
	sim.store->drives.write = sim.store->drives.read = sim.store->drives.mixed = bandwidth;
	sim_start();
}

static void end(void)
{
	while (under_way > 0)
		sim_compute(1000);
	for (unsigned i = 0; i < RECORDS; i++)
		if (records[i].exists)
			assert_int_equal(simstore_ports.free(sim.store, records[i].object), 0);
	sim_end();
}

static struct sim_step step_with_records(void)
{
	put_records();
	sim_forward_stage(&gpt);
	sim_backward_stage(&gpt);
	get_records();
	spw_cache_step(sim.cache);
	return sim_step_was();
}

static double sum_of(unsigned from, unsigned to, enum direction direction)
{
	double bytes = 0;

	for (; from < to; from++)
		bytes += sim.cache->control->signature->flows[from][direction];
	return bytes;
}

static void is_about(double value, double wanted)
{
	assert_true(value > 0.95 * wanted && value < 1.05 * wanted);
}

/* What others move, and when. */
CASE(test_others_are_recorded)
{
	open_at(4);
	for (unsigned i = 0; i < 4; i++)
		(void)step_with_records();
	is_about(sum_of(0, FLOW_PARTS, DIRECTION_WRITE), RECORDS * RECORD);
	is_about(sum_of(0, FLOW_PARTS, DIRECTION_READ), RECORDS * RECORD);
	is_about(sum_of(0, HALF_PART, DIRECTION_WRITE), RECORDS * RECORD);
	is_about(sum_of(HALF_PART, FLOW_PARTS, DIRECTION_READ), RECORDS * RECORD);
	/* and when they do nothing any more */
	sim_steps(&gpt, 12);
	assert_true(sum_of(0, FLOW_PARTS, DIRECTION_WRITE) < RECORD / 100);
	end();
}

/* The cache's own transfers are not counted as others'. */
SIM_CASE(test_nobody_else_is_there)
{
	open_at(0.6);
	sim_steps(&gpt, 6);
	assert_true(sum_of(0, FLOW_PARTS, DIRECTION_WRITE) < 1);
	assert_true(sum_of(0, FLOW_PARTS, DIRECTION_READ) < 1);
	assert_false(sim.cache->control->measure.external);
}

/* Drives are as fast as they are when others use them, too. */
CASE(test_others_do_not_make_drives_slower)
{
	open_at(1);
	sim_steps(&gpt, 3);
	for (unsigned i = 0; i < 8; i++)
		(void)step_with_records();
	assert_in_range(sim_stats().write_bytes_per_second, 900000000, 1100000000);
	assert_in_range(sim_stats().read_bytes_per_second, 900000000, 1100000000);
	end();
}

/* What others take is not planned with: more stays in memory, and hardly anything is waited for. */
CASE(test_plans_leave_others_their_time)
{
	uint64_t peak;

	open_at(1);
	sim_steps(&gpt, 6);
	peak = sim_stats().plan_peak_bytes;
	for (unsigned i = 0; i < 12; i++) {
		struct sim_step step = step_with_records();

		assert_true(i < 8 || step.stall < 0.02);
	}
	assert_true(sim.cache->control->signature->plan.flows_share > 0.2);
	assert_true(sim_stats().plan_peak_bytes > peak + gpt.len);
	end();
}

RUN_CASES(NULL, NULL)
