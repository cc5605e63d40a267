/* SPDX-License-Identifier: MIT */
/* tests/unit/test_tool_replay.c - spillway replay: steps of traces; the pattern of its bytes */

#include "tests/case.h"

#include <errno.h>

#include "tools/replay/pattern.c"
#include "tools/replay/step.c"

#define MS 1000000u

static const struct replay_step_opts plain = {.speed = 1, .scale = 1, .min_bytes = 50};

#define AT(ms, what)         .ns = (ms)*MS, .kind = SPW_TRACE_##what
#define OF(id, storage, all) .tensor = id, .storage_key = storage, .storage_len_bytes = all
#define RANGE(offset, len)   .offset_bytes = offset, .len_bytes = len

/* Step 1: one tensor, used up in step 2. Step 2: two scopes, views, an overwritten storage. */
static const struct spw_trace_event events[] = {
	{AT(1, STEP)},
	{AT(2, OFFER), OF(1, 1, 100), RANGE(0, 100)},
	{AT(10, STEP)},
	{AT(11, SCOPE_ENTER), .scope_key = 1},
	{AT(12, OFFER), OF(2, 2, 1000), RANGE(100, 500)},
	{AT(13, OFFER), OF(2, 2, 1000), RANGE(0, 1000), .result = SPW_TRACE_RESULT_DEDUP},
	{AT(14, SCOPE_LEAVE)},
	{AT(14, SCOPE_ENTER), .scope_key = 2},
	{AT(15, OFFER), OF(3, 2, 1000), RANGE(100, 40), .storage_version = 1},
	{AT(16, SCOPE_LEAVE)},
	{AT(20, TAKE), .tensor = 1, RANGE(0, 100)},
	{AT(21, RELEASE), .tensor = 1},
	{AT(26, TAKE), .tensor = 3, RANGE(100, 40), .wait_ns = 4 * MS},
	{AT(27, RELEASE), .tensor = 3},
	{AT(28, TAKE), .tensor = 2, RANGE(0, 1000)},
	{AT(30, RELEASE), .tensor = 2},
	{AT(40, STEP)},
};

static const struct spw_trace trace = {.model = "",
				       .events = events,
				       .count = sizeof(events) / sizeof(events[0]),
				       .steps = 3,
				       .tensors = 3,
				       .storages = 2};

/* What the planner was given, of two tensors. */
static struct spw_plan_step planned;

static struct spw_plan_result plan_of(const struct replay_step *step)
{
	const struct spw_plan_drives drives = {.write_bytes_per_second = 1u << 30,
					       .read_bytes_per_second = 1u << 30};
	struct spw_plan_result result = {.size = sizeof(result)};
	static struct spw_plan_tensor tensors[2];
	enum spw_plan_choice choices[2];

	replay_step_plan(step, 50, tensors, &planned);
	assert_int_equal(spw_plan(&planned, &drives, NULL, choices, &result), 0);
	return result;
}

CASE(a_step_of_a_trace)
{
	struct replay_step_opts opts = plain;
	struct replay_step step;

	opts.number = 2;
	assert_int_equal(replay_step_make(&trace, &opts, &step), 0);
	assert_int_equal(step.tensors_count, 2);
	assert_int_equal(step.contents_count, 2);
	/* Until the next step begins, less the wait of the second take. */
	assert_int_equal(step.compute_ns, 26 * MS);
	/* Without stages the backward pass begins with the first take, even of an older tensor. */
	assert_int_equal(step.backward_ns, 10 * MS);
	assert_int_equal(step.tensors[0].bytes, 1000); /* at least half: the whole storage */
	assert_int_equal(step.tensors[1].bytes, 40);
	assert_int_equal(step.keep_all_bytes, 1040);
	assert_int_equal(step.scope_bytes, 1000);
	assert_int_equal(step.small_bytes, 40);
	assert_int_equal(step.tensors[0].pack_ns, 2 * MS);
	assert_int_equal(step.tensors[0].use_ns, 14 * MS);
	/* Offered twice, released once: the other user goes at the end. */
	assert_int_equal(step.tensors[0].release_ns, 26 * MS);
	assert_int_equal(step.tensors[1].use_ns, 12 * MS);
	assert_int_equal(step.tensors[1].release_ns, 13 * MS);
	assert_int_equal(step.ops[step.ops_count - 1].event->kind, SPW_TRACE_RELEASE);
	replay_step_free(&step);
}

CASE(speed_and_scale)
{
	struct replay_step_opts opts = {.number = 2, .speed = 2, .scale = 0.1, .min_bytes = 50};
	struct replay_step step;

	assert_int_equal(replay_step_make(&trace, &opts, &step), 0);
	assert_int_equal(step.compute_ns, 13 * MS);
	assert_int_equal(step.contents[0].len_bytes, 101);
	assert_int_equal(step.tensors[0].bytes, 101);
	assert_int_equal(step.tensors[1].bytes, 4);
	for (uint32_t i = 0; i < step.ops_count; i++) {
		const struct replay_op *op = &step.ops[i];

		if (op->event->kind == SPW_TRACE_OFFER || op->event->kind == SPW_TRACE_TAKE) {
			assert_true(op->len_bytes > 0);
			assert_true(op->offset_bytes + op->len_bytes <=
				    step.contents[op->content].len_bytes);
		}
	}
	replay_step_free(&step);
	opts.scale = 1e-6;
	assert_int_equal(replay_step_make(&trace, &opts, &step), 0);
	assert_int_equal(step.contents[0].len_bytes, 1);
	assert_int_equal(step.tensors[1].bytes, 1);
	replay_step_free(&step);
}

