/* SPDX-License-Identifier: MIT */
/*
 * hooks/rest.c - steps that rest: whether the model is called as in steps that moved nothing
 *
 * It runs at the first call of the model in each step that rests, between operations that displace
 * the CPU caches, and is all that such a step does. So it compares the call with the kind of the
 * last one, which the package has found to be like those of steps that moved nothing, and tells the
 * cache of the step. The package answers for any other call, and makes the kinds (_kind_of() in
 * _offload/resting.py): what is not known here is another call, not an error.
 */
#include "rest.h"

struct rest {
	PyObject_HEAD struct leases *leases;
	PyObject *call;    /* the kind of a call like those of steps that moved nothing; or None */
	PyObject *beneath; /* the innermost hooks of others when the context was entered; or None */
	unsigned long long calls; /* of the model, since then */
	unsigned long long steps; /* that rest, in a row */
	int64_t entered_in;       /* the backward pass in which the context was entered; -1: none */
	char active;              /* within a context in which calls of the model are known */
	char light;               /* the context was entered by enter(), and had no hooks since */
	char now;                 /* a step rests, and the next may */
	char last;                /* the next one does not */
	char held;                /* tensors of steps before may wait to be let go of */
};

/* ---- Calls of one kind ---- */

static bool is_like(PyObject *kind, PyObject *thing);

static PyObject *member(PyObject *kind, Py_ssize_t place, Py_ssize_t count)
{
	return PyTuple_Check(kind) && PyTuple_Size(kind) == count ? PyTuple_GetItem(kind, place)
								  : NULL;
}

/* Whether it equals @expected. Consumes the reference to @value. */
static bool is_value(PyObject *value, PyObject *expected)
{
	int equal = 0;

	if (value && expected)
		equal = value == expected || (Py_TYPE(value) == Py_TYPE(expected) &&
					      PyObject_RichCompareBool(value, expected, Py_EQ) > 0);
	Py_XDECREF(value);
	return equal;
}

/* Kind: (type, shape, dtype, device, requires_grad) */
static bool is_like_tensor(PyObject *kind, PyObject *tensor)
{
	return member(kind, 0, 5) == torch.tensor_type &&
	       is_value(get(&torch.shape, tensor), member(kind, 1, 5)) &&
	       is_value(get(&torch.dtype, tensor), member(kind, 2, 5)) &&
	       is_value(get(&torch.requires_grad, tensor), member(kind, 4, 5)) &&
	       is_value(get(&torch.device, tensor), member(kind, 3, 5));
}

/* Kind: (type, (kinds)) */
static bool is_like_sequence(PyObject *kind, PyObject *things)
{
	PyObject *kinds = member(kind, 1, 2);
	bool is_tuple = PyTuple_CheckExact(things);
	Py_ssize_t count = is_tuple ? PyTuple_Size(things) : PyList_Size(things);

	if (!kinds || member(kind, 0, 2) != (PyObject *)Py_TYPE(things) || !PyTuple_Check(kinds) ||
	    PyTuple_Size(kinds) != count)
		return false;
	for (Py_ssize_t i = 0; i < count; i++) {
		PyObject *thing = is_tuple ? PyTuple_GetItem(things, i) : PyList_GetItem(things, i);

		if (!thing || !is_like(PyTuple_GetItem(kinds, i), thing))
			return false;
	}
	return true;
}

/* Kind: ((key, kind), ...) */
static bool is_like_dict(PyObject *kind, PyObject *dict)
{
	Py_ssize_t place = 0, count = 0;
	PyObject *key, *thing;

	if (!PyTuple_Check(kind) || PyTuple_Size(kind) != PyDict_Size(dict))
		return false;
	while (PyDict_Next(dict, &place, &key, &thing)) {
		PyObject *pair = PyTuple_GetItem(kind, count++);

		if (!PyUnicode_CheckExact(key) || !is_value(new_ref(key), member(pair, 0, 2)) ||
		    !is_like(member(pair, 1, 2), thing))
			return false;
	}
	return true;
}

/* Values are compared that run no code of others: their types are exactly these. */
static bool is_like(PyObject *kind, PyObject *thing)
{
	if ((PyObject *)Py_TYPE(thing) == torch.tensor_type)
		return is_like_tensor(kind, thing);
	if (PyTuple_CheckExact(thing) || PyList_CheckExact(thing))
		return is_like_sequence(kind, thing);
	if (PyDict_CheckExact(thing))
		return is_like_dict(kind, thing);
	if (PyFloat_CheckExact(thing))
		return kind == (PyObject *)&PyFloat_Type;
	if (thing == Py_None || PyBool_Check(thing) || PyLong_CheckExact(thing) ||
	    PyUnicode_CheckExact(thing))
		return is_value(new_ref(thing), kind);
	return false;
}

