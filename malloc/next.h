/* SPDX-License-Identifier: MIT */
/*
 * malloc/next.h - the allocator behind this one: libc's, or another that is preloaded or linked
 *
 * Contract
 *   Threads   Any thread, even before main() and constructors.
 *   Memory    The functions of the table belong to one allocator. While a thread fills the table,
 *             the caller allocates with spw_next_early().
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

/* Allocate zeroed memory, aligned to 64 bytes and never freed; NULL: it is used up. */
void *spw_next_early(size_t size);

/* Bytes from @block to the end of the early memory; 0: not from spw_next_early(). */
size_t spw_next_early_bytes(const void *block);

/* The file whose malloc() or free() comes after ours instead of libc's; NULL: libc's does. */
const char *spw_next_foreign(void);

#endif
