/* SPDX-License-Identifier: MIT */
/* store/drive_health.c - retire drives that fail, try them again, return them to service */
#include "store/drive_health.h"

#include <errno.h>
#include <stdio.h>

#include "alloc/alloc.h"
#include "store/open_store.h"
#include "util/util.h"

/* Rare enough to be cheap, frequent enough to use new space within a step. */
#define TRY_AGAIN_NS     1000000000u
#define ADVICE_END_BYTES 128 /* reserved for the remedy */

static const char *why_retired(const struct store_drive *drive, int error)
{
	switch (error) {
	case -ENOSPC:
		return spw_device_geometry(drive->device)->kind == SPW_DEVICE_FILE
			       ? "the file system under it is full"
			       : "there is no space below it, as of a thin volume";
	case -ETIMEDOUT: return "a write did not end in time";
	case -EAGAIN: return "it asks for another attempt at each write";
	case -ENODEV: return "it is gone";
	default: return spw_strerror(error);
	}
}

const char *spw_store__health_advice(const struct spw_store *store, const char *advice,
				     char buf[SPW_ADVICE_BYTES])
{
	size_t len = 0;
	unsigned unnamed = 0;
	bool full = false, rests = false, failed = false;

	for (uint32_t i = 0; i < store->drive_count; i++) {
		const struct store_drive *drive = &store->drives[i];
		int error = atomic_load_explicit(&drive->retired, memory_order_relaxed);
		size_t room = SPW_ADVICE_BYTES - ADVICE_END_BYTES - len;
		int words;

		if (error == 0)
			continue;
		full |= error == -ENOSPC;
		rests |= spw_store__drive_rests(error);
		failed |= !spw_store__drive_rests(error);
		words = snprintf(buf + len, room, "%s%s is out of service: %s", len ? ", " : "",
				 spw_device_path(drive->device), why_retired(drive, error));
		if (words < 0 || (size_t)words >= room)
			unnamed++;
		else
			len += (size_t)words;
	}
	if (!rests && !failed)
		return advice;
	if (unnamed)
		len += (size_t)snprintf(buf + len, SPW_ADVICE_BYTES - len, " and %u more", unnamed);
	(void)snprintf(
		buf + len, SPW_ADVICE_BYTES - len, "%s%s%s", full ? "; make room there" : "",
		rests ? (full ? ": it is tried again by itself" : "; it is tried again by itself")
		      : "",
		failed ? "; check what failed, have it tried again (spillway revive)" : "");
	return buf;
}

/*
 * While a network is down the kernel keeps writes and completes them later: such a completion shows
 * that a remote drive is reachable again. A local drive that stalls is failing.
 */
static bool comes_back_by_itself(const struct store_drive *drive, int error)
{
	return error == -ETIMEDOUT && spw_store__drive_is_far(drive);
}

static const char *how_it_comes_back(const struct store_drive *drive, int error)
{
	if (spw_store__drive_rests(error))
		return "it is tried again every second; ";
	return comes_back_by_itself(drive, error)
		       ? "it is in service again when it takes that write after all; "
		       : "";
}

void spw_store__drive_retire(struct spw_store *store, uint32_t index, int error)
{
	struct store_drive *drive = &store->drives[index];
	bool again = drive->on_trial && spw_store__drive_rests(error);

	if (drive->retired)
		return;
	SPW_ASSERT(error < 0 && store->drives_retired < store->drive_count);
	drive->retired = error;
	drive->on_trial = false;
	atomic_fetch_add(&drive->retirements, 1);
	store->drives_retired++;
	store->drives_full += error == -ENOSPC;
	if (spw_store__drive_rests(error)) {
		store->drives_resting++;
		drive->try_again_ns = spw_clock_ns() + TRY_AGAIN_NS;
	}
	atomic_fetch_sub(&store->blocks_available, (int64_t)spw_alloc__blocks_free(drive->alloc));
	if (!again)
		spw_log(&store->opts.log, SPW_LOG_WARNING,
			"%s%s: retired for new chunks: %s; %s%u of %u drives left",
			spw_device_path(drive->device), drive->device->transport.words,
			why_retired(drive, error), how_it_comes_back(drive, error),
			store->drive_count - store->drives_retired, store->drive_count);
}

static void come_back(struct spw_store *store, uint32_t index)
{
	struct store_drive *drive = &store->drives[index];

	SPW_ASSERT(drive->retired && store->drives_retired > 0);
	SPW_ASSERT(store->drives_full <= store->drives_resting &&
		   store->drives_resting <= store->drives_retired);
	store->drives_full -= drive->retired == -ENOSPC;
	store->drives_resting -= spw_store__drive_rests(drive->retired);
	drive->retired = 0;
	store->drives_retired--;
	/* Otherwise the drive would get all chunks until it has as many as the others. */
	for (uint32_t i = 0; i < store->drive_count; i++)
		if (store->drives[i].bytes_placed > drive->bytes_placed)
			drive->bytes_placed = store->drives[i].bytes_placed;
	atomic_fetch_add(&store->blocks_available, (int64_t)spw_alloc__blocks_free(drive->alloc));
}

void spw_store__drive_revive(struct spw_store *store, uint32_t index)
{
	come_back(store, index);
	spw_log(&store->opts.log, SPW_LOG_INFO, "%s: in service again",
		spw_device_path(store->drives[index].device));
}

void spw_store__drive_answered(struct spw_store *store, uint32_t index)
{
	struct store_drive *drive = &store->drives[index];

	if (comes_back_by_itself(drive, drive->retired))
		spw_store__drive_revive(store, index);
}

/* By time, not at the next put: while all drives rest, puts fail earlier. */
void spw_store__drives_try_again(struct spw_store *store)
{
	uint64_t now_ns = store->drives_resting > 0 ? spw_clock_ns() : 0;

	for (uint32_t i = 0; store->drives_resting > 0 && i < store->drive_count; i++) {
		struct store_drive *drive = &store->drives[i];

		if (!spw_store__drive_rests(drive->retired) || now_ns < drive->try_again_ns)
			continue;
		come_back(store, i);
		drive->on_trial = true;
	}
}

int64_t spw_store__try_again_timeout_ns(const struct spw_store *store)
{
	uint64_t first_ns = UINT64_MAX, now_ns;

	if (store->drives_resting == 0)
		return -1;
	for (uint32_t i = 0; i < store->drive_count; i++)
		if (spw_store__drive_rests(store->drives[i].retired) &&
		    store->drives[i].try_again_ns < first_ns)
			first_ns = store->drives[i].try_again_ns;
	now_ns = spw_clock_ns();
	return first_ns > now_ns ? (int64_t)(first_ns - now_ns) : 0;
}
