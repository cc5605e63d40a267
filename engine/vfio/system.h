/* SPDX-License-Identifier: MIT */
/* engine/vfio/system.h - NVMe controllers in sysfs, or in a test's copy of it */
#ifndef SPW_ENGINE_VFIO_SYSTEM_H
#define SPW_ENGINE_VFIO_SYSTEM_H

#include <spillway/vfio.h>

#include "util/util.h"

struct spw_vfio_system {
	const char *sysfs; /* "/sys" */
	const char *dev;   /* "/dev" */
	/* "/proc/devices": the kinds of character devices */
	const char *char_devices;
	/* Write @text to the attribute at @path. Return: 0 or a negative errno. */
	int (*write)(const char *path, const char *text);
	bool namespaces_are_files; /* in tests: nodes have no device number */
	uint64_t memlock_bytes;    /* how much this process may lock; 0: ask the kernel */
};

extern const char spw_vfio__driver[]; /* "vfio-pci" */

#define SPW_VFIO_CLASS_NVME 0x010802

extern const struct spw_vfio_system spw_vfio__here; /* the system itself */

/* Path of a file in a controller's folder; "": the folder. Lives as long as SPW_PATH(). */
#define SPW_VFIO_FILE(system, address, file) \
	SPW_PATH("%s/bus/pci/devices/%s/%s", (system)->sysfs, address, file)

/* The last part of the target of a symlink such as "driver". Return: false and "": no such link. */
bool spw_vfio__read_link(const struct spw_vfio_system *system, const char *address,
			 const char *link, char *name, size_t len);

/* The device's name for iommufd, "vfio0". Return: false: it has none, or there is no IOMMU. */
bool spw_vfio__find_name(const struct spw_vfio_system *system, const char *address, char name[64]);

/*
 * Get the name of a namespace's block device, by the name of its entry in sysfs: "nvme0n1"; also
 * for "nvme0c1n1", its path through controller 1. Return: false if the entry is no namespace.
 */
bool spw_vfio__block_name(const char *entry, char *name, size_t len);

/* Fill in what sysfs tells of a controller, without obstacles. Return: as spw_vfio_examine(). */
int spw_vfio__identify(const struct spw_vfio_system *system, const char *address,
		       struct spw_vfio_probe_info *controller);

/*
 * Call @visit with each namespace's node, which is verified, or with its name, "nvme0n1", until it
 * returns non-zero. Return: what @visit returned; 0; -errno.
 */
int spw_vfio__each_node(const struct spw_vfio_system *system, const char *address,
			int (*visit)(void *context, const char *node), void *context);
int spw_vfio__each_name(const struct spw_vfio_system *system, const char *address,
			int (*visit)(void *context, const char *name), void *context);

#endif
