/* SPDX-License-Identifier: MIT */
/* store/transfer.c - transfer a piece to or from a drive; bounce buffers; bandwidth and latency */
#include "store/transfer.h"

#include <string.h>

#include "engine/register.h"
#include "store/object.h"
#include "store/open_store.h"
#include "store/priority.h"
#include "store/request.h"
#include "util/histogram.h"
#include "util/util.h"

struct transfer *spw_store__transfer_take(struct spw_store *store)
{
	struct transfer *transfer = store->transfer_free;

	/* One is free: schedule_round() issues nothing otherwise. */
	SPW_ASSERT(transfer != NULL);
	/* it is free (STORE-6) */
	SPW_ASSERT(!transfer->in_flight && !transfer->posted && !transfer->bounce);
	store->transfer_free = transfer->next;
	transfer->bounce = NULL;
	transfer->retried = transfer->timed_out = transfer->abandoned = transfer->posted = false;
	transfer->switched = transfer->checksum_pending = false;
	return transfer;
}

void spw_store__bounce_give(struct transfer *transfer)
{
	struct spw_store *store = transfer->store;

	/* in use until now (STORE-4) */
	SPW_ASSERT(transfer->bounce && store->bounces_free < store->bounces_total);
	store->bounces[store->bounces_free++] = transfer->bounce;
	transfer->bounce = NULL;
}

void spw_store__transfer_give(struct transfer *transfer)
{
	struct spw_store *store = transfer->store;

	SPW_ASSERT(!transfer->posted && !transfer->in_flight &&
		   !transfer->checksum_pending); /* no longer in use (STORE-6) */
	if (transfer->bounce)
		spw_store__bounce_give(transfer);
	transfer->next = store->transfer_free;
	store->transfer_free = transfer;
}

bool spw_store__bounce_allowed(const struct spw_store *store, uint32_t drive)
{
	return store->drives[drive].bounces < store->bounces_per_drive;
}

bool spw_store__bounce_take(struct spw_store *store, struct transfer *transfer)
{
	SPW_ASSERT(!transfer->bounce);
	if (store->bounces_free == 0) {
		SPW_ASSERT(spw_store__is_busy(store)); /* so one will be freed (STORE-4) */
		return false;
	}
	/* Take the buffer used last, whose cache lines and pages are warm. */
	transfer->bounce = store->bounces[--store->bounces_free];
	return true;
}

static void rate_begin(struct rate *rate, uint64_t now_ns, uint64_t bytes)
{
	if (rate->in_flight++ == 0)
		rate->busy_since_ns = now_ns;
	rate->bytes_in_flight += bytes;
}

/* A transfer has ended. @bytes: how many of the @asked bytes were transferred. */
static void rate_end(struct rate *rate, uint64_t now_ns, uint64_t bytes, uint64_t asked)
{
	uint64_t measured, average;

	SPW_ASSERT(rate->in_flight > 0 && rate->bytes_in_flight >= asked && bytes <= asked);
	rate->busy_ns += now_ns - rate->busy_since_ns;
	rate->busy_since_ns = now_ns;
	rate->bytes += bytes;
	rate->in_flight--;
	rate->bytes_in_flight -= asked;
	if (rate->busy_ns < SPW_RATE_WINDOW_NS)
		return;
	measured = (uint64_t)((double)rate->bytes * 1e9 / (double)rate->busy_ns);
	average = atomic_load_explicit(&rate->bytes_per_second, memory_order_relaxed);
	if (average && now_ns - rate->measured_ns <= SPW_RATE_OLD_NS)
		measured = (3 * average + measured) / 4;
	atomic_store_explicit(&rate->bytes_per_second, measured, memory_order_relaxed);
	rate->measured_ns = now_ns;
	rate->busy_ns = 0;
	rate->bytes = 0;
}

/* Add memory to the vector: whole blocks directly; the object's partial last block by the tail. */
static bool lay_run(struct transfer *transfer, uint8_t *run, size_t len, bool is_last)
{
	const struct spw_store *store = transfer->store;
	size_t whole = spw_round_down(len, store->block_bytes);

	if ((uintptr_t)run % store->memory_align_bytes != 0 || (whole < len && !is_last))
		return false;
	if (whole > 0)
		transfer->vector[transfer->elements++] =
			(struct iovec){.iov_base = run, .iov_len = whole};
	if (whole < len)
		transfer->vector[transfer->elements++] =
			(struct iovec){.iov_base = transfer->tail, .iov_len = store->block_bytes};
	return true;
}

bool spw_store__transfer_lay(struct transfer *transfer, const struct piece *piece)
{
	const struct iovec *at = transfer->request->vector;
	uint64_t offset = piece->object_offset - transfer->request->offset_bytes;
	size_t left = piece->len_bytes;

	for (; offset >= at->iov_len; at++)
		offset -= at->iov_len;
	transfer->elements = 0;
	for (; left > 0; at++, offset = 0) {
		size_t len = SPW_MIN(at->iov_len - offset, left);

		if (len > 0 &&
		    (transfer->elements == RUNS_MAX ||
		     !lay_run(transfer, (uint8_t *)at->iov_base + offset, len, len == left)))
			return false;
		left -= len;
	}
	return true;
}

static void set_memory(struct transfer *transfer, uint32_t len_bytes, uint32_t block_bytes)
{
	struct spw_io *io = &transfer->io;
	bool one = transfer->bounce || transfer->elements == 1;

	io->len_bytes = (uint32_t)spw_round_up(len_bytes, block_bytes);
	io->buf = !one ? NULL : transfer->bounce ? transfer->bounce : transfer->vector[0].iov_base;
	io->iov = one ? NULL : transfer->vector;
	io->iov_count = one ? 0 : transfer->elements;
}

