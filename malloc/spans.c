// SPDX-License-Identifier: MIT
/*
 * malloc/spans.c - allocator of blocks made of 64 KiB units: finds, splits and joins them
 *
 * Invariants
 *   1. Each unit belongs to one block. len[first] and state[first] are the block's length and
 *      state. The last unit of a free block has the same values; the last unit of a longer block in
 *      use is INSIDE. Only the first unit of a block in use is USED.
 *   2. A free block is in exactly one bin, by its state and log2 of its length.
 *   3. Two free neighbours never have the same state: they are joined. Between calls, unless
 *      madvise() has failed:
 *   When no call runs, and the system has not refused to take memory back:
 *   4. resident_free_bytes is the length of all dirty free blocks, at most resident_max_bytes.
 *   5. used_bytes + resident_free_bytes <= used_max_bytes: no more is resident than the most that
 *      was in use at one time, in the last steps or ever.
 */
#include "malloc/spans.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

enum { INSIDE, USED, DIRTY, CLEAN };

#define HUGE_PAGE_BYTES ((size_t)2 << 20)
/* units of a huge page; the range begins at the boundary of one */
#define HUGE_PAGE_SPANS ((uint32_t)(HUGE_PAGE_BYTES / SPW_SPAN_BYTES))
#define LOOKED_AT_MAX   32 /* blocks of a bin to look at, as they may be too short */

static unsigned bin_of(uint32_t len)
{
	return 31u - (unsigned)__builtin_clz(len);
}

static void *map_bytes(size_t size_bytes)
{
	void *bytes = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return bytes == MAP_FAILED ? NULL : bytes;
}

static void mark(struct spw_spans *spans, uint32_t first, uint32_t len, uint8_t state)
{
	if (state == USED) {
		spans->state[first + len - 1] = INSIDE;
	} else {
		spans->len[first + len - 1] = len;
		spans->state[first + len - 1] = state;
	}
	spans->len[first] = len;
	spans->state[first] = state;
}

static void bin_add(struct spw_spans *spans, uint32_t first, uint32_t len, uint8_t state)
{
	uint32_t *head = &spans->bins[state == CLEAN][bin_of(len)];

	mark(spans, first, len, state);
	spans->next[first] = *head;
	spans->prev[first] = 0;
	if (*head)
		spans->prev[*head - 1] = first + 1;
	*head = first + 1;
	if (state == DIRTY)
		spans->resident_free_bytes += len * SPW_SPAN_BYTES;
}

static void bin_remove(struct spw_spans *spans, uint32_t first)
{
	uint32_t len = spans->len[first], next = spans->next[first], prev = spans->prev[first];

	if (prev)
		spans->next[prev - 1] = next;
	else
		spans->bins[spans->state[first] == CLEAN][bin_of(len)] = next;
	if (next)
		spans->prev[next - 1] = prev;
	if (spans->state[first] == DIRTY)
		spans->resident_free_bytes -= len * SPW_SPAN_BYTES;
}

/* Make units free and join them with neighbours of the same state (invariant 3). */
static void free_join(struct spw_spans *spans, uint32_t first, uint32_t len, uint8_t state)
{
	uint32_t end = first + len;

	if (end < spans->count && spans->state[end] == state && spans->len[end]) {
		bin_remove(spans, end);
		len += spans->len[end];
	}
	if (first > 0 && spans->state[first - 1] == state && spans->len[first - 1]) {
		uint32_t before = spans->len[first - 1];

		bin_remove(spans, first - before);
		first -= before;
		len += before;
	}
	bin_add(spans, first, len, state);
}

/* Find a free block that is long enough. Return: its first unit + 1; 0: there is none. */
static uint32_t find(const struct spw_spans *spans, bool clean, uint32_t len)
{
	for (unsigned bin = bin_of(len); bin < SPW_SPAN_BINS; bin++) {
		unsigned left = LOOKED_AT_MAX;

		for (uint32_t at = spans->bins[clean][bin]; at && left > 0;
		     at = spans->next[at - 1], left--)
			if (spans->len[at - 1] >= len)
				return at;
	}
	return 0;
}

static void give_back(struct spw_spans *spans, uint32_t first, uint32_t len)
{
	/* Private anonymous memory then reads as zeros. On failure the pages stay resident. */
	if (madvise(spans->base + first * SPW_SPAN_BYTES, len * SPW_SPAN_BYTES, MADV_DONTNEED)) {
		free_join(spans, first, len, DIRTY);
		return;
	}
	spans->returned_bytes += len * SPW_SPAN_BYTES;
	free_join(spans, first, len, CLEAN);
}

/* After fresh memory was used, release as much free resident memory, longest blocks first (5). */
static void hold_peak(struct spw_spans *spans)
{
	while (spans->used_bytes + spans->resident_free_bytes > spans->used_max_bytes) {
		uint64_t excess =
			(spans->used_bytes + spans->resident_free_bytes - spans->used_max_bytes) /
			SPW_SPAN_BYTES;
		uint64_t returned_bytes = spans->returned_bytes;
		unsigned bin = SPW_SPAN_BINS - 1;
		uint32_t first, len, kept;

		while (!spans->bins[0][bin])
			bin--;
		first = spans->bins[0][bin] - 1;
		len = spans->len[first];
		kept = excess < len ? (uint32_t)(first + len - excess) / HUGE_PAGE_SPANS *
					      HUGE_PAGE_SPANS
				    : first;
		kept = kept > first ? kept - first : 0;
		bin_remove(spans, first);
		if (kept > 0)
			bin_add(spans, first, kept, DIRTY);
		give_back(spans, first + kept, len - kept);
		if (spans->returned_bytes == returned_bytes)
			return;
	}
}

