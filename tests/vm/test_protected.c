/* SPDX-License-Identifier: MIT */
/*
 * tests/vm/test_protected.c - a store over drives that keep protection information, past the block
 * layer: what a drive finds damaged is not handed out, and comes from the other copy where there is
 * one
 *
 * SPW_VM_BREAK makes all protection information of the last drive wrong, and leaves the blocks as
 * they are: only the drive can tell.
 */
#include "tests/vm/objects.h"

static const int faults[] = {-EILSEQ, 0};

static void break_drive(void)
{
	assert_true(machine_run("SPW_VM_BREAK"));
}

STORE_CASE(test_what_a_drive_finds_damaged)
{
	struct spw_store *store = open_filled();
	struct spw_drive_stats drive;
	unsigned lost;

	assert_int_equal(get_all(store, NULL), 0);
	break_drive();
	lost = get_all(store, NULL);
	assert_true(lost > 0);
	assert_int_equal(stats_of(store).checksum_errors, 0);
	spw_store_drive_stats(store, machine_victim(), &drive, sizeof(drive));
	assert_true(drive.read_errors >= lost);
	/* What is rewritten is whole. */
	put_all(store);
	assert_int_equal(get_all(store, NULL), 0);
	close_store(store);
}

STORE_CASE(test_the_other_copy_serves)
{
	struct spw_request *request;
	struct spw_store *store;
	spw_object copies[BATCH];

	(void)format_drives(4, 1, MIB);
	store = open_default();
	for (unsigned i = 0; i < BATCH; i++) {
		content_fill(memory[i], OBJECT_BYTES, i);
		assert_ok(spw_store_put_copies(store, memory[i], OBJECT_BYTES, 2, NULL, &copies[i],
					       &request));
		assert_ok(spw_request_wait(request));
	}
	break_drive();
	for (unsigned i = 0; i < BATCH; i++) {
		assert_ok(spw_store_get(store, copies[i], 0, memory[0], OBJECT_BYTES,
					SPW_URGENT_READ, NULL, &request));
		assert_ok(spw_request_wait(request));
		assert_content(memory[0], OBJECT_BYTES, i, 0);
	}
	assert_true(stats_of(store).reads_switched > 0);
	close_store(store);
}

RUN_OBJECT_CASES(faults)
