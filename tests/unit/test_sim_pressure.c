/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_sim_pressure.c - what a store says of its pressure, on drives whose speed is
 * known and in time that is simulated: what it foretells is held against what comes
 */
#include "tests/unit/sim_rig.h"

#define LEN (2u << 20)

static struct spw_store_pressure pressure(uint64_t len)
{
	struct spw_store_pressure now;

	spw_store_pressure(store, len, &now, sizeof(now));
	return now;
}

/* Put and get until both directions were measured; the one object that is left. */
static spw_object measure_drives(uint8_t *bytes)
{
	spw_object object;

	assert_int_equal(pressure(1).put_ns, SPW_PRESSURE_UNKNOWN);
	assert_int_equal(pressure(1).get_ns[SPW_URGENT_READ], SPW_PRESSURE_UNKNOWN);
	assert_int_equal(pressure(0).put_ns, 0);
	for (;;) {
		struct spw_store_pressure now;

		assert_ok(put_wait(bytes, LEN, &object));
		assert_ok(get_wait(object, 0, bytes, LEN));
		now = pressure(1);
		if (now.put_bytes_per_second > 0 && now.get_bytes_per_second > 0)
			return object;
		assert_ok(spw_store_free(store, object));
	}
}

static void expect_near(uint64_t value, uint64_t foretold)
{
	if (value < foretold / 2 || value > foretold * 3 / 2)
		fail_msg("%llu was foretold, and it was %llu", (unsigned long long)foretold,
			 (unsigned long long)value);
}

/* Gets of each class, and puts behind them: counted where they belong, and in their order. */
DRIVES_CASE(test_what_waits_is_counted_by_class)
{
	uint8_t *bytes = pattern(LEN, 5), *into = memory(LEN);
	struct spw_request *gets[SPW_CLASSES], *put;
	struct spw_store_pressure now;
	spw_object object, another;

	open_store(4);
	object = measure_drives(bytes);
	for (unsigned cls = 0; cls < SPW_CLASSES; cls++)
		assert_ok(spw_store_get(store, object, 0, into, LEN - cls * 4096,
					(enum spw_class)cls, NULL, &gets[cls]));
	assert_ok(spw_store_put(store, bytes, LEN, NULL, &another, &put));
	now = pressure(0);
	assert_int_equal(now.put_bytes, LEN);
	for (unsigned cls = 0; cls < SPW_CLASSES; cls++)
		assert_int_equal(now.get_bytes[cls], LEN - cls * 4096);
	assert_true(now.get_ns[0] > 0 && now.get_ns[1] > now.get_ns[0] &&
		    now.get_ns[2] > now.get_ns[1] && now.put_ns > now.get_ns[2]);
	poll_once();
	assert_in_range(pressure(0).in_flight, 1, pressure(0).depth);
	assert_int_equal(pressure(0).depth, DRIVES * (4 + 1)); /* one of urgent reads alone */
	/* One that is raised is counted once still. */
	spw_request_raise(gets[2], SPW_URGENT_READ);
	for (unsigned cls = 0; cls < SPW_CLASSES; cls++)
		assert_ok(spw_request_wait(gets[cls]));
	assert_ok(spw_request_wait(put));
	now = pressure(0);
	assert_int_equal(now.put_bytes + now.get_bytes[0] + now.get_bytes[1] + now.get_bytes[2], 0);
	assert_int_equal(now.put_ns, 0);
	assert_int_equal(now.in_flight, 0);
}

/* Behind four puts: a fifth ends about when it was foretold. */
DRIVES_CASE(test_a_put_ends_when_it_was_foretold)
{
	enum { PUTS = 5 };
	uint8_t *bytes = pattern(LEN, 6);
	struct spw_request *puts[PUTS];
	spw_object objects[PUTS];
	uint64_t foretold_ns, begun_ns;

	open_store(4);
	(void)measure_drives(bytes);
	for (unsigned i = 0; i + 1 < PUTS; i++)
		assert_ok(spw_store_put(store, bytes, LEN, NULL, &objects[i], &puts[i]));
	foretold_ns = pressure(LEN).put_ns;
	begun_ns = sim_now_ns;
	assert_ok(spw_store_put(store, bytes, LEN, NULL, &objects[PUTS - 1], &puts[PUTS - 1]));
	assert_int_equal(pressure(0).put_ns, foretold_ns);
	for (unsigned i = 0; i < PUTS; i++)
		assert_ok(spw_request_wait(puts[i]));
	expect_near(sim_now_ns - begun_ns, foretold_ns);
}

/* What is cancelled or fails is under way no more, and a drive that takes no writes counts none. */
DRIVES_CASE(test_what_fails_is_counted_no_more)
{
	uint8_t *bytes = pattern(LEN, 7);
	struct spw_request *puts[2];
	spw_object objects[2];
	uint64_t before;

	open_store(4);
	(void)measure_drives(bytes);
	before = pressure(0).put_bytes_per_second;
	for (unsigned i = 0; i < 2; i++)
		assert_ok(spw_store_put(store, bytes, LEN, NULL, &objects[i], &puts[i]));
	assert_int_equal(pressure(0).put_bytes, 2 * LEN);
	assert_ok(spw_request_cancel(puts[1]));
	fail_nth(0, SPW_WRITE, 1, -EIO);
	assert_ok(spw_request_wait(puts[0]));
	assert_int_equal(spw_request_wait(puts[1]), -ECANCELED);
	assert_int_equal(pressure(0).put_bytes, 0);
	assert_true(is_retired(0) || is_retired(1) || is_retired(2));
	assert_true(pressure(0).put_bytes_per_second < before);
	fail_all_writes(-EIO);
	assert_int_equal(put_wait(bytes, LEN, &objects[0]), -EIO);
	assert_int_equal(pressure(0).put_bytes, 0);
	mend_all();
}

RUN_CASES(NULL, NULL)
