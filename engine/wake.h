/* SPDX-License-Identifier: MIT */
/*
 * engine/wake.h - wake a thread that sleeps in a queue; no system call when it does not sleep
 *
 * The eventfd only ends a sleep. The sleeper announces itself before it looks at the flag, and the
 * waker sets the flag before it looks for a sleeper: one of them sees the other.
 */
#ifndef SPW_ENGINE_WAKE_H
#define SPW_ENGINE_WAKE_H

#include <stdatomic.h>
#include <stdbool.h>

struct spw_wake {
	int eventfd; /* non-blocking */
	int watched; /* what a sleeper waits for: the same, or a set of descriptors with it */
	atomic_bool asked;
	atomic_bool sleeping;
	unsigned polls; /* under way: one per completion waited for, so that a wake ends any wait */
	bool fired;     /* one of them */
};

int spw_engine__wake_open(struct spw_wake *wake);
void spw_engine__wake_close(struct spw_wake *wake);

/* From any thread, also from a signal handler. */
void spw_engine__wake_ask(struct spw_wake *wake);

static inline void spw_engine__wake_up(struct spw_wake *wake)
{
	atomic_store_explicit(&wake->sleeping, false, memory_order_relaxed);
}

/* Announce a sleep. Return: false when a wake-up was asked for: do not sleep. */
static inline bool spw_engine__wake_sleep(struct spw_wake *wake)
{
	atomic_store(&wake->sleeping, true);
	if (!atomic_load(&wake->asked))
		return true;
	spw_engine__wake_up(wake);
	return false;
}

void spw_engine__wake_drain(struct spw_wake *wake);

/* How many polls to begin before @want completions are waited for. */
static inline unsigned spw_engine__wake_polls_missing(struct spw_wake *wake, unsigned want)
{
	if (wake->fired && wake->polls == 0) {
		spw_engine__wake_drain(wake);
		wake->fired = false;
	}
	/* After a wake the rest of the polls end on their own. */
	return wake->fired || wake->polls >= want ? 0 : want - wake->polls;
}

/* Whether a wake-up was asked for; forgets it. */
static inline bool spw_engine__wake_taken(struct spw_wake *wake)
{
	return atomic_load_explicit(&wake->asked, memory_order_relaxed) &&
	       atomic_exchange(&wake->asked, false);
}

#endif
