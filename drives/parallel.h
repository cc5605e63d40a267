/* SPDX-License-Identifier: MIT */
/*
 * drives/parallel.h - the same work on several drives at the same time
 *
 * For what waits for drives and is done before there is an I/O thread. What the work finds is its
 * own to keep, the words of spw_last_error() too: each thread has its own.
 */
#ifndef SPW_DRIVES_PARALLEL_H
#define SPW_DRIVES_PARALLEL_H

#include <spillway/error.h>

/*
 * Call @work for each of 0 .. @count - 1, by this thread and at most @count - 1 others, and return
 * when all is done. Where threads are not to be had, those that are there do it all, and @log hears
 * of it. Signals are not delivered to the others.
 */
void spw_parallel(unsigned count, void (*work)(void *context, unsigned index), void *context,
		  const struct spw_log *log);

#endif
