/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_alloc.c - the extent allocator against a bitmap: every small case, random large
 * ones, and planted damage
 */
/* link: util */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/case.h"
#include "tests/random.h"

/*
 * The allocator is compiled in, with its asserts and its sources of memory under the test's
 * control.
 */
static jmp_buf assert_escape;
static int assert_expected;
static int memory_fails;

__attribute__((noreturn)) void test_assert_failed(const char *condition, const char *file,
						  int line);
static void *failing_calloc(size_t count, size_t size);
static void *failing_mmap(void *address, size_t len, int protection, int flags, int fd,
			  off_t offset);

#define spw_assert_failed test_assert_failed
#define calloc            failing_calloc
#define mmap              failing_mmap
#include "alloc/alloc.c"
#undef mmap
#undef calloc

void test_assert_failed(const char *condition, const char *file, int line)
{
	if (!assert_expected) {
		print_error("%s:%d: broken invariant: %s\n", file, line, condition);
		abort();
	}
	longjmp(assert_escape, 1);
}

static void *failing_calloc(size_t count, size_t size)
{
	return memory_fails == 1 ? NULL : calloc(count, size);
}

static void *failing_mmap(void *address, size_t len, int protection, int flags, int fd,
			  off_t offset)
{
	if (memory_fails == 2) {
		errno = ENOMEM;
		return MAP_FAILED;
	}
	return mmap(address, len, protection, flags, fd, offset);
}

