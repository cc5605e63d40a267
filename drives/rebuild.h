/* SPDX-License-Identifier: MIT */
/*
 * drives/rebuild.h - copy what is committed to a drive that takes another's place
 *
 * Each piece that a commit has on the replaced drive is written to the same place of the new one,
 * so that no commit has to change: the kept previous commit stays, too.
 */
#ifndef SPW_DRIVES_REBUILD_H
#define SPW_DRIVES_REBUILD_H

#include "drives/assemble.h"
#include "drives/candidates.h"

struct spw_rebuild {
	/* the drives to read from: the others that are there, and the replaced one if readable */
	struct spw_assembly from;
	unsigned index; /* of the replaced drive */
	/* claimed, with its superblock planned */
	const struct spw_candidate *target;
	const struct spw_log *log;
	bool (*go_on)(void *context, uint64_t done_bytes, uint64_t all_bytes); /* or NULL */
	void *context;
	uint64_t all_bytes, done_bytes;
};

/**
 * spw_drives__rebuild_survey - find out, by all commits, what has to be copied; sets all_bytes
 *
 * Writes nothing. Return: 0; -ENXIO the replaced drive alone has committed data, or may have it;
 * -ENOSPC the target is too small for it; as spw_drives__commits_look() and
 * spw_drives__manifest_read().
 */
int spw_drives__rebuild_survey(struct spw_rebuild *rebuild);

/**
 * spw_drives__rebuild_copy - copy it, and the commit blocks of all partitions
 *
 * Nothing is durable before a flush. Return: 0; -ECANCELED by go_on(); or an error of reading or
 * writing.
 */
int spw_drives__rebuild_copy(struct spw_rebuild *rebuild);

#endif
