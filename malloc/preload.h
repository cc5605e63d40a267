/* SPDX-License-Identifier: MIT */
/*
 * malloc/preload.h - libspillway_malloc.so: huge pages for large blocks of unmodified programs
 *
 * `spillway run` preloads it. It serves malloc(), calloc(), realloc(), posix_memalign() and similar
 * functions for blocks of at least 1 MiB, on huge pages that stay resident when freed. So pages are
 * not faulted in again in every step, and blocks begin at multiples of 64 KiB, so that drives can
 * transfer them without a copy. Smaller blocks, and those that do not fit, come from libc. If
 * another allocator is preloaded or linked, everything comes from that one.
 *
 * SPILLWAY_MALLOC_BYTES        address space to reserve (default: the size of memory, at most half
 *                              of ulimit -v)
 * SPILLWAY_MALLOC_CACHE_BYTES  most bytes that stay resident while free (default: 1 GiB)
 * SPILLWAY_MALLOC_PID          the process that reports another allocator on stderr (default: no
 *                              process)
 *
 * spw_malloc_step() says that a step of training begins: what stays resident while free is then
 * bounded by what the last few steps had in use, and no longer by all since the program began.
 *
 * Thread-safe, also across fork(). A double free aborts the program, as with libc. As with every
 * preloaded allocator, so does a library loaded with RTLD_DEEPBIND: it calls libc's free() with
 * blocks that others have allocated.
 */
#ifndef SPW_MALLOC_PRELOAD_H
#define SPW_MALLOC_PRELOAD_H

#include <stddef.h>
#include <stdint.h>

struct spw_malloc_stats {
	size_t size;
	uint64_t used_bytes;          /* in blocks that are in use */
	uint64_t resident_free_bytes; /* in free blocks whose pages are resident */
	uint64_t taken, reused;       /* blocks allocated; those whose pages were resident */
	uint64_t refused;             /* blocks that did not fit and came from the next allocator */
	uint64_t returned_bytes;      /* returned to the system */
};

__attribute__((visibility("default"))) void spw_malloc_stats(struct spw_malloc_stats *stats,
							     size_t size);
__attribute__((visibility("default"))) void spw_malloc_step(void);

#endif
