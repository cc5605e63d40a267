/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/meet.h - threads that have to be somewhere at the same time, and threads that cannot
 * be had
 *
 * The test has a line "wrap: pthread_create" in a comment of its own.
 */
#ifndef SPW_TESTS_MEET_H
#define SPW_TESTS_MEET_H

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <time.h>

#include "tests/case.h"
#include "tests/wrap.h"

#define MEET_PATIENCE_S 20

static pthread_mutex_t meet_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t meet_changed = PTHREAD_COND_INITIALIZER;
static struct {
	unsigned wanted; /* this many go on together */
	unsigned arrived, inside;
	unsigned most;         /* inside at the same time */
	unsigned alone;        /* have waited in vain */
	unsigned threads_left; /* that can be started */
} meeting;

static inline void begin_meeting(unsigned wanted)
{
	meeting.wanted = wanted;
	meeting.arrived = meeting.inside = meeting.most = meeting.alone = 0;
	meeting.threads_left = UINT_MAX;
}

/* Return when as many as are wanted have called it. */
static inline void meet(void)
{
	struct timespec until;
	unsigned goal;

	(void)clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += MEET_PATIENCE_S;
	(void)pthread_mutex_lock(&meet_lock);
	if (++meeting.inside > meeting.most)
		meeting.most = meeting.inside;
	goal = (meeting.arrived++ / meeting.wanted + 1) * meeting.wanted;
	(void)pthread_cond_broadcast(&meet_changed);
	while (meeting.arrived < goal)
		if (pthread_cond_timedwait(&meet_changed, &meet_lock, &until)) {
			meeting.alone++;
			break;
		}
	meeting.inside--;
	(void)pthread_mutex_unlock(&meet_lock);
}

WRAP(int, pthread_create,
     (pthread_t * thread, const pthread_attr_t *attributes, void *(*work)(void *), void *context))
{
	if (meeting.threads_left == 0)
		return EAGAIN;
	meeting.threads_left--;
	return __real_pthread_create(thread, attributes, work, context);
}

#endif
