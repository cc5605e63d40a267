/* SPDX-License-Identifier: MIT */
/*
 * store/slots.h - a lock-free stack of free slot numbers, for requests and objects
 *
 * Every change increments the head's tag, so that the compare-and-swap fails if the slot was taken
 * and returned since the load (ABA).
 */
#ifndef SPW_SLOTS_H
#define SPW_SLOTS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define SPW_SLOT_NONE     UINT32_MAX
#define SPW_SLOTS_WATCHED (UINT32_C(1) << 31)

struct spw_slots {
	_Atomic uint64_t head; /* tag << 32 | slot */
	_Atomic uint32_t *next;
	_Atomic uint32_t taken; /* and SPW_SLOTS_WATCHED: a thread waits for one that is given */
	_Atomic uint32_t given; /* futex: changes when one is given that was waited for */
};

/* Slots 0 .. count - 1 are free, the lowest on top. Return: 0; -ENOMEM. */
int spw_store__slots_open(struct spw_slots *slots, uint32_t count);
void spw_store__slots_close(struct spw_slots *slots);

/* Return: a slot, or SPW_SLOT_NONE. */
uint32_t spw_store__slots_take(struct spw_slots *slots);
void spw_store__slots_give(struct spw_slots *slots, uint32_t slot);
/*
 * Whether a slot is free. If none is, slots->given is no longer @given once one has been, and who
 * waits for that is woken.
 */
bool spw_store__slots_watch(struct spw_slots *slots, uint32_t *given);

static inline uint32_t spw_store__slots_taken(const struct spw_slots *slots)
{
	return atomic_load_explicit(&slots->taken, memory_order_relaxed) & ~SPW_SLOTS_WATCHED;
}

#endif
