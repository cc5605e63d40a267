/* SPDX-License-Identifier: MIT */
/*
 * drives/candidates.c - read the drives that a caller named, and decide whether they are one store
 *
 * Rules
 *   ASSEMBLE-1  Checked first is that no device is named twice, then each drive in the given order,
 *               then the set: the first fault in this order is reported. The contents of all drives
 *               are read in parallel.
 *   ASSEMBLE-2  An incomplete superblock makes its drive unusable, whatever the other drives say: a
 *               format that did not finish never leaves a store of mixed generations.
 *   ASSEMBLE-3  A drive with a foreign signature outside its data area is refused, even if both
 *               copies are intact: it has been used for something else since. So is a drive with a
 *               copy that other software has overwritten (LAYOUT-14).
 *   ASSEMBLE-4  The superblocks of all drives agree on all fields of the store.
 */
#include "drives/candidates.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "drives/safety.h"
#include "drives/sysfs.h"
#include "engine/device.h"
#include "engine/vfio/vfio.h"
#include "util/fork.h"
#include "util/parallel.h"
#include "util/util.h"

static_assert(SPW_DRIVES_MAX == SPW_LAYOUT_DRIVES_MAX, "drives");
static_assert(SPW_PARTITIONS_MAX == SPW_LAYOUT_PARTITIONS_MAX, "partitions");
static_assert(SPW_CHUNK_BYTES_MIN == SPW_LAYOUT_CHUNK_BYTES_MIN, "smallest chunk");
static_assert(SPW_CHUNK_BYTES_MAX == SPW_LAYOUT_CHUNK_BYTES_MAX, "largest chunk");
static_assert(SPW_DRIVE_BYTES_MIN == SPW_LAYOUT_DEVICE_BYTES_MIN, "smallest drive");
static_assert(SPW_UUID_TEXT_BYTES == SPW_LAYOUT_UUID_TEXT_BYTES, "UUID text");

void spw_drives__candidates_close_devices(struct spw_device *const devices[], unsigned count)
{
	struct spw_vfio_hold *hold = spw_vfio__hold_open(devices, count);

	SPW_ASSERT(count <= SPW_DRIVES_MAX);
	for (unsigned i = 0; i < count; i++) {
		if (devices[i] && devices[i]->fd >= 0)
			spw_fork_remove(devices[i]->fd);
		spw_device_close(devices[i]);
	}
	spw_vfio__let_go(hold);
}

/* ---- One drive as a member ---- */

static void note_fault(struct spw_candidate *candidate, int rc)
{
	SPW_ASSERT(rc <= 0);
	if (rc == 0 || candidate->fault != 0)
		return;
	candidate->fault = rc;
	(void)snprintf(candidate->words, sizeof(candidate->words), "%s", spw_last_error());
}

static int no_superblock_error(const struct spw_candidate *candidate)
{
	const struct spw_superblocks *superblocks = &candidate->contents.superblocks;
	const char *first = superblocks->places[SPW_PLACE_FIRST].why,
		   *last = superblocks->places[SPW_PLACE_LAST].why;
	const char *path = candidate->path;

	SPW_ASSERT(superblocks->chosen < 0);
	switch (superblocks->chosen) {
	case -EMEDIUMTYPE:
		return spw_error(-EMEDIUMTYPE,
				 "%s: is not a drive of a spillway store (it holds: %s); name the "
				 "right drive, or format it",
				 path, candidate->contents.text);
	case -EPROTONOSUPPORT:
		return spw_error(-EPROTONOSUPPORT,
				 "%s: was formatted by a newer version of spillway (%s, or %s); "
				 "use that version",
				 path, first ? first : "intact", last ? last : "intact");
	default:
		return spw_error(
			-EUCLEAN,
			"%s: both superblock copies are damaged (the first: %s; the last: %s); "
			"nothing stored outlives a process, so format the store again with --force",
			path, first ? first : "intact", last ? last : "intact");
	}
}

