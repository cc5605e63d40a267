/* SPDX-License-Identifier: MIT */
/*
 * tests/fuzz/fuzz_plan.c - the planner with any step and any drives: refused with a message, or a
 * plan that keeps what spillway/plan.h promises
 */
/* link: util plan */
#include <errno.h>

#include <spillway/plan.h>

#include "tests/fuzz/fuzz.h"
#include "util/util.h"

#define TENSORS_MAX 24u
#define CALLS_MAX   16u
#define SCOPES_MAX  8u
#define FLOWS_MAX   3u

struct input {
	struct spw_plan_tensor tensors[TENSORS_MAX];
	uint64_t calls[CALLS_MAX];
	struct spw_plan_step step;
	struct spw_plan_drives drives;
	struct spw_plan_opts opts;
	struct spw_plan_scope own[SCOPES_MAX];
	struct spw_plan_flow flows[FLOWS_MAX];
	struct spw_plan_scopes scopes;
};

/* Mostly times that are in order: else all would be refused. */
static uint64_t after(struct fuzz_bytes *bytes, uint64_t ns, bool honest)
{
	uint64_t number = fuzz_number(bytes);

	return honest ? ns + (number & UINT32_MAX) * 1000 : number;
}

static void read_input(struct fuzz_bytes *bytes, struct input *input)
{
	uint8_t how = fuzz_byte(bytes);
	bool honest = how % 8 != 0;
	uint64_t ns = 0;

	memset(input, 0, sizeof(*input));
	input->step.tensors = input->tensors;
	input->step.count = fuzz_byte(bytes) % (TENSORS_MAX + 1);
	for (uint32_t i = 0; i < input->step.count; i++) {
		struct spw_plan_tensor *tensor = &input->tensors[i];

		tensor->bytes = fuzz_number(bytes) << (honest ? how % 16 : 0);
		tensor->pack_ns = after(bytes, 0, honest);
		tensor->use_ns = after(bytes, tensor->pack_ns, honest);
		tensor->release_ns = after(bytes, tensor->use_ns, honest);
		tensor->users = fuzz_byte(bytes) % 4;
		tensor->scope = (uint32_t)fuzz_number(bytes);
		tensor->must_keep = fuzz_byte(bytes) % 8 == 0;
	}
	input->step.forward_ns = fuzz_number(bytes);
	input->step.backward_ns = fuzz_number(bytes);
	input->step.calls = fuzz_byte(bytes) % (CALLS_MAX + 1);
	for (uint32_t i = 0; i < input->step.calls; i++)
		ns = input->calls[i] = after(bytes, ns, honest);
	input->step.calls_ns = fuzz_byte(bytes) % 8 ? input->calls : NULL;
	input->drives = (struct spw_plan_drives){
		.write_bytes_per_second = fuzz_number(bytes) << (honest ? how % 32 : 0),
		.read_bytes_per_second = fuzz_number(bytes) << (honest ? how % 32 : 0),
		.mixed_bytes_per_second = fuzz_number(bytes),
		.latency_ns = fuzz_number(bytes),
		.chunk_bytes = fuzz_number(bytes),
		.staging_bytes = fuzz_number(bytes),
	};
	spw_plan_opts_init(&input->opts, sizeof(input->opts));
	input->opts.mode = (enum spw_plan_mode)(fuzz_byte(bytes) % 4);
	input->opts.memory_bytes = fuzz_number(bytes);
	input->opts.bytes_written_max = fuzz_number(bytes);
}

