/* SPDX-License-Identifier: MIT */
/* store/object.c - objects: ids, references, pieces, reserved space */
#include "store/object.h"

#include <errno.h>

#include "alloc/alloc.h"
#include "store/drive_health.h"
#include "store/inbox.h"
#include "store/open_store.h"
#include "store/slots.h"
#include "util/checksum.h"
#include "util/util.h"

#define STATE_ALIVE      (UINT64_C(1) << 31)
#define STATE_REFERENCES (STATE_ALIVE - 1)

/* Add @change to the state of a live object. Return: NULL: it was freed, or never existed. */
static inline struct object *change_state(struct spw_store *store, spw_object id, uint64_t change,
					  uint64_t *before)
{
	uint32_t slot = (uint32_t)id.value;
	struct object *object;
	uint64_t state;

	if (slot >= store->opts.objects_max)
		return NULL;
	object = &store->objects[slot];
	state = atomic_load_explicit(&object->state, memory_order_relaxed);
	do
		if (state >> 32 != id.value >> 32 || !(state & STATE_ALIVE))
			return NULL;
	while (!atomic_compare_exchange_weak_explicit(&object->state, &state, state + change,
						      memory_order_acq_rel, memory_order_relaxed));
	*before = state;
	return object;
}

int spw_store__object_acquire(struct spw_store *store, spw_object id, uint64_t offset, uint64_t len,
			      struct object **out)
{
	uint64_t before;
	struct object *object = change_state(store, id, 1, &before);
	uint64_t object_len;

	if (!object)
		return spw_error(-ENOENT, "no such object: it was freed, or never was");
	*out = object;
	object_len = object->len_bytes;
	if (offset < object_len && len <= object_len - offset)
		return 0;
	spw_store__object_drop(store, object, false);
	return spw_error(-ERANGE, "bytes %llu to %llu lie beyond the object's %llu",
			 (unsigned long long)offset, (unsigned long long)offset + len,
			 (unsigned long long)object_len);
}

/* Two references: one until the object is freed, one for the put or commit that creates it. */
static spw_object object_begin(struct spw_store *store, uint32_t slot, uint64_t len,
			       uint64_t blocks, unsigned copies)
{
	struct object *object = &store->objects[slot];
	uint64_t generation = atomic_load_explicit(&object->state, memory_order_relaxed) >> 32;

	SPW_ASSERT((uint32_t)atomic_load(&object->state) == 0); /* neither alive nor referenced */
	SPW_ASSERT(copies == 1 || copies == 2);
	object->len_bytes = len;
	object->reserved_blocks = blocks;
	object->copies = (uint8_t)copies;
	atomic_store_explicit(&object->put, NULL, memory_order_relaxed);
	object->piece_first = object->piece_last = PIECE_NONE;
	object->error = 0;
	atomic_store_explicit(&object->state, generation << 32 | STATE_ALIVE | 2,
			      memory_order_release);
	return (spw_object){generation << 32 | slot};
}

static bool space_reserve(struct spw_store *store, uint64_t blocks)
{
	int64_t available = atomic_load_explicit(&store->blocks_available, memory_order_relaxed);
	uint64_t used, used_max;

	do
		if (available < 0 || (uint64_t)available < blocks)
			return false;
	while (!atomic_compare_exchange_weak_explicit(&store->blocks_available, &available,
						      available - (int64_t)blocks,
						      memory_order_acq_rel, memory_order_relaxed));
	used = store->blocks_total - (uint64_t)available + blocks;
	used_max = atomic_load_explicit(&store->blocks_used_max, memory_order_relaxed);
	while (used > used_max &&
	       !atomic_compare_exchange_weak_explicit(&store->blocks_used_max, &used_max, used,
						      memory_order_relaxed, memory_order_relaxed))
		;
	return true;
}

static SPW_COLD int no_space_error(const struct spw_store *store, uint64_t len)
{
	char advice[SPW_ADVICE_BYTES];

	return spw_error(
		-ENOSPC, "the store's partition has no %llu bytes left: %s",
		(unsigned long long)len,
		spw_store__health_advice(store, "free objects, or use more drives", advice));
}

