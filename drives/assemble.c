/* SPDX-License-Identifier: MIT */
/* drives/assemble.c - opens a store's drives; locks its partition and claims the drives */
#include "drives/assemble.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "drives/candidates.h"
#include "drives/loop.h"
#include "drives/safety.h"
#include "drives/share.h"
#include "engine/device.h"
#include "util/fork.h"
#include "util/util.h"

/* Move the devices of present drives to @out, by index. */
static int take_members(struct spw_candidate *candidates, unsigned count, struct spw_assembly *out)
{
	struct spw_candidate *by_index[SPW_DRIVES_MAX] = {NULL};
	uint32_t drive_count = 0;

	out->devices = calloc(count, sizeof(struct spw_device *));
	out->superblocks = calloc(count, sizeof(*out->superblocks));
	if (!out->devices || !out->superblocks)
		return spw_error(-ENOMEM, "no memory for %u drives", count);
	for (unsigned i = 0; i < count; i++)
		if (!candidates[i].absent) {
			by_index[candidates[i].superblock.drive_index] = &candidates[i];
			drive_count = SPW_MAX(drive_count, candidates[i].superblock.drive_count);
		}
	for (unsigned i = 0; i < SPW_DRIVES_MAX; i++) {
		if (!by_index[i])
			continue;
		out->devices[out->count] = by_index[i]->device;
		if (by_index[i]->contents.superblocks.copies_good == 2)
			out->both_copies |= UINT64_C(1) << out->count;
		out->superblocks[out->count++] = by_index[i]->superblock;
		by_index[i]->device = NULL;
	}
	/* Commits name drives that some have not been told of. */
	for (unsigned i = 0; i < out->count; i++)
		out->superblocks[i].drive_count = drive_count;
	SPW_ASSERT(out->count > 0 && out->count <= count);
	return 0;
}

/* Set the error for missing drives: preferably that a path cannot be opened, which tells more. */
static void note_missing(const struct spw_candidate *candidates, unsigned count,
			 struct spw_assembly *out)
{
	const char *words = spw_last_error();

	out->missing_error = -ENXIO;
	for (unsigned i = count; i-- > 0;)
		if (candidates[i].absent) {
			out->missing_error = candidates[i].fault;
			words = candidates[i].words;
		}
	(void)snprintf(out->missing_words, sizeof(out->missing_words), "%s", words);
}

int spw_drives__assemble(const char *const paths[], unsigned count, bool read_only,
			 const struct spw_log *log, struct spw_assembly *out)
{
	struct spw_candidate *candidates;
	unsigned missing;
	int rc;

	memset(out, 0, sizeof(*out));
	rc = spw_drives__candidates_examine(paths, count, read_only, &missing, log, &candidates);
	if (rc != 0)
		goto out;
	SPW_ASSERT(candidates);
	out->missing = missing;
	if (missing > 0)
		note_missing(candidates, count, out);
	rc = take_members(candidates, count, out);
	/* A child of fork(2) would keep inherited locks after its parent was killed. */
	for (unsigned i = 0; i < out->count && rc == 0; i++)
		if (out->devices[i]->fd >= 0)
			rc = spw_fork_add(out->devices[i]->fd);
	if (rc != 0)
		spw_drives__assembly_close(out);
out:
	spw_drives__candidates_close(candidates, count);
	return rc;
}

int spw_drives__assembly_missing_error(const struct spw_assembly *assembly)
{
	SPW_ASSERT(assembly->missing > 0 && assembly->missing_error < 0);
	return spw_error(assembly->missing_error, "%s", assembly->missing_words);
}

void spw_drives__assembly_close(struct spw_assembly *assembly)
{
	spw_drives__share_close(assembly->share);
	if (assembly->devices)
		spw_drives__candidates_close_devices(assembly->devices, assembly->count);
	free(assembly->devices);
	free(assembly->superblocks);
	memset(assembly, 0, sizeof(*assembly));
}

/*
 * QEMU's image locks: byte 100 + n for each permission n that it uses, byte 200 + n for each that
 * it denies to others.
 */
#define QEMU_DOES       100u
#define QEMU_SHARES_NOT 200u
#define QEMU_WRITE      1u

/* Lock the drive like QEMU, so that virtual machines cannot open it from now on. */
static int keep_from_machines(const struct spw_device *device)
{
	int rc;

	if (device->fd < 0)
		return 0;
	rc = spw_engine__device_lock_shared(device, QEMU_SHARES_NOT + QEMU_WRITE, 1);
	if (rc)
		return rc;
	rc = spw_fd_locked(device->fd, QEMU_DOES, QEMU_SHARES_NOT - QEMU_DOES);
	if (rc < 0)
		return spw_error_errno(rc, "%s: cannot be asked for locks", device->path);
	return rc == 0 ? 0
		       : spw_error(
				 -EBUSY,
				 "%s: a virtual machine has it open (see fuser %s); end that first",
				 device->path, device->path);
}

