/* SPDX-License-Identifier: MIT */
/*
 * store/checksums.c - compute checksums of large chunks of puts while their drives write them
 *
 * A chunk is issued before its checksum is computed, so that drives do not wait for checksums.
 * While further chunks wait for a slot, checksums keep pace with the drive: a chunk's turn comes
 * when all writes issued to its drive before it have completed. If the CPU copies the bytes in
 * order, as for a loop device, the checksum then reads bytes that are in the cache. When no chunk
 * waits, checksums are computed as soon as a thread is free, because the put cannot end before.
 *
 *   CHECKSUM-1  A write has ended, for its put, once its checksum is computed and it has completed
 *               or failed, in either order. It is abandoned for a missed deadline only while no
 *               thread computes its checksum.
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
