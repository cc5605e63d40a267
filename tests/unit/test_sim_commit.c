/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_sim_commit.c - commits over simulated drives with volatile caches: power is cut
 * at every transfer, and what is found afterwards is the old step or the new one, complete
 */
#include "layout/commit.h"

#define DRIVES     2
#define DRIVES_MAX DRIVES
#define ROUNDS     3

static const char *const paths[DRIVES] = {"sim1", "sim0"};

#include "tests/unit/sim_steps.h"

static int open_how(uint64_t commit_number, bool read_only)
{
	return open_these(all(), commit_number, read_only);
}

static int open_with(uint64_t commit_number)
{
	return open_how(commit_number, false);
}

static void open_store(void)
{
	assert_ok(open_with(SPW_COMMIT_NEWEST));
}

static int put(uint64_t step, unsigned index, spw_object *object)
{
	return put_copies(step, index, 1, object);
}

static int commit_step(uint64_t step, bool keep_previous)
{
	return commit_copies(step, 1, step, keep_previous);
}

/* All of the step is there, or this fails. Return: the step. */
static uint64_t verify(void)
{
	uint64_t number, step = restored(&number);

	assert_int_equal(step, number);
	return step;
}

static uint64_t found(void)
{
	uint64_t step;

	open_store();
	step = verify();
	close_store();
	return step;
}

/* ---- Without faults ---- */

CASE_WITH(test_found_again, NULL, tear_down)
{
	make_store(DRIVES, 4096, 2);
	assert_int_equal(verify(), 0);
	assert_ok(commit_step(7, false));
	close_store();
	assert_int_equal(found(), 7);
	/* And what was restored is held: it is not written over. */
	open_store();
	overwrite_all_that_is_free();
	assert_int_equal(verify(), 7);
	assert_ok(commit_step(8, false));
	overwrite_all_that_is_free();
	close_store();
	assert_int_equal(found(), 8);
	expect_refusal(-ENODATA, "the last is 8", open_with(7));
	assert_int_equal(found(), 8);
}

/*
 * A process is killed before it has flushed the blocks of a commit. The next one finds it and
 * writes over what it has freed, before power is cut: the commit is still there (DURABLE-6).
 */
CASE_WITH(test_found_before_its_flush, NULL, tear_down)
{
	for (unsigned round = 0; round < 30; round++) {
		make_store(DRIVES, units[round % SPW_ARRAY_LEN(units)], 2);
		assert_ok(commit_step(1, false));
		for (unsigned i = 0; i < DRIVES; i++)
			fail_nth(i, SPW_FLUSH, 2, -EIO); /* the first one is for the objects */
		assert_int_equal(commit_step(2, false), -EIO);
		close_store();
		mend_all();
		open_store();
		assert_int_equal(verify(), 2);
		overwrite_all_that_is_free();
		close_store();
		power_on();
		assert_int_equal(found(), 2);
	}
}

CASE_WITH(test_refusals, NULL, tear_down)
{
	spw_object objects[2], none = {.value = 12345};
	struct spw_commit_info info;
	uint64_t before;
	struct spw_store_stats stats;

	make_store(DRIVES, 4096, 1);
	assert_int_equal(spw_store_committed(store, &info, sizeof(info)), -ENODATA);
	assert_int_equal(spw_store_committed_objects(store, objects, NULL, 1), -ENODATA);
	assert_int_equal(spw_store_committed_record(store, objects, 8), -ENODATA);
	assert_ok(put(1, 0, &objects[0]));
	objects[1] = objects[0];
	expect_refusal(-EINVAL, "twice", spw_store_commit(store, objects, 2, 1, NULL, 0, false));
	assert_int_equal(spw_store_commit(store, &none, 1, 1, NULL, 0, false), -ENOENT);
	assert_int_equal(spw_store_commit(store, NULL, 1, 1, NULL, 0, false), -EINVAL);
	assert_int_equal(spw_store_commit(store, NULL, 0, 1, NULL, 8, false), -EINVAL);
	assert_int_equal(
		spw_store_commit(store, NULL, 0, SPW_COMMIT_NUMBER_MAX + 1, NULL, 0, false),
		-EINVAL);
	assert_ok(spw_store_commit(store, objects, 1, 5, NULL, 0, false));
	expect_refusal(-EINVAL, "commit 5 is durable",
		       spw_store_commit(store, objects, 1, 5, NULL, 0, false));
	for (unsigned flag = 2 * SPW_COMMIT_MIRRORED; flag > 0; flag *= 2) {
		expect_refusal(-EINVAL, "no such flags",
			       spw_store_commit(store, objects, 1, 5, NULL, 0, flag));
	}
	spw_store_stats(store, &stats, sizeof(stats));
	before = stats.used_bytes;
	/* A refusal holds nothing. */
	assert_int_equal(spw_store_commit(store, objects, 2, 6, NULL, 0, false), -EINVAL);
	assert_ok(spw_store_commit(store, objects, 1, 6, NULL, 0, false));
	spw_store_stats(store, &stats, sizeof(stats));
	assert_int_equal(stats.used_bytes, before);
	assert_ok(spw_store_commit(store, NULL, 0, 7, NULL, 0, false));
	assert_ok(spw_store_free(store, objects[0]));
	close_store();
	open_store();
	assert_ok(spw_store_committed(store, &info, sizeof(info)));
	assert_true(info.number == 7 && info.objects == 0 && info.record_bytes == 0);
}

