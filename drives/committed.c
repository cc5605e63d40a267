/* SPDX-License-Identifier: MIT */
/* drives/committed.c - read all drives' commit blocks; find the newest and the kept commit */
#include "drives/committed.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <spillway/format.h>

#include "drives/assemble.h"
#include "util/util.h"

void spw_drives__commit_place(const struct spw_superblock *sb, uint32_t partition,
			      struct spw_commit_place *place)
{
	SPW_ASSERT(partition < sb->partition_count);
	memcpy(place->store_uuid, sb->store_uuid, sizeof(place->store_uuid));
	place->partition = partition;
	place->drive_count = sb->drive_count;
	place->block_bytes = sb->block_bytes;
	place->chunk_bytes = sb->chunk_bytes;
}

/*
 * Read a commit block. It may name drives that were added without this one. Return: 0; an error of
 * reading; as spw_layout__commit_decode(), with *why.
 */
static int read_slot(const struct spw_device *device, const struct spw_superblock *sb,
		     uint32_t partition, uint32_t slot, struct spw_commit *commit, const char **why)
{
	uint8_t *buf = spw_engine__device_buffer(device, sb->block_bytes);
	struct spw_commit_place place;
	int rc;

	SPW_ASSERT(slot < SPW_COMMIT_SLOTS);
	*why = "it cannot be read";
	if (!buf)
		return -ENOMEM;
	spw_drives__commit_place(sb, partition, &place);
	place.drive_count = SPW_DRIVES_MAX;
	rc = spw_device_pread(device, buf, sb->block_bytes,
			      spw_layout__commit_offset(sb, partition, slot));
	if (rc == 0)
		rc = spw_layout__commit_decode(buf, &place, slot, commit, why);
	free(buf);
	return rc;
}

/* Compare commits as encoded: the struct has padding. */
static bool same(const struct spw_commit *a, const struct spw_commit *b)
{
	static const struct spw_commit_place nowhere;
	uint8_t block_a[SPW_COMMIT_BLOCK_BYTES], block_b[SPW_COMMIT_BLOCK_BYTES];

	spw_layout__commit_encode(a, &nowhere, block_a);
	spw_layout__commit_encode(b, &nowhere, block_b);
	return memcmp(block_a, block_b, sizeof(block_a)) == 0;
}

/* Does a commit name drives that the store has not, as far as the drives at hand know? */
static bool names_unknown(const struct spw_commit *commit, uint32_t drive_count)
{
	if (drive_count < SPW_DRIVES_MAX && commit->members >> drive_count != 0)
		return true;
	for (uint32_t i = 0; i < commit->piece_count; i++)
		if (commit->pieces[i].drive >= drive_count &&
		    commit->pieces[i].drive != SPW_COMMIT_NO_DRIVE)
			return true;
	return false;
}

static uint64_t bit_of(const struct spw_assembly *assembly, uint32_t drive)
{
	return UINT64_C(1) << assembly->superblocks[drive].drive_index;
}

/* Note an intact commit block. It replaces that of another drive in this slot if it is newer. */
static int note(const struct spw_assembly *assembly, struct spw_commits_found *found,
		uint32_t drive, const struct spw_commit *commit)
{
	uint32_t slot = commit->slot;
	const struct spw_commit *known = &found->commits[slot];

	/* Drives used without each other may have equal sequence numbers: see find_forks(). */
	bool apart = known->members && commit->members && !(known->members & commit->members);

	if (found->there[slot] && known->sequence == commit->sequence && !same(known, commit) &&
	    !apart)
		return spw_error(-EUCLEAN,
				 "%s and %s contradict each other about commit %llu: one of them "
				 "is a copy from another time",
				 spw_device_path(assembly->devices[found->drive[slot]]),
				 spw_device_path(assembly->devices[drive]),
				 (unsigned long long)commit->number);
	if (found->there[slot] && known->sequence >= commit->sequence) {
		if (known->sequence == commit->sequence && !apart)
			found->have[slot] |= bit_of(assembly, drive);
		return 0;
	}
	found->there[slot] = true;
	found->have[slot] = bit_of(assembly, drive);
	found->drive[slot] = drive;
	found->commits[slot] = *commit;
	return 0;
}

/* Note a commit that cannot be read without a drive that was added. */
static void note_unknown(struct spw_commits_found *found, uint32_t drive,
			 const struct spw_commit *commit)
{
	if (commit->sequence <= found->unknown_sequence)
		return;
	found->unknown_sequence = commit->sequence;
	found->unknown_drive = drive;
	found->unknown_number = commit->number;
}

