/* SPDX-License-Identifier: MIT */
/* drives/manifest.c - read a commit's manifest, and verified pieces, from the drives of a store */
#include "drives/manifest.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "drives/assemble.h"
#include "drives/committed.h"
#include "engine/device.h"
#include "layout/superblock.h"
#include "util/checksum.h"
#include "util/util.h"

int spw_drives__commit_damaged_error(uint32_t partition, const struct spw_commit *commit,
				     const char *why)
{
	return spw_error(-EBADMSG,
			 "commit %llu of partition %u is damaged: %s; open the store with "
			 "SPW_COMMIT_NONE (spillway state drop) to give it up",
			 (unsigned long long)commit->number, partition, why);
}

int spw_drives__position_of(const struct spw_assembly *assembly, uint32_t drive)
{
	for (unsigned i = 0; drive != SPW_COMMIT_NO_DRIVE && i < assembly->count; i++)
		if (assembly->superblocks[i].drive_index == drive)
			return (int)i;
	return -1;
}

int spw_drives__piece_read(const struct spw_assembly *assembly, uint32_t partition,
			   const struct spw_commit *commit, const struct spw_commit_piece *piece,
			   uint8_t *to)
{
	int position = spw_drives__position_of(assembly, piece->drive);
	const struct spw_superblock *sb = &assembly->superblocks[SPW_MAX(position, 0)];
	uint64_t blocks = spw_layout__partition_capacity(sb) / sb->block_bytes;
	size_t len = spw_round_up(piece->len_bytes, sb->block_bytes);
	const struct spw_device *device;
	uint8_t *buf;
	int rc;

	if (position < 0)
		return spw_error(-ENXIO, "what commit %llu has is not known without it: %s",
				 (unsigned long long)commit->number, assembly->missing_words);
	device = assembly->devices[position];
	if (piece->start_block >= blocks || len / sb->block_bytes > blocks - piece->start_block)
		return spw_error(-EBADMSG, "%s: it lies beyond its end", spw_device_path(device));
	buf = spw_engine__device_buffer(device, len);
	if (!buf)
		return -ENOMEM;
	rc = spw_device_pread(device, buf, len,
			      spw_layout__partition_offset(sb, partition) +
				      piece->start_block * sb->block_bytes);
	if (rc == 0 && spw_checksum(buf, piece->len_bytes) != piece->checksum)
		rc = spw_error(-EBADMSG, "%s: other bytes than were written",
			       spw_device_path(device));
	if (rc == 0)
		memcpy(to, buf, piece->len_bytes);
	free(buf);
	return rc;
}

/* Read a run of the manifest from either replica. */
static int read_run(const struct spw_assembly *assembly, uint32_t partition,
		    const struct spw_commit *commit, const struct spw_log *log,
		    const struct spw_commit_piece *pieces, uint8_t *to)
{
	bool second = commit->mirrored && spw_drives__position_of(assembly, pieces[1].drive) >= 0;
	int rc;

	if (second && spw_drives__position_of(assembly, pieces[0].drive) < 0)
		return spw_drives__piece_read(assembly, partition, commit, &pieces[1], to);
	rc = spw_drives__piece_read(assembly, partition, commit, &pieces[0], to);
	if (rc == 0 || rc == -ENOMEM || !second)
		return rc;
	spw_log(log, SPW_LOG_WARNING,
		"one copy of the description of commit %llu does not serve: %s",
		(unsigned long long)commit->number, spw_last_error());
	return spw_drives__piece_read(assembly, partition, commit, &pieces[1], to);
}

int spw_drives__manifest_read(const struct spw_assembly *assembly, uint32_t partition,
			      const struct spw_commit *commit, const struct spw_log *log,
			      uint8_t **bytes, struct spw_manifest *manifest)
{
	struct spw_commit_place place;
	uint8_t *at;
	char words[256];
	const char *why, *unused;
	int rc = 0;

	at = *bytes = malloc(commit->manifest_bytes);
	if (!at)
		return -ENOMEM;
	for (uint32_t i = 0; rc == 0 && i < commit->piece_count; i += commit->mirrored ? 2 : 1) {
		rc = read_run(assembly, partition, commit, log, &commit->pieces[i], at);
		at += commit->pieces[i].len_bytes;
	}
	(void)snprintf(words, sizeof(words), "%s", spw_last_error());
	if (rc)
		return rc == -EBADMSG ? spw_drives__commit_damaged_error(partition, commit, words)
				      : rc;
	spw_drives__commit_place(&assembly->superblocks[0], partition, &place);
	rc = spw_layout__manifest_decode(*bytes, commit->manifest_bytes, &place, commit, manifest,
					 &why);
	if (rc == 0)
		return 0;
	/* Intact, but some of it lies on an added drive, which those at hand do not know? */
	place.drive_count = SPW_LAYOUT_DRIVES_MAX;
	if (spw_layout__manifest_decode(*bytes, commit->manifest_bytes, &place, commit, manifest,
					&unused) == 0)
		return spw_drives__commit_unknown_error(commit->number,
							spw_device_path(assembly->devices[0]));
	return spw_drives__commit_damaged_error(partition, commit, why);
}
