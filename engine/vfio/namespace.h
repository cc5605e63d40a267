/* SPDX-License-Identifier: MIT */
/* engine/vfio/namespace.h - struct spw_vfio_namespace: an open namespace behind vfio */
#ifndef SPW_ENGINE_VFIO_NAMESPACE_H
#define SPW_ENGINE_VFIO_NAMESPACE_H

#include "engine/device.h"
#include "engine/vfio/controller.h"

#define SPW_VFIO_WRITE_ZEROES 0x08

struct holding;
struct range_lock;

struct spw_vfio_namespace {
	struct spw_vfio_namespace *next; /* next open one of the same controller */
	struct holding *holding;
	struct range_lock *locks;
	struct spw_vfio_controller *controller;
	struct spw_nvme_namespace nvme;
	/* limit of one command, by the controller and by its field for blocks */
	uint64_t command_bytes_max;
	uint64_t deallocate_bytes_max; /* limit of one Dataset Management */
	uint64_t zeroes_bytes_max;     /* limit of one Write Zeroes; 0: not supported */
	uint32_t physical_block_bytes;
	uint8_t unique[24]; /* globally unique identifiers; zeroes: there are none */
	bool exclusive;
	char path[SPW_VFIO_NAME_BYTES];
};

/* The namespace of a device; NULL: it is not behind vfio. */
static inline struct spw_vfio_namespace *spw_vfio__of(const struct spw_device *device)
{
	return device->geometry.kind == SPW_DEVICE_VFIO ? device->state : NULL;
}

/* Was the namespace formatted or replaced since it was opened? Identifies it again. */
bool spw_vfio__has_changed(const struct spw_vfio_namespace *ns);

/* The placement identifiers that writes may carry. Return: how many; 0: none. */
int spw_vfio__placements(struct spw_vfio_namespace *ns, uint16_t ids[SPW_NVME_PLACEMENTS_MAX]);

#endif
