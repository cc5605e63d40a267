/* SPDX-License-Identifier: MIT */
/*
 * tensor/control/device_clock.c - the time of a step by the clock of a device
 *
 * A host that runs ahead of its device would measure only its own progress. So it gives the device
 * marks where scopes begin and end, and tells later when the device reached them. A step takes its
 * times from the last step of its signature whose marks are all known: at a mark the time is the
 * device's, and between two marks it advances with the host's, up to the next mark.
 *
 * The first plan waits for such a step: by the host's times the whole step would be over at once,
 * and would leave no time for the drives.
 */
#include "tensor/control/device_clock.h"
#include "tensor/control/internal.h"

/* A mark is known by its step, and its number in that, which begins at 1. */
#define STEP_SHIFT 32u

static struct device_clock *device_clock_of(struct control *control, uint32_t step)
{
	return &control->paces[step % SPW_ARRAY_LEN(control->paces)];
}

/* Only if all before it are known; a device whose clock stands still says nothing. */
static void step_has_come_to_its_end(struct device_clock *clock, uint32_t step, uint64_t device_ns)
{
	if (clock->step != step || clock->count == 0 || clock->known != clock->count ||
	    device_ns <= clock->marks[clock->known - 1].device_ns)
		return;
	clock->end.device_ns = device_ns;
	clock->complete = clock->over;
}

uint64_t spw_control__device_clock_mark(struct control *control, uint64_t host_ns)
{
	struct device_clock *clock = device_clock_of(control, control->step);

	if (!control->recording || clock->count == PACE_MARKS_MAX)
		return 0;
	control->marked_ns = host_ns;
	clock->marks[clock->count++].host_ns = host_ns;
	return (uint64_t)control->step << STEP_SHIFT | clock->count;
}

void spw_control__device_clock_marked(struct control *control, uint64_t mark, uint64_t device_ns)
{
	uint32_t step = (uint32_t)(mark >> STEP_SHIFT), number = (uint32_t)mark;
	struct device_clock *clock = device_clock_of(control, step);

	if (number == 1)
		step_has_come_to_its_end(device_clock_of(control, step - 1), step - 1, device_ns);
	if (clock->step != step || number > clock->count || number != clock->known + 1)
		return;
	if (number > 1 && device_ns < clock->marks[number - 2].device_ns)
		return;
	clock->marks[clock->known++].device_ns = device_ns;
}

uint64_t spw_control__device_clock_ns(const struct control *control, uint64_t host_ns)
{
	const struct device_clock *now =
		&control->paces[control->step % SPW_ARRAY_LEN(control->paces)];
	const struct device_clock *clock = &control->signature->device_clock;
	uint64_t since_ns = host_ns - control->marked_ns, next_ns, host_took_ns;
	const struct mark *last, *next;

	if (!clock->complete || now->count == 0)
		return host_ns;
	if (now->over)
		return clock->end.device_ns - clock->marks[0].device_ns;
	if (now->count > clock->count) /* this one goes on for longer */
		return clock->end.device_ns - clock->marks[0].device_ns + since_ns;
	last = &clock->marks[now->count - 1];
	next = now->count < clock->count ? last + 1 : &clock->end;
	next_ns = next->device_ns;
	host_took_ns = next->host_ns - last->host_ns;
	if (since_ns < host_took_ns)
		next_ns = last->device_ns + (uint64_t)((double)(next_ns - last->device_ns) *
						       (double)since_ns / (double)host_took_ns);
	return next_ns - clock->marks[0].device_ns;
}

void spw_control__device_clock_begin(struct control *control)
{
	struct device_clock *clock = device_clock_of(control, control->step);

	control->marked_ns = 0;
	clock->step = control->step;
	clock->signature = clock->count = clock->known = 0;
	clock->over = clock->complete = false;
}

void spw_control__device_clock_end(struct control *control, uint64_t host_ns)
{
	struct device_clock *clock = device_clock_of(control, control->step);

	clock->end.host_ns = host_ns;
	clock->over = true;
}

void spw_control__device_clock_belongs(struct control *control)
{
	device_clock_of(control, control->step)->signature = control->signature->id;
}

void spw_control__device_clock_adopt(struct control *control)
{
	for (unsigned i = 0; i < SIGNATURES_MAX; i++) {
		struct device_clock *adopted = &control->signatures[i].device_clock;

		for (unsigned k = 0; k < SPW_ARRAY_LEN(control->paces); k++) {
			const struct device_clock *clock = &control->paces[k];

			if (clock->complete && clock->signature > 0 &&
			    clock->signature == control->signatures[i].id &&
			    (!adopted->complete || clock->step > adopted->step))
				*adopted = *clock;
		}
	}
}

uint32_t spw_control__device_clock_timed_by(const struct control *control)
{
	return control->signature->device_clock.complete ? control->signature->id : 0;
}

bool spw_control__device_clock_awaits(struct control *control, uint32_t timed_by)
{
	const struct signature *signature = control->signature;

	if (timed_by == signature->id || device_clock_of(control, control->step)->count == 0)
		return false;
	/* One more than may be on their way: it is timed by the marks of the last of these. */
	if (signature->unplanned_steps <= PACES + 1)
		return true;
	spw_notice(control->opts.notices, CONTROL_NOTICE_PACE,
		   "in %u steps the device has not told when it came to its marks: a plan is made "
		   "by the host's times, which leave the drives less",
		   signature->unplanned_steps);
	return false;
}
