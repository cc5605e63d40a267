/* SPDX-License-Identifier: MIT */
/* hooks/saved.c - tensors on their way from autograd to the cache and back */
#include "hooks.h"

/* ---- A saved tensor that passes by the cache, checked as PyTorch would ---- */

struct kept {
	/* without the graph: an output that holds its own node would never be freed */
	PyObject_HEAD PyObject *tensor;
	int64_t version;
};

static void kept_dealloc(PyObject *object)
{
	Py_XDECREF(((struct kept *)object)->tensor);
	object_free(object);
}

PyObject *kept_unpack(PyObject *object)
{
	struct kept *kept = (struct kept *)object;
	int64_t now;

	if (version_number(kept->tensor, &now))
		return NULL;
	if (now != kept->version) {
		(void)raise_modified(kept->tensor, now, kept->version);
		return NULL;
	}
	return new_ref(kept->tensor);
}

PyTypeObject *kept_type;
PyType_Spec kept_spec = {
	.name = "spillway._hooks.Kept",
	.basicsize = sizeof(struct kept),
	.flags = MADE_HERE,
	.slots =
		(PyType_Slot[]){
			{Py_tp_doc, "A saved tensor that passes by the cache."},
			{Py_tp_dealloc, kept_dealloc},
			{0, NULL},
		},
};

static PyObject *kept_new(const struct seen *seen)
{
	int as_it_is = seen_is_parameter(seen);
	struct kept *kept = as_it_is < 0 ? NULL : PyObject_New(struct kept, kept_type);

	if (!kept)
		return NULL;
	kept->tensor = as_it_is ? new_ref(seen->tensor) : call(torch.detach, seen->tensor);
	if (!kept->tensor || version_number(kept->tensor, &kept->version))
		Py_CLEAR(kept);
	return (PyObject *)kept;
}

/* ---- A saved tensor that the cache knows ---- */

static void saved_borrow(struct saved *saved, PyObject *memory)
{
	struct session *session = saved->session;

	if (!atomic_load(&session->leases->open))
		return; /* closed meanwhile: its memory is to be given back */
	if (!saved->borrowed) {
		saved->next = session->borrowers;
		saved->link = &session->borrowers;
		if (saved->next)
			saved->next->link = &saved->next;
		session->borrowers = saved;
	}
	set_ref(&saved->borrowed, new_ref(memory));
}

static void saved_part(struct saved *saved)
{
	if (!saved->borrowed)
		return;
	*saved->link = saved->next;
	if (saved->next)
		saved->next->link = saved->link;
	Py_CLEAR(saved->borrowed);
}

PyObject *session_part(PyObject *session, PyObject *unused)
{
	(void)unused;
	while (((struct session *)session)->borrowers)
		saved_part(((struct session *)session)->borrowers);
	Py_RETURN_NONE;
}

/* No Python is run here, so that no signal's exception can be lost. */
static void saved_dealloc(PyObject *object)
{
	struct saved *saved = (struct saved *)object;
	struct spw_cache *cache;

	saved_part(saved);
	saved_ungive(saved);
	cache = saved->id ? atomic_load(&saved->session->leases->open) : NULL;
	if (cache)
		(void)library.release(cache, (spw_tensor){saved->id});
	version_drop(saved->version);
	Py_DECREF(saved->session);
	object_free(object);
}

static PyObject *tuple_of(const int64_t values[], Py_ssize_t count)
{
	PyObject *tuple = PyTuple_New(count);

	for (Py_ssize_t i = 0; tuple && i < count; i++) {
		PyObject *value = PyLong_FromLongLong(values[i]);

		if (!value || PyTuple_SetItem(tuple, i, value))
			Py_CLEAR(tuple);
	}
	return tuple;
}

