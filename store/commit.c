/* SPDX-License-Identifier: MIT */
/*
 * store/commit.c - spw_store_commit(): make a set of objects durable
 *
 * The order of writes: the objects, by their puts; the manifest, which has their locations; a
 * flush; the commit block, which has the manifest's location, to one of two slots on every drive; a
 * flush.
 *
 *   DURABLE-1  A commit block is written only when the manifest and all objects have been flushed.
 *   DURABLE-2  It is written to the slot that does not have the last durable commit, so that one of
 *              the two is always intact. If the previous commit is kept, it is written to the slot
 *              that does not have the kept one.
 *   DURABLE-3  The objects of a set are kept until a later set is durable on every drive in
 *              service; this includes sets that failed while their blocks were written.
 *   DURABLE-4  A block has a higher sequence number than all earlier ones.
 *   DURABLE-5  When a commit is reported as durable, the members in its block (version 2) are
 *              exactly the drives on which the block was written and flushed.
 *   DURABLE-6  Before an opened store writes anything, the commit that it has found is on each of
 *              its members, and flushed, as if it had been reported: it may be of a process that
 *              was killed before that.
 *
 * A mirrored commit needs only one flushed replica of each chunk. A drive that fails during it is
 * retired, and the commit is repeated without that drive, even if it is in service again by then.
 */
#include "store/commit.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "drives/assemble.h"
#include "drives/safety.h"
#include "drives/superblocks.h"
#include "engine/device.h"
#include "layout/commit.h"
#include "layout/superblock.h"
#include "store/inbox.h"
#include "store/object.h"
#include "store/open_store.h"
#include "store/request.h"
#include "store/submit.h"
#include "util/util.h"

struct committed *spw_store__committed_new(uint32_t count)
{
	struct committed *set = calloc(1, sizeof(*set));

	if (!set)
		return NULL;
	set->objects = calloc(count > 0 ? count : 1, sizeof(struct object *));
	if (!set->objects) {
		free(set);
		return NULL;
	}
	return set;
}

/* Free a set without dropping references: it has none, or the store is being closed. */
static void committed_free(struct committed *set)
{
	if (!set)
		return;
	free(set->objects);
	free(set);
}

/* Free a set: drop its references, and free its manifest. */
static void let_go(struct spw_store *store, struct committed *set)
{
	if (!set)
		return;
	for (uint32_t i = 0; i < set->count; i++)
		spw_store__object_drop(store, set->objects[i], false);
	if (set->manifest.value)
		(void)spw_store_free(store, set->manifest);
	committed_free(set);
}

/* ---- Checks and references ---- */

static int by_value(const void *a, const void *b)
{
	uint64_t left = ((const spw_object *)a)->value, right = ((const spw_object *)b)->value;

	return (left > right) - (left < right);
}

/* Restoring a set that has an object twice would allocate its blocks twice. */
static int check_distinct(const spw_object objects[], uint32_t count)
{
	spw_object *sorted = malloc((count > 0 ? count : 1) * sizeof(*sorted));
	int rc = 0;

	if (!sorted)
		return spw_error(-ENOMEM, "no memory to commit %u objects", count);
	if (count > 0) {
		memcpy(sorted, objects, count * sizeof(*sorted));
		qsort(sorted, count, sizeof(*sorted), by_value);
	}
	for (uint32_t i = 1; rc == 0 && i < count; i++)
		if (sorted[i].value == sorted[i - 1].value)
			rc = spw_error(-EINVAL, "an object is twice among those to be committed");
	free(sorted);
	return rc;
}

static int check_number(const struct spw_commits *commits, uint64_t number, unsigned flags)
{
	const struct committed *durable = commits->durable;

	if (number > SPW_COMMIT_NUMBER_MAX)
		return spw_error(-EINVAL, "a commit's number must be below 2^63");
	if (!durable || number > durable->block.number ||
	    (number == durable->block.number && flags & COMMIT_AGAIN))
		return 0;
	return spw_error(-EINVAL,
			 "commit %llu is durable: the next needs a higher number than that, not "
			 "%llu",
			 (unsigned long long)durable->block.number, (unsigned long long)number);
}

