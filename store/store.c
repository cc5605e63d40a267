/* SPDX-License-Identifier: MIT */
/* store/store.c - spw_store_open(), spw_store_close(): options, memory, order of set-up */
#include "store/open_store.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "alloc/alloc.h"
#include "engine/arena.h"
#include "drives/assemble.h"
#include "layout/superblock.h"
#include "store/alignment.h"
#include "store/checksum_pool.h"
#include "store/commit.h"
#include "store/cpus.h"
#include "store/inbox.h"
#include "store/object.h"
#include "store/partition.h"
#include "store/publish.h"
#include "store/request.h"
#include "store/restore.h"
#include "store/slots.h"
#include "store/transfer.h"
#include "store/worker.h"
#include "util/util.h"

#define STRIPE_STATIC      1u /* a stripe of earlier versions */
#define TRANSFERS_PER_SLOT 2  /* one in flight, one completed and waiting for its checksum */
/* Checksums of smaller pieces are computed at once, while the bytes are in the cache. */
#define OVERLAP_BYTES_MIN 65536u
#define COPY_MEMORY_SHARE 4 /* at most a quarter of the arena is for bounce buffers */
/*
 * Drives that complete a whole queue at once, as virtual disks and throttles do, serve gets up to
 * 6 % faster with 24 than with 16, and no faster with 32. Puts are as fast with 16, since no drive
 * waits for a checksum.
 */
#define QUEUE_DEPTH      24
#define SLOTS_PER_URGENT 4 /* one more slot for every 4, reserved for urgent reads */

void spw_store_opts_init(struct spw_store_opts *opts, size_t size)
{
	struct spw_store_opts defaults = {
		.size = sizeof(defaults),
		.queue_depth = QUEUE_DEPTH,
		.arena_bytes = 256u << 20,
		.requests_max = 4096,
		.objects_max = 65536,
		.read_deadline_ms = 30000,
		.write_deadline_ms = 30000,
		.commit_number = SPW_COMMIT_NEWEST,
	};

	spw_opts_merge(opts, size, &defaults, sizeof(defaults));
}

static int check_opts(const struct spw_store_opts *opts)
{
	if (opts->queue_depth < 1 || opts->queue_depth > SPW_QUEUE_DEPTH_MAX)
		return spw_error(-EINVAL, "queue_depth is %u: it must be 1 to %u",
				 opts->queue_depth, SPW_QUEUE_DEPTH_MAX);
	if (opts->requests_max < 1 || opts->objects_max < 1 || opts->requests_max > 1u << 24 ||
	    opts->objects_max > 1u << 28)
		return spw_error(-EINVAL,
				 "requests_max must be 1 to 2^24 and objects_max 1 to 2^28");
	if (opts->shared && (!opts->read_only || opts->partition == SPW_PARTITION_ANY))
		return spw_error(-EINVAL, "shared is for reading a given partition: set read_only "
					  "and partition, too");
	if (opts->workers > SPW_WORKERS_MAX)
		return spw_error(-EINVAL, "%u workers: there can be up to %u", opts->workers,
				 SPW_WORKERS_MAX);
	if ((unsigned)opts->stripe == STRIPE_STATIC)
		return spw_error(-EINVAL, "there is no stripe 1 any more, RAID 0 order: use "
					  "SPW_STRIPE_PULL, which places more on faster drives");
	if (opts->stripe != SPW_STRIPE_PULL)
		return spw_error(-EINVAL, "unknown stripe mode %d", (int)opts->stripe);
	return 0;
}

/* ---- Opening, part by part ---- */

/* A mark by which a child of fork(2), without I/O thread, sees that the store is its parent's. */
static int open_mark(struct spw_store *store)
{
	size_t len = (size_t)sysconf(_SC_PAGESIZE);
	void *page = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (page == MAP_FAILED)
		return -ENOMEM;
	if (madvise(page, len, MADV_WIPEONFORK)) {
		spw_log(&store->opts.log, SPW_LOG_INFO,
			"a child of fork() that uses this store by mistake will not be told: %s",
			spw_strerror(-errno));
		(void)munmap(page, len);
		return 0;
	}
	store->own = page;
	*store->own = 1;
	return 0;
}

