/* SPDX-License-Identifier: MIT */
/* tests/unit/test_tool_replay_drive.c - spillway replay: the record of transfers */
/* link: simstore tools/ui/stop libspillway */

#include "tests/case.h"

#include "tools/replay/drive.c"

static unsigned calls;

/* Who stops watching takes this lock, after all who are in here; then it may free. */
static void ended(void *context)
{
	assert_ptr_equal(context, &calls);
	assert_int_equal(pthread_mutex_trylock(&record.lock), EBUSY);
	calls++;
}

CASE(nobody_is_in_the_callback_afterwards)
{
	const struct replay_transfer transfer = {.begin_ns = 1, .end_ns = 2, .bytes = 3};
	size_t count;

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

RUN_CASES(NULL, NULL)
