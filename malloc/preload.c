// SPDX-License-Identifier: MIT
/* malloc/preload.c - malloc(), free() etc.: large blocks from spans, others passed on */
#include "malloc/preload.h"

#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <unistd.h>

#include "malloc/next.h"
#include "malloc/spans.h"

#define EXPORT      __attribute__((visibility("default")))
#define LARGE_BYTES ((size_t)1 << 20)
#define CACHE_BYTES ((uint64_t)1 << 30)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* base and count are set before main() and any thread, so they are read without the lock */
static struct spw_spans spans;

/*
 * Set while this thread holds the lock for fork(2). Other libraries' fork handlers may allocate
 * meanwhile; that is safe without locking, as this thread is in none of the functions below.
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

/* Abort, like libc's free() of a bad pointer: continuing would corrupt memory. */
__attribute__((noreturn)) static void refuse(const char *function)
{
	static const char words[] = "(): not a block in use: freed twice, or a pointer into one\n";
	struct iovec text[] = {{(void *)(uintptr_t)function, strlen(function)},
			       {(void *)(uintptr_t)words, sizeof(words) - 1}};

	(void)!writev(STDERR_FILENO, text, 2);
	abort();
}

/* getenv() by hand: a shell may define its own getenv(), which does not work before main(). */
static const char *environment(const char *name)
{
	size_t len = strlen(name);

	for (char **entry = environ; entry && *entry; entry++)
		if (strncmp(*entry, name, len) == 0 && (*entry)[len] == '=')
			return *entry + len + 1;
	return NULL;
}

static uint64_t setting(const char *name, uint64_t otherwise)
{
	const char *text = environment(name);
	unsigned long long value;
	char *end;

	if (!text || text[0] < '0' || text[0] > '9')
		return otherwise;
	errno = 0;
	value = strtoull(text, &end, 10);
	return *end != '\0' || errno != 0 ? otherwise : value;
}

/* The size of memory, but at most half of the address space if that is limited (RLIMIT_AS). */
static uint64_t address_bytes(void)
{
	uint64_t memory_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
	struct rlimit limit;

	if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
	    limit.rlim_cur / 2 < memory_bytes)
		return limit.rlim_cur / 2;
	return memory_bytes;
}

/* Tell the user, only in the process that `spillway run` became, not in its children. */
static void say(const char *file)
{
	char line[512];
	int len;

	if (setting("SPILLWAY_MALLOC_PID", 0) != (uint64_t)getpid())
		return;
	len = snprintf(
		line, sizeof(line),
		"spillway run: malloc() is that of %.256s, which is preloaded or linked: all "
		"memory comes from there, large blocks, too\n",
		file);
	(void)!write(STDERR_FILENO, line, len < (int)sizeof(line) ? (size_t)len : sizeof(line));
}

/*
 * The file whose malloc() the program calls instead of ours; NULL: ours. Found by calling it,
 * because the symbol may resolve to a stub that calls ours.
 */
static const char *first_foreign(void)
{
	static Dl_info info;
	void *(*first)(size_t size);
	void (*release)(void *block);
	void *found = dlsym(RTLD_DEFAULT, "malloc"), *block;
	bool ours;

	memcpy(&first, &found, sizeof(found));
	if (!found || dladdr(found, &info) == 0)
		return NULL;
	found = dlsym(RTLD_DEFAULT, "free");
	memcpy(&release, &found, sizeof(found));
	block = first(LARGE_BYTES);
	ours = !block || spw_spans_own(&spans, block);
	if (release)
		release(block);
	return ours ? NULL : info.dli_fname;
}

/*
 * If any step fails, spans stay empty and the next allocator serves everything. So it does if it is
 * not libc's: such an allocator has more functions that free (operator delete, sdallocx()), which
 * programs would call with our blocks.
 */
__attribute__((constructor)) static void begin(void)
{
	const char *foreign = spw_next_foreign();

	if (!foreign && pthread_atfork(before_fork, after_fork, after_fork) == 0 &&
	    spw_spans_init(&spans, setting("SPILLWAY_MALLOC_BYTES", address_bytes()),
			   setting("SPILLWAY_MALLOC_CACHE_BYTES", CACHE_BYTES)) == 0) {
		foreign = first_foreign();
		if (foreign)
			spw_spans_destroy(&spans);
	}
	if (foreign)
		say(foreign);
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
	const struct spw_next *next = spw_next();
	bool zeroed;
	void *block = take(size, &zeroed);

	if (block)
		return block;
	return next ? next->malloc(size) : spw_next_early(size);
}

EXPORT void free(void *block)
{
	int error = errno; /* free() must preserve errno */
	bool used;

	if (!spw_spans_own(&spans, block)) {
		if (block && spw_next_early_bytes(block) == 0)
			spw_next()->free(block);
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
	const struct spw_next *next = spw_next();
	bool zeroed = false;
	size_t total;
	void *block;

	if (__builtin_mul_overflow(count, size, &total)) {
		errno = ENOMEM;
		return NULL;
	}
	block = take(total, &zeroed);
	if (block)
		return zeroed ? block : memset(block, 0, total);
	return next ? next->calloc(count, size) : spw_next_early(total);
}

/* Move a block of @have bytes, from spw_next_early() or spans, to a new block of @size bytes. */
static void *move(void *block, size_t have, size_t size)
{
	void *moved = malloc(size);

	if (!moved)
		return size <= have ? block : NULL;
	memcpy(moved, block, size < have ? size : have);
	free(block);
	return moved;
}

/* A block of the next allocator is resized by it, as it may grow in place. */
EXPORT void *realloc(void *block, size_t size)
{
	size_t have = spw_next_early_bytes(block);

	if (!block)
		return malloc(size);
	if (have > 0)
		return move(block, have, size);
	if (!spw_spans_own(&spans, block))
		return spw_next()->realloc(block, size);
	if (size == 0) {
		free(block);
		return NULL;
	}
	if (!spw_spans_used(&spans, block))
		refuse("realloc");
	/* No lock needed: the length of a block in use does not change. */
	have = spw_spans_len_bytes(&spans, block);
	return size <= have && size >= have / 2 ? block : move(block, have, size);
}

static void *take_aligned(size_t align, size_t size)
{
	bool zeroed;

	return align <= SPW_SPAN_BYTES ? take(size, &zeroed) : NULL;
}

EXPORT void *memalign(size_t align, size_t size)
{
	void *block = take_aligned(align, size);

	return block ? block : spw_next()->memalign(align, size);
}

EXPORT void *aligned_alloc(size_t align, size_t size)
{
	void *block = take_aligned(align, size);

	return block ? block : spw_next()->aligned_alloc(align, size);
}

EXPORT int posix_memalign(void **block, size_t align, size_t size)
{
	int error = errno;
	void *got;

	if (align < sizeof(void *) || (align & (align - 1)) != 0)
		return EINVAL;
	got = take_aligned(align, size);
	errno = error;
	if (!got)
		return spw_next()->posix_memalign(block, align, size);
	*block = got;
	return 0;
}

EXPORT size_t malloc_usable_size(void *block)
{
	if (spw_spans_own(&spans, block))
		return spw_spans_len_bytes(&spans, block);
	return spw_next_early_bytes(block) > 0 ? 0 : spw_next()->malloc_usable_size(block);
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

EXPORT void spw_malloc_step(void)
{
	lock_spans();
	if (spans.count > 0)
		spw_spans_step(&spans);
	unlock_spans();
}
