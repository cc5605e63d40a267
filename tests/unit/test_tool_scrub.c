/* SPDX-License-Identifier: MIT */
/* tests/unit/test_tool_scrub.c - check --scrub, interrupted between partitions or within one */
/* link: util tools/scrub tools/ui/output tools/ui/options tools/ui/nearest tools/ui/stop */

#include "tests/case.h"

#include <errno.h>
#include <signal.h>

#include <spillway/store.h>

#include "tools/scrub.h"
#include "util/util.h"

/* ---- A store of which nothing is bad ---- */

static unsigned scrubs, interrupt_at; /* of the scrubs, from 1 on */
static bool after_it;                 /* when all has been read, not meanwhile */

void spw_store_opts_init(struct spw_store_opts *opts, size_t size)
{
	memset(opts, 0, size);
}

int spw_store_open(const char *const paths[], unsigned count, const struct spw_store_opts *opts,
		   struct spw_store **store)
{
	(void)paths, (void)count, (void)opts;
	*store = NULL;
	return 0;
}

int spw_store_committed(struct spw_store *store, struct spw_commit_info *info, size_t size)
{
	(void)store, (void)info, (void)size;
	return 0;
}

int spw_store_scrub(struct spw_store *store,
		    bool (*go_on)(void *context, uint64_t done_bytes, uint64_t all_bytes),
		    void *context, struct spw_scrub *found, size_t size)
{
	bool gone_on;

	(void)store;
	memset(found, 0, size);
	if (++scrubs == interrupt_at && !after_it)
		assert_int_equal(raise(SIGINT), 0);
	gone_on = go_on(context, 1, 2);
	if (scrubs == interrupt_at && after_it)
		assert_int_equal(raise(SIGINT), 0);
	return gone_on ? 0 : spw_error(-ECANCELED, "interrupted: not all was read");
}

/* Nothing has one copy alone. */
int spw_committed(const char *const paths[], unsigned count, uint32_t partition,
		  struct spw_commit_info *info, size_t size)
{
	(void)paths, (void)count, (void)partition, (void)info, (void)size;
	return -ENODATA;
}

int spw_store_resilver(struct spw_store *store,
		       bool (*go_on)(void *context, uint64_t done_bytes, uint64_t all_bytes),
		       void *context)
{
	(void)store, (void)go_on, (void)context;
	return -ENODATA;
}

void spw_store_stats(struct spw_store *store, struct spw_store_stats *stats, size_t size)
{
	(void)store;
	memset(stats, 0, size);
}

int spw_store_drive_stats(struct spw_store *store, unsigned drive, struct spw_drive_stats *stats,
			  size_t size)
{
	(void)store, (void)drive, (void)stats, (void)size;
	return -EINVAL;
}

void spw_store_close(struct spw_store *store)
{
	(void)store;
}

/* ---- Cases ---- */

static int scrub(unsigned at, bool after)
{
	static const struct tool_command command = {.name = "check"};
	const struct tool_devices none = {.count = 0};

	scrubs = 0;
	interrupt_at = at;
	after_it = after;
	return tool_scrub(&command, &none, 3, false);
}

CASE(all_partitions_are_read)
{
	assert_int_equal(scrub(0, false), TOOL_DONE);
	assert_int_equal(scrubs, 3);
}

/* It once was "good" if the last one that was begun had been read. */
CASE(an_interrupt_leaves_partitions_that_nobody_has_read)
{
	assert_int_equal(scrub(2, true), TOOL_INTERRUPTED);
	assert_int_equal(scrubs, 2);
	assert_string_equal(spw_last_error(), "interrupted: not all was read");
}

CASE(an_interrupt_when_all_has_been_read_is_late)
{
	assert_int_equal(scrub(3, true), TOOL_DONE);
}

CASE(an_interrupt_within_one_ends_it)
{
	assert_int_equal(scrub(1, false), TOOL_INTERRUPTED);
	assert_int_equal(scrubs, 1);
}

RUN_CASES(NULL, NULL)
