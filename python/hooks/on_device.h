/* SPDX-License-Identifier: MIT */
/* hooks/on_device.h - struct on_device: tensors saved on devices, their users, ended copies */
#ifndef SPW_HOOKS_ON_DEVICE_H
#define SPW_HOOKS_ON_DEVICE_H

#include "port.h"
#include "saved_tensor.h"

/* The saved tensors that share one entry of the cache. */
struct users {
	PyObject_HEAD uint32_t count;
	uint32_t unused;  /* users that have not used it yet, if each uses it once */
	uint64_t begin;   /* offset in the storage of the part that was copied */
	PyObject *shape;  /* of a user that is exactly that part; or NULL */
	PyObject *stream; /* the stream on which it was saved */
	struct device *device;
	/*
	 * the bytes on the device, after a copy in and until the last use, or while several users
	 * share them; or NULL
	 */
	PyObject *base;
	struct copy *copy; /* the copy in that brought base */
	/* if discarded: checksums of the copied part of the storage; or NULL */
	PyObject *checksums;
	PyObject *verdict; /* if recomputed: whether to the same bytes; or NULL */
};

/*
 * The tensors of a session on devices. Any thread may save and use them: autograd has one thread
 * per device for the backward pass.
 *
 * Threads    Calls into a device run Python, which may switch threads, so a lock protects this
 *            struct. A saved tensor may end at any point, without the lock.
 * Closing    The cache stays open during a call of these functions. If it begins to close, the call
 *            waits for its copies before it returns.
 */
struct on_device {
	PyObject_HEAD struct port *port;
	PyObject *cache;
	PyObject *lock; /* not held while a take waits */
	struct leases *leases;
	PyObject *users; /* struct users by the cache's number */
	struct owners owners;
	/* ids of saved tensors that have ended; has room for all that are alive */
	uint64_t *ended;
	uint32_t ended_count, ended_max, alive;
	/* number of scope boundaries so far; the one that the backward pass has reached */
	unsigned long long scope, used_scope;
	char is_due;   /* tokens may be ready to be reaped */
	char notifies; /* a thread waits for copies and must be told of them */
};

extern PyTypeObject *users_type;
extern PyType_Spec users_spec;

int on_lock(struct on_device *on);
/* Return: 1 with the lock, 0 if a call has it, even one of this thread. */
int on_lock_if_free(struct on_device *on);
/* Release the lock; an exception stays set. */
void on_unlock(struct on_device *on);
/* Keep the cache open until on_cache_end(). Return: NULL with an exception if it is closed. */
struct spw_cache *on_cache_begin(struct on_device *on);
void on_cache_end(struct on_device *on);
/* Find the users of a saved tensor, which is one of them. Return: a new reference. */
struct users *users_of(struct on_device *on, const struct saved *saved);
/* Give @saved the cache's number, and add it to the users of that number. */
int user_note(struct on_device *on, struct saved *saved, uint64_t number, PyObject *stream);
/* Call a method of DeviceTimes with the cache's handle. */
int on_call_times(struct on_device *on, struct spw_cache *cache, PyObject *name);
/* Copy a lease to the device. The lease is returned to the cache when the copy has ended. */
int on_bring(struct on_device *on, struct users *users, PyObject *stream, struct spw_taken *taken,
	     uint64_t number);
/*
 * Tell the cache which copies and saved tensors have ended, and drop memory that it no longer
 * needs. The caller holds on->lock.
 * @prefetches: also start the copies in that the cache wants next
 */
int on_tell(struct on_device *on, struct spw_cache *cache, bool prefetches);
/*
 * Make streams wait for earlier copies out that the cache names, so that the memory of the copied
 * tensors is dropped. @next: of spw_copy.order; @stream: what computes
 */
int on_order(struct on_device *on, struct spw_cache *cache, spw_tensor next, PyObject *stream);
/* The same for those that the cache names now. */
int on_order_now(struct on_device *on, struct spw_cache *cache, PyObject *stream);
/* Call on_tell() and update device times, if the cache is open and no CUDA graph is captured. */
int on_go_on(struct on_device *on);
int on_finish_if_closing(struct on_device *on);
/* Note the end of a saved tensor; on_tell() tells the cache. Needs no lock, and runs no Python. */
void on_device_end(struct saved *saved);

#endif
