/* SPDX-License-Identifier: MIT */
/* tests/model/cache_inside.h - what must hold inside a tensor cache between any two calls */
#ifndef SPW_TEST_CACHE_INSIDE_H
#define SPW_TEST_CACHE_INSIDE_H

#include "tensor/control/internal.h"
#include "tensor/control/recording.h"
#include "tensor/internal.h"
#include "tensor/lock.h"
#include "tests/model/cache_model.h"

struct model_sums {
	uint64_t activation, writing, held, window, in_flight, old;
	uint32_t entries;
};

/* What a plan knows of the tensors of this step. */
static inline void model_check_place(const struct model *model, const struct entry *entry)
{
	const struct control *control = entry->cache->control;
	const struct recorded *recorded = spw_control__recording_of(control, &entry->track);
	const struct recording *reference = &control->signature->reference;

	if (!recorded || entry->state == ENTRY_DEAD)
		return;
	model_require(model,
		      recorded->slot == (uint32_t)(entry - entry->cache->entries) &&
			      recorded->stored == (entry->state == ENTRY_STORED),
		      "a recorded tensor and its entry differ");
	if (recorded->matched == NO_TENSOR)
		return;
	model_require(model,
		      (control->signature->planned || control->signature->varies) &&
			      recorded->matched < reference->count &&
			      reference->tensors[recorded->matched].plannable &&
			      reference->tensors[recorded->matched].bytes == entry->len_bytes &&
			      control->slots[recorded->matched] == recorded->slot &&
			      control->slots[recorded->matched] != GONE_SLOT,
		      "a recorded tensor and the plan differ");
}

static inline bool model_state_holds(const struct entry *entry)
{
	bool at_owner = entry->owner_held && !entry->memory;

	if ((entry->cache->deferred == entry) != (entry->state == ENTRY_QUEUED))
		return false;
	if (entry->read_in_flight != (entry->state == ENTRY_COMING) && entry->state != ENTRY_DEAD)
		return false;
	switch (entry->state) {
	case ENTRY_KEPT: return at_owner && !entry->object_exists && !entry->drainable;
	case ENTRY_QUEUED: return at_owner;
	case ENTRY_LEAVING: return at_owner && entry->drainable == !entry->write_in_flight;
	case ENTRY_STORED: return entry->object_exists && !entry->memory && !entry->owner_held;
	case ENTRY_RESIDENT: return !entry->memory == entry->owner_held;
	default: return true;
	}
}

static inline void model_check_entry(const struct model *model, const struct entry *entry,
				     struct model_sums *sums)
{
	uint64_t len = entry->len_bytes;
	uint64_t bytes = (entry->owner_held ? len : 0) + (entry->memory ? len : 0);

	sums->entries++;
	sums->activation += bytes;
	sums->old += entry->track.step != entry->cache->control->step ? bytes : 0;
	sums->writing += entry->write_in_flight ? len : 0;
	sums->held += entry->cache->deferred == entry ? len : 0;
	sums->window += entry->in_window ? len : 0;
	sums->in_flight += (unsigned)entry->write_in_flight + entry->read_in_flight;
	model_require(model, (entry->state == ENTRY_DEAD) == (entry->users == 0),
		      "an entry that is dead has no users, and no other has none");
	model_require(model, model_state_holds(entry), "an entry's state");
	model_require(model, !entry->drainable || (entry->owner_held && !entry->write_in_flight),
		      "a token to be reaped whose memory is in use");
	model_require(model,
		      !entry->in_window || entry->state == ENTRY_COMING ||
			      entry->state == ENTRY_RESIDENT,
		      "an entry in the window that is not prefetched");
	model_require(model, entry->leases == 0 || entry->memory, "a lease without memory");
	model_require(model,
		      !(entry->read_in_flight || entry->write_in_flight) || entry->object_exists,
		      "I/O without an object");
	model_check_place(model, entry);
}

static inline void model_check_sums(const struct model *model, const struct model_sums *sums)
{
	struct spw_cache *cache = model->cache;
	const struct flow *flows = cache->control->measure.flows;

	model_require(model, sums->in_flight == cache->io_in_flight, "the count of I/O in flight");
	model_require(model,
		      sums->activation == cache->control->memory_bytes &&
			      sums->old == cache->control->old_bytes &&
			      cache->control->waiting == 0,
		      "the controller's counts");
	model_require(model,
		      flows[DIRECTION_WRITE].bytes_in_flight == sums->writing &&
			      flows[DIRECTION_WRITE].in_flight + flows[DIRECTION_READ].in_flight ==
				      sums->in_flight,
		      "the measured I/O in flight");
	model_require(model, sums->writing + sums->held <= cache->opts.staging_bytes,
		      "more bytes wait to be written than may");
}

/* While no other thread is in a call. */
static inline void model_check_inside(const struct model *model)
{
	struct spw_cache *cache = model->cache;
	struct spw_cache_stats stats;
	struct model_sums sums = {0};

	spw_cache__lock(cache);
	for (uint32_t i = 0; i < cache->opts.tensors_max; i++)
		if (cache->entries[i].state != ENTRY_FREE)
			model_check_entry(model, &cache->entries[i], &sums);
	model_check_sums(model, &sums);
	spw_cache__unlock(cache);
	spw_cache_stats(cache, &stats, sizeof(stats));
	model_require(model,
		      stats.entries == sums.entries && stats.activation_bytes == sums.activation &&
			      stats.staging_bytes == sums.writing + sums.held &&
			      stats.prefetched_bytes == sums.window,
		      "the figures of stats");
}

#endif
