/* SPDX-License-Identifier: MIT */
/* tensor/entry.h - the table of entries: how they are found, their states, what they hold */
#ifndef SPW_TENSOR_ENTRY_H
#define SPW_TENSOR_ENTRY_H

#include "tensor/internal.h"

int spw_cache__entries_open(struct spw_cache *cache);
void spw_cache__entries_abandon(struct spw_cache *cache);
void spw_cache__entries_close(struct spw_cache *cache);

spw_tensor spw_cache__entry_id(const struct entry *entry);
/* The entry of an id, also if it is dead; NULL if the slot was used again, or never. */
struct entry *spw_cache__entry_of_id(struct spw_cache *cache, uint64_t id);
struct entry *spw_cache__entry_covering(struct spw_cache *cache, uint64_t key, uint64_t version,
					uint64_t offset_bytes, uint64_t len_bytes);
/*
 * A new entry, which offers find already, in state FREE: the caller decides what it becomes. NULL:
 * all are in use.
 */
struct entry *spw_cache__entry_begin(struct spw_cache *cache, const struct spw_offer *offer,
				     uint32_t device, uint64_t offset_bytes, uint64_t len_bytes);

/* Change the state: nothing else does. */
void spw_cache__entry_become(struct entry *entry, enum entry_state to);
/* A user has released it; after the last one the entry is dead. */
void spw_cache__entry_leave(struct entry *entry);
/* Free what a dead entry no longer needs, and its slot when nothing is left. */
void spw_cache__entry_settle(struct entry *entry);

/* Offered again: it is the last in the order of offers now. */
void spw_cache__entry_offered_again(struct entry *entry);
void spw_cache__entry_make_drainable(struct entry *entry);
void spw_cache__entry_not_drainable(struct entry *entry);
void spw_cache__entry_drained(struct entry *entry);
void spw_cache__entry_free_object(struct entry *entry);
/*
 * Host memory for a device's tensor. @to_stay: until the entry is gone; else staging memory.
 * Return: whether there is enough left.
 */
bool spw_cache__entry_get_host_memory(struct entry *entry, bool to_stay);
/* Memory of the arena. Return: 0; -ENOBUFS there is not enough left. */
int spw_cache__entry_get_arena_memory(struct entry *entry);
/* Memory of the arena, or else ordinary memory. Return: 0; -ENOMEM. */
int spw_cache__entry_get_memory(struct entry *entry);
void spw_cache__entry_put_memory(struct entry *entry);
/* Count a lease that a caller gets. */
void spw_cache__entry_hand_out(struct entry *entry);

/* Cancel the write, which is not needed (any more, or yet), if that is still possible. */
void spw_cache__entry_cancel_write(struct entry *entry);
void spw_cache__entry_leave_window(struct entry *entry);

#endif
