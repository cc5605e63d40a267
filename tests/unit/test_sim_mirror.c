/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_sim_mirror.c - two copies over simulated drives: reads while one fails, commits
 * while one dies, opening without one, drives that come back, and drives that went on without each
 * other
 */
#include "drives/committed.h"
#include "store/request.h"
#include "store/submit.h"

#define DRIVES_MAX 3

static const char *const paths[DRIVES_MAX] = {"sim0", "sim1", "sim2"};

#include "tests/unit/sim_steps.h"

static int open_mask(unsigned mask)
{
	return open_these(mask, SPW_COMMIT_NEWEST, false);
}

static struct spw_store_stats stats_of(void)
{
	struct spw_store_stats stats;

	spw_store_stats(store, &stats, sizeof(stats));
	return stats;
}

static int commit_step(uint64_t step)
{
	return commit_copies(step, 2, step, SPW_COMMIT_MIRRORED);
}

/* All of what was restored is there. Return: which step's it is; 0: nothing. */
static uint64_t verify(void)
{
	uint64_t number;

	return restored(&number);
}

static uint64_t found_with(unsigned mask)
{
	uint64_t step;

	assert_ok(open_mask(mask));
	step = verify();
	close_store();
	return step;
}

/* ---- Two copies ---- */

CASE_WITH(test_each_copy_serves, NULL, tear_down)
{
	for (unsigned count = 2; count <= 3; count++)
		for (unsigned failing = 0; failing < count; failing++) {
			spw_object object;

			make_store(count, 4096, 1);
			assert_ok(put_copies(1, 2, 2, &object));
			assert_int_equal(stats_of().bytes_written,
					 2 * spw_round_up(len_of(1, 2), 4096));
			assert_int_equal(stats_of().used_bytes,
					 2 * spw_round_up(len_of(1, 2), 4096));
			assert_ok(get(1, 2, object));
			assert_int_equal(stats_of().reads_switched, 0);
			fail_from(failing, SPW_READ, 1, -EIO);
			for (unsigned i = 0; i < 8; i++)
				assert_ok(get(1, 2, object));
			if (count == 2)
				assert_true(stats_of().reads_switched > 0);
			if (stats_of().reads_switched > 0)
				assert_non_null(strstr(heard, "read from their copy on"));
			/* Its own copies are bad, too, where the other drive does not answer. */
			for (unsigned i = 0; i < count; i++)
				fail_from(i, SPW_READ, 1, -EIO);
			assert_int_equal(get(1, 2, object), -EIO);
			assert_ok(spw_store_free(store, object));
			close_store();
		}
}

/*
 * Urgent reads come from a drive of this machine, however fast a far one is; prefetches
 * from both; and the far one serves where the near one does not.
 */
CASE_WITH(test_urgent_reads_are_from_near_copies, NULL, tear_down)
{
	uint8_t *bytes = bytes_of(1, 2), *back = malloc(len_of(1, 2));

	for (unsigned far = 0; far < 2; far++) {
		static const enum spw_class classes[] = {SPW_URGENT_READ, SPW_PREFETCH};
		uint64_t read[2] = {0};
		spw_object object;

		make_drives(2, 4096, 1);
		sim_drives[1 - far].bytes_per_second /= 100;
		assert_ok(open_mask(all()));
		store->drives[far].device->transport.far = true;
		assert_ok(put_copies(1, 2, 2, &object));
		for (unsigned i = 0; i < SPW_ARRAY_LEN(classes); i++) {
			for (unsigned k = 0; k < 16; k++) {
				struct spw_request *request;

				if (k == 8)
					read[i] = store->drives[far].dir[SPW_READ].transfers;
				assert_ok(spw_store_get(store, object, 0, back, len_of(1, 2),
							classes[i], NULL, &request));
				assert_ok(spw_request_wait(request));
				assert_memory_equal(back, bytes, len_of(1, 2));
			}
			read[i] = store->drives[far].dir[SPW_READ].transfers - read[i];
		}
		assert_int_equal(read[0], 0);
		assert_true(read[1] > 0);
		fail_from(1 - far, SPW_READ, 1, -EIO);
		assert_ok(get(1, 2, object));
		close_store();
	}
	free(bytes);
	free(back);
}

