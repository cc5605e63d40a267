/* SPDX-License-Identifier: MIT */
/*
 * hooks/hooks.h - the hooks on saved tensors: the way of plain tensors in host memory from autograd
 * to the tensor cache and back
 *
 * A hook runs when the operation before it has swept the caches: its time is that of the memory it
 * touches, of which the same steps in Python touch several times as much. What is rare (recorded
 * steps, lazily conjugated tensors, errors) is left to the Python package; of tensors of a device
 * also their times, and each call of the device: a method of spillway._gpu.accelerator.Table.
 *
 * One build serves all: of Python this uses the limited API of 3.11; PyTorch's methods are called
 * as Python objects, and memory of the cache becomes a tensor by DLPack, whose deleter may come
 * from any thread, without the interpreter's lock.
 *
 * Threads    The interpreter's lock guards all of this but the end of a lease, and struct leases,
 *            which is atomic.
 * Lifetime   A saved tensor holds its session. A lease holds only struct leases, which outlives the
 *            session.
 * Errors     Functions that fail set a Python exception and return NULL or -1.
 *
 * Each file uses only those before it: calls.c, tensor.c, content.c, lease.c, session.c, again.c,
 * part.c, port.c, users.c, offering.c, using.c, on_device.c, saved.c, module.c.
 */
#ifndef SPW_PYTHON_HOOKS_H
#define SPW_PYTHON_HOOKS_H

#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <spillway/cache.h>

/* ---- What is called (calls.c) ---- */

/* Functions of the library, in the order of their addresses in hooks_loader.py. */
struct library {
	__typeof__(&spw_cache_offer_hint) offer_hint;
	__typeof__(&spw_cache_take) take;
	__typeof__(&spw_cache_return) give_back;
	__typeof__(&spw_cache_release) release;
	__typeof__(&spw_cache_drain) drain;
	__typeof__(&spw_cache_restore) restore;
	__typeof__(&spw_cache_hold_back) hold_back;
	__typeof__(&spw_cache_offer_device) offer_device;
	__typeof__(&spw_cache_copied) copied;
	__typeof__(&spw_cache_ordered) ordered;
	__typeof__(&spw_cache_copy_retry) copy_retry;
	__typeof__(&spw_cache_wait_write) wait_write;
	__typeof__(&spw_cache_ahead) ahead;
	__typeof__(&spw_cache_drain_device) drain_device;
};

/* An attribute of a type. */
struct attribute {
	PyObject *descriptor;
	descrgetfunc get;
};

/* clang-format off */
/* Attributes of a tensor; and of a storage its identity, cdata. */
#define TORCH_ATTRIBUTES(X) \
	X(is_cpu) X(is_leaf) X(requires_grad) X(dtype) X(version) X(shape) X(base) X(device) \
	X(cdata)

/* Types; methods of a tensor and of a storage; other things; functions of hooks_loader.py. */
#define TORCH_OBJECTS(X) \
	X(tensor_type) X(parameter_type) \
	X(storage) X(detach) X(stride) X(storage_offset) X(is_neg) X(is_conj) X(as_strided) \
	X(view) X(numel) X(address) \
	X(data_ptr) X(nbytes) X(weak_ref) X(free_weak_ref) X(expired) \
	X(from_dlpack) \
	X(nothing) X(nothing_on) /* a tensor without memory; the same of a device */ \
	X(counted) /* whether autograd counts what is handed out with what was saved */ \
	X(plain) X(flagged) X(on) X(raise_modified) X(error_of) \
	X(uint8) X(bytes_of) /* of a tensor's storage, a part */ \
	X(stop) /* what ends the computing again: nothing more is needed */

