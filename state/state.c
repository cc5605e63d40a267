/* SPDX-License-Identifier: MIT */
/* state/state.c - open and close a state, declare its records, return its statistics */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "state/internal.h"
#include "state/manifest.h"

#define RECORD_BYTES_LIMIT (UINT64_C(1) << 40)
/* This many chunks in flight keep a drive at full speed. */
#define CHUNKS_IN_FLIGHT 4u

void spw_state_opts_init(struct spw_state_opts *opts, size_t size)
{
	struct spw_state_opts defaults = {
		.size = sizeof(defaults),
		.record_bytes_max = 32u << 20,
		.copies = 1,
	};

	spw_opts_merge(opts, size, &defaults, sizeof(defaults));
}

/* ---- Open and close ---- */

static int check_copies(const struct spw_state *state)
{
	uint32_t copies = state->opts.copies;
	struct spw_store_stats stats;

	if (copies < 1 || copies > 2)
		return spw_error(-EINVAL, "copies is %u: it must be 1 or 2", copies);
	state->ports->stats(state->store, &stats, sizeof(stats));
	if (stats.drives + stats.drives_missing < copies)
		return spw_error(-EINVAL,
				 "copies is 2, and the store has one drive: each copy needs its "
				 "own; format a store of two or more");
	return 0;
}

static int check_opts(const struct spw_state_opts *opts)
{
	if (opts->record_bytes_max < 1 || opts->record_bytes_max > RECORD_BYTES_LIMIT)
		return spw_error(-EINVAL, "record_bytes_max is %llu: it must be 1 to 2^40",
				 (unsigned long long)opts->record_bytes_max);
	if (opts->memory_bytes > 0 && opts->memory_bytes / opts->record_bytes_max < BUFFERS_MIN)
		return spw_error(-EINVAL,
				 "memory_bytes is %s: it must hold %u records of %s at least",
				 SPW_SIZE_TEXT(opts->memory_bytes), BUFFERS_MIN,
				 SPW_SIZE_TEXT(opts->record_bytes_max));
	if (opts->device_every == 1)
		return spw_error(-EINVAL, "device_every is 1: the host updates records, too, so it "
					  "must be 2 or more, or 0");
	if (opts->memory_bytes / opts->record_bytes_max > SPW_STATE_RECORDS_MAX)
		return spw_error(-EINVAL, "memory_bytes holds more than %u records",
				 SPW_STATE_RECORDS_MAX);
	return 0;
}

/*
 * How many records are read, and how many written, at a time. At least two, so that drives that
 * have finished their chunks of one record have chunks of the next; more if records are too short
 * to keep all drives busy.
 */
static uint32_t transfers_of(const struct spw_state *state)
{
	struct spw_store_stats stats;
	uint64_t busy_bytes, transfers;

	state->ports->stats(state->store, &stats, sizeof(stats));
	busy_bytes = stats.drives * CHUNKS_IN_FLIGHT * state->ports->chunk_bytes(state->store);
	transfers =
		1 + (busy_bytes + state->opts.record_bytes_max - 1) / state->opts.record_bytes_max;
	transfers = SPW_MAX(transfers, 2u);
	transfers = SPW_MIN(transfers, state->count.buffers / 2);
	return (uint32_t)SPW_MIN(transfers, TRANSFERS_MAX / 2);
}

/* Allocate the buffers in the store's arena, so that transfers need no bounce buffer. */
static int get_buffers(struct spw_state *state)
{
	uint32_t count = state->count.buffers;

	state->buffers = calloc(count, sizeof(*state->buffers));
	state->buffer_records = calloc(count, sizeof(*state->buffer_records));
	state->buffers_free = calloc(count, sizeof(*state->buffers_free));
	state->wanted = calloc(2 * (size_t)count, sizeof(*state->wanted));
	if (!state->buffers || !state->buffer_records || !state->buffers_free || !state->wanted)
		return spw_error(-ENOMEM, "no memory for a state of %u buffers", count);
	for (uint32_t i = 0; i < count; i++) {
		int rc = state->ports->alloc(state->store, state->opts.record_bytes_max,
					     &state->buffers[i]);

		if (rc == -ENOBUFS)
			return spw_error(
				rc,
				"the store's arena has room for %u of %u buffers of %s: "
				"open it with arena_bytes larger by %llu at least",
				i, count, SPW_SIZE_TEXT(state->opts.record_bytes_max),
				(unsigned long long)((count - i) * state->opts.record_bytes_max));
		if (rc)
			return rc;
		SPW_ASSERT((uintptr_t)state->buffers[i] % BUFFER_ALIGN == 0);
		state->buffer_records[i] = NONE;
		/* The first buffer is on top. */
		state->buffers_free[count - 1 - i] = i;
	}
	state->buffers_free_count = count;
	return 0;
}

