/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_tool_top.c - spillway top: an interrupt at any time ends it, and rates of a store
 * that was opened again
 */
/* link: util tools/ui/options tools/ui/nearest tools/ui/output tools/ui/stop */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>

#include "tools/cmd_top.c"

/* ---- What is open ---- */

/* that many lists were taken; at this one somebody presses Ctrl-C */
static unsigned lists, interrupt_at;

int spw_status_list(struct spw_status_name names[], unsigned count)
{
	(void)names;
	(void)count;
	if (++lists == interrupt_at)
		assert_int_equal(raise(SIGINT), 0);
	return 0;
}

int spw_status_read(const char *uuid, uint32_t partition, struct spw_status *status, size_t size)
{
	(void)uuid, (void)partition, (void)status, (void)size;
	return -ENOENT;
}

/* ---- Cases ---- */

static void an_interrupt_while_it_looks_is_not_lost(void **state)
{
	char *arguments[] = {"top", "--interval", "3600", NULL};

	(void)state;
	lists = 0;
	interrupt_at = 1;
	/* Ends this program when it would sleep for an hour. */
	(void)alarm(60);
	assert_int_equal(command_top.run(&command_top, 3, arguments), TOOL_DONE);
	(void)alarm(0);
	assert_int_equal(lists, 1);
}

static void a_store_opened_again_begins_anew(void **state)
{
	static struct spw_status before, now;
	struct snapshot snapshot = {.count = 1, .partitions = &before};

	(void)state;
	before = (struct spw_status){.pid = 7, .store_uuid = "u", .drives = 2};
	before.drive[1].bytes_written = 1000;
	now = before;
	now.drive[1].bytes_written = 3000;
	assert_ptr_equal(find(&snapshot, &now), &before);
	assert_true(drive_rates(find(&snapshot, &now), &now, 1, 2).write_bytes == 1000);
	now.drive[1].bytes_written = 600;
	assert_null(find(&snapshot, &now));
	assert_true(drive_rates(find(&snapshot, &now), &now, 1, 2).write_bytes == 300);
	now = before;
	now.drives = 1;
	assert_null(find(&snapshot, &now));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_interrupt_while_it_looks_is_not_lost),
		cmocka_unit_test(a_store_opened_again_begins_anew),
	};

	return cmocka_run_group_tests_name("top", tests, NULL, NULL);
}
