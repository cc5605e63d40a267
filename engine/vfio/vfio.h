/* SPDX-License-Identifier: MIT */
/*
 * engine/vfio/vfio.h - spw_vfio__device_open(): NVMe namespaces whose controllers this process
 * drives
 *
 * A device named "pci:0000:3d:00.0/1" is namespace 1 of the controller at that PCI address, which
 * is bound to vfio-pci. It has no node and no descriptor: its state is a struct spw_vfio_namespace,
 * and spw_device_block_node() returns its name, which is not a path.
 *
 * The kernel gives a controller's IOMMU group to one process: in another process spw_device_open()
 * returns -EBUSY until all devices of the controller are closed here, or this process has ended and
 * none of its writes are in flight (docs/VFIO.md, What ends when). Whether the kernel uses a
 * namespace through another controller of the drive is checked by spw_drives__safety_in_use(), not
 * here.
 *
 * Devices of one controller share it: the first opens it, closing the last shuts it down.
 * Byte-range locks and `exclusive` work between them as OFD locks and O_EXCL do between
 * descriptors.
 *
 * Any thread may call all functions; blocking transfers of one controller are serialized, and poll.
 */
#ifndef SPW_ENGINE_VFIO_VFIO_H
#define SPW_ENGINE_VFIO_VFIO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <spillway/engine.h>
#include <spillway/nvme.h>

#define SPW_VFIO_PREFIX        "pci:"
#define SPW_VFIO_ADDRESS_BYTES 16 /* "0000:3d:00.0" and NUL */
#define SPW_VFIO_NAME_BYTES    40 /* "pci:0000:3d:00.0/4294967294" and NUL */

struct spw_vfio_name {
	char address[SPW_VFIO_ADDRESS_BYTES]; /* with its domain, in lower case */
	uint32_t namespace_id;                /* 1 if the name has none */
};

/* Does @path begin like such a name? It may still be invalid. */
bool spw_vfio__is_name(const char *path);

/* Parse a name; "pci:3d:00.0" means "pci:0000:3d:00.0/1". Return: 0; -EINVAL, with an example. */
int spw_vfio__parse(const char *path, struct spw_vfio_name *name);

/* Format the canonical name, which is equal if and only if the namespaces are the same. */
void spw_vfio__format(const struct spw_vfio_name *name, char text[SPW_VFIO_NAME_BYTES]);

/*
 * Open the namespace that @device's path names, and its controller if it is not open in this
 * process: takes its IOMMU group, resets and starts it. Return: 0; -EBUSY another process uses it,
 * or @exclusive and it is open exclusively in this one; -ENODEV no such device or namespace, or its
 * driver is not vfio-pci; -EPERM, -EACCES no right to /dev/vfio; -EOPNOTSUPP no IOMMU, or metadata
 * other than type 1 protection information; -ENOMEM: or the limit of locked memory is reached;
 * -EIO, -ETIMEDOUT the controller does not work. The message names the remedy.
 */
struct spw_device;
int spw_vfio__device_open(struct spw_device *device, bool exclusive);

/* Identity and health of a namespace, which is opened for that: sets all except the size. */
int spw_vfio__info(const char *path, struct spw_nvme_info *info);

/*
 * Open those of @paths that are such names in parallel, because the kernel's reset takes a tenth of
 * a second each. A namespace that cannot be opened is skipped: opening its device later reports
 * why. If threads cannot be created, they are opened one after the other, which is logged. Return:
 * NULL: only one to open, or out of memory.
 */
struct spw_vfio_hold;
struct spw_vfio_hold *spw_vfio__hold(const char *const paths[], unsigned count,
				     const struct spw_log *log);

/* The same for the namespaces of open @devices; others and NULL are ignored. */
struct spw_vfio_hold *spw_vfio__hold_open(struct spw_device *const devices[], unsigned count);

/* Close all in parallel, which shuts down controllers not open otherwise. @hold: or NULL. */
void spw_vfio__let_go(struct spw_vfio_hold *hold);

#endif
