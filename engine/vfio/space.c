/* SPDX-License-Identifier: MIT */
/* engine/vfio/space.c - IOVA allocator: the addresses by which controllers access memory */
#include <stddef.h>

#include "engine/vfio/space.h"
#include "util/util.h"

#define LARGE_PAGE_BYTES (UINT64_C(2) << 20)

/* The lowest address from @at with @memory's offset in a large page. Return: false: none. */
static bool align(uint64_t at, const void *memory, uint64_t *aligned)
{
	uint64_t offset = (uintptr_t)memory & (LARGE_PAGE_BYTES - 1);
	uint64_t base = at & ~(LARGE_PAGE_BYTES - 1);

	if (base + offset < at && __builtin_add_overflow(base, LARGE_PAGE_BYTES, &base))
		return false;
	*aligned = base + offset;
	return true;
}

static bool find_in(const struct spw_vfio_space *space, const struct spw_vfio_range *range,
		    const void *memory, uint64_t len_bytes, uint64_t *iova)
{
	uint64_t at = range->first > 0 ? range->first : SPW_VFIO_FIRST_IOVA;

	for (const struct spw_vfio_mapping *m = space->mappings;; m = m->next) {
		uint64_t last;

		while (m && m->iova + (m->len_bytes - 1) < at)
			m = m->next;
		if (!align(at, memory, iova) ||
		    __builtin_add_overflow(*iova, len_bytes - 1, &last) || last > range->last)
			return false;
		if (!m || last < m->iova)
			return true;
		if (__builtin_add_overflow(m->iova, m->len_bytes, &at))
			return false;
	}
}

bool spw_vfio__space_find(const struct spw_vfio_space *space, const void *memory,
			  uint64_t len_bytes, uint64_t *iova)
{
	for (unsigned i = 0; i < space->range_count; i++)
		if (find_in(space, &space->ranges[i], memory, len_bytes, iova))
			return true;
	return false;
}

struct spw_vfio_mapping *spw_vfio__space_mapping(const struct spw_vfio_space *space,
						 const void *memory, uint64_t len_bytes)
{
	for (struct spw_vfio_mapping *m = space->mappings; m; m = m->next)
		if (m->memory == memory && m->len_bytes == len_bytes)
			return m;
	return NULL;
}

void spw_vfio__space_insert(struct spw_vfio_space *space, struct spw_vfio_mapping *mapping)
{
	struct spw_vfio_mapping **at = &space->mappings;
	const struct spw_vfio_mapping *before = NULL;

	while (*at && (*at)->iova < mapping->iova) {
		before = *at;
		at = &(*at)->next;
	}
	SPW_ASSERT(mapping->iova > 0); /* never address 0 (SPACE-2) */
	SPW_ASSERT(!*at || mapping->iova + (mapping->len_bytes - 1) < (*at)->iova);
	/* no overlap (SPACE-1) */
	SPW_ASSERT(!before || before->iova + (before->len_bytes - 1) < mapping->iova);
	mapping->next = *at;
	*at = mapping;
}

void spw_vfio__space_remove(struct spw_vfio_space *space, struct spw_vfio_mapping *mapping)
{
	struct spw_vfio_mapping **at = &space->mappings;

	while (*at != mapping) {
		SPW_ASSERT(*at); /* the mapping must be in the list */
		at = &(*at)->next;
	}
	*at = mapping->next;
}
