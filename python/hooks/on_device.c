/* SPDX-License-Identifier: MIT */
/*
 * hooks/on_device.c - what autograd saves on a device: by way of port.c to the cache and back
 *
 * Threads    Calls of the device run Python, and so may others meanwhile: what is here is guarded
 *            by a lock, too. Whoever ends a saved tensor has none, and may come in anywhere.
 * Closing    The cache stays open while a call here is under way, but may be about to close: then
 *            the call's copies have ended before it returns.
 */
#include "hooks.h"

#define DRAIN_MAX   64
#define ENDED_FIRST 64
#define WORD_BYTES  8

static int lock(struct on_device *on)
{
	return ignore(PyObject_CallMethodObjArgs(on->lock, names.acquire, NULL));
}

/* An exception that there is stays. */
static void unlock(struct on_device *on)
{
	PyObject *type, *value, *traceback;

	PyErr_Fetch(&type, &value, &traceback);
	if (ignore(PyObject_CallMethodObjArgs(on->lock, names.release, NULL)))
		PyErr_WriteUnraisable(on->lock);
	PyErr_Restore(type, value, traceback);
}

/* It stays open until cache_end(). NULL with an exception: it is closed. */
static struct spw_cache *cache_begin(struct on_device *on)
{
	struct spw_cache *cache = leases_cache(on->leases, on->cache);

	if (cache)
		atomic_fetch_add(&on->leases->users, 1);
	return cache;
}

static void cache_end(struct on_device *on)
{
	leases_user_ended(on->leases);
}

static bool is_closing(const struct on_device *on)
{
	return !atomic_load(&on->leases->open);
}

/* ---- Users ---- */

/* Borrowed. NULL, perhaps with an exception. */
static struct users *users_find(struct on_device *on, uint64_t number)
{
	PyObject *key = PyLong_FromUnsignedLongLong(number);
	PyObject *found = key ? PyDict_GetItemWithError(on->users, key) : NULL;

	Py_XDECREF(key);
	return (struct users *)found;
}

/* A new reference. Of a saved tensor, which is one of them. */
static struct users *users_of(struct on_device *on, const struct saved *saved)
{
	struct users *users = users_find(on, saved->id);

	if (!users && !PyErr_Occurred())
		PyErr_SetString(PyExc_SystemError, "a tensor is saved that nobody uses");
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
			Py_DECREF((PyObject *)users); /* which the dictionary holds */
		else
			Py_CLEAR(users);
	}
	Py_XDECREF(key);
	return users;
}

