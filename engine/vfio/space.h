/* SPDX-License-Identifier: MIT */
/*
 * engine/vfio/space.h - IOVA allocator: the addresses by which controllers access memory, free and
 * mapped
 *
 * Invariants, cited by asserts and tests
 *   SPACE-1  Mappings are sorted by address, and never overlap.
 *   SPACE-2  No mapping has address 0, so that an address that was not set causes an error.
 */
#ifndef SPW_ENGINE_VFIO_SPACE_H
#define SPW_ENGINE_VFIO_SPACE_H

#include <stdbool.h>
#include <stdint.h>

#define SPW_VFIO_RANGES_MAX 32u
#define SPW_VFIO_FIRST_IOVA UINT64_C(0x1000)

struct spw_vfio_range {
	uint64_t first, last; /* both inclusive */
};

struct spw_vfio_mapping {
	struct spw_vfio_mapping *next; /* sorted by iova */
	char *memory;
	uint64_t len_bytes;
	uint64_t iova;
	unsigned users;
};

struct spw_vfio_space {
	/* usable addresses of the IOMMU, sorted */
	struct spw_vfio_range ranges[SPW_VFIO_RANGES_MAX];
	unsigned range_count;
	struct spw_vfio_mapping *mappings;
};

/* Find the lowest free address, not 0, with the memory's offset in a large page. Return: found? */
bool spw_vfio__space_find(const struct spw_vfio_space *space, const void *memory,
			  uint64_t len_bytes, uint64_t *iova);

/* Find the mapping of exactly this memory. Return: NULL: not mapped. */
struct spw_vfio_mapping *spw_vfio__space_mapping(const struct spw_vfio_space *space,
						 const void *memory, uint64_t len_bytes);

void spw_vfio__space_insert(struct spw_vfio_space *space, struct spw_vfio_mapping *mapping);
void spw_vfio__space_remove(struct spw_vfio_space *space, struct spw_vfio_mapping *mapping);

#endif
