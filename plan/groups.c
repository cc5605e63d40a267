/* SPDX-License-Identifier: MIT */
/*
 * plan/groups.c - merge tensors of one scope into groups, so that a search has fewer to change
 *
 * A group is in memory from the packing of its first tensor to the release of its last, so it never
 * needs less memory than its tensors do.
 */
#include "plan/internal.h"

#include <errno.h>
#include <stdlib.h>

#include "util/util.h"

/* The kind of a tensor. Only tensors of one kind are merged. */
static unsigned kind_of(const struct plan_recompute *recompute, const uint8_t *is_input, uint32_t i)
{
	const struct spw_plan_tensor *tensor = &recompute->step->tensors[i];

	return (unsigned)(tensor->must_keep | recompute->giving[i] << 1 | (tensor->users > 0) << 2 |
			  is_input[i] << 3);
}

static void add_to_group(struct spw_plan_tensor *group, const struct spw_plan_tensor *tensor)
{
	SPW_ASSERT(group->scope == tensor->scope && group->must_keep == tensor->must_keep);
	group->bytes += tensor->bytes;
	if (tensor->pack_ns < group->pack_ns)
		group->pack_ns = tensor->pack_ns;
	if (tensor->use_ns < group->use_ns)
		group->use_ns = tensor->use_ns;
	if (tensor->release_ns > group->release_ns)
		group->release_ns = tensor->release_ns;
}

/* Put each tensor into the last group of its scope and kind, or into a new one if that is full. */
static void make_groups(struct plan_groups *groups, const struct plan_recompute *recompute,
			const uint8_t *is_input, double enough)
{
	const struct spw_plan_step *step = recompute->step;
	uint32_t last[16], scope = UINT32_MAX, count = 0;

	for (uint32_t k = 0; k < step->count; k++) {
		uint32_t i = recompute->base.by_pack[k];
		const struct spw_plan_tensor *tensor = &step->tensors[i];
		unsigned kind = kind_of(recompute, is_input, i);

		if (k == 0 || tensor->scope != scope)
			for (unsigned j = 0; j < SPW_ARRAY_LEN(last); j++)
				last[j] = UINT32_MAX;
		scope = tensor->scope;
		if (!is_input[i] && last[kind] != UINT32_MAX &&
		    (double)groups->tensors[last[kind]].bytes < enough) {
			add_to_group(&groups->tensors[last[kind]], tensor);
		} else {
			groups->tensors[count] = *tensor;
			last[kind] = count++;
		}
		groups->group_of[i] = last[kind];
	}
	SPW_ASSERT(count <= step->count);
	groups->step = *step;
	groups->step.tensors = groups->tensors;
	groups->step.count = count;
}

int spw_plan__groups_open(struct plan_groups *groups, const struct plan_recompute *recompute,
			  uint32_t most)
{
	const struct spw_plan_scopes *scopes = recompute->scopes;
	uint32_t count = recompute->step->count;
	uint8_t *is_input;
	double bytes = 0;
	const struct plan_piece pieces[] = {
		{&groups->group_of, (count + 1) * sizeof(uint32_t)},
		{&groups->tensors, (count + 1) * sizeof(struct spw_plan_tensor)},
		{&groups->own, (scopes->count + 1) * sizeof(struct spw_plan_scope)},
		{&is_input, count + 1},
	};

	groups->memory = spw_plan__allocate(pieces, SPW_ARRAY_LEN(pieces));
	if (!groups->memory)
		return spw_error(-ENOMEM, "plan: no memory for groups of %u tensors", count);
	for (uint32_t i = 0; i < count; i++)
		bytes += recompute->base.bytes[i];
	for (uint32_t s = 0; s < scopes->count; s++)
		if (scopes->scopes[s].may_again)
			is_input[scopes->scopes[s].input] = 1;
	make_groups(groups, recompute, is_input, bytes / most);
	groups->scopes = *scopes;
	groups->scopes.scopes = groups->own;
	for (uint32_t s = 0; s < scopes->count; s++) {
		groups->own[s] = scopes->scopes[s];
		if (scopes->scopes[s].may_again)
			groups->own[s].input = groups->group_of[scopes->scopes[s].input];
	}
	return 0;
}

void spw_plan__groups_close(struct plan_groups *groups)
{
	free(groups->memory);
}
