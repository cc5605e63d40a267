/* SPDX-License-Identifier: MIT */
/*
 * engine/range.h - stretches of memory, and which of their registered pieces holds a buffer
 */
#ifndef SPW_ENGINE_RANGE_H
#define SPW_ENGINE_RANGE_H

#include <stdbool.h>
#include <stdint.h>

/* At once; larger ranges, rather than more, cost nothing. */
#define SPW_RANGES_MAX 64u

struct spw_range {
	uintptr_t base;
	uint64_t len_bytes;  /* 0: there is none here */
	int32_t first_piece; /* among the backend's; -1: not registered */
	uint32_t pieces;
};

struct spw_ranges {
	unsigned top; /* behind it there are none */
	struct spw_range each[SPW_RANGES_MAX];
};

static inline bool spw_engine__memory_overlaps(uintptr_t a, uint64_t a_bytes, uintptr_t b,
					       uint64_t b_bytes)
{
	return a < b + b_bytes && b < a + a_bytes;
}

/* Return: the one that holds all of it, or NULL. */
const struct spw_range *spw_engine__range_of(const struct spw_ranges *ranges, const void *memory,
					     uint64_t len_bytes);

/* Return: the registered piece, of 2^piece_shift bytes, that holds all of it; -1: none does. */
int16_t spw_engine__range_piece(const struct spw_ranges *ranges, const void *memory,
				uint32_t len_bytes, unsigned piece_shift);

/* Return: one that has some of it, or NULL. */
const struct spw_range *spw_engine__range_overlapping(const struct spw_ranges *ranges,
						      uintptr_t base, uint64_t len_bytes);

/* Return: an unused place; NULL: there are as many as can be. */
struct spw_range *spw_engine__range_take(struct spw_ranges *ranges);
void spw_engine__range_give(struct spw_ranges *ranges, struct spw_range *range);

/* Return: the one that begins there, or NULL. */
struct spw_range *spw_engine__range_at(struct spw_ranges *ranges, const void *memory);

/* Of all that are registered. */
uint64_t spw_engine__range_bytes(const struct spw_ranges *ranges);

#endif