/* So that its end can be noted, wherever it comes. */
static int ended_grow(struct on_device *on)
{
	uint32_t max = on->ended_max ? 2 * on->ended_max : ENDED_FIRST;
	uint64_t *ended;

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

static int user_note(struct on_device *on, struct saved *saved, uint64_t number, PyObject *stream)
{
	struct users *users = ended_grow(on) ? NULL : users_find(on, number);

	if (!users && !PyErr_Occurred())
		users = users_add(on, number, saved->device, stream);
	if (!users)
		return -1;
	saved->id = number;
	on->alive++;
	users->count++;
	users->unused++;
	return 0;
}

void on_device_end(struct saved *saved)
{
	struct on_device *on = saved->on;

	if (saved->id != 0)
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
	Py_INCREF((PyObject *)users);
	users->count--;
	if (users->unused > users->count)
		users->unused = users->count;
	if (users->count <= 1 && users->unused == 0 && users->copy) {
		unused = users->copy; /* holds the memory, if nobody has used it */
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

/* ---- What has ended ---- */

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

/* With the cache's handle. */
static int call_times(struct on_device *on, struct spw_cache *cache, PyObject *name)
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

	on->is_due = false; /* one that is noted meanwhile is for the next time */
	while (count == DRAIN_MAX) {
		count = library.drain_device(cache, tokens, DRAIN_MAX);
		for (int i = 0; i < count; i++) {
			struct owner *owner = owner_of(&on->owners, tokens[i]);

			if (owner)
				owner_end(&on->owners, owner);
		}
	}
}

/* What a lease has to the device; that is returned when it is there. */
static int bring(struct on_device *on, struct users *users, PyObject *stream,
		 struct spw_taken *taken, uint64_t number)
{
	struct copy *copy =
		port_copy_in(on->port, users->device, stream, taken, number, users->shape);

	if (!copy)
		return -1;
	taken->lease = 0;
	set_ref(&users->base, new_ref(copy->held));
	Py_XDECREF((PyObject *)users->copy);
	users->copy = copy;
	return 0;
}

static int bring_ahead(struct on_device *on, struct spw_cache *cache)
{
	struct spw_taken taken;
	spw_tensor tensor;
	int rc = 0;

	while (rc == 0 && library.ahead(cache, &tensor, &taken) == 1) {
		struct users *users = users_find(on, tensor.value);

		Py_XINCREF((PyObject *)users);
		if (users)
			rc = bring(on, users, users->stream, &taken, tensor.value);
		else if (PyErr_Occurred())
			rc = -1;
		Py_XDECREF((PyObject *)users);
		if (taken.lease)
			library.give_back(cache, taken.lease);
	}
	return rc;
}

/* The cache hears what has ended, and memory is let go that it needs no longer. */
static int tell(struct on_device *on, struct spw_cache *cache, bool ahead)
{
	int news;

	if (tell_copies(on, cache, true) || tell_copies(on, cache, false))
		return -1;
	news = to_bool(PyObject_GetAttr(on->port->times, names.news));
	if (news < 0 || (news && call_times(on, cache, names.tell)))
		return -1;
	while (on->ended_count > 0) {
		on->ended_count--;
		on->alive--;
		on->is_due = true;
		if (user_end(on, cache, on->ended[on->ended_count]))
			return -1;
	}
	drain(on, cache);
	return ahead ? bring_ahead(on, cache) : 0;
}

/* With the lock. */
static int go_on(struct on_device *on)
{
	int rc = is_closing(on) ? 1 : port_captures(on->port);
	struct spw_cache *cache;

	if (rc || is_closing(on))
		return rc < 0 ? -1 : 0;
	cache = cache_begin(on);
	rc = cache ? tell(on, cache, false) : -1;
	if (rc == 0)
		rc = call_times(on, cache, names.come);
	if (cache)
		cache_end(on);
	return rc;
}

static int finish_if_closing(struct on_device *on)
{
	return is_closing(on) ? port_finish(on->port) : 0;
}

/* ---- Saving ---- */

/* A tensor that is offered. */
struct offering {
	struct saved *saved;
	struct spw_offer offer;
	struct spw_copy copy;
	PyObject *held;
	PyObject *stream, *produced; /* that computed it, and the event after that */
};

/* A copy that cannot begin gives its staging memory back: the tensor stays where it is. */
static int not_copied(struct on_device *on, struct spw_cache *cache, uint64_t number)
{
	PyObject *type, *value, *traceback, *result;

	if (!port_is_copying_out(on->port, number)) {
		(void)library.copied(cache, (spw_tensor){number}, -EIO);
		on->is_due = true;
	}
	if (!PyErr_ExceptionMatches(PyExc_RuntimeError))
		return -1;
	PyErr_Fetch(&type, &value, &traceback);
	PyErr_NormalizeException(&type, &value, &traceback);
	result = PyObject_CallMethodObjArgs((PyObject *)on, names.not_copied, value, NULL);
	Py_XDECREF(type);
	Py_XDECREF(value);
	Py_XDECREF(traceback);
	return ignore(result);
}

/* Memory whose copies a stream waits for from now on need not be held. */
static int order(struct on_device *on, struct spw_cache *cache, const struct offering *offering)
{
	spw_tensor next = offering->copy.order;
	PyObject *since = new_ref(offering->produced);

	while (since && next.value) {
		if (port_order(on->port, next.value, since)) {
			Py_DECREF(since);
			return -1;
		}
		on->is_due = true;
		if (library.ordered(cache, next, &next) < 0)
			break;
		if (next.value)
			set_ref(&since,
				PyObject_CallMethodObjArgs(on->port->times, names.mark_event,
							   offering->stream, NULL));
	}
	Py_XDECREF(since);
	return since ? 0 : -1;
}

/* What the cache has said last. */
static int copy_out(struct on_device *on, struct spw_cache *cache, const struct offering *offering)
{
	struct saved *saved = offering->saved;
	struct users *users = users_of(on, saved);
	struct leaving leaving = {
		.tensor = offering->held,
		.stream = offering->stream,
		.after = offering->produced,
		.part = offering->copy,
		.number = saved->id,
	};

	if (!users)
		return -1;
	if (leaving.part.offset_bytes == saved->offset_bytes &&
	    leaving.part.len_bytes == saved->len_bytes)
		leaving.shape = saved->shape;
	users->begin = leaving.part.offset_bytes;
	set_ref(&users->shape, leaving.shape ? new_ref(leaving.shape) : NULL);
	Py_DECREF((PyObject *)users);
	if (port_copy_out(on->port, saved->device, &leaving))
		return not_copied(on, cache, saved->id);
	if (on->notifies &&
	    ignore(PyObject_CallMethodObjArgs((PyObject *)on, names.notify, saved->device->device,
					      saved->device->out.last->event, NULL)))
		return -1;
	return order(on, cache, offering);
}

/*
 * Its memory goes, and its sums stay. Without memory for these it is kept.
 * Return: what became of the offer; -1
 */
static int give_up(struct on_device *on, struct spw_cache *cache, const struct offering *offering,
		   const struct seen *seen)
{
	struct users *users = users_of(on, offering->saved);
	PyObject *begin = PyLong_FromUnsignedLongLong(offering->copy.offset_bytes),
		 *length = PyLong_FromUnsignedLongLong(offering->copy.len_bytes);
	bool is_kept;

	if (users && !users->given && begin && length)
		users->given = PyObject_CallMethodObjArgs((PyObject *)on, names.sums_of,
							  offering->held, begin, length, NULL);
	Py_XDECREF(begin);
	Py_XDECREF(length);
	is_kept = users && users->given == Py_None;
	if (is_kept)
		Py_CLEAR(users->given);
	Py_XDECREF((PyObject *)users);
	if (is_kept) {
		(void)library.restore(cache, (spw_tensor){offering->saved->id}, &offering->offer);
		return SPW_OFFER_KEEP;
	}
	owner_end(&on->owners, owner_of(&on->owners, offering->offer.owner));
	if (PyErr_Occurred() || (!seen->is_input && saved_give_up(offering->saved, seen)))
		return -1;
	return SPW_OFFER_AGAIN;
}

/* Before the call: it is held, with that content, from when the cache has it. Return: 0; -1 */
static int offering_own(struct on_device *on, struct offering *offering, const struct seen *seen,
			struct record *record, struct version *version)
{
	const struct saved *saved = offering->saved;
	struct owner *owner;

	offering->held = seen_plain(seen, saved->conj, saved->neg);
	offering->stream = offering->held ? port_stream(on->port, saved->device) : NULL;
	if (offering->stream)
		offering->produced = PyObject_CallMethodObjArgs(on->port->table, names.mark_event,
								offering->stream, NULL);
	if (!offering->produced)
		return -1;
	offering->offer.owner = owner_add(&on->owners, offering->held, version, record, 0);
	owner = owner_of(&on->owners, offering->offer.owner);
	if (!owner)
		return -1;
	owner->is_held = true;
	owner->device = saved->device;
	owner->stream = new_ref(offering->stream);
	owner->produced = new_ref(offering->produced);
	return 0;
}

/* Modifications are seen from now on, for what may leave the device. */
static void offering_watch(struct offering *offering, bool is_held)
{
	struct version *version = offering->saved->version;

	if (version->counter)
		return;
	version_watch(version, offering->held);
	if (!is_held)
		version_part(version, offering->held, true, offering->saved->device->nothing);
}

static enum spw_cache_hint hint_there(const struct session *session, const struct seen *seen,
				      const struct spw_offer *offer)
{
	enum spw_cache_hint hint = hint_of(session, seen);

	/* Whose words do not lie where a device can read them, that cannot be summed. */
	if ((hint == SPW_HINT_AGAIN || hint == SPW_HINT_GIVE_UP) &&
	    (uintptr_t)offer->storage_bytes % WORD_BYTES != 0)
		return SPW_HINT_NONE;
	return hint;
}

/* With the lock. Return: what became of the offer; a negative errno, or -1 with an exception */
static int offer_make(struct on_device *on, struct spw_cache *cache, struct offering *offering,
		      const struct seen *seen, struct record *record)
{
	struct saved *saved = offering->saved;
	spw_tensor id = {0};
	bool is_held;
	int result;

	if (tell(on, cache, false) || offering_own(on, offering, seen, record, saved->version))
		return -1;
	result = library.offer_device(cache, &offering->offer, saved->device->number,
				      hint_there(saved->session, seen, &offering->offer), &id,
				      &offering->copy);
	is_held = result >= 0 && result != SPW_OFFER_DEDUP && result != SPW_OFFER_COPY_AGAIN;
	if (is_held)
		saved->token = offering->offer.owner;
	else
		owner_end(&on->owners, owner_of(&on->owners, offering->offer.owner));
	if (result < 0)
		return result;
	if (user_note(on, saved, id.value, offering->stream)) {
		(void)library.release(cache, id);
		return -1;
	}
	if (result == SPW_OFFER_AGAIN)
		return give_up(on, cache, offering, seen);
	if (result != SPW_OFFER_KEEP)
		offering_watch(offering, is_held);
	if ((result == SPW_OFFER_COPY || result == SPW_OFFER_COPY_AGAIN) &&
	    copy_out(on, cache, offering))
		return -1;
	return result;
}

/*
 * The host is ahead of the device: its lead is what waiting takes.
 * Return: 1 there is something to wait for; 0; -1
 */
static int wait_for_staging(struct on_device *on, struct spw_cache *cache)
{
	PyObject *oldest, *done;
	int waited;

	Py_BEGIN_ALLOW_THREADS;
	waited = library.wait_write(cache);
	Py_END_ALLOW_THREADS;
	if (waited)
		return 1;
	if (lock(on))
		return -1;
	oldest = port_oldest_out(on->port);
	unlock(on);
	if (!oldest) /* an interrupt came between a copy's end and its being told */
		return 0;
	done = PyObject_CallMethodObjArgs(on->port->table, names.finish_event, oldest, NULL);
	Py_DECREF(oldest);
	if (!done && PyErr_ExceptionMatches(PyExc_RuntimeError)) {
		PyErr_Clear(); /* port_ended() tells of it */
		return 1;
	}
	return ignore(done) ? -1 : 1;
}

/* Until there is staging memory, or the tensor is kept. Return: 0; -1 */
static int offer_again(struct on_device *on, struct spw_cache *cache, struct offering *offering)
{
	int result = SPW_OFFER_WAIT, rc = 1;

	while (rc > 0 && result == SPW_OFFER_WAIT) {
		rc = wait_for_staging(on, cache);
		if (rc <= 0 || lock(on))
			return rc == 0 ? 0 : -1;
		if (go_on(on))
			rc = -1;
		if (rc > 0)
			result = library.copy_retry(cache, (spw_tensor){offering->saved->id},
						    &offering->copy);
		if (rc > 0 && result == SPW_OFFER_COPY && copy_out(on, cache, offering))
			rc = -1;
		if (rc > 0 && finish_if_closing(on))
			rc = -1;
		unlock(on);
	}
	return rc < 0 ? -1 : 0;
}

/* Return: 0; 1 the caller has to keep it; -1 */
static int offer(struct on_device *on, struct offering *offering, const struct seen *seen,
		 struct record *record)
{
	struct spw_cache *cache = cache_begin(on);
	int result;

	if (!cache)
		return -1;
	if (lock(on)) {
		cache_end(on);
		return -1;
	}
	result = offer_make(on, cache, offering, seen, record);
	if (!PyErr_Occurred())
		(void)finish_if_closing(on);
	unlock(on);
	if (result == SPW_OFFER_WAIT && !PyErr_Occurred())
		(void)offer_again(on, cache, offering);
	cache_end(on);
	if (PyErr_Occurred())
		return -1;
	/* What a scope is computed again from is needed before any other is. */
	return result < 0 || (seen->is_input && result == SPW_OFFER_AGAIN);
}

/* Nothing but its elements is in its range. Return: (type, size, stride); None; NULL */
static PyObject *shape_of(const struct saved *saved, const struct seen *seen)
{
	Py_ssize_t dims = saved_dims(saved);
	int64_t expected = 1;

	for (Py_ssize_t i = dims; i-- > 0;) {
		if (saved->sizes[i] != 1 && saved->sizes[dims + i] != expected)
			return new_ref(Py_None);
		expected *= saved->sizes[i];
	}
	return PyTuple_Pack(3, saved->dtype->dtype, seen->shape, seen->stride);
}

struct on_device *on_device_now(const struct session *session)
{
	return PyObject_TypeCheck(session->device, on_device_type)
		       ? (struct on_device *)session->device
		       : NULL;
}

/* Return: 0; 1 the caller has to keep it; -1 */
static int saved_place(struct saved *saved, struct on_device *on, const struct seen *seen,
		       struct spw_offer *filled)
{
	int rc;

	saved->on = new_ref(on);
	saved->device = seen->device;
	saved->scope = on->scope;
	rc = offer_fill(filled, saved, seen);
	if (rc == 0) {
		saved->shape = shape_of(saved, seen);
		rc = saved->shape ? 0 : -1;
		if (saved->shape == Py_None)
			Py_CLEAR(saved->shape);
	}
	return rc;
}

PyObject *on_device_save(struct session *session, struct seen *seen)
{
	struct on_device *on = on_device_now(session);
	struct offering offering = {0};
	struct record *record = NULL;
	int rc = port_captures(on->port);

	if (rc == 0)
		rc = atomic_load(&on->leases->cache) ? passes_by(session, seen) : 1;
	if (rc == 0) {
		record = session_record(session, seen);
		offering.offer.storage_key = record ? record->key : 0;
		offering.saved = record ? saved_of(session, seen, record) : NULL;
		if (offering.saved)
			rc = saved_place(offering.saved, on, seen, &offering.offer);
		else
			rc = passes_by_after_all() ? 1 : -1;
	}
	if (rc == 0)
		rc = offer(on, &offering, seen, record);
	Py_XDECREF((PyObject *)record);
	Py_XDECREF(offering.held);
	Py_XDECREF(offering.stream);
	Py_XDECREF(offering.produced);
	if (rc == 0)
		return (PyObject *)offering.saved;
	Py_XDECREF((PyObject *)offering.saved);
	return rc < 0 ? NULL : new_ref(Py_None);
}

/* ---- Using ---- */

/* What was read back, as it is handed out: with the counter of what was saved. Consumes @base. */
static PyObject *lend(const struct saved *saved, PyObject *base)
{
	PyObject *counter = saved->version->counter, *tensor;

	if (!base || !counter || torch.counted == Py_True)
		return base;
	tensor = tensor_counted_by(counter, base);
	Py_DECREF(base);
	return tensor;
}

static PyObject *used(struct on_device *on, const struct saved *saved, struct users *users,
		      PyObject *stream, PyObject *since)
{
	struct copy *copy = new_ref(users->copy);
	PyObject *base = new_ref(users->base), *tensor = NULL;
	bool is_all = users->count <= 1 && saved->shape && copy->shape == saved->shape;

	if (port_use(on->port, copy, base, stream, since))
		goto end;
	copy->taken = true;
	users->unused -= users->unused > 0;
	if (users->count <= 1) { /* else others get it, too */
		Py_CLEAR(users->base);
		Py_DECREF((PyObject *)users->copy);
		users->copy = NULL;
	}
	tensor = lend(saved, new_ref(base));
	if (tensor && !is_all)
		set_ref(&tensor, saved_on(saved, tensor, users->begin));
	else if (tensor && (saved->conj || saved->neg))
		set_ref(&tensor, PyObject_CallFunction(torch.flagged, "Oii", tensor, saved->conj,
						       saved->neg));
end:
	Py_DECREF(base);
	Py_DECREF((PyObject *)copy);
	return tensor;
}

/* The stream is another than that which computed it. */
static int used_elsewhere(struct on_device *on, const struct owner *owner, PyObject *stream)
{
	PyObject *tensor = new_ref(owner->tensor), *produced = new_ref(owner->produced);
	int rc = ignore(
		PyObject_CallMethodObjArgs(on->port->table, names.wait, stream, produced, NULL));

	if (rc == 0)
		rc = ignore(PyObject_CallMethodObjArgs(on->port->table, names.keep, tensor, stream,
						       NULL));
	Py_DECREF(tensor);
	Py_DECREF(produced);
	return rc;
}

/* NULL without an exception: another thread has drained the token since. */
static PyObject *tensor_of_owner(struct on_device *on, struct saved *saved, struct users *users,
				 PyObject *stream, uint64_t token)
{
	struct owner *owner = owner_of(&on->owners, token);
	PyObject *tensor;
	int64_t number;
	int is_same;

	if (!owner || version_number(owner->tensor, &number))
		return NULL;
	if (number != owner->version->number)
		saved->version->modified = true;
	owner->is_shown = true;
	tensor = new_ref(owner->tensor);
	is_same = PyObject_RichCompareBool(stream, owner->stream, Py_EQ);
	if (is_same < 0 || (is_same == 0 && used_elsewhere(on, owner, stream))) {
		Py_DECREF(tensor);
		return NULL;
	}
	users->unused -= users->unused > 0;
	if (token != saved->token || saved->conj || saved->neg)
		set_ref(&tensor, saved_on(saved, tensor, 0));
	return tensor;
}

/* With the lock. NULL without an exception: once more. */
static PyObject *tensor_of(struct on_device *on, struct saved *saved, struct users *users,
			   PyObject *stream, PyObject *since, struct spw_taken *taken)
{
	PyObject *tensor;

	if (taken->owner)
		return tensor_of_owner(on, saved, users, stream, taken->owner);
	if (taken->bytes && bring(on, users, stream, taken, saved->id))
		return NULL;
	if (!users->base)
		return NULL; /* its copy ahead could not begin */
	tensor = used(on, saved, users, stream, since);
	if (tensor && finish_if_closing(on))
		Py_CLEAR(tensor);
	return tensor;
}

static void raise_error(int result)
{
	PyObject *error = PyObject_CallFunction(torch.error_of, "i", result);

	if (error)
		PyErr_SetObject((PyObject *)Py_TYPE(error), error);
	Py_XDECREF(error);
}

/* @again: set if it is to be computed again: then it returns NULL without an exception. */
static PyObject *take(struct on_device *on, struct spw_cache *cache, struct saved *saved,
		      struct users *users, PyObject *stream, PyObject *since, bool *again)
{
	PyObject *tensor = NULL;

	while (!tensor && !PyErr_Occurred()) {
		struct spw_taken taken = {0};
		int result;

		Py_BEGIN_ALLOW_THREADS;
		result = library.take(cache, (spw_tensor){saved->id}, saved->offset_bytes,
				      saved->len_bytes, &taken);
		Py_END_ALLOW_THREADS;
		on->is_due = true;
		*again = result == SPW_TAKE_AGAIN;
		if (*again)
			return NULL;
		if (result < 0) {
			raise_error(result);
			return NULL;
		}
		if (lock(on) == 0) {
			tensor = tensor_of(on, saved, users, stream, since, &taken);
			unlock(on);
		}
		if (taken.lease) /* nothing is copied from there */
			library.give_back(cache, taken.lease);
	}
	return tensor;
}

/* The backward pass has come to what another scope has saved. Return: 0; -1 */
static int moves_on(struct on_device *on, struct spw_cache *cache, const struct saved *saved)
{
	PyObject *times = on->port->times, *timed;
	int rc;

	if (saved->scope == on->used_scope)
		return 0;
	rc = to_bool(PyObject_GetAttr(times, names.stands));
	if (rc)
		return rc < 0 ? -1 : 0;
	timed = PyObject_GetAttr(times, names.device);
	rc = timed ? PyObject_RichCompareBool(timed, saved->device->device, Py_EQ) : -1;
	Py_XDECREF(timed);
	if (rc <= 0)
		return rc;
	on->used_scope = saved->scope;
	return call_times(on, cache, names.border);
}

/* With the lock: what comes before the bytes. @since: a mark before anybody waited for them */
static int use_begin(struct on_device *on, struct spw_cache *cache, const struct saved *saved,
		     struct users *users, PyObject **stream, PyObject **since)
{
	if (moves_on(on, cache, saved) || tell(on, cache, true))
		return -1;
	*stream = port_stream(on->port, saved->device);
	if (!*stream)
		return -1;
	if (users->copy && users->copy->ended)
		return 0; /* the host knows that they are there */
	*since = PyObject_CallMethodObjArgs(on->port->times, names.mark_event, *stream, NULL);
	return *since ? 0 : -1;
}

static PyObject *load(struct on_device *on, struct spw_cache *cache, struct saved *saved,
		      struct users *users, bool *again)
{
	PyObject *stream = NULL, *since = NULL, *tensor = NULL;
	int rc;

	if (lock(on))
		return NULL;
	rc = use_begin(on, cache, saved, users, &stream, &since);
	if (rc == 0 && users->base && users->copy && users->copy->taken) {
		tensor = used(on, saved, users, stream, since);
		rc = 1;
	}
	unlock(on);
	if (rc == 0)
		tensor = take(on, cache, saved, users, stream, since, again);
	Py_XDECREF(stream);
	Py_XDECREF(since);
	return tensor;
}

static PyObject *use(struct on_device *on, struct saved *saved, struct users *users)
{
	PyObject *tensor = NULL;
	bool again = true;

	while (again) {
		struct spw_cache *cache = cache_begin(on);

		again = false;
		if (!cache)
			return NULL;
		tensor = load(on, cache, saved, users, &again);
		cache_end(on);
		if (again && saved_again(saved))
			return NULL;
	}
	if (tensor && users->verdict &&
	    ignore(PyObject_CallMethodObjArgs(users->verdict, names.expect, NULL)))
		Py_CLEAR(tensor);
	return tensor;
}

PyObject *on_device_use(struct saved *saved)
{
	struct on_device *on = saved->on;
	struct users *users;
	PyObject *tensor;
	int captures = port_captures(on->port);

	if (captures > 0)
		(void)ignore(PyObject_CallMethodObjArgs((PyObject *)on, names.refuse, NULL));
	if (captures || !leases_cache(on->leases, on->cache))
		return NULL;
	users = users_of(on, saved);
	tensor = users ? use(on, saved, users) : NULL;
	Py_XDECREF((PyObject *)users);
	return tensor;
}

/* ---- Computing again ---- */

/* Its sums go to a verdict. @offer: of the memory that has it now. Return: 0; -1 */
static int restored(struct on_device *on, struct saved *saved, struct users *users,
		    struct offering *offering, const struct seen *seen, PyObject *frame)
{
	struct record *record = session_record(saved->session, seen);
	struct version *version =
		record ? record_version(record, seen->tensor, saved->session->steps) : NULL;
	struct spw_cache *cache = version ? cache_begin(on) : NULL;
	int result = cache ? offering_own(on, offering, seen, record, version) : -1;

	/* Before the call, which says that it is there. */
	if (result == 0 && !users->verdict)
		users->verdict = PyObject_CallMethodObjArgs((PyObject *)on, names.compare, frame,
							    users->given, offering->held, NULL);
	if (result == 0)
		result = users->verdict
				 ? library.restore(cache, (spw_tensor){saved->id}, &offering->offer)
				 : -1;
	if (result && owner_of(&on->owners, offering->offer.owner))
		owner_end(&on->owners, owner_of(&on->owners, offering->offer.owner));
	if (result < 0 && !PyErr_Occurred())
		raise_error(result);
	if (cache)
		cache_end(on);
	Py_XDECREF((PyObject *)record);
	return result < 0 ? -1 : 0;
}

static int restore(struct on_device *on, struct saved *saved, PyObject *tensor, PyObject *frame)
{
	struct seen seen = {.tensor = tensor};
	struct offering offering = {.saved = saved};
	struct users *users = users_of(on, saved);
	int rc = users ? port_find(on->port, tensor, &seen.device) : -1;

	if (rc == 0 && users->verdict)
		goto end; /* with another tensor on the same memory */
	if (rc == 0 && seen.device != saved->device) {
		PyErr_SetString(PyExc_ValueError, "a tensor has become one of another device");
		rc = -1;
	}
	if (rc == 0)
		rc = saved_is_like(saved, &seen, &offering.offer);
	if (rc == 0)
		rc = restored(on, saved, users, &offering, &seen, frame);
end:
	seen_end(&seen);
	Py_XDECREF(offering.held);
	Py_XDECREF(offering.stream);
	Py_XDECREF(offering.produced);
	Py_XDECREF((PyObject *)users);
	return rc;
}

/* restore(saved tensor, tensor, frame) */
static PyObject *on_device_restore(PyObject *object, PyObject *args)
{
	struct on_device *on = (struct on_device *)object;
	PyObject *saved, *tensor, *frame;
	int rc;

	if (!PyArg_ParseTuple(args, "O!OO", saved_type, &saved, &tensor, &frame) || lock(on))
		return NULL;
	rc = restore(on, (struct saved *)saved, tensor, frame);
	unlock(on);
	if (rc)
		return NULL;
	Py_RETURN_NONE;
}

/* ---- As objects of Python ---- */

static void users_dealloc(PyObject *object)
{
	struct users *users = (struct users *)object;

	Py_XDECREF(users->shape);
	Py_XDECREF(users->stream);
	Py_XDECREF(users->base);
	Py_XDECREF((PyObject *)users->copy);
	Py_XDECREF(users->given);
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
			{Py_tp_doc, "The saved tensors that are one entry of the cache."},
			{Py_tp_dealloc, users_dealloc},
			{Py_tp_members, users_members},
			{0, NULL},
		},
};

/* Of a port and a cache, which has its leases, and a lock. */
static PyObject *on_device_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	PyObject *port, *cache, *lock, *leases;
	struct on_device *on;
	int notifies;

	if (kwargs || !PyArg_ParseTuple(args, "O!OOp", port_type, &port, &cache, &lock, &notifies))
		return NULL;
	leases = PyObject_GetAttrString(cache, "leases");
	if (leases && !PyObject_TypeCheck(leases, leases_type)) {
		PyErr_SetString(PyExc_TypeError, "the cache has no session");
		Py_CLEAR(leases);
	}
	on = leases ? (struct on_device *)PyType_GenericAlloc(type, 0) : NULL;
	if (on) {
		on->leases = ((struct leases_object *)leases)->leases;
		atomic_fetch_add(&on->leases->references, 1);
		on->port = new_ref(port);
		on->cache = new_ref(cache);
		on->lock = new_ref(lock);
		on->notifies = notifies != 0;
		on->users = PyDict_New();
		if (!on->users)
			Py_CLEAR(on);
	}
	Py_XDECREF(leases);
	return (PyObject *)on;
}

