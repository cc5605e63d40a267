/* SPDX-License-Identifier: MIT */
/* hooks/session.c - struct session: reap tokens, throttle the forward pass, remember storages */
#include "session.h"

#define DRAIN_MAX   64
#define DRAIN_CALLS 4 /* drain once per this many saves and uses of up to DRAIN_BYTES */
#define DRAIN_BYTES (256u << 10)

/* Nothing is known of the owner's storage any more: it need not be looked for later. */
static void forget_storage(struct session *session, const struct owner *owner)
{
	struct record *record = owner->record;

	if (!record->version && Py_REFCNT((PyObject *)record) == 2 &&
	    PyDict_GetItem(session->records, record->identity) == (PyObject *)record)
		(void)PyDict_DelItem(session->records, record->identity);
}

/*
 * Mark all reaped owners before dropping one: dropping may switch to a thread that takes the same
 * bytes, and must see the mark.
 */
void session_drain(struct session *session)
{
	struct owner gone[DRAIN_MAX];
	uint64_t tokens[DRAIN_MAX];
	int count = DRAIN_MAX;

	SPW_ASSERT(gil_is_held());
	session->undrained = 0;
	while (count == DRAIN_MAX) {
		struct spw_cache *cache = atomic_load(&session->leases->open);
		int found = 0;

		count = cache ? library.drain(cache, tokens, DRAIN_MAX) : 0;
		SPW_ASSERT(count <= DRAIN_MAX);
		for (int i = 0; i < count; i++) {
			struct owner *owner = owner_of(&session->owners, tokens[i]);

			if (!owner)
				continue;
			owner_mark(owner);
			forget_storage(session, owner);
			gone[found++] = owner_remove(&session->owners, owner);
		}
		while (found > 0)
			owner_drop(&gone[--found]);
	}
}

void session_drain_at_times(struct session *session, uint64_t len_bytes)
{
	session->undrained++;
	if (len_bytes > DRAIN_BYTES || session->undrained >= DRAIN_CALLS)
		session_drain(session);
}

void session_throttle(struct session *session)
{
	struct leases *leases = session->leases;
	struct spw_cache *cache = atomic_load(&leases->open);

	if (!cache || library.hold_back(cache, false) == 0)
		return;
	leases_user_begins(leases);
	Py_BEGIN_ALLOW_THREADS;
	(void)library.hold_back(cache, true);
	Py_END_ALLOW_THREADS;
	SPW_ASSERT(gil_is_held());
	leases_user_ended(leases);
	session_drain(session);
}

int session_prune(struct session *session)
{
	PyObject *left = PyDict_New(), *key, *value;
	Py_ssize_t place = 0;

	if (!left)
		return -1;
	while (PyDict_Next(session->records, &place, &key, &value)) {
		struct record *record = (struct record *)value;
		int expired = to_bool(call(torch.expired, record->weak));

		if (expired < 0 || (expired == 0 && PyDict_SetItem(left, key, value))) {
			Py_DECREF(left);
			return -1;
		}
	}
	set_ref(&session->records, left);
	session->prune_at = 2 * PyDict_Size(left);
	if (session->prune_at < PRUNE_MIN)
		session->prune_at = PRUNE_MIN;
	return 0;
}

struct record *session_record(struct session *session, const struct seen *seen)
{
	PyObject *found = PyDict_GetItemWithError(session->records, seen->identity);
	struct record *record;

	SPW_ASSERT(seen->identity && session->prune_at >= PRUNE_MIN);
	if (found)
		return new_ref(found);
	if (PyErr_Occurred() ||
	    (PyDict_Size(session->records) >= session->prune_at && session_prune(session)))
		return NULL;
	record = record_new(seen, ++session->serial);
	if (record && PyDict_SetItem(session->records, seen->identity, (PyObject *)record))
		Py_CLEAR(record);
	return record;
}

struct spw_cache *session_cache(struct session *session)
{
	return leases_cache(session->leases, session->cache);
}
