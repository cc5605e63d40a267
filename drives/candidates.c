/* SPDX-License-Identifier: MIT */
/*
 * drives/candidates.c - read the drives that a caller named, and decide whether they are one store
 *
 * Rules
 *   ASSEMBLE-1  Checked first is that no device is named twice, then each drive in the given order,
 *               then the set: the first fault in this order is reported. The contents of all drives
 *               are read in parallel.
 *   ASSEMBLE-2  An incomplete superblock makes its drive unusable, whatever the other drives say: a
 *               format that did not finish never leaves a store of mixed generations. The exception
 *               is a drive that replaces another or is added: it counts as complete once a complete
 *               drive has a superblock of the same sequence that names it (REPLACE-4 in
 *               drives/change.c).
 *   ASSEMBLE-3  A drive with a foreign signature outside its data area is refused, even if both
 *               copies are intact: it has been used for something else since. So is a drive with a
 *               copy that other software has overwritten (LAYOUT-14).
 *   ASSEMBLE-4  The superblocks of all drives agree on all fields of the store, or, of drives that
 *               do not know yet that another was replaced or added, on all but sequence,
 *               drive_uuids and drive_count, which is not higher there.
 *   ASSEMBLE-5  Which drives belong to a store is told by the superblock with the highest sequence.
 *               A drive whose UUID it does not name has been replaced, and is refused.
 */
#include "drives/candidates.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "drives/loop.h"
#include "drives/safety.h"
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

void spw_drives__candidate_fault(struct spw_candidate *candidate, int rc)
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

static bool same_store(const struct spw_candidate *a, const struct spw_candidate *b)
{
	return memcmp(a->superblock.store_uuid, b->superblock.store_uuid,
		      sizeof(a->superblock.store_uuid)) == 0;
}

bool spw_drives__candidate_is_named(const struct spw_superblock *by,
				    const struct spw_superblock *sb)
{
	SPW_ASSERT(sb->drive_index < SPW_LAYOUT_DRIVES_MAX);
	return memcmp(by->drive_uuids[sb->drive_index], sb->drive_uuids[sb->drive_index],
		      sizeof(sb->drive_uuids[0])) == 0;
}

/* Is a drive incomplete that replaces another, in a store that knows it (ASSEMBLE-2)? */
static bool is_known_replacement(const struct spw_superblock *complete,
				 const struct spw_superblock *sb)
{
	return complete->sequence == sb->sequence && spw_drives__candidate_is_named(complete, sb);
}

/* Do other drives make up for an incomplete superblock? Return: 0; -EUCLEAN. */
static int verify_complete(const struct spw_candidate *candidate,
			   const struct spw_candidate *candidates, unsigned count)
{
	const struct spw_superblock *sb = &candidate->superblock;
	bool replaces = false, added = false;

	for (unsigned i = 0; i < count; i++) {
		const struct spw_superblock *other = &candidates[i].superblock;

		if (!other->complete || !same_store(&candidates[i], candidate))
			continue;
		if (is_known_replacement(other, sb))
			return 0;
		added |= sb->drive_index >= other->drive_count;
		replaces |= !spw_drives__candidate_is_named(other, sb);
	}
	if (added)
		return spw_error(-EUCLEAN,
				 "%s: was to be added to the store as drive %u, which did not "
				 "finish: run spillway add again, or leave it out",
				 candidate->path, sb->drive_index + 1);
	if (replaces)
		return spw_error(-EUCLEAN,
				 "%s: was to replace drive %u of the store, which did not finish: "
				 "run spillway replace again, or leave it out",
				 candidate->path, sb->drive_index + 1);
	return spw_error(-EUCLEAN,
			 "%s: its format did not finish: run spillway format again, with --force "
			 "(or spillway replace, if it was to replace a drive of the others' store)",
			 candidate->path);
}

