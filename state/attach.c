/* SPDX-License-Identifier: MIT */
/* state/attach.c - spw_state_attach(): restore the declared records from the store's commit */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "state/internal.h"
#include "state/set.h"

/* The smallest space that a store allocates, unless it was formatted with larger blocks. */
#define BLOCK_BYTES 4096u
/* A commit's description of an object, and of each of its pieces (docs/FORMAT.md). */
#define OBJECT_ENTRY_BYTES 16u
#define PIECE_ENTRY_BYTES  24u

/* ---- Room ---- */

/* Room for two copies: the largest drive is used at most as far as all others together. */
static uint64_t room_of_pairs(const struct spw_state *state, uint32_t drives)
{
	uint64_t sum_bytes = 0, largest_bytes = 0;

	for (unsigned i = 0; i < drives; i++) {
		struct spw_drive_stats drive = {.capacity_bytes = 0};

		(void)state->ports->drive_stats(state->store, i, &drive, sizeof(drive));
		sum_bytes += drive.capacity_bytes;
		largest_bytes = SPW_MAX(largest_bytes, drive.capacity_bytes);
	}
	return SPW_MIN(sum_bytes / 2, sum_bytes - largest_bytes);
}

/*
 * Check that the store has room for: each record twice, as committed and as written since
 * (transient records once); the records whose puts are in flight; two manifests. With copies = 2
 * there must be room for two copies, but not while a drive is missing or retired: then the state
 * must go on, if need be with single copies.
 * @former_bytes: of what the commit has in place of the records
 */
static int check_room(const struct spw_state *state, uint64_t former_bytes)
{
	uint64_t chunk_bytes = state->ports->chunk_bytes(state->store);
	uint64_t records_bytes = 0, transient_bytes = 0, needed_bytes, room_bytes;
	struct spw_store_stats stats;
	uint64_t description_bytes = spw_state__manifest_bytes(0) + state->entries_bytes;
	bool pairs;

	state->ports->stats(state->store, &stats, sizeof(stats));
	pairs = state->opts.copies == 2 && stats.drives_missing == 0 && stats.drives_retired == 0;
	room_bytes = pairs ? room_of_pairs(state, stats.drives) : stats.capacity_bytes;
	for (uint32_t i = 0; i < state->count.records; i++) {
		uint64_t len_bytes = state->records[i].len_bytes;

		if (state->records[i].former) {
			former_bytes += spw_round_up(len_bytes, BLOCK_BYTES);
			continue;
		}
		if (state->records[i].transient) {
			transient_bytes += spw_round_up(len_bytes, BLOCK_BYTES);
			continue;
		}
		records_bytes += spw_round_up(len_bytes, BLOCK_BYTES);
		description_bytes += OBJECT_ENTRY_BYTES + state->opts.copies * PIECE_ENTRY_BYTES *
								  (len_bytes / chunk_bytes + 1);
	}
	/* Former ones are there in place of others, which the commit does not have. */
	if (former_bytes > records_bytes)
		transient_bytes += former_bytes - records_bytes;
	needed_bytes = 2 * (records_bytes + spw_round_up(description_bytes, BLOCK_BYTES)) +
		       transient_bytes + state->transfers_max * state->opts.record_bytes_max;
	if (needed_bytes <= room_bytes)
		return 0;
	return spw_error(
		-ENOSPC,
		"the store is too small by %llu bytes: %u records of %s together are there twice, "
		"as a commit stays until the next is durable, which with what is under way takes "
		"%s; this partition has %s%s",
		(unsigned long long)(needed_bytes - room_bytes), state->count.records,
		SPW_SIZE_TEXT(state->count.total_bytes), SPW_SIZE_TEXT(needed_bytes),
		SPW_SIZE_TEXT(room_bytes), pairs ? " for each of two copies" : "");
}

/* ---- What is committed ---- */

static int other_error(const struct state_set *set, const char *name, size_t name_len,
		       const char *words)
{
	return spw_error(-EUCLEAN, "commit %llu of the store has other records: %.*s %s",
			 (unsigned long long)set->info.number, (int)name_len, name, words);
}

/* Return: NULL, or what differs. */
static const char *difference(const struct record *record, const struct spw_state_entry *entry)
{
	if (record->len_bytes != entry->len_bytes)
		return "has another length there";
	if (record->shape_len != entry->shape_len ||
	    (entry->shape_len > 0 && memcmp(record->shape, entry->shape, entry->shape_len) != 0))
		return "has another shape there";
	return NULL;
}

static bool may_be_there(const struct record *record)
{
	return !record->transient || record->former;
}

static bool may_be_absent(const struct spw_state *state, const struct record *record)
{
	return !record->former && (record->transient || (state->formers > 0 && !record->callers));
}

/*
 * Match the commit's entries with the declared records; all must agree. Where there are former ones
 * the commit may lack others.
 * @objects: in: empty; out: the object of each record
 * @found:   in: all false; out: whether the commit has it
 */
