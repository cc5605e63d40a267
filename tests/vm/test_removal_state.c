/* SPDX-License-Identifier: MIT */
/*
 * tests/vm/test_removal_state.c - a drive is pulled out of the machine under training state that
 * is taken, changed, released and committed: it ends with a message that names the drive, and never
 * with other bytes; or, with two copies, it goes on, and is there again without the drive
 */
#include "tests/integration/test_store.h"
#include "tests/vm/machine.h"

#define RECORDS      24u
#define RECORD_BYTES (2 * MIB)
#define BUFFERS      6u
#define PASSES       2u /* before the drive is pulled */

static struct spw_store *store;
static struct spw_state *held;
static uint64_t turns[RECORDS]; /* which bytes are in it; 0: zeroes */

static uint64_t seed_of(uint32_t record)
{
	return turns[record] * RECORDS + record;
}

/* In the store that is open. Return: 1 what was committed is there; 0 nothing was. */
static int attach_state(uint32_t copies)
{
	struct spw_state_opts opts;

	spw_state_opts_init(&opts, sizeof(opts));
	opts.copies = copies;
	opts.record_bytes_max = RECORD_BYTES;
	opts.memory_bytes = (uint64_t)BUFFERS * RECORD_BYTES;
	assert_ok(spw_state_open(store, &opts, &held));
	for (uint32_t i = 0; i < RECORDS; i++) {
		char name[32];
		uint32_t number;

		(void)snprintf(name, sizeof(name), "layer %u", i);
		assert_ok(spw_state_add(held, name, RECORD_BYTES, NULL, 0, &number));
	}
	return spw_state_attach(held);
}

static void open_state(uint32_t copies)
{
	format_drives(4, 1, 0);
	store = open_default();
	assert_int_equal(attach_state(copies), 0);
}

static int close_state(void **state)
{
	spw_state_close(held);
	held = NULL;
	return close_stores(state);
}

static void assert_bytes(uint32_t record, const void *memory)
{
	static const uint8_t zeroes[RECORD_BYTES];

	if (turns[record] == 0)
		assert_memory_equal(memory, zeroes, RECORD_BYTES);
	else
		assert_content(memory, RECORD_BYTES, seed_of(record), 0);
}

static int use(uint32_t record)
{
	void *memory;
	int rc = spw_state_take(held, record, &memory);

	if (rc)
		return rc;
	assert_bytes(record, memory);
	turns[record]++;
	content_fill(memory, RECORD_BYTES, seed_of(record));
	return spw_state_give(held, record, true);
}

/* All records, up and down in turn, and a commit. @pulled: at its half the drive is pulled. */
static int pass(uint64_t number, bool pulled)
{
	uint32_t order[RECORDS];
	int rc;

	for (uint32_t i = 0; i < RECORDS; i++)
		order[i] = number % 2 ? i : RECORDS - 1 - i;
	rc = spw_state_pass(held, order, RECORDS);
	for (uint32_t i = 0; rc == 0 && i < RECORDS; i++) {
		if (pulled && i == RECORDS / 2)
			machine_pull(machine_victim());
		rc = use(order[i]);
	}
	return rc ? rc : spw_state_commit(held, number, NULL, 0, false);
}

static void assert_names_the_drive(int rc)
{
	const char *words = spw_last_error();

	if ((rc != -ENODEV && rc != -EIO) || !strstr(words, drive_paths[machine_victim()]))
		fail_msg("it ended with %s (%s)", spw_strerror(rc), words);
	for (unsigned i = 0; i < 4; i++)
		if (i != machine_victim() && strstr(words, drive_paths[i]))
			fail_msg("another drive is named: %s", words);
}

/* With @drives of those in @paths. */
static void assert_refused(const char *const paths[], unsigned drives, const char *words)
{
	struct spw_store_opts opts = default_opts();
	struct spw_store *opened;

	assert_true(try_open(paths, drives, &opts, &opened) < 0);
	expect_words(words);
}

static void assert_missing(const char *const paths[])
{
	const char *left[3];
	char words[32];

	for (unsigned i = 0, count = 0; i < 4; i++)
		if (i != machine_victim())
			left[count++] = paths[i];
	(void)snprintf(words, sizeof(words), "drive %u of 4 (", machine_victim() + 1);
	assert_refused(left, 3, words);
	expect_words("is missing");
	/* And by the name that it had, which nothing has any more. */
	assert_refused(paths, 4, paths[machine_victim()]);
}

CASE_WITH(test_pulled_from_a_state, NULL, close_state)
{
	time_t deadline = machine_seconds() + MACHINE_PATIENCE_S;
	uint64_t number = 0;
	int rc;

	open_state(1);
	while (number < PASSES)
		assert_ok(pass(++number, false));
	rc = pass(++number, true);
	while (rc == 0) {
		machine_assert_before(deadline, "the drive that was pulled fails");
		rc = pass(++number, false);
	}
	printf("ended in pass %u: %s\n", (unsigned)number, spw_last_error());
	assert_names_the_drive(rc);
	/* Whatever still comes is right, and no commit leaves out what is on the drive. */
	for (uint32_t i = 0; i < RECORDS; i++) {
		void *memory;

		rc = spw_state_take(held, i, &memory);
		if (rc) {
			assert_names_the_drive(rc);
			continue;
		}
		assert_bytes(i, memory);
		assert_ok(spw_state_give(held, i, false));
	}
	assert_names_the_drive(spw_state_commit(held, number + 1, NULL, 0, false));
	spw_state_close(held);
	held = NULL;
	close_store(store);
	assert_missing(drive_paths);
}

CASE_WITH(test_pulled_from_a_mirrored_state, NULL, close_state)
{
	time_t deadline = machine_seconds() + MACHINE_PATIENCE_S;
	struct spw_store_opts opts = default_opts();
	struct spw_store_stats stats = {.drives_retired = 0};
	uint64_t number = 0, last;

	open_state(2);
	while (number < PASSES)
		assert_ok(pass(++number, false));
	assert_ok(pass(++number, true));
	while (stats.drives_retired == 0) {
		machine_assert_before(deadline, "the drive that was pulled is retired");
		assert_ok(pass(++number, false));
		spw_store_stats(store, &stats, sizeof(stats));
	}
	for (last = number + PASSES; number < last;)
		assert_ok(pass(++number, false));
	spw_state_close(held);
	held = NULL;
	spw_store_stats(store, &stats, sizeof(stats));
	printf("pass %u: %u drives retired, %llu chunks read from their other copy\n",
	       (unsigned)number, stats.drives_retired, (unsigned long long)stats.reads_switched);
	close_store(store);
	/* By the names of all, of which one leads nowhere. */
	assert_ok(try_open(drive_paths, 4, &opts, &store));
	spw_store_stats(store, &stats, sizeof(stats));
	assert_int_equal(stats.drives_missing, 1);
	assert_int_equal(attach_state(2), 1);
	for (uint32_t i = 0; i < RECORDS; i++) {
		void *memory;

		assert_ok(spw_state_take(held, i, &memory));
		assert_bytes(i, memory);
		assert_ok(spw_state_give(held, i, false));
	}
	assert_ok(pass(++number, false));
}

static int set_up(void **state)
{
	if (!machine_is_there()) {
		printf("runs in the virtual machine of tests/vm\n");
		exit(77);
	}
	return drives_from_environment(state);
}

/* A drive is pulled once: one case in each machine. */
int main(int argc, char **argv)
{
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(test_cases, set_up, NULL);
}