static void unlock_partition(const struct spw_assembly *assembly, unsigned partition,
			     unsigned drives)
{
	SPW_ASSERT(drives <= assembly->count);
	while (drives-- > 0) {
		uint64_t offset =
			spw_layout__partition_offset(&assembly->superblocks[drives], partition);

		(void)spw_device_unlock(assembly->devices[drives], offset, 1);
		(void)spw_device_unlock(assembly->devices[drives], QEMU_SHARES_NOT + QEMU_WRITE, 1);
	}
}

/* Is the superblock unchanged since assembling? The locked partition keeps out formats now. */
static int verify_unchanged(const struct spw_assembly *assembly, unsigned index)
{
	const struct spw_superblock *before = &assembly->superblocks[index], *now;
	const char *path = spw_device_path(assembly->devices[index]);
	struct spw_superblocks superblocks;
	int place = spw_drives__superblocks_read(assembly->devices[index], &superblocks);

	if (place == -ENOMEM)
		return place;
	if (place < 0)
		return spw_error(place,
				 "%s: its superblock was removed or cannot be read any more; check "
				 "the store",
				 path);
	if (superblocks.foreign[0])
		return spw_error(
			-EMEDIUMTYPE,
			"%s: another process has just written over its superblock: %s; check "
			"the store",
			path, superblocks.foreign);
	SPW_ASSERT(place < SPW_PLACES);
	now = &superblocks.places[place].superblock;
	if (now->sequence != before->sequence ||
	    memcmp(now->store_uuid, before->store_uuid, sizeof(now->store_uuid)) != 0)
		return spw_error(
			-EUCLEAN,
			"%s: was formatted by another process just now, or a drive of its store "
			"was replaced; open the store again",
			path);
	return 0;
}

int spw_drives__assembly_lock(const struct spw_assembly *assembly, unsigned partition)
{
	int rc = 0;

	SPW_ASSERT(partition < assembly->superblocks[0].partition_count);
	for (unsigned i = 0; i < assembly->count; i++) {
		const struct spw_device *device = assembly->devices[i];

		rc = spw_device_lock(
			device, spw_layout__partition_offset(&assembly->superblocks[i], partition),
			1);
		if (rc == -EBUSY)
			(void)spw_error(
				rc,
				"%s: partition %u of the store is open already, in this process "
				"or another; use another partition, or close it there",
				spw_device_path(device), partition);
		if (rc != 0) {
			unlock_partition(assembly, partition, i);
			return rc;
		}
	}
	return 0;
}

int spw_drives__assembly_claim(struct spw_assembly *assembly, unsigned partition,
			       const struct spw_log *log)
{
	struct spw_share_store store = {.partition = partition,
					.partition_count =
						assembly->superblocks[0].partition_count};
	struct spw_loops *loops = NULL;
	int rc;

	SPW_ASSERT(!assembly->share && partition < store.partition_count);
	(void)spw_layout__uuid_text(assembly->superblocks[0].store_uuid, store.uuid);
	rc = spw_drives__share_open(assembly->devices, assembly->count, &store, log,
				    &assembly->share);
	if (rc == 0)
		rc = spw_drives__loops_read(&loops);
	for (unsigned i = 0; rc == 0 && i < assembly->count; i++)
		rc = keep_from_machines(assembly->devices[i]);
	/*
	 * Check with our own locks and claims held: of two processes that do this, at least one
	 * sees the other.
	 */
	for (unsigned i = 0; rc == 0 && i < assembly->count; i++)
		rc = spw_drives__safety_aliases_locked(spw_device_path(assembly->devices[i]),
						       loops);
	for (unsigned i = 0; rc == 0 && i < assembly->count; i++)
		rc = spw_drives__safety_in_use(spw_device_path(assembly->devices[i]), loops);
	spw_drives__loops_free(loops);
	for (unsigned i = 0; rc == 0 && i < assembly->count; i++)
		rc = verify_unchanged(assembly, i);
	if (rc != 0) {
		spw_drives__share_close(assembly->share);
		assembly->share = NULL;
		unlock_partition(assembly, partition, assembly->count);
	}
	for (unsigned i = 0; i < assembly->count; i++)
		assembly->devices[i]->claimed = rc == 0;
	return rc;
}
