/* SPDX-License-Identifier: MIT */
/* hooks/lease.h - memory of the cache that tensors use */
#ifndef SPW_HOOKS_LEASE_H
#define SPW_HOOKS_LEASE_H

#include "calls.h"

#include <stdatomic.h>

struct leases {
	_Atomic uint32_t references;
	_Atomic uint64_t users;            /* leases, and threads inside take */
	_Atomic bool waited_for;           /* the last user lets the cache close */
	_Atomic(struct spw_cache *) open;  /* NULL: closed, except for returning leases */
	_Atomic(struct spw_cache *) cache; /* NULL: of a parent process */
	PyObject *closer;                  /* the Python cache, while it is waited for */
};

struct leases_object {
	PyObject_HEAD struct leases *leases;
};

extern PyTypeObject *leases_type;
extern PyType_Spec leases_spec;

/* Return: the Python object, a new reference */
PyObject *leases_new(struct spw_cache *cache);
void leases_hold(struct leases *leases);
void leases_drop(struct leases *leases);
/* The cache stays open until the user has ended. */
void leases_user_begins(struct leases *leases);
void leases_user_ended(struct leases *leases);
/* NULL with an exception: the cache is closed. @cache: the Python object */
struct spw_cache *leases_cache(struct leases *leases, PyObject *cache);
/* Sets the exception for a negative result of the library. */
void raise_error(int result);

struct shape {
	const struct dtype *dtype;
	const int64_t *sizes; /* and strides, in elements */
	Py_ssize_t dims;
};

/*
 * A tensor on the memory of a lease. The lease, and the use of @leases that began before the take,
 * end with the tensor, or at once if it cannot be made.
 */
PyObject *lease_tensor(struct leases *leases, const struct spw_taken *taken,
		       const struct shape *shape);

#endif
