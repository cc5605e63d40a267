/* SPDX-License-Identifier: MIT */
/* tensor/rules.h - which tensors are kept, spilled or discarded */
#ifndef SPW_TENSOR_RULES_H
#define SPW_TENSOR_RULES_H

#include "tensor/internal.h"

/* Why to keep the tensor; KEEP_NOT: it should be spilled. */
enum keep_reason spw_cache__rule_keep(const struct entry *entry, enum spw_cache_hint hint);
/* Why it cannot be written now; KEEP_NOT: it can. */
enum keep_reason spw_cache__rule_limit(const struct entry *entry);
/* Whether to discard it: it will be recomputed. */
bool spw_cache__rule_discards(const struct entry *entry, enum spw_cache_hint hint);
/* The serial number of the scope that the caller is in; 0: none. */
uint64_t spw_cache__rule_scope(const struct spw_cache *cache);
/* Count what was offered in the current stage and scope. */
void spw_cache__rule_offered(struct spw_cache *cache, uint64_t len_bytes, bool spilled);

#endif
