/* SPDX-License-Identifier: MIT */
/* hooks/module.c - the extension module, and Session, the base of the package's session type */
#include "kept.h"
#include "lease.h"
#include "on_device_type.h"
#include "port.h"
#include "recompute.h"
#include "rest.h"
#include "saved.h"
#include "saved_tensor.h"

/* ---- The session ---- */

static PyObject *session_drain_now(PyObject *object, PyObject *Py_UNUSED(unused))
{
	session_drain((struct session *)object);
	Py_RETURN_NONE;
}

static PyObject *session_prune_now(PyObject *object, PyObject *Py_UNUSED(unused))
{
	if (session_prune((struct session *)object))
		return NULL;
	Py_RETURN_NONE;
}

/* Forget owners and storages, after the cache has closed and no longer reads memory. */
static PyObject *session_forget(PyObject *object, PyObject *Py_UNUSED(unused))
{
	struct session *session = (struct session *)object;

	owners_end(&session->owners);
	PyDict_Clear(session->records);
	Py_RETURN_NONE;
}

static PyObject *session_counts(PyObject *object, PyObject *Py_UNUSED(unused))
{
	struct session *session = (struct session *)object;

	return Py_BuildValue("(kn)", (unsigned long)session->owners.held,
			     PyDict_Size(session->records));
}

/* Python's Session(cache): creates struct leases, which becomes an attribute of the cache. */
static PyObject *session_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	PyObject *cache, *leases;
	struct session *session;
	uint64_t handle;

	if (kwargs || !PyArg_ParseTuple(args, "O", &cache) ||
	    to_uint64(PyObject_GetAttr(cache, names.handle), &handle))
		return NULL;
	leases = leases_new((struct spw_cache *)(uintptr_t)handle);
	if (!leases || PyObject_SetAttrString(cache, "leases", leases)) {
		Py_XDECREF(leases);
		return NULL;
	}
	session = (struct session *)PyType_GenericAlloc(type, 0);
	if (session) {
		session->leases = ((struct leases_object *)leases)->leases;
		SPW_ASSERT(session->leases && handle != 0);
		leases_hold(session->leases);
		session->cache = new_ref(cache);
		session->device = new_ref(Py_None);
		session->tracer = new_ref(Py_None);
		session->frame = new_ref(Py_None);
		session->trial = new_ref(Py_None);
		session->operations = new_ref(Py_None);
		session->places = new_ref(Py_None);
		session->excluded = PySet_New(NULL);
		session->records = PyDict_New();
		session->prune_at = PRUNE_MIN;
		if (!session->excluded || !session->records)
			Py_CLEAR(session);
	}
	Py_DECREF(leases);
	return (PyObject *)session;
}

static int session_traverse(PyObject *object, visitproc visit, void *arg)
{
	struct session *session = (struct session *)object;

	Py_VISIT(Py_TYPE(object));
	Py_VISIT(session->cache);
	Py_VISIT(session->device);
	Py_VISIT(session->excluded);
	Py_VISIT(session->tracer);
	Py_VISIT(session->frame);
	Py_VISIT(session->trial);
	Py_VISIT(session->operations);
	Py_VISIT(session->records);
	Py_VISIT(session->places);
	for (uint32_t place = 0; place < session->owners.max; place++)
		Py_VISIT(session->owners.all[place].tensor);
	return 0;
}

static int session_clear(PyObject *object)
{
	struct session *session = (struct session *)object;

	Py_CLEAR(session->cache);
	Py_CLEAR(session->device);
	Py_CLEAR(session->excluded);
	Py_CLEAR(session->tracer);
	Py_CLEAR(session->frame);
	Py_CLEAR(session->trial);
	Py_CLEAR(session->operations);
	Py_CLEAR(session->places);
	return 0;
}

static void session_dealloc(PyObject *object)
{
	struct session *session = (struct session *)object;
	PyTypeObject *type = Py_TYPE(object);

	SPW_ASSERT(gil_is_held() && !session->borrowers && session->kept.count == 0);
	PyObject_GC_UnTrack(object);
	(void)session_clear(object);
	if (session->records)
		Py_DECREF(session_forget(object, NULL));
	Py_CLEAR(session->records);
	PyMem_Free(session->kept.chains);
	if (session->leases)
		leases_drop(session->leases);
	PyObject_GC_Del(object);
	Py_DECREF(type);
}

