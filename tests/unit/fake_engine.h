/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/fake_engine.h - the engine's interface over drives in memory, one thread, with faults
 * on demand; and assembling a store of such drives, which have no path that could be probed
 *
 * Included once by a test that links store/ without engine/. Ios complete in the order that
 * fake_pick chooses (default: oldest first), when the store reaps. A fault is planned for a drive
 * as "the Nth write from now". The store's clock is theirs, too (wrap: spw_clock_ns): nothing takes
 * time but a wait in which nothing ends. However slow the machine is, no drive misses a deadline
 * but one that hangs.
 */
#ifndef TESTS_UNIT_FAKE_ENGINE_H
#define TESTS_UNIT_FAKE_ENGINE_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <spillway/engine.h>

#include "layout/layout.h"
#include "drives/assemble.h"
#include "util/util.h"

#define FAKE_DRIVES_MAX 8
#define FAKE_IOS_MAX    4096

struct spw_device {
	char path[32];
	struct spw_geometry geometry;
	struct spw_superblock superblock;
	uint8_t *bytes;
	/* faults: count down to the failing io, 0 is never; sticky: and every one after it */
	unsigned fail_write_in, fail_read_in, flip_read_in;
	int fail_error;
	bool sticky;
	unsigned writes, reads;
	int flush_error;
};

struct spw_arena {
	unsigned allocations;
};

struct spw_queue {
	struct spw_device *const *devices;
	struct spw_io *ios[FAKE_IOS_MAX];
	unsigned count;
};

static struct spw_device fake_drives[FAKE_DRIVES_MAX];
static unsigned (*fake_pick)(unsigned count);
static unsigned fake_hold;       /* this many ios are not completed */
static int fake_hung_drive = -1; /* its ios are not completed either */
static unsigned fake_glances;    /* reaps that did not wait */
static uint64_t fake_now_ns;

/* Make drive @index of a store of @count. */
static inline void fake_drive_make(unsigned index, unsigned count, uint64_t bytes,
				   uint64_t chunk_bytes)
{
	struct spw_device *drive = &fake_drives[index];
	struct spw_superblock sb = {
		.sequence = 1,
		.drive_index = index,
		.drive_count = count,
		.block_bytes = SPW_LAYOUT_BLOCK_BYTES,
		.logical_block_bytes = 512,
		.chunk_bytes = chunk_bytes,
		.partition_count = 1,
		.complete = true,
		.created_unix_s = 1,
	};

	memset(drive, 0, sizeof(*drive));
	(void)snprintf(drive->path, sizeof(drive->path), "fake%u", index);
	drive->geometry = (struct spw_geometry){.kind = SPW_DEVICE_BLOCK,
						.size_bytes = bytes,
						.logical_block_bytes = 512,
						.physical_block_bytes = 4096,
						.memory_align_bytes = 512,
						.transfer_bytes_max = 1 << 20,
						.numa_node = -1};
	drive->bytes = calloc(1, bytes);
	memset(sb.store_uuid, 0xab, sizeof(sb.store_uuid));
	for (unsigned i = 0; i < count; i++)
		memset(sb.drive_uuids[i], (int)i + 1, sizeof(sb.drive_uuids[i]));
	if (!drive->bytes || spw_layout_plan(&sb, bytes))
		abort();
	drive->superblock = sb;
}

static inline void fake_drive_free(unsigned index)
{
	free(fake_drives[index].bytes);
	fake_drives[index].bytes = NULL;
}

/* ---- The clock ---- */

uint64_t __wrap_spw_clock_ns(void);
uint64_t __wrap_spw_clock_ns(void)
{
	return fake_now_ns;
}

/* ---- Devices ---- */

const char *spw_device_path(const struct spw_device *device)
{
	return device->path;
}

const struct spw_geometry *spw_device_geometry(const struct spw_device *device)
{
	return &device->geometry;
}

int spw_device_discard(const struct spw_device *device, uint64_t offset_bytes, uint64_t len_bytes)
{
	memset(device->bytes + offset_bytes, 0xdd, len_bytes);
	return 0;
}

