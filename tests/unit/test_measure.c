/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_measure.c - what the ends of transfers say of the drives, and how far it is
 * believed
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tensor/control/measure.h"
#include "util/util.h"

#define TAIL_NS       200000u /* from the last byte to the end */
#define TRANSFER      (UINT64_C(1) << 20)
#define STEP_PAUSE_NS 100000000u

static uint64_t now_ns;

/*
 * Writes of a step on a drive of @rate bytes per nanosecond: so many bursts, each of so many
 * transfers at once. The drive serves one after the other; a transfer ends TAIL_NS after its last
 * byte. In the second half of its bursts the next transfer comes when the one before has been
 * served, but has not ended.
 */
static void step(struct measure *measure, double rate, unsigned bursts, unsigned transfers)
{
	for (unsigned burst = 0; burst < bursts; burst++) {
		bool late = burst >= bursts / 2;
		uint64_t began_ns[16], served_ns = now_ns,
				       service_ns = (uint64_t)((double)TRANSFER / rate);

		assert_true(transfers <= SPW_ARRAY_LEN(began_ns));
		for (unsigned i = 0; i < transfers && (i == 0 || !late); i++) {
			began_ns[i] = now_ns;
			spw_measure_began(measure, DIRECTION_WRITE, TRANSFER, now_ns);
		}
		for (unsigned i = 0; i < transfers; i++) {
			served_ns += service_ns;
			if (late && i + 1 < transfers) {
				served_ns += TAIL_NS / 2;
				began_ns[i + 1] = served_ns;
				spw_measure_began(measure, DIRECTION_WRITE, TRANSFER, served_ns);
				spw_measure_ended(measure, DIRECTION_WRITE, TRANSFER, true,
						  began_ns[i], served_ns + TAIL_NS / 2);
			} else {
				spw_measure_ended(measure, DIRECTION_WRITE, TRANSFER, true,
						  began_ns[i], served_ns + TAIL_NS);
			}
		}
		now_ns = served_ns + TAIL_NS + STEP_PAUSE_NS;
	}
	spw_measure_step(measure);
}

static bool measured(const struct measure *measure, double rate)
{
	double ratio = (double)measure->drives.write_bytes_per_second / (rate * 1e9);

	return ratio > 0.99 && ratio < 1.01;
}

static void steps(struct measure *measure, double rate, unsigned count)
{
	while (count-- > 0)
		step(measure, rate, 8, 8);
}

/*
 * Drives that have done with one transfer's bytes, but wait for its end, are idle until the next
 * comes.
 */
static void test_idle_within_a_flow_counts_for_nothing(void **state)
{
	static const double rates[] = {0.25, 1, 8};

	(void)state;
	for (unsigned i = 0; i < SPW_ARRAY_LEN(rates); i++) {
		struct measure measure = {0};

		steps(&measure, rates[i], 3);
		assert_true(measured(&measure, rates[i]));
		assert_in_range(measure.drives.latency_ns, TAIL_NS * 7 / 8, TAIL_NS * 9 / 8);
	}
}

static void test_a_burst_is_not_believed_at_once(void **state)
{
	struct measure measure = {0};

	(void)state;
	steps(&measure, 1, 3);
	for (unsigned i = 0; i < 5; i++) {
		steps(&measure, 6, 1);
		assert_true(measured(&measure, 1));
		steps(&measure, 1, 1);
	}
	steps(&measure, 6, 1);
	assert_true(measured(&measure, 1));
	steps(&measure, 1.5, 1);
	assert_true(measured(&measure, 1.5)); /* two steps in a row: the lower of both */
	steps(&measure, 30, 2);
	assert_true(measured(&measure, 3)); /* but at most twice as high */
	steps(&measure, 30, 2);
	assert_true(measured(&measure, 6));
	steps(&measure, 1, 1);
	assert_true(measured(&measure, 1)); /* lower is believed at once */
}

/*
 * Each time that it was too much, it takes twice as long; when it has held, it does not any more.
 */
