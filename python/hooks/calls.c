/* SPDX-License-Identifier: MIT */
/* hooks/calls.c - what is called, of the library, of PyTorch and of the package */
#include "hooks.h"

#define DTYPES_MAX 48

struct library library;
struct torch torch;
struct names names;
static struct dtype dtypes[DTYPES_MAX];
static unsigned dtype_count;

#define OF_TORCH(name)             \
	{                          \
#name, &torch.name \
	}

static const struct {
	const char *name;
	struct attribute *attribute;
} torch_attributes[] = {
	OF_TORCH(is_cpu),  OF_TORCH(is_leaf), OF_TORCH(requires_grad), OF_TORCH(dtype),
	OF_TORCH(version), OF_TORCH(shape),   OF_TORCH(base),          OF_TORCH(cdata),
};

static const struct {
	const char *name;
	PyObject **object;
} torch_objects[] = {
	OF_TORCH(tensor_type),
	OF_TORCH(parameter_type),
	OF_TORCH(storage),
	OF_TORCH(detach),
	OF_TORCH(stride),
	OF_TORCH(storage_offset),
	OF_TORCH(is_neg),
	OF_TORCH(is_conj),
	OF_TORCH(as_strided),
	OF_TORCH(view),
	OF_TORCH(numel),
	OF_TORCH(address),
	OF_TORCH(data_ptr),
	OF_TORCH(nbytes),
	OF_TORCH(weak_ref),
	OF_TORCH(expired),
	OF_TORCH(free_weak_ref),
	OF_TORCH(from_dlpack),
	OF_TORCH(nothing),
	OF_TORCH(counted),
	OF_TORCH(plain),
	OF_TORCH(flagged),
	OF_TORCH(on),
	OF_TORCH(raise_modified),
	OF_TORCH(error_of),
};

const struct dtype *dtype_of(PyObject *tensor)
{
	PyObject *dtype = get(&torch.dtype, tensor);

	if (!dtype)
		return NULL;
	Py_DECREF(dtype); /* they live for ever */
	for (unsigned i = 0; i < dtype_count; i++)
		if (dtypes[i].dtype == dtype)
			return &dtypes[i];
	return NULL;
}

static int connect_library(PyObject *addresses)
{
	unsigned long long offer_hint, take, give_back, release, drain;

	if (!PyArg_ParseTuple(addresses, "KKKKK", &offer_hint, &take, &give_back, &release, &drain))
		return -1;
	library.offer_hint = (__typeof__(library.offer_hint))(uintptr_t)offer_hint;
	library.take = (__typeof__(library.take))(uintptr_t)take;
	library.give_back = (__typeof__(library.give_back))(uintptr_t)give_back;
	library.release = (__typeof__(library.release))(uintptr_t)release;
	library.drain = (__typeof__(library.drain))(uintptr_t)drain;
	return 0;
}

/* A new reference. */
static PyObject *thing_of(PyObject *things, const char *name)
{
	PyObject *thing = PyDict_GetItemString(things, name);

	if (!thing)
		PyErr_Format(PyExc_KeyError, "%s is missing", name);
	return thing ? new_ref(thing) : NULL;
}

static int connect_attributes(PyObject *things)
{
	for (size_t i = 0; i < sizeof(torch_attributes) / sizeof(torch_attributes[0]); i++) {
		struct attribute *attribute = torch_attributes[i].attribute;
		PyObject *descriptor = thing_of(things, torch_attributes[i].name);

		if (!descriptor)
			return -1;
		set_ref(&attribute->descriptor, descriptor);
		attribute->get = (descrgetfunc)PyType_GetSlot(Py_TYPE(descriptor), Py_tp_descr_get);
		if (!attribute->get) {
			PyErr_Format(PyExc_TypeError, "%s is no attribute",
				     torch_attributes[i].name);
			return -1;
		}
	}
	return 0;
}

static int connect_objects(PyObject *things)
{
	for (size_t i = 0; i < sizeof(torch_objects) / sizeof(torch_objects[0]); i++) {
		PyObject *thing = thing_of(things, torch_objects[i].name);

		if (!thing)
			return -1;
		set_ref(torch_objects[i].object, thing);
	}
	return 0;
}

static int connect_dtypes(PyObject *list)
{
	Py_ssize_t count = PyList_Size(list);

	if (count < 0 || count > DTYPES_MAX) {
		if (count >= 0)
			PyErr_SetString(PyExc_ValueError, "too many types of elements");
		return -1;
	}
	dtype_count = 0;
	for (Py_ssize_t i = 0; i < count; i++) {
		struct dtype *dtype = &dtypes[i];
		int is_complex, is_viewed;

		if (!PyArg_ParseTuple(PyList_GetItem(list, i), "Obbbpp", &dtype->dtype,
				      &dtype->itemsize, &dtype->code, &dtype->bits, &is_complex,
				      &is_viewed))
			return -1;
		Py_INCREF(dtype->dtype);
		dtype->is_complex = is_complex;
		dtype->is_viewed = is_viewed;
	}
	dtype_count = (unsigned)count;
	return 0;
}

PyObject *connect_calls(PyObject *module, PyObject *args)
{
	PyObject *addresses, *things, *types;

	(void)module;
	if (!PyArg_ParseTuple(args, "O!O!O!", &PyTuple_Type, &addresses, &PyDict_Type, &things,
			      &PyList_Type, &types) ||
	    connect_library(addresses) || connect_attributes(things) || connect_objects(things) ||
	    connect_dtypes(types))
		return NULL;
	Py_RETURN_NONE;
}

int make_names(void)
{
	names.mark = PyUnicode_InternFromString("_TE_do_not_offload");
	names.data = PyUnicode_InternFromString("data");
	names.pack_watched = PyUnicode_InternFromString("_pack_watched");
	names.use_watched = PyUnicode_InternFromString("_use_watched");
	names.unpack = PyUnicode_InternFromString("unpack");
	names.finish = PyUnicode_InternFromString("_finish");
	names.handle = PyUnicode_InternFromString("handle");
	return names.mark && names.data && names.pack_watched && names.use_watched &&
			       names.unpack && names.finish && names.handle
		       ? 0
		       : -1;
}
