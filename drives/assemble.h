/* SPDX-License-Identifier: MIT */
/*
 * drives/assemble.h - the drives of a store: opened, verified, and for an owner locked and claimed
 *
 * Reads only. Every error is in words.
 */
#ifndef SPW_DRIVES_ASSEMBLE_H
#define SPW_DRIVES_ASSEMBLE_H

#include <stdbool.h>
#include <stdint.h>

#include <spillway/engine.h>

#include "layout/layout.h"

struct spw_share;

/* Ordered by drive index: superblocks[i].drive_index is i, unless drives before it are missing. */
struct spw_assembly {
	unsigned count;
	unsigned missing;        /* of the store's drives, how many are not there */
	int missing_error;       /* a negative errno */
	char missing_words[512]; /* which, and what to do */
	struct spw_device **devices;
	struct spw_superblock *superblocks; /* the copies chosen */
	uint64_t both_copies;    /* a bit for each drive whose other copy was intact, too */
	struct spw_share *share; /* the claim on the block devices among them; NULL: none */
};

/**
 * spw_drives__assemble - open the drives of a store and verify that they are of one store
 * @paths:      in any order; those of missing drives may lead nowhere
 * @read_only:  open read-only, whatever else uses the drives; else a drive that is mounted or held
 *              is refused
 * @log:        a damaged copy beside an intact one is a warning; may be NULL
 * @out:        set on success, else empty; to be given to spw_drives__assembly_close()
 *
 * Drives may be missing, see out->missing: what the others hold decides whether the store can be
 * opened. Takes no lock: see spw_drives__assembly_lock(). Return: 0 or as spw_store_open().
 */
int spw_drives__assemble(const char *const paths[], unsigned count, bool read_only,
			 const struct spw_log *log, struct spw_assembly *out);
/* out->missing is not 0: which drives, and what to do. Return: the error of the first. */
int spw_drives__assembly_missing_error(const struct spw_assembly *assembly);
void spw_drives__assembly_close(struct spw_assembly *assembly);

/**
 * spw_drives__assembly_lock - become the owner of a partition: lock its first byte on every drive
 *
 * The locks end when the assembly is closed, or, of a process that dies, with its last write, and
 * children of fork(2) do not keep them. Return: 0; -EBUSY another process owns it, or formats.
 */
int spw_drives__assembly_lock(const struct spw_assembly *assembly, unsigned partition);

/**
 * spw_drives__assembly_claim - claim the drives for the store, with its partition locked, and look
 * once more whether they are still free and still what was assembled
 *
 * Nothing may be written before. What came between assembling and this, a format, a mount, is
 * noticed; then the lock is released, too.
 *
 * Return: 0; -EBUSY another process has a drive, a part of it or the whole of which it is a part;
 * -EUCLEAN the drives were formatted meanwhile; or an error of reading them.
 */
int spw_drives__assembly_claim(struct spw_assembly *assembly, unsigned partition,
			       const struct spw_log *log);

#endif
