/* SPDX-License-Identifier: MIT */
/* state/record.c - change a record's state, give it a buffer, find it by its name */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "state/internal.h"

#define BIT(state) (1u << (state))

/* The states that may follow each state. */
static const uint8_t allowed[RECORD_STATES] = {
	[RECORD_STORED] = BIT(RECORD_LOADING) | BIT(RECORD_CLEAN), /* read; or all zero */
	[RECORD_LOADING] = BIT(RECORD_CLEAN) | BIT(RECORD_STORED), /* or the transfer failed */
	[RECORD_CLEAN] = BIT(RECORD_TAKEN) | BIT(RECORD_STORED),
	[RECORD_CHANGED] = BIT(RECORD_TAKEN) | BIT(RECORD_STORING) | BIT(RECORD_STORED),
	[RECORD_STORING] = BIT(RECORD_CLEAN) | BIT(RECORD_CHANGED), /* or the transfer failed */
	[RECORD_TAKEN] = BIT(RECORD_CLEAN) | BIT(RECORD_CHANGED),
};

/* The counter of the records in a state, or NULL if it has none. */
static uint32_t *counter_of(struct spw_state *state, enum record_state of)
{
	switch (of) {
	case RECORD_LOADING: return &state->loading;
	case RECORD_STORING: return &state->storing;
	case RECORD_TAKEN: return &state->taken;
	default: return NULL;
	}
}

void spw_state__record_become(struct spw_state *state, uint32_t number, enum record_state next)
{
	struct record *record = &state->records[number];
	uint32_t *before = counter_of(state, record->state), *after = counter_of(state, next);

	SPW_ASSERT(number < state->count.records && !record->callers);
	SPW_ASSERT(allowed[record->state] & BIT(next));
	SPW_ASSERT((record->buffer != NONE) == (next != RECORD_STORED)); /* STATE-1 */
	SPW_ASSERT(!before || *before > 0);
	if (before)
		--*before;
	if (after)
		++*after;
	record->state = next;
}

void spw_state__record_get_buffer(struct spw_state *state, uint32_t number)
{
	struct record *record = &state->records[number];

	SPW_ASSERT(record->state == RECORD_STORED && record->buffer == NONE); /* STATE-1 */
	SPW_ASSERT(state->buffers_free_count > 0);
	record->buffer = state->buffers_free[--state->buffers_free_count];
	SPW_ASSERT(record->buffer < state->count.buffers);
	SPW_ASSERT(state->buffer_records[record->buffer] == NONE);
	state->buffer_records[record->buffer] = number;
}

void spw_state__record_put_buffer(struct spw_state *state, uint32_t number)
{
	struct record *record = &state->records[number];

	/* STATE-3; CHANGED if it is cleared, STORED if its read could not be started. */
	SPW_ASSERT(record->state == RECORD_CLEAN || record->state == RECORD_CHANGED ||
		   record->state == RECORD_LOADING || record->state == RECORD_STORED);
	SPW_ASSERT(state->buffer_records[record->buffer] == number);
	SPW_ASSERT(state->buffers_free_count < state->count.buffers);
	state->buffer_records[record->buffer] = NONE;
	state->buffers_free[state->buffers_free_count++] = record->buffer;
	record->buffer = NONE;
	if (record->state != RECORD_STORED)
		spw_state__record_become(state, number, RECORD_STORED);
}

/* ---- Names ---- */

/* The slot of a name, or the empty slot where it belongs. At least half are empty. */
static uint32_t slot_of(const struct spw_state *state, const char *name, size_t len)
{
	uint32_t slot = (uint32_t)XXH3_64bits(name, len) & state->name_mask;

	while (state->name_slots[slot] != NONE) {
		const struct record *other = &state->records[state->name_slots[slot]];

		if (other->name_len == len && memcmp(other->name, name, len) == 0)
			break;
		slot = (slot + 1) & state->name_mask;
	}
	return slot;
}

uint32_t spw_state__record_find(const struct spw_state *state, const char *name, size_t len)
{
	return state->name_slots ? state->name_slots[slot_of(state, name, len)] : NONE;
}

static void enter(struct spw_state *state, uint32_t number)
{
	const struct record *record = &state->records[number];

	SPW_ASSERT(2 * state->count.records <= state->name_mask + 1); /* half are empty */
	state->name_slots[slot_of(state, record->name, record->name_len)] = number;
}

static int grow(struct spw_state *state)
{
	uint32_t slots = state->name_slots ? 2 * (state->name_mask + 1) : 64;
	uint32_t *grown = malloc(slots * sizeof(*grown));

	if (!grown)
		return -ENOMEM;
	memset(grown, 0xff, slots * sizeof(*grown)); /* NONE */
	free(state->name_slots);
	state->name_slots = grown;
	state->name_mask = slots - 1;
	for (uint32_t i = 0; i + 1 < state->count.records; i++)
		enter(state, i);
	return 0;
}

int spw_state__record_name(struct spw_state *state)
{
	if ((!state->name_slots || 2 * state->count.records > state->name_mask + 1) && grow(state))
		return -ENOMEM;
	enter(state, state->count.records - 1);
	return 0;
}
