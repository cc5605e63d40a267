/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_sim_add.c - a drive is added to a store, over simulated drives with volatile
 * caches: power cuts at every transfer, errors of every transfer, drives that were not told, and
 * refusals
 *
 * What is found after a cut is the store with the new drive or without it, and what was committed;
 * running it again adds the drive.
 */
#include "drives/candidates.h"
#include "drives/committed.h"
#include "layout/superblock.h"

#define DRIVES_MAX 6

static const char *const paths[DRIVES_MAX] = {"sim0", "sim1", "sim2", "sim3", "sim4", "sim5"};

#include "tests/unit/sim_steps.h"

/* ---- A store, and blank drives ---- */

struct scene {
	unsigned count;  /* drives of the store; those after them are blank */
	unsigned copies; /* of what is committed */
	unsigned fresh;  /* the new drive */
};

static int look_at(unsigned mask)
{
	return open_these(mask, SPW_COMMIT_NEWEST, true);
}

static unsigned before(const struct scene *scene)
{
	return (1u << scene->count) - 1;
}

static unsigned after(const struct scene *scene)
{
	return before(scene) | 1u << scene->fresh;
}

static void add_blank(uint32_t unit)
{
	unsigned index = drives++;

	assert_true(index < DRIVES_MAX);
	sim_drive_count = drives;
	sim_drive_make(index, SPW_DRIVE_BYTES_MIN + index * 12288, 512, random_next(&seed));
	sim_drives[index].cache_is_volatile = true;
	sim_drives[index].atomic_bytes = unit;
}

static int commit_step(const struct scene *scene, uint64_t step)
{
	unsigned flags = scene->copies == 2 ? SPW_COMMIT_MIRRORED : 0;

	return commit_copies(step, scene->copies, step,
			     step == 2 ? flags | SPW_COMMIT_KEEP_PREVIOUS : flags);
}

/* Steps 1 and 2 are committed, the first is kept, too. */
static struct scene set_up(unsigned count, unsigned copies, uint32_t unit)
{
	struct scene scene = {.count = count, .copies = copies, .fresh = count};

	make_drives(count, unit, 1);
	assert_ok(open_these(all(), SPW_COMMIT_NEWEST, false));
	assert_ok(commit_step(&scene, 1));
	assert_ok(commit_step(&scene, 2));
	close_store();
	add_blank(unit);
	/* Drawn, the number of events would differ from run to run. */
	for (unsigned i = 0; i < drives; i++)
		sim_drives[i].geometry.discards = true;
	return scene;
}

static int add_to(unsigned mask, unsigned fresh, bool force, struct spw_add_info *info)
{
	const char *named[DRIVES_MAX];
	struct spw_add_opts opts;
	unsigned count = 0;

	spw_add_opts_init(&opts, sizeof(opts));
	opts.force = opts.erase = force;
	opts.log.write = hear;
	heard[0] = '\0';
	/* Any order. */
	for (unsigned i = drives; i-- > 0;)
		if (mask >> i & 1)
			named[count++] = paths[i];
	return spw_add(named, count, paths[fresh], &opts, info);
}

static int add(const struct scene *scene)
{
	return add_to(before(scene), scene->fresh, false, NULL);
}

/* ---- What is there afterwards ---- */

static void verify_step(unsigned mask, uint64_t number)
{
	uint64_t found;

	assert_ok(open_these(mask, number == 2 ? SPW_COMMIT_NEWEST : number, true));
	assert_int_equal(restored(&found), number);
	assert_int_equal(found, number);
	close_store();
}

/* Both commits; with mirrors also without each of the drives. */
static void verify_both(const struct scene *scene, unsigned mask, bool whole)
{
	for (uint64_t step = 1; step <= 2; step++) {
		verify_step(mask, step);
		for (unsigned i = 0; whole && scene->copies == 2 && i < drives; i++)
			if (mask >> i & 1)
				verify_step(mask & ~(1u << i), step);
	}
}

