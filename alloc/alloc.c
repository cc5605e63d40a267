/* SPDX-License-Identifier: MIT */
/*
 * alloc/alloc.c - extent allocator: two-level segregated fit
 *
 * Every extent, allocated or free, has a descriptor in one table, whose memory is reserved at open
 * and committed on first use. Descriptor 0 is a sentinel before the first and behind the last
 * extent; it is on no list.
 *
 * A free extent is on the list of its size class. Each length below 32 has its own class; above,
 * every power of two is divided into 32 classes of equal width. Two levels of bitmaps find the next
 * non-empty class.
 *
 * Invariants, cited in asserts and tests; spw_alloc__verify() returns the number of a violated one
 *
 *   ALLOC-1  In address order the extents tile 0 .. blocks_total - 1: each starts where the one
 *            before it ends, and none is empty. So no two overlap, and their lengths sum up to
 *            blocks_total.
 *   ALLOC-2  Two free extents are never neighbours.
 *   ALLOC-3  Neighbours name each other, in a ring that starts and ends at descriptor 0.
 *   ALLOC-4  A free extent is on exactly one list, the one of its class; nothing else is on a list.
 *   ALLOC-5  A bit is set in the second level if and only if that class's list is not empty, in the
 *            first level if and only if its word of the second level is not zero.
 *   ALLOC-6  blocks_free and extents_used agree with the extents.
 *   ALLOC-7  A descriptor below descs_fresh is descriptor 0, or an extent, or on the chain of spare
 *            descriptors, and only one of these. As there is at most one more free extent than
 *            allocated ones (ALLOC-2), 2 * extents_max + 2 descriptors never run out.
 *   ALLOC-8  At most extents_max extents are allocated.
 */
#include "alloc/alloc.h"
#include "util/util.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#define SECOND_BITS   5u
#define SECOND_COUNT  (1u << SECOND_BITS)
#define FIRST_COUNT   37u /* lengths below 32, then 2^5 .. 2^40 */
#define CLASSES_COUNT (FIRST_COUNT * SECOND_COUNT)
#define CLASS_NONE    UINT32_MAX

/* How many extents of one list an operation in constant time may look at. */
#define LOOK_MAX 8u

/* Values of list_prev above any index (2 * SPW_ALLOC_EXTENTS_MAX + 1). */
#define DESC_USED  UINT32_MAX
#define DESC_SPARE (UINT32_MAX - 1)

/* 32 bytes: two to a cache line. */
struct desc {
	uint64_t start_block;
	uint64_t len_blocks;
	uint32_t address_prev, address_next; /* neighbours by address; 0 at both ends */
	/* previous on the list of its class, 0: the head; or DESC_USED, DESC_SPARE */
	uint32_t list_prev;
	/* next on the list of its class or on the chain of spare descriptors; 0 at the end */
	uint32_t list_next;
};

struct spw_alloc {
	struct desc *descs;
	uint64_t descs_max;
	uint64_t descs_fresh; /* descriptors from this index on have never been used */
	uint32_t desc_spare;  /* head of the chain of spare descriptors; 0: empty */
	uint64_t blocks_total;
	uint64_t blocks_free;
	uint64_t extents_max;
	uint64_t extents_used;
	uint64_t first_bits;
	uint32_t second_bits[FIRST_COUNT];
	uint32_t heads[CLASSES_COUNT];
};

/* ---- Size classes ---------------------------------------------------------------------------- */

static uint32_t log2_floor(uint64_t value)
{
	return 63u - (uint32_t)__builtin_clzll(value);
}

/* The class of a free extent of @len_blocks. Longer extents never have a lower class. */
static uint32_t class_of(uint64_t len_blocks)
{
	uint32_t log2;

	if (len_blocks < SECOND_COUNT)
		return (uint32_t)len_blocks;
	log2 = log2_floor(len_blocks);
	return (log2 - SECOND_BITS + 1) * SECOND_COUNT +
	       ((uint32_t)(len_blocks >> (log2 - SECOND_BITS)) - SECOND_COUNT);
}

