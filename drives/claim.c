/* SPDX-License-Identifier: MIT */
/* drives/claim.c - spw_claim(): become the only user of a drive, as format and wipe need */
#include <errno.h>
#include <stdio.h>

#include <spillway/format.h>

#include "engine/device.h"
#include "engine/vfio/vfio.h"
#include "drives/opener.h"
#include "drives/safety.h"
#include "util/util.h"

int spw_drives__safety_unlocked(const char *path)
{
	int rc = spw_drives__safety_locked(path, 0, SPW_LOCK_ALL_BYTES);

	if (rc > 0)
		return spw_error(-EBUSY,
				 "%s: a process has a store on it open, or writes to it; end that "
				 "first (see fuser %s)",
				 path, path);
	return rc == 0 ? spw_drives__safety_aliases_locked(path, NULL) : rc;
}

/*
 * Claim a drive without waiting. A lock on all bytes conflicts with the locks of every store,
 * whatever the superblocks say, even beyond the device's present end. *held: a process has the
 * drive, perhaps one that was just killed
 */
static int claim_now(const char *path, const struct spw_log *log, struct spw_device **device,
		     bool *held)
{
	int rc = spw_drives__safety_in_use(path, NULL);

	*device = NULL;
	*held = false;
	if (rc != 0)
		return rc;
	rc = spw_drives__safety_open(path, false, true, log, device);
	*held = rc == -EBUSY;
	/* The kernel lets us open a write-protected device, and fails the first write. */
	if (rc == 0)
		rc = spw_drives__safety_writable(path);
	if (rc != 0)
		return rc;
	rc = spw_device_lock(*device, 0, SPW_LOCK_ALL_BYTES);
	if (rc == -EBUSY)
		(void)spw_error(rc,
				"%s: a process has a store on it open, or writes to it; end that "
				"first (see fuser %s)",
				path, path);
	if (rc == 0)
		rc = spw_drives__safety_aliases_locked(path, NULL);
	*held = rc == -EBUSY;
	/* Check again, now that it is open: before, the path may have named another device. */
	return rc == 0 ? spw_drives__safety_in_use(path, NULL) : rc;
}

/* Is the drive held only by a process that has ended? */
static bool is_dying(const char *path, const struct spw_device *device)
{
	char opener[64], words[512];
	bool dying;

	(void)snprintf(words, sizeof(words), "%s", spw_last_error());
	dying = !spw_drives__safety_opener(path, device ? device->fd : -1, opener, sizeof(opener));
	if (dying)
		(void)spw_error(-EBUSY, "%s", words);
	else
		(void)spw_error(-EBUSY, "%s; it is %s", words, opener);
	return dying;
}

int spw_claim(const char *path, const struct spw_log *log, struct spw_device **device)
{
	uint64_t deadline_ns = 0;
	bool held;

	for (;;) {
		int rc = claim_now(path, log, device, &held);

		if (rc == 0) {
			SPW_ASSERT(!(*device)->claimed && !(*device)->read_only);
			(*device)->claimed = true;
			return 0;
		}
		/* Not for drives behind vfio: no other process can have one. */
		held = held && !spw_vfio__is_name(path) && is_dying(path, *device);
		spw_device_close(*device);
		*device = NULL;
		if (!held || !spw_drives__opener_await(
				     &deadline_ns, log,
				     "%s: a process that was killed perhaps has not released it "
				     "yet; waiting up to %u s",
				     path, SPW_TEARDOWN_S_MAX))
			return rc;
	}
}
