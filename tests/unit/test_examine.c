/* SPDX-License-Identifier: MIT */
/* tests/unit/test_examine.c - drives are examined in parallel, faults reported in order */
/* wrap: spw_drives__contents_read pthread_create */
#include "tests/unit/format_drives.h"
#include "tests/unit/meet.h"
#include "tests/wrap.h"

static int faults[DRIVES]; /* what reading a drive fails with */
static bool signals_open;  /* in a thread that is not the test's */
static pthread_t tester;

WRAP(int, spw_drives__contents_read,
     (const struct spw_device *device, struct spw_contents *contents))
{
	sigset_t blocked;

	(void)pthread_sigmask(SIG_SETMASK, NULL, &blocked);
	if (!pthread_equal(pthread_self(), tester) && sigismember(&blocked, SIGINT) != 1)
		signals_open = true;
	meet();
	for (unsigned i = 0; i < DRIVES; i++)
		if (faults[i] && strcmp(spw_device_path(device), drives[i]) == 0)
			return spw_error(faults[i], "%s: fault %u", drives[i], i);
	return __real_spw_drives__contents_read(device, contents);
}

static char heard[512];

static void hear(void *context, enum spw_log_level level, const char *message)
{
	(void)context, (void)level;
	if (strstr(message, "examined by"))
		(void)snprintf(heard, sizeof(heard), "%s", message);
}

static int make_all(void **state)
{
	begin_meeting(1);
	signals_open = false;
	heard[0] = '\0';
	memset(faults, 0, sizeof(faults));
	tester = pthread_self();
	return make_drives(state);
}

static int assemble(void)
{
	struct spw_log log = {.write = hear};
	struct spw_assembly assembly;
	int rc = assemble_all(drives, DRIVES, &log, &assembly);

	spw_drives__assembly_close(&assembly);
	return rc;
}

#define DRIVE_CASE(name) CASE_WITH(name, make_all, remove_drives)

DRIVE_CASE(test_at_the_same_time)
{
	struct spw_store_info info = {.size = sizeof(info)};
	struct spw_format_opts opts = options(false);

	begin_meeting(DRIVES);
	expect(0, spw_format(drives, DRIVES, &opts, NULL));
	assert_int_equal(meeting.most, DRIVES);
	meeting.most = 0;
	expect(0, spw_check(drives, DRIVES, &info, NULL));
	assert_int_equal(meeting.most, DRIVES);
	meeting.most = 0;
	expect(0, assemble());
	assert_int_equal(meeting.most, DRIVES);
	meeting.most = 0;
	expect(0, spw_wipe(drives, DRIVES, NULL));
	assert_int_equal(meeting.most, DRIVES);
	assert_int_equal(meeting.alone, 0);
	assert_false(signals_open);
	assert_string_equal(heard, "");
}

/*
 * The first in the order in which they were named, with its own words, whichever thread came across
 * it.
 */
DRIVE_CASE(test_faults_in_order)
{
	struct spw_drive_info info[DRIVES] = {{.size = sizeof(info[0])}};
	uint64_t before;

	expect(0, format_drives(DRIVES, false, NULL));
	begin_meeting(DRIVES);
	faults[1] = -EIO;
	faults[2] = -ENODEV;
	expect(-EIO, assemble());
	expect_words("drive1: fault 1");
	faults[1] = 0;
	expect(-ENODEV, assemble());
	expect_words("drive2: fault 2");
	/* The others are known nevertheless. */
	expect(-ENODEV, spw_check(drives, DRIVES, NULL, info));
	assert_int_equal(info[0].copies_good, 2);
	assert_int_equal(info[1].copies_good, 2);
	assert_int_equal(info[2].copies_good, 0);
	/* A fault of another kind on a drive before it goes first. */
	damage_copy(drives[0], 0);
	damage_copy(drives[0], 1);
	expect(-EUCLEAN, assemble());
	expect_words("drive0: both superblock copies are damaged");
	before = hash_all();
	expect(-ENODEV, format_drives(DRIVES, true, NULL));
	expect_words("drive2: fault 2");
	assert_int_equal(hash_all(), before);
}

/* Fewer threads or none: it takes longer, and is logged. */
DRIVE_CASE(test_without_threads)
{
	expect(0, format_drives(DRIVES, false, NULL));
	for (unsigned i = 0; i < 2; i++) {
		begin_meeting(1);
		meeting.threads_left = i;
		expect(0, assemble());
		assert_in_range(meeting.most, 1, i + 1);
		if (!strstr(heard, i == 0 ? "3 drives are examined by 1 thread:"
					  : "3 drives are examined by 2 threads:"))
			fail_msg("heard \"%s\"", heard);
	}
	faults[1] = -EIO;
	meeting.threads_left = 0;
	expect(-EIO, assemble());
	expect_words("drive1: fault 1");
}

RUN_CASES(make_folder, remove_folder)
