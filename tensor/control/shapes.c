/* SPDX-License-Identifier: MIT */
/*
 * tensor/control/shapes.c - several shapes of step, each with a plan
 *
 * A step that shows not to be of the shape in force goes on by the plan of another one that is like
 * all of it so far, if nothing that this one would keep has left memory. Each shape remembers which
 * one came next. The one that was not in force for the longest time makes room for a new one.
 *
 * Steps that skip scopes of one model, each others, are of no end of shapes: the third becomes one
 * that varies, together with those before it (see skipped.c).
 */
#include "tensor/control/internal.h"
#include "tensor/control/plan_cursor.h"
#include "tensor/control/recording.h"
#include "tensor/control/reference_step.h"
#include "tensor/control/shapes.h"
#include "tensor/control/skipped.h"

/* Of one model, before they become one. */
#define KIN_SHAPES 2u

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

		if (spw_control__has_place(recorded) && recorded->stored && !recorded->released &&
		    shape->plan.choices[spw_control__reference_place(&shape->reference,
								     recorded)] == SPW_PLAN_KEEP)
			return false;
	}
	return true;
}

/* The tensors of this step so far are those of the plan that is in force now. */
static void match_again(struct control *control)
{
	const struct recording *reference = &control->shape->reference;

	for (uint32_t i = 0; i < control->now.count; i++) {
		struct recorded *recorded = &control->now.tensors[i];

		if (!recorded->plannable)
			continue;
		recorded->matched = spw_control__reference_place(reference, recorded);
		if (recorded->matched == NO_TENSOR)
			continue;
		control->matched += spw_control__has_place(recorded);
		control->slots[recorded->matched] = recorded->released ? GONE_SLOT : recorded->slot;
	}
	spw_control__cursor_progress(
		control, reference->scopes[control->now.scope_count - 1].planned_enter_ns);
}

/* The next shape from @from on, other than the one in force, that has a plan; or NULL. */
static struct shape *other_planned(struct control *control, struct shape *from)
{
	for (; from < control->shapes + SHAPES_MAX; from++)
		if (from != control->shape && from->planned)
			return from;
	return NULL;
}

bool spw_control__shape_switch(struct control *control)
{
	struct shape *shape = other_planned(control, control->shapes);

	/* What was recorded is of the shape that was in force. */
	if (spw_control__skipped_differs(control))
		return false;
	for (; shape; shape = other_planned(control, shape + 1)) {
		if (!spw_control__reference_begins_like(&control->now, &shape->reference) ||
		    !keeps_what_it_wants(&control->now, shape))
			continue;
		put_in_force(control, shape);
		spw_control__cursor_begin(control);
		match_again(control);
		spw_control__skipped_switched(control);
		control->switched = true;
		control->opts.count->plan_switches++;
		return true;
	}
	return false;
}

/* ---- Between steps ---- */

bool spw_control__shape_known(struct control *control)
{
	struct shape *shape = other_planned(control, control->shapes);

	if (control->shape->planned &&
	    spw_control__reference_is_like(&control->now, &control->shape->reference))
		return true;
	if (spw_control__skipped_differs(control)) {
		control->skips_off = !spw_control__skipped_fits(control);
		return control->skips_off;
	}
	while (shape && !spw_control__reference_is_like(&control->now, &shape->reference))
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
		    spw_control__reference_is_like(&control->now, &shape->reference))
			return shape;
	}
	return NULL;
}

/* Shapes of the same model, other than those that are like this step: how many; the fullest. */
static uint32_t kin_of(const struct control *control, uint32_t *fullest)
{
	uint32_t count = 0, most = 0;

	for (uint32_t i = 0; i < SHAPES_MAX; i++) {
		const struct shape *shape = &control->shapes[i];

		if (shape->id == 0 ||
		    !spw_control__reference_is_kin(&control->now, &shape->reference))
			continue;
		count++;
		if (shape->varies)
			most = UINT32_MAX;
		else if (shape->reference.scope_count <= most)
			continue;
		else
			most = shape->reference.scope_count;
		*fullest = i;
	}
	return count;
}

/*
 * The shapes of one model become one that varies. Return: whether its reference is to be this step.
 */
static bool join_kin(struct control *control, uint32_t fullest)
{
	struct shape *shape = &control->shapes[fullest];
	bool fuller = !shape->varies && control->now.scope_count > shape->reference.scope_count;

	for (uint32_t i = 0; i < SHAPES_MAX; i++) {
		struct shape *other = &control->shapes[i];

		if (other == shape || other->id == 0 ||
		    !spw_control__reference_is_kin(&control->now, &other->reference))
			continue;
		other->planned = other->device_clock.complete = false;
		other->id = 0;
	}
	put_in_force(control, shape);
	shape->varies = true;
	shape->planned &= !fuller;
	return fuller;
}

bool spw_control__shape_new(struct control *control)
{
	struct shape *met = met_before(control);
	uint32_t kin, fullest = 0;

	/* The reference gets what it did not have. */
	if (spw_control__skipped_differs(control)) {
		control->shape->planned = false;
		return true;
	}
	if (met) {
		put_in_force(control, met);
		met->unplanned_steps++;
		return true;
	}
	kin = kin_of(control, &fullest);
	if (kin >= KIN_SHAPES || (kin > 0 && control->shapes[fullest].varies))
		return join_kin(control, fullest);
	if (control->shape->id > 0)
		put_in_force(control, oldest_of(control));
	control->shape->planned = control->shape->varies = false;
	control->shape->memory = HEADROOM_NONE(MEMORY_PATIENCE_STEPS);
	control->shape->device_clock.complete = false;
	control->shape->stalled_bytes = 0;
	control->shape->id = ++control->ids;
	control->shape->next_id = 0;
	control->shape->unplanned_steps = 1;
	return true;
}

void spw_control__shape_ended(struct control *control)
{
	for (unsigned i = 0; i < SHAPES_MAX; i++)
		if (control->shapes[i].id == control->before_id)
			control->shapes[i].next_id = control->shape->id;
	control->before_id = control->shape->id;
}

void spw_control__shape_predict(struct control *control)
{
	uint32_t next_id = control->shape->next_id;

	for (struct shape *shape = control->shapes; shape < control->shapes + SHAPES_MAX; shape++)
		if (shape != control->shape && shape->id == next_id &&
		    (shape->planned || shape->device_clock.complete)) {
			put_in_force(control, shape);
			return;
		}
}
