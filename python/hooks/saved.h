/* SPDX-License-Identifier: MIT */
/* hooks/saved.h - tensors that autograd saves: packed for the cache, unpacked for their use */
#ifndef SPW_HOOKS_SAVED_H
#define SPW_HOOKS_SAVED_H

#include "session.h"

struct frame;
struct on_device;

/* A saved tensor that the cache knows. */
struct saved {
	PyObject_VAR_HEAD struct session *session;
	struct version *version;
	const struct dtype *dtype;
	uint64_t id; /* of the cache; 0: not offered yet */
	/* of the owner that was offered with it, whose tensor has its shape; 0: none */
	uint64_t token;
	uint64_t offset_bytes, len_bytes; /* in its storage, */
	uint64_t storage_len_bytes;       /* all of which is offered and read back */
	bool conj, neg;
	/*
	 * What was handed out last, as long as it may be used again. Autograd changes a tensor in
	 * place, to accumulate gradients, if it holds the only reference: that must not be this.
	 */
	PyObject *borrowed;
	struct saved *next, **link; /* of the session's borrowers */
	/* it was discarded, and is the save with index @place of this frame; or NULL */
	struct frame *frame;
	uint32_t place;
	struct saved *discarded_next, **discarded_link; /* of those of the frame */
	/* on a device; else NULL */
	struct on_device *on;
	struct device *device;
	/* (type, size, stride) if its elements fill its range; or NULL */
	PyObject *shape;
	uint64_t scope;  /* counts the scopes in which something was saved */
	int64_t sizes[]; /* and strides, in elements */
};

/* Of struct saved. Defined in part.c, which creates them; saved.c has its spec. */
extern PyTypeObject *saved_type;
extern PyTypeObject *kept_type;
extern PyType_Spec kept_spec, saved_spec;

static inline Py_ssize_t saved_dims(const struct saved *saved)
{
	return saved->ob_base.ob_size / 2;
}

/* Whether its storage has more than its range. */
static inline bool saved_is_part(const struct saved *saved)
{
	return saved->len_bytes < saved->storage_len_bytes;
}

/* Methods of a session. The first seven return what autograd keeps and passes to use(). */
PyObject *session_pack(PyObject *session, PyObject *tensor);
PyObject *session_save(PyObject *session, PyObject *tensor);
PyObject *session_keep(PyObject *session, PyObject *tensor);
PyObject *session_input(PyObject *session, PyObject *tensor);
PyObject *session_inner(PyObject *session, PyObject *args);
PyObject *session_count(PyObject *session, PyObject *tensor);
PyObject *session_keep_counted(PyObject *session, PyObject *args);
PyObject *session_use(PyObject *session, PyObject *saved);
/* The cache closes: saved tensors drop its memory. */
PyObject *session_part(PyObject *session, PyObject *unused);
PyObject *saved_unpack(PyObject *saved);
PyObject *kept_unpack(PyObject *kept);

#endif
