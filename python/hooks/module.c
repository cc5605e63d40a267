/* SPDX-License-Identifier: MIT */
/* hooks/module.c - the module: what it calls, what it gives */
#include "hooks.h"

#define DTYPES_MAX 48

struct library library;
struct torch torch;
struct names names;
static struct dtype dtypes[DTYPES_MAX];
static unsigned dtype_count;

#define TORCH(name)                \
	{                          \
#name, &torch.name \
	}

static const struct {
	const char *name;
	PyObject **object;
} torch_names[] = {
	TORCH(tensor_type), TORCH(is_cpu),         TORCH(is_leaf),        TORCH(requires_grad),
	TORCH(dtype),       TORCH(version),        TORCH(shape),          TORCH(storage),
	TORCH(detach),      TORCH(stride),         TORCH(storage_offset), TORCH(is_neg),
	TORCH(is_conj),     TORCH(as_strided),     TORCH(view),           TORCH(cdata),
	TORCH(data_ptr),    TORCH(nbytes),         TORCH(weak_ref),       TORCH(free_weak_ref),
	TORCH(expired),     TORCH(from_dlpack),    TORCH(plain),          TORCH(flagged),
	TORCH(on),          TORCH(raise_modified), TORCH(data),           TORCH(nothing),
	TORCH(counted),     TORCH(base),           TORCH(parameter_type), TORCH(numel),
	TORCH(address),
};

const struct dtype *dtype_of(PyObject *tensor)
{
	PyObject *dtype = get(torch.dtype, tensor);

	if (!dtype)
		return NULL;
	Py_DECREF(dtype); /* they live for ever */
	for (unsigned i = 0; i < dtype_count; i++)
		if (dtypes[i].dtype == dtype)
			return &dtypes[i];
	return NULL;
}

const struct dtype *dtype_of_number(int number)
{
	for (unsigned i = 0; i < dtype_count; i++)
		if (dtypes[i].number == number)
			return &dtypes[i];
	return NULL;
}

static PyObject *unpack(PyObject *module, PyObject *packed)
{
	(void)module;
	if (Py_TYPE(packed) == &saved_type)
		return saved_unpack(packed, NULL);
	if (Py_TYPE(packed) == &kept_type)
		return kept_unpack(packed, NULL);
	return PyObject_CallMethodNoArgs(packed, names.unpack);
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

static int connect_torch(PyObject *things)
{
	for (size_t i = 0; i < sizeof(torch_names) / sizeof(torch_names[0]); i++) {
		PyObject *thing = PyDict_GetItemString(things, torch_names[i].name);

		if (!thing) {
			PyErr_Format(PyExc_KeyError, "%s is missing", torch_names[i].name);
			return -1;
		}
		Py_XSETREF(*torch_names[i].object, new_ref(thing));
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

		if (!PyArg_ParseTuple(PyList_GET_ITEM(list, i), "Obbbppi", &dtype->dtype,
				      &dtype->itemsize, &dtype->code, &dtype->bits, &is_complex,
				      &is_viewed, &dtype->number))
			return -1;
		Py_INCREF(dtype->dtype);
		dtype->is_complex = is_complex;
		dtype->is_viewed = is_viewed;
	}
	dtype_count = (unsigned)count;
	return 0;
}

static PyObject *connect(PyObject *module, PyObject *args)
{
	PyObject *addresses, *things, *types;

	(void)module;
	if (!PyArg_ParseTuple(args, "O!O!O!", &PyTuple_Type, &addresses, &PyDict_Type, &things,
			      &PyList_Type, &types) ||
	    connect_library(addresses) || connect_torch(things) || connect_dtypes(types))
		return NULL;
	Py_RETURN_NONE;
}

static PyObject *read_with(PyObject *module, PyObject *calls)
{
	const struct reader *given = NULL;

	(void)module;
	if (calls != Py_None) {
		given = PyCapsule_GetPointer(calls, READER_CAPSULE);
		if (!given)
			return NULL;
	}
	reader = given ? *given : (struct reader){0};
	Py_RETURN_NONE;
}

static PyObject *reads(PyObject *module, PyObject *unused)
{
	(void)module;
	(void)unused;
	return PyBool_FromLong(reader.read != NULL);
}

static PyMethodDef functions[] = {
	{"connect", connect, METH_VARARGS, "Once, before anything else: what is called."},
	{"read_with", read_with, METH_O,
	 "The calls of a reader, which knows the numbers of the types; None: ask."},
	{"reads", reads, METH_NOARGS, "Whether tensors are read, not asked."},
	{"unpack", unpack, METH_O, "What was saved: the hook."},
	{NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
	PyModuleDef_HEAD_INIT, .m_name = "_hooks",     .m_doc = "The hooks on saved tensors, in C.",
	.m_size = -1,          .m_methods = functions,
};

static int make_names(void)
{
	names.mark = PyUnicode_InternFromString("_TE_do_not_offload");
	names.pack_watched = PyUnicode_InternFromString("_pack_watched");
	names.use_watched = PyUnicode_InternFromString("_use_watched");
	names.unpack = PyUnicode_InternFromString("unpack");
	names.finish = PyUnicode_InternFromString("_finish");
	names.handle = PyUnicode_InternFromString("handle");
	return names.mark && names.pack_watched && names.use_watched && names.unpack &&
			       names.finish && names.handle
		       ? 0
		       : -1;
}

PyMODINIT_FUNC PyInit__hooks(void);

PyMODINIT_FUNC PyInit__hooks(void)
{
	PyTypeObject *types[] = {&lent_type, &record_type, &kept_type, &saved_type, &session_type};
	PyObject *module;

	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
		if (PyType_Ready(types[i]))
			return NULL;
	if (make_names())
		return NULL;
	module = PyModule_Create(&definition);
	if (!module)
		return NULL;
	if (PyModule_AddStringConstant(module, "VERSION", SPW_VERSION) ||
	    PyModule_AddObject(module, "Session", new_ref(&session_type)) ||
	    PyModule_AddObject(module, "Saved", new_ref(&saved_type))) {
		Py_DECREF(module);
		return NULL;
	}
	return module;
}
