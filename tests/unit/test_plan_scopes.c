/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_plan_scopes.c - one plan of what is kept, spilled and recomputed: its
 * accounting, and its plans against all plans of small steps
 *
 * SPW_SEED repeats a run.
 */
#include <errno.h>

#include "tests/case.h"
#include "tests/random.h"

#include <spillway/plan.h>

#include "plan/internal.h"
#include "util/util.h"

#define SCOPES_MAX  10u
#define TENSORS_MAX (3 * SCOPES_MAX)
#define MS          1000000u
#define MIB         (1u << 20)
#define POINTS_MAX  (SPW_PLAN_POINTS_PER_TENSOR * TENSORS_MAX)
#define SPANS_MAX   (SPW_PLAN_SPANS_PER_TENSOR * TENSORS_MAX + SCOPES_MAX)
#define UNLIMITED   (UINT64_C(1) << 60)

static uint64_t seed;
/* How near the best a plan comes has no bound that every case keeps: these are always the same. */
static uint64_t figures_seed = 20261125;

static struct world {
	struct spw_plan_tensor tensors[TENSORS_MAX];
	struct spw_plan_scope own[SCOPES_MAX];
	struct spw_plan_flow flow;
	struct spw_plan_step step;
	struct spw_plan_scopes scopes;
	struct spw_plan_drives drives;
	struct spw_plan_opts opts;
	enum spw_plan_choice choices[TENSORS_MAX];
	struct spw_plan_result result;
	struct spw_plan_point points[POINTS_MAX];
	struct spw_plan_span spans[SPANS_MAX];
} world;

static uint64_t between(uint64_t *random, uint64_t low, uint64_t high)
{
	return low + random_next(random) % (high - low + 1);
}

static void init_world(void)
{
	memset(&world, 0, sizeof(world));
	spw_plan_scopes_init(&world.scopes, sizeof(world.scopes));
	spw_plan_opts_init(&world.opts, sizeof(world.opts));
	world.result.size = sizeof(world.result);
	world.step.tensors = world.tensors;
	world.scopes.scopes = world.own;
}

/* A scope saves its input when it begins, and the rest in the middle; all is used backwards. */
static void add_scope(uint64_t enter_ns, uint64_t ns, uint64_t input_bytes, uint64_t bytes)
{
	uint32_t s = world.scopes.count++, i = world.step.count;

	world.tensors[i] = (struct spw_plan_tensor){
		.bytes = input_bytes, .pack_ns = enter_ns, .users = 1, .scope = s};
	world.tensors[i + 1] = (struct spw_plan_tensor){
		.bytes = bytes, .pack_ns = enter_ns + ns / 2, .users = 1, .scope = s};
	world.own[s] = (struct spw_plan_scope){
		.enter_ns = enter_ns, .again_ns = ns / 2, .input = i, .may_again = true};
	world.step.count += 2;
	world.step.forward_ns = enter_ns + ns;
}

/* The backward pass takes twice as long as the forward pass did. */
static void add_backward(void)
{
	uint64_t forward_ns = world.step.forward_ns;

	for (uint32_t i = 0; i < world.step.count; i++) {
		struct spw_plan_tensor *tensor = &world.tensors[i];

		tensor->use_ns = forward_ns + 2 * (forward_ns - tensor->pack_ns);
		tensor->release_ns = tensor->use_ns + MS / 10;
	}
	world.step.backward_ns = 2 * forward_ns + MS;
}

static void random_world(uint64_t *random, uint32_t count)
{
	uint64_t now_ns = 0, bytes = 0;

	init_world();
	for (uint32_t s = 0; s < count; s++) {
		uint64_t ns = between(random, 5, 20) * MS;

		add_scope(now_ns, ns, between(random, 4, 16) * MIB, between(random, 32, 160) * MIB);
		now_ns += ns;
	}
	add_backward();
	for (uint32_t i = 0; i < world.step.count; i++)
		bytes += world.tensors[i].bytes;
	/* From a tenth of what spilling all in half of the step takes, to one and a half of it. */
	world.drives.write_bytes_per_second = world.drives.read_bytes_per_second =
		(uint64_t)((double)bytes * 2e9 / (double)(3 * now_ns) *
			   (double)between(random, 1, 15) / 10);
	world.drives.latency_ns = 10000;
}

static uint64_t simulate(uint64_t memory_bytes)
{
	const struct spw_plan_record record = {.points = world.points,
					       .points_max = POINTS_MAX,
					       .spans = world.spans,
					       .spans_max = SPANS_MAX};

	assert_int_equal(spw_plan_scopes_simulate(&world.step, &world.drives, &world.scopes,
						  memory_bytes, world.choices, &record,
						  &world.result),
			 0);
	return world.result.wall_ns;
}

