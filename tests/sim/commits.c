/* SPDX-License-Identifier: MIT */
/*
 * tests/sim/commits.c - commits, and the model that knows what must be there when the store is
 * opened again
 *
 * Of drives that do not lie: the last commit that ended well, or one that failed after it. Of those
 * that lose, tear or rot what they have acknowledged: any that ever was, or an error; and whatever
 * bytes come back are those that were committed, as always.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "tests/sim/sim.h"
#include "util/util.h"

#define SETS     64
#define MANIFEST (UINT64_C(64) << 10) /* more than any manifest has here */

struct set {
	uint64_t number;
	unsigned count;
	struct sim_kept kept[SIM_OBJECTS];
	bool sure; /* it ended well */
};

static struct set sets[SETS];
static unsigned set_count;
static uint64_t blackouts;
static bool overwritten;

void sim_commits_begin(void)
{
	overwritten = false;
	set_count = 0;
	blackouts = 0;
}

bool sim_commits_attempted(void)
{
	return set_count > 0;
}

void sim_commits_blackout(void)
{
	blackouts++;
}

/* A drive has said that something is stored, and it is not, or not any more. */
bool sim_commits_may_be_lost(void)
{
	static const enum sim_fault lies[] = {SIM_LOST, SIM_TORN, SIM_MISDIRECTED, SIM_ROT,
					      SIM_LATENT};

	for (unsigned i = 0; set_count > 0 && i < sim_drive_count; i++) {
		for (unsigned j = 0; j < SPW_ARRAY_LEN(lies); j++)
			if (sim_drives[i].injected[lies[j]] > 0)
				return true;
		/* Of one drive alone, what it had not flushed by then is gone. */
		if (sim_drives[i].injected[SIM_POWER] > blackouts)
			return true;
	}
	return false;
}

/* What a put may find taken: by the last that is sure, and all after it. */
uint64_t sim_commits_bytes(void)
{
	uint64_t bytes = 0;

	for (unsigned i = set_count; i-- > 0;) {
		for (unsigned j = 0; j < sets[i].count; j++)
			bytes += sets[i].kept[j].copies *
				 spw_round_up(sets[i].kept[j].len, sim_inside_block_bytes());
		bytes += 2 * MANIFEST;
		/* And the one before, if it was kept. */
		if (sets[i].sure && i + 1 < set_count && sets[i + 1].sure)
			break;
	}
	return bytes;
}

static bool any_drive_was_harmed(void)
{
	for (unsigned i = 0; i < sim_drive_count; i++)
		for (unsigned fault = 0; fault < SIM_FAULTS; fault++)
			if (sim_drives[i].injected[fault] > 0)
				return true;
	return false;
}

static void judge_failure(int rc)
{
	if (rc == -ENOSPC || rc == -ENOBUFS || rc == -EBUSY)
		return;
	if (rc == -EOPNOTSUPP && sim_world.config->store.no_checksums)
		return;
	if (!any_drive_was_harmed())
		sim_fail("a commit failed although no drive has: %d, %s", rc, spw_last_error());
}

/* a: how many objects at most; b: the record's length; c: whether the one before is kept */
bool sim_commits_step(const struct sim_step *step)
{
	static uint8_t record[4096];
	spw_object objects[SIM_OBJECTS];
	struct set *set = &sets[set_count];
	int rc;

	if (set_count == SETS)
		return false;
	/* If it fails, the commit is refused. */
	(void)spw_store_commit_release(sim_world.store);
	*set = (struct set){.number = set_count > 0 ? set[-1].number + 1 : 1};
	set->count = sim_objects_committable(objects, set->kept,
					     (unsigned)(step->a % (SIM_OBJECTS + 1)));
	set_count++;
	rc = spw_store_commit(sim_world.store, objects, set->count, set->number, record,
			      step->b % sizeof(record), step->c % 4 == 0);
	set->sure = rc == 0;
	if (rc)
		judge_failure(rc);
	return true;
}

/* Nothing but the description of an empty set is left then. Return: whether that was possible. */
bool sim_commits_end(void)
{
	uint64_t number = set_count > 0 ? sets[set_count - 1].number + 1 : 1;

	return spw_store_commit_release(sim_world.store) == 0 &&
	       spw_store_commit(sim_world.store, NULL, 0, number, NULL, 0, false) == 0;
}

static const struct set *set_of(uint64_t number)
{
	for (unsigned i = 0; i < set_count; i++)
		if (sets[i].number == number)
			return &sets[i];
	sim_fail("commit %" PRIu64 " was restored, and there never was one", number);
}

static unsigned last_sure(void)
{
	unsigned last = set_count;

	while (last > 0 && !sets[last - 1].sure)
		last--;
	return last;
}

/*
 * What a drive has lost of a commit brings back an earlier one, whose blocks on the other drives
 * hold what came after it.
 */
bool sim_commits_overwritten(void)
{
	return overwritten;
}

static void check_which(uint64_t number)
{
	unsigned sure = last_sure();

	if (sim_commits_may_be_lost()) {
		overwritten = overwritten || (sure > 0 && number < sets[sure - 1].number);
		return;
	}
	if (number == 0 && sure > 0)
		sim_fail("commit %" PRIu64 " was durable, and is not there", sets[sure - 1].number);
	if (sure > 0 && number < sets[sure - 1].number)
		sim_fail("commit %" PRIu64 " was durable, and %" PRIu64 " is there",
			 sets[sure - 1].number, number);
}

static void verify(spw_object object, const struct sim_kept *kept)
{
	static uint8_t back[SIM_DRIVE_BYTES_MAX];
	struct spw_request *request;
	int rc = spw_store_get(sim_world.store, object, 0, back, kept->len, SPW_URGENT_READ, NULL,
			       &request);

	if (rc == -ENOBUFS)
		return;
	rc = rc ? rc : spw_request_wait(request);
	if (rc == 0 && memcmp(back, kept->expected, kept->len) != 0)
		sim_fail("wrong bytes in an object of %" PRIu64 " that was restored", kept->len);
	if (rc) {
		sim_judge_read_error(rc, spw_last_error());
		sim_judge_place(rc, spw_last_error(), object);
	}
}

/* The store was opened again: what it has, the model has from now on. */
void sim_commits_opened(void)
{
	struct spw_commit_info info = {.size = sizeof(info)};
	spw_object objects[SIM_OBJECTS];
	uint64_t lens[SIM_OBJECTS];
	const struct set *set;
	int rc = spw_store_committed(sim_world.store, &info, sizeof(info));

	check_which(rc == -ENODATA ? 0 : info.number);
	if (rc == -ENODATA)
		return;
	set = set_of(info.number);
	if (info.objects != set->count ||
	    spw_store_committed_objects(sim_world.store, objects, lens, set->count))
		sim_fail("%u objects were restored of %u", info.objects, set->count);
	for (unsigned i = 0; i < set->count; i++) {
		if (lens[i] != set->kept[i].len)
			sim_fail("an object of %" PRIu64 " bytes has %" PRIu64, set->kept[i].len,
				 lens[i]);
		sim_objects_restored(objects[i], &set->kept[i]);
		verify(objects[i], &set->kept[i]);
	}
	/* Those after it never were. */
	set_count = (unsigned)(set - sets) + 1;
	sets[set_count - 1].sure = true;
}
