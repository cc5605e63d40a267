/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_cache_ranks.c - ranks that share drives, in virtual time: each counts on the mean
 * of what all get, and what they get becomes equal
 */
/* link: simstore libspillway */
#include "tensor/control/ranks.h"
#include "tensor/external_traffic.h"
#include "tensor/lock.h"
#include "tests/unit/cache_sim.h"

#include <pthread.h>

#define RANKS 4u
#define STEPS 60u
#define LAST  20u /* steps that are compared */
#define UPSET 10u /* from this step on, for a few */

struct rank {
	pthread_t thread;
	unsigned number;
	uint64_t moved_bytes, stall_ns; /* in the last steps */
};

/* Of the case. */
static double bandwidth;
static bool upset, together;

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
	simstore_barrier(sim.store, RANKS);
	sim_start();
	for (unsigned i = 0; i < STEPS; i++) {
		struct spw_cache_stats before = sim_stats(), now;

		/* One gets a third of the others' share for a while. */
		if (upset && rank->number == 1)
			set_drives(i >= UPSET && i < UPSET + 3 ? bandwidth / 3 : bandwidth);
		sim_forward_stage(&gpt);
		sim_backward_stage(&gpt);
		if (together)
			simstore_barrier(sim.store, RANKS); /* gradients are averaged */
		spw_cache_step(sim.cache);
		now = sim_stats();
		if (i < STEPS - LAST)
			continue;
		rank->moved_bytes += now.bytes_spilled + now.bytes_read - before.bytes_spilled -
				     before.bytes_read;
		rank->stall_ns += now.step_stall_ns;
	}
	simstore_barrier(sim.store, RANKS);
	sim_end();
	return NULL;
}

/* What the ranks move in the last steps: the most less the least, in parts of the mean. */
static double spread_of(double rate)
{
	struct rank ranks[RANKS] = {0};
	uint64_t least = UINT64_MAX, most = 0, all = 0;

	bandwidth = rate;
	for (unsigned i = 0; i < RANKS; i++) {
		ranks[i].number = i;
		assert_int_equal(pthread_create(&ranks[i].thread, NULL, train, &ranks[i]), 0);
	}
	for (unsigned i = 0; i < RANKS; i++) {
		assert_int_equal(pthread_join(ranks[i].thread, NULL), 0);
		assert_int_equal(ranks[i].stall_ns, 0);
		least = SPW_MIN(least, ranks[i].moved_bytes);
		most = SPW_MAX(most, ranks[i].moved_bytes);
		all += ranks[i].moved_bytes;
	}
	assert_true(least > 0);
	return (double)(most - least) * RANKS / (double)all;
}

/* What all of them save would take 3.4 bytes per nanosecond. */
CASE(ranks_share_slow_drives)
{
	upset = false;
	together = true;
	assert_true(spread_of(0.5) < 0.1);
	assert_true(spread_of(2) < 0.1);
}

CASE(ranks_settle_after_an_upset)
{
	upset = together = true;
	assert_true(spread_of(0.5) < 0.1);
	assert_true(spread_of(1) < 0.1);
}

/* A rank that happens to write while the others read would plan for drives of its own. */
CASE(ranks_that_do_not_meet_settle)
{
	upset = together = false;
	assert_true(spread_of(0.5) < 0.1);
	assert_true(spread_of(2) < 0.1);
}

static uint64_t written_by(uint64_t bytes_per_second)
{
	const struct spw_plan_drives other = {.write_bytes_per_second = bytes_per_second};

	spw_control__rank(sim.cache->control, &other);
	return spw_control__ranks_share(sim.cache->control).write_bytes_per_second;
}

/* Each figure by itself; what is not known, or what no drives do, does not count. */
SIM_CASE(counted_on_is_the_mean)
{
	struct spw_plan_drives *measured;

	sim_begin(SPW_CACHE_FASTEST);
	sim_open();
	measured = &sim.cache->control->measure.drives;
	measured->write_bytes_per_second = 300;
	measured->read_bytes_per_second = 70;
	assert_int_equal(written_by(0), 300);
	assert_int_equal(written_by(UINT64_MAX), 300);
	assert_int_equal(written_by(600), 450);
	assert_int_equal(written_by(0), 450);
	assert_int_equal(written_by(900), 600);
	assert_int_equal(spw_control__ranks_share(sim.cache->control).read_bytes_per_second, 70);
	measured->write_bytes_per_second = 0;
	assert_int_equal(written_by(0), 750);
	/* They are looked at again at the end of each step. */
	spw_cache__lock(sim.cache);
	spw_cache__traffic_ranks(sim.cache);
	spw_cache__unlock(sim.cache);
	assert_int_equal(written_by(0), 0);
}

#ifdef SPW_COUNTING
/* For coverage plan/ counts without atomics (Makefile): what ranks count side by side is void. */
extern void __gcov_reset(void);

static int forget_counts(void **unused)
{
	(void)unused;
	__gcov_reset();
	return 0;
}
#else
#define forget_counts NULL
#endif

RUN_CASES(NULL, forget_counts)