/* The lowest class whose extents are all at least @len_blocks long. */
static uint32_t class_surely_fitting(uint64_t len_blocks)
{
	if (len_blocks < SECOND_COUNT)
		return (uint32_t)len_blocks;
	return class_of(len_blocks + (UINT64_C(1) << (log2_floor(len_blocks) - SECOND_BITS)) - 1);
}

/* The lowest class at or above @from that has extents, or CLASS_NONE. */
static uint32_t class_from(const struct spw_alloc *alloc, uint32_t from)
{
	uint32_t first = from / SECOND_COUNT;
	uint32_t second = alloc->second_bits[first] & (UINT32_MAX << (from % SECOND_COUNT));
	uint64_t firsts;

	if (!second) {
		firsts = alloc->first_bits & (UINT64_MAX << 1 << first);
		if (!firsts)
			return CLASS_NONE;
		first = (uint32_t)__builtin_ctzll(firsts);
		second = alloc->second_bits[first];
		SPW_ASSERT(second != 0); /* a set bit means a list that is not empty (ALLOC-5) */
	}
	return first * SECOND_COUNT + (uint32_t)__builtin_ctz(second);
}

/* The highest class that has extents; at least one extent must be free. */
static uint32_t class_top(const struct spw_alloc *alloc)
{
	uint32_t first = log2_floor(alloc->first_bits);

	/* a set bit means a list that is not empty (ALLOC-5) */
	SPW_ASSERT(alloc->second_bits[first] != 0);
	return first * SECOND_COUNT + log2_floor(alloc->second_bits[first]);
}

/* ---- Descriptors and lists ------------------------------------------------------------------- */

static bool is_free(const struct desc *desc)
{
	return desc->list_prev < DESC_SPARE;
}

static uint32_t desc_get(struct spw_alloc *alloc)
{
	uint32_t index = alloc->desc_spare;

	if (index) {
		alloc->desc_spare = alloc->descs[index].list_next;
		return index;
	}
	SPW_ASSERT(alloc->descs_fresh < alloc->descs_max); /* they never run out (ALLOC-7) */
	return (uint32_t)alloc->descs_fresh++;
}

static void desc_put(struct spw_alloc *alloc, uint32_t index)
{
	struct desc *desc = &alloc->descs[index];

	desc->list_prev = DESC_SPARE;
	desc->list_next = alloc->desc_spare;
	alloc->desc_spare = index;
}

static void list_insert(struct spw_alloc *alloc, uint32_t index)
{
	struct desc *desc = &alloc->descs[index];
	uint32_t class = class_of(desc->len_blocks);
	uint32_t head = alloc->heads[class];

	desc->list_prev = 0;
	desc->list_next = head;
	if (head)
		alloc->descs[head].list_prev = index;
	alloc->heads[class] = index;
	alloc->second_bits[class / SECOND_COUNT] |= UINT32_C(1) << (class % SECOND_COUNT);
	alloc->first_bits |= UINT64_C(1) << (class / SECOND_COUNT);
}

static void list_remove(struct spw_alloc *alloc, uint32_t index)
{
	const struct desc *desc = &alloc->descs[index];
	uint32_t class = class_of(desc->len_blocks);

	if (desc->list_next)
		alloc->descs[desc->list_next].list_prev = desc->list_prev;
	if (desc->list_prev) {
		alloc->descs[desc->list_prev].list_next = desc->list_next;
	} else {
		SPW_ASSERT(alloc->heads[class] == index); /* it is on its list (ALLOC-4) */
		alloc->heads[class] = desc->list_next;
		if (!desc->list_next) {
			alloc->second_bits[class / SECOND_COUNT] &=
				~(UINT32_C(1) << (class % SECOND_COUNT));
			if (!alloc->second_bits[class / SECOND_COUNT])
				alloc->first_bits &= ~(UINT64_C(1) << (class / SECOND_COUNT));
		}
	}
}

