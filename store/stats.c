/* SPDX-License-Identifier: MIT */
/* store/stats.c - the counters of a store and of its drives */
#include "store/stats.h"

#include <errno.h>
#include <string.h>

#include "store/checksum_pool.h"
#include "store/open_store.h"
#include "store/pressure.h"
#include "util/util.h"

const char *spw_store_description(const struct spw_store *store)
{
	return store->description;
}

int spw_store__drive_exists(const struct spw_store *store, unsigned drive)
{
	return drive < store->drive_count
		       ? 0
		       : spw_error(-EINVAL, "the store has %u drives, numbered from 0",
				   store->drive_count);
}

static uint64_t now(const _Atomic uint64_t *counter)
{
	return atomic_load_explicit(counter, memory_order_relaxed);
}

static void sum_drives(const struct spw_store *store, struct spw_store_stats *sum)
{
	for (uint32_t i = 0; i < store->drive_count; i++) {
		const struct store_drive *drive = &store->drives[i];

		sum->bytes_written += now(&drive->dir[SPW_WRITE].bytes);
		sum->bytes_read += now(&drive->dir[SPW_READ].bytes);
		sum->write_errors += now(&drive->dir[SPW_WRITE].errors);
		sum->read_errors += now(&drive->dir[SPW_READ].errors);
		sum->checksum_errors += now(&drive->checksum_errors);
		sum->timeouts += now(&drive->timeouts);
	}
}

static uint64_t bytes_helped(const struct spw_checksum_pool *pool)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < pool->count; i++)
		bytes += now(&pool->each[i].bytes);
	return bytes;
}

void spw_store_stats(struct spw_store *store, struct spw_store_stats *stats, size_t size)
{
	const struct store_counters *count = &store->count;
	int64_t available = atomic_load_explicit(&store->blocks_available, memory_order_relaxed);
	struct spw_store_stats all = {
		.size = size < sizeof(all) ? size : sizeof(all),
		.drives = store->drive_count,
		.drives_retired = store->drives_retired,
		.partition = store->partition,
		.requests = spw_store__slots_taken(&store->request_slots),
		.objects = atomic_load_explicit(&store->objects_alive, memory_order_relaxed),
		.capacity_bytes = store->blocks_total * store->block_bytes,
		.used_bytes =
			(uint64_t)((int64_t)store->blocks_total - available) * store->block_bytes,
		.used_bytes_max = now(&store->blocks_used_max) * store->block_bytes,
		.puts = now(&count->puts),
		.gets = now(&count->gets),
		.frees = now(&count->frees),
		.bytes_put = now(&count->bytes_put),
		.bytes_got = now(&count->bytes_got),
		.bytes_from_memory = now(&count->bytes_from_memory),
		.bytes_copied = now(&count->bytes_copied),
		.copies_unaligned_address = now(&count->copies_unaligned_address),
		.copies_unaligned_length = now(&count->copies_unaligned_length),
		.copies_partial_chunk = now(&count->copies_partial_chunk),
		.waits_for_copy_memory = now(&count->waits_for_copy_memory),
		.chunks_split = now(&count->chunks_split),
		.chunks_moved = now(&count->chunks_moved),
		.cancelled = now(&count->cancelled),
		.bypasses = now(&count->bypasses),
		.bytes_trimmed = now(&count->bytes_trimmed),
		.registered_bytes = now(&count->registered_bytes),
		.registrations_refused = now(&count->registrations_refused),
		.transfers_registered = now(&count->transfers_registered),
		.chunks_single = now(&count->chunks_single),
		.reads_switched = now(&count->reads_switched),
		.drives_missing = store->assembly.missing,
		.workers = store->pool->count + 1,
		.bytes_helped = bytes_helped(store->pool),
	};

	sum_drives(store, &all);
	memcpy(stats, &all, all.size);
}

void spw_store_traffic(struct spw_store *store, struct spw_store_traffic *traffic)
{
	*traffic = (struct spw_store_traffic){
		.bytes_put = now(&store->count.bytes_put),
		.bytes_got = now(&store->count.bytes_got),
		.bytes_in_flight = spw_store__pressure_all(store),
	};
}

static struct spw_latencies latencies_of(const struct dir_stats *dir)
{
	struct spw_latencies latencies = {.sum_ns = now(&dir->latency_ns_sum)};

	for (unsigned i = 0; i < SPW_LATENCY_COUNTS; i++)
		latencies.counts[i] = now(&dir->latency_counts[i]);
	return latencies;
}

void spw_store_publish_steps(struct spw_store *store, const struct spw_cache_stats *steps)
{
	uint64_t words[SPW_ARRAY_LEN(store->steps)] = {0};

	if (steps->size > sizeof(steps->size))
		memcpy(words, (const char *)steps + sizeof(steps->size),
		       SPW_MIN(steps->size - sizeof(steps->size), sizeof(words)));
	for (size_t i = 0; i < SPW_ARRAY_LEN(words); i++)
		atomic_store_explicit(&store->steps[i], words[i], memory_order_relaxed);
}

void spw_store__published_steps(const struct spw_store *store, struct spw_cache_stats *steps)
{
	uint64_t words[SPW_ARRAY_LEN(store->steps)] = {0};

	for (size_t i = 0; i < SPW_ARRAY_LEN(words); i++)
		words[i] = now(&store->steps[i]);
	steps->size = sizeof(*steps);
	memcpy((char *)steps + sizeof(steps->size), words, sizeof(words));
}

int spw_store_drive_stats(struct spw_store *store, unsigned index, struct spw_drive_stats *stats,
			  size_t size)
{
	const struct store_drive *drive;
	const struct dir_stats *reads, *writes;
	struct spw_drive_stats all = {.size = size < sizeof(all) ? size : sizeof(all)};

	if (spw_store__drive_exists(store, index))
		return -EINVAL;
	drive = &store->drives[index];
	reads = &drive->dir[SPW_READ];
	writes = &drive->dir[SPW_WRITE];
	(void)strncat(all.path, spw_device_path(drive->device), sizeof(all.path) - 1);
	all.retired = drive->retired;
	all.capacity_bytes = drive->blocks_total * store->block_bytes;
	all.used_bytes = now(&drive->blocks_used) * store->block_bytes;
	all.bytes_written = now(&writes->bytes);
	all.bytes_read = now(&reads->bytes);
	all.writes = now(&writes->transfers);
	all.reads = now(&reads->transfers);
	all.write_errors = now(&writes->errors);
	all.read_errors = now(&reads->errors);
	all.checksum_errors = now(&drive->checksum_errors);
	all.timeouts = now(&drive->timeouts);
	all.writes_no_space = now(&drive->writes_no_space);
	all.full = atomic_load_explicit(&drive->retired, memory_order_relaxed) == -ENOSPC;
	all.read_latency_ns_p50 = now(&reads->latency_ns_p50);
	all.read_latency_ns_p99 = now(&reads->latency_ns_p99);
	all.write_latency_ns_p50 = now(&writes->latency_ns_p50);
	all.write_latency_ns_p99 = now(&writes->latency_ns_p99);
	all.in_flight = atomic_load_explicit(&drive->in_flight_now, memory_order_relaxed);
	all.in_flight_max = atomic_load_explicit(&drive->in_flight_max, memory_order_relaxed);
	all.depth = store->slots_per_drive;
	all.write_bytes_per_second = now(&writes->rate.bytes_per_second);
	all.read_bytes_per_second = now(&reads->rate.bytes_per_second);
	all.read_latencies = latencies_of(reads);
	all.write_latencies = latencies_of(writes);
	memcpy(stats, &all, all.size);
	return 0;
}
