/* SPDX-License-Identifier: MIT */
/*
 * tensor/control/pace.c - the time of a step by the clock of a device
 *
 * A host that is ahead of its device would measure its own pace. So it gives the device marks where
 * scopes begin and end, and tells later when these have come. A step takes its time from the last
 * one of its shape of which all that is known: at a mark it is the device's, and up to the next one
 * it goes on as the host does, but no further than that.
 *
 * The first plan waits for such a step: by the host's times all of a step would be over at once,
 * and there would be no time for drives.
 */
#include "tensor/control/internal.h"

/* A mark is known by its step, and its number in that from 1 on. */
#define STEP_SHIFT 32u

static struct pace *pace_of(struct control *control, uint32_t step)
{
	return &control->paces[step % SPW_ARRAY_LEN(control->paces)];
}

/* Only if all before it are known; a device whose clock stands still says nothing. */
static void step_has_come_to_its_end(struct pace *pace, uint32_t step, uint64_t device_ns)
{
	if (pace->step != step || pace->count == 0 || pace->known != pace->count ||
	    device_ns <= pace->marks[pace->known - 1].device_ns)
		return;
	pace->end.device_ns = device_ns;
	pace->complete = pace->over;
}

uint64_t spw_control__pace_mark(struct control *control, uint64_t host_ns)
{
	struct pace *pace = pace_of(control, control->step);

	if (!control->recording || pace->count == PACE_MARKS_MAX)
		return 0;
	control->marked_ns = host_ns;
	pace->marks[pace->count++].host_ns = host_ns;
	return (uint64_t)control->step << STEP_SHIFT | pace->count;
}

void spw_control__pace_marked(struct control *control, uint64_t mark, uint64_t device_ns)
{
	uint32_t step = (uint32_t)(mark >> STEP_SHIFT), number = (uint32_t)mark;
	struct pace *pace = pace_of(control, step);

	if (number == 1)
		step_has_come_to_its_end(pace_of(control, step - 1), step - 1, device_ns);
	if (pace->step != step || number > pace->count || number != pace->known + 1)
		return;
	if (number > 1 && device_ns < pace->marks[number - 2].device_ns)
		return;
	pace->marks[pace->known++].device_ns = device_ns;
}

uint64_t spw_control__pace_ns(const struct control *control, uint64_t host_ns)
{
	const struct pace *now = &control->paces[control->step % SPW_ARRAY_LEN(control->paces)];
	const struct pace *pace = &control->shape->pace;
	uint64_t since_ns = host_ns - control->marked_ns, next_ns, host_took_ns;
	const struct mark *last, *next;

	if (!pace->complete || now->count == 0)
		return host_ns;
	if (now->over)
		return pace->end.device_ns - pace->marks[0].device_ns;
	if (now->count > pace->count) /* this one goes on for longer */
		return pace->end.device_ns - pace->marks[0].device_ns + since_ns;
	last = &pace->marks[now->count - 1];
	next = now->count < pace->count ? last + 1 : &pace->end;
	next_ns = next->device_ns;
	host_took_ns = next->host_ns - last->host_ns;
	if (since_ns < host_took_ns)
		next_ns = last->device_ns + (uint64_t)((double)(next_ns - last->device_ns) *
						       (double)since_ns / (double)host_took_ns);
	return next_ns - pace->marks[0].device_ns;
}

void spw_control__pace_begin(struct control *control)
{
	struct pace *pace = pace_of(control, control->step);

	control->marked_ns = 0;
	pace->step = control->step;
	pace->shape = pace->count = pace->known = 0;
	pace->over = pace->complete = false;
}

void spw_control__pace_end(struct control *control, uint64_t host_ns)
{
	struct pace *pace = pace_of(control, control->step);

	pace->end.host_ns = host_ns;
	pace->over = true;
}

void spw_control__pace_belongs(struct control *control)
{
	pace_of(control, control->step)->shape = control->shape->id;
}

void spw_control__pace_adopt(struct control *control)
{
	for (unsigned i = 0; i < SHAPES_MAX; i++) {
		struct pace *adopted = &control->shapes[i].pace;

		for (unsigned k = 0; k < SPW_ARRAY_LEN(control->paces); k++) {
			const struct pace *pace = &control->paces[k];

			if (pace->complete && pace->shape > 0 &&
			    pace->shape == control->shapes[i].id &&
			    (!adopted->complete || pace->step > adopted->step))
				*adopted = *pace;
		}
	}
}

uint32_t spw_control__pace_timed_by(const struct control *control)
{
	return control->shape->pace.complete ? control->shape->id : 0;
}

bool spw_control__pace_awaits(struct control *control, uint32_t timed_by)
{
	const struct shape *shape = control->shape;

	if (timed_by == shape->id || pace_of(control, control->step)->count == 0)
		return false;
	/* One more than may be on their way: it is timed by the marks of the last of these. */
	if (shape->unplanned_steps <= PACES + 1)
		return true;
	spw_notice(control->opts.notices, CONTROL_NOTICE_PACE,
		   "in %u steps the device has not told when it came to its marks: a plan is made "
		   "by the host's times, which leave the drives less",
		   shape->unplanned_steps);
	return false;
}