/* Kind: of the arguments, of keywords or None, the training mode, None: no autocast */
static bool is_like_call(PyObject *kind, PyObject *module, PyObject *args, PyObject *kwargs)
{
	bool no_keywords = kwargs == Py_None || (PyDict_CheckExact(kwargs) && !PyDict_Size(kwargs));

	return member(kind, 3, 4) == Py_None &&
	       is_value(PyObject_CallNoArgs(torch.any_autocast), Py_False) &&
	       is_value(PyObject_GetAttr(module, names.training), member(kind, 2, 4)) &&
	       is_like(member(kind, 0, 4), args) &&
	       is_like(member(kind, 1, 4), no_keywords ? Py_None : kwargs);
}

/* ---- Steps ---- */

/* The number of the backward pass that this thread is in. Return: 0; -1 with an exception */
static int backward_number(int64_t *number)
{
	return to_int64(PyObject_CallNoArgs(torch.backward_number), number);
}

/* Whether a step begins that may rest: with gradients, outside of a backward pass and of hooks. */
static bool may_rest(const struct rest *rest)
{
	PyObject *innermost;
	bool is_beneath;
	int64_t number;

	if (!is_value(PyObject_CallNoArgs(torch.grad_enabled), Py_True) ||
	    backward_number(&number) || number != -1)
		return false;
	innermost = call(torch.innermost, Py_True);
	is_beneath = innermost && PyObject_RichCompareBool(innermost, rest->beneath, Py_EQ) > 0;
	Py_XDECREF(innermost);
	return is_beneath;
}

/* Return: an enum spw_step; -1: the cache is closed, or an exception is set */
static int step_begin(const struct rest *rest)
{
	struct spw_cache *cache = atomic_load(&rest->leases->open);
	int result;

	if (!cache)
		return -1;
	leases_user_begins(rest->leases);
	result = library.step_rest(cache, true);
	leases_user_ended(rest->leases);
	return result;
}

/*
 * Python's rests(module, args, kwargs): the model is called. Return: whether that begins a step
 * that rests. If not, nothing has been done: the package looks closer.
 */
static PyObject *rest_rests(PyObject *object, PyObject *arguments)
{
	struct rest *rest = (struct rest *)object;
	PyObject *module, *args, *kwargs = Py_None;
	int result;

	if (!PyArg_ParseTuple(arguments, "OO|O", &module, &args, &kwargs))
		return NULL;
	if (!rest->active || !rest->now || rest->last || rest->call == Py_None ||
	    torch.innermost == Py_None || (rest->steps + 1) % LOOK_STEPS == 0)
		Py_RETURN_FALSE;
	if (!may_rest(rest) || !is_like_call(rest->call, module, args, kwargs)) {
		PyErr_Clear();
		Py_RETURN_FALSE;
	}
	result = step_begin(rest);
	if (result < 0)
		Py_RETURN_FALSE;
	rest->steps++;
	rest->calls++;
	rest->last = result == SPW_STEP_RESTS_LAST;
	Py_RETURN_TRUE;
}

/* ---- Contexts ---- */

/*
 * Python's listen(hook, key, model, calls): only calls of the model are known from now on. Return:
 * whether this is within a backward pass.
 */
static PyObject *rest_listen(PyObject *object, PyObject *args)
{
	struct rest *rest = (struct rest *)object;
	PyObject *hook, *key, *model, *before, *with_keywords, *innermost = NULL;
	unsigned long long calls;
	int rc = -1;

	if (!PyArg_ParseTuple(args, "OOOK", &hook, &key, &model, &calls))
		return NULL;
	before = PyObject_GetAttr(model, names.pre_hooks);
	with_keywords = before ? PyObject_GetAttr(model, names.pre_hooks_with_keywords) : NULL;
	if (with_keywords && backward_number(&rest->entered_in) == 0)
		innermost = call(torch.innermost, Py_True);
	if (innermost) {
		set_ref(&rest->beneath, new_ref(innermost));
		rest->calls = calls;
		rest->active = true;
		rest->light = calls == 0;
		rc = PyObject_SetItem(before, key, hook) ||
				     PyObject_SetItem(with_keywords, key, Py_True)
			     ? -1
			     : 0;
	}
	Py_XDECREF(innermost);
	Py_XDECREF(with_keywords);
	Py_XDECREF(before);
	return rc ? NULL : PyBool_FromLong(rest->entered_in != -1);
}

static int remove_from(PyObject *model, PyObject *name, PyObject *key)
{
	PyObject *hooks = PyObject_GetAttr(model, name);
	int rc = hooks ? PyObject_DelItem(hooks, key) : -1;

	Py_XDECREF(hooks);
	if (rc && PyErr_ExceptionMatches(PyExc_KeyError)) {
		PyErr_Clear();
		rc = 0;
	}
	return rc;
}