static int verify_against_device(const struct spw_candidate *candidate)
{
	const struct spw_geometry *geometry = spw_device_geometry(candidate->device);
	const struct spw_superblock *sb = &candidate->superblock;

	SPW_ASSERT(candidate->contents.superblocks.chosen >= 0);
	if (geometry->size_bytes < sb->device_bytes)
		return spw_error(
			-ENOSPC,
			"%s: is smaller than when it was formatted: %s (%llu bytes), not %s "
			"(%llu); restore its size, or format the store again with --force",
			candidate->path, SPW_SIZE_TEXT(geometry->size_bytes),
			(unsigned long long)geometry->size_bytes, SPW_SIZE_TEXT(sb->device_bytes),
			(unsigned long long)sb->device_bytes);
	if (geometry->logical_block_bytes > sb->block_bytes)
		return spw_error(-EMEDIUMTYPE,
				 "%s: has logical blocks of %u bytes, larger than the store's "
				 "blocks of %u; attach it as it was formatted (%u), or format the "
				 "store again with --force",
				 candidate->path, geometry->logical_block_bytes, sb->block_bytes,
				 sb->logical_block_bytes);
	if (!sb->complete) /* a format did not finish (ASSEMBLE-2) */
		return spw_error(
			-EUCLEAN,
			"%s: its format did not finish: run spillway format again, with --force",
			candidate->path);
	if (!(sb->features_incompatible & SPW_FEATURE_COMMITS))
		return spw_error(-EPROTONOSUPPORT,
				 "%s: was formatted by an earlier version of spillway, without "
				 "room for commits; nothing is stored on it: format it again, with "
				 "--force",
				 candidate->path);
	if (candidate->contents.foreign) /* used for something else (ASSEMBLE-3) */
		return spw_error(-EMEDIUMTYPE,
				 "%s: something else has been made of this drive of a store (it "
				 "holds: %s); name the right drive, or, if that is not needed, "
				 "format the store again with --force",
				 candidate->path, candidate->contents.text);
	return 0;
}

static void warn_of_damage(const struct spw_candidate *candidate, const struct spw_log *log)
{
	const struct spw_superblocks *superblocks = &candidate->contents.superblocks;
	const struct spw_place_content *bad = &superblocks->places[SPW_PLACE_FIRST];

	SPW_ASSERT(superblocks->chosen >= 0 && superblocks->copies_good >= 1);
	if (superblocks->copies_good == 2)
		return;
	if (superblocks->chosen == SPW_PLACE_FIRST)
		bad = &superblocks->places[SPW_PLACE_LAST];
	spw_log(log, SPW_LOG_WARNING,
		"%s: the %s superblock copy is not usable (%s); the other one serves. The drive "
		"may be failing, or something has written to it: check it, and format the store "
		"again with --force",
		candidate->path, superblocks->chosen == SPW_PLACE_FIRST ? "last" : "first",
		bad->why ? bad->why : "it is older");
}

static void look_into(void *context, unsigned index)
{
	struct spw_candidate *candidate = (struct spw_candidate *)context + index;
	const struct spw_contents *contents = &candidate->contents;
	int rc;

	if (!candidate->device)
		return;
	rc = spw_drives__contents_read(candidate->device, &candidate->contents);
	/* Sample only drives without known contents, which would explain any data. */
	if (rc == 0 && candidate->sampled && !contents->store && !contents->foreign)
		rc = spw_drives__residue_sample(candidate->device, &candidate->samples);
	note_fault(candidate, rc);
}

static int first_fault(const struct spw_candidate *candidates, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		if (candidates[i].fault != 0 && !candidates[i].absent)
			return spw_error(candidates[i].fault, "%s", candidates[i].words);
	return 0;
}

int spw_drives__candidates_read(struct spw_candidate *candidates, unsigned count,
				const struct spw_log *log)
{
	SPW_ASSERT(count > 0 && count <= SPW_DRIVES_MAX);
	spw_drives__safety_prepare();
	spw_parallel(count, "drives are examined", look_into, candidates, log);
	return first_fault(candidates, count);
}

static int check_candidate(struct spw_candidate *candidate, bool read_only,
			   const struct spw_loops *loops, const struct spw_log *log)
{
	struct spw_contents *contents = &candidate->contents;
	int rc;

	if (contents->superblocks.chosen < 0)
		return no_superblock_error(candidate);
	candidate->superblock =
		contents->superblocks.places[contents->superblocks.chosen].superblock;
	rc = verify_against_device(candidate);
	if (rc != 0)
		return rc;
	if (!read_only && (candidate->superblock.features_read_only_compatible &
			   ~SPW_FEATURES_READ_ONLY_COMPATIBLE) != 0)
		return spw_error(-EPROTONOSUPPORT,
				 "%s: uses a feature of a newer version of spillway, with which "
				 "this one may read but not write; use that version",
				 candidate->path);
	if (!read_only)
		rc = spw_drives__safety_in_use(candidate->path, loops);
	if (rc == 0 && !read_only)
		rc = spw_drives__safety_writable(candidate->path);
	if (rc == 0)
		warn_of_damage(candidate, log);
	return rc;
}

