/* SPDX-License-Identifier: MIT */
/*
 * tensor/search.c - plans are searched for beside the step, in a thread that is there for as long
 *
 * It begins between two steps and is waited for between the next two, so that the same training has
 * the same plan in the same step, however long the search takes: as a rule, a small part of a step.
 */
#include <unistd.h>

#include "tensor/internal.h"
#include "tensor/lock.h"
#include "tensor/search.h"

static void *search(void *argument)
{
	struct spw_cache *cache = argument;

	spw_control__plan(cache->control);
	spw_cache__lock(cache);
	SPW_ASSERT(cache->searcher != 0);
	cache->searcher = 0;
	cache->io_has_ended = true; /* wakes the thread that waits for the search */
	spw_cache__unlock(cache);
	return NULL;
}

void spw_cache__search_begin(struct spw_cache *cache)
{
	int rc;

	SPW_ASSERT(cache->searcher == 0);
	cache->searcher = getpid();
	spw_cache__unlock_and_notify(cache);
	rc = cache->ports.start(search, cache);
	if (rc)
		(void)search(cache);
	spw_cache__lock(cache);
	if (rc == 0)
		return;
	cache->count.plans_here++;
	spw_notice(&cache->notices, NOTICE_SEARCH,
		   "no thread to search for a plan in (%s): the step waits for it",
		   spw_strerror(rc));
}

void spw_cache__search_wait(struct spw_cache *cache)
{
	uint64_t began_ns;

	if (cache->searcher == 0)
		return;
	began_ns = cache->ports.clock_ns();
	/* A child of fork(2) has no thread that searches. */
	while (cache->searcher != 0 && cache->searcher == getpid())
		spw_cache__wait_io(cache);
	cache->searcher = 0;
	cache->count.plan_wait_ns += spw_since_ns(began_ns, cache->ports.clock_ns());
}
