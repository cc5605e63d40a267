/* SPDX-License-Identifier: MIT */
/* state/transfer.c - read records from the drives and write them there, and handle the results */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "state/internal.h"

/* Call this at once after the failure: it copies the thread's last error message. */
static void note_failure(struct spw_state *state, struct failure *failure, int error)
{
	failure->call = state->calls;
	failure->error = error;
	(void)snprintf(failure->words, sizeof(failure->words), "%s", spw_last_error());
}

static void read_failed(struct spw_state *state, uint32_t number, int error)
{
	struct record *record = &state->records[number];

	note_failure(state, &state->read_failure, error);
	state->count.read_failures++;
	record->read_failed = state->calls;
	spw_log(&state->opts.log, SPW_LOG_WARNING, "record %s cannot be read: %s", record->name,
		state->read_failure.words);
}

/* The record keeps its bytes in memory. Its failures are logged once, until a write succeeds. */
static void write_failed(struct spw_state *state, uint32_t number, int error)
{
	struct record *record = &state->records[number];

	note_failure(state, &state->write_failure, error);
	state->count.write_failures++;
	if (record->write_failed == 0)
		spw_log(&state->opts.log, SPW_LOG_WARNING,
			"record %s cannot be written and stays in memory: %s", record->name,
			state->write_failure.words);
	record->write_failed = state->calls;
}

static void note_request(struct spw_state *state, uint32_t number, struct spw_request *request)
{
	SPW_ASSERT(state->request_count < SPW_ARRAY_LEN(state->requests));
	state->requests[state->request_count] = request;
	state->request_records[state->request_count++] = number;
}

bool spw_state__transfer_load(struct spw_state *state, uint32_t number, enum spw_class cls)
{
	struct record *record = &state->records[number];
	struct spw_request *request;
	int rc;

	spw_state__record_get_buffer(state, number);
	record->ahead = true;
	if (record->object.value == 0) { /* STATE-3 */
		memset(record_memory(state, record), 0, record->len_bytes);
		spw_state__record_become(state, number, RECORD_CLEAN);
		return true;
	}
	rc = state->ports->get(state->store, record->object, 0, record_memory(state, record),
			       record->len_bytes, cls, NULL, &request);
	if (rc) {
		spw_state__record_put_buffer(state, number);
		read_failed(state, number, rc);
		return false;
	}
	note_request(state, number, request);
	spw_state__record_become(state, number, RECORD_LOADING);
	state->count.reads++;
	state->count.bytes_read += record->len_bytes;
	return true;
}

bool spw_state__transfer_store(struct spw_state *state, uint32_t number)
{
	struct record *record = &state->records[number];
	struct spw_request *request;
	int rc = state->ports->put(state->store, record_memory(state, record), record->len_bytes,
				   state->opts.copies, NULL, &record->object_coming, &request);

	SPW_ASSERT(record->state == RECORD_CHANGED); /* STATE-2 */
	if (rc) {
		write_failed(state, number, rc);
		return false;
	}
	note_request(state, number, request);
	spw_state__record_become(state, number, RECORD_STORING);
	state->count.writes++;
	state->count.bytes_written += record->len_bytes;
	return true;
}

void spw_state__transfer_raise(struct spw_state *state, uint32_t number)
{
	for (uint32_t i = 0; i < state->request_count; i++)
		if (state->request_records[i] == number)
			state->ports->raise(state->requests[i], SPW_URGENT_READ);
}

void spw_state__transfer_free_object(struct spw_state *state, spw_object object)
{
	int rc = object.value ? state->ports->free(state->store, object) : 0;

	SPW_ASSERT(rc == 0); /* STATE-4 */
}

static void load_ended(struct spw_state *state, uint32_t number, int res)
{
	SPW_ASSERT(state->records[number].state == RECORD_LOADING); /* STATE-2 */
	if (res) {
		spw_state__record_put_buffer(state, number);
		read_failed(state, number, res);
		return;
	}
	state->records[number].read_failed = 0;
	spw_state__record_become(state, number, RECORD_CLEAN);
}

static void store_ended(struct spw_state *state, uint32_t number, int res)
{
	struct record *record = &state->records[number];

	SPW_ASSERT(record->state == RECORD_STORING && record->object_coming.value); /* STATE-4 */
	if (res) {
		write_failed(state, number, res);
		spw_state__transfer_free_object(state, record->object_coming);
		spw_state__record_become(state, number, RECORD_CHANGED);
		return;
	}
	spw_state__transfer_free_object(state, record->object);
	record->object = record->object_coming;
	record->write_failed = 0;
	spw_state__record_become(state, number, RECORD_CLEAN);
}

void spw_state__transfer_reap(struct spw_state *state)
{
	uint32_t i = 0;

	while (i < state->request_count) {
		uint32_t number = state->request_records[i];
		int res = state->ports->test(state->requests[i]);

		if (res == -EINPROGRESS) {
			i++;
			continue;
		}
		state->request_count--;
		state->requests[i] = state->requests[state->request_count];
		state->request_records[i] = state->request_records[state->request_count];
		if (state->records[number].state == RECORD_LOADING)
			load_ended(state, number, res);
		else
			store_ended(state, number, res);
		SPW_ASSERT(state->request_count == state->loading + state->storing); /* STATE-2 */
	}
}

int spw_state__transfer_wait(struct spw_state *state)
{
	int rc = state->ports->wait_any(state->requests, state->request_count, -1);

	if (rc < 0)
		return rc;
	spw_state__transfer_reap(state);
	return 0;
}
