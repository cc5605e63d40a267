/* SPDX-License-Identifier: MIT */
/* drives/committed.h - what is committed in a partition, as the slots of its drives say */
#ifndef SPW_DRIVES_COMMITTED_H
#define SPW_DRIVES_COMMITTED_H

#include <spillway/error.h>

#include "engine/device.h"
#include "layout/commit.h"

struct spw_assembly;

/* The newest intact block of each slot, on whatever drive it is. */
struct spw_commits_found {
	bool there[SPW_COMMIT_SLOTS];
	uint32_t drive[SPW_COMMIT_SLOTS];
	struct spw_commit commits[SPW_COMMIT_SLOTS];
	/* by the drives' indexes in their superblocks: they have it; their slot could be read */
	uint64_t have[SPW_COMMIT_SLOTS], read[SPW_COMMIT_SLOTS];
	/* Of one drive at least all slots could be read. */
	bool seen;
	/* The newest of this drive was made without those that have the newest of all. */
	bool forked;
	uint32_t forked_drive;
	uint64_t forked_number;
};

void spw_drives__commit_place(const struct spw_superblock *sb, uint32_t partition,
			      struct spw_commit_place *place);

/**
 * spw_drives__commits_look - read the slots of all drives
 * @log:  a block that cannot be read, or that a crash left half written; may be NULL
 *
 * Return: 0; -EUCLEAN drives contradict each other; -EPROTONOSUPPORT one is of a newer version;
 * -ENOMEM.
 */
int spw_drives__commits_look(const struct spw_assembly *assembly, uint32_t partition,
			     const struct spw_log *log, struct spw_commits_found *found);

/* Return: the slot of the commit that counts; -1: nothing is committed. */
int spw_drives__commits_newest(const struct spw_commits_found *found);

/* Is it the commit that the newest names as the one before, and says that it was kept? */
bool spw_drives__commits_is_previous(const struct spw_commits_found *found, int slot);
/*
 * And has it not been released since? That took its block from the drives that had both, and left
 * it at most on those that were out of service.
 */
bool spw_drives__commits_is_kept(const struct spw_commits_found *found, int slot);

/*
 * With drives missing: is there a newest commit that may do without them, and can each commit be
 * read? All that it names is to be looked for then.
 */
bool spw_drives__commits_may_lack(const struct spw_commits_found *found);

/* Drives went on without each other. Return: -EUCLEAN, in words. */
int spw_drives__commits_forked_error(const struct spw_assembly *assembly,
				     const struct spw_commits_found *found);

/* For format and wipe: fails with -EEXIST, in words, if a partition has a commit on this drive. */
int spw_drives__committed_refuse(const struct spw_device *device, const struct spw_superblock *sb);

#endif
