/* SPDX-License-Identifier: MIT */
/* store/object.h - objects and their pieces; reserved space */
#ifndef SPW_STORE_OBJECT_H
#define SPW_STORE_OBJECT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <spillway/store.h>

#include "alloc/alloc.h"
#include "store/inbox.h"
#include "store/open_store.h"

#define PIECE_NONE  UINT32_MAX
#define HANDLE_HOLE 0 /* not placed, and never will be */

/*
 * A chunk, or a part of a split chunk, in one extent. A store may have millions of pieces, so a
 * piece has only 28 bytes; the allocator has 32 more for the extent.
 */
struct piece {
	/* XXH3-64 of the bytes; not stored with them, so it detects stale and misdirected blocks */
	uint64_t checksum;
	uint64_t object_offset : 56; /* bytes */
	uint64_t drive : 8;          /* DRIVE_NONE: not placed */
	union {
		uint32_t handle;        /* of the drive's allocator, if placed; or HANDLE_HOLE */
		uint32_t next_unplaced; /* in the put's list of pieces to be placed */
	};
	uint32_t len_bytes;
	uint32_t next; /* next piece of the object, by offset; or in the free list */
} __attribute__((packed, aligned(4)));

_Static_assert(sizeof(struct piece) == 28, "pieces are many");

/* No store is that large: an allocator has at most 2^40 blocks. */
#define OBJECT_BYTES_MAX ((UINT64_C(1) << 56) - 1)

static inline bool spw_store__piece_is_placed(const struct piece *piece)
{
	return piece->drive != DRIVE_NONE;
}

/* Does the piece have to be placed, for the first time or again? */
static inline bool spw_store__piece_is_wanting(const struct piece *piece)
{
	return !spw_store__piece_is_placed(piece) && piece->handle != HANDLE_HOLE;
}

struct object {
	struct message message;
	/* generation << 32 | alive << 31 | references: one until freed, one for each request */
	_Atomic uint64_t state;
	uint64_t len_bytes;
	uint64_t reserved_blocks;
	/* the put until it ends, while the bytes are in the caller's memory; then NULL */
	_Atomic(struct spw_request *) put;
	/* owned by the worker; once put is NULL, other threads with a reference may read them */
	uint32_t piece_first, piece_last;
	int error;      /* result of its put */
	uint8_t copies; /* 1; 2: mirrored */
};

/*
 * Create an object, and reserve @blocks for all replicas. It has two references, the second for the
 * put or commit that creates it. Return: 0; -ENOSPC; -ENOBUFS.
 */
int spw_store__object_create(struct spw_store *store, uint64_t len, unsigned copies,
			     uint64_t blocks, spw_object *id);
/* Take a reference to a live object that has these bytes. Return: 0; -ENOENT; -ERANGE. */
int spw_store__object_acquire(struct spw_store *store, spw_object id, uint64_t offset, uint64_t len,
			      struct object **object);
void spw_store__object_drop(struct spw_store *store, struct object *object, bool on_worker);
void spw_store__object_reclaim(struct spw_store *store, struct object *object);
uint32_t spw_store__piece_take(struct spw_store *store);
void spw_store__piece_unplace(struct spw_store *store, struct piece *piece);
void spw_store__extent_give(struct spw_store *store, uint32_t drive,
			    const struct spw_extent *extent);
struct spw_extent spw_store__piece_extent(const struct spw_store *store, const struct piece *piece);
/* Append a piece; if mirrored, the first of a pair, which is linked to the second. */
void spw_store__piece_append(struct spw_store *store, struct object *object, uint32_t piece);
/* Mark a second piece as missing, and release its reserved blocks: the chunk has only one copy. */
void spw_store__piece_make_hole(struct spw_store *store, struct object *object,
				struct piece *piece);

/* Number of blocks for a length; without rounding up the length, which might overflow. */
static inline uint64_t spw_store__blocks_of(const struct spw_store *store, uint64_t len_bytes)
{
	return len_bytes / store->block_bytes + (len_bytes % store->block_bytes != 0);
}

/* The first piece of the next chunk of the object: skips both pieces of a pair. */
static inline uint32_t spw_store__run_next(const struct spw_store *store,
					   const struct object *object, uint32_t run)
{
	if (object->copies == 2)
		run = store->pieces[run].next;
	return store->pieces[run].next;
}

#endif