static void note_used(struct spw_spans *spans)
{
	if (spans->step_max_bytes[0] < spans->used_bytes)
		spans->step_max_bytes[0] = spans->used_bytes;
	if (spans->used_max_bytes < spans->used_bytes)
		spans->used_max_bytes = spans->used_bytes;
}

/* Return all free memory to the system: all free blocks become clean, so that neighbours join. */
static void purge(struct spw_spans *spans)
{
	for (unsigned bin = 0; bin < SPW_SPAN_BINS; bin++) {
		uint32_t at, last = 0;

		while ((at = spans->bins[0][bin]) != 0 && at != last) {
			last = at; /* the same block again: madvise() failed */
			bin_remove(spans, at - 1);
			give_back(spans, at - 1, spans->len[at - 1]);
		}
	}
}

int spw_spans_init(struct spw_spans *spans, uint64_t size_bytes, uint64_t resident_max_bytes)
{
	uint64_t count = size_bytes / SPW_SPAN_BYTES;
	size_t before;
	char *range;

	*spans = (struct spw_spans){.resident_max_bytes = resident_max_bytes};
	if (count == 0 || count >= UINT32_MAX)
		return -EINVAL;
	range = map_bytes(count * SPW_SPAN_BYTES + HUGE_PAGE_BYTES);
	if (!range)
		return -ENOMEM;
	spans->len = map_bytes(count * (3 * sizeof(uint32_t) + 1));
	if (!spans->len) {
		(void)munmap(range, count * SPW_SPAN_BYTES + HUGE_PAGE_BYTES);
		return -ENOMEM;
	}
	spans->next = spans->len + count;
	spans->prev = spans->next + count;
	spans->state = (uint8_t *)(spans->prev + count);
	before = -(uintptr_t)range & (HUGE_PAGE_BYTES - 1);
	spans->base = range + before;
	if (before > 0)
		(void)munmap(range, before);
	(void)munmap(spans->base + count * SPW_SPAN_BYTES, HUGE_PAGE_BYTES - before);
	/* If there are no transparent huge pages, small pages do. */
	(void)madvise(spans->base, count * SPW_SPAN_BYTES, MADV_HUGEPAGE);
	spans->count = (uint32_t)count;
	bin_add(spans, 0, spans->count, CLEAN);
	return 0;
}

void spw_spans_destroy(struct spw_spans *spans)
{
	if (!spans->count)
		return;
	(void)munmap(spans->base, spans->count * SPW_SPAN_BYTES);
	(void)munmap(spans->len, spans->count * (3 * sizeof(uint32_t) + 1));
	*spans = (struct spw_spans){0};
}

void *spw_spans_take(struct spw_spans *spans, size_t len_bytes, bool *zeroed)
{
	size_t units = (len_bytes + SPW_SPAN_BYTES - 1) / SPW_SPAN_BYTES;
	uint32_t at, first, have;
	uint8_t state;

	if (units == 0 || units > spans->count || len_bytes > SIZE_MAX - SPW_SPAN_BYTES) {
		spans->refused++;
		return NULL;
	}
	at = find(spans, false, (uint32_t)units);
	if (!at)
		at = find(spans, true, (uint32_t)units);
	if (!at) {
		purge(spans);
		at = find(spans, true, (uint32_t)units);
	}
	if (!at) {
		spans->refused++;
		return NULL;
	}
	first = at - 1;
	have = spans->len[first];
	state = spans->state[first];
	bin_remove(spans, first);
	if (have > units)
		bin_add(spans, first + (uint32_t)units, have - (uint32_t)units, state);
	mark(spans, first, (uint32_t)units, USED);
	spans->used_bytes += units * SPW_SPAN_BYTES;
	spans->taken++;
	spans->reused += state == DIRTY;
	note_used(spans);
	hold_peak(spans);
	*zeroed = state == CLEAN;
	return spans->base + first * SPW_SPAN_BYTES;
}

bool spw_spans_used(const struct spw_spans *spans, const void *block)
{
	size_t offset = (size_t)((const char *)block - spans->base);

	return offset % SPW_SPAN_BYTES == 0 && spans->state[offset / SPW_SPAN_BYTES] == USED;
}

size_t spw_spans_len_bytes(const struct spw_spans *spans, const void *block)
{
	return spans->len[(size_t)((const char *)block - spans->base) / SPW_SPAN_BYTES] *
	       SPW_SPAN_BYTES;
}

void spw_spans_give(struct spw_spans *spans, void *block)
{
	uint32_t first = (uint32_t)((size_t)((char *)block - spans->base) / SPW_SPAN_BYTES);
	uint32_t len = spans->len[first];

	spans->state[first] = INSIDE; /* the unit may become the middle of a longer block */
	spans->used_bytes -= len * SPW_SPAN_BYTES;
	if (spans->resident_free_bytes + len * SPW_SPAN_BYTES > spans->resident_max_bytes)
		give_back(spans, first, len);
	else
		free_join(spans, first, len, DIRTY);
}

void spw_spans_step(struct spw_spans *spans)
{
	memmove(spans->step_max_bytes + 1, spans->step_max_bytes,
		sizeof(spans->step_max_bytes) - sizeof(spans->step_max_bytes[0]));
	spans->step_max_bytes[0] = 0;
	spans->used_max_bytes = 0;
	note_used(spans);
	for (unsigned i = 1; i < SPW_SPAN_STEPS; i++)
		if (spans->used_max_bytes < spans->step_max_bytes[i])
			spans->used_max_bytes = spans->step_max_bytes[i];
	hold_peak(spans);
}