/* The newest commit of a drive; and the sequence numbers in its slots, 0: none. */
struct newest {
	uint64_t sequence, number, members;
	uint64_t slots[SPW_COMMIT_SLOTS];
};

/* Read a slot of a drive. @newest: updated. Return: 1 the slot cannot be read; 0; -errno. */
static int look_into_slot(const struct spw_assembly *assembly, uint32_t drive, uint32_t partition,
			  uint32_t slot, const struct spw_log *log, struct spw_commits_found *found,
			  struct newest *newest)
{
	const struct spw_device *device = assembly->devices[drive];
	struct spw_commit commit;
	const char *why;
	const struct spw_superblock *sb = &assembly->superblocks[drive];
	int rc = read_slot(device, sb, partition, slot, &commit, &why);

	if (rc == 0 && names_unknown(&commit, sb->drive_count)) {
		note_unknown(found, drive, &commit);
		return 0;
	}
	if (rc == 0)
		newest->slots[slot] = commit.sequence;
	if (rc == 0 && commit.sequence > newest->sequence) {
		newest->sequence = commit.sequence;
		newest->number = commit.number;
		newest->members = commit.members;
	}
	if (rc == 0 || rc == -EMEDIUMTYPE)
		found->read[slot] |= bit_of(assembly, drive);
	switch (rc) {
	case 0: return note(assembly, found, drive, &commit);
	case -ENOMEM: return rc;
	case -EMEDIUMTYPE: return 0;
	case -EPROTONOSUPPORT:
		return spw_error(
			rc,
			"%s: what is committed was written by a newer version of spillway; "
			"use that version",
			spw_device_path(device));
	case -EUCLEAN:
		/* A crash during a commit leaves this; the other slot is valid then. */
		spw_log(log, SPW_LOG_INFO, "%s: a commit did not get as far as this drive (%s)",
			spw_device_path(device), why);
		return 0;
	default:
		spw_log(log, SPW_LOG_WARNING,
			"one of two blocks for commits cannot be read; those of other drives "
			"serve: %s",
			spw_last_error());
		return 1;
	}
}

int spw_drives__commit_unknown_error(uint64_t number, const char *path)
{
	return spw_error(
		-EUCLEAN,
		"%s has commit %llu, which was made with a drive that was added to the "
		"store, and none of the drives named was told of that: name the added one, "
		"too, or ask for the commit before, or for none (SPW_COMMIT_NONE), to give "
		"it up",
		path, (unsigned long long)number);
}

int spw_drives__commits_forked_error(const struct spw_assembly *assembly,
				     const struct spw_commits_found *found)
{
	int last = spw_drives__commits_newest(found);

	SPW_ASSERT(found->forked);
	if (found->forked_number == found->unknown_number &&
	    found->forked_drive == found->unknown_drive && found->unknown_sequence > 0)
		return spw_drives__commit_unknown_error(
			found->forked_number,
			spw_device_path(assembly->devices[found->forked_drive]));
	if (last < 0)
		return spw_error(-EUCLEAN,
				 "%s has commit %llu, which was made with a drive that has been "
				 "replaced since, and the others have none: open the store with "
				 "that drive, or with SPW_COMMIT_NONE (spillway state drop)",
				 spw_device_path(assembly->devices[found->forked_drive]),
				 (unsigned long long)found->forked_number);
	return spw_error(
		-EUCLEAN,
		"%s has commit %llu, and %s has commit %llu, which were made without each other: "
		"open the store with the drives of one alone and commit, or ask for commit %llu, "
		"to give up the other",
		spw_device_path(assembly->devices[found->drive[last]]),
		(unsigned long long)found->commits[last].number,
		spw_device_path(assembly->devices[found->forked_drive]),
		(unsigned long long)found->forked_number,
		(unsigned long long)found->commits[last].number);
}

static void note_fork(struct spw_commits_found *found, uint32_t drive, uint64_t number)
{
	found->forked = true;
	found->forked_drive = drive;
	found->forked_number = number;
}

/*
 * Find drives that were used without each other. If one commit was made after another, with drives
 * missing, at least one drive had both: the process that made the later one has read the earlier
 * there. Commits without a common member are independent lines. Drives that missed several commits
 * by changing sets of drives look like that too. @but: drives to leave out. Return: a mask of the
 * drives whose newest commit is of another line than the newest of all.
 */
static uint64_t find_forks(const struct spw_assembly *assembly, uint64_t but,
			   const struct newest newest[], struct spw_commits_found *found)
{
	int last = spw_drives__commits_newest(found);
	uint64_t members = last < 0 ? 0 : found->commits[last].members, mask = 0;

	for (uint32_t i = 0; members && i < assembly->count; i++)
		if (newest[i].members && !(newest[i].members & members) && !(but >> i & 1)) {
			mask |= UINT64_C(1) << i;
			note_fork(found, i, newest[i].number);
		}
	return mask;
}