int spw_store__object_create(struct spw_store *store, uint64_t len, unsigned copies,
			     uint64_t blocks, spw_object *id)
{
	uint32_t slot;

	if (!space_reserve(store, blocks))
		return no_space_error(store, len);
	slot = spw_store__slots_take(&store->object_slots);
	if (slot == SPW_SLOT_NONE) {
		atomic_fetch_add(&store->blocks_available, (int64_t)blocks);
		return spw_error(-ENOBUFS,
				 "all %u objects exist: free some, or open the store with a larger "
				 "objects_max",
				 store->opts.objects_max);
	}
	*id = object_begin(store, slot, len, blocks, copies);
	atomic_fetch_add_explicit(&store->objects_alive, 1, memory_order_relaxed);
	return 0;
}

static void object_unreferenced(struct spw_store *store, struct object *object, bool on_worker)
{
	int64_t blocks = (int64_t)object->reserved_blocks;

	if (on_worker) {
		spw_store__object_reclaim(store, object);
		atomic_fetch_add(&store->blocks_available, blocks);
		return;
	}
	/* Push before releasing the reservation (STORE-3); then the worker owns the object. */
	object->message.kind = MESSAGE_FREE;
	spw_store__push(store, &object->message);
	atomic_fetch_add(&store->blocks_available, blocks);
}

void spw_store__object_drop(struct spw_store *store, struct object *object, bool on_worker)
{
	uint64_t state = atomic_fetch_sub_explicit(&object->state, 1, memory_order_acq_rel);

	SPW_ASSERT((state & STATE_REFERENCES) > 0); /* the caller has a reference (STORE-2) */
	if ((state & STATE_REFERENCES) == 1) {
		SPW_ASSERT(!(state & STATE_ALIVE));
		object_unreferenced(store, object, on_worker);
	}
}

int spw_store_free(struct spw_store *store, spw_object id)
{
	struct object *object;
	uint64_t before;

	if (spw_store__owned(store))
		return -EPERM;
	object = change_state(store, id, -(STATE_ALIVE + 1), &before);
	if (!object)
		return spw_error(-ENOENT, "no such object: it was freed before, or never was");
	atomic_fetch_add_explicit(&store->count.frees, 1, memory_order_relaxed);
	atomic_fetch_sub_explicit(&store->objects_alive, 1, memory_order_relaxed);
	if ((before & STATE_REFERENCES) == 1)
		object_unreferenced(store, object, false);
	return 0;
}

/* Compare by checksum; the object's put has ended. Return: 1: equal; 0: they differ. */
static int object_holds(const struct spw_store *store, const struct object *object,
			const uint8_t *bytes, uint64_t offset, uint64_t len)
{
	for (uint32_t index = object->piece_first; index != PIECE_NONE;
	     index = spw_store__run_next(store, object, index)) {
		const struct piece *piece = &store->pieces[index];

		if (piece->object_offset >= offset + len)
			break;
		if (piece->object_offset + piece->len_bytes > offset &&
		    spw_checksum(bytes + piece->object_offset, piece->len_bytes) != piece->checksum)
			return 0;
	}
	return 1;
}

int spw_store_holds(struct spw_store *store, spw_object id, const void *bytes, uint64_t offset,
		    size_t len)
{
	struct object *object;
	int rc;

	if (spw_store__owned(store))
		return -EPERM;
	if (store->opts.no_checksums)
		return spw_error(
			-EOPNOTSUPP,
			"the store was opened without checksums, by which bytes are compared");
	if (!bytes || len == 0)
		return spw_error(-EINVAL, "holds needs bytes to compare with");
	rc = spw_store__object_acquire(store, id, offset, len, &object);
	if (rc)
		return rc;
	if (atomic_load_explicit(&object->put, memory_order_acquire))
		rc = -EINPROGRESS;
	else if (object->error)
		rc = spw_error(object->error, "the object was never stored: its put failed");
	else
		rc = object_holds(store, object, bytes, offset, len);
	spw_store__object_drop(store, object, false);
	return rc;
}