static int open_drives(struct spw_store *store)
{
	store->drive_count = store->assembly.count;
	SPW_ASSERT(store->drive_count > 0 && store->drive_count <= SPW_DRIVES_MAX);
	store->slots_per_drive =
		store->opts.queue_depth + store->opts.queue_depth / SLOTS_PER_URGENT;
	store->block_bytes = store->assembly.superblocks[0].block_bytes;
	store->chunk_bytes = store->assembly.superblocks[0].chunk_bytes;
	store->drives = calloc(store->drive_count, sizeof(*store->drives));
	if (!store->drives)
		return -ENOMEM;
	for (uint32_t i = 0; i < store->drive_count; i++) {
		struct store_drive *drive = &store->drives[i];
		const struct spw_superblock *sb = &store->assembly.superblocks[i];

		drive->device = store->assembly.devices[i];
		drive->base_bytes = sb->data_offset_bytes + store->partition * sb->partition_bytes;
		drive->blocks_total = spw_layout__partition_capacity(sb) / store->block_bytes;
		store->blocks_total += drive->blocks_total;
	}
	atomic_init(&store->blocks_available, (int64_t)store->blocks_total);
	return 0;
}

/*
 * One piece for each object's last chunk, and four per chunk, because fragmentation splits chunks.
 */
