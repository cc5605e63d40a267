/* SPDX-License-Identifier: MIT */
/* hooks/lease.c - make tensors on memory of the cache, and let it close after the last of them */
#include "lease.h"
#include "dlpack.h"

#include <stdlib.h>
#include <string.h>

#define DLPACK_NAME "dltensor"

struct dl_managed {
	struct dl_tensor tensor;
	void *context;
	void (*deleter)(struct dl_managed *managed);
};

/* ---- Users of the cache ---- */

void leases_hold(struct leases *leases)
{
	SPW_ASSERT(atomic_load(&leases->references) > 0);
	atomic_fetch_add(&leases->references, 1);
}

void leases_drop(struct leases *leases)
{
	uint32_t before = atomic_fetch_sub(&leases->references, 1);

	SPW_ASSERT(before > 0);
	if (before == 1)
		free(leases);
}

void leases_user_begins(struct leases *leases)
{
	SPW_ASSERT(atomic_load(&leases->references) > 0);
	atomic_fetch_add(&leases->users, 1);
}

/* The last user has ended, and the cache is waiting to close: close it. Runs on any thread. */
static void leases_finish(struct leases *leases)
{
	PyObject *closer = NULL, *result, *type, *value, *traceback;
	PyGILState_STATE state;

	if (!Py_IsInitialized())
		return;
	state = PyGILState_Ensure();
	PyErr_Fetch(&type, &value, &traceback);
	if (atomic_exchange(&leases->waited_for, false)) {
		closer = leases->closer;
		SPW_ASSERT(closer);
		leases->closer = NULL;
		result = PyObject_CallMethodObjArgs(closer, names.finish, NULL);
		if (!result)
			PyErr_WriteUnraisable(closer);
		Py_XDECREF(result);
		Py_DECREF(closer);
	}
	PyErr_Restore(type, value, traceback);
	PyGILState_Release(state);
}

void leases_user_ended(struct leases *leases)
{
	uint64_t before = atomic_fetch_sub(&leases->users, 1);

	SPW_ASSERT(before > 0);
	if (before == 1 && atomic_load(&leases->waited_for))
		leases_finish(leases);
}

struct spw_cache *leases_cache(struct leases *leases, PyObject *cache)
{
	struct spw_cache *open = atomic_load(&leases->open);
	PyObject *handle;

	if (open)
		return open;
	handle = PyObject_GetAttr(cache, names.handle);
	if (handle) {
		Py_DECREF(handle);
		PyErr_SetString(PyExc_SystemError, "the cache is closed, but has a handle");
	}
	return NULL;
}

void raise_error(int result)
{
	PyObject *error = PyObject_CallFunction(torch.error_of, "i", result);

	SPW_ASSERT(result < 0);
	if (error)
		PyErr_SetObject((PyObject *)Py_TYPE(error), error);
	Py_XDECREF(error);
}

/* ---- Leases ---- */

struct lease {
	struct dl_managed managed;
	struct leases *leases;
	uint64_t number;
	int64_t sizes[]; /* and strides */
};

static void lease_end(struct dl_managed *managed)
{
	struct lease *lease = (struct lease *)managed;
	struct spw_cache *cache = atomic_load(&lease->leases->cache);

	if (cache)
		library.give_back(cache, lease->number);
	leases_user_ended(lease->leases);
	leases_drop(lease->leases);
	free(lease);
}

/* @values: number of sizes and strides. On failure ends the caller's use of @leases. */
static struct lease *lease_new(struct leases *leases, const struct spw_taken *taken, size_t values)
{
	struct lease *lease = malloc(sizeof(*lease) + values * sizeof(lease->sizes[0]));

	SPW_ASSERT(taken->lease != 0 && taken->bytes && atomic_load(&leases->users) > 0);
	if (!lease) {
		PyErr_NoMemory();
		library.give_back(atomic_load(&leases->cache), taken->lease);
		leases_user_ended(leases);
		return NULL;
	}
	lease->leases = leases;
	leases_hold(leases);
	lease->number = taken->lease;
	return lease;
}

