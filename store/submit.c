/* SPDX-License-Identifier: MIT */
/* store/submit.c - spw_store_put(), spw_store_get() etc.: check and push requests */
#include "store/submit.h"

#include <errno.h>
#include <string.h>

#include "store/inbox.h"
#include "store/mirror.h"
#include "store/object.h"
#include "store/open_store.h"
#include "store/pressure.h"
#include "store/request.h"
#include "store/stats.h"
#include "util/probes.h"
#include "util/util.h"

/* May this process write? Return: 0; -EPERM; -EROFS. */
static int may_write(const struct spw_store *store)
{
	if (store->opts.read_only)
		return spw_error(-EROFS, "the store was opened to be read only");
	return spw_store__owned(store);
}

/* Create an object, mirrored if two drives have space; one copy is better than an error. */
static int create(struct spw_store *store, uint64_t len, unsigned copies, spw_object *id)
{
	uint64_t blocks = spw_store__blocks_of(store, len);
	int rc = -ENOSPC;

	if (copies == 2 && store->drive_count - store->drives_retired >= 2)
		rc = spw_store__object_create(store, len, 2, 2 * blocks, id);
	if (rc != -ENOSPC)
		return rc;
	rc = spw_store__object_create(store, len, 1, blocks, id);
	if (rc == 0 && copies == 2)
		spw_store__single_note(store, len);
	return rc;
}

/* *len: the number of bytes of a caller's vector. Return: 0; -EINVAL. */
static int measure(const struct iovec vector[], unsigned count, uint64_t *len)
{
	*len = 0;
	for (unsigned i = 0; vector && i < count; i++) {
		if (vector[i].iov_len > 0 && !vector[i].iov_base)
			return spw_error(-EINVAL,
					 "element %u of the vector has a length but no memory", i);
		if (__builtin_add_overflow(*len, vector[i].iov_len, len))
			return spw_error(-EINVAL,
					 "the vector's lengths add up to more than 64 bits hold");
	}
	return 0;
}

/* Copy a vector of one element; a longer one must stay valid until the request ends. */
static void set_vector(struct spw_request *request, const struct iovec vector[], unsigned count)
{
	request->run = vector[0];
	request->vector = count == 1 ? &request->run : vector;
}

static int put(struct spw_store *store, const struct iovec vector[], unsigned count,
	       unsigned copies, enum placement placement, const struct spw_notify *notify,
	       spw_object *id, struct spw_request **out)
{
	struct spw_request *request;
	uint64_t len;
	int rc;

	id->value = 0;
	if (out)
		*out = NULL;
	rc = measure(vector, count, &len);
	if (rc)
		return rc;
	if (len == 0 || (!notify && !out))
		return spw_error(-EINVAL, "put needs bytes, and a notify or a request to wait for");
	if (copies < 1 || copies > 2)
		return spw_error(-EINVAL, "%u copies: there can be 1 or 2", copies);
	rc = may_write(store);
	if (!rc)
		rc = create(store, len, copies, id);
	if (rc)
		return rc;
	request = spw_store__request_take(store, REQUEST_PUT, &store->objects[(uint32_t)id->value],
					  notify, out);
	if (!request) {
		(void)spw_store_free(store, *id);
		id->value = 0;
		return -ENOBUFS;
	}
	set_vector(request, vector, count);
	request->len_bytes = len;
	request->offset_bytes = 0;
	request->placement = placement;
	atomic_store_explicit(&request->cls, SPW_BACKGROUND, memory_order_relaxed);
	atomic_store_explicit(&request->object->put, request, memory_order_relaxed);
	spw_store__pressure_begin(request);
	SPW_PROBE(put_begin, request, len);
	spw_store__push_put(store, &request->message);
	return 0;
}

/* Remove const, as an iovec needs: the worker only reads the bytes of a put. */
static struct iovec run_of(const void *bytes, size_t len)
{
	struct iovec run = {.iov_len = len};

	memcpy(&run.iov_base, &bytes, sizeof(run.iov_base));
	return run;
}

int spw_store_put(struct spw_store *store, const void *bytes, size_t len,
		  const struct spw_notify *notify, spw_object *id, struct spw_request **out)
{
	struct iovec run = run_of(bytes, len);

	return put(store, &run, bytes ? 1 : 0, 1, PLACEMENT_STEP, notify, id, out);
}

