/* SPDX-License-Identifier: MIT */
/*
 * drives/assemble.h - from device paths to a verified set of drives: what open, check, format, wipe and probe share
 *
 * Everything here reads only, except spw_format_with(). Errors come with the drive, the cause and the remedy in
 * spw_last_error().
 */
#ifndef SPW_DRIVES_ASSEMBLE_H
#define SPW_DRIVES_ASSEMBLE_H

#include <stdbool.h>
#include <stdint.h>

#include <spillway/engine.h>
#include <spillway/format.h>

#include "layout/layout.h"
#include "drives/residue.h"

/* ---- The drives of a store ---- */

struct spw_share;

/* Ordered by drive index: superblocks[i].drive_index is i. */
struct spw_assembly {
	unsigned count;
	struct spw_device **devices;
	struct spw_superblock *superblocks; /* the copies chosen */
	struct spw_share *share;            /* the claim on the block devices among them; NULL: none */
};

/**
 * spw_assemble - open the drives of a store and verify that they are all of it and nothing else
 * @paths:      in any order
 * @read_only:  open read-only and do not mind who else uses the drives; else a drive that is mounted or held is
 *              refused
 * @log:        a damaged copy beside an intact one is a warning; may be NULL
 * @out:        set on success, else empty; to be given to spw_assembly_close()
 *
 * Takes no lock: see spw_assembly_lock(). Return: 0 or as spw_store_open().
 */
int spw_assemble(const char *const paths[], unsigned count, bool read_only, const struct spw_log *log,
		 struct spw_assembly *out);
void spw_assembly_close(struct spw_assembly *assembly);

/**
 * spw_assembly_lock - become the owner of a partition: lock its first byte on every drive
 *
 * The locks end when the assembly is closed, or, of a process that dies, with its last write. Children of fork(2) do not keep them.
 *
 * Return: 0; -EINVAL no such partition; -EBUSY another process owns it, or is formatting.
 */
int spw_assembly_lock(const struct spw_assembly *assembly, unsigned partition);

/* Has a living process one of the drives open for writing, as far as this user may look? */
bool spw_assembly_opened(const struct spw_assembly *assembly);

/**
 * spw_assembly_claim - claim the drives for the store, with its partition locked, and look once more whether they are still free and
 * still what was assembled
 *
 * Nothing may be written before. What came between assembling and this, a format, a mount, is noticed; then the lock is given back, too.
 *
 * Return: 0; -EBUSY somebody else has a drive, a part of it or the whole of which it is a part; -EUCLEAN the drives were formatted
 * meanwhile; or an error of reading them.
 */
int spw_assembly_claim(struct spw_assembly *assembly, unsigned partition, const struct spw_log *log);

/* ---- The superblocks of one drive ---- */

/*
 * Where a copy may be. The third place is for a device that has grown since it was formatted: copy 1 is where copy 0
 * says that the end was.
 */
enum spw_place {
	SPW_PLACE_FIRST,
	SPW_PLACE_LAST,
	SPW_PLACE_FORMER_LAST,
	SPW_PLACES,
};

struct spw_superblocks {
	struct spw_place_content {
		bool exists; /* the place lies inside the device and was looked at */
		uint64_t offset_bytes;
		int result;      /* of reading and decoding */
		const char *why; /* in words, when result is not 0 */
		struct spw_superblock superblock;
	} places[SPW_PLACES];
	int chosen;           /* the place to believe, or a negative errno as of spw_layout_choose() */
	unsigned copies_good; /* intact copies that agree with the one chosen, itself included */
	/*
	 * What somebody else has written where the other copy was (LAYOUT-14), in words; "": nothing. A place that cannot be read is the
	 * drive's fault: what is written over it can be read again.
	 */
	char foreign[80];
};

/* Return: superblocks->chosen; or -ENOMEM. Says nothing in spw_last_error() about what it found. */
int spw_superblocks_read(const struct spw_device *device, struct spw_superblocks *superblocks);

/* Transfers of format and wipe go through these, so that tests can see their order. */
struct spw_format_io {
	int (*pwrite)(void *context, const struct spw_device *device, const void *buf, size_t len,
		      uint64_t offset_bytes);
	int (*sync)(void *context, const struct spw_device *device);
	/* NULL, or -EOPNOTSUPP returned: zeroes are written. */
	int (*zero)(void *context, const struct spw_device *device, uint64_t len_bytes, uint64_t offset_bytes);
	void *context;
};

/* spw_format() with transfers of the caller's. */
int spw_format_with(const char *const paths[], unsigned count, const struct spw_format_opts *opts,
		    struct spw_store_info *info, const struct spw_format_io *io);

/*
 * Zeroed memory of whole logical blocks that any transfer to @device accepts; for free(). NULL: out of memory,
 * reported.
 */
void *spw_device_buffer(const struct spw_device *device, size_t len);

/*
 * The logical blocks that a superblock copy at @offset_bytes lies in: exactly its own 4096 bytes, except on devices
 * with larger logical blocks.
 */
struct spw_span {
	uint64_t offset_bytes;
	size_t len_bytes;
	size_t inside_bytes; /* where in it the copy begins */
};
struct spw_span spw_superblock_span(const struct spw_device *device, uint64_t offset_bytes);

/* ---- What a drive holds ---- */

struct spw_contents {
	struct spw_superblocks superblocks;
	bool store;                 /* a spillway store, whole or damaged */
	bool foreign;               /* anything else that libblkid or the kernel knows */
	struct spw_residue residue; /* looked for where there is neither */
	char text[160];             /* "ext4 file system \"root\"", "unknown data", "nothing known" */
};

/*
 * Return: 0; -ESTALE its path names another device by now; or an error of reading, as words in spw_last_error(): then
 * nothing may be assumed. Several drives may be read at the same time, by threads.
 */
int spw_contents_read(const struct spw_device *device, struct spw_contents *contents);

/*
 * "/dev/loop3: carries an ext4 file system "root"; use --force to overwrite it, or name another device", as -EEXIST.
 */
int spw_carries_error(const char *path, const struct spw_contents *contents);

/* Of a drive below SPW_DRIVE_BYTES_MIN, as -ENOSPC. */
int spw_too_small_error(const char *path, uint64_t size_bytes);

#endif
