/* SPDX-License-Identifier: MIT */
/* tests/unit/test_cache_wear.c - the cap on what is written, in virtual time */
/* link: simstore libspillway */
#include "tests/unit/cache_sim.h"

#define DAY_BYTES  UINT64_C(86400000000000) /* per day: a byte per nanosecond */
#define HOUR_BYTES (DAY_BYTES / 24)
#define HOUR_NS    UINT64_C(3600000000000)

static void open_with_cap(enum spw_cache_mode mode, uint64_t bytes_per_day)
{
	sim_begin(mode);
	sim.opts.wear_bytes_per_day = bytes_per_day;
	sim_start();
}

static uint64_t written(void)
{
	return sim_stats().bytes_spilled;
}

/* A tensor that is written, read back and gone. Return: what was said to its offer. */
static int one_tensor(size_t len)
{
	int rc;

	spw_cache_stage(sim.cache, 0, SPW_STAGE_FORWARD);
	rc = sim_offer(0, len, SPW_HINT_NONE);
	sim_compute(10 * len + 100000);
	spw_cache_stage(sim.cache, 0, SPW_STAGE_BACKWARD);
	sim_use(0, 0);
	return rc;
}

/* ---- Without a plan ---- */

/* An hour's worth at first, and then what time gives, to the byte. */
SIM_CASE(test_an_hour_at_most_is_saved_up)
{
	uint64_t began_ns;

	/* 3600 bytes in an hour: one in each second. */
	open_with_cap(SPW_CACHE_SPILL, 86400);
	began_ns = sim_clock();
	assert_int_equal(one_tensor(3000), SPW_OFFER_SPILL);
	assert_int_equal(one_tensor(1000), SPW_OFFER_KEEP);
	STAT_IS(tensors_kept_wear, 1);
	STAT_IS(bytes_kept_wear, 1000);
	assert_int_equal(one_tensor(600), SPW_OFFER_SPILL);
	assert_int_equal(one_tensor(64), SPW_OFFER_KEEP);
	assert_int_equal(written(), 3600);
	sim_advance(began_ns + UINT64_C(64000000000) - 1);
	assert_int_equal(one_tensor(65), SPW_OFFER_KEEP);
	sim_advance(began_ns + UINT64_C(64000000000));
	assert_int_equal(one_tensor(64), SPW_OFFER_SPILL);
	/* A day of doing nothing saves up no more than an hour. */
	sim_advance(sim_clock() + 24 * HOUR_NS);
	assert_int_equal(one_tensor(3601), SPW_OFFER_KEEP);
	assert_int_equal(one_tensor(3600), SPW_OFFER_SPILL);
	STAT_IS(wear_bytes_per_day, 86400);
}

SIM_CASE(test_it_is_said_once)
{
	open_with_cap(SPW_CACHE_SPILL, 86400);
	for (unsigned i = 0; i < 5; i++) {
		(void)one_tensor(3000);
		spw_cache_step(sim.cache);
	}
	assert_int_equal(sim.logged, 1);
	STAT_IS(tensors_kept_wear, 4);
}

/* What waits to be written counts, until it is cancelled; what is cancelled does not. */
SIM_CASE(test_what_is_cancelled_is_not_spent)
{
	open_with_cap(SPW_CACHE_SPILL, 86400);
	sim.store->drives.write = 0;
	assert_int_equal(sim_offer(0, 1500, SPW_HINT_NONE), SPW_OFFER_SPILL);
	assert_int_equal(sim_offer(1, 1500, SPW_HINT_NONE), SPW_OFFER_SPILL);
	assert_int_equal(sim_offer(2, 1500, SPW_HINT_NONE), SPW_OFFER_KEEP);
	assert_int_equal(spw_cache_release(sim.cache, sim.tensors[1].tensor), 0);
	sim_advance(sim_clock() + 1);
	sim_drain();
	assert_int_equal(sim_offer(3, 1500, SPW_HINT_NONE), SPW_OFFER_SPILL);
	assert_int_equal(sim_offer(1, 1500, SPW_HINT_NONE), SPW_OFFER_KEEP);
	sim.store->drives.write = 1;
	for (unsigned i = 0; i < 4; i++)
		sim_use(i, 0);
	assert_true(sim_stats().bytes_spilled <= 3000);
}

/* A write that has begun is one, though its tensor is forwarded. */
SIM_CASE(test_what_has_begun_is_spent)
{
	open_with_cap(SPW_CACHE_SPILL, 86400);
	assert_int_equal(sim_offer(0, 3000, SPW_HINT_NONE), SPW_OFFER_SPILL);
	sim_compute(100);
	sim_use(0, 0);
	STAT_IS(tensors_forwarded, 1);
	STAT_IS(writes_cancelled, 0);
	sim_advance(sim_clock() + 1000000);
	sim_drain();
	assert_int_equal(sim_offer(1, 1000, SPW_HINT_NONE), SPW_OFFER_KEEP);
	sim_use(1, 0);
}

