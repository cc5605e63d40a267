/* SPDX-License-Identifier: MIT */
/* drives/rebuild.c - copy what is committed to a drive that takes another's place */
#include "drives/rebuild.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "drives/committed.h"
#include "drives/manifest.h"
#include "drives/safety.h"
#include "engine/device.h"
#include "layout/commit.h"
#include "util/util.h"

/* What one commit has on the replaced drive. */
struct share {
	struct spw_rebuild *rebuild;
	uint32_t partition;
	const struct spw_commit *commit;
	uint64_t bytes, end_block;
	uint64_t lost_bytes; /* only the replaced drive has them, and it cannot be read */
	uint32_t lost_objects;
	uint8_t *buf; /* of a chunk, for the target */
};

/* @piece: on the replaced drive. @other: the other copy; NULL: there is none. */
typedef int visit_piece(struct share *share, const struct spw_commit_piece *piece,
			const struct spw_commit_piece *other);

static bool is_there(const struct spw_rebuild *rebuild, uint32_t drive)
{
	return spw_drives__position_of(&rebuild->from, drive) >= 0;
}

/* Visit the pieces of an object that are on the replaced drive. */
static int each_piece(struct share *share, const struct spw_commit_piece *pieces, uint32_t count,
		      bool mirrored, visit_piece *visit)
{
	uint32_t index = share->rebuild->index;
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < count; i++)
		if (pieces[i].drive == index)
			rc = visit(share, &pieces[i],
				   mirrored && pieces[i ^ 1].drive != SPW_COMMIT_NO_DRIVE
					   ? &pieces[i ^ 1]
					   : NULL);
	return rc;
}

static int each_object(struct share *share, const struct spw_manifest *manifest, visit_piece *visit)
{
	const struct spw_commit_piece *pieces = manifest->pieces;
	const struct spw_commit *commit = share->commit;
	int rc = each_piece(share, commit->pieces, commit->piece_count, commit->mirrored, visit);

	for (uint32_t i = 0; rc == 0 && i < manifest->object_count; i++) {
		const struct spw_commit_object *object = &manifest->objects[i];
		uint64_t lost_bytes = share->lost_bytes;

		rc = each_piece(share, pieces, object->pieces, object->mirrored, visit);
		share->lost_objects += share->lost_bytes != lost_bytes;
		pieces += object->pieces;
	}
	return rc;
}

/* ---- Survey ---- */

static int survey_piece(struct share *share, const struct spw_commit_piece *piece,
			const struct spw_commit_piece *other)
{
	const struct spw_rebuild *rebuild = share->rebuild;
	uint32_t block_bytes = rebuild->target->superblock.block_bytes;
	uint64_t end =
		piece->start_block + spw_round_up(piece->len_bytes, block_bytes) / block_bytes;

	share->bytes += piece->len_bytes;
	share->end_block = SPW_MAX(share->end_block, end);
	if (!is_there(rebuild, piece->drive) && !(other && is_there(rebuild, other->drive)))
		share->lost_bytes += piece->len_bytes;
	return 0;
}

/* Report what only the replaced drive has. @manifest: NULL: it cannot be read. */
static int lost_error(const struct share *share, const struct spw_manifest *manifest)
{
	unsigned long long number = share->commit->number;
	unsigned drive = share->rebuild->index + 1;

	if (!manifest)
		return spw_error(
			-ENXIO,
			"what commit %llu of partition %u has is not known: %s; attach what "
			"is missing, or format a new store",
			number, share->partition, share->rebuild->from.missing_words);
	if (share->lost_bytes > 0)
		return spw_error(
			-ENXIO,
			"of commit %llu of partition %u %u of %u objects cannot be had: %s of "
			"their bytes lie on drive %u alone, which cannot be read (spillway state "
			"list names them): attach that drive, or format a new store",
			number, share->partition, share->lost_objects, manifest->object_count,
			SPW_SIZE_TEXT(share->lost_bytes), drive);
	return spw_error(-ENXIO,
			 "commit %llu of partition %u has no mirror, so drives that cannot be read "
			 "may have a later one: attach all drives, or format a new store",
			 number, share->partition);
}

