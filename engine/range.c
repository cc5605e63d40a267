/* SPDX-License-Identifier: MIT */
/* engine/range.c - table of registered memory ranges: find the range or piece of a buffer */
#include "engine/range.h"

#include <stddef.h>

const struct spw_range *spw_engine__range_of(const struct spw_ranges *ranges, const void *memory,
					     uint64_t len_bytes)
{
	for (unsigned i = 0; i < ranges->top; i++) {
		const struct spw_range *range = &ranges->each[i];
		uint64_t first = (uintptr_t)memory - range->base;

		if (first < range->len_bytes && len_bytes <= range->len_bytes - first)
			return range;
	}
	return NULL;
}

int16_t spw_engine__range_piece(const struct spw_ranges *ranges, const void *memory,
				uint32_t len_bytes, unsigned piece_shift)
{
	const struct spw_range *range = spw_engine__range_of(ranges, memory, len_bytes);
	uint64_t first, piece;

	if (!range || range->first_piece < 0)
		return -1;
	first = (uintptr_t)memory - range->base;
	piece = first >> piece_shift;
	if ((first + len_bytes - 1) >> piece_shift != piece)
		return -1;
	return (int16_t)((uint64_t)range->first_piece + piece);
}

const struct spw_range *spw_engine__range_overlapping(const struct spw_ranges *ranges,
						      uintptr_t base, uint64_t len_bytes)
{
	for (unsigned i = 0; i < ranges->top; i++) {
		const struct spw_range *range = &ranges->each[i];

		if (spw_engine__memory_overlaps(base, len_bytes, range->base, range->len_bytes))
			return range;
	}
	return NULL;
}

struct spw_range *spw_engine__range_take(struct spw_ranges *ranges)
{
	unsigned i = 0;

	while (i < ranges->top && ranges->each[i].len_bytes > 0)
		i++;
	if (i == SPW_RANGES_MAX)
		return NULL;
	if (i == ranges->top)
		ranges->top++;
	return &ranges->each[i];
}

void spw_engine__range_give(struct spw_ranges *ranges, struct spw_range *range)
{
	*range = (struct spw_range){.first_piece = -1};
	while (ranges->top > 0 && ranges->each[ranges->top - 1].len_bytes == 0)
		ranges->top--;
}

struct spw_range *spw_engine__range_at(struct spw_ranges *ranges, const void *memory)
{
	for (unsigned i = 0; i < ranges->top; i++)
		if (ranges->each[i].len_bytes > 0 && ranges->each[i].base == (uintptr_t)memory)
			return &ranges->each[i];
	return NULL;
}

uint64_t spw_engine__range_bytes(const struct spw_ranges *ranges)
{
	uint64_t bytes = 0;

	for (unsigned i = 0; i < ranges->top; i++)
		bytes += ranges->each[i].first_piece >= 0 ? ranges->each[i].len_bytes : 0;
	return bytes;
}
