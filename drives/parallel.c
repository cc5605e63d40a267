/* SPDX-License-Identifier: MIT */
/* drives/parallel.c - the same work on several drives at the same time */
#include "drives/parallel.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "util/util.h"

/* Each may hold some megabytes of what it reads. */
#define THREADS_MAX 16

struct job {
	void (*work)(void *context, unsigned index);
	void *context;
	unsigned count;
	_Atomic unsigned next;
};

static void *take_turns(void *argument)
{
	struct job *job = argument;
	unsigned index;

	while ((index = atomic_fetch_add(&job->next, 1)) < job->count)
		job->work(job->context, index);
	return NULL;
}

/* Return: how many of @wanted could be started. */
static unsigned start(struct job *job, pthread_t threads[], unsigned wanted,
		      const struct spw_log *log)
{
	sigset_t all, before;
	unsigned started = 0;
	int rc;

	/* The program's signals are for its own threads. */
	(void)sigfillset(&all);
	rc = pthread_sigmask(SIG_SETMASK, &all, &before);
	if (rc == 0) {
		while (rc == 0 && started < wanted) {
			rc = pthread_create(&threads[started], NULL, take_turns, job);
			started += rc == 0;
		}
		(void)pthread_sigmask(SIG_SETMASK, &before, NULL);
	}
	if (rc)
		spw_log(log, SPW_LOG_INFO,
			"%u drives are examined by %u thread%s: no more can be started (%s)",
			job->count, started + 1, started == 0 ? "" : "s", spw_strerror(rc));
	return started;
}

void spw_parallel(unsigned count, void (*work)(void *context, unsigned index), void *context,
		  const struct spw_log *log)
{
	struct job job = {.work = work, .context = context, .count = count};
	unsigned wanted = count < THREADS_MAX ? count : THREADS_MAX;
	pthread_t threads[THREADS_MAX];
	unsigned started = wanted > 1 ? start(&job, threads, wanted - 1, log) : 0;

	(void)take_turns(&job);
	while (started > 0)
		(void)pthread_join(threads[--started], NULL);
}