static void plan(enum spw_plan_mode mode, uint64_t memory_bytes)
{
	world.opts.mode = mode;
	world.opts.memory_bytes = memory_bytes;
	assert_int_equal(spw_plan_scopes(&world.step, &world.drives, &world.scopes, &world.opts,
					 world.choices, &world.result),
			 0);
}

/* ---- Holding back ---- */

/* Four tensors of 10 MiB, 10 ms apart; the drives take 20 ms for each, and memory has two. */
static void four_to_write(uint64_t faster)
{
	init_world();
	for (uint32_t i = 0; i < 4; i++) {
		world.tensors[i] = (struct spw_plan_tensor){.bytes = 10 * MIB,
							    .pack_ns = 10 * MS * (i + 1) / faster,
							    .use_ns = (400 - 80 * i) * MS,
							    .release_ns = (420 - 80 * i) * MS,
							    .users = 1};
		world.choices[i] = SPW_PLAN_SPILL;
	}
	world.step.count = 4;
	world.step.forward_ns = 50 * MS;
	world.step.backward_ns = 400 * MS;
	world.drives = (struct spw_plan_drives){.write_bytes_per_second = 500 * MIB,
						.read_bytes_per_second = 500 * MIB};
}

CASE(compute_is_held_back_until_what_was_planned)
{
	static const uint64_t throttled_ns[] = {5 * MS, 10 * MS, 25 * MS, 45 * MS};
	static const uint64_t until_ns[] = {0, 0, 18 * MS, 100 * MS};
	uint64_t saved_ns[4];
	const struct spw_plan_record record = {.saved_ns = saved_ns};

	/* As long as something leaves memory: a third one has to wait for the first, and so on. */
	four_to_write(2);
	assert_int_equal(spw_plan_scopes_simulate(&world.step, &world.drives, &world.scopes,
						  20 * MIB, world.choices, &record, &world.result),
			 0);
	assert_memory_equal(saved_ns, throttled_ns, sizeof(throttled_ns));
	assert_int_equal(world.result.peak_bytes, 20 * MIB);
	/* No longer than until the plan is as far; the last one has all the time. */
	world.scopes.hold_until_ns = until_ns;
	assert_int_equal(spw_plan_scopes_simulate(&world.step, &world.drives, &world.scopes,
						  20 * MIB, world.choices, &record, &world.result),
			 0);
	assert_int_equal(saved_ns[2], 18 * MS);
	assert_int_equal(saved_ns[3], 45 * MS);
	assert_int_equal(world.result.peak_bytes, 30 * MIB);
}

/* ---- Recomputing ---- */

static void all_again(void)
{
	for (uint32_t i = 0; i < world.step.count; i++)
		world.choices[i] = world.own[world.tensors[i].scope].input == i ? SPW_PLAN_KEEP
										: SPW_PLAN_AGAIN;
}

/* Two scopes of 20 ms, inputs of 1 MiB, 10 MiB more; drives that do nothing. */
static void two_scopes(void)
{
	init_world();
	add_scope(0, 20 * MS, MIB, 10 * MIB);
	add_scope(20 * MS, 20 * MS, MIB, 10 * MIB);
	add_backward();
}

CASE(again_takes_its_time_and_holds_one_scope)
{
	uint64_t kept_ns;

	two_scopes();
	kept_ns = simulate(UNLIMITED);
	assert_int_equal(world.result.peak_bytes, 22 * MIB);
	all_again();
	assert_int_equal(simulate(UNLIMITED), kept_ns + 20 * MS);
	assert_int_equal(world.result.peak_bytes, 12 * MIB);
	assert_int_equal(world.result.scopes_again, 2);
	assert_int_equal(world.result.again_ns, 20 * MS);
	assert_int_equal(world.result.stall_ns, 0);
	assert_int_equal(world.points[world.result.points - 1].bytes, 0);
	assert_int_equal(world.result.spans, 2);
	/* What the second scope saved is wanted first, 60 ms after the step began. */
	assert_int_equal(world.spans[0].kind, SPW_PLAN_SPAN_AGAIN);
	assert_int_equal(world.spans[0].which, 1);
	assert_int_equal(world.spans[0].begin_ns, 60 * MS);
	assert_int_equal(world.spans[0].end_ns, 70 * MS);
}

