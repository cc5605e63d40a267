/* SPDX-License-Identifier: MIT */
/* tensor/trace.c - what a trace is told of the cache's calls */
#include "tensor/internal.h"
#include "tensor/trace.h"

void spw_cache__trace_recompute(struct spw_cache *cache, uint64_t now_ns)
{
	struct spw_trace_event again = {.kind = SPW_TRACE_AGAIN,
					.wait_ns = now_ns - cache->recompute_traced_ns};

	spw_trace_write(cache->opts.trace, &again);
	cache->recompute_traced_ns = now_ns;
}

/* In the trace, what happens during a recompute happens when that began. */
void spw_cache__trace(struct spw_cache *cache, struct spw_trace_event *event)
{
	if (cache->recompute_depth > 0)
		spw_cache__trace_recompute(cache, cache->ports.clock_ns());
	spw_trace_write(cache->opts.trace, event);
}
