/* SPDX-License-Identifier: MIT */
/*
 * state/order.c - the order of the next uses of records: the rest of the current pass, and then the
 * same pass reversed
 *
 * A record that was not yet used in this pass is used next at its place in the order. A record that
 * was used comes next in the following pass, which is assumed to run backwards. Records that the
 * order does not name come after all others, the one that was taken last first.
 */
#include "state/internal.h"

struct walk spw_state__order_walk(const struct spw_state *state)
{
	return (struct walk){.place = state->position};
}

bool spw_state__order_next(const struct spw_state *state, struct walk *walk, uint32_t *number)
{
	if (!walk->back) {
		while (walk->place < state->order_count) {
			*number = state->order[walk->place++];
			if (!state->records[*number].used)
				return true;
		}
		walk->back = true;
	}
	while (walk->place > 0) {
		*number = state->order[--walk->place];
		if (state->records[*number].used)
			return true;
	}
	return false;
}

uint64_t spw_state__order_use(const struct spw_state *state, const struct record *record)
{
	if (record->place == NONE)
		return UINT64_MAX - record->taken_last;
	if (!record->used)
		return record->place;
	SPW_ASSERT(record->place < state->order_count);
	return 2 * (uint64_t)state->order_count - 1 - record->place;
}

void spw_state__order_used(struct spw_state *state, uint32_t number)
{
	struct record *record = &state->records[number];

	if (state->count.passes > 0 &&
	    (state->position == state->order_count || state->order[state->position] != number) &&
	    !state->departed) {
		state->departed = true;
		state->count.passes_departed++;
	}
	SPW_ASSERT(state->position <= state->order_count);
	record->used = true;
	while (state->position < state->order_count &&
	       state->records[state->order[state->position]].used)
		state->position++;
}
