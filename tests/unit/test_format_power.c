/* SPDX-License-Identifier: MIT */
/* tests/unit/test_format_power.c - power cuts and I/O errors at every transfer of a format */
#include "tests/unit/format_drives.h"

/* ---- Power cuts ---- */

/* What format did, in order: writes with their bytes, and flushes. */
struct event {
	unsigned drive;
	bool is_sync;
	uint64_t offset_bytes;
	size_t len_bytes;
	uint8_t *bytes;
};

#define EVENTS_MAX 512
#define CUT_ROUNDS 4 /* what a cut leaves of unflushed writes is drawn so often */

struct recorder {
	struct event events[EVENTS_MAX];
	unsigned count;
	unsigned fail_at; /* the event that gets -EIO */
};

static unsigned drive_of(const struct spw_device *device)
{
	unsigned i = 0;

	while (strcmp(drives[i], spw_device_path(device)) != 0)
		i++;
	return i;
}

static struct event *next_event(struct recorder *recorder, const struct spw_device *device)
{
	struct event *event = &recorder->events[recorder->count++];

	assert_true(recorder->count < EVENTS_MAX);
	event->drive = drive_of(device);
	return event;
}

static int record_pwrite(void *context, const struct spw_device *device, const void *buf,
			 size_t len, uint64_t offset)
{
	struct recorder *recorder = context;
	struct event *event = next_event(recorder, device);

	if (recorder->count == recorder->fail_at)
		return spw_error(-EIO, "%s: write failed", spw_device_path(device));
	event->offset_bytes = offset;
	event->len_bytes = len;
	event->bytes = malloc(len);
	assert_non_null(event->bytes);
	memcpy(event->bytes, buf, len);
	return spw_device_pwrite(device, buf, len, offset);
}

static int record_sync(void *context, const struct spw_device *device)
{
	struct recorder *recorder = context;
	struct event *event = next_event(recorder, device);

	if (recorder->count == recorder->fail_at)
		return spw_error(-EIO, "%s: flush failed", spw_device_path(device));
	event->is_sync = true;
	return spw_device_sync(device);
}

static void forget(struct recorder *recorder)
{
	for (unsigned i = 0; i < recorder->count; i++)
		free(recorder->events[i].bytes);
	memset(recorder, 0, sizeof(*recorder));
}

static int record_format(struct recorder *recorder)
{
	struct spw_format_io io = {
		.pwrite = record_pwrite, .sync = record_sync, .context = recorder};
	struct spw_format_opts opts = options(true);

	return spw_format_with(drives, DRIVES, &opts, NULL, &io);
}

/* What a drive may hold of a write that was not flushed: nothing, all, or some of its sectors. */
static void apply_part(const struct event *event)
{
	uint32_t how = draw(3);

	if (how == 0)
		return;
	if (how == 1) {
		write_at(drives[event->drive], event->offset_bytes, event->bytes, event->len_bytes);
		return;
	}
	for (size_t at = 0; at < event->len_bytes; at += 512)
		if (draw(2) == 0)
			write_at(drives[event->drive], event->offset_bytes + at, event->bytes + at,
				 512);
}

static bool flushed_before(const struct recorder *recorder, unsigned event, unsigned cut)
{
	for (unsigned i = event + 1; i < cut; i++)
		if (recorder->events[i].is_sync &&
		    recorder->events[i].drive == recorder->events[event].drive)
			return true;
	return false;
}

/*
 * The drives as a power cut before event @cut leaves them: what was flushed, and any part of what
 * was not.
 */
static void cut_power(const struct recorder *recorder, unsigned cut)
{
	for (unsigned i = 0; i < cut; i++) {
		const struct event *event = &recorder->events[i];

		if (event->is_sync)
			continue;
		if (flushed_before(recorder, i, cut))
			write_at(drives[event->drive], event->offset_bytes, event->bytes,
				 event->len_bytes);
		else
			apply_part(event);
	}
}

/* Superblocks and what lies around them, without the data: enough to go back to. */
struct ends {
	uint8_t *first, *last;
};

static void save_ends(struct ends ends[DRIVES])
{
	for (unsigned i = 0; i < DRIVES; i++) {
		ends[i].first = malloc(MIB);
		ends[i].last = malloc(MIB);
		assert_true(ends[i].first && ends[i].last);
		read_at(drives[i], 0, ends[i].first, MIB);
		read_at(drives[i], size_of(drives[i]) - MIB, ends[i].last, MIB);
	}
}

static void restore_ends(const struct ends ends[DRIVES])
{
	for (unsigned i = 0; i < DRIVES; i++) {
		write_at(drives[i], 0, ends[i].first, MIB);
		write_at(drives[i], size_of(drives[i]) - MIB, ends[i].last, MIB);
	}
}

static void free_ends(struct ends ends[DRIVES])
{
	for (unsigned i = 0; i < DRIVES; i++) {
		free(ends[i].first);
		free(ends[i].last);
	}
}

enum outcome {
	OUTCOME_OLD,
	OUTCOME_NEW,
	OUTCOME_UNFINISHED,
	OUTCOME_DAMAGED,
	OUTCOME_TORN, /* a copy of the new store beside one of the old: it could be anybody's */
	OUTCOME_NOTHING,
	OUTCOMES,
};

/* What the drives are taken for. A store must be exactly one of the two. */
static enum outcome outcome_of(const char *old_uuid, const char *new_uuid)
{
	struct spw_store_info info = {.size = sizeof(info)};
	int rc = spw_check(drives, DRIVES, &info, NULL);

