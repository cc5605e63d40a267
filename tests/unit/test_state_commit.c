/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_state_commit.c - state is declared, committed and attached again, over a store in
 * memory (state_fake.h)
 */
/* link: simstore libspillway */
#include <sys/wait.h>
#include <unistd.h>

#include "state/manifest.h"
#include "tests/unit/state_rig.h"

static int count_one(void *context, const char *name, uint64_t len, const void *shape,
		     size_t shape_len, spw_object object)
{
	(void)name, (void)len, (void)shape, (void)shape_len, (void)object;
	++*(int *)context;
	return 0;
}

static int committed_count(void)
{
	int count = 0;
	int rc = spw_state__committed_with(fake.store, &fake_ports, count_one, &count);

	return rc ? rc : count;
}

/* ---- Open and declare ---- */

STATE_CASE(test_options_are_checked)
{
	struct spw_state_opts opts = opts_of(4);

	opts.memory_bytes--;
	assert_int_equal(spw_state__open_with(fake.store, &opts, &fake_ports, &held), -EINVAL);
	assert_null(held);
	expect_words("must hold 4 records");
	opts = opts_of(4);
	opts.record_bytes_max = 0;
	assert_int_equal(spw_state__open_with(fake.store, &opts, &fake_ports, &held), -EINVAL);
	opts.record_bytes_max = (UINT64_C(1) << 40) + 1;
	expect_refusal(-EINVAL, "record_bytes_max",
		       spw_state__open_with(fake.store, &opts, &fake_ports, &held));
	opts.record_bytes_max = 1;
	opts.memory_bytes = SPW_STATE_RECORDS_MAX + 1;
	assert_int_equal(spw_state__open_with(fake.store, &opts, &fake_ports, &held), -EINVAL);
	spw_state_close(NULL);
	fake_check_empty();
	/* Four buffers by default, and rounded down. */
	opts = opts_of(0);
	assert_ok(spw_state__open_with(fake.store, &opts, &fake_ports, &held));
	assert_int_equal(stats_now().buffers, 4);
	spw_state_close(held);
	opts = opts_of(7);
	opts.memory_bytes += LEN - 1;
	assert_ok(spw_state__open_with(fake.store, &opts, &fake_ports, &held));
	assert_int_equal(stats_now().buffers, 7);
	assert_int_equal(stats_now().memory_bytes, 7 * LEN);
}

STATE_CASE(test_the_default_record_has_32_mib)
{
	assert_ok(spw_state__open_with(fake.store, NULL, &fake_ports, &held));
	assert_int_equal(stats_now().memory_bytes, 4u * (32u << 20));
}

STATE_CASE(test_an_arena_that_is_too_small_says_by_how_much)
{
	struct spw_state_opts opts = opts_of(6);

	fake.store->arena = 4 * LEN;
	assert_int_equal(spw_state__open_with(fake.store, &opts, &fake_ports, &held), -ENOBUFS);
	assert_null(held);
	expect_words("room for 4 of 6 buffers");
	expect_words("arena_bytes larger by 128 ");
	fake_check_empty();
}

STATE_CASE(test_declarations_are_checked)
{
	char name[SPW_STATE_NAME_BYTES_MAX + 2];
	static const uint8_t shape[SPW_STATE_SHAPE_BYTES_MAX + 1];
	uint32_t number;

	open_state(4);
	memset(name, 'n', sizeof(name));
	name[sizeof(name) - 1] = '\0';
	expect_refusal(-EINVAL, "a name has 1 to 512 bytes",
		       spw_state_add(held, name, LEN, NULL, 0, &number));
	assert_int_equal(spw_state_add(held, "", LEN, NULL, 0, &number), -EINVAL);
	name[SPW_STATE_NAME_BYTES_MAX] = '\0';
	assert_ok(spw_state_add(held, name, LEN, shape, SPW_STATE_SHAPE_BYTES_MAX, &number));
	assert_int_equal(number, 0);
	assert_int_equal(spw_state_add(held, name, LEN, NULL, 0, &number), -EEXIST);
	assert_int_equal(spw_state_add(held, "a", 0, NULL, 0, &number), -EINVAL);
	expect_refusal(-EINVAL, "record a: 65 bytes",
		       spw_state_add(held, "a", LEN + 1, NULL, 0, &number));
	expect_refusal(-EINVAL, "shape",
		       spw_state_add(held, "a", LEN, shape, sizeof(shape), &number));
	assert_int_equal(stats_now().records, 1);
	assert_ok(spw_state_add(held, "a", 1, NULL, 0, &number));
	assert_int_equal(number, 1);
	assert_int_equal(stats_now().total_bytes, LEN + 1);
	assert_int_equal(spw_state_attach(held), 0);
	assert_int_equal(spw_state_attach(held), -EALREADY);
	assert_int_equal(spw_state_add(held, "b", 1, NULL, 0, &number), -EALREADY);
}

