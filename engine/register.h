/* SPDX-License-Identifier: MIT */
/*
 * engine/register.h - memory of others that a queue is told of beforehand, beside the arena
 *
 * The backend registers it as it does the arena, with the ring or with the controllers; where it
 * cannot, or the system refuses, the range stays known and its transfers go as from any memory.
 * By the queue's thread, as all of a queue.
 */
#ifndef SPW_ENGINE_REGISTER_H
#define SPW_ENGINE_REGISTER_H

#include <stdbool.h>

#include <spillway/engine.h>

/*
 * Return: 1 registered; 0 refused, which is logged; -EEXIST it overlaps the arena or another;
 * -ENOBUFS there are as many as can be (SPW_RANGES_MAX); -EINVAL.
 */
int spw_engine__queue_register(struct spw_queue *queue, void *memory, size_t len);

/* Return: 0; -ENOENT no range begins there; -EBUSY a request in flight uses it. */
int spw_engine__queue_unregister(struct spw_queue *queue, const void *memory);

/* Of all ranges that are registered. */
uint64_t spw_engine__queue_ranges_bytes(const struct spw_queue *queue);

/* Is this memory of a range that is registered? */
bool spw_engine__queue_knows(const struct spw_queue *queue, const void *memory, size_t len);

#endif
