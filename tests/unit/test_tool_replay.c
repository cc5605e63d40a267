/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_tool_replay.c - spillway replay: steps out of traces, and the pattern that finds
 * wrong bytes
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>

#include "tools/replay/pattern.c"
#include "tools/replay/step.c"

#define MS 1000000u

static const struct replay_step_opts plain = {.speed = 1, .scale = 1, .min_bytes = 50};

/*
 * Step 1 has one tensor, used up in step 2. In step 2: two scopes, views of one storage, an
 * overwritten storage.
 */
static const struct spw_trace_event events[] = {
	{.ns = 1 * MS, .kind = SPW_TRACE_STEP},
	{.ns = 2 * MS,
	 .kind = SPW_TRACE_OFFER,
	 .tensor = 1,
	 .storage_key = 1,
	 .storage_len_bytes = 100,
	 .len_bytes = 100},
	{.ns = 10 * MS, .kind = SPW_TRACE_STEP},
	{.ns = 11 * MS, .kind = SPW_TRACE_SCOPE_ENTER, .scope_key = 1},
	{.ns = 12 * MS,
	 .kind = SPW_TRACE_OFFER,
	 .tensor = 2,
	 .storage_key = 2,
	 .storage_len_bytes = 1000,
	 .offset_bytes = 100,
	 .len_bytes = 500},
	{.ns = 13 * MS,
	 .kind = SPW_TRACE_OFFER,
	 .tensor = 2,
	 .storage_key = 2,
	 .storage_len_bytes = 1000,
	 .len_bytes = 1000,
	 .result = SPW_TRACE_RESULT_DEDUP},
	{.ns = 14 * MS, .kind = SPW_TRACE_SCOPE_LEAVE},
	{.ns = 14 * MS, .kind = SPW_TRACE_SCOPE_ENTER, .scope_key = 2},
	{.ns = 15 * MS,
	 .kind = SPW_TRACE_OFFER,
	 .tensor = 3,
	 .storage_key = 2,
	 .storage_version = 1,
	 .storage_len_bytes = 1000,
	 .offset_bytes = 100,
	 .len_bytes = 40},
	{.ns = 16 * MS, .kind = SPW_TRACE_SCOPE_LEAVE},
	{.ns = 20 * MS, .kind = SPW_TRACE_TAKE, .tensor = 1, .len_bytes = 100},
	{.ns = 21 * MS, .kind = SPW_TRACE_RELEASE, .tensor = 1},
	{.ns = 26 * MS,
	 .kind = SPW_TRACE_TAKE,
	 .tensor = 3,
	 .offset_bytes = 100,
	 .len_bytes = 40,
	 .wait_ns = 4 * MS},
	{.ns = 27 * MS, .kind = SPW_TRACE_RELEASE, .tensor = 3},
	{.ns = 28 * MS, .kind = SPW_TRACE_TAKE, .tensor = 2, .len_bytes = 1000},
	{.ns = 30 * MS, .kind = SPW_TRACE_RELEASE, .tensor = 2},
	{.ns = 40 * MS, .kind = SPW_TRACE_STEP},
};

static const struct spw_trace trace = {.model = "",
				       .events = events,
				       .count = sizeof(events) / sizeof(events[0]),
				       .steps = 3,
				       .tensors = 3,
				       .storages = 2};

static void a_step_of_a_trace(void **state)
{
	struct replay_step_opts opts = plain;
	struct replay_step step;

	(void)state;
	opts.number = 2;
	assert_int_equal(replay_step_make(&trace, &opts, &step), 0);
	assert_int_equal(step.tensors_count, 2);
	assert_int_equal(step.contents_count, 2);
	/* Until the next step begins, less the wait of the second take. */
	assert_int_equal(step.compute_ns, 26 * MS);
	/*
	 * Nobody says when the backward pass begins: with the first take, though of an older
	 * tensor.
	 */
	assert_int_equal(step.backward_ns, 10 * MS);
	assert_int_equal(step.tensors[0].bytes, 1000); /* at least half: the whole storage */
	assert_int_equal(step.tensors[1].bytes, 40);
	assert_int_equal(step.keep_all_bytes, 1040);
	assert_int_equal(step.scope_bytes, 1000);
	assert_int_equal(step.small_bytes, 40);
	assert_int_equal(step.tensors[0].pack_ns, 2 * MS);
	assert_int_equal(step.tensors[0].offers, 2);
	assert_int_equal(step.tensors[0].use_ns, 14 * MS);
	/* Offered twice, released once: the other user goes at the end. */
	assert_int_equal(step.tensors[0].release_ns, 26 * MS);
	assert_int_equal(step.tensors[1].use_ns, 12 * MS);
	assert_int_equal(step.tensors[1].release_ns, 13 * MS);
	assert_int_equal(step.ops[step.ops_count - 1].event->kind, SPW_TRACE_RELEASE);
	replay_step_free(&step);
}

