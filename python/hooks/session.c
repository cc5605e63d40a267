/* SPDX-License-Identifier: MIT */
/*
 * hooks/session.c - a session: the memory that the cache may still read, the storages that it knows
 */
#include "hooks.h"

#define DRAIN_MAX   64
#define DRAIN_CALLS 4 /* saving and using short tensors drains once in so many */
/* what is short in this sense: draining costs a call into the library */
#define DRAIN_BYTES  (256u << 10)
#define PRUNE_MIN    1024
#define OWNERS_FIRST 64
#define PLACE_BITS   24

/* ---- Owners ---- */

/*
 * A token names a place and, so that nobody takes the next owner there for the last one, a number.
 */
static uint64_t token_of(uint32_t place, uint64_t serial)
{
	return serial << PLACE_BITS | place;
}

struct owner *owner_of(const struct session *session, uint64_t token)
{
	uint32_t place = (uint32_t)token & ((1u << PLACE_BITS) - 1);

	return place < session->owners_max && session->owners[place].token == token
		       ? &session->owners[place]
		       : NULL;
}

static int owners_grow(struct session *session)
{
	uint32_t max = session->owners_max ? 2 * session->owners_max : OWNERS_FIRST;
	struct owner *owners;

	if (max > 1u << PLACE_BITS) {
		PyErr_SetString(PyExc_MemoryError, "too many tensors are saved at once");
		return -1;
	}
	owners = PyMem_Realloc(session->owners, max * sizeof(*owners));
	if (!owners) {
		PyErr_NoMemory();
		return -1;
	}
	for (uint32_t place = max; place-- > session->owners_max;) {
		owners[place] = (struct owner){.next = session->owner_free};
		session->owner_free = place + 1;
	}
	session->owners = owners;
	session->owners_max = max;
	return 0;
}

uint64_t owner_add(struct session *session, PyObject *tensor, struct version *version,
		   struct record *record, uint64_t address)
{
	struct owner *owner;
	uint32_t place;

	if (session->owner_free == 0 && owners_grow(session))
		return 0;
	place = session->owner_free - 1;
	owner = &session->owners[place];
	session->owner_free = owner->next;
	session->owners_held++;
	*owner = (struct owner){.token = token_of(place, ++session->serial),
				.tensor = new_ref(tensor),
				.version = version_hold(version),
				.record = new_ref(record),
				.address = address};
	return owner->token;
}

bool owner_hold(struct session *session, uint64_t token, PyObject *held)
{
	struct owner *owner = owner_of(session, token);

	if (!owner)
		return false;
	owner->is_held = true;
	Py_SETREF(owner->tensor, new_ref(held));
	return true;
}

/* The caller has to drop what it held. */
static struct owner owner_remove(struct session *session, struct owner *owner)
{
	struct owner removed = *owner;

	*owner = (struct owner){.next = session->owner_free};
	session->owner_free = (uint32_t)(owner - session->owners) + 1;
	session->owners_held--;
	return removed;
}

static void owner_drop(const struct owner *removed)
{
	if (removed->is_held && removed->version->moved != removed->tensor)
		version_part(removed->version, removed->tensor, removed->is_shown);
	version_drop(removed->version);
	Py_DECREF(removed->record);
	Py_DECREF(removed->tensor);
}

void owner_end(struct session *session, struct owner *owner)
{
	struct owner removed = owner_remove(session, owner);

	owner_drop(&removed);
}

/*
 * The cache needs the memory no longer. Whether it was modified while the cache still read it; or
 * is another one: a tensor that is sent to another process, or resized, takes its bytes to other
 * memory, and what it had may have been used by others before the cache read it. No thread switch
 * in here.
 */
static void owner_mark(const struct owner *owner)
{
	uint64_t address;
	int64_t number;

	if (tensor_state(owner->tensor, &number, &address)) {
		PyErr_Clear();
		owner->version->modified = true;
		return;
	}
	if (number != owner->version->number)
		owner->version->modified = true;
	if (address == owner->address)
		return;
	if (owner->is_held)
		record_moved(owner->record, owner->version, owner->tensor);
	else
		owner->version->modified = true;
}