/* Names that share a slot of the table, and more of them than it began with. */
STATE_CASE(test_many_names_are_told_apart)
{
	uint32_t number;

	open_state(4);
	add_records(3000);
	assert_int_equal(spw_state_add(held, "tile 2999", 1, NULL, 0, &number), -EEXIST);
	assert_int_equal(spw_state_add(held, "tile 0", 1, NULL, 0, &number), -EEXIST);
	assert_ok(spw_state_add(held, "tile 3000", 1, NULL, 0, &number));
	assert_int_equal(spw_state_attach(held), 0);
	assert_ok(spw_state_commit(held, 1, NULL, 0, false));
	assert_int_equal(committed_count(), 3001);
}

/* With their shapes they would not fit a commit. */
STATE_CASE(test_names_and_shapes_have_to_fit_a_commit)
{
	static const uint8_t shape[SPW_STATE_SHAPE_BYTES_MAX];
	char name[32];
	uint32_t number, i = 0;
	int rc;

	open_state(4);
	do {
		(void)snprintf(name, sizeof(name), "%06u", i++);
		rc = spw_state_add(held, name, 1, shape, sizeof(shape), &number);
	} while (rc == 0);
	assert_int_equal(rc, -E2BIG);
	/* 24 bytes before each name, and 56 in all. */
	assert_int_equal(i - 1, (SPW_COMMIT_RECORD_BYTES_MAX - 56) / (24 + 65536 + 8));
}

STATE_CASE(test_calls_before_attach_are_refused)
{
	void *memory;

	open_state(4);
	expect_refusal(-EINVAL, "no record was declared", spw_state_attach(held));
	add_records(1);
	expect_refusal(-EINVAL, "spw_state_attach()", spw_state_take(held, 0, &memory));
	assert_int_equal(spw_state_give(held, 0, true), -EINVAL);
	assert_int_equal(spw_state_pass(held, NULL, 0), -EINVAL);
	assert_int_equal(spw_state_commit(held, 1, NULL, 0, false), -EINVAL);
	assert_int_equal(spw_state_commit_release(held), -EINVAL);
	assert_int_equal(spw_state_attach(held), 0);
	expect_refusal(-EINVAL, "record 1: there are 1", spw_state_take(held, 1, &memory));
	assert_int_equal(spw_state_give(held, 1, true), -EINVAL);
}

STATE_CASE(test_transient_records_are_of_no_commit)
{
	uint32_t number;
	unsigned puts;

	open_state(4);
	assert_ok(spw_state_add_transient(held, "gradient", LEN, &number));
	assert_int_equal(number, 0);
	expect_refusal(-EINVAL, "that a commit could have", spw_state_attach(held));
	assert_int_equal(spw_state_add_transient(held, "gradient", LEN, &number), -EEXIST);
	assert_ok(spw_state_add(held, "tile 0", LEN, NULL, 0, &number));
	assert_int_equal(spw_state_attach(held), 0);
	use(0, 0, 5);
	use(1, 0, 6);
	puts = fake.store->puts;
	assert_ok(spw_state_commit(held, 1, NULL, 0, false));
	assert_int_equal(fake.store->puts, puts + 1);
	use(0, 5, 5);
	close_state();
	fake_check_empty();
	fake_reopen();
	assert_int_equal(committed_count(), 1);
	open_state(4);
	assert_ok(spw_state_add(held, "tile 0", LEN, NULL, 0, &number));
	assert_ok(spw_state_add_transient(held, "gradient", LEN, &number));
	assert_int_equal(spw_state_attach(held), 1);
	use(0, 6, 6);
	use(1, 0, 0);
}

static int attach_with_former(const char *name, uint64_t len, const char *shape)
{
	uint32_t number;

	open_state(4);
	assert_ok(spw_state_add(held, "new", LEN, NULL, 0, &number));
	assert_ok(spw_state_add(held, "tile 0", LEN, NULL, 0, &number));
	assert_ok(spw_state_add_former(held, name, len, shape, strlen(shape), &number));
	return spw_state_attach(held);
}