/* Return: whether the store has the new drive. Else it is refused, and the store is as it was. */
static bool look(const struct scene *scene, bool whole)
{
	static const char *const words[] = {
		"was to be added to the store",
		"is not a drive of a spillway store",
		"both superblock copies are damaged",
	};
	bool known = false;
	int rc = look_at(after(scene));

	close_store();
	if (rc == 0) {
		verify_both(scene, after(scene), whole);
		rc = scene->copies == 1 ? look_at(before(scene)) : 0;
		close_store();
		/* If no other drive was told, the store is what it was without the new one. */
		if (rc == 0 && scene->copies == 1)
			verify_both(scene, before(scene), false);
		else if (rc != 0)
			expect_refusal(-ENXIO, "is missing", look_at(before(scene)));
		return true;
	}
	for (unsigned i = 0; i < SPW_ARRAY_LEN(words); i++)
		known |= strstr(spw_last_error(), words[i]) != NULL;
	if (!known)
		fail_msg("refused with %d: %s", rc, spw_last_error());
	verify_both(scene, before(scene), true);
	return false;
}

/* Train on, over all blocks that are free: the new drive is written to. */
static void go_on(const struct scene *scene)
{
	struct spw_drive_stats stats = {.size = sizeof(stats)};

	assert_ok(open_these(after(scene), 2, false));
	assert_ok(commit_step(scene, 3));
	assert_ok(commit_step(scene, 4));
	assert_ok(spw_store_drive_stats(store, scene->count, &stats, sizeof(stats)));
	assert_true(stats.bytes_written >= CHUNK_BYTES);
	overwrite_all_that_is_free();
	close_store();
	verify_step(after(scene), 4);
	for (unsigned i = 0; scene->copies == 2 && i < drives; i++)
		if (after(scene) >> i & 1)
			verify_step(after(scene) & ~(1u << i), 4);
}

CASE_WITH(test_added, NULL, tear_down)
{
	for (unsigned count = 1; count <= 4; count++)
		for (unsigned copies = 1; copies <= SPW_MIN(count, 2u); copies++) {
			struct scene scene = set_up(count, copies, 4096);
			struct spw_add_info info = {.size = sizeof(info)};
			struct spw_store_info described = {.size = sizeof(described)};

			assert_ok(add_to(before(&scene), scene.fresh, false, &info));
			assert_int_equal(info.drive, count);
			assert_false(info.finished);
			assert_true(look(&scene, true));
			assert_null(strstr(heard, "does not know yet"));
			assert_ok(spw_check(paths, count + 1, &described, NULL));
			assert_int_equal(described.drives, count + 1);
			/* Again: there is nothing to do. */
			assert_ok(add_to(before(&scene), scene.fresh, false, &info));
			assert_int_equal(info.drive, count);
			assert_true(info.finished);
			expect_refusal(-EEXIST, "is drive",
				       add_to(after(&scene), scene.fresh, true, &info));
			assert_true(look(&scene, true));
			go_on(&scene);
		}
}

/* ---- Power cuts ---- */

/* Add it, until that is done. */
static void add_at_last(const struct scene *scene, unsigned mask)
{
	bool is_new = look(scene, false);
	int rc = add_to(mask, scene->fresh, false, NULL);

	/* It was torn so early that it is not known whose it is. */
	if (rc == -EEXIST && !is_new)
		rc = add_to(mask, scene->fresh, true, NULL);
	assert_ok(rc);
	assert_true(look(scene, true));
}

/* Return: whether it was cut. */
static bool cut_at(const struct scene *at, uint64_t point, uint32_t unit, unsigned outcomes[2])
{
	struct scene scene = set_up(at->count, at->copies, unit);
	bool cut, is_new;
	int rc;

	sim_events = 0;
	sim_cut_at = point;
	rc = add(&scene);
	cut = sim_events >= point;
	assert_true(rc == 0 || cut);
	power_on();
	is_new = look(&scene, rc == 0);
	assert_true(rc != 0 || is_new);
	outcomes[is_new]++;
	/* Again, which may be cut off, too. */
	sim_events = 0;
	sim_cut_at = 1 + sim_below(&seed, 60);
	rc = add_to(is_new && point % 2 ? after(&scene) : before(&scene), scene.fresh, false, NULL);
	power_on();
	is_new = look(&scene, rc == 0);
	assert_true(rc != 0 || is_new);
	add_at_last(&scene, before(&scene));
	if (point % 8 == 0)
		go_on(&scene);
	return cut;
}

