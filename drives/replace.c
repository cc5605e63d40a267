/* SPDX-License-Identifier: MIT */
/*
 * drives/replace.c - spw_replace(): replace a drive of a store by a new one
 *
 * Determines which drive is meant, and whether it can be replaced. The change itself, step by step,
 * is in drives/change.c.
 */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "drives/change.h"
#include "drives/safety.h"
#include "engine/device.h"
#include "engine/vfio/vfio.h"
#include "util/util.h"

struct replacing {
	struct spw_change change;
	const char *name; /* of the replaced drive, as the caller gave it */
	bool is_path;     /* the name is a path; else a number or a UUID */
};

/* ---- Which drive is which ---- */

/* Not a number ("2") nor a UUID, unless there is a file of that name. */
static bool is_path(const char *name)
{
	bool uuid = strlen(name) == SPW_UUID_TEXT_BYTES - 1, number = name[0] != '\0';

	for (size_t i = 0; name[i] != '\0'; i++) {
		bool dash = i == 8 || i == 13 || i == 18 || i == 23;

		uuid = uuid && (dash ? name[i] == '-' : isxdigit((unsigned char)name[i]) != 0);
		number = number && isdigit((unsigned char)name[i]);
	}
	return (!uuid && !number) || access(name, F_OK) == 0;
}

/* Is one of the other drives there? */
static bool has_others(const struct replacing *run)
{
	for (unsigned i = 0; i < run->change.rest_count; i++)
		if (!run->change.rest[i].absent)
			return true;
	return false;
}

static int find_by_number(struct replacing *run, const struct spw_superblock *newest)
{
	unsigned long number = strtoul(run->name, NULL, 10);

	if (number == 0 || number > newest->drive_count)
		return spw_error(
			-EINVAL,
			"there is no drive %s: the store has %u, numbered from 1 (spillway "
			"info)",
			run->name, newest->drive_count);
	run->change.index = (unsigned)number - 1;
	return 0;
}

/* The index at which superblock @sb has the UUID, as text. Return: SPW_CHANGE_NO_DRIVE: at none. */
static unsigned index_of_uuid(const struct spw_superblock *sb, const char *uuid)
{
	char text[SPW_UUID_TEXT_BYTES];
	unsigned i = 0;

	while (i < sb->drive_count &&
	       strcasecmp(spw_layout__uuid_text(sb->drive_uuids[i], text), uuid) != 0)
		i++;
	return i < sb->drive_count ? i : SPW_CHANGE_NO_DRIVE;
}

static int find_by_uuid(struct replacing *run, const struct spw_superblock *newest)
{
	unsigned index = index_of_uuid(newest, run->name);
	bool replaced = index == SPW_CHANGE_NO_DRIVE;

	/* It has its UUID itself, and so have drives that do not know yet that it was replaced. */
	if (replaced)
		index = index_of_uuid(&run->change.old->superblock, run->name);
	for (unsigned i = 0; index == SPW_CHANGE_NO_DRIVE && i < run->change.rest_count; i++)
		index = index_of_uuid(&run->change.rest[i].superblock, run->name);
	if (index == SPW_CHANGE_NO_DRIVE)
		return spw_error(-ENOENT, "no drive of the store has the UUID %s (spillway info)",
				 run->name);
	run->change.index = index;
	if (!replaced || (spw_drives__change_has_target(&run->change, newest) &&
			  run->change.target->superblock.drive_index == index))
		return 0;
	return spw_error(-EMEDIUMTYPE,
			 "drive %u with the UUID %s was replaced already: to replace the drive "
			 "that took its place, name that one (spillway info)",
			 index + 1, run->name);
}

/* The path leads to no drive of the store: the only missing one is meant. */
static int find_by_absence(struct replacing *run, const struct spw_superblock *newest)
{
	bool finishes = spw_drives__change_has_target(&run->change, newest);
	unsigned missing = spw_drives__change_missing(&run->change, newest, SPW_CHANGE_NO_DRIVE,
						      &run->change.index);
	char text[SPW_UUID_TEXT_BYTES];

	if (missing == 0 && finishes)
		run->change.index = run->change.target->superblock.drive_index;
	if (missing == 1 || (missing == 0 && finishes))
		return 0;
	if (missing == 0)
		return spw_error(
			-ENOENT,
			"%s: is not a drive of the store, and none is missing: name the drive "
			"to be replaced",
			run->name);
	return spw_error(-EINVAL,
			 "%s: cannot be read, and %u drives are missing: say which it was, by its "
			 "number or its UUID: for example %u, or %s",
			 run->name, missing, run->change.index + 1,
			 spw_layout__uuid_text(newest->drive_uuids[run->change.index], text));
}

