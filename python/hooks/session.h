/* SPDX-License-Identifier: MIT */
/* hooks/session.h - struct session: owners, storages and borrowed memory of an offload context */
#ifndef SPW_HOOKS_SESSION_H
#define SPW_HOOKS_SESSION_H

#include "lease.h"
#include "owner.h"

/* Number of known storages at which freed ones are first removed. */
#define PRUNE_MIN 1024

struct saved;
struct kept;

/* What is kept by the plan, by its address, in chains. */
struct kept_table {
	struct kept **chains;
	size_t max, count; /* chains: a power of two, or none; those kept */
};

struct session {
	PyObject_HEAD struct leases *leases;
	PyObject *cache, *device, *excluded, *tracer;
	PyObject *frame; /* the frame of the running scope, or None if it cannot be recomputed */
	PyObject *trial; /* a list to which tensors are saved as well, or None */
	PyObject *operations; /* which single operations are recomputed, or None */
	char discards_all;    /* discard all that can be recomputed, whatever the plan says */
	PyObject *records;    /* of storages, by their identity */
	PyObject *places; /* of parameters on drives, by the identity of their storage; or None */
	Py_ssize_t prune_at;
	int excluding; /* number of excluded modules that are running */
	char unpacked; /* a backward pass has begun since this was cleared */
	char begins;   /* the first save after a backward pass begins a step: nothing else does */
	unsigned undrained;
	unsigned long long steps;
	uint64_t serial;
	uint64_t saves;                               /* in the step with the number saves_step */
	unsigned long long saves_step, planless_step; /* the last of these: no plan is followed */
	struct kept_table kept;
	struct saved *borrowers; /* saved tensors that hold memory of the cache */
	struct owners owners;
};

/* Get the open cache. Return: NULL with an exception if it is closed. */
struct spw_cache *session_cache(struct session *session);
/* Find or make the record of a tensor's storage. Return: a new reference. */
struct record *session_record(struct session *session, const struct seen *seen);
/* Remove the records of freed storages. */
int session_prune(struct session *session);
/* Reap tokens that the cache no longer needs, and drop the memory of their owners. */
void session_drain(struct session *session);
/* Call session_drain() after each large tensor, and after every few small ones. */
void session_drain_at_times(struct session *session, uint64_t len_bytes);
/* After an offer, wait without the GIL if the forward pass is ahead of its plan for writes. */
void session_throttle(struct session *session);

#endif
