/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_tool_replay_drive.c - spillway replay: the record of transfers, and who looks at
 * it
 */
/* link: tools/replay/simstore tools/ui/stop libspillway */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tools/replay/drive.c"

static unsigned calls;

/*
 * Who stops watching takes this lock: so he comes after all who are in here, and may free what they
 * look at.
 */
static void ended(void *context)
{
	assert_ptr_equal(context, &calls);
	assert_int_equal(pthread_mutex_trylock(&record.lock), EBUSY);
	calls++;
}

static void nobody_is_in_the_callback_afterwards(void **state)
{
	const struct replay_transfer transfer = {.begin_ns = 1, .end_ns = 2, .bytes = 3};
	size_t count;

	(void)state;
	record_transfer(&transfer);
	replay_drive_watch(true, ended, &calls);
	record_transfer(&transfer);
	record_transfer(&transfer);
	replay_drive_watch(false, NULL, NULL);
	record_transfer(&transfer);
	assert_int_equal(calls, 2);
	assert_int_equal(replay_drive_transfers(&count)[1].bytes, 3);
	assert_int_equal(count, 2);
	replay_drive_watch(true, NULL, NULL);
	record_transfer(&transfer);
	(void)replay_drive_transfers(&count);
	assert_int_equal(count, 3);
	replay_drive_watch(false, NULL, NULL);
	replay_drive_forget();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nobody_is_in_the_callback_afterwards),
	};

	return cmocka_run_group_tests_name("replay_drive", tests, NULL, NULL);
}
