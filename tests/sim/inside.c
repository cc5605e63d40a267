/* SPDX-License-Identifier: MIT */
/*
 * tests/sim/inside.c - what must hold inside the store between any two turns, and when nothing is
 * left in it
 */
#include <errno.h>

#include "engine/arena.h"
#include "store/checksum_pool.h"
#include "store/object.h"
#include "store/open_store.h"
#include "store/transfer.h"
#include "util/util.h"
#include "tests/sim/sim.h"

#define REQUIRE(condition)                                         \
	do {                                                       \
		if (!(condition))                                  \
			sim_fail("inside the store: " #condition); \
	} while (0)

/* Blocks of the pieces of an object that have a place, and of each drive. */
static uint64_t placed_blocks(const struct spw_store *store, const struct object *object,
			      uint64_t of_drive[])
{
	uint64_t blocks = 0;

	for (uint32_t i = object->piece_first; i != PIECE_NONE; i = store->pieces[i].next) {
		const struct piece *piece = &store->pieces[i];

		uint64_t len = piece->drive == DRIVE_NONE
				       ? 0
				       : spw_store__piece_extent(store, piece).len_blocks;

		blocks += len;
		if (len > 0)
			of_drive[piece->drive] += len;
	}
	return blocks;
}

/*
 * Free and used: what may still be reserved is what is free on the drives in service, less what is
 * reserved and has no place yet. And every block that a drive does not have free belongs to one
 * piece, or to a write that timed out.
 */
static void check_space(struct spw_store *store)
{
	uint64_t of_drive[SPW_DRIVES_MAX] = {0};
	int64_t available = 0;

	for (uint32_t i = 0; i < store->opts.objects_max; i++) {
		const struct object *object = &store->objects[i];

		/* References, or alive, which is one. */
		if ((uint32_t)atomic_load(&object->state) == 0)
			continue;
		available -= (int64_t)object->reserved_blocks;
		available += (int64_t)placed_blocks(store, object, of_drive);
	}
	for (uint32_t i = 0; i < store->transfers_total; i++) {
		const struct transfer *transfer = &store->transfers[i];

		if (transfer->in_flight && transfer->abandoned)
			of_drive[transfer->io.device] += transfer->orphan.len_blocks;
	}
	for (uint32_t i = 0; i < store->drive_count; i++) {
		const struct store_drive *drive = &store->drives[i];
		uint64_t free_blocks = spw_alloc__blocks_free(drive->alloc);

		if (free_blocks + of_drive[i] != drive->blocks_total)
			sim_fail("inside the store: drive %u has %llu blocks free and %llu used of "
				 "%llu",
				 i, (unsigned long long)free_blocks,
				 (unsigned long long)of_drive[i],
				 (unsigned long long)drive->blocks_total);
		REQUIRE(atomic_load(&drive->blocks_used) == of_drive[i]);
		if (!drive->retired)
			available += (int64_t)free_blocks;
		if (drive->retired == -EAGAIN ? !sim_writes_may_fail(&sim_drives[i])
		    : drive->retired          ? !sim_writes_may_fail_for_good(&sim_drives[i])
					      : false)
			sim_fail("inside the store: drive %u was retired although nothing was done "
				 "to it",
				 i);
	}
	if (available != atomic_load(&store->blocks_available))
		sim_fail("inside the store: %lld blocks are said to be available, and %lld are",
			 (long long)atomic_load(&store->blocks_available), (long long)available);
}

static void check_transfers(const struct spw_store *store)
{
	uint32_t idle = 0, busy = 0, held = 0, checksum_pending = 0;

	for (const struct transfer *transfer = store->transfer_free; transfer;
	     transfer = transfer->next)
		idle++;
	for (uint32_t i = 0; i < store->transfers_total; i++) {
		busy += store->transfers[i].in_flight;
		held += store->transfers[i].posted && !store->transfers[i].in_flight;
		checksum_pending += store->transfers[i].checksum_pending;
	}
	for (uint32_t i = 0; i < store->drive_count; i++) {
		const struct store_drive *drive = &store->drives[i];

		for (const struct transfer *transfer = drive->retries; transfer;
		     transfer = transfer->next)
			held++;
		for (const struct transfer *transfer = drive->pending_first; transfer;
		     transfer = transfer->next) {
			REQUIRE(transfer->checksum_pending && transfer->in_flight &&
				!transfer->posted);
			checksum_pending--;
		}
	}
	REQUIRE(checksum_pending == 0);
	if (idle + busy + held != store->transfers_total)
		sim_fail("inside the store: %u transfers are idle, %u in flight and %u held, of %u",
			 idle, busy, held, store->transfers_total);
}

void sim_check_inside(void)
{
	struct spw_store *store = sim_world.store;

	if (atomic_load(&store->inbox))
		return;
	check_space(store);
	check_transfers(store);
}

static void check_pieces(const struct spw_store *store, uint32_t held)
{
	uint32_t idle = 0;

	for (uint32_t i = store->piece_free; i != PIECE_NONE; i = store->pieces[i].next)
		idle++;
	if (idle + held != store->pieces_fresh)
		sim_fail("inside the store: %u of %u chunk descriptors were not returned",
			 store->pieces_fresh - idle - held, store->pieces_fresh);
}

/* After the last request has ended and the last object was freed. */
void sim_check_empty(uint64_t arena_bytes_used, uint32_t bounces, uint32_t manifests)
{
	struct spw_store *store = sim_world.store;
	uint64_t used_blocks = 0;

	sim_check_inside();
	REQUIRE(store->transfers_in_flight == 0 && store->transfers_posted == 0);
	REQUIRE(!store->writes_first && store->reads_waiting == 0 && !store->flush_first &&
		!store->flushing);
	REQUIRE(atomic_load(&store->objects_alive) == manifests);
	REQUIRE(spw_store__slots_taken(&store->request_slots) == 0);
	REQUIRE(spw_store__slots_taken(&store->object_slots) == manifests);
	check_pieces(store, manifests);
	if (store->bounces_free != bounces)
		sim_fail("inside the store: %u copy buffers were not returned",
			 bounces - store->bounces_free);
	if (store->arena->bytes_used != arena_bytes_used)
		sim_fail("inside the store: %llu bytes of the arena were not returned",
			 (unsigned long long)(store->arena->bytes_used - arena_bytes_used));
	for (uint32_t i = 0; i < store->drive_count; i++) {
		int broken = spw_alloc__verify(store->drives[i].alloc);

		if (broken)
			sim_fail("inside the store: invariant %d of the allocator of drive %u",
				 broken, i);
		used_blocks += store->drives[i].blocks_total -
			       spw_alloc__blocks_free(store->drives[i].alloc);
		REQUIRE(store->drives[i].in_flight == 0);
	}
	REQUIRE(used_blocks == manifests);
}

void sim_inside_opened(uint64_t *arena_bytes_used, uint32_t *bounces)
{
	struct spw_store *store = sim_world.store;

	*arena_bytes_used = store->arena->bytes_used;
	*bounces = store->bounces_free;
	/* Posted are all pieces, those of the store's own choice, none; with helpers or without. */
	if (sim_world.config->seed % 3 != 1)
		store->overlap_bytes_min = sim_world.config->seed % 3 ? UINT32_MAX : 1;
	if (sim_world.config->seed % 2)
		sim_helpers_begin(store, sim_world.config->seed);
	for (uint32_t i = 0; i < store->drive_count; i++)
		sim_drives[i].allowed = (struct sim_range){
			.offset_bytes = store->drives[i].base_bytes,
			/* With the blocks for commits. */
			.len_bytes = store->assembly.superblocks[i].partition_bytes,
		};
}

uint32_t sim_inside_transfers(void)
{
	return sim_world.store->transfers_in_flight + sim_world.store->transfers_posted;
}

bool sim_inside_no_requests(void)
{
	return spw_store__slots_taken(&sim_world.store->request_slots) ==
	       sim_world.store->opts.requests_max;
}

bool sim_inside_no_objects(void)
{
	return spw_store__slots_taken(&sim_world.store->object_slots) ==
	       sim_world.store->opts.objects_max;
}

/*
 * Of an object: is there a piece of that length, or of that many whole blocks, at that byte of that
 * drive?
 */
bool sim_inside_is_at(spw_object id, unsigned drive, uint64_t byte, uint64_t len, uint64_t block)
{
	const struct spw_store *store = sim_world.store;
	const struct object *object = &store->objects[(uint32_t)id.value];

	for (uint32_t i = object->piece_first; i != PIECE_NONE; i = store->pieces[i].next) {
		const struct piece *piece = &store->pieces[i];

		if (piece->drive == drive &&
		    (piece->len_bytes == len || spw_round_up(piece->len_bytes, block) == len) &&
		    spw_store__piece_extent(store, piece).start_block ==
			    (byte - store->drives[drive].base_bytes) / block)
			return true;
	}
	return false;
}

bool sim_inside_has_space(uint64_t blocks)
{
	return atomic_load(&sim_world.store->blocks_available) >= (int64_t)blocks;
}

uint32_t sim_inside_block_bytes(void)
{
	return sim_world.store->block_bytes;
}

uint64_t sim_inside_sound_bytes(void)
{
	const struct spw_store *store = sim_world.store;
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < store->drive_count; i++)
		bytes += sim_writes_may_fail(&sim_drives[i])
				 ? 0
				 : store->drives[i].blocks_total * store->block_bytes;
	return bytes;
}