static int too_small_error(const struct share *share, uint64_t capacity_bytes)
{
	const struct spw_rebuild *rebuild = share->rebuild;
	const struct spw_superblock *sb = &rebuild->target->superblock;

	return spw_error(-ENOSPC,
			 "%s: is too small: in partition %u committed data of drive %u reaches to "
			 "%s, and its partitions have %s each; name a larger drive",
			 rebuild->target->path, share->partition, rebuild->index + 1,
			 SPW_SIZE_TEXT(share->end_block * sb->block_bytes),
			 SPW_SIZE_TEXT(capacity_bytes));
}

static int survey_commit(struct spw_rebuild *rebuild, uint32_t partition,
			 const struct spw_commit *commit)
{
	const struct spw_superblock *sb = &rebuild->target->superblock;
	struct share share = {.rebuild = rebuild, .partition = partition, .commit = commit};
	uint64_t capacity_bytes = spw_layout__partition_capacity(sb);
	struct spw_manifest manifest;
	uint8_t *bytes = NULL;
	int rc = spw_drives__manifest_read(&rebuild->from, partition, commit, rebuild->log, &bytes,
					   &manifest);

	/* Without a mirror the newest commit may be on a missing drive only. */
	if (rc == -ENXIO)
		rc = lost_error(&share, NULL);
	else if (rc == 0)
		rc = each_object(&share, &manifest, survey_piece);
	if (rc == 0 &&
	    (share.lost_bytes > 0 || (commit->members == 0 && rebuild->from.missing > 0)))
		rc = lost_error(&share, &manifest);
	if (rc == 0 && share.end_block > capacity_bytes / sb->block_bytes)
		rc = too_small_error(&share, capacity_bytes);
	rebuild->all_bytes += share.bytes;
	free(bytes);
	return rc;
}

/* ---- Copy ---- */

/* Read from the other copy: the replaced drive may be failing. */
static int read_either(struct share *share, const struct spw_commit_piece *piece,
		       const struct spw_commit_piece *other)
{
	const struct spw_rebuild *rebuild = share->rebuild;
	bool both = other && is_there(rebuild, other->drive) && is_there(rebuild, piece->drive);
	int rc;

	if (!other || !is_there(rebuild, other->drive))
		other = piece;
	rc = spw_drives__piece_read(&rebuild->from, share->partition, share->commit, other,
				    share->buf);
	if (rc == 0 || rc == -ENOMEM || !both)
		return rc;
	spw_log(rebuild->log, SPW_LOG_WARNING,
		"one copy of a chunk of commit %llu does not serve: %s",
		(unsigned long long)share->commit->number, spw_last_error());
	return spw_drives__piece_read(&rebuild->from, share->partition, share->commit, piece,
				      share->buf);
}

static int copy_piece(struct share *share, const struct spw_commit_piece *piece,
		      const struct spw_commit_piece *other)
{
	struct spw_rebuild *rebuild = share->rebuild;
	const struct spw_superblock *sb = &rebuild->target->superblock;
	size_t len = spw_round_up(piece->len_bytes, sb->block_bytes);
	char words[512];
	int rc;

	SPW_ASSERT(len <= sb->chunk_bytes);
	if (rebuild->go_on &&
	    !rebuild->go_on(rebuild->context, rebuild->done_bytes, rebuild->all_bytes))
		return spw_error(-ECANCELED, "interrupted: the store is as it was");
	rc = read_either(share, piece, other);
	if (rc != 0 && rc != -ENOMEM) {
		(void)snprintf(words, sizeof(words), "%s", spw_last_error());
		return spw_error(
			rc,
			"a chunk of commit %llu of partition %u, of which drive %u has a copy, "
			"cannot be read, so the store stays as it was (spillway check --scrub "
			"looks "
			"at all of it): %s",
			(unsigned long long)share->commit->number, share->partition,
			rebuild->index + 1, words);
	}
	if (rc != 0)
		return rc;
	memset(share->buf + piece->len_bytes, 0, len - piece->len_bytes);
	rc = spw_device_pwrite(spw_drives__claimed(rebuild->target->device), share->buf, len,
			       spw_layout__partition_offset(sb, share->partition) +
				       piece->start_block * sb->block_bytes);
	rebuild->done_bytes += piece->len_bytes;
	return rc;
}

