/* SPDX-License-Identifier: MIT */
/* hooks/session.h - what outlives an offload context: owners, known storages, borrowed memory */
#ifndef SPW_HOOKS_SESSION_H
#define SPW_HOOKS_SESSION_H

#include "lease.h"
#include "owner.h"

/* Known storages at which those that are gone are forgotten first. */
#define PRUNE_MIN 1024

struct saved;

struct session {
	PyObject_HEAD struct leases *leases;
	PyObject *cache, *device, *excluded, *tracer;
	PyObject *frame;      /* of the running scope that can be recomputed, or None */
	PyObject *trial;      /* a list to which tensors are saved as well, or None */
	PyObject *operations; /* which single operations are recomputed, or None */
	char discards_all;    /* that can be recomputed, whatever the plan says */
	PyObject *records;    /* of storages, by their identity */
	PyObject *places;     /* of parameters on drives, by the same; or None */
	Py_ssize_t prune_at;
	int excluding; /* excluded modules that are running */
	char unpacked; /* a backward pass was seen since this was last cleared */
	char begins;   /* the first save after a backward pass begins a step: nothing else does */
	unsigned undrained;
	unsigned long long steps;
	uint64_t serial;
	struct saved *borrowers; /* that hold memory of the cache */
	struct owners owners;
};

/* NULL with an exception: it is closed. */
struct spw_cache *session_cache(struct session *session);
/* A new reference. */
struct record *session_record(struct session *session, const struct seen *seen);
/* Forgets storages that are gone. */
int session_prune(struct session *session);
/* Reaps tokens, and drops the memory that they stand for. */
void session_drain(struct session *session);
/* The same, after each large tensor and once in a few small ones. */
void session_drain_at_times(struct session *session, uint64_t len_bytes);
/* After an offer: waits, without the GIL, if the forward pass is ahead of its plan. */
void session_throttle(struct session *session);

#endif
