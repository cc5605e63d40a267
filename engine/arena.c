/* SPDX-License-Identifier: MIT */
/*
 * engine/arena.c - spw_arena_open(): DMA memory on huge pages, allocated in granules, first fit
 *
 * Invariants, cited by asserts and tests
 *   ARENA-1  A granule's bit in used is set if and only if the granule belongs to an allocation, or
 *            lies beyond the arena's end.
 *   ARENA-2  run_lengths is non-zero at the first granule of each allocation and nowhere else.
 *   ARENA-3  No granule below lowest_free is free.
 *   ARENA-4  bytes_used is the length of all allocations, in whole granules.
 *   ARENA-5  A page of an allocation is not returned to the system, nor any once the arena stays.
 */
#include "engine/arena.h"

#include <errno.h>
#include <linux/mman.h>
#include <limits.h>
#include <numaif.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/sanitize.h"
#include "util/util.h"

#define GRANULES_MAX (1u << 30) /* 64 TiB */
#define NODES_MAX    1024u      /* the largest CONFIG_NODES_SHIFT of Linux */

/* Missing in older headers. */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

void spw_arena_opts_init(struct spw_arena_opts *opts, size_t size)
{
	struct spw_arena_opts defaults = {
		.size = sizeof(defaults), .bytes = 256u << 20, .numa_node = -1};

	spw_opts_merge(opts, size, &defaults, sizeof(defaults));
}

static char *map(uint64_t len_bytes, int flags)
{
	void *base = mmap(NULL, len_bytes, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);

	return base == MAP_FAILED ? NULL : base;
}

/* Map one huge page too many, and unmap what lies before and after the aligned range. */
static char *map_aligned(uint64_t len_bytes)
{
	char *raw = map(len_bytes + SPW_HUGE_PAGE_BYTES, MAP_NORESERVE);
	uint64_t before;

	if (!raw)
		return NULL;
	before = spw_round_up((uintptr_t)raw, SPW_HUGE_PAGE_BYTES) - (uintptr_t)raw;
	if (before)
		(void)munmap(raw, before);
	if (before < SPW_HUGE_PAGE_BYTES)
		(void)munmap(raw + before + len_bytes, SPW_HUGE_PAGE_BYTES - before);
	return raw + before;
}

static bool transparent_pages_are_on(void)
{
	char text[64];

	return spw_read_line("/sys/kernel/mm/transparent_hugepage/enabled", text, sizeof(text)) &&
	       !strstr(text, "[never]");
}

/* Preferred, not strict: memory on another node is slow, but without memory the step would fail. */
static void prefer_node(char *base, uint64_t len_bytes, const struct spw_arena_opts *opts)
{
	unsigned long nodes[NODES_MAX / LONG_BIT] = {0};
	unsigned node = (unsigned)opts->numa_node;

	if (opts->numa_node < 0)
		return;
	if (node < NODES_MAX)
		nodes[node / LONG_BIT] = 1ul << node % LONG_BIT;
	if (node >= NODES_MAX || mbind(base, len_bytes, MPOL_PREFERRED, nodes, NODES_MAX + 1, 0))
		spw_log(&opts->log, SPW_LOG_WARNING,
			"DMA memory: NUMA node %u cannot be preferred (%s); memory comes from any",
			node, node < NODES_MAX ? spw_strerror(errno) : "there is no such node");
}

/*
 * Populate huge pages at once: if the cgroup may not use the reserved pages, the first access would
 * raise SIGBUS. Return: the memory; NULL, with errno.
 */
static char *map_huge(uint64_t len_bytes, const struct spw_arena_opts *opts)
{
	char *base = map(len_bytes, MAP_HUGETLB | MAP_HUGE_2MB);
	int error;

	if (!base)
		return NULL;
	prefer_node(base, len_bytes, opts);
	/* EINVAL: Linux before 5.14 does not know MADV_POPULATE_WRITE. */
	if (madvise(base, len_bytes, MADV_POPULATE_WRITE) == 0 || errno == EINVAL)
		return base;
	error = errno;
	(void)munmap(base, len_bytes);
	errno = error;
	return NULL;
}

