/* SPDX-License-Identifier: MIT */
/*
 * store/flush.c - spw_store_flush(), trim and revive: from the caller to the worker; upkeep.c goes
 * on
 */
#include <errno.h>

#include "store/internal.h"

/* Flush, trim, revive: requests without an object. */
static int submit_upkeep(struct spw_store *store, enum request_kind kind, uint64_t drive,
			 const struct spw_notify *notify, struct spw_request **out)
{
	struct spw_request *request;

	if (out)
		*out = NULL;
	if (!notify && !out)
		return spw_error(-EINVAL, "a notify or a request to wait for is needed");
	if (spw_store_owned(store))
		return -EPERM;
	request = spw_request_take(store, kind, NULL, notify);
	if (!request)
		return -ENOBUFS;
	request->offset_bytes = drive;
	if (out)
		*out = request;
	spw_store_push(store, &request->message);
	return 0;
}

int spw_store_flush(struct spw_store *store, const struct spw_notify *notify,
		    struct spw_request **out)
{
	return submit_upkeep(store, REQUEST_FLUSH, 0, notify, out);
}

int spw_store_trim(struct spw_store *store, const struct spw_notify *notify,
		   struct spw_request **out)
{
	return submit_upkeep(store, REQUEST_TRIM, 0, notify, out);
}

int spw_store_revive(struct spw_store *store, unsigned drive)
{
	struct spw_request *request;
	int rc;

	if (drive >= store->drive_count)
		return spw_error(-EINVAL, "the store has %u drives, numbered from 0",
				 store->drive_count);
	rc = submit_upkeep(store, REQUEST_REVIVE, drive, NULL, &request);
	return rc ? rc : spw_request_wait(request);
}