CASE_WITH(test_other_bytes_are_not_believed, NULL, tear_down)
{
	static const uint8_t junk[4096] = {1};
	spw_object object;

	make_store(2, 4096, 1);
	assert_ok(put_copies(1, 2, 2, &object));
	for (uint64_t at = SPW_LAYOUT_RESERVED_BYTES; at < 2 * SPW_LAYOUT_RESERVED_BYTES;
	     at += 4096)
		sim_drive_write(&sim_drives[0], at, junk, sizeof(junk));
	for (unsigned i = 0; i < 8; i++)
		assert_ok(get(1, 2, object));
	assert_true(stats_of().reads_switched > 0 && stats_of().checksum_errors > 0);
	for (uint64_t at = SPW_LAYOUT_RESERVED_BYTES; at < 2 * SPW_LAYOUT_RESERVED_BYTES;
	     at += 4096)
		sim_drive_write(&sim_drives[1], at, junk, sizeof(junk));
	assert_int_equal(get(1, 2, object), -EBADMSG);
}

/* A part of an object, into memory that no drive writes to: through copy memory. */
CASE_WITH(test_parts_are_read_from_the_other_copy, NULL, tear_down)
{
	uint8_t *bytes = bytes_of(1, 2), back[5000];
	struct spw_request *request;
	spw_object object;

	make_store(2, 4096, 1);
	assert_ok(put_copies(1, 2, 2, &object));
	fail_from(0, SPW_READ, 1, -EIO);
	for (uint64_t at = 1; at + sizeof(back) < len_of(1, 2); at += 9973) {
		assert_ok(spw_store_get(store, object, at, back, sizeof(back), SPW_URGENT_READ,
					NULL, &request));
		assert_ok(spw_request_wait(request));
		assert_memory_equal(back, bytes + at, sizeof(back));
	}
	assert_int_equal(spw_store_holds(store, object, bytes, 0, len_of(1, 2)), 1);
	bytes[len_of(1, 2) - 1] ^= 1;
	assert_int_equal(spw_store_holds(store, object, bytes, 0, len_of(1, 2)), 0);
	free(bytes);
}

/* A write that fails goes to the third drive; without one there is one copy and no more space. */
CASE_WITH(test_failed_writes, NULL, tear_down)
{
	for (unsigned count = 2; count <= 3; count++)
		for (uint32_t nth = 1; nth <= 3; nth++) {
			uint64_t len = spw_round_up(len_of(1, 2), 4096);
			spw_object object;

			make_store(count, 4096, 1);
			fail_from(1, SPW_WRITE, nth, -EIO);
			assert_ok(put_copies(1, 2, 2, &object));
			if (nth > 1 && stats_of().drives_retired == 0) {
				close_store(); /* it was not given that many chunks */
				continue;
			}
			assert_int_equal(stats_of().drives_retired, 1);
			assert_true(stats_of().chunks_moved > 0);
			assert_int_equal(stats_of().chunks_single > 0, count == 2);
			assert_true(count == 2 ||
				    store->objects[0].reserved_blocks * 4096 == 2 * len);
			assert_true(count == 3 ||
				    store->objects[0].reserved_blocks * 4096 < 2 * len);
			assert_ok(get(1, 2, object));
			sim_drives[1].failing[SPW_READ] = sim_drives[1].failing[SPW_WRITE];
			assert_ok(get(1, 2, object));
			assert_ok(spw_store_free(store, object));
			assert_int_equal(spw_store_poll(store, false), 0);
			/* One drive alone is left of two: said once, counted each time. */
			assert_ok(put_copies(2, 1, 2, &object));
			assert_ok(get(2, 1, object));
			assert_int_equal(count == 2, strstr(heard, "no second drive") != NULL);
			close_store();
		}
}

/* Space that lies in pieces: both copies are cut alike, and none is on its other's drive. */
CASE_WITH(test_fragmented_space, NULL, tear_down)
{
	static uint8_t block[4096];
	struct spw_request *request;
	spw_object blocks[4096], object, other;
	unsigned count = 0;
	struct spw_store_opts opts;

	make_drives(2, 4096, 1);
	spw_store_opts_init(&opts, sizeof(opts));
	opts.inline_mode = opts.no_hugetlb = true;
	opts.arena_bytes = 1u << 20;
	opts.objects_max = 8192;
	assert_ok(spw_store_open(paths, 2, &opts, &store));
	/* Each 2 MiB of one block and one free, but for the rest. */
	while (count < SPW_ARRAY_LEN(blocks)) {
		assert_ok(spw_store_put(store, block, sizeof(block), NULL, &blocks[count++],
					&request));
		assert_ok(spw_request_wait(request));
	}
	while (spw_store_put(store, bytes_of(1, 1), 1u << 16, NULL, &other, &request) == 0 &&
	       spw_request_wait(request) == 0)
		;
	for (unsigned i = 0; i < SPW_ARRAY_LEN(blocks); i += i % 3 ? 2 : 3)
		assert_ok(spw_store_free(store, blocks[i]));
	assert_ok(put_copies(1, 2, 2, &object));
	assert_true(stats_of().chunks_split > 0 && stats_of().chunks_single == 0);
	assert_ok(get(1, 2, object));
	for (unsigned failing = 0; failing < 2; failing++) {
		fail_from(failing, SPW_READ, 1, -EIO);
		assert_ok(get(1, 2, object));
		mend(failing);
	}
}

