/* SPDX-License-Identifier: MIT */
/*
 * engine/register.h - spw_engine__queue_register(): registers the caller's memory, in addition to
 * the arena
 *
 * The backend registers it like the arena, with the ring or with the controllers. If it cannot, or
 * the system refuses, the range stays in the table, and its transfers work as from unregistered
 * memory. Only the queue's thread may call these functions.
 */
#ifndef SPW_ENGINE_REGISTER_H
#define SPW_ENGINE_REGISTER_H

#include <stdbool.h>

#include <spillway/engine.h>

/*
 * Register memory. Return: 1 registered; 0 refused, which is logged; -EEXIST it overlaps the arena
 * or another range; -ENOBUFS there are SPW_RANGES_MAX ranges; -EINVAL.
 */
int spw_engine__queue_register(struct spw_queue *queue, void *memory, size_t len);

/* Unregister memory. Return: 0; -ENOENT no range begins there; -EBUSY in use by a request. */
int spw_engine__queue_unregister(struct spw_queue *queue, const void *memory);

/* Sum of the lengths of all registered ranges. */
uint64_t spw_engine__queue_ranges_bytes(const struct spw_queue *queue);

/* Is all of the memory in a registered range? */
bool spw_engine__queue_knows(const struct spw_queue *queue, const void *memory, size_t len);

/*
 * Unregister what the arena has after its highest allocation, and return its pages to the system.
 * Return: how many bytes.
 */
uint64_t spw_engine__queue_give_back(struct spw_queue *queue);

#endif
