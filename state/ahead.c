/* SPDX-License-Identifier: MIT */
/*
 * state/ahead.c - which records are in memory: those that are used next
 *
 * Wanted are as many records as there are buffers that the caller does not have: the next few of
 * the order, then what is in memory already and still to be used in this pass, then the next ones
 * again. What of them is on the drives is read, the nearest first. What is not wanted makes room,
 * the farthest first: a clean record is dropped when its buffer is needed, a changed one is put as
 * soon as it is known that its buffer will be.
 *
 * Of N records in B buffers that are used up and down in turn, the B that were used last are
 * wanted at the end of a pass, and are the first of the next: N - B are read and as many written,
 * however fast the drives are. In the same direction always, which is known only when the next pass
 * begins, those that were used last are used last again, and stay but for the few.
 *
 * The few are one in use, one that is ready, and those that come and go. With four buffers one is
 * used, one ready, one comes and one goes: when the caller gives a record and takes the next one,
 * the put that has ended meanwhile leaves its buffer to the next read. So a pass takes as long as
 * its use, or as its reads, or as its writes, whichever is longest.
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

/* The nearest that are not wanted yet, until there are @count. */
static void want_nearest(struct spw_state *state, uint32_t count)
{
	struct walk walk = spw_state__order_walk(state);
	uint32_t number;

	while (state->wanted_count < count && spw_state__order_next(state, &walk, &number))
		if (!is_wanted(state, &state->records[number]) &&
		    state->records[number].state != RECORD_TAKEN)
			want(state, number);
}

/* Still to be used in this pass, and in memory, or about to be. */
static bool is_early(const struct record *record)
{
	return record->place != NONE && !record->used && record->state != RECORD_TAKEN;
}

/* Of those wanted from @begin on the farthest is not. */
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

/* What is in memory early; the nearest of it, so that there are no more than @count. */
static void want_early(struct spw_state *state, uint32_t count)
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

/* Find what is wanted. */
static void look(struct spw_state *state, uint32_t first)
{
	uint32_t room = state->count.buffers - state->taken;

	SPW_ASSERT(state->taken < state->count.buffers);
	state->looks++;
	state->wanted_count = 0;
	if (first != NONE)
		want(state, first);
	want_nearest(state, SPW_MIN(state->few - SPW_MIN(state->taken, state->few), room));
	want_early(state, room);
	want_nearest(state, room);
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
		use = spw_state__order_use(state, record);
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
	spw_state__record_put_buffer(state, number);
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
		if (!full &&
		    spw_state__transfer_load(state, number,
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
