/* SPDX-License-Identifier: MIT */
/* engine/vfio/system.h - NVMe controllers as sysfs shows them, or a test's stand-in for it */
#ifndef SPW_ENGINE_VFIO_SYSTEM_H
#define SPW_ENGINE_VFIO_SYSTEM_H

#include <spillway/vfio.h>

#include "util/util.h"

struct spw_vfio_system {
	const char *sysfs; /* "/sys" */
	const char *dev;   /* "/dev" */
	/* "/proc/devices": kinds of character devices that the kernel has now */
	const char *char_devices;
	/* Write @text to the attribute at @path. Return: 0 or a negative errno. */
	int (*write)(const char *path, const char *text);
	bool namespaces_are_files; /* of a test: they have no device number */
	uint64_t memlock_bytes;    /* that this process may lock; 0: as the kernel says */
};

extern const char spw_vfio__driver[]; /* "vfio-pci" */

#define SPW_VFIO_CLASS_NVME 0x010802

extern const struct spw_vfio_system spw_vfio__here; /* the system itself */

/* A file or a folder of a controller; "": its folder. As SPW_PATH(). */
#define SPW_VFIO_FILE(system, address, file) \
	SPW_PATH("%s/bus/pci/devices/%s/%s", (system)->sysfs, address, file)

/* The last name in a link of the controller's folder, "driver". Return: false and "": none. */
bool spw_vfio__read_link(const struct spw_vfio_system *system, const char *address,
			 const char *link, char *name, size_t len);

/* "vfio0": by which iommufd has it. Return: false: without an IOMMU it is named otherwise. */
bool spw_vfio__find_name(const struct spw_vfio_system *system, const char *address, char name[64]);

/* Block device of an entry: "nvme0n1", also for "nvme0c1n1". Return: false for others. */
bool spw_vfio__block_name(const char *entry, char *name, size_t len);

/* What sysfs says of a controller, without its obstacles. Return: as spw_vfio_examine(). */
int spw_vfio__identify(const struct spw_vfio_system *system, const char *address,
		       struct spw_vfio_probe_info *controller);

/* Call @visit with each namespace's node, which is its own, or with its name, "nvme0n1", until
 * non-zero. Return: that; 0; -errno. */
int spw_vfio__each_node(const struct spw_vfio_system *system, const char *address,
			int (*visit)(void *context, const char *node), void *context);
int spw_vfio__each_name(const struct spw_vfio_system *system, const char *address,
			int (*visit)(void *context, const char *name), void *context);

#endif
