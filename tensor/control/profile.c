/* SPDX-License-Identifier: MIT */
/*
 * tensor/control/profile.c - the memory in use over a step, in a fixed number of bins
 *
 * Each bin has the most that was in use in its time. How long the step will be is not known: when
 * all bins are full, two become one, and each is for twice the time. Their width is a power of two:
 * each tensor looks for its bin, several times.
 */
#include <string.h>

#include "tensor/control/internal.h"
#include "tensor/control/profile.h"

#define WIDTH_SHIFT_MIN 10u /* bins of about a microsecond */

static void begin(struct profile *profile)
{
	profile->width_shift = WIDTH_SHIFT_MIN;
	profile->used = 0;
}

void spw_control__profile_step_began(struct control *control)
{
	if (control->opts.count->steps > 1) /* before the first there was none */
		control->profile_before = control->profile;
	begin(&control->profile);
	spw_control__profile_note(control);
}

static void halve(struct profile *profile)
{
	for (uint32_t i = 0; i < SPW_MEMORY_POINTS_MAX / 2; i++) {
		const struct spw_memory_point *one = &profile->bins[2 * i], *other = one + 1;

		profile->bins[i] = (struct spw_memory_point){
			.bytes = SPW_MAX(one->bytes, other->bytes),
			.keep_all_bytes = SPW_MAX(one->keep_all_bytes, other->keep_all_bytes),
		};
	}
	profile->used = SPW_MEMORY_POINTS_MAX / 2;
	profile->width_shift++;
}

/* Bins from the last one that was used up to @index have what is in use since then. */
static void fill(struct profile *profile, uint64_t index)
{
	while (profile->used <= index)
		profile->bins[profile->used++] = profile->now;
}

void spw_control__profile_note(struct control *control)
{
	struct profile *profile = &control->profile;
	uint64_t ns = spw_since_ns(control->began_ns, control_clock_ns(control));
	struct spw_memory_point *bin;

	while (ns >> profile->width_shift >= SPW_MEMORY_POINTS_MAX) {
		fill(profile, SPW_MEMORY_POINTS_MAX - 1);
		halve(profile);
	}
	fill(profile, ns >> profile->width_shift);
	profile->now = (struct spw_memory_point){.bytes = control->memory_bytes,
						 .keep_all_bytes = control->keep_all_bytes};
	bin = &profile->bins[ns >> profile->width_shift];
	bin->bytes = SPW_MAX(bin->bytes, profile->now.bytes);
	bin->keep_all_bytes = SPW_MAX(bin->keep_all_bytes, profile->now.keep_all_bytes);
}

unsigned spw_control__profile(const struct control *control, struct spw_memory_point points[])
{
	const struct profile *profile = &control->profile_before;

	for (uint32_t i = 0; i < profile->used; i++) {
		points[i] = profile->bins[i];
		points[i].ns = (uint64_t)i << profile->width_shift;
	}
	return profile->used;
}