/* Names that are looked up, and their texts. */
#define NAMES(X) \
	X(mark, "_TE_do_not_offload") X(data, "data") X(pack_watched, "_pack_watched") \
	X(use_watched, "_use_watched") X(meet, "_meet") X(unpack, "unpack") \
	X(finish, "_finish") X(handle, "handle") X(compute, "compute") \
	X(save_part, "_save_part") X(type, "type") X(acquire, "acquire") X(release, "release") \
	/* of spillway._gpu.accelerator.Table */ \
	X(capturing, "capturing") X(current_stream, "current_stream") X(new_stream, "new_stream") \
	X(record, "record") X(mark_event, "mark") X(wait, "wait") X(done, "done") \
	X(finish_event, "finish") X(keep, "keep") X(copy, "copy") X(empty, "empty") \
	/* of DeviceTimes, of a Port and of DeviceTensors */ \
	X(begin, "begin") X(waits, "waits") X(ended, "ended") X(news, "news") X(tell, "tell") \
	X(come, "come") X(stands, "stands") X(border, "border") X(device, "device") \
	X(elements, "_elements") X(bytes_at, "_bytes_at") X(failed, "_failed") \
	X(abort, "_abort") X(refuse, "_refuse") X(not_copied, "_not_copied") \
	X(notify, "_notify") X(checksums_of, "_checksums_of") X(compare, "_compare") \
	X(expect, "expect") \
	X(restore, "restore") X(begin_step, "_begin_step") X(save_other, "_save_other")
/* clang-format on */

/* What spillway/_core/hooks_loader.py hands over, by these names. */
struct torch {
#define MEMBER(name) struct attribute name;
	TORCH_ATTRIBUTES(MEMBER)
#undef MEMBER
#define MEMBER(name) PyObject *name;
	TORCH_OBJECTS(MEMBER)
#undef MEMBER
};

struct names {
#define MEMBER(name, text) PyObject *name;
	NAMES(MEMBER)
#undef MEMBER
};

/* A type of elements. */
struct dtype {
	PyObject *dtype;
	uint8_t itemsize, code, bits;
	/* DLPack does not know it: it goes as another of the same length, and is viewed as this */
	bool is_viewed;
	bool is_complex;
};

extern struct library library;
extern struct torch torch;
extern struct names names;

int make_names(void);
/* connect(addresses of the library's functions, things of PyTorch by name, types of elements) */
PyObject *connect_calls(PyObject *module, PyObject *args);
/* NULL without an exception: it is not known, as that of quantized tensors. */
const struct dtype *dtype_of(PyObject *tensor);
const struct dtype *dtype_find(PyObject *dtype);

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