CASE_WITH(test_a_put_goes_on, NULL, tear_down)
{
	uint8_t *bytes = bytes_of(1, 0);
	struct spw_request *request;
	spw_object object;

	make_store(DRIVES, 4096, 1);
	assert_ok(spw_store_put(store, bytes, len_of(1, 0), NULL, &object, &request));
	assert_int_equal(spw_store_commit(store, &object, 1, 1, NULL, 0, false), -EINPROGRESS);
	assert_ok(spw_request_wait(request));
	assert_ok(spw_store_commit(store, &object, 1, 1, NULL, 0, false));
	free(bytes);
}

CASE_WITH(test_previous_is_kept, NULL, tear_down)
{
	make_store(DRIVES, 4096, 1);
	assert_ok(commit_step(1, true));
	assert_ok(commit_step(2, true));
	overwrite_all_that_is_free();
	expect_refusal(-EBUSY, "commit 1, before the last, is still kept", commit_step(3, false));
	close_store();
	/* Another process lacks step 2: all go back to 1, and 2 is never found again. */
	assert_ok(open_with(1));
	assert_int_equal(verify(), 1);
	overwrite_all_that_is_free();
	close_store();
	assert_int_equal(open_with(2), -ENODATA);
	assert_int_equal(found(), 1);
	open_store();
	assert_ok(commit_step(2, true));
	assert_ok(spw_store_commit_release(store));
	overwrite_all_that_is_free();
	close_store();
	assert_int_equal(open_with(1), -ENODATA);
	assert_int_equal(found(), 2);
}

/* Who takes the newest gives up the one that was kept, and may then use its blocks. */
CASE_WITH(test_newest_gives_up_the_previous, NULL, tear_down)
{
	struct spw_request *request;

	make_store(DRIVES, 4096, 1);
	assert_ok(commit_step(1, true));
	assert_ok(commit_step(2, true));
	close_store();
	/* Who only looks gives up nothing. */
	for (uint64_t step = 2; step > 0; step--) {
		assert_ok(open_how(step, true));
		assert_int_equal(verify(), step);
		assert_int_equal(commit_step(3, false), -EROFS);
		assert_int_equal(spw_store_trim(store, NULL, &request), -EROFS);
		assert_int_equal(spw_store_commit(store, NULL, 0, 3, NULL, 0, false), -EROFS);
		close_store();
	}
	assert_ok(open_how(SPW_COMMIT_NONE, true));
	close_store();
	assert_int_equal(found(), 2);
	assert_int_equal(open_with(1), -ENODATA);
	assert_ok(open_with(SPW_COMMIT_NONE));
	assert_int_equal(verify(), 0);
	close_store();
	assert_int_equal(found(), 0);
}

/* ---- Power cuts ---- */

/* Steps 1 and 2, then power is cut at an event of what @run does. Return: whether it was. */
static bool cut_at(uint64_t point, uint32_t unit, int (*run)(void), unsigned outcomes[4])
{
	uint64_t step;
	bool cut;
	int rc;

	make_store(DRIVES, unit, 1);
	assert_ok(commit_step(1, false));
	assert_ok(commit_step(2, false));
	sim_events = 0;
	sim_cut_at = point;
	sim_cuts_queues = true;
	rc = run();
	cut = sim_events >= point;
	close_store();
	power_on();
	step = found();
	assert_in_range(step, 2, 3);
	assert_true(rc || step == 3); /* what was reported as durable is */
	assert_true(rc == 0 || cut);
	outcomes[step]++;
	/* It goes on from there, and is found again. */
	open_store();
	assert_ok(commit_step(step + 1, false));
	close_store();
	assert_int_equal(found(), step + 1);
	return cut;
}