PyObject *lease_tensor(struct leases *leases, const struct spw_taken *taken,
		       const struct shape *shape)
{
	const struct dtype *dtype = shape->dtype;
	Py_ssize_t dims = shape->dims;
	struct lease *lease = lease_new(leases, taken, 2 * (size_t)dims);
	PyObject *capsule, *tensor;

	if (!lease)
		return NULL;
	lease->managed = (struct dl_managed){
		.tensor.data = (void *)(uintptr_t)taken->bytes,
		.tensor.device.type = DLPACK_CPU,
		.tensor.ndim = (int32_t)dims,
		.tensor.dtype = {.code = dtype->code, .bits = dtype->bits, .lanes = 1},
		.tensor.shape = lease->sizes,
		.tensor.strides = lease->sizes + dims,
		.context = lease,
		.deleter = lease_end,
	};
	memcpy(lease->sizes, shape->sizes, 2 * (size_t)dims * sizeof(lease->sizes[0]));
	capsule = PyCapsule_New(&lease->managed, DLPACK_NAME, NULL);
	tensor = capsule ? call(torch.from_dlpack, capsule) : NULL;
	/* PyTorch renames a capsule whose memory it takes over. If it has not, end the lease. */
	if (!tensor && (!capsule || PyCapsule_IsValid(capsule, DLPACK_NAME)))
		lease_end(&lease->managed);
	Py_XDECREF(capsule);
	if (tensor && dtype->is_viewed)
		set_ref(&tensor,
			PyObject_CallFunctionObjArgs(torch.view, tensor, dtype->dtype, NULL));
	return tensor;
}

/* ---- As a Python object ---- */

PyObject *leases_new(struct spw_cache *cache)
{
	struct leases_object *self = PyObject_New(struct leases_object, leases_type);

	if (!self)
		return NULL;
	self->leases = calloc(1, sizeof(*self->leases));
	if (!self->leases) {
		Py_DECREF(self);
		return PyErr_NoMemory();
	}
	atomic_store(&self->leases->references, 1);
	atomic_store(&self->leases->open, cache);
	atomic_store(&self->leases->cache, cache);
	return (PyObject *)self;
}

static void leases_dealloc(PyObject *object)
{
	struct leases_object *self = (struct leases_object *)object;

	if (self->leases)
		leases_drop(self->leases);
	object_free(object);
}

static PyObject *leases_shut(PyObject *object, PyObject *Py_UNUSED(unused))
{
	atomic_store(&((struct leases_object *)object)->leases->open, NULL);
	Py_RETURN_NONE;
}

static PyObject *leases_forget(PyObject *object, PyObject *unused)
{
	atomic_store(&((struct leases_object *)object)->leases->cache, NULL);
	return leases_shut(object, unused);
}

static PyObject *leases_busy(PyObject *object, PyObject *closer)
{
	struct leases *leases = ((struct leases_object *)object)->leases;

	SPW_ASSERT(!leases->closer || leases->closer == closer);
	if (!leases->closer)
		leases->closer = new_ref(closer);
	atomic_store(&leases->waited_for, true);
	if (atomic_load(&leases->users) > 0)
		Py_RETURN_TRUE;
	/* Another thread has cleared the flag, is waiting for the GIL, and will close the cache. */
	if (!atomic_exchange(&leases->waited_for, false))
		Py_RETURN_TRUE;
	Py_CLEAR(leases->closer);
	Py_RETURN_FALSE;
}

static PyMethodDef leases_methods[] = {
	{"shut", leases_shut, METH_NOARGS, "The cache closes: saves and uses are refused."},
	{"forget", leases_forget, METH_NOARGS, "The cache belongs to the parent process."},
	{"busy", leases_busy, METH_O,
	 "Whether memory is on loan; if so, its last return calls _finish() of the argument."},
	{NULL, NULL, 0, NULL},
};

PyTypeObject *leases_type;
PyType_Spec leases_spec = {
	.name = "spillway._hooks.Leases",
	.basicsize = sizeof(struct leases_object),
	.flags = MADE_HERE,
	.slots =
		(PyType_Slot[]){
			{Py_tp_doc, "A cache's handle, and the users of its memory."},
			{Py_tp_dealloc, leases_dealloc},
			{Py_tp_methods, leases_methods},
			{0, NULL},
		},
};
