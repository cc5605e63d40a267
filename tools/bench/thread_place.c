/* SPDX-License-Identifier: MIT */
/* tools/bench/thread_place.c - set CPUs, memory node and priority of a worker's thread */
#include "tools/bench/bench.h"

#include <errno.h>
#include <linux/ioprio.h>
#include <numa.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "util/util.h"

static int run_on_node(const struct bench_job *job)
{
	if (job->numa_node == BENCH_NUMA_ANY)
		return 0;
	if (numa_available() < 0 || (int)job->numa_node > numa_max_node())
		return spw_error(-EINVAL, "job %s: numa=%u: this machine has no such node",
				 job->name, job->numa_node);
	if (numa_run_on_node((int)job->numa_node) != 0)
		return spw_error_errno(-errno, "job %s: numa=%u", job->name, job->numa_node);
	return 0;
}

static int run_on_nodes(const struct bench_job *job)
{
	struct bitmask *nodes;
	int result = 0;

	if (job->numa_cpu_nodes[0] == '\0')
		return 0;
	nodes = numa_available() < 0 ? NULL : numa_parse_nodestring_all(job->numa_cpu_nodes);
	if (!nodes)
		return spw_error(-EINVAL,
				 "job %s: numa_cpu_nodes=%s: this machine has no such nodes",
				 job->name, job->numa_cpu_nodes);
	if (numa_run_on_node_mask_all(nodes) != 0)
		result = spw_error_errno(-errno, "job %s: numa_cpu_nodes=%s", job->name,
					 job->numa_cpu_nodes);
	numa_free_nodemask(nodes);
	return result;
}

/* Run on the job's CPUs; with cpus_split each worker on one of them, in turn. */
static int run_on_cpus(const struct bench_worker *worker)
{
	const struct bench_job *job = worker->job;
	unsigned turn = worker->index, count = (unsigned)CPU_COUNT(&job->cpus);
	cpu_set_t cpus = job->cpus;

	if (!job->cpus_given)
		return 0;
	if (job->cpus_split) {
		CPU_ZERO(&cpus);
		turn %= count;
		for (unsigned cpu = 0; cpu < CPU_SETSIZE; cpu++)
			if (CPU_ISSET(cpu, &job->cpus) && turn-- == 0)
				CPU_SET(cpu, &cpus);
	}
	if (sched_setaffinity(0, sizeof(cpus), &cpus) != 0)
		return spw_error_errno(-errno, "job %s: cpus_allowed", job->name);
	return 0;
}

static int set_priorities(const struct bench_job *job)
{
	unsigned class = job->prio_class == 0 ? IOPRIO_CLASS_BE : job->prio_class;

	if (job->nice != 0 && setpriority(PRIO_PROCESS, 0, job->nice) != 0)
		return spw_error_errno(-errno, "job %s: nice=%d", job->name, job->nice);
	if ((job->prio != 0 || job->prio_class != 0) &&
	    syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0,
		    (int)(class << IOPRIO_CLASS_SHIFT | job->prio)) != 0)
		return spw_error_errno(-errno, "job %s: prioclass=%u, prio=%u", job->name, class,
				       job->prio);
	return 0;
}

int bench_place_thread(const struct bench_worker *worker)
{
	int result = run_on_node(worker->job);

	if (result == 0)
		result = run_on_nodes(worker->job);
	if (result == 0)
		result = run_on_cpus(worker);
	return result == 0 ? set_priorities(worker->job) : result;
}

int bench_memory_node(const struct bench_job *job)
{
	uint32_t node = job->numa_memory != BENCH_NUMA_ANY ? job->numa_memory : job->numa_node;

	return node == BENCH_NUMA_ANY ? -1 : (int)node;
}