/* The part of the storage with its elements. Return: false: it has none, or they do not fit */
static bool saved_measure(struct saved *saved, int64_t offset, uint64_t storage_len_bytes)
{
	uint64_t last = 0, itemsize = saved->dtype->itemsize;
	Py_ssize_t dims = saved_dims(saved);

	for (Py_ssize_t i = 0; i < dims; i++) {
		uint64_t reach;

		if (saved->sizes[i] <= 0 || saved->sizes[dims + i] < 0)
			return false;
		if (__builtin_mul_overflow((uint64_t)saved->sizes[i] - 1,
					   (uint64_t)saved->sizes[dims + i], &reach) ||
		    __builtin_add_overflow(last, reach, &last))
			return false;
	}
	if (offset < 0 || last >= storage_len_bytes / itemsize ||
	    (uint64_t)offset > storage_len_bytes / itemsize)
		return false;
	saved->offset_bytes = (uint64_t)offset * itemsize;
	saved->len_bytes = (last + 1) * itemsize;
	return saved->offset_bytes + saved->len_bytes <= storage_len_bytes;
}

/* ---- Saving ---- */

/* PyTorch says so of a nested tensor, which has no sizes, or of a sparse one, without storage. */
static bool passes_by_after_all(void)
{
	if (!PyErr_ExceptionMatches(PyExc_RuntimeError))
		return false;
	PyErr_Clear();
	return true;
}

/* Whether what others are views of is a part of its storage only. Return: 1; 0; -1 */
static int is_part(PyObject *base, uint64_t storage_len_bytes)
{
	const struct dtype *dtype = dtype_of(base);
	uint64_t elements;

	if (!dtype)
		return PyErr_Occurred() ? -1 : 1;
	if (to_uint64(call(torch.numel, base), &elements))
		return -1;
	return elements < storage_len_bytes / dtype->itemsize;
}

/*
 * What must stay the tensor that it is: a part of a storage that is no view, as the gates of
 * nn.LSTM are, and views of one, for the rest changes in place and no version counter that is known
 * here shows it; and what is no view and has no dimensions, which may be a number of Python, whose
 * type yields to that of others. Return: 1; 0; -1 with an exception.
 */
static int is_kept_as_it_is(const struct saved *saved, const struct seen *seen,
			    uint64_t storage_len_bytes)
{
	if (saved->len_bytes == storage_len_bytes && saved_dims(saved) > 0)
		return 0;
	if (seen->base == Py_None)
		return 1;
	return saved->len_bytes < storage_len_bytes ? is_part(seen->base, storage_len_bytes) : 0;
}

/* What the cache asks for. Return: 0; 1 the caller has to keep it; -1 with an exception */
static int offer_fill(struct spw_offer *offer, struct saved *saved, struct seen *seen)
{
	int64_t offset;
	int kept;

	if (seen_place(seen, &offset, offer))
		return -1;
	if (!saved_measure(saved, offset, offer->storage_len_bytes))
		return 1;
	kept = is_kept_as_it_is(saved, seen, offer->storage_len_bytes);
	if (kept)
		return kept;
	offer->storage_version = saved->version->epoch;
	offer->offset_bytes = saved->offset_bytes;
	offer->len_bytes = saved->len_bytes;
	return seen_flags(seen, &saved->conj, &saved->neg);
}

/*
 * The cache reads the memory: what holds it until then must not be the tensor, which holds the
 * graph. Another thread may run while this one detaches, and the cache be done.
 */
static int offer_hold(struct session *session, struct saved *saved, const struct seen *seen,
		      bool is_written)
{
	PyObject *held = seen_plain(seen, saved->conj, saved->neg);

	if (!held)
		return -1;
	if (is_written)
		version_watch(saved->version, held);
	if (!owner_hold(session, saved->token, held))
		version_part(saved->version, held, false);
	Py_DECREF(held);
	return 0;
}

static enum spw_cache_hint hint_of(const struct session *session)
{
	if (session->excluding > 0)
		return SPW_HINT_PIN;
	if (session->is_input)
		return SPW_HINT_INPUT;
	if (!frame_now(session))
		return SPW_HINT_NONE;
	return session->gives_up ? SPW_HINT_GIVE_UP : SPW_HINT_AGAIN;
}

/*
 * The owner is there before the call, for its token goes with it; what the cache has already needs
 * none. Return: 0; 1 the cache does not take it; -1 with an exception.
 */