/* What another scope needs to be done again is not given up. */
CASE(an_input_stays)
{
	two_scopes();
	world.own[1].input = 1; /* what the first scope saved */
	for (uint32_t i = 0; i < 4; i++)
		world.choices[i] = i == 3 ? SPW_PLAN_AGAIN : SPW_PLAN_KEEP;
	(void)simulate(UNLIMITED);
	assert_int_equal(world.result.peak_bytes, 22 * MIB);
	assert_int_equal(world.points[world.result.points - 1].bytes, 0);
	world.choices[1] = SPW_PLAN_AGAIN;
	(void)simulate(UNLIMITED);
	/* Nothing is left to give up in the first. */
	assert_int_equal(world.result.again_ns, 10 * MS);
	assert_int_equal(world.result.peak_bytes, 22 * MIB);
}

/* It is not saved a second time where its own scope is recomputed for other tensors. */
CASE(an_input_of_a_scope_that_is_recomputed)
{
	two_scopes();
	world.own[1].input = 1;
	world.tensors[4] = (struct spw_plan_tensor){.bytes = 20 * MIB,
						    .pack_ns = 15 * MS,
						    .use_ns = 90 * MS,
						    .release_ns = 91 * MS,
						    .users = 1};
	world.step.count = 5;
	world.choices[3] = world.choices[4] = SPW_PLAN_AGAIN;
	(void)simulate(UNLIMITED);
	assert_int_equal(world.result.again_ns, 20 * MS);
	assert_int_equal(world.result.peak_bytes, 31 * MIB);
	assert_int_equal(world.points[world.result.points - 1].bytes, 0);
}

/* An input that is not saved is in memory only if its scope is recomputed, until that is over. */
CASE(an_input_that_nobody_saves)
{
	two_scopes();
	world.tensors[4] = (struct spw_plan_tensor){.bytes = 5 * MIB, .scope = 9};
	world.step.count = 5;
	world.own[0].input = 4;
	(void)simulate(UNLIMITED);
	assert_int_equal(world.result.peak_bytes, 22 * MIB);
	world.choices[1] = SPW_PLAN_AGAIN;
	(void)simulate(UNLIMITED);
	/* The first scope's own first tensor is discarded as well. */
	assert_int_equal(world.result.peak_bytes, 5 * MIB + 11 * MIB);
	assert_int_equal(world.points[world.result.points - 1].bytes, 0);
}

CASE(an_input_is_read_before)
{
	uint64_t kept_ns;

	two_scopes();
	kept_ns = simulate(UNLIMITED) + 20 * MS;
	all_again();
	world.drives.write_bytes_per_second = world.drives.read_bytes_per_second = 1000 * MIB;
	world.choices[0] = world.choices[2] = SPW_PLAN_SPILL;
	/* That of the first scope comes back as soon as the second has been released. */
	assert_int_equal(simulate(11 * MIB), kept_ns);
	assert_int_equal(world.result.peak_bytes, 11 * MIB);
	assert_int_equal(world.result.bytes_read, MIB);
	/* There is no room before it is wanted, and no time then. */
	world.drives.read_bytes_per_second = 10 * MIB;
	assert_true(simulate(11 * MIB) > kept_ns + 50 * MS);
}

/* ---- Held to a limit ---- */

/* 11 MiB fit while 11 MiB are being written: compute waits for that. */
CASE(compute_waits_for_room)
{
	uint64_t kept_ns;

	two_scopes();
	kept_ns = simulate(UNLIMITED);
	world.drives.write_bytes_per_second = world.drives.read_bytes_per_second = 100 * MIB;
	world.choices[0] = world.choices[1] = SPW_PLAN_SPILL;
	(void)simulate(21 * MIB);
	assert_true(world.result.feasible);
	assert_true(world.result.peak_bytes <= 21 * MIB);
	/* 11 MiB take 110 ms; the second scope saves the rest after 30. */
	(void)simulate(11 * MIB);
	assert_true(world.result.feasible);
	assert_true(world.result.wall_ns >= kept_ns + 80 * MS);
	/* What is kept cannot make room, and nothing waits for it. */
	memset(world.choices, 0, sizeof(world.choices));
	assert_int_equal(simulate(11 * MIB), kept_ns);
	assert_false(world.result.feasible);
	assert_int_equal(world.result.peak_bytes, 22 * MIB);
}

