/* SPDX-License-Identifier: MIT */
/* state/ports.c - the state over a store of spillway/store.h */
#include "state/ports.h"

const struct spw_state_ports spw_state__ports_real = {
	.chunk_bytes = spw_store_chunk_bytes,
	.stats = spw_store_stats,
	.drive_stats = spw_store_drive_stats,
	.alloc = spw_store_alloc,
	.release = spw_store_release,
	.put = spw_store_put_copies,
	.get = spw_store_get,
	.free = spw_store_free,
	.test = spw_request_test,
	.raise = spw_request_raise,
	.wait_any = spw_request_wait_any,
	.commit = spw_store_commit,
	.commit_release = spw_store_commit_release,
	.committed = spw_store_committed,
	.committed_record = spw_store_committed_record,
	.committed_objects = spw_store_committed_objects,
};