/* @kinds: how many of the units. */
static void cut_everywhere(unsigned count, unsigned copies, unsigned kinds)
{
	unsigned outcomes[2] = {0};

	for (unsigned unit = 0; unit < kinds; unit++) {
		struct scene scene = {.count = count, .copies = copies};
		uint64_t point = 1;

		while (cut_at(&scene, point, units[unit], outcomes))
			point++;
		assert_in_range(point, 15, 1000);
	}
	(void)printf("%u drives: without %u, with %u\n", count, outcomes[0], outcomes[1]);
	assert_true(outcomes[0] > 0 && outcomes[1] > 0);
}

CASE_WITH(test_cut_with_one_drive, NULL, tear_down)
{
	cut_everywhere(1, 1, SPW_ARRAY_LEN(units));
}

CASE_WITH(test_cut_with_two_drives, NULL, tear_down)
{
	cut_everywhere(2, 2, SPW_ARRAY_LEN(units));
}

CASE_WITH(test_cut_with_three_drives, NULL, tear_down)
{
	cut_everywhere(3, 1, 1);
}

/*
 * The addition is cut off; the store is used with the new drive all the same, so that what is
 * committed is on it, too; then each of the others dies in turn. Return: whether it was cut.
 */
static bool lose_after_cut(uint64_t point, uint32_t unit, unsigned *used)
{
	struct scene scene = set_up(2, 2, unit);
	bool cut;

	sim_events = 0;
	sim_cut_at = point;
	(void)add(&scene);
	cut = sim_events >= point;
	power_on();
	if (!look(&scene, false))
		return cut;
	++*used;
	assert_ok(open_these(7, 2, false));
	assert_ok(commit_copies(3, 2, 3, SPW_COMMIT_MIRRORED));
	close_store();
	/* Without the new drive nothing goes back to the commit before. */
	if (look_at(3) != 0)
		expect_refusal(-EUCLEAN, "name the added one, too", look_at(3));
	close_store();
	for (unsigned lost = 0; lost < 2; lost++)
		verify_step(7 & ~(1u << lost), 3);
	/* The lost one can be replaced, and nothing is lost with that. */
	add_blank(unit);
	assert_ok(spw_replace(&paths[1], 2, "1", paths[3], NULL, NULL));
	verify_step(14, 3);
	verify_step(10, 3);
	verify_step(12, 3);
	return cut;
}

CASE_WITH(test_a_drive_is_lost_after_a_cut, NULL, tear_down)
{
	unsigned used = 0;

	for (unsigned unit = 0; unit < SPW_ARRAY_LEN(units); unit++)
		for (uint64_t point = 1; lose_after_cut(point, units[unit], &used);)
			point++;
	assert_true(used > 15);
}

/* The same without a mirror: without the new drive the store is refused, as it has a part of it. */
static bool leave_out_after_cut(uint64_t point, unsigned *used)
{
	struct scene scene = set_up(2, 1, 4096);
	bool cut;
	int rc;

	sim_events = 0;
	sim_cut_at = point;
	(void)add(&scene);
	cut = sim_events >= point;
	power_on();
	if (!look(&scene, false))
		return cut;
	assert_ok(open_these(7, 2, false));
	assert_ok(commit_step(&scene, 3));
	close_store();
	rc = open_these(3, SPW_COMMIT_NEWEST, false);
	assert_true(rc == -ENXIO || rc == -EUCLEAN);
	if (rc == -EUCLEAN) {
		++*used;
		expect_refusal(-EUCLEAN, "name the added one, too", look_at(3));
		expect_refusal(-EUCLEAN, "name the added one, too", open_these(3, 3, false));
	}
	assert_ok(add(&scene));
	verify_step(7, 3);
	return cut;
}

