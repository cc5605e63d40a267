/* SPDX-License-Identifier: MIT */
/* store/slots.c - a lock-free stack of free slot numbers */
#include "store/slots.h"

#include <errno.h>
#include <stdlib.h>

#include "util/util.h"

int spw_store__slots_open(struct spw_slots *slots, uint32_t count)
{
	slots->next = calloc(count, sizeof(*slots->next));
	if (!slots->next)
		return -ENOMEM;
	for (uint32_t slot = 0; slot < count; slot++)
		atomic_init(&slots->next[slot], slot + 1 < count ? slot + 1 : SPW_SLOT_NONE);
	atomic_init(&slots->head, 0);
	atomic_init(&slots->taken, 0);
	return 0;
}

void spw_store__slots_close(struct spw_slots *slots)
{
	free(slots->next);
	slots->next = NULL;
}

static uint64_t next_head(uint64_t head, uint32_t slot)
{
	return ((head >> 32) + 1) << 32 | slot;
}

uint32_t spw_store__slots_take(struct spw_slots *slots)
{
	uint64_t head = atomic_load_explicit(&slots->head, memory_order_acquire);

	for (;;) {
		uint32_t slot = (uint32_t)head;
		uint32_t next;

		if (slot == SPW_SLOT_NONE)
			return SPW_SLOT_NONE;
		/* May be stale; then the tag has changed and the exchange fails. */
		next = atomic_load_explicit(&slots->next[slot], memory_order_relaxed);
		if (atomic_compare_exchange_weak_explicit(
			    &slots->head, &head, next_head(head, next), memory_order_acquire,
			    memory_order_acquire)) {
			atomic_fetch_add_explicit(&slots->taken, 1, memory_order_relaxed);
			return slot;
		}
	}
}

void spw_store__slots_give(struct spw_slots *slots, uint32_t slot)
{
	uint64_t head = atomic_load_explicit(&slots->head, memory_order_relaxed);

	SPW_ASSERT(atomic_load_explicit(&slots->taken, memory_order_relaxed) > 0);
	do
		atomic_store_explicit(&slots->next[slot], (uint32_t)head, memory_order_relaxed);
	/* Release: the next owner of the slot sees what the last one wrote to it. */
	while (!atomic_compare_exchange_weak_explicit(&slots->head, &head, next_head(head, slot),
						      memory_order_release, memory_order_relaxed));
	atomic_fetch_sub_explicit(&slots->taken, 1, memory_order_relaxed);
}
