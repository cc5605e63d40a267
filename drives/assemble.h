/* SPDX-License-Identifier: MIT */
/*
 * drives/assemble.h - open and verify the drives of a store; lock a partition and claim the drives
 *
 * Reads only. Every error has a message.
 */
#ifndef SPW_DRIVES_ASSEMBLE_H
#define SPW_DRIVES_ASSEMBLE_H

#include <stdbool.h>
#include <stdint.h>

#include <spillway/engine.h>

#include "layout/superblock.h"

struct spw_share;

/* Drives of a store by index: superblocks[i].drive_index is i unless earlier drives are missing. */
struct spw_assembly {
	unsigned count;
	unsigned missing;        /* number of missing drives of the store */
	int missing_error;       /* a negative errno */
	char missing_words[512]; /* which drives, and the remedy */
	struct spw_device **devices;
	struct spw_superblock *superblocks; /* the valid copies */
	uint64_t both_copies;               /* bit per drive whose other copy was intact too */
	struct spw_share *share; /* the claim on the block devices; NULL: there is none */
};

/**
 * spw_drives__assemble - open the drives of a store and verify that they are of one store
 * @paths:      in any order; the paths of missing drives need not exist
 * @read_only:  open read-only, even drives in use; else a drive that is mounted or claimed is
 *              refused
 * @log:        gets a warning if one of two copies is damaged; may be NULL
 * @out:        set on success, else empty; to be given to spw_drives__assembly_close()
 *
 * Drives may be missing, see out->missing: the commits on the others decide whether the store can
 * be opened. Takes no lock: see spw_drives__assembly_lock(). Return: 0 or as spw_store_open().
 */
int spw_drives__assemble(const char *const paths[], unsigned count, bool read_only,
			 const struct spw_log *log, struct spw_assembly *out);
/* Report the missing drives and the remedy. Return: the error of the first. */
int spw_drives__assembly_missing_error(const struct spw_assembly *assembly);
void spw_drives__assembly_close(struct spw_assembly *assembly);

/**
 * spw_drives__assembly_lock - become the owner of a partition: lock its first byte on every drive
 *
 * The locks end when the assembly is closed, or, if the process dies, after its last write in
 * flight; children of fork(2) do not keep them. Return: 0; -EBUSY another process owns the
 * partition, or formats the drives.
 */
int spw_drives__assembly_lock(const struct spw_assembly *assembly, unsigned partition);

/**
 * spw_drives__assembly_claim - claim the drives for the store, with its partition locked, and
 * verify that they are still unused and unchanged
 *
 * Nothing may be written before this call. It detects a format or a mount since the assembly; then
 * it fails and releases the lock.
 *
 * Return: 0; -EBUSY another process uses a drive, a partition of it or the whole disk that contains
 * it; -EUCLEAN the drives were formatted meanwhile; or an error of reading them.
 */
int spw_drives__assembly_claim(struct spw_assembly *assembly, unsigned partition,
			       const struct spw_log *log);

#endif
