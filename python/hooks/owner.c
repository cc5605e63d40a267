/* SPDX-License-Identifier: MIT */
/* hooks/owner.c - owners: tensors that the cache may still read, held until it reaps their token */
#include "owner.h"

#define OWNERS_FIRST 64
#define PLACE_BITS   24

/* A token is the owner's index and, because indices are reused, a serial number. */
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
	SPW_ASSERT(owner->token == 0 && owners->held < owners->max);
	owners->free = owner->next;
	owners->held++;
	*owner = (struct owner){.token = token_of(place, ++owners->serial),
				.tensor = new_ref(tensor),
				.version = version_hold(version),
				.record = new_ref(record),
				.address = address};
	SPW_ASSERT(owner->token != 0);
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

struct owner owner_remove(struct owners *owners, struct owner *owner)
{
	struct owner removed = *owner;

	SPW_ASSERT(owner >= owners->all && owner < owners->all + owners->max);
	SPW_ASSERT(owner->token != 0 && owners->held > 0);
	*owner = (struct owner){.next = owners->free};
	owners->free = (uint32_t)(owner - owners->all) + 1;
	owners->held--;
	return removed;
}

void owner_drop(const struct owner *removed)
{
	PyObject *nothing = removed->nothing ? removed->nothing : torch.nothing;

	SPW_ASSERT(gil_is_held() && removed->version->references > 0);
	if (removed->is_held && removed->version->moved != removed->tensor)
		version_part(removed->version, removed->tensor, removed->is_shown, nothing);
	version_drop(removed->version);
	Py_DECREF(removed->record);
	Py_DECREF(removed->tensor);
	Py_XDECREF(removed->nothing);
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
	SPW_ASSERT(owners->held == 0);
	PyMem_Free(owners->all);
	owners->all = NULL;
	owners->max = owners->free = 0;
}

void owner_mark(const struct owner *owner)
{
	uint64_t address;
	int64_t number;

	SPW_ASSERT(owner->token != 0);
	if (record_forgets(owner->record, owner->version))
		return;
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
