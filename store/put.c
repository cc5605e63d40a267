/* SPDX-License-Identifier: MIT */
/* store/put.c - spw_store_put(): from the caller to the worker; write.c goes on */
#include <errno.h>
#include <string.h>

#include "store/internal.h"

static int put(struct spw_store *store, const void *bytes, const struct iovec *vector, uint64_t len,
	       const struct spw_notify *notify, spw_object *id, struct spw_request **out)
{
	struct spw_request *request;
	int rc;

	id->value = 0;
	if (out)
		*out = NULL;
	if (len == 0 || (!bytes && !vector) || (!notify && !out))
		return spw_error(-EINVAL, "put needs bytes, and a notify or a request to wait for");
	rc = spw_store_owned(store);
	if (!rc)
		rc = spw_object_create(store, len, id);
	if (rc)
		return rc;
	request =
		spw_request_take(store, REQUEST_PUT, &store->objects[(uint32_t)id->value], notify);
	if (!request) {
		spw_object_drop(store, &store->objects[(uint32_t)id->value], false);
		(void)spw_store_free(store, *id);
		id->value = 0;
		return -ENOBUFS;
	}
	/* The worker only reads through it. */
	memcpy(&request->bytes, &bytes, sizeof(request->bytes));
	request->vector = vector;
	request->len_bytes = len;
	request->offset_bytes = 0;
	atomic_store_explicit(&request->cls, SPW_BACKGROUND, memory_order_relaxed);
	atomic_store_explicit(&request->object->put, request, memory_order_relaxed);
	if (out)
		*out = request;
	spw_store_push_put(store, &request->message);
	return 0;
}

int spw_store_put(struct spw_store *store, const void *bytes, size_t len,
		  const struct spw_notify *notify, spw_object *id, struct spw_request **out)
{
	return put(store, bytes, NULL, len, notify, id, out);
}

int spw_store_putv(struct spw_store *store, const struct iovec vector[], unsigned count,
		   const struct spw_notify *notify, spw_object *id, struct spw_request **out)
{
	uint64_t len = 0;

	for (unsigned i = 0; vector && i < count; i++) {
		if (vector[i].iov_len > 0 && !vector[i].iov_base)
			return spw_error(-EINVAL,
					 "element %u of the vector has a length but no memory", i);
		if (__builtin_add_overflow(len, vector[i].iov_len, &len))
			return spw_error(-EINVAL,
					 "the vector's lengths add up to more than 64 bits hold");
	}
	return put(store, NULL, vector, len, notify, id, out);
}