CASE_WITH(test_it_is_left_out_after_a_cut, NULL, tear_down)
{
	unsigned used = 0;

	for (uint64_t point = 1; leave_out_after_cut(point, &used);)
		point++;
	assert_true(used > 0);
}

/* ---- One change after the other ---- */

/* @added: the third is the store's. */
static int replace(unsigned old, bool added)
{
	return spw_replace((const char *const[]){paths[1 - old], paths[2]}, added ? 2 : 1,
			   paths[old], paths[3], NULL, NULL);
}

/*
 * One was added, or that was cut off; then another is added, or takes a drive's place, which is cut
 * off, too. @replaces: the second is a replacement. Return: whether it was cut.
 */
static bool cut_second(bool replaces, uint64_t first_point, uint64_t point, uint32_t unit,
		       unsigned outcomes[3])
{
	struct scene scene = set_up(2, 2, unit);
	unsigned old = (unsigned)sim_below(&seed, 2), mask;
	bool cut, added, is_new;
	int rc;

	add_blank(unit);
	sim_events = 0;
	sim_cut_at = first_point;
	(void)add(&scene);
	power_on();
	added = look(&scene, false);
	/* The drives that the store has, and those that it is to have. */
	scene.count = added ? 3 : 2;
	scene.fresh = 3;
	mask = before(&scene) & ~(replaces ? 1u << old : 0);
	if (look_at(mask) != 0) {
		/* Only the drive that is to be replaced knows of the first one. */
		assert_true(replaces && added);
		expect_refusal(-EUCLEAN, "run spillway add again", replace(old, added));
		assert_ok(add_to(3, 2, false, NULL));
	}
	close_store();
	sim_events = 0;
	sim_cut_at = point;
	rc = replaces ? replace(old, added) : add_to(mask, 3, false, NULL);
	cut = sim_events >= point;
	assert_true(rc == 0 || cut);
	power_on();
	is_new = look_at(mask | 8) == 0;
	close_store();
	assert_true(rc != 0 || is_new);
	outcomes[is_new ? 2 : added]++;
	verify_both(&scene, is_new ? mask | 8 : before(&scene), false);
	if (replaces && is_new)
		expect_refusal(-EMEDIUMTYPE, "until it was replaced by another",
			       look_at(before(&scene)));
	if (replaces)
		return cut;
	add_at_last(&scene, mask);
	assert_null(strstr(heard, "does not know yet"));
	return cut;
}

static void cut_one_after_the_other(bool replaces)
{
	unsigned outcomes[3] = {0};

	for (uint64_t first = 1; first < 60; first += 2) {
		uint32_t unit = units[first % SPW_ARRAY_LEN(units)];
		bool cut = true;

		/* The points of the second shift with those of the first. */
		for (uint64_t point = 1 + first % 11; cut; point += 11)
			cut = cut_second(replaces, first, point, unit, outcomes);
	}
	(void)printf("without %u, with the first %u, with the second %u\n", outcomes[0],
		     outcomes[1], outcomes[2]);
	assert_true(outcomes[0] > 0 && outcomes[1] > 0 && outcomes[2] > 0);
}

CASE_WITH(test_another_is_added, NULL, tear_down)
{
	cut_one_after_the_other(false);
}

CASE_WITH(test_one_is_replaced_afterwards, NULL, tear_down)
{
	cut_one_after_the_other(true);
}

/* ---- Errors ---- */

/* Return: whether there was an nth one. */
static bool fail_in_addition(unsigned drive, enum spw_op op, uint32_t nth)
{
	struct scene scene = set_up(2, 2, 4096);
	bool is_new;
	int rc;

	fail_nth(drive, op, nth, -EIO);
	rc = add(&scene);
	mend_all();
	is_new = look(&scene, rc == 0);
	assert_true(rc != 0 || is_new);
	if (rc == 0)
		return false;
	assert_int_equal(rc, -EIO);
	assert_ok(add(&scene));
	assert_true(look(&scene, true));
	return true;
}

