/* SPDX-License-Identifier: MIT */
/*
 * hooks/hooks.h - the hooks on saved tensors: the way of plain tensors in host memory from autograd
 * to the tensor cache and back
 *
 * A hook runs when the operation before it has swept the caches: its time is that of the memory it
 * touches, and the same steps in Python touch several times as much. What is rare (tensors of a
 * device, recorded steps, lazily conjugated tensors, errors) is left to the Python package.
 *
 * Nothing of one Python or one PyTorch is compiled in. Of Python this uses the limited API of 3.11;
 * PyTorch's methods are called as Python objects, and memory of the cache becomes a tensor by way
 * of DLPack, whose deleter may come from any thread, without the interpreter's lock.
 *
 * Threads    The interpreter's lock guards all of this but the end of a lease, and struct leases,
 *            which is atomic.
 * Lifetime   A saved tensor holds its session. A lease holds only struct leases, which outlives the
 *            session.
 * Errors     Functions that fail set a Python exception and return NULL or -1.
 *
 * Each file uses only those before it: calls.c, tensor.c, content.c, lease.c, session.c, saved.c,
 * module.c.
 */
#ifndef SPW_PYTHON_HOOKS_H
#define SPW_PYTHON_HOOKS_H

#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <spillway/cache.h>

/* ---- What is called (calls.c) ---- */

/* Functions of the library that spillway/_library.py has loaded. */
struct library {
	__typeof__(&spw_cache_offer_hint) offer_hint;
	__typeof__(&spw_cache_take) take;
	__typeof__(&spw_cache_return) give_back;
	__typeof__(&spw_cache_release) release;
	__typeof__(&spw_cache_drain) drain;
};

/* An attribute of a type, to be had without a look at the object's own. */
struct attribute {
	PyObject *descriptor;
	descrgetfunc get;
};

/* Things of PyTorch, and of spillway/_native.py. */
struct torch {
	PyObject *tensor_type, *parameter_type;
	/* of a tensor */
	struct attribute is_cpu, is_leaf, requires_grad, dtype, version, shape, base;
	/* of a storage: its identity */
	struct attribute cdata;
	/* methods of a tensor */
	PyObject *storage, *detach, *stride, *storage_offset, *is_neg, *is_conj, *as_strided, *view,
		*numel, *address;
	/* of a storage */
	PyObject *data_ptr, *nbytes, *weak_ref, *free_weak_ref, *expired;
	PyObject *from_dlpack;
	PyObject *nothing; /* a tensor without memory */
	PyObject *counted; /* whether autograd counts what is handed out with what was saved */
	/* of _native.py */
	PyObject *plain, *flagged, *on, *raise_modified, *error_of;
};

/* Names that are looked up. */
struct names {
	PyObject *mark, *data, *pack_watched, *use_watched, *unpack, *finish, *handle;
};

/*
 * A type of elements. What DLPack does not know goes as another of the same length, and is then
 * viewed as what it is.
 */
struct dtype {
	PyObject *dtype;
	uint8_t itemsize, code, bits;
	bool is_complex, is_viewed;
};

extern struct library library;
extern struct torch torch;
extern struct names names;

int make_names(void);
/*
 * A function of the module: (addresses of the library's functions, things of PyTorch by their
 * names, types of elements).
 */
PyObject *connect_calls(PyObject *module, PyObject *args);
/*
 * The row of a tensor's type. NULL without an exception: none is known, as for quantized tensors.
 */
const struct dtype *dtype_of(PyObject *tensor);

/* ---- Small helpers ---- */

static inline void *new_ref(void *object)
{
	Py_INCREF((PyObject *)object);
	return object;
}

/* @object: consumed */
static inline void set_ref(PyObject **place, PyObject *object)
{
	PyObject *before = *place;

	*place = object;
	Py_XDECREF(before);
}

static inline PyObject *get(const struct attribute *attribute, PyObject *object)
{
	return attribute->get(attribute->descriptor, object, (PyObject *)Py_TYPE(object));
}

/* With one argument; a method, of this object. */
static inline PyObject *call(PyObject *function, PyObject *argument)
{
	return PyObject_CallFunctionObjArgs(function, argument, NULL);
}

/* Of types that only this module makes objects of. */
#define MADE_HERE \
	(Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE)

/* An object holds its type. */
static inline void object_free(PyObject *object)
{
	PyTypeObject *type = Py_TYPE(object);

	PyObject_Free(object);
	Py_DECREF(type);
}

/*
 * These consume the reference. Return: 0, or to_bool() the truth value; -1 with an exception, also
 * if there is no object.
 */
static inline int to_int64(PyObject *number, int64_t *value)
{
	if (!number)
		return -1;
	*value = PyLong_AsLongLong(number);
	Py_DECREF(number);
	return *value == -1 && PyErr_Occurred() ? -1 : 0;
}

