/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_cache_search.c - plans are searched for beside the step, and taken at the end of
 * the next one
 */
/* link: simstore libspillway */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/cache_sim.h"

/* The search that was begun, and not run yet. */
static struct {
	void *(*main)(void *);
	void *argument;
} begun;

static int start_later(void *(*main)(void *), void *argument)
{
	assert_null(begun.main);
	begun.main = main;
	begun.argument = argument;
	return 0;
}

static int start_nothing(void *(*main)(void *), void *argument)
{
	(void)main;
	(void)argument;
	return -EAGAIN;
}

static void search_now(void)
{
	void *(*main)(void *) = begun.main;

	assert_non_null(main);
	begun.main = NULL;
	(void)main(begun.argument);
}

static void open_with_start(int (*start)(void *(*main)(void *), void *argument))
{
	struct spw_cache_ports ports = simstore_ports;

	ports.start = start;
	ports.sleep = pthread_cond_wait; /* of what is waited for here, a thread is real */
	sim_begin(SPW_CACHE_FASTEST);
	sim.store->drives.write = sim.store->drives.read = sim.store->drives.mixed = 0.8;
	assert_int_equal(spw_cache__open_with(sim.store, &sim.opts, &ports, &sim.cache), 0);
	spw_cache_step(sim.cache);
}

/* Drives fast enough that no take waits for them. */
static struct sim_model calm(void)
{
	struct sim_model model = gpt;

	model.tensor_ns *= 10;
	return model;
}

/* A step goes on while a plan is searched for, and by the plan before if there is one. */
SIM_CASE(test_steps_go_on_meanwhile)
{
	struct sim_model model = calm(), slower = model;

	open_with_start(start_later);
	(void)sim_step(&model);
	assert_non_null(begun.main);
	sim_forward_stage(&model);
	search_now();
	sim_backward_stage(&model);
	STAT_IS(plans, 0);
	STAT_IS(plan_tensors, 0);
	spw_cache_step(sim.cache);
	STAT_IS(plans, 1);
	STAT_IS(plan_tensors, GPT_TENSORS);
	STAT_IS(steps_fixed, 2);
	slower.tensor_ns *= 2;
	(void)sim_step(&slower);
	assert_non_null(begun.main);
	sim_forward_stage(&slower);
	assert_true(spw_control__follows_plan(sim.cache->control));
	search_now();
	sim_backward_stage(&slower);
	STAT_IS(plans, 1);
	spw_cache_step(sim.cache);
	STAT_IS(plans, 2);
	STAT_IS(plans_timeline, 1);
	STAT_IS(steps_planned, 2);
	/* The step that went by the plan before does not cause a third one. */
	assert_null(begun.main);
}

/* In threads: what needs the plan, or ends, waits for the search. */
CASE(test_who_waits_for_a_search)
{
	struct sim_model model = calm();
	struct spw_cache_reason reasons[64];

	for (unsigned i = 0; i < 4; i++) {
		open_with_start(spw_cache__ports_real.start);
		(void)sim_step(&model);
		assert_true(spw_cache_explain(sim.cache, reasons, 64, NULL) == 0);
		if (i % 2) {
			spw_cache_step(sim.cache);
			STAT_IS(plans, 1);
			STAT_IS(plan_tensors, GPT_TENSORS);
			assert_int_equal(spw_cache_explain(sim.cache, reasons, 64, NULL), 24);
			model.layers++; /* another is searched for when the cache is closed */
			(void)sim_step(&model);
			model.layers--;
		}
		sim_end();
	}
}

SIM_CASE(test_without_a_thread_the_step_searches)
{
	struct sim_model model = calm();

	open_with_start(start_nothing);
	(void)sim_step(&model);
	STAT_IS(plans_here, 1);
	assert_int_equal(sim.logged, 1);
	(void)sim_step(&model);
	STAT_IS(plans, 1);
	STAT_IS(plan_tensors, GPT_TENSORS);
}

/* The thread is not there. */
SIM_CASE(test_a_child_waits_for_no_search)
{
	struct sim_model model = calm();
	int status;
	pid_t child;

	open_with_start(start_later);
	(void)sim_step(&model);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		spw_cache_step(sim.cache);
		_exit(sim_stats().plans == 0 && sim_stats().plans_failed == 1 ? 0 : 1);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	search_now();
	(void)sim_step(&model);
	STAT_IS(plans, 1);
}

RUN_CASES(NULL, NULL)
