/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_sim_store.c - the store over simulated drives in simulated time: what takes
 * minutes, in one order that is known
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/sim/sim.h"

#define DRIVES   2
#define SECOND   UINT64_C(1000000000)
#define DEADLINE 4 /* s */
#define DEPTH    2

static struct spw_store *store;

void sim_fail(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	(void)vprintf(format, args);
	va_end(args);
	(void)printf("\n");
	abort();
}

static int open_store(void **state)
{
	const char *paths[DRIVES] = {"sim0", "sim1"};
	struct spw_format_opts format_opts;
	struct spw_store_opts opts;

	(void)state;
	sim_drive_count = DRIVES;
	for (unsigned i = 0; i < DRIVES; i++)
		sim_drive_make(i, SPW_DRIVE_BYTES_MIN, 512, 7 + i);
	spw_format_opts_init(&format_opts, sizeof(format_opts));
	format_opts.chunk_bytes = SPW_CHUNK_BYTES_MIN;
	spw_store_opts_init(&opts, sizeof(opts));
	opts.inline_mode = true;
	opts.no_hugetlb = true;
	opts.arena_bytes = 4u << 20;
	opts.queue_depth = DEPTH;
	opts.read_deadline_ms = opts.write_deadline_ms = DEADLINE * 1000;
	return spw_format(paths, DRIVES, &format_opts, NULL) ||
	       spw_store_open(paths, DRIVES, &opts, &store);
}

static int close_store(void **state)
{
	(void)state;
	spw_store_close(store);
	return 0;
}

static struct spw_store_stats stats(void)
{
	struct spw_store_stats now;

	spw_store_stats(store, &now, sizeof(now));
	return now;
}

/*
 * Flushes take the queue's slots, and writes wait in it that no drive has seen yet; then nobody
 * polls for longer than the deadline. As when a process is stopped and goes on.
 */
static void test_absence_is_not_the_drives_fault(void **state)
{
	static uint8_t bytes[16 * SPW_CHUNK_BYTES_MIN];
	struct spw_request *flush, *put;
	spw_object object;

	(void)state;
	assert_int_equal(spw_store_flush(store, NULL, &flush), 0);
	assert_int_equal(spw_store_put(store, bytes, sizeof(bytes), NULL, &object, &put), 0);
	assert_true(spw_store_poll(store, false) >= 0);
	for (unsigned i = 0; i < 3; i++) {
		sim_now_ns += 10 * DEADLINE * SECOND;
		assert_true(spw_store_poll(store, false) >= 0);
	}
	assert_int_equal(spw_request_wait(flush), 0);
	assert_int_equal(spw_request_wait(put), 0);
	assert_int_equal(stats().timeouts, 0);
	assert_int_equal(stats().drives_retired, 0);
}

/*
 * A drive that hangs is noticed all the same: in time by whoever waits, and later by whoever looks
 * seldom.
 */
static void test_hang_is_noticed(void **state)
{
	static uint8_t bytes[SPW_CHUNK_BYTES_MIN];
	bool seldom = *state != NULL;
	struct spw_request *put;
	spw_object object;
	uint64_t began_ns = sim_now_ns, looks = 0;

	sim_drives[0].cancels = sim_drives[1].cancels = false;
	(void)sim_fault(0, SIM_HANG, 0, 1);
	(void)sim_fault(1, SIM_HANG, 0, 1);
	assert_int_equal(spw_store_put(store, bytes, sizeof(bytes), NULL, &object, &put), 0);
	for (; seldom && stats().timeouts == 0 && looks < 100; looks++) {
		for (unsigned i = 0; i < DRIVES; i++)
			for (struct sim_io *io = sim_drives[i].active_first; io; io = io->next)
				io->finish_ns = UINT64_MAX / 2; /* so that it hangs on */
		sim_now_ns += 30 * SECOND;
		assert_true(spw_store_poll(store, false) >= 0);
	}
	if (seldom) {
		assert_int_equal(stats().timeouts, 1);
		assert_in_range(looks, 2, 99);
	} else {
		/* The second drive hangs with what the first did not take. */
		assert_int_equal(spw_request_wait(put), -EIO);
		assert_int_equal(stats().timeouts, 2);
		assert_in_range(sim_now_ns - began_ns, 2 * DEADLINE * SECOND,
				4 * DEADLINE * SECOND);
		return;
	}
	for (unsigned i = 0; i < DRIVES; i++)
		for (struct sim_io *io = sim_drives[i].active_first; io; io = io->next)
			io->finish_ns = sim_now_ns;
	(void)spw_request_wait(put);
}

int main(void)
{
	static bool seldom = true;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_absence_is_not_the_drives_fault, open_store,
						close_store),
		cmocka_unit_test_setup_teardown(test_hang_is_noticed, open_store, close_store),
		{"test_hang_is_noticed_by_who_looks_seldom", test_hang_is_noticed, open_store,
		 close_store, &seldom},
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
