/* SPDX-License-Identifier: MIT */
/*
 * store/restore.c - when a partition is opened: the objects of its commit are there again
 *
 * Reads the slots of all drives; the intact block with the highest sequence counts, on whatever
 * drive it is: a commit is complete before its first block is written. Nothing is written, but
 * zeroes over the block of a commit that is not to be restored, before its blocks are used again.
 */
#include "store/commit.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "drives/committed.h"
#include "engine/device.h"

/* ---- Which to restore ---- */

static int no_such_error(const struct spw_store *store, const struct spw_commits_found *found)
{
	unsigned long long wanted = store->opts.commit_number;
	int last = spw_commits_newest(found);

	if (last < 0)
		return spw_error(-ENODATA,
				 "partition %u has no commit %llu: nothing is committed there",
				 store->partition, wanted);
	return spw_error(-ENODATA, "partition %u has no commit %llu: the last is %llu%s",
			 store->partition, wanted, (unsigned long long)found->commits[last].number,
			 spw_commits_is_kept(found, 1 - last) ? ", and the one before was kept"
							      : "");
}

/* @slot: set; -1: none. */
static int choose(const struct spw_store *store, const struct spw_commits_found *found, int *slot)
{
	uint64_t wanted = store->opts.commit_number;
	int last = spw_commits_newest(found);

	*slot = wanted == SPW_COMMIT_NONE ? -1 : last;
	if (wanted > SPW_COMMIT_NUMBER_MAX || (last >= 0 && found->commits[last].number == wanted))
		return 0;
	*slot = last < 0 ? -1 : 1 - last;
	if (*slot >= 0 && spw_commits_is_kept(found, *slot) &&
	    found->commits[*slot].number == wanted)
		return 0;
	return no_such_error(store, found);
}

/* The older first: while one is left, it is the newest and has its blocks. */
static int give_up_others(struct spw_store *store, const struct spw_commits_found *found,
			  int chosen)
{
	int last = spw_commits_newest(found), rc = 0;

	if (last < 0)
		return 0;
	/* One that was replaced and is not kept is never chosen, unless the newest is given up. */
	if (chosen != 1 - last && found->there[1 - last] &&
	    (chosen < 0 || spw_commits_is_kept(found, 1 - last)))
		rc = spw_commit_give_up(store, (uint32_t)(1 - last));
	if (rc == 0 && chosen != last)
		rc = spw_commit_give_up(store, (uint32_t)last);
	return rc;
}

/* ---- The objects ---- */

static int damaged_error(const struct spw_store *store, const struct spw_commit *commit,
			 const char *why)
{
	return spw_error(-EBADMSG,
			 "commit %llu of partition %u is damaged: %s; open the store with "
			 "SPW_COMMIT_NONE (spillway state drop) to give it up",
			 (unsigned long long)commit->number, store->partition, why);
}

static int read_piece(const struct spw_store *store, const struct spw_commit *commit,
		      const struct spw_commit_piece *piece, uint8_t *to)
{
	const struct store_drive *drive = &store->drives[piece->drive];
	size_t len = spw_round_up(piece->len_bytes, store->block_bytes);
	uint8_t *buf;
	int rc;

	if (piece->start_block >= drive->blocks_total ||
	    len / store->block_bytes > drive->blocks_total - piece->start_block)
		return damaged_error(store, commit, "it lies beyond the end of a drive");
	buf = spw_device_buffer(drive->device, len);
	if (!buf)
		return -ENOMEM;
	rc = spw_device_pread(drive->device, buf, len,
			      drive->base_bytes + piece->start_block * store->block_bytes);
	if (rc == 0 && spw_checksum(buf, piece->len_bytes) != piece->checksum)
		rc = damaged_error(store, commit, spw_device_path(drive->device));
	if (rc == 0)
		memcpy(to, buf, piece->len_bytes);
	free(buf);
	return rc;
}

static int read_manifest(const struct spw_store *store, const struct spw_commit *commit,
			 uint8_t **bytes, struct spw_manifest *manifest)
{
	uint8_t *at;
	const char *why;
	int rc = 0;

	at = *bytes = malloc(commit->manifest_bytes);
	if (!at)
		return -ENOMEM;
	for (uint32_t i = 0; rc == 0 && i < commit->piece_count; i++) {
		rc = read_piece(store, commit, &commit->pieces[i], at);
		at += commit->pieces[i].len_bytes;
	}
	if (rc)
		return rc;
	rc = spw_manifest_decode(*bytes, commit->manifest_bytes, &store->commits->place, commit,
				 manifest, &why);
	return rc ? damaged_error(store, commit, why) : 0;
}

/* Not placed yet. Return: 0; -ENOBUFS; -ENOSPC: longer than the whole store. */
static int make_object(struct spw_store *store, uint64_t len_bytes,
		       const struct spw_commit_piece *pieces, uint32_t count, spw_object *id)
{
	struct object *object;
	uint64_t offset_bytes = 0;
	int rc = spw_object_create(store, len_bytes, id);

	if (rc)
		return rc;
	object = &store->objects[(uint32_t)id->value];
	for (uint32_t i = 0; i < count; i++) {
		uint32_t index = spw_piece_take(store);
		struct piece *piece = &store->pieces[index];

		if (index == PIECE_NONE)
			return spw_error(-ENOBUFS,
					 "no chunk descriptor is left for what is committed: open "
					 "the store with a larger objects_max");
		piece->object_offset = offset_bytes & OBJECT_BYTES_MAX;
		piece->len_bytes = pieces[i].len_bytes;
		piece->checksum = pieces[i].checksum;
		spw_piece_append(store, object, index);
		offset_bytes += pieces[i].len_bytes;
	}
	return 0;
}

