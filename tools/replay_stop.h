/* SPDX-License-Identifier: MIT */
/*
 * tools/replay_stop.h - an interrupt ends a replay by its own hand: cache and store are closed, and nothing stays behind
 *
 * The first SIGINT, SIGTERM or SIGHUP is remembered, and wakes the replay; another of the same kind kills, as it would
 * without us. One thread replays.
 */
#ifndef SPW_TOOLS_REPLAY_STOP_H
#define SPW_TOOLS_REPLAY_STOP_H

#include <stdbool.h>
#include <stdint.h>

/* From now on, until the release. */
void replay_stop_catch(void);
void replay_stop_release(void);

/* Whether one came since the catch. */
bool replay_stopped(void);

/* Until @ns of the monotonic clock, or until one comes; at once if one came. */
void replay_stop_sleep_until(uint64_t ns);

#endif
