/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_sim_replace.c - a drive is replaced, over simulated drives with volatile caches:
 * power cuts at every transfer, errors of every transfer, drives that come back, and refusals
 *
 * What is found after a cut is the store with the old drive or with the new one, never both, and
 * what was committed; running it again makes it the new one.
 */
#include "drives/candidates.h"
#include "drives/committed.h"
#include "layout/superblock.h"

#define DRIVES_MAX 5

static const char *const paths[DRIVES_MAX] = {"sim0", "sim1", "sim2", "sim3", "sim4"};

#include "tests/unit/sim_steps.h"

static int open_mask(unsigned mask)
{
	return open_these(mask, SPW_COMMIT_NEWEST, false);
}

static int look_at(unsigned mask)
{
	return open_these(mask, SPW_COMMIT_NEWEST, true);
}

static int commit_kept(uint64_t step)
{
	return commit_copies(step, 2, step, SPW_COMMIT_MIRRORED | SPW_COMMIT_KEEP_PREVIOUS);
}

static uint64_t found_with(unsigned mask)
{
	uint64_t step, number;

	assert_ok(look_at(mask));
	step = restored(&number);
	close_store();
	return step;
}

/* ---- A store, a drive that is replaced, and new ones ---- */

struct scene {
	unsigned count; /* drives of the store; those after them are blank */
	unsigned old;
	unsigned fresh; /* the new drive */
	bool readable;  /* the old one is named by its path, and is there; else by its number */
	bool damaged;   /* each other drive lacks one of its superblock copies */
};

static unsigned others(const struct scene *scene)
{
	return ((1u << scene->count) - 1) & ~(1u << scene->old);
}

static unsigned with_old(const struct scene *scene)
{
	return others(scene) | 1u << scene->old;
}

static unsigned with_fresh(const struct scene *scene)
{
	return others(scene) | 1u << scene->fresh;
}

/* A blank drive beside the store's. */
static void add_blank(uint32_t unit)
{
	unsigned index = drives++;

	assert_true(index < DRIVES_MAX);
	sim_drive_count = drives;
	sim_drive_make(index, SPW_DRIVE_BYTES_MIN + index * 12288, 512, random_next(&seed));
	sim_drives[index].cache_is_volatile = true;
	sim_drives[index].atomic_bytes = unit;
}

/* Steps 1 and 2 are committed, the first is kept, too. Nothing that differs by draw. */
static struct scene set_up(unsigned count, unsigned old, bool readable, uint32_t unit)
{
	struct scene scene = {.count = count, .old = old, .fresh = count, .readable = readable};

	make_drives(count, unit, 1);
	assert_ok(open_mask(all()));
	assert_ok(commit_copies(1, 2, 1, SPW_COMMIT_MIRRORED));
	assert_ok(commit_kept(2));
	close_store();
	add_blank(unit);
	/* Drawn, the number of events would differ from run to run. */
	for (unsigned i = 0; i < drives; i++)
		sim_drives[i].geometry.discards = true;
	return scene;
}

static int replace_by(const struct scene *scene, unsigned mask, struct spw_replace_info *info)
{
	struct spw_replace_opts opts;
	const char *named[DRIVES_MAX];
	unsigned count = 0;
	char number[16];

	spw_replace_opts_init(&opts, sizeof(opts));
	opts.log.write = hear;
	heard[0] = '\0';
	/* Any order. */
	for (unsigned i = drives; i-- > 0;)
		if (mask >> i & 1)
			named[count++] = paths[i];
	(void)snprintf(number, sizeof(number), "%u", scene->old + 1);
	return spw_replace(named, count, scene->readable ? paths[scene->old] : number,
			   paths[scene->fresh], &opts, info);
}

static int replace(const struct scene *scene)
{
	return replace_by(scene, others(scene), NULL);
}

/* ---- What is there afterwards ---- */

static bool is_replaced_refusal(int rc)
{
	return rc == -EMEDIUMTYPE && strstr(spw_last_error(), "until it was replaced by another");
}

/* Both commits, from every drive alone that may serve alone. */
static void verify_both(unsigned mask)
{
	uint64_t number;

	assert_int_equal(found_with(mask), 2);
	assert_ok(open_these(mask, 1, true));
	assert_int_equal(restored(&number), 1);
	close_store();
}

