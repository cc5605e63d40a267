/* SPDX-License-Identifier: MIT */
/* hooks/kept.c - saved tensors that are not offloaded, and those that the plan keeps */
#include "kept.h"
#include "recompute.h"

/* Checked as PyTorch would check it. */
struct kept {
	/* without the graph: an output that holds its own node would never be freed */
	PyObject_HEAD PyObject *tensor;
	PyObject *counted; /* kept alive so that the cache counts the whole storage; or NULL */
	int64_t version;
	struct session *session; /* that the plan keeps it in; or NULL, and the rest is not set */
	struct spw_kept kept;
	/* what is saved of the same bytes has these, too, and the first one as @counted */
	uint64_t address; /* 0: it is not the first one */
	unsigned long long step;
	struct kept *next; /* of its chain */
};

/* ---- Those that the plan keeps, by their address ---- */

#define CHAINS_FIRST 256u

static struct kept **chain_of(const struct kept_table *table, uint64_t address)
{
	return &table->chains[(address * UINT64_C(0x9e3779b97f4a7c15) >> 32) & (table->max - 1)];
}

static int table_grow(struct kept_table *table)
{
	struct kept_table grown = {.max = table->max ? 2 * table->max : CHAINS_FIRST,
				   .count = table->count};

	grown.chains = PyMem_Calloc(grown.max, sizeof(grown.chains[0]));
	if (!grown.chains) {
		PyErr_NoMemory();
		return -1;
	}
	for (size_t i = 0; i < table->max; i++) {
		for (struct kept *next, *kept = table->chains[i]; kept; kept = next) {
			struct kept **chain = chain_of(&grown, kept->address);

			next = kept->next;
			kept->next = *chain;
			*chain = kept;
		}
	}
	PyMem_Free(table->chains);
	*table = grown;
	return 0;
}

static void table_add(struct kept_table *table, struct kept *kept)
{
	struct kept **chain = chain_of(table, kept->address);

	SPW_ASSERT(kept->address != 0 && table->count < table->max);
	kept->next = *chain;
	*chain = kept;
	table->count++;
}

static void table_remove(struct kept_table *table, const struct kept *kept)
{
	struct kept **link = chain_of(table, kept->address);

	for (; *link != kept; link = &(*link)->next)
		SPW_ASSERT(*link);
	*link = kept->next;
	table->count--;
}

/* The last one that was kept at an address in this step; or NULL. */
static struct kept *kept_at(const struct session *session, uint64_t address)
{
	struct kept *kept = session->kept.max ? *chain_of(&session->kept, address) : NULL;

	while (kept && (kept->address != address || kept->step != session->steps))
		kept = kept->next;
	return kept;
}

/* ---- As a Python object ---- */

static void kept_dealloc(PyObject *object)
{
	struct kept *kept = (struct kept *)object;
	struct spw_cache *cache;

	if (kept->session && kept->address != 0) {
		table_remove(&kept->session->kept, kept);
		cache = atomic_load(&kept->session->leases->open);
		if (cache)
			library.kept_gone(cache, &kept->kept);
	}
	Py_XDECREF(kept->tensor);
	Py_XDECREF(kept->counted);
	Py_XDECREF((PyObject *)kept->session);
	object_free(object);
}

PyObject *kept_unpack(PyObject *object)
{
	struct kept *kept = (struct kept *)object;
	struct session *session = kept->session;
	struct spw_cache *cache = session ? atomic_load(&session->leases->open) : NULL;
	int64_t now;

	if (session)
		session->unpacked = true;
	if (cache && library.kept_used(cache, &kept->kept)) {
		Py_INCREF(object);
		session_drain(session);
		Py_DECREF(object);
	}
	if (version_number(kept->tensor, &now))
		return NULL;
	if (now != kept->version) {
		(void)raise_modified(kept->tensor, now, kept->version);
		return NULL;
	}
	return new_ref(kept->tensor);
}

PyTypeObject *kept_type;
PyType_Spec kept_spec = {
	.name = "spillway._hooks.Kept",
	.basicsize = sizeof(struct kept),
	.flags = MADE_HERE,
	.slots =
		(PyType_Slot[]){
			{Py_tp_doc, "A saved tensor that is not offloaded."},
			{Py_tp_dealloc, kept_dealloc},
			{0, NULL},
		},
};

PyObject *kept_new(const struct seen *seen)
{
	int as_it_is = seen_is_parameter(seen);
	struct kept *kept = as_it_is < 0 ? NULL : PyObject_New(struct kept, kept_type);

	if (!kept)
		return NULL;
	kept->counted = NULL;
	kept->session = NULL;
	kept->tensor = as_it_is ? new_ref(seen->tensor) : call(torch.detach, seen->tensor);
	if (!kept->tensor || version_number(kept->tensor, &kept->version))
		Py_CLEAR(kept);
	return (PyObject *)kept;
}

