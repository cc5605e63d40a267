/* SPDX-License-Identifier: MIT */
/*
 * engine/slice.h - what the kernel's sched_getattr() tells of a thread, and sched_setattr() takes
 */
#ifndef SPW_ENGINE_SLICE_H
#define SPW_ENGINE_SLICE_H

#include <stdint.h>

/*
 * The first version of the kernel's struct sched_attr: its header cannot be included beside
 * <sched.h>, nor has every C library it.
 */
struct spw_sched_attr {
	uint32_t size;
	uint32_t policy;
	uint64_t flags;
	int32_t nice;
	uint32_t priority;
	uint64_t runtime_ns; /* of SCHED_OTHER: the slice, since Linux 6.12 */
	uint64_t deadline_ns;
	uint64_t period_ns;
};

_Static_assert(sizeof(struct spw_sched_attr) == 48, "SCHED_ATTR_SIZE_VER0");

#endif
