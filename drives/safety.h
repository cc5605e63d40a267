/* SPDX-License-Identifier: MIT */
/*
 * drives/safety.h - who uses a device, and what it carries: the questions before the first byte is
 * written
 *
 * Reads only. Answers in doubt are errors, never "free". Of an NVMe character device the questions
 * are put to its block node, by which all others use it; of a drive behind vfio
 * ("pci:0000:3d:00.0/1") to this process, which alone has it.
 */
#ifndef SPW_DRIVES_SAFETY_H
#define SPW_DRIVES_SAFETY_H

#include <stdbool.h>
#include <stdint.h>

#include <spillway/engine.h>

#include "engine/device.h"
#include "util/util.h"

struct spw_loops;

#define SPW_SIGNATURES_MAX 16

/* What libblkid knows: file system, partition table, RAID or LVM member, swap, encryption. */
struct spw_signature {
	char what[96]; /* "ext4 file system \"root\"" */
	uint64_t offset_bytes;
	uint64_t len_bytes; /* of the magic; 0: libblkid does not say where it is */
};

struct spw_signatures {
	/* at most SPW_SIGNATURES_MAX; what lies beyond is found once these are gone */
	unsigned count;
	struct spw_signature found[SPW_SIGNATURES_MAX];
};

/* All that libblkid finds, backup tables too. Return: 0, or an errno if it is unreadable. */
int spw_drives__safety_signatures(const char *path, struct spw_signatures *signatures);

/* The same by way of spw_device_pread() alone, as it is done with a drive that has no node. */
int spw_drives__safety_image_signatures(const struct spw_device *device,
					struct spw_signatures *signatures);

/* Before threads search for signatures: libblkid's first search sets it up without a lock. */
void spw_drives__safety_prepare(void);

/* Does the path of an open device still name it? Links and drives change. Return: 0; -ESTALE. */
int spw_drives__safety_still(const struct spw_device *device);

/*
 * A device that is about to be written to. Its opener has claimed it: all of it, by spw_claim(), or
 * its partition, by spw_drives__assembly_claim(). Every write of a layer above the engine passes
 * here, or asserts the same. Return: @device.
 */
static inline const struct spw_device *spw_drives__claimed(const struct spw_device *device)
{
	SPW_ASSERT(device->claimed && !device->read_only);
	return device;
}

/* Open the node by which others know @path, to look. Return: a descriptor; -errno, no words. */
int spw_drives__safety_open_node(const char *path);

/* Names of the kernel's partitions of a device: "loop0p1, loop0p2". Return: how many. */
unsigned spw_drives__safety_partitions(const char *path, char *names, size_t len);

/*
 * Return: 0; -EBUSY it, or a relative of it (drives/relatives.h), is mounted, swapped on, held by
 * another block device, or shown by a loop device that is not a relative; or the kernel reaches
 * what is behind vfio by another controller. @loops: as spw_drives__loops_read() gave; NULL: read
 * here
 */
int spw_drives__safety_in_use(const char *path, const struct spw_loops *loops);

/* Has another process locked a byte of the range? Needs no right to write. Return: 1, 0, -errno. */
int spw_drives__safety_locked(const char *path, uint64_t offset_bytes, uint64_t len_bytes);

/* For locks of all bytes: also of those that a device no longer has. */
#define SPW_LOCK_ALL_BYTES INT64_MAX

/*
 * Has a process a store on a relative open? Locks on one node are not seen on another. Of two who
 * ask with their own locks on @path, at least one meets the other. Return: 0; -EBUSY it has.
 */
int spw_drives__safety_relatives_locked(const char *path, const struct spw_loops *loops);

/* Return: 0; -EBUSY a process has locked bytes of the drive, or a store on a relative open. */
int spw_drives__safety_unlocked(const char *path);

/* spw_drives__opener_find() for the drive and its relatives. @but_fd: does not count; -1: none */
bool spw_drives__safety_opener(const char *path, int but_fd, char *words, size_t len);

/* The same for an NVMe controller behind vfio, by the node of its IOMMU group or by its own. */
struct spw_vfio_system;
bool spw_drives__safety_controller_opener(const struct spw_vfio_system *system, const char *address,
					  char *words, size_t len);

/* Return: 0; -EPERM the file is immutable or append-only (chattr(1)), for root too. */
int spw_drives__safety_changeable(const char *path);

/* Return: 0; -EROFS the block device is write-protected. */
int spw_drives__safety_writable(const char *path);

/* Return: 0; -ESPIPE a zoned drive or part of one: it takes writes only in order, by zone. */
int spw_drives__safety_conventional(const char *path);

/* spw_device_open() with a remedy in the message. */
int spw_drives__safety_open(const char *path, bool read_only, bool exclusive,
			    const struct spw_log *log, struct spw_device **device);

#endif
