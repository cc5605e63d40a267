/* SPDX-License-Identifier: MIT */
/* tensor/ports.c - the cache over a store, in the system's time */
#include "tensor/ports.h"

#include "util/util.h"

const struct spw_cache_ports spw_cache_ports_real = {
	.chunk_bytes = spw_store_chunk_bytes,
	.stats = spw_store_stats,
	.put = spw_store_put,
	.get = spw_store_get,
	.holds = spw_store_holds,
	.free = spw_store_free,
	.alloc = spw_store_alloc,
	.release = spw_store_release,
	.wait = spw_request_wait,
	.cancel = spw_request_cancel,
	.raise = spw_request_raise,
	.clock_ns = spw_clock_ns,
	.sleep = pthread_cond_wait,
};
