/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_examine.c - the drives of a store are examined at the same time; faults are told
 * as if it were one after the other
 */
/* wrap: spw_contents_read pthread_create */
#include <pthread.h>
#include <time.h>

#include "tests/unit/format_drives.h"

#define PATIENCE_S 20

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t came = PTHREAD_COND_INITIALIZER;
/* so many are to be examined at the same time; 0: nobody waits for anybody */
static unsigned wanted;
static unsigned inside, most; /* at this moment; at any */
static bool given_up;
static unsigned threads_allowed;
static int faults[DRIVES]; /* what reading a drive fails with */
static bool signals_open;  /* in a thread that is not the test's */
static pthread_t tester;

int __real_spw_contents_read(const struct spw_device *device, struct spw_contents *contents);
int __wrap_spw_contents_read(const struct spw_device *device, struct spw_contents *contents);
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *),
			  void *context);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *),
			  void *context);

/* Nobody goes on before all have come. */
static void meet(void)
{
	struct timespec deadline;
	sigset_t blocked;

	(void)clock_gettime(CLOCK_REALTIME, &deadline);
	deadline.tv_sec += PATIENCE_S;
	(void)pthread_mutex_lock(&mutex);
	(void)pthread_sigmask(SIG_SETMASK, NULL, &blocked);
	if (!pthread_equal(pthread_self(), tester) && sigismember(&blocked, SIGINT) != 1)
		signals_open = true;
	inside++;
	if (inside > most)
		most = inside;
	(void)pthread_cond_broadcast(&came);
	while (most < wanted && !given_up)
		given_up = pthread_cond_timedwait(&came, &mutex, &deadline) != 0;
	inside--;
	(void)pthread_mutex_unlock(&mutex);
}

int __wrap_spw_contents_read(const struct spw_device *device, struct spw_contents *contents)
{
	meet();
	for (unsigned i = 0; i < DRIVES; i++)
		if (faults[i] && strcmp(spw_device_path(device), drives[i]) == 0)
			return spw_error(faults[i], "%s: fault %u", drives[i], i);
	return __real_spw_contents_read(device, contents);
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *),
			  void *context)
{
	if (threads_allowed == 0)
		return EAGAIN;
	threads_allowed--;
	return __real_pthread_create(thread, attr, start, context);
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
	wanted = inside = most = 0;
	threads_allowed = 64;
	given_up = signals_open = false;
	heard[0] = '\0';
	memset(faults, 0, sizeof(faults));
	tester = pthread_self();
	return make_drives(state);
}

static int assemble(void)
{
	struct spw_log log = {.write = hear};
	struct spw_assembly assembly;
	int rc = spw_assemble(drives, DRIVES, false, &log, &assembly);

	spw_assembly_close(&assembly);
	return rc;
}

static void test_at_the_same_time(void **state)
{
	struct spw_store_info info = {.size = sizeof(info)};
	struct spw_format_opts opts = options(false);

	(void)state;
	wanted = DRIVES;
	expect(0, spw_format(drives, DRIVES, &opts, NULL));
	assert_int_equal(most, DRIVES);
	most = 0;
	expect(0, spw_check(drives, DRIVES, &info, NULL));
	assert_int_equal(most, DRIVES);
	most = 0;
	expect(0, assemble());
	assert_int_equal(most, DRIVES);
	most = 0;
	expect(0, spw_wipe(drives, DRIVES, NULL));
	assert_int_equal(most, DRIVES);
	assert_false(given_up);
	assert_false(signals_open);
	assert_string_equal(heard, "");
}

/*
 * The first in the order in which they were named, with its own words, whichever thread came across
 * it.
 */
static void test_faults_in_order(void **state)
{
	struct spw_drive_info info[DRIVES] = {{.size = sizeof(info[0])}};
	uint64_t before;

	(void)state;
	expect(0, format_drives(DRIVES, false, NULL));
	wanted = DRIVES;
	most = 0;
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
static void test_without_threads(void **state)
{
	(void)state;
	expect(0, format_drives(DRIVES, false, NULL));
	for (unsigned i = 0; i < 2; i++) {
		threads_allowed = i;
		most = 0;
		expect(0, assemble());
		assert_in_range(most, 1, i + 1);
		if (!strstr(heard, i == 0 ? "3 drives are examined by 1 thread:"
					  : "3 drives are examined by 2 threads:"))
			fail_msg("heard \"%s\"", heard);
	}
	faults[1] = -EIO;
	threads_allowed = 0;
	expect(-EIO, assemble());
	expect_words("drive1: fault 1");
}

int main(void)
{
#define CASE(test) cmocka_unit_test_setup_teardown(test, make_all, remove_drives)
	const struct CMUnitTest tests[] = {
		CASE(test_at_the_same_time),
		CASE(test_faults_in_order),
		CASE(test_without_threads),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
