/* SPDX-License-Identifier: MIT */
/*
 * malloc/spans.h - large blocks from one reserved range of addresses; free ones stay resident for
 * reuse
 *
 * Contract
 *   Threads   Not thread-safe: the caller locks.
 *   Memory    The range is reserved once and never released. Free memory stays resident up to a
 *             limit, and so that used and free memory together do not exceed the peak of used
 *             memory, of the last SPW_SPAN_STEPS steps where there are steps; the rest is
 *             returned to the system and reads as zeros again.
 *   Errors    0 or a negative errno. NULL if no block fits: the caller uses another allocator.
 */
#ifndef SPW_MALLOC_SPANS_H
#define SPW_MALLOC_SPANS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SPW_SPAN_BYTES ((size_t)64 << 10) /* the unit: blocks begin and end at multiples of it */
#define SPW_SPAN_BINS  33
#define SPW_SPAN_STEPS 4

struct spw_spans {
	char *base;
	uint32_t count; /* number of units of SPW_SPAN_BYTES */
	/* by unit: length of the block that begins there, or that is free and ends there; else 0 */
	uint32_t *len;
	/* by unit: state of the block that begins there, or is free and ends there; else invalid */
	uint8_t *state;
	/* by first unit of a free block: the neighbours in the list of its bin */
	uint32_t *next, *prev;
	uint32_t bins[2][SPW_SPAN_BINS]; /* [clean][log2 of the length]: first unit + 1; 0: empty */
	uint64_t resident_max_bytes;

	uint64_t used_bytes, resident_free_bytes;
	uint64_t used_max_bytes; /* of all steps in step_max_bytes */
	/* most that was in use in each of the last steps; that of the current one is the first */
	uint64_t step_max_bytes[SPW_SPAN_STEPS];
	uint64_t taken, reused, refused, returned_bytes;
};

int spw_spans_init(struct spw_spans *spans, uint64_t size_bytes, uint64_t resident_max_bytes);
void spw_spans_destroy(struct spw_spans *spans);

/* Allocate a block. *zeroed: whether all of it reads as zeros. Return: the block, or NULL. */
void *spw_spans_take(struct spw_spans *spans, size_t len_bytes, bool *zeroed);

/* Whether an address in the range is the start of a block in use. */
bool spw_spans_used(const struct spw_spans *spans, const void *block);

/* The whole length of a block that was taken. */
size_t spw_spans_len_bytes(const struct spw_spans *spans, const void *block);
void spw_spans_give(struct spw_spans *spans, void *block);

/* A step of training begins: what an earlier one than the last few had in use counts no more. */
void spw_spans_step(struct spw_spans *spans);

static inline bool spw_spans_own(const struct spw_spans *spans, const void *address)
{
	return (uintptr_t)address - (uintptr_t)spans->base <
	       (uintptr_t)spans->count * SPW_SPAN_BYTES;
}

#endif
