/* SPDX-License-Identifier: MIT */
/* engine/arena.h - struct spw_arena, for the queues that register its memory */
#ifndef SPW_ENGINE_ARENA_H
#define SPW_ENGINE_ARENA_H

#include <spillway/engine.h>

#include <pthread.h>
#include <stdbool.h>

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
	/* no granule from here on was allocated since its pages were given back */
	uint32_t touched_end;
	bool stays; /* others may have pinned the pages: none is given back */
};

/* The end of the highest allocation, from the base. */
uint64_t spw_engine__arena_end(struct spw_arena *arena);

/* How many bytes after the highest allocation may be resident; 0 if they are to stay. */
uint64_t spw_engine__arena_idle_bytes(struct spw_arena *arena);

/*
 * Give the pages after the highest allocation, but none below @from_bytes, back to the system: they
 * read as zeros when they are allocated again, and are other pages. No ring or device knows them,
 * and nothing is in flight there. Return: how many bytes may have been resident.
 */
uint64_t spw_engine__arena_give_back(struct spw_arena *arena, uint64_t from_bytes);

/* From now on no page is given back, because somebody else pins them. */
void spw_engine__arena_stay(struct spw_arena *arena);

#endif
