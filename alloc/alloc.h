/* SPDX-License-Identifier: MIT */
/*
 * alloc/alloc.h - extent allocator: which blocks of one drive's partition are free
 *
 * No I/O, one thread at a time (the store's I/O worker). O(1) allocate and free with coalescing: a
 * two-level segregated fit with its metadata outside the managed space, which is on a drive.
 *
 * Contract
 *   Blocks     numbered 0 .. blocks_total - 1. Extents never overlap and are never empty.
 *   Errors     0 or a negative errno; spw_alloc__open() sets spw_last_error() when it fails; the
 *              -ENOSPC of the other functions is an ordinary answer and sets no message. Freeing
 *              what is not allocated is a programming error: an assert, kept in release builds.
 *   Order      An extent is cut from the low end of a free extent: one of the first eight in the
 *              request's own size class if one of them fits, else one of the lowest class that
 *              surely fits. The remainder goes to the head of its class's list and is cut next. So
 *              successive allocations are adjacent until a better fitting hole is freed or the free
 *              extent is used up, and an empty allocator starts at block 0. Nothing else is
 *              guaranteed: freed holes of one class are reused last in, first out, not by address.
 *   Memory     spw_alloc__open() allocates all metadata, in proportion to the extents that may
 *              exist at once; no memory is allocated later.
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
	/* the allocator's name for the extent while it is allocated; never 0 */
	uint32_t handle;
};

/**
 * spw_alloc__open - an allocator over @blocks_total free blocks
 * @extents_max:  how many allocated extents may exist at once; memory for their descriptors, and
 *                for those of the free extents between them, is reserved now and committed as it is
 *                used
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
 * possible, else all of one of the largest free extents
 *
 * Always constant time: it looks at a bounded number of extents of one class, so the extent may be
 * up to 1/32 shorter than the longest free one.
 *
 * Return: 0; -ENOSPC nothing is free at all, or extents_max is reached.
 */
int spw_alloc__get_some(struct spw_alloc *alloc, uint64_t len_blocks, struct spw_extent *extent);

/**
 * spw_alloc__get_at - allocate exactly these blocks, which were allocated before a restart
 *
 * Constant time if they lie behind all allocated extents; else linear in the number of extents
 * behind them.
 *
 * Return: 0; -ERANGE the range is empty or ends beyond the last block; -EEXIST some of the blocks
 * are allocated; -ENOSPC extents_max is reached.
 */
int spw_alloc__get_at(struct spw_alloc *alloc, uint64_t start_block, uint64_t len_blocks,
		      struct spw_extent *extent);

/*
 * Free an extent, exactly as it was allocated (asserted), and merge it with free neighbours. O(1).
 */
void spw_alloc__put(struct spw_alloc *alloc, const struct spw_extent *extent);

/* Look up an allocated extent (asserted) by its handle, for callers that store only the handle. */
void spw_alloc__extent(const struct spw_alloc *alloc, uint32_t handle, struct spw_extent *extent);

uint64_t spw_alloc__blocks_free(const struct spw_alloc *alloc);

/* For tests: check every invariant of alloc.c. Return: 0, or the number of a violated one. */
int spw_alloc__verify(const struct spw_alloc *alloc);

#endif
