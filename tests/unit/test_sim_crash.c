/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_sim_crash.c - power cuts at every transfer of format, open and wipe, over
 * simulated drives with volatile caches: what is found afterwards is the old store, the new one, or
 * a refusal that says why; and a format makes it whole again
 *
 * Not only the writes: also a cut while something is read. What the drives' caches lose is drawn,
 * by units of 512 bytes, of 4096, or of whole writes.
 */
#include "layout/superblock.h"

#define DRIVES     2
#define DRIVES_MAX DRIVES

static const char *const paths[DRIVES] = {"sim1", "sim0"};

#include "tests/unit/sim_steps.h"

/* Enough that every outcome that a point has is likely to be met. */
#define ROUNDS 3

enum outcome {
	OLD,
	NEW,
	UNFINISHED,
	DAMAGED,
	TORN, /* a copy of the new store beside one of the old: it could be foreign */
	NOTHING,
	OUTCOMES,
};

static const struct {
	int rc;
	const char *words;
	enum outcome outcome;
} refusals[] = {
	{-EUCLEAN, "format did not finish", UNFINISHED},
	{-EUCLEAN, "both superblock copies are damaged", DAMAGED},
	{-EMEDIUMTYPE, "unknown data at byte", TORN},
	{-EMEDIUMTYPE, "is not a drive of a spillway store", NOTHING},
};

/* With a store on them, whose uuid is in @old; NULL: with nothing. */
static void make(uint32_t unit, struct spw_store_info *old)
{
	if (old)
		make_drives(DRIVES, unit, 1);
	else
		make_blank_drives(DRIVES, unit);
	/* Drawn, the number of events would differ from run to run. */
	for (unsigned i = 0; i < DRIVES; i++)
		sim_drives[i].geometry.discards = true;
	if (old) {
		old->size = sizeof(*old);
		assert_ok(spw_check(paths, DRIVES, old, NULL));
	}
}

static int format(void)
{
	struct spw_format_opts opts;

	spw_format_opts_init(&opts, sizeof(opts));
	opts.force = true;
	opts.erase = true; /* of a copy that was torn, what is left may lack the magic */
	return spw_format(paths, DRIVES, &opts, NULL);
}

static int open_store(void)
{
	return open_these(all(), SPW_COMMIT_NEWEST, false);
}

/* Bytes go in and come out. */
static void use_store(void)
{
	spw_object object;

	assert_ok(open_store());
	assert_ok(put_copies(1, 0, 1, &object));
	assert_ok(get(1, 0, object));
	close_store();
}

static enum outcome refusal(int rc, const char *words)
{
	for (unsigned i = 0; i < SPW_ARRAY_LEN(refusals); i++)
		if (rc == refusals[i].rc && strstr(words, refusals[i].words))
			return refusals[i].outcome;
	fail_msg("refused with %d: %s", rc, words);
	return OUTCOMES;
}

/* The same each time that it is looked at. */
static enum outcome look(const char *old_uuid)
{
	struct spw_store_info info = {.size = sizeof(info)}, again = {.size = sizeof(again)};
	int rc = spw_check(paths, DRIVES, &info, NULL);

	assert_int_equal(spw_check(paths, DRIVES, &again, NULL), rc);
	if (rc) {
		enum outcome outcome = refusal(rc, spw_last_error());

		expect_words("sim");
		assert_int_equal(open_store(), rc);
		expect_words("sim");
		return outcome;
	}
	assert_string_equal(info.store_uuid, again.store_uuid);
	use_store();
	return old_uuid && strcmp(info.store_uuid, old_uuid) == 0 ? OLD : NEW;
}

/* What a cut in the recovery leaves is no worse: format, cut at random, and format at last. */
static void recover(void)
{
	sim_events = 0;
	sim_cut_at = 1 + sim_below(&seed, 40);
	if (format()) {
		power_on();
		(void)look(NULL);
	}
	sim_cut_at = 0;
	assert_ok(format());
	assert_int_equal(look(NULL), NEW);
}

/* What there is before a format. */
enum before { NO_STORE, A_STORE, COPY_0_DAMAGED, COPY_1_DAMAGED };

static void prepare(enum before before, uint32_t unit, struct spw_store_info *old)
{
	static const uint8_t zeros[1024];
	struct sim_drive *drive = &sim_drives[1];

	make(unit, before == NO_STORE ? NULL : old);
	/* As a write that was cut off: a part is zeros, and the checksum is that of the whole. */
	if (before >= COPY_0_DAMAGED)
		sim_drive_write(drive,
				spw_layout__copy_offset(drive->geometry.size_bytes,
							before - COPY_0_DAMAGED) +
					0x800,
				zeros, sizeof(zeros));
}

/* Return: how many points there are. */
static uint64_t cut_format_at(uint64_t point, uint32_t unit, enum before before,
			      unsigned outcomes[OUTCOMES])
{
	struct spw_store_info old;
	enum outcome outcome;
	uint64_t events;
	int rc;

	prepare(before, unit, &old);
	sim_events = 0;
	sim_cut_at = point;
	rc = format();
	events = sim_events;
	if (rc)
		expect_words("sim");
	power_on();
	outcome = look(before == NO_STORE ? NULL : old.store_uuid);
	/* What was reported as done is done, also if the power went while it was read back. */
	assert_true(rc || outcome == NEW);
	assert_true(rc == 0 || point <= events);
	/* FORMAT-2 is durable: from then on one intact copy says that it did not finish. */
	assert_true(point <= 2 * DRIVES || outcome == NEW || outcome == UNFINISHED);
	outcomes[outcome]++;
	if (outcome > NEW && sim_below(&seed, 4) == 0)
		recover();
	return events;
}