/* Until the next commit it is there, and what takes its place is zero. */
STATE_CASE(test_a_former_record_is_of_the_commit_before_alone)
{
	uint32_t number;

	open_state(4);
	assert_ok(spw_state_add(held, "tile 0", LEN, NULL, 0, &number));
	assert_ok(spw_state_add(held, "old", LEN, "shape", 5, &number));
	assert_int_equal(spw_state_attach(held), 0);
	use(0, 0, 5);
	use(1, 0, 6);
	assert_ok(spw_state_commit(held, 1, NULL, 0, false));
	close_state();
	fake_reopen();
	expect_refusal(-EUCLEAN, "old is there, and was not declared",
		       attach_with_former("other", LEN, "shape"));
	close_state();
	expect_refusal(-EUCLEAN, "old has another shape there",
		       attach_with_former("old", LEN, "shapes"));
	close_state();
	expect_refusal(-EUCLEAN, "old has another length there",
		       attach_with_former("old", LEN / 2, "shape"));
	close_state();
	for (unsigned i = 0; i < 2; i++) { /* the second time as after a crash */
		assert_int_equal(attach_with_former("old", LEN, "shape"), 1);
		use(1, 5, 5);
		use(2, 6, 6);
		use(0, 0, 7);
		close_state();
		fake_reopen();
	}
	assert_int_equal(attach_with_former("old", LEN, "shape"), 1);
	use(0, 0, 7);
	assert_ok(spw_state_clear(held, 2));
	assert_ok(spw_state_commit(held, 2, NULL, 0, false));
	close_state();
	fake_reopen();
	assert_int_equal(committed_count(), 2);
	expect_refusal(-EUCLEAN, "old is missing there", attach_with_former("old", LEN, "shape"));
	close_state();
	open_state(4);
	assert_ok(spw_state_add(held, "new", LEN, NULL, 0, &number));
	assert_ok(spw_state_add(held, "tile 0", LEN, NULL, 0, &number));
	assert_int_equal(spw_state_attach(held), 1);
	use(0, 7, 7);
	use(1, 5, 5);
}

static int attach_empty(void)
{
	uint32_t number;

	open_state(4);
	assert_ok(spw_state_add(held, "tile 0", LEN, "other", 5, &number));
	return spw_state_attach_empty(held);
}

/* Whatever they are, those of the commit stay until the next. */
STATE_CASE(test_empty_records_take_the_place_of_others)
{
	char extra[8];
	size_t len = sizeof(extra);
	uint64_t number = 0;

	open_with(4, 3);
	for (uint32_t i = 0; i < 3; i++)
		use(i, 0, 5);
	assert_ok(spw_state_commit(held, 7, "extra", 5, false));
	for (unsigned i = 0; i < 2; i++) { /* the second time as after a crash */
		close_state();
		fake_reopen();
		assert_int_equal(committed_count(), 3);
		assert_int_equal(attach_empty(), 1);
		assert_int_equal(spw_state_attach_empty(held), -EALREADY);
		assert_ok(spw_state_attached(held, &number));
		assert_int_equal(number, 7);
		assert_ok(spw_state_extra(held, extra, &len));
		assert_memory_equal(extra, "extra", 5);
		assert_int_equal(stats_now().records, 1);
		use(0, 0, 6);
	}
	assert_ok(spw_state_commit(held, 8, NULL, 0, false));
	close_state();
	fake_check_empty();
	fake_reopen();
	assert_int_equal(committed_count(), 1);
	assert_int_equal(attach_empty(), 1);
	close_state();
	fake_reopen();
	fake.capacity = 3 * 4096; /* what was committed counts, too */
	expect_refusal(-ENOSPC, "too small", attach_empty());
}

STATE_CASE(test_empty_records_where_nothing_is_committed)
{
	assert_int_equal(attach_empty(), 0);
	use(0, 0, 6);
	assert_ok(spw_state_commit(held, 1, NULL, 0, false));
	close_state();
	fake_reopen();
	assert_int_equal(committed_count(), 1);
}

