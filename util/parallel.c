/* SPDX-License-Identifier: MIT */
/* util/parallel.c - spw_parallel(): works on several drives or controllers in parallel threads */
#include "util/parallel.h"

#include <signal.h>
#include <stdatomic.h>

#include "util/util.h"

#define THREADS_MAX 64 /* the most drives of a store */

struct job {
	void (*work)(void *context, unsigned index);
	void *context;
	unsigned count;
	const char *what;
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

int spw_thread_start(pthread_t *thread, const pthread_attr_t *attributes, void *(*main)(void *),
		     void *argument)
{
	sigset_t all, before;
	int rc;

	(void)sigfillset(&all);
	rc = pthread_sigmask(SIG_SETMASK, &all, &before);
	if (rc)
		return rc;
	rc = pthread_create(thread, attributes, main, argument);
	(void)pthread_sigmask(SIG_SETMASK, &before, NULL);
	return rc;
}

static unsigned start(struct job *job, pthread_t threads[], unsigned wanted,
		      const struct spw_log *log)
{
	unsigned started = 0;
	int rc = 0;

	while (rc == 0 && started < wanted) {
		rc = spw_thread_start(&threads[started], NULL, take_turns, job);
		started += rc == 0;
	}
	if (rc)
		spw_log(log, SPW_LOG_INFO, "%u %s by %u thread%s: no more can be started (%s)",
			job->count, job->what, started + 1, started == 0 ? "" : "s",
			spw_strerror(rc));
	return started;
}

void spw_parallel(unsigned count, const char *what, void (*work)(void *context, unsigned index),
		  void *context, const struct spw_log *log)
{
	struct job job = {.work = work, .context = context, .count = count, .what = what};
	unsigned wanted = count < THREADS_MAX ? count : THREADS_MAX;
	pthread_t threads[THREADS_MAX];
	unsigned started = wanted > 1 ? start(&job, threads, wanted - 1, log) : 0;

	(void)take_turns(&job);
	while (started > 0)
		(void)pthread_join(threads[--started], NULL);
}
