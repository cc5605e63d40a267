/* SPDX-License-Identifier: MIT */
/*
 * engine/vfio/vfio.h - NVMe namespaces driven from this process, as others see them
 *
 * A device named "pci:0000:3d:00.0/1" is namespace 1 of the controller at that PCI address, which
 * vfio-pci has. It has no node and no descriptor: its state is that of engine/vfio/namespace.h, and
 * spw_device_block_node() returns the name, which stat(2) and open(2) do not know.
 *
 * The kernel gives a controller's IOMMU group to one process: another's spw_device_open() is -EBUSY
 * until all devices of the controller are closed here, or the process has ended and its writes have
 * landed or never will (docs/VFIO.md, What ends when). A namespace that the kernel reaches by
 * another controller of the drive is not looked for here: spw_drives__safety_in_use() of the store
 * does.
 *
 * Devices of one controller share it: opened by the first, shut down by the last. Byte-range locks
 * and `exclusive` work between them as OFD locks and O_EXCL do between descriptors.
 *
 * Any thread may call all functions; transfers of one controller take turns, and poll.
 */
#ifndef SPW_ENGINE_VFIO_VFIO_H
#define SPW_ENGINE_VFIO_VFIO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <spillway/engine.h>
#include <spillway/nvme.h>

#define SPW_VFIO_PREFIX        "pci:"
#define SPW_VFIO_ADDRESS_BYTES 16 /* "0000:3d:00.0", and its 0 */
#define SPW_VFIO_NAME_BYTES    40 /* "pci:0000:3d:00.0/4294967294", and its 0 */

struct spw_vfio_name {
	char address[SPW_VFIO_ADDRESS_BYTES]; /* with its domain, in lower case */
	uint32_t namespace_id;                /* 1 when the name has none */
};

/* Whether @path is meant as such a name; it may still be a wrong one. */
bool spw_vfio__is_name(const char *path);

/* "pci:3d:00.0" is "pci:0000:3d:00.0/1". Return: 0; -EINVAL, with what such a name looks like. */
int spw_vfio__parse(const char *path, struct spw_vfio_name *name);

/* Canonical name: two names are one namespace if and only if these texts are equal. */
void spw_vfio__format(const struct spw_vfio_name *name, char text[SPW_VFIO_NAME_BYTES]);

/*
 * Open what @device's path names, and the controller if it is not open here: takes its IOMMU group,
 * resets it, makes it run. Return: 0; -EBUSY another process has it, or @exclusive and it is open
 * exclusively here; -ENODEV no such device or namespace, or its driver is not vfio-pci; -EPERM,
 * -EACCES no right to /dev/vfio; -EOPNOTSUPP no IOMMU, or blocks with metadata that are not
 * protected by it (struct spw_nvme_namespace); -ENOMEM also: the limit of locked memory; -EIO,
 * -ETIMEDOUT it does not work. The text names the remedy.
 */
struct spw_device;
int spw_vfio__device_open(struct spw_device *device, bool exclusive);

/* Identity and health of the namespace of that name, which is opened for it: all but the size. */
int spw_vfio__info(const char *path, struct spw_nvme_info *info);

/*
 * Open those of @paths that are such names, all at the same time: the kernel's reset takes a tenth
 * of a second each. One that cannot be opened is not held: opening its device says why. Those that
 * no thread can be had for take turns, which is logged. Return: NULL: nothing gained, or no memory.
 */
struct spw_vfio_hold;
struct spw_vfio_hold *spw_vfio__hold(const char *const paths[], unsigned count,
				     const struct spw_log *log);

/* The same of those of @devices that are open; others and NULL ignored. */
struct spw_vfio_hold *spw_vfio__hold_open(struct spw_device *const devices[], unsigned count);

/* Closes all at the same time, and so shuts down those not open elsewhere. NULL is fine. */
void spw_vfio__let_go(struct spw_vfio_hold *hold);

#endif