/* Of what a call gives nothing is needed. Consumed. Return: 0; -1 */
static inline int ignore(PyObject *result)
{
	Py_XDECREF(result);
	return result ? 0 : -1;
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

/* These consume the reference. Return: 0, or the truth value; -1, also if there is no object. */
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

/* Of an exception, which is cleared if so: PyTorch does not say, or let, what it was asked. */
bool was_refused(void);
/* The version counter; and the address of the first element. */
int version_number(PyObject *tensor, int64_t *number);
int tensor_state(PyObject *tensor, int64_t *number, uint64_t *address);

struct device;

/* Why a tensor is saved. */
enum seen_as {
	SEEN_SAVED,   /* by autograd */
	SEEN_INPUT,   /* a scope is recomputed from it */
	SEEN_INNER,   /* the elements of a tensor that is no plain one */
	SEEN_COUNTED, /* it stays in memory in any case */
};

/* What a save has to know of a tensor, asked for in the order of these functions. */
struct seen {
	PyObject *tensor;      /* borrowed */
	struct device *device; /* that it is known to be on; NULL: host memory, or elsewhere */
	enum seen_as as;
	bool is_view;              /* as inner: it counts as a view of another such one */
	bool is_other;             /* no plain tensor with a storage; of passes_by() */
	bool is_fixed;             /* a part of a storage that is known to stay; of offer_fill() */
	const struct dtype *dtype; /* of seen_is_strange() */
	bool is_elsewhere;         /* not in host memory; the same */
	PyObject *storage;         /* and its identity; of seen_storage() */
	PyObject *identity;
	PyObject *base;           /* what it is a view of, or None; of seen_base() */
	PyObject *shape, *stride; /* of seen_dims() */
};

/* Return: 1 it is no plain tensor in host memory, or on @seen->device; 0; -1 */
int seen_is_strange(struct seen *seen);
/* Return: 1 it passes by, whatever its storage is; 0; -1 */
int seen_passes_by(struct seen *seen);
/*
 * Whether it is held as it is: a parameter, whose .data is replaced, as DeepSpeed does. All else,
 * also a view of one, is held without its graph: an output that holds its own node would never be
 * freed. Return: 1; 0; -1 with an exception.
 */
int seen_is_parameter(const struct seen *seen);
int seen_storage(struct seen *seen);
int seen_base(struct seen *seen);
/* The number of dimensions; -1. */
Py_ssize_t seen_dims(struct seen *seen);
/* @sizes: filled with sizes and strides, in elements */
int seen_shape(const struct seen *seen, int64_t sizes[]);
/* @offset: of the tensor in its storage, in elements. @offer: the storage's memory and length */
int seen_place(const struct seen *seen, int64_t *offset, struct spw_offer *offer);
/* The flags for conjugate and negative. */
int seen_flags(const struct seen *seen, bool *conj, bool *neg);
/* Its memory without its graph, and without these flags. */
PyObject *seen_plain(const struct seen *seen, bool conj, bool neg);
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
	 * A tensor that shares it too, or NULL: of what may leave memory, the owner's, and without
	 * memory from when the owner ends. What is read back is handed out with the same counter:
	 * the next use may get the same memory.
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
/* Fails if the content was modified. @shown: the tensor of this use, on that memory; or NULL */
int version_check(const struct version *version, PyObject *shown);
/* Modifications are seen until the version ends. @held: the owner's tensor, with the content */
void version_watch(struct version *version, PyObject *held);
/*
 * The owner ends, and with it the memory of @held unless it was handed out; the counter stays.
 * @nothing: a tensor without memory, of the same device
 */
void version_part(struct version *version, PyObject *held, bool is_shown, PyObject *nothing);
/* With the version counter of one tensor, and the memory, type and shape of another. */
PyObject *tensor_counted_by(PyObject *counter, PyObject *memory);
/*
 * What was read back, as it is handed out: with the counter of what was saved, if there is one and
 * PyTorch lets it be changed. Consumes @memory.
 */
PyObject *tensor_lent(PyObject *counter, PyObject *memory);
/* Sets the exception of PyTorch's own check. @tensor: that was modified; or NULL. Return: -1 */
int raise_modified(PyObject *tensor, int64_t now, int64_t expected);

struct record *record_new(const struct seen *seen, uint64_t key);
/*
 * What the storage of @tensor holds now. Borrowed. In each step another one: between steps memory
 * may be filled anew in a way that PyTorch does not count, by NumPy perhaps.
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

struct leases_object {
	PyObject_HEAD struct leases *leases;
};

extern PyTypeObject *leases_type;
extern PyType_Spec leases_spec;

/* Its object. A new reference */
PyObject *leases_new(struct spw_cache *cache);
void leases_drop(struct leases *leases);
void leases_user_ended(struct leases *leases);
/* Of a cache; NULL with an exception: it is closed. */
struct spw_cache *leases_cache(struct leases *leases, PyObject *cache);
/* Sets the exception for a negative result of the library. */
void raise_error(int result);

struct shape {
	const struct dtype *dtype;
	const int64_t *sizes; /* and strides, in elements */
	Py_ssize_t dims;
};

/*
 * A tensor on the memory of a lease. With it, or at once if there is none, the lease ends, and the
 * use of @leases that began before the take.
 */
PyObject *lease_tensor(struct leases *leases, const struct spw_taken *taken,
		       const struct shape *shape);

/* ---- A session: what outlives the context (session.c) ---- */

/* Memory that the cache may still read, or have copied: held until it gives its token back. */
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
	/* of a device; the stream that computed it, and the event after that; or NULL */
	struct device *device;
	PyObject *stream, *produced;
};

