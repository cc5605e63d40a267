/* SPDX-License-Identifier: MIT */
/* store/deadlines.c - report, cancel or abandon transfers that miss their deadline */
#include "store/deadlines.h"

#include <errno.h>
#include <stdio.h>

#include "store/object.h"
#include "store/open_store.h"
#include "store/request.h"
#include "store/transfer.h"
#include "store/write.h"
#include "util/util.h"

#define CHECK_INTERVAL_NS_MAX 1000000000u

static uint64_t deadline_ns(const struct spw_store *store, enum spw_op op)
{
	return 1000000ull *
	       (op == SPW_READ ? store->opts.read_deadline_ms : store->opts.write_deadline_ms);
}

int64_t spw_store__deadline_timeout_ns(const struct spw_store *store)
{
	uint64_t read_ns = deadline_ns(store, SPW_READ), write_ns = deadline_ns(store, SPW_WRITE);
	uint64_t least_ns =
		read_ns == 0 || (write_ns != 0 && write_ns < read_ns) ? write_ns : read_ns;

	if (store->transfers_in_flight == 0 || least_ns == 0)
		return -1;
	return (int64_t)SPW_MIN(least_ns / 4, CHECK_INTERVAL_NS_MAX);
}

/* Advance watched_ns, by at most @interval_ns: the process may have been stopped in between. */
static void watch(struct spw_store *store, uint64_t now_ns, uint64_t interval_ns)
{
	uint64_t since_ns = now_ns - store->looked_ns;

	store->looked_ns = now_ns;
	store->watched_ns += since_ns < interval_ns ? since_ns : interval_ns;
}

/* Text: how long the kernel waits for a remote drive; or "". */
static const char *how_long_kept(const struct store_drive *drive, char *text, size_t len)
{
	text[0] = '\0';
	if (!spw_store__drive_is_far(drive))
		return text;
	if (drive->device->transport.kept_s == UINT32_MAX)
		(void)snprintf(text, len, "; the kernel keeps it until the drive is reached again");
	else
		(void)snprintf(text, len,
			       "; if the drive is not reached again the kernel gives up after %u s",
			       drive->device->transport.kept_s);
	return text;
}

/*
 * A read of the only copy, over a network that may be down: waiting is better than failing. The
 * administrator sets the kernel's timeouts.
 */
static bool is_worth_waiting_for(const struct transfer *transfer)
{
	return transfer->io.op == SPW_READ && transfer->request->object->copies == 1 &&
	       spw_store__drive_is_far(&transfer->store->drives[transfer->io.device]);
}

static void time_out(struct transfer *transfer, uint64_t now_ns)
{
	struct spw_store *store = transfer->store;
	struct store_drive *drive = &store->drives[transfer->io.device];
	const struct spw_io *io = &transfer->io;
	char kept[96];

	SPW_ASSERT(transfer->in_flight && !transfer->posted); /* no thread sums it (CHECKSUM-1) */
	transfer->timed_out = true;
	count_add(&drive->timeouts, 1);
	spw_log(&store->opts.log, SPW_LOG_ERROR,
		"%s%s: a %s of %u bytes at byte %llu has not ended after %llu ms%s",
		spw_device_path(drive->device), drive->device->transport.words,
		io->op == SPW_READ ? "read" : "write", io->len_bytes,
		(unsigned long long)io->offset_bytes,
		(unsigned long long)(now_ns - transfer->issued_ns) / 1000000,
		how_long_kept(drive, kept, sizeof(kept)));
	/* A cancelled read still completes: until then the drive may write to its memory. */
	if (!is_worth_waiting_for(transfer))
		(void)spw_queue_cancel(store->queue, &transfer->io);
	if (io->op == SPW_WRITE)
		spw_store__write_abandon(transfer);
}

void spw_store__deadlines_check(struct spw_store *store)
{
	int64_t interval_ns = spw_store__deadline_timeout_ns(store);
	uint64_t now_ns;

	if (interval_ns < 0)
		return;
	now_ns = spw_clock_ns();
	watch(store, now_ns, (uint64_t)interval_ns);
	if (now_ns < store->next_deadline_check_ns)
		return;
	store->next_deadline_check_ns = now_ns + (uint64_t)interval_ns;
	for (uint32_t i = 0; i < store->transfers_total; i++) {
		struct transfer *transfer = &store->transfers[i];
		uint64_t limit_ns;

		/* If its checksum is being computed, leave it to the next check (CHECKSUM-1). */
		if (!transfer->in_flight || transfer->timed_out || transfer->posted)
			continue;
		limit_ns = deadline_ns(store, transfer->io.op);
		if (limit_ns != 0 && store->watched_ns - transfer->watched_from_ns > limit_ns)
			time_out(transfer, now_ns);
	}
}