static void cut_format(enum before before, unsigned rounds, unsigned outcomes[OUTCOMES])
{
	memset(outcomes, 0, OUTCOMES * sizeof(outcomes[0]));
	for (unsigned unit = 0; unit < 3; unit++)
		for (unsigned round = 0; round < rounds; round++) {
			uint64_t point = 1, events;

			do
				events = cut_format_at(point, units[unit], before, outcomes);
			while (point++ <= events);
		}
	(void)printf("old %u, new %u, unfinished %u, damaged %u, torn %u, nothing %u\n",
		     outcomes[OLD], outcomes[NEW], outcomes[UNFINISHED], outcomes[DAMAGED],
		     outcomes[TORN], outcomes[NOTHING]);
	assert_true(outcomes[NEW] > 0 && outcomes[UNFINISHED] > 0);
}

CASE(test_cut_in_format_over_a_store)
{
	unsigned outcomes[OUTCOMES];

	cut_format(A_STORE, ROUNDS, outcomes);
	assert_true(outcomes[OLD] > 0 && outcomes[TORN] > 0);
	assert_int_equal(outcomes[DAMAGED] + outcomes[NOTHING], 0);
}

CASE(test_cut_in_format_over_nothing)
{
	unsigned outcomes[OUTCOMES];

	cut_format(NO_STORE, ROUNDS, outcomes);
	assert_true(outcomes[NOTHING] > 0);
	/* Where no store was, what is torn is the new one's alone. */
	assert_int_equal(outcomes[OLD] + outcomes[TORN], 0);
}

/* One copy of the old store was damaged already. */
CASE(test_cut_in_format_over_a_damaged_store)
{
	unsigned outcomes[OUTCOMES];

	for (enum before before = COPY_0_DAMAGED; before <= COPY_1_DAMAGED; before++) {
		cut_format(before, 1, outcomes);
		assert_true(outcomes[OLD] > 0);
		assert_int_equal(outcomes[NOTHING], 0);
	}
}

/* Return: whether there was an Nth one. What is left is one of the outcomes of a power cut. */
static bool fail_in_format(unsigned drive, enum spw_op op, uint32_t nth)
{
	struct spw_store_info before;
	int rc;

	make(512, &before);
	fail_nth(drive, op, nth, -EIO);
	rc = format();
	if (rc == 0)
		return false;
	assert_int_equal(rc, -EIO);
	expect_words(sim_drives[drive].path);
	/* The old store, or a failure in its last copies leaves the new one. */
	if (look(before.store_uuid) > NEW)
		assert_ok(format());
	return true;
}

CASE(test_error_in_format)
{
	unsigned failures = 0;

	for (unsigned drive = 0; drive < DRIVES; drive++)
		for (enum spw_op op = SPW_WRITE; op <= SPW_FLUSH; op++)
			for (uint32_t nth = 1; fail_in_format(drive, op, nth); nth++)
				failures++;
	assert_true(failures > 20);
}

/* What lies around the data: open writes nothing there, or anywhere. */
static bool reserved_is_true(const struct sim_drive *drive)
{
	return sim_range_is_true(drive, 0, SPW_LAYOUT_RESERVED_BYTES) &&
	       sim_range_is_true(drive, drive->geometry.size_bytes - SPW_LAYOUT_RESERVED_BYTES,
				 SPW_LAYOUT_RESERVED_BYTES);
}

CASE(test_cut_in_open)
{
	struct spw_store_info before;
	uint64_t point = 1;
	bool cut;
	int rc;

	make(512, &before);
	sim_cuts_reads = true;
	do {
		sim_events = 0;
		sim_cut_at = point;
		rc = open_store();
		close_store();
		if (rc)
			expect_words("sim");
		cut = sim_events >= point;
		assert_true(rc == 0 || cut);
		power_on();
		for (unsigned i = 0; i < DRIVES; i++)
			assert_true(reserved_is_true(&sim_drives[i]));
		assert_int_equal(look(before.store_uuid), OLD);
	} while (cut && point++ < 1000);
	sim_cuts_reads = false;
	assert_in_range(point, 2 * DRIVES, 999);
}

/* Each read fails once: the other copy serves, or the open is refused, and the next one is not. */
CASE(test_error_in_open)
{
	struct spw_store_info before;
	unsigned opened = 0, refused = 0;

	for (unsigned drive = 0; drive < DRIVES; drive++)
		for (unsigned nth = 0; nth < 12; nth++) {
			int rc;

			make(512, &before);
			(void)sim_fault(drive, SIM_EIO, nth, 1);
			rc = open_store();
			opened += rc == 0;
			refused += rc != 0;
			if (rc)
				expect_words(sim_drives[drive].path);
			close_store();
			sim_disarm(drive);
			assert_int_equal(look(before.store_uuid), OLD);
		}
	assert_true(opened > 0);
	(void)printf("opened %u, refused %u\n", opened, refused);
}

CASE(test_cut_in_wipe)
{
	unsigned outcomes[OUTCOMES] = {0};
	struct spw_store_info before;
	uint64_t point = 1;
	int rc = -1;

	for (unsigned unit = 0; unit < 3; unit++)
		for (point = 1, rc = -1; rc && point < 1000; point++) {
			make(units[unit], &before);
			sim_events = 0;
			sim_cut_at = point;
			rc = spw_wipe(paths, DRIVES, NULL);
			assert_true(rc == 0 || sim_events >= point);
			power_on();
			outcomes[look(before.store_uuid)]++;
		}
	assert_int_equal(rc, 0);
	assert_int_equal(outcomes[NEW], 0);
	assert_true(outcomes[OLD] > 0 && outcomes[NOTHING] > 0);
}

static int take_one_seed(void **state)
{
	(void)setenv("SPW_SEED", "1", false);
	return take_seed(state);
}

RUN_CASES(take_one_seed, NULL)
