/* SPDX-License-Identifier: MIT */
/*
 * drives/safety.h - checks before the first write to a device: is it in use, what does it hold, can
 * it be written
 *
 * Reads only. If in doubt they return an error, never "free". For an NVMe character device its
 * block node is checked, which all others use; for a drive behind vfio ("pci:0000:3d:00.0/1") this
 * process, which alone can use it.
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

/* A signature found by libblkid: file system, partition table, RAID or LVM member, swap etc. */
struct spw_signature {
	char what[96]; /* "ext4 file system \"root\"" */
	uint64_t offset_bytes;
	uint64_t len_bytes; /* length of the magic number; 0: its position is unknown */
};

struct spw_signatures {
	/* at most SPW_SIGNATURES_MAX; more are found once these are erased */
	unsigned count;
	struct spw_signature found[SPW_SIGNATURES_MAX];
};

/* Find all signatures, including backup tables. Return: 0; or a negative errno: cannot be read. */
int spw_drives__safety_signatures(const char *path, struct spw_signatures *signatures);

/* The same, reading only with spw_device_pread(), for drives without a node. */
int spw_drives__safety_image_signatures(const struct spw_device *device,
					struct spw_signatures *signatures);

/* Call it before threads search for signatures: libblkid's initialization is not thread-safe. */
void spw_drives__safety_prepare(void);

/* Does its path still lead to an open device? Symlinks and drives change. Return: 0; -ESTALE. */
int spw_drives__safety_still(const struct spw_device *device);

/*
 * Assert that a device may be written to: it was claimed, by spw_claim() or, for a partition, by
 * spw_drives__assembly_claim(). Every write of the layers above the engine calls this, or asserts
 * the same. Return: @device.
 */
static inline const struct spw_device *spw_drives__claimed(const struct spw_device *device)
{
	SPW_ASSERT(device->claimed && !device->read_only);
	return device;
}

/* Open the block node of @path read-only. Return: a descriptor; -errno without a message. */
int spw_drives__safety_open_node(const char *path);

/* Names of the kernel's partitions of a device: "loop0p1, loop0p2". Return: how many. */
unsigned spw_drives__safety_partitions(const char *path, char *names, size_t len);

/*
 * Is a drive in use? @loops: of spw_drives__loops_read(); NULL: read now. Return: 0; -EBUSY the
 * drive, or an alias (drives/aliases.h), is mounted, swapped on, used by another block device, or
 * by a loop device that is not an alias; or it is behind vfio and the kernel uses it through
 * another controller.
 */
int spw_drives__safety_in_use(const char *path, const struct spw_loops *loops);

/* Has another process locked a byte of the range? Needs only read access. Return: 1; 0; -errno. */
int spw_drives__safety_locked(const char *path, uint64_t offset_bytes, uint64_t len_bytes);

/* Length of a lock on all bytes, including those beyond the device's present end. */
#define SPW_LOCK_ALL_BYTES INT64_MAX

/*
 * Has a process a store open on an alias of @path? A lock on one node is not seen on another. If
 * two processes ask while holding locks on their own paths, at least one sees the other. Return: 0;
 * -EBUSY.
 */
int spw_drives__safety_aliases_locked(const char *path, const struct spw_loops *loops);

/*
 * Is a drive unlocked? Return: 0; -EBUSY a process has locked bytes, or a store open on an alias.
 */
int spw_drives__safety_unlocked(const char *path);

/* spw_drives__opener_find() for the drive and its aliases. @but_fd: ignored; or -1 */
bool spw_drives__safety_opener(const char *path, int but_fd, char *words, size_t len);

/* The same for an NVMe controller behind vfio, by its group's or its own node. */
struct spw_vfio_system;
bool spw_drives__safety_controller_opener(const struct spw_vfio_system *system, const char *address,
					  char *words, size_t len);

/* Can the file be changed? Return: 0; -EPERM it is immutable or append-only (chattr(1)). */
int spw_drives__safety_changeable(const char *path);

/* Is the block device writable? Return: 0; -EROFS it is write-protected. */
int spw_drives__safety_writable(const char *path);

/* Does it accept random writes? Return: 0; -ESPIPE a zoned drive, or a partition of one. */
int spw_drives__safety_conventional(const char *path);

/* spw_device_open() with a remedy in the message. */
int spw_drives__safety_open(const char *path, bool read_only, bool exclusive,
			    const struct spw_log *log, struct spw_device **device);

#endif
