/* SPDX-License-Identifier: MIT */
/*
 * malloc/preload.h - libspillway_malloc.so: large blocks for programs that do not know of it
 *
 * Loaded by `spillway run`, it serves malloc(), calloc(), realloc(), posix_memalign() and their
 * like from 1 MiB on out of memory on huge pages that is reused as it is: no page is faulted again
 * in every step, and blocks begin at multiples of 64 KiB, so that drives take them without a copy.
 * All else, and what does not fit, comes from libc. Where another allocator takes libc's place,
 * preloaded or linked, everything comes from that one.
 *
 * SPILLWAY_MALLOC_BYTES        address space for it (as much as there is memory; half of what
 *                              ulimit -v allows)
 * SPILLWAY_MALLOC_CACHE_BYTES  most bytes that stay resident while free (1 GiB)
 * SPILLWAY_MALLOC_PID          the process that says which other allocator there is (none)
 *
 * Safe in threads, and across fork(). A block that is freed twice ends the program, as of libc; so
 * does a library loaded with RTLD_DEEPBIND, which frees by libc what others have allocated, as with
 * every allocator that is preloaded.
 */
#ifndef SPW_MALLOC_PRELOAD_H
#define SPW_MALLOC_PRELOAD_H

#include <stddef.h>
#include <stdint.h>

struct spw_malloc_stats {
	size_t size;
	uint64_t used_bytes;          /* in blocks that are in use */
	uint64_t resident_free_bytes; /* free, and still there */
	uint64_t taken, reused;       /* blocks; those of them whose pages were there */
	uint64_t refused;             /* did not fit: came from the next allocator */
	uint64_t returned_bytes;      /* to the system */
};

__attribute__((visibility("default"))) void spw_malloc_stats(struct spw_malloc_stats *stats,
							     size_t size);

#endif