/* The cap holds in every time: what is written in @ns, and an hour's worth. */
SIM_CASE(test_it_holds_over_any_time)
{
	uint64_t began_ns, most = GPT_LAYER_BYTES * 24;

	/* An hour's worth is two steps; a step's own time gives a thousandth of that. */
	open_with_cap(SPW_CACHE_SPILL, most * 2 * 24);
	began_ns = sim_clock();
	for (unsigned i = 0; i < 200; i++) {
		(void)sim_step(&gpt);
		assert_true((double)written() <=
			    (double)most * 2 *
				    (1 + (double)(sim_clock() - began_ns) / (double)HOUR_NS));
		if (i % 20 == 19)
			sim_advance(sim_clock() + HOUR_NS / 10);
	}
	assert_true(written() > 3 * most);
	assert_true(sim_stats().bytes_kept_wear > 0);
}

/* ---- Plans ---- */

/* The cap, as a share of the byte per nanosecond that the drives do. */
static uint64_t step_bytes_at(double share, enum spw_cache_mode mode, uint64_t *peak)
{
	uint64_t before, share_bytes;

	sim_begin(mode);
	sim.opts.wear_bytes_per_day = (uint64_t)(share * (double)DAY_BYTES);
	sim.opts.memory_bytes = GPT_LAYER_BYTES * 8;
	sim_start();
	sim_steps(&gpt, 4);
	for (unsigned i = 0; i < 10; i++) {
		before = written();
		*peak = sim_step(&gpt).peak_bytes;
		/* The plan alone keeps to what the step's own time gives. */
		share_bytes = (uint64_t)(share * (double)sim_stats().step_compute_ns);
		assert_true(written() - before <= share_bytes);
		assert_true(sim_stats().plan_bytes_written_max <= share_bytes + 1);
	}
	STAT_IS(tensors_kept_wear, 0);
	STAT_IS(plan_mismatches, 0);
	return written() - before;
}

static void plans_obey(enum spw_cache_mode mode)
{
	static const double shares[] = {0.01, 0.03, 0.06, 0.1, 0.15, 1};
	uint64_t last_bytes = 0, last_peak = UINT64_MAX;

	for (unsigned i = 0; i < SPW_ARRAY_LEN(shares); i++) {
		uint64_t peak, bytes = step_bytes_at(shares[i], mode, &peak);

		/* All that may be written is, within a tensor or two. */
		if (sim_stats().plans_limited > 0)
			assert_true(bytes + 2 * 2 * gpt.len >= sim_stats().plan_bytes_written_max);
		assert_true(bytes >= last_bytes);
		assert_true(peak <= last_peak);
		assert_int_equal(sim.logged > 0,
				 sim_stats().plans_limited > 0 || (mode == SPW_CACHE_BUDGET &&
								   sim_stats().plans_failed > 0));
		last_bytes = bytes;
		last_peak = peak;
		sim_end();
	}
	assert_true(last_bytes > 0);
}

CASE(test_plans_obey)
{
	plans_obey(SPW_CACHE_FASTEST);
}

CASE(test_plans_of_a_budget_obey)
{
	plans_obey(SPW_CACHE_BUDGET);
}

/* Steps become shorter, or longer: what a step may write follows. */
SIM_CASE(test_a_plan_follows_the_length_of_steps)
{
	struct sim_model model = gpt;
	uint64_t before;

	open_with_cap(SPW_CACHE_FASTEST, DAY_BYTES / 20);
	sim_steps(&model, 5);
	before = sim_stats().plan_bytes_written;
	assert_true(before > 0 && sim_stats().plans_limited > 0);
	sim.pause_ns = sim_stats().step_compute_ns;
	sim_steps(&model, 8);
	assert_in_range(sim_stats().plan_bytes_written, before * 18 / 10, before * 22 / 10);
	sim.pause_ns = 0;
	sim_steps(&model, 8);
	assert_in_range(sim_stats().plan_bytes_written, before * 9 / 10, before * 11 / 10);
	STAT_IS(tensors_kept_wear, 0);
}

/* Without a plan that is limited nothing is different from there being no cap. */
CASE(test_a_cap_out_of_reach_changes_nothing)
{
	uint64_t bytes[2], peaks[2];

	for (unsigned i = 0; i < 2; i++) {
		open_with_cap(SPW_CACHE_FASTEST, i ? 100 * DAY_BYTES : 0);
		sim_steps(&gpt, 8);
		bytes[i] = written();
		peaks[i] = sim_stats().step_peak_bytes;
		STAT_IS(plans_limited, 0);
		STAT_IS(tensors_kept_wear, 0);
		sim_end();
	}
	assert_int_equal(bytes[0], bytes[1]);
	assert_int_equal(peaks[0], peaks[1]);
}