static int open_pieces(struct spw_store *store)
{
	uint64_t chunks = store->blocks_total * store->block_bytes / store->chunk_bytes;
	uint64_t count = store->opts.objects_max + 4 * chunks + 1024;

	count = SPW_MIN(count, SPW_ALLOC_EXTENTS_MAX);
	if (count < chunks)
		spw_log(&store->opts.log, SPW_LOG_WARNING,
			"of this store's space only %llu chunks of %llu bytes can be used: format "
			"it with a larger chunk",
			(unsigned long long)count, (unsigned long long)store->chunk_bytes);
	store->pieces_max = (uint32_t)count;
	store->pieces_bytes = count * sizeof(struct piece);
	store->pieces = mmap(NULL, store->pieces_bytes, PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (store->pieces == MAP_FAILED) {
		store->pieces = NULL;
		return -ENOMEM;
	}
	store->piece_free = PIECE_NONE;
	for (uint32_t i = 0; i < store->drive_count; i++) {
		int rc = spw_alloc__open(store->drives[i].blocks_total, count,
					 &store->drives[i].alloc);

		if (rc)
			return rc;
	}
	return 0;
}

static int open_slots(struct spw_store *store)
{
	const struct spw_store_opts *opts = &store->opts;

	store->requests = calloc(opts->requests_max, sizeof(*store->requests));
	store->objects = calloc(opts->objects_max, sizeof(*store->objects));
	store->drive_reads = calloc((size_t)opts->requests_max * store->drive_count,
				    sizeof(*store->drive_reads));
	if (!store->requests || !store->objects || !store->drive_reads ||
	    spw_store__slots_open(&store->request_slots, opts->requests_max) ||
	    spw_store__slots_open(&store->object_slots, opts->objects_max))
		return -ENOMEM;
	for (uint32_t i = 0; i < opts->requests_max; i++) {
		struct spw_request *request = &store->requests[i];

		request->store = store;
		request->drive_reads = &store->drive_reads[(size_t)i * store->drive_count];
		for (uint32_t drive = 0; drive < store->drive_count; drive++)
			request->drive_reads[drive].request = request;
	}
	/* Generations begin at 1, so that no object's id is 0. */
	for (uint32_t i = 0; i < opts->objects_max; i++)
		atomic_init(&store->objects[i].state, UINT64_C(1) << 32);
	return 0;
}

/* Open the arena; allocate tail blocks for the transfers, and bounce buffers of a chunk each. */
static int open_memory(struct spw_store *store)
{
	uint32_t slots = store->drive_count * store->slots_per_drive;
	size_t tails_bytes = (size_t)TRANSFERS_PER_SLOT * slots * store->block_bytes;
	uint64_t wanted = store->opts.arena_bytes / COPY_MEMORY_SHARE / store->chunk_bytes;
	struct spw_arena_opts arena_opts;
	uint64_t least_bytes;
	size_t arena_bytes;
	uint8_t *base;
	void *memory;
	int rc;

	wanted = SPW_MIN(wanted, slots);
	/* At least two per drive, or drives would wait for each other. */
	wanted = SPW_MAX(wanted, 2 * store->drive_count);
	least_bytes = wanted * store->chunk_bytes + tails_bytes + SPW_ARENA_GRANULE_BYTES;
	spw_arena_opts_init(&arena_opts, sizeof(arena_opts));
	arena_opts.bytes = SPW_MAX(store->opts.arena_bytes, least_bytes);
	arena_opts.numa_node = store->numa_node;
	arena_opts.no_hugetlb = store->opts.no_hugetlb;
	arena_opts.log = store->opts.log;
	rc = spw_arena_open(&arena_opts, &store->arena);
	if (rc)
		return rc;
	rc = spw_arena_alloc(store->arena, tails_bytes, &memory);
	if (rc)
		return rc;
	store->tails = memory;
	rc = spw_arena_alloc(store->arena, wanted * store->chunk_bytes, &memory);
	if (rc)
		return rc;
	base = spw_arena_memory(store->arena, &arena_bytes);
	/* These two were the first allocations. */
	store->alloc_max_bytes =
		(uint64_t)(base + arena_bytes - (uint8_t *)memory) - wanted * store->chunk_bytes;
	store->bounces = calloc(wanted, sizeof(*store->bounces));
	if (!store->bounces)
		return -ENOMEM;
	/* limit bounce buffers per drive (STORE-4) */
	store->bounces_total = (uint32_t)wanted;
	store->bounces_per_drive = (uint32_t)wanted / store->drive_count;
	SPW_ASSERT(store->bounces_per_drive >= 2);
	/* The lowest address on top, so that memory that is not needed is never touched. */
	for (uint64_t i = wanted; i > 0; i--)
		store->bounces[store->bounces_free++] =
			(uint8_t *)memory + (i - 1) * store->chunk_bytes;
	return 0;
}

static int open_transfers(struct spw_store *store)
{
	uint32_t count = TRANSFERS_PER_SLOT * store->drive_count * store->slots_per_drive;

	store->transfers = calloc(count, sizeof(*store->transfers));
	store->flush_ios = calloc(store->drive_count, sizeof(*store->flush_ios));
	if (!store->transfers || !store->flush_ios)
		return -ENOMEM;
	store->transfers_total = count;
	store->overlap_bytes_min = OVERLAP_BYTES_MIN;
	for (uint32_t i = count; i > 0; i--) {
		struct transfer *transfer = &store->transfers[i - 1];

		transfer->store = store;
		transfer->tail = store->tails + (size_t)(i - 1) * store->block_bytes;
		transfer->next = store->transfer_free;
		store->transfer_free = transfer;
	}
	return spw_store__pool_open(store, count);
}

static int open_queue(struct spw_store *store)
{
	struct spw_queue_opts opts;

	spw_queue_opts_init(&opts, sizeof(opts));
	opts.backend = store->opts.backend;
	opts.depth = SPW_MIN(store->slots_per_drive, SPW_QUEUE_DEPTH_MAX);
	opts.arena = store->arena;
	opts.log = store->opts.log;
	opts.tune = store->opts.tune;
	opts.null_bytes_per_second = store->opts.null_bytes_per_second;
	opts.placement = PLACEMENT_LASTING;
	return spw_queue_open(store->assembly.devices, store->drive_count, &opts, &store->queue);
}

/* Build the description; the store's part first, because the status page may truncate the text. */
static int describe(struct spw_store *store)
{
	char node[32] = "", workers[32] = "";

	if (store->numa_node >= 0 && !store->opts.inline_mode)
		(void)snprintf(node, sizeof(node), "NUMA node %d; ", store->numa_node);
	if (store->pool->count > 0)
		(void)snprintf(workers, sizeof(workers), "%u workers; ", store->pool->count + 1);
	(void)snprintf(store->description, sizeof(store->description), "%s%s%s", node, workers,
		       spw_queue_description(store->queue));
	return 0;
}

int spw_store_open(const char *const paths[], unsigned count, const struct spw_store_opts *opts,
		   struct spw_store **out)
{
	int (*const parts[])(struct spw_store *) = {
		spw_store__partition_take,
		open_mark,
		open_drives,
		open_pieces,
		open_slots,
		spw_store__restore,
		spw_store__align,
		spw_store__settle,
		open_memory,
		open_transfers,
		open_queue,
		spw_store__pool_start,
		describe,
		spw_store__publish_open,
		spw_store__start,
	};
	struct spw_store *store;
	int rc;

	*out = NULL;
	store = calloc(1, sizeof(*store));
	if (!store)
		return spw_error(-ENOMEM, "out of memory");
	atomic_init(&store->eventfd, -1);
	store->page_fd = -1;
	spw_store_opts_init(&store->opts, sizeof(store->opts));
	if (opts)
		spw_opts_merge(&store->opts, sizeof(store->opts), opts, opts->size);
	rc = check_opts(&store->opts);
	if (!rc)
		rc = spw_drives__assemble(paths, count, store->opts.shared, &store->opts.log,
					  &store->assembly);
	for (size_t i = 0; !rc && i < SPW_ARRAY_LEN(parts); i++)
		rc = parts[i](store);
	if (rc == -ENOMEM)
		(void)spw_error(rc, "out of memory while opening the store");
	if (rc) {
		spw_store_close(store);
		return rc;
	}
	*out = store;
	return 0;
}

void spw_store_close(struct spw_store *store)
{
	if (!store || spw_store__owned(store))
		return;
	spw_store__stop(store);
	spw_store__publish_close(store);
	spw_store__pool_close(store);
	spw_store__commits_close(store);
	free(store->flush_ios);
	free(store->transfers);
	free(store->bounces);
	spw_arena_close(store->arena);
	for (uint32_t i = 0; store->drives && i < store->drive_count; i++)
		spw_alloc__close(store->drives[i].alloc);
	if (store->pieces)
		(void)munmap(store->pieces, store->pieces_bytes);
	spw_store__slots_close(&store->request_slots);
	spw_store__slots_close(&store->object_slots);
	free(store->drive_reads);
	free(store->objects);
	free(store->requests);
	free(store->drives);
	spw_drives__assembly_close(&store->assembly);
	if (store->own)
		(void)munmap(store->own, (size_t)sysconf(_SC_PAGESIZE));
	if (atomic_load(&store->eventfd) >= 0)
		(void)close(atomic_load(&store->eventfd));
	free(store);
}

/* ---- Small things ---- */

int spw_store_alloc(struct spw_store *store, size_t len, void **memory)
{
	int rc = spw_store__owned(store);

	*memory = NULL;
	return rc ? rc : spw_arena_alloc(store->arena, len, memory);
}

int spw_store_arena(struct spw_store *store, void **memory, size_t *len)
{
	int rc = spw_store__owned(store);

	*memory = NULL;
	*len = 0;
	if (rc)
		return rc;
	spw_engine__arena_stay(store->arena);
	*memory = spw_arena_memory(store->arena, len);
	return 0;
}

uint64_t spw_store_alloc_max(const struct spw_store *store)
{
	return spw_store__owned(store) == 0 ? store->alloc_max_bytes : 0;
}

void spw_store_release(struct spw_store *store, void *memory)
{
	spw_arena_free(store->arena, memory);
}

uint64_t spw_store_chunk_bytes(const struct spw_store *store)
{
	return store->chunk_bytes;
}