static int match(const struct spw_state *state, const struct state_set *set, spw_object *objects,
		 bool *found)
{
	struct spw_state_manifest manifest = set->manifest;
	struct spw_state_entry entry;

	while (spw_state__manifest_next(&manifest, &entry)) {
		uint32_t number = spw_state__record_find(state, entry.name, entry.name_len);
		const char *words;

		if (number == NONE || !may_be_there(&state->records[number]))
			return other_error(set, entry.name, entry.name_len,
					   "is there, and was not declared");
		if (found[number])
			return other_error(set, entry.name, entry.name_len, "is there twice");
		words = difference(&state->records[number], &entry);
		if (words)
			return other_error(set, entry.name, entry.name_len, words);
		found[number] = true;
		if (entry.object > 0)
			objects[number] = set->objects[entry.object - 1];
	}
	for (uint32_t i = 0; i < state->count.records; i++)
		if (!found[i] && !may_be_absent(state, &state->records[i]))
			return other_error(set, state->records[i].name,
					   strlen(state->records[i].name), "is missing there");
	return 0;
}

static int no_memory(const struct spw_state *state)
{
	return spw_error(-ENOMEM, "no memory for a state of %u records", state->count.records);
}

static int keep_extra(struct spw_state *state, const struct spw_state_manifest *manifest)
{
	state->extra = malloc(SPW_MAX(manifest->extra_len, 1u));
	if (!state->extra)
		return no_memory(state);
	memcpy(state->extra, manifest->extra, manifest->extra_len);
	state->extra_len = manifest->extra_len;
	return 0;
}

/* Take objects, extra bytes and number of the commit, or change nothing on error. */
static int take_up(struct spw_state *state, const struct state_set *set)
{
	spw_object *objects = calloc(state->count.records, sizeof(*objects));
	bool *found = calloc(state->count.records, sizeof(*found));
	int rc = objects && found ? match(state, set, objects, found) : no_memory(state);

	if (rc == 0)
		rc = keep_extra(state, &set->manifest);
	for (uint32_t i = 0; rc == 0 && i < state->count.records; i++)
		state->records[i].object = objects[i];
	if (rc == 0) {
		state->has_commit = true;
		state->commit_number = set->info.number;
	}
	free(objects);
	free(found);
	return rc;
}

/* Its objects are in the commit alone from now on. */
static int replace(struct spw_state *state, const struct state_set *set)
{
	uint64_t former_bytes = 0;
	int rc;

	for (uint32_t i = 0; i < set->info.objects; i++)
		former_bytes += spw_round_up(set->lens[i], BLOCK_BYTES);
	rc = check_room(state, former_bytes);
	if (rc == 0)
		rc = keep_extra(state, &set->manifest);
	if (rc)
		return rc;
	for (uint32_t i = 0; i < set->info.objects; i++)
		SPW_MUST(state->ports->free(state->store, set->objects[i]));
	state->has_commit = true;
	state->commit_number = set->info.number;
	return 0;
}

typedef int take_fn(struct spw_state *state, const struct state_set *set);

/* Return: 1 restored; 0 the store has no commit; or a negative errno. */
static int attach(struct spw_state *state, take_fn *take)
{
	struct state_set set;
	int rc = spw_state__set_read(state->store, state->ports, &set);

	if (rc == 0)
		rc = take(state, &set);
	spw_state__set_free(&set);
	return rc == -ENODATA ? 0 : rc ? rc : 1;
}

/* @take: what becomes of a commit */
static int attach_with(struct spw_state *state, take_fn *take)
{
	int rc = spw_state__enter(state);

	if (rc)
		return rc;
	if (state->attached)
		return spw_error(-EALREADY, "the state is attached already");
	if (state->count.records == state->transients)
		return spw_error(-EINVAL, "no record was declared that a commit could have: call "
					  "spw_state_add() before");
	rc = check_room(state, 0);
	if (rc)
		return rc;
	free(state->order);
	state->order = calloc(state->count.records, sizeof(*state->order));
	if (!state->order)
		return no_memory(state);
	rc = attach(state, take);
	state->attached = rc >= 0;
	return rc;
}

int spw_state_attach(struct spw_state *state)
{
	return attach_with(state, take_up);
}

int spw_state_attach_empty(struct spw_state *state)
{
	return attach_with(state, replace);
}

static int no_commit(void)
{
	return spw_error(-ENODATA, "no commit was attached");
}

int spw_state_attached(const struct spw_state *state, uint64_t *number)
{
	if (!state->has_commit)
		return no_commit();
	*number = state->commit_number;
	return 0;
}

int spw_state_extra(const struct spw_state *state, void *extra, size_t *len)
{
	if (!state->has_commit) {
		*len = 0;
		return no_commit();
	}
	return spw_state__extra_copy(state->extra, state->extra_len, extra, len);
}
