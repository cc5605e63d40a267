/* SPDX-License-Identifier: MIT */
/* hooks/part.h - whether a tensor is offered, and which part of its storage it is */
#ifndef SPW_HOOKS_PART_H
#define SPW_HOOKS_PART_H

#include "saved_tensor.h"

/* Return: 1 it is not offered, whatever its shape; 0 its storage is known now; -1 */
int is_skipped(struct session *session, struct seen *seen);
/* A saved tensor with its content and shape, not offered yet. */
struct saved *saved_of(struct session *session, struct seen *seen, struct record *record);
/* Fills an offer. Return: 0; 1 the caller has to keep the tensor; -1 with an exception */
int offer_fill(struct spw_offer *offer, struct saved *saved, struct seen *seen);
enum spw_cache_hint hint_of(const struct saved *saved, const struct seen *seen);
/* This tensor on @base, whose memory begins at @begin_bytes of the storage. */
PyObject *saved_on(const struct saved *saved, PyObject *base, uint64_t begin_bytes);

#endif
