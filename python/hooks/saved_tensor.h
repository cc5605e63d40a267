/* SPDX-License-Identifier: MIT */
/* hooks/saved_tensor.h - a saved tensor, as the files that save and use it see it */
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

/* Defined in part.c, which creates them; saved.c has its spec. */
extern PyTypeObject *saved_type;

static inline Py_ssize_t saved_dims(const struct saved *saved)
{
	return saved->ob_base.ob_size / 2;
}

/* Whether its storage has more than its range. */
static inline bool saved_is_part(const struct saved *saved)
{
	return saved->len_bytes < saved->storage_len_bytes;
}

#endif
