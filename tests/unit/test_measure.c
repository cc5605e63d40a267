/* SPDX-License-Identifier: MIT */
/* tests/unit/test_measure.c - what the ends of transfers say of the drives */
#include "tests/case.h"

#include "tensor/control/measure.h"
#include "util/util.h"

#define TAIL_NS       200000u /* from the last byte to the end */
#define TRANSFER      (UINT64_C(1) << 20)
#define STEP_PAUSE_NS 100000000u
#define BURSTS        8u /* of a step */
#define TRANSFERS     8u /* of a burst */

static struct measure measure;
static uint64_t now_ns;

static int begin(void **state)
{
	(void)state;
	measure = (struct measure){0};
	return 0;
}

#define MEASURE_CASE(name) CASE_WITH(name, begin, NULL)

/*
 * Writes of a step on a drive of @rate bytes per nanosecond, in bursts of transfers at once. The
 * drive serves one after the other; a transfer ends TAIL_NS after its last byte. In the second half
 * of its bursts the next transfer comes when the one before has been served, but has not ended.
 */
static void step(double rate)
{
	for (unsigned burst = 0; burst < BURSTS; burst++) {
		uint64_t service_ns = (uint64_t)((double)TRANSFER / rate), served_ns = now_ns;
		uint64_t began_ns[TRANSFERS], ended_ns;
		bool late = burst >= BURSTS / 2;

		for (unsigned i = 0; i < TRANSFERS && (i == 0 || !late); i++) {
			began_ns[i] = now_ns;
			spw_control__measure_began(&measure, DIRECTION_WRITE, TRANSFER, now_ns);
		}
		for (unsigned i = 0; i < TRANSFERS; i++) {
			served_ns += service_ns;
			ended_ns = served_ns + TAIL_NS;
			if (late && i + 1 < TRANSFERS) {
				served_ns += TAIL_NS / 2;
				began_ns[i + 1] = served_ns;
				spw_control__measure_began(&measure, DIRECTION_WRITE, TRANSFER,
							   served_ns);
			}
			spw_control__measure_ended(&measure, DIRECTION_WRITE, TRANSFER, true,
						   began_ns[i], ended_ns);
		}
		now_ns = served_ns + TAIL_NS + STEP_PAUSE_NS;
	}
	spw_control__measure_step(&measure);
}

/* Within a hundredth. */
static void measured(double rate)
{
	double ratio = (double)measure.drives.write_bytes_per_second / (rate * 1e9);

	assert_true(ratio > 0.99 && ratio < 1.01);
}

static void latency_is(uint64_t ns)
{
	assert_in_range(measure.drives.latency_ns, ns - TAIL_NS / 8, ns + TAIL_NS / 8);
}

static void steps(double rate, unsigned count)
{
	while (count-- > 0)
		step(rate);
}

static void steps_measure(double rate, unsigned count, double expected)
{
	steps(rate, count);
	measured(expected);
}

/* Drives are idle between the last byte of one transfer and the begin of the next. */
MEASURE_CASE(test_idle_within_a_flow_counts_for_nothing)
{
	static const double rates[] = {0.25, 1, 8};

	for (unsigned i = 0; i < SPW_ARRAY_LEN(rates); i++) {
		measure = (struct measure){0};
		steps_measure(rates[i], 3, rates[i]);
		latency_is(TAIL_NS);
	}
}

MEASURE_CASE(test_a_burst_is_not_believed_at_once)
{
	steps_measure(6, 1, 6);
	steps_measure(1, 1, 1); /* of the first step, neither */
	steps(1, 2);
	for (unsigned i = 0; i < 5; i++) {
		steps_measure(6, 1, 1);
		steps(1, 1);
	}
	steps_measure(6, 1, 1);
	steps_measure(1.5, 1, 1.5); /* two steps in a row: the lower of both */
	steps_measure(30, 2, 3);    /* but at most twice as high */
	steps_measure(30, 2, 6);
	steps_measure(1, 1, 1); /* lower is believed at once */
}