/* Half of the drives' time is another's for as long as its bytes take. */
CASE(a_flow_takes_its_share)
{
	uint64_t alone_ns, flows_ns;

	two_scopes();
	world.drives.write_bytes_per_second = world.drives.read_bytes_per_second = 100 * MIB;
	world.choices[0] = world.choices[1] = SPW_PLAN_SPILL;
	alone_ns = simulate(12 * MIB);
	world.flow =
		(struct spw_plan_flow){.from_ns = 0, .ns = 1000 * MS, .bytes_written = 50 * MIB};
	world.scopes.flows = &world.flow;
	world.scopes.flows_count = 1;
	flows_ns = simulate(12 * MIB);
	/* 10 MiB written before the last can be saved, and 11 MiB read, at half the speed */
	assert_true(flows_ns >= alone_ns + 100 * MS);
	assert_true(flows_ns <= alone_ns + 220 * MS);
	/* Once it has ended, all is as before. */
	world.flow.ns = MS;
	world.flow.bytes_written = MIB / 10;
	assert_true(simulate(12 * MIB) <= alone_ns + MS);
	world.flow.from_ns = world.step.forward_ns + world.step.backward_ns;
	assert_int_equal(simulate(12 * MIB), alone_ns);
}

/* Others leave nothing of the drives, and what is still staged needs none of them. */
CASE(a_copy_back_waits_for_no_drive)
{
	init_world();
	add_scope(0, 10 * MS, 1 * MIB, 10 * MIB);
	add_backward();
	world.drives.write_bytes_per_second = world.drives.read_bytes_per_second = 100 * MIB;
	world.drives.bus_out_bytes_per_second = world.drives.bus_in_bytes_per_second = 1024 * MIB;
	world.flow =
		(struct spw_plan_flow){.from_ns = 0, .ns = 1000 * MS, .bytes_written = 100 * MIB};
	world.scopes.flows = &world.flow;
	world.scopes.flows_count = 1;
	world.choices[0] = SPW_PLAN_SPILL;
	simulate(10 * MIB + MIB / 2); /* the first is back when the second is gone */
	assert_int_equal(world.result.stall_ns, 0);
	assert_int_equal(world.result.bytes_read, 0);
	assert_int_equal(world.result.bytes_forwarded, 1 * MIB);
}

/* ---- Always ---- */

static void check_accounting(void)
{
	uint64_t peak = 0, written = 0, read = 0, end_ns[4] = {0};

	for (uint32_t k = 0; k < world.result.points; k++)
		peak = world.points[k].bytes > peak ? world.points[k].bytes : peak;
	assert_int_equal(peak, world.result.peak_bytes);
	/* What is still being written when the step ends is freed later. */
	if (world.result.bytes_written == 0)
		assert_int_equal(world.points[world.result.points - 1].bytes, 0);
	for (uint32_t k = 0; k < world.result.spans; k++) {
		const struct spw_plan_span *span = &world.spans[k];

		assert_true(span->begin_ns <= span->end_ns);
		if (span->kind == SPW_PLAN_SPAN_WRITE)
			written += world.tensors[span->which].bytes;
		if (span->kind == SPW_PLAN_SPAN_READ)
			read += world.tensors[span->which].bytes;
		/* One at a time of each kind; rounding. */
		assert_true(span->begin_ns + 2 >= end_ns[span->kind]);
		end_ns[span->kind] = span->end_ns;
	}
	/* A write that is under way when the step ends has counted. */
	assert_true(written <= world.result.bytes_written);
	assert_int_equal(read, world.result.bytes_read);
}

/* Any choices at any limit: nothing is lost or counted twice, and the plan is what it says. */
CASE(accounting_random)
{
	uint64_t random = seed;

	for (unsigned k = 0; k < 300; k++) {
		uint64_t memory;

		random_world(&random, (uint32_t)between(&random, 1, SCOPES_MAX));
		for (uint32_t i = 0; i < world.step.count; i++)
			world.choices[i] = world.own[world.tensors[i].scope].input == i
						   ? (enum spw_plan_choice)between(&random, 0, 1)
						   : (enum spw_plan_choice)between(&random, 0, 2);
		memory = between(&random, 1, 800) * MIB;
		(void)simulate(memory);
		check_accounting();
	}
}