static int map_pages(struct spw_arena *arena, const struct spw_arena_opts *opts)
{
	char size[32];
	int error = 0;

	(void)spw_size_format(arena->len_bytes, size, sizeof(size));
	arena->pages = SPW_PAGES_HUGETLB;
	if (!opts->no_hugetlb) {
		arena->base = map_huge(arena->len_bytes, opts);
		if (arena->base) {
			spw_log(&opts->log, SPW_LOG_INFO, "DMA memory: %s of huge pages", size);
			return 0;
		}
		error = errno;
	}
	arena->base = map_aligned(arena->len_bytes);
	if (!arena->base)
		return spw_error_errno(-errno, "DMA memory: %s cannot be had", size);
	prefer_node(arena->base, arena->len_bytes, opts);
	arena->pages = SPW_PAGES_TRANSPARENT;
	if (transparent_pages_are_on() &&
	    madvise(arena->base, arena->len_bytes, MADV_HUGEPAGE) == 0) {
		if (error)
			spw_log(&opts->log, SPW_LOG_INFO,
				"DMA memory: no huge pages for %s (%s); using transparent ones",
				size,
				error == EFAULT
					? "the cgroup may not have them, see hugetlb.2MB.max"
					: "see vm.nr_hugepages");
		else
			spw_log(&opts->log, SPW_LOG_INFO,
				"DMA memory: %s of transparent huge pages", size);
		return 0;
	}
	arena->pages = SPW_PAGES_PLAIN;
	spw_log(&opts->log, SPW_LOG_WARNING,
		"DMA memory: neither huge pages (see vm.nr_hugepages) nor transparent ones for %s; "
		"using plain pages, which cost more CPU time",
		size);
	return 0;
}

static int make_map_of_granules(struct spw_arena *arena)
{
	uint32_t words = (arena->granules + 63) / 64;

	arena->used = calloc(words, sizeof(*arena->used));
	arena->run_lengths = calloc(arena->granules, sizeof(*arena->run_lengths));
	if (!arena->used || !arena->run_lengths)
		return spw_error(-ENOMEM, "DMA memory: no memory for the map of %u granules",
				 arena->granules);
	for (uint32_t g = arena->granules; g < words * 64; g++)
		arena->used[g / 64] |= UINT64_C(1) << g % 64;
	return 0;
}

int spw_arena_open(const struct spw_arena_opts *user_opts, struct spw_arena **out)
{
	struct spw_arena_opts opts = {0};
	struct spw_arena *arena;
	int ret;

	*out = NULL;
	spw_arena_opts_init(&opts, sizeof(opts));
	if (user_opts)
		spw_opts_merge(&opts, sizeof(opts), user_opts, user_opts->size);
	if (opts.bytes == 0 || opts.bytes > (uint64_t)GRANULES_MAX * SPW_ARENA_GRANULE_BYTES)
		return spw_error(-EINVAL, "DMA memory: %llu bytes is not a size it can have",
				 (unsigned long long)opts.bytes);
	arena = calloc(1, sizeof(*arena));
	if (!arena)
		return spw_error(-ENOMEM, "DMA memory: no memory for the arena");
	(void)pthread_mutex_init(&arena->lock, NULL);
	arena->len_bytes = spw_round_up(opts.bytes, SPW_HUGE_PAGE_BYTES);
	arena->granules = (uint32_t)(arena->len_bytes / SPW_ARENA_GRANULE_BYTES);
	ret = make_map_of_granules(arena);
	if (ret)
		goto fail;
	ret = map_pages(arena, &opts);
	if (ret)
		goto fail;
	/* Drives write to these pages, so children of fork(2) must not share or copy them. */
	(void)madvise(arena->base, arena->len_bytes, MADV_DONTFORK);
	SPW_POISON(arena->base, arena->len_bytes);
	*out = arena;
	return 0;
fail:
	spw_arena_close(arena);
	return ret;
}

