/* SPDX-License-Identifier: MIT */
/*
 * engine/time_slice.c - spw_queue_short_slice(): has a thread that waits on a queue scheduled soon
 *
 * The scheduler runs the thread whose time slice ends first. With a long slice, a woken thread runs
 * after those of loop devices and checksums, while the queues that it should refill run empty.
 */
#include <errno.h>
#include <sched.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <spillway/engine.h>

#include "util/util.h"

/* The first version of struct sched_attr, whose kernel header conflicts with <sched.h>. */
struct spw_sched_attr {
	uint32_t size;
	uint32_t policy;
	uint64_t flags;
	int32_t nice;
	uint32_t priority;
	uint64_t runtime_ns; /* for SCHED_OTHER: the time slice, since Linux 6.12 */
	uint64_t deadline_ns;
	uint64_t period_ns;
};

_Static_assert(sizeof(struct spw_sched_attr) == 48, "SCHED_ATTR_SIZE_VER0");

/* The shortest slice that the kernel accepts. */
#define SLICE_NS 100000u

int spw_queue_short_slice(void)
{
	struct spw_sched_attr attr = {.size = sizeof(attr)};

	if (syscall(SYS_sched_getattr, 0, &attr, sizeof(attr), 0))
		return spw_error_errno(-errno,
				       "the scheduler does not say how it treats this thread");
	if (attr.policy != SCHED_OTHER)
		return spw_error(-EOPNOTSUPP,
				 "a thread with a scheduling policy of its own keeps its slice");
	attr.runtime_ns = SLICE_NS;
	if (syscall(SYS_sched_setattr, 0, &attr, 0))
		return spw_error_errno(-errno, "the scheduler refuses a short slice");
	return 0;
}
