/* SPDX-License-Identifier: MIT */
/*
 * store/restore.c - spw_store__restore(): restore the objects of a commit when its partition is
 * opened
 *
 * Reads the slots of all drives. The intact block with the highest sequence number is valid, on any
 * drive, because a commit is complete before its first block is written. The only writes are zeroes
 * over the blocks of commits that are not restored, before their extents are used again.
 *
 * If drives are missing, replicas on them become holes. An object without a replica on another
 * drive is lost, and then the store can only be opened read-only.
 */
#include "store/restore.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/alloc.h"
#include "drives/assemble.h"
#include "drives/committed.h"
#include "drives/manifest.h"
#include "layout/commit.h"
#include "layout/superblock.h"
#include "store/commit.h"
#include "store/object.h"
#include "store/open_store.h"
#include "util/util.h"

/* ---- Which commit to restore ---- */

static int no_such_error(const struct spw_store *store, const struct spw_commits_found *found)
{
	unsigned long long wanted = store->opts.commit_number;
	int last = spw_drives__commits_newest(found);

	if (last < 0)
		return spw_error(-ENODATA,
				 "partition %u has no commit %llu: nothing is committed there",
				 store->partition, wanted);
	return spw_error(-ENODATA, "partition %u has no commit %llu: the last is %llu%s",
			 store->partition, wanted, (unsigned long long)found->commits[last].number,
			 spw_drives__commits_is_kept(found, 1 - last)
				 ? ", and the one before was kept"
				 : "");
}

/* Choose the commit to restore. *slot: -1: none. */
static int choose(const struct spw_store *store, const struct spw_commits_found *found, int *slot)
{
	uint64_t wanted = store->opts.commit_number;
	int last = spw_drives__commits_newest(found);

	/* Drives differ in the newest commit: a number selects one, unless both have it. */
	if (found->forked && wanted != SPW_COMMIT_NONE &&
	    (wanted == SPW_COMMIT_NEWEST || found->forked_number == wanted))
		return spw_drives__commits_forked_error(&store->assembly, found);

	*slot = wanted == SPW_COMMIT_NONE ? -1 : last;
	if (wanted > SPW_COMMIT_NUMBER_MAX || (last >= 0 && found->commits[last].number == wanted))
		return 0;
	*slot = last < 0 ? -1 : 1 - last;
	if (*slot >= 0 && spw_drives__commits_is_kept(found, *slot) &&
	    found->commits[*slot].number == wanted)
		return 0;
	return no_such_error(store, found);
}

/*
 * Skipped sequence numbers when drives are missing: commits on those drives, which are not visible
 * now, must never have a higher sequence number than later commits, even if all visible commits are
 * discarded.
 */
#define ABSENCE (UINT64_C(1) << 32)

/* Skip numbers. Return: 0; -ENXIO: no commit could be complete without the missing drives. */
static int look_beyond_missing(const struct spw_store *store, int slot)
{
	struct spw_commits *commits = store->commits;

	if (slot < 0 || commits->sequence > SPW_COMMIT_SEQUENCE_MAX - 2 * ABSENCE)
		return spw_drives__assembly_missing_error(&store->assembly);
	commits->sequence = spw_round_up(commits->sequence + 1, ABSENCE);
	return 0;
}

/* Discard other commits, the older first: a crash in between leaves the newer one intact. */
static int give_up_others(struct spw_store *store, const struct spw_commits_found *found,
			  int chosen)
{
	int last = spw_drives__commits_newest(found), rc = 0;

	if (last < 0)
		return 0;
	/* A replaced commit that was not kept would be found only if the newest is discarded. */
	if (chosen != 1 - last && found->there[1 - last] &&
	    (chosen < 0 || spw_drives__commits_is_previous(found, 1 - last)))
		rc = spw_store__commit_give_up(store, (uint32_t)(1 - last));
	if (rc == 0 && chosen != last)
		rc = spw_store__commit_give_up(store, (uint32_t)last);
	return rc;
}

