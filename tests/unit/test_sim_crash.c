/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_sim_crash.c - power cuts at every transfer of format, open and wipe, over
 * simulated drives with volatile caches: what is found afterwards is the old store, the new one, or
 * a refusal that says why; and a format makes it whole again
 *
 * Not only the writes: also a cut while something is read. What the drives' caches lose is drawn,
 * by units of 512 bytes, of 4096, or of whole writes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "layout/layout.h"
#include "tests/sim/sim.h"

#define DRIVES 2

/* Enough that every outcome that a point has is likely to be met; all of it takes a second. */
#define ROUNDS 3

static const char *const paths[DRIVES] = {"sim1", "sim0"};
static const uint32_t units[] = {512, 4096, 0};
static uint64_t seed;

enum outcome { OLD, NEW, REFUSED, OUTCOMES };

void sim_fail(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	(void)vprintf(format, args);
	va_end(args);
	(void)printf("\n");
	abort();
}

static void make_drives(uint32_t unit)
{
	sim_drive_count = DRIVES;
	sim_now_ns = 1000000000;
	sim_events = sim_cut_at = 0;
	for (unsigned i = 0; i < DRIVES; i++) {
		sim_drive_make(i, SPW_DRIVE_BYTES_MIN + i * 12288, 512, sim_random(&seed));
		sim_drives[i].cache_is_volatile = true;
		sim_drives[i].atomic_bytes = unit;
		/*
		 * Drawn, one run would have fewer events than the next, and the last points might
		 * never come.
		 */
		sim_drives[i].geometry.discards = true;
	}
}

static int format(struct spw_store_info *info)
{
	struct spw_format_opts opts;

	spw_format_opts_init(&opts, sizeof(opts));
	opts.force = true;
	opts.erase = true; /* of a copy that was torn, what is left may lack the magic */
	info->size = sizeof(*info);
	return spw_format(paths, DRIVES, &opts, info);
}

static int open_store(struct spw_store **store)
{
	struct spw_store_opts opts;

	spw_store_opts_init(&opts, sizeof(opts));
	opts.inline_mode = true;
	opts.no_hugetlb = true;
	opts.arena_bytes = 1u << 20;
	opts.requests_max = opts.objects_max = 8;
	return spw_store_open(paths, DRIVES, &opts, store);
}

/* Bytes go in and come out. */
static void use_store(void)
{
	static uint8_t bytes[100000], back[100000];
	struct spw_request *request;
	struct spw_store *store;
	spw_object object;

	sim_fill(bytes, sizeof(bytes), seed);
	assert_int_equal(open_store(&store), 0);
	assert_int_equal(spw_store_put(store, bytes, sizeof(bytes), NULL, &object, &request), 0);
	assert_int_equal(spw_request_wait(request), 0);
	assert_int_equal(spw_store_get(store, object, 0, back, sizeof(back), SPW_URGENT_READ, NULL,
				       &request),
			 0);
	assert_int_equal(spw_request_wait(request), 0);
	assert_memory_equal(bytes, back, sizeof(bytes));
	spw_store_close(store);
}

static void power_on(void)
{
	for (unsigned i = 0; i < DRIVES; i++) {
		if (!sim_drives[i].off)
			sim_power_off(i);
		sim_power_on(i);
	}
	sim_cut_at = 0;
}

/* The same each time that it is looked at. */
static enum outcome look(const char *old_uuid)
{
	struct spw_store_info info = {.size = sizeof(info)}, again = {.size = sizeof(again)};
	int rc = spw_check(paths, DRIVES, &info, NULL);

	assert_int_equal(spw_check(paths, DRIVES, &again, NULL), rc);
	if (rc) {
		struct spw_store *store;

		if (!strstr(spw_last_error(), "sim"))
			fail_msg("refused with %d, and no drive is named: %s", rc,
				 spw_last_error());
		assert_int_not_equal(open_store(&store), 0);
		assert_non_null(strstr(spw_last_error(), "sim"));
		return REFUSED;
	}
	assert_string_equal(info.store_uuid, again.store_uuid);
	use_store();
	return old_uuid && strcmp(info.store_uuid, old_uuid) == 0 ? OLD : NEW;
}

/* What a cut in the recovery leaves is no worse: format, cut at random, and format at last. */
static void recover(void)
{
	struct spw_store_info info;

	sim_events = 0;
	sim_cut_at = 1 + sim_below(&seed, 40);
	if (format(&info)) {
		power_on();
		(void)look(NULL);
	}
	sim_cut_at = 0;
	assert_int_equal(format(&info), 0);
	assert_int_equal(look(NULL), NEW);
}

