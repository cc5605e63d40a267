/* SPDX-License-Identifier: MIT */
/*
 * hooks/on_device.c - struct on_device: saved tensors of a device by their entry of the cache; tell
 * the cache which copies have ended
 */
#include "on_device.h"

#include <string.h>

#define DRAIN_MAX   64
#define ENDED_FIRST 64

/* ---- The lock and the cache ---- */

int on_lock(struct on_device *on)
{
	SPW_ASSERT(gil_is_held());
	return ignore(PyObject_CallMethodObjArgs(on->lock, names.acquire, NULL));
}

int on_lock_if_free(struct on_device *on)
{
	PyObject *is_mine = PyObject_CallMethodObjArgs(on->lock, names.acquire, Py_False, NULL);
	int rc = is_mine ? PyObject_IsTrue(is_mine) : -1;

	Py_XDECREF(is_mine);
	return rc;
}

void on_unlock(struct on_device *on)
{
	PyObject *type, *value, *traceback;

	PyErr_Fetch(&type, &value, &traceback);
	if (ignore(PyObject_CallMethodObjArgs(on->lock, names.release, NULL)))
		PyErr_WriteUnraisable(on->lock);
	PyErr_Restore(type, value, traceback);
}

struct spw_cache *on_cache_begin(struct on_device *on)
{
	struct spw_cache *cache = leases_cache(on->leases, on->cache);

	if (cache)
		leases_user_begins(on->leases);
	return cache;
}

void on_cache_end(struct on_device *on)
{
	leases_user_ended(on->leases);
}

static bool is_closing(const struct on_device *on)
{
	return !atomic_load(&on->leases->open);
}

/* ---- Users ---- */

/* Return: a borrowed reference; NULL if not found, or with an exception. */
static struct users *users_find(struct on_device *on, uint64_t number)
{
	PyObject *key = PyLong_FromUnsignedLongLong(number);
	PyObject *found = key ? PyDict_GetItemWithError(on->users, key) : NULL;

	Py_XDECREF(key);
	return (struct users *)found;
}

struct users *users_of(struct on_device *on, const struct saved *saved)
{
	struct users *users = users_find(on, saved->id);

	if (!users && !PyErr_Occurred())
		PyErr_SetString(PyExc_SystemError, "a saved tensor has no users");
	SPW_ASSERT(!users || users->count > 0);
	return users ? new_ref(users) : NULL;
}

static struct users *users_add(struct on_device *on, uint64_t number, struct device *device,
			       PyObject *stream)
{
	PyObject *key = PyLong_FromUnsignedLongLong(number);
	struct users *users = key ? PyObject_New(struct users, users_type) : NULL;

	if (users) {
		memset((char *)users + sizeof(PyObject), 0, sizeof(*users) - sizeof(PyObject));
		users->stream = new_ref(stream);
		users->device = device;
		if (PyDict_SetItem(on->users, key, (PyObject *)users) == 0)
			Py_DECREF((PyObject *)users); /* the dictionary holds it */
		else
			Py_CLEAR(users);
	}
	Py_XDECREF(key);
	return users;
}

/* Reserve room to note the end of one more saved tensor, since noting it must not fail. */
static int ended_grow(struct on_device *on)
{
	uint32_t max = on->ended_max ? 2 * on->ended_max : ENDED_FIRST;
	uint64_t *ended;

	SPW_ASSERT(on->ended_count <= on->alive && on->alive <= on->ended_max);
	if (on->alive < on->ended_max)
		return 0;
	ended = PyMem_Realloc(on->ended, max * sizeof(*ended));
	if (!ended) {
		PyErr_NoMemory();
		return -1;
	}
	on->ended = ended;
	on->ended_max = max;
	return 0;
}

int user_note(struct on_device *on, struct saved *saved, uint64_t number, PyObject *stream)
{
	struct users *users = ended_grow(on) ? NULL : users_find(on, number);

	if (!users && !PyErr_Occurred())
		users = users_add(on, number, saved->device, stream);
	if (!users)
		return -1;
	SPW_ASSERT(saved->id == 0 && number != 0 && users->unused <= users->count);
	saved->id = number;
	on->alive++;
	users->count++;
	users->unused++;
	return 0;
}

void on_device_end(struct saved *saved)
{
	struct on_device *on = saved->on;

	if (saved->id == 0)
		return;
	SPW_ASSERT(on->ended_count < on->alive && on->alive <= on->ended_max);
	on->ended[on->ended_count++] = saved->id;
}

static int user_end(struct on_device *on, struct spw_cache *cache, uint64_t number)
{
	struct users *users = users_find(on, number);
	struct copy *unused = NULL;
	PyObject *key;
	int rc = 0;

	if (!users)
		return PyErr_Occurred() ? -1 : 0;
	SPW_ASSERT(users->count > 0);
	Py_INCREF((PyObject *)users);
	users->count--;
	if (users->unused > users->count)
		users->unused = users->count;
	if (users->count <= 1 && users->unused == 0 && users->copy) {
		unused = users->copy; /* holds the memory if no use has taken it */
		users->copy = NULL;
		Py_CLEAR(users->base);
	}
	if (users->count == 0) {
		key = PyLong_FromUnsignedLongLong(number);
		rc = key ? PyDict_DelItem(on->users, key) : -1;
		Py_XDECREF(key);
	}
	(void)library.release(cache, (spw_tensor){number});
	if (unused && port_drop(on->port, unused))
		rc = -1;
	Py_XDECREF((PyObject *)unused);
	Py_DECREF((PyObject *)users);
	return rc;
}

/* ---- Ends of copies and saved tensors ---- */

