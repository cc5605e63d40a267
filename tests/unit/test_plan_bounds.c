/* SPDX-License-Identifier: MIT */
/* tests/unit/test_plan_bounds.c - the planner: what it simulates is bounded */
/* wrap: spw_plan__simulate */

#include "tests/case.h"

#include <spillway/plan.h>

#include "plan/internal.h"

#define TENSORS 20000u
#define CALLS   200000u
#define MS      UINT64_C(1000000)
/* A training step that is planned for waits for this: about a tenth of a second. */
#define EVENTS_MAX (UINT64_C(20) << 20)

typeof(spw_plan__simulate) __real_spw_plan__simulate, __wrap_spw_plan__simulate;

static uint64_t events; /* simulated */

void __wrap_spw_plan__simulate(struct plan_work *work, const uint8_t *spill,
			       const struct plan_held *held, const struct plan_bounds *bounds,
			       struct plan_profile *profile, struct plan_outcome *outcome)
{
	events += work->event_count;
	__real_spw_plan__simulate(work, spill, held, bounds, profile, outcome);
}

static struct spw_plan_tensor tensors[TENSORS];
static enum spw_plan_choice choices[TENSORS];
static uint64_t calls_ns[CALLS];

/* One millisecond each, there and back. */
static struct spw_plan_step step_of(uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		tensors[i] = (struct spw_plan_tensor){.bytes = (1 + i % 7) << 20,
						      .pack_ns = i * MS,
						      .use_ns = (2 * count - i) * MS,
						      .release_ns = (2 * count - i) * MS + MS / 2,
						      .users = 1,
						      .scope = i};
	return (struct spw_plan_step){.tensors = tensors,
				      .count = count,
				      .forward_ns = count * MS,
				      .backward_ns = count * MS};
}

static void plan(const struct spw_plan_step *step, enum spw_plan_mode mode)
{
	const struct spw_plan_drives drives = {.write_bytes_per_second = UINT64_C(2) << 30,
					       .read_bytes_per_second = UINT64_C(2) << 30};
	struct spw_plan_result result = {.size = sizeof(result)};
	struct spw_plan_opts opts;

	spw_plan_opts_init(&opts, sizeof(opts));
	opts.mode = mode;
	opts.memory_bytes = 1; /* cannot be met: whatever there is to try is tried */
	events = 0;
	assert_int_equal(spw_plan(step, &drives, &opts, choices, &result), 0);
	assert_true(events > 0);
	if (events > EVENTS_MAX)
		fail_msg("%llu events simulated in mode %u", (unsigned long long)events,
			 (unsigned)mode);
}

/* A caller that keeps asking for tokens has a step of few tensors and many calls. */
CASE(many_calls)
{
	for (uint32_t count = 4; count <= 512; count *= 2) {
		struct spw_plan_step step = step_of(count);

		for (uint32_t i = 0; i < CALLS; i++)
			calls_ns[i] = (uint64_t)(2.0 * count * MS * i / CALLS);
		step.calls_ns = calls_ns;
		step.calls = CALLS;
		for (unsigned mode = SPW_PLAN_FASTEST; mode <= SPW_PLAN_BUDGET; mode++)
			plan(&step, mode);
	}
}

/* All choices of a dozen are few, but not if each is one of a step of thousands. */
CASE(many_small_tensors)
{
	for (uint32_t count = 16; count <= TENSORS; count *= 2) {
		struct spw_plan_step step = step_of(count);

		for (uint32_t i = 0; i < count; i++)
			tensors[i].must_keep = i % (count / 12 + 1) != 0;
		plan(&step, SPW_PLAN_BUDGET);
	}
}

RUN_CASES(NULL, NULL)