	if (rc == 0 && old_uuid && strcmp(info.store_uuid, old_uuid) == 0)
		return OUTCOME_OLD;
	if (rc == 0 && strcmp(info.store_uuid, new_uuid) == 0)
		return OUTCOME_NEW;
	if (rc == -EUCLEAN && strstr(spw_last_error(), "format did not finish"))
		return OUTCOME_UNFINISHED;
	if (rc == -EUCLEAN && strstr(spw_last_error(), "both superblock copies are damaged"))
		return OUTCOME_DAMAGED;
	if (rc == -EMEDIUMTYPE && strstr(spw_last_error(), "unknown data at byte"))
		return OUTCOME_TORN;
	if (rc == -EMEDIUMTYPE && strstr(spw_last_error(), "is no drive of a spillway store"))
		return OUTCOME_NOTHING;
	fail_msg("after a power cut: %d (%s), store %s; seed %llu", rc, spw_last_error(),
		 info.store_uuid, (unsigned long long)seed);
	return OUTCOMES;
}

/*
 * Cut power before every event and after the last one, several times each. Count what comes of it.
 */
static void cut_everywhere(const char *old_uuid, unsigned outcomes[OUTCOMES])
{
	struct recorder *recorder = calloc(1, sizeof(*recorder));
	struct spw_store_info info = {.size = sizeof(info)};
	struct ends before[DRIVES];

	assert_non_null(recorder);
	memset(outcomes, 0, OUTCOMES * sizeof(outcomes[0]));
	save_ends(before);
	expect(0, record_format(recorder));
	expect(0, spw_check(drives, DRIVES, &info, NULL));
	for (unsigned cut = 0; cut <= recorder->count; cut++)
		for (unsigned round = 0; round < CUT_ROUNDS; round++) {
			restore_ends(before);
			cut_power(recorder, cut);
			outcomes[outcome_of(old_uuid, info.store_uuid)]++;
		}
	/* After the last flush there is only one outcome. */
	assert_int_equal(outcome_of(old_uuid, info.store_uuid), OUTCOME_NEW);
	free_ends(before);
	forget(recorder);
	free(recorder);
}

static void test_power_cut_over_a_store(void **state)
{
	struct spw_store_info old = {.size = sizeof(old)};
	unsigned outcomes[OUTCOMES];

	(void)state;
	expect(0, format_drives(DRIVES, false, &old));
	cut_everywhere(old.store_uuid, outcomes);
	assert_true(outcomes[OUTCOME_OLD] > 0 && outcomes[OUTCOME_NEW] > 0 &&
		    outcomes[OUTCOME_UNFINISHED] > 0);
	assert_true(outcomes[OUTCOME_TORN] > 0);
	assert_int_equal(outcomes[OUTCOME_DAMAGED], 0);
	assert_int_equal(outcomes[OUTCOME_NOTHING], 0);
}

static void test_power_cut_over_nothing(void **state)
{
	unsigned outcomes[OUTCOMES];

	(void)state;
	cut_everywhere(NULL, outcomes);
	assert_true(outcomes[OUTCOME_NOTHING] > 0 && outcomes[OUTCOME_NEW] > 0 &&
		    outcomes[OUTCOME_UNFINISHED] > 0);
	/* Where no store was, what is torn is the new one's alone. */
	assert_int_equal(outcomes[OUTCOME_TORN], 0);
}

/*
 * One copy of the old store was damaged already: then the drives are that store, the new one, or
 * refused; nothing else.
 */
static void test_power_cut_over_a_damaged_store(void **state)
{
	struct spw_store_info old = {.size = sizeof(old)};
	unsigned outcomes[OUTCOMES];

	(void)state;
	for (unsigned copy = 0; copy < 2; copy++) {
		expect(0, format_drives(DRIVES, true, &old));
		damage_copy(drives[1], copy);
		cut_everywhere(old.store_uuid, outcomes);
		assert_true(outcomes[OUTCOME_OLD] > 0 && outcomes[OUTCOME_NEW] > 0 &&
			    outcomes[OUTCOME_UNFINISHED] > 0);
		assert_int_equal(outcomes[OUTCOME_NOTHING], 0);
	}
}

/*
 * Every write and every flush fails once: format says which drive, and what is left is one of the
 * same outcomes.
 */
static void test_every_transfer_fails_once(void **state)
{
	struct recorder *recorder = calloc(1, sizeof(*recorder));
	struct spw_store_info old = {.size = sizeof(old)}, now = {.size = sizeof(now)};
	unsigned failures = 0;

	(void)state;
	assert_non_null(recorder);
	for (unsigned fail_at = 1;; fail_at++) {
		int rc;

		expect(0, format_drives(DRIVES, true, &old));
		recorder->fail_at = fail_at;
		rc = record_format(recorder);
		forget(recorder);
		if (rc == 0)
			break;
		expect(-EIO, rc);
		expect_words(folder);
		failures++;
		rc = spw_check(drives, DRIVES, &now, NULL);
		if (rc == 0)
			continue; /* the old store, or the last copies of the new one failed */
		expect(-EUCLEAN, rc);
		expect_words("format did not finish");
		expect(-EEXIST, format_drives(DRIVES, false, NULL));
	}
	assert_true(failures > 20);
	free(recorder);
}

int main(void)
{
#define CASE(test) cmocka_unit_test_setup_teardown(test, make_drives, remove_drives)
	const struct CMUnitTest tests[] = {
		CASE(test_power_cut_over_a_store),
		CASE(test_power_cut_over_nothing),
		CASE(test_power_cut_over_a_damaged_store),
		CASE(test_every_transfer_fails_once),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