static void test_bursts_are_believed_less_and_less(void **state)
{
	struct measure measure = {0};
	unsigned needed = 2;

	(void)state;
	steps(&measure, 1, 3);
	for (unsigned i = 0; i < 4; i++) {
		steps(&measure, 1.8, needed - 1);
		assert_true(measured(&measure, 1));
		steps(&measure, 1.8, 1);
		assert_true(measured(&measure, 1.8));
		steps(&measure, 1, 1);
		assert_true(measured(&measure, 1));
		needed *= 2;
	}
	steps(&measure, 1.8, needed);
	assert_true(measured(&measure, 1.8));
	steps(&measure, 1.8, 5 * needed);
	steps(&measure, 1, 1);
	steps(&measure, 1.8, 1);
	assert_true(measured(&measure, 1));
	steps(&measure, 1.8, 1);
	assert_true(measured(&measure, 1.8));
}

/* Changes that are noise are followed, half of the way. */
static void test_noise_is_smoothed(void **state)
{
	struct measure measure = {0};

	(void)state;
	steps(&measure, 1, 3);
	steps(&measure, 1.1, 1);
	assert_true(measured(&measure, 1.05));
	steps(&measure, 1.1, 12);
	assert_true(measured(&measure, 1.1));
}

/* The first plan counts on the first step's figure, not on half of it; later ones are smoothed. */
static void test_the_first_latency_is_taken_as_it_is(void **state)
{
	struct measure measure = {0};

	(void)state;
	steps(&measure, 1, 1);
	assert_in_range(measure.drives.latency_ns, TAIL_NS * 7 / 8, TAIL_NS * 9 / 8);
	measure.drives.latency_ns = 3 * TAIL_NS;
	steps(&measure, 1, 1);
	assert_in_range(measure.drives.latency_ns, TAIL_NS * 15 / 8, TAIL_NS * 17 / 8);
}

static void step_with_a_hang(struct measure *measure, uint64_t ns)
{
	spw_measure_began(measure, DIRECTION_WRITE, TRANSFER, now_ns);
	spw_measure_ended(measure, DIRECTION_WRITE, TRANSFER, true, now_ns, now_ns + ns);
	now_ns += ns + STEP_PAUSE_NS;
	steps(measure, 1, 1);
}

/*
 * One transfer that takes seconds is an accident, unless the next step has one too; and what is
 * over is over.
 */
static void test_a_hang_is_not_believed_at_once(void **state)
{
	const uint64_t hang_ns = UINT64_C(10000000000);
	struct measure measure = {0};

	(void)state;
	steps(&measure, 1, 3);
	for (unsigned i = 0; i < 5; i++) {
		step_with_a_hang(&measure, hang_ns);
		assert_in_range(measure.drives.latency_ns, TAIL_NS * 7 / 8, TAIL_NS * 9 / 8);
		steps(&measure, 1, 1);
		assert_in_range(measure.drives.latency_ns, TAIL_NS * 7 / 8, TAIL_NS * 9 / 8);
	}
	step_with_a_hang(&measure, hang_ns);
	step_with_a_hang(&measure, hang_ns);
	assert_true(measure.drives.latency_ns > hang_ns / 20);
	steps(&measure, 1, 1);
	assert_true(measure.drives.latency_ns < 2 * (TAIL_NS + TRANSFER));
	steps(&measure, 1, 5);
	assert_in_range(measure.drives.latency_ns, TAIL_NS * 7 / 8, 2 * TAIL_NS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_idle_within_a_flow_counts_for_nothing),
		cmocka_unit_test(test_a_burst_is_not_believed_at_once),
		cmocka_unit_test(test_bursts_are_believed_less_and_less),
		cmocka_unit_test(test_noise_is_smoothed),
		cmocka_unit_test(test_the_first_latency_is_taken_as_it_is),
		cmocka_unit_test(test_a_hang_is_not_believed_at_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