/* ---- The objects ---- */

/* Index in store->drives of a piece's drive; DRIVE_NONE: the drive is missing, or it is a hole. */
static uint8_t position_of(const struct spw_store *store, const struct spw_commit_piece *piece)
{
	return piece->drive == SPW_COMMIT_NO_DRIVE ? DRIVE_NONE
						   : store->commits->positions[piece->drive];
}

/* A new piece, and its committed location. */
struct placing {
	const struct spw_commit_piece *at;
	uint32_t piece;
};

struct restoring {
	struct committed *set;
	struct placing *placings;
	uint64_t placing_count;
	uint32_t objects_lost;
	uint64_t bytes_lost;
};

static uint64_t blocks_there(const struct spw_store *store, const struct spw_commit_piece *pieces,
			     uint32_t count)
{
	uint64_t blocks = 0;

	for (uint32_t i = 0; i < count; i++)
		if (position_of(store, &pieces[i]) != DRIVE_NONE)
			blocks += spw_store__blocks_of(store, pieces[i].len_bytes);
	return blocks;
}

/* Note a piece to be placed; if its drive is missing, make it a hole. */
static void note_placing(const struct spw_store *store, struct restoring *restoring,
			 const struct spw_commit_piece *at, uint32_t index)
{
	if (position_of(store, at) == DRIVE_NONE)
		store->pieces[index].handle = HANDLE_HOLE;
	else
		restoring->placings[restoring->placing_count++] =
			(struct placing){.at = at, .piece = index};
}

/*
 * Make the pieces of a chunk, one for each replica. If the drive of the first is missing, the
 * second piece becomes the first (STORE-7). Return: 0; -ENOBUFS.
 */
static int make_run(struct spw_store *store, struct restoring *restoring, struct object *object,
		    const struct spw_commit_piece *pieces, uint64_t offset_bytes)
{
	unsigned first = object->copies == 2 && position_of(store, &pieces[0]) == DRIVE_NONE;
	uint32_t indexes[2] = {PIECE_NONE, PIECE_NONE};

	for (unsigned i = 0; i < object->copies; i++) {
		struct piece *piece;

		indexes[i] = spw_store__piece_take(store);
		if (indexes[i] == PIECE_NONE)
			return spw_error(-ENOBUFS,
					 "no chunk descriptor is left for what is committed: open "
					 "the store with a larger objects_max");
		piece = &store->pieces[indexes[i]];
		piece->object_offset = offset_bytes & OBJECT_BYTES_MAX;
		piece->len_bytes = pieces[i].len_bytes;
		piece->checksum = pieces[i].checksum;
		note_placing(store, restoring, &pieces[i ^ first], indexes[i]);
	}
	if (object->copies == 2)
		store->pieces[indexes[0]].next = indexes[1];
	spw_store__piece_append(store, object, indexes[0]);
	if (position_of(store, &pieces[first]) == DRIVE_NONE) {
		object->error = -ENXIO;
		restoring->bytes_lost += pieces[0].len_bytes;
	}
	restoring->set->runs++;
	restoring->set->runs_single +=
		object->copies == 1 || position_of(store, &pieces[!first]) == DRIVE_NONE;
	return 0;
}

/*
 * Make an object without placing its pieces. Return: 0; -ENOBUFS; -ENOSPC: longer than the store.
 */
static int make_object(struct spw_store *store, struct restoring *restoring, uint64_t len_bytes,
		       const struct spw_commit_piece *pieces, uint32_t count, bool mirrored,
		       spw_object *id)
{
	unsigned copies = mirrored ? 2 : 1;
	struct object *object;
	uint64_t offset_bytes = 0;
	int rc = spw_store__object_create(store, len_bytes, copies,
					  blocks_there(store, pieces, count), id);

	if (rc)
		return rc;
	object = &store->objects[(uint32_t)id->value];
	for (uint32_t i = 0; rc == 0 && i < count; i += copies) {
		rc = make_run(store, restoring, object, &pieces[i], offset_bytes);
		offset_bytes += pieces[i].len_bytes;
	}
	restoring->objects_lost += object->error != 0;
	return rc;
}

