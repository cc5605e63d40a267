/* SPDX-License-Identifier: MIT */
/* store/get.c - spw_store_get(): from the caller to the worker; read.c goes on */
#include <errno.h>

#include "store/internal.h"

int spw_store_get(struct spw_store *store, spw_object id, uint64_t offset, void *bytes, size_t len,
		  enum spw_class cls, const struct spw_notify *notify, struct spw_request **out)
{
	struct spw_request *request;
	struct object *object;

	if (out)
		*out = NULL;
	if (len == 0 || !bytes || (!notify && !out) || cls < SPW_URGENT_READ || cls >= SPW_CLASSES)
		return spw_error(
			-EINVAL,
			"get needs memory, a class, and a notify or a request to wait for");
	if (spw_store_owned(store))
		return -EPERM;
	object = spw_object_acquire(store, id);
	if (!object)
		return spw_error(-ENOENT, "no such object: it was freed, or never was");
	if (offset >= object->len_bytes || len > object->len_bytes - offset) {
		uint64_t object_len = object->len_bytes;

		spw_object_drop(store, object, false);
		return spw_error(-ERANGE, "bytes %llu to %llu lie beyond the object's %llu",
				 (unsigned long long)offset, (unsigned long long)offset + len,
				 (unsigned long long)object_len);
	}
	request = spw_request_take(store, REQUEST_GET, object, notify);
	if (!request) {
		spw_object_drop(store, object, false);
		return -ENOBUFS;
	}
	request->bytes = bytes;
	request->len_bytes = len;
	request->offset_bytes = offset;
	atomic_store_explicit(&request->cls, cls, memory_order_relaxed);
	if (out)
		*out = request;
	spw_store_push(store, &request->message);
	return 0;
}
