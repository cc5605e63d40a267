/* SPDX-License-Identifier: MIT */
/*
 * engine/slice.c - when the thread that waits on a queue is run
 *
 * The scheduler runs whoever's slice ends first. A thread that has just been woken and has a long
 * slice comes after all that were woken before it, which under load are other threads of the
 * drives' (a loop device's, a checksum's): they empty the drives' queues before the one that
 * refills them is run. With a short slice it comes first, and its share of the processor is the
 * same.
 */
#include "engine/slice.h"

#include <errno.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <spillway/engine.h>

#include "util/util.h"

/* The shortest that the kernel takes. */
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