struct owners {
	struct owner *all;
	uint32_t max, free, held; /* free: the first free one, + 1 */
	uint64_t serial;
};

/* Of a tensor with its graph, at @address. Return: its token; 0 with an exception. */
uint64_t owner_add(struct owners *owners, PyObject *tensor, struct version *version,
		   struct record *record, uint64_t address);
/* It holds @held, without the graph, from now on. Return: whether its token is still out */
bool owner_hold(struct owners *owners, uint64_t token, PyObject *held);
/* NULL without an exception: its token was given back. */
struct owner *owner_of(const struct owners *owners, uint64_t token);
void owner_end(struct owners *owners, struct owner *owner);
/* All of them, and what they are kept in. */
void owners_end(struct owners *owners);

/* Storages in mind before those that are gone are forgotten. */
#define PRUNE_MIN 1024

struct saved;
struct on_device;

struct session {
	PyObject_HEAD struct leases *leases;
	PyObject *cache, *device, *excluded, *tracer;
	PyObject *frame;   /* of the scope that runs and can be computed again, or None */
	PyObject *trial;   /* a list that tensors are saved to besides, or None */
	char gives_up;     /* all that can be computed again, whatever the plan says */
	PyObject *records; /* of storages, by their identity */
	PyObject *places;  /* of parameters on drives, by the same; or None */
	Py_ssize_t prune_at;
	int excluding; /* modules that are excluded and run now */
	char unpacked; /* a backward pass has been seen since this was last cleared */
	char begins;   /* the first save after that begins a step: nothing else is known to */
	unsigned undrained;
	unsigned long long steps;
	uint64_t serial;
	struct saved *borrowers; /* that hold memory of the cache */
	struct owners owners;
};

/* NULL with an exception: it is closed. */
struct spw_cache *session_cache(struct session *session);
/* A new reference. */
struct record *session_record(struct session *session, const struct seen *seen);
int session_prune(struct session *session); /* forgets storages that are gone */
void session_drain(struct session *session);
/* After short tensors now and then only. */
void session_drain_at_times(struct session *session, uint64_t len_bytes);
/* After an offer: a forward pass that is ahead of its plan waits, and others may run meanwhile. */
void session_hold_back(struct session *session);

/* ---- A saved tensor that the cache knows ---- */

struct saved {
	PyObject_VAR_HEAD struct session *session;
	struct version *version;
	const struct dtype *dtype;
	uint64_t id; /* of the cache; 0: it does not have it yet */
	/* of the owner that was offered with it, which has its shape; 0: none */
	uint64_t token;
	uint64_t offset_bytes, len_bytes; /* in its storage, */
	uint64_t storage_len_bytes;       /* all of which is offered, and comes back */
	bool conj, neg;
	/*
	 * What was handed out last, as long as this may be used again. What autograd alone has it
	 * changes in place, so as to add gradients: one of these may be what was saved.
	 */
	PyObject *borrowed;
	struct saved *next, **link; /* of those of the session that have borrowed */
	/* it was given up, and this computes it again, as the how-manyth that is saved; or NULL */
	struct frame *frame;
	uint32_t place;
	struct saved *given_next, **given_link; /* of those of the frame */
	/* of a device; else NULL */
	struct on_device *on;
	struct device *device;
	/* (type, size, stride) if nothing but its elements is in its range; or NULL */
	PyObject *shape;
	uint64_t scope;  /* the how-manyth in which something was saved */
	int64_t sizes[]; /* and strides, in elements */
};