/* An object of the caller's: the state names it in commits, and leaves it alone. */
STATE_CASE(test_an_object_of_the_callers_is_of_each_commit)
{
	static char bytes[3 * LEN];
	void *memory;
	spw_object objects[2], found;
	uint32_t number, tile;

	open_state(4);
	assert_ok(spw_state_add_object(held, "parameter", sizeof(bytes), "shape", 5, &number));
	assert_ok(spw_state_add(held, "tile 0", LEN, NULL, 0, &tile));
	expect_refusal(-EINVAL, "not attached", spw_state_object(held, number, &found));
	assert_int_equal(spw_state_attach(held), 0);
	assert_ok(spw_state_object(held, number, &found));
	assert_int_equal(found.value, 0);
	for (unsigned i = 0; i < 2; i++) {
		memset(bytes, (int)i + 1, sizeof(bytes));
		objects[i] = fake_put(bytes, sizeof(bytes));
		assert_ok(spw_state_set_object(held, number, objects[i]));
		assert_ok(spw_state_commit(held, i + 1, NULL, 0, false));
	}
	assert_ok(fake_free(fake.store, objects[0]));
	expect_refusal(-EINVAL, "an object of the caller's", spw_state_take(held, number, &memory));
	assert_int_equal(spw_state_clear(held, number), -EINVAL);
	expect_refusal(-EINVAL, "an object of the caller's", spw_state_pass(held, &number, 1));
	assert_int_equal(spw_state_set_object(held, tile, objects[1]), -EINVAL);
	assert_int_equal(spw_state_object(held, 7, &found), -EINVAL);
	close_state();
	assert_ok(fake_free(fake.store, objects[1])); /* it was not the state's */
	fake_reopen();
	open_state(4);
	assert_ok(spw_state_add_object(held, "parameter", sizeof(bytes), "shape", 5, &number));
	assert_ok(spw_state_add(held, "tile 0", LEN, NULL, 0, &tile));
	assert_int_equal(spw_state_attach(held), 1);
	assert_ok(spw_state_object(held, number, &found));
	assert_memory_equal(fake_object(found)->bytes, bytes, sizeof(bytes));
	close_state();
	assert_ok(fake_free(fake.store, found));
}

/* Also where a transient record has the name of a committed one. */
STATE_CASE(test_a_committed_record_that_is_transient_now_is_another)
{
	uint32_t number;

	open_with(4, 2);
	assert_ok(spw_state_commit(held, 1, NULL, 0, false));
	close_state();
	fake_reopen();
	open_state(4);
	add_records(1);
	assert_ok(spw_state_add_transient(held, "tile 1", LEN, &number));
	expect_refusal(-EUCLEAN, "tile 1 is there, and was not declared", spw_state_attach(held));
}

/* It is not the commit's. */
STATE_CASE(test_a_transient_record_that_cannot_be_written_hinders_no_commit)
{
	uint32_t number;

	open_state(4);
	add_records(1);
	for (uint32_t i = 1; i < 6; i++) {
		char name[] = {'g', (char)('0' + i), '\0'};

		assert_ok(spw_state_add_transient(held, name, LEN, &number));
	}
	assert_int_equal(spw_state_attach(held), 0);
	begin_pass(6, true);
	use(5, 0, 1);
	use(4, 0, 2);
	fake.put_error = -EIO;
	assert_ok(spw_state_commit(held, 1, NULL, 0, false));
	fake.put_error = 0;
	use(5, 1, 1);
}

STATE_CASE(test_what_is_cleared_is_zero_and_takes_no_space)
{
	open_with(4, 8);
	pass(8, false, 0, 3);
	pass(8, true, 3, 4);
	take(2);
	expect_refusal(-EBUSY, "is taken", spw_state_clear(held, 2));
	assert_ok(spw_state_give(held, 2, false));
	assert_int_equal(spw_state_clear(held, 8), -EINVAL);
	for (uint32_t i = 0; i < 8; i++) /* in memory, under way, on the drives */
		assert_ok(spw_state_clear(held, i));
	assert_int_equal(fake.store->objects_used, 0);
	pass(8, false, 0, 9);
	assert_ok(spw_state_clear(held, 0));
	assert_ok(spw_state_commit(held, 1, NULL, 0, false));
	reopen(4, 8);
	use(0, 0, 0);
	use(1, 9, 9);
}

