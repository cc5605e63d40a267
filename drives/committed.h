/* SPDX-License-Identifier: MIT */
/* drives/committed.h - find the commits of a partition, by the commit blocks on its drives */
#ifndef SPW_DRIVES_COMMITTED_H
#define SPW_DRIVES_COMMITTED_H

#include <spillway/error.h>

#include "engine/device.h"
#include "layout/commit.h"

struct spw_assembly;

/* The newest intact block of each slot, on any drive. */
struct spw_commits_found {
	bool there[SPW_COMMIT_SLOTS];
	uint32_t drive[SPW_COMMIT_SLOTS];
	struct spw_commit commits[SPW_COMMIT_SLOTS];
	/* bit per drive, by its index: it has this block; its slot could be read */
	uint64_t have[SPW_COMMIT_SLOTS], read[SPW_COMMIT_SLOTS];
	/* all slots of at least one drive could be read */
	bool seen;
	uint64_t sequence_max; /* of all intact blocks */
	/*
	 * unknown_drive's commit names drives that none of these was told of; unknown_sequence 0:
	 * there is no such commit
	 */
	uint32_t unknown_drive;
	uint64_t unknown_sequence, unknown_number;
	/*
	 * forked_drive's newest commit was made without the drives that have the newest of all, or
	 * with a drive that has been replaced since, or is such an unknown one
	 */
	bool forked;
	uint32_t forked_drive;
	uint64_t forked_number;
};

void spw_drives__commit_place(const struct spw_superblock *sb, uint32_t partition,
			      struct spw_commit_place *place);

/**
 * spw_drives__commits_look - read the slots of all drives
 * @log:  gets blocks that cannot be read, or were torn by a crash; may be NULL
 *
 * Return: 0; -EUCLEAN drives contradict each other; -EPROTONOSUPPORT a commit is of a newer
 * version; -ENOMEM.
 */
int spw_drives__commits_look(const struct spw_assembly *assembly, uint32_t partition,
			     const struct spw_log *log, struct spw_commits_found *found);

/* Find the newest commit. Return: its slot; -1: there is no commit. */
int spw_drives__commits_newest(const struct spw_commits_found *found);

/* Is this the commit that the newest commit names as the previous, kept one? */
bool spw_drives__commits_is_previous(const struct spw_commits_found *found, int slot);
/*
 * Was the previous commit not released since? A release erases its block on the drives that have
 * both commits; it may stay on drives that were out of service.
 */
bool spw_drives__commits_is_kept(const struct spw_commits_found *found, int slot);

/*
 * May the newest commit be complete without the drives that are missing: does it list its members,
 * and could all slots of a drive be read? The caller then has to look for each of its pieces.
 */
bool spw_drives__commits_may_lack(const struct spw_commits_found *found);

/* Report that drives were used without each other. Return: -EUCLEAN. */
int spw_drives__commits_forked_error(const struct spw_assembly *assembly,
				     const struct spw_commits_found *found);

/* Report that a commit needs a drive that none of those named was told of. Return: -EUCLEAN. */
int spw_drives__commit_unknown_error(uint64_t number, const char *path);

/*
 * For format and wipe. Return: 0; -EEXIST, with a message: a partition has a commit on this drive.
 */
int spw_drives__committed_refuse(const struct spw_device *device, const struct spw_superblock *sb);

#endif
