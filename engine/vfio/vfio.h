/* SPDX-License-Identifier: MIT */
/*
 * engine/vfio/vfio.h - NVMe namespaces driven from this process: what the rest of the engine and
 * the store see of them
 *
 * A device named "pci:0000:3d:00.0/1" is namespace 1 of the controller at that PCI address, which
 * is bound to the kernel's vfio-pci driver. It has no node and no descriptor.
 *
 * As a struct spw_device
 *   spw_device_open("pci:...") works, and so does every spw_device_ function on the result: read,
 *   write, flush, discard, lock. geometry.kind is SPW_DEVICE_VFIO, fd is -1, and state is the
 *   namespace below. geometry.transfer_bytes_max is what one command takes, memory_align_bytes is
 *   4, polls is true; discards, model and serial are the controller's. spw_device_block_node()
 *   gives the name back as it is: nobody can stat(2) or open(2) it. A queue over such devices
 *   alone, or over such devices and others, is opened with backend "vfio"; SPW_BACKEND_AUTO does so
 *   by itself.
 *
 * Who else has it
 *   Processes  The kernel gives a controller's IOMMU group to one process. spw_device_open() in
 *              another is -EBUSY, whatever namespace or partition it wants, until all devices of
 *              the controller are closed here or the process has ended. There are no mounts and no
 *              holders: a controller behind vfio-pci has no block device.
 *   Killed     The controller is a dead process's own until its writes have landed or never will:
 *              the kernel switches bus mastering off, resets the function, takes away the mappings,
 *              and only then lets somebody else open it. Opening it here waits until it has stopped
 *              before it may reach memory (docs/VFIO.md, What ends when).
 *   Paths      A namespace that the kernel reaches by another controller of the drive is not looked
 *              for here: spw_safety_in_use() of the store does.
 *   Here       Devices opened twice, or for several namespaces, share one controller (counted;
 *              opened by the first, shut down by the last). Byte-range locks and `exclusive` work
 *              between them as OFD locks and O_EXCL do between descriptors; they are kept in this
 *              process.
 *   Signatures Nothing but spw_device_pread() reads the drive. A library that wants a descriptor
 *   (libblkid) can be
 *              given a memfd of geometry.size_bytes into which the beginning and the end were
 *              copied.
 *
 * Threads: all functions may be called from any thread; transfers of one controller take turns.
 * They wait, by polling. Errors: 0 or a negative errno with spw_error() in words.
 */
#ifndef SPW_ENGINE_VFIO_VFIO_H
#define SPW_ENGINE_VFIO_VFIO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <spillway/engine.h>
#include <spillway/nvme.h>

/* ---- Names ---- */

#define SPW_VFIO_PREFIX        "pci:"
#define SPW_VFIO_ADDRESS_BYTES 16 /* "0000:3d:00.0", and its 0 */
#define SPW_VFIO_NAME_BYTES    40 /* "pci:0000:3d:00.0/4294967294", and its 0 */

struct spw_vfio_name {
	char address[SPW_VFIO_ADDRESS_BYTES]; /* with its domain, in lower case */
	uint32_t namespace_id;                /* 1 when the name has none */
};

/* Whether @path is meant as such a name; it may still be a wrong one. */
bool spw_vfio_is_name(const char *path);

/* "pci:3d:00.0" is "pci:0000:3d:00.0/1". Return: 0; -EINVAL, with what such a name looks like. */
int spw_vfio_parse(const char *path, struct spw_vfio_name *name);

/*
 * One spelling for one namespace: two names are the same namespace if and only if these texts are
 * equal.
 */
void spw_vfio_format(const struct spw_vfio_name *name, char text[SPW_VFIO_NAME_BYTES]);

/* ---- A namespace ---- */

struct spw_vfio_namespace; /* opaque */

/*
 * Open a namespace, and the controller if it is not open here: takes its IOMMU group, resets it,
 * makes it run. Writes nothing to it. @exclusive: -EBUSY if it is open exclusively here already.
 * Return: 0; -EBUSY another process has it; -ENODEV no such device or namespace, or its driver is
 * not vfio-pci; -EPERM, -EACCES no right to /dev/vfio; -EOPNOTSUPP no IOMMU, or blocks with
 * metadata; -ENOMEM also: the limit of locked memory; -EIO, -ETIMEDOUT it does not work. The text
 * names the remedy.
 */
int spw_vfio_open(const char *path, bool exclusive, const struct spw_log *log,
		  struct spw_vfio_namespace **ns);

/*
 * Open what @device is named by, with its path and log set, as what is behind it. Return: as
 * spw_vfio_open().
 */
struct spw_device;
int spw_vfio_device_open(struct spw_device *device, bool exclusive);

/* No queue uses it any more. The last of a controller tells it to shut down. */
void spw_vfio_close(struct spw_vfio_namespace *ns);

/*
 * Have the controllers of those of @paths that are such names open, all of them at the same time,
 * and keep them so:
 * opening takes a tenth of a second each, for the kernel resets them, and whoever opens these
 * devices one after the other then waits for none. One that cannot be opened is not held: opening
 * its device says why. Those that no thread can be had for take turns, which is logged. Return:
 * NULL when there is nothing to be gained, or no memory.
 */
struct spw_vfio_hold; /* opaque */
struct spw_vfio_hold *spw_vfio_hold(const char *const paths[], unsigned count,
				    const struct spw_log *log);

/*
 * The same for controllers that are open, for whoever is about to close these devices: letting go
 * of them shuts them down all at the same time, and each takes as long as opening it. @devices:
 * also others, and NULL.
 */
struct spw_vfio_hold *spw_vfio_hold_open(struct spw_device *const devices[], unsigned count);

/*
 * Those that nothing else has open are shut down, all of them at the same time. Nothing happens for
 * NULL.
 */
void spw_vfio_let_go(struct spw_vfio_hold *hold);

/*
 * What it says of itself, and its health: the same as spw_nvme_info() of a device node.
 * spw_nvme_info("pci:...") opens and asks.
 */
int spw_vfio_info(struct spw_vfio_namespace *ns, struct spw_nvme_info *info);

/* Fill in all of @geometry. */
void spw_vfio_geometry(const struct spw_vfio_namespace *ns, struct spw_geometry *geometry);

/*
 * Whole blocks, any memory, any length; on return all is transferred. A write is durable after
 * spw_vfio_flush().
 */
int spw_vfio_read(struct spw_vfio_namespace *ns, void *buf, uint64_t len_bytes,
		  uint64_t offset_bytes);
int spw_vfio_write(struct spw_vfio_namespace *ns, const void *buf, uint64_t len_bytes,
		   uint64_t offset_bytes);
int spw_vfio_flush(struct spw_vfio_namespace *ns);

/* -EOPNOTSUPP: the drive cannot. After write_zeroes the blocks read as zeroes. */
int spw_vfio_deallocate(struct spw_vfio_namespace *ns, uint64_t offset_bytes, uint64_t len_bytes);
int spw_vfio_write_zeroes(struct spw_vfio_namespace *ns, uint64_t offset_bytes, uint64_t len_bytes);

/*
 * Exclusive locks of byte ranges, as of OFD locks: @owner is whoever asks (a struct spw_device),
 * its own locks do not stand in its way, and @len_bytes 0 means to the end. Return: 0; -EBUSY
 * another owner has one in the range.
 */
int spw_vfio_lock(struct spw_vfio_namespace *ns, const void *owner, uint64_t offset_bytes,
		  uint64_t len_bytes);
int spw_vfio_unlock(struct spw_vfio_namespace *ns, const void *owner, uint64_t offset_bytes,
		    uint64_t len_bytes);

#endif