CASE(plans_are_what_they_say)
{
	uint64_t random = seed;

	for (unsigned k = 0; k < 60; k++) {
		struct spw_plan_result planned;
		uint64_t memory;

		random_world(&random, (uint32_t)between(&random, 1, SCOPES_MAX));
		memory = between(&random, 50, 800) * MIB;
		plan(k & 1 ? SPW_PLAN_BUDGET : SPW_PLAN_FASTEST, memory);
		planned = world.result;
		if ((k & 1) && planned.feasible)
			assert_true(planned.peak_bytes <= memory);
		if (!(k & 1))
			assert_true(
				(double)planned.wall_ns <=
				1.0201 * (double)(world.step.forward_ns + world.step.backward_ns));
		(void)simulate(planned.memory_bytes);
		/* The limit is rounded to bytes. */
		if (planned.feasible)
			assert_in_range(world.result.peak_bytes, 0, planned.peak_bytes + 1);
		assert_int_equal(world.result.scopes_again, planned.scopes_again);
		check_accounting();
	}
}

/* ---- Reasons ---- */

static bool is_again(enum spw_plan_way way)
{
	return way == SPW_PLAN_WAY_AGAIN || way == SPW_PLAN_WAY_AGAIN_SPILLED;
}

/* All of a scope goes that way, and the others as planned. */
static void go(uint32_t s, enum spw_plan_way way)
{
	bool spills = way == SPW_PLAN_WAY_SPILL || way == SPW_PLAN_WAY_AGAIN_SPILLED;

	for (uint32_t i = 0; i < world.step.count; i++)
		if (world.tensors[i].scope == s)
			world.choices[i] = is_again(way) && i != world.own[s].input ? SPW_PLAN_AGAIN
					   : spills                                 ? SPW_PLAN_SPILL
										    : SPW_PLAN_KEEP;
}

static bool is_better(const struct spw_plan_other_way *one, const struct spw_plan_other_way *other)
{
	if (one->fits != other->fits)
		return one->fits;
	return one->fits ? one->wall_ns < other->wall_ns : one->peak_bytes < other->peak_bytes;
}

static void check_reason(uint32_t s, const struct spw_plan_reason *reason, uint64_t memory)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < world.step.count; i++)
		bytes += world.tensors[i].scope == s ? world.tensors[i].bytes : 0;
	assert_int_equal(reason->bytes_kept + reason->bytes_spilled + reason->bytes_again, bytes);
	assert_int_equal(reason->bytes_again > 0, is_again(reason->way));
	assert_true(reason->next != reason->way && reason->next < SPW_PLAN_WAYS);
	for (enum spw_plan_way way = 0; way < SPW_PLAN_WAYS; way++) {
		const struct spw_plan_other_way *other = &reason->ways[way];
		enum spw_plan_choice planned[TENSORS_MAX];

		assert_int_equal(other->possible, world.own[s].may_again || !is_again(way));
		if (!other->possible)
			continue;
		memcpy(planned, world.choices, sizeof(planned));
		if (way != reason->way)
			go(s, way);
		assert_int_equal(simulate(memory), other->wall_ns);
		assert_int_equal(world.result.peak_bytes, other->peak_bytes);
		memcpy(world.choices, planned, sizeof(planned));
		assert_int_equal(other->fits, other->peak_bytes <= memory + 1);
		if (way != reason->way && way != reason->next)
			assert_false(is_better(other, &reason->ways[reason->next]));
	}
}

CASE(reasons_are_what_a_simulation_says)
{
	uint64_t random = seed;

	for (unsigned k = 0; k < 40; k++) {
		struct spw_plan_reason reasons[SCOPES_MAX];
		uint64_t memory;

		random_world(&random, (uint32_t)between(&random, 1, SCOPES_MAX));
		for (uint32_t s = 0; s < world.scopes.count; s++)
			world.own[s].may_again = between(&random, 0, 3) > 0;
		plan(k & 1 ? SPW_PLAN_BUDGET : SPW_PLAN_FASTEST, between(&random, 50, 800) * MIB);
		memory = world.result.memory_bytes;
		assert_ok(spw_plan_explain(&world.step, &world.drives, &world.scopes, memory,
					   world.choices, reasons));
		for (uint32_t s = 0; s < world.scopes.count; s++)
			check_reason(s, &reasons[s], memory);
	}
}

CASE(no_reasons_without_drives_for_a_spill)
{
	struct spw_plan_reason reasons[2];

	two_scopes();
	plan(SPW_PLAN_BUDGET, 12 * MIB);
	assert_ok(spw_plan_explain(&world.step, &world.drives, &world.scopes,
				   world.result.memory_bytes, world.choices, reasons));
	assert_int_equal(reasons[0].way, SPW_PLAN_WAY_AGAIN);
	assert_int_equal(reasons[0].next, SPW_PLAN_WAY_KEEP);
	assert_false(reasons[0].ways[SPW_PLAN_WAY_KEEP].fits);
	assert_false(reasons[0].ways[SPW_PLAN_WAY_SPILL].possible);
	assert_false(reasons[0].ways[SPW_PLAN_WAY_AGAIN_SPILLED].possible);
	assert_int_equal(reasons[1].way, SPW_PLAN_WAY_KEEP);
	assert_int_equal(
		spw_plan_explain(&world.step, &world.drives, &world.scopes, MIB, NULL, reasons),
		-EINVAL);
	world.own[1].input = 4;
	assert_int_equal(spw_plan_explain(&world.step, &world.drives, &world.scopes, MIB,
					  world.choices, reasons),
			 -EINVAL);
}

