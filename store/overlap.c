/* SPDX-License-Identifier: MIT */
/*
 * store/overlap.c - checksums of large pieces that were read, verified while the drives work
 *
 * A piece has been read, its drive gets the next request, and then it is verified. One piece at a time, between two looks at the queue,
 * so that no drive waits for a checksum. Writes are summed before they are issued: memory that somebody changes meanwhile then
 * shows, when the object is read and when it is compared with memory. With several chunks in flight no drive waits for that either.
 *
 * OVERLAP-1  A transfer is at most once in the list, and its request cannot end while it is.
 */
#include "store/internal.h"

bool spw_overlap_wanted(const struct spw_store *store, const struct piece *piece)
{
	return !store->opts.no_checksums && piece->len_bytes >= store->overlap_bytes_min;
}

void spw_overlap_add(struct transfer *transfer)
{
	struct overlap_list *list = &transfer->store->unsummed;

	SPW_ASSERT(!transfer->unsummed); /* OVERLAP-1 */
	transfer->unsummed = true;
	transfer->next = NULL;
	*(list->last ? &list->last->next : &list->first) = transfer;
	list->last = transfer;
}

bool spw_overlap_waits(const struct spw_store *store)
{
	return store->unsummed.first != NULL;
}

/* Verify one piece. */
void spw_overlap_step(struct spw_store *store)
{
	struct overlap_list *list = &store->unsummed;
	struct transfer *transfer = list->first;

	/*
	 * Kernel threads that carry out what was just submitted (a loop drive's, io_uring's) may have been woken on this
	 * CPU: they would wait until the sum is done. Measured: 5 % of the bandwidth of four file-backed drives.
	 */
	(void)sched_yield();
	list->first = transfer->next;
	if (!list->first)
		list->last = NULL;
	transfer->unsummed = false;
	spw_read_verify(transfer);
}
