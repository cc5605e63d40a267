/* SPDX-License-Identifier: MIT */
/*
 * state/ahead.c - prefetch the records that are used next, and evict those used last
 *
 * As many records are wanted as there are buffers that the caller is not using: the next few in the
 * order, then those in memory that this pass still uses, then again the next in the order. Wanted
 * records on the drives are read, the nearest use first. The others make room, the farthest use
 * first: a clean record is dropped when its buffer is needed, a changed record is written as soon
 * as it is known that its buffer will be needed.
 *
 * If passes over N records alternate in direction, the B records in buffers at the end of a pass
 * are the first of the next pass: N - B are read and as many written, at any speed of the drives.
 * If all passes have the same direction, which is known only when the next one begins, the B
 * records are the last of the next pass too; all but a few of them stay in memory.
 *
 * These few (the minimum resident set) are: one record in use, one ready, and those being read and
 * written. With four buffers one is used, one ready, one read and one written: when the caller
 * gives a record and takes the next, the write that has completed leaves its buffer to the next
 * read. So a pass takes as long as the slowest of computing, reading and writing.
 */
#include "state/internal.h"

static void want(struct spw_state *state, uint32_t number)
{
	SPW_ASSERT(state->wanted_count < 2 * state->count.buffers);
	state->records[number].wanted = state->looks;
	state->wanted[state->wanted_count++] = number;
}

static bool is_wanted(const struct spw_state *state, const struct record *record)
{
	return record->wanted == state->looks;
}

/* Add the records with the nearest use, until @count are wanted. */
static void want_nearest(struct spw_state *state, uint32_t count)
{
	struct walk walk = spw_state__order_walk(state);
	uint32_t number;

	while (state->wanted_count < count && spw_state__order_next(state, &walk, &number))
		if (!is_wanted(state, &state->records[number]) &&
		    state->records[number].state != RECORD_TAKEN)
			want(state, number);
}

/* Whether this pass still uses a record, which has a buffer. */
static bool is_early(const struct record *record)
{
	return record->place != NONE && !record->used && record->state != RECORD_TAKEN;
}

/* Drop the record with the farthest use from those that are wanted from index @begin on. */
static void want_one_less(struct spw_state *state, uint32_t begin)
{
	uint32_t farthest = begin, last = --state->wanted_count;

	SPW_ASSERT(last >= begin);
	for (uint32_t i = begin + 1; i <= last; i++)
		if (state->records[state->wanted[i]].place >
		    state->records[state->wanted[farthest]].place)
			farthest = i;
	state->records[state->wanted[farthest]].wanted = 0;
	state->wanted[farthest] = state->wanted[last];
}

/*
 * Add the records that are in memory before their use in this pass; if more than @count are wanted
 * then, drop those with the farthest use.
 */
static void want_those_in_memory(struct spw_state *state, uint32_t count)
{
	uint32_t begin = state->wanted_count;

	for (uint32_t i = 0; i < state->count.buffers; i++) {
		uint32_t number = state->buffer_records[i];

		if (number != NONE && is_early(&state->records[number]) &&
		    !is_wanted(state, &state->records[number]))
			want(state, number);
	}
	while (state->wanted_count > count)
		want_one_less(state, begin);
}

/* Find the wanted records; @first, if not NONE, is wanted in any case. */
static void look(struct spw_state *state, uint32_t first)
{
	uint32_t room = state->count.buffers - state->taken;

	SPW_ASSERT(state->taken < state->count.buffers);
	state->looks++;
	state->wanted_count = 0;
	if (first != NONE)
		want(state, first);
	want_nearest(state, SPW_MIN(state->few - SPW_MIN(state->taken, state->few), room));
	want_those_in_memory(state, room);
	want_nearest(state, room);
}

/*
 * The record in state @of that is not wanted and has the farthest use, or NONE. A record whose
 * write failed in this call is skipped: it is not retried before the next call.
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
		use = spw_state__order_use(state, record);
		if (found == NONE || use > found_use || (use == found_use && number > found)) {
			found = number;
			found_use = use;
		}
	}
	return found;
}

/* Make a buffer free if none is, by dropping a clean record. Return: whether a buffer is free. */
static bool free_buffer(struct spw_state *state)
{
	uint32_t number;

	if (state->buffers_free_count > 0)
		return true;
	number = farthest(state, RECORD_CLEAN);
	if (number == NONE)
		return false;
	SPW_ASSERT(!is_wanted(state, &state->records[number])); /* STATE-5 */
	spw_state__record_put_buffer(state, number);
	return true;
}

/* A failed read is retried only for a caller that takes the record, once per call. */
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

/* Start reads of wanted records. Return: how many of them still have no buffer. */
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
		/* Stop at the first record that gets no buffer: later ones must not overtake it. */
		full = !may_transfer(state, number, first) || !free_buffer(state);
		if (!full &&
		    spw_state__transfer_load(state, number,
					     number == first ? SPW_URGENT_READ : SPW_PREFETCH))
			missing--;
	}
	return missing;
}

/* The number of buffers that are free, or will be without another write. */
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

void spw_state__ahead(struct spw_state *state, uint32_t first)
{
	uint32_t missing, room;

	spw_state__transfer_reap(state);
	look(state, first);
	missing = bring(state, first);
	room = missing > 0 ? room_coming(state) : 0;
	while (room < missing && state->storing < state->transfers_max) {
		uint32_t number = farthest(state, RECORD_CHANGED);

		if (number == NONE)
			break;
		room += spw_state__transfer_store(state, number);
	}
}
