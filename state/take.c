/* SPDX-License-Identifier: MIT */
/* state/take.c - spw_state_take() and spw_state_give(): the caller uses a record's buffer */
#include <errno.h>

#include "state/internal.h"

static int check_take(struct spw_state *state, uint32_t number)
{
	int rc = spw_state__enter_record(state, number);

	if (rc)
		return rc;
	if (state->records[number].state == RECORD_TAKEN)
		return spw_error(-EALREADY, "record %s is taken", state->records[number].name);
	if (state->taken + 1 >= state->count.buffers)
		return spw_error(-ENOBUFS,
				 "%u records are taken, of %u buffers: give one back, or open the "
				 "state with more memory_bytes",
				 state->taken, state->count.buffers);
	return 0;
}

/* No buffer, and no transfer in flight: a write that would have made room has failed. */
static int no_room(const struct spw_state *state, const struct record *record)
{
	const struct failure *failure = &state->write_failure;

	SPW_ASSERT(failure->call == state->calls);
	return spw_error(failure->error, "no room for record %s, as another cannot be written: %s",
			 record->name, failure->words);
}

static int wait_until_ready(struct spw_state *state, uint32_t number)
{
	const struct record *record = &state->records[number];

	while (!record_is_ready(record)) {
		int rc;

		if (record->state == RECORD_STORED && record->read_failed == state->calls)
			return spw_error(state->read_failure.error, "record %s cannot be read: %s",
					 record->name, state->read_failure.words);
		if (state->request_count == 0)
			return no_room(state, record);
		if (record->state == RECORD_LOADING)
			spw_state__transfer_raise(state, number);
		rc = spw_state__transfer_wait(state);
		if (rc)
			return rc;
		spw_state__ahead(state, number);
	}
	return 0;
}

/* Return: the ns waited, or a negative errno. */
static int64_t make_ready(struct spw_state *state, uint32_t number)
{
	struct record *record = &state->records[number];
	uint64_t began_ns;
	int rc;

	spw_state__ahead(state, number);
	if (record_is_ready(record)) {
		state->count.ready += record->ahead;
		state->count.hits += !record->ahead;
		return 0;
	}
	began_ns = spw_clock_ns();
	state->count.waits_for_write += record->state == RECORD_STORING;
	rc = wait_until_ready(state, number);
	if (rc)
		return rc;
	began_ns = spw_clock_ns() - began_ns;
	state->count.waits++;
	state->count.wait_ns += began_ns;
	return (int64_t)began_ns;
}

int spw_state_take(struct spw_state *state, uint32_t number, void **memory)
{
	struct record *record;
	int64_t waited_ns;
	int rc;

	*memory = NULL;
	rc = check_take(state, number);
	if (rc)
		return rc;
	waited_ns = make_ready(state, number);
	if (waited_ns < 0)
		return (int)waited_ns;
	record = &state->records[number];
	SPW_ASSERT(record_is_ready(record) && state->taken + 1 < state->count.buffers);
	record->changed = record->state == RECORD_CHANGED;
	record->ahead = false;
	record->taken_last = ++state->count.takes;
	spw_state__record_become(state, number, RECORD_TAKEN);
	spw_state__order_used(state, number);
	spw_state__update_taken(record);
	*memory = record_memory(state, record);
	spw_state__ahead(state, NONE);
	SPW_PROBE(state_take, state, number, record->len_bytes, waited_ns);
	return 0;
}

int spw_state_give(struct spw_state *state, uint32_t number, bool changed)
{
	struct record *record;
	int rc = spw_state__enter_record(state, number);

	if (rc)
		return rc;
	record = &state->records[number];
	if (record->state != RECORD_TAKEN)
		return spw_error(-EINVAL, "record %s is not taken", record->name);
	spw_state__update_given(state, record);
	spw_state__record_become(state, number,
				 changed || record->changed ? RECORD_CHANGED : RECORD_CLEAN);
	spw_state__ahead(state, NONE);
	return 0;
}