/* @whole: it was reported as done, so that any drive may be missing. */
static void verify_new(const struct scene *scene, bool whole)
{
	unsigned mask = with_fresh(scene);

	verify_both(mask);
	for (unsigned i = 0; whole && i < drives; i++)
		if (mask >> i & 1)
			verify_both(mask & ~(1u << i));
	assert_true(is_replaced_refusal(look_at(with_old(scene))));
	assert_true(is_replaced_refusal(look_at(with_old(scene) | with_fresh(scene))));
}

static void verify_old(const struct scene *scene)
{
	verify_both(with_old(scene));
	for (unsigned i = 0; i < scene->count; i++)
		verify_both(with_old(scene) & ~(1u << i));
}

/* Return: whether it is the store with the new drive. The old one, else, and the new refused. */
static bool look(const struct scene *scene, bool whole)
{
	static const char *const words[] = {
		"was to replace drive",
		"is not a drive of a spillway store",
		"both superblock copies are damaged",
	};
	bool known = false;
	int rc;

	/* The others alone are the store in any case. */
	verify_both(others(scene));
	rc = look_at(with_fresh(scene));
	close_store();
	if (rc == 0) {
		verify_new(scene, whole);
		return true;
	}
	for (unsigned i = 0; i < SPW_ARRAY_LEN(words); i++)
		known |= strstr(spw_last_error(), words[i]) != NULL;
	if (!known)
		fail_msg("refused with %d: %s", rc, spw_last_error());
	verify_old(scene);
	return false;
}

/* Train on, over all blocks that are free. */
static void go_on(const struct scene *scene)
{
	assert_ok(open_these(with_fresh(scene), 2, false));
	assert_ok(commit_copies(3, 2, 3, SPW_COMMIT_MIRRORED));
	overwrite_all_that_is_free();
	close_store();
	assert_int_equal(found_with(with_fresh(scene)), 3);
	for (unsigned i = 0; i < drives; i++)
		if (with_fresh(scene) >> i & 1)
			assert_int_equal(found_with(with_fresh(scene) & ~(1u << i)), 3);
	assert_true(is_replaced_refusal(open_mask(with_old(scene))));
}

CASE_WITH(test_replaced, NULL, tear_down)
{
	for (unsigned count = 2; count <= 3; count++)
		for (unsigned old = 0; old < count; old++)
			for (unsigned readable = 0; readable < 2; readable++) {
				struct scene scene = set_up(count, old, readable, 4096);
				struct spw_replace_info info = {.size = sizeof(info)};

				assert_ok(replace_by(&scene, others(&scene), &info));
				assert_int_equal(info.drive, old);
				assert_int_equal(info.named, -1);
				assert_int_equal(info.old_was_read, readable);
				assert_false(info.finished);
				assert_true(info.copied_bytes > 0);
				assert_true(look(&scene, true));
				/* Again: there is nothing to do. */
				assert_ok(replace_by(&scene, others(&scene), &info));
				assert_true(info.finished && info.copied_bytes == 0);
				assert_true(look(&scene, true));
				go_on(&scene);
			}
}

/* The replaced drive and the new one are among the named ones: they are told apart. */
CASE_WITH(test_all_are_named, NULL, tear_down)
{
	struct scene scene = set_up(3, 1, true, 4096);
	struct spw_replace_info info = {.size = sizeof(info)};

	assert_ok(replace_by(&scene, all(), &info));
	assert_int_equal(info.named, 2); /* the order is the other way round */
	assert_true(look(&scene, true));
}

/* Repeated with the replaced drive among the named ones, it is done or finished all the same. */
CASE_WITH(test_again_with_the_replaced_drive, NULL, tear_down)
{
	for (unsigned cut = 0; cut < 2; cut++) {
		struct scene scene = set_up(3, 1, false, 4096);
		struct spw_replace_info info = {.size = sizeof(info)};
		uint8_t *image = sim_drive_image(&sim_drives[2]);

		assert_ok(replace_by(&scene, all() & ~(1u << scene.fresh), &info));
		assert_int_equal(info.named, 1);
		assert_true(info.old_was_read && !info.finished);
		/* The last drive was not told. */
		if (cut)
			sim_drive_put_back(&sim_drives[2], image);
		else
			free(image);
		assert_ok(replace_by(&scene, all() & ~(1u << scene.fresh), &info));
		assert_true(info.finished && info.copied_bytes == 0);
		assert_int_equal(info.named, 1);
		assert_true(look(&scene, true));
		assert_ok(look_at(with_fresh(&scene)));
		assert_null(strstr(heard, "does not know yet"));
		close_store();
	}
}