static int commit_3(void)
{
	return commit_step(3, false);
}

static int overwrite_and_commit_3(void)
{
	overwrite_all_that_is_free();
	return commit_step(3, false);
}

static void cut_everywhere(int (*run)(void))
{
	unsigned outcomes[4] = {0};

	for (unsigned unit = 0; unit < SPW_ARRAY_LEN(units); unit++)
		for (unsigned round = 0; round < ROUNDS; round++) {
			uint64_t point = 1;

			while (cut_at(point, units[unit], run, outcomes))
				point++;
			assert_in_range(point, 10, 1000);
		}
	(void)printf("step 2: %u, step 3: %u\n", outcomes[2], outcomes[3]);
	assert_true(outcomes[2] > 0 && outcomes[3] > 3 * ROUNDS);
}

CASE_WITH(test_cut_in_commit, NULL, tear_down)
{
	cut_everywhere(commit_3);
}

CASE_WITH(test_cut_in_puts_and_commit, NULL, tear_down)
{
	cut_everywhere(overwrite_and_commit_3);
}

/*
 * One object, its chunks on different drives, and power is cut at an event of its commit: all that
 * a block names has been flushed before (DURABLE-1). Return: whether it was.
 */
static bool cut_in_large(unsigned chunks, uint64_t point)
{
	size_t len = (chunks - 1) * CHUNK_BYTES + 1; /* what follows goes where the last one is */
	uint8_t *bytes = malloc(len), *back = calloc(1, len);
	struct spw_request *request;
	spw_object object;
	bool cut;
	int rc;

	assert_true(bytes && back);
	sim_fill(bytes, len, chunks);
	make_store(DRIVES, 512, 1);
	assert_ok(spw_store_put(store, bytes, len, NULL, &object, &request));
	assert_ok(spw_request_wait(request));
	sim_events = 0;
	sim_cut_at = point;
	sim_cuts_queues = true;
	rc = spw_store_commit(store, &object, 1, 1, NULL, 0, 0);
	cut = sim_events >= point;
	close_store();
	power_on();
	open_store();
	if (spw_store_committed_objects(store, &object, NULL, 1)) {
		assert_true(rc != 0);
	} else {
		assert_ok(spw_store_get(store, object, 0, back, len, SPW_URGENT_READ, NULL,
					&request));
		assert_ok(spw_request_wait(request));
		assert_memory_equal(back, bytes, len);
	}
	close_store();
	free(back);
	free(bytes);
	return cut;
}

CASE_WITH(test_cut_in_commit_of_one_large_object, NULL, tear_down)
{
	for (unsigned chunks = 2; chunks <= 5; chunks++)
		for (unsigned round = 0; round < 2 * ROUNDS; round++) {
			uint64_t point = 1;

			while (cut_in_large(chunks, point))
				point++;
			assert_in_range(point, 4, 100);
		}
}

/* Step 1 is kept, another process lacks step 2: 3 takes its place, and 1 stays all the time. */
static bool cut_in_third(uint64_t point, uint32_t unit, unsigned outcomes[4])
{
	struct spw_commit_info info = {.size = sizeof(info)};
	bool cut;
	int rc;

	make_store(DRIVES, unit, 1);
	assert_ok(commit_step(1, false));
	assert_ok(commit_step(2, true));
	sim_events = 0;
	sim_cut_at = point;
	sim_cuts_queues = true;
	rc = commit_step(3, true);
	cut = sim_events >= point;
	if (!cut)
		overwrite_all_that_is_free();
	close_store();
	power_on();
	assert_ok(spw_committed(paths, DRIVES, 0, &info, sizeof(info)));
	assert_true(rc || info.number == 3);
	assert_true(rc == 0 || cut);
	assert_true(info.number == 1 || (info.has_previous && info.previous == 1));
	outcomes[info.number]++;
	assert_ok(open_how(info.number, true));
	assert_int_equal(verify(), info.number);
	close_store();
	assert_ok(open_with(1));
	assert_int_equal(verify(), 1);
	assert_ok(commit_step(2, true));
	close_store();
	assert_int_equal(found(), 2);
	return cut;
}

