/* SPDX-License-Identifier: MIT */
/* hooks/lent.c - memory of the cache that tensors use, and who waits for the last of them */
#include "hooks.h"

#define DLPACK_NAME "dltensor"
#define DLPACK_CPU  1

/* ---- DLPack, as its public header describes it ---- */

struct dl_device {
	int32_t type, id;
};

struct dl_type {
	uint8_t code, bits;
	uint16_t lanes;
};

struct dl_tensor {
	void *data;
	struct dl_device device;
	int32_t ndim;
	struct dl_type dtype;
	int64_t *shape, *strides; /* in elements */
	uint64_t byte_offset;
};

struct dl_managed {
	struct dl_tensor tensor;
	void *context;
	void (*deleter)(struct dl_managed *managed);
};

/* ---- Who uses the cache ---- */

void lent_drop(struct lent *lent)
{
	if (atomic_fetch_sub(&lent->references, 1) == 1)
		free(lent);
}

/* The last use has ended of a cache that is to be closed. */
static void lent_finish(struct lent *lent)
{
	PyObject *closer = NULL, *result, *type, *value, *traceback;
	PyGILState_STATE state;

	if (!Py_IsInitialized())
		return;
	state = PyGILState_Ensure();
	PyErr_Fetch(&type, &value, &traceback);
	if (atomic_exchange(&lent->waited_for, false)) {
		closer = lent->closer;
		lent->closer = NULL;
		result = PyObject_CallMethodNoArgs(closer, names.finish);
		if (!result)
			PyErr_WriteUnraisable(closer);
		Py_XDECREF(result);
		Py_DECREF(closer);
	}
	PyErr_Restore(type, value, traceback);
	PyGILState_Release(state);
}

void lent_user_ended(struct lent *lent)
{
	if (atomic_fetch_sub(&lent->users, 1) == 1 && atomic_load(&lent->waited_for))
		lent_finish(lent);
}

/* ---- Leases ---- */

/* Memory of the cache that a tensor uses. */
struct lease {
	struct dl_managed managed;
	struct lent *lent;
	uint64_t number;
	int64_t sizes[]; /* and strides */
};

static void lease_end(struct dl_managed *managed)
{
	struct lease *lease = (struct lease *)managed;
	struct spw_cache *cache = atomic_load(&lease->lent->cache);

	if (cache)
		library.give_back(cache, lease->number);
	lent_user_ended(lease->lent);
	lent_drop(lease->lent);
	free(lease);
}

static void lease_end_of(void *lease)
{
	lease_end(lease);
}

/* @values: sizes and strides that it has place for */
static struct lease *lease_new(struct lent *lent, const struct spw_taken *taken, size_t values)
{
	struct lease *lease = malloc(sizeof(*lease) + values * sizeof(lease->sizes[0]));

	if (!lease) {
		PyErr_NoMemory();
		library.give_back(atomic_load(&lent->cache), taken->lease);
		lent_user_ended(lent);
		return NULL;
	}
	lease->lent = lent;
	atomic_fetch_add(&lent->references, 1);
	lease->number = taken->lease;
	return lease;
}

static PyObject *tensor_by_reader(struct lent *lent, const struct spw_taken *taken,
				  const struct shape *shape, PyObject *counter)
{
	struct lease *lease = lease_new(lent, taken, 0);
	struct memory memory = {.address = (void *)(uintptr_t)taken->bytes,
				.len_bytes = shape->len_bytes,
				.sizes = shape->sizes,
				.strides = shape->sizes + shape->dims,
				.dims = shape->dims,
				.type = shape->dtype->number,
				.end = lease_end_of,
				.context = lease};

	return lease ? reader.lent(&memory, counter) : NULL;
}