/* ---- Power cuts ---- */

/* As a write that was cut off: a part is zeros. */
static void damage(const struct scene *scene)
{
	static const uint8_t zeros[1024];

	for (unsigned i = 0; i < scene->count; i++)
		if (i != scene->old)
			sim_drive_write(
				&sim_drives[i],
				spw_layout__copy_offset(sim_drives[i].geometry.size_bytes, i % 2) +
					0x800,
				zeros, sizeof(zeros));
}

/* Return: whether it was cut. */
static bool cut_at(const struct scene *at, uint64_t point, uint32_t unit, unsigned outcomes[2])
{
	struct scene scene = set_up(at->count, at->old, at->readable, unit);
	bool cut, is_new;
	int rc;

	if (at->damaged)
		damage(&scene);

	sim_events = 0;
	sim_cut_at = point;
	rc = replace(&scene);
	cut = sim_events >= point;
	assert_true(rc == 0 || cut);
	power_on();
	is_new = look(&scene, rc == 0);
	assert_true(rc != 0 || is_new);
	outcomes[is_new]++;
	/* Again, which may be cut off, too. */
	sim_events = 0;
	sim_cut_at = 1 + sim_below(&seed, 60);
	rc = replace(&scene);
	power_on();
	is_new = look(&scene, rc == 0);
	assert_true(rc != 0 || is_new);
	rc = replace(&scene);
	if (rc == -EEXIST) {
		/* It was torn so early that it is not known whose it is. */
		struct spw_replace_opts opts;

		spw_replace_opts_init(&opts, sizeof(opts));
		opts.force = opts.erase = true;
		assert_false(is_new);
		rc = spw_replace((const char *const[]){"sim0", "sim1", "sim2"}, at->count,
				 paths[scene.old], paths[scene.fresh], &opts, NULL);
	}
	assert_ok(rc);
	assert_true(look(&scene, true));
	if (point % 16 == 0)
		go_on(&scene);
	return cut;
}

/* @kinds: how many of the units. */
static void cut_everywhere(unsigned count, bool readable, bool damaged, unsigned kinds)
{
	unsigned outcomes[2] = {0};

	for (unsigned unit = 0; unit < kinds; unit++) {
		struct scene scene = {.count = count, .readable = readable, .damaged = damaged};
		uint64_t point = 1;

		do
			scene.old = (unsigned)sim_below(&seed, count);
		while (cut_at(&scene, point++, units[unit], outcomes));
		assert_in_range(point, 30, 1000);
	}
	(void)printf("%u drives: old %u, new %u\n", count, outcomes[0], outcomes[1]);
	assert_true(outcomes[0] > 0 && outcomes[1] > 0);
}

CASE_WITH(test_cut_with_two_drives, NULL, tear_down)
{
	cut_everywhere(2, false, false, SPW_ARRAY_LEN(units));
}

CASE_WITH(test_cut_with_three_drives, NULL, tear_down)
{
	cut_everywhere(3, false, false, SPW_ARRAY_LEN(units));
}

CASE_WITH(test_cut_while_the_old_drive_is_there, NULL, tear_down)
{
	cut_everywhere(2, true, false, 1);
	cut_everywhere(3, true, false, 1);
}

CASE_WITH(test_cut_while_copies_of_superblocks_are_damaged, NULL, tear_down)
{
	cut_everywhere(3, false, true, 1);
}

/* ---- A drive is lost after a cut ---- */

/* Return: whether the replacement was cut off, and the store has the new drive all the same. */
static bool is_decided_by_cut(struct scene *scene, unsigned count, uint64_t point, uint32_t unit,
			      bool *cut)
{
	*scene = set_up(count, (unsigned)(point % count), false, unit);
	sim_events = 0;
	sim_cut_at = point;
	(void)replace(scene);
	*cut = sim_events >= point;
	power_on();
	return look(scene, false) && *cut;
}

/* Commit a step with the new drive; then any drive may be lost, also those that were told of it. */
static void lose_each(const struct scene *scene, uint64_t step)
{
	assert_ok(commit_copies(step, 2, step, SPW_COMMIT_MIRRORED));
	close_store();
	for (unsigned i = 0; i < drives; i++)
		if (with_fresh(scene) >> i & 1)
			assert_int_equal(found_with(with_fresh(scene) & ~(1u << i)), step);
	assert_true(is_replaced_refusal(look_at(with_old(scene))));
}

