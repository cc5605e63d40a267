/* SPDX-License-Identifier: MIT */
/*
 * tools/ui/stop.h - let a command end in order after SIGINT, SIGTERM or SIGHUP: close what it has
 * open, print what it has found
 *
 * The first such signal is remembered, and wakes the thread that sleeps here; a second one of the
 * same kind ends the process, as by default. Only one thread may sleep.
 */
#ifndef SPW_TOOLS_UI_STOP_H
#define SPW_TOOLS_UI_STOP_H

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>

/* Catch these signals from now on, until the release. */
void tool_stop_catch(void);
void tool_stop_release(void);

/* Act as if a signal had come. */
void tool_stop(void);

/* Whether a signal came since the catch. */
bool tool_stopped(void);

/* A descriptor that is readable once a signal came, for poll(2). */
int tool_stop_fd(void);
/* poll(2) until @until_ns of the monotonic clock. Return: as poll; 0 also after a signal. */
int tool_stop_poll(struct pollfd fds[], unsigned count, uint64_t until_ns);

/* Sleep until @ns of the monotonic clock or a signal; not at all if one came before. */
void tool_stop_sleep_until(uint64_t ns);

#endif
