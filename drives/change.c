/* SPDX-License-Identifier: MIT */
/*
 * drives/change.c - change which drives a store has: one is replaced by another, or one is added
 *
 * The order. Every step is made durable before the next begins.
 *
 *   REPLACE-1  All drives are claimed and examined: nothing may have the store open, and every
 *              byte that the replaced drive has of a commit can be read. Nothing is written up to
 *              here. Then drives that an earlier change has left incomplete, or has not told, are
 *              completed and told.
 *   REPLACE-2  Both superblock copies of the new drive are written, marked incomplete, with its own
 *              UUID at its index, where the replaced drive's was or no drive's, and a sequence
 *              number above all others.
 *   REPLACE-3  What is committed on the replaced drive, and the commit blocks, are copied to it.
 *   REPLACE-4  One superblock copy of each other drive is written, with the same sequence number
 *              and UUIDs: of two copies the one that does not count.
 *   REPLACE-5  Both copies of the new drive are written, marked complete.
 *   REPLACE-6  The remaining copies of the other drives are written.
 *
 * An added drive is completed (REPLACE-5) before the others are told (REPLACE-4). So whenever it is
 * used it knows itself that it belongs to the store, and no other drive that knows is needed to
 * read what was committed with it. A replacement cannot have this order: as long as no other drive
 * knows of it, the replaced drive is as good.
 *
 * Of a replacement the first write of REPLACE-4 decides. Before it the store is what it was, with
 * or without the replaced drive, and the new drive is refused, as it is incomplete and no drive
 * names it. After it the new drive belongs to the store (ASSEMBLE-2), and the replaced one, which
 * is never written to, is refused (ASSEMBLE-5). A process that opens the store to write does
 * REPLACE-5 first if that was cut off: until then nothing is committed with the new drive, so that
 * the drives that were told, which alone vouch for it, may be lost.
 *
 * Of an addition the first write of REPLACE-5 decides: before it the new drive is refused in the
 * same way; after it the store has it wherever it is named (ASSEMBLE-5). It has the index after the
 * last, which no commit names, so that all of them stay as they are.
 */
#include "drives/change.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "drives/committed.h"
#include "drives/format.h"
#include "drives/opener.h"
#include "drives/overlap.h"
#include "drives/rebuild.h"
#include "drives/safety.h"
#include "drives/space.h"
#include "engine/device.h"
#include "engine/vfio/vfio.h"
#include "util/util.h"

/* ---- Which drives the store has ---- */

bool spw_drives__same_device(const char *a, const char *b)
{
	const char *const both[2] = {a, b};

	return strcmp(a, b) == 0 || spw_drives_distinct(both, 2) == -ENOTUNIQ;
}

bool spw_drives__change_is_of_store(const struct spw_candidate *candidate,
				    const struct spw_superblock *newest)
{
	return candidate->superblock.drive_count > 0 &&
	       memcmp(candidate->superblock.store_uuid, newest->store_uuid,
		      sizeof(newest->store_uuid)) == 0;
}

/* Does a drive know of a change that @newest does not know of? */
static bool knows_more(const struct spw_candidate *candidate, const struct spw_candidate *newest)
{
	return candidate->device && candidate->superblock.complete &&
	       !candidate->contents.foreign &&
	       spw_drives__change_is_of_store(candidate, &newest->superblock) &&
	       candidate->superblock.sequence > newest->superblock.sequence;
}

const struct spw_candidate *spw_drives__change_newest(const struct spw_change *run)
{
	const struct spw_candidate *newest =
		spw_drives__candidates_newest(run->rest, run->rest_count);

	if (knows_more(run->old, newest))
		newest = run->old;
	return knows_more(run->target, newest) ? run->target : newest;
}

bool spw_drives__change_is_member(const struct spw_candidate *candidate,
				  const struct spw_superblock *newest)
{
	return spw_drives__change_is_of_store(candidate, newest) &&
	       spw_drives__candidate_is_named(newest, &candidate->superblock);
}