/* The superblock that tells which drives the store has (ASSEMBLE-5). */
static const struct spw_superblock *newest_superblock(const struct spw_assembly *assembly)
{
	const struct spw_superblock *newest = &assembly->superblocks[0];

	for (uint32_t i = 1; i < assembly->count; i++)
		if (assembly->superblocks[i].sequence > newest->sequence)
			newest = &assembly->superblocks[i];
	return newest;
}

/*
 * A bit for each drive, by index, that was replaced without the drive with superblock @sb. One that
 * was added without it lacks nothing of a commit.
 */
static uint64_t replaced_without(const struct spw_superblock *newest,
				 const struct spw_superblock *sb)
{
	static const uint8_t none[16];
	uint64_t mask = 0;

	for (uint32_t i = 0; i < sb->drive_count; i++)
		if (memcmp(sb->drive_uuids[i], none, sizeof(none)) != 0 &&
		    memcmp(newest->drive_uuids[i], sb->drive_uuids[i],
			   sizeof(sb->drive_uuids[i])) != 0)
			mask |= UINT64_C(1) << i;
	return mask;
}

/* In either slot: a process that was killed may have written the next one to some drives only. */
static bool is_found_on_current(const struct spw_assembly *assembly,
				const struct spw_superblock *newest_sb,
				const struct newest newest[], uint64_t sequence)
{
	for (uint32_t i = 0; i < assembly->count; i++)
		for (uint32_t slot = 0; slot < SPW_COMMIT_SLOTS; slot++)
			if (assembly->superblocks[i].sequence == newest_sb->sequence &&
			    newest[i].slots[slot] == sequence)
				return true;
	return false;
}

/*
 * Find drives with a commit that was made with a drive that has been replaced since, and that none
 * of the drives has which know of that: what it has on the replaced drive is not on the new one.
 * Return: a mask of them.
 */
static uint64_t find_left_behind(const struct spw_assembly *assembly, const struct newest newest[],
				 struct spw_commits_found *found)
{
	const struct spw_superblock *sb = newest_superblock(assembly);
	uint64_t mask = 0;

	for (uint32_t i = 0; i < assembly->count; i++) {
		uint64_t replaced = replaced_without(sb, &assembly->superblocks[i]);

		if (!(newest[i].members & replaced) ||
		    is_found_on_current(assembly, sb, newest, newest[i].sequence))
			continue;
		mask |= UINT64_C(1) << i;
		note_fork(found, i, newest[i].number);
	}
	return mask;
}

/* The newest commit of all is one that names drives which are not known. */
static void find_unknown(struct spw_commits_found *found)
{
	int last = spw_drives__commits_newest(found);

	found->sequence_max = SPW_MAX(found->sequence_max, found->unknown_sequence);
	if (found->unknown_sequence > (last < 0 ? 0 : found->commits[last].sequence))
		note_fork(found, found->unknown_drive, found->unknown_number);
}

/* Read the slots of all drives except those in the mask @but. */
static int look(const struct spw_assembly *assembly, uint32_t partition, uint64_t but,
		const struct spw_log *log, struct spw_commits_found *found, struct newest newest[])
{
	int rc = 0;

	for (uint32_t drive = 0; rc >= 0 && drive < assembly->count; drive++) {
		bool unread = false;

		for (uint32_t slot = 0; rc >= 0 && !(but >> drive & 1) && slot < SPW_COMMIT_SLOTS;
		     slot++) {
			rc = look_into_slot(assembly, drive, partition, slot, log, found,
					    &newest[drive]);
			unread |= rc != 0;
		}
		found->seen |= !unread;
	}
	return SPW_MIN(rc, 0);
}

/* Read the slots again, except those of drives of another line. */
static int look_again(const struct spw_assembly *assembly, uint32_t partition, uint64_t but,
		      struct spw_commits_found *found, struct newest newest[])
{
	memset(found->there, 0, sizeof(found->there));
	memset(found->have, 0, sizeof(found->have));
	memset(found->read, 0, sizeof(found->read));
	return look(assembly, partition, but, NULL, found, newest);
}

