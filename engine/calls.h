/* SPDX-License-Identifier: MIT */
/* engine/calls.h - how often a queue has called the kernel */
#ifndef SPW_ENGINE_CALLS_H
#define SPW_ENGINE_CALLS_H

#include <stdint.h>

struct spw_queue;

/* As spw_queue_stats() has it, at no cost. */
uint64_t spw_queue_system_calls(const struct spw_queue *queue);

#endif
