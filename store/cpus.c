/* SPDX-License-Identifier: MIT */
/* store/cpus.c - run the store's threads on the NUMA node of its drives, in short time slices */
#include "store/cpus.h"

#include <numa.h>
#include <pthread.h>

#include "store/open_store.h"
#include "util/parallel.h"
#include "util/util.h"

static int node_of(const struct spw_store *store, uint32_t drive)
{
	return spw_device_geometry(store->drives[drive].device)->numa_node;
}

static int node_of_drives(const struct spw_store *store)
{
	for (uint32_t i = 1; i < store->drive_count; i++)
		if (node_of(store, i) != node_of(store, 0))
			return -1;
	return node_of(store, 0);
}

static int cpus_of_node(int node, cpu_set_t *cpus)
{
	struct bitmask *of_node = NULL;
	cpu_set_t allowed;

	CPU_ZERO(cpus);
	if (numa_available() < 0 || node > numa_max_node() ||
	    sched_getaffinity(0, sizeof(allowed), &allowed))
		return 0;
	of_node = numa_allocate_cpumask();
	if (of_node && numa_node_to_cpus(node, of_node) == 0)
		for (unsigned cpu = 0; cpu < CPU_SETSIZE && cpu < of_node->size; cpu++)
			if (numa_bitmask_isbitset(of_node, cpu) && CPU_ISSET(cpu, &allowed))
				CPU_SET(cpu, cpus);
	if (of_node)
		numa_bitmask_free(of_node);
	return CPU_COUNT(cpus);
}

int spw_store__settle(struct spw_store *store)
{
	store->numa_node = node_of_drives(store);
	if (store->numa_node >= 0 && cpus_of_node(store->numa_node, &store->worker_cpus) == 0) {
		spw_log(&store->opts.log, SPW_LOG_WARNING,
			"the drives are on NUMA node %d, where this process may not run (see "
			"taskset, cpuset)",
			store->numa_node);
		store->numa_node = -1;
	}
	return 0;
}

int spw_store__thread(const struct spw_store *store, pthread_t *thread, void *(*main)(void *),
		      void *argument)
{
	pthread_attr_t attributes;
	int rc = pthread_attr_init(&attributes);

	if (rc)
		return rc;
	if (store->numa_node >= 0)
		rc = pthread_attr_setaffinity_np(&attributes, sizeof(store->worker_cpus),
						 &store->worker_cpus);
	if (!rc)
		rc = spw_thread_start(thread, &attributes, main, argument);
	(void)pthread_attr_destroy(&attributes);
	return rc;
}

void spw_store__short_slice(const struct spw_store *store)
{
	if (spw_queue_short_slice() != 0)
		spw_log(&store->opts.log, SPW_LOG_INFO, "%s", spw_last_error());
}