int spw_drives__commits_look(const struct spw_assembly *assembly, uint32_t partition,
			     const struct spw_log *log, struct spw_commits_found *found)
{
	struct newest newest[SPW_DRIVES_MAX] = {{0}};
	uint64_t behind, forked;
	int rc;

	memset(found, 0, sizeof(*found));
	rc = look(assembly, partition, 0, log, found, newest);
	for (uint32_t i = 0; i < assembly->count; i++)
		found->sequence_max = SPW_MAX(found->sequence_max, newest[i].sequence);
	behind = rc ? 0 : find_left_behind(assembly, newest, found);
	if (behind)
		rc = look_again(assembly, partition, behind, found, newest);
	forked = rc ? 0 : find_forks(assembly, behind, newest, found);
	if (forked)
		rc = look_again(assembly, partition, behind | forked, found, newest);
	if (rc == 0)
		find_unknown(found);
	return rc;
}

int spw_drives__commits_newest(const struct spw_commits_found *found)
{
	if (found->there[0] && found->there[1])
		return found->commits[1].sequence > found->commits[0].sequence;
	return found->there[0] ? 0 : found->there[1] ? 1 : -1;
}

bool spw_drives__commits_may_lack(const struct spw_commits_found *found)
{
	int last = spw_drives__commits_newest(found);

	return last >= 0 && found->commits[last].members != 0 && found->seen;
}

bool spw_drives__commits_is_previous(const struct spw_commits_found *found, int slot)
{
	int last = spw_drives__commits_newest(found);

	SPW_ASSERT(last >= 0 && slot >= 0 && slot < (int)SPW_COMMIT_SLOTS);
	return found->there[slot] && found->commits[last].has_previous &&
	       found->commits[last].previous == found->commits[slot].number;
}

bool spw_drives__commits_is_kept(const struct spw_commits_found *found, int slot)
{
	uint64_t both;

	if (!spw_drives__commits_is_previous(found, slot))
		return false;
	/* These drives had both blocks until a release (DURABLE-5 in store/commit.c). */
	both = found->commits[spw_drives__commits_newest(found)].members &
	       found->commits[slot].members;
	return !(both & found->read[slot] & ~found->have[slot]);
}

int spw_committed(const char *const paths[], unsigned count, uint32_t partition,
		  struct spw_commit_info *info, size_t size)
{
	struct spw_commit_info all = {.size = SPW_MIN(size, sizeof(all))};
	struct spw_commits_found found;
	struct spw_assembly assembly;
	int slot = -1, rc = spw_drives__assemble(paths, count, true, NULL, &assembly);

	if (rc)
		return rc;
	if (partition >= assembly.superblocks[0].partition_count)
		rc = spw_error(-EINVAL, "partition %u does not exist: the store has %u, from 0",
			       partition, assembly.superblocks[0].partition_count);
	else
		rc = spw_drives__commits_look(&assembly, partition, NULL, &found);
	if (rc == 0)
		slot = spw_drives__commits_newest(&found);
	/* Whether a commit is complete without these drives is checked at open. */
	if (rc == 0 && assembly.missing > 0 && slot < 0)
		rc = spw_drives__assembly_missing_error(&assembly);
	else if (rc == 0 && found.forked)
		rc = spw_drives__commits_forked_error(&assembly, &found);
	spw_drives__assembly_close(&assembly);
	if (rc == 0 && slot < 0)
		rc = spw_error(-ENODATA, "nothing is committed in partition %u of the store",
			       partition);
	if (rc)
		return rc;
	all.number = found.commits[slot].number;
	all.has_previous = spw_drives__commits_is_kept(&found, 1 - slot);
	all.previous = all.has_previous ? found.commits[slot].previous : 0;
	memcpy(info, &all, all.size);
	return 0;
}

int spw_drives__committed_refuse(const struct spw_device *device, const struct spw_superblock *sb)
{
	if (!sb->complete || !(sb->features_incompatible & SPW_FEATURE_COMMITS))
		return 0;
	for (uint32_t partition = 0; partition < sb->partition_count; partition++) {
		struct spw_commit newest = {0};
		bool any = false;

		for (uint32_t slot = 0; slot < SPW_COMMIT_SLOTS; slot++) {
			struct spw_commit commit;
			const char *why;
			int rc = read_slot(device, sb, partition, slot, &commit, &why);

			if (rc == -EPROTONOSUPPORT)
				return spw_error(-EEXIST,
						 "%s: partition %u holds a commit of a newer "
						 "version of spillway, the state of a training "
						 "run; if it is not needed, use --erase",
						 spw_device_path(device), partition);
			if (rc == 0 && (!any || commit.sequence > newest.sequence))
				newest = commit;
			any |= rc == 0;
		}
		if (any)
			return spw_error(-EEXIST,
					 "%s: partition %u holds commit %llu, the state of a "
					 "training run; if it is not needed, use --erase, or "
					 "drop that commit alone (spillway state drop)",
					 spw_device_path(device), partition,
					 (unsigned long long)newest.number);
	}
	return 0;
}
