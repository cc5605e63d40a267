/* SPDX-License-Identifier: MIT */
/* tests/unit/test_engine_arena.c - DMA memory: first fit against a model, bounds, kinds of pages */
/* wrap: mmap munmap madvise */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <linux/mman.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/case.h"
#include "tests/random.h"
#include "tests/unit/resident.h"

#include "engine/arena.h"

#define GRANULE  ((size_t)SPW_ARENA_GRANULE_BYTES)
#define GRANULES 160u /* 10 MiB: not a multiple of 64 */

static struct spw_arena *arena;
static uint64_t seed;

static uint64_t draw(void)
{
	return random_next(&seed);
}

static int set_up(void **state)
{
	struct spw_arena_opts opts;

	(void)state;
	spw_arena_opts_init(&opts, sizeof(opts));
	assert_int_equal(opts.bytes, 256u << 20);
	assert_int_equal(opts.numa_node, -1);
	opts.bytes = GRANULES * GRANULE;
	opts.no_hugetlb = true;
	return spw_arena_open(&opts, &arena);
}

static int tear_down(void **state)
{
	(void)state;
	spw_arena_close(arena);
	return 0;
}

#define ARENA_TEST(name) CASE_WITH(name, set_up, tear_down)

/* ARENA-1, ARENA-3, ARENA-4 */
ARENA_TEST(test_first_fit_against_a_model)
{
	bool used[GRANULES] = {false};
	struct {
		unsigned first, count;
	} held[GRANULES];
	unsigned held_count = 0, used_count = 0, refusals = 0;

	for (unsigned round = 0; round < 20000; round++) {
		if (held_count > 0 && draw() % 2) {
			unsigned pick = (unsigned)(draw() % held_count);
			char *memory = arena->base + held[pick].first * GRANULE;

			/* Still what was written when it was allocated. */
			assert_int_equal(*(unsigned *)(void *)memory, held[pick].first ^ 0x5aa5);
			spw_arena_free(arena, memory);
			memset(used + held[pick].first, 0, held[pick].count);
			used_count -= held[pick].count;
			held[pick] = held[--held_count];
		} else {
			unsigned count = 1 + (unsigned)(draw() % (draw() % 4 ? 6 : 90)), first = 0,
				 run = 0;
			void *memory;
			int ret = spw_arena_alloc(
				arena, (count - 1) * GRANULE + 8 + draw() % (GRANULE - 8), &memory);

			for (; first + run < GRANULES && run < count;)
				if (used[first + run]) {
					first += run + 1;
					run = 0;
				} else {
					run++;
				}
			if (run < count) {
				assert_int_equal(ret, -ENOBUFS);
				assert_null(memory);
				refusals++;
				continue;
			}
			assert_int_equal(ret, 0);
			assert_ptr_equal(memory, arena->base + first * GRANULE);
			*(unsigned *)memory = first ^ 0x5aa5;
			memset(used + first, 1, count);
			used_count += count;
			held[held_count].first = first;
			held[held_count++].count = count;
		}
		assert_int_equal(arena->bytes_used, used_count * GRANULE);
	}
	assert_true(refusals > 0);
}