/* ---- The set ---- */

static bool same_store(const struct spw_candidate *a, const struct spw_candidate *b)
{
	return memcmp(a->superblock.store_uuid, b->superblock.store_uuid,
		      sizeof(a->superblock.store_uuid)) == 0;
}

/* A drive of the store that most drives belong to, so that a single foreign drive is reported. */
static const struct spw_candidate *representative(const struct spw_candidate *candidates,
						  unsigned count)
{
	const struct spw_candidate *best = &candidates[0];
	unsigned best_votes = 0;

	for (unsigned i = 0; i < count; i++) {
		unsigned votes = 0;

		for (unsigned j = 0; !candidates[i].absent && j < count; j++)
			votes += same_store(&candidates[i], &candidates[j]);
		if (votes > best_votes) {
			best_votes = votes;
			best = &candidates[i];
		}
	}
	SPW_ASSERT(!best->absent && best_votes > 0);
	return best;
}

/* Do two superblocks agree on all fields of the store (ASSEMBLE-4)? */
static bool agree(const struct spw_superblock *a, const struct spw_superblock *b)
{
	return a->sequence == b->sequence && a->drive_count == b->drive_count &&
	       a->block_bytes == b->block_bytes && a->chunk_bytes == b->chunk_bytes &&
	       a->partition_count == b->partition_count &&
	       a->features_incompatible == b->features_incompatible &&
	       a->features_read_only_compatible == b->features_read_only_compatible &&
	       a->features_compatible == b->features_compatible &&
	       a->created_unix_s == b->created_unix_s &&
	       memcmp(a->drive_uuids, b->drive_uuids, sizeof(a->drive_uuids)) == 0;
}

static int verify_member(const struct spw_candidate *candidate, const struct spw_candidate *of)
{
	char own[SPW_UUID_TEXT_BYTES], other[SPW_UUID_TEXT_BYTES];

	if (!same_store(candidate, of))
		return spw_error(-EMEDIUMTYPE,
				 "%s: belongs to another store (%s) than %s (%s); name the drives "
				 "of one store",
				 candidate->path,
				 spw_layout__uuid_text(candidate->superblock.store_uuid, own),
				 of->path, spw_layout__uuid_text(of->superblock.store_uuid, other));
	if (!agree(&candidate->superblock, &of->superblock))
		return spw_error(-EUCLEAN,
				 "%s: contradicts %s about the store both belong to; format the "
				 "store again with --force",
				 candidate->path, of->path);
	return 0;
}

/* *missing: number of missing drives. Return: 0 none; else an error that names them. */
static int missing_error(const struct spw_candidate *member,
			 const struct spw_candidate *const by_index[], unsigned *missing)
{
	const struct spw_superblock *sb = &member->superblock;
	char drive[SPW_UUID_TEXT_BYTES], store[SPW_UUID_TEXT_BYTES], more[32] = "";
	unsigned first = 0;

	for (unsigned i = sb->drive_count; i-- > 0;)
		if (!by_index[i]) {
			++*missing;
			first = i;
		}
	if (*missing == 0)
		return 0;
	SPW_ASSERT(*missing < sb->drive_count && !by_index[first]);
	if (*missing > 1)
		(void)snprintf(more, sizeof(more), ", and %u more", *missing - 1);
	return spw_error(
		-ENXIO,
		"drive %u of %u (%s)%s is missing: %s belongs to store %s; name all its drives",
		first + 1, sb->drive_count, spw_layout__uuid_text(sb->drive_uuids[first], drive),
		more, member->path, spw_layout__uuid_text(sb->store_uuid, store));
}