int kept_counts(PyObject *kept, PyObject *counted)
{
	SPW_ASSERT(!((struct kept *)kept)->counted);
	((struct kept *)kept)->counted = counted;
	return counted ? 0 : -1;
}

/* ---- By the plan ---- */

static uint64_t number_of_save(struct session *session)
{
	if (session->saves_step != session->steps) {
		session->saves_step = session->steps;
		session->saves = 0;
	}
	return ++session->saves;
}

/* Whether what is saved now is recomputed whatever the plan says. */
static bool is_given_up(const struct session *session)
{
	const struct frame *frame = frame_now(session);

	return session->discards_all || (frame && frame->is_decided);
}

/* The same bytes as of @first are saved once more. */
static PyObject *kept_again(struct session *session, const struct seen *seen, struct kept *first)
{
	struct spw_cache *cache = atomic_load(&session->leases->open);
	struct kept *again;

	Py_INCREF((PyObject *)first);
	again = (struct kept *)kept_new(seen);
	if (!again) {
		Py_DECREF((PyObject *)first);
		return NULL;
	}
	again->session = new_ref(session);
	again->kept = first->kept;
	again->address = 0;
	again->counted = (PyObject *)first;
	if (cache)
		library.kept_again(cache, &first->kept);
	return (PyObject *)again;
}

/* The plan keeps the tensor: the cache counts it from now on. */
static PyObject *kept_first(struct session *session, const struct seen *seen,
			    const struct spw_kept *planned, uint64_t address)
{
	struct kept *kept = (struct kept *)kept_new(seen);
	struct spw_cache *cache;

	if (!kept || (session->kept.count == session->kept.max && table_grow(&session->kept))) {
		cache = atomic_load(&session->leases->open);
		if (cache)
			library.kept_gone(cache, planned);
		Py_XDECREF((PyObject *)kept);
		return NULL;
	}
	kept->session = new_ref(session);
	kept->kept = *planned;
	kept->address = address;
	kept->step = session->steps;
	table_add(&session->kept, kept);
	return (PyObject *)kept;
}

/* Whether the plan may keep what is saved now. */
static bool may_keep(const struct session *session, const struct seen *seen)
{
	/*
	 * A recording has what each save and use does; parameters on drives do not stay; what is
	 * used of a device's tensor passes through on_device.c.
	 */
	return seen->as == SEEN_SAVED && (PyObject *)Py_TYPE(seen->tensor) == torch.tensor_type &&
	       atomic_load(&session->leases->open) && atomic_load(&session->leases->cache) &&
	       session->tracer == Py_None && session->places == Py_None &&
	       session->device == Py_None && !is_given_up(session);
}

/* Look for the same bytes, else ask for the plan. Return: NULL with an exception; or neither */
static PyObject *keep(struct session *session, const struct seen *seen)
{
	struct spw_kept planned;
	uint64_t address, length;
	struct kept *first;
	struct spw_cache *cache;
	PyObject *kept;
	int64_t version;
	int result;

	if (to_uint64(call(torch.address, seen->tensor), &address) ||
	    to_uint64(get(&torch.length, seen->tensor), &length) || address == 0)
		return NULL;
	first = kept_at(session, address);
	if (first && version_number(seen->tensor, &version))
		return NULL;
	if (first && version == first->version)
		return kept_again(session, seen, first);
	/* What was asked of the tensor may run Python, in which another thread closes it. */
	cache = atomic_load(&session->leases->open);
	if (!cache)
		return NULL;
	result = library.keep(cache, seen->number, length, &planned);
	if (result < 0)
		session->planless_step = session->steps;
	if (result <= 0)
		return NULL;
	kept = kept_first(session, seen, &planned, address);
	if (kept && result == 2)
		session_drain(session);
	if (kept)
		session_throttle(session);
	return kept;
}

PyObject *kept_by_plan(struct session *session, struct seen *seen)
{
	uint64_t number = number_of_save(session);
	PyObject *kept;

	if (!may_keep(session, seen))
		return NULL;
	seen->number = number;
	if (session->planless_step == session->steps && session->kept.count == 0)
		return NULL;
	kept = keep(session, seen);
	if (!kept && PyErr_Occurred())
		(void)was_refused(); /* what is not plain is saved in another way */
	return kept;
}

PyObject *kept_before(struct session *session, const struct seen *seen,
		      const struct spw_offer *offer, int64_t number)
{
	struct kept *first = NULL;

	if (seen->as != SEEN_INPUT)
		first = kept_at(session, (uint64_t)(uintptr_t)offer->storage_bytes);
	return first && first->version == number ? kept_again(session, seen, first) : NULL;
}