static inline int to_uint64(PyObject *number, uint64_t *value)
{
	if (!number)
		return -1;
	*value = PyLong_AsUnsignedLongLong(number);
	Py_DECREF(number);
	return *value == UINT64_MAX && PyErr_Occurred() ? -1 : 0;
}

static inline int to_bool(PyObject *object)
{
	int is_true;

	if (!object)
		return -1;
	is_true = object == Py_True ? 1 : object == Py_False ? 0 : PyObject_IsTrue(object);
	Py_DECREF(object);
	return is_true;
}

/* ---- Tensors (tensor.c) ---- */

/* The version counter. */
int version_number(PyObject *tensor, int64_t *number);
/* The same, and the address of the first element. */
int tensor_state(PyObject *tensor, int64_t *number, uint64_t *address);

/*
 * What a save has to know of a tensor, asked for in the order of these functions. Ended by
 * seen_end().
 */
struct seen {
	PyObject *tensor;          /* borrowed */
	const struct dtype *dtype; /* of seen_passes_by() */
	PyObject *storage;         /* and its identity; of seen_storage() */
	PyObject *identity;
	PyObject *base;           /* what it is a view of, or None; of seen_base() */
	PyObject *shape, *stride; /* of seen_dims() */
};

struct place {
	int64_t offset; /* of the tensor in its storage, in elements */
	uint64_t storage_address, storage_len_bytes;
};

/* Return: 1 it passes by, whatever its storage is; 0; -1 with an exception. */
int seen_passes_by(struct seen *seen);
/*
 * Whether it is held as it is, a parameter: what is made its .data is used, and what was is let go,
 * as DeepSpeed relies on. All else is held without its graph (an output that holds its own node
 * would never be freed), which views have from what they are views of. Return: 1; 0; -1 with an
 * exception.
 */
int seen_is_parameter(const struct seen *seen);
/* A new reference: its memory and its version counter without its graph. */
PyObject *seen_detached(const struct seen *seen);
int seen_storage(struct seen *seen);
int seen_base(struct seen *seen);
/* The number of dimensions; -1. */
Py_ssize_t seen_dims(struct seen *seen);
/* @sizes: filled with sizes and strides, in elements */
int seen_shape(const struct seen *seen, int64_t sizes[]);
int seen_place(const struct seen *seen, struct place *place);
/* The flags for conjugate and negative. */
int seen_flags(const struct seen *seen, bool *conj, bool *neg);
void seen_end(struct seen *seen);

/* ---- Storages and their contents (content.c) ---- */

/* One content of one storage: what all tensors saved from it have in common. */
struct version {
	uint32_t references;
	bool modified;  /* changed in place while its bytes were not yet safe */
	int64_t number; /* the tensor's version counter when it was saved */
	uint64_t epoch; /* what the cache knows it by */
	uint64_t step;  /* when it was saved first */
	/* has the bytes, if their memory was changed for another meanwhile; or NULL */
	PyObject *moved;
	PyObject *witness; /* weak: a tensor that shares the version counter with all others */
	/*
	 * A tensor that shares it too: of what may leave memory, the owner's, and has no memory
	 * from when the owner ends. What is read back is handed out with the same counter, for the
	 * next use may get the same memory. NULL: there is none.
	 */
	PyObject *counter;
};

/* A storage that is or was alive. While this holds it weakly no other can have its identity. */
struct record {
	PyObject_HEAD uint64_t key, epochs;
	PyObject *weak;
	struct version *version;
};

extern PyTypeObject *record_type;
extern PyType_Spec record_spec;

static inline struct version *version_hold(struct version *version)
{
	version->references++;
	return version;
}

void version_drop(struct version *version);
/*
 * Fails if the content was modified, also in the memory that it was read back to. @shown: of this
 * use, or NULL
 */
int version_check(const struct version *version, PyObject *shown);
/*
 * From now on it is seen for good when it is modified. @held: the owner's tensor, with the content.
 */
void version_watch(struct version *version, PyObject *held);
/*
 * The owner ends, and with it the memory of @held unless others were shown it; what counts stays.
 */
void version_part(struct version *version, PyObject *held, bool is_shown);
/*
 * Borrowed: with whose version counter memory that was read back is handed out. NULL: with one of
 * its own.
 */
PyObject *version_lender(const struct version *version);
/*
 * A tensor with the version counter of one, and with the memory, the type and the shape of another.
 */
PyObject *tensor_counted_by(PyObject *counter, PyObject *memory);
/* Sets the exception of PyTorch's own check. @tensor: that was modified; or NULL. Return: -1 */
int raise_modified(PyObject *tensor, int64_t now, int64_t expected);

