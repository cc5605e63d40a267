/* SPDX-License-Identifier: MIT */
/*
 * drives/opener.h - which living process has a drive open for writing
 *
 * When a drive is held, this tells a process that has to be ended from one that was killed, whose
 * rings the kernel still takes down and which ends by itself. It names processes and decides
 * nothing about safety: this user may not look into those of others, nor into other PID namespaces.
 */
#ifndef SPW_DRIVES_OPENER_H
#define SPW_DRIVES_OPENER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

/*
 * How long the kernel may take to release the drives of a killed process: milliseconds, and as long
 * as its last write takes.
 */
#define SPW_TEARDOWN_S_MAX 5u

/**
 * spw_opener_find - look for a process that has the device or file of @st open for writing
 * @but_fd:  a descriptor of this process that does not count; -1: none
 * @words:   "process 4711 (fio)"
 */
bool spw_opener_find(const struct stat *st, int but_fd, char *words, size_t len);

/* When SPW_TEARDOWN_S_MAX from now are over, on the clock of spw_clock_ns(). */
uint64_t spw_opener_deadline_ns(void);

/* Let 10 ms pass: nothing tells when the kernel is done. Return: false: @deadline_ns is over. */
bool spw_opener_pause(uint64_t deadline_ns);

#endif