/* A tensor, or its scope, is measured after the plan to be none that can be recomputed. */
CASE(what_is_no_longer_recomputed_counts_as_kept)
{
	struct spw_plan_reason reasons[2];

	two_scopes();
	plan(SPW_PLAN_BUDGET, 12 * MIB);
	assert_int_equal(world.choices[1], SPW_PLAN_AGAIN);
	for (unsigned way = 0; way < 4; way++) {
		world.tensors[1].not_again = way == 0;
		world.tensors[1].users = way != 1;
		world.own[0].may_again = way != 2;
		world.own[0].input = way == 3;
		assert_int_equal(spw_plan_scopes_simulate(&world.step, &world.drives, &world.scopes,
							  12 * MIB, world.choices, NULL,
							  &world.result),
				 -EINVAL);
		assert_ok(spw_plan_explain(&world.step, &world.drives, &world.scopes, 12 * MIB,
					   world.choices, reasons));
		assert_int_equal(reasons[0].way, SPW_PLAN_WAY_KEEP);
		assert_int_equal(reasons[0].bytes_kept, 11 * MIB);
		assert_int_equal(reasons[0].bytes_again, 0);
	}
}

/* A tensor is measured after the plan to be none that can be spilled: discarded by itself, say. */
CASE(what_is_no_longer_spilled_counts_as_kept)
{
	struct spw_plan_reason reasons[2];

	two_scopes();
	world.drives.write_bytes_per_second = world.drives.read_bytes_per_second = 1000 * MIB;
	for (enum spw_plan_way way = SPW_PLAN_WAY_SPILL; way < SPW_PLAN_WAYS; way++) {
		if (way == SPW_PLAN_WAY_AGAIN)
			continue;
		go(0, way);
		for (uint32_t i = 0; i < 2; i++)
			world.tensors[i].must_keep = true;
		assert_ok(spw_plan_explain(&world.step, &world.drives, &world.scopes, 30 * MIB,
					   world.choices, reasons));
		assert_int_equal(reasons[0].way,
				 is_again(way) ? SPW_PLAN_WAY_AGAIN : SPW_PLAN_WAY_KEEP);
		assert_int_equal(reasons[0].bytes_spilled, 0);
		assert_false(reasons[0].ways[SPW_PLAN_WAY_SPILL].possible);
	}
}

CASE(limit_of_what_is_written)
{
	uint64_t random = seed;

	for (unsigned k = 0; k < 40; k++) {
		random_world(&random, 6);
		world.opts.bytes_written_max = between(&random, 1, 300) * MIB;
		plan(k & 1 ? SPW_PLAN_BUDGET : SPW_PLAN_FASTEST, 200 * (uint64_t)MIB);
		assert_in_range(world.result.bytes_written, 0, world.opts.bytes_written_max);
	}
}

/* Without drives: keep, or recompute. */
CASE(without_drives)
{
	two_scopes();
	plan(SPW_PLAN_BUDGET, 12 * MIB);
	assert_true(world.result.feasible);
	assert_int_equal(world.result.bytes_written, 0);
	/* The last to be saved is the first to be used: it stays. */
	assert_int_equal(world.result.scopes_again, 1);
	assert_int_equal(world.choices[1], SPW_PLAN_AGAIN);
	plan(SPW_PLAN_BUDGET, 22 * MIB);
	assert_true(world.result.feasible);
	assert_int_equal(world.result.scopes_again, 0);
	plan(SPW_PLAN_BUDGET, 2 * MIB);
	assert_false(world.result.feasible);
	assert_int_equal(world.result.peak_bytes, 12 * MIB);
}

/* Tensors of no bytes: no lower peak is looked for. */
CASE(nothing_to_hold)
{
	two_scopes();
	for (uint32_t i = 0; i < world.step.count; i++)
		world.tensors[i].bytes = 0;
	plan(SPW_PLAN_FASTEST, 0);
	assert_int_equal(world.result.peak_bytes, 0);
	assert_int_equal(world.result.scopes_again, 0);
}