struct record *record_new(const struct seen *seen, uint64_t key);
/*
 * What the storage of @tensor holds now. Borrowed. In each step another one: memory that is filled
 * anew between steps in a way that PyTorch does not count, by NumPy perhaps, is not what a graph
 * has that is left from before.
 */
struct version *record_version(struct record *record, PyObject *tensor, uint64_t step);
/* @held has the bytes of @version, wherever its memory is now. What was written may be others. */
void record_moved(struct record *record, struct version *version, PyObject *held);

/* ---- Memory of the cache that tensors use (lease.c) ---- */

struct leases {
	_Atomic uint32_t references;
	_Atomic uint64_t users;            /* leases, and threads inside take */
	_Atomic bool waited_for;           /* the last user lets the cache close */
	_Atomic(struct spw_cache *) open;  /* NULL: closed, for all but the return of leases */
	_Atomic(struct spw_cache *) cache; /* NULL: of a parent process */
	PyObject *closer;                  /* the cache in Python, while it is waited for */
};

/* The same as an object of Python. */
struct leases_object {
	PyObject_HEAD struct leases *leases;
};

extern PyTypeObject *leases_type;
extern PyType_Spec leases_spec;

/* Its object. A new reference */
PyObject *leases_new(struct spw_cache *cache);
void leases_drop(struct leases *leases);
void leases_user_ended(struct leases *leases);

struct shape {
	const struct dtype *dtype;
	uint64_t len_bytes;   /* from its first element to the end of its last */
	const int64_t *sizes; /* and strides, in elements */
	Py_ssize_t dims;
};

/*
 * A tensor on the memory of a lease, which ends with it, and with it the use of @leases that began
 * before the take. So it does if there is no tensor. @counter: a tensor with whose version counter
 * it counts, or NULL.
 */
PyObject *lease_tensor(struct leases *leases, const struct spw_taken *taken,
		       const struct shape *shape, PyObject *counter);

/* ---- A session: what outlives the context (session.c) ---- */

/* Memory that the cache may still read: held until the cache gives its token back. */
struct owner {
	uint64_t token; /* of the cache; 0: free */
	PyObject *tensor;
	struct version *version;
	struct record *record;
	uint64_t address; /* of the tensor's first element, when it was offered */
	uint32_t next;    /* of the free ones, + 1 */
	/* the tensor is without the graph, and so may be held for long, and handed out */
	bool is_held;
	bool is_shown; /* it was handed out */
};

/* Storages in mind before those that are gone are forgotten. */
#define PRUNE_MIN 1024

struct saved;

struct session {
	PyObject_HEAD struct leases *leases;
	PyObject *cache, *device, *excluded, *tracer;
	PyObject *records; /* of storages, by their identity */
	Py_ssize_t prune_at;
	int excluding; /* modules that are excluded and run now */
	char unpacked; /* a backward pass has been seen since this was last cleared */
	unsigned undrained;
	unsigned long long steps;
	uint64_t serial;
	struct saved *borrowers; /* that hold memory of the cache */
	struct owner *owners;
	uint32_t owners_max, owner_free, owners_held;
};

/* NULL with the exception that says that it is closed. */
struct spw_cache *session_cache(struct session *session);
/* A new reference. */
struct record *session_record(struct session *session, const struct seen *seen);
/* Forgets storages that are gone. */
int session_prune(struct session *session);
void session_drain(struct session *session);
/* After short tensors were saved or used it is time for a drain now and then only. */
void session_drain_at_times(struct session *session, uint64_t len_bytes);

/* Of a tensor with its graph, at @address. Return: its token; 0 with an exception. */
uint64_t owner_add(struct session *session, PyObject *tensor, struct version *version,
		   struct record *record, uint64_t address);
/*
 * From now on it holds @held, the memory without the graph. Return: false: its token was given back
 * meanwhile.
 */
bool owner_hold(struct session *session, uint64_t token, PyObject *held);
/* NULL without an exception: its token was given back. */
struct owner *owner_of(const struct session *session, uint64_t token);
void owner_end(struct session *session, struct owner *owner);

/* ---- Saved tensors (saved.c) ---- */

extern PyTypeObject *kept_type, *saved_type;
extern PyType_Spec kept_spec, saved_spec;

/*
 * The methods of a session: pack, save and keep return what autograd keeps, keep without the cache;
 * use is given what save returned.
 */
PyObject *session_pack(PyObject *session, PyObject *tensor);
PyObject *session_save(PyObject *session, PyObject *tensor);
PyObject *session_keep(PyObject *session, PyObject *tensor);
PyObject *session_use(PyObject *session, PyObject *saved);
/* The cache closes: saved tensors let go of its memory. */
PyObject *session_part(PyObject *session, PyObject *unused);
PyObject *saved_unpack(PyObject *saved, PyObject *unused);
PyObject *kept_unpack(PyObject *kept, PyObject *unused);

#endif