static int check_commit(const struct spw_store *store, const spw_object objects[], uint32_t count,
			uint64_t number, const void *record, size_t len, unsigned flags)
{
	const struct spw_commits *commits = store->commits;
	int rc = check_number(commits, number, flags);

	if (store->opts.read_only)
		return spw_error(-EROFS, "the store was opened to be read only");
	if (store->opts.backend == SPW_BACKEND_NULL)
		return spw_error(-EROFS, "the null backend writes nothing that could be durable");
	if ((count > 0 && !objects) || (len > 0 && !record))
		return spw_error(-EINVAL, "a commit of objects or of a record that are not given");
	if (rc)
		return rc;
	if (len > SPW_COMMIT_RECORD_BYTES_MAX)
		return spw_error(-EINVAL,
				 "a record of %zu bytes: at most %u go with a commit; put the "
				 "rest as objects",
				 len, SPW_COMMIT_RECORD_BYTES_MAX);
	if (store->opts.no_checksums)
		return spw_error(-EOPNOTSUPP,
				 "the store was opened without checksums, by which what is "
				 "durable is verified: open it with them");
	if (commits->previous && !(flags & SPW_COMMIT_KEEP_PREVIOUS))
		return spw_error(-EBUSY,
				 "commit %llu, before the last, is still kept: release it first",
				 (unsigned long long)commits->previous->block.number);
	return check_distinct(objects, count);
}

/* Take a reference to each object. Return: 0; -ENOENT; -EINPROGRESS; the error of its put. */
static int hold(struct spw_store *store, const spw_object objects[], uint32_t count,
		struct committed *set)
{
	for (uint32_t i = 0; i < count; i++) {
		struct object *object;
		int rc = spw_store__object_acquire(store, objects[i], 0, 1, &object);

		if (rc)
			return rc;
		set->objects[set->count++] = object;
		if (atomic_load_explicit(&object->put, memory_order_acquire))
			return spw_error(-EINPROGRESS,
					 "object %u of those to be committed is still being put: "
					 "wait for it",
					 i);
		if (object->error)
			return spw_error(object->error,
					 "object %u of those to be committed was never stored: "
					 "its put failed",
					 i);
	}
	return 0;
}

/* ---- The manifest ---- */

static uint32_t piece_count(const struct spw_store *store, const struct object *object)
{
	uint32_t count = 0;

	for (uint32_t index = object->piece_first; index != PIECE_NONE;
	     index = store->pieces[index].next)
		count++;
	return count;
}

/* Describe an object's pieces. start_block is the allocator's handle until locate() replaces it. */
static struct spw_commit_piece *describe(const struct spw_store *store, const struct object *object,
					 struct spw_commit_piece *to)
{
	for (uint32_t index = object->piece_first; index != PIECE_NONE;
	     index = store->pieces[index].next, to++) {
		const struct piece *piece = &store->pieces[index];

		*to = (struct spw_commit_piece){.start_block = piece->handle,
						.checksum = piece->checksum,
						.len_bytes = piece->len_bytes,
						.drive = piece->drive};
		if (piece->drive != DRIVE_NONE)
			continue;
		/* a hole (STORE-7) */
		SPW_ASSERT(object->copies == 2 && index != object->piece_first);
		*to = (struct spw_commit_piece){.checksum = to[-1].checksum,
						.len_bytes = piece->len_bytes,
						.drive = SPW_COMMIT_NO_DRIVE};
	}
	return to;
}

/* Fill in start blocks, and the indexes of the drives in their superblocks. */
static int locate(struct spw_store *store, struct spw_commit_piece *pieces, uint64_t count)
{
	int rc = count > 0 ? spw_store__control_run(store, REQUEST_LOCATE, 0, pieces, count) : 0;

	for (uint64_t i = 0; i < count; i++)
		if (pieces[i].drive != SPW_COMMIT_NO_DRIVE)
			pieces[i].drive = store->assembly.superblocks[pieces[i].drive].drive_index;
	return rc;
}

static uint64_t drives_in_service(const struct spw_store *store)
{
	uint64_t mask = 0;

	for (uint32_t i = 0; i < store->drive_count; i++)
		if (!atomic_load_explicit(&store->drives[i].retired, memory_order_relaxed))
			mask |= UINT64_C(1) << i;
	return mask & ~store->commits->left_out;
}