static int tell_copies(struct on_device *on, struct spw_cache *cache, bool is_out)
{
	struct port *port = on->port;
	struct ended ended;
	int rc = 0;

	for (uint32_t i = 0; rc >= 0 && i < port->count; i++)
		while ((rc = port_ended(port, port->devices[i], is_out, false, &ended)) > 0) {
			on->is_due = true;
			if (is_out)
				(void)library.copied(cache, (spw_tensor){ended.number},
						     ended.result);
			else
				library.give_back(cache, ended.number);
		}
	return rc;
}

int on_call_times(struct on_device *on, struct spw_cache *cache, PyObject *name)
{
	PyObject *handle = PyLong_FromVoidPtr(cache);
	int rc = -1;

	if (handle)
		rc = ignore(PyObject_CallMethodObjArgs(on->port->times, name, handle, NULL));
	Py_XDECREF(handle);
	return rc;
}

static void drain(struct on_device *on, struct spw_cache *cache)
{
	uint64_t tokens[DRAIN_MAX];
	int count = on->is_due ? DRAIN_MAX : 0;

	on->is_due = false; /* tokens that become due meanwhile wait for the next call */
	while (count == DRAIN_MAX) {
		count = library.drain_device(cache, tokens, DRAIN_MAX);
		for (int i = 0; i < count; i++) {
			struct owner *owner = owner_of(&on->owners, tokens[i]);

			if (owner)
				owner_end(&on->owners, owner);
		}
	}
}

int on_bring(struct on_device *on, struct users *users, PyObject *stream, struct spw_taken *taken,
	     uint64_t number)
{
	struct copy *copy =
		port_copy_in(on->port, users->device, stream, taken, number, users->shape);

	if (!copy)
		return -1;
	SPW_ASSERT(copy->held);
	taken->lease = 0;
	set_ref(&users->base, new_ref(copy->held));
	Py_XDECREF((PyObject *)users->copy);
	users->copy = copy;
	return 0;
}

static int prefetch(struct on_device *on, struct spw_cache *cache)
{
	struct spw_taken taken;
	spw_tensor tensor;
	int rc = 0;

	while (rc == 0 && library.ahead(cache, &tensor, &taken) == 1) {
		struct users *users = users_find(on, tensor.value);

		Py_XINCREF((PyObject *)users);
		if (users)
			rc = on_bring(on, users, users->stream, &taken, tensor.value);
		else if (PyErr_Occurred())
			rc = -1;
		Py_XDECREF((PyObject *)users);
		if (taken.lease)
			library.give_back(cache, taken.lease);
	}
	return rc;
}

int on_order(struct on_device *on, struct spw_cache *cache, spw_tensor next, PyObject *stream)
{
	bool ordered = next.value != 0;

	while (next.value) {
		PyObject *since =
			PyObject_CallMethodObjArgs(on->port->times, names.mark_event, stream, NULL);
		int rc = since ? port_order(on->port, next.value, since) : -1;

		Py_XDECREF(since);
		if (rc)
			return -1;
		on->is_due = true;
		if (library.ordered(cache, next, &next) < 0)
			break;
	}
	if (ordered)
		drain(on, cache);
	return 0;
}

int on_order_now(struct on_device *on, struct spw_cache *cache, PyObject *stream)
{
	spw_tensor next = {0};

	(void)library.ordered(cache, next, &next);
	return on_order(on, cache, next, stream);
}

int on_tell(struct on_device *on, struct spw_cache *cache, bool prefetches)
{
	int news;

	if (tell_copies(on, cache, true) || tell_copies(on, cache, false))
		return -1;
	news = to_bool(PyObject_GetAttr(on->port->times, names.news));
	if (news < 0 || (news && on_call_times(on, cache, names.tell)))
		return -1;
	while (on->ended_count > 0) {
		SPW_ASSERT(on->alive >= on->ended_count);
		on->ended_count--;
		on->alive--;
		on->is_due = true;
		if (user_end(on, cache, on->ended[on->ended_count]))
			return -1;
	}
	drain(on, cache);
	return prefetches ? prefetch(on, cache) : 0;
}

int on_go_on(struct on_device *on)
{
	int rc = is_closing(on) ? 1 : port_captures(on->port);
	struct spw_cache *cache;

	if (rc || is_closing(on))
		return rc < 0 ? -1 : 0;
	cache = on_cache_begin(on);
	rc = cache ? on_tell(on, cache, false) : -1;
	if (rc == 0)
		rc = on_call_times(on, cache, names.come);
	if (cache)
		on_cache_end(on);
	return rc;
}

int on_finish_if_closing(struct on_device *on)
{
	return is_closing(on) ? port_finish(on->port) : 0;
}

/* ---- As a Python object ---- */

static void users_dealloc(PyObject *object)
{
	struct users *users = (struct users *)object;

	Py_XDECREF(users->shape);
	Py_XDECREF(users->stream);
	Py_XDECREF(users->base);
	Py_XDECREF((PyObject *)users->copy);
	Py_XDECREF(users->checksums);
	Py_XDECREF(users->verdict);
	object_free(object);
}

static PyMemberDef users_members[] = {
	{"base", T_OBJECT, offsetof(struct users, base), READONLY, NULL},
	{NULL, 0, 0, 0, NULL},
};

PyTypeObject *users_type;
PyType_Spec users_spec = {
	.name = "spillway._hooks.Users",
	.basicsize = sizeof(struct users),
	.flags = MADE_HERE,
	.slots =
		(PyType_Slot[]){
			{Py_tp_doc, "The saved tensors that share one entry of the cache."},
			{Py_tp_dealloc, users_dealloc},
			{Py_tp_members, users_members},
			{0, NULL},
		},
};