static int offer_make(struct session *session, struct saved *saved, struct spw_offer *offer,
		      const struct seen *seen, struct record *record)
{
	struct spw_cache *cache;
	uint64_t address;
	spw_tensor id;
	int result;

	if (!atomic_load(&session->leases->cache))
		return 1; /* a parent process has it */
	cache = session_cache(session);
	if (!cache)
		return -1;
	/* Making objects collects garbage, which may do anything, or let another thread run. */
	if (to_uint64(call(torch.address, seen->tensor), &address))
		return -1;
	if (address != (uint64_t)(uintptr_t)offer->storage_bytes + saved->offset_bytes)
		return 1; /* it was given other memory meanwhile */
	offer->owner = owner_add(session, seen->tensor, saved->version, record, address);
	if (offer->owner == 0)
		return -1;
	result = library.offer_hint(cache, offer, hint_of(session), &id);
	saved->id = id.value;
	if (result == SPW_OFFER_AGAIN) {
		/* What a scope is computed again from is needed before any other is. */
		int rc = session->is_input ? 1 : saved_give_up(saved, seen);

		owner_end(session, owner_of(session, offer->owner));
		return rc;
	}
	if (result < 0 || result == SPW_OFFER_DEDUP) {
		owner_end(session, owner_of(session, offer->owner));
		return result < 0;
	}
	saved->token = offer->owner;
	return offer_hold(session, saved, seen, result == SPW_OFFER_SPILL);
}

/* Its content and its shape; not known to the cache yet. */
static struct saved *saved_of(struct session *session, struct seen *seen, struct record *record)
{
	struct version *version = record_version(record, seen->tensor, session->steps);
	Py_ssize_t dims = version ? seen_dims(seen) : -1;
	struct saved *saved = dims < 0 ? NULL : PyObject_NewVar(struct saved, saved_type, 2 * dims);

	if (!saved)
		return NULL;
	saved->session = new_ref(session);
	saved->version = version_hold(version);
	saved->dtype = seen->dtype;
	saved->id = saved->token = 0;
	saved->borrowed = NULL;
	saved->frame = NULL;
	if (seen_shape(seen, saved->sizes))
		Py_CLEAR(saved);
	return saved;
}

/* Return: a saved tensor; None if the caller has to keep it; NULL with an exception. */
static PyObject *session_offer(struct session *session, struct seen *seen)
{
	struct record *record = session_record(session, seen);
	struct saved *saved = record ? saved_of(session, seen, record) : NULL;
	struct spw_offer offer = {.storage_key = record ? record->key : 0};
	int rc = -1;

	if (saved)
		rc = offer_fill(&offer, saved, seen);
	else if (passes_by_after_all())
		rc = 1;
	if (rc == 0) {
		session_drain_at_times(session, saved->len_bytes);
		rc = offer_make(session, saved, &offer, seen, record);
	}
	Py_XDECREF((PyObject *)record);
	if (rc == 0) {
		session_hold_back(session);
		return (PyObject *)saved;
	}
	Py_XDECREF((PyObject *)saved);
	return rc < 0 ? NULL : new_ref(Py_None);
}

/*
 * What is excluded; and a view of a parameter, or of another subclass, whose memory is not what was
 * known when the model was entered: FSDP takes it away and fills it again behind everybody's back.
 * Return: 1; 0; -1 with an exception.
 */
static int is_excluded(const struct session *session, struct seen *seen)
{
	int rc = PySet_Contains(session->excluded, seen->identity);

	if (rc)
		return rc;
	if (seen_base(seen))
		return -1;
	return seen->base != Py_None && (PyObject *)Py_TYPE(seen->base) != torch.tensor_type;
}

/*
 * A parameter whose bytes may be on drives, or a part of one. Return: what stands for it; None: it
 * is no such tensor; NULL with an exception.
 */
static PyObject *save_part(struct session *session, struct seen *seen)
{
	PyObject *place;

	if (session->places == Py_None)
		return new_ref(Py_None);
	if (seen_storage(seen))
		return passes_by_after_all() ? new_ref(Py_None) : NULL;
	place = PyDict_GetItemWithError(session->places, seen->identity);
	if (!place)
		return PyErr_Occurred() ? NULL : new_ref(Py_None);
	return PyObject_CallMethodObjArgs((PyObject *)session, names.save_part, place, seen->tensor,
					  NULL);
}

