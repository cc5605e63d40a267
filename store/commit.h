/* SPDX-License-Identifier: MIT */
/* store/commit.h - commits: sets of objects that are kept until a later commit is durable */
#ifndef SPW_STORE_COMMIT_H
#define SPW_STORE_COMMIT_H

#include "layout/commit.h"
#include "store/open_store.h"

/* A committed set. It has a reference to each object, which keeps the blocks (DURABLE-3). */
struct committed {
	struct spw_commit block;
	bool mirrors; /* block version 2: it has members, and may have mirrored objects */
	uint64_t runs, runs_single; /* chunks of objects and manifest; those with one copy */
	uint64_t record_bytes;
	spw_object manifest;
	uint32_t count;
	struct object **objects;
	struct committed *next; /* in the list of doubtful sets */
};

struct spw_commits {
	struct spw_commit_place place;
	uint64_t sequence; /* highest sequence number seen or used (DURABLE-4) */
	/* index in store->drives, by the index in the superblock; DRIVE_NONE: missing */
	uint8_t positions[SPW_DRIVES_MAX];
	struct committed *durable;
	struct committed *previous; /* SPW_COMMIT_KEEP_PREVIOUS */
	/* sets that failed while their blocks were written: some drives may have the block */
	struct committed *doubtful;
	/* found when the store was opened, for spw_store_committed_objects() */
	spw_object *restored;
	uint64_t *restored_lens;
	uint32_t restored_count;
	_Atomic bool under_way; /* a commit is being made */
	uint64_t left_out;      /* drives retired during the commit, even if in service again */
};

/* An internal flag beside SPW_COMMIT_*: repeat the last commit, under its number. */
#define COMMIT_AGAIN (1u << 31)
/* spw_store_commit(), also accepting internal flags. */
int spw_store__commit_make(struct spw_store *store, const spw_object objects[], uint32_t count,
			   uint64_t number, const void *record, size_t len, unsigned flags);

struct committed *spw_store__committed_new(uint32_t count);
/* Discard a commit: zero its slot on each drive, and flush. Before the queue is opened. */
int spw_store__commit_give_up(struct spw_store *store, uint32_t slot);
/*
 * Make a commit that was found as durable as one that returned (DURABLE-6): a process that was
 * killed may have written its block to some drives only, and not have flushed. @have: bit per
 * drive, by its index, that has it. Drives that fail are left out, with a warning. Before the queue
 * is opened. Return: 0; -ENOMEM; no drive can be written: its error.
 */
int spw_store__commit_secure(struct spw_store *store, const struct spw_commit *commit,
			     uint64_t have);
void spw_store__commits_close(struct spw_store *store);

#endif