/* ARENA-2 */
ARENA_TEST(test_memory_that_is_freed_twice_ends_the_process)
{
	void *one;
	int status;
	pid_t child;

	assert_int_equal(spw_arena_alloc(arena, GRANULE, &one), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		(void)close(STDERR_FILENO);
		spw_arena_free(arena, one);
		spw_arena_free(arena, one);
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
	spw_arena_free(arena, one);
}

ARENA_TEST(test_bounds)
{
	void *all, *more;
	size_t len;

	assert_int_equal((uintptr_t)arena->base % SPW_HUGE_PAGE_BYTES, 0);
	assert_int_equal(spw_arena_alloc(arena, 0, &more), -EINVAL);
	assert_int_equal(spw_arena_alloc(arena, SIZE_MAX, &more), -ENOBUFS);
	assert_int_equal(spw_arena_alloc(arena, GRANULES * GRANULE + 1, &more), -ENOBUFS);
	assert_int_equal(spw_arena_alloc(arena, GRANULES * GRANULE, &all), 0);
	assert_int_equal(spw_arena_alloc(arena, 1, &more), -ENOBUFS);
	assert_ptr_equal(spw_arena_memory(arena, &len), all);
	assert_int_equal(len, GRANULES * GRANULE);
	spw_arena_free(arena, NULL);
	spw_arena_free(arena, all);
	assert_int_equal(spw_arena_alloc(arena, 1, &more), 0);
	assert_ptr_equal(more, all);
}

ARENA_TEST(test_impossible_sizes)
{
	struct spw_arena_opts opts;
	struct spw_arena *other;

	spw_arena_opts_init(&opts, sizeof(opts));
	opts.bytes = 0;
	assert_int_equal(spw_arena_open(&opts, &other), -EINVAL);
	opts.bytes = UINT64_MAX;
	assert_int_equal(spw_arena_open(&opts, &other), -EINVAL);
	assert_null(other);
}

static unsigned warnings, lines;

static void collect(void *context, enum spw_log_level level, const char *message)
{
	(void)context;
	(void)message;
	lines++;
	warnings += level >= SPW_LOG_WARNING;
}

ARENA_TEST(test_pages_are_told_and_a_missing_node_is_no_error)
{
	struct spw_arena_opts opts;
	struct spw_arena *other;
	void *memory;

	spw_arena_opts_init(&opts, sizeof(opts));
	opts.bytes = 1;
	opts.numa_node = 100000;
	opts.log.write = collect;
	assert_int_equal(spw_arena_open(&opts, &other), 0);
	assert_true(lines > 0);
	assert_true(warnings > 0);
	assert_int_equal(other->len_bytes, SPW_HUGE_PAGE_BYTES);
	assert_int_equal(spw_arena_alloc(other, SPW_HUGE_PAGE_BYTES, &memory), 0);
	memset(memory, 0xff, SPW_HUGE_PAGE_BYTES);
	spw_arena_close(other);
}

/* ---- Huge pages that are reserved, and not to be had ---- */

/* what the kernel says when the huge pages are asked for; 0: nothing is pretended */
static int populate_error;
static void *huge; /* where the reserved ones are */
static bool given_back;

void *__real_mmap(void *at, size_t len, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t len, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t len, int protection, int flags, int fd, off_t offset)
{
	if (!populate_error || !(flags & MAP_HUGETLB))
		return __real_mmap(at, len, protection, flags, fd, offset);
	given_back = false;
	huge = __real_mmap(at, len, protection, flags & (int)~(MAP_HUGETLB | MAP_HUGE_2MB), fd,
			   offset);
	return huge;
}

int __real_munmap(void *at, size_t len);
int __wrap_munmap(void *at, size_t len);
int __wrap_munmap(void *at, size_t len)
{
	given_back = given_back || at == huge;
	return __real_munmap(at, len);
}

int __real_madvise(void *at, size_t len, int advice);
int __wrap_madvise(void *at, size_t len, int advice);
int __wrap_madvise(void *at, size_t len, int advice)
{
	if (!populate_error || at != huge || advice != MADV_POPULATE_WRITE)
		return __real_madvise(at, len, advice);
	errno = populate_error;
	return -1;
}

static void open_pretending(int error, struct spw_arena **opened)
{
	struct spw_arena_opts opts;
	void *memory;

	spw_arena_opts_init(&opts, sizeof(opts));
	opts.bytes = 2 * SPW_HUGE_PAGE_BYTES;
	populate_error = error;
	assert_int_equal(spw_arena_open(&opts, opened), 0);
	populate_error = 0;
	assert_int_equal(spw_arena_alloc(*opened, opts.bytes, &memory), 0);
	memset(memory, 0xff, opts.bytes);
}

ARENA_TEST(test_huge_pages_that_cannot_be_had_are_not_used)
{
	struct spw_arena *other;

	open_pretending(EFAULT, &other);
	assert_int_not_equal(other->pages, SPW_PAGES_HUGETLB);
	assert_true(given_back);
	spw_arena_close(other);
	/* A kernel that cannot be asked. */
	open_pretending(EINVAL, &other);
	assert_int_equal(other->pages, SPW_PAGES_HUGETLB);
	assert_false(given_back);
	spw_arena_close(other);
	assert_true(given_back);
}

/* ---- Pages that go back to the system ---- */

static char *allocated(size_t granules)
{
	void *memory;

	assert_int_equal(spw_arena_alloc(arena, granules * GRANULE, &memory), 0);
	memset(memory, 0x5a, granules * GRANULE);
	return memory;
}

static void expect_content(const char *memory, size_t len)
{
	for (size_t i = 0; i < len; i++)
		assert_int_equal(memory[i], 0x5a);
}

/* ARENA-5: of 160 granules the lowest 49 are in use, and 32 fill a huge page. */
ARENA_TEST(test_pages_after_the_last_allocation_are_given_back)
{
	char *low = allocated(1), *middle = allocated(48), *high = allocated(100);
	char *end = arena->base + 64 * GRANULE;

	assert_int_equal(spw_engine__arena_idle_bytes(arena), 0);
	spw_arena_free(arena, high);
	assert_int_equal(spw_engine__arena_end(arena), 49 * GRANULE);
	assert_int_equal(spw_engine__arena_idle_bytes(arena), 100 * GRANULE);
	/* None below where the caller says. */
	assert_int_equal(spw_engine__arena_give_back(arena, 128 * GRANULE), 21 * GRANULE);
	assert_true(resident_bytes(end, 64 * GRANULE) > 0);
	assert_int_equal(spw_engine__arena_give_back(arena, 0), 64 * GRANULE);
	assert_int_equal(resident_bytes(end, 96 * GRANULE), 0);
	expect_content(low, GRANULE);
	expect_content(middle, 48 * GRANULE);
	assert_int_equal(spw_engine__arena_give_back(arena, 0), 0);
	assert_ptr_equal(allocated(100), high);
	assert_int_equal(spw_engine__arena_give_back(arena, 0), 0);
	expect_content(high, 100 * GRANULE);
	/* All of it, once nothing is in use. */
	spw_arena_free(arena, low);
	spw_arena_free(arena, middle);
	spw_arena_free(arena, high);
	assert_int_equal(spw_engine__arena_end(arena), 0);
	assert_int_equal(spw_engine__arena_give_back(arena, 0), 149 * GRANULE);
	assert_int_equal(resident_bytes(arena->base, GRANULES * GRANULE), 0);
}

ARENA_TEST(test_pages_that_stay)
{
	char *memory = allocated(GRANULES);

	spw_arena_free(arena, memory);
	arena->pages = SPW_PAGES_HUGETLB;
	assert_int_equal(spw_engine__arena_idle_bytes(arena), 0);
	assert_int_equal(spw_engine__arena_give_back(arena, 0), 0);
	arena->pages = SPW_PAGES_TRANSPARENT;
	assert_int_equal(spw_engine__arena_idle_bytes(arena), GRANULES * GRANULE);
	spw_engine__arena_stay(arena);
	assert_int_equal(spw_engine__arena_idle_bytes(arena), 0);
	assert_int_equal(spw_engine__arena_give_back(arena, 0), 0);
	assert_int_equal(resident_bytes(memory, GRANULES * GRANULE), GRANULES * GRANULE);
}

/* ---- Threads ---- */

static _Atomic unsigned churned;

static void *churn(void *context)
{
	uint64_t *failures = context;

	for (unsigned i = 0; i < 1000; i++) {
		size_t last = (i % 50) * GRANULE;
		char *memory;

		if (spw_arena_alloc(arena, last + GRANULE, (void **)&memory))
			continue;
		*(volatile unsigned *)(void *)(memory + last) = i + 1;
		(void)sched_yield();
		if (*(volatile unsigned *)(void *)(memory + last) != i + 1)
			(*failures)++;
		spw_arena_free(arena, memory);
	}
	atomic_fetch_add(&churned, 1);
	return NULL;
}

ARENA_TEST(test_any_thread_may_use_it)
{
	pthread_t threads[4];
	uint64_t failures[4] = {0};

	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, churn, &failures[i]), 0);
	while (atomic_load(&churned) < 4)
		(void)spw_engine__arena_give_back(arena, 0);
	for (unsigned i = 0; i < 4; i++) {
		assert_int_equal(pthread_join(threads[i], NULL), 0);
		assert_int_equal(failures[i], 0);
	}
	assert_int_equal(arena->bytes_used, 0);
}

int main(void)
{
	seed = random_seed();
	return cmocka_run_group_tests(test_cases, NULL, NULL);
}
