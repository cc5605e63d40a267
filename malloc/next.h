/* SPDX-License-Identifier: MIT */
/*
 * malloc/next.h - the allocator behind this one: libc's, or another that is preloaded or linked
 *
 * Contract
 *   Threads   Any, from the first instruction of the process on.
 *   Memory    What one function of the table returns, the others take. While a thread fills the
 *             table it is served by spw_next_early().
 */
#ifndef SPW_MALLOC_NEXT_H
#define SPW_MALLOC_NEXT_H

#include <stdbool.h>
#include <stddef.h>

struct spw_next {
	void *(*malloc)(size_t size);
	void *(*calloc)(size_t count, size_t size);
	void *(*realloc)(void *block, size_t size);
	void (*free)(void *block);
	void *(*memalign)(size_t align, size_t size);
	void *(*aligned_alloc)(size_t align, size_t size);
	int (*posix_memalign)(void **block, size_t align, size_t size);
	size_t (*malloc_usable_size)(void *block);
};

/* NULL: this thread is filling the table. */
const struct spw_next *spw_next(void);

/* Zeroed memory at a multiple of 64 that is never freed; NULL: there is no more of it. */
void *spw_next_early(size_t size);

/* How many bytes lie between @block and the end of what spw_next_early() has; 0: not its own. */
size_t spw_next_early_bytes(const void *block);

/* The file whose malloc() or free() lies behind this one instead of libc's; NULL: none. */
const char *spw_next_foreign(void);

#endif
