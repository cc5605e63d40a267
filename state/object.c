/* SPDX-License-Identifier: MIT */
/* state/object.c - get and set the objects of records that the caller reads and writes itself */
#include <errno.h>

#include "state/internal.h"

static int enter_object(struct spw_state *state, uint32_t number)
{
	int rc = spw_state__enter_attached(state);

	if (rc == 0 && (number >= state->count.records || !state->records[number].callers))
		rc = spw_error(-EINVAL,
			       "record %u is not an object of the caller's: see "
			       "spw_state_add_object()",
			       number);
	return rc;
}

int spw_state_object(struct spw_state *state, uint32_t number, spw_object *object)
{
	int rc = enter_object(state, number);

	*object = (spw_object){0};
	if (rc == 0)
		*object = state->records[number].object;
	return rc;
}

int spw_state_set_object(struct spw_state *state, uint32_t number, spw_object object)
{
	int rc = enter_object(state, number);

	if (rc == 0)
		state->records[number].object = object;
	return rc;
}