/* ---- Drives that rest, and come back while a commit is made ---- */

#define SECOND_NS UINT64_C(1000000000)

static int commit_objects(const spw_object *object, uint64_t number)
{
	return spw_store_commit(store, object, 1, number, NULL, 0, SPW_COMMIT_MIRRORED);
}

static struct spw_drive_stats drive_stats(unsigned drive)
{
	struct spw_drive_stats stats;

	assert_ok(spw_store_drive_stats(store, drive, &stats, sizeof(stats)));
	return stats;
}

/*
 * Each second it is tried: at any moment of a commit, which is made without it then. It was only
 * full: it comes back without being revived.
 */
CASE_WITH(test_commits_while_a_full_drive_is_on_trial, NULL, tear_down)
{
	static const int errors[] = {-ENOSPC, -EAGAIN};

	for (unsigned i = 0; i < 2 * SPW_ARRAY_LEN(errors); i++) {
		unsigned rests = i % 2, retired = 0;
		uint64_t number = 1;
		spw_object object;

		make_store(2, 4096, 1);
		assert_ok(put_copies(1, 0, 2, &object));
		fail_from(rests, SPW_WRITE, 1, errors[i / 2]);
		for (; number < 200; number++) {
			assert_ok(commit_objects(&object, number));
			retired += drive_stats(rests).retired;
			assert_int_equal(drive_stats(rests).full,
					 drive_stats(rests).retired && errors[i / 2] == -ENOSPC);
			sim_now_ns = store->drives[rests].try_again_ns - number * 20000;
		}
		assert_true(retired > 0);
		assert_false(drive_stats(1 - rests).retired);
		mend(rests);
		sim_now_ns += SECOND_NS;
		assert_true(spw_store_poll(store, false) >= 0);
		assert_false(drive_stats(rests).retired);
		assert_ok(commit_objects(&object, number));
		close_store();
	}
}

/* However long it takes: those that come back while it is made fail it no more than once each. */
CASE_WITH(test_a_commit_that_all_drives_fail_ends, NULL, tear_down)
{
	spw_object object;

	make_store(3, 4096, 1);
	assert_ok(put_copies(1, 0, 2, &object));
	for (unsigned i = 0; i < 3; i++)
		fail_from(i, SPW_FLUSH, 1, -EAGAIN);
	expect_refusal(-EAGAIN, "cannot flush", commit_objects(&object, 1));
	mend_all();
	sim_now_ns += SECOND_NS;
	assert_ok(commit_objects(&object, 2));
}

/* ---- Opening without a drive ---- */

CASE_WITH(test_any_drive_may_be_missing, NULL, tear_down)
{
	for (unsigned count = 2; count <= 3; count++)
		for (unsigned lost = 0; lost < count; lost++) {
			struct spw_commit_info info = {.size = sizeof(info)};
			unsigned others;

			make_drives(count, 4096, 1);
			others = all() & ~(1u << lost);
			assert_ok(open_mask(all()));
			assert_ok(commit_step(1));
			assert_ok(spw_store_committed(store, &info, sizeof(info)));
			assert_true(info.mirrored && info.runs > OBJECTS && info.runs_single == 0);
			close_store();
			assert_ok(open_mask(others));
			assert_non_null(strstr(heard, "is complete without the others"));
			assert_int_equal(stats_of().drives_missing, 1);
			assert_int_equal(verify(), 1);
			assert_ok(spw_store_committed(store, &info, sizeof(info)));
			assert_true(info.runs_single > 0);
			overwrite_all_that_is_free();
			assert_int_equal(verify(), 1);
			/* It goes on, and is found; what comes back is not believed. */
			assert_ok(commit_step(2));
			overwrite_all_that_is_free();
			close_store();
			assert_int_equal(found_with(others), 2);
			assert_int_equal(found_with(all()), 2);
			assert_ok(open_mask(all()));
			overwrite_all_that_is_free();
			assert_int_equal(verify(), 2);
			assert_ok(commit_step(3));
			assert_ok(spw_store_committed(store, &info, sizeof(info)));
			assert_int_equal(info.runs_single, 0);
			close_store();
			for (unsigned drive = 0; drive < count; drive++)
				assert_int_equal(found_with(all() & ~(1u << drive)), 3);
		}
}

