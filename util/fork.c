/* SPDX-License-Identifier: MIT */
/* util/fork.c - spw_fork_add(): descriptors that are closed in children of fork(2) */
#include "util/fork.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "util/util.h"

static pthread_mutex_t mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int registered; /* result of pthread_atfork(3): 0 or a positive errno */
static int *fds;
static size_t count, room;

/* Hold the mutex during fork(2), so that the child gets a consistent list. */
static void before_fork(void)
{
	(void)pthread_mutex_lock(&mutex);
}

static void after_fork_in_child(void)
{
	while (count > 0)
		(void)close(fds[--count]);
	/*
	 * The mutex is recursive and its owner is a thread of the parent, so this unlock fails in
	 * the child; it tells ThreadSanitizer that the mutex is free. Then the mutex is
	 * initialized.
	 */
	(void)pthread_mutex_unlock(&mutex);
	mutex = (pthread_mutex_t)PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
}

static void register_handlers(void)
{
	registered = pthread_atfork(before_fork, spw_fork_release, after_fork_in_child);
}

void spw_fork_hold(void)
{
	(void)pthread_once(&once, register_handlers);
	(void)pthread_mutex_lock(&mutex);
}

void spw_fork_release(void)
{
	(void)pthread_mutex_unlock(&mutex);
}

static int make_room(void)
{
	int *larger;

	if (count < room)
		return 0;
	larger = reallocarray(fds, room + 64, sizeof(*fds));
	if (!larger)
		return -ENOMEM;
	fds = larger;
	room += 64;
	return 0;
}

int spw_fork_add(int fd)
{
	int rc;

	SPW_ASSERT(fd >= 0);
	spw_fork_hold();
	rc = registered ? -registered : make_room();
	if (rc == 0)
		fds[count++] = fd;
	spw_fork_release();
	return rc == 0 ? 0
		       : spw_error(rc, "no memory to keep a descriptor from children of fork()");
}

void spw_fork_remove(int fd)
{
	spw_fork_hold();
	for (size_t i = 0; i < count; i++) {
		if (fds[i] != fd)
			continue;
		fds[i] = fds[--count];
		break;
	}
	/* Free the list with its last descriptor, so that leak checkers find nothing. */
	if (count == 0) {
		free(fds);
		fds = NULL;
		room = 0;
	}
	spw_fork_release();
}

void spw_fork_close(int fd)
{
	if (fd < 0)
		return;
	spw_fork_hold();
	spw_fork_remove(fd);
	(void)close(fd);
	spw_fork_release();
}