static int find_by_path(struct replacing *run, const struct spw_superblock *newest)
{
	const struct spw_candidate *old = run->change.old;

	if (spw_drives__change_is_of_store(old, newest)) {
		run->change.index = old->superblock.drive_index;
		return 0;
	}
	/* The new drive may have the name of the old one. */
	if (!old->device || spw_drives__same_device(run->name, run->change.target->path))
		return find_by_absence(run, newest);
	return spw_error(-EMEDIUMTYPE,
			 "%s: is not a drive of the store (it holds: %s); name the one to be "
			 "replaced, or, if it is gone, its number from 1 to %u, or its UUID",
			 run->name, old->contents.text, newest->drive_count);
}

/* Take the replaced drive from the others. */
static void take(struct replacing *run, unsigned position)
{
	*run->change.old = run->change.rest[position];
	run->change.rest[position] = run->change.rest[--run->change.rest_count];
	run->change.rest[run->change.rest_count].device = NULL;
}

/* Take it if it is there and was named by number or UUID. */
static void take_old(struct replacing *run)
{
	for (unsigned i = 0; i < run->change.rest_count; i++)
		if (!run->change.rest[i].absent &&
		    run->change.rest[i].superblock.drive_index == run->change.index) {
			take(run, i);
			return;
		}
}

static bool is_by_uuid(const struct replacing *run)
{
	return !run->is_path && strlen(run->name) == SPW_UUID_TEXT_BYTES - 1;
}

/* Does the name, a number or a UUID, mean the drive with superblock @sb? */
static bool is_meant(const struct replacing *run, const struct spw_superblock *sb)
{
	return is_by_uuid(run) ? index_of_uuid(sb, run->name) == sb->drive_index
			       : strtoul(run->name, NULL, 10) == sb->drive_index + 1ul;
}

/*
 * The same once it has been replaced, as far as the other drives know: the call is repeated. Were
 * it left among them, they would be refused.
 */
static void take_replaced(struct replacing *run)
{
	const struct spw_superblock *newest =
		&spw_drives__candidates_newest(run->change.rest, run->change.rest_count)
			 ->superblock;

	for (unsigned i = 0; !run->is_path && i < run->change.rest_count; i++) {
		const struct spw_candidate *candidate = &run->change.rest[i];

		if (candidate->fault == 0 && candidate->device &&
		    candidate->contents.superblocks.chosen >= 0 &&
		    spw_drives__change_is_of_store(candidate, newest) &&
		    !spw_drives__candidate_is_named(newest, &candidate->superblock) &&
		    is_meant(run, &candidate->superblock)) {
			take(run, i);
			return;
		}
	}
}

static int no_others_error(const struct replacing *run)
{
	return spw_error(-EINVAL,
			 "%s: name all other drives of its store, too; of a store with one drive "
			 "nothing can be replaced: format another, and move what it has",
			 run->name);
}

/*
 * Numbers are easily mistaken, and paths change: if the drive can be read, and another is missing,
 * that one is more likely meant.
 */
static int verify_choice(const struct replacing *run)
{
	const struct spw_superblock *newest = &spw_drives__change_newest(&run->change)->superblock;
	char old[SPW_UUID_TEXT_BYTES], other[SPW_UUID_TEXT_BYTES];
	unsigned missing;

	if (!run->change.old->device || !spw_drives__change_is_member(run->change.old, newest) ||
	    spw_drives__change_missing(&run->change, newest, run->change.index, &missing) == 0)
		return 0;
	return spw_error(-EINVAL,
			 "drive %u is missing, and drive %u is %s, which can be read: name the one "
			 "to be replaced by its UUID, %s or %s",
			 missing + 1, run->change.index + 1, run->change.old->path,
			 spw_layout__uuid_text(newest->drive_uuids[missing], other),
			 spw_layout__uuid_text(newest->drive_uuids[run->change.index], old));
}

static int find_index(struct replacing *run)
{
	const struct spw_superblock *newest = &spw_drives__change_newest(&run->change)->superblock;
	bool by_uuid = is_by_uuid(run);
	int rc;

	if (run->is_path)
		rc = find_by_path(run, newest);
	else
		rc = by_uuid ? find_by_uuid(run, newest) : find_by_number(run, newest);
	if (rc == 0 && !run->is_path)
		take_old(run);
	if (rc == 0 && !has_others(run))
		rc = no_others_error(run);
	return rc == 0 && !by_uuid ? verify_choice(run) : rc;
}

/* Errors of a drive that cannot be read: it has failed, or was removed. */
static bool is_unreadable(int rc)
{
	return spw_drives__candidates_is_gone(rc) || rc == -ETIMEDOUT || rc == -ENODATA ||
	       rc == -EREMOTEIO || rc == -EILSEQ || rc == -ENOLINK;
}

/* ---- Opening ---- */

