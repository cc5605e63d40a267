/* SPDX-License-Identifier: MIT */
/*
 * tests/sim/threads.c - where other threads would run, and what they do there: the only thread
 * plays the store's helpers (store/checksum_pool.h), each of which holds what it took for some
 * turns
 */
#include <string.h>

#include "store/checksum_pool.h"
#include "store/open_store.h"
#include "store/transfer.h"
#include "tests/sim/sim.h"

#define HELPERS     2
#define HELD_TURNS  6
#define SLEEPY_LOOK 2 /* one look in this many takes something */

bool (*sim_others_turn)(bool sleeps);

static struct {
	struct transfer *transfer; /* NULL: it has none */
	uint64_t turns;
} held[HELPERS];
static uint64_t random_state;

static bool helpers_turn(bool sleeps)
{
	const struct spw_store *store = sim_world.store;
	struct spw_checksum_pool *pool = store->pool;
	/* Else it would sleep for ever. */
	bool all = sleeps && store->transfers_in_flight == 0;

	for (unsigned i = 0; i < HELPERS; i++) {
		if (!held[i].transfer && sim_below(&random_state, SLEEPY_LOOK) == 0) {
			held[i].transfer = spw_store__pool_take(&pool->each[i]);
			held[i].turns = sim_below(&random_state, HELD_TURNS);
		} else if (held[i].transfer && (all || held[i].turns-- == 0)) {
			spw_store__pool_run(&pool->each[i], held[i].transfer);
			held[i].transfer = NULL;
		}
	}
	return atomic_load(&store->inbox);
}

void sim_helpers_begin(struct spw_store *store, uint64_t seed)
{
	memset(held, 0, sizeof(held));
	random_state = seed ^ UINT64_C(0x4e19e55);
	for (unsigned i = 0; i < HELPERS; i++)
		store->pool->each[i].store = store;
	store->pool->count = HELPERS;
	sim_others_turn = helpers_turn;
}

/* Others run between what is posted and the worker's own look at it. */
WRAP(int, spw_queue_submit, (struct spw_queue * queue))
{
	int rc = __real_spw_queue_submit(queue);

	if (sim_others_turn)
		(void)sim_others_turn(false);
	return rc;
}

/* A store that sleeps is woken by what has come for it meanwhile. */
WRAP(int, spw_queue_reap, (struct spw_queue * queue, unsigned min, int64_t timeout_ns))
{
	if (sim_others_turn && sim_others_turn(min > 0))
		min = 0;
	return __real_spw_queue_reap(queue, min, timeout_ns);
}

/* A plan is there as soon as it is searched for. */
WRAP(int, spw_thread_start,
     (pthread_t * thread, const pthread_attr_t *attributes, void *(*main)(void *), void *argument))
{
	(void)thread;
	(void)attributes;
	(void)main(argument);
	return 0;
}

/* There are no threads to be waited for. */
WRAP(void, spw_store__pool_stop, (struct spw_store * store))
{
	sim_others_turn = NULL;
	for (unsigned i = 0; i < HELPERS; i++)
		if (held[i].transfer)
			sim_fail("the store is closed while a helper has a transfer");
	store->pool->count = 0;
	__real_spw_store__pool_stop(store);
}