static PyMethodDef session_methods[] = {
	{"pack", session_pack, METH_O, "The pack hook."},
	{"save", session_save, METH_O, "Save a tensor, whether the step is recorded or not."},
	{"discard", session_discard, METH_VARARGS,
	 "Save a tensor that a frame, the first argument, recomputes; it is discarded."},
	{"discard_input", session_discard_input, METH_VARARGS,
	 "Save a tensor that a scope is recomputed from, and that a frame recomputes."},
	{"input", session_input, METH_O, "Save a tensor that a scope is recomputed from."},
	{"inner", session_inner, METH_VARARGS,
	 "Save the elements of a tensor subclass; second argument: whether that is a view."},
	{"count", session_count, METH_O, "Count a tensor that stays in memory."},
	{"keep", session_keep, METH_O, "Save a tensor that is not offloaded."},
	{"keep_counted", session_keep_counted, METH_VARARGS,
	 "The same; the second argument is held as long."},
	{"use", session_use, METH_O, "The tensor that was saved."},
	{"drain", session_drain_now, METH_NOARGS, "Drop memory that the cache no longer needs."},
	{"prune", session_prune_now, METH_NOARGS, "Forget storages that are gone."},
	{"part", session_part, METH_NOARGS, "The cache closes: saved tensors drop its memory."},
	{"forget", session_forget, METH_NOARGS, "The cache is closed: drop everything."},
	{"counts", session_counts, METH_NOARGS, "(memory held for the cache, storages known)"},
	{NULL, NULL, 0, NULL},
};

static PyMemberDef session_members[] = {
	{"cache", T_OBJECT, offsetof(struct session, cache), 0, NULL},
	{"device", T_OBJECT, offsetof(struct session, device), 0, NULL},
	{"excluded", T_OBJECT, offsetof(struct session, excluded), 0, NULL},
	{"tracer", T_OBJECT, offsetof(struct session, tracer), 0, NULL},
	{"frame", T_OBJECT, offsetof(struct session, frame), 0, NULL},
	{"trial", T_OBJECT, offsetof(struct session, trial), 0, NULL},
	{"operations", T_OBJECT, offsetof(struct session, operations), 0, NULL},
	{"places", T_OBJECT, offsetof(struct session, places), 0, NULL},
	{"discards_all", T_BOOL, offsetof(struct session, discards_all), 0, NULL},
	{"excluding", T_INT, offsetof(struct session, excluding), 0, NULL},
	{"unpacked", T_BOOL, offsetof(struct session, unpacked), 0, NULL},
	{"begins", T_BOOL, offsetof(struct session, begins), 0, NULL},
	{"steps", T_ULONGLONG, offsetof(struct session, steps), 0, NULL},
	{NULL, 0, 0, 0, NULL},
};

static PyType_Spec session_spec = {
	.name = "spillway._hooks.Session",
	.basicsize = sizeof(struct session),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC |
		 Py_TPFLAGS_IMMUTABLETYPE,
	.slots =
		(PyType_Slot[]){
			{Py_tp_doc, "What outlives an offload context: memory that the cache may "
				    "read, and known storages."},
			{Py_tp_new, session_new},
			{Py_tp_dealloc, session_dealloc},
			{Py_tp_traverse, session_traverse},
			{Py_tp_clear, session_clear},
			{Py_tp_methods, session_methods},
			{Py_tp_members, session_members},
			{0, NULL},
		},
};

/* ---- The module ---- */

static PyObject *unpack(PyObject *Py_UNUSED(module), PyObject *packed)
{
	if (Py_TYPE(packed) == saved_type)
		return saved_unpack(packed);
	if (Py_TYPE(packed) == kept_type)
		return kept_unpack(packed);
	return PyObject_CallMethodObjArgs(packed, names.unpack, NULL);
}

static PyMethodDef functions[] = {
	{"connect", connect_calls, METH_VARARGS,
	 "Once, before anything else: what the hooks call."},
	{"unpack", unpack, METH_O, "The unpack hook."},
	{NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
	PyModuleDef_HEAD_INIT, .m_name = "_hooks",     .m_doc = "The hooks on saved tensors.",
	.m_size = -1,          .m_methods = functions,
};

static PyTypeObject *session_type;

static int make_types(void)
{
	const struct {
		PyTypeObject **type;
		PyType_Spec *spec;
	} types[] = {
		{&leases_type, &leases_spec},       {&record_type, &record_spec},
		{&kept_type, &kept_spec},           {&saved_type, &saved_spec},
		{&frame_type, &frame_spec},         {&copy_type, &copy_spec},
		{&port_type, &port_spec},           {&users_type, &users_spec},
		{&on_device_type, &on_device_spec}, {&session_type, &session_spec},
		{&rest_type, &rest_spec},
	};

	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
		*types[i].type = (PyTypeObject *)PyType_FromSpec(types[i].spec);
		if (!*types[i].type)
			return -1;
	}
	return 0;
}

PyMODINIT_FUNC PyInit__hooks(void);

PyMODINIT_FUNC PyInit__hooks(void)
{
	PyObject *module;

	if (make_types() || make_names())
		return NULL;
	module = PyModule_Create(&definition);
	if (!module)
		return NULL;
	if (PyModule_AddStringConstant(module, "VERSION", SPW_VERSION) ||
	    PyModule_AddType(module, session_type) || PyModule_AddType(module, saved_type) ||
	    PyModule_AddType(module, kept_type) || PyModule_AddType(module, frame_type) ||
	    PyModule_AddType(module, copy_type) || PyModule_AddType(module, port_type) ||
	    PyModule_AddType(module, on_device_type) || PyModule_AddType(module, rest_type) ||
	    PyModule_AddIntConstant(module, "LOOK_STEPS", LOOK_STEPS)) {
		Py_DECREF(module);
		return NULL;
	}
	return module;
}
