/* SPDX-License-Identifier: MIT */
/*
 * alloc/alloc.h - extent allocator: which blocks of one drive's partition are free
 *
 * No I/O, one thread at a time (the store's I/O worker). O(1) allocate and free with coalescing: a
 * two-level segregated fit with its metadata outside the managed space, which is on a drive.
 *
 * Contract
 *   Blocks     numbered 0 .. blocks_total - 1. Extents never overlap and are never empty.
 *   Errors     0 or a negative errno; spw_last_error() has words for what spw_alloc__open()
 *              returns, -ENOSPC of the others is an answer and has none. Freeing what is not
 *              allocated is a programming error: an assert, kept in release builds.
 *   Order      An extent is cut from the low end of a free one: of its own size class if one of the
 *              first eight there fits, else of the lowest class that surely fits; and the rest is
 *              the next to be cut in its class. So what is allocated in turn lies in turn until a
 *              better fitting hole is freed or the free extent ends, and an allocator with nothing
 *              allocated starts again at block 0. No more is promised: freed holes of one class are
 *              reused latest first, not by address.
 *   Memory     all metadata is allocated by spw_alloc__open(), in proportion to the extents that
 *              may exist at once; none later.
 */
#ifndef SPW_ALLOC_H
#define SPW_ALLOC_H

#include <stdbool.h>
#include <stdint.h>

struct spw_alloc; /* opaque */

#define SPW_ALLOC_BLOCKS_MAX  (UINT64_C(1) << 40)
#define SPW_ALLOC_EXTENTS_MAX (UINT64_C(1) << 30)

struct spw_extent {
	uint64_t start_block;
	uint64_t len_blocks;
	/* the allocator's own, never 0: names the extent as long as it is allocated */
	uint32_t handle;
};

/**
 * spw_alloc__open - an allocator over @blocks_total free blocks
 * @extents_max:  allocated extents that may exist at once; memory is reserved for that many (and
 *                the free ones between them) and committed as it is used
 *
 * Return: 0; -EINVAL blocks_total is 0 or above SPW_ALLOC_BLOCKS_MAX, or extents_max is 0 or above
 * SPW_ALLOC_EXTENTS_MAX; -ENOMEM.
 */
int spw_alloc__open(uint64_t blocks_total, uint64_t extents_max, struct spw_alloc **alloc);
void spw_alloc__close(struct spw_alloc *alloc);

/**
 * spw_alloc__get - allocate exactly @len_blocks contiguous blocks; at least 1
 *
 * Constant time, unless only the size class of @len_blocks itself could hold a fit (no larger class
 * has an extent): then that one class is searched to its end, so that the answer is exact. Sizes
 * below 32 and multiples of their class's width never search.
 *
 * Return: 0; -ENOSPC no free extent is that long, or extents_max is reached.
 */
int spw_alloc__get(struct spw_alloc *alloc, uint64_t len_blocks, struct spw_extent *extent);

/**
 * spw_alloc__get_some - allocate up to @len_blocks contiguous blocks: as many as asked for if
 * possible, else one of the largest free extents, whole
 *
 * Always constant time: it looks at a bounded number of extents of one class, so what it gives may
 * be up to 1/32 shorter than the best there is.
 *
 * Return: 0; -ENOSPC nothing is free at all, or extents_max is reached.
 */
int spw_alloc__get_some(struct spw_alloc *alloc, uint64_t len_blocks, struct spw_extent *extent);

/**
 * spw_alloc__get_at - allocate these very blocks, as they were before a restart
 *
 * Constant time if they lie behind all that is allocated; else linear in the extents behind them.
 *
 * Return: 0; -ERANGE beyond the end, or none; -EEXIST some are allocated; -ENOSPC extents_max is
 * reached.
 */
int spw_alloc__get_at(struct spw_alloc *alloc, uint64_t start_block, uint64_t len_blocks,
		      struct spw_extent *extent);

/* Give an extent back as it was allocated (asserted); joins free neighbours. O(1). */
void spw_alloc__put(struct spw_alloc *alloc, const struct spw_extent *extent);

/* The allocated extent of a handle (asserted): for the caller that keeps the handle alone. */
void spw_alloc__extent(const struct spw_alloc *alloc, uint32_t handle, struct spw_extent *extent);

uint64_t spw_alloc__blocks_free(const struct spw_alloc *alloc);

/* For tests: check every invariant of alloc.c. Return: 0, or the number of a broken one. */
int spw_alloc__verify(const struct spw_alloc *alloc);

#endif
