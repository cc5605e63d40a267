/* SPDX-License-Identifier: MIT */
/*
 * drives/opener.h - which living process has a drive open for writing
 *
 * Tells a process that has to be ended from a killed one, whose rings the kernel still takes down.
 * Decides nothing about safety: other users' processes and PID namespaces are not seen.
 */
#ifndef SPW_DRIVES_OPENER_H
#define SPW_DRIVES_OPENER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "util/util.h"

/* That the kernel may take to release a killed process's drives, but for writes under way. */
#define SPW_TEARDOWN_S_MAX 5u

/* @but_fd: a descriptor of this process that does not count; -1: none. @words: "process 7 (fio)" */
bool spw_drives__opener_find(const struct stat *st, int but_fd, char *words, size_t len);

/*
 * Let 10 ms pass: nothing tells when the kernel is done. The first time, with @deadline_ns 0, sets
 * it and logs @format. Return: false: SPW_TEARDOWN_S_MAX are over since.
 */
bool spw_drives__opener_await(uint64_t *deadline_ns, const struct spw_log *log, const char *format,
			      ...) SPW_PRINTF(3, 4);

#endif