static int by_place(const void *a, const void *b)
{
	const struct spw_commit_piece *left = ((const struct placing *)a)->at;
	const struct spw_commit_piece *right = ((const struct placing *)b)->at;

	if (left->drive != right->drive)
		return left->drive < right->drive ? -1 : 1;
	return (left->start_block > right->start_block) - (left->start_block < right->start_block);
}

/* Allocate all pieces in order of address, which takes constant time for each. */
static int place_all(struct spw_store *store, const struct spw_commit *commit,
		     struct placing *placings, uint64_t count)
{
	qsort(placings, count, sizeof(*placings), by_place);
	for (uint64_t i = 0; i < count; i++) {
		const struct spw_commit_piece *at = placings[i].at;
		struct piece *piece = &store->pieces[placings[i].piece];
		uint8_t position = position_of(store, at);
		struct store_drive *drive = &store->drives[position];
		struct spw_extent extent;
		int rc = spw_alloc__get_at(drive->alloc, at->start_block,
					   spw_round_up(at->len_bytes, store->block_bytes) /
						   store->block_bytes,
					   &extent);

		if (rc)
			return spw_drives__commit_damaged_error(
				store->partition, commit,
				rc == -EEXIST ? "two of its objects have the same blocks"
					      : "a piece lies beyond the end of a drive");
		piece->drive = position;
		piece->handle = extent.handle;
		count_add(&drive->blocks_used, extent.len_blocks);
	}
	return 0;
}

static int make_objects(struct spw_store *store, struct restoring *restoring,
			const struct spw_manifest *manifest)
{
	const struct spw_commit_piece *pieces = manifest->pieces;
	struct spw_commits *commits = store->commits;
	struct committed *set = restoring->set;
	int rc = make_object(store, restoring, set->block.manifest_bytes, set->block.pieces,
			     set->block.piece_count, set->block.mirrored, &set->manifest);

	for (uint32_t i = 0; rc == 0 && i < manifest->object_count; i++) {
		const struct spw_commit_object *object = &manifest->objects[i];

		rc = make_object(store, restoring, object->len_bytes, pieces, object->pieces,
				 object->mirrored, &commits->restored[i]);
		if (rc)
			return rc;
		commits->restored_lens[i] = object->len_bytes;
		set->objects[i] = &store->objects[(uint32_t)commits->restored[i].value];
		pieces += object->pieces;
	}
	return rc ? rc
		  : place_all(store, &set->block, restoring->placings, restoring->placing_count);
}

/* Is the set complete without the missing drives? Not called if the store is read-only. */
static int judge_missing(const struct spw_store *store, const struct restoring *restoring,
			 bool may_lack)
{
	const struct committed *set = restoring->set;

	if (restoring->objects_lost > 0)
		return spw_error(
			-ENXIO,
			"of commit %llu %u of %u objects cannot be had, %s of their bytes lie on "
			"what is missing alone (spillway state list names them): %s",
			(unsigned long long)set->block.number, restoring->objects_lost, set->count,
			SPW_SIZE_TEXT(restoring->bytes_lost), store->assembly.missing_words);
	if (!may_lack)
		return spw_drives__assembly_missing_error(&store->assembly);
	spw_log(&store->opts.log, SPW_LOG_WARNING,
		"opened with %u of %u drives: commit %llu is complete without the others, of its "
		"%llu chunks %llu have one copy now; what they may have had after it is not known "
		"(%s)",
		store->drive_count, store->drive_count + store->assembly.missing,
		(unsigned long long)set->block.number, (unsigned long long)set->runs,
		(unsigned long long)set->runs_single, store->assembly.missing_words);
	return 0;
}