static inline Py_ssize_t saved_dims(const struct saved *saved)
{
	return saved->ob_base.ob_size / 2;
}

/* ---- Scopes that can be computed again (again.c) ---- */

/* One run of a scope. The package derives its own from it, which knows how to run it again. */
struct frame {
	PyObject_HEAD struct saved *given, **given_end; /* up, in the order of saving */
	uint32_t saves, seen; /* tensors saved: in the forward pass, and in computing again */
};

extern PyTypeObject *frame_type;
extern PyType_Spec frame_spec;

/* NULL: none runs that can be computed again. */
struct frame *frame_now(const struct session *session);
/* The cache has given it up. Return: 0; -1 with an exception. */
int saved_give_up(struct saved *saved, const struct seen *seen);
/* It has its bytes again, or nobody needs them any more. */
void saved_ungive(struct saved *saved);
/* Computes it again. Return: 0: take it once more; -1 with an exception. */
int saved_again(struct saved *saved);
/* Whether what was computed again is of the same kind, shape and place. Return: 0; -1 */
int saved_is_like(const struct saved *saved, struct seen *seen, struct spw_offer *offer);

/* ---- What is saved, and how it lies in its storage (part.c) ---- */

extern PyTypeObject *saved_type; /* its spec is in saved.c */

/* Return: 1 it is not offered, whatever its shape; 0 its storage is known now; -1 */
int passes_by(struct session *session, struct seen *seen);
/* Its content and its shape; not known to the cache yet. */
struct saved *saved_of(struct session *session, struct seen *seen, struct record *record);
/* Whether there is more in its storage. */
static inline bool saved_is_part(const struct saved *saved)
{
	return saved->len_bytes < saved->storage_len_bytes;
}

/* What the cache asks for. Return: 0; 1 the caller has to keep it; -1 with an exception */
int offer_fill(struct spw_offer *offer, struct saved *saved, struct seen *seen);
enum spw_cache_hint hint_of(const struct saved *saved, const struct seen *seen);
/* This tensor on memory that has its storage from @begin_bytes on. */
PyObject *saved_on(const struct saved *saved, PyObject *base, uint64_t begin_bytes);

/* ---- Copies between the memory of devices and the store's arena (port.c) ---- */

/* One that is under way, or has been. */
struct copy {
	PyObject_HEAD uint64_t number; /* out: the tensor's; in: the lease */
	uint64_t len_bytes;
	PyObject *stream; /* that computes: the memory is of its pool */
	PyObject *shape;  /* in: of the memory, as of struct saved; NULL: bytes */
	PyObject *begin;  /* a mark, of some; or None */
	PyObject *event;  /* its end */
	PyObject *since;  /* a mark of a stream that waits for it, before anybody did; or NULL */
	PyObject *held;   /* until nobody else gets its memory before the end; or NULL */
	struct device *device;
	struct copy *earlier; /* out: another one of the same tensor */
	struct copy *next;    /* of its way */
	long long stalled_ns; /* so long did a stream wait */
	char taken;           /* in: what was ahead of its use has been used */
	char ended;           /* as the host has seen */
};

/* From a device, or to it. */
struct way {
	PyObject *side;            /* the stream that copies, from the first copy on */
	uint64_t begun;            /* copies so far */
	struct copy *first, *last; /* of whose end the host does not know */
};

/* One that was met. One that is late holds nothing of another back. */
struct device {
	PyObject *device;
	uint32_t number;   /* from 1 on */
	PyObject *nothing; /* a tensor without memory */
	PyObject *streams; /* on which something was saved: a list */
	struct way out, in;
};

/* For one thread at a time. */
struct port {
	PyObject_HEAD PyObject *table; /* as spillway._gpu.accelerator.Table */
	PyObject *times;               /* DeviceTimes */
	PyObject *kind;                /* of the devices, as torch.device has it */
	struct device **devices;
	uint32_t count;
	PyObject *out;   /* by the number of a tensor the last copy out of it */
	PyObject *arena; /* by types of elements the memory as such; None: none can lie there */
	unsigned long long arena_begin, arena_bytes; /* 0: it is not pinned */
};

