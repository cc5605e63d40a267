/* SPDX-License-Identifier: MIT */
/* util/parallel.h - the same work on several drives or controllers in parallel threads */
#ifndef SPW_UTIL_PARALLEL_H
#define SPW_UTIL_PARALLEL_H

#include <pthread.h>

#include <spillway/error.h>

/*
 * Call @work(0 .. @count - 1) in up to @count threads with all signals blocked, each with its own
 * spw_last_error(). @what: what is worked on, for the log.
 */
void spw_parallel(unsigned count, const char *what, void (*work)(void *context, unsigned index),
		  void *context, const struct spw_log *log);

/* pthread_create() with all signals blocked: signals belong to the program's own threads. */
int spw_thread_start(pthread_t *thread, const pthread_attr_t *attributes, void *(*main)(void *),
		     void *argument);

#endif