/*
 * Python's mute(key, model): calls of the model are not known any more. A second time it does
 * nothing more. Return: true; false: nothing was done, since the context was entered in another
 * backward pass, or in none.
 */
static PyObject *rest_mute(PyObject *object, PyObject *args)
{
	struct rest *rest = (struct rest *)object;
	PyObject *key, *model;
	int64_t number = -1;

	if (!PyArg_ParseTuple(args, "OO", &key, &model))
		return NULL;
	if (rest->light && backward_number(&number))
		return NULL;
	if (rest->light && number != rest->entered_in)
		Py_RETURN_FALSE;
	rest->active = false;
	if (remove_from(model, names.pre_hooks, key) ||
	    remove_from(model, names.pre_hooks_with_keywords, key))
		return NULL;
	Py_RETURN_TRUE;
}

/* Whether a context that is left has more to do. */
static PyObject *rest_is_due(PyObject *object, PyObject *Py_UNUSED(unused))
{
	const struct rest *rest = (struct rest *)object;

	return PyBool_FromLong(rest->last || rest->held || rest->calls == 0 ||
			       rest->steps % LOOK_STEPS == 0);
}

/* ---- As a Python object ---- */

static PyObject *rest_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	PyObject *leases;
	struct rest *rest;

	if (kwargs || !PyArg_ParseTuple(args, "O!", leases_type, &leases))
		return NULL;
	rest = (struct rest *)PyType_GenericAlloc(type, 0);
	if (!rest)
		return NULL;
	rest->leases = ((struct leases_object *)leases)->leases;
	leases_hold(rest->leases);
	rest->call = new_ref(Py_None);
	rest->beneath = new_ref(Py_None);
	return (PyObject *)rest;
}

static int rest_traverse(PyObject *object, visitproc visit, void *arg)
{
	struct rest *rest = (struct rest *)object;

	Py_VISIT(Py_TYPE(object));
	Py_VISIT(rest->call);
	Py_VISIT(rest->beneath);
	return 0;
}

static int rest_clear(PyObject *object)
{
	struct rest *rest = (struct rest *)object;

	Py_CLEAR(rest->call);
	Py_CLEAR(rest->beneath);
	return 0;
}

static void rest_dealloc(PyObject *object)
{
	struct rest *rest = (struct rest *)object;
	PyTypeObject *type = Py_TYPE(object);

	PyObject_GC_UnTrack(object);
	(void)rest_clear(object);
	if (rest->leases)
		leases_drop(rest->leases);
	PyObject_GC_Del(object);
	Py_DECREF(type);
}

static PyMethodDef rest_methods[] = {
	{"rests", rest_rests, METH_VARARGS,
	 "The model is called: whether that begins a step that rests."},
	{"listen", rest_listen, METH_VARARGS, "From now on only calls of the model are known."},
	{"mute", rest_mute, METH_VARARGS,
	 "They are not known any more, unless that is in another backward pass."},
	{"is_due", rest_is_due, METH_NOARGS, "Whether a context that is left has more to do."},
	{NULL, NULL, 0, NULL},
};

static PyMemberDef rest_members[] = {
	{"call", T_OBJECT, offsetof(struct rest, call), 0, NULL},
	{"beneath", T_OBJECT, offsetof(struct rest, beneath), 0, NULL},
	{"calls", T_ULONGLONG, offsetof(struct rest, calls), 0, NULL},
	{"steps", T_ULONGLONG, offsetof(struct rest, steps), 0, NULL},
	{"active", T_BOOL, offsetof(struct rest, active), 0, NULL},
	{"light", T_BOOL, offsetof(struct rest, light), 0, NULL},
	{"held", T_BOOL, offsetof(struct rest, held), 0, NULL},
	{"now", T_BOOL, offsetof(struct rest, now), 0, NULL},
	{"last", T_BOOL, offsetof(struct rest, last), 0, NULL},
	{NULL, 0, 0, 0, NULL},
};

PyTypeObject *rest_type;
PyType_Spec rest_spec = {
	.name = "spillway._hooks.Rest",
	.basicsize = sizeof(struct rest),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC |
		 Py_TPFLAGS_IMMUTABLETYPE,
	.slots =
		(PyType_Slot[]){
			{Py_tp_doc, "Steps that rest, as far as calls of the model tell."},
			{Py_tp_new, rest_new},
			{Py_tp_dealloc, rest_dealloc},
			{Py_tp_traverse, rest_traverse},
			{Py_tp_clear, rest_clear},
			{Py_tp_methods, rest_methods},
			{Py_tp_members, rest_members},
			{0, NULL},
		},
};
