/* SPDX-License-Identifier: MIT */
/*
 * drives/opener.h - find the living process that has a drive open for writing
 *
 * Distinguishes a process that the user has to end from a killed one, whose rings the kernel is
 * still tearing down. Only for messages and waiting, not for safety: processes of other users and
 * PID namespaces are not visible.
 */
#ifndef SPW_DRIVES_OPENER_H
#define SPW_DRIVES_OPENER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "util/util.h"

/* How long the kernel may take to release a killed process's drives, without writes in flight. */
#define SPW_TEARDOWN_S_MAX 5u

/* @but_fd: a descriptor of this process to ignore; or -1. @words: set to "process 7 (fio)". */
bool spw_drives__opener_find(const struct stat *st, int but_fd, char *words, size_t len);

/*
 * Wait 10 ms: there is no event to wait for. The first call, with *@deadline_ns 0, sets the
 * deadline and logs @format. Return: false: SPW_TEARDOWN_S_MAX have passed.
 */
bool spw_drives__opener_await(uint64_t *deadline_ns, const struct spw_log *log, const char *format,
			      ...) SPW_PRINTF(3, 4);

#endif
