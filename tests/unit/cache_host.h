/* SPDX-License-Identifier: MIT */
/* tests/unit/cache_host.h - host memory that a test gives a cache */
#ifndef SPW_TEST_CACHE_HOST_H
#define SPW_TEST_CACHE_HOST_H

#include "tests/case.h"

#include <spillway/cache.h>
#include <spillway/engine.h>

/* To be closed after the cache. Its length is a multiple of 2 MiB. */
static inline struct spw_arena *host_given(struct spw_cache *cache, uint64_t len_bytes)
{
	struct spw_arena_opts opts;
	struct spw_arena *arena;

	spw_arena_opts_init(&opts, sizeof(opts));
	opts.bytes = len_bytes;
	opts.no_hugetlb = true;
	assert_int_equal(spw_arena_open(&opts, &arena), 0);
	assert_int_equal(spw_cache_host_memory(cache, arena), 0);
	return arena;
}

#endif
