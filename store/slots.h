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
	/* count of slots; plus SPW_SLOTS_WATCHED while a thread waits for a free slot */
	_Atomic uint32_t taken;
	_Atomic uint32_t given; /* futex: changes when a slot is returned while threads wait */
};

/* Create a stack of slots 0 to @count - 1, the lowest on top. Return: 0; -ENOMEM. */
int spw_store__slots_open(struct spw_slots *slots, uint32_t count);
void spw_store__slots_close(struct spw_slots *slots);

/* Take a slot. Return: the slot, or SPW_SLOT_NONE. */
uint32_t spw_store__slots_take(struct spw_slots *slots);
void spw_store__slots_give(struct spw_slots *slots, uint32_t slot);
/*
 * Is a slot free? If not, wait with the futex slots->given for another value than *given: it
 * changes, and waiters are woken, when a slot is returned.
 */
bool spw_store__slots_watch(struct spw_slots *slots, uint32_t *given);

static inline uint32_t spw_store__slots_taken(const struct spw_slots *slots)
{
	return atomic_load_explicit(&slots->taken, memory_order_relaxed) & ~SPW_SLOTS_WATCHED;
}

#endif
