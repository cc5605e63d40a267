/* SPDX-License-Identifier: MIT */
/*
 * tests/vm/machine.h - for tests that run inside the virtual machine: pull a drive out of it
 *
 * The drives are named by their place in SPW_TEST_DEVICES, which is the order of
 * tests/vm/machine.py.
 */
#ifndef SPW_TESTS_VM_MACHINE_H
#define SPW_TESTS_VM_MACHINE_H

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/case.h"

#define MACHINE_MONITOR "/dev/virtio-ports/monitor"

/* What may take long in a machine without KVM on a busy host takes no longer than this. */
#define MACHINE_PATIENCE_S 100

static inline int machine_is_there(void)
{
	return access(MACHINE_MONITOR, R_OK | W_OK) == 0;
}

/* Which drive the test is to pull: SPW_VM_VICTIM, else the last of four. */
static inline unsigned machine_victim(void)
{
	const char *text = getenv("SPW_VM_VICTIM");

	return text ? (unsigned)strtoul(text, NULL, 10) : 3;
}

/* Ask QEMU to pull a drive. The machine's kernel is told and lets go of it some time later. */
static inline void machine_pull(unsigned drive)
{
	int fd = open(MACHINE_MONITOR, O_RDWR | O_CLOEXEC);
	char line[128];
	ssize_t len = snprintf(line, sizeof(line), "device_del n%u\n", drive);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, line, (size_t)len), len);
	len = read(fd, line, sizeof(line) - 1);
	assert_int_equal(close(fd), 0);
	assert_true(len > 0);
	line[len] = '\0';
	assert_string_equal(line, "ok\n");
}

/* The command that the environment names. Return: false: none. */
static inline bool machine_run(const char *name)
{
	const char *command = getenv(name);

	if (command && system(command) != 0)
		fail_msg("failed: %s", command);
	return command;
}

static inline time_t machine_seconds(void)
{
	struct timespec now;

	assert_int_equal(clock_gettime(CLOCK_MONOTONIC, &now), 0);
	return now.tv_sec;
}

/* For loops that go on until something is seen. */
static inline void machine_assert_before(time_t deadline, const char *what)
{
	if (machine_seconds() > deadline)
		fail_msg("not within %d s: %s", MACHINE_PATIENCE_S, what);
}

#endif
