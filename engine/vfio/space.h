/* SPDX-License-Identifier: MIT */
/*
 * engine/vfio/space.h - the addresses by which controllers reach memory, free and mapped
 *
 * Invariants, cited by asserts and tests
 *   SPACE-1  Mappings are in the order of their addresses, and no two overlap.
 *   SPACE-2  No mapping has address 0: what was forgotten points there.
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
	struct spw_vfio_mapping *next; /* by iova */
	char *memory;
	uint64_t len_bytes;
	uint64_t iova;
	unsigned users;
};

struct spw_vfio_space {
	struct spw_vfio_range ranges[SPW_VFIO_RANGES_MAX]; /* what the IOMMU takes, in order */
	unsigned range_count;
	struct spw_vfio_mapping *mappings;
};

/* The lowest free place with the memory's offset in a large page, not 0. Return: is there room? */
bool spw_vfio__space_find(const struct spw_vfio_space *space, const void *memory,
			  uint64_t len_bytes, uint64_t *iova);

/* NULL: just this memory is not mapped. */
struct spw_vfio_mapping *spw_vfio__space_mapping(const struct spw_vfio_space *space,
						 const void *memory, uint64_t len_bytes);

void spw_vfio__space_insert(struct spw_vfio_space *space, struct spw_vfio_mapping *mapping);
void spw_vfio__space_remove(struct spw_vfio_space *space, struct spw_vfio_mapping *mapping);

#endif