/* @old: whether there is a store already. Return: how many points there are. */
static uint64_t cut_format_at(uint64_t point, uint32_t unit, bool old, unsigned outcomes[OUTCOMES])
{
	struct spw_store_info before = {0}, info;
	enum outcome outcome;
	uint64_t events;
	int rc;

	make_drives(unit);
	if (old)
		assert_int_equal(format(&before), 0);
	sim_events = 0;
	sim_cut_at = point;
	rc = format(&info);
	events = sim_events;
	if (rc)
		assert_non_null(strstr(spw_last_error(), "sim"));
	power_on();
	outcome = look(old ? before.store_uuid : NULL);
	/* What was reported as done is done, also if the power went while it was read back. */
	assert_true(rc || outcome == NEW);
	assert_true(rc == 0 || point <= events);
	if (!old)
		assert_int_not_equal(outcome, OLD);
	outcomes[outcome]++;
	if (outcome == REFUSED && sim_below(&seed, 4) == 0)
		recover();
	return events;
}

static void cut_format(bool old)
{
	unsigned outcomes[OUTCOMES] = {0};

	for (unsigned unit = 0; unit < 3; unit++)
		for (unsigned round = 0; round < ROUNDS; round++) {
			uint64_t point = 1, events;

			do
				events = cut_format_at(point, units[unit], old, outcomes);
			while (point++ <= events);
		}
	(void)printf("old %u, new %u, refused %u\n", outcomes[OLD], outcomes[NEW],
		     outcomes[REFUSED]);
	assert_int_equal(outcomes[OLD] > 0, old);
	assert_true(outcomes[NEW] > 0 && outcomes[REFUSED] > 0);
}

static void test_cut_in_format_over_a_store(void **state)
{
	(void)state;
	cut_format(true);
}

static void test_cut_in_format_over_nothing(void **state)
{
	(void)state;
	cut_format(false);
}

/* What lies around the data: open writes nothing there, or anywhere. */
static bool reserved_is_true(const struct sim_drive *drive)
{
	return sim_range_is_true(drive, 0, SPW_LAYOUT_RESERVED_BYTES) &&
	       sim_range_is_true(drive, drive->geometry.size_bytes - SPW_LAYOUT_RESERVED_BYTES,
				 SPW_LAYOUT_RESERVED_BYTES);
}

static void test_cut_in_open(void **state)
{
	struct spw_store_info before;
	struct spw_store *store;
	uint64_t point = 1;
	bool cut;
	int rc;

	(void)state;
	make_drives(512);
	assert_int_equal(format(&before), 0);
	sim_cuts_reads = true;
	do {
		sim_events = 0;
		sim_cut_at = point;
		rc = open_store(&store);
		if (rc == 0)
			spw_store_close(store);
		else
			assert_non_null(strstr(spw_last_error(), "sim"));
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

/*
 * One read fails, of any drive: the other copy serves, or the open is refused; and the next one is
 * as if nothing had been.
 */
static void test_error_in_open(void **state)
{
	struct spw_store_info before;
	unsigned opened = 0, refused = 0;

	(void)state;
	make_drives(512);
	assert_int_equal(format(&before), 0);
	for (unsigned drive = 0; drive < DRIVES; drive++)
		for (unsigned nth = 0; nth < 12; nth++) {
			struct spw_store *store;
			int rc;

			make_drives(512);
			assert_int_equal(format(&before), 0);
			(void)sim_fault(drive, SIM_EIO, nth, 1);
			rc = open_store(&store);
			if (rc == 0) {
				opened++;
				spw_store_close(store);
			} else {
				refused++;
				assert_non_null(strstr(spw_last_error(), sim_drives[drive].path));
			}
			sim_disarm(drive);
			assert_int_equal(look(before.store_uuid), OLD);
		}
	assert_true(opened > 0);
	(void)printf("opened %u, refused %u\n", opened, refused);
}

static void test_cut_in_wipe(void **state)
{
	unsigned outcomes[OUTCOMES] = {0};
	struct spw_store_info before;
	uint64_t point = 1;
	int rc = -1;

	(void)state;
	for (unsigned unit = 0; unit < 3; unit++)
		for (point = 1, rc = -1; rc && point < 1000; point++) {
			make_drives(units[unit]);
			assert_int_equal(format(&before), 0);
			sim_events = 0;
			sim_cut_at = point;
			rc = spw_wipe(paths, DRIVES, NULL);
			assert_true(rc == 0 || sim_events >= point);
			power_on();
			outcomes[look(before.store_uuid)]++;
		}
	assert_int_equal(rc, 0);
	assert_int_equal(outcomes[NEW], 0);
	assert_true(outcomes[OLD] > 0 && outcomes[REFUSED] > 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_cut_in_format_over_a_store),
		cmocka_unit_test(test_cut_in_format_over_nothing),
		cmocka_unit_test(test_cut_in_open),
		cmocka_unit_test(test_error_in_open),
		cmocka_unit_test(test_cut_in_wipe),
	};
	const char *text = getenv("SPW_SEED");

	seed = text ? strtoull(text, NULL, 10) : 1;
	(void)printf("SPW_SEED=%llu\n", (unsigned long long)seed);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