extern PyTypeObject *copy_type, *port_type;
extern PyType_Spec copy_spec, port_spec;

/* What is copied out, after an event of the stream that computes. */
struct leaving {
	PyObject *tensor, *stream, *after;
	struct spw_copy part;
	uint64_t number;
	PyObject *shape; /* the tensor's, if it is that part; or NULL */
};

/* Of one of the port's kind; *@device stays NULL: it is of another. Return: 0; -1 */
int port_find(struct port *port, PyObject *tensor, struct device **device);
PyObject *port_stream(struct port *port, const struct device *device);
/* Return: 1 a graph is captured now; 0; -1 */
int port_captures(struct port *port);
bool port_is_copying_out(const struct port *port, uint64_t number);
int port_copy_out(struct port *port, struct device *device, const struct leaving *leaving);
/*
 * What a stream is given from now on comes after the copies out of this tensor, which is held no
 * longer. Of which stream's pool its memory is nobody says: so this is done for each that saves.
 * @since: a mark of one of them, the last that it was given
 */
int port_order(struct port *port, uint64_t number, PyObject *since);
/*
 * New memory of the stream's pool, and into it the bytes of a lease: after the copy out of the
 * tensor @number, if that is under way. @shape: of one that is all of it; or NULL
 */
struct copy *port_copy_in(struct port *port, struct device *device, PyObject *stream,
			  const struct spw_taken *taken, uint64_t number, PyObject *shape);
/*
 * What the stream is given from now on comes after a copy in, into this memory.
 * @since: a mark of the stream, before anybody waited for the bytes; or NULL
 */
int port_use(struct port *port, struct copy *copy, PyObject *base, PyObject *stream,
	     PyObject *since);
/* Nobody uses a copy in. */
int port_drop(struct port *port, struct copy *copy);

struct ended {
	uint64_t number;
	int result; /* or a negative errno */
};

/* @waits: for its end. Return: 1 the oldest copy of a way has ended; 0; -1 */
int port_ended(struct port *port, struct device *device, bool is_out, bool waits,
	       struct ended *ended);
/* The event of a copy out for which all others of its device wait; NULL: there is none. */
PyObject *port_oldest_out(const struct port *port);
/* Wait for all copies. They are forgotten. */
int port_finish(struct port *port);

/* ---- Who uses what was saved on a device, and what has ended there (users.c) ---- */

/* The saved tensors that are one entry of the cache. */
struct users {
	PyObject_HEAD uint32_t count;
	uint32_t unused;  /* that did not use it yet, if each does once */
	uint64_t begin;   /* of what was copied, in the storage */
	PyObject *shape;  /* of the one that is all of that; or NULL */
	PyObject *stream; /* on which it was saved */
	struct device *device;
	/* on the device again, until the last use or as long as there are several users; or NULL */
	PyObject *base;
	struct copy *copy; /* that brought it */
	/* it was given up: the sums, and of which part of the storage; or NULL */
	PyObject *given;
	PyObject *verdict; /* and was computed again; or NULL */
};

/*
 * Tensors of devices, as a session sees them. Any thread may save and load: autograd has one per
 * device for the backward pass.
 *
 * Threads    Calls of the device run Python, and so may others meanwhile: what is here is guarded
 *            by a lock, too. Whoever ends a saved tensor has none, and may come in anywhere.
 * Closing    The cache stays open while a call here is under way, but may be about to close: then
 *            the call's copies have ended before it returns.
 */
