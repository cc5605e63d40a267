/* SPDX-License-Identifier: MIT */
/*
 * engine/range.h - table of registered memory ranges: find the range or piece that holds a buffer
 */
#ifndef SPW_ENGINE_RANGE_H
#define SPW_ENGINE_RANGE_H

#include <stdbool.h>
#include <stdint.h>

/* Ranges at the same time. Callers should register larger ranges, which costs nothing. */
#define SPW_RANGES_MAX 64u

struct spw_range {
	uintptr_t base;
	uint64_t len_bytes;  /* 0: the entry is unused */
	int32_t first_piece; /* index of a piece of the backend; -1: not registered */
	uint32_t pieces;
};

struct spw_ranges {
	unsigned top; /* entries from this index on are unused */
	struct spw_range each[SPW_RANGES_MAX];
};

static inline bool spw_engine__memory_overlaps(uintptr_t a, uint64_t a_bytes, uintptr_t b,
					       uint64_t b_bytes)
{
	return a < b + b_bytes && b < a + a_bytes;
}

/* Return: the range that contains all of the memory, or NULL. */
const struct spw_range *spw_engine__range_of(const struct spw_ranges *ranges, const void *memory,
					     uint64_t len_bytes);

/* Return: the registered piece, of 2^@piece_shift bytes, that contains all of the memory; or -1. */
int16_t spw_engine__range_piece(const struct spw_ranges *ranges, const void *memory,
				uint32_t len_bytes, unsigned piece_shift);

/* Return: a range that overlaps the memory, or NULL. */
const struct spw_range *spw_engine__range_overlapping(const struct spw_ranges *ranges,
						      uintptr_t base, uint64_t len_bytes);

/* Take an unused entry. Return: NULL: all SPW_RANGES_MAX are used. */
struct spw_range *spw_engine__range_take(struct spw_ranges *ranges);
void spw_engine__range_give(struct spw_ranges *ranges, struct spw_range *range);

/* Return: the range that begins at @memory, or NULL. */
struct spw_range *spw_engine__range_at(struct spw_ranges *ranges, const void *memory);

/* Sum of the lengths of all registered ranges. */
uint64_t spw_engine__range_bytes(const struct spw_ranges *ranges);

#endif
