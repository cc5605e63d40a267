/* SPDX-License-Identifier: MIT */
/* store/give_back.c - give idle memory of the arena back to the system, but not too often */
#include "store/give_back.h"

#include "engine/arena.h"
#include "engine/register.h"
#include "store/inbox.h"
#include "store/open_store.h"
#include "util/util.h"

/*
 * Used again, pages are faulted, cleared and registered, in the I/O thread: on busy CPUs, huge ones
 * took 0.27 to 0.45 ns a byte. That may take a hundredth of the time.
 */
#define NS_PER_BYTE_APART UINT64_C(50)

void spw_store_give_back(struct spw_store *store)
{
	uint64_t idle_bytes, gave_ns;

	if (spw_store__owned(store))
		return;
	idle_bytes = spw_engine__arena_idle_bytes(store->arena);
	gave_ns = atomic_load_explicit(&store->gave_back_ns, memory_order_relaxed);
	if (idle_bytes == 0 ||
	    (gave_ns > 0 && spw_clock_ns() - gave_ns < NS_PER_BYTE_APART * idle_bytes))
		return;
	atomic_store_explicit(&store->gives_back, true, memory_order_release);
	spw_store__wake(store);
}

void spw_store__give_back_if_asked(struct spw_store *store)
{
	if (likely(!atomic_load_explicit(&store->gives_back, memory_order_acquire)))
		return;
	atomic_store_explicit(&store->gives_back, false, memory_order_relaxed);
	if (spw_engine__queue_give_back(store->queue) > 0)
		atomic_store_explicit(&store->gave_back_ns, spw_clock_ns(), memory_order_relaxed);
}
