/* SPDX-License-Identifier: MIT */
/*
 * spillway/counters.h - what the library counts: one line for each counter
 *
 * These tables define the structs that spw_cache_stats(), spw_store_stats() and spw_state_stats()
 * fill, stats() of the Python package, the output of `spillway top` as text, JSON and OpenMetrics,
 * and docs/COUNTERS.md. Add a new counter at the end of its table: programs built earlier rely on
 * the offsets of the existing members.
 *
 * Contract
 *   Threads    Any thread; nothing is kept between calls.
 *   Errors     0, or a negative errno with spw_last_error().
 */
#ifndef SPILLWAY_COUNTERS_H
#define SPILLWAY_COUNTERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <spillway/error.h>

#ifdef __cplusplus
extern "C" {
#endif

enum spw_counter_kind {
	SPW_COUNTER_TOTAL, /* since the cache, store or state was opened: it only grows */
	/* present value, or that of the last step that ended, or of the plan in force */
	SPW_COUNTER_GAUGE,
	SPW_COUNTER_PEAK, /* highest value of the gauge above it, since opening or a reset */
};

enum spw_counter_unit {
	SPW_COUNTER_NUMBER,
	SPW_COUNTER_BYTES,
	SPW_COUNTER_NS,
	SPW_COUNTER_BYTES_PER_SECOND,
	SPW_COUNTER_BYTES_PER_DAY,
	SPW_COUNTER_PERCENT,
	SPW_COUNTER_CAUSE, /* enum spw_budget_cause */
};

enum spw_counter_view {
	SPW_COUNTER_MAIN, /* also in what `spillway top` prints for people */
	SPW_COUNTER_MORE,
};

/* X(type, name, kind, unit, group, view, help): related counters have the same group. */
/* clang-format off */

/* A tensor cache. Bytes are those of whole tensors. */
#define SPW_CACHE_COUNTERS(X) \
	X(uint64_t, steps, TOTAL, NUMBER, steps, MAIN, "Training steps that have begun.") \
	X(uint64_t, offers, TOTAL, NUMBER, steps, MORE, "Tensors that were offered.") \
	X(uint64_t, takes, TOTAL, NUMBER, steps, MORE, "Tensors that were taken back.") \
	X(uint64_t, releases, TOTAL, NUMBER, steps, MORE, "Users of tensors that have ended.") \
	X(uint32_t, entries, GAUGE, NUMBER, memory, MORE, "Entries that exist now.") \
	X(uint64_t, activation_bytes, GAUGE, BYTES, memory, MAIN, \
		"In memory now: kept, waiting to be written, being read, or leased.") \
	X(uint64_t, activation_bytes_max, PEAK, BYTES, memory, MAIN, "Most of it.") \
	X(uint64_t, bytes_offered, TOTAL, BYTES, traffic, MAIN, \
		"Of all offers, duplicates included.") \
	X(uint64_t, bytes_spilled, TOTAL, BYTES, traffic, MAIN, \
		"Written to the drives, whole tensors.") \
	X(uint64_t, bytes_read, TOTAL, BYTES, traffic, MAIN, "Read back.") \
	X(uint64_t, bytes_forwarded, TOTAL, BYTES, traffic, MAIN, \
		"Taken while still in memory because of a write; each entry once.") \
	X(uint64_t, bytes_deduplicated, TOTAL, BYTES, traffic, MAIN, \
		"Of offers of bytes that an entry had already.") \
	X(uint64_t, bytes_kept_small, TOTAL, BYTES, kept, MORE, "Smaller than min_bytes.") \
	X(uint64_t, bytes_kept_last_scope, TOTAL, BYTES, kept, MORE, \
		"Of the last scope, whose backward pass comes at once.") \
	X(uint64_t, bytes_kept_backpressure, TOTAL, BYTES, kept, MAIN, \
		"Too much was waiting to be written.") \
	X(uint64_t, bytes_kept_no_space, TOTAL, BYTES, kept, MAIN, "The store was full.") \
	X(uint64_t, bytes_kept_error, TOTAL, BYTES, kept, MAIN, "A write failed.") \
	X(uint64_t, bytes_kept_entries, TOTAL, BYTES, kept, MAIN, "All entries were in use.") \
	X(uint64_t, bytes_kept_observed, TOTAL, BYTES, kept, MORE, \
		"Mode observe keeps everything.") \
	X(uint64_t, bytes_kept_backward, TOTAL, BYTES, kept, MORE, "Saved in a backward stage.") \
	X(uint64_t, writes_cancelled, TOTAL, NUMBER, traffic, MORE, \
		"Writes that were cancelled before they were issued.") \
	X(uint64_t, bytes_writes_cancelled, TOTAL, BYTES, traffic, MORE, "The same, in bytes.") \
	X(uint64_t, prefetches, TOTAL, NUMBER, reads, MAIN, \
		"Reads that began before the tensor was taken.") \
	X(uint64_t, prefetch_hits, TOTAL, NUMBER, reads, MAIN, \
		"Taken after the prefetch had ended.") \
	X(uint64_t, prefetch_late, TOTAL, NUMBER, reads, MAIN, \
		"Taken while the prefetch was in flight.") \
	X(uint64_t, misses, TOTAL, NUMBER, reads, MAIN, \
		"Taken when on the drives, without a prefetch.") \
	X(uint64_t, stall_ns, TOTAL, NS, steps, MAIN, "That takes waited for I/O.") \
	X(uint64_t, read_memory_outside_arena_bytes, TOTAL, BYTES, reads, MORE, \
		"Read into ordinary memory, as the arena was full.") \
	X(uint64_t, staging_bytes, GAUGE, BYTES, memory, MAIN, \
		"Given to the store to be written, not ended.") \
	X(uint64_t, staging_bytes_max, PEAK, BYTES, memory, MORE, "Most of it.") \
	X(uint64_t, prefetched_bytes, GAUGE, BYTES, memory, MAIN, \
		"Read before their use in this step, or not returned.") \
	X(uint64_t, prefetched_bytes_max, PEAK, BYTES, memory, MORE, "Most of it.") \
	X(uint64_t, tensors_spilled, TOTAL, NUMBER, traffic, MORE, "Tensors of bytes_spilled.") \
	X(uint64_t, tensors_forwarded, TOTAL, NUMBER, traffic, MORE, \
		"Tensors of bytes_forwarded.") \
	X(uint64_t, tensors_deduplicated, TOTAL, NUMBER, traffic, MORE, \
		"Tensors of bytes_deduplicated.") \
	X(uint64_t, tensors_kept_small, TOTAL, NUMBER, kept, MORE, "Tensors of bytes_kept_small.") \
	X(uint64_t, tensors_kept_last_scope, TOTAL, NUMBER, kept, MORE, \
		"Tensors of bytes_kept_last_scope.") \
	X(uint64_t, tensors_kept_backpressure, TOTAL, NUMBER, kept, MORE, \
		"Tensors of bytes_kept_backpressure.") \
	X(uint64_t, tensors_kept_no_space, TOTAL, NUMBER, kept, MORE, \
		"Tensors of bytes_kept_no_space.") \
	X(uint64_t, tensors_kept_error, TOTAL, NUMBER, kept, MORE, "Tensors of bytes_kept_error.") \
	X(uint64_t, tensors_kept_entries, TOTAL, NUMBER, kept, MORE, \
		"Tensors of bytes_kept_entries.") \
	X(uint64_t, tensors_kept_observed, TOTAL, NUMBER, kept, MORE, \
		"Tensors of bytes_kept_observed.") \
	X(uint64_t, tensors_kept_backward, TOTAL, NUMBER, kept, MORE, \
		"Tensors of bytes_kept_backward.") \
	X(uint64_t, writes_failed, TOTAL, NUMBER, traffic, MAIN, \
		"Writes that failed: the tensor stays in memory.") \
	X(uint64_t, prefetches_failed, TOTAL, NUMBER, reads, MAIN, \
		"Prefetches that failed: the take reads once more.") \
	X(uint64_t, reads_failed, TOTAL, NUMBER, reads, MAIN, \
		"Reads that a take waited for, and that failed.") \
	X(uint64_t, prefetch_budget_bytes, GAUGE, BYTES, reads, MORE, \
		"How far the last backward stage prefetched.") \
	X(uint64_t, bytes_kept_planned, TOTAL, BYTES, kept, MAIN, "The plan said so.") \
	X(uint64_t, bytes_kept_hint, TOTAL, BYTES, kept, MORE, "The caller said so.") \
	X(uint64_t, tensors_kept_planned, TOTAL, NUMBER, kept, MORE, \
		"Tensors of bytes_kept_planned.") \
	X(uint64_t, tensors_kept_hint, TOTAL, NUMBER, kept, MORE, "Tensors of bytes_kept_hint.") \
	X(uint64_t, prefetches_across, TOTAL, NUMBER, reads, MORE, \
		"Prefetches for a stage that had not begun.") \
	X(uint64_t, steps_planned, TOTAL, NUMBER, steps, MAIN, \
		"Steps that ended by a plan throughout.") \
	X(uint64_t, steps_fixed, TOTAL, NUMBER, steps, MAIN, \
		"Steps that ended, some of it by the fixed rule.") \
	X(uint64_t, plans, TOTAL, NUMBER, plan, MAIN, "Plans that were made.") \
	X(uint64_t, plans_shape, TOTAL, NUMBER, plan, MORE, \
		"Made because the step had other scopes or tensors.") \
	X(uint64_t, plans_timeline, TOTAL, NUMBER, plan, MORE, \
		"Made because the step's times had changed.") \
	X(uint64_t, plans_bandwidth, TOTAL, NUMBER, plan, MORE, \
		"Made because the drives' bandwidth had changed.") \
	X(uint64_t, plans_stall, TOTAL, NUMBER, plan, MORE, \
		"Made because steps waited for the drives.") \
	X(uint64_t, plans_memory, TOTAL, NUMBER, plan, MORE, \
		"Made because steps used more memory than planned.") \
	X(uint64_t, plans_failed, TOTAL, NUMBER, plan, MAIN, \
		"Not made, or of a budget that cannot be met.") \
	X(uint64_t, plan_mismatches, TOTAL, NUMBER, plan, MAIN, \
		"Steps that left the plan: other scopes or other tensors.") \
	X(uint64_t, plan_probes, TOTAL, NUMBER, plan, MORE, \
		"Tensors spilled only to measure the drives.") \
	X(uint64_t, recordings_short, TOTAL, NUMBER, plan, MAIN, \
		"Steps of more tensors or scopes than there is room to record.") \
	X(uint64_t, steps_hurried, TOTAL, NUMBER, steps, MORE, \
		"Steps that stalled, and then prefetched earlier than planned.") \
	X(uint64_t, plan_cost_ns, GAUGE, NS, plan, MORE, \
		"Time of the last search for a plan, beside a step.") \
	X(uint64_t, plan_tensors, GAUGE, NUMBER, plan, MAIN, \
		"Tensors of the plan in force; 0: there is none.") \
	X(uint64_t, plan_tensors_spilled, GAUGE, NUMBER, plan, MAIN, "Tensors that it spills.") \
	X(uint64_t, plan_peak_bytes, GAUGE, BYTES, plan, MAIN, "Most in memory by the plan.") \
	X(uint64_t, plan_keep_all_bytes, GAUGE, BYTES, plan, MAIN, \
		"Most in memory if nothing were spilled.") \
	X(uint64_t, plan_stall_ns, GAUGE, NS, plan, MAIN, "Waited in a step by the plan.") \
	X(uint64_t, plan_wall_ns, GAUGE, NS, plan, MORE, "Time of a step by the plan.") \
	X(uint64_t, plan_bytes_written, GAUGE, BYTES, plan, MAIN, \
		"Written in a step by the plan.") \
	X(uint64_t, plan_bytes_read, GAUGE, BYTES, plan, MORE, "Read in a step by the plan.") \
	X(uint64_t, plan_bytes_forwarded, GAUGE, BYTES, plan, MORE, \
		"Taken before their write has ended, by the plan.") \
	X(uint64_t, plan_memory_bytes, GAUGE, BYTES, plan, MORE, \
		"How far prefetching may fill the memory.") \
	X(uint64_t, plan_caution_percent, GAUGE, PERCENT, plan, MORE, \
		"Of the bandwidth measured, what the plan counts on.") \
	X(uint64_t, step_compute_ns, GAUGE, NS, step, MAIN, \
		"The last step, less what takes waited for I/O.") \
	X(uint64_t, step_forward_ns, GAUGE, NS, step, MORE, "Its forward stages.") \
	X(uint64_t, step_backward_ns, GAUGE, NS, step, MORE, "Its backward stages.") \
	X(uint64_t, step_stall_ns, GAUGE, NS, step, MAIN, "That its takes waited for I/O.") \
	X(uint64_t, step_peak_bytes, GAUGE, BYTES, step, MAIN, "Most in memory in it.") \
	X(uint64_t, write_bytes_per_second, GAUGE, BYTES_PER_SECOND, drives, MAIN, \
		"Of all drives while busy with this cache's writes; 0: not known.") \
	X(uint64_t, read_bytes_per_second, GAUGE, BYTES_PER_SECOND, drives, MAIN, \
		"The same of reads.") \
	X(uint64_t, mixed_bytes_per_second, GAUGE, BYTES_PER_SECOND, drives, MAIN, \
		"Sum of both while both were in flight.") \
	X(uint64_t, drive_latency_ns, GAUGE, NS, drives, MAIN, \
		"Of a small transfer; 0: not known.") \
	X(uint64_t, plan_switches, TOTAL, NUMBER, plan, MORE, \
		"Steps that went on by the plan of another step signature.") \
	X(uint64_t, bytes_compared, TOTAL, BYTES, traffic, MORE, \
		"Of duplicates, compared with what the drives were given.") \
	X(uint64_t, offers_changed, TOTAL, NUMBER, traffic, MAIN, \
		"Would be duplicates, but have other bytes.") \
	X(uint64_t, bytes_kept_changed, TOTAL, BYTES, kept, MAIN, \
		"Changed while they were written, so not stored.") \
	X(uint64_t, tensors_kept_changed, TOTAL, NUMBER, kept, MORE, \
		"Tensors of bytes_kept_changed.") \
	X(uint64_t, bytes_kept_no_staging, TOTAL, BYTES, device, MAIN, \
		"Kept, as no staging memory was free.") \
	X(uint64_t, tensors_kept_no_staging, TOTAL, NUMBER, device, MORE, \
		"Tensors of bytes_kept_no_staging.") \
	X(uint64_t, device_bytes, GAUGE, BYTES, device, MAIN, \
		"Of activation_bytes, in memory of devices, with what was handed out until " \
		"its release.") \
	X(uint64_t, device_bytes_max, PEAK, BYTES, device, MAIN, "Most of it.") \
	X(uint64_t, device_staging_bytes, GAUGE, BYTES, device, MAIN, \
		"Staging memory both ways; no part of activation_bytes.") \
	X(uint64_t, device_staging_bytes_max, PEAK, BYTES, device, MORE, "Most of it.") \
	X(uint64_t, copies, TOTAL, NUMBER, device, MORE, \
		"Copies from devices to staging memory that ended well.") \
	X(uint64_t, bytes_copied, TOTAL, BYTES, device, MAIN, "The same, in bytes.") \
	X(uint64_t, copies_failed, TOTAL, NUMBER, device, MAIN, "Copies that failed.") \
	X(uint64_t, bytes_copied_again, TOTAL, BYTES, device, MORE, \
		"Copied once more, as the memory may have changed meanwhile.") \
	X(uint64_t, copies_ordered, TOTAL, NUMBER, device, MORE, \
		"Memory returned by order of a stream, before its copy had ended.") \
	X(uint64_t, staging_waits, TOTAL, NUMBER, device, MORE, "Waited for staging memory.") \
	X(uint64_t, tensors_ahead, TOTAL, NUMBER, device, MORE, \
		"Tensors handed out before their use.") \
	X(uint64_t, bytes_kept_wear, TOTAL, BYTES, kept, MAIN, "The cap on wear was used up.") \
	X(uint64_t, tensors_kept_wear, TOTAL, NUMBER, kept, MORE, "Tensors of bytes_kept_wear.") \
	X(uint64_t, wear_bytes_per_day, GAUGE, BYTES_PER_DAY, wear, MAIN, \
		"The cap, also where years were given; 0: no limit.") \
	X(uint64_t, plans_limited, TOTAL, NUMBER, wear, MAIN, \
		"Plans that spill less because of the cap.") \
	X(uint64_t, plan_bytes_written_max, GAUGE, BYTES, wear, MAIN, \
		"What the plan in force may write in a step; 0: no limit.") \
	X(uint64_t, device_stall_ns, TOTAL, NS, device, MAIN, \
		"Of stall_ns, what devices measured.") \
	X(uint64_t, host_wait_ns, TOTAL, NS, device, MORE, \
		"Since then: takes that waited for bytes of devices; no part of stall_ns.") \
	X(uint64_t, bus_out_bytes_per_second, GAUGE, BYTES_PER_SECOND, device, MAIN, \
		"Copies to staging memory, while in flight; 0: not known.") \
	X(uint64_t, bus_in_bytes_per_second, GAUGE, BYTES_PER_SECOND, device, MAIN, \
		"Copies from staging memory, while in flight; 0: not known.") \
	X(uint64_t, bytes_given_up, TOTAL, BYTES, recompute, MAIN, "Discarded, to be recomputed.") \
	X(uint64_t, tensors_given_up, TOTAL, NUMBER, recompute, MORE, \
		"Tensors of bytes_given_up.") \
	X(uint64_t, bytes_restored, TOTAL, BYTES, recompute, MAIN, \
		"Of those, in memory again: recomputed, or offered again.") \
	X(uint64_t, tensors_restored, TOTAL, NUMBER, recompute, MORE, \
		"Tensors of bytes_restored.") \
	X(uint64_t, restores_refused, TOTAL, NUMBER, recompute, MAIN, \
		"Recomputed with other bytes than those that were discarded.") \
	X(uint64_t, bytes_checked, TOTAL, BYTES, recompute, MORE, \
		"Read for checksums of what is discarded and restored.") \
	X(uint64_t, scopes_again, TOTAL, NUMBER, recompute, MAIN, \
		"Scopes recomputed in backward stages, with trials.") \
	X(uint64_t, again_ns, TOTAL, NS, recompute, MAIN, "The time that took.") \
	X(uint64_t, step_again_ns, GAUGE, NS, recompute, MAIN, "The same in the last step.") \
	X(uint64_t, plan_scopes_again, GAUGE, NUMBER, recompute, MAIN, \
		"Scopes that the plan in force recomputes in a step.") \
	X(uint64_t, plan_again_ns, GAUGE, NS, recompute, MORE, "How long that takes.") \
	X(uint64_t, holds, TOTAL, NUMBER, steps, MAIN, \
		"Times that a forward pass waited for memory, as planned or for the budget.") \
	X(uint64_t, hold_ns, TOTAL, NS, steps, MAIN, "How long.") \
	X(uint64_t, step_hold_ns, GAUGE, NS, step, MAIN, \
		"The same in the last step; neither compute nor stall.") \
	X(uint64_t, step_cpu_ns_max, PEAK, NS, step, MORE, \
		"Most CPU time that spw_cache_step() has taken; no search is in it.") \
	X(uint64_t, plan_wait_ns, TOTAL, NS, plan, MORE, \
		"Of steps that ended before the search for a plan did.") \
	X(uint64_t, plans_here, TOTAL, NUMBER, plan, MORE, \
		"Searched for by spw_cache_step() itself, as there was no thread.") \
	X(uint64_t, budget_bytes, GAUGE, BYTES, budget, MAIN, "The budget; 0: there is none.") \
	X(uint64_t, budget_cause, GAUGE, CAUSE, budget, MAIN, \
		"Why the last step exceeded it, as enum spw_budget_cause; 0: it did not.") \
	X(uint64_t, budget_over_bytes, GAUGE, BYTES, budget, MAIN, \
		"By how much the last step exceeded it.") \
	X(uint64_t, budget_over_bytes_max, PEAK, BYTES, budget, MORE, "Most of it.") \
	X(uint64_t, budget_steps_over, TOTAL, NUMBER, budget, MAIN, "Steps that exceeded it.") \
	X(uint64_t, waits, TOTAL, NUMBER, steps, MAIN, \
		"Takes that waited for I/O: prefetch_late and misses.") \
	X(uint64_t, bytes_kept, TOTAL, BYTES, traffic, MAIN, "Kept in memory, for any reason.") \
	X(uint64_t, steps_resting, TOTAL, NUMBER, steps, MAIN, \
		"Steps in which nothing was offered, as their plan moves nothing.") \
	X(uint64_t, host_memory_bytes, GAUGE, BYTES, device, MAIN, \
		"Host memory in which copies of devices' tensors may stay; 0: none.") \
	X(uint64_t, host_bytes, GAUGE, BYTES, device, MAIN, \
		"Copies that stay there until their last use; no part of activation_bytes.") \
	X(uint64_t, host_bytes_max, PEAK, BYTES, device, MAIN, "Most of it.") \
	X(uint64_t, bytes_to_host, TOTAL, BYTES, device, MAIN, \
		"Copied there to stay, and not written.") \
	X(uint64_t, tensors_to_host, TOTAL, NUMBER, device, MORE, "Tensors of bytes_to_host.") \
	X(uint64_t, host_hits, TOTAL, NUMBER, device, MAIN, \
		"Takes of tensors that came back from there.") \
	X(uint64_t, plan_tensors_host, GAUGE, NUMBER, plan, MAIN, \
		"Of plan_tensors_spilled, those that stay in host memory.") \
	X(uint64_t, plan_bytes_host, GAUGE, BYTES, plan, MAIN, "The same, in bytes.")

/* An open partition. Bytes are counted as the caller does, unless the help says otherwise. */
#define SPW_STORE_COUNTERS(X) \
	X(uint32_t, drives, GAUGE, NUMBER, drives, MAIN, "Drives that it has.") \
	X(uint32_t, drives_retired, GAUGE, NUMBER, drives, MAIN, "Drives that get nothing new.") \
	X(uint32_t, partition, GAUGE, NUMBER, drives, MORE, "The partition that is open.") \
	X(uint32_t, requests, GAUGE, NUMBER, requests, MAIN, "Requests in flight.") \
	X(uint32_t, objects, GAUGE, NUMBER, requests, MAIN, "Objects that exist.") \
	X(uint64_t, capacity_bytes, GAUGE, BYTES, space, MAIN, "Of the partition on all drives.") \
	X(uint64_t, used_bytes, GAUGE, BYTES, space, MAIN, "In use.") \
	X(uint64_t, used_bytes_max, PEAK, BYTES, space, MORE, "Most of it.") \
	X(uint64_t, puts, TOTAL, NUMBER, requests, MAIN, "Objects that were stored.") \
	X(uint64_t, gets, TOTAL, NUMBER, requests, MAIN, "Reads of objects.") \
	X(uint64_t, frees, TOTAL, NUMBER, requests, MORE, "Objects that were freed.") \
	X(uint64_t, bytes_put, TOTAL, BYTES, traffic, MAIN, "Of objects that were stored.") \
	X(uint64_t, bytes_got, TOTAL, BYTES, traffic, MAIN, "Of objects that were read.") \
	X(uint64_t, bytes_written, TOTAL, BYTES, traffic, MORE, \
		"Written to the drives, whole blocks.") \
	X(uint64_t, bytes_read, TOTAL, BYTES, traffic, MORE, \
		"Read from the drives, whole blocks.") \
	X(uint64_t, bytes_from_memory, TOTAL, BYTES, traffic, MORE, \
		"Got from a put that was still in memory.") \
	X(uint64_t, bytes_copied, TOTAL, BYTES, copies, MAIN, \
		"Through bounce memory, as drives could not take the caller's.") \
	X(uint64_t, copies_unaligned_address, TOTAL, NUMBER, copies, MORE, \
		"Because of the address.") \
	X(uint64_t, copies_unaligned_length, TOTAL, NUMBER, copies, MORE, \
		"Because of the length.") \
	X(uint64_t, copies_partial_chunk, TOTAL, NUMBER, copies, MORE, \
		"Because a part of a chunk was asked for.") \
	X(uint64_t, waits_for_copy_memory, TOTAL, NUMBER, copies, MORE, \
		"Transfers that waited for bounce memory.") \
	X(uint64_t, chunks_split, TOTAL, NUMBER, chunks, MORE, "Placed in more than one extent.") \
	X(uint64_t, chunks_moved, TOTAL, NUMBER, chunks, MORE, \
		"Moved to another drive after a failed write.") \
	X(uint64_t, cancelled, TOTAL, NUMBER, requests, MAIN, "Requests that were cancelled.") \
	X(uint64_t, checksum_errors, TOTAL, NUMBER, errors, MAIN, \
		"Reads that gave other bytes than were written.") \
	X(uint64_t, read_errors, TOTAL, NUMBER, errors, MAIN, "Reads that failed.") \
	X(uint64_t, write_errors, TOTAL, NUMBER, errors, MAIN, "Writes that failed.") \
	X(uint64_t, bypasses, TOTAL, NUMBER, requests, MORE, \
		"Times that a higher priority went first.") \
	X(uint64_t, timeouts, TOTAL, NUMBER, errors, MAIN, \
		"Transfers that missed their deadline.") \
	X(uint64_t, bytes_trimmed, TOTAL, BYTES, traffic, MORE, "Discarded on the drives.") \
	X(uint64_t, registered_bytes, GAUGE, BYTES, copies, MORE, \
		"Of spw_store_register(), known to the drives now.") \
	X(uint64_t, registrations_refused, TOTAL, NUMBER, copies, MORE, \
		"By kernel or backend: the log has the reason.") \
	X(uint64_t, transfers_registered, TOTAL, NUMBER, copies, MORE, \
		"Transfers of registered memory.") \
	X(uint64_t, chunks_single, TOTAL, NUMBER, chunks, MORE, \
		"Of two copies one alone, as no second drive had room.") \
	X(uint64_t, reads_switched, TOTAL, NUMBER, chunks, MORE, \
		"Chunks read from the other copy, as the first did not serve.") \
	X(uint32_t, drives_missing, GAUGE, NUMBER, drives, MAIN, \
		"Drives that it was opened without.") \
	X(uint32_t, workers, GAUGE, NUMBER, copies, MORE, \
		"Threads that compute checksums and copy.") \
	X(uint64_t, bytes_helped, TOTAL, BYTES, copies, MORE, \
		"Bytes that those beside the first did.")

/* Training state as records. */
#define SPW_STATE_COUNTERS(X) \
	X(uint32_t, records, GAUGE, NUMBER, memory, MAIN, "Records.") \
	X(uint32_t, buffers, GAUGE, NUMBER, memory, MAIN, "Buffers in memory.") \
	X(uint64_t, total_bytes, GAUGE, BYTES, memory, MAIN, "Of all records.") \
	X(uint64_t, memory_bytes, GAUGE, BYTES, memory, MAIN, "Of all buffers.") \
	X(uint64_t, takes, TOTAL, NUMBER, takes, MAIN, "Records that were taken.") \
	X(uint64_t, hits, TOTAL, NUMBER, takes, MAIN, \
		"Of takes: still in memory from its use before.") \
	X(uint64_t, ready, TOTAL, NUMBER, takes, MAIN, "Of takes: prefetched in time.") \
	X(uint64_t, waits, TOTAL, NUMBER, takes, MAIN, "Of takes: the caller waited.") \
	X(uint64_t, waits_for_write, TOTAL, NUMBER, takes, MORE, \
		"Of waits: the record was on its way to the drives.") \
	X(uint64_t, wait_ns, TOTAL, NS, takes, MAIN, "How long.") \
	X(uint64_t, reads, TOTAL, NUMBER, traffic, MORE, "Reads that were begun.") \
	X(uint64_t, bytes_read, TOTAL, BYTES, traffic, MAIN, "The same, in bytes.") \
	X(uint64_t, writes, TOTAL, NUMBER, traffic, MORE, "Writes that were begun.") \
	X(uint64_t, bytes_written, TOTAL, BYTES, traffic, MAIN, "The same, in bytes.") \
	X(uint64_t, read_failures, TOTAL, NUMBER, traffic, MAIN, \
		"Reads that failed, prefetches too: a take reads once more.") \
	X(uint64_t, write_failures, TOTAL, NUMBER, traffic, MAIN, \
		"Writes that failed: the record stays in memory, and is put once more.") \
	X(uint64_t, commits, TOTAL, NUMBER, commits, MAIN, "Commits.") \
	X(uint64_t, commit_ns, TOTAL, NS, commits, MAIN, "That the caller waited for them.") \
	X(uint64_t, commit_bytes_written, TOTAL, BYTES, commits, MAIN, \
		"Changed records that were still in memory.") \
	X(uint64_t, passes, TOTAL, NUMBER, takes, MORE, "Passes over the records.") \
	X(uint64_t, passes_departed, TOTAL, NUMBER, takes, MORE, \
		"Of passes: in another order than was said.") \
	X(uint64_t, updates, TOTAL, NUMBER, updates, MAIN, "Updates.") \
	X(uint64_t, host_bytes, TOTAL, BYTES, updates, MORE, "Of updates, what the host did.") \
	X(uint64_t, host_ns, TOTAL, NS, updates, MORE, "How long that took.") \
	X(uint64_t, device_records, TOTAL, NUMBER, updates, MORE, \
		"Of updates, the records that a device did.") \
	X(uint64_t, device_bytes, TOTAL, BYTES, updates, MORE, "The same, in bytes.") \
	X(uint64_t, device_ns, TOTAL, NS, updates, MORE, "How long that took.") \
	X(uint64_t, device_every, GAUGE, NUMBER, updates, MORE, \
		"Each n-th is the device's now; 0: none, or it is being tried.")

/* clang-format on */

#define SPW_COUNTER_MEMBER(type, name, ...) type name;

struct spw_cache_stats {
	size_t size;
	SPW_CACHE_COUNTERS(SPW_COUNTER_MEMBER)
};
SPW_ABI(struct spw_cache_stats, budget_steps_over, 1080, sizeof(struct spw_cache_stats));

struct spw_store_stats {
	size_t size;
	SPW_STORE_COUNTERS(SPW_COUNTER_MEMBER)
};
SPW_ABI(struct spw_store_stats, bytes_helped, 280, sizeof(struct spw_store_stats));

struct spw_state_stats {
	size_t size;
	SPW_STATE_COUNTERS(SPW_COUNTER_MEMBER)
};
SPW_ABI(struct spw_state_stats, device_every, 216, sizeof(struct spw_state_stats));

enum spw_counted {
	SPW_COUNTED_CACHE, /* struct spw_cache_stats */
	SPW_COUNTED_STORE, /* struct spw_store_stats */
	SPW_COUNTED_STATE, /* struct spw_state_stats */
};

/* A line of a table. The texts are constants of the library. */
struct spw_counter {
	size_t size;
	const char *name, *group, *help;
	enum spw_counter_kind kind;
	enum spw_counter_unit unit;
	enum spw_counter_view view;
	/* in its struct; it is an unsigned integer of 4 or 8 bytes */
	uint32_t offset_bytes, len_bytes;
};
SPW_ABI(struct spw_counter, len_bytes, 48, 56);

/**
 * spw_counter_get - describe one counter of a struct of counters
 * @counted:  which struct
 * @index:    of its members, from 0
 * @counter:  set on success
 * @size:     sizeof *@counter
 *
 * Return: 0; -ENOENT there are no more; -EINVAL @counted.
 */
SPW_EXPORT int spw_counter_get(enum spw_counted counted, unsigned index,
			       struct spw_counter *counter, size_t size);

#ifdef __cplusplus
}
#endif
#endif
