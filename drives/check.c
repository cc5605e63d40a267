/* SPDX-License-Identifier: MIT */
/* drives/check.c - spw_check(): describes a store and its drives, and what is wrong with them */
#include <errno.h>
#include <stdio.h>

#include <spillway/format.h>

#include "drives/candidates.h"
#include "drives/safety.h"
#include "util/util.h"

static void fill_drive(const struct spw_candidate *candidate, struct spw_drive_info *info,
		       size_t size)
{
	const struct spw_superblock *sb = &candidate->superblock;
	struct spw_drive_info own = {
		.size = sizeof(own),
		.copies_good = candidate->contents.superblocks.copies_good,
		.error = candidate->fault,
	};

	(void)snprintf(own.path, sizeof(own.path), "%s", candidate->path);
	(void)snprintf(own.reason, sizeof(own.reason), "%.255s", candidate->words);
	if (candidate->device) {
		own.geometry = *spw_device_geometry(candidate->device);
		own.size_bytes = own.geometry.size_bytes;
	}
	if (sb->drive_count > 0) {
		(void)spw_layout__uuid_text(sb->drive_uuids[sb->drive_index], own.drive_uuid);
		own.index = sb->drive_index;
		own.data_offset_bytes = sb->data_offset_bytes;
		own.partition_bytes = sb->partition_bytes;
		own.sequence = sb->sequence;
	}
	spw_opts_merge(info, size, &own, sizeof(own));
}

/* Count the partitions that are locked on any drive. Return: the number; or a negative errno. */
static int partitions_in_use(const struct spw_candidate *candidates, unsigned count)
{
	unsigned in_use = 0;

	for (unsigned partition = 0; partition < candidates[0].superblock.partition_count;
	     partition++) {
		int locked = 0;

		for (unsigned i = 0; locked == 0 && i < count; i++)
			locked = spw_drives__safety_locked(
				candidates[i].path,
				spw_layout__partition_offset(&candidates[i].superblock, partition),
				1);
		if (locked < 0)
			return locked;
		in_use += (unsigned)locked;
	}
	return (int)in_use;
}

static int fill_store(const struct spw_candidate *candidates, unsigned count,
		      struct spw_store_info *info)
{
	const struct spw_superblock *sb = &candidates[0].superblock;
	struct spw_store_info own = {
		.size = sizeof(own),
		.format_version = SPW_FORMAT_VERSION,
		.drives = count,
		.partitions = sb->partition_count,
		.block_bytes = sb->block_bytes,
		.chunk_bytes = sb->chunk_bytes,
	};
	int in_use = partitions_in_use(candidates, count);

	if (in_use < 0)
		return in_use;
	own.partitions_in_use = (uint32_t)in_use;
	(void)spw_layout__uuid_text(sb->store_uuid, own.store_uuid);
	for (unsigned i = 0; i < count; i++)
		own.partition_capacity_bytes +=
			spw_layout__partition_capacity(&candidates[i].superblock);
	own.capacity_bytes = own.partition_capacity_bytes * sb->partition_count;
	spw_opts_merge(info, info->size == 0 ? sizeof(*info) : info->size, &own, sizeof(own));
	return 0;
}

/* Describe a store that cannot be opened, by any of its drives. */
static void fill_part(const struct spw_candidate *candidates, unsigned count,
		      struct spw_store_info *info)
{
	for (unsigned i = 0; i < count; i++) {
		const struct spw_superblock *sb = &candidates[i].superblock;
		struct spw_store_info own = {
			.size = sizeof(own),
			.format_version = SPW_FORMAT_VERSION,
			.partitions = sb->partition_count,
			.block_bytes = sb->block_bytes,
			.chunk_bytes = sb->chunk_bytes,
		};

		if (sb->drive_count == 0)
			continue;
		(void)spw_layout__uuid_text(sb->store_uuid, own.store_uuid);
		spw_opts_merge(info, info->size == 0 ? sizeof(*info) : info->size, &own,
			       sizeof(own));
		return;
	}
}

/* Size of the elements of the caller's array, by its version; 0: this library's. */
static int drive_info_step(const struct spw_drive_info drives[], size_t *step)
{
	*step = drives && drives[0].size != 0 ? drives[0].size : sizeof(drives[0]);
	if (*step > 16 * sizeof(drives[0]))
		return spw_error(-EINVAL, "the size of the drives' info is not set: set "
					  "drives[i].size = sizeof(drives[i])");
	return 0;
}

int spw_check(const char *const paths[], unsigned count, struct spw_store_info *info,
	      struct spw_drive_info drives[])
{
	struct spw_candidate *candidates = NULL;
	size_t drive_size;
	int rc = drive_info_step(drives, &drive_size);

	if (rc != 0)
		return rc;
	rc = spw_drives__candidates_examine(paths, count, true, NULL, NULL, &candidates);
	for (unsigned i = 0; candidates && drives && i < count; i++)
		fill_drive(&candidates[i],
			   (struct spw_drive_info *)((char *)drives + i * drive_size), drive_size);
	SPW_ASSERT(rc != 0 || candidates);
	if (rc == 0 && info)
		rc = fill_store(candidates, count, info);
	else if (candidates && info)
		fill_part(candidates, count, info);
	spw_drives__candidates_close(candidates, count);
	return rc;
}
