/* SPDX-License-Identifier: MIT */
/* hooks/owner.h - memory that the cache may still read, held until its token is reaped */
#ifndef SPW_HOOKS_OWNER_H
#define SPW_HOOKS_OWNER_H

#include "content.h"

struct owner {
	uint64_t token; /* of the offer; 0: free */
	PyObject *tensor;
	struct version *version;
	struct record *record;
	uint64_t address; /* of the tensor's first element when it was offered */
	uint32_t next;    /* the next free one, + 1 */
	/* the tensor has no graph: it may be held for long, and handed out */
	bool is_held;
	bool is_shown; /* it was handed out */
	/* on a device: an empty tensor there; the computing stream, the event after it; or NULL */
	PyObject *nothing, *stream, *produced;
};

struct owners {
	struct owner *all;
	uint32_t max, free, held; /* free: the first free one, + 1 */
	uint64_t serial;
};

/* @tensor: with its graph, and its first element at @address. Return: its token; 0 with an error */
uint64_t owner_add(struct owners *owners, PyObject *tensor, struct version *version,
		   struct record *record, uint64_t address);
/* Replaces the tensor by @held, without the graph. Return: whether the token is still out */
bool owner_hold(struct owners *owners, uint64_t token, PyObject *held);
/* NULL without an exception: the token was reaped. */
struct owner *owner_of(const struct owners *owners, uint64_t token);
/* Frees its place. The caller passes the result to owner_drop(), which may run any Python code. */
struct owner owner_remove(struct owners *owners, struct owner *owner);
void owner_drop(const struct owner *removed);
/* Both at once. */
void owner_end(struct owners *owners, struct owner *owner);
/* Ends all of them. */
void owners_end(struct owners *owners);
/*
 * The cache no longer needs the memory: records on the version whether it was modified while the
 * cache still read it, or replaced. A tensor that is sent to another process, or resized, moves its
 * bytes to other memory, and its former memory may have been reused before the cache read it.
 * Switches to no other thread.
 */
void owner_mark(const struct owner *owner);

#endif