#define expect_spw_assert(statement)                           \
	do {                                                   \
		assert_expected = 1;                           \
		if (setjmp(assert_escape) == 0) {              \
			statement;                             \
			fail_msg("no assert: %s", #statement); \
		}                                              \
		assert_expected = 0;                           \
	} while (0)

/* ---- The model: one byte per block, and the extents that are allocated ----------------------- */

#define MODEL_BLOCKS_MAX 8192u

struct model {
	struct spw_alloc *alloc;
	uint32_t blocks, extents_max, count;
	uint8_t used[MODEL_BLOCKS_MAX];
	struct spw_extent extents[MODEL_BLOCKS_MAX];
};

static void model_open(struct model *model, uint32_t blocks, uint32_t extents_max)
{
	memset(model, 0, sizeof(*model));
	model->blocks = blocks;
	model->extents_max = extents_max;
	assert_int_equal(spw_alloc__open(blocks, extents_max, &model->alloc), 0);
}

/* The longest run of free blocks. */
static uint32_t model_longest(const struct model *model)
{
	uint32_t longest_run = 0, run = 0;

	for (uint32_t block = 0; block < model->blocks; block++) {
		run = model->used[block] ? 0 : run + 1;
		longest_run = run > longest_run ? run : longest_run;
	}
	return longest_run;
}

static uint32_t model_free_blocks(const struct model *model)
{
	uint32_t free_blocks = 0;

	for (uint32_t block = 0; block < model->blocks; block++)
		free_blocks += !model->used[block];
	return free_blocks;
}

/* Everything the allocator says of itself, against the bitmap. */
static void model_check(const struct model *model)
{
	assert_int_equal(spw_alloc__verify(model->alloc), 0);
	assert_int_equal(model->alloc->blocks_total, model->blocks);
	assert_int_equal(spw_alloc__blocks_free(model->alloc), model_free_blocks(model));
	assert_int_equal(model->alloc->extents_used, model->count);
}

/* ALLOC-1: an extent that was given lies inside and was free in every block. */
static void model_mark(struct model *model, const struct spw_extent *extent)
{
	assert_in_range(extent->len_blocks, 1, model->blocks);
	assert_in_range(extent->start_block, 0, model->blocks - extent->len_blocks);
	for (uint64_t block = extent->start_block; block < extent->start_block + extent->len_blocks;
	     block++) {
		assert_int_equal(model->used[block], 0);
		model->used[block] = 1;
	}
	model->extents[model->count++] = *extent;
}

/* And it starts where a free run starts. */
static void model_take(struct model *model, const struct spw_extent *extent)
{
	model_mark(model, extent);
	assert_true(extent->start_block == 0 || model->used[extent->start_block - 1]);
}

/* The reason that comes first: the range, a block that is used, no extent left (ALLOC-8). */
static bool model_get_at(struct model *model, uint64_t start_block, uint64_t len_blocks)
{
	bool inside = len_blocks > 0 && start_block < model->blocks &&
		      len_blocks <= model->blocks - start_block;
	bool is_free = inside && !memchr(&model->used[start_block], 1, len_blocks);
	int wanted = !inside                              ? -ERANGE
		     : !is_free                           ? -EEXIST
		     : model->count == model->extents_max ? -ENOSPC
							  : 0;
	struct spw_extent extent;

	assert_int_equal(spw_alloc__get_at(model->alloc, start_block, len_blocks, &extent), wanted);
	if (wanted)
		return false;
	assert_true(extent.start_block == start_block && extent.len_blocks == len_blocks);
	model_mark(model, &extent);
	return true;
}

/* -ENOSPC exactly when no run is long enough, or when the extents are used up (ALLOC-8). */
static bool model_get(struct model *model, uint64_t len_blocks)
{
	struct spw_extent extent;
	bool fits = model_longest(model) >= len_blocks && model->count < model->extents_max;

	assert_int_equal(spw_alloc__get(model->alloc, len_blocks, &extent), fits ? 0 : -ENOSPC);
	if (!fits)
		return false;
	assert_int_equal(extent.len_blocks, len_blocks);
	model_take(model, &extent);
	return true;
}

static bool model_get_some(struct model *model, uint64_t len_blocks)
{
	struct spw_extent extent;
	uint64_t best = model_longest(model);
	bool fits = best > 0 && model->count < model->extents_max;

	assert_int_equal(spw_alloc__get_some(model->alloc, len_blocks, &extent),
			 fits ? 0 : -ENOSPC);
	if (!fits)
		return false;
	best = best < len_blocks ? best : len_blocks;
	assert_in_range(extent.len_blocks, 1, best);
	assert_true(extent.len_blocks + extent.len_blocks / SECOND_COUNT >= best);
	model_take(model, &extent);
	if (extent.len_blocks < len_blocks) { /* a whole run then */
		uint64_t end = extent.start_block + extent.len_blocks;
		assert_true(end == model->blocks || model->used[end]);
	}
	return true;
}

static void model_put(struct model *model, uint32_t which)
{
	struct spw_extent *extent = &model->extents[which];

	memset(&model->used[extent->start_block], 0, extent->len_blocks);
	spw_alloc__put(model->alloc, extent);
	*extent = model->extents[--model->count];
}

static void model_close(struct model *model)
{
	while (model->count)
		model_put(model, model->count - 1);
	model_check(model);
	spw_alloc__close(model->alloc);
}

/* ---- Every sequence on a tiny device --------------------------------------------------------- */

/* A copy of an allocator and its model, to go on from one state in several ways. */
struct snapshot {
	struct spw_alloc alloc;
	struct desc descs[32];
	struct model model;
};

static void snapshot_take(struct snapshot *snapshot, const struct model *model)
{
	memcpy(&snapshot->alloc, model->alloc, sizeof(snapshot->alloc));
	memcpy(snapshot->descs, model->alloc->descs, model->alloc->descs_max * sizeof(struct desc));
	memcpy(&snapshot->model, model, offsetof(struct model, used) + 16);
	memcpy(snapshot->model.extents, model->extents, 16 * sizeof(struct spw_extent));
}

static void snapshot_restore(const struct snapshot *snapshot, struct model *model)
{
	memcpy(model->alloc, &snapshot->alloc, sizeof(snapshot->alloc));
	memcpy(model->alloc->descs, snapshot->descs, model->alloc->descs_max * sizeof(struct desc));
	memcpy(model, &snapshot->model, offsetof(struct model, used) + 16);
	memcpy(model->extents, snapshot->model.extents, 16 * sizeof(struct spw_extent));
}

static uint64_t sequences;

static void every_sequence(struct model *model, unsigned depth)
{
	static struct snapshot snapshots[16];
	struct snapshot *here = &snapshots[depth];

	model_check(model);
	sequences++;
	if (depth == 0)
		return;
	snapshot_take(here, model);
	for (uint64_t len_blocks = 1; len_blocks <= model->blocks; len_blocks++) {
		if (model_get(model, len_blocks) || model_get_some(model, len_blocks)) {
			every_sequence(model, depth - 1);
			snapshot_restore(here, model);
		}
	}
	for (uint32_t which = 0; which < here->model.count; which++) {
		model_put(model, which);
		every_sequence(model, depth - 1);
		snapshot_restore(here, model);
	}
}

static struct model model;

CASE(test_every_sequence)
{
	static const struct {
		uint32_t blocks, extents_max;
		unsigned depth;
	} cases[] = {{1, 1, 6}, {2, 2, 9}, {3, 3, 8}, {8, 8, 6}, {8, 3, 6}, {12, 12, 5}};

	for (size_t i = 0; i < SPW_ARRAY_LEN(cases); i++) {
		model_open(&model, cases[i].blocks, cases[i].extents_max);
		every_sequence(&model, cases[i].depth);
		model_close(&model);
	}
	assert_true(sequences > 100000);
}

/*
 * Every way to cut a device into extents, and every choice of them to free, upwards and downwards:
 * all states there are up to the order of the lists. In each, every length is asked for, and every
 * run of blocks.
 */
static void every_request(struct model *here)
{
	static struct snapshot snapshot;

	snapshot_take(&snapshot, here);
	for (uint64_t len_blocks = 1; len_blocks <= here->blocks + 1; len_blocks++) {
		if (model_get(here, len_blocks))
			snapshot_restore(&snapshot, here);
		if (model_get_some(here, len_blocks)) {
			model_check(here);
			snapshot_restore(&snapshot, here);
		}
		for (uint64_t start_block = 0; start_block <= here->blocks; start_block++)
			if (model_get_at(here, start_block, len_blocks)) {
				model_check(here);
				snapshot_restore(&snapshot, here);
			}
	}
}

static void one_layout(uint32_t blocks, uint32_t cuts, uint32_t freed, bool downwards)
{
	uint64_t len_blocks = 1;

	model_open(&model, blocks, blocks);
	for (uint32_t block = 1; block <= blocks; block++) {
		if (block == blocks || (cuts >> (block - 1) & 1)) {
			assert_true(model_get(&model, len_blocks));
			len_blocks = 0;
		}
		len_blocks++;
	}
	for (uint32_t i = blocks; i-- > 0;)
		if (downwards && i < model.count && (freed >> model.extents[i].start_block & 1))
			model_put(&model, i);
	for (uint32_t i = 0; i < model.count;)
		if (!downwards && (freed >> model.extents[i].start_block & 1))
			model_put(&model, i);
		else
			i++;
	model_check(&model);
	every_request(&model);
	model_close(&model);
}

CASE(test_every_layout)
{
	const uint32_t blocks = 8;
	uint32_t starts;

	for (uint32_t cuts = 0; cuts < 1u << (blocks - 1); cuts++) {
		starts = cuts << 1 | 1; /* blocks that an extent starts at */
		for (uint32_t freed = starts;; freed = (freed - 1) & starts) {
			one_layout(blocks, cuts, freed, false);
			one_layout(blocks, cuts, freed, true);
			if (freed == 0)
				break;
		}
	}
}

/* ---- Random sequences ------------------------------------------------------------------------ */

static uint64_t random_state;

static uint32_t below(uint32_t limit)
{
	return (uint32_t)random_below(&random_state, limit);
}

enum action {
	GET_TINY,
	GET_SMALL,
	GET_LARGE,
	GET_ANY,
	GET_FIXED,
	GET_SOME,
	GET_AT,
	PUT_RANDOM,
	PUT_NEWEST,
	PUT_OLDEST,
	PUT_HALF,
	PUT_ALL,
	ACTIONS,
};

static void act(enum action action, uint32_t fixed_blocks)
{
	const uint32_t lens[] = {
		[GET_TINY] = 1 + below(4),
		[GET_SMALL] = 1 + below(100),
		[GET_LARGE] = model.blocks / 16 + 1 + below(model.blocks / 8 + 1),
		[GET_ANY] = 1 + below(model.blocks + 10),
		[GET_FIXED] = fixed_blocks,
	};
	const uint32_t left = action == PUT_ALL    ? 0
			      : action == PUT_HALF ? model.count / 2
			      : model.count > 0    ? model.count - 1
						   : 0;

	if (action < GET_SOME)
		(void)model_get(&model, lens[action]);
	else if (action == GET_SOME)
		(void)model_get_some(&model, 1 + below(model.blocks));
	else if (action == GET_AT)
		(void)model_get_at(&model, below(model.blocks + 2), below(40));
	while (action > GET_AT && model.count > left)
		model_put(&model, action == PUT_NEWEST   ? model.count - 1
				  : action == PUT_OLDEST ? 0
							 : below(model.count));
}

/*
 * One swarm: actions drawn by weights that are themselves drawn, many of them zero, so that runs
 * differ in character.
 */
static void one_swarm(unsigned actions)
{
	uint32_t weights[ACTIONS], sum = 0, draw, fixed_blocks;
	uint32_t blocks = 1 + below(1u << (3 + below(11)));
	unsigned action;

	for (action = 0; action < ACTIONS; action++) {
		weights[action] =
			below(2) ? below(action == PUT_ALL || action == PUT_HALF ? 2 : 100) : 0;
		sum += weights[action];
	}
	if (sum == 0)
		return;
	fixed_blocks = 1 + below(blocks < 300 ? blocks : 300);
	model_open(&model, blocks, 1 + below(below(3) ? blocks : 40));
	while (actions-- > 0) {
		draw = below(sum);
		for (action = 0; draw >= weights[action]; action++)
			draw -= weights[action];
		act((enum action)action, fixed_blocks);
		model_check(&model);
	}
	model_close(&model);
}

CASE(test_random)
{
	random_state = random_seed();
	for (unsigned swarm = 0; swarm < 400; swarm++)
		one_swarm(500);
}

/* ---- Single properties ----------------------------------------------------------------------- */

/*
 * The only fit lies deep in the list of its own class, behind more extents than constant time may
 * look at.
 */
CASE(test_exact_behind_the_bound)
{
	const uint64_t class_shortest = 256, class_width = 8;
	struct spw_extent extents[80], found;
	struct spw_alloc *alloc;
	unsigned count = 0;

	assert_int_equal(spw_alloc__open((class_shortest + class_width) * 32, 80, &alloc), 0);
	/*
	 * Pairs of one extent and a wall of one block; the first extent is the longest of its
	 * class.
	 */
	for (; spw_alloc__get(alloc, count == 0 ? class_shortest + 7 : class_shortest,
			      &extents[count]) == 0;
	     count += 2)
		assert_int_equal(spw_alloc__get(alloc, 1, &extents[count + 1]), 0);
	assert_true(count / 2 > LOOK_MAX + 1);
	if (spw_alloc__blocks_free(alloc) > 0)
		assert_int_equal(spw_alloc__get(alloc, spw_alloc__blocks_free(alloc), &found), 0);
	for (unsigned i = 0; i < count; i += 2)
		spw_alloc__put(alloc, &extents[i]);
	assert_int_equal(spw_alloc__get(alloc, class_shortest + 8, &found), -ENOSPC);
	assert_int_equal(spw_alloc__get_some(alloc, class_shortest + 7, &found), 0);
	/* the bounded look misses it, by less than 1/32 */
	assert_int_equal(found.len_blocks, class_shortest);
	spw_alloc__put(alloc, &found);
	assert_int_equal(spw_alloc__get(alloc, class_shortest + 7, &found), 0);
	assert_int_equal(found.start_block, 0);
	assert_int_equal(spw_alloc__verify(alloc), 0);
	spw_alloc__close(alloc);
}

/* Where nothing is long enough, the longest of the highest class, which is not the first there. */
CASE(test_some_is_the_longest)
{
	static const uint64_t lens[] = {263, 1, 256, 1};
	struct spw_extent extents[SPW_ARRAY_LEN(lens)], found;
	struct spw_alloc *alloc;

	assert_int_equal(spw_alloc__open(263 + 1 + 256 + 1, 10, &alloc), 0);
	for (unsigned i = 0; i < SPW_ARRAY_LEN(lens); i++)
		assert_int_equal(spw_alloc__get(alloc, lens[i], &extents[i]), 0);
	spw_alloc__put(alloc, &extents[0]);
	spw_alloc__put(alloc, &extents[2]);
	assert_int_equal(spw_alloc__get_some(alloc, 300, &found), 0);
	assert_int_equal(found.len_blocks, 263);
	spw_alloc__close(alloc);
}

/* What alloc.h promises of the order. */
CASE(test_in_turn)
{
	struct spw_extent extents[100];
	struct spw_alloc *alloc;
	uint64_t next_block;

	random_state = random_seed();
	assert_int_equal(spw_alloc__open(1u << 20, 1000, &alloc), 0);
	for (unsigned round = 0; round < 3; round++) {
		next_block = 0;
		for (unsigned i = 0; i < 100; i++) {
			assert_int_equal(spw_alloc__get(alloc, 1 + below(5000), &extents[i]), 0);
			assert_int_equal(extents[i].start_block, next_block);
			next_block += extents[i].len_blocks;
		}
		for (unsigned i = 100; i > 0; i--) {
			unsigned which = below(i);
			spw_alloc__put(alloc, &extents[which]);
			extents[which] = extents[i - 1];
		}
	}
	spw_alloc__close(alloc);
}

/*
 * Equal lengths go back into the holes they left: nothing beyond the first round is ever touched.
 */
CASE(test_holes_are_reused)
{
	struct spw_extent extents[500];
	struct spw_alloc *alloc;

	random_state = random_seed();
	assert_int_equal(spw_alloc__open(1u << 20, 1000, &alloc), 0);
	for (unsigned i = 0; i < 500; i++)
		assert_int_equal(spw_alloc__get(alloc, 245, &extents[i]), 0);
	for (unsigned i = 0; i < 100000; i++) {
		unsigned which = below(500);
		spw_alloc__put(alloc, &extents[which]);
		assert_int_equal(spw_alloc__get(alloc, 245, &extents[which]), 0);
		assert_in_range(extents[which].start_block, 0, 499 * 245);
	}
	assert_int_equal(spw_alloc__verify(alloc), 0);
	spw_alloc__close(alloc);
}

CASE(test_open_refuses)
{
	struct spw_alloc *alloc = (struct spw_alloc *)1;

	assert_int_equal(spw_alloc__open(0, 1, &alloc), -EINVAL);
	assert_null(alloc);
	assert_int_equal(spw_alloc__open(SPW_ALLOC_BLOCKS_MAX + 1, 1, &alloc), -EINVAL);
	assert_int_equal(spw_alloc__open(1, 0, &alloc), -EINVAL);
	assert_int_equal(spw_alloc__open(1, SPW_ALLOC_EXTENTS_MAX + 1, &alloc), -EINVAL);
	for (memory_fails = 1; memory_fails <= 2; memory_fails++) {
		assert_int_equal(spw_alloc__open(1, 1, &alloc), -ENOMEM);
		assert_null(alloc);
	}
	memory_fails = 0;
	spw_alloc__close(NULL);
}

CASE(test_largest_device)
{
	struct spw_extent whole, small;
	struct spw_alloc *alloc;

	assert_int_equal(spw_alloc__open(SPW_ALLOC_BLOCKS_MAX, 1000, &alloc), 0);
	assert_int_equal(spw_alloc__get(alloc, SPW_ALLOC_BLOCKS_MAX, &whole), 0);
	assert_int_equal(spw_alloc__get(alloc, 1, &small), -ENOSPC);
	assert_int_equal(spw_alloc__get_some(alloc, 1, &small), -ENOSPC);
	assert_int_equal(spw_alloc__verify(alloc), 0);
	spw_alloc__put(alloc, &whole);
	assert_int_equal(spw_alloc__get(alloc, 1, &small), 0);
	assert_int_equal(spw_alloc__get(alloc, SPW_ALLOC_BLOCKS_MAX, &whole), -ENOSPC);
	assert_int_equal(spw_alloc__get(alloc, UINT64_MAX, &whole), -ENOSPC);
	assert_int_equal(spw_alloc__get_some(alloc, UINT64_MAX, &whole), 0);
	assert_int_equal(whole.len_blocks, SPW_ALLOC_BLOCKS_MAX - 1);
	assert_int_equal(spw_alloc__verify(alloc), 0);
	spw_alloc__close(alloc);
}

/* 2^24 blocks cut into 2^20 extents, half of them freed and refilled: the model is verify(). */
CASE(test_many_extents)
{
	const uint32_t count = 1u << 20;
	struct spw_extent *extents = calloc(count, sizeof(*extents));
	struct spw_alloc *alloc;

	assert_non_null(extents);
	assert_int_equal(spw_alloc__open(1u << 24, count, &alloc), 0);
	for (uint32_t i = 0; i < count; i++)
		assert_int_equal(spw_alloc__get(alloc, 16, &extents[i]), 0);
	assert_int_equal(spw_alloc__verify(alloc), 0);
	for (uint32_t i = 0; i < count; i += 2)
		spw_alloc__put(alloc, &extents[i]);
	assert_int_equal(spw_alloc__verify(alloc), 0);
	assert_int_equal(spw_alloc__get(alloc, 17, &extents[0]), -ENOSPC);
	for (uint32_t i = 0; i < count; i += 2)
		assert_int_equal(spw_alloc__get(alloc, 16, &extents[i]), 0);
	assert_int_equal(spw_alloc__blocks_free(alloc), 0);
	for (uint32_t i = 0; i < count; i++)
		spw_alloc__put(alloc, &extents[i]);
	assert_int_equal(spw_alloc__verify(alloc), 0);
	assert_int_equal(spw_alloc__get(alloc, 1u << 24, &extents[0]), 0);
	spw_alloc__close(alloc);
	free(extents);
}

/* ---- What only a broken caller or broken memory can do --------------------------------------- */

CASE(test_misuse_asserts)
{
	struct spw_extent extent, other;
	struct spw_alloc *alloc;

	assert_int_equal(spw_alloc__open(100, 10, &alloc), 0);
	assert_int_equal(spw_alloc__get(alloc, 10, &extent), 0);
	expect_spw_assert(spw_alloc__get(alloc, 0, &other));
	expect_spw_assert(spw_alloc__get_some(alloc, 0, &other));
	other = extent, other.handle = 0;
	expect_spw_assert(spw_alloc__put(alloc, &other));
	other = extent, other.handle = 1000;
	expect_spw_assert(spw_alloc__put(alloc, &other));
	other = extent, other.start_block++;
	expect_spw_assert(spw_alloc__put(alloc, &other));
	other = extent, other.len_blocks--;
	expect_spw_assert(spw_alloc__put(alloc, &other));
	/* Who kept only the handle gets the rest, as long as it is allocated. */
	spw_alloc__extent(alloc, extent.handle, &other);
	assert_memory_equal(&other, &extent, sizeof(other));
	expect_spw_assert(spw_alloc__extent(alloc, 0, &other));
	expect_spw_assert(spw_alloc__extent(alloc, 1000, &other));
	assert_int_equal(spw_alloc__verify(alloc), 0);
	spw_alloc__put(alloc, &extent);
	expect_spw_assert(spw_alloc__put(alloc, &extent)); /* freed twice */
	expect_spw_assert(spw_alloc__extent(alloc, extent.handle, &other));
	spw_alloc__close(alloc);
}

CASE(test_damage_asserts)
{
	struct spw_extent extent;
	struct spw_alloc *alloc;
	uint32_t class = class_of(100);

	assert_int_equal(spw_alloc__open(100, 10, &alloc), 0);
	alloc->second_bits[class / SECOND_COUNT] = 0; /* ALLOC-5 */
	expect_spw_assert(spw_alloc__get(alloc, 1, &extent));
	expect_spw_assert(spw_alloc__get_some(alloc, 1000, &extent));
	alloc->second_bits[class / SECOND_COUNT] = UINT32_C(1) << (class % SECOND_COUNT);
	alloc->descs_fresh = alloc->descs_max; /* ALLOC-7 */
	expect_spw_assert(spw_alloc__get(alloc, 1, &extent));
	alloc->descs_fresh = 2;
	alloc->descs[1].len_blocks = 50; /* ALLOC-4: on the list of another class */
	expect_spw_assert(spw_alloc__get(alloc, 50, &extent));
	alloc->descs[1].len_blocks = 10; /* shorter than its class says */
	expect_spw_assert(spw_alloc__get(alloc, 50, &extent));
	alloc->descs[1].len_blocks = 100;
	alloc->descs[1].list_prev = DESC_USED;
	expect_spw_assert(spw_alloc__get(alloc, 50, &extent));
	spw_alloc__close(alloc);
}

/*
 * A state with everything in it: allocated, free between allocated, two free of one class, spare
 * descriptors.
 */
static struct spw_alloc *planted(struct spw_extent extents[8])
{
	struct spw_alloc *alloc;

	assert_int_equal(spw_alloc__open(100, 10, &alloc), 0);
	for (unsigned i = 0; i < 8; i++)
		assert_int_equal(spw_alloc__get(alloc, 10, &extents[i]), 0);
	spw_alloc__put(alloc, &extents[1]);
	spw_alloc__put(alloc, &extents[3]);
	spw_alloc__put(alloc, &extents[6]);
	spw_alloc__put(alloc, &extents[7]); /* coalesces: leaves a spare descriptor */
	assert_int_equal(spw_alloc__verify(alloc), 0);
	assert_int_not_equal(alloc->desc_spare, 0);
	return alloc;
}

/* Write @value to @field, see @invariant reported, put the field back, see it whole. */
#define plant(field, value, invariant)                                   \
	do {                                                             \
		__typeof__(field) kept = (field);                        \
		(field) = (__typeof__(field))(value);                    \
		assert_int_equal(spw_alloc__verify(alloc), (invariant)); \
		(field) = kept;                                          \
		assert_int_equal(spw_alloc__verify(alloc), 0);           \
	} while (0)

CASE(test_verify_finds_damage)
{
	struct spw_extent extents[8];
	struct spw_alloc *alloc = planted(extents);
	struct desc *descs = alloc->descs;
	uint32_t used = extents[2].handle, hole = extents[1].handle, hole_too = extents[3].handle;
	uint32_t last = descs[0].address_prev, spare = alloc->desc_spare, class = class_of(10);

	plant(descs[used].start_block, 21, 1);
	plant(descs[used].len_blocks, 9, 1);
	plant(descs[used].len_blocks, 0, 1);
	plant(descs[last].len_blocks, 1000, 1);
	plant(descs[last].len_blocks, descs[last].len_blocks - 1, 1);
	plant(descs[last].address_next, used, 1); /* a loop */
	plant(descs[used].list_prev, 0, 2);
	plant(descs[used].address_prev, last, 3);
	plant(descs[used].address_next, 10000, 3);
	plant(descs[0].address_prev, used, 3);
	plant(descs[hole].list_prev, DESC_USED, 4);
	plant(descs[hole].list_prev, used, 4);
	plant(alloc->heads[class], descs[alloc->heads[class]].list_next, 4);
	plant(descs[alloc->heads[class]].list_next, 0, 4);
	plant(descs[hole].list_next, 10000, 4);
	plant(descs[hole].list_next, hole_too, 4);
	plant(descs[descs[hole].list_prev].list_next, used, 4);
	plant(alloc->heads[class], 0, 5);
	plant(alloc->heads[class_of(11)], hole, 5);
	plant(alloc->first_bits, alloc->first_bits | UINT64_C(1) << 63, 5);
	plant(alloc->first_bits, alloc->first_bits | 1u << 20, 5);
	plant(alloc->first_bits, alloc->first_bits & ~UINT64_C(1), 5);
	plant(alloc->second_bits[0], alloc->second_bits[0] | 1u << 31, 5);
	plant(alloc->extents_used, 3, 6);
	plant(alloc->blocks_free, 1, 6);
	plant(descs[used].list_prev, DESC_SPARE, 7);
	plant(descs[spare].list_prev, DESC_USED, 7);
	plant(descs[spare].list_next, spare, 7);
	plant(alloc->desc_spare, 10000, 7);
	plant(alloc->desc_spare, 0, 7);
	plant(alloc->descs_fresh, alloc->descs_max + 1, 7);
	plant(alloc->descs_fresh, alloc->descs_fresh + 1, 7);
	plant(alloc->extents_max, 3, 8);
	/*
	 * Descriptor 0 counted as free: its first neighbour is allocated, so only this is wrong
	 * with it.
	 */
	plant(descs[0].list_prev, DESC_SPARE, 7);
	spw_alloc__close(alloc);
}

/* A free extent listed in a class next to its own, all else in order. */
CASE(test_verify_finds_wrong_class)
{
	struct spw_alloc *alloc;

	assert_int_equal(spw_alloc__open(100, 10, &alloc), 0);
	alloc->heads[class_of(100) + 1] = alloc->heads[class_of(100)];
	alloc->heads[class_of(100)] = 0;
	alloc->second_bits[class_of(100) / SECOND_COUNT] <<= 1;
	assert_int_equal(spw_alloc__verify(alloc), 4);
	spw_alloc__close(alloc);
}

/* A free extent that is listed, but lies nowhere. */
CASE(test_verify_finds_stray)
{
	struct spw_alloc *alloc;
	uint32_t stray;

	assert_int_equal(spw_alloc__open(100, 10, &alloc), 0);
	stray = desc_get(alloc);
	alloc->descs[stray].len_blocks = 7;
	list_insert(alloc, stray);
	assert_int_equal(spw_alloc__verify(alloc), 4);
	spw_alloc__close(alloc);
}

/* ---- Classes --------------------------------------------------------------------------------- */

CASE(test_classes_rise)
{
	uint32_t class = 0, here;

	for (uint64_t len_blocks = 1; len_blocks < 1u << 20; len_blocks++) {
		here = class_of(len_blocks);
		assert_true(here == class || here == class + 1);
		assert_true(class_surely_fitting(len_blocks) == (here == class ? here + 1 : here));
		class = here;
	}
	assert_int_equal(class_of(SPW_ALLOC_BLOCKS_MAX), (FIRST_COUNT - 1) * SECOND_COUNT);
	assert_int_equal(class_surely_fitting(SPW_ALLOC_BLOCKS_MAX),
			 class_of(SPW_ALLOC_BLOCKS_MAX));
}

RUN_CASES(NULL, NULL)
