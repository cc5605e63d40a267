/* SPDX-License-Identifier: MIT */
/* store/commit.h - sets of objects that are durable: which are held, and where they are named */
#ifndef SPW_STORE_COMMIT_H
#define SPW_STORE_COMMIT_H

#include "layout/commit.h"
#include "store/internal.h"

/* A set, and a reference to each of its objects: their blocks are not used again (DURABLE-3). */
struct committed {
	struct spw_commit block;
	bool mirrors; /* of version 2: it says on which drives it is, and may be mirrored */
	uint64_t runs, runs_single; /* of its objects and its manifest; with one copy alone */
	uint64_t record_bytes;
	spw_object manifest;
	uint32_t count;
	struct object **objects;
	struct committed *next; /* of the doubtful ones */
};

struct spw_commits {
	struct spw_commit_place place;
	uint64_t sequence; /* the highest that was seen or used (DURABLE-4) */
	/* by index on the drives: which of store->drives it is; DRIVE_NONE: missing */
	uint8_t positions[SPW_DRIVES_MAX];
	struct committed *durable;
	struct committed *previous; /* kept at the caller's wish */
	/* Their blocks may have been written, or not: the commit failed at that. */
	struct committed *doubtful;
	/* what opening has found, for spw_store_committed_objects() */
	spw_object *restored;
	uint64_t *restored_lens;
	uint32_t restored_count;
	_Atomic bool under_way; /* a commit */
	/* drives that were retired while it was made: it goes on without them */
	uint64_t left_out;
};

/* A flag besides SPW_COMMIT_*: under the number of the last, whose bytes it has. */
#define COMMIT_AGAIN (1u << 31)
/* spw_store_commit() with any flags. */
int spw_store__commit_make(struct spw_store *store, const spw_object objects[], uint32_t count,
			   uint64_t number, const void *record, size_t len, unsigned flags);

struct committed *spw_store__committed_new(uint32_t count);
/* Before the queue is open: what lies in this slot of each drive is never found again. */
int spw_store__commit_give_up(struct spw_store *store, uint32_t slot);

#endif