CASE_WITH(test_each_write_fails_once, NULL, tear_down)
{
	unsigned failures = 0;

	for (unsigned drive = 0; drive <= 2; drive++)
		for (enum spw_op op = SPW_WRITE; op <= SPW_FLUSH; op++)
			for (uint32_t nth = 1; fail_in_addition(drive, op, nth); nth++)
				failures++;
	assert_true(failures > 15);
}

/* ---- Drives that were not told ---- */

CASE_WITH(test_a_drive_was_not_told, NULL, tear_down)
{
	for (unsigned lagging = 0; lagging < 2; lagging++) {
		struct scene scene = set_up(2, 2, 4096);
		uint8_t *image = sim_drive_image(&sim_drives[lagging]);
		const char *const alone[] = {paths[lagging]};
		struct spw_format_opts opts;

		assert_ok(add(&scene));
		sim_drive_put_back(&sim_drives[lagging], image);
		/* It belongs to the store, which goes on over all three. */
		verify_both(&scene, after(&scene), true);
		assert_ok(look_at(after(&scene)));
		close_store();
		assert_non_null(strstr(heard, "of the store was added; it is told when spillway "
					      "add is run again"));
		go_on(&scene);
		/* What it has is a commit, also if the added drive is named there. */
		spw_format_opts_init(&opts, sizeof(opts));
		opts.force = true;
		expect_refusal(-EEXIST, "holds commit 4", spw_format(alone, 1, &opts, NULL));
		/* It is told. */
		assert_ok(add(&scene));
		assert_ok(look_at(after(&scene)));
		assert_null(strstr(heard, "does not know yet"));
		close_store();
		verify_step(after(&scene), 4);
	}
}

/* The others went on without the new drive, and the one that was told: nothing is lost of that. */
CASE_WITH(test_gone_on_without, NULL, tear_down)
{
	struct scene scene = set_up(2, 2, 4096);
	uint8_t *image = sim_drive_image(&sim_drives[1]);

	assert_ok(add(&scene));
	sim_drive_put_back(&sim_drives[1], image);
	assert_ok(open_these(2, 2, false));
	assert_ok(commit_copies(3, 2, 3, SPW_COMMIT_MIRRORED));
	close_store();
	verify_step(after(&scene), 3);
	verify_step(before(&scene), 3);
	assert_ok(add(&scene));
	verify_step(after(&scene), 3);
	verify_step(2, 3);
}

/* A drive that was not told has a commit made with the new one. The one that was told lacks it. */
CASE_WITH(test_gone_on_with_the_new_drive, NULL, tear_down)
{
	struct scene scene = set_up(2, 2, 4096);
	uint8_t *image = sim_drive_image(&sim_drives[1]);

	assert_ok(add(&scene));
	sim_drive_put_back(&sim_drives[1], image);
	assert_ok(open_these(6, 2, false));
	assert_ok(commit_copies(3, 2, 3, SPW_COMMIT_MIRRORED));
	close_store();
	verify_step(3, 3);
	verify_step(6, 3);
	verify_step(7, 3);
	assert_ok(add(&scene));
	verify_step(3, 3);
	verify_step(7, 3);
}

/*
 * Of the two that have a commit made with the new drive and were there before, the one that was not
 * told of it is alone: it does not go back to an older commit.
 */
CASE_WITH(test_alone_with_a_later_commit, NULL, tear_down)
{
	static const char later[] = "has commit 3, which was made with a drive that was added";
	struct scene scene = set_up(2, 2, 4096);
	uint8_t *image = sim_drive_image(&sim_drives[1]);
	uint64_t found;

	add_blank(4096);
	assert_ok(add(&scene));
	sim_drive_put_back(&sim_drives[1], image);
	assert_ok(open_these(7, 2, false));
	assert_ok(commit_copies(3, 2, 3, SPW_COMMIT_MIRRORED));
	close_store();
	expect_refusal(-EUCLEAN, later, look_at(2));
	expect_refusal(-EUCLEAN, later, open_these(2, 3, true));
	expect_refusal(-EUCLEAN, later, spw_replace(&paths[1], 1, "1", paths[3], NULL, NULL));
	/* Unless that is abandoned. */
	assert_ok(open_these(2, 2, true));
	assert_int_equal(restored(&found), 2);
	close_store();
	verify_step(3, 3);
	verify_step(7, 3);
}

