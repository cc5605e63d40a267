/* SPDX-License-Identifier: MIT */
/*
 * store/checksums.c - when a large chunk of a put is summed: while its drive writes it
 *
 * A drive has its next chunk before that is summed, so it waits for no sum. While further chunks
 * wait for a slot, the sums follow the drives: the turn of a chunk is when all that its drive was
 * given before have ended. Where the CPU moves the bytes, one after the other, as for a loop
 * device, sum and copy then read the same bytes at the same time, and one finds them in a cache.
 * When nothing waits, all are summed as soon as somebody has time: the end of a put waits for that.
 *
 *   CHECKSUM-1  A write has ended for its put when it is written, or has failed, and is summed, in
 *          any order. It is given up as late only while nobody sums it.
 */
#include "store/internal.h"

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
	       (!store->writes_first && spw_store__pool_is_idle(store->pool));
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
