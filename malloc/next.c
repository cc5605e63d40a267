// SPDX-License-Identifier: MIT
/* malloc/next.c - spw_next(): finds the allocator behind this one; early memory until then */
#include "malloc/next.h"

#include <dlfcn.h>
#include <stdint.h>
#include <string.h>

#define EARLY_BYTES ((size_t)16 << 10)
#define EARLY_ALIGN ((size_t)64)

static struct spw_next next;
static bool filled;
static __thread bool filling __attribute__((tls_model("initial-exec")));

static _Alignas(EARLY_ALIGN) char early[EARLY_BYTES];
static size_t early_used;

/* Copied, because ISO C has no cast from an object pointer to a function pointer. */
static void find(void *function, const char *name)
{
	void *found = dlsym(RTLD_NEXT, name);

	memcpy(function, &found, sizeof(found));
}

/* Several threads may run this at the same time: they all write the same values. */
static void fill(void)
{
	find(&next.malloc, "malloc");
	find(&next.calloc, "calloc");
	find(&next.realloc, "realloc");
	find(&next.free, "free");
	find(&next.memalign, "memalign");
	find(&next.aligned_alloc, "aligned_alloc");
	find(&next.posix_memalign, "posix_memalign");
	find(&next.malloc_usable_size, "malloc_usable_size");
}

const struct spw_next *spw_next(void)
{
	if (__atomic_load_n(&filled, __ATOMIC_ACQUIRE))
		return &next;
	/* dlsym() of older C libraries calls malloc(), which ends up here again. */
	if (filling)
		return NULL;
	filling = true;
	fill();
	filling = false;
	__atomic_store_n(&filled, true, __ATOMIC_RELEASE);
	return &next;
}

void *spw_next_early(size_t size)
{
	size_t rounded = (size + EARLY_ALIGN - 1) & ~(EARLY_ALIGN - 1), at;

	if (size == 0 || size > EARLY_BYTES)
		return NULL;
	at = __atomic_fetch_add(&early_used, rounded, __ATOMIC_RELAXED);
	return at + rounded <= EARLY_BYTES ? early + at : NULL;
}

size_t spw_next_early_bytes(const void *block)
{
	size_t at = (size_t)((uintptr_t)block - (uintptr_t)early);

	return at < EARLY_BYTES ? EARLY_BYTES - at : 0;
}

static bool same_file(const Dl_info *one, const char *name)
{
	void *function = dlsym(RTLD_NEXT, name);
	Dl_info other;

	return !function || dladdr(function, &other) == 0 || other.dli_fbase == one->dli_fbase;
}

const char *spw_next_foreign(void)
{
	static Dl_info found; /* static, as the returned string belongs to the loader */
	static const char *const names[] = {"malloc", "free"};
	Dl_info libc;

	if (dladdr(dlsym(RTLD_NEXT, "gnu_get_libc_version"), &libc) == 0)
		return NULL;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (!same_file(&libc, names[i]) && dladdr(dlsym(RTLD_NEXT, names[i]), &found) != 0)
			return found.dli_fname;
	return NULL;
}
