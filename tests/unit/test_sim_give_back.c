/* SPDX-License-Identifier: MIT */
/* tests/unit/test_sim_give_back.c - idle memory of a store returns to the system, but not often */
#include "engine/arena.h"
#include "tests/unit/resident.h"
#include "tests/unit/sim_rig.h"

#define IDLE_BYTES (24u << 20)

static size_t resident_of_arena(void)
{
	size_t len;
	void *base = spw_arena_memory(store->arena, &len);

	return resident_bytes(base, len);
}

/* Memory is used and released. Return: whether it is gone when the store has had its turn. */
static bool goes(void)
{
	void *memory;

	assert_ok(spw_store_alloc(store, IDLE_BYTES, &memory));
	memset(memory, 1, IDLE_BYTES);
	spw_store_release(store, memory);
	assert_true(resident_of_arena() >= IDLE_BYTES);
	spw_store_give_back(store);
	assert_true(spw_store_poll(store, false) >= 0);
	return resident_of_arena() < IDLE_BYTES / 4;
}

DRIVES_CASE(test_idle_memory_goes_but_not_too_often)
{
	struct spw_store_opts opts = options(8);
	size_t len;
	void *all;

	opts.arena_bytes = 2 * IDLE_BYTES;
	opts.no_hugetlb = true; /* those stay */
	open_with(&opts);
	assert_true(goes());
	/* 50 ns a byte: 1.26 s. */
	sim_now_ns += SECOND;
	assert_false(goes());
	sim_now_ns += SECOND / 2;
	assert_true(goes());
	/* A device may have pinned it. */
	sim_now_ns += 2 * SECOND;
	assert_ok(spw_store_arena(store, &all, &len));
	assert_false(goes());
}

RUN_CASES(NULL, NULL)