static void check_plan(const struct input *input, const enum spw_plan_choice choices[],
		       const struct spw_plan_result *result)
{
	uint64_t spilled = 0, bytes = 0;

	for (uint32_t i = 0; i < input->step.count; i++) {
		FUZZ_REQUIRE(choices[i] == SPW_PLAN_KEEP || choices[i] == SPW_PLAN_SPILL);
		if (choices[i] == SPW_PLAN_KEEP)
			continue;
		FUZZ_REQUIRE(!input->tensors[i].must_keep);
		spilled++;
		bytes += input->tensors[i].bytes;
	}
	FUZZ_REQUIRE(result->tensors_spilled == spilled && result->bytes_written <= bytes);
	FUZZ_REQUIRE(input->opts.mode != SPW_PLAN_FASTEST || result->stall_ns == 0);
	FUZZ_REQUIRE(input->opts.mode != SPW_PLAN_FASTEST ||
		     result->peak_bytes <= result->peak_keep_all_bytes);
	FUZZ_REQUIRE(input->opts.mode == SPW_PLAN_BUDGET || result->feasible);
	FUZZ_REQUIRE(input->opts.bytes_written_max == 0 ||
		     result->bytes_written <= input->opts.bytes_written_max);
	FUZZ_REQUIRE(input->opts.mode != SPW_PLAN_BUDGET || !result->feasible ||
		     result->peak_bytes <= input->opts.memory_bytes);
}

/* The same figures again, and a profile below the peak, which may last no time: then no point. */
static void check_simulation(const struct input *input, const enum spw_plan_choice choices[],
			     const struct spw_plan_result *planned)
{
	struct spw_plan_point points[TENSORS_MAX * SPW_PLAN_POINTS_PER_TENSOR];
	struct spw_plan_result result = {.size = sizeof(result)};
	uint64_t highest = 0;

	FUZZ_REQUIRE(spw_plan_simulate(&input->step, &input->drives, planned->memory_bytes, choices,
				       points, sizeof(points) / sizeof(points[0]), &result) == 0);
	FUZZ_REQUIRE(result.peak_bytes == planned->peak_bytes &&
		     result.stall_ns == planned->stall_ns);
	FUZZ_REQUIRE(result.bytes_written == planned->bytes_written &&
		     result.bytes_read == planned->bytes_read);
	FUZZ_REQUIRE(result.points <= SPW_PLAN_POINTS_PER_TENSOR * input->step.count);
	for (uint32_t i = 0; i < result.points; i++) {
		FUZZ_REQUIRE(i == 0 || points[i].ns >= points[i - 1].ns);
		highest = points[i].bytes > highest ? points[i].bytes : highest;
	}
	FUZZ_REQUIRE(highest <= result.peak_bytes);
}

/* ---- Scopes that may be recomputed ---- */

static void read_scopes(struct fuzz_bytes *bytes, struct input *input)
{
	uint8_t how = fuzz_byte(bytes);
	bool honest = how % 8 != 0;
	uint64_t ns = 0;

	spw_plan_scopes_init(&input->scopes, sizeof(input->scopes));
	input->scopes.scopes = input->own;
	input->scopes.count = fuzz_byte(bytes) % (SCOPES_MAX + 1);
	for (uint32_t s = 0; s < input->scopes.count; s++) {
		uint32_t most = honest && input->step.count > 0 ? input->step.count : UINT8_MAX;

		input->own[s] = (struct spw_plan_scope){.enter_ns = after(bytes, 0, honest),
							.again_ns = after(bytes, 0, honest),
							.input = fuzz_byte(bytes) % most,
							.may_again = fuzz_byte(bytes) % 4 != 0};
	}
	for (uint32_t i = 0; i < input->step.count; i++) {
		input->tensors[i].scope = fuzz_byte(bytes) % (SCOPES_MAX + 1);
		input->tensors[i].not_again = fuzz_byte(bytes) % 8 == 0;
	}
	input->scopes.flows = input->flows;
	input->scopes.flows_count = fuzz_byte(bytes) % (FLOWS_MAX + 1);
	for (uint32_t k = 0; k < input->scopes.flows_count; k++) {
		ns = after(bytes, ns, honest);
		input->flows[k] = (struct spw_plan_flow){.from_ns = ns,
							 .ns = after(bytes, honest, honest),
							 .bytes_read = fuzz_number(bytes),
							 .bytes_written = fuzz_number(bytes)};
	}
	input->scopes.slack = fuzz_byte(bytes) / 64.;
}

