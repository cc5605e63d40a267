/* SPDX-License-Identifier: MIT */
/*
 * drives/share.h - the exclusive claim on a store's block devices, shared by all processes that
 * have the store open
 *
 * Only one open file description can have a block device exclusively (O_EXCL); while it is open,
 * other processes cannot mount the device, put a volume or an array on it, swap on it, or format it
 * with a tool that checks. The first process of a store opens one for each drive. Later processes
 * get the same descriptions from any living one (SCM_RIGHTS), so that a claim ends with the last of
 * them, never earlier. Ownership of partitions is by locks, on other descriptors: see
 * docs/FORMAT.md.
 *
 *   SHARE-1  A process passes claims only when it has those on all drives; drives are claimed by
 *            index. So if several processes open at the same time, one gets all claims and serves
 *            the others.
 *   SHARE-2  Claims are passed only to a process that presents an open, writable descriptor of the
 *            first drive.
 *   SHARE-3  A received claim is accepted only if it is of the right drive, and the drive is open
 *            exclusively now.
 *   SHARE-4  Children of fork(2) do not keep claims. The rings of the process do, so that a claim
 *            ends after its last write.
 */
#ifndef SPW_DRIVES_SHARE_H
#define SPW_DRIVES_SHARE_H

#include <stdint.h>

#include <spillway/engine.h>
#include <spillway/format.h>

struct spw_share;

/* The store, from its superblocks. */
struct spw_share_store {
	char uuid[SPW_UUID_TEXT_BYTES];
	uint32_t partition; /* this process's partition, which it has locked */
	uint32_t partition_count;
};

/**
 * spw_drives__share_open - claim the block devices of a store, or get the claims of other processes
 * @devices:  by drive index, opened read-write; their claim_fd is set until
 *      spw_drives__share_close()
 * @share:    set on success; NULL: no drive is a block device
 *
 * Waits up to SPW_TEARDOWN_S_MAX seconds for a drive that is open exclusively, and logs it. Return:
 * 0; -EBUSY a process, which the message names if this user may see it, still has it; -errno.
 */
int spw_drives__share_open(struct spw_device *const devices[], unsigned count,
			   const struct spw_share_store *store, const struct spw_log *log,
			   struct spw_share **share);

/* Release the claims. Nothing may be written afterwards. @share: or NULL. */
void spw_drives__share_close(struct spw_share *share);

#endif
