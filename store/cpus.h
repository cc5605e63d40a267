/* SPDX-License-Identifier: MIT */
/* store/cpus.h - where the store's threads run, and for how long */
#ifndef SPW_STORE_CPUS_H
#define SPW_STORE_CPUS_H

#include <pthread.h>

struct spw_store;

/* Choose the NUMA node, if all drives share one and the process may run there. Return: 0. */
int spw_store__settle(struct spw_store *store);
/* pthread_create() on the CPUs of that node. */
int spw_store__thread(const struct spw_store *store, pthread_t *thread, void *(*main)(void *),
		      void *argument);
/*
 * Called by each thread of the store: it then runs soon after a completion, and other threads do
 * not have to wait until it has summed all that there is.
 */
void spw_store__short_slice(const struct spw_store *store);

#endif