/* Waits that are longer together than passes: time stands still, and never goes back. */
CASE(waits_at_the_same_time)
{
	static const struct spw_trace_event made[] = {
		{AT(5, STEP)},
		{AT(6, OFFER), OF(1, 1, 100), RANGE(0, 100)},
		{AT(7, OFFER), OF(2, 2, 100), RANGE(0, 100)},
		{AT(17, TAKE), .tensor = 1, RANGE(0, 100), .wait_ns = 9 * MS},
		{AT(17, TAKE), .tensor = 2, RANGE(0, 100), .wait_ns = 9 * MS},
		{AT(18, RELEASE), .tensor = 1},
		{AT(19, RELEASE), .tensor = 2},
	};
	static const struct spw_trace two = {
		.model = "", .events = made, .count = 7, .steps = 1, .tensors = 2, .storages = 2};
	struct replay_step step;

	assert_int_equal(replay_step_make(&two, &plain, &step), 0);
	for (uint32_t i = 1; i < step.ops_count; i++)
		assert_true(step.ops[i].ns >= step.ops[i - 1].ns);
	assert_int_equal(step.tensors[0].use_ns, 3 * MS);
	assert_int_equal(step.tensors[1].use_ns, 3 * MS);
	assert_int_equal(step.compute_ns, 5 * MS);
	(void)plan_of(&step);
	replay_step_free(&step);
}

/* There is nothing that its replays could be compared with. */
CASE(a_step_of_no_time)
{
	struct spw_trace_event made[3] = {events[0], events[1], events[0]};
	const struct spw_trace none = {
		.model = "", .events = made, .count = 3, .steps = 2, .tensors = 1, .storages = 1};
	struct replay_step_opts opts = {.number = 1, .speed = 1, .scale = 1};
	struct replay_step step;

	made[2].ns = made[1].ns + 1;
	assert_int_equal(replay_step_make(&none, &opts, &step), 0);
	replay_step_free(&step);
	opts.speed = 1e9;
	expect_refusal(-EINVAL, "takes no time", replay_step_make(&none, &opts, &step));
	opts.speed = 1;
	made[1].ns = made[2].ns = made[0].ns;
	assert_int_equal(replay_step_make(&none, &opts, &step), -EINVAL);
}

CASE(steps_that_are_not_there)
{
	static const struct spw_trace none = {
		.model = "", .events = events + 1, .count = 1, .tensors = 1, .storages = 1};
	struct replay_step_opts opts = plain;
	struct replay_step step;

	assert_int_equal(replay_step_make(&none, &opts, &step), -EINVAL);
	opts.number = 4;
	assert_int_equal(replay_step_make(&trace, &opts, &step), -EINVAL);
	/* The last one saves nothing. */
	opts.number = 0;
	expect_refusal(-EINVAL, "step 3", replay_step_make(&trace, &opts, &step));
}

/* A trace may claim anything: what would overflow is refused. */
CASE(enormous_figures)
{
	struct spw_trace_event made[4] = {events[0], events[1], events[1], events[0]};
	const struct spw_trace enormous = {
		.model = "", .events = made, .count = 4, .steps = 2, .tensors = 2, .storages = 2};
	struct replay_step_opts opts = {.number = 1, .speed = 1, .scale = 1};
	struct replay_step step;

	made[2].tensor = made[2].storage_key = 2;
	made[1].storage_len_bytes = made[1].len_bytes = INT64_MAX;
	made[2].storage_len_bytes = made[2].len_bytes = INT64_MAX;
	made[3].ns = INT64_MAX;
	assert_int_equal(replay_step_make(&enormous, &opts, &step), -EINVAL);
	opts.scale = 1e6;
	assert_int_equal(replay_step_make(&enormous, &opts, &step), -EINVAL);
	opts.scale = 1e-6;
	expect_refusal(-EINVAL, "takes", replay_step_make(&enormous, &opts, &step));
	opts.speed = 1e-6;
	assert_int_equal(replay_step_make(&enormous, &opts, &step), -EINVAL);
	opts.speed = 1e6;
	assert_int_equal(replay_step_make(&enormous, &opts, &step), 0);
	replay_step_free(&step);
}

CASE(the_step_for_the_planner)
{
	struct replay_step_opts opts = plain;
	struct replay_step step;

	opts.number = 2;
	assert_int_equal(replay_step_make(&trace, &opts, &step), 0);
	assert_int_equal(plan_of(&step).peak_keep_all_bytes, step.keep_all_bytes);
	assert_int_equal(planned.count, 2);
	assert_int_equal(planned.forward_ns + planned.backward_ns, step.compute_ns);
	assert_int_equal(planned.tensors[0].users, 1);
	assert_false(planned.tensors[0].must_keep);
	assert_true(planned.tensors[1].must_keep);
	replay_step_free(&step);
}

CASE(the_pattern_finds_every_byte)
{
	enum { LEN = 103 };
	uint64_t words[(LEN + 7) / 8];
	uint8_t *bytes = (uint8_t *)words;
	uint64_t seed = replay_pattern_seed(5);

	replay_pattern_fill(bytes, LEN, seed);
	for (uint64_t begin = 0; begin < LEN; begin++)
		for (uint64_t end = begin + 1; end <= LEN; end++)
			assert_true(
				replay_pattern_matches(bytes + begin, begin, end - begin, seed));
	for (uint64_t i = 0; i < LEN; i++) {
		bytes[i] ^= 16;
		assert_false(replay_pattern_matches(bytes, 0, LEN, seed));
		assert_false(replay_pattern_matches(bytes + i, i, 1, seed));
		bytes[i] ^= 16;
	}
	assert_false(replay_pattern_matches(bytes, 8, LEN - 8, seed));
	assert_false(replay_pattern_matches(bytes, 0, LEN, replay_pattern_seed(6)));
}

RUN_CASES(NULL, NULL)