/* Change start and length of a free extent; it keeps its place on the list if its class does. */
static void list_resize(struct spw_alloc *alloc, uint32_t index, uint64_t start_block,
			uint64_t len_blocks)
{
	struct desc *desc = &alloc->descs[index];
	bool moves = class_of(len_blocks) != class_of(desc->len_blocks);

	if (moves)
		list_remove(alloc, index);
	desc->start_block = start_block;
	desc->len_blocks = len_blocks;
	if (moves)
		list_insert(alloc, index);
}

/* ---- Open and close -------------------------------------------------------------------------- */

static void start_empty(struct spw_alloc *alloc)
{
	uint32_t whole;

	alloc->descs[0] = (struct desc){.list_prev = DESC_USED};
	alloc->descs_fresh = 1;
	whole = desc_get(alloc);
	alloc->descs[whole] = (struct desc){.len_blocks = alloc->blocks_total};
	alloc->descs[0].address_prev = whole;
	alloc->descs[0].address_next = whole;
	list_insert(alloc, whole);
	alloc->blocks_free = alloc->blocks_total;
}

int spw_alloc__open(uint64_t blocks_total, uint64_t extents_max, struct spw_alloc **result)
{
	struct spw_alloc *alloc;

	*result = NULL;
	if (blocks_total == 0 || blocks_total > SPW_ALLOC_BLOCKS_MAX)
		return spw_error(-EINVAL, "an allocator of %llu blocks: give 1 to 2^40",
				 (unsigned long long)blocks_total);
	if (extents_max == 0 || extents_max > SPW_ALLOC_EXTENTS_MAX)
		return spw_error(-EINVAL, "an allocator for %llu extents: give 1 to 2^30",
				 (unsigned long long)extents_max);
	alloc = calloc(1, sizeof(*alloc));
	if (!alloc)
		return spw_error(-ENOMEM, "no memory for an extent allocator");
	alloc->blocks_total = blocks_total;
	alloc->extents_max = extents_max < blocks_total ? extents_max : blocks_total;
	alloc->descs_max = 2 * alloc->extents_max + 2;
	alloc->descs = mmap(NULL, alloc->descs_max * sizeof(*alloc->descs), PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (alloc->descs == MAP_FAILED) {
		free(alloc);
		return spw_error_errno(
			-ENOMEM,
			"cannot reserve memory for %llu extents; allow fewer, or raise ulimit -v",
			(unsigned long long)extents_max);
	}
	start_empty(alloc);
	*result = alloc;
	return 0;
}

void spw_alloc__close(struct spw_alloc *alloc)
{
	if (!alloc)
		return;
	(void)munmap(alloc->descs, alloc->descs_max * sizeof(*alloc->descs));
	free(alloc);
}

/* ---- Allocate -------------------------------------------------------------------------------- */

/* Look at a class's first @look_max extents. Return: the first of at least @len_blocks; or 0. */
static uint32_t first_fit(const struct spw_alloc *alloc, uint32_t class, uint64_t len_blocks,
			  uint64_t look_max)
{
	uint32_t index = alloc->heads[class];

	for (; index && look_max; look_max--) {
		if (alloc->descs[index].len_blocks >= len_blocks)
			return index;
		index = alloc->descs[index].list_next;
	}
	return 0;
}

static uint32_t longest(const struct spw_alloc *alloc, uint32_t class)
{
	uint32_t best = alloc->heads[class], look_max = LOOK_MAX;

	for (uint32_t index = best; index && look_max; look_max--) {
		if (alloc->descs[index].len_blocks > alloc->descs[best].len_blocks)
			best = index;
		index = alloc->descs[index].list_next;
	}
	return best;
}

/* O(1): one of the first of the request's own class, else the head of a class that surely fits. */
static uint32_t good_fit(const struct spw_alloc *alloc, uint64_t len_blocks)
{
	uint32_t index = first_fit(alloc, class_of(len_blocks), len_blocks, LOOK_MAX);
	uint32_t class;

	if (index)
		return index;
	class = class_from(alloc, class_surely_fitting(len_blocks));
	return class == CLASS_NONE ? 0 : alloc->heads[class];
}

static void cut(struct spw_alloc *alloc, uint32_t from, uint64_t len_blocks,
		struct spw_extent *extent)
{
	struct desc *rest = &alloc->descs[from];
	uint32_t index = from;

	SPW_ASSERT(is_free(rest) && rest->len_blocks >= len_blocks); /* only free ones (ALLOC-4) */
	*extent = (struct spw_extent){.start_block = rest->start_block, .len_blocks = len_blocks};
	if (rest->len_blocks == len_blocks) {
		list_remove(alloc, from);
	} else {
		index = desc_get(alloc);
		alloc->descs[index] = (struct desc){.start_block = rest->start_block,
						    .len_blocks = len_blocks,
						    .address_prev = rest->address_prev,
						    .address_next = from};
		alloc->descs[rest->address_prev].address_next = index;
		rest->address_prev = index;
		list_resize(alloc, from, rest->start_block + len_blocks,
			    rest->len_blocks - len_blocks);
	}
	alloc->descs[index].list_prev = DESC_USED;
	extent->handle = index;

	alloc->extents_used++;
	alloc->blocks_free -= len_blocks;
}

int spw_alloc__get(struct spw_alloc *alloc, uint64_t len_blocks, struct spw_extent *extent)
{
	uint32_t index;

	SPW_ASSERT(len_blocks > 0);
	*extent = (struct spw_extent){0};
	if (len_blocks > alloc->blocks_free ||
	    /* at most extents_max are allocated (ALLOC-8) */
	    alloc->extents_used == alloc->extents_max)
		return -ENOSPC;
	index = good_fit(alloc, len_blocks);
	/* search the whole list, of at most extents_max + 1 free extents (ALLOC-2) */
	if (!index)
		index = first_fit(alloc, class_of(len_blocks), len_blocks, alloc->extents_max + 1);
	if (!index)
		return -ENOSPC;
	cut(alloc, index, len_blocks, extent);
	return 0;
}

int spw_alloc__get_some(struct spw_alloc *alloc, uint64_t len_blocks, struct spw_extent *extent)
{
	uint32_t index = 0;

	SPW_ASSERT(len_blocks > 0);
	*extent = (struct spw_extent){0};
	/* at most extents_max are allocated (ALLOC-8) */
	if (alloc->blocks_free == 0 || alloc->extents_used == alloc->extents_max)
		return -ENOSPC;
	if (len_blocks <= alloc->blocks_free)
		index = good_fit(alloc, len_blocks);
	if (!index)
		index = longest(alloc, class_top(alloc));
	if (alloc->descs[index].len_blocks < len_blocks)
		len_blocks = alloc->descs[index].len_blocks;
	cut(alloc, index, len_blocks, extent);
	return 0;
}

/* Split a free extent: its blocks from @start_block on become a free extent of their own. */
static uint32_t part(struct spw_alloc *alloc, uint32_t index, uint64_t start_block)
{
	uint32_t rest = desc_get(alloc);
	struct desc *desc = &alloc->descs[index];
	uint64_t end_block = desc->start_block + desc->len_blocks;

	SPW_ASSERT(is_free(desc) && start_block > desc->start_block && start_block < end_block);
	alloc->descs[rest] = (struct desc){.start_block = start_block,
					   .len_blocks = end_block - start_block,
					   .address_prev = index,
					   .address_next = desc->address_next};
	alloc->descs[desc->address_next].address_prev = rest;
	desc->address_next = rest;
	list_resize(alloc, index, desc->start_block, start_block - desc->start_block);
	list_insert(alloc, rest);
	return rest;
}

int spw_alloc__get_at(struct spw_alloc *alloc, uint64_t start_block, uint64_t len_blocks,
		      struct spw_extent *extent)
{
	uint32_t index = alloc->descs[0].address_prev;
	const struct desc *desc;

	*extent = (struct spw_extent){0};
	if (len_blocks == 0 || start_block >= alloc->blocks_total ||
	    len_blocks > alloc->blocks_total - start_block)
		return -ERANGE;
	while (alloc->descs[index].start_block > start_block)
		index = alloc->descs[index].address_prev;
	desc = &alloc->descs[index];
	if (!is_free(desc) || len_blocks > desc->start_block + desc->len_blocks - start_block)
		return -EEXIST;
	/* at most extents_max are allocated (ALLOC-8) */
	if (alloc->extents_used == alloc->extents_max)
		return -ENOSPC;
	if (start_block > desc->start_block)
		index = part(alloc, index, start_block);
	cut(alloc, index, len_blocks, extent);
	return 0;
}

/* ---- Free ------------------------------------------------------------------------------------ */

/* Remove an extent from the address order after a neighbour took over its blocks. */
static void absorb(struct spw_alloc *alloc, uint32_t index)
{
	const struct desc *desc = &alloc->descs[index];

	alloc->descs[desc->address_prev].address_next = desc->address_next;
	alloc->descs[desc->address_next].address_prev = desc->address_prev;
	desc_put(alloc, index);
}

void spw_alloc__put(struct spw_alloc *alloc, const struct spw_extent *extent)
{
	uint32_t index = extent->handle, prev, next;
	uint64_t start_block = extent->start_block, len_blocks = extent->len_blocks;
	struct desc *desc;

	SPW_ASSERT(index > 0 && index < alloc->descs_fresh); /* an extent (ALLOC-7) */
	desc = &alloc->descs[index];
	SPW_ASSERT(desc->list_prev == DESC_USED && desc->start_block == start_block &&
		   desc->len_blocks == len_blocks);
	alloc->blocks_free += len_blocks;
	alloc->extents_used--;

	/* Free extents are never neighbours (ALLOC-2): merge into the lower free one. */
	prev = desc->address_prev;
	next = desc->address_next;
	if (is_free(&alloc->descs[prev])) {
		start_block = alloc->descs[prev].start_block;
		len_blocks += alloc->descs[prev].len_blocks;
		absorb(alloc, index);
		if (is_free(&alloc->descs[next])) {
			len_blocks += alloc->descs[next].len_blocks;
			list_remove(alloc, next);
			absorb(alloc, next);
		}
		list_resize(alloc, prev, start_block, len_blocks);
	} else if (is_free(&alloc->descs[next])) {
		absorb(alloc, index);
		list_resize(alloc, next, start_block, len_blocks + alloc->descs[next].len_blocks);
	} else {
		list_insert(alloc, index);
	}
}

void spw_alloc__extent(const struct spw_alloc *alloc, uint32_t handle, struct spw_extent *extent)
{
	const struct desc *desc = &alloc->descs[handle];

	/* the handle is of an allocated extent (ALLOC-7) */
	SPW_ASSERT(handle > 0 && handle < alloc->descs_fresh && desc->list_prev == DESC_USED);
	*extent = (struct spw_extent){
		.start_block = desc->start_block, .len_blocks = desc->len_blocks, .handle = handle};
}

uint64_t spw_alloc__blocks_free(const struct spw_alloc *alloc)
{
	return alloc->blocks_free;
}

/* ---- Verify ---------------------------------------------------------------------------------- */

struct count {
	uint64_t extents_used, extents_free, blocks_free;
};

/* Check ALLOC-1 to 3, and 7 for each descriptor met. Terminates: addresses only increase. */
static int verify_addresses(const struct spw_alloc *alloc, struct count *count)
{
	uint32_t prev = 0, index = alloc->descs[0].address_next;
	const struct desc *desc;
	uint64_t end_block = 0;

	for (; index; prev = index, index = desc->address_next) {
		if (index >= alloc->descs_fresh)
			return 3;
		desc = &alloc->descs[index];
		if (desc->list_prev == DESC_SPARE)
			return 7;
		if (desc->start_block != end_block || desc->len_blocks == 0 ||
		    desc->len_blocks > alloc->blocks_total - end_block)
			return 1;
		if (desc->address_prev != prev)
			return 3;
		if (is_free(desc) && is_free(&alloc->descs[prev]))
			return 2;
		end_block += desc->len_blocks;
		count->extents_used += !is_free(desc);
		count->extents_free += is_free(desc);
		count->blocks_free += is_free(desc) ? desc->len_blocks : 0;
	}
	if (end_block != alloc->blocks_total)
		return 1;
	return alloc->descs[0].address_prev == prev ? 0 : 3;
}

/* Check one class: free extents only, on the right list, and the bit of the class (ALLOC-4, 5). */
static int verify_class(const struct spw_alloc *alloc, uint32_t class, uint64_t *listed,
			uint64_t listed_max)
{
	uint32_t prev = 0, index = alloc->heads[class];
	bool bit = alloc->second_bits[class / SECOND_COUNT] >> (class % SECOND_COUNT) & 1;
	const struct desc *desc;

	if (bit != (index != 0))
		return 5;
	for (; index; prev = index, index = desc->list_next) {
		if (index >= alloc->descs_fresh || ++*listed > listed_max)
			return 4;
		desc = &alloc->descs[index];
		if (!is_free(desc) || desc->list_prev != prev ||
		    class_of(desc->len_blocks) != class)
			return 4;
	}
	return 0;
}

/* Check all lists: each free extent is on one, and both levels of bits are right (ALLOC-4, 5). */
static int verify_lists(const struct spw_alloc *alloc, const struct count *count)
{
	uint64_t listed = 0;
	int broken;

	for (uint32_t class = 0; class < CLASSES_COUNT; class ++) {
		broken = verify_class(alloc, class, &listed, count->extents_free);
		if (broken)
			return broken;
	}
	for (uint32_t first = 0; first < FIRST_COUNT; first++)
		if ((alloc->first_bits >> first & 1) != (alloc->second_bits[first] != 0))
			return 5;
	if (alloc->first_bits >> FIRST_COUNT)
		return 5;
	return listed == count->extents_free ? 0 : 4;
}

/* Check that every descriptor ever used is descriptor 0, an extent or spare (ALLOC-7). */
static int verify_spares(const struct spw_alloc *alloc, const struct count *count)
{
	uint64_t spares = 0;

	for (uint32_t index = alloc->desc_spare; index; index = alloc->descs[index].list_next)
		if (index >= alloc->descs_fresh || alloc->descs[index].list_prev != DESC_SPARE ||
		    ++spares > alloc->descs_fresh)
			return 7;
	if (1 + count->extents_used + count->extents_free + spares != alloc->descs_fresh)
		return 7;
	return alloc->descs[0].list_prev == DESC_USED ? 0 : 7;
}

int spw_alloc__verify(const struct spw_alloc *alloc)
{
	struct count count = {0};
	int broken;

	if (alloc->descs_fresh > alloc->descs_max)
		return 7;
	broken = verify_addresses(alloc, &count);
	if (!broken)
		broken = verify_lists(alloc, &count);
	if (!broken)
		broken = verify_spares(alloc, &count);
	if (broken)
		return broken;
	if (count.extents_used != alloc->extents_used || count.blocks_free != alloc->blocks_free)
		return 6;
	return count.extents_used <= alloc->extents_max ? 0 : 8;
}
