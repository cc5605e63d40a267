/* SPDX-License-Identifier: MIT */
/* store/partition.c - spw_store__partition_take(): own a partition: status page, locks, claims */
#include "store/partition.h"

#include <errno.h>
#include <stdio.h>

#include "drives/assemble.h"
#include "drives/change.h"
#include "drives/opener.h"
#include "status/status.h"
#include "layout/superblock.h"
#include "store/publish.h"
#include "store/open_store.h"
#include "util/util.h"

/* *locked: it is locked by a process without a status page. Return: 0; -EBUSY; -errno. */
static int lock_partition(struct spw_store *store, uint32_t partition, bool *locked)
{
	char words[256];
	int page_rc, rc;

	*locked = false;
	store->partition = partition;
	SPW_ASSERT(store->page_fd < 0);
	page_rc = spw_status__take(store->uuid, partition, &store->page_fd);
	(void)snprintf(words, sizeof(words), "%s", spw_last_error());
	if (page_rc == -EBUSY)
		return spw_error(page_rc, "%s: %s", spw_device_path(store->assembly.devices[0]),
				 words);
	rc = spw_drives__assembly_lock(&store->assembly, partition);
	*locked = rc == -EBUSY;
	if (rc == 0 && page_rc)
		spw_log(&store->opts.log, SPW_LOG_WARNING, "cannot publish the store's state: %s",
			words);
	if (rc)
		spw_store__publish_close(store);
	return rc;
}

/*
 * Wait for the locks of a killed process, which are released when its last write completes. Which
 * process holds them is unknown: others that wait here have the drives open too, without a status
 * page.
 */
static int await_partition(struct spw_store *store, uint32_t partition)
{
	const char *path = spw_device_path(store->assembly.devices[0]);
	uint64_t deadline_ns = 0;
	bool locked = true;
	int rc = -EBUSY;

	while (rc == -EBUSY && locked) {
		if (!spw_drives__opener_await(
			    &deadline_ns, &store->opts.log,
			    "partition %u: is locked, and no process shows that it has "
			    "it open; waiting up to %u s for the last write of one that "
			    "was killed",
			    partition, SPW_TEARDOWN_S_MAX))
			return spw_error(rc,
					 "%s: a process that does not show that it has the store "
					 "open has locked partition %u, for %u s: end it (see "
					 "fuser %s), or see dmesg: one that was killed may wait "
					 "for a drive; it may also be in another container",
					 path, partition, SPW_TEARDOWN_S_MAX, path);
		rc = lock_partition(store, partition, &locked);
	}
	return rc;
}

static int lock_any(struct spw_store *store, uint32_t count)
{
	uint32_t first_locked = count;
	int rc = -EBUSY;
	bool locked;

	for (uint32_t i = 0; i < count && rc == -EBUSY; i++) {
		rc = lock_partition(store, i, &locked);
		if (locked && first_locked == count)
			first_locked = i;
	}
	/* No partition is free, but the lock of a killed process will be released. */
	if (rc == -EBUSY && first_locked < count)
		rc = await_partition(store, first_locked);
	if (rc == -EBUSY)
		return spw_error(rc,
				 "all %u partitions of the store are open in other processes: "
				 "close one, or format with more --partitions",
				 count);
	return rc;
}

static int no_such_error(uint32_t wanted, uint32_t count)
{
	return spw_error(-EINVAL,
			 "partition %u does not exist: the store has %u, numbered from 0; format "
			 "it with more",
			 wanted, count);
}

static int lock_wanted(struct spw_store *store)
{
	uint32_t wanted = store->opts.partition,
		 count = store->assembly.superblocks[0].partition_count;
	bool locked;
	int rc;

	if (wanted == SPW_PARTITION_ANY)
		return lock_any(store, count);
	if (wanted >= count)
		return no_such_error(wanted, count);
	rc = lock_partition(store, wanted, &locked);
	return rc == -EBUSY && locked ? await_partition(store, wanted) : rc;
}

int spw_store__partition_take(struct spw_store *store)
{
	uint32_t count = store->assembly.superblocks[0].partition_count;
	int rc;

	(void)spw_layout__uuid_text(store->assembly.superblocks[0].store_uuid, store->uuid);
	if (store->opts.shared) {
		store->partition = store->opts.partition;
		return store->partition < count ? 0 : no_such_error(store->partition, count);
	}
	rc = lock_wanted(store);
	if (rc == 0)
		rc = spw_drives__assembly_claim(&store->assembly, store->partition,
						&store->opts.log);
	return rc || store->opts.read_only
		       ? rc
		       : spw_drives__change_complete(&store->assembly, &store->opts.log);
}