void spw_arena_close(struct spw_arena *arena)
{
	if (!arena)
		return;
	if (arena->base) {
		SPW_UNPOISON(arena->base, arena->len_bytes);
		(void)munmap(arena->base, arena->len_bytes);
	}
	(void)pthread_mutex_destroy(&arena->lock);
	free(arena->used);
	free(arena->run_lengths);
	free(arena);
}

/* The first granule at or after @from whose bit is @set; arena->granules if there is none. */
static uint32_t find_bit(const struct spw_arena *arena, uint32_t from, bool set)
{
	uint64_t flip = set ? 0 : ~UINT64_C(0);
	uint32_t words = (arena->granules + 63) / 64;
	uint64_t word;

	if (from >= arena->granules)
		return arena->granules;
	word = (arena->used[from / 64] ^ flip) & (~UINT64_C(0) << from % 64);
	for (uint32_t i = from / 64;;) {
		if (word) {
			uint32_t found = i * 64 + (uint32_t)__builtin_ctzll(word);

			return found < arena->granules ? found : arena->granules;
		}
		if (++i == words)
			return arena->granules;
		word = arena->used[i] ^ flip;
	}
}

/* Flip the bits of a run of granules, which are all @set before. */
static void flip_bits(struct spw_arena *arena, uint32_t first, uint32_t count, bool set)
{
	while (count > 0) {
		uint32_t shift = first % 64;
		uint32_t n = 64 - shift < count ? 64 - shift : count;
		uint64_t mask = (n == 64 ? ~UINT64_C(0) : (UINT64_C(1) << n) - 1) << shift;

		SPW_ASSERT((arena->used[first / 64] & mask) ==
			   (set ? mask : 0)); /* same state (ARENA-1) */
		arena->used[first / 64] ^= mask;
		first += n;
		count -= n;
	}
}

static bool find_run(struct spw_arena *arena, uint32_t count, uint32_t *first)
{
	uint32_t start = find_bit(arena, arena->lowest_free, false);

	arena->lowest_free = start;
	while (start < arena->granules) {
		uint32_t end = find_bit(arena, start, true);

		if (end - start >= count) {
			*first = start;
			return true;
		}
		start = find_bit(arena, end, false);
	}
	return false;
}

int spw_arena_alloc(struct spw_arena *arena, size_t len, void **memory)
{
	uint64_t granules =
		(uint64_t)len / SPW_ARENA_GRANULE_BYTES + (len % SPW_ARENA_GRANULE_BYTES != 0);
	uint32_t first;
	bool found;

	*memory = NULL;
	if (len == 0)
		return spw_error(-EINVAL, "DMA memory: an allocation of no bytes");
	(void)pthread_mutex_lock(&arena->lock);
	found = granules <= arena->granules && find_run(arena, (uint32_t)granules, &first);
	if (found) {
		SPW_ASSERT(first >= arena->lowest_free &&
			   /* free granules, none below lowest_free (ARENA-2, 3) */
			   arena->run_lengths[first] == 0);
		flip_bits(arena, first, (uint32_t)granules, false);
		arena->run_lengths[first] = (uint32_t)granules;
		arena->touched_end = SPW_MAX(arena->touched_end, first + (uint32_t)granules);
		if (first == arena->lowest_free)
			arena->lowest_free = first + (uint32_t)granules;
		arena->bytes_used += granules * SPW_ARENA_GRANULE_BYTES;
		*memory = arena->base + (uint64_t)first * SPW_ARENA_GRANULE_BYTES;
	}
	(void)pthread_mutex_unlock(&arena->lock);
	if (!found)
		return spw_error(-ENOBUFS, "DMA memory: no %zu bytes in one run are free", len);
	SPW_UNPOISON(*memory, len);
	return 0;
}

