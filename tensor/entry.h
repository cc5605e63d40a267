/* SPDX-License-Identifier: MIT */
/* tensor/entry.h - the table of entries: how they are found, their states, what they hold */
#ifndef SPW_TENSOR_ENTRY_H
#define SPW_TENSOR_ENTRY_H

#include "tensor/internal.h"

int spw_cache__entries_open(struct spw_cache *cache);
void spw_cache__entries_abandon(struct spw_cache *cache);
void spw_cache__entries_close(struct spw_cache *cache);

spw_tensor spw_cache__entry_id(const struct entry *entry);
/* The slot of an id, alive or dead; NULL if it has been used again, or never was. */
struct entry *spw_cache__entry_of_id(struct spw_cache *cache, uint64_t id);
struct entry *spw_cache__entry_covering(struct spw_cache *cache, uint64_t key, uint64_t version,
					uint64_t offset_bytes, uint64_t len_bytes);
/* A free slot, filled in and findable, still in state FREE: to be kept or queued. NULL: none. */
struct entry *spw_cache__entry_begin(struct spw_cache *cache, const struct spw_offer *offer,
				     uint32_t device, uint64_t offset_bytes, uint64_t len_bytes);

/* The only way a state changes. */
void spw_cache__entry_become(struct entry *entry, enum entry_state to);
/* One user less; the last one. */
void spw_cache__entry_leave(struct entry *entry);
/* Of a dead entry: give up what nothing needs any more, and the slot if nothing is left. */
void spw_cache__entry_settle(struct entry *entry);

/* The last in the order of offers again. */
void spw_cache__entry_offered_again(struct entry *entry);
void spw_cache__entry_make_drainable(struct entry *entry);
void spw_cache__entry_not_drainable(struct entry *entry);
void spw_cache__entry_drained(struct entry *entry);
void spw_cache__entry_free_object(struct entry *entry);
/* Of the arena. Return: 0; -ENOBUFS it is used up. */
int spw_cache__entry_get_arena_memory(struct entry *entry);
/* The same, or ordinary memory. */
int spw_cache__entry_get_memory(struct entry *entry);
void spw_cache__entry_put_memory(struct entry *entry);
/* A lease of the entry goes out. */
void spw_cache__entry_hand_out(struct entry *entry);

/* A write is not needed any more, or not needed yet. Cancels it if it can. */
void spw_cache__entry_cancel_write(struct entry *entry);
void spw_cache__entry_leave_window(struct entry *entry);

#endif
