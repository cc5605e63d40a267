/* SPDX-License-Identifier: MIT */
/*
 * store/resilver.c - spw_store_resilver(): create missing second copies of committed objects
 *
 * Each object with a chunk that has only one copy is read, verified, and put again, mirrored. Then
 * the commit is repeated under its number with the new objects; the later of the two is valid
 * (DURABLE-4). A crash at any point leaves one of the two commits, complete; both have the same
 * bytes.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/commit.h"
#include "store/inbox.h"
#include "store/object.h"
#include "store/open_store.h"
#include "store/request.h"
#include "util/util.h"

struct resilver {
	struct spw_store *store;
	spw_object *objects; /* to be committed, in this order */
	uint32_t renewed;
	bool (*go_on)(void *context, uint64_t done_bytes, uint64_t all_bytes);
	void *context;
	uint64_t done_bytes, all_bytes;
};

/* Has an object a chunk with only one copy? */
static bool is_single(const struct spw_store *store, const struct object *object)
{
	if (object->copies == 1)
		return true;
	for (uint32_t run = object->piece_first; run != PIECE_NONE;
	     run = spw_store__run_next(store, object, run))
		if (store->pieces[store->pieces[run].next].drive == DRIVE_NONE)
			return true;
	return false;
}

static int wait_for(int rc, struct spw_request *request)
{
	return rc ? rc : spw_request_wait(request);
}

/* Copy an object to a new, mirrored one. Return: 0; -ENOSPC: no space for two copies. */
static int copy_twice(struct spw_store *store, spw_object from, uint64_t len_bytes,
		      spw_object *object)
{
	size_t room = spw_round_up(len_bytes, store->block_bytes);
	uint8_t *buf = aligned_alloc(store->block_bytes, room);
	struct spw_request *request = NULL;
	int rc;

	object->value = 0;
	if (!buf)
		return spw_error(-ENOMEM, "no memory for an object of %llu bytes",
				 (unsigned long long)len_bytes);
	rc = spw_store_get(store, from, 0, buf, len_bytes, SPW_BACKGROUND, NULL, &request);
	rc = wait_for(rc, request);
	if (rc == 0) {
		rc = spw_store_put_copies(store, buf, len_bytes, 2, NULL, object, &request);
		if (rc)
			object->value = 0;
		rc = wait_for(rc, request);
	}
	free(buf);
	if (rc == 0 && is_single(store, &store->objects[(uint32_t)object->value]))
		rc = spw_error(-ENOSPC,
			       "no second drive in service has room for copies of what is "
			       "committed, which needs room twice until the new copies are "
			       "durable");
	return rc;
}

static int renew(struct resilver *resilver, uint32_t index)
{
	struct spw_store *store = resilver->store;
	struct spw_commits *commits = store->commits;
	uint64_t len_bytes = commits->durable->objects[index]->len_bytes;
	spw_object object;
	int rc = copy_twice(store, commits->restored[index], len_bytes, &object);

	if (rc && object.value)
		(void)spw_store_free(store, object);
	if (rc)
		return rc;
	resilver->objects[index] = object;
	resilver->renewed++;
	resilver->done_bytes += len_bytes;
	if (resilver->go_on &&
	    !resilver->go_on(resilver->context, resilver->done_bytes, resilver->all_bytes))
		return spw_error(-ECANCELED, "interrupted: not all has two copies");
	return 0;
}

/* Commit the new objects with the same record and number. */
static int commit_again(struct resilver *resilver)
{
	struct spw_store *store = resilver->store;
	const struct committed *durable = store->commits->durable;
	size_t len = durable->record_bytes;
	uint8_t *record = malloc(SPW_MAX(len, 1u));
	int rc;

	if (!record)
		return spw_error(-ENOMEM, "no memory for the %zu bytes of a commit's record", len);
	rc = spw_store_committed_record(store, record, len);
	if (rc == 0)
		rc = spw_store__commit_make(store, resilver->objects, durable->count,
					    durable->block.number, len > 0 ? record : NULL, len,
					    SPW_COMMIT_MIRRORED | COMMIT_AGAIN);
	free(record);
	return rc;
}

/* Free the old objects after a successful commit, else the new ones. */
static void free_replaced(struct resilver *resilver, bool committed)
{
	struct spw_commits *commits = resilver->store->commits;

	for (uint32_t i = 0; i < commits->restored_count; i++) {
		spw_object old = commits->restored[i], new = resilver->objects[i];

		if (old.value == new.value)
			continue;
		(void)spw_store_free(resilver->store, committed ? old : new);
		if (committed)
			commits->restored[i] = new;
	}
}

static int run(struct resilver *resilver)
{
	struct spw_store *store = resilver->store;
	const struct committed *set = store->commits->durable;
	char words[512] = "";
	int rc = 0, committed;

	for (uint32_t i = 0; i < set->count; i++)
		if (is_single(store, set->objects[i]))
			resilver->all_bytes += set->objects[i]->len_bytes;
	for (uint32_t i = 0; rc == 0 && i < set->count; i++)
		if (is_single(store, set->objects[i]))
			rc = renew(resilver, i);
	/* Commit the objects copied so far, even if the rest failed. */
	(void)snprintf(words, sizeof(words), "%s", spw_last_error());
	if (rc && resilver->renewed == 0)
		return rc;
	committed = commit_again(resilver);
	free_replaced(resilver, committed == 0);
	return committed || rc == 0 ? committed : spw_error(rc, "%s", words);
}

static int check(const struct spw_store *store)
{
	const struct spw_commits *commits = store->commits;
	int rc = spw_store__owned(store);

	if (rc)
		return rc;
	if (!commits->durable)
		return spw_error(-ENODATA, "nothing is committed in this partition of the store");
	if (store->opts.read_only)
		return spw_error(-EROFS, "the store was opened to be read only");
	if (!commits->restored || commits->restored_count != commits->durable->count)
		return spw_error(-EBUSY, "something was committed since the store was opened: what "
					 "is put from now on has two copies");
	return 0;
}

int spw_store_resilver(struct spw_store *store,
		       bool (*go_on)(void *context, uint64_t done_bytes, uint64_t all_bytes),
		       void *context)
{
	struct resilver resilver = {.store = store, .go_on = go_on, .context = context};
	int rc = check(store);

	if (rc || store->commits->durable->runs_single == 0)
		return rc;
	resilver.objects = calloc(store->commits->restored_count + UINT64_C(1), sizeof(spw_object));
	if (!resilver.objects)
		return spw_error(-ENOMEM, "no memory for %u objects",
				 store->commits->restored_count);
	memcpy(resilver.objects, store->commits->restored,
	       store->commits->restored_count * sizeof(spw_object));
	rc = run(&resilver);
	free(resilver.objects);
	return rc;
}
