/* SPDX-License-Identifier: MIT */
/* tensor/write.h - writes: how they begin, are deferred or cancelled, and end */
#ifndef SPW_TENSOR_WRITE_H
#define SPW_TENSOR_WRITE_H

#include "tensor/internal.h"

/* So much more may not wait to be written; no more than staging_bytes at a time. */
bool spw_cache__write_is_full(const struct spw_cache *cache, uint64_t len_bytes);
/* Write it, or defer the write. Return: 0; or why not. */
int spw_cache__write_begin(struct entry *entry);
/*
 * Staging memory for the bytes of a device's tensor, which the caller is to copy. Return: 0;
 * -ENOBUFS there is none now.
 */
int spw_cache__write_begin_copy(struct entry *entry);
/* The last copy of a device's tensor into staging memory has ended. */
void spw_cache__write_copied(struct entry *entry);
/* What the caller is to do. */
struct spw_copy spw_cache__write_copy_of(const struct entry *entry);
/* The oldest copy that the caller should order (spw_cache_ordered()); NULL: few are in flight. */
struct entry *spw_cache__write_to_order(struct spw_cache *cache);
/* Count and note why an entry is kept that was to be written. */
void spw_cache__write_failed(struct entry *entry, int error, const char *words);
/* The deferred write goes to the store. */
void spw_cache__write_issue(struct spw_cache *cache);
/* The same, if there is one. */
static inline void spw_cache__write_deferred(struct spw_cache *cache)
{
	if (cache->deferred)
		spw_cache__write_issue(cache);
}
/* As most calls begin: lock, and that. */
void spw_cache__enter(struct spw_cache *cache);
/* The bytes are still in memory: leave them there. */
void spw_cache__write_forward(struct entry *entry);

#endif