static void speed_and_scale(void **state)
{
	struct replay_step_opts opts = {.number = 2, .speed = 2, .scale = 0.1, .min_bytes = 50};
	struct replay_step step;

	(void)state;
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

/*
 * Two threads wait at the same time, longer together than passes: time stands still, and never goes
 * back.
 */
static void waits_at_the_same_time(void **state)
{
	static const struct spw_trace_event made[] = {
		{.ns = 5 * MS, .kind = SPW_TRACE_STEP},
		{.ns = 6 * MS,
		 .kind = SPW_TRACE_OFFER,
		 .tensor = 1,
		 .storage_key = 1,
		 .storage_len_bytes = 100,
		 .len_bytes = 100},
		{.ns = 7 * MS,
		 .kind = SPW_TRACE_OFFER,
		 .tensor = 2,
		 .storage_key = 2,
		 .storage_len_bytes = 100,
		 .len_bytes = 100},
		{.ns = 17 * MS,
		 .kind = SPW_TRACE_TAKE,
		 .tensor = 1,
		 .len_bytes = 100,
		 .wait_ns = 9 * MS},
		{.ns = 17 * MS,
		 .kind = SPW_TRACE_TAKE,
		 .tensor = 2,
		 .len_bytes = 100,
		 .wait_ns = 9 * MS},
		{.ns = 18 * MS, .kind = SPW_TRACE_RELEASE, .tensor = 1},
		{.ns = 19 * MS, .kind = SPW_TRACE_RELEASE, .tensor = 2},
	};
	static const struct spw_trace two = {
		.model = "", .events = made, .count = 7, .steps = 1, .tensors = 2, .storages = 2};
	const struct spw_plan_drives drives = {.write_bytes_per_second = 1u << 30,
					       .read_bytes_per_second = 1u << 30};
	struct spw_plan_result result = {.size = sizeof(result)};
	enum spw_plan_choice choices[2];
	struct spw_plan_tensor tensors[2];
	struct spw_plan_step plan;
	struct replay_step step;

	(void)state;
	assert_int_equal(replay_step_make(&two, &plain, &step), 0);
	for (uint32_t i = 1; i < step.ops_count; i++)
		assert_true(step.ops[i].ns >= step.ops[i - 1].ns);
	assert_int_equal(step.tensors[0].use_ns, 3 * MS);
	assert_int_equal(step.tensors[1].use_ns, 3 * MS);
	assert_int_equal(step.compute_ns, 5 * MS);
	replay_step_plan(&step, 50, tensors, &plan);
	assert_int_equal(spw_plan(&plan, &drives, NULL, choices, &result), 0);
	replay_step_free(&step);
}

/* There is nothing that its replays could be compared with. */
static void a_step_of_no_time(void **state)
{
	struct spw_trace_event made[3] = {events[0], events[1], events[0]};
	const struct spw_trace none = {
		.model = "", .events = made, .count = 3, .steps = 2, .tensors = 1, .storages = 1};
	struct replay_step_opts opts = {.number = 1, .speed = 1, .scale = 1};
	struct replay_step step;

	(void)state;
	made[2].ns = made[1].ns + 1;
	assert_int_equal(replay_step_make(&none, &opts, &step), 0);
	replay_step_free(&step);
	opts.speed = 1e9;
	assert_int_equal(replay_step_make(&none, &opts, &step), -EINVAL);
	assert_non_null(strstr(spw_last_error(), "takes no time"));
	opts.speed = 1;
	made[1].ns = made[2].ns = made[0].ns;
	assert_int_equal(replay_step_make(&none, &opts, &step), -EINVAL);
}

static void steps_that_are_not_there(void **state)
{
	static const struct spw_trace none = {
		.model = "", .events = events + 1, .count = 1, .tensors = 1, .storages = 1};
	struct replay_step_opts opts = plain;
	struct replay_step step;

	(void)state;
	assert_int_equal(replay_step_make(&none, &opts, &step), -EINVAL);
	opts.number = 4;
	assert_int_equal(replay_step_make(&trace, &opts, &step), -EINVAL);
	/* The last one saves nothing. */
	opts.number = 0;
	assert_int_equal(replay_step_make(&trace, &opts, &step), -EINVAL);
	assert_non_null(strstr(spw_last_error(), "step 3"));
}

/* A trace may claim anything: what would overflow is refused. */
static void enormous_figures(void **state)
{
	struct spw_trace_event made[4] = {events[0], events[1], events[1], events[0]};
	const struct spw_trace enormous = {
		.model = "", .events = made, .count = 4, .steps = 2, .tensors = 2, .storages = 2};
	struct replay_step_opts opts = {.number = 1, .speed = 1, .scale = 1};
	struct replay_step step;

	(void)state;
	made[2].tensor = made[2].storage_key = 2;
	made[1].storage_len_bytes = made[1].len_bytes = INT64_MAX;
	made[2].storage_len_bytes = made[2].len_bytes = INT64_MAX;
	made[3].ns = INT64_MAX;
	assert_int_equal(replay_step_make(&enormous, &opts, &step), -EINVAL);
	opts.scale = 1e6;
	assert_int_equal(replay_step_make(&enormous, &opts, &step), -EINVAL);
	opts.scale = 1e-6;
	assert_int_equal(replay_step_make(&enormous, &opts, &step), -EINVAL);
	assert_non_null(strstr(spw_last_error(), "takes"));
	opts.speed = 1e-6;
	assert_int_equal(replay_step_make(&enormous, &opts, &step), -EINVAL);
	opts.speed = 1e6;
	assert_int_equal(replay_step_make(&enormous, &opts, &step), 0);
	replay_step_free(&step);
}

static void the_step_for_the_planner(void **state)
{
	struct replay_step_opts opts = plain;
	struct spw_plan_result result = {.size = sizeof(result)};
	const struct spw_plan_drives drives = {.write_bytes_per_second = 1u << 30,
					       .read_bytes_per_second = 1u << 30};
	enum spw_plan_choice choices[2];
	struct spw_plan_tensor tensors[2];
	struct spw_plan_step plan;
	struct replay_step step;

	(void)state;
	opts.number = 2;
	assert_int_equal(replay_step_make(&trace, &opts, &step), 0);
	replay_step_plan(&step, 50, tensors, &plan);
	assert_int_equal(plan.count, 2);
	assert_int_equal(plan.forward_ns + plan.backward_ns, step.compute_ns);
	assert_int_equal(tensors[0].users, 1);
	assert_false(tensors[0].must_keep);
	assert_true(tensors[1].must_keep);
	assert_int_equal(spw_plan(&plan, &drives, NULL, choices, &result), 0);
	assert_int_equal(result.peak_keep_all_bytes, step.keep_all_bytes);
	replay_step_free(&step);
}

static void the_pattern_finds_every_byte(void **state)
{
	enum { LEN = 103 };
	uint64_t words[(LEN + 7) / 8];
	uint8_t *bytes = (uint8_t *)words;
	uint64_t seed = replay_pattern_seed(5);

	(void)state;
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_step_of_a_trace),
		cmocka_unit_test(speed_and_scale),
		cmocka_unit_test(waits_at_the_same_time),
		cmocka_unit_test(a_step_of_no_time),
		cmocka_unit_test(steps_that_are_not_there),
		cmocka_unit_test(enormous_figures),
		cmocka_unit_test(the_step_for_the_planner),
		cmocka_unit_test(the_pattern_finds_every_byte),
	};

	return cmocka_run_group_tests_name("replay", tests, NULL, NULL);
}
