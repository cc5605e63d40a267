/* SPDX-License-Identifier: MIT */
/* state/pass.c - spw_state_pass(): the order in which the caller will take records */
#include <errno.h>

#include "state/internal.h"

/* Check the order of a pass. If it is refused, the current pass goes on. */
static int check_order(struct spw_state *state, const uint32_t order[], uint32_t count)
{
	uint64_t pass = ++state->passes_named;

	if (state->taken > 0)
		return spw_error(-EBUSY,
				 "%u records are taken: give them back before a pass begins",
				 state->taken);
	for (uint32_t i = 0; i < count; i++) {
		if (order[i] >= state->count.records)
			return spw_error(-EINVAL, "record %u of a pass: there are %u", order[i],
					 state->count.records);
		if (state->records[order[i]].callers)
			return spw_error(-EINVAL,
					 "record %u (%s) of a pass is an object of the caller's",
					 order[i], state->records[order[i]].name);
		if (state->records[order[i]].named == pass)
			return spw_error(-EINVAL, "record %u (%s) is twice in the order of a pass",
					 order[i], state->records[order[i]].name);
		state->records[order[i]].named = pass;
	}
	return 0;
}

int spw_state_pass(struct spw_state *state, const uint32_t order[], uint32_t count)
{
	int rc = spw_state__enter_attached(state);

	if (rc == 0)
		rc = check_order(state, order, count);
	if (rc)
		return rc;
	for (uint32_t i = 0; i < state->count.records; i++) {
		state->records[i].place = NONE;
		state->records[i].used = false;
		state->records[i].update = UPDATE_NONE; /* of an update that has not ended */
	}
	for (uint32_t i = 0; i < count; i++) {
		state->order[i] = order[i];
		state->records[order[i]].place = i;
	}
	SPW_ASSERT(count <= state->count.records);
	state->order_count = count;
	state->position = 0;
	state->departed = false;
	state->count.passes++;
	spw_state__ahead(state, NONE);
	return 0;
}
