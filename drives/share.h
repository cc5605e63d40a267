/* SPDX-License-Identifier: MIT */
/*
 * drives/share.h - the exclusive claim on a store's block devices, which all processes that have
 * the store open share
 *
 * The kernel lets one open file description have a block device exclusively (O_EXCL); as long as it
 * is open, no other process mounts the device, puts a volume or an array on it, swaps on it, or
 * formats it with a tool that asks. The first process of a store opens one for each drive. A later
 * one is handed the same descriptions by any that lives (SCM_RIGHTS), so that a claim ends with the
 * last of them, and never in between. Partitions are owned by locks, on descriptors of their own:
 * see docs/FORMAT.md.
 *
 *   SHARE-1  A process serves only when it has the claims on all drives; drives are claimed in the
 *            order of their index. So of several that open at once one gets all, and the others are
 *            served by it.
 *   SHARE-2  A claim is handed only to a process that shows an open descriptor of the first drive
 *            that may write.
 *   SHARE-3  A claim that was handed over is believed only if it is of the drive, and the drive is
 *            open exclusively now.
 *   SHARE-4  No child of fork(2) keeps a claim. The rings of the process do: it ends after the last
 *            write.
 */
#ifndef SPW_DRIVES_SHARE_H
#define SPW_DRIVES_SHARE_H

#include <stdint.h>

#include <spillway/engine.h>
#include <spillway/format.h>

struct spw_share;

/* The store, as its superblocks say. */
struct spw_share_store {
	char uuid[SPW_UUID_TEXT_BYTES];
	uint32_t partition; /* this process', which it has locked */
	uint32_t partition_count;
};

/**
 * spw_drives__share_open - claim the block devices of a store, or join the processes that have
 * @devices:  by drive index, opened read-write; their claim_fd is set until
 *      spw_drives__share_close()
 * @share:    set on success; NULL: no drive is a block device
 *
 * Waits up to SPW_TEARDOWN_S_MAX seconds for a drive that is open exclusively, and logs it. Return:
 * 0; -EBUSY a process, named as far as this user may look, still has it; -errno.
 */
int spw_drives__share_open(struct spw_device *const devices[], unsigned count,
			   const struct spw_share_store *store, const struct spw_log *log,
			   struct spw_share **share);

/* Nothing may be written after this. NULL is fine. */
void spw_drives__share_close(struct spw_share *share);

#endif
