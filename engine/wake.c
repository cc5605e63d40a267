/* SPDX-License-Identifier: MIT */
/* engine/wake.c - wake a thread that sleeps in a queue */
#include "engine/wake.h"

#include <errno.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

int spw_engine__wake_open(struct spw_wake *wake)
{
	atomic_init(&wake->asked, false);
	atomic_init(&wake->sleeping, false);
	wake->eventfd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	wake->watched = wake->eventfd;
	return wake->eventfd < 0 ? -errno : 0;
}

void spw_engine__wake_close(struct spw_wake *wake)
{
	if (wake->eventfd >= 0)
		(void)close(wake->eventfd);
	wake->eventfd = -1;
}

void spw_engine__wake_ask(struct spw_wake *wake)
{
	int saved_errno = errno;
	uint64_t one = 1;

	atomic_store(&wake->asked, true);
	/* EAGAIN, the counter is full: then it is readable already, which is enough. */
	if (atomic_load(&wake->sleeping) && write(wake->eventfd, &one, sizeof(one)) < 0)
		errno = saved_errno;
}

void spw_engine__wake_drain(struct spw_wake *wake)
{
	uint64_t count, one = 1;

	/* EAGAIN: it was drained before. */
	if (read(wake->eventfd, &count, sizeof(count)) < 0)
		return;
	/*
	 * What was drained may be a wake-up requested since the sleep was announced: write it
	 * again.
	 */
	if (atomic_load(&wake->asked) && write(wake->eventfd, &one, sizeof(one)) < 0)
		return;
}