int spw_store_put_copies(struct spw_store *store, const void *bytes, size_t len, unsigned copies,
			 const struct spw_notify *notify, spw_object *id, struct spw_request **out)
{
	struct iovec run = run_of(bytes, len);

	return put(store, &run, bytes ? 1 : 0, copies, PLACEMENT_LASTING, notify, id, out);
}

int spw_store_putv(struct spw_store *store, const struct iovec vector[], unsigned count,
		   const struct spw_notify *notify, spw_object *id, struct spw_request **out)
{
	return put(store, vector, count, 1, PLACEMENT_STEP, notify, id, out);
}

int spw_store_getv(struct spw_store *store, spw_object id, uint64_t offset,
		   const struct iovec vector[], unsigned count, enum spw_class cls,
		   const struct spw_notify *notify, struct spw_request **out)
{
	struct spw_request *request;
	struct object *object;
	uint64_t len;
	int rc;

	if (out)
		*out = NULL;
	rc = measure(vector, count, &len);
	if (rc)
		return rc;
	if (len == 0 || (!notify && !out) || cls < SPW_URGENT_READ || cls >= SPW_CLASSES)
		return spw_error(
			-EINVAL,
			"get needs memory, a class, and a notify or a request to wait for");
	rc = spw_store__owned(store);
	if (!rc)
		rc = spw_store__object_acquire(store, id, offset, len, &object);
	if (rc)
		return rc;
	request = spw_store__request_take(store, REQUEST_GET, object, notify, out);
	if (!request)
		return -ENOBUFS;
	set_vector(request, vector, count);
	request->len_bytes = len;
	request->offset_bytes = offset;
	atomic_store_explicit(&request->cls, cls, memory_order_relaxed);
	spw_store__pressure_begin(request);
	SPW_PROBE(get_begin, request, len);
	spw_store__push(store, &request->message);
	return 0;
}

int spw_store_get(struct spw_store *store, spw_object id, uint64_t offset, void *bytes, size_t len,
		  enum spw_class cls, const struct spw_notify *notify, struct spw_request **out)
{
	const struct iovec run = {.iov_base = bytes, .iov_len = len};

	return spw_store_getv(store, id, offset, &run, bytes ? 1 : 0, cls, notify, out);
}

/* ---- Requests without an object ---- */

static int submit_control(struct spw_store *store, enum request_kind kind, uint64_t what,
			  void *bytes, uint64_t len, const struct spw_notify *notify,
			  struct spw_request **out)
{
	struct spw_request *request;

	if (out)
		*out = NULL;
	if (!notify && !out)
		return spw_error(-EINVAL, "a notify or a request to wait for is needed");
	if (spw_store__owned(store))
		return -EPERM;
	request = spw_store__request_take(store, kind, NULL, notify, out);
	if (!request)
		return -ENOBUFS;
	request->offset_bytes = what;
	request->vector = NULL;
	request->run.iov_base = bytes;
	request->len_bytes = len;
	spw_store__push(store, &request->message);
	return 0;
}

int spw_store_flush(struct spw_store *store, const struct spw_notify *notify,
		    struct spw_request **out)
{
	return submit_control(store, REQUEST_FLUSH, UINT64_MAX, NULL, 0, notify, out);
}

int spw_store_trim(struct spw_store *store, const struct spw_notify *notify,
		   struct spw_request **out)
{
	int rc = may_write(store);

	return rc ? rc : submit_control(store, REQUEST_TRIM, 0, NULL, 0, notify, out);
}

int spw_store__control_run(struct spw_store *store, enum request_kind kind, uint64_t what,
			   void *bytes, uint64_t len)
{
	struct spw_request *request;
	int rc = submit_control(store, kind, what, bytes, len, NULL, &request);

	return rc ? rc : spw_request_wait(request);
}

int spw_store_revive(struct spw_store *store, unsigned drive)
{
	int rc = spw_store__drive_exists(store, drive);

	return rc ? rc : spw_store__control_run(store, REQUEST_REVIVE, drive, NULL, 0);
}

int spw_store_register(struct spw_store *store, void *memory, size_t len)
{
	return spw_store__control_run(store, REQUEST_REGISTER, 0, memory, len);
}

int spw_store_unregister(struct spw_store *store, void *memory)
{
	return spw_store__control_run(store, REQUEST_UNREGISTER, 0, memory, 0);
}
