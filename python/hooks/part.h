/* SPDX-License-Identifier: MIT */
/* hooks/part.h - decide whether a tensor is offered, and find its part of the storage */
#ifndef SPW_HOOKS_PART_H
#define SPW_HOOKS_PART_H

#include "saved_tensor.h"

/* Return: 1 the tensor is not offered, whatever its shape; 0 @seen has its storage now; -1 */
int is_skipped(struct session *session, struct seen *seen);
/* Make a saved tensor with its content and shape, not offered yet. */
struct saved *saved_of(struct session *session, struct seen *seen, struct record *record);
/* Fill an offer. Return: 0; 1 the caller has to keep the tensor; -1 with an exception */
int offer_fill(struct spw_offer *offer, struct saved *saved, struct seen *seen);
enum spw_cache_hint hint_of(const struct saved *saved, const struct seen *seen);
/* Make the saved tensor as a view of @base, whose memory begins at @begin_bytes of the storage. */
PyObject *saved_on(const struct saved *saved, PyObject *base, uint64_t begin_bytes);

#endif