CASE_WITH(test_refused_without_a_mirror, NULL, tear_down)
{
	struct spw_commit_info info = {.size = sizeof(info)};

	make_drives(3, 4096, 1);
	expect_refusal(-ENXIO, "is missing", open_mask(3));
	assert_ok(open_mask(all()));
	assert_ok(commit_copies(1, 1, 1, 0));
	close_store();
	assert_int_equal(open_mask(3), -ENXIO);
	assert_ok(spw_committed(paths, 2, 0, &info, sizeof(info)));
	/* Half of it has no mirror. */
	assert_ok(open_mask(all()));
	assert_ok(commit_copies(2, 2, 2, SPW_COMMIT_MIRRORED));
	close_store();
	assert_ok(open_mask(3));
	assert_int_equal(verify(), 2);
	close_store();
	assert_ok(open_mask(all()));
	{
		spw_object objects[2];

		assert_ok(put_copies(3, 0, 2, &objects[0]));
		assert_ok(put_copies(3, 2, 1, &objects[1]));
		assert_ok(spw_store_commit(store, objects, 2, 3, NULL, 0, 0));
	}
	close_store();
	for (unsigned lost = 0; lost < 3; lost++) {
		int rc = open_mask(all() & ~(1u << lost));

		/* Its one copy is on as many drives as it has chunks, or on fewer. */
		if (rc) {
			assert_int_equal(rc, -ENXIO);
			expect_words("of commit 3 1 of 2 objects cannot be had");
			expect_words("spillway state list");
			assert_ok(open_these(all() & ~(1u << lost), SPW_COMMIT_NEWEST, true));
		}
		close_store();
	}
	/* Two of three are more than a mirror makes good, and nothing is discarded for it. */
	assert_int_equal(open_mask(1), -ENXIO);
	assert_int_equal(open_these(3, SPW_COMMIT_NONE, false), -ENXIO);
}

CASE_WITH(test_a_path_that_leads_nowhere_is_a_missing_drive, NULL, tear_down)
{
	const char *const named[] = {"sim0", "nowhere"};
	struct spw_store_opts opts;

	make_drives(2, 4096, 1);
	spw_store_opts_init(&opts, sizeof(opts));
	opts.inline_mode = opts.no_hugetlb = true;
	opts.arena_bytes = 1u << 20;
	opts.log.write = hear;
	expect_refusal(-ENOENT, "nowhere", spw_store_open(named, 2, &opts, &store));
	assert_ok(open_mask(all()));
	assert_ok(commit_step(1));
	close_store();
	assert_ok(spw_store_open(named, 2, &opts, &store));
	assert_int_equal(verify(), 1);
}

/* ---- Drives that come back ---- */

/* One is put back as it was at an older commit, or taken away while the others went on. */
CASE_WITH(test_an_older_drive_is_never_believed, NULL, tear_down)
{
	for (unsigned count = 2; count <= 3; count++)
		for (uint64_t steps = 1; steps <= 4; steps++)
			for (unsigned lost = 0; lost < count; lost++) {
				unsigned others;
				uint8_t *image;

				make_drives(count, 4096, 1);
				others = all() & ~(1u << lost);
				assert_ok(open_mask(all()));
				assert_ok(commit_step(1));
				assert_ok(commit_step(2));
				image = sim_drive_image(&sim_drives[lost]);
				for (uint64_t i = 1; i <= steps; i++)
					assert_ok(commit_step(2 + i));
				close_store();
				sim_drive_put_back(&sim_drives[lost], image);
				assert_int_equal(found_with(all()), 2 + steps);
				assert_ok(open_mask(others));
				assert_ok(commit_step(3 + steps));
				close_store();
				assert_int_equal(found_with(all()), 3 + steps);
			}
}

/* Each of two drives goes on alone, as far as may be. */
static void go_apart(uint64_t steps_a, uint64_t steps_b)
{
	make_drives(2, 4096, 1);
	assert_ok(open_mask(3));
	assert_ok(commit_step(1));
	close_store();
	assert_ok(open_mask(1));
	for (uint64_t i = 0; i < steps_a; i++)
		assert_ok(commit_copies(100 + i, 2, 2 + i, SPW_COMMIT_MIRRORED));
	close_store();
	assert_ok(open_mask(2));
	assert_int_equal(verify(), 1);
	for (uint64_t i = 0; i < steps_b; i++)
		assert_ok(commit_copies(200 + i, 2, 2 + i, SPW_COMMIT_MIRRORED));
	close_store();
}