static PyObject *save(struct session *session, struct seen *seen)
{
	PyObject *packed = save_part(session, seen);
	int passes;

	if (packed != Py_None)
		return packed;
	Py_CLEAR(packed);
	passes = seen_passes_by(seen);
	if (passes == 0) {
		passes = !seen->identity && seen_storage(seen) ? -1 : is_excluded(session, seen);
		if (passes < 0 && !seen->identity && passes_by_after_all())
			passes = 1;
	}
	if (passes == 0)
		packed = session_offer(session, seen);
	if (packed == Py_None) {
		Py_CLEAR(packed);
		passes = 1;
	}
	if (passes > 0 && seen->is_elsewhere && session->device == Py_None)
		return PyObject_CallMethodObjArgs((PyObject *)session, names.meet, seen->tensor,
						  NULL);
	return passes > 0 ? kept_new(seen) : packed;
}

PyObject *session_save(PyObject *object, PyObject *tensor)
{
	struct seen seen = {.tensor = tensor};
	PyObject *packed = save((struct session *)object, &seen);

	seen_end(&seen);
	return packed;
}

PyObject *session_keep(PyObject *object, PyObject *tensor)
{
	const struct seen seen = {.tensor = tensor};

	(void)object;
	return kept_new(&seen);
}

/* Of what a scope is computed again from. */
PyObject *session_input(PyObject *object, PyObject *tensor)
{
	struct session *session = (struct session *)object;
	PyObject *packed;

	session->is_input = true;
	packed = session_save(object, tensor);
	session->is_input = false;
	return packed;
}

/* With a recording, with tensors on a device, or in a trial, there is more to do. */
PyObject *session_pack(PyObject *object, PyObject *tensor)
{
	struct session *session = (struct session *)object;
	struct frame *frame = frame_now(session);

	if (frame)
		frame->saves++;
	if (session->device == Py_None && session->tracer == Py_None && session->trial == Py_None)
		return session_save(object, tensor);
	return PyObject_CallMethodObjArgs(object, names.pack_watched, tensor, NULL);
}

/* ---- Using ---- */

/* This tensor on the memory of another one, that of the whole storage. */
static PyObject *saved_on(struct saved *saved, PyObject *held)
{
	Py_ssize_t dims = saved_dims(saved);
	PyObject *size = tuple_of(saved->sizes, dims),
		 *stride = tuple_of(saved->sizes + dims, dims);
	PyObject *dtype = get(&torch.dtype, held), *tensor = NULL;

	if (!size || !stride || !dtype)
		goto end;
	if (dtype == saved->dtype->dtype && !saved->conj && !saved->neg)
		tensor = PyObject_CallFunction(
			torch.as_strided, "OOOL", held, size, stride,
			(long long)(saved->offset_bytes / saved->dtype->itemsize));
	else
		tensor = PyObject_CallFunction(torch.on, "OOOOKii", held, saved->dtype->dtype, size,
					       stride, (unsigned long long)saved->offset_bytes,
					       saved->conj, saved->neg);
end:
	Py_XDECREF(size);
	Py_XDECREF(stride);
	Py_XDECREF(dtype);
	return tensor;
}

/* NULL without an exception: another thread drained the token since, or detaches the tensor. */
static PyObject *tensor_of_owner(struct saved *saved, uint64_t token)
{
	struct owner *owner = owner_of(saved->session, token);
	PyObject *tensor;
	int64_t number;

	if (!owner || !owner->is_held)
		return NULL;
	if (version_number(owner->tensor, &number))
		return NULL;
	if (number != owner->version->number)
		saved->version->modified = true;
	owner->is_shown = true;
	tensor = new_ref(owner->tensor);
	if (token != saved->token || saved->conj || saved->neg)
		set_ref(&tensor, saved_on(saved, tensor));
	return tensor;
}