bool spw_drives__change_has_target(const struct spw_change *run,
				   const struct spw_superblock *newest)
{
	return spw_drives__change_is_member(run->target, newest) && !run->target->contents.foreign;
}

unsigned spw_drives__change_missing(const struct spw_change *run,
				    const struct spw_superblock *newest, unsigned but,
				    unsigned *first)
{
	uint64_t there = but < SPW_CHANGE_NO_DRIVE ? UINT64_C(1) << but : 0;
	unsigned count = 0;

	for (unsigned i = 0; i < run->rest_count; i++)
		if (!run->rest[i].absent)
			there |= UINT64_C(1) << run->rest[i].superblock.drive_index;
	if (spw_drives__change_has_target(run, newest))
		there |= UINT64_C(1) << run->target->superblock.drive_index;
	for (unsigned i = newest->drive_count; i-- > 0;)
		if (!(there >> i & 1)) {
			count++;
			*first = i;
		}
	return count;
}

/* ---- Opening ---- */

int spw_drives__change_new(struct spw_change *run, const char *const paths[], unsigned count,
			   const char *name, bool is_path, const char *path)
{
	const char *rest[SPW_DRIVES_MAX];
	unsigned kept = 0;
	int rc;

	if (count > SPW_DRIVES_MAX)
		return spw_error(-EINVAL, "%u drives were named; a store has 1 to %u", count,
				 SPW_DRIVES_MAX);
	rc = spw_drives_distinct(paths, count);
	for (unsigned i = 0; rc == 0 && i < count; i++)
		if (!spw_drives__same_device(paths[i], path) &&
		    !(is_path && spw_drives__same_device(paths[i], name)))
			rest[kept++] = paths[i];
	if (rc != 0 || kept == 0)
		return rc;
	rc = spw_drives__candidates_new(rest, kept, false, &run->rest);
	if (rc == 0)
		rc = spw_drives__candidates_new(&name, 1, false, &run->old);
	if (rc == 0)
		rc = spw_drives__candidates_new(&path, 1, true, &run->target);
	run->rest_count = rc == 0 ? kept : 0;
	return rc;
}

void spw_drives__change_claim_rest(struct spw_change *run)
{
	for (unsigned i = 0; i < run->rest_count; i++)
		spw_drives__candidate_fault(&run->rest[i], spw_claim(run->rest[i].path, run->log,
								     &run->rest[i].device));
	(void)spw_drives__candidates_look(run->rest, run->rest_count, run->log);
}

int spw_drives__change_verify_rest(struct spw_change *run)
{
	unsigned missing;

	return spw_drives__candidates_verify(run->rest, run->rest_count, false, &missing, run->log);
}

/* Do the other drives belong to the store as the new or the replaced one knows it? */
static int verify_rest(const struct spw_change *run)
{
	const struct spw_candidate *newest = spw_drives__change_newest(run);
	int rc = 0;

	for (unsigned i = 0; rc == 0 && i < run->rest_count; i++)
		if (!run->rest[i].absent)
			rc = spw_drives__candidate_verify(&run->rest[i], newest);
	return rc;
}

int spw_drives__change_claim_target(struct spw_change *run)
{
	struct spw_format_run target = {.targets = run->target, .count = 1, .log = run->log};
	int rc = spw_drives__format_claim(&target, run->target);

	if (rc == 0)
		rc = spw_drives__candidates_look(run->target, 1, run->log);
	return rc == 0 ? verify_rest(run) : rc;
}

void spw_drives__change_close(struct spw_change *run)
{
	spw_drives__candidates_close(run->rest, run->rest ? run->rest_count : 0);
	spw_drives__candidates_close(run->old, 1);
	spw_drives__candidates_close(run->target, 1);
	spw_vfio__let_go(run->hold);
}

/* ---- Examining ---- */