static int verify_set(const struct spw_candidate *candidates, unsigned count, unsigned *missing)
{
	const struct spw_candidate *of = representative(candidates, count);
	const struct spw_candidate *by_index[SPW_DRIVES_MAX] = {NULL};
	int rc;

	for (unsigned i = 0; i < count; i++) {
		unsigned index = candidates[i].superblock.drive_index;

		if (candidates[i].absent)
			continue;
		rc = verify_member(&candidates[i], of);
		if (rc != 0)
			return rc;
		SPW_ASSERT(index < candidates[i].superblock.drive_count);
		if (by_index[index])
			return spw_error(-ENOTUNIQ,
					 "%s and %s are both drive %u of the store: one is a copy "
					 "of the other; name one",
					 by_index[index]->path, candidates[i].path, index + 1);
		by_index[index] = &candidates[i];
	}
	return missing_error(of, by_index, missing);
}

void spw_drives__candidates_close(struct spw_candidate *candidates, unsigned count)
{
	struct spw_device *devices[SPW_DRIVES_MAX] = {NULL};

	if (!candidates)
		return;
	for (unsigned i = 0; i < count; i++)
		devices[i] = candidates[i].device;
	spw_drives__candidates_close_devices(devices, count);
	free(candidates);
}

/* Examine each drive, even after a fault, because callers may show all of them. */
static void examine_each(struct spw_candidate *candidates, const char *const paths[],
			 unsigned count, bool read_only, const struct spw_log *log)
{
	struct spw_vfio_hold *hold = spw_vfio__hold(paths, count, log);
	struct spw_loops *loops = NULL;

	for (unsigned i = 0; i < count; i++) {
		struct spw_candidate *candidate = &candidates[i];

		note_fault(candidate, spw_drives__safety_open(candidate->path, read_only, false,
							      log, &candidate->device));
	}
	(void)spw_drives__candidates_read(candidates, count, log);
	/* Once for all drives. Errors are reported later, when each drive is checked. */
	if (!read_only)
		(void)spw_drives__loops_read(&loops);
	for (unsigned i = 0; i < count; i++)
		if (candidates[i].fault == 0)
			note_fault(&candidates[i],
				   check_candidate(&candidates[i], read_only, loops, log));
	spw_drives__loops_free(loops);
	spw_vfio__let_go(hold);
}

int spw_drives__candidates_new(const char *const paths[], unsigned count, bool sampled,
			       struct spw_candidate **out)
{
	struct spw_candidate *candidates;

	*out = NULL;
	if (count == 0 || count > SPW_DRIVES_MAX)
		return spw_error(-EINVAL, "%u drives were named; a store has 1 to %u", count,
				 SPW_DRIVES_MAX);
	candidates = calloc(count, sizeof(*candidates));
	if (!candidates)
		return spw_error(-ENOMEM, "no memory to examine %u drives", count);
	for (unsigned i = 0; i < count; i++) {
		candidates[i].path = paths[i];
		candidates[i].sampled = sampled;
	}
	*out = candidates;
	return 0;
}

/* Errors of a drive that has failed or was removed: it cannot be opened or read. */
static bool is_gone(int fault)
{
	return fault == -ENOENT || fault == -ENODEV || fault == -ENXIO || fault == -EIO;
}

/* Treat drives that are gone as missing, unless all are gone: then the first fault tells more. */
static void note_absent(struct spw_candidate *candidates, unsigned count, const struct spw_log *log)
{
	unsigned gone = 0;

	for (unsigned i = 0; i < count; i++)
		gone += is_gone(candidates[i].fault);
	for (unsigned i = 0; gone < count && i < count; i++) {
		if (!is_gone(candidates[i].fault))
			continue;
		spw_log(log, SPW_LOG_WARNING, "%s; taken for a drive that is missing",
			candidates[i].words);
		candidates[i].absent = true;
	}
}

int spw_drives__candidates_examine(const char *const paths[], unsigned count, bool read_only,
				   unsigned *missing, const struct spw_log *log,
				   struct spw_candidate **out)
{
	char words[512] = "";
	unsigned lacking = 0;
	int first = 0, rc = spw_drives__candidates_new(paths, count, false, out);

	if (rc != 0)
		return rc;
	first = spw_drives_distinct(paths, count);
	if (first != 0)
		(void)snprintf(words, sizeof(words), "%s", spw_last_error());
	examine_each(*out, paths, count, read_only, log);
	if (first != 0)
		return spw_error(first, "%s", words);
	if (missing)
		note_absent(*out, count, log);
	rc = first_fault(*out, count);
	if (rc == 0)
		rc = verify_set(*out, count, &lacking);
	if (missing)
		*missing = lacking;
	return missing && lacking > 0 ? 0 : rc;
}
