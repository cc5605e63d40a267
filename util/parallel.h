/* SPDX-License-Identifier: MIT */
/*
 * util/parallel.h - the same work on several drives or controllers at the same time
 *
 * For what waits for drives and is done before there is an I/O thread. What the work finds is its
 * own to keep, the words of spw_last_error() too: each thread has its own.
 */
#ifndef SPW_UTIL_PARALLEL_H
#define SPW_UTIL_PARALLEL_H

#include <spillway/error.h>

/*
 * Calls @work(0 .. @count - 1) in up to @count threads, without signals, and waits for all.
 * @what: "drives are read", for the log when threads are missing.
 */
void spw_parallel(unsigned count, const char *what, void (*work)(void *context, unsigned index),
		  void *context, const struct spw_log *log);

#endif