int spw_drives__change_verify_unique(const struct spw_change *run,
				     const struct spw_candidate *candidate)
{
	for (unsigned i = 0; i < run->rest_count; i++)
		if (!run->rest[i].absent &&
		    run->rest[i].superblock.drive_index == candidate->superblock.drive_index)
			return spw_error(-ENOTUNIQ,
					 "%s and %s are both drive %u of the store: one is a copy "
					 "of the other; name one",
					 run->rest[i].path, candidate->path,
					 candidate->superblock.drive_index + 1);
	return 0;
}

/* The target belongs to the store: as the drive that is meant, and that is not there twice? */
static int verify_member(struct spw_change *run, const struct spw_candidate *newest)
{
	const struct spw_candidate *target = run->target;
	int rc = spw_drives__change_verify_unique(run, target);

	if (rc != 0)
		return rc;
	run->finishes = target->superblock.drive_index == run->index &&
			!spw_drives__change_is_member(run->old, &newest->superblock);
	if (run->finishes)
		return spw_drives__candidate_verify(target, newest);
	return spw_error(-EEXIST, "%s: is drive %u of this store; name a drive that is not in it",
			 target->path, target->superblock.drive_index + 1);
}

/* Does the target have what the same change left when it was interrupted? */
static bool is_unfinished(const struct spw_change *run)
{
	const struct spw_candidate *target = run->target;

	return spw_drives__change_is_of_store(target,
					      &spw_drives__change_newest(run)->superblock) &&
	       !target->superblock.complete && target->superblock.drive_index == run->index &&
	       !target->contents.foreign;
}

int spw_drives__change_examine_target(struct spw_change *run)
{
	const struct spw_candidate *knows = spw_drives__change_newest(run);
	const struct spw_superblock *newest = &knows->superblock;
	const struct spw_format_opts opts = {
		.size = sizeof(opts), .force = run->force, .erase = run->erase};
	struct spw_format_run format = {
		.targets = run->target, .count = 1, .log = run->log, .opts = &opts};
	struct spw_candidate *target = run->target;
	uint32_t logical = spw_device_geometry(target->device)->logical_block_bytes;
	int rc;

	if (spw_drives__change_has_target(run, newest))
		return verify_member(run, knows);
	if (logical > newest->block_bytes)
		return spw_error(-EINVAL,
				 "%s: has logical blocks of %u bytes, larger than the store's "
				 "blocks of %u; name a drive with smaller ones",
				 target->path, logical, newest->block_bytes);
	rc = spw_drives__overlap_refuse(target->path, newest);
	return rc != 0 || is_unfinished(run) ? rc : spw_drives__format_examine(&format, target);
}

/* A sequence number above that of every copy on any drive. */
static int next_sequence(const struct spw_change *run, uint64_t *sequence)
{
	struct spw_format_run each[] = {
		{.targets = run->rest, .count = run->rest_count},
		{.targets = run->old, .count = 1},
		{.targets = run->target, .count = 1},
	};
	int rc = 0;

	*sequence = 0;
	for (unsigned i = 0; rc == 0 && i < SPW_ARRAY_LEN(each); i++) {
		uint64_t next = 0;

		rc = spw_drives__format_sequence(&each[i], &next);
		*sequence = SPW_MAX(*sequence, next);
	}
	return rc;
}

/* Plan the target's superblock, and those of the other drives. */
static int plan(struct spw_change *run)
{
	struct spw_superblock store = spw_drives__change_newest(run)->superblock;
	uint8_t uuid[sizeof(store.drive_uuids[0])];
	int rc = next_sequence(run, &store.sequence);

	if (rc == 0)
		rc = spw_drives__format_uuid(uuid);
	if (rc != 0)
		return rc;
	store.drive_count = SPW_MAX(store.drive_count, run->index + 1);
	memcpy(store.drive_uuids[run->index], uuid, sizeof(uuid));
	store.complete = false;
	return spw_drives__format_plan(run->target, &store, run->index);
}