/* ---- What it does ---- */

/*
 * Let go of the memory that the cache needs no longer. All is marked before anything is let go: a
 * thread that takes the bytes afterwards sees the mark.
 */
void session_drain(struct session *session)
{
	struct owner gone[DRAIN_MAX];
	uint64_t tokens[DRAIN_MAX];
	int count = DRAIN_MAX;

	session->undrained = 0;
	while (count == DRAIN_MAX) {
		struct spw_cache *cache = atomic_load(&session->lent->open);
		int found = 0;

		count = cache ? library.drain(cache, tokens, DRAIN_MAX) : 0;
		for (int i = 0; i < count; i++) {
			struct owner *owner = owner_of(session, tokens[i]);

			if (!owner)
				continue;
			owner_mark(owner);
			gone[found++] = owner_remove(session, owner);
		}
		while (found > 0)
			owner_drop(&gone[--found]);
	}
}

void session_drain_at_times(struct session *session, uint64_t len_bytes)
{
	session->undrained++;
	if (len_bytes > DRAIN_BYTES || session->undrained >= DRAIN_CALLS)
		session_drain(session);
}

static int session_prune(struct session *session)
{
	PyObject *left = PyDict_New(), *key, *value;
	Py_ssize_t place = 0;

	if (!left)
		return -1;
	while (PyDict_Next(session->records, &place, &key, &value)) {
		struct record *record = (struct record *)value;
		int expired = to_bool(PyObject_CallOneArg(torch.expired, record->weak));

		if (expired < 0 || (expired == 0 && PyDict_SetItem(left, key, value))) {
			Py_DECREF(left);
			return -1;
		}
	}
	Py_SETREF(session->records, left);
	session->prune_at = 2 * PyDict_GET_SIZE(left);
	if (session->prune_at < PRUNE_MIN)
		session->prune_at = PRUNE_MIN;
	return 0;
}

struct record *session_record(struct session *session, struct seen *seen)
{
	PyObject *found = PyDict_GetItemWithError(session->records, seen->identity);
	struct record *record;

	if (found)
		return new_ref(found);
	if (PyErr_Occurred() ||
	    (PyDict_GET_SIZE(session->records) >= session->prune_at && session_prune(session)))
		return NULL;
	record = record_new(seen, ++session->serial);
	if (record && PyDict_SetItem(session->records, seen->identity, (PyObject *)record))
		Py_CLEAR(record);
	return record;
}

struct spw_cache *session_cache(struct session *session)
{
	struct spw_cache *cache = atomic_load(&session->lent->open);
	PyObject *handle;

	if (cache)
		return cache;
	handle = PyObject_GetAttr(session->cache, names.handle);
	if (handle) {
		Py_DECREF(handle);
		PyErr_SetString(PyExc_SystemError, "the cache is closed, and does not say so");
	}
	return NULL;
}

/* ---- As a type, from which torch.py derives its own ---- */

static PyObject *session_drain_now(PyObject *object, PyObject *unused)
{
	(void)unused;
	session_drain((struct session *)object);
	Py_RETURN_NONE;
}

static PyObject *session_prune_now(PyObject *object, PyObject *unused)
{
	(void)unused;
	if (session_prune((struct session *)object))
		return NULL;
	Py_RETURN_NONE;
}

/* The cache is closed and reads no memory any more. */
static PyObject *session_forget(PyObject *object, PyObject *unused)
{
	struct session *session = (struct session *)object;

	(void)unused;
	for (uint32_t place = 0; place < session->owners_max; place++)
		if (session->owners[place].token != 0)
			owner_end(session, &session->owners[place]);
	PyDict_Clear(session->records);
	Py_RETURN_NONE;
}

static PyObject *session_counts(PyObject *object, PyObject *unused)
{
	struct session *session = (struct session *)object;

	(void)unused;
	return Py_BuildValue("(kn)", (unsigned long)session->owners_held,
			     PyDict_GET_SIZE(session->records));
}

