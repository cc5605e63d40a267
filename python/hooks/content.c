/* SPDX-License-Identifier: MIT */
/* hooks/content.c - track storages and their contents, and detect in-place modification */
#include "content.h"

static struct version *version_new(int64_t number, uint64_t epoch, uint64_t step)
{
	struct version *version = PyMem_Malloc(sizeof(*version));

	if (!version) {
		PyErr_NoMemory();
		return NULL;
	}
	*version =
		(struct version){.references = 1, .number = number, .epoch = epoch, .step = step};
	return version;
}

int version_witnessed(struct version *version, PyObject *tensor)
{
	if (!version->counter && !version->witness)
		version->witness = PyWeakref_NewRef(tensor, NULL);
	return version->counter || version->witness ? 0 : -1;
}

void version_drop(struct version *version)
{
	SPW_ASSERT(!version || version->references > 0);
	if (!version || --version->references > 0)
		return;
	Py_XDECREF(version->witness);
	Py_XDECREF(version->counter);
	Py_XDECREF(version->moved);
	PyMem_Free(version);
}

/* Get a tensor that shares the version counter. Return: a new reference; NULL if none is alive. */
static PyObject *version_witness(const struct version *version)
{
	PyObject *witness;

	if (version->counter)
		return new_ref(version->counter);
	if (!version->witness)
		return NULL;
	witness = PyObject_CallNoArgs(version->witness);
	if (witness == Py_None)
		Py_CLEAR(witness);
	return witness;
}

/* Whether a tensor of this storage, at version @number, has the same content. Return: 1; 0; -1 */
static int version_current(const struct version *version, PyObject *tensor, int64_t number)
{
	PyObject *witness;
	int64_t now = number;
	bool is_watched = version->counter || version->witness;
	int rc = 0;

	/* Not watched yet, but held: another thread is saving it now. */
	if (number != version->number || version->modified ||
	    (!is_watched && version->references == 1))
		return 0;
	witness = version_witness(version);
	if (witness && witness != tensor)
		rc = version_number(witness, &now);
	Py_XDECREF(witness);
	return rc ? rc : now == number;
}

int raise_modified(PyObject *tensor, int64_t now, int64_t expected)
{
	PyObject *result =
		PyObject_CallFunction(torch.raise_modified, "OLL", tensor ? tensor : Py_None,
				      (long long)now, (long long)expected);

	if (result) {
		Py_DECREF(result);
		PyErr_SetString(PyExc_SystemError, "raise_modified() raised nothing");
	}
	return -1;
}

int version_check(const struct version *version, PyObject *shown)
{
	PyObject *witness = version_witness(version);
	int64_t now = version->number;
	int rc = 0;

	if (witness)
		rc = version_number(witness, &now);
	if (rc == 0 && (version->modified || now != version->number))
		rc = raise_modified(shown, now, version->number);
	Py_XDECREF(witness);
	return rc;
}

PyObject *tensor_counted_by(PyObject *counter, PyObject *memory)
{
	PyObject *tensor = call(torch.detach, counter);

	if (tensor && PyObject_SetAttr(tensor, names.data, memory))
		Py_CLEAR(tensor);
	return tensor;
}

PyObject *tensor_lent(PyObject *counter, PyObject *memory)
{
	PyObject *tensor;

	if (!memory || !counter || torch.counted == Py_True)
		return memory;
	tensor = tensor_counted_by(counter, memory);
	if (!tensor && was_refused())
		return memory;
	Py_DECREF(memory);
	return tensor;
}

void version_watch(struct version *version, PyObject *held)
{
	SPW_ASSERT(version->references > 0);
	if (!version->counter)
		version->counter = new_ref(held);
}

void version_part(struct version *version, PyObject *held, bool is_shown, PyObject *nothing)
{
	PyObject *type, *value, *traceback, *counter;

	if (version->counter != held || version->references == 1)
		return;
	SPW_ASSERT(version->references > 1);
	PyErr_Fetch(&type, &value, &traceback);
	if (is_shown)
		counter = tensor_counted_by(held, nothing);
	else
		counter = PyObject_SetAttr(held, names.data, nothing) ? NULL : new_ref(held);
	if (!counter && PyErr_Occurred() && !was_refused())
		PyErr_WriteUnraisable(held);
	/*
	 * Inside a torch.func transform .data cannot be set: later changes show only as long as the
	 * saved tensor is there, or else the memory stays.
	 */
	if (!counter && !version->witness)
		counter = new_ref(held);
	set_ref(&version->counter, counter);
	PyErr_Restore(type, value, traceback);
}

bool record_forgets(struct record *record, struct version *version)
{
	bool is_last = record->version == version;

	SPW_ASSERT(version->references > is_last);
	if (version->references > 1u + is_last)
		return false;
	if (is_last) {
		record->version = NULL;
		version_drop(version);
	}
	return true;
}

static void record_dealloc(PyObject *object)
{
	struct record *record = (struct record *)object;
	PyObject *result, *type, *value, *traceback;

	version_drop(record->version);
	Py_XDECREF(record->identity);
	if (record->weak) {
		PyErr_Fetch(&type, &value, &traceback);
		result = call(torch.free_weak_ref, record->weak);
		if (!result)
			PyErr_WriteUnraisable(object);
		Py_XDECREF(result);
		Py_DECREF(record->weak);
		PyErr_Restore(type, value, traceback);
	}
	object_free(object);
}

PyTypeObject *record_type;
PyType_Spec record_spec = {
	.name = "spillway._hooks.Record",
	.basicsize = sizeof(struct record),
	.flags = MADE_HERE,
	.slots = (PyType_Slot[]){{Py_tp_dealloc, record_dealloc}, {0, NULL}},
};

struct record *record_new(const struct seen *seen, uint64_t key)
{
	struct record *record = PyObject_New(struct record, record_type);

	SPW_ASSERT(key != 0 && seen->storage);
	if (!record)
		return NULL;
	record->key = key;
	record->epochs = 0;
	record->version = NULL;
	record->identity = new_ref(seen->identity);
	record->weak = call(torch.weak_ref, seen->storage);
	if (!record->weak)
		Py_CLEAR(record);
	return record;
}

struct version *record_version(struct record *record, PyObject *tensor, uint64_t step)
{
	struct version *version;
	int64_t number;
	int current = 0;

	if (version_number(tensor, &number))
		return NULL;
	if (record->version && record->version->step == step)
		current = version_current(record->version, tensor, number);
	SPW_ASSERT(!record->version || record->version->epoch < record->epochs);
	if (current)
		return current < 0 ? NULL : record->version;
	version = version_new(number, record->epochs, step);
	if (!version)
		return NULL;
	record->epochs++;
	version_drop(record->version);
	record->version = version;
	return version;
}

void record_moved(struct record *record, struct version *version, PyObject *held)
{
	SPW_ASSERT(version->references > 0 && (!record->version || record->epochs > 0));
	if (!version->moved)
		version->moved = new_ref(held);
	if (record->version != version)
		return;
	record->version = NULL; /* otherwise its reference would keep the storage alive */
	version_drop(version);
}