/*
 * The replacement is cut off, and not repeated; the store is used with the new drive, and then one
 * drive dies. Return: whether it was cut.
 */
static bool lose_after_cut(unsigned count, uint64_t point, uint32_t unit, unsigned *used)
{
	struct scene scene;
	bool cut;

	if (!is_decided_by_cut(&scene, count, point, unit, &cut))
		return cut;
	++*used;
	assert_ok(open_these(with_fresh(&scene), 2, false));
	lose_each(&scene, 3);
	return cut;
}

CASE_WITH(test_a_drive_is_lost_after_a_cut, NULL, tear_down)
{
	for (unsigned count = 2; count <= 3; count++)
		for (unsigned unit = 0; unit < SPW_ARRAY_LEN(units); unit++) {
			unsigned used = 0;

			for (uint64_t point = 1; lose_after_cut(count, point, units[unit], &used);)
				point++;
			assert_true(used > 4);
		}
}

/* The first replacement of three drives that is decided by its cut. */
static struct scene cut_and_decided(void)
{
	struct scene scene;
	bool cut = true, decided = false;

	for (uint64_t point = 1; !decided; point++) {
		assert_true(cut);
		decided = is_decided_by_cut(&scene, 3, point, 4096, &cut);
	}
	return scene;
}

/* The new drive is not used before it is complete; the others go on without it. */
CASE_WITH(test_it_cannot_be_completed, NULL, tear_down)
{
	for (enum spw_op op = SPW_WRITE; op <= SPW_FLUSH; op++)
		for (uint32_t nth = 1; nth <= 2; nth++) {
			struct scene scene = cut_and_decided();

			fail_nth(scene.fresh, op, nth, -EIO);
			expect_refusal(-EIO, "run spillway replace again",
				       open_these(with_fresh(&scene), 2, false));
			close_store();
			mend_all();
			verify_both(others(&scene));
			assert_ok(open_these(with_fresh(&scene), 2, false));
			lose_each(&scene, 3);
		}
}

/* Opened to be read only, it is used as it is, and nothing is written. */
CASE_WITH(test_it_is_read_as_it_is, NULL, tear_down)
{
	struct scene scene = cut_and_decided();
	size_t len = (size_t)sim_drives[scene.fresh].geometry.size_bytes;
	uint8_t *before = sim_drive_image(&sim_drives[scene.fresh]), *after;

	verify_both(with_fresh(&scene));
	after = sim_drive_image(&sim_drives[scene.fresh]);
	assert_memory_equal(after, before, len);
	free(after);
	free(before);
}

/* The first use after it, in which the new drive becomes complete, is cut off, too. */
static bool cut_first_use(uint64_t first, uint64_t point, unsigned outcomes[2])
{
	struct scene scene;
	uint64_t found;
	bool cut;
	int rc;

	if (!is_decided_by_cut(&scene, 3, first, 4096, &cut))
		return false;
	sim_events = 0;
	sim_cut_at = point;
	rc = open_these(with_fresh(&scene), 2, false);
	if (rc == 0)
		rc = commit_copies(3, 2, 3, SPW_COMMIT_MIRRORED);
	cut = sim_events >= point;
	assert_true(rc == 0 || cut);
	close_store();
	power_on();
	found = found_with(with_fresh(&scene));
	assert_in_range(found, rc == 0 ? 3 : 2, 3);
	outcomes[found - 2]++;
	assert_ok(open_these(with_fresh(&scene), found, false));
	lose_each(&scene, 4);
	return cut;
}

CASE_WITH(test_the_first_use_after_a_cut_is_cut, NULL, tear_down)
{
	unsigned decided = 0, outcomes[2] = {0};

	for (uint64_t first = 1; decided < 3; first++) {
		struct scene scene;
		bool cut;

		if (!is_decided_by_cut(&scene, 3, first, 4096, &cut)) {
			assert_true(cut);
			continue;
		}
		decided++;
		for (uint64_t point = 1; cut_first_use(first, point, outcomes);)
			point++;
	}
	(void)printf("before %u, after %u\n", outcomes[0], outcomes[1]);
	assert_true(outcomes[0] > 10 && outcomes[1] > 0);
}

/* ---- The drive that decided is replaced ---- */

/*
 * The first replacement was decided by one drive, and cut off. That drive, or the one that was not
 * told, is replaced next, which is cut off, too.
 */
