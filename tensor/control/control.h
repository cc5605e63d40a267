/* SPDX-License-Identifier: MIT */
/*
 * tensor/control/control.h - the step's controller: told what happens in a step, it answers what
 * stays in memory, what is spilled, and what is read when
 *
 * The cache reports events; the controller records the step, measures the drives, and between
 * steps asks the planner. Its state is its own. It moves no bytes, waits for nothing, and knows
 * nothing of entries but a number for each, its slot.
 *
 * Threads: one at a time, as under the cache's lock; only spw_control__plan() runs without it,
 * beside all but spw_control__step_ended(), spw_control__explain() and spw_control__close().
 */
#ifndef SPW_TENSOR_CONTROL_H
#define SPW_TENSOR_CONTROL_H

#include <stdbool.h>
#include <stdint.h>

#include <spillway/cache.h>
#include <spillway/plan.h>

#include "tensor/control/track.h"
#include "util/notices.h"

#define NO_SCOPE UINT32_MAX

struct control; /* opaque */

enum direction {
	DIRECTION_WRITE,
	DIRECTION_READ,
	DIRECTIONS,
};

/* What is logged once per step; the cache's own kinds come after these. */
enum control_notice {
	CONTROL_NOTICE_SHAPE,
	CONTROL_NOTICE_SHORT,
	CONTROL_NOTICE_PLAN,
	CONTROL_NOTICE_PACE,
	CONTROL_NOTICE_WEAR,   /* once */
	CONTROL_NOTICE_BUDGET, /* and one for each further cause */
	CONTROL_NOTICES = CONTROL_NOTICE_BUDGET + SPW_BUDGET_HELD,
};

struct control_opts {
	struct spw_cache_opts cache;
	uint64_t chunk_bytes; /* of one drive */
	uint32_t drives;
	uint64_t arena_bytes; /* through which tensors of devices pass */
	uint64_t (*clock_ns)(void);
	struct spw_cache_stats *count; /* the cache's counters; the controller adds its own */
	struct spw_notices *notices;   /* of enum control_notice, among others */
};

/* Return: 0; -ENOMEM: spw_control__close() all the same. */
int spw_control__open(const struct control_opts *opts, struct control **control);
void spw_control__close(struct control *control);

/* ---- Events: where the caller is ---- */

/*
 * A step has ended. Return: whether to call spw_control__plan(): a search of milliseconds, which
 * the next step does not wait for. Its plan is in force after that step.
 */
bool spw_control__step_ended(struct control *control);
void spw_control__plan(struct control *control);
void spw_control__step_began(struct control *control);

/* The last step that was seen moved nothing, and nothing is to be moved. */
bool spw_control__is_calm(const struct control *control);
/*
 * Between steps: the next one rests. It is neither recorded nor planned for. Return: whether it
 * does, and set @last if the one after it is to be seen; else it is to be seen itself.
 */
bool spw_control__rest_begin(struct control *control, bool *last);
/* Whether a step rests, and spw_control__rest_begin() would say so of the next one. */
bool spw_control__rests_on(const struct control *control);
void spw_control__rest_end(struct control *control);
bool spw_control__rests(const struct control *control);

void spw_control__stage(struct control *control, uint32_t micro_batch, enum spw_stage stage);
/* Return: the scope's number, or NO_SCOPE. */
uint32_t spw_control__scope_enter(struct control *control, uint64_t key);
/* Left: @outer is the innermost again; NO_SCOPE: none is. */
void spw_control__scope_leave(struct control *control, uint32_t outer);

/* ---- Events: tensors ---- */

/* Until the next call, which lets it go on, the clock stands: all that is told is one event. */
void spw_control__hold_clock(struct control *control, bool hold);

/* Of an entry that begins now. */
struct track spw_control__track(const struct control *control);
/* The same, with its length: before its memory is added. */
void spw_control__saved(struct control *control, uint64_t len_bytes);
void spw_control__offered(struct control *control, struct track *track, uint32_t slot,
			  uint64_t len_bytes, enum spw_cache_hint hint);
/* Its number among the saves of the step, by which spw_control__keeps() knows it in later ones. */
void spw_control__numbered(struct control *control, const struct track *track, uint64_t number);
/*
 * Return: whether the plan keeps the tensor that comes next in this scope, and that was the same
 * save of the step and as long: then this one has been saved as that, without a slot, and with the
 * same @hint, which is set.
 */
bool spw_control__keeps(struct control *control, uint64_t number, uint64_t len_bytes,
			struct track *track, enum spw_cache_hint *hint);
void spw_control__hinted(struct control *control, const struct track *track,
			 enum spw_cache_hint hint);
