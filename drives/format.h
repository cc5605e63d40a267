/* SPDX-License-Identifier: MIT */
/*
 * drives/format.h - steps of a format that a replacement of a drive does, too
 *
 * Each is done for all targets of a run. Errors have messages.
 */
#ifndef SPW_DRIVES_FORMAT_H
#define SPW_DRIVES_FORMAT_H

#include <spillway/format.h>

#include "drives/candidates.h"

struct spw_vfio_hold;

struct spw_format_run {
	struct spw_candidate *targets;
	unsigned count;
	struct spw_vfio_hold *hold;
	const struct spw_log *log;
	const struct spw_format_opts *opts; /* NULL: a wipe */
	bool erase;                         /* for a wipe: also if there are commits */
};

typedef int spw_format_step(const struct spw_format_run *run, struct spw_candidate *target);

int spw_drives__format_each(const struct spw_format_run *run, spw_format_step *step);

/* Claim a drive that is to be formatted. Return: 0; -EBUSY; -ESPIPE; -ENOSPC; as spw_claim(). */
int spw_drives__format_claim(const struct spw_format_run *run, struct spw_candidate *target);
/* May what is on it be overwritten, by the options? Return: 0; -EEXIST. */
int spw_drives__format_examine(const struct spw_format_run *run, struct spw_candidate *target);

/* A sequence number above that of every intact copy on any target. Return: 0; -EUCLEAN. */
int spw_drives__format_sequence(const struct spw_format_run *run, uint64_t *sequence);
int spw_drives__format_uuid(uint8_t uuid[16]);
/* Set the target's superblock, incomplete, from the store's. Return: 0; -ENOSPC; -EINVAL. */
int spw_drives__format_plan(struct spw_candidate *target, const struct spw_superblock *store,
			    unsigned index);

/* Log what the target is about to lose. Return: 0. */
int spw_drives__format_warn(const struct spw_format_run *run, struct spw_candidate *target);
/* Write one copy of each target's superblock, and make it durable. */
int spw_drives__format_write(const struct spw_format_run *run, unsigned copy);
/* Zero the rest of the reserved areas, and erase signatures. */
int spw_drives__format_clear(const struct spw_format_run *run);
/* Give the target up, complete. */
int spw_drives__format_release(const struct spw_format_run *run, struct spw_candidate *target);

#endif