/* ---- Copying ---- */

static void add_source(struct spw_assembly *from, const struct spw_candidate *candidate)
{
	unsigned at = from->count++;

	/* in order of the index */
	for (; at > 0 && from->superblocks[at - 1].drive_index > candidate->superblock.drive_index;
	     at--) {
		from->superblocks[at] = from->superblocks[at - 1];
		from->devices[at] = from->devices[at - 1];
	}
	from->superblocks[at] = candidate->superblock;
	from->devices[at] = candidate->device;
}

/* The drives to read from, and @one if it is open. Their devices stay the candidates'. */
static int gather(const struct spw_change *run, const struct spw_candidate *one,
		  struct spw_assembly *from)
{
	const struct spw_superblock *newest = &spw_drives__change_newest(run)->superblock;
	char uuid[SPW_UUID_TEXT_BYTES];

	from->devices = calloc(SPW_DRIVES_MAX, sizeof(struct spw_device *));
	from->superblocks = calloc(SPW_DRIVES_MAX, sizeof(*from->superblocks));
	if (!from->devices || !from->superblocks)
		return spw_error(-ENOMEM, "no memory to change the drives of a store");
	for (unsigned i = 0; i < run->rest_count; i++)
		if (!run->rest[i].absent)
			add_source(from, &run->rest[i]);
	if (one->device)
		add_source(from, one);
	/* Commits name drives that some have not been told of. */
	for (unsigned i = 0; i < from->count; i++)
		from->superblocks[i].drive_count = newest->drive_count;
	SPW_ASSERT(from->count <= newest->drive_count);
	from->missing = newest->drive_count - from->count;
	(void)snprintf(from->missing_words, sizeof(from->missing_words),
		       one->device ? "drives other than the replaced one are missing"
				   : "drive %u (%s) cannot be read",
		       run->index + 1,
		       spw_layout__uuid_text(newest->drive_uuids[run->index], uuid));
	return 0;
}

/* ---- Writing ---- */

static unsigned copy_that_counts(const struct spw_candidate *candidate)
{
	return candidate->contents.superblocks.chosen == SPW_PLACE_FIRST ? 0 : 1;
}

/* Write a superblock copy of a drive: the one that counts now, or the one that does not. */
static int write_copy(struct spw_candidate *candidate, bool counts)
{
	struct spw_format_run one = {.targets = candidate, .count = 1};
	unsigned copy = copy_that_counts(candidate);

	return spw_drives__format_write(&one, counts ? copy : 1 - copy);
}

static int write_rest(const struct spw_change *run, bool counts)
{
	int rc = 0;

	for (unsigned i = 0; rc == 0 && i < run->rest_count; i++)
		if (!run->rest[i].absent)
			rc = write_copy(&run->rest[i], counts);
	return rc;
}

/* Does a drive not know what the others know, or not know that it is complete? */
static bool lags(const struct spw_candidate *candidate, const struct spw_superblock *known)
{
	return !candidate->superblock.complete || candidate->superblock.sequence != known->sequence;
}

/* A drive is told what @known says of the store's drives. */
static void learn(struct spw_superblock *sb, const struct spw_superblock *known)
{
	sb->complete = true;
	sb->sequence = known->sequence;
	sb->drive_count = known->drive_count;
	memcpy(sb->drive_uuids, known->drive_uuids, sizeof(sb->drive_uuids));
}

/* Both copies of the new drive say that it is complete (REPLACE-5). */
static int complete(struct spw_candidate *candidate)
{
	int rc;

	candidate->superblock.complete = true;
	rc = write_copy(candidate, false);
	return rc == 0 ? write_copy(candidate, true) : rc;
}