/* No recomputing, no other users of the drives: no worse than the plan without scopes. */
CASE(no_worse_than_without)
{
	uint64_t random = seed;

	for (unsigned k = 0; k < 60; k++) {
		struct spw_plan_result without = {.size = sizeof(without)};

		random_world(&random, (uint32_t)between(&random, 2, SCOPES_MAX));
		for (uint32_t s = 0; s < world.scopes.count; s++)
			world.own[s].may_again = false;
		plan(SPW_PLAN_FASTEST, 0);
		assert_int_equal(world.result.scopes_again, 0);
		assert_int_equal(
			spw_plan(&world.step, &world.drives, NULL, world.choices, &without), 0);
		assert_in_range(world.result.peak_bytes, 0, without.peak_bytes);
	}
}

/* The budget is returned as it was given, however large. */
CASE(largest_budget)
{
	two_scopes();
	plan(SPW_PLAN_BUDGET, UINT64_MAX);
	assert_true(world.result.feasible);
	assert_true(world.result.memory_bytes == UINT64_MAX);
}

/* Where compute does not wait for room it is the simulation of a step without scopes. */
CASE(unthrottled)
{
	uint64_t random = seed;

	for (unsigned k = 0; k < 60; k++) {
		struct spw_plan_result without = {.size = sizeof(without)};
		uint64_t memory;

		random_world(&random, (uint32_t)between(&random, 2, SCOPES_MAX));
		for (uint32_t i = 0; i < world.step.count; i++)
			world.choices[i] = between(&random, 0, 3) ? SPW_PLAN_SPILL : SPW_PLAN_KEEP;
		memory = between(&random, 1, 1000) * MIB;
		world.scopes.unthrottled = true;
		(void)simulate(memory);
		assert_int_equal(spw_plan_simulate(&world.step, &world.drives, memory,
						   world.choices, NULL, 0, &without),
				 0);
		assert_int_equal(world.result.peak_bytes, without.peak_bytes);
		assert_int_equal(world.result.wall_ns, without.wall_ns);
		assert_int_equal(world.result.bytes_written, without.bytes_written);
	}
}

/* The plan of one that is not throttled is that of a step without scopes, and says what it does. */
CASE(plans_of_unthrottled_compute)
{
	uint64_t random = seed;

	for (unsigned k = 0; k < 60; k++) {
		struct spw_plan_result planned, without = {.size = sizeof(without)};
		enum spw_plan_mode mode = k & 1 ? SPW_PLAN_BUDGET : SPW_PLAN_FASTEST;
		enum spw_plan_choice choices[TENSORS_MAX];
		uint64_t spilled = 0, marked = 0;

		random_world(&random, (uint32_t)between(&random, 1, SCOPES_MAX));
		world.scopes.unthrottled = true;
		world.scopes.slack = 0;
		world.opts.bytes_written_max = k % 3 ? 0 : between(&random, 1, 600) * MIB;
		plan(mode, between(&random, 50, 800) * MIB);
		planned = world.result;
		for (uint32_t i = 0; i < world.step.count; i++) {
			assert_true(world.choices[i] != SPW_PLAN_AGAIN);
			marked += world.choices[i] == SPW_PLAN_SPILL;
			spilled += world.choices[i] == SPW_PLAN_SPILL ? world.tensors[i].bytes : 0;
		}
		assert_int_equal(planned.tensors_spilled, marked);
		assert_in_range(planned.bytes_written, planned.bytes_read, spilled);
		if (planned.feasible)
			assert_in_range(planned.peak_bytes, 0, planned.memory_bytes);
		assert_true(mode == SPW_PLAN_BUDGET || planned.stall_ns == 0);
		(void)simulate(planned.memory_bytes);
		assert_int_equal(world.result.peak_bytes, planned.peak_bytes);
		assert_int_equal(world.result.wall_ns, planned.wall_ns);
		assert_int_equal(world.result.bytes_written, planned.bytes_written);
		check_accounting();
		assert_ok(spw_plan(&world.step, &world.drives, &world.opts, choices, &without));
		assert_memory_equal(choices, world.choices, world.step.count * sizeof(choices[0]));
		assert_memory_equal(&without, &planned, sizeof(planned));
	}
}

/* ---- Against all plans ---- */

/* Of each scope: input kept or spilled, rest kept, spilled or recomputed. */
static void set_modes(uint64_t number)
{
	for (uint32_t s = 0; s < world.scopes.count; s++, number /= 6) {
		world.choices[2 * s] = number % 6 & 1 ? SPW_PLAN_SPILL : SPW_PLAN_KEEP;
		world.choices[2 * s + 1] = (enum spw_plan_choice)(number % 6 / 2);
	}
}

