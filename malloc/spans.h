/* SPDX-License-Identifier: MIT */
/*
 * malloc/spans.h - large blocks out of one range of address space, reused while their pages exist
 *
 * Contract
 *   Threads   None: the caller locks.
 *   Memory    The range is reserved once and never released. What is free in it is resident up to
 *             a limit and the peak of what was in use; what is beyond reads as zeros again.
 *   Errors    0 or a negative errno. A block that cannot be had is NULL: the caller goes elsewhere.
 */
#ifndef SPW_MALLOC_SPANS_H
#define SPW_MALLOC_SPANS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SPW_SPAN_BYTES ((size_t)64 << 10) /* blocks begin and end at multiples of it */
#define SPW_SPAN_BINS  33

struct spw_spans {
	char *base;
	uint32_t count; /* of units of SPW_SPAN_BYTES */
	/* of the block that begins in a unit; of one that is free also in its last unit; else 0 */
	uint32_t *len;
	/* of the block that begins, or is free and ends, in a unit; of others it means nothing */
	uint8_t *state;
	/* in the list of a bin, by first unit; heads are in bins */
	uint32_t *next, *prev;
	uint32_t bins[2][SPW_SPAN_BINS]; /* [clean][log2 of the length]: first unit + 1, or 0 */
	uint64_t resident_max_bytes;

	uint64_t used_bytes, used_max_bytes, resident_free_bytes;
	uint64_t taken, reused, refused, returned_bytes;
};

int spw_spans_init(struct spw_spans *spans, uint64_t size_bytes, uint64_t resident_max_bytes);
void spw_spans_destroy(struct spw_spans *spans);

/* @zeroed: whether all of it reads as zeros. Return: a block, or NULL. */
void *spw_spans_take(struct spw_spans *spans, size_t len_bytes, bool *zeroed);

/* Whether an address of the range is one that was taken and not given since. */
bool spw_spans_used(const struct spw_spans *spans, const void *block);

/* The whole length of a block that was taken. */
size_t spw_spans_len_bytes(const struct spw_spans *spans, const void *block);
void spw_spans_give(struct spw_spans *spans, void *block);

static inline bool spw_spans_own(const struct spw_spans *spans, const void *address)
{
	return (uintptr_t)address - (uintptr_t)spans->base <
	       (uintptr_t)spans->count * SPW_SPAN_BYTES;
}

#endif