/*
 * No matter which drives were told, and which went on without the others: an added drive is never
 * taken for one that was replaced, and no one goes back to a commit before without a word.
 */
static void verify_whoever_is_named(unsigned used)
{
	for (unsigned named = 1; named < 8; named++) {
		unsigned lost = (unsigned)__builtin_popcount(used & ~named);
		struct spw_commit_info info = {.size = sizeof(info)};
		uint64_t found;

		if (look_at(named) == 0) {
			assert_ok(spw_store_committed(store, &info, sizeof(info)));
			assert_int_equal(info.number, named & used ? 3 : 2);
			if (lost <= 1)
				assert_int_equal(restored(&found), 3);
		} else {
			assert_null(strstr(spw_last_error(), "replaced since"));
			assert_null(strstr(spw_last_error(), "without each other"));
			assert_int_not_equal(named, 7);
			assert_int_not_equal(named, used);
		}
		close_store();
	}
}

CASE_WITH(test_whoever_was_told, NULL, tear_down)
{
	static const unsigned used[] = {3, 5, 6, 7};

	for (unsigned told = 0; told < 4; told++)
		for (unsigned i = 0; i < SPW_ARRAY_LEN(used); i++) {
			struct scene scene = set_up(2, 2, 4096);
			uint8_t *images[] = {sim_drive_image(&sim_drives[0]),
					     sim_drive_image(&sim_drives[1])};

			assert_ok(add(&scene));
			for (unsigned drive = 0; drive < 2; drive++)
				if (told >> drive & 1)
					free(images[drive]);
				else
					sim_drive_put_back(&sim_drives[drive], images[drive]);
			assert_ok(open_these(used[i], 2, false));
			assert_ok(commit_copies(3, 2, 3, SPW_COMMIT_MIRRORED));
			close_store();
			verify_whoever_is_named(used[i]);
			assert_ok(add(&scene));
			verify_whoever_is_named(used[i]);
		}
}

/* Two that were added to one and the same store, each by drives that do not know of the other. */
CASE_WITH(test_added_on_either_side, NULL, tear_down)
{
	struct scene scene = set_up(2, 2, 4096);
	uint8_t *images[2] = {sim_drive_image(&sim_drives[0]), sim_drive_image(&sim_drives[1])};

	add_blank(4096);
	assert_ok(add(&scene));
	sim_drive_put_back(&sim_drives[0], images[0]);
	images[0] = sim_drive_image(&sim_drives[1]);
	sim_drive_put_back(&sim_drives[1], images[1]);
	assert_ok(add_to(3, 3, false, NULL));
	sim_drive_put_back(&sim_drives[1], images[0]);
	expect_refusal(-EUCLEAN, "on either side one was replaced or added", look_at(3));
	expect_refusal(-EUCLEAN, "on either side one was replaced or added", look_at(7));
	expect_refusal(-EUCLEAN, "on either side one was replaced or added",
		       add_to(3, 2, false, NULL));
	verify_step(1, 2);
	verify_step(2, 2);
}

/* ---- Partitions ---- */

CASE_WITH(test_nothing_is_committed, NULL, tear_down)
{
	struct scene scene = {.count = 3, .copies = 2, .fresh = 3};

	make_drives(3, 4096, 2);
	add_blank(4096);
	assert_ok(add(&scene));
	assert_ok(open_these(after(&scene), SPW_COMMIT_NEWEST, false));
	assert_ok(commit_step(&scene, 1));
	close_store();
	verify_step(after(&scene), 1);
}