STATE_CASE(test_orders_are_checked)
{
	const uint32_t beyond[] = {0, 5}, twice[] = {3, 1, 3}, good[] = {4, 0};

	open_with(4, 5);
	expect_refusal(-EINVAL, "record 5 of a pass: there are 5", spw_state_pass(held, beyond, 2));
	expect_refusal(-EINVAL, "tile 3) is twice", spw_state_pass(held, twice, 3));
	assert_ok(spw_state_pass(held, good, 2));
	(void)take(4);
	assert_int_equal(spw_state_pass(held, good, 2), -EBUSY);
	expect_refusal(-EBUSY, "1 records are taken", spw_state_commit(held, 1, NULL, 0, false));
	assert_ok(spw_state_give(held, 4, false));
	assert_ok(spw_state_pass(held, good, 2));
	assert_int_equal(stats_now().passes, 2);
}

STATE_CASE(test_a_child_of_fork_has_no_part_in_it)
{
	int status;
	pid_t child;

	open_with(4, 6);
	pass(6, false, 0, 1);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		void *memory;
		bool refused = spw_state_take(held, 0, &memory) == -EPERM &&
			       spw_state_commit(held, 1, NULL, 0, false) == -EPERM;

		spw_state_close(held); /* waits for nothing, frees no object */
		_exit(refused && fake.store->objects_used > 0 ? 0 : 1);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	pass(6, true, 1, 2);
}

/* ---- Commit and attach ---- */

STATE_CASE(test_what_is_committed_is_there_again)
{
	const char extra[] = "step 7, learning rate 0.1";
	char text[64];
	size_t len = sizeof(text);
	uint64_t number;

	open_with(4, 10);
	assert_int_equal(spw_state_attached(held, &number), -ENODATA);
	assert_int_equal(spw_state_extra(held, text, &len), -ENODATA);
	pass(7, false, 0, 1); /* three stay zero */
	assert_ok(spw_state_commit(held, 7, extra, sizeof(extra), true));
	assert_true(fake.kept);
	assert_ok(spw_state_commit_release(held));
	assert_false(fake.kept);
	assert_int_equal(fake.set.count, 7);
	assert_int_equal(spw_state_attached(held, &number), -ENODATA);
	pass(7, true, 1, 2); /* is lost */

	reopen(5, 10);
	assert_ok(spw_state_attached(held, &number));
	assert_int_equal(number, 7);
	assert_ok(spw_state_extra(held, NULL, &len));
	assert_int_equal(len, sizeof(extra));
	len = sizeof(extra) - 1;
	assert_int_equal(spw_state_extra(held, text, &len), -ERANGE);
	assert_int_equal(len, sizeof(extra));
	len = sizeof(text);
	assert_ok(spw_state_extra(held, text, &len));
	assert_int_equal(len, sizeof(extra));
	assert_memory_equal(text, extra, sizeof(extra));
	for (uint32_t i = 0; i < 10; i++)
		use(i, i < 7, i < 7);
	assert_int_equal(stats_now().writes, 0);
	expect_refusal(-EINVAL, "the last is 7", spw_state_commit(held, 7, NULL, 0, false));
	assert_ok(spw_state_commit(held, 8, NULL, 0, false));
	reopen(4, 10);
	assert_ok(spw_state_extra(held, NULL, &len));
	assert_int_equal(len, 0);
	pass(7, false, 1, 2);
}

/* Each changed record in memory is put once; they stay, and are clean. */
STATE_CASE(test_a_commit_writes_what_is_in_memory_and_changed)
{
	struct spw_state_stats before;

	fake.store->chunk_bytes = 1;
	open_with(8, 8);
	pass(8, false, 0, 1);
	assert_int_equal(stats_now().writes, 0);
	assert_ok(spw_state_commit(held, 1, NULL, 0, false));
	assert_int_equal(stats_now().commit_bytes_written, 8 * LEN);
	assert_int_equal(fake.requests_used_max, 2);
	assert_ok(spw_state_commit(held, 2, NULL, 0, false));
	use(3, 1, 2);
	before = stats_now();
	assert_ok(spw_state_commit(held, 3, NULL, 0, false));
	assert_int_equal(stats_now().writes - before.writes, 1);
	assert_int_equal(stats_now().commits, 3);
	assert_int_equal(stats_now().reads, 0);
	assert_int_equal(fake.store->objects_used, 8); /* those before are freed */
	reopen(8, 8);
	use(3, 2, 3);
	use(4, 1, 3);
}

