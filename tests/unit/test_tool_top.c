/* SPDX-License-Identifier: MIT */
/* tests/unit/test_tool_top.c - spillway top: interrupts, and rates of a reopened store */
/* link: util tools/ui/options tools/ui/nearest tools/ui/output tools/ui/stop */
/* link: tools/ui/counters tools/ui/wear_output tools/ui/snapshot tools/metrics/openmetrics */

#include "tests/case.h"

#include <signal.h>

#include "tools/cmd_top.c"

/* ---- What is open ---- */

/* that many lists were taken; at this one the user presses Ctrl-C */
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

int spw_wear(const char *path, double rated, double written, double seconds, struct spw_wear *wear,
	     size_t size)
{
	(void)path, (void)rated, (void)written, (void)seconds, (void)wear, (void)size;
	return -EINVAL;
}

/* ---- Cases ---- */

CASE(a_long_path_is_shortened_in_the_middle)
{
	char buf[64];

	assert_string_equal(tool_short_path(buf, "/dev/nvme0n1", 20), "/dev/nvme0n1");
	assert_string_equal(tool_short_path(buf, "12345678901234567890", 20),
			    "12345678901234567890");
	assert_string_equal(tool_short_path(buf, "/dev/disk/by-id/nvme-MAKER_123-part1", 20),
			    "/dev/...ER_123-part1");
}

CASE(an_interrupt_while_it_looks_is_not_lost)
{
	char *arguments[] = {"top", "--interval", "3600", NULL};

	lists = 0;
	interrupt_at = 1;
	/* Ends this program when it would sleep for an hour. */
	(void)alarm(60);
	assert_int_equal(tool_run(&command_top, 3, arguments), TOOL_DONE);
	(void)alarm(0);
	assert_int_equal(lists, 1);
}

CASE(a_store_opened_again_begins_anew)
{
	static struct spw_status before, now;
	struct tool_snapshot snapshot = {.count = 1, .partitions = &before};

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

/* What @status is shown as; for free(). */
static char *shown(const struct spw_status *status)
{
	FILE *usual = stdout;
	char *text = NULL;
	size_t len;

	stdout = open_memstream(&text, &len);
	assert_non_null(stdout);
	print_partition(NULL, status, 1);
	assert_int_equal(fclose(stdout), 0);
	stdout = usual;
	return text;
}

CASE(a_store_that_lacks_drives_is_shown_as_degraded)
{
	static struct spw_status status = {
		.drives = 3, .drive = {{.path = "/dev/a"}, {.path = "/dev/b"}, {.path = "/dev/c"}}};
	char *text = shown(&status);

	assert_null(strstr(text, "DEGRADED"));
	free(text);
	status.store.drives_missing = 1;
	status.store.drives_retired = 2;
	status.drive[1].retired = status.drive[2].retired = status.drive[2].full = true;
	text = shown(&status);
	assert_non_null(strstr(text, "DEGRADED: 1 of 4 drives missing since it was opened\n"));
	assert_non_null(strstr(text, "DEGRADED: 2 of 4 drives retired: nothing new goes there\n"));
	assert_non_null(strstr(text, " in service\n/dev/b"));
	assert_non_null(strstr(text, " RETIRED\n/dev/c"));
	assert_non_null(strstr(text, " NO SPACE\n"));
	free(text);
}

RUN_CASES(NULL, NULL)