struct second {
	struct scene first, next;
	unsigned refused, outcomes[2];
};

static int replace_next(const struct second *second, bool force)
{
	unsigned rest = with_fresh(&second->first) & ~(1u << second->next.old);
	struct spw_replace_opts opts;
	const char *named[DRIVES_MAX];
	unsigned count = 0;
	char number[16];

	spw_replace_opts_init(&opts, sizeof(opts));
	opts.force = opts.erase = force;
	for (unsigned i = 0; i < drives; i++)
		if (rest >> i & 1)
			named[count++] = paths[i];
	(void)snprintf(number, sizeof(number), "%u", second->next.old + 1);
	return spw_replace(named, count, second->next.readable ? paths[second->next.old] : number,
			   paths[second->next.fresh], &opts, NULL);
}

static unsigned with_both(const struct second *second)
{
	return (with_fresh(&second->first) & ~(1u << second->next.old)) | 1u << second->next.fresh;
}

/* Return: whether it is the store with both new drives. What is committed is there anyway. */
static bool look_at_both(const struct second *second)
{
	unsigned rest = with_fresh(&second->first) & ~(1u << second->next.old);
	bool is_new = look_at(with_both(second)) == 0;

	close_store();
	verify_both(rest);
	verify_both(rest | 1u << (is_new ? second->next.fresh : second->next.old));
	if (is_new) {
		assert_true(is_replaced_refusal(look_at(rest | 1u << second->next.old)));
		assert_true(is_replaced_refusal(look_at(rest | 1u << second->first.old)));
	}
	return is_new;
}

/* Return: whether the first one is decided by its cut. */
static bool cut_first(struct second *second, uint64_t point)
{
	bool decided;
	int rc;

	second->first = set_up(3, 1, false, 4096);
	add_blank(4096);
	sim_drives[4].geometry.discards = true;
	sim_events = 0;
	sim_cut_at = point;
	rc = replace(&second->first);
	decided = sim_events >= point;
	power_on();
	decided = decided && rc != 0 && look_at(with_fresh(&second->first)) == 0;
	close_store();
	return decided;
}

/* Return: whether it was cut. */
static bool cut_second(struct second *second, uint64_t point)
{
	unsigned rest = with_fresh(&second->first) & ~(1u << second->next.old);
	bool cut, is_new;
	int rc = look_at(rest);

	close_store();
	if (rc != 0) {
		/* The first one has to be finished before. */
		expect_refusal(-EUCLEAN, "did not finish: run spillway replace again",
			       replace_next(second, false));
		second->refused++;
		assert_ok(replace(&second->first));
	}
	sim_events = 0;
	sim_cut_at = point;
	rc = replace_next(second, false);
	cut = sim_events >= point;
	power_on();
	assert_true(rc == 0 || cut);
	is_new = look_at_both(second);
	assert_true(rc != 0 || is_new);
	second->outcomes[is_new]++;
	rc = replace_next(second, false);
	if (rc == -EEXIST && !is_new) /* torn so early that it is not known whose it is */
		rc = replace_next(second, true);
	assert_ok(rc);
	assert_true(look_at_both(second));
	for (unsigned i = 0; i < drives; i++)
		if (with_both(second) >> i & 1)
			verify_both(with_both(second) & ~(1u << i));
	return cut;
}

CASE_WITH(test_the_drive_that_decided_is_replaced, NULL, tear_down)
{
	struct second second = {.next = {.fresh = 4}};
	uint64_t decided = 0;

	for (uint64_t first = 1; first < 1000; first++) {
		bool cut = cut_first(&second, first);

		if (!cut && decided > 0)
			break;
		decided += cut;
		/* The drive that is told first is the last one in the list. */
		for (uint64_t point = 1 + first % 3; cut; point += 3) {
			second.next.old = first % 2 ? 2 : 0;
			second.next.readable = point / 3 % 2;
			/* The write that decides may be torn, or not. */
			if (cut_first(&second, first))
				cut = cut_second(&second, point);
		}
	}
	(void)printf("decided at %llu points; refused %u, old %u, new %u\n",
		     (unsigned long long)decided, second.refused, second.outcomes[0],
		     second.outcomes[1]);
	assert_true(decided > 3 && second.refused > 0);
	assert_true(second.outcomes[0] > 0 && second.outcomes[1] > 0);
}

/* ---- Errors ---- */