/*
 * Count runs. Return: a mask of the drives to flush. Of two replicas, only those on drives in
 * service, or both if neither is: so a failed drive does not fail a mirrored commit while the other
 * replica is good.
 */
static uint64_t count_runs(const struct spw_store *store, struct committed *set, bool mirrored,
			   const struct spw_commit_piece *pieces, uint64_t count)
{
	uint64_t mask = 0, in_service = drives_in_service(store);

	for (uint64_t i = 0; i < count; i += mirrored ? 2 : 1) {
		uint64_t bits = UINT64_C(1) << pieces[i].drive;
		bool single = !mirrored || pieces[i + 1].drive == SPW_COMMIT_NO_DRIVE;

		SPW_ASSERT(pieces[i].drive < store->drive_count); /* it is placed (STORE-7) */
		if (!single)
			bits |= UINT64_C(1) << pieces[i + 1].drive;
		mask |= !single && bits & in_service ? bits & in_service : bits;
		set->runs++;
		/* A replica on a drive without the commit block does not count. */
		set->runs_single += single || (bits & in_service) != bits;
	}
	return mask;
}

/* List the pieces of all objects. *mask: their drives. *out: to be freed, also after an error. */
static int list_pieces(struct spw_store *store, struct committed *set,
		       struct spw_commit_object *objects, struct spw_commit_piece **out,
		       uint64_t *count, uint64_t *mask)
{
	struct spw_commit_piece *pieces, *end;
	int rc;

	*count = 0;
	for (uint32_t i = 0; i < set->count; i++) {
		objects[i].len_bytes = set->objects[i]->len_bytes;
		objects[i].pieces = piece_count(store, set->objects[i]);
		objects[i].mirrored = set->objects[i]->copies == 2;
		*count += objects[i].pieces;
	}
	pieces = *out = calloc(*count > 0 ? *count : 1, sizeof(*pieces));
	if (!pieces)
		return spw_error(-ENOMEM, "no memory to commit %llu pieces",
				 (unsigned long long)*count);
	end = pieces;
	for (uint32_t i = 0; i < set->count; i++) {
		struct spw_commit_piece *begin = end;

		end = describe(store, set->objects[i], begin);
		*mask |= count_runs(store, set, objects[i].mirrored, begin, objects[i].pieces);
	}
	SPW_ASSERT(end == pieces + *count);
	rc = locate(store, pieces, *count);
	return rc;
}

static int put_and_wait(struct spw_store *store, const void *bytes, size_t len, unsigned copies,
			spw_object *object)
{
	struct spw_request *request;
	int rc = spw_store_put_copies(store, bytes, len, copies, NULL, object, &request);

	if (rc) {
		object->value = 0;
		return rc;
	}
	return spw_request_wait(request);
}

/* Put the extents of the manifest into the commit block. */
static int name_manifest(struct spw_store *store, struct committed *set, uint64_t *mask)
{
	struct object *object;
	uint32_t count;
	int rc = spw_store__object_acquire(store, set->manifest, 0, 1, &object);

	if (rc)
		return rc;
	count = piece_count(store, object);
	set->block.mirrored = object->copies == 2;
	if (count <= SPW_COMMIT_PIECES_MAX) {
		(void)describe(store, object, set->block.pieces);
		*mask |= count_runs(store, set, set->block.mirrored, set->block.pieces, count);
	}
	spw_store__object_drop(store, object, false);
	if (count > SPW_COMMIT_PIECES_MAX)
		return spw_error(
			-E2BIG,
			"the description of the commit has %llu bytes in %u pieces, and at "
			"most %u can be named: put larger objects, or format the store "
			"with a larger chunk",
			(unsigned long long)set->block.manifest_bytes, count,
			SPW_COMMIT_PIECES_MAX);
	set->block.piece_count = count;
	return locate(store, set->block.pieces, count);
}

static int write_manifest(struct spw_store *store, struct committed *set,
			  const struct spw_manifest *manifest)
{
	uint64_t len = spw_layout__manifest_bytes(manifest);
	/* Page-aligned: otherwise the write is copied, or needs more requests. */
	size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
	uint8_t *bytes = aligned_alloc(page_bytes, spw_round_up(len, page_bytes));
	int rc;

	if (!bytes)
		return spw_error(-ENOMEM, "no memory for %llu bytes that describe a commit",
				 (unsigned long long)len);
	spw_layout__manifest_encode(manifest, &store->commits->place, bytes);
	set->block.manifest_bytes = len;
	rc = put_and_wait(store, bytes, len, set->mirrors ? 2 : 1, &set->manifest);
	free(bytes);
	return rc;
}

