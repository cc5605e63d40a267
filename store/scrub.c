/* SPDX-License-Identifier: MIT */
/*
 * store/scrub.c - spw_store_scrub(): verify every replica of all committed objects, and repair bad
 * ones
 *
 * A bad replica is overwritten in place with the bytes of the good one. If that is interrupted, it
 * is still bad, and the good replica is unchanged. The commit does not change.
 *
 *   SCRUB-1  The bytes written to a replica have the checksum in the commit.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "drives/safety.h"
#include "engine/device.h"
#include "store/commit.h"
#include "store/inbox.h"
#include "store/object.h"
#include "store/open_store.h"
#include "util/checksum.h"
#include "util/parallel.h"
#include "util/util.h"

#define LOGGED_MAX 8u /* bad replicas logged for each drive; all are counted */

/* A placed piece, and its other replica, or PIECE_NONE. */
struct copy {
	uint32_t piece, other;
};

struct scrub {
	struct spw_store *store;
	struct spw_scrub *found;
	struct copy *copies[SPW_DRIVES_MAX]; /* by drive */
	uint64_t counts[SPW_DRIVES_MAX];
	uint8_t *bad; /* by piece: it is bad; written by the thread of its drive */
	bool (*go_on)(void *context, uint64_t done_bytes, uint64_t all_bytes);
	void *context;
	pthread_mutex_t lock; /* serializes go_on; protects what follows */
	uint64_t done_bytes, all_bytes;
	bool stopped;
	int error; /* -ENOMEM: no buffer for reading */
};

/* ---- One replica ---- */

static uint64_t offset_of(const struct spw_store *store, const struct piece *piece)
{
	return store->drives[piece->drive].base_bytes +
	       spw_store__piece_extent(store, piece).start_block * store->block_bytes;
}

/* Read and verify a replica. Return: 0 it is good; -EBADMSG; the error of reading it. */
static int read_copy(const struct spw_store *store, const struct piece *piece, uint8_t *buf)
{
	int rc = spw_device_pread(store->drives[piece->drive].device, buf,
				  spw_round_up(piece->len_bytes, store->block_bytes),
				  offset_of(store, piece));

	if (rc == 0 && spw_checksum(buf, piece->len_bytes) != piece->checksum)
		return spw_error(-EBADMSG, "other bytes than were written");
	return rc;
}

static void note_done(struct scrub *scrub, uint64_t bytes)
{
	(void)pthread_mutex_lock(&scrub->lock);
	scrub->done_bytes += bytes;
	if (!scrub->stopped && scrub->go_on &&
	    !scrub->go_on(scrub->context, scrub->done_bytes, scrub->all_bytes))
		scrub->stopped = true;
	(void)pthread_mutex_unlock(&scrub->lock);
}

static bool has_stopped(struct scrub *scrub)
{
	bool stopped;

	(void)pthread_mutex_lock(&scrub->lock);
	stopped = scrub->stopped || scrub->error;
	(void)pthread_mutex_unlock(&scrub->lock);
	return stopped;
}

/* Verify a drive's replicas; called in one thread for each drive. */
static void verify_drive(void *context, unsigned index)
{
	struct scrub *scrub = context;
	const struct spw_store *store = scrub->store;
	struct spw_scrub_drive *found = &scrub->found->drive[index];
	uint8_t *buf = spw_engine__device_buffer(store->drives[index].device, store->chunk_bytes);

	if (!buf) {
		(void)pthread_mutex_lock(&scrub->lock);
		scrub->error = -ENOMEM;
		(void)pthread_mutex_unlock(&scrub->lock);
		return;
	}
	for (uint64_t i = 0; i < scrub->counts[index] && !has_stopped(scrub); i++) {
		const struct copy *copy = &scrub->copies[index][i];
		const struct piece *piece = &store->pieces[copy->piece];
		int rc = read_copy(store, piece, buf);

		found->copies++;
		found->bytes += piece->len_bytes;
		if (rc) {
			found->copies_bad++;
			scrub->bad[copy->piece] = 1;
		}
		if (rc && found->copies_bad <= LOGGED_MAX)
			spw_log(&store->opts.log, SPW_LOG_WARNING,
				"%s: %u bytes at byte %llu are bad: %s",
				spw_device_path(store->drives[index].device), piece->len_bytes,
				(unsigned long long)offset_of(store, piece), spw_last_error());
		note_done(scrub, piece->len_bytes);
	}
	free(buf);
}

/* ---- Repair ---- */

/* Overwrite a bad replica. Return: 0; -errno: it is still bad. */
static int repair(const struct spw_store *store, const struct copy *copy)
{
	const struct piece *piece = &store->pieces[copy->piece];
	const struct piece *good = &store->pieces[copy->other];
	const struct spw_device *device = store->drives[piece->drive].device;
	size_t len = spw_round_up(piece->len_bytes, store->block_bytes);
	uint8_t *buf = spw_engine__device_buffer(device, len);
	int rc = buf ? read_copy(store, good, buf) : -ENOMEM; /* verified (SCRUB-1) */

	SPW_ASSERT(copy->other != PIECE_NONE && copy->other != copy->piece);
	if (rc == 0)
		rc = spw_device_pwrite(spw_drives__claimed(device), buf, len,
				       offset_of(store, piece));
	if (rc == 0)
		rc = spw_device_sync(device);
	if (rc == 0)
		rc = read_copy(store, piece, buf);
	free(buf);
	return rc;
}