/* Return: whether there was an nth one. */
static bool fail_in_replace(unsigned drive, enum spw_op op, uint32_t nth)
{
	struct scene scene = set_up(2, 1, false, 4096);
	bool is_new;
	int rc;

	fail_nth(drive, op, nth, -EIO);
	rc = replace(&scene);
	mend_all();
	is_new = look(&scene, rc == 0);
	assert_true(rc != 0 || is_new);
	if (rc == 0)
		return false;
	assert_int_equal(rc, -EIO);
	assert_ok(replace(&scene));
	assert_true(look(&scene, true));
	return true;
}

CASE_WITH(test_each_write_fails_once, NULL, tear_down)
{
	unsigned failures = 0;

	for (unsigned drive = 0; drive <= 2; drive += 2)
		for (enum spw_op op = SPW_WRITE; op <= SPW_FLUSH; op++)
			for (uint32_t nth = 1; fail_in_replace(drive, op, nth); nth++)
				failures++;
	assert_true(failures > 20);
}

/* What the other copy has not, the replaced drive has. */
CASE_WITH(test_the_other_copy_is_bad, NULL, tear_down)
{
	static uint8_t junk[2 * SPW_LAYOUT_RESERVED_BYTES];
	struct scene scene;

	memset(junk, 0x77, sizeof(junk));
	for (unsigned readable = 0; readable < 2; readable++) {
		scene = set_up(2, 1, readable, 4096);
		sim_drive_write(&sim_drives[0], SPW_LAYOUT_RESERVED_BYTES, junk, sizeof(junk));
		if (!readable) {
			expect_refusal(-EBADMSG, "sim0", replace(&scene));
			assert_ok(look_at(with_old(&scene)));
			close_store();
			continue;
		}
		assert_ok(replace(&scene));
		assert_non_null(strstr(heard, "does not serve"));
		assert_int_equal(found_with(1u << scene.fresh), 2);
	}
}

/* ---- Without a mirror ---- */

CASE_WITH(test_what_has_one_copy, NULL, tear_down)
{
	for (unsigned old = 0; old < 2; old++) {
		struct scene scene = {.count = 2, .old = old, .fresh = 2};
		uint64_t number;

		make_drives(2, 4096, 1);
		assert_ok(open_mask(3));
		assert_ok(commit_copies(1, 1, 1, 0));
		close_store();
		add_blank(4096);
		assert_int_equal(replace(&scene), -ENXIO);
		assert_true(strstr(spw_last_error(), "alone") ||
			    strstr(spw_last_error(), "is not known"));
		assert_non_null(strstr(spw_last_error(), "format a new store"));
		assert_int_equal(found_with(3), 1);
		assert_int_not_equal(look_at(with_fresh(&scene)), 0);
		/* The drive can be read after all. */
		scene.readable = true;
		assert_ok(replace(&scene));
		assert_ok(look_at(with_fresh(&scene)));
		assert_int_equal(restored(&number), 1);
		close_store();
		assert_true(is_replaced_refusal(look_at(with_old(&scene))));
	}
}

CASE_WITH(test_nothing_is_committed, NULL, tear_down)
{
	struct scene scene = {.count = 3, .old = 2, .fresh = 3};

	make_drives(3, 4096, 2);
	add_blank(4096);
	assert_ok(replace(&scene));
	assert_ok(open_mask(with_fresh(&scene)));
	assert_ok(commit_copies(1, 2, 1, SPW_COMMIT_MIRRORED));
	close_store();
	assert_true(is_replaced_refusal(look_at(with_old(&scene))));
}

/* What it had as a drive of the same store before is not taken for a commit. */
CASE_WITH(test_a_drive_comes_back_as_the_new_one, NULL, tear_down)
{
	struct scene scene = set_up(3, 0, false, 4096);
	struct spw_replace_opts opts;

	assert_ok(replace(&scene));
	go_on(&scene);
	scene.old = 3;
	scene.fresh = 0;
	scene.count = 3;
	expect_refusal(
		-EEXIST, "carries a spillway store",
		spw_replace((const char *const[]){"sim1", "sim2"}, 2, "sim3", "sim0", NULL, NULL));
	spw_replace_opts_init(&opts, sizeof(opts));
	opts.force = true;
	expect_refusal(
		-EEXIST, "holds commit 2",
		spw_replace((const char *const[]){"sim1", "sim2"}, 2, "sim3", "sim0", &opts, NULL));
	opts.erase = true;
	assert_ok(
		spw_replace((const char *const[]){"sim1", "sim2"}, 2, "sim3", "sim0", &opts, NULL));
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(found_with(7u & ~(1u << i)), 3);
	assert_true(is_replaced_refusal(look_at(6 | 1u << 3)));
}