/* Write the manifest of a set. *mask: the drives that have a piece of the set. */
static int describe_set(struct spw_store *store, struct committed *set, const void *record,
			size_t len, uint64_t *mask)
{
	struct spw_commit_object *objects = calloc(set->count + UINT64_C(1), sizeof(*objects));
	struct spw_manifest manifest = {.sequence = set->block.sequence,
					.number = set->block.number,
					.object_count = set->count,
					.mirrors = set->mirrors,
					.record_bytes = len,
					.record = record,
					.objects = objects};
	struct spw_commit_piece *pieces = NULL;
	int rc;

	*mask = 0;
	if (!objects)
		return spw_error(-ENOMEM, "no memory to commit %u objects", set->count);
	rc = list_pieces(store, set, objects, &pieces, &manifest.piece_count, mask);
	manifest.pieces = pieces;
	if (rc == 0)
		rc = write_manifest(store, set, &manifest);
	if (rc == 0)
		rc = name_manifest(store, set, mask);
	free(pieces);
	free(objects);
	return rc;
}

/* ---- The commit block ---- */

/* Write a commit block, or zeroes if @commit is NULL. Durable after a flush. */
static int write_block(const struct spw_store *store, uint32_t drive, uint32_t slot,
		       const struct spw_commit *commit)
{
	const struct spw_device *device = store->drives[drive].device;
	uint8_t *buf = spw_engine__device_buffer(device, store->block_bytes);
	int rc;

	SPW_ASSERT(slot < SPW_COMMIT_SLOTS && !store->opts.read_only);
	if (!buf)
		return -ENOMEM;
	if (commit)
		spw_layout__commit_encode(commit, &store->commits->place, buf);
	rc = spw_device_pwrite(spw_drives__claimed(device), buf, store->block_bytes,
			       spw_layout__commit_offset(&store->assembly.superblocks[drive],
							 store->partition, slot));
	free(buf);
	return rc;
}

/* Retire a failed drive that a mirrored commit does not need. Keeps the error message. */
static void retire(struct spw_store *store, uint32_t drive, int rc)
{
	char words[512];

	(void)snprintf(words, sizeof(words), "%s", spw_last_error());
	(void)spw_store__control_run(store, REQUEST_RETIRE, drive, NULL, (uint64_t)-rc);
	(void)spw_error(rc, "%s", words);
}

/* Write a commit block to the drives of @mask, then flush. @retires: retire drives that fail. */
static int write_blocks_to(struct spw_store *store, uint64_t mask, uint32_t slot,
			   const struct spw_commit *commit, bool retires)
{
	for (uint32_t i = 0; i < store->drive_count; i++) {
		int rc = mask >> i & 1 ? write_block(store, i, slot, commit) : 0;

		if (rc && rc != -ENOMEM && retires)
			retire(store, i, rc);
		if (rc)
			return rc;
	}
	return mask ? spw_store__control_run(store, REQUEST_FLUSH, mask, NULL, retires) : 0;
}

/* Drives that do not know yet that another was replaced. */
static uint64_t untold_drives(const struct spw_store *store)
{
	const struct spw_superblock *superblocks = store->assembly.superblocks;
	uint64_t newest = 0, mask = 0;

	for (uint32_t i = 0; i < store->drive_count; i++)
		newest = SPW_MAX(newest, superblocks[i].sequence);
	for (uint32_t i = 0; i < store->drive_count; i++)
		if (superblocks[i].sequence != newest)
			mask |= UINT64_C(1) << i;
	return mask;
}

/*
 * Drives that have not been told of a replacement come last: a commit that only they have passes
 * for one that was made with the replaced drive.
 */
static int write_blocks(struct spw_store *store, uint64_t mask, uint32_t slot,
			const struct spw_commit *commit, bool retires)
{
	uint64_t untold = mask & untold_drives(store);
	int rc;

	if (mask == 0)
		return spw_error(-EIO, "no drive of the store is in service: a commit cannot be "
				       "written");
	rc = write_blocks_to(store, mask & ~untold, slot, commit, retires);
	return rc ? rc : write_blocks_to(store, untold, slot, commit, retires);
}