int spw_state__open_with(struct spw_store *store, const struct spw_state_opts *opts,
			 const struct spw_state_ports *ports, struct spw_state **out)
{
	struct spw_state *state = calloc(1, sizeof(*state));
	int rc;

	*out = NULL;
	if (!state)
		return spw_error(-ENOMEM, "no memory for a state");
	state->store = store;
	state->ports = ports;
	state->process = getpid();
	spw_state_opts_init(&state->opts, sizeof(state->opts));
	if (opts)
		spw_opts_merge(&state->opts, sizeof(state->opts), opts, opts->size);
	rc = check_opts(&state->opts);
	if (rc == 0)
		rc = check_copies(state);
	if (rc == 0) {
		state->count.buffers = state->opts.memory_bytes == 0
					       ? BUFFERS_MIN
					       : (uint32_t)(state->opts.memory_bytes /
							    state->opts.record_bytes_max);
		state->count.memory_bytes = state->count.buffers * state->opts.record_bytes_max;
		state->share.given = state->opts.device_every;
		state->transfers_max = transfers_of(state);
		state->few = SPW_MIN(2 + 2 * state->transfers_max, state->count.buffers);
		rc = get_buffers(state);
	}
	if (rc) {
		spw_state_close(state);
		return rc;
	}
	*out = state;
	return 0;
}

int spw_state_open(struct spw_store *store, const struct spw_state_opts *opts,
		   struct spw_state **out)
{
	return spw_state__open_with(store, opts, &spw_state__ports_real, out);
}

/* Free the memory of the process; a child of fork(2) has a copy of it. */
static void free_memory(struct spw_state *state)
{
	for (uint32_t i = 0; i < state->count.records; i++) {
		free(state->records[i].name);
		free(state->records[i].shape);
	}
	free(state->records);
	free(state->name_slots);
	free(state->buffers);
	free(state->buffer_records);
	free(state->buffers_free);
	free(state->wanted);
	free(state->order);
	free(state->extra);
	free(state);
}

void spw_state_close(struct spw_state *state)
{
	if (!state)
		return;
	if (state->process == getpid()) {
		while (state->request_count > 0 && spw_state__transfer_wait(state) == 0)
			continue;
		for (uint32_t i = 0; i < state->count.records; i++)
			if (state->records[i].object.value && !state->records[i].callers)
				(void)state->ports->free(state->store, state->records[i].object);
		for (uint32_t i = 0; state->buffers && i < state->count.buffers; i++)
			if (state->buffers[i])
				state->ports->release(state->store, state->buffers[i]);
	}
	free_memory(state);
}

/* ---- Records ---- */

enum kind {
	DURABLE,
	TRANSIENT,
	FORMER,
	CALLERS,
};

static int check_add(struct spw_state *state, const char *name, uint64_t len, uint64_t len_max,
		     size_t shape_len)
{
	size_t name_len = strnlen(name, SPW_STATE_NAME_BYTES_MAX + 1);
	int rc = spw_state__enter(state);

	if (rc)
		return rc;
	if (state->attached)
		return spw_error(-EALREADY,
				 "record %.80s: the state is attached, its records are known",
				 name);
	if (name_len < 1 || name_len > SPW_STATE_NAME_BYTES_MAX)
		return spw_error(-EINVAL, "record %.80s: a name has 1 to %u bytes", name,
				 SPW_STATE_NAME_BYTES_MAX);
	if (len < 1 || len > len_max)
		return spw_error(-EINVAL, "record %s: %llu bytes, it must be 1 to %llu%s", name,
				 (unsigned long long)len, (unsigned long long)len_max,
				 len_max < RECORD_BYTES_LIMIT ? " (record_bytes_max)" : "");
	if (shape_len > SPW_STATE_SHAPE_BYTES_MAX)
		return spw_error(-EINVAL, "record %s: its shape has %zu bytes, more than %u", name,
				 shape_len, SPW_STATE_SHAPE_BYTES_MAX);
	if (spw_state__record_find(state, name, name_len) != NONE)
		return spw_error(-EEXIST, "record %s is there already", name);
	if (state->count.records == SPW_STATE_RECORDS_MAX)
		return spw_error(-E2BIG, "record %s: there are %u, no more are possible", name,
				 SPW_STATE_RECORDS_MAX);
	return 0;
}

