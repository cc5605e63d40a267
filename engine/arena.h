/* SPDX-License-Identifier: MIT */
/* engine/arena.h - struct spw_arena, for the queues that register its memory */
#ifndef SPW_ENGINE_ARENA_H
#define SPW_ENGINE_ARENA_H

#include <spillway/engine.h>

#include <pthread.h>

/* The base of an arena is a multiple of this, whatever the size of its pages. */
#define SPW_HUGE_PAGE_BYTES (2u << 20)

enum spw_page_kind {
	SPW_PAGES_HUGETLB,     /* MAP_HUGETLB */
	SPW_PAGES_TRANSPARENT, /* madvise(MADV_HUGEPAGE) */
	SPW_PAGES_PLAIN,
};

struct spw_arena {
	char *base;
	uint64_t len_bytes;
	enum spw_page_kind pages;

	pthread_mutex_t lock; /* protects everything below */
	uint32_t granules;
	uint32_t lowest_free; /* no granule below this one is free */
	uint64_t *used;       /* one bit per granule; bits beyond the last are set */
	/* at the first granule of an allocation: its length in granules; else 0 */
	uint32_t *run_lengths;
	uint64_t bytes_used;
};

#endif
