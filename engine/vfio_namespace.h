/* SPDX-License-Identifier: MIT */
/* engine/vfio_namespace.h - what the backend sees of a namespace behind vfio */
#ifndef SPW_ENGINE_VFIO_NAMESPACE_H
#define SPW_ENGINE_VFIO_NAMESPACE_H

#include "engine/vfio_controller.h"

#define SPW_VFIO_WRITE_ZEROES 0x08

struct holding;

struct spw_vfio_namespace {
	struct spw_vfio_namespace *next; /* of the same controller */
	struct holding *holding;
	struct spw_vfio_controller *controller;
	struct spw_nvme_namespace nvme;
	uint64_t command_bytes_max; /* what one command carries, by the controller and by its count of blocks */
	uint32_t physical_block_bytes;
	bool exclusive;
	char path[SPW_VFIO_NAME_BYTES];
};

/* The placement identifiers that writes may carry. Return: how many; 0: none. */
int spw_vfio_placements(struct spw_vfio_namespace *ns, uint16_t ids[SPW_NVME_PLACEMENTS_MAX]);

#endif