/* A piece that was made, and where it was. */
struct placing {
	const struct spw_commit_piece *at;
	uint32_t piece;
};

static int by_place(const void *a, const void *b)
{
	const struct spw_commit_piece *left = ((const struct placing *)a)->at;
	const struct spw_commit_piece *right = ((const struct placing *)b)->at;

	if (left->drive != right->drive)
		return left->drive < right->drive ? -1 : 1;
	return (left->start_block > right->start_block) - (left->start_block < right->start_block);
}

/* By address: that takes the allocators constant time for each. */
static int place_all(struct spw_store *store, const struct spw_commit *commit,
		     struct placing *placings, uint64_t count)
{
	qsort(placings, count, sizeof(*placings), by_place);
	for (uint64_t i = 0; i < count; i++) {
		const struct spw_commit_piece *at = placings[i].at;
		struct piece *piece = &store->pieces[placings[i].piece];
		struct store_drive *drive = &store->drives[at->drive];
		struct spw_extent extent;
		int rc = spw_alloc_get_at(drive->alloc, at->start_block,
					  spw_round_up(at->len_bytes, store->block_bytes) /
						  store->block_bytes,
					  &extent);

		if (rc)
			return damaged_error(store, commit,
					     rc == -EEXIST
						     ? "two of its objects have the same blocks"
						     : "a piece lies beyond the end of a drive");
		piece->drive = (uint8_t)at->drive;
		piece->handle = extent.handle;
		count_add(&drive->blocks_used, extent.len_blocks);
	}
	return 0;
}

static struct placing *note_placings(const struct spw_store *store, spw_object id,
				     const struct spw_commit_piece *at, struct placing *to)
{
	const struct object *object = &store->objects[(uint32_t)id.value];

	for (uint32_t index = object->piece_first; index != PIECE_NONE;
	     index = store->pieces[index].next, at++)
		*to++ = (struct placing){.at = at, .piece = index};
	return to;
}

static int make_objects(struct spw_store *store, struct committed *set,
			const struct spw_manifest *manifest, struct placing *placings)
{
	const struct spw_commit_piece *pieces = manifest->pieces;
	struct spw_commits *commits = store->commits;
	struct placing *end = placings;
	int rc = make_object(store, set->block.manifest_bytes, set->block.pieces,
			     set->block.piece_count, &set->manifest);

	if (rc)
		return rc;
	end = note_placings(store, set->manifest, set->block.pieces, end);
	for (uint32_t i = 0; i < manifest->object_count; i++) {
		const struct spw_commit_object *object = &manifest->objects[i];

		rc = make_object(store, object->len_bytes, pieces, object->pieces,
				 &commits->restored[i]);
		if (rc)
			return rc;
		commits->restored_lens[i] = object->len_bytes;
		set->objects[i] = &store->objects[(uint32_t)commits->restored[i].value];
		end = note_placings(store, commits->restored[i], pieces, end);
		pieces += object->pieces;
	}
	return place_all(store, &set->block, placings, (uint64_t)(end - placings));
}

/* On an error the store is closed: nothing has to be undone. */
static int restore_set(struct spw_store *store, const struct spw_commit *commit,
		       const struct spw_manifest *manifest)
{
	struct committed *set = spw_committed_new(manifest->object_count);
	struct spw_commits *commits = store->commits;
	uint64_t pieces = manifest->piece_count + commit->piece_count;
	struct placing *placings = calloc(pieces, sizeof(*placings));
	int rc = -ENOMEM;

	commits->durable = set;
	commits->restored = calloc(manifest->object_count + UINT64_C(1), sizeof(spw_object));
	commits->restored_lens = calloc(manifest->object_count + UINT64_C(1), sizeof(uint64_t));
	if (set && placings && commits->restored && commits->restored_lens) {
		set->block = *commit;
		/* It was given up, if it was kept. */
		set->block.has_previous = false;
		set->record_bytes = manifest->record_bytes;
		set->count = commits->restored_count = manifest->object_count;
		rc = make_objects(store, set, manifest, placings);
	}
	free(placings);
	/* The put's reference, which no commit takes over: a manifest is held by its existence. */
	if (rc == 0)
		spw_object_drop(store, &store->objects[(uint32_t)set->manifest.value], true);
	return rc;
}

static int restore(struct spw_store *store)
{
	struct spw_commits *commits = store->commits;
	struct spw_manifest manifest;
	struct spw_commits_found found;
	uint8_t *bytes = NULL;
	int slot = -1, rc;

	rc = spw_commits_look(&store->assembly, store->partition, &store->opts.log, &found);

	for (uint32_t i = 0; i < SPW_COMMIT_SLOTS; i++)
		if (found.there[i]) /* DURABLE-4 */
			commits->sequence = SPW_MAX(commits->sequence, found.commits[i].sequence);
	if (rc == 0)
		rc = choose(store, &found, &slot);
	if (rc == 0 && slot >= 0) {
		rc = read_manifest(store, &found.commits[slot], &bytes, &manifest);
		if (rc == 0)
			rc = restore_set(store, &found.commits[slot], &manifest);
		free(bytes);
	}
	return rc || store->opts.read_only ? rc : give_up_others(store, &found, slot);
}

int spw_restore(struct spw_store *store)
{
	struct spw_commits *commits = calloc(1, sizeof(*commits));

	store->commits = commits;
	if (!commits)
		return -ENOMEM;
	spw_commit_place(&store->assembly.superblocks[0], store->partition, &commits->place);
	return restore(store);
}