/* ---- Refusals ---- */

CASE_WITH(test_refusals, NULL, tear_down)
{
	static uint8_t junk[4096];
	struct scene scene = set_up(3, 1, 4096);

	memset(junk, 0x77, sizeof(junk));
	expect_refusal(-ENXIO, "drive 2 of 3", add_to(5, 3, false, NULL));
	expect_refusal(-ENXIO, "replace it first", add_to(5, 3, true, NULL));
	expect_refusal(-EEXIST, "sim1: is drive 2 of this store", add_to(7, 1, true, NULL));
	expect_refusal(-EINVAL, "name the drives of the store", add_to(8, 3, false, NULL));
	expect_refusal(-EMEDIUMTYPE, "sim3: is not a drive of a spillway store",
		       add_to(15 & ~4u, 2, false, NULL));
	sim_drive_write(&sim_drives[3], 8192, junk, sizeof(junk));
	expect_refusal(-EEXIST, "--erase", add_to(7, 3, false, NULL));
	assert_false(look(&scene, false));
	/* A drive of another store, and one that was of this store. */
	assert_ok(spw_format(&paths[3], 1,
			     &(struct spw_format_opts){.size = sizeof(struct spw_format_opts),
						       .partitions = 1,
						       .erase = true},
			     NULL));
	expect_refusal(-EEXIST, "carries a spillway store", add_to(7, 3, false, NULL));
	expect_refusal(-EMEDIUMTYPE, "belongs to another store", add_to(9, 1, false, NULL));
	assert_ok(add_to(7, 3, true, NULL));
	verify_both(&scene, 15, false);
}

/* Make drive @to a copy of drive @from, which is smaller. */
static void copy_drive(unsigned from, unsigned to)
{
	uint8_t *image = sim_drive_image(&sim_drives[from]);

	sim_drive_write(&sim_drives[to], 0, image, sim_drives[from].geometry.size_bytes);
	free(image);
}

CASE_WITH(test_a_copy_is_named, NULL, tear_down)
{
	struct scene scene = set_up(2, 2, 4096);

	add_blank(4096);
	copy_drive(0, 3);
	expect_refusal(-ENOTUNIQ, "sim0 and sim3 are both drive 1", add_to(3, 3, true, NULL));
	expect_refusal(-ENOTUNIQ, "sim3 and sim0 are both drive 1",
		       spw_replace((const char *const[]){paths[3], paths[1]}, 2, paths[0], paths[2],
				   NULL, NULL));
	verify_both(&scene, 3, false);
	assert_ok(add(&scene));
	verify_both(&scene, 7, false);
}

/* Change the number of partitions that a drive's superblock tells, and its sequence number. */
static void contradict(unsigned drive, uint32_t partitions, uint64_t sequence)
{
	struct sim_drive *at = &sim_drives[drive];
	uint8_t block[SPW_SUPERBLOCK_BYTES];
	struct spw_superblock sb;

	assert_int_equal(spw_layout__decode(at->medium, 0, &sb, NULL), 0);
	sb.partition_count = partitions;
	sb.sequence = sequence;
	for (unsigned copy = 0; copy < 2; copy++) {
		spw_layout__encode(&sb, copy, block);
		sim_drive_write(at, spw_layout__copy_offset(sb.device_bytes, copy), block,
				sizeof(block));
	}
}

CASE_WITH(test_the_new_drive_contradicts, NULL, tear_down)
{
	make_drives(2, 4096, 2);
	add_blank(4096);
	assert_ok(add_to(3, 2, false, NULL));
	contradict(2, 1, 1);
	expect_refusal(-EUCLEAN, "sim2: contradicts", add_to(3, 2, true, NULL));
	expect_refusal(-EUCLEAN, "sim2: contradicts",
		       spw_replace(paths, 2, "3", paths[2], NULL, NULL));
}

static int take_one_seed(void **state)
{
	(void)setenv("SPW_SEED", "1", false);
	return take_seed(state);
}

RUN_CASES(take_one_seed, NULL)
