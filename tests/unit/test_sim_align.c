/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_sim_align.c - a store over drives one of which moves wrong bytes from memory that
 * lies as it says memory may lie
 */
#include "tests/unit/sim_rig.h"

#define LEN  ((size_t)9 * CHUNK_BYTES) /* every drive has some of it */
#define LIAR 1

static unsigned warnings;

static void count_warnings(void *context, enum spw_log_level priority, const char *message)
{
	(void)context;
	warnings += priority == SPW_LOG_WARNING && strstr(message, "moved other bytes") != NULL;
}

static void open_as(bool read_only)
{
	struct spw_store_opts opts = options(8);

	warnings = 0;
	opts.read_only = read_only;
	opts.log.write = count_warnings;
	open_with(&opts);
}

/* Aligned as all drives here claim to need, and no better. */
static uint8_t *odd_memory(void)
{
	return memory(LEN + 4096) + 512;
}

static uint64_t copies(void)
{
	return stats().copies_unaligned_address;
}

DRIVES_CASE(test_what_drives_say_is_used_where_it_is_true)
{
	uint8_t *bytes = odd_memory();
	spw_object object;

	open_as(false);
	sim_fill(bytes, LEN, 1);
	assert_ok(put_wait(bytes, LEN, &object));
	expect_identical(object, bytes, LEN);
	assert_int_equal(copies(), 0);
	assert_int_equal(warnings, 0);
}

/* The store that opens copies memory that is not page-aligned, and moves the right bytes. */
static void expect_pages(unsigned warned)
{
	uint8_t *bytes = odd_memory(), *back = odd_memory();
	spw_object object;

	open_as(false);
	sim_fill(bytes, LEN, 1);
	assert_ok(put_wait(bytes, LEN, &object));
	assert_ok(get_wait(object, 0, back, LEN));
	assert_memory_equal(back, bytes, LEN);
	assert_true(copies() > 0);
	assert_int_equal(warnings, warned);
}

DRIVES_CASE(test_a_drive_that_moves_wrong_bytes_gets_pages)
{
	sim_drives[LIAR].misplaces = true;
	expect_pages(1);
}

/* Neither may a trial of the next opener touch what is committed, nor one that only reads write. */
DRIVES_CASE(test_a_trial_spares_what_is_committed)
{
	uint8_t *bytes = odd_memory(), *back = odd_memory();
	uint64_t writes, len;
	spw_object object;

	sim_drives[LIAR].misplaces = true;
	open_as(false);
	sim_fill(bytes, LEN, 1);
	assert_ok(put_wait(bytes, LEN, &object));
	assert_ok(spw_store_commit(store, &object, 1, 1, NULL, 0, false));
	close_store();
	for (unsigned round = 0; round < 2; round++) {
		writes = sim_drives[LIAR].writes;
		open_as(round == 1);
		assert_int_equal(sim_drives[LIAR].writes - writes, round == 1 ? 0 : 2);
		assert_ok(spw_store_committed_objects(store, &object, &len, 1));
		assert_ok(get_wait(object, 0, back, LEN));
		assert_memory_equal(back, bytes, LEN);
		close_store();
	}
}

DRIVES_CASE(test_a_trial_that_fails_fails_no_open)
{
	fail_nth(LIAR, SPW_WRITE, 1, -EIO);
	expect_pages(0);
	assert_false(is_retired(LIAR));
}

RUN_CASES(NULL, NULL)
