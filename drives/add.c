/* SPDX-License-Identifier: MIT */
/*
 * drives/add.c - spw_add(): add a drive to a store
 *
 * The new drive gets the index after the last one, which nothing that is committed names: all of it
 * stays where it is and can be read as before. Step by step it is a replacement of a drive that
 * had nothing (drives/change.c).
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "drives/change.h"
#include "drives/safety.h"
#include "engine/vfio/vfio.h"
#include "util/util.h"

static int open_lists(struct spw_change *run, const char *const paths[], unsigned count,
		      const char *path)
{
	int rc = spw_drives__change_new(run, paths, count, path, true, path);

	run->is_listed = run->rest_count < count;
	if (rc == 0 && run->rest_count == 0)
		rc = spw_error(-EINVAL, "%s: name the drives of the store that it is added to",
			       path);
	return rc;
}

/* The drives that are not there may have been told of others. */
static int verify_all_there(const struct spw_change *run, const struct spw_superblock *newest)
{
	char text[SPW_UUID_TEXT_BYTES];
	unsigned first = 0;

	if (spw_drives__change_missing(run, newest, SPW_CHANGE_NO_DRIVE, &first) == 0)
		return 0;
	return spw_error(
		-ENXIO,
		"drive %u of %u (%s) is missing: name all drives of the store; if that one "
		"is lost, replace it first (spillway replace)",
		first + 1, newest->drive_count,
		spw_layout__uuid_text(newest->drive_uuids[first], text));
}

static int find_index(struct spw_change *run)
{
	const struct spw_superblock *newest = &spw_drives__change_newest(run)->superblock;

	if (spw_drives__change_has_target(run, newest)) {
		run->index = run->target->superblock.drive_index;
		return 0;
	}
	if (newest->drive_count >= SPW_DRIVES_MAX)
		return spw_error(-EINVAL,
				 "%s: the store has %u drives already, and can have no more",
				 run->target->path, newest->drive_count);
	run->index = newest->drive_count;
	return verify_all_there(run, newest);
}

static int examine(struct spw_change *run)
{
	int rc;

	spw_drives__change_claim_rest(run);
	rc = spw_drives__change_verify_rest(run);
	if (rc == 0)
		rc = spw_drives__change_claim_target(run);
	if (rc == 0)
		rc = find_index(run);
	return rc == 0 ? spw_drives__change_examine_target(run) : rc;
}

void spw_add_opts_init(struct spw_add_opts *opts, size_t size)
{
	struct spw_add_opts defaults = {.size = sizeof(defaults)};

	spw_opts_merge(opts, size, &defaults, sizeof(defaults));
}

static void describe(const struct spw_change *run, struct spw_add_info *info)
{
	struct spw_add_info own = {
		.size = sizeof(own), .drive = run->index, .finished = run->finishes};

	(void)spw_layout__uuid_text(run->target->superblock.drive_uuids[run->index],
				    own.drive_uuid);
	spw_opts_merge(info, info->size == 0 ? sizeof(*info) : info->size, &own, sizeof(own));
}

int spw_add(const char *const paths[], unsigned count, const char *path,
	    const struct spw_add_opts *user_opts, struct spw_add_info *info)
{
	struct spw_add_opts opts = {0};
	struct spw_change run = {.log = &opts.log, .adds = true};
	int rc;

	spw_add_opts_init(&opts, sizeof(opts));
	if (user_opts)
		spw_opts_merge(&opts, sizeof(opts), user_opts, user_opts->size);
	run.force = opts.force;
	run.erase = opts.erase;
	rc = open_lists(&run, paths, count, path);
	if (rc == 0) {
		run.hold = spw_vfio__hold(paths, count, &opts.log);
		rc = examine(&run);
	}
	if (rc == 0)
		rc = spw_drives__change_make(&run);
	if (rc == 0 && info)
		describe(&run, info);
	spw_drives__change_close(&run);
	return rc;
}