CASE_WITH(test_split_brain_is_refused, NULL, tear_down)
{
	struct spw_commit_info info = {.size = sizeof(info)};

	for (uint64_t a = 1; a <= 3; a++)
		for (uint64_t b = 1; b <= 3; b++) {
			go_apart(a, b);
			expect_refusal(-EUCLEAN, "without each other", open_mask(3));
			assert_int_equal(spw_committed(paths, 2, 0, &info, sizeof(info)), -EUCLEAN);
			/* Each is there, alone. */
			assert_int_equal(found_with(1), 100 + a - 1);
			assert_int_equal(found_with(2), 200 + b - 1);
			/* Who is asked for by its number is there again, and then for good. */
			if (a > b) {
				assert_ok(open_these(3, 1 + a, false));
				assert_int_equal(verify(), 100 + a - 1);
				assert_ok(commit_step(9));
				close_store();
				assert_int_equal(found_with(3), 9);
				continue;
			}
			/* Or who commits once more, and is asked for then. */
			assert_ok(open_mask(1));
			assert_ok(commit_copies(300, 2, 50, SPW_COMMIT_MIRRORED));
			close_store();
			assert_int_equal(open_mask(3), -EUCLEAN);
			assert_ok(open_these(3, 50, false));
			assert_int_equal(verify(), 300);
			assert_ok(commit_step(51));
			close_store();
			assert_int_equal(found_with(3), 51);
			assert_int_equal(found_with(2), 51);
		}
}

/* One was left out of a commit by the other, and then goes on alone with the commit of before. */
CASE_WITH(test_split_brain_of_a_drive_that_failed, NULL, tear_down)
{
	make_drives(2, 4096, 1);
	assert_ok(open_mask(3));
	assert_ok(commit_step(1));
	fail_from(1, SPW_WRITE, 1, -EIO);
	assert_ok(commit_step(2));
	close_store();
	mend(1);
	assert_ok(open_mask(2));
	assert_int_equal(verify(), 1);
	assert_ok(commit_copies(200, 2, 2, SPW_COMMIT_MIRRORED));
	close_store();
	expect_refusal(-EUCLEAN, "without each other", open_mask(3));
}

/* ---- Power cuts ---- */

/*
 * Steps 1 and 2, then power is cut at an event of the third. Whichever drives are there afterwards:
 * the old step or the new one, and the new one where it was reported. Return: whether it was cut.
 */
static bool cut_at(unsigned count, uint64_t point, uint32_t unit, unsigned outcomes[4])
{
	uint64_t step = 0, with_all;
	unsigned lost;
	bool cut;
	int rc;

	make_store(count, unit, 1);
	assert_ok(commit_step(1));
	assert_ok(commit_step(2));
	sim_events = 0;
	sim_cut_at = point;
	sim_cuts_queues = true;
	rc = commit_step(3);
	cut = sim_events >= point;
	close_store();
	power_on();
	assert_true(rc == 0 || cut);
	for (lost = 0; lost < count; lost++) {
		assert_ok(open_these(all() & ~(1u << lost), SPW_COMMIT_NEWEST, true));
		step = verify();
		close_store();
		assert_in_range(step, rc ? 2 : 3, 3);
		outcomes[step]++;
	}
	assert_ok(open_these(all(), SPW_COMMIT_NEWEST, true));
	with_all = verify();
	close_store();
	assert_in_range(with_all, rc ? 2 : 3, 3);
	/* One is missing now; it may have the new step alone, cut off, and comes back. */
	lost = (unsigned)(point % count);
	assert_ok(open_mask(all() & ~(1u << lost)));
	step = verify();
	assert_ok(commit_copies(7, 2, step + 1, SPW_COMMIT_MIRRORED));
	overwrite_all_that_is_free();
	close_store();
	assert_int_equal(found_with(all()), 7);
	return cut;
}

static void cut_everywhere(unsigned count)
{
	unsigned outcomes[4] = {0};

	for (unsigned unit = 0; unit < SPW_ARRAY_LEN(units); unit++) {
		uint64_t point = 1;

		while (cut_at(count, point, units[unit], outcomes))
			point++;
		assert_in_range(point, 10, 1000);
	}
	(void)printf("%u drives: step 2: %u, step 3: %u\n", count, outcomes[2], outcomes[3]);
	assert_true(outcomes[2] > 0 && outcomes[3] > 0);
}

CASE_WITH(test_cut_in_commit_of_two_drives, NULL, tear_down)
{
	cut_everywhere(2);
}

CASE_WITH(test_cut_in_commit_of_three_drives, NULL, tear_down)
{
	cut_everywhere(3);
}

/* ---- A drive that dies at a commit ---- */

