/* SPDX-License-Identifier: MIT */
/* hooks/owner.h - owners: tensors that the cache may still read, held until it reaps their token */
#ifndef SPW_HOOKS_OWNER_H
#define SPW_HOOKS_OWNER_H

#include "content.h"

struct owner {
	uint64_t token; /* of the offer; 0: free */
	PyObject *tensor;
	struct version *version;
	struct record *record;
	uint64_t address; /* of the tensor's first element when it was offered */
	uint32_t next;    /* index of the next free owner, + 1; 0: none */
	/* the tensor is detached from its graph: it may be held for long, and handed out */
	bool is_held;
	bool is_shown; /* it was handed out */
	/*
	 * device only: an empty tensor there, the computing stream; an event after that, if it has
	 * been copied out; or NULL
	 */
	PyObject *nothing, *stream, *produced;
};

struct owners {
	struct owner *all;
	uint32_t max, free, held; /* free: index of the first free owner, + 1 */
	uint64_t serial;
};

/*
 * Register an owner. @tensor: still with its graph, first element at @address. Return: its token; 0
 * with an exception
 */
uint64_t owner_add(struct owners *owners, PyObject *tensor, struct version *version,
		   struct record *record, uint64_t address);
/* Replace the owner's tensor by @held, without its graph. Return: false: the token was reaped */
bool owner_hold(struct owners *owners, uint64_t token, PyObject *held);
/* Find an owner. Return: NULL without an exception if its token was reaped. */
struct owner *owner_of(const struct owners *owners, uint64_t token);
/* Remove an owner. The caller passes the result to owner_drop(), which may run any Python code. */
struct owner owner_remove(struct owners *owners, struct owner *owner);
void owner_drop(const struct owner *removed);
/* owner_remove() and owner_drop(). */
void owner_end(struct owners *owners, struct owner *owner);
void owners_end(struct owners *owners);
/*
 * The cache no longer reads the memory: note in the version whether the memory was modified or
 * replaced while the cache still read it. Sending a tensor to another process, or resizing it,
 * moves its bytes, and the old memory may have been reused before the cache read it. Never switches
 * threads.
 */
void owner_mark(const struct owner *owner);

#endif
