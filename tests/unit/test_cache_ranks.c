/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_cache_ranks.c - ranks that share drives, in virtual time: each plans on what it
 * gets, and what they get becomes equal
 */
/* link: tools/replay/simstore libspillway */
#include "tests/unit/cache_sim.h"

#include <pthread.h>

#define RANKS 4u
#define STEPS 30u
#define UPSET 10u /* from this step on, for a few */

struct rank {
	pthread_t thread;
	unsigned number;
	uint64_t written_bytes, stall_ns; /* of the last step */
};

/* Of the case. */
static double bandwidth;
static bool upset;

static void set_drives(double rate)
{
	sim.store->drives.write = sim.store->drives.read = sim.store->drives.mixed = rate;
}

static void *train(void *context)
{
	struct rank *rank = context;

	sim_begin(SPW_CACHE_FASTEST);
	set_drives(bandwidth);
	sim.random = 1 + rank->number;
	sim.jitter_percent = 10;
	simstore_meet(sim.store, RANKS);
	sim_start();
	for (unsigned i = 0; i < STEPS; i++) {
		uint64_t before = sim_stats().bytes_spilled;

		/* One gets a third of the others' share for a while. */
		if (upset && rank->number == 1)
			set_drives(i >= UPSET && i < UPSET + 3 ? bandwidth / 3 : bandwidth);
		sim_forward_stage(&gpt);
		sim_backward_stage(&gpt);
		simstore_meet(sim.store, RANKS); /* gradients are averaged */
		spw_cache_step(sim.cache);
		rank->written_bytes = sim_stats().bytes_spilled - before;
		rank->stall_ns = sim_stats().step_stall_ns;
	}
	simstore_meet(sim.store, RANKS);
	sim_end();
	return NULL;
}

/* The most that one writes in the last step, of what another does. */
static double spread_of(double rate, bool with_upset)
{
	struct rank ranks[RANKS] = {0};
	uint64_t least = UINT64_MAX, most = 0;

	bandwidth = rate;
	upset = with_upset;
	for (unsigned i = 0; i < RANKS; i++) {
		ranks[i].number = i;
		assert_int_equal(pthread_create(&ranks[i].thread, NULL, train, &ranks[i]), 0);
	}
	for (unsigned i = 0; i < RANKS; i++) {
		assert_int_equal(pthread_join(ranks[i].thread, NULL), 0);
		assert_int_equal(ranks[i].stall_ns, 0);
		least = SPW_MIN(least, ranks[i].written_bytes);
		most = SPW_MAX(most, ranks[i].written_bytes);
	}
	assert_true(least > 0);
	return (double)most / (double)least;
}

/* What all of them save would take 3.4 bytes per nanosecond. */
CASE(ranks_share_slow_drives)
{
	assert_true(spread_of(0.5, false) < 1.05);
	assert_true(spread_of(2, false) < 1.05);
}

/* A bandwidth is planned for anew when it has changed by a tenth. */
CASE(ranks_settle_after_an_upset)
{
	assert_true(spread_of(1, true) < 1.12);
}

RUN_CASES(NULL, NULL)
