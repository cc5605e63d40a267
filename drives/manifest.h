/* SPDX-License-Identifier: MIT */
/* drives/manifest.h - read a commit's manifest, and verified pieces, from the drives of a store */
#ifndef SPW_DRIVES_MANIFEST_H
#define SPW_DRIVES_MANIFEST_H

#include <spillway/error.h>

#include "layout/commit.h"

struct spw_assembly;

/* Report that a commit is damaged. Return: -EBADMSG. */
int spw_drives__commit_damaged_error(uint32_t partition, const struct spw_commit *commit,
				     const char *why);

/* Position in the assembly of the drive with index @drive. Return: it; -1: the drive is missing. */
int spw_drives__position_of(const struct spw_assembly *assembly, uint32_t drive);

/**
 * spw_drives__piece_read - read a piece of a commit, and verify it
 * @to:  room for piece->len_bytes
 *
 * Return: 0; -ENXIO its drive is missing, or it is on no drive; -EBADMSG other bytes than were
 * written; -ENOMEM; or an error of reading; with a message.
 */
int spw_drives__piece_read(const struct spw_assembly *assembly, uint32_t partition,
			   const struct spw_commit *commit, const struct spw_commit_piece *piece,
			   uint8_t *to);

/**
 * spw_drives__manifest_read - read the manifest of a commit, from either of two copies
 * @log:    gets copies that do not serve
 * @bytes:  set to memory for free(), also after an error; the manifest points into it
 *
 * Return: 0; -EBADMSG damaged; -ENXIO a missing drive alone has a piece; -ENOMEM; or an error of
 * reading.
 */
int spw_drives__manifest_read(const struct spw_assembly *assembly, uint32_t partition,
			      const struct spw_commit *commit, const struct spw_log *log,
			      uint8_t **bytes, struct spw_manifest *manifest);

#endif