/* It takes twice as long each time that it was too much, until it has held. */
MEASURE_CASE(test_bursts_are_believed_less_and_less)
{
	unsigned needed = 2;

	steps(1, 3);
	for (unsigned i = 0; i < 4; i++) {
		steps_measure(1.8, needed - 1, 1);
		steps_measure(1.8, 1, 1.8);
		steps_measure(1, 1, 1);
		needed *= 2;
	}
	steps_measure(1.8, needed, 1.8);
	steps(1.8, 5 * needed);
	steps(1, 1);
	steps_measure(1.8, 1, 1);
	steps_measure(1.8, 1, 1.8);
}

/* A step in which the process was stopped says nothing of the drives. Two of them do. */
MEASURE_CASE(test_a_step_far_below_is_not_believed_at_once)
{
	steps(1, 12);
	for (unsigned i = 0; i < 3; i++) {
		steps_measure(0.01, 1, 1);
		steps_measure(1, 2, 1);
	}
	steps_measure(0.5, 1, 0.5); /* not far */
	steps_measure(0.01, 1, 0.5);
	steps_measure(0.02, 1, 0.02);
}

/* Changes that are noise are followed, half of the way. */
MEASURE_CASE(test_noise_is_smoothed)
{
	steps(1, 3);
	steps_measure(1.1, 1, 1.05);
	steps_measure(1.1, 12, 1.1);
}

/* The first plan counts on the first step's figure, not on half of it; later ones are smoothed. */
MEASURE_CASE(test_the_first_latency_is_taken_as_it_is)
{
	steps(1, 1);
	latency_is(TAIL_NS);
	measure.drives.latency_ns = 3 * TAIL_NS;
	steps(1, 1);
	latency_is(2 * TAIL_NS);
}

static void step_with_a_hang(uint64_t ns)
{
	spw_control__measure_began(&measure, DIRECTION_WRITE, TRANSFER, now_ns);
	spw_control__measure_ended(&measure, DIRECTION_WRITE, TRANSFER, true, now_ns, now_ns + ns);
	now_ns += ns + STEP_PAUSE_NS;
	steps(1, 1);
}

/* One transfer that takes seconds is an accident, unless the next step has one too. */
MEASURE_CASE(test_a_hang_is_not_believed_at_once)
{
	const uint64_t hang_ns = UINT64_C(10000000000);

	steps(1, 3);
	for (unsigned i = 0; i < 5; i++) {
		step_with_a_hang(hang_ns);
		latency_is(TAIL_NS);
		steps(1, 1);
		latency_is(TAIL_NS);
	}
	step_with_a_hang(hang_ns);
	step_with_a_hang(hang_ns);
	assert_true(measure.drives.latency_ns > hang_ns / 20);
	steps(1, 1);
	assert_true(measure.drives.latency_ns < 2 * (TAIL_NS + TRANSFER));
	steps(1, 5);
	assert_in_range(measure.drives.latency_ns, TAIL_NS * 7 / 8, 2 * TAIL_NS);
}

/* Between the events around a copy the host may have been held up: that is no slower bus. */
MEASURE_CASE(test_copies_of_a_host_that_is_held_up)
{
	for (unsigned i = 0; i < 8; i++)
		spw_control__measure_copied(&measure, DIRECTION_READ, TRANSFER,
					    i % 2 ? TRANSFER : 5 * TRANSFER);
	spw_control__measure_step(&measure);
	assert_int_equal(measure.drives.bus_in_bytes_per_second, 1000000000);
	/* One that is slower in all its copies is slower. */
	for (unsigned i = 0; i < 8; i++)
		spw_control__measure_copied(&measure, DIRECTION_READ, TRANSFER, 2 * TRANSFER);
	spw_control__measure_step(&measure);
	assert_int_equal(measure.drives.bus_in_bytes_per_second, 500000000);
}

RUN_CASES(NULL, NULL)
