/* SPDX-License-Identifier: MIT */
/*
 * tests/sim/mutate.c - errors that are put in on purpose, one at a time: a checker that finds none
 * of them checks nothing
 *
 * Each stands between two parts of the library: it replaces a function of one that the other
 * calls.
 */
#include <string.h>

#include "store/copy.h"
#include "store/object.h"
#include "store/open_store.h"
#include "store/request.h"
#include "store/transfer.h"
#include "store/write.h"
#include "tensor/entry.h"
#include "tensor/internal.h"
#include "tests/sim/sim.h"

enum sim_mutation sim_mutation;

const char *const sim_mutation_names[SIM_MUTATIONS] = {[SIM_MUTATION_NONE] = "none",
#define SIM_MUTATION_NAME(name, word, text) [SIM_MUTATION_##name] = word,
						       SIM_MUTATION_LIST(SIM_MUTATION_NAME)
#undef SIM_MUTATION_NAME
};

static bool one_in_50(void)
{
	static unsigned calls;

	return ++calls % 50 == 0;
}

static size_t checked_bytes(size_t len)
{
	if (sim_mutation == SIM_MUTATION_NO_CHECKSUMS)
		return 0;
	return sim_mutation == SIM_MUTATION_PARTIAL_CHECKSUMS && len > 512 ? len - 512 : len;
}

WRAP(uint64_t, spw_checksum, (const void *bytes, size_t len))
{
	return __real_spw_checksum(bytes, checked_bytes(len));
}

WRAP(uint64_t, spw_store__checksum_vector,
     (const struct iovec *vector, uint64_t offset, size_t len))
{
	return __real_spw_store__checksum_vector(vector, offset, checked_bytes(len));
}

WRAP(uint64_t, spw_store__copy_and_checksum, (void *to, const void *from, size_t len))
{
	uint64_t checksum = __real_spw_store__copy_and_checksum(to, from, len);

	return checked_bytes(len) == len ? checksum : __real_spw_checksum(to, checked_bytes(len));
}

WRAP(void, spw_store__write_abandon, (struct transfer * transfer))
{
	struct spw_store *store = transfer->store;
	uint64_t blocks;

	__real_spw_store__write_abandon(transfer);
	if (sim_mutation != SIM_MUTATION_EARLY_ORPHANS)
		return;
	blocks = transfer->orphan.len_blocks;
	spw_store__extent_give(store, transfer->io.device, &transfer->orphan);
	atomic_fetch_add(&store->blocks_available, (int64_t)blocks);
}

WRAP(void, spw_store__transfer_issue,
     (struct transfer * transfer, enum spw_op op, void (*done)(struct spw_io *io)))
{
	__real_spw_store__transfer_issue(transfer, op, done);
	if (sim_mutation == SIM_MUTATION_EARLY_EXTENTS && op == SPW_WRITE && one_in_50())
		spw_store__piece_unplace(transfer->store,
					 &transfer->store->pieces[transfer->piece]);
}

WRAP(void, spw_store__transfer_give, (struct transfer * transfer))
{
	if (sim_mutation != SIM_MUTATION_LEAKED_BOUNCE || !one_in_50())
		__real_spw_store__transfer_give(transfer);
}

WRAP(void, spw_alloc__put, (struct spw_alloc * alloc, const struct spw_extent *extent))
{
	if (sim_mutation != SIM_MUTATION_LEAKED_EXTENT || !one_in_50())
		__real_spw_alloc__put(alloc, extent);
}

/* The end of a request drops its object and then reports: here it has reported once already. */
WRAP(void, spw_store__object_drop,
     (struct spw_store * store, struct object *object, bool on_worker))
{
	for (uint32_t i = 0;
	     sim_mutation == SIM_MUTATION_ENDED_TWICE && on_worker && i < store->opts.requests_max;
	     i++) {
		struct spw_request *request = &store->requests[i];

		if (request->object == object && request->notify.done && request->in_flight == 0 &&
		    !request->linked && one_in_50()) {
			request->notify.done(request->notify.context, request->first_error);
			break;
		}
	}
	__real_spw_store__object_drop(store, object, on_worker);
}

WRAP(const char *, spw_device_path, (const struct spw_device *device))
{
	if (sim_mutation == SIM_MUTATION_WRONG_DRIVE)
		return sim_drives[(unsigned)(__real_spw_device_path(device)[3] - '0' + 1) %
				  sim_drive_count]
			.path;
	return __real_spw_device_path(device);
}

WRAP(void, spw_cache__entry_become, (struct entry * entry, enum entry_state to))
{
	__real_spw_cache__entry_become(entry, to);
	if (to != ENTRY_LEAVING || sim_mutation != SIM_MUTATION_EARLY_TOKENS || !one_in_50())
		return;
	entry->drainable = true;
	link_append(&entry->cache->drain, &entry->drain);
}
