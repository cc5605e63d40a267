/* SPDX-License-Identifier: MIT */
/* hooks/calls.c - what the hooks call in the library, in PyTorch and in the Python package */
#include "calls.h"
#include "dlpack.h"

#include <string.h>

#define DTYPES_MAX 48

struct library library;
struct torch torch;
const struct dl_exchange *exchange;
struct names names;
static struct dtype dtypes[DTYPES_MAX];
static unsigned dtype_count;

#define ATTRIBUTE(name) {#name, &torch.name.descriptor, &torch.name.get},
#define OBJECT(name)    {#name, &torch.name, NULL},

static const struct {
	const char *name;
	PyObject **object;
	descrgetfunc *get; /* of an attribute */
} torch_things[] = {TORCH_ATTRIBUTES(ATTRIBUTE) TORCH_OBJECTS(OBJECT)};

const struct dtype *dtype_of(PyObject *tensor)
{
	PyObject *dtype = get(&torch.dtype, tensor);

	if (!dtype)
		return NULL;
	Py_DECREF(dtype); /* element types are never freed */
	return dtype_find(dtype);
}

const struct dtype *dtype_find(PyObject *dtype)
{
	for (unsigned i = 0; i < dtype_count; i++)
		if (dtypes[i].dtype == dtype)
			return &dtypes[i];
	return NULL;
}

static int connect_library(PyObject *addresses)
{
	uintptr_t at[sizeof(library) / sizeof(uintptr_t)];
	size_t count = sizeof(at) / sizeof(at[0]);

	if ((size_t)PyTuple_Size(addresses) != count) {
		PyErr_SetString(PyExc_ValueError, "connect() needs an address for each function");
		return -1;
	}
	for (size_t i = 0; i < count; i++) {
		uint64_t address;

		if (to_uint64(new_ref(PyTuple_GetItem(addresses, (Py_ssize_t)i)), &address))
			return -1;
		SPW_ASSERT(address != 0);
		at[i] = (uintptr_t)address;
	}
	memcpy(&library, at, sizeof(library));
	return 0;
}

static int connect_things(PyObject *things)
{
	for (size_t i = 0; i < sizeof(torch_things) / sizeof(torch_things[0]); i++) {
		const char *name = torch_things[i].name;
		PyObject *thing = PyDict_GetItemString(things, name);
		descrgetfunc *get = torch_things[i].get;

		if (!thing) {
			PyErr_Format(PyExc_KeyError, "%s is missing", name);
			return -1;
		}
		set_ref(torch_things[i].object, new_ref(thing));
		if (!get)
			continue;
		*get = (descrgetfunc)PyType_GetSlot(Py_TYPE(thing), Py_tp_descr_get);
		if (!*get) {
			PyErr_Format(PyExc_TypeError, "%s is not an attribute", name);
			return -1;
		}
	}
	return 0;
}

static int connect_exchange(void)
{
	const struct dl_exchange *found = NULL;

	exchange = NULL;
	if (torch.exchange == Py_None)
		return 0;
	found = PyCapsule_GetPointer(torch.exchange, DLPACK_EXCHANGE);
	if (!found)
		return -1;
	while (found && found->major != DLPACK_EXCHANGE_MAJOR)
		found = found->before;
	if (found && found->look)
		exchange = found;
	return 0;
}

static int connect_dtypes(PyObject *list)
{
	Py_ssize_t count = PyList_Size(list);

	if (count > DTYPES_MAX) {
		PyErr_SetString(PyExc_ValueError, "too many element types");
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
		SPW_ASSERT(dtype->itemsize > 0);
		Py_INCREF(dtype->dtype);
		dtype->is_complex = is_complex;
		dtype->is_viewed = is_viewed;
	}
	dtype_count = (unsigned)count;
	SPW_ASSERT(dtype_count <= DTYPES_MAX);
	return 0;
}

PyObject *connect_calls(PyObject *Py_UNUSED(module), PyObject *args)
{
	PyObject *addresses, *things, *types;

	if (!PyArg_ParseTuple(args, "O!O!O!", &PyTuple_Type, &addresses, &PyDict_Type, &things,
			      &PyList_Type, &types) ||
	    connect_library(addresses) || connect_things(things) || connect_exchange() ||
	    connect_dtypes(types))
		return NULL;
	Py_RETURN_NONE;
}

int make_names(void)
{
	bool made = true;

	SPW_ASSERT(!names.mark && gil_is_held());
#define MAKE(name, text) made = made && (names.name = PyUnicode_InternFromString(text));
	NAMES(MAKE)
	return made ? 0 : -1;
}
