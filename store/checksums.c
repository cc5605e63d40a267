/* SPDX-License-Identifier: MIT */
/*
 * store/checksums.c - sum large chunks of puts while their drives write them
 *
 * A chunk is issued before it is summed, so that no drive waits for a checksum. While more chunks
 * wait for a slot, checksums keep pace with the drive: a chunk's turn comes when all writes that
 * its drive was given before it have completed. Where the CPU copies the bytes one after the other,
 * as for a loop device, the checksum then reads the bytes that are being copied, in the cache. When
 * nothing waits, chunks are summed as soon as a thread is free, since the end of the put waits for
 * that.
 *
 *   CHECKSUM-1  For its put a write has ended once it has been summed and has completed or failed,
 *               in either order. It is abandoned for a missed deadline only while no thread sums
 *               it.
 */
#include "store/checksums.h"

#include "store/checksum_pool.h"
#include "store/open_store.h"
#include "store/transfer.h"
#include "util/util.h"

static struct store_drive *drive_of(const struct transfer *transfer)
{
	return &transfer->store->drives[transfer->io.device];
}

static uint64_t writes_ended(const struct store_drive *drive)
{
	return atomic_load_explicit(&drive->dir[SPW_WRITE].transfers, memory_order_relaxed);
}

void spw_store__checksum_later(struct transfer *transfer)
{
	struct store_drive *drive = drive_of(transfer);

	SPW_ASSERT(transfer->in_flight && !transfer->checksum_pending);
	transfer->checksum_pending = true;
	transfer->turn = writes_ended(drive) + drive->dir[SPW_WRITE].rate.in_flight;
	transfer->next = NULL;
	transfer->previous = drive->pending_last;
	*(transfer->previous ? &transfer->previous->next : &drive->pending_first) = transfer;
	drive->pending_last = transfer;
}

void spw_store__checksum_take(struct transfer *transfer)
{
	struct store_drive *drive = drive_of(transfer);
	struct transfer *previous = transfer->previous, *next = transfer->next;

	SPW_ASSERT(transfer->checksum_pending);
	*(previous ? &previous->next : &drive->pending_first) = next;
	*(next ? &next->previous : &drive->pending_last) = previous;
	transfer->checksum_pending = false;
}

static bool is_to_be_summed(const struct transfer *transfer)
{
	const struct spw_store *store = transfer->store;

	return transfer->turn <= writes_ended(drive_of(transfer)) + 1 ||
	       (!store->writes_first && spw_store__pool_is_idle(store));
}

void spw_store__checksums_post(struct spw_store *store)
{
	for (uint32_t i = 0; i < store->drive_count; i++) {
		struct transfer *transfer;

		while ((transfer = store->drives[i].pending_first) != NULL &&
		       is_to_be_summed(transfer)) {
			spw_store__checksum_take(transfer);
			spw_store__pool_post(transfer);
		}
	}
}
