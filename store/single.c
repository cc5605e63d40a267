/* SPDX-License-Identifier: MIT */
/* store/single.c - where a mirrored object gets one copy alone: logged once, and counted */
#include "store/internal.h"

/* From any thread. @len_bytes: of what has one copy. */
void spw_store__single_note(struct spw_store *store, uint64_t len_bytes)
{
	uint64_t chunks = (len_bytes + store->chunk_bytes - 1) / store->chunk_bytes;
	char advice[SPW_ADVICE_BYTES];

	atomic_fetch_add_explicit(&store->count.chunks_single, chunks, memory_order_relaxed);
	if (atomic_exchange(&store->mirrors_short, true))
		return;
	spw_log(&store->opts.log, SPW_LOG_WARNING,
		"no second drive in service has room for copies: what is put has one copy alone, "
		"until that changes: %s",
		spw_store__service_advice(store, "free objects, or use more drives", advice));
}