/* Restore a set. After an error the caller closes the store, so that nothing has to be undone. */
static int restore_set(struct spw_store *store, const struct spw_commit *commit,
		       const struct spw_manifest *manifest, bool may_lack)
{
	struct committed *set = spw_store__committed_new(manifest->object_count);
	struct spw_commits *commits = store->commits;
	uint64_t pieces = manifest->piece_count + commit->piece_count;
	struct restoring restoring = {.set = set,
				      .placings = calloc(pieces, sizeof(struct placing))};
	int rc = -ENOMEM;

	commits->durable = set;
	commits->restored = calloc(manifest->object_count + UINT64_C(1), sizeof(spw_object));
	commits->restored_lens = calloc(manifest->object_count + UINT64_C(1), sizeof(uint64_t));
	if (set && restoring.placings && commits->restored && commits->restored_lens) {
		set->block = *commit;
		/* The previous commit is not kept any more: give_up_others() discards it. */
		set->block.has_previous = false;
		set->record_bytes = manifest->record_bytes;
		set->count = commits->restored_count = manifest->object_count;
		rc = make_objects(store, &restoring, manifest);
	}
	free(restoring.placings);
	if (rc == 0 && store->assembly.missing > 0 && !store->opts.read_only)
		rc = judge_missing(store, &restoring, may_lack);
	/* Drop the manifest's creation reference; those of the objects now belong to the commit. */
	if (rc == 0)
		spw_store__object_drop(store, &store->objects[(uint32_t)set->manifest.value], true);
	return rc;
}

/* Refuse commits with the null backend: it reads nothing, so objects would have undefined bytes. */
static int refuse_commits(const struct spw_store *store, const struct spw_commits_found *found)
{
	for (uint32_t i = 0; i < SPW_COMMIT_SLOTS; i++)
		if (found->there[i])
			return spw_error(
				-EEXIST,
				"partition %u has a commit, which the null backend cannot "
				"read: it is for measuring, on drives with nothing to lose",
				store->partition);
	return 0;
}

static int restore(struct spw_store *store)
{
	struct spw_commits *commits = store->commits;
	struct spw_manifest manifest;
	struct spw_commits_found found;
	uint8_t *bytes = NULL;
	int slot = -1, rc;

	rc = spw_drives__commits_look(&store->assembly, store->partition, &store->opts.log, &found);
	if (rc == 0 && store->opts.backend == SPW_BACKEND_NULL)
		rc = refuse_commits(store, &found);
	commits->sequence = found.sequence_max; /* number later commits higher (DURABLE-4) */
	if (rc == 0)
		rc = choose(store, &found, &slot);
	if (rc == 0 && store->assembly.missing > 0)
		rc = look_beyond_missing(store, slot);
	if (rc == 0 && slot >= 0) {
		rc = spw_drives__manifest_read(&store->assembly, store->partition,
					       &found.commits[slot], &store->opts.log, &bytes,
					       &manifest);
		if (rc == 0)
			rc = restore_set(store, &found.commits[slot], &manifest,
					 spw_drives__commits_may_lack(&found));
		free(bytes);
	}
	if (rc == 0 && !store->opts.read_only && slot >= 0)
		rc = spw_store__commit_secure(store, &found.commits[slot], found.have[slot]);
	if (rc == 0 && !store->opts.read_only)
		rc = give_up_others(store, &found, slot);
	return rc;
}

int spw_store__restore(struct spw_store *store)
{
	struct spw_commits *commits = calloc(1, sizeof(*commits));

	store->commits = commits;
	if (!commits)
		return -ENOMEM;
	spw_drives__commit_place(&store->assembly.superblocks[0], store->partition,
				 &commits->place);
	memset(commits->positions, DRIVE_NONE, sizeof(commits->positions));
	for (uint32_t i = 0; i < store->drive_count; i++)
		commits->positions[store->assembly.superblocks[i].drive_index] = (uint8_t)i;
	return restore(store);
}