static void repair_drive(struct scrub *scrub, uint32_t index)
{
	const struct spw_store *store = scrub->store;

	for (uint64_t i = 0; i < scrub->counts[index]; i++) {
		const struct copy *copy = &scrub->copies[index][i];
		int rc;

		if (!scrub->bad[copy->piece])
			continue;
		/* Count a chunk with two bad replicas once. */
		if (copy->other == PIECE_NONE || scrub->bad[copy->other]) {
			scrub->found->runs_lost +=
				copy->other == PIECE_NONE || copy->other > copy->piece;
			continue;
		}
		rc = repair(store, copy);
		if (rc)
			spw_log(&store->opts.log, SPW_LOG_ERROR,
				"%s: a bad copy cannot be written again (%s); the other one is "
				"good",
				spw_device_path(store->drives[index].device), spw_last_error());
		else
			scrub->found->drive[index].copies_repaired++;
	}
}

/* ---- Listing replicas ---- */

static void add_copy(struct scrub *scrub, uint32_t index, uint32_t other)
{
	const struct spw_store *store = scrub->store;
	const struct piece *piece = &store->pieces[index];
	struct copy *to;

	if (piece->drive == DRIVE_NONE)
		return;
	if (other != PIECE_NONE && store->pieces[other].drive == DRIVE_NONE)
		other = PIECE_NONE;
	to = scrub->copies[piece->drive];
	SPW_ASSERT(piece->drive < store->drive_count);
	if (to)
		to[scrub->counts[piece->drive]] = (struct copy){.piece = index, .other = other};
	scrub->counts[piece->drive]++;
	scrub->all_bytes += piece->len_bytes;
}

static void add_object(struct scrub *scrub, const struct object *object)
{
	const struct spw_store *store = scrub->store;

	for (uint32_t run = object->piece_first; run != PIECE_NONE;
	     run = spw_store__run_next(store, object, run)) {
		uint32_t second = object->copies == 2 ? store->pieces[run].next : PIECE_NONE;

		add_copy(scrub, run, second);
		if (second != PIECE_NONE)
			add_copy(scrub, second, run);
		/* its only replica was on a missing drive */
		scrub->found->runs_lost += !scrub->bad && store->pieces[run].drive == DRIVE_NONE;
	}
}

static void add_all(struct scrub *scrub, const struct committed *set)
{
	const struct spw_store *store = scrub->store;

	memset(scrub->counts, 0, sizeof(scrub->counts));
	scrub->all_bytes = 0;
	add_object(scrub, &store->objects[(uint32_t)set->manifest.value]);
	for (uint32_t i = 0; i < set->count; i++)
		add_object(scrub, set->objects[i]);
}

static int by_address(const void *a, const void *b, void *context)
{
	const struct spw_store *store = context;
	uint64_t left = offset_of(store, &store->pieces[((const struct copy *)a)->piece]);
	uint64_t right = offset_of(store, &store->pieces[((const struct copy *)b)->piece]);

	return (left > right) - (left < right);
}

/* Count the replicas first, then list them. */
static int list_copies(struct scrub *scrub, const struct committed *set)
{
	struct spw_store *store = scrub->store;

	add_all(scrub, set);
	scrub->bad = calloc(store->pieces_fresh + UINT64_C(1), 1);
	if (!scrub->bad)
		return -ENOMEM;
	for (uint32_t i = 0; i < store->drive_count; i++) {
		scrub->copies[i] = calloc(scrub->counts[i] + 1, sizeof(struct copy));
		if (!scrub->copies[i])
			return -ENOMEM;
	}
	add_all(scrub, set);
	for (uint32_t i = 0; i < store->drive_count; i++)
		qsort_r(scrub->copies[i], scrub->counts[i], sizeof(struct copy), by_address, store);
	return 0;
}

static int run(struct scrub *scrub, const struct committed *set)
{
	struct spw_store *store = scrub->store;
	uint64_t unrepaired = 0;
	int rc = list_copies(scrub, set);

	if (rc)
		return spw_error(rc, "no memory to read what is committed");
	spw_parallel(store->drive_count, "drives are read", verify_drive, scrub, &store->opts.log);
	if (scrub->error)
		return spw_error(scrub->error, "no memory to read what is committed");
	for (uint32_t i = 0; i < store->drive_count; i++) {
		repair_drive(scrub, i);
		unrepaired +=
			scrub->found->drive[i].copies_bad - scrub->found->drive[i].copies_repaired;
	}
	if (scrub->stopped)
		return spw_error(-ECANCELED, "interrupted: not all was read");
	if (scrub->found->runs_lost > 0 || unrepaired > 0)
		return spw_error(-EBADMSG,
				 "%llu chunks of commit %llu are lost, and %llu bad copies could "
				 "not be written again",
				 (unsigned long long)scrub->found->runs_lost,
				 (unsigned long long)set->block.number,
				 (unsigned long long)unrepaired);
	return 0;
}

int spw_store_scrub(struct spw_store *store,
		    bool (*go_on)(void *context, uint64_t done_bytes, uint64_t all_bytes),
		    void *context, struct spw_scrub *found, size_t size)
{
	const struct committed *set = store->commits->durable;
	struct spw_scrub all = {.size = SPW_MIN(size, sizeof(all))};
	struct scrub scrub = {.store = store, .found = &all, .go_on = go_on, .context = context};
	int rc = spw_store__owned(store);

	memcpy(found, &all, all.size);
	if (rc == 0 && !set)
		rc = spw_error(-ENODATA, "nothing is committed in this partition of the store");
	if (rc)
		return rc;
	all.runs = set->runs;
	all.runs_single = set->runs_single;
	(void)pthread_mutex_init(&scrub.lock, NULL);
	rc = run(&scrub, set);
	(void)pthread_mutex_destroy(&scrub.lock);
	for (uint32_t i = 0; i < store->drive_count; i++)
		free(scrub.copies[i]);
	free(scrub.bad);
	memcpy(found, &all, all.size);
	return rc;
}
