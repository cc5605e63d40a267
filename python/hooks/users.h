/* SPDX-License-Identifier: MIT */
/* hooks/users.h - which saved tensors use what was saved on a device, and what has ended there */
#ifndef SPW_HOOKS_USERS_H
#define SPW_HOOKS_USERS_H

#include "port.h"
#include "saved_tensor.h"

/* The saved tensors that share one entry of the cache. */
struct users {
	PyObject_HEAD uint32_t count;
	uint32_t unused;  /* not used yet, if each is used once */
	uint64_t begin;   /* of what was copied, in the storage */
	PyObject *shape;  /* of the one that is all of that; or NULL */
	PyObject *stream; /* on which it was saved */
	struct device *device;
	/* on the device again, until the last use or while there are several users; or NULL */
	PyObject *base;
	struct copy *copy; /* that brought it */
	/* it was discarded: the checksums of which part of the storage; or NULL */
	PyObject *checksums;
	PyObject *verdict; /* it was recomputed: whether to the same bytes; or NULL */
};

/*
 * Tensors of devices, as a session sees them. Any thread may save and use: autograd has one per
 * device for the backward pass.
 *
 * Threads    Calls into a device run Python, which may switch threads: a lock protects what is
 *            here. The end of a saved tensor comes without it, and at any point.
 * Closing    The cache stays open during a call here but may begin to close: then the call's
 *            copies have ended before it returns.
 */
struct on_device {
	PyObject_HEAD struct port *port;
	PyObject *cache;
	PyObject *lock; /* not held while a take waits */
	struct leases *leases;
	PyObject *users; /* by their numbers */
	struct owners owners;
	/* ids of saved tensors that ended; sized for all that are alive */
	uint64_t *ended;
	uint32_t ended_count, ended_max, alive;
	/* scope boundaries so far, and the one that the backward pass has reached */
	unsigned long long scope, used_scope;
	char is_due;   /* tokens may be ready to be reaped */
	char notifies; /* a thread is told of copies out */
};

extern PyTypeObject *users_type;
extern PyType_Spec users_spec;

int on_lock(struct on_device *on);
/* Leaves an exception in place. */
void on_unlock(struct on_device *on);
/* The cache stays open until on_cache_end(). NULL with an exception: it is closed. */
struct spw_cache *on_cache_begin(struct on_device *on);
void on_cache_end(struct on_device *on);
/* Of a saved tensor that is one of them. A new reference. */
struct users *users_of(struct on_device *on, const struct saved *saved);
/* @saved has that number from now on, and is one of its users. */
int user_note(struct on_device *on, struct saved *saved, uint64_t number, PyObject *stream);
/* Calls a method of DeviceTimes with the cache's handle. */
int on_call_times(struct on_device *on, struct spw_cache *cache, PyObject *name);
/* Copies a lease to the device; the lease is returned to the cache when the copy has ended. */
int on_bring(struct on_device *on, struct users *users, PyObject *stream, struct spw_taken *taken,
	     uint64_t number);
/*
 * Tells the cache what has ended, and drops memory that it no longer needs. With the lock.
 * @prefetches: begins the copies in that the cache wants next
 */
int on_tell(struct on_device *on, struct spw_cache *cache, bool prefetches);
/* The same as far as the cache is open and no graph is captured, for device times too. */
int on_go_on(struct on_device *on);
int on_finish_if_closing(struct on_device *on);
/* The saved tensor ends; the cache is told later. Needs no lock, and runs no Python. */
void on_device_end(struct saved *saved);

#endif
