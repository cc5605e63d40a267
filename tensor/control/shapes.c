/* SPDX-License-Identifier: MIT */
/*
 * tensor/control/shapes.c - several shapes of step, each with a plan
 *
 * A step that shows not to be of the shape in force goes on by the plan of another one that is like
 * all of it so far, if nothing that this one would keep has left memory. Each shape remembers which
 * one came next. The one that was not in force for the longest time makes room for a new one.
 */
#include "tensor/control/internal.h"

/* This one is in force from here on. */
static void put_in_force(struct control *control, struct shape *shape)
{
	control->probe = NO_TENSOR; /* of the shape that was in force */
	control->shape->step = control->step;
	control->shape = shape;
}

/* Whether all that the plan keeps is in memory, or may stay there. */
static bool keeps_what_it_wants(const struct recording *now, const struct shape *shape)
{
	for (uint32_t i = 0; i < now->count; i++) {
		const struct recorded *recorded = &now->tensors[i];

		if (spw_has_place(recorded) && recorded->stored && !recorded->released &&
		    shape->plan.choices[spw_basis_place(&shape->basis, recorded)] == SPW_PLAN_KEEP)
			return false;
	}
	return true;
}

/* The tensors of this step so far are those of the plan that is in force now. */
static void match_again(struct control *control)
{
	const struct recording *basis = &control->shape->basis;

	for (uint32_t i = 0; i < control->now.count; i++) {
		struct recorded *recorded = &control->now.tensors[i];

		if (!recorded->plannable)
			continue;
		recorded->matched = spw_basis_place(basis, recorded);
		if (recorded->matched == NO_TENSOR)
			continue;
		control->matched += spw_has_place(recorded);
		control->slots[recorded->matched] = recorded->released ? GONE_SLOT : recorded->slot;
	}
	spw_follow_progress(control, basis->scopes[control->now.scope_count - 1].planned_enter_ns);
}

/* The next shape from @from on, other than the one in force, that has a plan; or NULL. */
static struct shape *other_planned(struct control *control, struct shape *from)
{
	for (; from < control->shapes + SHAPES_MAX; from++)
		if (from != control->shape && from->planned)
			return from;
	return NULL;
}

bool spw_shape_switch(struct control *control)
{
	struct shape *shape = other_planned(control, control->shapes);

	for (; shape; shape = other_planned(control, shape + 1)) {
		if (!spw_basis_begins_like(&control->now, &shape->basis) ||
		    !keeps_what_it_wants(&control->now, shape))
			continue;
		put_in_force(control, shape);
		spw_follow_begin(control);
		match_again(control);
		control->switched = true;
		control->opts.count->plan_switches++;
		return true;
	}
	return false;
}

/* ---- Between steps ---- */

bool spw_shape_known(struct control *control)
{
	struct shape *shape = other_planned(control, control->shapes);

	if (control->shape->planned && spw_basis_is_like(&control->now, &control->shape->basis))
		return true;
	while (shape && !spw_basis_is_like(&control->now, &shape->basis))
		shape = other_planned(control, shape + 1);
	if (shape)
		put_in_force(control, shape);
	return shape != NULL;
}

static struct shape *oldest_of(struct control *control)
{
	struct shape *oldest = NULL;

	for (unsigned i = 0; i < SHAPES_MAX; i++) {
		struct shape *shape = &control->shapes[i];

		if (shape != control->shape && (!oldest || shape->step < oldest->step))
			oldest = shape;
	}
	return oldest;
}

/* The shape of this step, if it is known and has no plan; or NULL. */
static struct shape *met_before(struct control *control)
{
	for (unsigned i = 0; i < SHAPES_MAX; i++) {
		struct shape *shape = &control->shapes[i];

		if (!shape->planned && shape->id > 0 &&
		    spw_basis_is_like(&control->now, &shape->basis))
			return shape;
	}
	return NULL;
}

void spw_shape_new(struct control *control)
{
	struct shape *met = met_before(control);

	if (met) {
		put_in_force(control, met);
		met->unplanned_steps++;
		return;
	}
	if (control->shape->id > 0)
		put_in_force(control, oldest_of(control));
	control->shape->planned = false;
	control->shape->memory = MARGIN_NONE(MEMORY_PATIENCE_STEPS);
	control->shape->pace.complete = false;
	control->shape->stalled_bytes = 0;
	control->shape->id = ++control->ids;
	control->shape->next_id = 0;
	control->shape->unplanned_steps = 1;
}

void spw_shape_ended(struct control *control)
{
	for (unsigned i = 0; i < SHAPES_MAX; i++)
		if (control->shapes[i].id == control->before_id)
			control->shapes[i].next_id = control->shape->id;
	control->before_id = control->shape->id;
}

void spw_shape_predict(struct control *control)
{
	uint32_t next_id = control->shape->next_id;

	for (struct shape *shape = control->shapes; shape < control->shapes + SHAPES_MAX; shape++)
		if (shape != control->shape && shape->id == next_id &&
		    (shape->planned || shape->pace.complete)) {
			put_in_force(control, shape);
			return;
		}
}