/* Give the other drives the target's sequence number and UUIDs, and complete the target. */
static int write_superblocks(struct spw_change *run)
{
	int rc = 0;

	for (unsigned i = 0; i < run->rest_count; i++)
		learn(&run->rest[i].superblock, &run->target->superblock);
	if (run->adds)
		rc = complete(run->target);
	if (rc == 0)
		rc = write_rest(run, false); /* REPLACE-4 */
	if (rc == 0 && !run->adds)
		rc = complete(run->target);
	return rc == 0 ? write_rest(run, true) : rc; /* the copies that were left (REPLACE-6) */
}

/*
 * Complete and tell the drives that an earlier change, which was decided, has left so. One that is
 * incomplete counts as complete only as long as another has its sequence number (ASSEMBLE-2), which
 * the others lose now.
 */
static int settle_rest(struct spw_change *run)
{
	const struct spw_superblock known = spw_drives__change_newest(run)->superblock;
	bool told[SPW_DRIVES_MAX] = {false};
	int rc = 0;

	for (unsigned i = 0; i < run->rest_count; i++) {
		told[i] = !run->rest[i].absent && lags(&run->rest[i], &known);
		if (told[i])
			learn(&run->rest[i].superblock, &known);
	}
	for (unsigned counts = 0; counts < 2; counts++)
		for (unsigned i = 0; rc == 0 && i < run->rest_count; i++)
			if (told[i])
				rc = write_copy(&run->rest[i], counts);
	return rc;
}

static int complete_member(struct spw_candidate *candidate, const struct spw_log *log)
{
	char words[512];
	int rc = spw_drives__candidates_look(candidate, 1, log);

	if (rc == 0 && candidate->contents.superblocks.chosen < 0)
		rc = spw_error(-EUCLEAN, "%s: its superblock cannot be read any more",
			       candidate->path);
	if (rc == 0 && !candidate->superblock.complete)
		rc = complete(candidate);
	if (rc == 0) {
		spw_log(log, SPW_LOG_INFO, "%s: complete now, as the replacement by it was decided",
			candidate->path);
		return 0;
	}
	(void)snprintf(words, sizeof(words), "%s", spw_last_error());
	return spw_error(rc,
			 "%s (its replacement of another drive did not finish: leave it out, or "
			 "run spillway replace again)",
			 words);
}

/*
 * Lock the superblocks of a drive while they are written: two processes at different copies would
 * leave both torn when power is cut. Waits for one that is at it, or was killed in it.
 */
static int lock_superblocks(const struct spw_device *device, const struct spw_log *log)
{
	uint64_t deadline_ns = 0;
	int rc = spw_device_lock(device, 0, 1);

	while (rc == -EBUSY) {
		if (!spw_drives__opener_await(&deadline_ns, log,
					      "%s: another process completes its superblocks; "
					      "waiting up to %u s",
					      device->path, SPW_TEARDOWN_S_MAX))
			return spw_error(rc,
					 "%s: another process has been completing its superblocks "
					 "for %u s: open the store again once that is done (see "
					 "fuser %s, and dmesg: it may wait for the drive)",
					 device->path, SPW_TEARDOWN_S_MAX, device->path);
		rc = spw_device_lock(device, 0, 1);
	}
	return rc;
}

static int complete_device(struct spw_device *device, const struct spw_log *log)
{
	const char *path = spw_device_path(device);
	struct spw_candidate *candidate;
	int rc = spw_drives__candidates_new(&path, 1, false, &candidate);

	if (rc != 0)
		return rc;
	rc = lock_superblocks(device, log);
	if (rc == 0) {
		candidate->device = device;
		rc = complete_member(candidate, log);
		candidate->device = NULL; /* the assembly's */
		(void)spw_device_unlock(device, 0, 1);
	}
	spw_drives__candidates_close(candidate, 1);
	return rc;
}

int spw_drives__change_complete(const struct spw_assembly *assembly, const struct spw_log *log)
{
	int rc = 0;

	for (unsigned i = 0; rc == 0 && i < assembly->count; i++)
		if (!assembly->superblocks[i].complete)
			rc = complete_device(assembly->devices[i], log);
	return rc;
}

