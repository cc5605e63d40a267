/* SPDX-License-Identifier: MIT */
/* store/inbox.c - messages from any thread to the worker: a lock-free list */
#include "store/inbox.h"

#include <errno.h>

#include "store/open_store.h"
#include "util/util.h"

/*
 * Sequentially consistent, like the worker's store to store->asleep and its last look at the inbox:
 * either the worker sees the message, or the sender sees that it is asleep. Only one sender makes
 * the system call.
 */
void spw_store__wake(struct spw_store *store)
{
	if (atomic_load(&store->asleep) != AWAKE && atomic_exchange(&store->asleep, AWAKE) != AWAKE)
		spw_queue_wake(store->queue);
}

static void push(struct spw_store *store, struct message *message)
{
	struct message *newest = atomic_load_explicit(&store->inbox, memory_order_relaxed);

	do
		message->next = newest;
	while (!atomic_compare_exchange_weak(&store->inbox, &newest, message));
}

void spw_store__push(struct spw_store *store, struct message *message)
{
	push(store, message);
	spw_store__wake(store);
}

void spw_store__push_put(struct spw_store *store, struct message *message)
{
	push(store, message);
	if (atomic_load(&store->asleep) == ASLEEP)
		spw_store__wake(store);
}

int spw_store__owned(const struct spw_store *store)
{
	if (!store->own || *store->own)
		return 0;
	return spw_error(-EPERM, "the store was opened before fork(), and is the parent's: open a "
				 "partition of its own in the child");
}