void spw_control__taken(struct control *control, const struct track *track);
/* The last user is gone; said again when the last lease is. */
void spw_control__released(struct control *control, const struct track *track, bool leased);
/* The first time, with its length. */
void spw_control__gone(struct control *control, uint64_t len_bytes);
/* The drives alone have its bytes, or host memory those of a device's, or do so no longer. */
void spw_control__stored(struct control *control, const struct track *track, bool stored);
/* Its bytes take so much memory more, or less. */
void spw_control__memory_add(struct control *control, const struct track *track, uint64_t bytes);
void spw_control__memory_sub(struct control *control, const struct track *track, uint64_t bytes);
/* The caller asks for tokens. */
void spw_control__drained(struct control *control);
/* A take waits for I/O, and does so no longer. Both return the time. */
uint64_t spw_control__wait_began(struct control *control);
uint64_t spw_control__wait_ended(struct control *control);
/* The same of a wait that was the controller's own wish. Return: how long it took. */
uint64_t spw_control__throttle_ended(struct control *control, uint64_t began_ns);

/* What the caller does now has been done in the step before; and no longer. */
void spw_control__recomputing(struct control *control, bool again);

/* ---- Events: transfers ---- */

/* Return: when; for spw_control__io_ended(). */
uint64_t spw_control__io_began(struct control *control, enum direction direction, uint64_t bytes);
/* @served: the drives have moved the bytes; else it failed, or was cancelled before. */
void spw_control__io_ended(struct control *control, enum direction direction, uint64_t bytes,
			   bool served, uint64_t began_ns);

/* What others move on the same drives: so far; and the bytes of all under way, with ours. */
struct external_traffic {
	uint64_t bytes[DIRECTIONS], in_flight_bytes;
};

/* To be told often; and before a transfer begins or ends. */
void spw_control__external_traffic(struct control *control, const struct external_traffic *others);

/* Of this step so far. */
uint64_t spw_control__step_ns(const struct control *control);

/* What each other rank has measured of the drives, before a step ends; what it was before that. */
void spw_control__ranks_forget(struct control *control);
void spw_control__rank(struct control *control, const struct spw_plan_drives *measured);

/* A write has not been cancelled: the drives were given the bytes, whatever came of it. */
void spw_control__written(struct control *control, uint64_t bytes);

/*
 * What events of devices have shown: how long streams waited, and what the bus did. From then on a
 * stall of a device is that, and no wait of the host.
 */
void spw_control__device(struct control *control, const struct spw_device_times *times);

/* Host memory in which copies of a device's tensors may stay, in all; once the bus is known. */
void spw_control__host(struct control *control, uint64_t bytes);

/*
 * A device is given a mark here. Return: its number; 0: there is no use for one. And the device has
 * come to it, by a clock of its own that stands still while it waits for copies; in their order.
 */
uint64_t spw_control__mark(struct control *control);
void spw_control__marked(struct control *control, uint64_t mark, uint64_t device_ns);

/* ---- Decisions ---- */

/* Whether the cap on wear allows it, while so much waits to be written already. */
bool spw_control__may_write(struct control *control, uint64_t waiting_bytes, uint64_t bytes);

/* A plan is in force: the step was like it so far. */
bool spw_control__follows_plan(const struct control *control);
/* Changes each time that another plan, or none, is followed: decisions may change, too. */
uint32_t spw_control__plan_number(const struct control *control);
/* What the plan in force says of a tensor of this step. Return: whether it says something. */
bool spw_control__choice(const struct control *control, const struct track *track,
			 enum spw_plan_choice *choice);
/* The plan in force knows of host memory: else what it spills may stay there as well. */
bool spw_control__plans_host(const struct control *control);
/* By the plan: how much of this step's tensors may be in memory when something is prefetched. */
uint64_t spw_control__memory_bytes(const struct control *control);
/*
 * Until when the forward pass is to wait for writes to make room; 0: not at all. While it holds
 * more than planned: until the plan is as far. From then on, if it holds more than the budget:
 * UINT64_MAX. Of @returned_bytes the owners only have not been told yet.
 */
uint64_t spw_control__throttle_until_ns(const struct control *control, uint64_t returned_bytes);
/* Without a plan: whether this step has held so much before, and the drives would be idle soon. */
bool spw_control__fits_below_peak(const struct control *control, uint64_t bytes);

/*
 * Whether the copy of a device's tensor has ended by the plan, now that the step has come so far.
 * Return: whether the plan says so.
 */
bool spw_control__copy_ends(const struct control *control, const struct track *track, bool *ended);

/* The slot of the next tensor to be used that the plan has spilled; NO_SLOT: none yet. */
uint32_t spw_control__next(struct control *control);
/* Whether it is time to read it. */
bool spw_control__next_is_due(struct control *control);
/* Whether the plan's limit has room for it, and few reads are in flight. */
bool spw_control__next_has_room(struct control *control, uint64_t bytes);
/* It needs nothing more. */
void spw_control__next_done(struct control *control);

/* @points: SPW_MEMORY_POINTS_MAX of them. Return: how many are set. */
unsigned spw_control__profile(const struct control *control, struct spw_memory_point points[]);

/* As spw_cache_explain(). */
int spw_control__explain(struct control *control, struct spw_cache_reason reasons[], unsigned count,
			 struct spw_plan_result *result);

/* The figures of the drives, and the plan in force. */
void spw_control__stats(const struct control *control, struct spw_cache_stats *stats);

#endif