/* ---- Others on the store ---- */

static uint8_t record[1 << 20];

static void record_done(void *context, int res)
{
	(void)context;
	assert_int_equal(res, 0);
}

/* An optimizer writes its state. */
static void another_writes(size_t len)
{
	static const struct spw_notify notify = {.done = record_done};
	struct spw_request *request;
	spw_object object;

	assert_true(len <= sizeof(record));
	assert_int_equal(simstore_ports.put(sim.store, record, len, &notify, &object, &request), 0);
	sim_advance(sim_clock() + 10 * len + 100000);
	assert_int_equal(simstore_ports.free(sim.store, object), 0);
}

/* Of an hour's worth of 3600 bytes they take 2000; what was before the cache is not of its time. */
SIM_CASE(test_what_others_write_is_spent)
{
	sim_begin(SPW_CACHE_SPILL);
	sim.opts.wear_bytes_per_day = 86400;
	another_writes(3000);
	sim_start();
	another_writes(2000);
	assert_int_equal(one_tensor(2000), SPW_OFFER_KEEP);
	assert_int_equal(one_tensor(1500), SPW_OFFER_SPILL);
	STAT_IS(tensors_kept_wear, 1);
}

/* What a step's own time gives is planned with less what they wrote in the step before. */
SIM_CASE(test_plans_leave_others_their_share)
{
	uint64_t alone, beside, share_bytes;

	open_with_cap(SPW_CACHE_FASTEST, DAY_BYTES / 10);
	sim_steps(&gpt, 8);
	alone = sim_stats().plan_bytes_written_max;
	assert_true(sim_stats().plans_limited > 0);
	for (unsigned i = 0; i < 8; i++) {
		another_writes(alone / 2);
		(void)sim_step(&gpt);
	}
	beside = sim_stats().plan_bytes_written_max;
	share_bytes = (uint64_t)(0.1 * (double)sim_stats().step_compute_ns);
	assert_in_range(beside, share_bytes - alone / 2 - 1, share_bytes - alone / 2 + 1);
	assert_true(sim_stats().plan_bytes_written <= beside);
	/* and when they do nothing any more */
	sim_steps(&gpt, 8);
	assert_in_range(sim_stats().plan_bytes_written_max, alone * 9 / 10, alone * 11 / 10);
}

/* They alone write more than is wished for: nothing is added to it, and nothing fails. */
SIM_CASE(test_others_write_more_than_the_cap)
{
	uint64_t before;

	open_with_cap(SPW_CACHE_FASTEST, DAY_BYTES / 1000);
	for (unsigned i = 0; i < 12; i++) {
		another_writes(sizeof(record));
		before = written();
		(void)sim_step(&gpt);
	}
	assert_int_equal(written(), before);
}

/* ---- Years ---- */

SIM_CASE(test_years_become_bytes_per_day)
{
	sim_begin(SPW_CACHE_FASTEST);
	sim.opts.wear_years = 2;
	sim.store->left = 2 * 365.25 * 1000;
	sim_start();
	STAT_IS(wear_bytes_per_day, 1000);
}

SIM_CASE(test_a_rating_stands_for_what_drives_do_not_say)
{
	sim_begin(SPW_CACHE_FASTEST);
	sim.opts.wear_years = 4;
	assert_int_equal(spw_cache__open_with(sim.store, &sim.opts, &simstore_ports, &sim.cache),
			 -ENODATA);
	sim.opts.endurance_bytes = 4 * 1461 * 250;
	sim_start();
	STAT_IS(wear_bytes_per_day, 1000);
}

SIM_CASE(test_nonsense_is_refused)
{
	static const double years[] = {-1, 1e7, 0.0 / 0.0, 1.0 / 0.0};

	sim_begin(SPW_CACHE_FASTEST);
	sim.store->left = 1e15;
	for (unsigned i = 0; i < SPW_ARRAY_LEN(years); i++) {
		sim.opts.wear_years = years[i];
		assert_int_equal(
			spw_cache__open_with(sim.store, &sim.opts, &simstore_ports, &sim.cache),
			-EINVAL);
	}
	sim.opts.wear_years = 1;
	sim.opts.wear_bytes_per_day = 1;
	assert_int_equal(spw_cache__open_with(sim.store, &sim.opts, &simstore_ports, &sim.cache),
			 -EINVAL);
	sim.opts.wear_years = 0;
	sim_start();
}

RUN_CASES(NULL, NULL)