static void check_again(const struct input *input, const enum spw_plan_choice choices[],
			const struct spw_plan_result *planned)
{
	struct spw_plan_point points[TENSORS_MAX * SPW_PLAN_POINTS_PER_TENSOR];
	struct spw_plan_span spans[TENSORS_MAX * SPW_PLAN_SPANS_PER_TENSOR + SCOPES_MAX];
	const struct spw_plan_record record = {.points = points,
					       .points_max = sizeof(points) / sizeof(points[0]),
					       .spans = spans,
					       .spans_max = sizeof(spans) / sizeof(spans[0])};
	struct spw_plan_result result = {.size = sizeof(result)};
	struct spw_plan_reason reasons[SCOPES_MAX];

	for (uint32_t i = 0; i < input->step.count; i++) {
		FUZZ_REQUIRE(choices[i] <= SPW_PLAN_AGAIN);
		FUZZ_REQUIRE(choices[i] != SPW_PLAN_SPILL || !input->tensors[i].must_keep);
		FUZZ_REQUIRE(choices[i] != SPW_PLAN_AGAIN || !input->tensors[i].not_again);
	}
	FUZZ_REQUIRE(input->opts.bytes_written_max == 0 ||
		     planned->bytes_written <= input->opts.bytes_written_max);
	FUZZ_REQUIRE(spw_plan_scopes_simulate(&input->step, &input->drives, &input->scopes,
					      planned->memory_bytes, choices, &record,
					      &result) == 0);
	FUZZ_REQUIRE(!planned->feasible || result.peak_bytes == planned->peak_bytes);
	FUZZ_REQUIRE(!planned->feasible || result.wall_ns == planned->wall_ns);
	FUZZ_REQUIRE(result.scopes_again == planned->scopes_again);
	FUZZ_REQUIRE(result.points <= record.points_max && result.spans <= record.spans_max);
	for (uint32_t k = 1; k < result.points; k++)
		FUZZ_REQUIRE(points[k].ns >= points[k - 1].ns);
	FUZZ_REQUIRE(spw_plan_explain(&input->step, &input->drives, &input->scopes,
				      planned->memory_bytes, choices, reasons) == 0);
	for (uint32_t s = 0; s < input->scopes.count; s++)
		FUZZ_REQUIRE(reasons[s].way < SPW_PLAN_WAYS && reasons[s].next <= SPW_PLAN_WAYS);
}

/* It takes much longer than the rest: few inputs ask for it. */
static void check_scopes(struct fuzz_bytes *bytes, struct input *input)
{
	struct spw_plan_result result = {.size = sizeof(result)};
	enum spw_plan_choice choices[TENSORS_MAX];
	int rc;

	read_scopes(bytes, input);
	(void)spw_error(-EIO, "nothing");
	rc = spw_plan_scopes(&input->step, &input->drives, &input->scopes, &input->opts, choices,
			     &result);
	FUZZ_REQUIRE(rc == 0 || rc == -EINVAL);
	FUZZ_REQUIRE(rc == 0 || strcmp(spw_last_error(), "nothing") != 0);
	if (rc == 0)
		check_again(input, choices, &result);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_bytes bytes = {data, size};
	enum spw_plan_choice choices[TENSORS_MAX];
	struct spw_plan_result result = {.size = sizeof(result)};
	struct input input;
	int rc;

	read_input(&bytes, &input);
	(void)spw_error(-EIO, "nothing");
	rc = spw_plan(&input.step, &input.drives, &input.opts, choices, &result);
	FUZZ_REQUIRE(rc == 0 || rc == -EINVAL);
	if (rc != 0) {
		FUZZ_REQUIRE(strcmp(spw_last_error(), "nothing") != 0);
		return 0;
	}
	check_plan(&input, choices, &result);
	check_simulation(&input, choices, &result);
	if (fuzz_byte(&bytes) % 64 == 1)
		check_scopes(&bytes, &input);
	return 0;
}