/* Nothing is lost in memory, and the commit before stays. */
STATE_CASE(test_a_commit_that_fails_is_made_again)
{
	open_with(4, 10);
	pass(10, false, 0, 1);
	assert_ok(spw_state_commit(held, 1, NULL, 0, false));
	pass(10, true, 1, 2);
	fake.put_error = -EIO;
	expect_refusal(
		-EIO,
		"a changed record cannot be written, so nothing is committed: drive 2 gave up",
		spw_state_commit(held, 2, NULL, 0, false));
	assert_int_equal(fake.set.number, 1);
	fake.commit_error = -EIO;
	expect_refusal(-EIO, "could not flush", spw_state_commit(held, 2, NULL, 0, false));
	assert_int_equal(stats_now().commits, 1);
	pass(10, false, 2, 3);
	assert_ok(spw_state_commit(held, 2, NULL, 0, false));
	reopen(4, 10);
	pass(10, false, 3, 4);
}

/* A put that was under way when the commit began counts, too. */
STATE_CASE(test_a_commit_waits_for_puts_under_way)
{
	open_with(4, 12);
	begin_pass(12, false);
	use(0, 0, 1);
	assert_int_equal(fake.store->requests_used, 1);
	fake.put_error = -EIO;
	assert_int_equal(spw_state_commit(held, 1, NULL, 0, false), -EIO);
	assert_ok(spw_state_commit(held, 1, NULL, 0, false));
	reopen(4, 12);
	use(0, 1, 2);
	use(1, 0, 2);
}

STATE_CASE(test_extra_bytes_have_to_fit)
{
	open_with(4, 1);
	assert_int_equal(spw_state_commit(held, 1, "", SPW_COMMIT_RECORD_BYTES_MAX - 88, false),
			 -E2BIG);
	assert_int_equal(spw_state_commit(held, 1, "", SIZE_MAX, false), -E2BIG);
	expect_words("they must be at most 268435456");
	assert_int_equal(fake.commits, 0);
}

/* ---- Another state than the one that is committed ---- */

static void commit_records(uint32_t count)
{
	open_with(4, count);
	pass(count, false, 0, 1);
	assert_ok(spw_state_commit(held, 5, NULL, 0, false));
	spw_state_close(held);
	fake_reopen();
	open_state(4);
}

static void add(const char *name, uint64_t len, const char *shape)
{
	uint32_t number;

	assert_ok(spw_state_add(held, name, len, shape, strlen(shape), &number));
}

static void refuse(const char *words)
{
	uint64_t number;

	expect_refusal(-EUCLEAN,
		       "commit 5 of the store has other records: ", spw_state_attach(held));
	expect_words(words);
	assert_int_equal(spw_state_attached(held, &number), -ENODATA);
	assert_int_equal(spw_state_give(held, 0, true), -EINVAL); /* not attached */
}

STATE_CASE(test_a_record_that_is_missing_there_is_named)
{
	commit_records(3);
	add_records(4);
	refuse("tile 3 is missing there");
}

STATE_CASE(test_a_record_that_was_not_declared_is_named)
{
	commit_records(3);
	add_records(2);
	refuse("tile 2 is there, and was not declared");
	add("tile 2", LEN, "tile 2"); /* nothing was changed: it may be declared now */
	assert_int_equal(spw_state_attach(held), 1);
	use(1, 1, 2);
}

STATE_CASE(test_a_record_of_another_length_is_named)
{
	commit_records(2);
	add("tile 0", LEN, "tile 0");
	add("tile 1", LEN - 1, "tile 1");
	refuse("tile 1 has another length there");
}

STATE_CASE(test_a_record_of_another_shape_is_named)
{
	commit_records(2);
	add("tile 0", LEN, "tile x");
	add("tile 1", LEN, "tile 1");
	refuse("tile 0 has another shape there");
}

STATE_CASE(test_a_record_of_a_longer_shape_is_named)
{
	commit_records(2);
	add("tile 0", LEN, "tile 0 and more");
	add("tile 1", LEN, "tile 1");
	refuse("tile 0 has another shape there");
}

/* By name, in whatever order they are declared. */
STATE_CASE(test_records_are_found_by_their_names)
{
	open_with(4, 3);
	use(0, 0, 1);
	use(1, 0, 2);
	assert_ok(spw_state_commit(held, 5, NULL, 0, false));
	spw_state_close(held);
	fake_reopen();
	open_state(4);
	add("tile 2", LEN, "tile 2");
	add("tile 1", LEN, "tile 1");
	add("tile 0", LEN, "tile 0");
	assert_int_equal(spw_state_attach(held), 1);
	use(0, 0, 3);
	use(1, 2, 3);
	use(2, 1, 3);
	assert_ok(spw_state_commit(held, 6, NULL, 0, false));
	reopen(4, 3); /* in the first order again */
	pass(3, false, 3, 4);
}

