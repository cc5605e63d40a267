/* SPDX-License-Identifier: MIT */
/* store/cpus.h - CPUs and time slices of the store's threads */
#ifndef SPW_STORE_CPUS_H
#define SPW_STORE_CPUS_H

#include <pthread.h>

struct spw_store;

/* Choose the drives' NUMA node, if all are on one and the process may run there. Return: 0. */
int spw_store__settle(struct spw_store *store);
/* pthread_create() on the CPUs of that node. */
int spw_store__thread(const struct spw_store *store, pthread_t *thread, void *(*main)(void *),
		      void *argument);
/*
 * Called by each thread of the store, to be scheduled soon after a completion, and to be preempted
 * during long checksums.
 */
void spw_store__short_slice(const struct spw_store *store);

#endif