/* From its nth request of a kind on it fails. The commit ends well, on the others. */
static bool die_at(unsigned count, unsigned drive, enum spw_op op, uint32_t nth)
{
	unsigned others;
	bool died;

	make_drives(count, 4096, 1);
	others = all() & ~(1u << drive);
	assert_ok(open_mask(all()));
	assert_ok(commit_step(1));
	assert_ok(commit_step(2));
	for (enum spw_op i = SPW_READ; i <= SPW_FLUSH; i++)
		fail_from(drive, i, i == op ? nth : 0, -EIO);
	assert_ok(commit_step(3));
	died = stats_of().drives_retired == 1;
	overwrite_all_that_is_free();
	assert_ok(commit_step(4));
	overwrite_all_that_is_free();
	close_store();
	mend(drive);
	assert_int_equal(found_with(others), 4);
	assert_int_equal(found_with(all()), 4);
	return died;
}

CASE_WITH(test_a_drive_dies_at_a_commit, NULL, tear_down)
{
	for (unsigned count = 2; count <= 3; count++)
		for (unsigned drive = 0; drive < count; drive++)
			for (enum spw_op op = SPW_WRITE; op <= SPW_FLUSH; op++) {
				uint32_t nth = 1;

				while (die_at(count, drive, op, nth))
					nth++;
				assert_in_range(nth, 3, 100);
			}
}

/* What was released is not found again, on a drive either that was out of service by then. */
static void retire_and_release(unsigned drive, int error)
{
	make_store(3, 4096, 1);
	assert_ok(commit_step(1));
	assert_ok(commit_copies(2, 2, 2, SPW_COMMIT_MIRRORED | SPW_COMMIT_KEEP_PREVIOUS));
	assert_ok(spw_store__control_run(store, REQUEST_RETIRE, drive, NULL, (uint64_t)error));
	assert_ok(spw_store_commit_release(store));
	overwrite_all_that_is_free();
	close_store();
	assert_int_equal(open_these(all(), 1, false), -ENODATA);
	assert_int_equal(found_with(all()), 2);
}

CASE_WITH(test_a_drive_is_out_of_service_at_a_release, NULL, tear_down)
{
	for (unsigned drive = 0; drive < 3; drive++) {
		retire_and_release(drive, ENOSPC);
		retire_and_release(drive, EIO);
	}
}

/* A kept one is found, whichever drive was out of service when the next one was made. */
CASE_WITH(test_a_drive_is_out_of_service_while_one_is_kept, NULL, tear_down)
{
	for (unsigned drive = 0; drive < 3; drive++) {
		uint64_t number;

		make_store(3, 4096, 1);
		assert_ok(commit_step(1));
		assert_ok(spw_store__control_run(store, REQUEST_RETIRE, drive, NULL, EIO));
		assert_ok(commit_copies(2, 2, 2, SPW_COMMIT_MIRRORED));
		assert_ok(spw_store__control_run(store, REQUEST_REVIVE, drive, NULL, 0));
		assert_ok(commit_copies(3, 2, 3, SPW_COMMIT_MIRRORED | SPW_COMMIT_KEEP_PREVIOUS));
		close_store();
		assert_ok(open_these(all(), 2, false));
		assert_int_equal(restored(&number), 2);
		close_store();
	}
}

/* One that cannot say what it has is not taken to have nothing newer. */
CASE_WITH(test_slots_that_nobody_can_read, NULL, tear_down)
{
	make_drives(2, 4096, 1);
	assert_ok(open_mask(3));
	assert_ok(commit_step(1));
	assert_ok(commit_step(2));
	close_store();
	sim_drives[0].bad[0] = (struct sim_range){
		sim_drives[0].geometry.size_bytes - SPW_LAYOUT_RESERVED_BYTES - 4096, 4096};
	/* Opened to be written, the block would be written again (DURABLE-6). */
	assert_ok(open_these(3, SPW_COMMIT_NEWEST, true));
	assert_int_equal(verify(), 2);
	close_store();
	assert_int_equal(open_mask(1), -ENXIO);
}

/* ---- Scrub ---- */

static bool stop_at_once(void *context, uint64_t done_bytes, uint64_t all_bytes)
{
	(void)context;
	assert_in_range(done_bytes, 1, all_bytes);
	return false;
}

/* Of every block in which something lies the copies on one drive are made bad. */
static void spoil(unsigned drive)
{
	static const uint8_t junk[4096] = {1};

	for (uint64_t at = SPW_LAYOUT_RESERVED_BYTES; at < 2 * SPW_LAYOUT_RESERVED_BYTES;
	     at += 4096)
		sim_drive_write(&sim_drives[drive], at, junk, sizeof(junk));
}