/* Check that the manifest has room for the record's entry. */
static int check_entry(const struct spw_state *state, const char *name, size_t shape_len)
{
	if (spw_state__manifest_bytes(0) + state->entries_bytes +
		    spw_state__entry_bytes(strlen(name), shape_len) <=
	    SPW_COMMIT_RECORD_BYTES_MAX)
		return 0;
	return spw_error(-E2BIG,
			 "record %s: the names and shapes of all are more than the %u bytes that "
			 "go with a commit",
			 name, SPW_COMMIT_RECORD_BYTES_MAX);
}

static int grow_records(struct spw_state *state)
{
	uint32_t room = state->records_max ? 2 * state->records_max : 64;
	struct record *records;

	if (state->count.records < state->records_max)
		return 0;
	records = realloc(state->records, room * sizeof(*records));
	if (!records)
		return -ENOMEM;
	state->records = records;
	state->records_max = room;
	return 0;
}

/* Add a record. Return: 0; -ENOMEM, and nothing has changed. */
static int add(struct spw_state *state, const struct record *added)
{
	if (!added->name || !added->shape || grow_records(state))
		return -ENOMEM;
	state->records[state->count.records++] = *added;
	if (spw_state__record_name(state)) {
		state->count.records--;
		return -ENOMEM;
	}
	if (added->transient)
		state->transients++, state->formers += added->former;
	else
		state->entries_bytes += spw_state__entry_bytes(added->name_len, added->shape_len);
	state->count.total_bytes += added->len_bytes;
	return 0;
}

static int declare(struct spw_state *state, const char *name, uint64_t len, const void *shape,
		   size_t shape_len, enum kind kind, uint32_t *number)
{
	struct record added = {.len_bytes = len,
			       .transient = kind == TRANSIENT || kind == FORMER,
			       .former = kind == FORMER,
			       .callers = kind == CALLERS,
			       .buffer = NONE,
			       .place = NONE};
	uint64_t len_max = added.callers ? RECORD_BYTES_LIMIT : state->opts.record_bytes_max;
	int rc = check_add(state, name, len, len_max, shape_len);

	*number = NONE;
	if (rc == 0 && !added.transient)
		rc = check_entry(state, name, shape_len);
	if (rc)
		return rc;
	added.name_len = (uint32_t)strlen(name);
	added.shape_len = (uint32_t)shape_len;
	added.name = strdup(name);
	added.shape = malloc(SPW_MAX(shape_len, 1u));
	if (added.shape && shape_len > 0)
		memcpy(added.shape, shape, shape_len);
	rc = add(state, &added);
	if (rc) {
		free(added.name);
		free(added.shape);
		return spw_error(rc, "no memory for record %s", name);
	}
	*number = state->count.records - 1;
	return 0;
}

int spw_state_add(struct spw_state *state, const char *name, uint64_t len, const void *shape,
		  size_t shape_len, uint32_t *number)
{
	return declare(state, name, len, shape, shape_len, DURABLE, number);
}

int spw_state_add_transient(struct spw_state *state, const char *name, uint64_t len,
			    uint32_t *number)
{
	return declare(state, name, len, NULL, 0, TRANSIENT, number);
}

int spw_state_add_former(struct spw_state *state, const char *name, uint64_t len, const void *shape,
			 size_t shape_len, uint32_t *number)
{
	return declare(state, name, len, shape, shape_len, FORMER, number);
}

int spw_state_add_object(struct spw_state *state, const char *name, uint64_t len, const void *shape,
			 size_t shape_len, uint32_t *number)
{
	return declare(state, name, len, shape, shape_len, CALLERS, number);
}

void spw_state_stats(const struct spw_state *state, struct spw_state_stats *stats, size_t size)
{
	struct spw_state_stats all = state->count;

	all.device_every = state->share.given ? state->share.given : state->share.stride;
	all.size = SPW_MIN(size, sizeof(all));
	memcpy(stats, &all, all.size);
}