static PyObject *tensor_by_dlpack(struct lent *lent, const struct spw_taken *taken,
				  const struct shape *shape)
{
	const struct dtype *dtype = shape->dtype;
	Py_ssize_t dims = shape->dims;
	struct lease *lease = lease_new(lent, taken, 2 * (size_t)dims);
	PyObject *capsule, *tensor, *viewed;

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
	tensor = capsule ? PyObject_CallOneArg(torch.from_dlpack, capsule) : NULL;
	/* What has become a tensor has another name. */
	if (!tensor && (!capsule || PyCapsule_IsValid(capsule, DLPACK_NAME)))
		lease_end(&lease->managed);
	Py_XDECREF(capsule);
	if (tensor && dtype->is_viewed) {
		viewed = PyObject_CallFunctionObjArgs(torch.view, tensor, dtype->dtype, NULL);
		Py_DECREF(tensor);
		tensor = viewed;
	}
	return tensor;
}

PyObject *lent_tensor(struct lent *lent, const struct spw_taken *taken, const struct shape *shape,
		      PyObject *counter)
{
	PyObject *tensor, *counted;

	if (reader.lent && shape->dtype->number >= 0)
		return tensor_by_reader(lent, taken, shape, counter);
	tensor = tensor_by_dlpack(lent, taken, shape);
	if (!tensor || !counter)
		return tensor;
	counted = tensor_counted_by(counter, tensor);
	Py_DECREF(tensor);
	return counted;
}

/* ---- As an object of Python ---- */

static PyObject *lent_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	unsigned long long handle;
	struct lent_object *self;

	if (kwargs || !PyArg_ParseTuple(args, "K", &handle))
		return NULL;
	self = (struct lent_object *)type->tp_alloc(type, 0);
	if (!self)
		return NULL;
	self->lent = calloc(1, sizeof(*self->lent));
	if (!self->lent) {
		Py_DECREF(self);
		return PyErr_NoMemory();
	}
	atomic_store(&self->lent->references, 1);
	atomic_store(&self->lent->open, (struct spw_cache *)(uintptr_t)handle);
	atomic_store(&self->lent->cache, (struct spw_cache *)(uintptr_t)handle);
	return (PyObject *)self;
}

static void lent_dealloc(PyObject *object)
{
	struct lent_object *self = (struct lent_object *)object;

	if (self->lent)
		lent_drop(self->lent);
	Py_TYPE(object)->tp_free(object);
}

static PyObject *lent_shut(PyObject *object, PyObject *unused)
{
	(void)unused;
	atomic_store(&((struct lent_object *)object)->lent->open, NULL);
	Py_RETURN_NONE;
}

static PyObject *lent_forget(PyObject *object, PyObject *unused)
{
	(void)unused;
	atomic_store(&((struct lent_object *)object)->lent->open, NULL);
	atomic_store(&((struct lent_object *)object)->lent->cache, NULL);
	Py_RETURN_NONE;
}

/* Whether memory is lent. If so, the end of the last use calls closer._finish(). */
static PyObject *lent_busy(PyObject *object, PyObject *closer)
{
	struct lent *lent = ((struct lent_object *)object)->lent;

	if (!lent->closer)
		lent->closer = new_ref(closer);
	atomic_store(&lent->waited_for, true);
	if (atomic_load(&lent->users) > 0)
		Py_RETURN_TRUE;
	/*
	 * If it is not ours any more, then whoever has taken it is waiting for the lock, and does
	 * it.
	 */
	if (!atomic_exchange(&lent->waited_for, false))
		Py_RETURN_TRUE;
	Py_CLEAR(lent->closer);
	Py_RETURN_FALSE;
}

static PyMethodDef lent_methods[] = {
	{"shut", lent_shut, METH_NOARGS, "The cache closes: nothing is saved or used any more."},
	{"forget", lent_forget, METH_NOARGS, "The cache belongs to the parent process."},
	{"busy", lent_busy, METH_O,
	 "Whether memory is lent; if so, the end of the last use calls _finish() of the argument."},
	{NULL, NULL, 0, NULL},
};

PyTypeObject lent_type = {
	PyVarObject_HEAD_INIT(NULL, 0).tp_name = "spillway._hooks.Lent",
	.tp_basicsize = sizeof(struct lent_object),
	.tp_flags = Py_TPFLAGS_DEFAULT,
	.tp_doc = "A cache's handle, and who uses its memory.",
	.tp_new = lent_new,
	.tp_dealloc = lent_dealloc,
	.tp_methods = lent_methods,
};