static int write_target(struct spw_change *run, struct spw_rebuild *rebuild)
{
	struct spw_format_run target = {.targets = run->target, .count = 1, .log = run->log};
	int rc = spw_drives__format_warn(&target, run->target);

	if (rc == 0)
		rc = spw_drives__format_write(&target, 1); /* incomplete (REPLACE-2) */
	if (rc == 0)
		rc = spw_drives__format_write(&target, 0);
	if (rc == 0)
		rc = spw_drives__format_clear(&target);
	if (rc == 0)
		rc = spw_drives__rebuild_copy(rebuild); /* what is committed (REPLACE-3) */
	return rc == 0 ? spw_device_sync(run->target->device) : rc;
}

static int change(struct spw_change *run)
{
	struct spw_rebuild rebuild = {.index = run->index,
				      .target = run->target,
				      .log = run->log,
				      .go_on = run->go_on,
				      .context = run->context};
	int rc = plan(run);

	if (rc == 0)
		rc = gather(run, run->old, &rebuild.from);
	if (rc == 0)
		rc = spw_drives__rebuild_survey(&rebuild);
	if (rc == 0) {
		spw_drives__space_warn(run->target, 1, run->log);
		rc = settle_rest(run);
	}
	if (rc == 0)
		rc = write_target(run, &rebuild);
	free(rebuild.from.devices);
	free(rebuild.from.superblocks);
	run->copied_bytes = rebuild.done_bytes;
	return rc == 0 ? write_superblocks(run) : rc;
}

/*
 * Did no drive go on with the replaced one? Once it is told of the change, its commits pass
 * for some that the new one has.
 */
static int verify_lines(const struct spw_change *run)
{
	uint32_t partitions = spw_drives__change_newest(run)->superblock.partition_count;
	struct spw_assembly all = {0};
	int rc = gather(run, run->target, &all);

	for (uint32_t partition = 0; rc == 0 && partition < partitions; partition++) {
		struct spw_commits_found found;

		rc = spw_drives__commits_look(&all, partition, run->log, &found);
		if (rc == 0 && found.forked)
			rc = spw_drives__commits_forked_error(&all, &found);
	}
	free(all.devices);
	free(all.superblocks);
	return rc;
}

/* Do both copies of its superblock say what the others know? */
static bool is_told(const struct spw_candidate *candidate, const struct spw_superblock *known)
{
	return !lags(candidate, known) && candidate->contents.superblocks.copies_good == 2;
}

/* The target belongs to the store. Tell drives that do not know; change nothing if all do. */
static int finish(struct spw_change *run)
{
	const struct spw_superblock known = spw_drives__change_newest(run)->superblock;
	struct spw_candidate *target = run->target;
	bool done = is_told(target, &known);
	unsigned missing;
	int rc;

	for (unsigned i = 0; i < run->rest_count; i++)
		done = done && (run->rest[i].absent || is_told(&run->rest[i], &known));
	if (done && run->is_listed)
		return spw_error(-EEXIST,
				 "%s: is drive %u of this store; name a drive that is not in it",
				 target->path, run->index + 1);
	if (done)
		return 0;
	rc = verify_lines(run);
	target->superblock.complete = true; /* as the others know (REPLACE-4) */
	if (rc == 0)
		rc = spw_drives__candidates_verify(target, 1, false, &missing, run->log);
	if (rc != 0)
		return rc;
	learn(&target->superblock, &known);
	return write_superblocks(run);
}

int spw_drives__change_make(struct spw_change *run)
{
	struct spw_format_run target = {.targets = run->target, .count = 1, .log = run->log};
	int rc = run->finishes ? finish(run) : change(run);

	return rc == 0 ? spw_drives__format_release(&target, run->target) : rc;
}
