/* SPDX-License-Identifier: MIT */
/*
 * store/alignment.c - test which memory alignment the drives really accept
 *
 * The test writes to free blocks of the partition being opened, which no other process has open.
 * Their bytes are restored afterwards: a drive that is missing at later commits may still have an
 * older commit that names them. If nothing may be written, or if the test fails, page alignment is
 * assumed; memory with less alignment is copied. Opening a store never fails because of this.
 */
#include "store/alignment.h"

#include <errno.h>

#include "alloc/alloc.h"
#include "drives/safety.h"
#include "engine/alignment_trial.h"
#include "store/open_store.h"
#include "util/util.h"

/* Test a drive on free blocks. Return: as spw_engine__trial_alignment(); -ENOSPC: no free block. */
static int try_drive(const struct spw_store *store, struct store_drive *drive)
{
	uint64_t blocks = (SPW_TRIAL_BYTES + store->block_bytes - 1) / store->block_bytes;
	struct spw_extent extent;
	int rc = spw_alloc__get_some(drive->alloc, blocks, &extent);

	SPW_ASSERT(!store->opts.read_only);
	if (rc)
		return rc;
	rc = spw_engine__trial_alignment(spw_drives__claimed(drive->device),
					 drive->base_bytes +
						 extent.start_block * store->block_bytes,
					 extent.len_blocks * store->block_bytes);
	spw_alloc__put(drive->alloc, &extent);
	return rc;
}

static void distrust(const struct spw_store *store, struct store_drive *drive, int error)
{
	const char *path = spw_device_path(drive->device);
	uint32_t claimed = spw_device_geometry(drive->device)->memory_align_bytes;

	if (error == -EBADMSG)
		spw_log(&store->opts.log, SPW_LOG_WARNING,
			"%s: says that memory at multiples of %u bytes will do, and moved other "
			"bytes than lay there: whole pages are used, and what is not aligned so is "
			"copied",
			path, claimed);
	else if (error != 0)
		spw_log(&store->opts.log, SPW_LOG_INFO,
			"%s: whether memory at multiples of %u bytes will do could not be tried "
			"(%s): whole pages are used",
			path, claimed, spw_strerror(error));
	drive->device->geometry.memory_align_bytes = SPW_ALIGN_TRUSTED_BYTES;
}

int spw_store__align(struct spw_store *store)
{
	/* A null drive transfers nothing; alignment under vfio is decided by our own driver. */
	bool untouched = store->opts.backend == SPW_BACKEND_NULL;

	store->memory_align_bytes = 1;
	for (uint32_t i = 0; i < store->drive_count; i++) {
		struct store_drive *drive = &store->drives[i];
		const struct spw_geometry *geometry = spw_device_geometry(drive->device);

		if (!untouched && geometry->kind != SPW_DEVICE_VFIO &&
		    geometry->memory_align_bytes < SPW_ALIGN_TRUSTED_BYTES) {
			int rc = store->opts.read_only ? 0 : try_drive(store, drive);

			if (rc || store->opts.read_only)
				distrust(store, drive, rc);
		}
		store->memory_align_bytes =
			SPW_MAX(store->memory_align_bytes, geometry->memory_align_bytes);
	}
	return 0;
}
