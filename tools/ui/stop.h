/* SPDX-License-Identifier: MIT */
/*
 * tools/ui/stop.h - an interrupt ends a command by its own hand: what it has open is closed, and
 * what it has found is printed
 *
 * The first SIGINT, SIGTERM or SIGHUP is remembered, and wakes who sleeps here; another of the same
 * kind kills, as it would without us. One thread sleeps.
 */
#ifndef SPW_TOOLS_UI_STOP_H
#define SPW_TOOLS_UI_STOP_H

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>

/* From now on, until the release. */
void tool_stop_catch(void);
void tool_stop_release(void);

/* As if one had come. */
void tool_stop(void);

/* Whether one came since the catch. */
bool tool_stopped(void);

/* Readable once one came: for who waits for other things as well. */
int tool_stop_fd(void);
/* poll(2) until @until_ns of the monotonic clock. Return: as poll; 0 also after a signal. */
int tool_stop_poll(struct pollfd fds[], unsigned count, uint64_t until_ns);

/* Until @ns of the monotonic clock, or until one comes; at once if one came. */
void tool_stop_sleep_until(uint64_t ns);

#endif