static int verify_against_device(const struct spw_candidate *candidate,
				 const struct spw_candidate *candidates, unsigned count)
{
	const struct spw_geometry *geometry = spw_device_geometry(candidate->device);
	const struct spw_superblock *sb = &candidate->superblock;
	int rc;

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
	rc = sb->complete ? 0 : verify_complete(candidate, candidates, count);
	if (rc != 0)
		return rc;
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
	if (bad->result == 0) {
		spw_log(log, SPW_LOG_WARNING,
			"%s: its superblock copies differ, as a drive was being replaced or added "
			"and that was interrupted; the later one serves: run spillway replace, or "
			"add, again",
			candidate->path);
		return;
	}
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
		rc = spw_drives__unknown_data_sample(candidate->device, &candidate->samples);
	spw_drives__candidate_fault(candidate, rc);
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

static int check_candidate(struct spw_candidate *candidates, unsigned count, unsigned index,
			   bool read_only, const struct spw_loops *loops, const struct spw_log *log)
{
	struct spw_candidate *candidate = &candidates[index];
	int rc;

	if (candidate->contents.superblocks.chosen < 0)
		return no_superblock_error(candidate);
	rc = verify_against_device(candidate, candidates, count);
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

const struct spw_candidate *spw_drives__candidates_newest(const struct spw_candidate *candidates,
							  unsigned count)
{
	const struct spw_candidate *of = representative(candidates, count), *newest = of;

	for (unsigned i = 0; i < count; i++)
		if (!candidates[i].absent && same_store(&candidates[i], of) &&
		    candidates[i].superblock.sequence > newest->superblock.sequence)
			newest = &candidates[i];
	return newest;
}

/* Do two superblocks agree on what no change of the drives changes (ASSEMBLE-4)? */
static bool agree(const struct spw_superblock *a, const struct spw_superblock *b)
{
	return a->block_bytes == b->block_bytes && a->chunk_bytes == b->chunk_bytes &&
	       a->partition_count == b->partition_count &&
	       a->features_incompatible == b->features_incompatible &&
	       a->features_read_only_compatible == b->features_read_only_compatible &&
	       a->features_compatible == b->features_compatible &&
	       a->created_unix_s == b->created_unix_s;
}

static bool same_drives(const struct spw_superblock *a, const struct spw_superblock *b)
{
	return memcmp(a->drive_uuids, b->drive_uuids, sizeof(a->drive_uuids)) == 0;
}

static int replaced_error(const struct spw_candidate *candidate, const struct spw_candidate *newest)
{
	unsigned index = candidate->superblock.drive_index;
	char drive[SPW_UUID_TEXT_BYTES], store[SPW_UUID_TEXT_BYTES];

	return spw_error(
		-EMEDIUMTYPE,
		"%s: was drive %u of store %s until it was replaced by another (%s); name that "
		"one instead (this one is free after spillway wipe)",
		candidate->path, index + 1,
		spw_layout__uuid_text(newest->superblock.store_uuid, store),
		spw_layout__uuid_text(newest->superblock.drive_uuids[index], drive));
}

int spw_drives__candidate_verify(const struct spw_candidate *candidate,
				 const struct spw_candidate *newest)
{
	const struct spw_superblock *sb = &candidate->superblock, *of = &newest->superblock;
	char own[SPW_UUID_TEXT_BYTES], other[SPW_UUID_TEXT_BYTES];

	if (!same_store(candidate, newest))
		return spw_error(-EMEDIUMTYPE,
				 "%s: belongs to another store (%s) than %s (%s); name the drives "
				 "of one store",
				 candidate->path, spw_layout__uuid_text(sb->store_uuid, own),
				 newest->path, spw_layout__uuid_text(of->store_uuid, other));
	if (!agree(sb, of) || (sb->drive_count > of->drive_count && sb->sequence != of->sequence))
		return spw_error(-EUCLEAN,
				 "%s: contradicts %s about the store both belong to; format the "
				 "store again with --force",
				 candidate->path, newest->path);
	if (sb->sequence == of->sequence && !same_drives(sb, of))
		return spw_error(-EUCLEAN,
				 "%s: contradicts %s about which drives belong to the store: on "
				 "either side one was replaced or added without the other; name "
				 "the drives of one side",
				 candidate->path, newest->path);
	if (!spw_drives__candidate_is_named(of, sb))
		return replaced_error(candidate, newest);
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
		"drive %u of %u (%s)%s is missing: %s belongs to store %s; name all its drives, or "
		"replace it (spillway replace)",
		first + 1, sb->drive_count, spw_layout__uuid_text(sb->drive_uuids[first], drive),
		more, member->path, spw_layout__uuid_text(sb->store_uuid, store));
}

static void warn_of_lagging(const struct spw_candidate *candidate,
			    const struct spw_candidate *newest, const struct spw_log *log)
{
	bool added = candidate->superblock.drive_count < newest->superblock.drive_count;

	if (candidate->superblock.sequence != newest->superblock.sequence)
		spw_log(log, SPW_LOG_WARNING,
			"%s: does not know yet that another drive of the store was %s; it is told "
			"when spillway %s is run again",
			candidate->path, added ? "added" : "replaced", added ? "add" : "replace");
}

static int verify_set(const struct spw_candidate *candidates, unsigned count, unsigned *missing,
		      const struct spw_log *log)
{
	const struct spw_candidate *of = spw_drives__candidates_newest(candidates, count);
	const struct spw_candidate *by_index[SPW_DRIVES_MAX] = {NULL};
	int rc;

	for (unsigned i = 0; i < count; i++) {
		unsigned index = candidates[i].superblock.drive_index;

		if (candidates[i].absent)
			continue;
		rc = spw_drives__candidate_verify(&candidates[i], of);
		if (rc != 0)
			return rc;
		SPW_ASSERT(index < candidates[i].superblock.drive_count);
		if (by_index[index])
			return spw_error(-ENOTUNIQ,
					 "%s and %s are both drive %u of the store: one is a copy "
					 "of the other; name one",
					 by_index[index]->path, candidates[i].path, index + 1);
		by_index[index] = &candidates[i];
		warn_of_lagging(&candidates[i], of, log);
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

bool spw_drives__candidates_is_gone(int fault)
{
	return fault == -ENOENT || fault == -ENODEV || fault == -ENXIO || fault == -EIO;
}

/* Treat drives that are gone as missing, unless all are gone: then the first fault tells more. */
static void note_absent(struct spw_candidate *candidates, unsigned count, const struct spw_log *log)
{
	unsigned gone = 0;

	for (unsigned i = 0; i < count; i++)
		gone += spw_drives__candidates_is_gone(candidates[i].fault);
	for (unsigned i = 0; gone < count && i < count; i++) {
		if (!spw_drives__candidates_is_gone(candidates[i].fault))
			continue;
		spw_log(log, SPW_LOG_WARNING, "%s; taken for a drive that is missing",
			candidates[i].words);
		candidates[i].absent = true;
	}
}

int spw_drives__candidates_look(struct spw_candidate *candidates, unsigned count,
				const struct spw_log *log)
{
	int rc = spw_drives__candidates_read(candidates, count, log);

	for (unsigned i = 0; i < count; i++) {
		const struct spw_superblocks *superblocks = &candidates[i].contents.superblocks;

		if (candidates[i].device && candidates[i].fault == 0 && superblocks->chosen >= 0)
			candidates[i].superblock =
				superblocks->places[superblocks->chosen].superblock;
	}
	return rc;
}

int spw_drives__candidates_verify(struct spw_candidate *candidates, unsigned count, bool read_only,
				  unsigned *missing, const struct spw_log *log)
{
	struct spw_loops *loops = NULL;
	unsigned lacking = 0;
	int rc;

	/* Once for all drives. Errors are reported later, when each drive is checked. */
	if (!read_only)
		(void)spw_drives__loops_read(&loops);
	/* Each drive, even after a fault, because callers may show all of them. */
	for (unsigned i = 0; i < count; i++)
		if (candidates[i].fault == 0)
			spw_drives__candidate_fault(
				&candidates[i],
				check_candidate(candidates, count, i, read_only, loops, log));
	spw_drives__loops_free(loops);
	if (missing)
		note_absent(candidates, count, log);
	rc = first_fault(candidates, count);
	if (rc == 0)
		rc = verify_set(candidates, count, &lacking, log);
	if (missing)
		*missing = lacking;
	return missing && lacking > 0 ? 0 : rc;
}

static void open_each(struct spw_candidate *candidates, unsigned count, bool read_only,
		      const struct spw_log *log)
{
	for (unsigned i = 0; i < count; i++)
		spw_drives__candidate_fault(
			&candidates[i], spw_drives__safety_open(candidates[i].path, read_only,
								false, log, &candidates[i].device));
}

int spw_drives__candidates_examine(const char *const paths[], unsigned count, bool read_only,
				   unsigned *missing, const struct spw_log *log,
				   struct spw_candidate **out)
{
	struct spw_vfio_hold *hold;
	char words[512] = "";
	int first = 0, rc = spw_drives__candidates_new(paths, count, false, out);

	if (rc != 0)
		return rc;
	first = spw_drives_distinct(paths, count);
	if (first != 0)
		(void)snprintf(words, sizeof(words), "%s", spw_last_error());
	hold = spw_vfio__hold(paths, count, log);
	open_each(*out, count, read_only, log);
	(void)spw_drives__candidates_look(*out, count, log);
	rc = spw_drives__candidates_verify(*out, count, read_only, missing, log);
	spw_vfio__let_go(hold);
	return first == 0 ? rc : spw_error(first, "%s", words);
}