void spw_store__transfer_issue(struct transfer *transfer, enum spw_op op,
			       void (*done)(struct spw_io *io))
{
	struct spw_store *store = transfer->store;
	struct piece *piece = &store->pieces[transfer->piece];
	struct store_drive *drive = &store->drives[piece->drive];
	struct spw_io *io = &transfer->io;
	int rc;

	SPW_ASSERT(!transfer->in_flight && !transfer->posted); /* only we have it (STORE-6) */
	set_memory(transfer, piece->len_bytes, store->block_bytes);
	SPW_ASSERT(op == SPW_READ || (drive->device->claimed && !store->opts.read_only));
	io->op = op;
	io->device = piece->drive;
	io->offset_bytes = drive->base_bytes +
			   spw_store__piece_extent(store, piece).start_block * store->block_bytes;
	SPW_ASSERT(io->offset_bytes - drive->base_bytes + io->len_bytes <=
		   drive->blocks_total * store->block_bytes); /* in its own partition */
	io->placement = op == SPW_WRITE ? transfer->request->placement : PLACEMENT_OF_QUEUE;
	io->done = done;
	io->context = transfer;
	transfer->issued_ns = spw_clock_ns();
	if (store->transfers_in_flight == 0)
		store->looked_ns = transfer->issued_ns;
	transfer->watched_from_ns = store->watched_ns;
	transfer->request->in_flight++;
	store->transfers_in_flight++;
	drive->in_flight++;
	SPW_ASSERT(drive->in_flight <= store->slots_per_drive);
	drive->bounces += transfer->bounce != NULL;
	/* at most its share (STORE-4) */
	SPW_ASSERT(drive->bounces <= store->bounces_per_drive || !transfer->bounce);
	atomic_store_explicit(&drive->in_flight_now, drive->in_flight, memory_order_relaxed);
	if (drive->in_flight > atomic_load_explicit(&drive->in_flight_max, memory_order_relaxed))
		atomic_store_explicit(&drive->in_flight_max, drive->in_flight,
				      memory_order_relaxed);
	transfer->in_flight = true;
	rate_begin(&drive->dir[op].rate, transfer->issued_ns, io->len_bytes);
	if (op == SPW_READ &&
	    atomic_load_explicit(&transfer->request->cls, memory_order_relaxed) == SPW_URGENT_READ)
		store->urgent_ns = transfer->issued_ns;
	if (atomic_load_explicit(&store->count.registered_bytes, memory_order_relaxed) > 0 &&
	    !transfer->bounce &&
	    spw_engine__queue_knows(store->queue, transfer->vector[0].iov_base,
				    transfer->vector[0].iov_len))
		count_add(&store->count.transfers_registered, 1);
	rc = spw_queue_prepare(store->queue, io);
	/* The store chose address, offset and length, so they are aligned and in range. */
	SPW_ASSERT(rc == 0);
}

void spw_store__transfer_ended(struct transfer *transfer)
{
	struct spw_store *store = transfer->store;
	struct spw_io *io = &transfer->io;
	struct store_drive *drive = &store->drives[io->device];
	struct dir_stats *dir = &drive->dir[io->op];
	uint64_t bytes = io->res > 0 ? (uint64_t)io->res : 0;
	uint64_t now_ns = spw_clock_ns();

	SPW_ASSERT(transfer->in_flight && store->transfers_in_flight > 0 && drive->in_flight > 0);
	transfer->in_flight = false;
	if (!transfer->abandoned) {
		/* the request has not ended (STORE-1) */
		SPW_ASSERT(transfer->request->in_flight > 0);
		transfer->request->in_flight--;
	}
	store->transfers_in_flight--;
	drive->in_flight--;
	drive->bounces -= transfer->bounce != NULL;
	atomic_store_explicit(&drive->in_flight_now, drive->in_flight, memory_order_relaxed);
	rate_end(&dir->rate, now_ns, bytes, io->len_bytes);
	spw_histogram_add(&dir->latency, now_ns - transfer->issued_ns);
	count_add(&dir->transfers, 1);
	count_add(&dir->bytes, bytes);
}

static void sum_latencies(struct dir_stats *dir)
{
	const struct spw_histogram *latency = &dir->latency;

	for (unsigned i = 0; i < SPW_HISTOGRAM_BUCKETS; i++) {
		uint64_t value = spw_histogram_bucket_value(i) >> SPW_LATENCY_FIRST_LOG;
		unsigned range = value == 0 ? 0 : 64u - (unsigned)__builtin_clzll(value);

		if (latency->buckets[i] > 0)
			count_add(&dir->latency_counts[SPW_MIN(range, SPW_LATENCY_COUNTS - 1)],
				  latency->buckets[i]);
	}
	count_add(&dir->latency_ns_sum, latency->summary.sum);
}

void spw_store__latency_refresh(struct store_drive *drive)
{
	for (enum spw_op op = SPW_READ; op <= SPW_WRITE; op++) {
		struct dir_stats *dir = &drive->dir[op];

		atomic_store_explicit(&dir->latency_ns_p50,
				      spw_histogram_percentile(&dir->latency, 50),
				      memory_order_relaxed);
		atomic_store_explicit(&dir->latency_ns_p99,
				      spw_histogram_percentile(&dir->latency, 99),
				      memory_order_relaxed);
		if (dir->latency.summary.count == 0)
			continue;
		sum_latencies(dir);
		memset(&dir->latency, 0, sizeof(dir->latency));
	}
}