/* The use that take began ends with the last tensor on the memory. */
static PyObject *tensor_of_lease(struct saved *saved, const struct spw_taken *taken)
{
	struct shape shape = {
		.dtype = saved->dtype, .sizes = saved->sizes, .dims = saved_dims(saved)};
	/* Memory that was read back is handed out with the version counter of what was saved. */
	PyObject *counter = torch.counted == Py_True ? NULL : saved->version->counter;
	PyObject *tensor = lease_tensor(saved->session->leases, taken, &shape);

	if (tensor && counter)
		set_ref(&tensor, tensor_counted_by(counter, tensor));
	if (tensor && (saved->conj || saved->neg))
		set_ref(&tensor, PyObject_CallFunction(torch.flagged, "Oii", tensor, saved->conj,
						       saved->neg));
	return tensor;
}

static void take_failed(struct saved *saved, int result)
{
	struct session *session = saved->session;
	PyObject *error = PyObject_CallFunction(torch.error_of, "i", result);

	leases_user_ended(session->leases);
	if (!error)
		return;
	/*
	 * Memory that was modified, or was the tensor's no longer, during its write fails its
	 * checksum: that is the fault, not the drive.
	 */
	session_drain(session);
	if (!saved->version->moved && version_check(saved->version, NULL) == 0)
		PyErr_SetObject((PyObject *)Py_TYPE(error), error);
	Py_DECREF(error);
}

/* NULL without an exception: once more. */
static PyObject *saved_take(struct saved *saved)
{
	struct leases *leases = saved->session->leases;
	struct spw_cache *cache = session_cache(saved->session);
	struct spw_taken taken;
	int result;

	if (!cache)
		return NULL;
	atomic_fetch_add(&leases->users, 1);
	Py_BEGIN_ALLOW_THREADS;
	result = library.take(cache, (spw_tensor){saved->id}, saved->offset_bytes, saved->len_bytes,
			      &taken);
	Py_END_ALLOW_THREADS;
	if (result < 0) {
		take_failed(saved, result);
		return NULL;
	}
	if (result == SPW_TAKE_AGAIN) {
		leases_user_ended(leases);
		(void)saved_again(saved);
		return NULL;
	}
	if (taken.bytes)
		return tensor_of_lease(saved, &taken);
	leases_user_ended(leases);
	return tensor_of_owner(saved, taken.owner);
}

static PyObject *use(struct saved *saved)
{
	PyObject *tensor = NULL;

	saved->session->unpacked = true;
	session_drain_at_times(saved->session, saved->len_bytes);
	while (!tensor && !saved->version->moved) {
		tensor = saved_take(saved);
		if (!tensor && PyErr_Occurred())
			return NULL;
	}
	if (saved->version->moved)
		set_ref(&tensor, saved_on(saved, saved->version->moved));
	if (!tensor || version_check(saved->version, tensor))
		Py_CLEAR(tensor);
	else
		saved_borrow(saved, tensor);
	return tensor;
}

PyObject *session_use(PyObject *object, PyObject *saved)
{
	(void)object;
	if (!PyObject_TypeCheck(saved, saved_type)) {
		PyErr_SetString(PyExc_TypeError, "a saved tensor is needed");
		return NULL;
	}
	return use((struct saved *)saved);
}

PyObject *saved_unpack(PyObject *object)
{
	struct saved *saved = (struct saved *)object;
	PyObject *tensor;

	Py_INCREF(object);
	if (saved->session->tracer == Py_None)
		tensor = use(saved);
	else
		tensor = PyObject_CallMethodObjArgs((PyObject *)saved->session, names.use_watched,
						    object, NULL);
	Py_DECREF(object);
	return tensor;
}

static PyMemberDef saved_members[] = {
	{"id", T_ULONGLONG, offsetof(struct saved, id), READONLY, NULL},
	{"length", T_ULONGLONG, offsetof(struct saved, len_bytes), READONLY, NULL},
	{NULL, 0, 0, 0, NULL},
};

PyTypeObject *saved_type;
PyType_Spec saved_spec = {
	.name = "spillway._hooks.Saved",
	.basicsize = offsetof(struct saved, sizes),
	.itemsize = sizeof(int64_t),
	.flags = MADE_HERE,
	.slots =
		(PyType_Slot[]){
			{Py_tp_doc, "A saved tensor that the cache knows."},
			{Py_tp_dealloc, saved_dealloc},
			{Py_tp_members, saved_members},
			{0, NULL},
		},
};