/* Of a cache: makes what its leases hold, and gives it to it. */
static PyObject *session_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	PyObject *cache, *handle, *lent;
	struct session *session;

	if (kwargs || !PyArg_ParseTuple(args, "O", &cache))
		return NULL;
	handle = PyObject_GetAttr(cache, names.handle);
	lent = handle ? PyObject_CallOneArg((PyObject *)&lent_type, handle) : NULL;
	Py_XDECREF(handle);
	if (!lent || PyObject_SetAttrString(cache, "lent", lent)) {
		Py_XDECREF(lent);
		return NULL;
	}
	session = (struct session *)type->tp_alloc(type, 0);
	if (session) {
		session->lent = ((struct lent_object *)lent)->lent;
		atomic_fetch_add(&session->lent->references, 1);
		session->cache = new_ref(cache);
		session->device = new_ref(Py_None);
		session->tracer = new_ref(Py_None);
		session->excluded = PySet_New(NULL);
		session->records = PyDict_New();
		session->prune_at = PRUNE_MIN;
		if (!session->excluded || !session->records)
			Py_CLEAR(session);
	}
	Py_DECREF(lent);
	return (PyObject *)session;
}

static int session_traverse(PyObject *object, visitproc visit, void *arg)
{
	struct session *session = (struct session *)object;

	Py_VISIT(session->cache);
	Py_VISIT(session->device);
	Py_VISIT(session->excluded);
	Py_VISIT(session->tracer);
	Py_VISIT(session->records);
	for (uint32_t place = 0; place < session->owners_max; place++)
		Py_VISIT(session->owners[place].tensor);
	return 0;
}

static int session_clear(PyObject *object)
{
	struct session *session = (struct session *)object;

	Py_CLEAR(session->cache);
	Py_CLEAR(session->device);
	Py_CLEAR(session->excluded);
	Py_CLEAR(session->tracer);
	return 0;
}

static void session_dealloc(PyObject *object)
{
	struct session *session = (struct session *)object;

	PyObject_GC_UnTrack(object);
	(void)session_clear(object);
	if (session->records)
		Py_DECREF(session_forget(object, NULL));
	Py_CLEAR(session->records);
	PyMem_Free(session->owners);
	if (session->lent)
		lent_drop(session->lent);
	Py_TYPE(object)->tp_free(object);
}

static PyMethodDef session_methods[] = {
	{"pack", session_pack, METH_O, "Save a tensor: the hook."},
	{"save", session_save, METH_O, "The same, without a look at the recording and the device."},
	{"use", session_use, METH_O, "The tensor that was saved."},
	{"drain", session_drain_now, METH_NOARGS,
	 "Let go of the memory that the cache needs no longer."},
	{"prune", session_prune_now, METH_NOARGS, "Forget storages that are gone."},
	{"part", session_part, METH_NOARGS,
	 "The cache closes: saved tensors let go of its memory."},
	{"forget", session_forget, METH_NOARGS, "The cache is closed: let go of everything."},
	{"counts", session_counts, METH_NOARGS, "(memory held for the cache, storages known)"},
	{NULL, NULL, 0, NULL},
};

static PyMemberDef session_members[] = {
	{"cache", T_OBJECT, offsetof(struct session, cache), 0, NULL},
	{"device", T_OBJECT, offsetof(struct session, device), 0, NULL},
	{"excluded", T_OBJECT, offsetof(struct session, excluded), 0, NULL},
	{"tracer", T_OBJECT, offsetof(struct session, tracer), 0, NULL},
	{"excluding", T_INT, offsetof(struct session, excluding), 0, NULL},
	{"unpacked", T_BOOL, offsetof(struct session, unpacked), 0, NULL},
	{"steps", T_ULONGLONG, offsetof(struct session, steps), 0, NULL},
	{NULL, 0, 0, 0, NULL},
};

PyTypeObject session_type = {
	PyVarObject_HEAD_INIT(NULL, 0).tp_name = "spillway._hooks.Session",
	.tp_basicsize = sizeof(struct session),
	.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
	.tp_doc = "What outlives the context: the memory that the cache may read, the storages it "
		  "knows.",
	.tp_new = session_new,
	.tp_dealloc = session_dealloc,
	.tp_traverse = session_traverse,
	.tp_clear = session_clear,
	.tp_methods = session_methods,
	.tp_members = session_members,
};
