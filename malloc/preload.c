// SPDX-License-Identifier: MIT
/* malloc/preload.c - malloc and its like: large blocks from spans, the rest from libc */
#include "malloc/preload.h"

#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <unistd.h>

#include "malloc/spans.h"

#define EXPORT      __attribute__((visibility("default")))
#define LARGE_BYTES ((size_t)1 << 20)
#define CACHE_BYTES ((uint64_t)1 << 30)

/* glibc's own, under the names that are not replaced here. */
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *block, size_t size);
void *__libc_memalign(size_t align, size_t size);
void __libc_free(void *block);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* base and count are set once, before main() and any thread: read without the lock */
static struct spw_spans spans;

/*
 * This thread holds the lock because it forks: handlers of other libraries may allocate meanwhile,
 * but it is in none of the functions below. In the child it is the only thread.
 */
static __thread bool forking __attribute__((tls_model("initial-exec")));

static void lock_spans(void)
{
	if (!forking)
		(void)pthread_mutex_lock(&lock);
}

static void unlock_spans(void)
{
	if (!forking)
		(void)pthread_mutex_unlock(&lock);
}

static void before_fork(void)
{
	(void)pthread_mutex_lock(&lock);
	forking = true;
}

static void after_fork(void)
{
	forking = false;
	(void)pthread_mutex_unlock(&lock);
}

/* As libc's free() of a bad pointer: going on would corrupt somebody's memory. */
__attribute__((noreturn)) static void refuse(const char *function)
{
	static const char words[] = "(): not a block in use: freed twice, or a pointer into one\n";
	struct iovec text[] = {{(void *)(uintptr_t)function, strlen(function)},
			       {(void *)(uintptr_t)words, sizeof(words) - 1}};

	(void)!writev(STDERR_FILENO, text, 2);
	abort();
}

static uint64_t setting(const char *name, uint64_t otherwise)
{
	const char *text = getenv(name);
	unsigned long long value;
	char *end;

	if (!text || text[0] < '0' || text[0] > '9')
		return otherwise;
	errno = 0;
	value = strtoull(text, &end, 10);
	return *end != '\0' || errno != 0 ? otherwise : value;
}

/* As much as there is memory. Where address space is limited all else needs some too. */
static uint64_t address_bytes(void)
{
	uint64_t memory_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
	struct rlimit limit;

	if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
	    limit.rlim_cur / 2 < memory_bytes)
		return limit.rlim_cur / 2;
	return memory_bytes;
}

__attribute__((constructor)) static void begin(void)
{
	/* If either fails libc serves everything. */
	if (pthread_atfork(before_fork, after_fork, after_fork) == 0)
		(void)spw_spans_init(&spans, setting("SPILLWAY_MALLOC_BYTES", address_bytes()),
				     setting("SPILLWAY_MALLOC_CACHE_BYTES", CACHE_BYTES));
}

static void *take(size_t size, bool *zeroed)
{
	void *block;

	if (size < LARGE_BYTES || spans.count == 0)
		return NULL;
	lock_spans();
	block = spw_spans_take(&spans, size, zeroed);
	unlock_spans();
	return block;
}

EXPORT void *malloc(size_t size)
{
	bool zeroed;
	void *block = take(size, &zeroed);

	return block ? block : __libc_malloc(size);
}

EXPORT void free(void *block)
{
	int error = errno; /* free() keeps it */
	bool used;

	if (!spw_spans_own(&spans, block)) {
		__libc_free(block);
		return;
	}
	lock_spans();
	used = spw_spans_used(&spans, block);
	if (used)
		spw_spans_give(&spans, block);
	unlock_spans();
	if (!used)
		refuse("free");
	errno = error;
}

EXPORT void *calloc(size_t count, size_t size)
{
	bool zeroed = false;
	size_t total;
	void *block;

	if (__builtin_mul_overflow(count, size, &total)) {
		errno = ENOMEM;
		return NULL;
	}
	block = take(total, &zeroed);
	if (!block)
		return __libc_calloc(count, size);
	return zeroed ? block : memset(block, 0, total);
}

/* What libc has stays with libc: it may grow in place. */
EXPORT void *realloc(void *block, size_t size)
{
	size_t have;
	void *moved;

	if (!block)
		return malloc(size);
	if (!spw_spans_own(&spans, block))
		return __libc_realloc(block, size);
	if (size == 0) {
		free(block);
		return NULL;
	}
	if (!spw_spans_used(&spans, block))
		refuse("realloc");
	/* No lock: a block in use does not change its length. */
	have = spw_spans_len_bytes(&spans, block);
	if (size <= have && size >= have / 2)
		return block;
	moved = malloc(size);
	if (!moved)
		return size <= have ? block : NULL;
	memcpy(moved, block, size < have ? size : have);
	free(block);
	return moved;
}

EXPORT void *memalign(size_t align, size_t size)
{
	bool zeroed;
	void *block = align <= SPW_SPAN_BYTES ? take(size, &zeroed) : NULL;

	return block ? block : __libc_memalign(align, size);
}

EXPORT void *aligned_alloc(size_t align, size_t size)
{
	return memalign(align, size);
}

EXPORT int posix_memalign(void **block, size_t align, size_t size)
{
	int error = errno;
	void *got;

	if (align < sizeof(void *) || (align & (align - 1)) != 0)
		return EINVAL;
	got = memalign(align, size);
	errno = error;
	if (!got)
		return ENOMEM;
	*block = got;
	return 0;
}

EXPORT size_t malloc_usable_size(void *block)
{
	static size_t (*of_libc)(void *);

	if (spw_spans_own(&spans, block))
		return spw_spans_len_bytes(&spans, block);
	if (!__atomic_load_n(&of_libc, __ATOMIC_RELAXED)) {
		void *found = dlsym(RTLD_NEXT, "malloc_usable_size");

		__atomic_store(&of_libc, (size_t(**)(void *))(void *)&found, __ATOMIC_RELAXED);
	}
	return of_libc ? of_libc(block) : 0;
}

EXPORT void spw_malloc_stats(struct spw_malloc_stats *stats, size_t size)
{
	struct spw_malloc_stats now;

	lock_spans();
	now = (struct spw_malloc_stats){.size = size,
					.used_bytes = spans.used_bytes,
					.resident_free_bytes = spans.resident_free_bytes,
					.taken = spans.taken,
					.reused = spans.reused,
					.refused = spans.refused,
					.returned_bytes = spans.returned_bytes};
	unlock_spans();
	memcpy(stats, &now, size < sizeof(now) ? size : sizeof(now));
}
