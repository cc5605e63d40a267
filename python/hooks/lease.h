/* SPDX-License-Identifier: MIT */
/* hooks/lease.h - leases: tensors on memory of the cache, and a count of who still uses it */
#ifndef SPW_HOOKS_LEASE_H
#define SPW_HOOKS_LEASE_H

#include "calls.h"

#include <stdatomic.h>

struct leases {
	_Atomic uint32_t references;
	_Atomic uint64_t users;            /* leases, and threads inside spw_cache_take() */
	_Atomic bool waited_for;           /* the cache is closing and waits for the last user */
	_Atomic(struct spw_cache *) open;  /* NULL once closed: only leases can be returned */
	_Atomic(struct spw_cache *) cache; /* NULL in a child of fork() */
	PyObject *closer;                  /* the Python cache object, while waited_for */
};

struct leases_object {
	PyObject_HEAD struct leases *leases;
};

extern PyTypeObject *leases_type;
extern PyType_Spec leases_spec;

/* Create struct leases. Return: its Python object, a new reference; NULL with an exception. */
PyObject *leases_new(struct spw_cache *cache);
void leases_hold(struct leases *leases);
void leases_drop(struct leases *leases);
/* Count a user of the cache, which stays open until the user has ended. */
void leases_user_begins(struct leases *leases);
void leases_user_ended(struct leases *leases);
/* Get the open cache. Return: NULL with an exception if it is closed. @cache: the Python object */
struct spw_cache *leases_cache(struct leases *leases, PyObject *cache);
/* Raise the exception for a negative result of the library. */
void raise_error(int result);

struct shape {
	const struct dtype *dtype;
	const int64_t *sizes; /* and strides, in elements */
	Py_ssize_t dims;
};

/*
 * Make a tensor on the memory of a lease. The lease, and the caller's use of @leases
 * (leases_user_begins()), end with the tensor, or at once if it cannot be made.
 */
PyObject *lease_tensor(struct leases *leases, const struct spw_taken *taken,
		       const struct shape *shape);

#endif
