/* SPDX-License-Identifier: MIT */
/*
 * engine/wake.h - wake a thread that sleeps in a queue; no system call when it does not sleep
 *
 * The eventfd only ends a sleep. The sleeper sets sleeping before it reads asked, and the waker
 * sets asked before it reads sleeping: so at least one of them sees the other.
 */
#ifndef SPW_ENGINE_WAKE_H
#define SPW_ENGINE_WAKE_H

#include <stdatomic.h>
#include <stdbool.h>

struct spw_wake {
	int eventfd; /* non-blocking */
	/* descriptor that a sleeper waits for: eventfd, or an epoll set that contains it */
	int watched;
	atomic_bool asked;
	atomic_bool sleeping;
	/* polls of it in flight: one per completion waited for, so that a wake ends any wait */
	unsigned polls;
	bool fired; /* one of these polls has completed */
};

int spw_engine__wake_open(struct spw_wake *wake);
void spw_engine__wake_close(struct spw_wake *wake);

/* Wake the sleeper. From any thread, also from a signal handler. */
void spw_engine__wake_ask(struct spw_wake *wake);

static inline void spw_engine__wake_up(struct spw_wake *wake)
{
	atomic_store_explicit(&wake->sleeping, false, memory_order_relaxed);
}

/* Announce a sleep. Return: false: a wake-up was requested, do not sleep. */
static inline bool spw_engine__wake_sleep(struct spw_wake *wake)
{
	atomic_store(&wake->sleeping, true);
	if (!atomic_load(&wake->asked))
		return true;
	spw_engine__wake_up(wake);
	return false;
}

void spw_engine__wake_drain(struct spw_wake *wake);

/* How many more polls to start before waiting for @want completions. */
static inline unsigned spw_engine__wake_polls_missing(struct spw_wake *wake, unsigned want)
{
	if (wake->fired && wake->polls == 0) {
		spw_engine__wake_drain(wake);
		wake->fired = false;
	}
	/* After a wake all other polls complete by themselves. */
	return wake->fired || wake->polls >= want ? 0 : want - wake->polls;
}

/* Was a wake-up requested? Clears the request. */
static inline bool spw_engine__wake_taken(struct spw_wake *wake)
{
	return atomic_load_explicit(&wake->asked, memory_order_relaxed) &&
	       atomic_exchange(&wake->asked, false);
}

#endif