/* Write the block to all drives in service, its members (DURABLE-5). Others keep older blocks. */
static int write_block_of_set(struct spw_store *store, struct committed *set)
{
	uint64_t mask = drives_in_service(store);

	SPW_ASSERT(!store->commits->previous ||
		   set->block.slot != store->commits->previous->block.slot); /* kept (DURABLE-2) */
	SPW_ASSERT(store->commits->previous || !store->commits->durable ||
		   set->block.slot != store->commits->durable->block.slot); /* intact (DURABLE-2) */
	set->block.members = 0;
	for (uint32_t i = 0; set->mirrors && i < store->drive_count; i++)
		if (mask >> i & 1)
			set->block.members |= UINT64_C(1)
					      << store->assembly.superblocks[i].drive_index;
	return write_blocks(store, mask, set->block.slot, &set->block, set->mirrors);
}

/*
 * Check that no drive was truncated since it was opened: writes extend a file again, and only the
 * next open would find the damage. A commit that is not mirrored needs all drives, in service or
 * not.
 */
static int check_whole(struct spw_store *store, bool mirrors)
{
	uint64_t mask = mirrors ? drives_in_service(store) : UINT64_MAX;
	const struct spw_assembly *assembly = &store->assembly;

	for (uint32_t i = 0; i < store->drive_count; i++) {
		int rc = 0;

		if (mask >> i & 1)
			rc = spw_drives__check_not_truncated(store->drives[i].device,
							     &assembly->superblocks[i],
							     assembly->both_copies >> i & 1);
		if (rc && rc != -ENOMEM && mirrors) {
			spw_log(&store->opts.log, SPW_LOG_WARNING, "%s", spw_last_error());
			retire(store, i, rc);
		}
		if (rc)
			return rc;
	}
	return 0;
}

static uint32_t free_slot(const struct spw_commits *commits)
{
	if (commits->previous) /* keep its slot (DURABLE-2) */
		return 1 - commits->previous->block.slot;
	return commits->durable ? 1 - commits->durable->block.slot : 0;
}

/* Write a set. Return: 0; or an error. *doubtful: a restart may find the set nevertheless. */
static int write_set(struct spw_store *store, struct committed *set, const void *record, size_t len,
		     bool *doubtful)
{
	struct spw_commits *commits = store->commits;
	uint64_t mask;
	int rc;

	*doubtful = false;
	set->record_bytes = len;
	set->block.slot = free_slot(commits);
	set->block.sequence = ++commits->sequence; /* above all earlier ones (DURABLE-4) */
	SPW_ASSERT(!commits->durable ||
		   set->block.sequence > commits->durable->block.sequence); /* higher (DURABLE-4) */
	rc = describe_set(store, set, record, len, &mask);
	if (rc == 0) /* flush before writing the block (DURABLE-1) */
		rc = spw_store__control_run(store, REQUEST_FLUSH, mask, NULL, set->mirrors);
	if (rc == 0)
		rc = check_whole(store, set->mirrors);
	if (rc)
		return rc;
	*doubtful = true;
	return write_block_of_set(store, set);
}

/* @set is durable now, so release the last and the doubtful sets (DURABLE-3). */
static void replace(struct spw_store *store, struct committed *set, bool keep_previous)
{
	struct spw_commits *commits = store->commits;

	SPW_ASSERT(!commits->previous || keep_previous);
	if (keep_previous && !commits->previous)
		commits->previous = commits->durable;
	else
		let_go(store, commits->durable);
	commits->durable = set;
	while (commits->doubtful) {
		struct committed *next = commits->doubtful->next;

		let_go(store, commits->doubtful);
		commits->doubtful = next;
	}
}

/*
 * Does the block need members? If an object is mirrored, or drives with older blocks are missing.
 */
static bool needs_members(const struct spw_store *store, const struct committed *set, bool mirrored)
{
	for (uint32_t i = 0; !mirrored && i < set->count; i++)
		mirrored = set->objects[i]->copies == 2;
	return mirrored || store->assembly.missing > 0;
}

