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
#include <stdint.h>

#define SPW_SLOT_NONE UINT32_MAX

struct spw_slots {
	_Atomic uint64_t head; /* tag << 32 | slot */
	_Atomic uint32_t *next;
	_Atomic uint32_t taken;
};

/* Slots 0 .. count - 1 are free, the lowest on top. Return: 0; -ENOMEM. */
int spw_store__slots_open(struct spw_slots *slots, uint32_t count);
void spw_store__slots_close(struct spw_slots *slots);

/* Return: a slot, or SPW_SLOT_NONE. */
uint32_t spw_store__slots_take(struct spw_slots *slots);
void spw_store__slots_give(struct spw_slots *slots, uint32_t slot);

#endif