static uint64_t bad(const struct spw_scrub *found)
{
	return found->drive[0].copies_bad + found->drive[1].copies_bad;
}

static uint64_t repaired(const struct spw_scrub *found)
{
	return found->drive[0].copies_repaired + found->drive[1].copies_repaired;
}

CASE_WITH(test_scrub_mends, NULL, tear_down)
{
	struct spw_scrub found;

	make_drives(2, 4096, 1);
	assert_ok(open_mask(3));
	assert_int_equal(spw_store_scrub(store, NULL, NULL, &found, sizeof(found)), -ENODATA);
	assert_ok(commit_step(1));
	assert_ok(spw_store_scrub(store, NULL, NULL, &found, sizeof(found)));
	assert_true(bad(&found) == 0 && found.runs_single == 0);
	assert_int_equal(found.drive[0].copies, found.runs);
	assert_int_equal(found.drive[1].copies, found.runs);
	assert_int_equal(spw_store_scrub(store, stop_at_once, NULL, &found, sizeof(found)),
			 -ECANCELED);
	close_store();
	for (unsigned drive = 0; drive < 2; drive++) {
		spoil(drive);
		assert_ok(open_these(3, SPW_COMMIT_NEWEST, true));
		assert_ok(spw_store_scrub(store, NULL, NULL, &found, sizeof(found)));
		assert_int_equal(found.drive[drive].copies_bad, found.runs);
		assert_true(bad(&found) == repaired(&found) && found.runs_lost == 0);
		assert_ok(spw_store_scrub(store, NULL, NULL, &found, sizeof(found)));
		assert_int_equal(bad(&found), 0);
		close_store();
		/* Each is whole by itself. */
		assert_int_equal(found_with(1u << drive), 1);
	}
}

CASE_WITH(test_scrub_says_what_is_lost, NULL, tear_down)
{
	struct spw_scrub found;

	make_drives(2, 4096, 1);
	assert_ok(open_mask(3));
	assert_ok(commit_step(1));
	spoil(0);
	spoil(1);
	expect_refusal(-EBADMSG, "are lost",
		       spw_store_scrub(store, NULL, NULL, &found, sizeof(found)));
	assert_int_equal(found.runs_lost, found.runs);
	assert_true(repaired(&found) == 0 && bad(&found) == 2 * found.runs);
	close_store();
	/* What cannot be written again stays bad, and the other copy good. */
	make_drives(2, 4096, 1);
	assert_ok(open_mask(3));
	assert_ok(commit_step(1));
	spoil(1);
	fail_from(1, SPW_WRITE, 1, -EIO);
	assert_int_equal(spw_store_scrub(store, NULL, NULL, &found, sizeof(found)), -EBADMSG);
	assert_true(found.runs_lost == 0 && repaired(&found) == 0);
	mend(1);
	/* Without a mirror all is read, and nothing can be mended. */
	assert_ok(commit_copies(2, 1, 2, 0));
	spoil(0);
	assert_int_equal(spw_store_scrub(store, NULL, NULL, &found, sizeof(found)), -EBADMSG);
	assert_int_equal(found.runs_lost, found.drive[0].copies);
	assert_int_equal(found.runs_single, found.runs);
}

/* Power is cut at each event of a repair: the good copy stays, the next scrub mends the rest. */
CASE_WITH(test_cut_in_scrub, NULL, tear_down)
{
	for (unsigned unit = 0; unit < SPW_ARRAY_LEN(units); unit++) {
		uint64_t point = 0;
		bool cut = true;

		while (cut) {
			struct spw_scrub found;
			int rc;

			make_drives(2, units[unit], 1);
			assert_ok(open_mask(3));
			assert_ok(commit_step(1));
			close_store();
			spoil(1);
			assert_ok(open_mask(3));
			sim_events = 0;
			sim_cut_at = ++point;
			rc = spw_store_scrub(store, NULL, NULL, &found, sizeof(found));
			cut = sim_events >= point;
			close_store();
			power_on();
			assert_true(rc == 0 || cut);
			assert_int_equal(found_with(3), 1);
			assert_ok(open_mask(3));
			assert_ok(spw_store_scrub(store, NULL, NULL, &found, sizeof(found)));
			close_store();
			assert_int_equal(found_with(2), 1);
		}
		assert_in_range(point, 10, 100);
	}
}

/* ---- Second copies remade ---- */