void spw_arena_free(struct spw_arena *arena, void *memory)
{
	uint64_t offset = (uint64_t)((uintptr_t)memory - (uintptr_t)arena->base);
	uint32_t first, count;

	if (!memory)
		return;
	SPW_ASSERT(offset < arena->len_bytes && offset % SPW_ARENA_GRANULE_BYTES == 0);
	first = (uint32_t)(offset / SPW_ARENA_GRANULE_BYTES);
	(void)pthread_mutex_lock(&arena->lock);
	count = arena->run_lengths[first];
	SPW_ASSERT(count > 0); /* an allocation begins at this granule (ARENA-2) */
	SPW_POISON(memory, (uint64_t)count * SPW_ARENA_GRANULE_BYTES);
	arena->run_lengths[first] = 0;
	flip_bits(arena, first, count, true);
	if (first < arena->lowest_free)
		arena->lowest_free = first;
	/* bytes_used is the sum of the allocations (ARENA-4) */
	SPW_ASSERT(arena->bytes_used >= (uint64_t)count * SPW_ARENA_GRANULE_BYTES);
	arena->bytes_used -= (uint64_t)count * SPW_ARENA_GRANULE_BYTES;
	(void)pthread_mutex_unlock(&arena->lock);
}

/* ---- Giving pages back ---- */

/* One past the highest granule that is allocated. */
static uint32_t used_end(const struct spw_arena *arena)
{
	uint32_t end = arena->touched_end;

	while (end > 0) {
		uint32_t last = end - 1;
		uint64_t below = arena->used[last / 64] << (63 - last % 64);

		if (below)
			return end - (uint32_t)__builtin_clzll(below);
		end -= last % 64 + 1;
	}
	return 0;
}

uint64_t spw_engine__arena_end(struct spw_arena *arena)
{
	uint64_t granules;

	(void)pthread_mutex_lock(&arena->lock);
	granules = used_end(arena);
	(void)pthread_mutex_unlock(&arena->lock);
	return granules * SPW_ARENA_GRANULE_BYTES;
}

uint64_t spw_engine__arena_idle_bytes(struct spw_arena *arena)
{
	uint64_t granules = 0;

	(void)pthread_mutex_lock(&arena->lock);
	if (!arena->stays && arena->pages != SPW_PAGES_HUGETLB)
		granules = arena->touched_end - used_end(arena);
	(void)pthread_mutex_unlock(&arena->lock);
	return granules * SPW_ARENA_GRANULE_BYTES;
}

/*
 * The lock is held until the pages are gone, or one could be allocated meanwhile (ARENA-5). Huge
 * pages of the pool stay: they are this process's anyway, and others may take them in between.
 */
uint64_t spw_engine__arena_give_back(struct spw_arena *arena, uint64_t from_bytes)
{
	uint64_t end, touched, given = 0;

	(void)pthread_mutex_lock(&arena->lock);
	end = SPW_MAX(from_bytes, (uint64_t)used_end(arena) * SPW_ARENA_GRANULE_BYTES);
	end = spw_round_up(end, SPW_HUGE_PAGE_BYTES);
	touched = (uint64_t)arena->touched_end * SPW_ARENA_GRANULE_BYTES;
	if (!arena->stays && arena->pages != SPW_PAGES_HUGETLB && end < touched &&
	    madvise(arena->base + end, arena->len_bytes - end, MADV_DONTNEED) == 0) {
		given = touched - end;
		arena->touched_end = (uint32_t)(end / SPW_ARENA_GRANULE_BYTES);
	}
	(void)pthread_mutex_unlock(&arena->lock);
	return given;
}

void spw_engine__arena_stay(struct spw_arena *arena)
{
	(void)pthread_mutex_lock(&arena->lock);
	arena->stays = true;
	(void)pthread_mutex_unlock(&arena->lock);
}

void *spw_arena_memory(const struct spw_arena *arena, size_t *len)
{
	*len = (size_t)arena->len_bytes;
	return arena->base;
}
