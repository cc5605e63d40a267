/* SPDX-License-Identifier: MIT */
/* hooks/session.c - a session: the memory that the cache may still read, and known storages */
#include "hooks.h"

#define DRAIN_MAX    64
#define DRAIN_CALLS  4 /* saving and using tensors up to DRAIN_BYTES drains once in so many */
#define DRAIN_BYTES  (256u << 10)
#define OWNERS_FIRST 64
#define PLACE_BITS   24

/* ---- Owners ---- */

/* A token names a place and, as another owner may come to be there, a number. */
static uint64_t token_of(uint32_t place, uint64_t serial)
{
	return serial << PLACE_BITS | place;
}

struct owner *owner_of(const struct owners *owners, uint64_t token)
{
	uint32_t place = (uint32_t)token & ((1u << PLACE_BITS) - 1);

	if (token == 0 || place >= owners->max || owners->all[place].token != token)
		return NULL;
	return &owners->all[place];
}

static int owners_grow(struct owners *owners)
{
	uint32_t max = owners->max ? 2 * owners->max : OWNERS_FIRST;
	struct owner *all;

	if (max > 1u << PLACE_BITS) {
		PyErr_SetString(PyExc_MemoryError, "too many tensors are saved at once");
		return -1;
	}
	all = PyMem_Realloc(owners->all, max * sizeof(*all));
	if (!all) {
		PyErr_NoMemory();
		return -1;
	}
	for (uint32_t place = max; place-- > owners->max;) {
		all[place] = (struct owner){.next = owners->free};
		owners->free = place + 1;
	}
	owners->all = all;
	owners->max = max;
	return 0;
}

uint64_t owner_add(struct owners *owners, PyObject *tensor, struct version *version,
		   struct record *record, uint64_t address)
{
	struct owner *owner;
	uint32_t place;

	if (owners->free == 0 && owners_grow(owners))
		return 0;
	place = owners->free - 1;
	owner = &owners->all[place];
	owners->free = owner->next;
	owners->held++;
	*owner = (struct owner){.token = token_of(place, ++owners->serial),
				.tensor = new_ref(tensor),
				.version = version_hold(version),
				.record = new_ref(record),
				.address = address};
	return owner->token;
}

bool owner_hold(struct owners *owners, uint64_t token, PyObject *held)
{
	struct owner *owner = owner_of(owners, token);

	if (!owner)
		return false;
	owner->is_held = true;
	set_ref(&owner->tensor, new_ref(held));
	return true;
}

/* The caller has to drop what it held. */
static struct owner owner_remove(struct owners *owners, struct owner *owner)
{
	struct owner removed = *owner;

	*owner = (struct owner){.next = owners->free};
	owners->free = (uint32_t)(owner - owners->all) + 1;
	owners->held--;
	return removed;
}

static void owner_drop(const struct owner *removed)
{
	PyObject *nothing = removed->device ? removed->device->nothing : torch.nothing;

	if (removed->is_held && removed->version->moved != removed->tensor)
		version_part(removed->version, removed->tensor, removed->is_shown, nothing);
	version_drop(removed->version);
	Py_DECREF(removed->record);
	Py_DECREF(removed->tensor);
	Py_XDECREF(removed->stream);
	Py_XDECREF(removed->produced);
}

void owner_end(struct owners *owners, struct owner *owner)
{
	struct owner removed = owner_remove(owners, owner);

	owner_drop(&removed);
}

void owners_end(struct owners *owners)
{
	for (uint32_t place = 0; place < owners->max; place++)
		if (owners->all[place].token != 0)
			owner_end(owners, &owners->all[place]);
	PyMem_Free(owners->all);
	owners->all = NULL;
	owners->max = owners->free = 0;
}

/*
 * The cache needs the memory no longer. Marks whether it was modified while the cache still read
 * it; or is another: a tensor that is sent to another process, or resized, takes its bytes to other
 * memory, and others may have used what it had before the cache read it. No thread switch in here.
 */
static void owner_mark(const struct owner *owner)
{
	uint64_t address;
	int64_t number;

	if (tensor_state(owner->tensor, &number, &address)) {
		PyErr_Clear();
		owner->version->modified = true;
		return;
	}
	if (number != owner->version->number)
		owner->version->modified = true;
	if (address == owner->address)
		return;
	if (owner->is_held)
		record_moved(owner->record, owner->version, owner->tensor);
	else
		owner->version->modified = true;
}

/* ---- What it does ---- */

/* All is marked before anything is let go: a thread that takes the bytes then sees the mark. */
void session_drain(struct session *session)
{
	struct owner gone[DRAIN_MAX];
	uint64_t tokens[DRAIN_MAX];
	int count = DRAIN_MAX;

	session->undrained = 0;
	while (count == DRAIN_MAX) {
		struct spw_cache *cache = atomic_load(&session->leases->open);
		int found = 0;

		count = cache ? library.drain(cache, tokens, DRAIN_MAX) : 0;
		for (int i = 0; i < count; i++) {
			struct owner *owner = owner_of(&session->owners, tokens[i]);

			if (!owner)
				continue;
			owner_mark(owner);
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

void session_hold_back(struct session *session)
{
	struct leases *leases = session->leases;
	struct spw_cache *cache = atomic_load(&leases->open);

	if (!cache || library.hold_back(cache, false) == 0)
		return;
	atomic_fetch_add(&leases->users, 1); /* it stays open */
	Py_BEGIN_ALLOW_THREADS;
	(void)library.hold_back(cache, true);
	Py_END_ALLOW_THREADS;
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