/* Step 1 in two copies, step 2 in one: its second drive failed while it was put. */
static void make_single(unsigned count, uint32_t unit)
{
	make_store(count, unit, 1);
	assert_ok(commit_step(1));
	for (unsigned drive = 1; drive < count; drive++)
		fail_from(drive, SPW_WRITE, 1 + drive, -EIO);
	assert_ok(commit_step(2));
	close_store();
	for (unsigned drive = 1; drive < count; drive++)
		mend(drive);
	assert_int_equal(found_with(all()), 2);
}

static uint64_t runs_single(void)
{
	struct spw_commit_info info;

	assert_ok(spw_store_committed(store, &info, sizeof(info)));
	assert_true(info.mirrored);
	return info.runs_single;
}

CASE_WITH(test_second_copies_anew, NULL, tear_down)
{
	for (unsigned count = 2; count <= DRIVES_MAX; count++) {
		make_single(count, 4096);
		assert_ok(open_these(all(), SPW_COMMIT_NEWEST, true));
		assert_int_equal(spw_store_resilver(store, NULL, NULL), -EROFS);
		close_store();
		assert_ok(open_mask(all()));
		assert_true(runs_single() > 0);
		assert_ok(spw_store_resilver(store, NULL, NULL));
		assert_int_equal(runs_single(), 0);
		/* What opening gives are the new objects; and nothing is to be done any more. */
		assert_int_equal(verify(), 2);
		assert_ok(spw_store_resilver(store, NULL, NULL));
		assert_int_equal(spw_store_commit(store, NULL, 0, 2, NULL, 0, 0), -EINVAL);
		close_store();
		for (unsigned drive = 0; drive < count; drive++)
			assert_int_equal(found_with(all() & ~(1u << drive)), 2);
		assert_ok(open_mask(all()));
		assert_ok(commit_step(3));
		close_store();
		assert_int_equal(found_with(all()), 3);
	}
}

CASE_WITH(test_second_copies_in_part, NULL, tear_down)
{
	uint64_t single;

	make_drives(2, 4096, 1);
	assert_ok(open_mask(3));
	assert_int_equal(spw_store_resilver(store, NULL, NULL), -ENODATA);
	assert_ok(commit_step(1));
	assert_int_equal(spw_store_resilver(store, NULL, NULL), -EBUSY);
	close_store();
	make_single(2, 4096);
	/* Interrupted after the first object: that one has two copies. */
	assert_ok(open_mask(3));
	single = runs_single();
	assert_int_equal(spw_store_resilver(store, stop_at_once, NULL), -ECANCELED);
	assert_in_range(runs_single(), 1, single - 1);
	close_store();
	assert_int_equal(found_with(3), 2);
	/* The second drive fails again: nothing is worse than before. */
	assert_ok(open_mask(3));
	single = runs_single();
	fail_from(1, SPW_WRITE, 1, -EIO);
	expect_refusal(-ENOSPC, "no second drive in service",
		       spw_store_resilver(store, NULL, NULL));
	assert_int_equal(runs_single(), single);
	close_store();
	mend(1);
	assert_int_equal(found_with(3), 2);
}

/* The commit fails: what opening gave is there, and is given still. */
CASE_WITH(test_second_copies_are_not_committed, NULL, tear_down)
{
	uint64_t single;
	int rc = -EIO;

	for (unsigned in = 1; rc; in++) {
		make_single(2, 4096);
		assert_ok(open_mask(3));
		single = runs_single();
		for (unsigned drive = 0; drive < 2; drive++)
			fail_from(drive, SPW_FLUSH, in, -EIO);
		rc = spw_store_resilver(store, NULL, NULL);
		assert_true(rc == 0 || runs_single() == single);
		for (unsigned drive = 0; drive < 2; drive++)
			mend(drive);
		assert_int_equal(verify(), 2);
		close_store();
		assert_int_equal(found_with(3), 2);
		assert_true(in < 10);
	}
}

/* Power is cut at each event: the step is there, and with the first drive alone, too. */
CASE_WITH(test_cut_in_second_copies, NULL, tear_down)
{
	for (unsigned unit = 0; unit < SPW_ARRAY_LEN(units); unit++) {
		uint64_t point = 0;
		bool cut = true;

		while (cut) {
			int rc;

			make_single(2, units[unit]);
			assert_ok(open_mask(3));
			sim_events = 0;
			sim_cut_at = ++point;
			sim_cuts_queues = true;
			rc = spw_store_resilver(store, NULL, NULL);
			cut = sim_events >= point;
			close_store();
			power_on();
			assert_true(rc == 0 || cut);
			assert_int_equal(found_with(3), 2);
			assert_int_equal(found_with(1), 2);
			if (rc == 0)
				assert_int_equal(found_with(2), 2);
		}
		assert_in_range(point, 10, 200);
	}
}

RUN_CASES(take_seed, NULL)
