/* SPDX-License-Identifier: MIT */
/* tensor/publish.c - how the cache is doing: for the store to publish, and over the last step */
#include "tensor/internal.h"

void spw_cache__publish(struct spw_cache *cache)
{
	struct spw_cache_stats now = cache->count;
	struct spw_step_stats steps;

	if (!cache->store)
		return;
	spw_control_stats(cache->control, &now);
	steps = (struct spw_step_stats){
		.size = sizeof(steps),
		.steps = now.steps,
		.waits = now.prefetch_late + now.misses,
		.stall_ns = now.stall_ns,
		.bytes_offered = now.bytes_offered,
		.bytes_spilled = now.bytes_spilled,
		.bytes_read = now.bytes_read,
		.bytes_forwarded = now.bytes_forwarded,
		.bytes_kept_wear = now.bytes_kept_wear,
		.activation_bytes = now.activation_bytes,
		.step_compute_ns = now.step_compute_ns,
		.step_stall_ns = now.step_stall_ns,
		.step_peak_bytes = now.step_peak_bytes,
		.plan_tensors = now.plan_tensors,
		.plan_tensors_spilled = now.plan_tensors_spilled,
		.plan_peak_bytes = now.plan_peak_bytes,
		.plan_keep_all_bytes = now.plan_keep_all_bytes,
		.plan_bytes_written = now.plan_bytes_written,
		.plan_stall_ns = now.plan_stall_ns,
		.plans = now.plans,
		.steps_planned = now.steps_planned,
		.plans_limited = now.plans_limited,
		.wear_bytes_per_day = now.wear_bytes_per_day,
		.write_bytes_per_second = now.write_bytes_per_second,
		.read_bytes_per_second = now.read_bytes_per_second,
		.mixed_bytes_per_second = now.mixed_bytes_per_second,
	};
#define ADD_KEPT(reason, counter) steps.bytes_kept += now.bytes_kept_##counter;
	KEPT_COUNTERS(ADD_KEPT)
#undef ADD_KEPT
	cache->ports.publish_steps(cache->store, &steps);
}

unsigned spw_cache_profile(struct spw_cache *cache, struct spw_memory_point points[],
			   unsigned count)
{
	struct spw_memory_point all[SPW_MEMORY_POINTS_MAX];
	unsigned found;

	spw_cache__lock(cache);
	found = spw_control_profile(cache->control, all);
	spw_cache__unlock(cache);
	memcpy(points, all, SPW_MIN(found, count) * sizeof(*points));
	return found;
}