struct on_device {
	PyObject_HEAD struct port *port;
	PyObject *cache;
	PyObject *lock; /* not held while a take waits */
	struct leases *leases;
	PyObject *users; /* by their numbers */
	struct owners owners;
	/* of saved tensors that ended, in an order; there is place for all that are alive */
	uint64_t *ended;
	uint32_t ended_count, ended_max, alive;
	/* the borders of scopes so far, and what the backward pass has come to */
	unsigned long long scope, used_scope;
	char is_due;   /* the cache may have tokens to give back */
	char notifies; /* a thread is told of copies out */
};

extern PyTypeObject *users_type;
extern PyType_Spec users_spec;

int on_lock(struct on_device *on);
/* An exception that there is stays. */
void on_unlock(struct on_device *on);
/* It stays open until on_cache_end(). NULL with an exception: it is closed. */
struct spw_cache *on_cache_begin(struct on_device *on);
void on_cache_end(struct on_device *on);
/* A new reference. Of a saved tensor, which is one of them. */
struct users *users_of(struct on_device *on, const struct saved *saved);
/* It has that number from now on, and is one more of its users. */
int user_note(struct on_device *on, struct saved *saved, uint64_t number, PyObject *stream);
/* A method of DeviceTimes, with the cache's handle. */
int on_call_times(struct on_device *on, struct spw_cache *cache, PyObject *name);
/* What a lease has to the device; that is returned when it is there. */
int on_bring(struct on_device *on, struct users *users, PyObject *stream, struct spw_taken *taken,
	     uint64_t number);
/* The cache hears what has ended, and memory is let go that it needs no longer. */
int on_tell(struct on_device *on, struct spw_cache *cache, bool ahead);
/* With the lock. */
int on_go_on(struct on_device *on);
int on_finish_if_closing(struct on_device *on);
/* It ends: seen to later. */
void on_device_end(struct saved *saved);

/* ---- A tensor of a device is saved (offering.c) ---- */

/* A tensor that is offered. */
struct offering {
	struct saved *saved;
	struct spw_offer offer;
	struct spw_copy copy;
	PyObject *held;
	PyObject *stream, *produced; /* that computed it, and the event after that */
};

/* Before the call: it is held, with that content, from when the cache has it. Return: 0; -1 */
int offering_own(struct on_device *on, struct offering *offering, const struct seen *seen,
		 struct record *record, struct version *version);
/* As passes_by(). Return: a saved tensor; None if the caller has to keep it; NULL */
PyObject *on_device_save(struct on_device *on, struct session *session, struct seen *seen);

/* ---- And used (using.c) ---- */

/* A tensor on the device, for whose bytes the stream that computes now waits. */
PyObject *on_device_use(struct saved *saved);
/* With the lock. What was given up was computed again: whether it is the same a verdict says. */
int on_device_restore(struct on_device *on, struct saved *saved, PyObject *tensor, PyObject *frame);

/* ---- All of it (on_device.c) ---- */

extern PyTypeObject *on_device_type;
extern PyType_Spec on_device_spec;

/* NULL: the session has met none. */
struct on_device *on_device_now(const struct session *session);

/* ---- Saved tensors (saved.c) ---- */

extern PyTypeObject *kept_type;
extern PyType_Spec kept_spec, saved_spec;

/* Methods of a session. The first seven return what autograd keeps, and use() is given. */
PyObject *session_pack(PyObject *session, PyObject *tensor);
PyObject *session_save(PyObject *session, PyObject *tensor);
PyObject *session_keep(PyObject *session, PyObject *tensor);
PyObject *session_input(PyObject *session, PyObject *tensor);
PyObject *session_inner(PyObject *session, PyObject *args);
PyObject *session_count(PyObject *session, PyObject *tensor);
PyObject *session_keep_counted(PyObject *session, PyObject *args);
PyObject *session_use(PyObject *session, PyObject *saved);
/* The cache closes: saved tensors let go of its memory. */
PyObject *session_part(PyObject *session, PyObject *unused);
PyObject *saved_unpack(PyObject *saved);
PyObject *kept_unpack(PyObject *kept);

#endif
