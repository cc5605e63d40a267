/* SPDX-License-Identifier: MIT */
/* tensor/trace.h - what a trace is told of the cache's calls */
#ifndef SPW_TENSOR_TRACE_H
#define SPW_TENSOR_TRACE_H

#include "tensor/internal.h"

/* Records the event; while the caller recomputes, after the time spent on that so far. */
void spw_cache__trace(struct spw_cache *cache, struct spw_trace_event *event);
/* The caller has recomputed something until @now_ns. */
void spw_cache__trace_recompute(struct spw_cache *cache, uint64_t now_ns);

/* Records a call: the fields of its event. */
#define CACHE_TRACE(cache, ...)                                                                  \
	((cache)->opts.trace ? spw_cache__trace((cache), &(struct spw_trace_event){__VA_ARGS__}) \
			     : (void)0)

#endif