/* Free an unreferenced object's pieces (STORE-2), and its slot with a new generation. */
void spw_store__object_reclaim(struct spw_store *store, struct object *object)
{
	uint64_t generation =
		(atomic_load_explicit(&object->state, memory_order_relaxed) >> 32) + 1;
	uint32_t index = object->piece_first;

	SPW_ASSERT((atomic_load(&object->state) & (STATE_REFERENCES | STATE_ALIVE)) == 0);
	/* its put has ended (STORE-1) */
	SPW_ASSERT(!atomic_load_explicit(&object->put, memory_order_relaxed));
	while (index != PIECE_NONE) {
		struct piece *piece = &store->pieces[index];
		uint32_t next = piece->next;

		spw_store__piece_unplace(store, piece);
		piece->next = store->piece_free;
		store->piece_free = index;
		index = next;
	}
	/* Generation 0 is skipped, so that no id is ever 0. */
	if ((uint32_t)generation == 0)
		generation = 1;
	atomic_store_explicit(&object->state, (uint64_t)(uint32_t)generation << 32,
			      memory_order_relaxed);
	spw_store__slots_give(&store->object_slots, (uint32_t)(object - store->objects));
}

/* ---- Pieces: worker only ---- */

uint32_t spw_store__piece_take(struct spw_store *store)
{
	uint32_t index = store->piece_free;

	if (index != PIECE_NONE)
		store->piece_free = store->pieces[index].next;
	else if (store->pieces_fresh < store->pieces_max)
		index = store->pieces_fresh++;
	else
		return PIECE_NONE;
	SPW_ASSERT(index < store->pieces_fresh && store->pieces_fresh <= store->pieces_max);
	store->pieces[index] = (struct piece){
		.next = PIECE_NONE, .drive = DRIVE_NONE, .next_unplaced = PIECE_NONE};
	return index;
}

void spw_store__piece_append(struct spw_store *store, struct object *object, uint32_t index)
{
	const struct piece *piece = &store->pieces[index];
	struct piece *last = &store->pieces[object->piece_last];

	SPW_ASSERT(piece->len_bytes > 0 && piece->len_bytes <= store->chunk_bytes);
	/* pieces come in pairs (STORE-7) */
	SPW_ASSERT(object->copies == 1 || piece->next != PIECE_NONE);
	if (object->piece_first == PIECE_NONE) {
		SPW_ASSERT(piece->object_offset == 0); /* without gaps (STORE-7) */
		object->piece_first = index;
	} else {
		SPW_ASSERT(last->object_offset + last->len_bytes == piece->object_offset);
		last->next = index;
	}
	object->piece_last = object->copies == 2 ? piece->next : index;
}

void spw_store__piece_make_hole(struct spw_store *store, struct object *object, struct piece *piece)
{
	uint64_t blocks = spw_store__blocks_of(store, piece->len_bytes);

	/* second of a pair (STORE-7) */
	SPW_ASSERT(object->copies == 2 && piece->drive == DRIVE_NONE);
	SPW_ASSERT(object->reserved_blocks > blocks);
	piece->handle = HANDLE_HOLE;
	object->reserved_blocks -= blocks;
	atomic_fetch_add(&store->blocks_available, (int64_t)blocks);
}

/* Free an extent. Blocks of a retired drive do not count as available until it is revived. */
void spw_store__extent_give(struct spw_store *store, uint32_t index,
			    const struct spw_extent *extent)
{
	struct store_drive *drive = &store->drives[index];

	SPW_ASSERT(atomic_load_explicit(&drive->blocks_used, memory_order_relaxed) >=
		   extent->len_blocks); /* it was counted (STORE-9) */
	SPW_ASSERT(extent->start_block + extent->len_blocks <= drive->blocks_total);
	spw_alloc__put(drive->alloc, extent);
	count_sub(&drive->blocks_used, extent->len_blocks);
	if (atomic_load_explicit(&drive->retired, memory_order_relaxed))
		atomic_fetch_sub(&store->blocks_available, (int64_t)extent->len_blocks);
}

struct spw_extent spw_store__piece_extent(const struct spw_store *store, const struct piece *piece)
{
	struct spw_extent extent;

	SPW_ASSERT(piece->drive != DRIVE_NONE); /* it is placed (STORE-7) */
	spw_alloc__extent(store->drives[piece->drive].alloc, piece->handle, &extent);
	return extent;
}

void spw_store__piece_unplace(struct spw_store *store, struct piece *piece)
{
	struct spw_extent extent;

	if (piece->drive == DRIVE_NONE)
		return;
	extent = spw_store__piece_extent(store, piece);
	spw_store__extent_give(store, piece->drive, &extent);
	piece->drive = DRIVE_NONE;
	piece->next_unplaced = PIECE_NONE;
}