static uint64_t best_of_all(uint64_t memory)
{
	uint64_t best_ns = UINT64_MAX, all = 1;

	for (uint32_t s = 0; s < world.scopes.count; s++)
		all *= 6;
	for (uint64_t number = 0; number < all; number++) {
		set_modes(number);
		if (spw_plan_scopes_simulate(&world.step, &world.drives, &world.scopes, memory,
					     world.choices, NULL, &world.result))
			fail();
		if (world.result.feasible && world.result.wall_ns < best_ns)
			best_ns = world.result.wall_ns;
	}
	return best_ns;
}

static void compare_with_all(uint64_t *random, uint32_t count)
{
	uint64_t best_ns, memory;

	random_world(random, count);
	(void)simulate(UNLIMITED);
	memory = world.result.peak_keep_all_bytes * between(random, 15, 90) / 100;
	best_ns = best_of_all(memory);
	plan(SPW_PLAN_BUDGET, memory);
	if (best_ns == UINT64_MAX)
		return;
	assert_true(world.result.feasible);
	if ((double)world.result.wall_ns > 1.03 * (double)best_ns)
		fail_msg("%u scopes in %llu MiB: %llu us, the best is %llu us", count,
			 (unsigned long long)(memory / MIB),
			 (unsigned long long)(world.result.wall_ns / 1000),
			 (unsigned long long)(best_ns / 1000));
}

CASE(against_all_plans)
{
	for (unsigned k = 0; k < 60; k++)
		compare_with_all(&figures_seed, 1 + k % 4);
	compare_with_all(&figures_seed, 5);
	compare_with_all(&figures_seed, 6);
}

/* ---- Wrong arguments ---- */

static void refuse(const char *words)
{
	assert_int_equal(spw_plan_scopes(&world.step, &world.drives, &world.scopes, &world.opts,
					 world.choices, &world.result),
			 -EINVAL);
	assert_non_null(strstr(spw_last_error(), words));
}

CASE(wrong_arguments)
{
	two_scopes();
	world.own[1].input = 4;
	refuse("scope 1: there is no tensor 4");
	two_scopes();
	world.own[0].again_ns = UINT64_MAX;
	refuse("scope 0: enter_ns or again_ns");
	two_scopes();
	world.scopes.scopes = NULL;
	refuse("no array");
	two_scopes();
	world.scopes.flows = &world.flow;
	world.scopes.flows_count = 1;
	refuse("flow 0: its time is 0");
	world.flow = (struct spw_plan_flow){.ns = 1, .reserved = {0, 1}};
	refuse("a flow: reserved fields must be 0");
	two_scopes();
	world.own[1].reserved[2] = 1;
	refuse("a scope: reserved fields must be 0");
	two_scopes();
	world.scopes.slack = -1;
	refuse("slack");
	two_scopes();
	world.opts.mode = (enum spw_plan_mode)2;
	refuse("positional");
	two_scopes();
	assert_int_equal(spw_plan_scopes_simulate(
				 &world.step, &world.drives, &world.scopes, MIB, world.choices,
				 &(struct spw_plan_record){.reserved = {1}}, &world.result),
			 -EINVAL);
	two_scopes();
	world.choices[0] = SPW_PLAN_AGAIN;
	assert_int_equal(spw_plan_scopes_simulate(&world.step, &world.drives, &world.scopes, MIB,
						  world.choices, NULL, &world.result),
			 -EINVAL);
	assert_non_null(strstr(spw_last_error(), "tensor 0 cannot be recomputed"));
}

static int set_up(void **state)
{
	(void)state;
	seed = random_seed();
	if (getenv("SPW_SEED"))
		figures_seed = seed;
	return 0;
}

/* Training goes on without a plan: the call fails, and says what to report. */
CASE(a_fault_of_the_planner_is_an_error)
{
	two_scopes();
	assert_ok(spw_plan__check_whole());
	assert_false(PLAN_HOLDS(world.step.count == 0));
	assert_int_equal(spw_plan__check_whole(), -ENOTRECOVERABLE);
	assert_non_null(strstr(spw_last_error(), "world.step.count == 0 does not hold"));
	assert_non_null(strstr(spw_last_error(), "test_plan_scopes.c"));
	(void)simulate(UNLIMITED);
	assert_ok(spw_plan__check_whole());
}

RUN_CASES(set_up, NULL)
