/* SPDX-License-Identifier: MIT */
/* store/slots.c - a lock-free stack of free slot numbers */
#include "store/slots.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

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
	atomic_init(&slots->given, 0);
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
		/* The link may be stale: then the tag has changed, and the exchange fails. */
		next = atomic_load_explicit(&slots->next[slot], memory_order_relaxed);
		if (atomic_compare_exchange_weak_explicit(
			    &slots->head, &head, next_head(head, next), memory_order_acquire,
			    memory_order_acquire)) {
			atomic_fetch_add_explicit(&slots->taken, 1, memory_order_relaxed);
			return slot;
		}
	}
}

bool spw_store__slots_watch(struct spw_slots *slots, uint32_t *given)
{
	/* Order: a thread that returns a slot after we have read the head sees the mark. */
	*given = atomic_load(&slots->given);
	(void)atomic_fetch_or(&slots->taken, SPW_SLOTS_WATCHED);
	return (uint32_t)atomic_load(&slots->head) != SPW_SLOT_NONE;
}

/* Wake all watchers, which check again, and mark again if they have to wait. */
SPW_COLD static void wake_watchers(struct spw_slots *slots)
{
	(void)atomic_fetch_and(&slots->taken, ~SPW_SLOTS_WATCHED);
	(void)atomic_fetch_add(&slots->given, 1);
	(void)syscall(SYS_futex, &slots->given, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void spw_store__slots_give(struct spw_slots *slots, uint32_t slot)
{
	uint64_t head = atomic_load_explicit(&slots->head, memory_order_relaxed);
	uint32_t taken;

	do
		atomic_store_explicit(&slots->next[slot], (uint32_t)head, memory_order_relaxed);
	/* Release: the slot's next owner must see what the last owner wrote to it. */
	while (!atomic_compare_exchange_weak_explicit(&slots->head, &head, next_head(head, slot),
						      memory_order_release, memory_order_relaxed));
	taken = atomic_fetch_sub_explicit(&slots->taken, 1, memory_order_acq_rel);
	SPW_ASSERT((taken & ~SPW_SLOTS_WATCHED) > 0);
	if (unlikely(taken & SPW_SLOTS_WATCHED))
		wake_watchers(slots);
}
