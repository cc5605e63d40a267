/* SPDX-License-Identifier: MIT */
/* store/trim.c - spw_store_trim(): discard free blocks */
#include "store/trim.h"

#include <errno.h>

#include "alloc/alloc.h"
#include "drives/safety.h"
#include "store/open_store.h"
#include "store/request.h"

/* Smallest extent worth a discard, and most extents: the worker is blocked meanwhile. */
#define TRIM_BLOCKS_MIN  256u
#define TRIM_EXTENTS_MAX 256u

static int trim_extent(struct spw_store *store, struct store_drive *drive,
		       const struct spw_extent *extent)
{
	uint64_t offset_bytes = drive->base_bytes + extent->start_block * store->block_bytes;
	uint64_t len_bytes = extent->len_blocks * store->block_bytes;
	int rc = spw_device_discard(spw_drives__claimed(drive->device), offset_bytes, len_bytes);

	if (rc == 0)
		count_add(&store->count.bytes_trimmed, len_bytes);
	return rc;
}

/* Discard a drive's largest free extents, which are allocated meanwhile to keep them unused. */
static int trim_drive(struct spw_store *store, struct store_drive *drive)
{
	struct spw_extent extents[TRIM_EXTENTS_MAX];
	unsigned count = 0;
	int rc = 0;

	while (count < TRIM_EXTENTS_MAX && rc == 0) {
		if (spw_alloc__get_some(drive->alloc, UINT64_MAX >> 1, &extents[count]))
			break;
		count++;
		/* The largest comes first, so all further extents are smaller. */
		if (extents[count - 1].len_blocks < TRIM_BLOCKS_MIN)
			break;
		rc = trim_extent(store, drive, &extents[count - 1]);
	}
	while (count > 0)
		spw_alloc__put(drive->alloc, &extents[--count]);
	return rc;
}

void spw_store__trim_submit(struct spw_request *request)
{
	struct spw_store *store = request->store;

	SPW_ASSERT(!store->opts.read_only);
	if (!spw_store__request_begin(request))
		spw_store__request_fail(request, -ECANCELED,
					"cancelled before anything was trimmed");
	for (uint32_t i = 0; !request->first_error && i < store->drive_count; i++) {
		struct store_drive *drive = &store->drives[i];
		int rc = spw_device_geometry(drive->device)->discards && !drive->retired
				 ? trim_drive(store, drive)
				 : 0;

		if (rc)
			spw_store__request_fail(request, rc, "%s", spw_last_error());
	}
	spw_store__request_end(request);
}