/* ---- Several drives ---- */

/* One after the other, while the second is missing as well: what is committed allows it. */
CASE_WITH(test_two_are_missing, NULL, tear_down)
{
	struct scene scene = {.count = 4, .old = 2, .fresh = 4};
	uint64_t number;

	make_drives(4, 4096, 1);
	/* Only the first two have something, so the others can both be missing. */
	assert_ok(open_mask(15));
	for (unsigned i = 2; i < 4; i++)
		fail_from(i, SPW_WRITE, 1, -EIO);
	assert_ok(commit_copies(1, 2, 1, SPW_COMMIT_MIRRORED));
	close_store();
	mend_all();
	add_blank(4096);
	/* By a path that leads nowhere it is not clear which. */
	expect_refusal(
		-EINVAL, "say which it was",
		spw_replace((const char *const[]){"sim0", "sim1"}, 2, "gone", "sim4", NULL, NULL));
	assert_ok(replace_by(&scene, 3, NULL));
	assert_ok(look_at(3 | 1u << 4));
	assert_int_equal(restored(&number), 1);
	close_store();
	/* The other missing one is back, and does not know. */
	assert_ok(open_mask(3 | 1u << 4 | 1u << 3));
	assert_non_null(strstr(heard, "does not know yet"));
	assert_int_equal(restored(&number), 1);
	close_store();
	assert_true(is_replaced_refusal(look_at(15)));
	/* It is told. */
	assert_ok(replace_by(&scene, 3 | 1u << 3, NULL));
	assert_ok(look_at(3 | 1u << 4 | 1u << 3));
	assert_null(strstr(heard, "does not know yet"));
	close_store();
	/* The drive that is replaced and one that went missing with it are a store no more. */
	assert_true(is_replaced_refusal(look_at(1u << 2 | 1u << 3)));
}

CASE_WITH(test_lost_with_two_missing, NULL, tear_down)
{
	struct scene scene = set_up(3, 0, false, 4096);

	/* With one of three left, some objects have no copy. */
	assert_int_equal(replace_by(&scene, 2, NULL), -ENXIO);
	assert_int_equal(replace_by(&scene, 4, NULL), -ENXIO);
	assert_false(look(&scene, false));
}

/* What the new drive and the replaced one know counts, too: no drive is told what is outdated. */
CASE_WITH(test_others_know_less, NULL, tear_down)
{
	static const char *const outdated[] = {"sim0", "sim1"};
	static const char *const current[] = {"sim0", "sim2", "sim3"};
	struct scene scene = set_up(3, 1, false, 4096);
	char uuid[SPW_UUID_TEXT_BYTES];
	struct spw_drive_info infos[3];
	struct spw_store_info info = {.size = sizeof(info)};
	uint8_t *image = sim_drive_image(&sim_drives[0]);

	for (unsigned i = 0; i < 3; i++)
		infos[i].size = sizeof(infos[i]);
	assert_ok(spw_check(paths, 3, &info, infos));
	(void)snprintf(uuid, sizeof(uuid), "%s", infos[1].drive_uuid);
	assert_ok(replace(&scene));
	sim_drive_put_back(&sim_drives[0], image);
	add_blank(4096);
	/* The new drive belongs to the store, and knows of the replacement. */
	expect_refusal(-EMEDIUMTYPE, "sim1: was drive 2 of store",
		       spw_replace(outdated, 2, "3", "sim2", NULL, NULL));
	/* So does the replaced one. */
	expect_refusal(-EMEDIUMTYPE, "sim1: was drive 2 of store",
		       spw_replace(outdated, 2, "sim2", "sim4", NULL, NULL));
	/* The UUID of a drive that was replaced does not mean the one that took its place. */
	expect_refusal(-EMEDIUMTYPE, "was replaced already",
		       spw_replace(current, 3, uuid, "sim4", NULL, NULL));
	verify_new(&scene, false);
	/* But it finishes that replacement. */
	assert_ok(spw_replace(current, 3, uuid, "sim3", NULL, NULL));
	verify_new(&scene, true);
}

