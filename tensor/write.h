/* SPDX-License-Identifier: MIT */
/* tensor/write.h - writes: how they begin, are deferred or cancelled, and end */
#ifndef SPW_TENSOR_WRITE_H
#define SPW_TENSOR_WRITE_H

#include "tensor/internal.h"

/* Whether @len_bytes more would exceed staging_bytes, the limit of what waits to be written. */
bool spw_cache__write_is_full(const struct spw_cache *cache, uint64_t len_bytes);
/* Write the entry, or defer the write. Return: 0; or a negative errno: it is not written. */
int spw_cache__write_begin(struct entry *entry);
/*
 * Get staging memory for the bytes of a device's tensor, unless it has host memory to stay in. The
 * caller copies there. Return: 0; -ENOBUFS there is none now.
 */
int spw_cache__write_begin_copy(struct entry *entry);
/* The last copy of a device's tensor into staging memory has ended. */
void spw_cache__write_copied(struct entry *entry);
/* What the caller has to copy. */
struct spw_copy spw_cache__write_copy_of(const struct entry *entry);
/* The oldest copy that the caller should order now (spw_cache_ordered()); value 0: none. */
spw_tensor spw_cache__write_order(struct spw_cache *cache);
/* Count and note why an entry that should be written is kept. */
void spw_cache__write_failed(struct entry *entry, int error, const char *words);
/* Issue the deferred write. */
void spw_cache__write_issue(struct spw_cache *cache);
/* Issue the deferred write, if there is one. */
static inline void spw_cache__write_deferred(struct spw_cache *cache)
{
	if (cache->deferred)
		spw_cache__write_issue(cache);
}
/* Lock, and issue the deferred write: most calls begin with it. */
void spw_cache__enter(struct spw_cache *cache);
/* The bytes are still in memory: keep them there, and cancel the write if possible. */
void spw_cache__write_forward(struct entry *entry);

#endif
