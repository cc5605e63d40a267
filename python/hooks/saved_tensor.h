/* SPDX-License-Identifier: MIT */
/* hooks/saved_tensor.h - struct saved, a saved tensor that the cache knows */
#ifndef SPW_HOOKS_SAVED_TENSOR_H
#define SPW_HOOKS_SAVED_TENSOR_H

#include "session.h"

struct frame;
struct on_device;

/* A saved tensor that the cache knows. */
struct saved {
	PyObject_VAR_HEAD struct session *session;
	struct version *version;
	const struct dtype *dtype;
	uint64_t id; /* the cache's id of the entry; 0: not offered yet */
	/* of the owner whose tensor was offered by this save and has this shape; 0: none */
	uint64_t token;
	uint64_t offset_bytes, len_bytes; /* range in its storage, */
	uint64_t storage_len_bytes;       /* all of which is offered and read back */
	bool conj, neg;
	/*
	 * The tensor that was handed out last, while it may be used again. Autograd accumulates
	 * gradients in place in a tensor to which it holds the only reference; holding this
	 * reference prevents that.
	 */
	PyObject *borrowed;
	struct saved *next, **link; /* in the session's list of borrowers */
	/* set if discarded: it is the save with index @place of this frame; or NULL */
	struct frame *frame;
	uint32_t place;
	struct saved *discarded_next,
		**discarded_link; /* in the frame's list of discarded tensors */
	/* NULL for a tensor in host memory */
	struct on_device *on;
	struct device *device;
	/* (type, size, stride) if its elements fill its range without gaps; or NULL */
	PyObject *shape;
	uint64_t scope;  /* on->scope when it was saved */
	int64_t sizes[]; /* and strides, in elements */
};

/* Defined in part.c, which creates saved tensors; saved.c has the type's spec. */
extern PyTypeObject *saved_type;

static inline Py_ssize_t saved_dims(const struct saved *saved)
{
	return saved->ob_base.ob_size / 2;
}

/* Whether the tensor is only a part of its storage. */
static inline bool saved_is_part(const struct saved *saved)
{
	return saved->len_bytes < saved->storage_len_bytes;
}

#endif
