/* SPDX-License-Identifier: MIT */
/*
 * drives/safety.h - who uses a device, and what it carries: the questions before the first byte is
 * written
 *
 * Reads only. Answers in doubt are errors, never "free". Of an NVMe character device the questions
 * are put to its block node, by which everybody else uses it; of a drive behind vfio
 * ("pci:0000:3d:00.0/1") to this process, which alone has it.
 */
#ifndef SPW_DRIVES_SAFETY_H
#define SPW_DRIVES_SAFETY_H

#include <stdbool.h>
#include <stdint.h>

#include <spillway/engine.h>

struct spw_loops;

#define SPW_SIGNATURES_MAX 16

/*
 * One thing that libblkid knows: a file system, a partition table, a RAID or LVM member, a swap
 * area, an encrypted volume.
 */
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

/*
 * Everything that libblkid finds, backup partition tables included. Return: 0, or an errno when the
 * device could not be read.
 */
int spw_safety_signatures(const char *path, struct spw_signatures *signatures);

/* The same by way of spw_device_pread() alone, as it is done with a drive that has no node. */
int spw_safety_image_signatures(const struct spw_device *device, struct spw_signatures *signatures);

/*
 * Before signatures are searched for in several threads: libblkid sets itself up with the first
 * search, and not under a lock.
 */
void spw_safety_prepare(void);

/*
 * Does the path of an open device still name it? The questions here are asked of a path, and what
 * is written goes to the device: a link may have been put elsewhere in between, a drive exchanged.
 * Return: 0; -ESTALE.
 */
int spw_safety_still(const struct spw_device *device);

/*
 * Open the node by which others know @path, to look only. Return: a descriptor; a negative errno,
 * without words.
 */
int spw_safety_open_node(const char *path);

/*
 * Names of the partitions that the kernel has for a whole device: "loop0p1, loop0p2". Return: how
 * many.
 */
unsigned spw_safety_partitions(const char *path, char *names, size_t len);

/*
 * Return: 0; -EBUSY it, or a relative of it (drives/relatives.h), is mounted, swapped on, held by
 * another block device, or shown by a loop device that is not one of them. Of a drive behind vfio:
 * the kernel reaches the same namespace by another controller. @loops: as spw_loops_read() gave;
 * NULL: read here
 */
int spw_safety_in_use(const char *path, const struct spw_loops *loops);

/*
 * Return: 0; -ENOTUNIQ two names are the same device or file, or lead to the same drive by two
 * paths. What cannot be examined is no fault here.
 */
int spw_safety_distinct(const char *const paths[], unsigned count);

/*
 * Is any byte of the range locked by anybody but us? Needs no right to write. Return: 1, 0 or a
 * negative errno.
 */
int spw_safety_locked(const char *path, uint64_t offset_bytes, uint64_t len_bytes);

/* For locks from byte 0 on: also of bytes that a device no longer has. */
#define SPW_LOCK_ALL_BYTES INT64_MAX

/*
 * Locks on one node or file are not seen on another that has the same blocks. To be asked with
 * locks of one's own on the node of @path: of two who do so, one at least meets the other. Return:
 * 0; -EBUSY a process has a store on a relative of it open.
 */
int spw_safety_relatives_locked(const char *path, const struct spw_loops *loops);

/*
 * spw_opener_find() for the drive and its relatives. @but_fd: a descriptor of the drive itself that
 * does not count; -1: none
 */
bool spw_safety_opener(const char *path, int but_fd, char *words, size_t len);

/*
 * Return: 0; -EPERM the file is immutable or append-only (chattr(1)): nobody may write it, whatever
 * his rights.
 */
int spw_safety_changeable(const char *path);

/* Return: 0; -EROFS the block device is write-protected. */
int spw_safety_writable(const char *path);

/*
 * Return: 0; -ESPIPE it is a zoned drive, or a partition of one: what is not written in order, zone
 * by zone, fails with EIO.
 */
int spw_safety_conventional(const char *path);

/* spw_device_open() with a remedy in the message. */
int spw_safety_open(const char *path, bool read_only, bool exclusive, const struct spw_log *log,
		    struct spw_device **device);

#endif
