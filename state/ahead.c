/* SPDX-License-Identifier: MIT */
/*
 * state/ahead.c - which records are in memory: those that are used next
 *
 * Wanted are the records whose next use is nearest, as many as there are buffers that the caller
 * does not have. What of them is on the drives is read, the nearest first. What is not wanted makes
 * room, the farthest first: a clean record is dropped when its buffer is needed, a changed one is
 * put as soon as it is known that its buffer will be. So which records move, and how many bytes,
 * follows from the order alone, not from how fast the drives are; and a record that goes could not
 * have stayed in the place of another that is used later (Belady).
 *
 * Of N records in B buffers that are used up and down in turn, the B that were used last are
 * wanted at the end of a pass, and are the first of the next: N - B are read and as many written.
 *
 * With four buffers one is used, one is ready, one comes and one goes. When the caller gives a
 * record and takes the next one, the put that has ended meanwhile leaves its buffer to the next
 * read: a pass takes as long as its use, or as its reads, or as its writes, whichever is longest.
 */
#include "state/internal.h"

static void want(struct spw_state *state, uint32_t number)
{
	state->records[number].wanted = state->looks;
	state->wanted[state->wanted_count++] = number;
}

/* Find what is wanted. */
static void look(struct spw_state *state, uint32_t first)
{
	struct walk walk = spw_order_walk(state);
	uint32_t room = state->count.buffers - state->taken, number;

	state->looks++;
	state->wanted_count = 0;
	if (first != NONE)
		want(state, first);
	while (state->wanted_count < room && spw_order_next(state, &walk, &number))
		if (number != first && state->records[number].state != RECORD_TAKEN)
			want(state, number);
}

static bool is_wanted(const struct spw_state *state, const struct record *record)
{
	return record->wanted == state->looks;
}

/*
 * Of what is not wanted, and in this state, the record that is used last, or NONE. A put that
 * failed in this call is not made again in it.
 */
static uint32_t farthest(const struct spw_state *state, enum record_state of)
{
	uint32_t found = NONE;
	uint64_t found_use = 0;

	for (uint32_t i = 0; i < state->count.buffers; i++) {
		uint32_t number = state->buffer_records[i];
		const struct record *record = number == NONE ? NULL : &state->records[number];
		uint64_t use;

		if (!record || record->state != of || is_wanted(state, record) ||
		    record->write_failed == state->calls)
			continue;
		use = spw_order_use(state, record);
		if (found == NONE || use > found_use || (use == found_use && number > found)) {
			found = number;
			found_use = use;
		}
	}
	return found;
}

/* Return: whether a buffer is free now. */
static bool free_buffer(struct spw_state *state)
{
	uint32_t number;

	if (state->buffers_free_count > 0)
		return true;
	number = farthest(state, RECORD_CLEAN);
	if (number == NONE)
		return false;
	SPW_ASSERT(!is_wanted(state, &state->records[number])); /* STATE-5 */
	spw_record_put_buffer(state, number);
	return true;
}

/* A read that failed is made again only for a take, once in each. */
static bool may_load(const struct spw_state *state, uint32_t number, uint32_t first)
{
	uint64_t failed = state->records[number].read_failed;

	return failed == 0 || (number == first && failed != state->calls);
}

static bool may_transfer(const struct spw_state *state, uint32_t number, uint32_t first)
{
	return state->loading < (number == first ? TRANSFERS_MAX : state->transfers_max) ||
	       state->records[number].object.value == 0;
}

/* Return: how many of the wanted records have no buffer yet. */
static uint32_t bring(struct spw_state *state, uint32_t first)
{
	uint32_t missing = 0;
	bool full = false;

	for (uint32_t i = 0; i < state->wanted_count; i++) {
		uint32_t number = state->wanted[i];

		if (state->records[number].state != RECORD_STORED)
			continue;
		missing++;
		if (full || !may_load(state, number, first))
			continue;
		/* In order: a buffer is not given to one that is used later. */
		full = !may_transfer(state, number, first) || !free_buffer(state);
		if (!full && spw_transfer_load(state, number,
					       number == first ? SPW_URGENT_READ : SPW_PREFETCH))
			missing--;
	}
	return missing;
}

/* Buffers that are free, or are about to be without another put. */
static uint32_t room_coming(const struct spw_state *state)
{
	uint32_t room = state->buffers_free_count;

	for (uint32_t i = 0; i < state->count.buffers; i++) {
		uint32_t number = state->buffer_records[i];
		const struct record *record = number == NONE ? NULL : &state->records[number];

		if (record && !is_wanted(state, record) && record->state != RECORD_CHANGED &&
		    record->state != RECORD_TAKEN)
			room++;
	}
	return room;
}

void spw_ahead(struct spw_state *state, uint32_t first)
{
	uint32_t missing, room;

	spw_transfer_reap(state);
	look(state, first);
	missing = bring(state, first);
	room = missing > 0 ? room_coming(state) : 0;
	while (room < missing && state->storing < state->transfers_max) {
		uint32_t number = farthest(state, RECORD_CHANGED);

		if (number == NONE)
			break;
		room += spw_transfer_store(state, number);
	}
}