/* All drives that were made; @paths are only counted. */
int spw_assemble(const char *const paths[], unsigned count, bool read_only,
		 const struct spw_log *log, struct spw_assembly *out)
{
	(void)paths, (void)read_only, (void)log;
	out->count = count;
	out->devices = calloc(count, sizeof(*out->devices));
	out->superblocks = calloc(count, sizeof(*out->superblocks));
	SPW_ASSERT(out->devices && out->superblocks);
	for (unsigned i = 0; i < count; i++) {
		out->devices[i] = &fake_drives[i];
		out->superblocks[i] = fake_drives[i].superblock;
	}
	return 0;
}

void spw_assembly_close(struct spw_assembly *assembly)
{
	free(assembly->devices);
	free(assembly->superblocks);
}

int spw_assembly_lock(const struct spw_assembly *assembly, unsigned partition)
{
	(void)assembly, (void)partition;
	return 0;
}

int spw_assembly_claim(struct spw_assembly *assembly, unsigned partition, const struct spw_log *log)
{
	(void)assembly, (void)partition, (void)log;
	return 0;
}

bool spw_assembly_opened(const struct spw_assembly *assembly)
{
	(void)assembly;
	return false;
}

/* ---- DMA memory ---- */

void spw_arena_opts_init(struct spw_arena_opts *opts, size_t size)
{
	memset(opts, 0, size);
	opts->size = size;
}

int spw_arena_open(const struct spw_arena_opts *opts, struct spw_arena **arena)
{
	(void)opts;
	*arena = calloc(1, sizeof(**arena));
	return *arena ? 0 : -ENOMEM;
}

static struct {
	struct spw_arena *arena;
	void *memory;
} fake_memory[64];

int spw_arena_alloc(struct spw_arena *arena, size_t len, void **memory)
{
	for (unsigned i = 0; i < SPW_ARRAY_LEN(fake_memory); i++)
		if (!fake_memory[i].memory) {
			*memory = aligned_alloc(4096, spw_round_up(len, 4096));
			fake_memory[i].arena = arena;
			fake_memory[i].memory = *memory;
			return *memory ? 0 : -ENOBUFS;
		}
	return -ENOBUFS;
}

void spw_arena_free(struct spw_arena *arena, void *memory)
{
	(void)arena;
	for (unsigned i = 0; i < SPW_ARRAY_LEN(fake_memory); i++)
		if (fake_memory[i].memory == memory)
			fake_memory[i].memory = NULL;
	free(memory);
}

void spw_arena_close(struct spw_arena *arena)
{
	for (unsigned i = 0; i < SPW_ARRAY_LEN(fake_memory); i++)
		if (fake_memory[i].memory && fake_memory[i].arena == arena)
			spw_arena_free(arena, fake_memory[i].memory);
	free(arena);
}

void *spw_arena_memory(const struct spw_arena *arena, size_t *len)
{
	(void)arena;
	*len = 0;
	return NULL;
}

bool spw_arena_contains(const struct spw_arena *arena, const void *memory, size_t len)
{
	(void)arena, (void)memory, (void)len;
	return false;
}

void spw_arena_stats(struct spw_arena *arena, struct spw_arena_stats *stats, size_t size)
{
	(void)arena;
	memset(stats, 0, size);
}

/* ---- Queues ---- */

void spw_queue_opts_init(struct spw_queue_opts *opts, size_t size)
{
	memset(opts, 0, size);
	opts->size = size;
}

int spw_queue_open(struct spw_device *const devices[], unsigned count,
		   const struct spw_queue_opts *opts, struct spw_queue **queue)
{
	(void)count, (void)opts;
	*queue = calloc(1, sizeof(**queue));
	if (!*queue)
		return -ENOMEM;
	(*queue)->devices = devices;
	return 0;
}

void spw_queue_close(struct spw_queue *queue)
{
	SPW_ASSERT(queue->count == 0);
	free(queue);
}

const char *spw_queue_description(const struct spw_queue *queue)
{
	(void)queue;
	return "fake";
}