static int commit(struct spw_store *store, const spw_object objects[], uint32_t count,
		  uint64_t number, const void *record, size_t len, unsigned flags, bool *mirrors)
{
	bool keep_previous = flags & SPW_COMMIT_KEEP_PREVIOUS;
	struct spw_commits *commits = store->commits;
	const struct committed *kept = commits->previous ? commits->previous : commits->durable;
	struct committed *set;
	bool doubtful = false;
	int rc = check_commit(store, objects, count, number, record, len, flags);

	if (rc)
		return rc;
	set = spw_store__committed_new(count);
	if (!set)
		return spw_error(-ENOMEM, "no memory to commit %u objects", count);
	set->block.number = number;
	set->block.has_previous = keep_previous && kept;
	set->block.previous = set->block.has_previous ? kept->block.number : 0;
	rc = hold(store, objects, count, set);
	set->mirrors = *mirrors = needs_members(store, set, flags & SPW_COMMIT_MIRRORED);
	if (rc == 0)
		rc = write_set(store, set, record, len, &doubtful);
	if (rc == 0) {
		replace(store, set, keep_previous);
	} else if (doubtful) {
		set->next = commits->doubtful;
		commits->doubtful = set;
	} else {
		let_go(store, set);
	}
	return rc;
}

int spw_store_commit(struct spw_store *store, const spw_object objects[], uint32_t count,
		     uint64_t number, const void *record, size_t len, unsigned flags)
{
	if (flags & ~(SPW_COMMIT_KEEP_PREVIOUS | SPW_COMMIT_MIRRORED))
		return spw_error(-EINVAL, "a commit has no such flags: %#x", flags);
	return spw_store__commit_make(store, objects, count, number, record, len, flags);
}

static void count_retirements(const struct spw_store *store, uint32_t counts[])
{
	for (uint32_t i = 0; i < store->drive_count; i++)
		counts[i] = atomic_load(&store->drives[i].retirements);
}

/* Leave out drives retired since @counts. Return: whether there were any, and others are left. */
static bool leave_out_retired(struct spw_store *store, const uint32_t counts[])
{
	uint64_t *left_out = &store->commits->left_out, before = *left_out;

	for (uint32_t i = 0; i < store->drive_count; i++)
		if (atomic_load(&store->drives[i].retirements) != counts[i])
			*left_out |= UINT64_C(1) << i;
	return *left_out != before && drives_in_service(store) != 0;
}

int spw_store__commit_make(struct spw_store *store, const spw_object objects[], uint32_t count,
			   uint64_t number, const void *record, size_t len, unsigned flags)
{
	uint32_t retirements[SPW_DRIVES_MAX] = {0};
	int rc = spw_store__owned(store);
	bool mirrors = false;

	if (rc)
		return rc;
	if (atomic_exchange(&store->commits->under_way, true))
		return spw_error(-EBUSY, "another thread commits in this store");
	SPW_ASSERT(store->commits->left_out == 0);
	/* Repeat with fewer drives until it succeeds. */
	do {
		count_retirements(store, retirements);
		rc = commit(store, objects, count, number, record, len, flags, &mirrors);
	} while (rc && mirrors && leave_out_retired(store, retirements));
	store->commits->left_out = 0;
	atomic_store(&store->commits->under_way, false);
	return rc;
}

int spw_store_commit_release(struct spw_store *store)
{
	struct spw_commits *commits = store->commits;
	int rc = spw_store__owned(store);

	if (rc || !commits->previous)
		return rc;
	SPW_ASSERT(commits->durable &&
		   commits->durable->block.slot != commits->previous->block.slot);
	/* The blocks of the one that failed were written over those of the last. */
	if (commits->doubtful)
		return spw_error(-EBUSY,
				 "commit %llu is all that is sure, as commit %llu failed: it stays "
				 "until a commit has succeeded",
				 (unsigned long long)commits->previous->block.number,
				 (unsigned long long)commits->doubtful->block.number);
	/* Zero its block before its extents can be used again. */
	rc = write_blocks(store, drives_in_service(store), commits->previous->block.slot, NULL,
			  false);
	if (rc)
		return rc;
	let_go(store, commits->previous);
	commits->previous = NULL;
	commits->durable->block.has_previous = false;
	return 0;
}