static int open_lists(struct replacing *run, const char *const paths[], unsigned count,
		      const char *path)
{
	int rc = spw_drives__change_new(&run->change, paths, count, run->name, run->is_path, path);

	if (rc == 0 && run->change.rest_count == 0)
		rc = no_others_error(run);
	run->change.is_listed = spw_drives__same_device(run->name, path);
	return rc;
}

/* Claim the replaced drive, if it is there: it may be write-protected, or gone. */
static int open_old(struct replacing *run)
{
	struct spw_candidate *old = run->change.old;
	int rc;

	if (!run->is_path || spw_drives__same_device(run->name, run->change.target->path))
		return 0;
	rc = spw_claim(old->path, run->change.log, &old->device);
	if (rc == -EROFS)
		rc = spw_drives__safety_open(old->path, true, false, run->change.log, &old->device);
	if (rc == 0)
		rc = spw_drives__candidates_look(old, 1, run->change.log);
	if (rc == 0 || !is_unreadable(rc))
		return rc;
	spw_log(run->change.log, SPW_LOG_INFO, "%s; it counts as a drive that cannot be read",
		spw_last_error());
	spw_device_close(old->device);
	old->device = NULL;
	return 0;
}

static int open_all(struct replacing *run)
{
	int rc;

	spw_drives__change_claim_rest(&run->change);
	take_replaced(run);
	rc = spw_drives__change_verify_rest(&run->change);
	if (rc == 0)
		rc = open_old(run);
	return rc == 0 ? spw_drives__change_claim_target(&run->change) : rc;
}

/* ---- Examining ---- */

/* Can the replaced drive be read as a drive of the store? If not, it counts as missing. */
static int examine_old(struct replacing *run)
{
	struct spw_candidate *old = run->change.old;
	unsigned missing;
	int rc;

	if (!old->device)
		return 0;
	rc = spw_drives__candidate_verify(old, spw_drives__change_newest(&run->change));
	if (rc == 0)
		rc = spw_drives__change_verify_unique(&run->change, old);
	if (rc != 0)
		return rc;
	rc = spw_drives__candidates_verify(old, 1, old->device->read_only, &missing,
					   run->change.log);
	if (rc == 0 || rc == -EBUSY)
		return rc;
	spw_log(run->change.log, SPW_LOG_WARNING, "%s; nothing is read from it", spw_last_error());
	spw_device_close(old->device);
	old->device = NULL;
	return 0;
}

/* ---- The call ---- */

void spw_replace_opts_init(struct spw_replace_opts *opts, size_t size)
{
	struct spw_replace_opts defaults = {.size = sizeof(defaults)};

	spw_opts_merge(opts, size, &defaults, sizeof(defaults));
}

static void describe(const struct replacing *run, const char *const paths[], unsigned count,
		     struct spw_replace_info *info)
{
	struct spw_replace_info own = {.size = sizeof(own),
				       .drive = run->change.index,
				       .named = -1,
				       .finished = run->change.finishes,
				       .old_was_read = run->change.old->device != NULL,
				       .copied_bytes = run->change.copied_bytes};

	(void)spw_layout__uuid_text(run->change.target->superblock.drive_uuids[run->change.index],
				    own.drive_uuid);
	for (unsigned i = 0; i < count; i++)
		if (spw_drives__same_device(paths[i], run->change.old->path))
			own.named = (int32_t)i;
	spw_opts_merge(info, info->size == 0 ? sizeof(*info) : info->size, &own, sizeof(own));
}

static int examine(struct replacing *run)
{
	int rc = open_all(run);

	if (rc == 0)
		rc = find_index(run);
	if (rc == 0)
		rc = spw_drives__change_examine_target(&run->change);
	return rc == 0 && !run->change.finishes ? examine_old(run) : rc;
}

int spw_replace(const char *const paths[], unsigned count, const char *drive, const char *path,
		const struct spw_replace_opts *user_opts, struct spw_replace_info *info)
{
	struct spw_replace_opts opts = {0};
	struct replacing run = {.name = drive, .is_path = is_path(drive)};
	int rc;

	spw_replace_opts_init(&opts, sizeof(opts));
	if (user_opts)
		spw_opts_merge(&opts, sizeof(opts), user_opts, user_opts->size);
	run.change = (struct spw_change){.force = opts.force,
					 .erase = opts.erase,
					 .log = &opts.log,
					 .go_on = opts.go_on,
					 .context = opts.context};
	rc = open_lists(&run, paths, count, path);
	if (rc == 0) {
		run.change.hold = spw_vfio__hold(paths, count, &opts.log);
		rc = examine(&run);
	}
	if (rc == 0)
		rc = spw_drives__change_make(&run.change);
	if (rc == 0 && info)
		describe(&run, paths, count, info);
	spw_drives__change_close(&run.change);
	return rc;
}