/* ---- What no state has made ---- */

static void commit_bytes(const void *bytes, size_t len)
{
	assert_ok(fake_commit(fake.store, NULL, 0, 5, bytes, len, false));
	fake_reopen();
	open_state(4);
	add_records(2);
}

STATE_CASE(test_another_ones_commit_is_refused)
{
	commit_bytes("abc", 3);
	expect_refusal(-EUCLEAN,
		       "commit 5 of the store cannot be used as a state: it is none of spillway's",
		       spw_state_attach(held));
	assert_int_equal(committed_count(), -EUCLEAN);
	assert_int_equal(spw_state__committed_with(fake.store, &fake_ports, NULL, NULL), -EUCLEAN);
}

static size_t encode(uint8_t *bytes, const char *names[], uint64_t len, uint32_t objects)
{
	struct spw_state_manifest manifest = {.objects = objects};
	uint64_t total_bytes = spw_state__manifest_bytes(0);
	uint8_t *at;

	for (; names[manifest.records]; manifest.records++)
		total_bytes += spw_state__entry_bytes(strlen(names[manifest.records]),
						      strlen(names[manifest.records]));
	at = spw_state__manifest_begin(bytes, total_bytes, &manifest);
	for (uint32_t i = 0; i < manifest.records; i++) {
		struct spw_state_entry entry = {.name = names[i],
						.shape = (const uint8_t *)names[i],
						.name_len = (uint32_t)strlen(names[i]),
						.shape_len = (uint32_t)strlen(names[i]),
						.object = i < objects ? i + 1 : 0,
						.len_bytes = len};

		at = spw_state__manifest_add(at, &entry);
	}
	spw_state__manifest_end(at, bytes, total_bytes, &manifest);
	return total_bytes;
}

STATE_CASE(test_a_name_that_is_there_twice_is_refused)
{
	uint8_t bytes[1024];

	commit_bytes(bytes, encode(bytes, (const char *[]){"tile 0", "tile 0", NULL}, LEN, 0));
	refuse("tile 0 is there twice");
}

STATE_CASE(test_a_manifest_of_more_objects_than_there_are_is_refused)
{
	uint8_t bytes[1024];

	commit_bytes(bytes, encode(bytes, (const char *[]){"tile 0", "tile 1", NULL}, LEN, 2));
	expect_refusal(-EUCLEAN, "it has another number of objects than the commit",
		       spw_state_attach(held));
}

STATE_CASE(test_an_object_of_another_length_than_its_record_is_refused)
{
	uint8_t bytes[1024], content[LEN] = {0};
	spw_object object = fake_put(content, LEN - 1);
	size_t len = encode(bytes, (const char *[]){"tile 0", "tile 1", NULL}, LEN, 1);

	assert_ok(fake_commit(fake.store, &object, 1, 5, bytes, len, false));
	fake_reopen();
	open_state(4);
	add_records(2);
	expect_refusal(-EUCLEAN, "record tile 0 has 64 bytes, and its object 63",
		       spw_state_attach(held));
}

/* What a state has taken up and given up is not there for another one. */
STATE_CASE(test_the_store_is_opened_again_for_another_state)
{
	commit_records(3);
	add_records(3);
	assert_int_equal(spw_state_attach(held), 1);
	use(0, 1, 2);
	spw_state_close(held);
	open_state(4);
	add_records(3);
	expect_refusal(-EALREADY, "open the store again", spw_state_attach(held));
	fake_reopen();
	assert_int_equal(spw_state_attach(held), 1);
	pass(3, false, 1, 2);
}

/* ---- Room ---- */

STATE_CASE(test_a_store_that_is_too_small_says_by_how_much)
{
	uint64_t missing;

	/*
	 * 10 records of a block each, twice; two commits' descriptions of a block; and 2 records of
	 * 64 bytes that are under way.
	 */
	fake.capacity = 2 * 10 * 4096 + 2 * 4096 + 2 * LEN - 3;
	open_state(4);
	add_records(10);
	expect_refusal(-ENOSPC, "the store is too small by 3 bytes: 10 records of 640 B",
		       spw_state_attach(held));
	fake.capacity = 0;
	assert_int_equal(spw_state_attach(held), -ENOSPC);
	missing = strtoull(strstr(spw_last_error(), "by ") + 3, NULL, 10);
	fake.capacity = missing;
	assert_int_equal(spw_state_attach(held), 0);
}