int spw_queue_prepare(struct spw_queue *queue, struct spw_io *io)
{
	const struct spw_device *device = queue->devices[io->device];
	uint64_t in_vector = 0;

	if (io->op == SPW_FLUSH) {
		queue->ios[queue->count++] = io;
		return 0;
	}
	SPW_ASSERT(io->len_bytes > 0 && io->len_bytes % device->geometry.logical_block_bytes == 0);
	SPW_ASSERT(io->offset_bytes % device->geometry.logical_block_bytes == 0);
	SPW_ASSERT(io->offset_bytes + io->len_bytes <= device->geometry.size_bytes);
	SPW_ASSERT((uintptr_t)io->buf % device->geometry.memory_align_bytes == 0);
	for (unsigned i = 0; !io->buf && i < io->iov_count; i++) {
		SPW_ASSERT((uintptr_t)io->iov[i].iov_base % device->geometry.memory_align_bytes ==
			   0);
		in_vector += io->iov[i].iov_len;
	}
	SPW_ASSERT(io->buf || in_vector == io->len_bytes);
	SPW_ASSERT(queue->count < FAKE_IOS_MAX);
	queue->ios[queue->count++] = io;
	return 0;
}

static inline bool fake_due(unsigned *countdown, bool sticky)
{
	if (*countdown == 0)
		return false;
	if (*countdown > 1) {
		(*countdown)--;
		return false;
	}
	if (!sticky)
		*countdown = 0;
	return true;
}

static inline int fake_transfer(struct spw_device *device, struct spw_io *io)
{
	struct iovec one = {.iov_base = io->buf, .iov_len = io->len_bytes};
	const struct iovec *vector = io->buf ? &one : io->iov;
	uint8_t *at = device->bytes + io->offset_bytes;

	if (io->op == SPW_FLUSH)
		return device->flush_error;
	if (io->op == SPW_WRITE ? fake_due(&device->fail_write_in, device->sticky)
				: fake_due(&device->fail_read_in, device->sticky))
		return device->fail_error;
	*(io->op == SPW_WRITE ? &device->writes : &device->reads) += 1;
	for (unsigned i = 0; i < (io->buf ? 1 : io->iov_count); at += vector[i].iov_len, i++)
		if (io->op == SPW_WRITE)
			memcpy(at, vector[i].iov_base, vector[i].iov_len);
		else
			memcpy(vector[i].iov_base, at, vector[i].iov_len);
	if (io->op == SPW_READ && fake_due(&device->flip_read_in, device->sticky))
		*(uint8_t *)vector[0].iov_base ^= 1;
	return (int)io->len_bytes;
}

int spw_queue_submit(struct spw_queue *queue)
{
	(void)queue;
	return 0;
}

/*
 * One io per call: everything between two completions is then a point of its own to cancel, free or
 * close at.
 */
int spw_queue_reap(struct spw_queue *queue, unsigned min, int64_t timeout_ns)
{
	struct spw_io *io;
	unsigned pick;

	fake_glances += min == 0 || timeout_ns == 0;
	pick = fake_pick ? fake_pick(queue->count) : 0;
	while (pick < queue->count && (int)queue->ios[pick]->device == fake_hung_drive)
		pick++;
	if (queue->count <= fake_hold || pick >= queue->count) {
		SPW_ASSERT(min == 0 || queue->count == 0 || fake_hung_drive >= 0);
		if (min > 0 && timeout_ns > 0)
			fake_now_ns += (uint64_t)timeout_ns;
		return 0;
	}
	io = queue->ios[pick];
	queue->count--;
	memmove(&queue->ios[pick], &queue->ios[pick + 1],
		(queue->count - pick) * sizeof(queue->ios[0]));
	io->res = fake_transfer(queue->devices[io->device], io);
	io->done(io);
	return 1;
}

/* A drive that hangs does not give back what it has. */
int spw_queue_cancel(struct spw_queue *queue, struct spw_io *io)
{
	(void)queue, (void)io;
	return 0;
}

void spw_queue_wake(struct spw_queue *queue)
{
	(void)queue;
}

#endif