static int on_device_traverse(PyObject *object, visitproc visit, void *arg)
{
	struct on_device *on = (struct on_device *)object;

	Py_VISIT(Py_TYPE(object));
	Py_VISIT((PyObject *)on->port);
	Py_VISIT(on->cache);
	Py_VISIT(on->users);
	for (uint32_t place = 0; place < on->owners.max; place++)
		Py_VISIT(on->owners.all[place].tensor);
	return 0;
}

static void on_device_dealloc(PyObject *object)
{
	struct on_device *on = (struct on_device *)object;
	PyTypeObject *type = Py_TYPE(object);

	PyObject_GC_UnTrack(object);
	owners_end(&on->owners);
	PyMem_Free(on->ended);
	Py_XDECREF(on->users);
	Py_DECREF((PyObject *)on->port);
	Py_DECREF(on->cache);
	Py_DECREF(on->lock);
	leases_drop(on->leases);
	PyObject_GC_Del(object);
	Py_DECREF(type);
}

static PyObject *on_device_go_on(PyObject *object, PyObject *unused)
{
	(void)unused;
	if (go_on((struct on_device *)object))
		return NULL;
	Py_RETURN_NONE;
}

static PyObject *on_device_forget(PyObject *object, PyObject *unused)
{
	struct on_device *on = (struct on_device *)object;

	(void)unused;
	owners_end(&on->owners);
	PyDict_Clear(on->users);
	Py_RETURN_NONE;
}