/* The only other drive that is named cannot be read. */
CASE_WITH(test_the_rest_is_gone, NULL, tear_down)
{
	struct scene scene = set_up(2, 0, false, 4096);

	expect_refusal(
		-EINVAL, "name all other drives",
		spw_replace((const char *const[]){"sim0", "gone"}, 2, "1", "sim2", NULL, NULL));
	assert_false(look(&scene, false));
}

/* A drive was away while another was replaced, and went on with that one. */
CASE_WITH(test_left_behind, NULL, tear_down)
{
	struct scene scene = set_up(2, 1, false, 4096);
	uint64_t number;

	/* The first drive goes on with the second one replaced: it does not know that. */
	uint8_t *image = sim_drive_image(&sim_drives[0]);

	assert_ok(replace(&scene));
	assert_ok(open_these(with_fresh(&scene), 2, false));
	assert_ok(commit_copies(3, 2, 3, SPW_COMMIT_MIRRORED));
	close_store();
	sim_drive_put_back(&sim_drives[0], image);
	assert_ok(open_these(with_old(&scene), 2, false));
	for (uint64_t step = 4; step < 8; step++)
		assert_ok(commit_copies(step, 2, step, SPW_COMMIT_MIRRORED));
	close_store();
	expect_refusal(-EUCLEAN, "without each other", open_mask(with_fresh(&scene)));
	/* Told now, it would be taken for one that went on with the new drive. */
	expect_refusal(-EUCLEAN, "without each other", replace(&scene));
	expect_refusal(-EUCLEAN, "without each other", open_mask(with_fresh(&scene)));
	/* Asked for, the other one is discarded for good. */
	assert_ok(open_these(with_fresh(&scene), 3, false));
	assert_int_equal(restored(&number), 3);
	assert_ok(commit_copies(8, 2, 8, SPW_COMMIT_MIRRORED));
	close_store();
	assert_int_equal(found_with(with_fresh(&scene)), 8);
	assert_ok(replace(&scene));
	assert_int_equal(found_with(with_fresh(&scene)), 8);
}

/* ---- Refusals ---- */

CASE_WITH(test_refusals, NULL, tear_down)
{
	static const char *const two[] = {"sim1", "sim0"};
	struct scene scene = set_up(3, 2, false, 4096);

	add_blank(4096);
	expect_refusal(-EEXIST, "sim1: is drive 2 of this store",
		       spw_replace(two, 2, "sim2", "sim1", NULL, NULL));
	expect_refusal(-EEXIST, "sim2: is drive 3 of this store",
		       spw_replace(two, 2, "sim2", "sim2", NULL, NULL));
	expect_refusal(-EINVAL, "there is no drive 4",
		       spw_replace(two, 2, "4", "sim3", NULL, NULL));
	expect_refusal(-EINVAL, "there is no drive 0",
		       spw_replace(two, 2, "0", "sim3", NULL, NULL));
	expect_refusal(-EINVAL, "there is no drive 100",
		       spw_replace(two, 2, "100", "sim3", NULL, NULL));
	expect_refusal(-EINVAL, "there is no drive 18446744073709551617",
		       spw_replace(two, 2, "18446744073709551617", "sim3", NULL, NULL));
	expect_refusal(
		-ENOENT, "has the UUID",
		spw_replace(two, 2, "00000000-0000-4000-8000-000000000000", "sim3", NULL, NULL));
	expect_refusal(-EMEDIUMTYPE, "sim3: is not a drive of the store",
		       spw_replace(two, 2, "sim3", "sim4", NULL, NULL));
	expect_refusal(-EINVAL, "name all other drives",
		       spw_replace((const char *const[]){"sim2"}, 1, "sim2", "sim3", NULL, NULL));
	expect_refusal(-EINVAL, "say which it was",
		       spw_replace((const char *const[]){"sim0"}, 1, "gone", "sim3", NULL, NULL));
	/* Another one is missing than the number or the path says. */
	expect_refusal(-EINVAL, "drive 3 is missing, and drive 2 is sim1",
		       spw_replace(two, 2, "sim1", "sim3", NULL, NULL));
	expect_refusal(-EINVAL, "drive 3 is missing", spw_replace(two, 2, "1", "sim3", NULL, NULL));
	assert_false(look(&scene, false));
}

static int take_one_seed(void **state)
{
	(void)setenv("SPW_SEED", "1", false);
	return take_seed(state);
}

RUN_CASES(take_one_seed, NULL)