CASE_WITH(test_cut_where_the_last_is_replaced, NULL, tear_down)
{
	unsigned outcomes[4] = {0};

	for (unsigned unit = 0; unit < SPW_ARRAY_LEN(units); unit++)
		for (unsigned round = 0; round < ROUNDS; round++) {
			uint64_t point = 1;

			while (cut_in_third(point, units[unit], outcomes))
				point++;
			assert_in_range(point, 10, 1000);
		}
	(void)printf("step 1: %u, step 2: %u, step 3: %u\n", outcomes[1], outcomes[2], outcomes[3]);
	assert_true(outcomes[2] > 0 && outcomes[3] >= 3 * ROUNDS);
}

/* A cut while a later commit is discarded: the later one still, or the one asked for. */
CASE_WITH(test_cut_in_going_back, NULL, tear_down)
{
	for (unsigned unit = 0; unit < SPW_ARRAY_LEN(units); unit++) {
		uint64_t point = 0, step;
		bool cut = true;

		while (cut) {
			int rc;

			make_store(DRIVES, units[unit], 1);
			assert_ok(commit_step(1, true));
			assert_ok(commit_step(2, true));
			close_store();
			sim_events = 0;
			sim_cut_at = ++point;
			rc = open_with(1);
			if (rc == 0)
				overwrite_all_that_is_free();
			cut = sim_events >= point;
			close_store();
			power_on();
			step = found();
			assert_true(rc ? step == 1 || step == 2 : step == 1);
		}
		assert_in_range(point, 2 * DRIVES, 100);
	}
}

/* ---- Errors of drives ---- */

/* A commit that fails leaves it open which counts: until the next, the blocks of both are held. */
static bool fail_at(unsigned drive, enum spw_op op, uint32_t nth)
{
	uint64_t step;
	int rc;

	make_store(DRIVES, 4096, 1);
	assert_ok(commit_step(1, false));
	assert_ok(commit_step(2, false));
	/* Of a drive that stays in service: a put retires it at a failed write. */
	fail_nth(drive, op, nth, -EIO);
	rc = commit_step(3, false);
	sim_drives[drive].failing[op].in = 0;
	if (rc)
		expect_words("sim");
	overwrite_all_that_is_free();
	close_store();
	step = found();
	assert_true(step == 2 || step == 3);
	assert_true(rc || step == 3);
	open_store();
	fail_nth(drive, op, nth, -EIO);
	rc = commit_step(step + 1, false);
	sim_drives[drive].failing[op].in = 0;
	if (rc) {
		overwrite_all_that_is_free();
		rc = commit_step(step + 2, false);
		step++;
	}
	assert_ok(rc);
	overwrite_all_that_is_free();
	close_store();
	assert_int_equal(found(), step + 1);
	return nth < 12;
}

CASE_WITH(test_errors, NULL, tear_down)
{
	for (unsigned drive = 0; drive < DRIVES; drive++)
		for (enum spw_op op = SPW_WRITE; op <= SPW_FLUSH; op++)
			for (uint32_t nth = 1; fail_at(drive, op, nth); nth++)
				;
}

/* ---- Damage ---- */

static uint64_t slot_at(unsigned drive, unsigned slot)
{
	const struct spw_geometry *geometry = &sim_drives[drive].geometry;
	struct spw_superblock sb = {.block_bytes = 4096,
				    .chunk_bytes = CHUNK_BYTES,
				    .logical_block_bytes = 512,
				    .features_incompatible = SPW_FEATURE_COMMITS,
				    .partition_count = 1};

	assert_ok(spw_layout__plan(&sb, geometry->size_bytes));
	return spw_layout__commit_offset(&sb, 0, slot);
}

/* One drive has it: that is enough. None has: the one before does not come back as if it were. */
CASE_WITH(test_lost_blocks, NULL, tear_down)
{
	static const uint8_t zeros[4096];

	make_store(DRIVES, 4096, 1);
	assert_ok(commit_step(1, false));
	assert_ok(commit_step(2, false)); /* in slot 1 */
	close_store();
	for (unsigned drive = 0; drive < DRIVES; drive++) {
		/* Opened to be written, it would be put on the other one again (DURABLE-6). */
		assert_ok(open_how(SPW_COMMIT_NEWEST, true));
		assert_int_equal(verify(), 2);
		close_store();
		sim_drive_write(&sim_drives[drive], slot_at(drive, 1), zeros, sizeof(zeros));
	}
	/* Its manifest may be there or not; what it says is verified, and never wrong. */
	if (open_with(SPW_COMMIT_NEWEST) == 0)
		assert_int_equal(verify(), 1);
	else
		expect_words("damaged");
}

