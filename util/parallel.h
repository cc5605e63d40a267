/* SPDX-License-Identifier: MIT */
/* util/parallel.h - the same work on several drives or controllers at the same time */
#ifndef SPW_UTIL_PARALLEL_H
#define SPW_UTIL_PARALLEL_H

#include <pthread.h>

#include <spillway/error.h>

/*
 * Calls @work(0 .. @count - 1) in as many threads, each with its own spw_last_error(), without
 * signals. @what: for the log.
 */
void spw_parallel(unsigned count, const char *what, void (*work)(void *context, unsigned index),
		  void *context, const struct spw_log *log);

/* pthread_create() of a thread to which no signal is delivered: signals are the program's. */
int spw_thread_start(pthread_t *thread, const pthread_attr_t *attributes, void *(*main)(void *),
		     void *argument);

#endif