STATE_CASE(test_a_mirror_needs_room_for_two_copies)
{
	struct spw_state_opts opts;
	uint64_t missing, single;

	fake.drives = 3;
	fake.capacity = 0;
	spw_state_opts_init(&opts, sizeof(opts));
	opts.record_bytes_max = LEN;
	assert_int_equal(opts.copies, 1);
	opts.copies = 3;
	expect_refusal(-EINVAL, "copies is 3",
		       spw_state__open_with(fake.store, &opts, &fake_ports, &held));
	opts.copies = 2;
	fake.drives = 1;
	expect_refusal(-EINVAL, "one drive",
		       spw_state__open_with(fake.store, &opts, &fake_ports, &held));
	/* One is missing: it was made with two. */
	fake.drives_missing = 1;
	assert_ok(spw_state__open_with(fake.store, &opts, &fake_ports, &held));
	spw_state_close(held);
	fake.drives = 3;
	fake.drives_missing = 0;
	assert_ok(spw_state__open_with(fake.store, &opts, &fake_ports, &held));
	add_records(10);
	expect_refusal(-ENOSPC, "for each of two copies", spw_state_attach(held));
	missing = strtoull(strstr(spw_last_error(), "by ") + 3, NULL, 10);
	fake.capacity = 2 * missing - 2;
	assert_int_equal(spw_state_attach(held), -ENOSPC);
	/* Of unequal drives the largest has no more pairs than the others have room for. */
	fake.uneven = true;
	fake.capacity = 2 * missing + 64;
	assert_int_equal(spw_state_attach(held), -ENOSPC);
	fake.capacity = 4 * missing - 8;
	assert_int_equal(spw_state_attach(held), -ENOSPC);
	fake.uneven = false;
	fake.capacity = 2 * missing - 2;
	/* It goes on without a drive, with one copy if there is no room for two. */
	fake.drives_missing = 1;
	single = fake.capacity;
	fake.capacity = missing;
	assert_int_equal(spw_state_attach(held), 0);
	spw_state_close(held);
	fake.capacity = single + 2;
	fake.drives_missing = 0;
	assert_ok(spw_state__open_with(fake.store, &opts, &fake_ports, &held));
	add_records(10);
	assert_int_equal(spw_state_attach(held), 0);
	use(0, 0, 1);
	assert_ok(spw_state_commit(held, 1, NULL, 0, true));
	assert_int_equal(fake.copies, 2);
	assert_int_equal(fake.flags, SPW_COMMIT_KEEP_PREVIOUS | SPW_COMMIT_MIRRORED);
}

/* ---- For tools ---- */

struct seen {
	unsigned count, stop_at;
	uint64_t objects;
};

static int see(void *context, const char *name, uint64_t len, const void *shape, size_t shape_len,
	       spw_object object)
{
	struct seen *seen = context;
	char expected[32];

	(void)snprintf(expected, sizeof(expected), "tile %u", seen->count++);
	assert_string_equal(name, expected);
	assert_int_equal(len, LEN);
	assert_int_equal(shape_len, strlen(expected));
	assert_memory_equal(shape, expected, shape_len);
	seen->objects += object.value != 0;
	return seen->count == seen->stop_at ? 77 : 0;
}

STATE_CASE(test_tools_see_what_is_committed)
{
	struct seen seen = {0};

	assert_int_equal(committed_count(), -ENODATA);
	assert_int_equal(spw_state__committed_with(fake.store, &fake_ports, see, &seen), -ENODATA);
	open_with(4, 6);
	pass(4, false, 0, 1);
	assert_ok(spw_state_commit(held, 5, "x", 1, false));
	close_state();
	fake_reopen();
	assert_int_equal(committed_count(), 6);
	assert_ok(spw_state__committed_with(fake.store, &fake_ports, see, &seen));
	assert_int_equal(seen.count, 6);
	assert_int_equal(seen.objects, 4);
	seen = (struct seen){.stop_at = 2};
	assert_int_equal(spw_state__committed_with(fake.store, &fake_ports, see, &seen), 77);
	assert_int_equal(seen.count, 2);
}

RUN_CASES(NULL, NULL)