/* Write a commit block, or zeros if @commit is NULL. */
static int write_slot(const struct spw_rebuild *rebuild, uint32_t partition, uint32_t slot,
		      const struct spw_commit *commit)
{
	const struct spw_superblock *sb = &rebuild->target->superblock;
	const struct spw_device *device = rebuild->target->device;
	uint8_t *buf = spw_engine__device_buffer(device, sb->block_bytes);
	struct spw_commit_place place;
	int rc;

	if (!buf)
		return -ENOMEM;
	spw_drives__commit_place(sb, partition, &place);
	if (commit)
		spw_layout__commit_encode(commit, &place, buf);
	rc = spw_device_pwrite(spw_drives__claimed(device), buf, sb->block_bytes,
			       spw_layout__commit_offset(sb, partition, slot));
	free(buf);
	return rc;
}

static int copy_commit(struct spw_rebuild *rebuild, uint32_t partition,
		       const struct spw_commit *commit)
{
	struct share share = {.rebuild = rebuild, .partition = partition, .commit = commit};
	struct spw_manifest manifest;
	uint8_t *bytes = NULL;
	int rc = spw_drives__manifest_read(&rebuild->from, partition, commit, rebuild->log, &bytes,
					   &manifest);

	share.buf = spw_engine__device_buffer(rebuild->target->device,
					      rebuild->target->superblock.chunk_bytes);
	if (rc == 0 && !share.buf)
		rc = -ENOMEM;
	if (rc == 0)
		rc = each_object(&share, &manifest, copy_piece);
	free(share.buf);
	free(bytes);
	return rc;
}

/* ---- Partitions ---- */

/*
 * Find a partition's commits that stay: the newest, and the one before if it is kept. Return: 0;
 * -ENXIO: they cannot be known without the missing drives.
 */
static int find_commits(const struct spw_rebuild *rebuild, uint32_t partition,
			struct spw_commits_found *found, bool stays[SPW_COMMIT_SLOTS])
{
	int last, rc = spw_drives__commits_look(&rebuild->from, partition, rebuild->log, found);

	memset(stays, 0, SPW_COMMIT_SLOTS * sizeof(stays[0]));
	if (rc != 0)
		return rc;
	if (found->forked)
		return spw_drives__commits_forked_error(&rebuild->from, found);
	if (rebuild->from.missing > 0 && !found->seen)
		return spw_error(-ENXIO,
				 "what is committed in partition %u is not known without drive %u, "
				 "as no other drive's commit blocks can be read: attach it, or "
				 "format a new store",
				 partition, rebuild->index + 1);
	last = spw_drives__commits_newest(found);
	if (last < 0)
		return 0;
	stays[last] = true;
	stays[1 - last] = spw_drives__commits_is_kept(found, 1 - last);
	return 0;
}

typedef int visit_commit(struct spw_rebuild *rebuild, uint32_t partition,
			 const struct spw_commit *commit);

/* Visit the commits of all partitions that stay. @write_slots: and then write their blocks. */
static int each_commit(struct spw_rebuild *rebuild, visit_commit *visit, bool write_slots)
{
	uint32_t count = rebuild->target->superblock.partition_count;
	int rc = 0;

	for (uint32_t partition = 0; rc == 0 && partition < count; partition++) {
		struct spw_commits_found found;
		bool stays[SPW_COMMIT_SLOTS];

		rc = find_commits(rebuild, partition, &found, stays);
		for (uint32_t slot = 0; rc == 0 && slot < SPW_COMMIT_SLOTS; slot++)
			if (stays[slot])
				rc = visit(rebuild, partition, &found.commits[slot]);
		/* Also where nothing is committed: an earlier store may have left something. */
		for (uint32_t slot = 0; rc == 0 && write_slots && slot < SPW_COMMIT_SLOTS; slot++)
			rc = write_slot(rebuild, partition, slot,
					stays[slot] ? &found.commits[slot] : NULL);
	}
	return rc;
}

int spw_drives__rebuild_survey(struct spw_rebuild *rebuild)
{
	return each_commit(rebuild, survey_commit, false);
}

int spw_drives__rebuild_copy(struct spw_rebuild *rebuild)
{
	return each_commit(rebuild, copy_commit, true);
}