int spw_store__commit_give_up(struct spw_store *store, uint32_t slot)
{
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < store->drive_count; i++)
		rc = write_block(store, i, slot, NULL);
	for (uint32_t i = 0; rc == 0 && i < store->drive_count; i++)
		rc = spw_device_sync(store->drives[i].device);
	return rc;
}

/* Write and flush on the drives of @mask. Return: 0; -ENOMEM; an error of the last that failed. */
static int secure_on(const struct spw_store *store, const struct spw_commit *commit, uint64_t mask,
		     uint64_t have, unsigned *secured)
{
	int rc = 0;

	for (uint32_t i = 0; rc != -ENOMEM && i < store->drive_count; i++) {
		uint64_t bit = UINT64_C(1) << store->assembly.superblocks[i].drive_index;
		int result = 0;

		if (!(mask >> i & 1) || (commit->members && !(commit->members & bit)))
			continue;
		if (!(have & bit))
			result = write_block(store, i, commit->slot, commit);
		if (result == 0)
			result = spw_device_sync(store->drives[i].device);
		*secured += result == 0;
		rc = result ? result : rc;
		if (result)
			spw_log(&store->opts.log, SPW_LOG_WARNING, "%s", spw_last_error());
	}
	return rc;
}

int spw_store__commit_secure(struct spw_store *store, const struct spw_commit *commit,
			     uint64_t have)
{
	uint64_t untold = untold_drives(store);
	unsigned secured = 0;
	int rc = secure_on(store, commit, ~untold, have, &secured);

	if (rc != -ENOMEM && untold)
		rc = secure_on(store, commit, untold, have, &secured);
	return rc == -ENOMEM || secured == 0 ? rc : 0;
}

/* ---- What is durable ---- */

static int nothing_error(void)
{
	return spw_error(-ENODATA, "nothing is committed in this partition of the store");
}

int spw_store_committed(struct spw_store *store, struct spw_commit_info *info, size_t size)
{
	const struct committed *durable = store->commits->durable;
	struct spw_commit_info all = {.size = size < sizeof(all) ? size : sizeof(all)};

	if (!durable)
		return nothing_error();
	all.number = durable->block.number;
	all.record_bytes = durable->record_bytes;
	all.objects = durable->count;
	all.has_previous = durable->block.has_previous;
	all.previous = durable->block.previous;
	all.mirrored = durable->block.members != 0;
	all.runs = durable->runs;
	all.runs_single = durable->runs_single;
	memcpy(info, &all, all.size);
	return 0;
}

int spw_store_committed_record(struct spw_store *store, void *record, size_t len)
{
	const struct committed *durable = store->commits->durable;
	struct spw_request *request;
	int rc;

	if (!durable)
		return nothing_error();
	if (len != durable->record_bytes)
		return spw_error(-ERANGE, "the commit's record has %llu bytes, not %zu",
				 (unsigned long long)durable->record_bytes, len);
	if (len == 0)
		return 0;
	rc = spw_store_get(store, durable->manifest, durable->block.manifest_bytes - len, record,
			   len, SPW_URGENT_READ, NULL, &request);
	return rc ? rc : spw_request_wait(request);
}

int spw_store_committed_objects(struct spw_store *store, spw_object objects[], uint64_t lens[],
				uint32_t count)
{
	const struct spw_commits *commits = store->commits;

	if (!commits->restored)
		return spw_error(-ENODATA, "nothing was committed when the store was opened");
	if (count != commits->restored_count)
		return spw_error(-ERANGE, "%u objects were restored, not %u",
				 commits->restored_count, count);
	for (uint32_t i = 0; i < count; i++) {
		objects[i] = commits->restored[i];
		if (lens)
			lens[i] = commits->restored_lens[i];
	}
	return 0;
}

void spw_store__commits_close(struct spw_store *store)
{
	struct spw_commits *commits = store->commits;

	if (!commits)
		return;
	committed_free(commits->durable);
	committed_free(commits->previous);
	while (commits->doubtful) {
		struct committed *next = commits->doubtful->next;

		committed_free(commits->doubtful);
		commits->doubtful = next;
	}
	free(commits->restored);
	free(commits->restored_lens);
	free(commits);
	store->commits = NULL;
}
