/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_abi.c - public structs as programs that were built before know them
 *
 * A program says how large its struct was, so members may be appended, and never be inserted, moved
 * or removed. To append one, put its name, offset and the new size here, and a line into
 * CHANGELOG.md.
 */
#include "tests/case.h"

#include <spillway/spillway.h>

/* The last member, where it is, and how large all is. */
#define ABI(type, last, offset, size)                                          \
	{                                                                      \
#type, #last, offsetof(type, last), offset, sizeof(type), size \
	}

/*
 * Of a table of counters that grows by a line: this member has others before it, as ever. It is set
 * to the last one at a release.
 */
#define COUNTERS(type, last, offset) ABI(type, last, offset, sizeof(type))

static const struct {
	const char *type, *last;
	size_t offset, offset_known, size, size_known;
} structs[] = {
	ABI(struct spw_log, context, 8, 16),
	ABI(struct spw_log_line, text, 8, 520),
	ABI(struct spw_counter, len_bytes, 48, 56),
	ABI(struct spw_geometry, reserved, 264, 312),
	ABI(struct spw_device_opts, log, 16, 32),
	ABI(struct spw_arena_opts, log, 24, 40),
	ABI(struct spw_io, placement, 108, 112),
	ABI(struct spw_tune_settings, wait, 16, 24),
	ABI(struct spw_tune, write, 32, 56),
	ABI(struct spw_queue_opts, null_bytes_per_second, 72, 80),
	ABI(struct spw_queue_stats, drives_placing, 124, 128),
	ABI(struct spw_nvme_info, protection_type, 232, 240),
	ABI(struct spw_wear, reason, 56, 312),
	ABI(struct spw_vfio_obstacle, text, 5, 328),
	ABI(struct spw_vfio_probe_info, device_node, 4664, 4856),
	ABI(struct spw_vfio_bind_opts, alone, 32, 40),
	ABI(struct spw_format_opts, erase, 48, 56),
	ABI(struct spw_wipe_opts, log, 16, 32),
	ABI(struct spw_store_info, partitions_in_use, 88, 96),
	ABI(struct spw_drive_info, reason, 660, 920),
	ABI(struct spw_probe_info, address, 1001, 1264),
	ABI(spw_object, value, 0, 8),
	ABI(struct spw_store_opts, null_bytes_per_second, 96, 104),
	ABI(struct spw_commit_info, runs_single, 56, 64),
	ABI(struct spw_notify, context, 8, 16),
	COUNTERS(struct spw_store_stats, bytes_helped, 280),
	ABI(struct spw_store_traffic, bytes_in_flight, 16, 24),
	ABI(struct spw_store_pressure, depth, 92, 96),
	ABI(struct spw_scrub_drive, copies_repaired, 24, 32),
	ABI(struct spw_scrub, drive, 32, 2080),
	ABI(struct spw_latencies, sum_ns, 136, 144),
	ABI(struct spw_drive_stats, write_latencies, 576, 720),
	ABI(struct spw_status, steps, 46640, 46640 + sizeof(struct spw_cache_stats)),
	ABI(struct spw_status_name, partition, 40, 44),
	ABI(struct spw_state_opts, device_every, 44, 48),
	COUNTERS(struct spw_state_stats, device_every, 216),
	ABI(struct spw_plan_tensor, not_again, 41, 48),
	ABI(struct spw_plan_step, calls, 40, 48),
	ABI(struct spw_plan_drives, bus_in_bytes_per_second, 56, 64),
	ABI(struct spw_plan_opts, bytes_written_max, 24, 32),
	ABI(struct spw_plan_result, spans, 104, 112),
	ABI(struct spw_plan_point, bytes, 8, 16),
	ABI(struct spw_plan_scope, may_again, 20, 24),
	ABI(struct spw_plan_flow, bytes_written, 24, 32),
	ABI(struct spw_plan_scopes, unthrottled, 56, 64),
	ABI(struct spw_plan_span, which, 20, 24),
	ABI(struct spw_plan_record, saved_ns, 32, 40),
	ABI(struct spw_plan_other_way, peak_bytes, 16, 24),
	ABI(struct spw_plan_reason, ways, 40, 136),
	ABI(struct spw_trace_event, wait_ns, 88, 96),
	ABI(struct spw_trace, storages, 28, 32),
	ABI(spw_tensor, value, 0, 8),
	ABI(struct spw_cache_opts, endurance_bytes, 96, 104),
	ABI(struct spw_offer, owner, 48, 56),
	ABI(struct spw_taken, storage_bytes_total, 32, 40),
	ABI(struct spw_copy, order, 24, 32),
	ABI(struct spw_memory_point, keep_all_bytes, 16, 24),
	ABI(struct spw_device_times, in_ns, 32, 40),
	ABI(struct spw_cache_reason, reason, 32, 168),
	COUNTERS(struct spw_cache_stats, budget_steps_over, 1080),
};

CASE(test_public_structs_are_appended_to_only)
{
	for (size_t i = 0; i < sizeof(structs) / sizeof(structs[0]); i++) {
		if (structs[i].offset != structs[i].offset_known)
			fail_msg("%s: %s is at %zu, was at %zu: append only", structs[i].type,
				 structs[i].last, structs[i].offset, structs[i].offset_known);
		if (structs[i].size != structs[i].size_known)
			fail_msg("%s: has %zu bytes, had %zu: append only, and say so here",
				 structs[i].type, structs[i].size, structs[i].size_known);
	}
}

RUN_CASES(NULL, NULL)