static PyObject *on_device_held(PyObject *object, PyObject *unused)
{
	struct owners *owners = &((struct on_device *)object)->owners;
	PyObject *list = PyList_New(0);

	(void)unused;
	for (uint32_t place = 0; list && place < owners->max; place++)
		if (owners->all[place].token != 0 && PyList_Append(list, owners->all[place].tensor))
			Py_CLEAR(list);
	return list;
}

static PyObject *on_device_known(PyObject *object, PyObject *unused)
{
	struct on_device *on = (struct on_device *)object;

	(void)unused;
	return PyLong_FromUnsignedLong((unsigned long)on->alive + on->owners.held);
}

static PyMethodDef on_device_methods[] = {
	{"_go_on", on_device_go_on, METH_NOARGS, "Go on with what can go on. With the lock."},
	{"restore", on_device_restore, METH_VARARGS,
	 "What was given up has been computed again; whether it is the same a verdict says."},
	{"held", on_device_held, METH_NOARGS, "The memory that the cache may have copied."},
	{"known", on_device_known, METH_NOARGS, "How many saved tensors and tokens are in mind."},
	{"forget", on_device_forget, METH_NOARGS, "The cache is closed."},
	{NULL, NULL, 0, NULL},
};

static PyMemberDef on_device_members[] = {
	{"port", T_OBJECT, offsetof(struct on_device, port), READONLY, NULL},
	{"_lock", T_OBJECT, offsetof(struct on_device, lock), READONLY, NULL},
	{"_users", T_OBJECT, offsetof(struct on_device, users), READONLY, NULL},
	{"_scope", T_ULONGLONG, offsetof(struct on_device, scope), 0, NULL},
	{"_is_due", T_BOOL, offsetof(struct on_device, is_due), 0, NULL},
	{NULL, 0, 0, 0, NULL},
};

PyTypeObject *on_device_type;
PyType_Spec on_device_spec = {
	.name = "spillway._hooks.OnDevice",
	.basicsize = sizeof(struct on_device),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC |
		 Py_TPFLAGS_IMMUTABLETYPE,
	.slots =
		(PyType_Slot[]){
			{Py_tp_doc, "Tensors of devices, as a session sees them."},
			{Py_tp_new, on_device_new},
			{Py_tp_dealloc, on_device_dealloc},
			{Py_tp_traverse, on_device_traverse},
			{Py_tp_methods, on_device_methods},
			{Py_tp_members, on_device_members},
			{0, NULL},
		},
};