/*
 * The last commit is on one drive only, as its process was killed. Power is cut while the store is
 * opened, and then that drive's block is lost: one of both commits is still there (DURABLE-6).
 */
CASE_WITH(test_cut_in_securing, NULL, tear_down)
{
	static const uint8_t zeros[4096];
	bool cut = true;

	for (uint64_t point = 1; cut; point++) {
		make_store(DRIVES, 4096, 1);
		assert_ok(commit_step(1, true));
		assert_ok(commit_step(2, true)); /* in slot 1 */
		close_store();
		sim_drive_write(&sim_drives[1], slot_at(1, 1), zeros, sizeof(zeros));
		sim_events = 0;
		sim_cut_at = point;
		sim_cuts_queues = true;
		(void)open_with(SPW_COMMIT_NEWEST);
		cut = sim_events >= point;
		close_store();
		power_on();
		sim_drive_write(&sim_drives[0], slot_at(0, 1), zeros, sizeof(zeros));
		assert_in_range(found(), 1, 2);
		close_store();
	}
}

CASE_WITH(test_damaged_manifest, NULL, tear_down)
{
	struct spw_commit commit;
	struct spw_commit_place place = {.drive_count = DRIVES, .block_bytes = 4096};
	uint8_t block[4096], junk[4] = {1};
	const char *why;

	make_store(DRIVES, 4096, 1);
	assert_ok(commit_step(1, false));
	place.chunk_bytes = CHUNK_BYTES;
	memcpy(place.store_uuid, store->assembly.superblocks[0].store_uuid, 16);
	close_store();
	memcpy(block, sim_drives[0].medium + slot_at(0, 0), sizeof(block));
	assert_ok(spw_layout__commit_decode(block, &place, 0, &commit, &why));
	/* Drives are named in another order than they have. */
	sim_drive_write(&sim_drives[1 - commit.pieces[0].drive],
			SPW_LAYOUT_RESERVED_BYTES + commit.pieces[0].start_block * 4096 +
				commit.manifest_bytes - sizeof(junk),
			junk, sizeof(junk));
	expect_refusal(-EBADMSG, "damaged", open_with(SPW_COMMIT_NEWEST));
	expect_words("spillway state drop");
	assert_ok(open_with(SPW_COMMIT_NONE));
	assert_int_equal(verify(), 0);
	assert_ok(commit_step(1, false));
	close_store();
	assert_int_equal(found(), 1);
}

/*
 * 1 is kept, and 3 fails while its blocks are written over those of 2, which the drives may have
 * damaged: what is sure is 1 alone, and it is not released.
 */
CASE_WITH(test_a_failed_commit_leaves_what_is_kept, NULL, tear_down)
{
	static const uint8_t junk[4096] = {1};

	make_store(DRIVES, 4096, 1);
	assert_ok(commit_step(1, false));
	assert_ok(commit_step(2, true)); /* in slot 1 */
	for (unsigned drive = 0; drive < DRIVES; drive++)
		fail_nth(drive, SPW_FLUSH, 2, -EIO); /* the first one is for the objects */
	assert_int_equal(commit_step(3, true), -EIO);
	mend_all();
	expect_refusal(-EBUSY, "commit 1 is all that is sure", spw_store_commit_release(store));
	close_store();
	for (unsigned drive = 0; drive < DRIVES; drive++)
		sim_drive_write(&sim_drives[drive], slot_at(drive, 1), junk, sizeof(junk));
	assert_int_equal(found(), 1);
	/* Once another is durable it may go. */
	make_store(DRIVES, 4096, 1);
	assert_ok(commit_step(1, false));
	assert_ok(commit_step(2, true));
	for (unsigned drive = 0; drive < DRIVES; drive++)
		fail_nth(drive, SPW_FLUSH, 2, -EIO);
	assert_int_equal(commit_step(3, true), -EIO);
	mend_all();
	assert_ok(commit_step(4, true));
	assert_ok(spw_store_commit_release(store));
	close_store();
	assert_int_equal(found(), 4);
}

RUN_CASES(take_seed, NULL)
