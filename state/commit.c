/* SPDX-License-Identifier: MIT */
/* state/commit.c - spw_state_commit(): write the changed records and make all records durable */
#include <errno.h>
#include <stdlib.h>

#include "state/internal.h"
#include "state/manifest.h"

/* What the store makes durable: the manifest and the objects that it lists. */
struct description {
	uint8_t *bytes;
	uint64_t len_bytes;
	spw_object *objects;
	uint32_t object_count;
};

/* ---- Write the changed records ---- */

/* Wait until at most @count puts are in flight. */
static int wait_for_puts(struct spw_state *state, uint32_t count)
{
	int rc = 0;

	while (rc == 0 && state->storing > count)
		rc = spw_state__transfer_wait(state);
	return rc;
}

static bool has_to_be_put(const struct record *record)
{
	return record->state == RECORD_CHANGED && !record->transient;
}

static int check_all_put(const struct spw_state *state)
{
	for (uint32_t i = 0; i < state->count.records; i++)
		if (has_to_be_put(&state->records[i]))
			return spw_error(
				state->write_failure.error,
				"a changed record cannot be written, so nothing is committed: %s",
				state->write_failure.words);
	return 0;
}

/* Write each changed record once, in order of numbers. A failed one is not retried. */
static int put_all(struct spw_state *state)
{
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < state->count.records; i++) {
		if (has_to_be_put(&state->records[i]))
			rc = wait_for_puts(state, state->transfers_max - 1);
		if (has_to_be_put(&state->records[i]) && rc == 0)
			(void)spw_state__transfer_store(state, i);
	}
	if (rc == 0)
		rc = wait_for_puts(state, 0);
	return rc ? rc : check_all_put(state);
}

/* ---- The manifest ---- */

static void describe_records(const struct spw_state *state, struct description *description,
			     const struct spw_state_manifest *manifest)
{
	uint8_t *at =
		spw_state__manifest_begin(description->bytes, description->len_bytes, manifest);

	for (uint32_t i = 0; i < state->count.records; i++) {
		const struct record *record = &state->records[i];
		struct spw_state_entry entry = {
			.name = record->name,
			.shape = record->shape,
			.name_len = record->name_len,
			.shape_len = record->shape_len,
			.len_bytes = record->len_bytes,
		};

		if (record->transient)
			continue;
		SPW_ASSERT(record->state == RECORD_STORED || record->state == RECORD_LOADING ||
			   record->state == RECORD_CLEAN); /* STATE-6 */
		if (record->object.value) {
			description->objects[description->object_count++] = record->object;
			entry.object = description->object_count;
		}
		at = spw_state__manifest_add(at, &entry);
	}
	spw_state__manifest_end(at, description->bytes, description->len_bytes, manifest);
}

static uint32_t count_objects(const struct spw_state *state)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < state->count.records; i++)
		count += state->records[i].object.value != 0 && !state->records[i].transient;
	return count;
}

static int describe(const struct spw_state *state, const void *extra, size_t extra_len,
		    struct description *description)
{
	struct spw_state_manifest manifest = {
		.records = state->count.records - state->transients,
		.objects = count_objects(state),
		.extra = extra,
		.extra_len = extra_len,
	};

	SPW_ASSERT(state->taken == 0 && state->storing == 0); /* STATE-6 */
	description->len_bytes = spw_state__manifest_bytes(extra_len) + state->entries_bytes;
	description->bytes = malloc(description->len_bytes);
	description->objects = calloc(state->count.records, sizeof(*description->objects));
	if (!description->bytes || !description->objects)
		return spw_error(-ENOMEM, "no memory to commit %u records", state->count.records);
	describe_records(state, description, &manifest);
	SPW_ASSERT(description->object_count == manifest.objects);
	return 0;
}

/* ---- The commit ---- */

static int check_commit(struct spw_state *state, size_t extra_len)
{
	int rc = spw_state__enter_attached(state);

	if (rc)
		return rc;
	if (state->taken > 0)
		return spw_error(-EBUSY, "%u records are taken: give them back before a commit",
				 state->taken);
	if (extra_len > SPW_COMMIT_RECORD_BYTES_MAX ||
	    spw_state__manifest_bytes(extra_len) + state->entries_bytes >
		    SPW_COMMIT_RECORD_BYTES_MAX)
		return spw_error(-E2BIG,
				 "%zu bytes with a commit: with the names and shapes of %u records "
				 "they must be at most %u",
				 extra_len, state->count.records, SPW_COMMIT_RECORD_BYTES_MAX);
	return 0;
}

int spw_state_commit(struct spw_state *state, uint64_t number, const void *extra, size_t extra_len,
		     bool keep_previous)
{
	unsigned flags = (keep_previous ? SPW_COMMIT_KEEP_PREVIOUS : 0) |
			 (state->opts.copies == 2 ? SPW_COMMIT_MIRRORED : 0);
	struct description description = {0};
	uint64_t began_ns = spw_clock_ns(), written_bytes;
	int rc = check_commit(state, extra_len);

	if (rc)
		return rc;
	written_bytes = state->count.bytes_written;
	rc = put_all(state);
	state->count.commit_bytes_written += state->count.bytes_written - written_bytes;
	if (rc == 0)
		rc = describe(state, extra, extra_len, &description);
	if (rc == 0)
		rc = state->ports->commit(state->store, description.objects,
					  description.object_count, number, description.bytes,
					  description.len_bytes, flags);
	free(description.bytes);
	free(description.objects);
	state->count.commits += rc == 0;
	state->count.commit_ns += spw_clock_ns() - began_ns;
	SPW_PROBE(state_commit, state, number, state->count.commit_bytes_written, rc);
	spw_state__ahead(state, NONE);
	return rc;
}

int spw_state_commit_release(struct spw_state *state)
{
	int rc = spw_state__enter_attached(state);

	return rc ? rc : state->ports->commit_release(state->store);
}
